//! The groups' lifecycle hooks: one cache for discovery and the scale-in controller.
//!
//! - A hook is ours if it has our name and holds terminating instances. Other hooks are never touched.
//! - A group's hooks are asked for by one call at a time; callers meanwhile share its answer.
//! - Discovery refreshes a few groups at a time: those never looked up first, of these the ones with instances.
//!   Workers have the hooks of nodes being scaled in looked up apart from that.
//! - Workers read and never wait.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, watch};

use super::Snapshot;
pub use crate::aws::Hook;
use crate::aws::{Aws, AwsError, LONGEST_HOLD, SHORTEST_HEARTBEAT, possible};
use crate::clock::{Clock, backoff, elapsed, later, signed};
use crate::k8s::GroupName;
use crate::telemetry::{Outage, chain};

/// Answers this recent are reused: a drain asks several times within seconds, and hooks rarely change.
const FRESH: Duration = Duration::from_mins(1);

/// A hold begins up to this long after the moment that is told as its beginning.
const HOLD_BEGINS_WITHIN: Duration = Duration::from_mins(5);

/// Failed look-ups after which a hook is presumed. Each has already retried for seconds.
const PRESUMED_AFTER: u32 = 2;

/// So many wanted look-ups are under way at once.
const AT_ONCE: usize = 20;

/// The pause after a first failed look-up; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The hooks of the groups.
#[derive(Debug)]
pub struct Hooks {
    aws: Aws,
    name: String,
    clock: Clock,
    by_group: Mutex<BTreeMap<GroupName, Arc<Slot>>>,
    /// Wakes [`run`](Self::run) when a look-up is wanted.
    wanted: Notify,
    /// Changes when a group's known hooks change.
    versions: watch::Sender<()>,
}

/// What is known of one group's hooks.
#[derive(Debug, Default)]
struct Slot {
    /// Held while AWS is asked.
    flight: tokio::sync::Mutex<LookedUp>,
    known: Mutex<Option<Arc<Known>>>,
    want: Mutex<Want>,
}

/// What the last look-ups of a group's hooks came to.
#[derive(Debug, Default)]
struct LookedUp {
    /// When the last one began that AWS answered.
    answered: Option<Timestamp>,
    /// When the last one ended, if that failed, and how.
    failed: Option<(Timestamp, AwsError)>,
}

impl LookedUp {
    /// When AWS was asked last, whatever came of it.
    fn tried(&self) -> Option<Timestamp> {
        self.answered.max(self.failed.as_ref().map(|(ended, _)| *ended))
    }

    /// The failure of a look-up that somebody waited for since `since`.
    fn failed_since(&self, since: Timestamp) -> Result<(), AwsError> {
        match &self.failed {
            Some((ended, error)) if *ended > since => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

/// Whether and when to look up a group's hooks.
#[derive(Debug, Default)]
struct Want {
    /// When to ask AWS; `None` if no look-up is wanted or one is in flight.
    at: Option<Timestamp>,
    in_flight: bool,
    /// Look-ups that fail.
    outage: Outage,
}

#[derive(Debug)]
struct Known {
    looked_at: Timestamp,
    /// When it was looked up first.
    first: Timestamp,
    /// All hooks that hold terminating instances.
    hooks: Vec<Hook>,
    /// Our hook's earlier time-outs, in order: AWS applies them to what it has held since then.
    earlier: Vec<Earlier>,
}

/// A time-out that our hook had, and until when.
#[derive(Clone, Copy, Debug)]
struct Earlier {
    timeout: Duration,
    /// When it was last seen ...
    seen: Timestamp,
    /// ... and first found changed.
    gone: Timestamp,
}

/// A group's hooks that hold terminating instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminatingHooks {
    /// Ours.
    pub ours: Option<Hook>,
    /// Whether there are others. EKS has one on managed node groups: once an instance is held, EKS drains the node
    /// itself, for at most 15 minutes.
    pub others: bool,
    /// Whether another hook's default result is ABANDON, AWS's default: a group that keeps abandoned instances would keep each one that
    /// the hook's owner forgets.
    pub others_abandon: bool,
}

impl TerminatingHooks {
    /// Whether ours is the only one. The owner of another drains a node by other rules as soon as it is held.
    pub fn is_ours_alone(&self) -> bool {
        self.ours.is_some() && !self.others
    }

    /// Whether there are none, ours or another's: nothing holds what the group ends.
    pub fn are_none(&self) -> bool {
        self.ours.is_none() && !self.others
    }
}

/// What is known of a group's terminating hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// AWS has not said yet.
    Unknown,
    /// AWS does not answer, or what it lists is out of date. If the group has a hook of ours, its time-out is at least this, or was when it began to hold.
    /// Enough to drain a held instance, not to have one held.
    Presumed(Hook),
    /// What AWS has told.
    Known(TerminatingHooks),
}

impl HookState {
    /// Our hook.
    pub fn ours(&self) -> Option<&Hook> {
        match self {
            Self::Unknown => None,
            Self::Presumed(hook) => Some(hook),
            Self::Known(hooks) => hooks.ours.as_ref(),
        }
    }

    /// Whether the group is known to have no hook, ours or another's.
    pub fn has_none(&self) -> bool {
        matches!(self, Self::Known(hooks) if hooks.are_none())
    }

    /// Whether the group is known to have a hook, ours or another's.
    pub fn has_any(&self) -> bool {
        matches!(self, Self::Known(hooks) if !hooks.are_none())
    }

    /// Whether ours is known to be the only one.
    pub fn is_ours_alone(&self) -> bool {
        matches!(self, Self::Known(hooks) if hooks.is_ours_alone())
    }
}

/// How AWS began to hold an instance, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldStart {
    /// Since when.
    pub since: Timestamp,
    /// The time-out of our hook then, as its record has it: this run may never have seen the hook as it was.
    pub timeout: Option<Duration>,
}

/// What is known of our hooks in all groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// Whether some group's hooks were never looked up.
    pub incomplete: bool,
    /// The shortest heartbeat time-out among our hooks.
    pub shortest: Option<Duration>,
}

impl Hooks {
    /// An empty cache; our hooks are called `name`.
    pub fn new(aws: Aws, name: impl Into<String>, clock: Clock) -> Self {
        Self {
            aws,
            name: name.into(),
            clock,
            by_group: Mutex::default(),
            wanted: Notify::new(),
            versions: watch::Sender::default(),
        }
    }

    /// The name of our hooks.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known of the group's hooks, of any age.
    pub fn state(&self, group: &GroupName) -> HookState {
        self.state_since(group, None)
    }

    /// The same, ours with the time-outs by which AWS holds an instance.
    pub fn state_since(&self, group: &GroupName, hold: Option<HoldStart>) -> HookState {
        let Some(slot) = self.slots().get(group).cloned() else { return HookState::Unknown };
        match slot.known() {
            Some(known) => {
                let hooks = self.terminating(&known);
                let ours = hooks.ours.map(|hook| known.as_of(hook, hold));
                HookState::Known(TerminatingHooks { ours, ..hooks })
            }
            None if slot.want().outage.failures() >= PRESUMED_AFTER => self.presumed_state(group, hold),
            None => HookState::Unknown,
        }
    }

    /// The same of an instance that some terminating hook holds: where AWS lists none, its list is out of date.
    pub fn state_of_held(&self, group: &GroupName, hold: Option<HoldStart>) -> HookState {
        match self.state_since(group, hold) {
            HookState::Known(TerminatingHooks { ours: None, others: false, .. }) => {
                self.presumed_state(group, hold)
            }
            state => state,
        }
    }

    fn presumed_state(&self, group: &GroupName, hold: Option<HoldStart>) -> HookState {
        let noted = hold.and_then(|hold| hold.timeout);
        let timeout = noted.map_or(SHORTEST_HEARTBEAT, possible);
        HookState::Presumed(self.presumed(group).with_timeout(timeout))
    }

    /// Changes when a group's known hooks change.
    pub fn versions(&self) -> watch::Receiver<()> {
        self.versions.subscribe()
    }

    /// Has [`run`](Self::run) look up the group's hooks, unless the answer is less than a minute old.
    pub fn want(&self, group: &GroupName, now: Timestamp) {
        let slot = self.slot(group);
        if slot.known().is_some_and(|known| elapsed(known.looked_at, now) < FRESH) {
            return;
        }
        let mut want = slot.want();
        if want.at.is_none() && !want.in_flight {
            want.at = Some(now);
            self.wanted.notify_one();
        }
    }

    /// Performs the wanted look-ups, for ever.
    pub async fn run(&self) {
        let mut running = FuturesUnordered::new();
        loop {
            let due = self.begin_due(AT_ONCE.saturating_sub(running.len()), self.clock.now());
            running.extend(due.into_iter().map(|(group, slot)| async move {
                let result = self.seen_within(FRESH, &group).await;
                self.heard(&group, &slot, result.err(), self.clock.now());
            }));
            // Where there is no room, those that are due wait until one ends.
            let has_room = running.len() < AT_ONCE;
            let next = self.slots().values().filter_map(|slot| slot.want().at).filter(|_| has_room).min();
            tokio::select! {
                Some(()) = running.next() => {}
                () = self.wanted.notified() => {}
                () = self.clock.sleep_until_some(next) => {}
            }
        }
    }

    /// Takes so many at most of the look-ups that are due, those first that were first, and marks them in flight.
    fn begin_due(&self, most: usize, now: Timestamp) -> Vec<(GroupName, Arc<Slot>)> {
        let slots = self.slots();
        let mut due: Vec<_> = slots
            .iter()
            .filter_map(|(group, slot)| {
                let at = slot.want().at.filter(|at| *at <= now)?;
                Some((at, group.clone(), Arc::clone(slot)))
            })
            .collect();
        due.sort_by_key(|(at, ..)| *at);
        due.truncate(most);
        for (_, _, slot) in &due {
            let mut want = slot.want();
            (want.at, want.in_flight) = (None, true);
        }
        due.into_iter().map(|(_, group, slot)| (group, slot)).collect()
    }

    /// Notes the end of a wanted look-up; a failed one is scheduled again.
    fn heard(&self, group: &GroupName, slot: &Slot, error: Option<AwsError>, now: Timestamp) {
        let mut want = slot.want();
        let Some(error) = error else {
            *want = Want::default();
            return;
        };
        want.in_flight = false;
        if let Some(outage_seconds) = want.outage.failed() {
            tracing::warn!(group = group.as_str(), outage_seconds, error = %chain(&error), "could not look up the group's lifecycle hooks; it is tried again");
        }
        want.at = Some(later(now, signed(backoff(want.outage.failures(), FIRST_PAUSE, LONGEST_PAUSE))));
        if want.outage.failures() == PRESUMED_AFTER && slot.known().is_none() {
            tracing::warn!(
                group = group.as_str(),
                "cannot read the group's lifecycle hook: held nodes are drained as if it had the shortest time-out"
            );
            self.versions.send_replace(());
        }
    }

    /// The group's hooks, at most `fresh` old: for when a newly added hook would time out.
    pub async fn seen_within(
        &self,
        fresh: Duration,
        group: &GroupName,
    ) -> Result<TerminatingHooks, AwsError> {
        let now = self.clock.now();
        let slot = self.slot(group);
        let mut looked_up = slot.flight.lock().await;
        if let Some(known) = slot.known().filter(|known| elapsed(known.looked_at, now) < fresh) {
            return Ok(self.terminating(&known));
        }
        looked_up.failed_since(now)?;
        self.look_up(group, &slot, &mut looked_up).await
    }

    /// The group's hooks, asked for from now on: for when a removed hook would cost workloads. Callers that wait while AWS is asked share
    /// the next answer, or the failure they waited for, so that any number of them at once make two calls at most.
    pub async fn of_now(&self, group: &GroupName) -> Result<TerminatingHooks, AwsError> {
        let now = self.clock.now();
        let slot = self.slot(group);
        let mut looked_up = slot.flight.lock().await;
        // A put makes `known` newer, but is no answer.
        if let Some(known) = slot.known().filter(|_| looked_up.answered.is_some_and(|begun| begun >= now)) {
            return Ok(self.terminating(&known));
        }
        looked_up.failed_since(now)?;
        self.look_up(group, &slot, &mut looked_up).await
    }

    async fn look_up(
        &self,
        group: &GroupName,
        slot: &Slot,
        looked_up: &mut LookedUp,
    ) -> Result<TerminatingHooks, AwsError> {
        let looked_at = self.clock.now();
        match self.aws.lifecycle_hooks(group).await {
            Ok(hooks) => {
                *looked_up = LookedUp { answered: Some(looked_at), failed: None };
                Ok(self.learn(slot, hooks, looked_at))
            }
            Err(error) => {
                looked_up.failed = Some((self.clock.now(), error.clone()));
                Err(error)
            }
        }
    }

    /// Replaces what is known of a group's hooks.
    fn learn(&self, slot: &Slot, hooks: Vec<Hook>, now: Timestamp) -> TerminatingHooks {
        let mut known = Known { looked_at: now, first: now, hooks, earlier: Vec::new() };
        let terminating = self.terminating(&known);
        let mut slot = slot.known.lock();
        let before = slot.take().map(|before| {
            known.first = before.first;
            known.earlier.clone_from(&before.earlier);
            known.earlier.retain(|earlier| now <= later(earlier.gone, signed(LONGEST_HOLD)));
            (before.looked_at, self.terminating(&before))
        });
        let timeout = |hooks: &TerminatingHooks| hooks.ours.as_ref().map(|hook| hook.heartbeat_timeout);
        if let Some((seen, before)) = &before
            && let Some(timeout) = timeout(before).filter(|it| Some(*it) != timeout(&terminating))
        {
            known.earlier.push(Earlier { timeout, seen: *seen, gone: now });
        }
        *slot = Some(Arc::new(known));
        drop(slot);
        if before.is_none_or(|(_, before)| before != terminating) {
            self.versions.send_replace(());
        }
        terminating
    }

    /// The shortest time-out that our hook has had since `since` (`None`: ever), or the one `noted` then, if shorter: AWS holds an
    /// instance on the terms on which it began to.
    pub fn shortest_since(
        &self,
        group: &GroupName,
        since: Option<Timestamp>,
        noted: Option<Duration>,
    ) -> Option<Duration> {
        let known = self.known(group)?;
        let had = known.earlier.iter().filter(|earlier| since.is_none_or(|since| since <= earlier.gone));
        let now = self.ours(&known).map(|hook| hook.heartbeat_timeout);
        had.map(|earlier| earlier.timeout).chain(now).chain(noted.map(possible)).min()
    }

    /// Our hook of the group as last seen, with the time-outs by which AWS holds an instance that it began to hold at `since`;
    /// `None` also if the group's hooks were never seen.
    pub fn last_seen_since(&self, group: &GroupName, since: Timestamp) -> Option<Hook> {
        let known = self.known(group)?;
        self.ours(&known).map(|hook| known.as_of(hook, Some(HoldStart { since, timeout: None })))
    }

    /// Puts a hook of ours on its group. The cache has it at once: AWS may not show it for a while.
    pub(super) async fn put(&self, hook: Hook) -> Result<(), AwsError> {
        let slot = self.slot(&hook.group);
        // A look-up that began before shows what was before.
        let _flight = slot.flight.lock().await;
        self.aws.put_hook(&hook).await?;
        let mut hooks = slot.known().map(|known| known.hooks.clone()).unwrap_or_default();
        hooks.retain(|other| other.name != hook.name);
        hooks.push(hook);
        // What AWS began to hold until now, it holds on the old terms.
        self.learn(&slot, hooks, self.clock.now());
        Ok(())
    }

    /// Stand-in until DescribeLifecycleHooks answers: our name, AWS's minimum time-out.
    pub fn presumed(&self, group: &GroupName) -> Hook {
        Hook::new(&self.name, group, SHORTEST_HEARTBEAT)
    }

    /// Our hook of the group as last seen, however long ago; `None` also if the group's hooks were never seen.
    pub fn last_seen(&self, group: &GroupName) -> Option<Hook> {
        self.known(group).and_then(|known| self.ours(&known))
    }

    /// Looks up the hooks of at most `most` groups that nobody else is looking up: those never looked up first (with instances before empty
    /// ones), then those whose last look-up is the longest ago, though it failed. Forgets groups that are gone.
    pub async fn refresh(&self, snapshot: &Snapshot, most: usize, now: Timestamp) -> Result<(), AwsError> {
        self.slots().retain(|group, _| snapshot.groups.contains_key(group));
        let mut due: Vec<_> = snapshot
            .groups
            .values()
            .filter_map(|group| {
                let slot = self.slot(&group.asg.name);
                let is_due = slot.known().is_none_or(|known| elapsed(known.looked_at, now) >= FRESH);
                // One that somebody is asking about is left to that: others wait for the next refresh.
                let tried = slot.flight.try_lock().ok().filter(|_| is_due)?.tried();
                Some((tried, group.asg.instances.is_empty(), &group.asg.name))
            })
            .collect();
        // Groups never looked up sort first (`None` is least).
        due.sort();
        let due = due.into_iter().take(most).map(|(.., group)| self.seen_within(FRESH, group));
        // Each for itself: one that fails breaks off no other.
        futures::future::join_all(due).await.into_iter().try_for_each(|answer| answer.map(drop))
    }

    /// Forgets the hooks of a group of this name: it was deleted, and another one made.
    pub(super) fn forget(&self, group: &GroupName) {
        self.slots().remove(group);
    }

    /// What is known of our hooks in these groups.
    pub fn knowledge(&self, snapshot: &Snapshot) -> Knowledge {
        let mut knowledge = Knowledge::default();
        for group in snapshot.groups.keys() {
            match self.known(group) {
                Some(known) => {
                    let ours = self.ours(&known).map(|hook| hook.heartbeat_timeout);
                    knowledge.shortest = knowledge.shortest.into_iter().chain(ours).min();
                }
                None => knowledge.incomplete = true,
            }
        }
        knowledge
    }

    fn ours(&self, known: &Known) -> Option<Hook> {
        known.hooks.iter().find(|hook| hook.name == self.name).cloned()
    }

    fn terminating(&self, known: &Known) -> TerminatingHooks {
        let others = || known.hooks.iter().filter(|hook| hook.name != self.name);
        TerminatingHooks {
            ours: self.ours(known),
            others: others().next().is_some(),
            others_abandon: others().any(|hook| hook.abandons),
        }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<GroupName, Arc<Slot>>> {
        self.by_group.lock()
    }

    fn slot(&self, group: &GroupName) -> Arc<Slot> {
        Arc::clone(self.slots().entry(group.to_owned()).or_default())
    }

    fn known(&self, group: &GroupName) -> Option<Arc<Known>> {
        self.slots().get(group).and_then(|slot| slot.known())
    }
}

impl Known {
    /// Our hook with the time-out that it had when the hold began (`None`: now); of two possible ones, the shorter. If the hold began
    /// long before this run saw the hook, the noted time-out counts.
    fn as_of(&self, hook: Hook, hold: Option<HoldStart>) -> Hook {
        let Some(HoldStart { since, timeout: noted }) = hold else { return hook };
        // Shorter than AWS allows only where the hook is.
        let shortest = SHORTEST_HEARTBEAT.min(hook.heartbeat_timeout);
        let noted =
            noted.map(|noted| if noted < SHORTEST_HEARTBEAT { noted.max(shortest) } else { possible(noted) });
        if let Some(timeout) = noted.filter(|_| later(since, signed(HOLD_BEGINS_WITHIN)) <= self.first) {
            return hook.with_timeout(timeout);
        }
        let had: Vec<&Earlier> = self.earlier.iter().filter(|earlier| since <= earlier.gone).collect();
        // The first that was surely seen after the hold began is the last that it may have had then.
        let last = had.iter().position(|earlier| later(since, signed(HOLD_BEGINS_WITHIN)) <= earlier.seen);
        let now = last.is_none().then_some(hook.heartbeat_timeout);
        let many = last.map_or(had.len(), |last| last + 1);
        match had.into_iter().take(many).map(|earlier| earlier.timeout).chain(now).chain(noted).min() {
            Some(timeout) => hook.with_timeout(timeout),
            None => hook,
        }
    }
}

impl Slot {
    fn known(&self) -> Option<Arc<Known>> {
        self.known.lock().clone()
    }

    fn want(&self) -> MutexGuard<'_, Want> {
        self.want.lock()
    }
}

#[cfg(test)]
mod tests;
