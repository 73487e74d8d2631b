//! Reads one queue, has each notice acted on, and deletes its message once that is on record. Only the leader reads.
//!
//! - A message that stays in the queue comes again: whatever is lost here (a crash, a lost lead, a failed deletion) is
//!   told again. A message that comes twice is the same to the plan.
//! - Messages about instances that are not ours, or not yet, and lifecycle actions under others' hooks or of launches are left alone:
//!   somebody else may read the same queue. One that names others beside ours is so as well, once ours are done.
//! - What AWS has called off is told by a message of its own, which stays in the queue for as long as the one that announced it may.
//! - No message is obeyed: a lifecycle action only makes its group be read at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::time::{sleep, timeout};

use super::meaning::{Facts, Meaning, UNSHOWN, is_settled, lapses, meaning};
use super::outages::Outages;
use crate::aws::{About, AwsError, Content, Lifecycle, MESSAGES_A_CALL, Message, News, Notice};
use crate::clock::{backoff, elapsed, later, signed};
use crate::cluster::Cordon;
use crate::groups::Snapshot;
use crate::groups::hooks::HookState;
use crate::k8s::{GroupName, InstanceId};
use crate::scale_in::context::{Shared, primary};
use crate::scale_in::holds::ToldHeld;
use crate::scale_in::metrics::Handled;
use crate::scale_in::operator_queue::size;
use crate::telemetry::{RateLimit, chain};

/// While messages wait for their records, they are checked this often.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A message is hidden from other readers for this long, and for as long again when half of it is over. After a crash it
/// comes again that late, and a spot notice counts for two minutes.
const HIDDEN: Duration = Duration::from_secs(20);

/// How long a process that does not lead any more tries to give its messages back.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// No more messages are read while this many wait for their records, not counting those that may wait for their turn for days ...
const MOST: usize = 1_000;
/// ... of which there may be ten times as many.
const MOST_IN_ALL: usize = 10 * MOST;

/// Nor while this many calls are under way, each on a connection of its own: each message left to others takes one, and a queue may have
/// thousands of these.
const CALLS_AT_ONCE: usize = 50;

/// Receives at once while each brings as many messages as one can: notices of a whole account may be before those about ours.
const RECEIVES_AT_ONCE: usize = 4;

/// A message about others is hidden for the time left in which it may be of use, divided by this, between [`HIDDEN`] and
/// [`LONGEST_HIDDEN`]: it comes some 500 times in two weeks. A queue may move what is received more often to its dead letters.
const SHARE: u32 = 36;
const LONGEST_HIDDEN: Duration = Duration::from_hours(1);

/// All that others have left in the queue has come again this long after this process began to read.
const ALL_SEEN_AFTER: SignedDuration = SignedDuration::from_mins(61);

/// Least time between two receives without a message, or with none but such as should be hidden: SQS waits for one, but an endpoint that
/// does not would be asked incessantly.
const BETWEEN_EMPTY: SignedDuration = SignedDuration::from_secs(1);

/// What anybody who may send to the queue can cause is told this often at most: lines that find no room are dropped, those of drains too.
const TELL_EVERY: Duration = Duration::from_mins(1);

/// Pause after the first failed read of the queue; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Pause after the first read of a group that does not show the lifecycle action; it doubles up to the longest.
const FIRST_READ: Duration = Duration::from_millis(500);
const LAST_READ: Duration = Duration::from_secs(30);

/// What a message asks for about one instance.
#[derive(Debug)]
struct Pending {
    instance: InstanceId,
    group: GroupName,
    meaning: Meaning,
}

/// A message that waits for its record.
#[derive(Debug)]
struct Waiting {
    receipt: String,
    /// What it asks for that is not done yet.
    pending: Vec<Pending>,
    /// When AWS wrote it, by our clock.
    written_at: Timestamp,
    hidden_since: Timestamp,
    /// Until when it may be of use for others, by AWS's clock.
    for_others: Option<Timestamp>,
    /// Of which instances of ours it has told.
    ours: BTreeSet<InstanceId>,
}

/// A message that is left for others.
#[derive(Debug)]
struct Left {
    /// Of which instances of ours it has told: that is done.
    ours: BTreeSet<InstanceId>,
    /// Until when, by AWS's clock.
    until: Timestamp,
}

/// Reads of a group because of its lifecycle actions.
#[derive(Debug)]
struct Reads {
    due: Timestamp,
    count: u32,
    in_flight: bool,
}

/// The end of a call.
enum Done {
    Received(Result<Vec<Message>, AwsError>),
    /// A message about a Capacity Reservation, with its instances.
    Resolved(Message),
    /// AWS did not say which instances are in it.
    Unresolved(AwsError),
    Read(Vec<GroupName>, Result<(), AwsError>),
    /// Messages were deleted, or hidden for longer.
    Changed(Result<(), AwsError>),
}

type Calls = FuturesUnordered<BoxFuture<'static, Done>>;

/// Reads the queue while this process leads. Ends when it is to stop, once the messages have been given back.
pub(in crate::scale_in) async fn run(shared: Arc<Shared>, queue: String) {
    loop {
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            () = may_read(&shared) => {}
        }
        let mut inbox = Inbox::new(Arc::clone(&shared), queue.clone());
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => {}
            () = until_another_leads(&shared) => {}
            () = inbox.work() => {}
        }
        inbox.give_back().await;
    }
}

/// Waits until this process leads and knows the Nodes.
async fn may_read(shared: &Shared) {
    shared.nodes.synced().await;
    shared.leadership.begun().await;
}

async fn until_another_leads(shared: &Shared) {
    let mut leadership = shared.leadership.changes();
    while shared.leadership.leads() {
        tokio::select! {
            _ = leadership.changed() => {}
            () = sleep(CHECK_EVERY) => {}
        }
    }
}

struct Inbox {
    shared: Arc<Shared>,
    queue: String,
    /// Since when this process reads.
    began_at: Timestamp,
    /// By message id.
    waiting: BTreeMap<String, Waiting>,
    /// Messages about Nodes' machines, received before AWS had described any group, and when each was hidden last.
    early: Vec<(Message, Timestamp)>,
    /// By message id.
    left: BTreeMap<String, Left>,
    /// Ids of messages, and when each was received last, for as long as it should be hidden.
    handed: BTreeMap<String, Timestamp>,
    /// When instances that were no nodes of ours were last said to stop, by AWS's clock.
    stopped: BTreeMap<InstanceId, Timestamp>,
    reads: BTreeMap<GroupName, Reads>,
    calls: Calls,
    /// Receives under way.
    receiving: usize,
    /// Whether the last one brought as many messages as one can.
    was_full: bool,
    receive_at: Timestamp,
    /// When the last receive began.
    received_at: Timestamp,
    outages: Outages,
    /// Lines about malformed messages.
    malformed: RateLimit,
    /// Lines about notices that would close one node too many.
    closed_enough: RateLimit,
    /// Lines about notices that had lapsed before they came.
    lapsed: RateLimit,
}

impl Inbox {
    fn new(shared: Arc<Shared>, queue: String) -> Self {
        let receive_at = shared.clock.now();
        shared.notices.queues.begin(&queue, receive_at);
        Self {
            shared,
            queue,
            began_at: receive_at,
            waiting: BTreeMap::new(),
            early: Vec::new(),
            left: BTreeMap::new(),
            handed: BTreeMap::new(),
            stopped: BTreeMap::new(),
            reads: BTreeMap::new(),
            calls: FuturesUnordered::new(),
            receiving: 0,
            was_full: false,
            receive_at,
            received_at: receive_at,
            outages: Outages::default(),
            malformed: RateLimit::default(),
            closed_enough: RateLimit::default(),
            lapsed: RateLimit::default(),
        }
    }

    async fn work(&mut self) {
        loop {
            let now = self.shared.clock.now();
            self.take_in_early(now);
            self.receive(now);
            self.read_groups(now);
            self.settle(now);
            let pause = self.pause(now);
            tokio::select! {
                Some(done) = self.calls.next() => self.hear(done),
                () = sleep(pause) => {}
            }
        }
    }

    /// How long until something is due without an answer.
    fn pause(&self, now: Timestamp) -> Duration {
        if !self.waiting.is_empty() || !self.early.is_empty() || self.calls.len() >= CALLS_AT_ONCE {
            CHECK_EVERY
        } else if self.receiving > 0 {
            HIDDEN
        } else {
            elapsed(now, self.receive_at).max(Duration::from_millis(1))
        }
    }

    fn receive(&mut self, now: Timestamp) {
        let waiting = self.waiting.values().filter(|waiting| !waiting.may_wait(now)).count();
        let in_hand = waiting + self.early.len();
        let is_full =
            in_hand >= MOST || self.waiting.len() >= MOST_IN_ALL || self.calls.len() >= CALLS_AT_ONCE;
        if self.receive_at > now || is_full {
            return;
        }
        let at_once = if self.was_full { RECEIVES_AT_ONCE } else { 1 };
        for _ in self.receiving..at_once {
            (self.receiving, self.received_at) = (self.receiving + 1, now);
            let (aws, queue, now) = (self.shared.aws.clone(), self.queue.clone(), self.shared.clock.aws());
            self.calls.push(Box::pin(async move { Done::Received(aws.receive(&queue, HIDDEN, now).await) }));
        }
    }

    fn hear(&mut self, done: Done) {
        let now = self.shared.clock.now();
        match done {
            Done::Received(Ok(messages)) => {
                let brings_new = self.brings_new(&messages, now);
                self.receiving -= 1;
                self.was_full = brings_new && messages.len() >= MESSAGES_A_CALL;
                if !brings_new {
                    self.receive_at = self.receive_at.max(later(self.received_at, BETWEEN_EMPTY));
                }
                self.shared.notices.queues.read(&self.queue, now);
                self.outages.received(&self.queue, None);
                let (reservations, rest): (Vec<_>, Vec<_>) =
                    messages.into_iter().partition(is_about_a_reservation);
                for message in reservations {
                    self.calls.push(Box::pin(resolved(Arc::clone(&self.shared), message)));
                }
                let over = rest.into_iter().filter_map(|message| self.take_in(message, now)).collect();
                self.delete(over);
            }
            Done::Resolved(message) => {
                self.outages.resolved(&self.queue, None);
                let over = self.take_in(message, now).into_iter().collect();
                self.delete(over);
            }
            Done::Received(Err(error)) => {
                (self.receiving, self.was_full) = (self.receiving - 1, false);
                self.shared.notices.queues.failed(&self.queue, chain(&error));
                let failures = self.outages.received(&self.queue, Some(&error));
                let pause = backoff(failures, FIRST_PAUSE, LONGEST_PAUSE);
                self.receive_at = later(now, signed(pause));
            }
            Done::Read(groups, result) => {
                self.outages.read(&self.queue, result.err().as_ref());
                for group in groups {
                    if let Some(reads) = self.reads.get_mut(&group) {
                        reads.count += 1;
                        reads.in_flight = false;
                        reads.due = later(now, signed(backoff(reads.count, FIRST_READ, LAST_READ)));
                    }
                }
            }
            // It comes again.
            Done::Unresolved(error) => self.outages.resolved(&self.queue, Some(&error)),
            Done::Changed(result) => self.outages.changed(&self.queue, result.err().as_ref()),
        }
    }

    /// Whether there is a message that was not received a moment ago: some queues show messages that should be hidden.
    fn brings_new(&mut self, messages: &[Message], now: Timestamp) -> bool {
        self.handed.retain(|_, at| elapsed(*at, now) < HIDDEN);
        let is_new = |message: &Message| self.handed.insert(message.id.clone(), now).is_none();
        // All of them are noted.
        messages.iter().map(is_new).fold(false, |any, is_new| any | is_new)
    }

    /// Takes in what came before the groups were known, once they are.
    fn take_in_early(&mut self, now: Timestamp) {
        if self.early.is_empty() || self.shared.groups.latest().is_none() {
            return;
        }
        let early = std::mem::take(&mut self.early);
        let over = early.into_iter().filter_map(|(message, _)| self.take_in(message, now)).collect();
        self.delete(over);
    }

    /// Takes in a message. Returns its receipt if there is nothing more to do with it.
    fn take_in(&mut self, message: Message, now: Timestamp) -> Option<String> {
        let Some(notices) = self.notices(message.content, &message.id) else { return Some(message.receipt) };
        let aws_now = later(now, self.shared.clock.aws_ahead());
        let Some(snapshot) = self.shared.groups.latest() else {
            // A message may come again before it is hidden for longer.
            self.early.retain(|(earlier, _)| earlier.id != message.id);
            if notices.iter().any(|notice| self.is_about_a_node(notice)) {
                self.note_holds(&notices, now);
                self.early.push((Message { content: Content::Notices(notices), ..message }, now));
            } else if let Some(until) = notices.iter().map(|notice| lapses(&notice.news, notice.at)).max() {
                self.leave(message.receipt, until, aws_now);
            }
            return None;
        };
        let done = self.done(&message.id);
        let (mut pending, for_others) = self.pending_of(&notices, &done, &snapshot, now);
        let for_others = for_others.filter(|until| *until > aws_now);
        if pending.is_empty() {
            let Some(until) = for_others else {
                self.shared.metrics.handled(Handled::ignored);
                return Some(message.receipt);
            };
            tracing::debug!(
                queue = self.queue,
                message_id = message.id,
                "notice about another's instance or lifecycle hook: left in the queue"
            );
            self.shared.metrics.handled(Handled::foreign);
            self.leave(message.receipt, until, aws_now);
            return None;
        }
        let all_seen_at = later(self.began_at, ALL_SEEN_AFTER);
        for pending in &mut pending {
            if let Meaning::Expected(notice) = &mut pending.meaning {
                // The announcement may have been left in the queue by who has seen the call-off.
                notice.not_before = for_others.map(|_| all_seen_at);
            }
            self.note(&message.id, pending, now);
        }
        self.shared.metrics.handled(Handled::taken);
        let ahead = self.shared.clock.aws_ahead();
        let written_at = notices.iter().map(|notice| later(notice.at, -ahead)).min().unwrap_or(now);
        let ours = pending.iter().map(|new| new.instance.clone()).chain(done).collect();
        let receipt = message.receipt;
        // Others are to hear of it before ours are done. What is urgent comes again as soon as any, after a crash too.
        if let Some(until) = for_others.filter(|_| pending.iter().all(|it| it.meaning.may_wait(now))) {
            self.leave(receipt.clone(), until, aws_now);
        }
        // It may have come before, and some of its instances be seen no more: what was noted of those is to be settled all the same.
        let before = self.waiting.remove(&message.id).into_iter().flat_map(|before| before.pending);
        let is_unseen = |before: &Pending| pending.iter().all(|new| new.instance != before.instance);
        let unseen: Vec<_> = before.filter(is_unseen).collect();
        let pending = pending.into_iter().chain(unseen).collect();
        let waiting = Waiting { receipt, pending, written_at, hidden_since: now, for_others, ours };
        self.waiting.insert(message.id, waiting);
        None
    }

    /// Whether a notice is about the machine of a Node, whose group is ours, or another installation's in the cluster.
    fn is_about_a_node(&self, notice: &Notice) -> bool {
        let has_node = |instance| !self.shared.nodes.of_instance(instance).is_empty();
        matches!(&notice.about, About::Instance(instance) if has_node(instance)) && !self.is_anothers(notice)
    }

    /// Whether the notice tells of another's hook: its token is for the hook's owner, and refreshes show what is held.
    fn is_anothers(&self, notice: &Notice) -> bool {
        match &notice.news {
            News::LifecycleAction { hook, .. } => hook != self.shared.hooks.name(),
            News::OtherTransition => true,
            _ => false,
        }
    }

    /// Notes which machines of Nodes our hook holds, by notices that come while AWS has described no groups: they need heartbeats.
    fn note_holds(&self, notices: &[Notice], now: Timestamp) {
        let ahead = self.shared.clock.aws_ahead();
        for notice in notices.iter().filter(|notice| self.is_about_a_node(notice)) {
            if let (About::Instance(instance), News::LifecycleAction { group, .. }) =
                (&notice.about, &notice.news)
            {
                let since = later(notice.at, -ahead).min(now);
                let until = later(lapses(&notice.news, notice.at), -ahead).min(later(now, UNSHOWN));
                let told = ToldHeld { group: group.clone(), since, until };
                self.shared.holds.note_told_held(instance, told, now);
            }
        }
    }

    /// What notices ask for about instances of ours, but for those about which all is `done`, and until when they may be of use for others.
    fn pending_of(
        &mut self,
        notices: &[Notice],
        done: &BTreeSet<InstanceId>,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> (Vec<Pending>, Option<Timestamp>) {
        let mut for_others = None;
        let mut pending: Vec<Pending> = Vec::new();
        for notice in notices {
            let About::Instance(instance) = &notice.about else { continue };
            let is_anothers = self.is_anothers(notice);
            let group = group_of(snapshot, instance, &notice.news).filter(|_| !is_anothers);
            let Some(group) = group.filter(|_| !self.has_started_since(notice, instance, snapshot)) else {
                // Where a Node of ours had it, the instance has gone.
                if is_anothers || self.shared.nodes.gone_for(instance).is_none() {
                    for_others = for_others.max(Some(lapses(&notice.news, notice.at)));
                }
                if notice.news == News::StateChange {
                    let at = self.stopped.entry(instance.clone()).or_insert(notice.at);
                    *at = notice.at.max(*at);
                }
                continue;
            };
            if matches!(notice.news, News::ScheduledEvent { is_over: true, event: Some(_), .. }) {
                for_others = for_others.max(Some(lapses(&notice.news, notice.at)));
            }
            if done.contains(instance) {
                continue;
            }
            let meaning = self.meaning(notice, &group, snapshot, now);
            if meaning.is_none() {
                self.tell_lapsed(notice, instance, &group, now);
            }
            let meaning = meaning
                .filter(|meaning| !self.closes_too_many(meaning, instance, &group, snapshot, &pending));
            if let Some(meaning) = meaning {
                pending.push(Pending { instance: instance.clone(), group, meaning });
            }
        }
        (pending, for_others)
    }

    /// Tells of a notice about the machine of a Node that has lapsed, unless nothing is lost with it: refreshes show what our hook holds, and
    /// what was called off is over.
    fn tell_lapsed(&mut self, notice: &Notice, instance: &InstanceId, group: &GroupName, now: Timestamp) {
        let is_no_loss =
            matches!(notice.news, News::LifecycleAction { .. } | News::ScheduledEvent { is_over: true, .. });
        let lapsed_at = lapses(&notice.news, notice.at);
        let has_lapsed = lapsed_at <= later(now, self.shared.clock.aws_ahead());
        if has_lapsed
            && !is_no_loss
            && self.is_about_a_node(notice)
            && let Some(suppressed) = self.lapsed.allow(TELL_EVERY)
        {
            tracing::info!(
                instance = instance.as_str(),
                group = group.as_str(),
                news = ?notice.news,
                told_at = %notice.at,
                %lapsed_at,
                suppressed,
                "notice ignored: it has lapsed"
            );
        }
    }

    /// Whether the instance was started after AWS reported its stop: its group took it out of the warm pool, whose stops do not matter.
    /// Without a pool, a stop counts whatever descriptions have shown.
    fn has_started_since(&self, notice: &Notice, instance: &InstanceId, snapshot: &Snapshot) -> bool {
        let pooled = snapshot.instance(instance).filter(|(group, _)| group.asg.warm_pool.is_some());
        let was_in_it = || self.stopped.get(instance).is_some_and(|at| notice.at <= *at);
        let is_out = |lifecycle| lifecycle == Lifecycle::Pending || was_in_it();
        notice.news == News::StateChange && pooled.is_some_and(|(_, found)| is_out(found.lifecycle))
    }

    /// The instances about which everything is done that the message asks for. It may have come again.
    fn done(&self, message: &str) -> BTreeSet<InstanceId> {
        let mut done = self.left.get(message).map(|left| left.ours.clone()).unwrap_or_default();
        if let Some(Waiting { ours, pending, .. }) = self.waiting.get(message) {
            let is_over = |id: &&InstanceId| pending.iter().all(|pending| pending.instance != **id);
            done.extend(ours.iter().filter(is_over).cloned());
        }
        done
    }

    /// What a message tells; `None` if it can go.
    fn notices(&mut self, content: Content, message: &str) -> Option<Vec<Notice>> {
        match content {
            Content::Notices(notices) => Some(notices),
            Content::Nothing(what) => {
                tracing::debug!(
                    queue = self.queue,
                    message_id = message,
                    what,
                    "message ignored: it ends no instance"
                );
                self.shared.metrics.handled(Handled::ignored);
                None
            }
            Content::Malformed(why) => {
                if let Some(suppressed) = self.malformed.allow(TELL_EVERY) {
                    tracing::warn!(
                        queue = self.queue,
                        message_id = message,
                        why,
                        suppressed,
                        "message deleted: not a notice from AWS"
                    );
                }
                self.shared.metrics.handled(Handled::malformed);
                None
            }
        }
    }

    fn meaning(
        &self,
        notice: &Notice,
        group: &GroupName,
        snapshot: &Snapshot,
        now: Timestamp,
    ) -> Option<Meaning> {
        let ahead = self.shared.clock.aws_ahead();
        let hook = self.shared.hooks.state(group);
        let group = &snapshot.groups.get(group)?.asg;
        let at = later(notice.at, -ahead);
        meaning(&by_our_clock(&notice.news, -ahead), at, group, &hook, &self.shared.settings, now)
    }

    /// Whether a notice would close one node more than a group is to have closed for notices at once, beside what is `pending` of its message:
    /// recommendations often come for all spot nodes together, and one event may name a whole group weeks ahead.
    fn closes_too_many(
        &mut self,
        meaning: &Meaning,
        instance: &InstanceId,
        group: &GroupName,
        snapshot: &Snapshot,
        pending: &[Pending],
    ) -> bool {
        let (Meaning::Expected(notice), Some(of)) = (meaning, snapshot.groups.get(group)) else {
            return false;
        };
        if !meaning.closes() {
            return false;
        }
        let pending = self.waiting.values().flat_map(|waiting| &waiting.pending).chain(pending);
        let to_close: BTreeSet<_> = pending.filter(|it| it.meaning.closes()).map(|it| &it.instance).collect();
        let cluster_now = self.shared.clock.cluster();
        let is_closed = |id: &InstanceId| {
            let node = primary(&self.shared.nodes, id).filter(|node| node.scale_in().is_none());
            let cordon = node.and_then(|node| node.cordon.clone());
            let mut reasons = cordon.iter().flat_map(Cordon::reasons);
            reasons.any(|reason| reason.until > cluster_now) || to_close.contains(id)
        };
        let others = of.asg.live().map(|other| &other.id).filter(|other| *other != instance);
        let closed = others.filter(|other| is_closed(other)).count();
        let too_many = closed >= self.shared.settings.operator_at_once.of(size(&of.asg));
        if too_many && let Some(suppressed) = self.closed_enough.allow(TELL_EVERY) {
            tracing::info!(
                instance = instance.as_str(),
                group = group.as_str(),
                cause = %notice.expected.cause,
                closed,
                suppressed,
                "notice ignored: enough nodes of the group are cordoned for others (--max-operator-scale-ins)"
            );
        }
        too_many
    }

    /// Has a notice acted on.
    fn note(&mut self, id: &str, pending: &Pending, now: Timestamp) {
        let Pending { instance, group, meaning } = pending;
        match meaning {
            Meaning::Held { since, until } => {
                let told = ToldHeld { group: group.clone(), since: *since, until: *until };
                self.shared.holds.note_told_held(instance, told, now);
                let reads = Reads { due: now, count: 0, in_flight: false };
                let reads = self.reads.entry(group.clone()).or_insert(reads);
                // The same message once more tells nothing new.
                if !self.waiting.contains_key(id) {
                    reads.due = now;
                }
            }
            Meaning::Expected(notice) => {
                let is_new = self.shared.notices.expect(instance, id, notice.clone());
                if is_new {
                    tracing::info!(instance = instance.as_str(), group = group.as_str(), cause = %notice.expected.cause, event = notice.event, "notice from AWS");
                }
            }
        }
    }

    /// Reads the groups whose lifecycle actions no refresh has shown yet.
    fn read_groups(&mut self, now: Timestamp) {
        let wanted: BTreeSet<&GroupName> = self
            .waiting
            .values()
            .flat_map(|waiting| &waiting.pending)
            .filter(|pending| matches!(pending.meaning, Meaning::Held { .. }))
            .map(|pending| &pending.group)
            .collect();
        self.reads.retain(|group, reads| reads.in_flight || wanted.contains(group));
        let due: Vec<GroupName> = self
            .reads
            .iter_mut()
            .filter(|(_, reads)| !reads.in_flight && reads.due <= now)
            .map(|(group, reads)| {
                reads.in_flight = true;
                group.clone()
            })
            .collect();
        if !due.is_empty() {
            let shared = Arc::clone(&self.shared);
            self.calls.push(Box::pin(async move {
                let result = read_groups_now(&shared, &due).await;
                Done::Read(due, result)
            }));
        }
    }

    /// Deletes the messages whose records are written, and keeps the others hidden.
    fn settle(&mut self, now: Timestamp) {
        let shared = Arc::clone(&self.shared);
        for (id, waiting) in &mut self.waiting {
            waiting.pending.retain(|Pending { instance, meaning, .. }| {
                let is_called_off =
                    matches!(meaning, Meaning::Expected(_)) && !shared.notices.counts(instance, id);
                let is_over = is_called_off || is_over(meaning, &shared, instance, now);
                if is_over {
                    shared.notices.forget(instance, id);
                }
                !is_over
            });
        }
        let aws_now = later(now, shared.clock.aws_ahead());
        self.left.retain(|_, left| left.until > aws_now);
        self.stopped.retain(|_, at| lapses(&News::StateChange, *at) > aws_now);
        self.delete_or_release_settled_messages(aws_now);
        let others = self.waiting.values().filter(|waiting| !waiting.may_wait(now));
        let oldest = others.map(|waiting| waiting.written_at).min();
        let kept = self.waiting.values().filter(|waiting| !waiting.calls_off()).count();
        shared.notices.queues.wait(&self.queue, kept, oldest);
        self.keep_hidden(now);
    }

    /// Deletes the messages with which everything is done, or leaves them for others.
    fn delete_or_release_settled_messages(&mut self, aws_now: Timestamp) {
        let is_done = |_: &String, waiting: &mut Waiting| waiting.pending.is_empty();
        let done: Vec<_> = self.waiting.extract_if(.., is_done).collect();
        let mut over = Vec::new();
        for (id, Waiting { receipt, ours, for_others, .. }) in done {
            match for_others.filter(|until| *until > aws_now) {
                Some(until) => {
                    self.left.insert(id, Left { ours, until });
                    self.leave(receipt, until, aws_now);
                }
                None => over.push(receipt),
            }
        }
        self.delete(over);
    }

    /// Hides the messages that wait, and are for nobody else, before others see them again.
    fn keep_hidden(&mut self, now: Timestamp) {
        let is_due = |waiting: &&mut Waiting| {
            waiting.for_others.is_none() && elapsed(waiting.hidden_since, now) >= HIDDEN / 2
        };
        let due = self.waiting.values_mut().filter(is_due).map(|waiting| {
            waiting.hidden_since = now;
            waiting.receipt.clone()
        });
        let is_early_due = |early: &&mut (Message, Timestamp)| elapsed(early.1, now) >= HIDDEN / 2;
        let early_due = self.early.iter_mut().filter(is_early_due).map(|(message, hidden_since)| {
            *hidden_since = now;
            message.receipt.clone()
        });
        let due: Vec<String> = due.chain(early_due).collect();
        if !due.is_empty() {
            let (aws, queue) = (self.shared.aws.clone(), self.queue.clone());
            self.calls
                .push(Box::pin(async move { Done::Changed(aws.keep_messages(&queue, &due, HIDDEN).await) }));
        }
    }

    /// Leaves a message in the queue, which may be of use to others until then.
    fn leave(&mut self, receipt: String, until: Timestamp, aws_now: Timestamp) {
        let hidden = (elapsed(aws_now, until) / SHARE).min(LONGEST_HIDDEN);
        if hidden > HIDDEN {
            let (aws, queue) = (self.shared.aws.clone(), self.queue.clone());
            self.calls.push(Box::pin(async move {
                Done::Changed(aws.keep_messages(&queue, &[receipt], hidden).await)
            }));
        }
    }

    fn delete(&mut self, receipts: Vec<String>) {
        if receipts.is_empty() {
            return;
        }
        let (aws, queue) = (self.shared.aws.clone(), self.queue.clone());
        self.calls.push(Box::pin(async move { Done::Changed(aws.delete_messages(&queue, &receipts).await) }));
    }

    /// Another process leads, or is to: it gets the messages at once.
    async fn give_back(&mut self) {
        self.shared.notices.queues.forget(&self.queue);
        let early = std::mem::take(&mut self.early);
        let mut receipts: Vec<_> = early.into_iter().map(|(message, _)| message.receipt).collect();
        for (id, waiting) in std::mem::take(&mut self.waiting) {
            for pending in waiting.pending {
                self.shared.notices.forget(&pending.instance, &id);
            }
            receipts.push(waiting.receipt);
        }
        // Otherwise they come again when they are hidden no more.
        let _ = timeout(GIVE_BACK, self.make_visible(receipts)).await;
    }

    /// Makes messages visible. Reads that are under way get them once more, if nobody else reads, and none follows these.
    async fn make_visible(&mut self, mut receipts: Vec<String>) {
        while !receipts.is_empty() {
            let given = self.shared.aws.keep_messages(&self.queue, &receipts, Duration::ZERO).await;
            receipts.clear();
            while self.receiving > 0 && receipts.is_empty() && given.is_ok() {
                let Some(done) = self.calls.next().await else { return };
                if let Done::Received(received) = done {
                    self.receiving -= 1;
                    receipts = received.into_iter().flatten().map(|message| message.receipt).collect();
                }
            }
        }
    }
}

impl Waiting {
    /// Whether it asks for nothing any more, and is kept for what may come again.
    fn calls_off(&self) -> bool {
        self.pending.iter().all(|pending| pending.meaning.is_call_off())
    }

    /// Whether all that it asks for may wait for its turn.
    fn may_wait(&self, now: Timestamp) -> bool {
        self.pending.iter().all(|pending| pending.meaning.may_wait(now))
    }
}

fn is_about_a_reservation(message: &Message) -> bool {
    let Content::Notices(notices) = &message.content else { return false };
    notices.iter().any(|notice| matches!(notice.about, About::CapacityReservation(_)))
}

/// The message with the instances of its Capacity Reservations.
async fn resolved(shared: Arc<Shared>, mut message: Message) -> Done {
    let Content::Notices(notices) = &mut message.content else { return Done::Resolved(message) };
    let mut of_instances = Vec::new();
    for notice in std::mem::take(notices) {
        let About::CapacityReservation(reservation) = &notice.about else {
            of_instances.push(notice);
            continue;
        };
        match shared.aws.instances_of_reservation(reservation).await {
            Ok(instances) => {
                let about = instances.into_iter().map(About::Instance);
                of_instances.extend(about.map(|about| Notice { about, ..notice.clone() }));
            }
            Err(error) => return Done::Unresolved(error),
        }
    }
    *notices = of_instances;
    Done::Resolved(message)
}

/// The group of a notice's instance, if it is ours.
fn group_of(snapshot: &Snapshot, instance: &InstanceId, news: &News) -> Option<GroupName> {
    if let Some((group, _)) = snapshot.instance(instance) {
        return Some(group.asg.name.clone());
    }
    match news {
        News::LifecycleAction { group, .. } if snapshot.groups.contains_key(group) => Some(group.clone()),
        _ => None,
    }
}

/// The news with its moments moved by `by`.
fn by_our_clock(news: &News, by: SignedDuration) -> News {
    let moved = |moment| later(moment, by);
    match news.clone() {
        News::ScheduledEvent { event, starts, ends, is_over } => {
            News::ScheduledEvent { event, starts: starts.map(moved), ends: ends.map(moved), is_over }
        }
        News::CapacityEnds(ends) => News::CapacityEnds(moved(ends)),
        other => other,
    }
}

/// Whether the message's business with this instance is over.
fn is_over(meaning: &Meaning, shared: &Shared, instance: &InstanceId, now: Timestamp) -> bool {
    let Some(snapshot) = shared.groups.latest() else { return false };
    let found = snapshot.instance(instance);
    let hook = found.map(|(group, _)| shared.hooks.state(&group.asg.name));
    let node = primary(&shared.nodes, instance);
    let facts = Facts {
        now,
        ahead: shared.clock.cluster_ahead(),
        lifecycle: found.map(|(_, instance)| instance.lifecycle),
        hook: hook.as_ref().unwrap_or(&HookState::Unknown),
        has_gone: shared.nodes.gone_for(instance).is_some(),
        node: node.as_deref(),
    };
    is_settled(meaning, &facts)
}

/// Reads these groups and lays over the snapshot what they show of leaving instances, and of the size that these went for. The next refresh
/// shows the rest.
async fn read_groups_now(shared: &Shared, groups: &[GroupName]) -> Result<(), AwsError> {
    let at = shared.clock.now();
    for group in shared.aws.describe_groups_now(groups).await? {
        let mut group = shared.protection.brought_up_to_date(group);
        let Some(view) = shared.groups.latest() else { continue };
        // The size of one that is not selected any more is that of what is left of it.
        if let Some(seen) = view.groups.get(&group.name).filter(|_| !shared.selectors.selects(&group)) {
            group.desired = seen.asg.desired;
        }
        shared.groups.learn(&view, &group, at, shared.clock.now());
    }
    shared.groups.refresh_soon();
    Ok(())
}
