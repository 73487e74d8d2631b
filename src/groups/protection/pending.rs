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
/// (Terminate is suspended, or a person has lowered the size). And for how long after a size of ours it counts when somebody else sets a
/// smaller one.
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
    /// Those that may have the tag, with its value.
    tags: BTreeSet<(String, InstanceId)>,
    /// The size that was set.
    pub(super) size: Option<i32>,
    /// The size that was set, or described since.
    seen: Option<i32>,
    /// The largest size lowered while these were held: more were never wanted. Known if `size` is.
    pub(super) from: Option<i32>,
    /// When it was set or may have been set ...
    set: Instant,
    /// ... or somebody else has set a smaller one.
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

    /// Adds instances; `tag`: the value of the tag that they may have.
    pub(super) fn extend(&mut self, instances: impl IntoIterator<Item = InstanceId>, tag: Option<&str>) {
        for instance in instances {
            self.tags.extend(tag.map(|tag| (tag.to_owned(), instance.clone())));
            self.instances.insert(instance);
        }
    }

    /// The tags of these, by value.
    pub(super) fn tags_of(&self, instances: &[InstanceId]) -> BTreeMap<&str, Vec<InstanceId>> {
        let mut by_value: BTreeMap<&str, Vec<InstanceId>> = BTreeMap::new();
        for (value, instance) in self.tags.iter().filter(|(_, instance)| instances.contains(instance)) {
            by_value.entry(value).or_default().push(instance.clone());
        }
        by_value
    }

    /// Notes that only these are left.
    pub(super) fn keep(&mut self, left: BTreeSet<InstanceId>, missed: BTreeSet<InstanceId>) {
        self.tags.retain(|(_, instance)| left.contains(instance));
        (self.instances, self.missed) = (left, missed);
    }

    /// Notes the size that the group is described with. If it is smaller than before, another process, which relies on the protection that
    /// it finds, or a person has set it: the group may look for a victim as long after that as after a size of ours.
    pub(super) fn note_described(&mut self, desired: i32) {
        let is_smaller = self.seen.replace(desired).is_some_and(|seen| desired < seen);
        if is_smaller && self.set.elapsed() < HOLD_AT_MOST {
            (self.since, self.hold) = (Instant::now(), HOLD);
        }
    }

    /// Whether it is too early for the release. `has_surplus`: the group has more instances than desired.
    pub(super) fn is_too_early(&self, has_surplus: bool) -> bool {
        self.since.elapsed() < if has_surplus { HOLD_AT_MOST.max(self.hold) } else { self.hold }
    }
}

impl PendingReleases {
    /// Adds instances of a group whose size is set now. `tag`: the value of the tag that they may have; `sizes`: from what to what, if
    /// known.
    pub(super) fn add(
        &self,
        group: &GroupName,
        instances: impl IntoIterator<Item = InstanceId>,
        tag: Option<&str>,
        sizes: Option<(i32, i32)>,
    ) {
        let since = Instant::now();
        let (from, size) = sizes.unzip();
        let mut all = self.by_group.lock();
        let pending = all.entry(group.clone()).or_insert(PendingRelease {
            instances: BTreeSet::new(),
            tags: BTreeSet::new(),
            size,
            seen: size,
            from,
            set: since,
            since,
            hold: HOLD,
            due: since + CHECK_EVERY,
            outage: Outage::default(),
            missed: BTreeSet::new(),
        });
        pending.extend(instances, tag);
        pending.from = pending.from.filter(|_| pending.is_held()).max(from);
        (pending.size, pending.seen, pending.set) = (size, size, since);
        (pending.since, pending.hold, pending.due) = (since, HOLD, since + CHECK_EVERY);
        pending.missed.clear();
    }

    /// Adds an instance that another process has protected, with its tag. Whoever that is may have done so just now: it stays protected as
    /// for a size of our own.
    pub(super) fn take_over(&self, group: &GroupName, instance: InstanceId, tag: &str) {
        if let Some(pending) = self.by_group.lock().get_mut(group) {
            if !pending.instances.contains(&instance) {
                pending.hold = pending.hold.max(pending.since.elapsed() + HOLD);
            }
            pending.extend([instance], Some(tag));
            return;
        }
        self.add(group, [instance], Some(tag), None);
    }

    /// The size was not set. Restores the times of the release that was pending `before`. The instances are held for `hold` at
    /// least.
    pub(super) fn was_not_set(&self, group: &GroupName, before: Option<PendingRelease>, hold: Duration) {
        self.update(group, |pending| {
            if let Some(before) = before {
                (pending.size, pending.seen, pending.from) = (before.size, before.seen, before.from);
                (pending.set, pending.since, pending.hold, pending.due) =
                    (before.set, before.since, before.hold, before.due);
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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_smaller_size_of_somebody_else_counts_as_one_of_our_own_for_five_minutes() {
        let (all, group) = (PendingReleases::default(), GroupName::from("g"));
        all.add(&group, ["i-1".into()], None, Some((5, 4)));
        let is_held = |desired| {
            all.update(&group, |pending| pending.note_described(desired));
            all.get(&group).expect("pending").is_held()
        };
        // After how many minutes more, what the group is described with, and whether they are held then.
        for (minutes, desired, held) in [
            (1, 4, true),
            (0, 3, true),
            (1, 3, true),
            (1, 3, false),
            (0, 6, false),
            (1, 5, true),
            (2, 4, false),
        ] {
            advance(Duration::from_mins(minutes)).await;
            assert_eq!(is_held(desired), held, "{desired} {minutes} minutes later");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_another_process_has_marked_is_held_as_for_a_size_of_our_own_whatever_is_pending() {
        let (all, group) = (PendingReleases::default(), GroupName::from("g"));
        all.add(&group, ["i-1".into()], Some("ours"), Some((5, 4)));
        advance(Duration::from_mins(3)).await;
        all.take_over(&group, "i-1".into(), "ours");
        let pending = || all.get(&group).expect("pending");
        assert!(!pending().is_held(), "our own");
        all.take_over(&group, "i-2".into(), "theirs");
        advance(Duration::from_secs(119)).await;
        assert!(pending().is_held());
        advance(Duration::from_secs(1)).await;
        assert!(!pending().is_held());
        let tags = pending();
        let both = ["i-1".into(), "i-2".into()];
        let expected = [("ours", vec!["i-1".into()]), ("theirs", vec!["i-2".into()])];
        assert_eq!(tags.tags_of(&both), BTreeMap::from(expected));
        all.update(&group, |pending| pending.keep(["i-2".into()].into(), BTreeSet::new()));
        assert_eq!(pending().tags_of(&both), BTreeMap::from([("theirs", vec!["i-2".into()])]));
    }

    /// As in [`calls`](super::super::calls), where AWS did not answer whether it protects them: a request that arrives late must not be the
    /// last word.
    #[tokio::test(start_paused = true)]
    async fn what_may_still_be_protected_is_waited_for_though_the_group_has_more_instances_than_desired() {
        let (all, group) = (PendingReleases::default(), GroupName::from("g"));
        all.add(&group, ["i-1".into()], None, Some((3, 2)));
        advance(Duration::from_secs(270)).await;
        let before = all.get(&group);
        all.add(&group, ["i-2".into()], None, Some((2, 1)));
        all.was_not_set(&group, before, HOLD);
        let is_too_early = || all.get(&group).expect("pending").is_too_early(true);
        advance(Duration::from_secs(119)).await;
        assert!(is_too_early());
        advance(Duration::from_secs(2)).await;
        assert!(!is_too_early());
    }
}
