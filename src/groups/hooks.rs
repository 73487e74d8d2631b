//! The lifecycle hooks of the groups, as far as we must know them: one cache for discovery and for the scale-in
//! controller.
//!
//! - A hook is ours if it has our name and holds instances on their way out. Others are never touched.
//! - A group's hooks are asked for by one call at a time; who comes meanwhile gets its answer.
//! - Discovery keeps the cache warm a few groups at a time, never all at once. Groups whose nodes are scaled in come before
//!   others: their workers want them looked up.
//! - A worker reads and never waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, watch};

use super::Snapshot;
pub use crate::aws::Hook;
use crate::aws::{Aws, AwsError};
use crate::clock::{Clock, elapsed, later};
use crate::k8s::GroupName;
use crate::telemetry::chain;

/// What was looked at this recently is not asked for again: a drain asks several times within seconds, and hooks
/// change by hand, seldom.
const FRESH: Duration = Duration::from_mins(1);

/// So many look-ups that somebody waits for have failed before a hook is presumed: each has been tried for seconds.
const PRESUMED_AFTER: u32 = 2;

/// Longest pause after a look-up that failed; the first one is a second, and each the double of the one before.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_secs(30);

/// The hooks of the groups.
#[derive(Debug)]
pub struct Hooks {
    aws: Aws,
    name: String,
    by_group: Mutex<BTreeMap<GroupName, Arc<Slot>>>,
    /// Somebody wants a look-up.
    wanted: Notify,
    /// Changes when more, or something else, is known of a group's hooks.
    versions: watch::Sender<()>,
}

/// What is known of one group's hooks.
#[derive(Debug, Default)]
struct Slot {
    /// Held by who asks AWS.
    flight: tokio::sync::Mutex<()>,
    known: Mutex<Option<Known>>,
    want: Mutex<Want>,
}

/// Who wants a group's hooks looked up.
#[derive(Debug, Default)]
struct Want {
    /// When to ask AWS; none while nobody wants it, or the answer is on its way.
    at: Option<Timestamp>,
    in_flight: bool,
    /// Look-ups in a row that failed.
    failures: u32,
}

#[derive(Clone, Debug)]
struct Known {
    looked_at: Timestamp,
    /// All that hold instances on their way out.
    hooks: Vec<Hook>,
}

/// A group's hooks that hold instances on their way out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TerminatingHooks {
    /// Ours.
    pub ours: Option<Hook>,
    /// Whether there are others' beside it. EKS has one on its managed node groups, and begins to drain by itself, for at
    /// most 15 minutes, as soon as an instance is held.
    pub others: bool,
}

/// What is known of a group's hooks that hold instances on their way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookState {
    /// AWS has not said yet.
    Unknown,
    /// AWS does not answer: if the group has a hook of ours, it is like this at the least. Enough to drain what is held, not to
    /// have an instance held.
    Presumed(Hook),
    /// These.
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
}

/// What is known of our hooks, all groups together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Knowledge {
    /// Whether some group's hooks were never looked at.
    pub incomplete: bool,
    /// The shortest heartbeat time-out among our hooks.
    pub shortest: Option<Duration>,
}

/// The shortest heartbeat time-out AWS allows.
///
/// Source: [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(30);

impl Hooks {
    /// Knows no hooks yet; ours are called `name`.
    pub fn new(aws: Aws, name: impl Into<String>) -> Self {
        Self {
            aws,
            name: name.into(),
            by_group: Mutex::default(),
            wanted: Notify::new(),
            versions: watch::Sender::default(),
        }
    }

    /// What is known of the group's hooks, however long ago it was seen.
    pub fn state(&self, group: &GroupName) -> HookState {
        let Some(slot) = self.slots().get(group).cloned() else { return HookState::Unknown };
        match slot.known() {
            Some(known) => HookState::Known(self.terminating(&known)),
            None if slot.want().failures >= PRESUMED_AFTER => HookState::Presumed(self.presumed(group)),
            None => HookState::Unknown,
        }
    }

    /// Changes when something else is known of a group's hooks.
    pub fn versions(&self) -> watch::Receiver<()> {
        self.versions.subscribe()
    }

    /// Has the group's hooks looked up by [`run`](Self::run), unless they were within the last minute.
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

    /// Looks up what is wanted, for ever.
    pub async fn run(&self, clock: &Clock) {
        let mut running = FuturesUnordered::new();
        loop {
            let now = clock.now();
            running.extend(self.begin_due(now).into_iter().map(|(group, slot)| async move {
                let result = self.looked_up(&group, clock.now(), FRESH).await;
                self.heard(&group, &slot, result.err(), clock.now());
            }));
            let next = self.slots().values().filter_map(|slot| slot.want().at).min();
            let wake = async {
                match next {
                    Some(at) => clock.sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(()) = running.next() => {}
                () = self.wanted.notified() => {}
                () = wake => {}
            }
        }
    }

    /// The look-ups that are due, which are under way from now on.
    fn begin_due(&self, now: Timestamp) -> Vec<(GroupName, Arc<Slot>)> {
        let slots = self.slots();
        let due = slots.iter().filter(|(_, slot)| {
            let mut want = slot.want();
            let is_due = want.at.is_some_and(|at| at <= now);
            if is_due {
                (want.at, want.in_flight) = (None, true);
            }
            is_due
        });
        due.map(|(group, slot)| (group.clone(), Arc::clone(slot))).collect()
    }

    /// A look-up that was wanted has ended; one that failed is tried again.
    fn heard(&self, group: &GroupName, slot: &Slot, error: Option<AwsError>, now: Timestamp) {
        let mut want = slot.want();
        let Some(error) = error else {
            *want = Want::default();
            return;
        };
        let pause = SignedDuration::from_secs(1 << want.failures.min(5)).min(LONGEST_PAUSE);
        *want =
            Want { at: Some(later(now, pause)), in_flight: false, failures: want.failures.saturating_add(1) };
        tracing::warn!(group = group.as_str(), error = %chain(&error), retry_seconds = pause.as_secs(), "could not look up the group's lifecycle hooks");
        if want.failures == PRESUMED_AFTER && slot.known().is_none() {
            tracing::warn!(
                group = group.as_str(),
                "AWS does not say what the group's lifecycle hook is like: held nodes are drained as if it had the shortest time-out"
            );
            self.versions.send_replace(());
        }
    }

    /// The group's hooks, asked for unless they were looked at so recently: for when a hook that was put there since would
    /// time out.
    pub async fn seen_within(
        &self,
        fresh: Duration,
        group: &GroupName,
        now: Timestamp,
    ) -> Result<TerminatingHooks, AwsError> {
        self.looked_up(group, now, fresh).await
    }

    /// The group's hooks, asked for now: for when a hook that was taken away would cost workloads.
    pub async fn of_now(&self, group: &GroupName, now: Timestamp) -> Result<TerminatingHooks, AwsError> {
        self.looked_up(group, now, Duration::ZERO).await
    }

    async fn looked_up(
        &self,
        group: &GroupName,
        now: Timestamp,
        fresh: Duration,
    ) -> Result<TerminatingHooks, AwsError> {
        let slot = self.slot(group);
        let _flight = slot.flight.lock().await;
        if let Some(known) = slot.known().filter(|known| elapsed(known.looked_at, now) < fresh) {
            return Ok(self.terminating(&known));
        }
        let known = Known { looked_at: now, hooks: self.aws.lifecycle_hooks(group).await? };
        let terminating = self.terminating(&known);
        let before = slot.known.lock().unwrap_or_else(PoisonError::into_inner).replace(known);
        if before.is_none_or(|before| self.terminating(&before) != terminating) {
            self.versions.send_replace(());
        }
        Ok(terminating)
    }

    /// Stand-in until DescribeLifecycleHooks answers: our name, and the shortest time-out that AWS allows.
    pub fn presumed(&self, group: &GroupName) -> Hook {
        Hook::new(&self.name, group, SHORTEST_HEARTBEAT)
    }

    /// The group's hook that is ours, as it was seen last, however long ago; none if the group's hooks were never seen.
    pub fn last_seen(&self, group: &GroupName) -> Option<Hook> {
        self.known(group).and_then(|known| self.ours(&known))
    }

    /// Looks up the hooks of the groups that need it most, at most so many: those with instances that were never
    /// looked at, then those looked at longest ago. Forgets groups that are gone.
    pub async fn refresh(&self, snapshot: &Snapshot, most: usize, now: Timestamp) -> Result<(), AwsError> {
        self.slots().retain(|group, _| snapshot.groups.contains_key(group));
        let mut due: Vec<_> = snapshot
            .groups
            .values()
            .map(|group| {
                (
                    self.known(&group.asg.name).map(|known| known.looked_at),
                    group.asg.instances.is_empty(),
                    group,
                )
            })
            .filter(|(looked_at, ..)| looked_at.is_none_or(|at| elapsed(at, now) >= FRESH))
            .collect();
        // A group never looked at comes before all others (`None` is least).
        due.sort_by_key(|&(looked_at, is_empty, group)| (looked_at, is_empty, group.asg.name.clone()));
        let look = |name: GroupName| async move { self.looked_up(&name, now, FRESH).await };
        let due = due.into_iter().take(most).map(|(.., group)| look(group.asg.name.clone()));
        futures::future::try_join_all(due).await?;
        Ok(())
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
        let others = known.hooks.iter().any(|hook| hook.name != self.name);
        TerminatingHooks { ours: self.ours(known), others }
    }

    fn slots(&self) -> MutexGuard<'_, BTreeMap<GroupName, Arc<Slot>>> {
        self.by_group.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, group: &GroupName) -> Arc<Slot> {
        Arc::clone(self.slots().entry(group.to_owned()).or_default())
    }

    fn known(&self, group: &GroupName) -> Option<Known> {
        self.slots().get(group).and_then(|slot| slot.known())
    }
}

impl Slot {
    fn known(&self) -> Option<Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn want(&self) -> MutexGuard<'_, Want> {
        self.want.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
