//! Protected instances that are still to be released, by group, and when.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::clock::backoff;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::Outage;

/// Instances stay protected this long after a size was set or may have been set. Auto Scaling has been seen to choose
/// a victim 15 to 91 s later, and a request that timed out may arrive late.
///
/// Sources: [kubernetes/autoscaler#9182](https://github.com/kubernetes/autoscaler/issues/9182),
/// [#10147](https://github.com/kubernetes/autoscaler/issues/10147) (20:16:05 to 20:16:25),
/// [kube-aws-autoscaler#7](https://github.com/hjacobs/kube-aws-autoscaler/issues/7).
pub(super) const HOLD: Duration = Duration::from_mins(2);
/// The longest they stay protected while the group has more instances than desired: then somebody else wants it so
/// (Terminate is suspended, or a person has lowered the size).
const HOLD_AT_MOST: Duration = Duration::from_mins(5);
/// Pause between two checks of a group: Auto Scaling has not been seen to choose a victim sooner than 15 s after a size was set.
pub(super) const CHECK_EVERY: Duration = Duration::from_secs(10);
/// Longest pause after failures; the first one is [`CHECK_EVERY`].
pub(super) const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// Pending releases of all groups.
#[derive(Debug, Default)]
pub(super) struct PendingReleases {
    by_group: Mutex<BTreeMap<GroupName, PendingRelease>>,
    changed: Notify,
}

/// The pending release of one group.
#[derive(Clone, Debug)]
pub(super) struct PendingRelease {
    pub(super) instances: BTreeSet<InstanceId>,
    /// Whether they may have the tag.
    pub(super) tagged: bool,
    /// The size that was set.
    pub(super) size: Option<i32>,
    /// The largest size lowered while these were held: more were never wanted. Known if `size` is.
    pub(super) from: Option<i32>,
    /// When it was set or may have been set.
    since: Instant,
    /// Shortest time from then to the release.
    hold: Duration,
    /// When to check next.
    due: Instant,
    /// Lasts while they cannot be released.
    pub(super) outage: Outage,
    /// Those that were missing in the last description. One description may leave out what is there.
    pub(super) missed: BTreeSet<InstanceId>,
}

impl PendingRelease {
    /// Whether the size was set so recently that Auto Scaling may still choose a victim.
    pub(super) fn is_held(&self) -> bool {
        self.since.elapsed() < self.hold
    }

    /// Whether it is too early for the release. `has_surplus`: the group has more instances than desired.
    pub(super) fn is_too_early(&self, has_surplus: bool) -> bool {
        self.since.elapsed() < if has_surplus { HOLD_AT_MOST } else { self.hold }
    }
}

impl PendingReleases {
    /// Adds instances of a group whose size is set now; `sizes`: from what to what, if known.
    pub(super) fn add(
        &self,
        group: &GroupName,
        instances: impl IntoIterator<Item = InstanceId>,
        tagged: bool,
        sizes: Option<(i32, i32)>,
    ) {
        let since = Instant::now();
        let (from, size) = sizes.unzip();
        let mut all = self.by_group.lock();
        let pending = all.entry(group.clone()).or_insert(PendingRelease {
            instances: BTreeSet::new(),
            tagged,
            size,
            from,
            since,
            hold: HOLD,
            due: since + CHECK_EVERY,
            outage: Outage::default(),
            missed: BTreeSet::new(),
        });
        pending.instances.extend(instances);
        pending.tagged |= tagged;
        pending.from = pending.from.filter(|_| pending.is_held()).max(from);
        (pending.size, pending.since, pending.hold, pending.due) = (size, since, HOLD, since + CHECK_EVERY);
        pending.missed.clear();
    }

    /// Adds an instance that another run has left. What is pending for the group keeps its times.
    pub(super) fn take_over(&self, group: &GroupName, instance: InstanceId) {
        if let Some(pending) = self.by_group.lock().get_mut(group) {
            pending.tagged = true;
            pending.instances.insert(instance);
            return;
        }
        self.add(group, [instance], true, None);
    }

    /// The size was not set. Restores the times of the release that was pending `before`. The instances are held for `hold` at
    /// least.
    pub(super) fn was_not_set(&self, group: &GroupName, before: Option<PendingRelease>, hold: Duration) {
        self.update(group, |pending| {
            if let Some(before) = before {
                (pending.size, pending.from) = (before.size, before.from);
                (pending.since, pending.hold, pending.due) = (before.since, before.hold, before.due);
            } else {
                (pending.hold, pending.due) = (Duration::ZERO, Instant::now());
            }
            pending.hold = pending.hold.max(pending.since.elapsed() + hold);
        });
    }

    /// Next check after a success, or after the failures counted by the outage.
    pub(super) fn check_again(&self, group: &GroupName, update: impl FnOnce(&mut PendingRelease)) {
        self.update(group, |pending| {
            update(pending);
            let pause = match pending.outage.failures() {
                0 => CHECK_EVERY,
                failures => backoff(failures, CHECK_EVERY, LONGEST_PAUSE),
            };
            pending.due = Instant::now() + pause;
        });
    }

    pub(super) fn update(&self, group: &GroupName, update: impl FnOnce(&mut PendingRelease)) {
        if let Some(pending) = self.by_group.lock().get_mut(group) {
            update(pending);
        }
    }

    pub(super) fn get(&self, group: &GroupName) -> Option<PendingRelease> {
        self.by_group.lock().get(group).cloned()
    }

    /// The same if it is due.
    pub(super) fn get_due(&self, group: &GroupName) -> Option<PendingRelease> {
        self.get(group).filter(|pending| pending.due <= Instant::now())
    }

    pub(super) fn remove(&self, group: &GroupName) {
        self.by_group.lock().remove(group);
    }

    /// Has [`due`](Self::due) look again.
    pub(super) fn notify(&self) {
        self.changed.notify_one();
    }

    /// Waits until releases are due, and names their groups.
    pub(super) async fn due(&self) -> Vec<GroupName> {
        loop {
            let next = self.by_group.lock().values().map(|pending| pending.due).min();
            let is_due = async {
                match next {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = is_due => break,
                () = self.changed.notified() => {}
            }
        }
        let now = Instant::now();
        let all = self.by_group.lock();
        all.iter().filter(|(_, pending)| pending.due <= now).map(|(group, _)| group.clone()).collect()
    }
}
