//! The lifecycle hooks of the groups, as far as we must know them: one cache for discovery and for the scale-in
//! controller.
//!
//! - A hook is ours if it has our name and holds instances on their way out. Others are never touched.
//! - A group's hooks are asked for by one call at a time; who comes meanwhile gets its answer.
//! - Discovery keeps the cache warm a few groups at a time, never all at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::timeout;

use super::Snapshot;
pub use crate::aws::Hook;
use crate::aws::{Aws, AwsError};
use crate::clock::elapsed;
use crate::k8s::GroupName;

/// What was looked at this recently is not asked for again: a drain asks several times within seconds, and hooks
/// change by hand, seldom.
const FRESH: Duration = Duration::from_mins(1);

/// How long somebody waits for a newer answer than the one there is.
const PATIENCE: Duration = Duration::from_secs(1);

/// The hooks of the groups.
#[derive(Debug)]
pub struct Hooks {
    aws: Aws,
    name: String,
    by_group: Mutex<BTreeMap<GroupName, Arc<Slot>>>,
}

/// What is known of one group's hooks.
#[derive(Debug, Default)]
struct Slot {
    /// Held by who asks AWS.
    flight: tokio::sync::Mutex<()>,
    known: Mutex<Option<Known>>,
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
        Self { aws, name: name.into(), by_group: Mutex::default() }
    }

    /// The group's hooks: from the cache if looked at within the last minute, else by asking. What was seen before stands if
    /// AWS does not answer soon: a drain must not wait for it.
    pub async fn of(&self, group: &GroupName, now: Timestamp) -> Result<TerminatingHooks, AwsError> {
        let Some(before) = self.known(group) else { return self.looked_up(group, now, FRESH).await };
        match timeout(PATIENCE, self.looked_up(group, now, FRESH)).await {
            Ok(Ok(hooks)) => Ok(hooks),
            Ok(Err(_)) | Err(_) => Ok(self.terminating(&before)),
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
        *slot.known.lock().unwrap_or_else(PoisonError::into_inner) = Some(known);
        Ok(terminating)
    }

    /// What the group's hook of ours is like at the least, while nothing is known of it: its name, and the shortest
    /// heartbeat time-out that AWS allows.
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

    fn slots(&self) -> std::sync::MutexGuard<'_, BTreeMap<GroupName, Arc<Slot>>> {
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
}
