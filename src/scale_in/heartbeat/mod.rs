//! Heartbeats for instances that a lifecycle hook of ours holds in Terminating:Wait (or another :Wait state with a
//! terminating hook), each at two fifths to half of the hook's time-out. Many that are due at once are sent one after the other ([`pace`]).
//!
//! Works from what AWS describes: it goes on while the API server is down and before a restarted program has seen a Node. Where descriptions
//! are missing or late, the records of Nodes, messages and heartbeats that AWS takes say what is held. If an instance has no
//! Node, its hook is completed once nothing runs on it any more ([`nodeless`]); if its group retains it, it is terminated then, as nobody
//! else would end it. This module also finds out since when each instance is held ([`since`]), from which deadlines
//! count, whatever the record says, and when a hold ends because AWS accepts no heartbeats.

mod held;
mod pace;
mod since;

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use tokio::time::timeout;

use self::held::{
    Done, DueInstance, FAILS_AFTER, Fate, Held, HoldEvidence, OPEN_BY_THEN, Sightings, Step, UNSEEN_AFTER,
    again_after, hear, interval, observe, presume, questions_due,
};
use self::pace::{Pace, begins_by};
use self::since::{Question, ask};
use super::context::{Shared, is_without_node, our_limit};
use super::deadline::{self, HeldBy};
use super::holds::{Hold, ToldHeld, as_no_active_hook};
use super::joined::Joined;
use super::nodeless::{self, EarlierNode};
use super::record::{Record, Release};
use super::terminate;
use crate::aws::{AwsError, Hook, Lifecycle, SHORTEST_HEARTBEAT};
use crate::clock::{elapsed, later, signed};
use crate::cluster::NodeView;
use crate::groups::Snapshot;
use crate::groups::hooks::TerminatingHooks;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::{Outage, chain};

/// Pause before looking again at an instance whose hook was not to be completed any more.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// Pause at most after a heartbeat that AWS refuses for good, such as for lack of a right; with a short time-out, after an eighth of that.
/// The right may come meanwhile.
const REFUSED: SignedDuration = SignedDuration::from_secs(15);

/// AWS shows an instance as held before its hook takes heartbeats: try again after this time, for [`OPEN_BY_THEN`].
///
/// Source: [PrairieLearn#15586](https://github.com/PrairieLearn/PrairieLearn/pull/15586).
const NOT_OPEN: SignedDuration = SignedDuration::from_secs(5);

/// Longest wait for a look-up of the hooks before a first heartbeat.
const LOOK_UP: Duration = Duration::from_secs(1);

/// A list of Nodes that takes longer is waited for with heartbeats.
const LISTED_WITHIN: Duration = Duration::from_secs(1);

/// The instance is not ours to hold now, or lists do not say whether it has a Node: tried again after this time. Half the shortest time-out AWS allows, as our hook
/// may have been added since the last refresh.
const FOREIGN: SignedDuration = SignedDuration::from_secs(15);

/// A retained instance that was terminated is shown so by then.
const ENDED_BY_THEN: SignedDuration = SignedDuration::from_secs(30);

/// Before the first description, the records of Nodes are looked at this often.
const RECORDS: SignedDuration = SignedDuration::from_secs(1);

/// Held instances of a group share one look-up of its hooks if it is no older than this.
const RECENT: Duration = Duration::from_secs(10);

/// At most this many groups are asked about at once.
const QUESTIONS_AT_ONCE: usize = 4;

/// What comes this soon after a look at all held instances is taken in by one further look: of one or another of hundreds, something comes all
/// the time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_millis(100);

/// Sends heartbeats and completes hooks, for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut held: BTreeMap<InstanceId, Held> = BTreeMap::new();
    let mut running: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    let mut groups = shared.groups.versions();
    let mut hooks = shared.hooks.versions();
    let mut messages = shared.holds.messages();
    let mut leadership = shared.leadership.changes();
    let mut before: Option<Arc<Snapshot>> = None;
    let mut joined = Joined::default();
    let mut sightings = Sightings::default();
    let mut failing = Failing::default();
    let mut calls = Calls::default();
    loop {
        let now = shared.clock.now();
        let unseen_from = if let Some(snapshot) = shared.groups.latest() {
            if before.as_ref().is_none_or(|before| !Arc::ptr_eq(before, &snapshot)) {
                sightings.observe(before.as_deref(), &snapshot);
                shared.metrics.keep_groups(|group| snapshot.knows(group));
                let is_there = |group: &GroupName| snapshot.still_knows(group, before.as_deref());
                shared.holds.keep_groups(is_there);
                joined.keep_groups(is_there);
            }
            joined.observe(&shared, &snapshot);
            let lasts = |group: &GroupName| shared.hooks.last_seen(group).map(|hook| hook.heartbeat_timeout);
            let said = said(&shared, now);
            let unseen_from = observe(&mut held, before.as_deref(), &snapshot, &sightings, lasts, &said, now);
            failing.forget_all_but(&held);
            before = Some(snapshot);
            unseen_from
        } else {
            presume_all(&shared, &mut held, now);
            Some(later(now, RECORDS))
        };
        let known = held.iter().filter(|(_, held)| held.lifecycle != Lifecycle::Retained && held.counts(now));
        let known = known.filter_map(|(instance, held)| {
            let is_so = |since| !is_kept(&shared, &held.group) && fails_for_all(&shared, since);
            let ends = held.ends(now).filter(|_| held.fails_since().is_some_and(is_so));
            let (at_the_latest, is_renewed) = (held.at_the_latest, held.is_renewed);
            Some((instance.clone(), Hold { since: held.since?, at_the_latest, ends, is_renewed }))
        });
        shared.holds.publish(known.collect());
        // Every replica does: the leader may be cut off from AWS, or may just have died.
        ask_what_is_due(&shared, &mut held, &mut calls, &running, now);
        let turn = start_what_is_due(&shared, &mut held, &mut joined, &failing, &mut calls, &running, now);
        // What is due and has not begun waits for its turn, or for a call to end.
        let wakes = held.values().flat_map(|held| held.wakes_at(now)).filter(|at| *at > now);
        let next = wakes.chain(unseen_from).chain(turn).min();
        let mut is_news = false;
        while !is_news || shared.clock.now() < later(now, LOOK_AGAIN) {
            tokio::select! {
                biased;
                Some(done) = running.next() => {
                    calls.ended(&done);
                    failing.tell(&done, shared.clock.now());
                    hear(&mut held, done, shared.clock.now());
                }
                Ok(()) = groups.changed() => {}
                Ok(()) = messages.changed() => {}
                Ok(()) = hooks.changed() => keep_pace(&shared, &mut held),
                Ok(()) = leadership.changed() => {}
                () = shared.clock.sleep_until_some(next), if !is_news => {}
                () = shared.clock.sleep_until(later(now, LOOK_AGAIN)), if is_news => {}
            }
            is_news = true;
        }
    }
}

/// Calls under way.
#[derive(Debug, Default)]
struct Calls {
    pace: Pace,
    questions: usize,
}

impl Calls {
    fn ended(&mut self, done: &Done) {
        match done {
            Done::Step { .. } => self.pace.ended(),
            Done::Asked { .. } => self.questions = self.questions.saturating_sub(1),
        }
    }
}

/// What AWS does not take or answer: told when that has lasted, now and then while it goes on, and when it ends.
#[derive(Debug, Default)]
struct Failing {
    /// Instances whose heartbeats, completions or terminations fail, and since when.
    steps: BTreeMap<InstanceId, (Timestamp, Outage)>,
    /// Groups of whose instances AWS does not say since when they are held.
    questions: BTreeMap<GroupName, Outage>,
}

impl Failing {
    /// Since when steps for the instance fail, if the last one did.
    fn since(&self, instance: &InstanceId) -> Option<Timestamp> {
        self.steps.get(instance).map(|(began, _)| *began)
    }

    fn forget_all_but(&mut self, held: &BTreeMap<InstanceId, Held>) {
        self.steps.retain(|instance, _| held.contains_key(instance));
        self.questions.retain(|group, _| held.values().any(|held| held.group == *group));
    }

    fn tell(&mut self, done: &Done, now: Timestamp) {
        match done {
            Done::Step { one, step, pause, error } => self.tell_step(*step, one, *pause, error.as_ref(), now),
            Done::Asked { group, instances, answer } => {
                self.tell_question(group, instances.len(), answer.as_ref().err());
            }
        }
    }

    fn tell_step(
        &mut self,
        step: Step,
        one: &DueInstance,
        pause: SignedDuration,
        error: Option<&AwsError>,
        now: Timestamp,
    ) {
        let (group, instance) = (one.group.as_str(), one.instance.as_str());
        let is_termination = step == Step::Terminate;
        let Some(error) = error else {
            let lasted = self.steps.remove(&one.instance).and_then(|(_, mut outage)| outage.recovered());
            // That one is terminated is told anyway.
            if let Some(outage_seconds) = lasted.filter(|_| !is_termination) {
                tracing::info!(
                    group,
                    instance,
                    outage_seconds,
                    "heartbeat or completion of the lifecycle hook works again"
                );
            }
            return;
        };
        let (began, outage) = self.steps.entry(one.instance.clone()).or_insert((now, Outage::default()));
        if may_be_taken_yet(error, Some(*began), now) {
            return;
        }
        let Some(outage_seconds) = outage.failed() else { return };
        let again_seconds = pause.as_secs();
        if is_termination {
            tracing::warn!(group, instance, outage_seconds, again_seconds, error = %chain(error), "termination of a retained instance failed, and is tried again");
        } else {
            tracing::warn!(group, instance, outage_seconds, again_seconds, error = %chain(error), "heartbeat or completion of the lifecycle hook failed, and is tried again");
        }
    }

    fn tell_question(&mut self, group: &GroupName, instances: usize, error: Option<&AwsError>) {
        let name = group.as_str();
        let Some(error) = error else {
            if let Some(outage_seconds) =
                self.questions.remove(group).and_then(|mut outage| outage.recovered())
            {
                tracing::info!(
                    group = name,
                    outage_seconds,
                    "AWS reports again when holds in the group began"
                );
            }
            return;
        };
        if let Some(outage_seconds) = self.questions.entry(group.clone()).or_default().failed() {
            tracing::warn!(
                group = name,
                instances,
                outage_seconds,
                error = %chain(error),
                "AWS does not report when holds in the group began: asking again"
            );
        }
    }
}

/// Whether what has failed since `began` is only tried again yet: each is a single attempt, and AWS throttles one now and then.
fn may_be_taken_yet(error: &AwsError, began: Option<Timestamp>, now: Timestamp) -> bool {
    error.is_transient() && began.is_none_or(|began| elapsed(began, now) < FAILS_AFTER)
}

/// Whether heartbeats that have failed since this moment would fail from every replica: AWS has answered this one since, or did not
/// answer it even when it began to lead, or there is no other.
fn fails_for_all(shared: &Shared, since: Timestamp) -> bool {
    let is_answered = shared.groups.latest().is_some_and(|snapshot| snapshot.taken_at > since);
    let leads_since = shared.leadership.leads_since();
    let led_unanswered = shared.groups.undescribed_since().is_some_and(|began| began < leads_since);
    is_answered || led_unanswered || shared.leadership.is_alone()
}

/// Whether the group keeps an instance whose hook times out.
fn is_kept(shared: &Shared, group: &GroupName) -> bool {
    let snapshot = shared.groups.latest();
    let retains = snapshot.and_then(|all| Some(all.groups.get(group)?.asg.retains)).unwrap_or_default();
    retains && shared.hooks.last_seen(group).is_some_and(|hook| hook.abandons)
}

/// Asks since when instances are held.
fn ask_what_is_due(
    shared: &Arc<Shared>,
    held: &mut BTreeMap<InstanceId, Held>,
    calls: &mut Calls,
    running: &FuturesUnordered<BoxFuture<'static, Done>>,
    now: Timestamp,
) {
    for (group, questions) in questions_due(held, QUESTIONS_AT_ONCE.saturating_sub(calls.questions), now) {
        calls.questions += 1;
        running.push(ask_since(Arc::clone(shared), group, questions).boxed());
    }
}

/// Starts heartbeats, completions and terminations that are due and whose turn it is. Returns when that of the others comes.
fn start_what_is_due(
    shared: &Arc<Shared>,
    held: &mut BTreeMap<InstanceId, Held>,
    joined: &mut Joined,
    failing: &Failing,
    calls: &mut Calls,
    running: &FuturesUnordered<BoxFuture<'static, Done>>,
    now: Timestamp,
) -> Option<Timestamp> {
    let mut due: Vec<_> = held
        .iter_mut()
        .filter_map(|(instance, held)| {
            let step = due_step(shared, joined, instance, held, now)?;
            let timeout = shared.hooks.last_seen(&held.group).map_or(SHORTEST_HEARTBEAT, |hook| {
                timeout_of_hold(shared, instance, held.since, &hook).min(hook.heartbeat_timeout)
            });
            let lapses = held.lapses(timeout);
            Some((begins_by(held.next, lapses, timeout), lapses, instance, held, step))
        })
        .collect();
    // Of several, first those of which nothing is known.
    due.sort_by_key(|(by, lapses, ..)| (*by, *lapses));
    let by: Vec<_> = due.iter().map(|(by, ..)| *by).collect();
    let (begin, turn) = calls.pace.begin(&by, now);
    for (_, _, instance, held, step) in due.into_iter().take(begin) {
        held.begin(step);
        // A presumed hold gets its next heartbeat soon enough.
        let is_new = !held.is_presumed && now < held.seen + OPEN_BY_THEN;
        let fails_since = failing.since(instance);
        let (group, instance) = (held.group.clone(), instance.clone());
        let is_on_record = held.is_presumed && shared.groups.latest().is_none();
        let one = DueInstance {
            group,
            instance,
            since: held.since,
            renewed: held.renewed,
            too_early: None,
            ends: None,
            fails_since,
            is_new,
            may_be_early: held.is_presumed && held.renewed.is_none(),
            is_sure: (!held.is_presumed || is_on_record) && held.lifecycle == Lifecycle::TerminatingWait,
        };
        running.push(send(Arc::clone(shared), one, step).boxed());
    }
    turn
}

/// What is to be sent for a held instance now, if anything.
fn due_step(
    shared: &Shared,
    joined: &mut Joined,
    instance: &InstanceId,
    held: &mut Held,
    now: Timestamp,
) -> Option<Step> {
    let fate = fate(shared, joined, instance, held, now);
    if held.plan_to_let_go(fate.ends_at(), now) && !joined.may_be_unidentified(shared, &held.group, instance)
    {
        tell_of_a_wait(shared, instance, held, fate, now);
    }
    if !held.is_due(now) {
        return None;
    }
    let step = if fate == Fate::LeftAlone { None } else { held.step(now) };
    if step.is_none() {
        held.next = now + FOREIGN;
    }
    step
}

/// Tells for how long an instance is held that has no Node: nobody else says why its hook is not completed.
fn tell_of_a_wait(shared: &Shared, instance: &InstanceId, held: &Held, fate: Fate, now: Timestamp) {
    // A launching hook may hold it on its first way into the warm pool.
    if held.lifecycle.is_warm() && held.renewed.is_none() {
        return;
    }
    let Some(until) = fate.ends_at().filter(|until| *until > now) else { return };
    let why = match earlier_node(shared, instance, held, now) {
        EarlierNode::Gone(_) => "its Node was deleted, and the containers of its pods may run on",
        EarlierNode::NeverJoined => "it has just been launched, and may still register",
        EarlierNode::Unknown => "it may have had a Node before this process ran",
    };
    tracing::info!(
        group = held.group.as_str(),
        instance = instance.as_str(),
        until = %later(until, shared.clock.cluster_ahead()),
        why,
        "an instance without a Node is held, and is released at `until`"
    );
}

async fn ask_since(shared: Arc<Shared>, group: GroupName, questions: Vec<Question>) -> Done {
    let answer = ask(&shared.aws, &shared.clock, &group, &questions).await;
    Done::Asked { group, instances: questions.into_iter().map(|held| held.instance).collect(), answer }
}

async fn send(shared: Arc<Shared>, mut one: DueInstance, step: Step) -> Done {
    let is_doubtful = step == Step::Complete && !is_certainly_without_node(&shared, &mut one).await;
    let step = if is_doubtful { Step::Heartbeat } else { step };
    let (pause, error) = if step == Step::Terminate {
        match terminate::retained(&shared, one.group.clone(), one.instance.clone()).await {
            Some(Ok(()) | Err(AwsError::DryRun { .. })) => (ENDED_BY_THEN, None),
            Some(Err(error)) => (ENDED_BY_THEN, Some(error)),
            None => (FOREIGN, None),
        }
    } else {
        tell_hook(&shared, &mut one, step).await
    };
    let pause = if is_doubtful { pause.min(FOREIGN) } else { pause };
    Done::Step { one, step, pause, error }
}

/// Whether an instance certainly has no Node. A list may take half a minute and more: the hook must not time out meanwhile.
async fn is_certainly_without_node(shared: &Shared, one: &mut DueInstance) -> bool {
    let instance = one.instance.clone();
    let mut look = pin!(is_without_node(shared, &instance));
    let mut wait = LISTED_WITHIN;
    loop {
        if let Ok(is_certain) = timeout(wait, look.as_mut()).await {
            return is_certain;
        }
        wait = tell_hook(shared, one, Step::Heartbeat).await.0.unsigned_abs();
    }
}

/// What becomes of a held instance.
fn fate(shared: &Shared, joined: &mut Joined, instance: &InstanceId, held: &Held, now: Timestamp) -> Fate {
    if shared.holds.is_completed(instance, held.seen, now) || has_been_released(shared, instance) {
        return Fate::LeftAlone;
    }
    // Until all Nodes have been listed, any instance may have one.
    let Some(whole_for) = shared.nodes.whole_for() else { return Fate::Held };
    if !shared.nodes.of_instance(instance).is_empty() {
        let is_over = shared.holds.is_left_to_its_timeout(instance, now);
        return if is_over { Fate::LeftAlone } else { Fate::Held };
    }
    let end = let_go_at(shared, instance, held, later(now, -signed(whole_for)), now);
    let is_over = end <= now;
    let is_doubtful = is_over
        && (!joined.is_ours(shared, &held.group, instance)
            || joined.may_be_unidentified(shared, &held.group, instance));
    // A launching hook holds it on its first way into the warm pool: ours, which is a terminating one, takes no heartbeats for it then.
    let is_first_way = || held.is_new || held.is_not_ours(now);
    let is_warming = held.lifecycle.is_warm() && shared.nodes.gone_for(instance).is_none() && is_first_way();
    // Any replica may send heartbeats; only the leader completes hooks.
    match shared.leadership.leads() {
        _ if is_doubtful || is_warming => Fate::LeftAlone,
        true => Fate::HeldUntil(end),
        false if is_over => Fate::LeftAlone,
        false => Fate::Held,
    }
}

/// Whether AWS no longer shows an instance whose node was being released: it has ended, or, if merely left out, nobody needs it.
fn has_been_released(shared: &Shared, instance: &InstanceId) -> bool {
    let is_shown = || shared.groups.latest().is_some_and(|snapshot| snapshot.instance(instance).is_some());
    shared.holds.is_releasing(instance) && !is_shown()
}

/// What is known of an earlier Node of a held instance that has none.
fn earlier_node(shared: &Shared, instance: &InstanceId, held: &Held, now: Timestamp) -> EarlierNode {
    match shared.nodes.gone_for(instance) {
        Some(time) => EarlierNode::Gone(later(now, -signed(time))),
        None if held.is_new => EarlierNode::NeverJoined,
        None => EarlierNode::Unknown,
    }
}

/// When to complete the hook of an instance without a Node.
fn let_go_at(
    shared: &Shared,
    instance: &InstanceId,
    held: &Held,
    whole_since: Timestamp,
    now: Timestamp,
) -> Timestamp {
    let earlier = earlier_node(shared, instance, held, now);
    let since = held.since.unwrap_or(held.seen);
    let hook = shared.hooks.last_seen_since(&held.group, since);
    let ours = our_limit(shared.groups.latest().as_deref(), &shared.settings, &held.group);
    // Nothing but us ends a retained one.
    let by_hook = hook.as_ref().map(|hook| HeldBy { hook, hold: Hold::since(since) });
    let limit = deadline::hold_limit(ours, since, by_hook).filter(|_| held.lifecycle.is_held());
    nodeless::let_go_at(earlier, held.seen, whole_since, shared.holds.needed(instance), limit)
}

/// The time-out that our hook had when it began to hold the instance, as the record of its Node has it.
fn noted_timeout(shared: &Shared, instance: &InstanceId) -> Option<Duration> {
    let nodes = shared.nodes.of_instance(instance);
    let records = nodes.iter().filter_map(|node| node.record.as_deref()?.record());
    records.filter(|record| record.instance == *instance).filter_map(Record::heartbeat_timeout).min()
}

/// What a record says of how AWS ends or holds its instance: that it was told to, or that our hook is to be completed.
fn said_by(record: &Record, ahead: SignedDuration) -> Option<HoldEvidence> {
    let told = record.told_at().map(|at| later(at, -ahead));
    match told {
        Some(_) => Some(HoldEvidence { since: told, held_after: UNSEEN_AFTER }),
        None if record.release == Release::LeftToGroup => {
            Some(HoldEvidence { since: None, held_after: Duration::ZERO })
        }
        None => None,
    }
}

/// What says that AWS ends or holds instances: the records of their Nodes, and messages.
fn said(shared: &Shared, now: Timestamp) -> BTreeMap<InstanceId, HoldEvidence> {
    let ahead = shared.clock.cluster_ahead();
    let on_record = |node: &NodeView| {
        let record = node.scale_in()?;
        Some((record.instance.clone(), said_by(record, ahead)?))
    };
    let mut all: BTreeMap<_, _> = shared.nodes.marked().iter().filter_map(|node| on_record(node)).collect();
    let held = |told: ToldHeld| HoldEvidence { since: Some(told.since), held_after: Duration::ZERO };
    all.extend(shared.holds.told_held(now).into_iter().map(|(instance, told)| (instance, held(told))));
    all
}

/// Holds the instances that records or messages say AWS ends or holds. A restarted process knows no more while AWS describes no groups.
fn presume_all(shared: &Shared, held: &mut BTreeMap<InstanceId, Held>, now: Timestamp) {
    for node in shared.nodes.marked() {
        let said = node.scale_in().filter(|record| said_by(record, SignedDuration::ZERO).is_some());
        if let Some(record) = said {
            presume(held, &record.instance, &record.group, now);
        }
    }
    for (instance, told) in shared.holds.told_held(now) {
        presume(held, &instance, &told.group, now);
    }
}

/// Puts heartbeats forward where the hook turns out to have a shorter time-out than was known when the last ones were sent.
fn keep_pace(shared: &Shared, held: &mut BTreeMap<InstanceId, Held>) {
    for (instance, held) in held.iter_mut().filter(|(_, held)| held.lifecycle != Lifecycle::Retained) {
        if let Some(hook) = shared.hooks.last_seen(&held.group) {
            held.keep_pace(pause_by(shared, instance, held.since, &hook));
        }
    }
}

/// The time-out by which the hook holds the instance, which may have been changed since: AWS goes by the terms on which it began to.
fn timeout_of_hold(
    shared: &Shared,
    instance: &InstanceId,
    since: Option<Timestamp>,
    hook: &Hook,
) -> Duration {
    let noted = noted_timeout(shared, instance);
    shared.hooks.shortest_since(&hook.group, since, noted).unwrap_or(hook.heartbeat_timeout)
}

/// The pause between two heartbeats, by what is known of the hook.
fn pause_by(shared: &Shared, instance: &InstanceId, since: Option<Timestamp>, hook: &Hook) -> SignedDuration {
    interval(timeout_of_hold(shared, instance, since, hook).min(hook.heartbeat_timeout), instance)
}

/// Sends a heartbeat, or completes the hook. Returns the pause until the next step, and the error if AWS did not take it.
async fn tell_hook(shared: &Shared, one: &mut DueInstance, step: Step) -> (SignedDuration, Option<AwsError>) {
    let DueInstance {
        group,
        instance,
        since,
        renewed,
        too_early,
        ends,
        fails_since,
        is_new,
        may_be_early,
        is_sure,
    } = one;
    // No heartbeat waits for a read that may be throttled: discovery keeps the hooks fresh.
    let hook = match shared.hooks.last_seen(group) {
        Some(hook) => hook,
        None => match timeout(LOOK_UP, shared.hooks.seen_within(RECENT, group)).await {
            Ok(Ok(TerminatingHooks { ours: Some(hook), .. })) => hook,
            // Some hook holds it: if AWS lists none, that list is out of date.
            Ok(Ok(hooks)) if *is_sure && !hooks.others => shared.hooks.presumed(group),
            Ok(Ok(_)) => return (FOREIGN, None),
            // A useless heartbeat is better than a hook that times out. Discovery tells of look-ups that fail.
            Ok(Err(_)) | Err(_) => shared.hooks.presumed(group),
        },
    };
    if step == Step::Complete
        && (!shared.leadership.leads() || !shared.nodes.of_instance(instance).is_empty())
    {
        // While the hook was looked up, another process took over, or the instance's Node came.
        return (RETRY, None);
    }
    let timeout = timeout_of_hold(shared, instance, *since, &hook);
    // AWS counts from when it took the last one; it was sent before that.
    let lapses = renewed.or(*since).map(|from| later(from, signed(timeout)));
    let result = if step == Step::Heartbeat {
        let sent_at = shared.clock.now();
        let beat = shared.aws.heartbeat(group, &hook.name, instance).await;
        let beat = if *may_be_early { beat.map_err(as_no_active_hook) } else { beat };
        *ends = lapses;
        let now = shared.clock.now();
        // Where AWS took one after that, another replica had renewed the hold.
        let left = ends.filter(|ends| *ends > now).map(|ends| elapsed(now, ends));
        let is_retried = beat.as_ref().is_err_and(|error| may_be_taken_yet(error, *fails_since, now));
        shared.metrics.beat(group, &beat, is_retried, left);
        shared.holds.note_beat(group, &beat, shared.clock.now());
        match &beat {
            Ok(()) => *renewed = Some(sent_at),
            Err(AwsError::NoActiveHook { .. }) => *too_early = Some(sent_at),
            Err(_) => {}
        }
        beat
    } else {
        shared.aws.complete(group, &hook.name, instance).await
    };
    // The hook may have been looked up meanwhile.
    let pause = pause_by(shared, instance, *since, &shared.hooks.last_seen(group).unwrap_or(hook));
    match result {
        Ok(()) if step == Step::Complete => {
            tracing::info!(
                group = group.as_str(),
                instance = instance.as_str(),
                "lifecycle hook completed: the instance has no Node"
            );
            shared.groups.refresh_soon();
            (pause, None)
        }
        Err(AwsError::NoActiveHook { .. }) if *is_new => (pause.min(NOT_OPEN), None),
        // Our hook no longer holds it: the next refresh shows what became of it.
        Ok(()) | Err(AwsError::NoActiveHook { .. } | AwsError::DryRun { .. }) => (pause, None),
        Err(error) if error.is_transient() => {
            (again_after(lapses, timeout, instance, shared.clock.now()), Some(error))
        }
        Err(error) => (REFUSED.min(pause / 4), Some(error)),
    }
}
