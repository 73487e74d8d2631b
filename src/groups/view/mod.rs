//! The groups as everybody reads them: the last snapshot, with our later changes laid over it.

mod changes;
mod failed_launches;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};

pub use self::changes::{Change, ENDS_WITHIN, size_in_doubt};
use self::changes::{Changes, SHOWN_WITHIN, is_older};
pub use self::failed_launches::FailedLaunches;
use super::Snapshot;
use super::group_locks::{GroupLock, GroupLocks, LowerLock, SharedGroupLock};
use crate::aws::AutoScalingGroup;
use crate::clock::elapsed;
use crate::k8s::GroupName;

/// The last successful refresh is too old, or there was none yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the last successful refresh is too old to answer from")]
pub struct Stale;

/// What snapshots have not shown for this long has gone: two refreshes at the usual interval.
const MISSED_FOR: Duration = Duration::from_mins(2);

/// The groups, shared by all tasks. Cheap to read.
#[derive(Debug)]
pub struct Groups {
    max_age: Duration,
    /// What is read. Made under the lock of `seen`, so that no reader waits for that.
    view: watch::Sender<Option<Arc<Snapshot>>>,
    seen: Mutex<Seen>,
    refresh: Notify,
    urgent: Notify,
    locks: GroupLocks,
    accepting: GroupLocks,
    protection: GroupLocks,
    /// Groups that cluster-autoscaler grew and instances without a Node that it gave up, in this run, and when a snapshot last showed each.
    asked_for: Mutex<BTreeMap<String, Timestamp>>,
    /// Since when no refresh has worked; `None` if the last one has.
    undescribed_since: Mutex<Option<Timestamp>>,
    /// Groups with a change of size that AWS left unanswered, and when the last one was.
    unclear: Mutex<BTreeMap<GroupName, Timestamp>>,
    failed_launches: FailedLaunches,
}

/// What the view is made of.
#[derive(Debug, Default)]
struct Seen {
    /// What discovery saw last, without our changes.
    base: Option<Arc<Snapshot>>,
    changes: Changes,
}

impl Groups {
    /// The greatest age at which a snapshot counts.
    pub fn max_age(&self) -> Duration {
        self.max_age
    }

    /// No groups yet. [`fresh`](Self::fresh) refuses snapshots older than `max_age`.
    pub fn new(max_age: Duration) -> Self {
        Self {
            max_age,
            view: watch::Sender::new(None),
            seen: Mutex::default(),
            refresh: Notify::new(),
            urgent: Notify::new(),
            locks: GroupLocks::default(),
            accepting: GroupLocks::default(),
            protection: GroupLocks::default(),
            asked_for: Mutex::default(),
            undescribed_since: Mutex::default(),
            unclear: Mutex::default(),
            failed_launches: FailedLaunches::default(),
        }
    }

    /// The present view, however old and complete or not: for what must go on during an outage.
    pub fn latest(&self) -> Option<Arc<Snapshot>> {
        self.view.borrow().clone()
    }

    /// The present view, unless it is too old or not complete.
    pub fn fresh(&self, now: Timestamp) -> Result<Arc<Snapshot>, Stale> {
        let snapshot = self.latest().filter(|snapshot| snapshot.is_complete).ok_or(Stale)?;
        if elapsed(snapshot.taken_at, now) <= self.max_age { Ok(snapshot) } else { Err(Stale) }
    }

    /// Since when AWS has not described the groups: the beginning of the first refresh that failed. `None` if the last one worked.
    pub fn undescribed_since(&self) -> Option<Timestamp> {
        *self.undescribed_since.lock()
    }

    /// Notes whether a refresh that began at `began` has worked.
    pub fn note_refresh(&self, began: Timestamp, worked: bool) {
        let mut since = self.undescribed_since.lock();
        *since = if worked { None } else { since.or(Some(began)) };
    }

    /// Publishes a snapshot. Changes accepted well before it was taken are in it and are forgotten.
    pub fn publish(&self, snapshot: Snapshot) {
        let mut seen = self.seen.lock();
        self.take(&mut seen, snapshot);
    }

    /// Publishes sizes and lifecycle states with the templates of before: an instance held by a hook must not wait until templates are
    /// looked up. Returns what it published, without changes of ours.
    pub fn publish_states(&self, mut states: Snapshot) -> Arc<Snapshot> {
        let mut seen = self.seen.lock();
        states.is_complete = seen.base.as_ref().is_some_and(|base| base.is_complete);
        for (name, group) in &mut states.groups {
            if let Some(before) = seen.base.as_ref().and_then(|base| base.groups.get(name)) {
                let group = Arc::make_mut(group);
                (group.template, group.options) = (before.template.clone(), before.options);
                group.stand_in.clone_from(&before.stand_in);
            }
        }
        self.take(&mut seen, states)
    }

    /// Lays a change of ours over the snapshot and asks for a new refresh.
    pub fn changed(&self, at: Timestamp, change: Change) {
        let mut seen = self.seen.lock();
        seen.changes.push(at, change, self.latest().as_deref());
        self.swap(&seen);
        drop(seen);
        self.refresh_soon();
    }

    /// Lays over the snapshot what a description asked for at `asked` shows that others have done to a group since `view`.
    pub fn learn(&self, view: &Snapshot, fresh: &AutoScalingGroup, asked: Timestamp, now: Timestamp) {
        let learned = Change::learned(view, fresh, asked);
        if learned.is_empty() {
            return;
        }
        let mut seen = self.seen.lock();
        for change in learned {
            if matches!(change, Change::Desired { .. }) {
                // It starts from the group without those that leave it, of whom there may be hundreds.
                self.swap(&seen);
            }
            seen.changes.push_learned(asked, now, change, self.latest().as_deref());
        }
        self.swap(&seen);
        drop(seen);
        self.refresh_soon();
    }

    /// A description of `now`, with changes of ours that it may not show yet. One that is older than the last refresh gives way to
    /// that.
    pub fn brought_up_to_date(&self, asg: AutoScalingGroup, now: Timestamp) -> AutoScalingGroup {
        let mut seen = self.seen.lock();
        let known = seen.base.as_ref().and_then(|base| base.groups.get(&asg.name));
        let newer =
            known.filter(|known| is_older(&asg, &known.asg)).map(|known| AutoScalingGroup::clone(&known.asg));
        seen.changes.laid_over_group(newer.unwrap_or(asg), now)
    }

    /// Locks a group to change its size.
    pub async fn lock(&self, group: &GroupName) -> GroupLock {
        self.locks.of(group).await
    }

    /// Locks a group to change the protection of its instances. Taken before [`Groups::lock`] if both are needed: raising a size does not
    /// wait for it.
    pub(super) async fn lock_protection(&self, group: &GroupName) -> GroupLock {
        self.protection.of(group).await
    }

    /// Locks a group to lower its size, with its instances protected meanwhile.
    pub async fn lock_to_lower(&self, group: &GroupName) -> LowerLock {
        LowerLock { protection: self.lock_protection(group).await, size: self.lock(group).await }
    }

    /// Locks a group to accept scale-ins of its nodes, or to give up what never came: both count against the group's minimum. Held only for
    /// the decision: what is accepted counts from then on, so the next drained node need not wait until this one's record is written or its
    /// instance terminated. Taken before the other locks.
    pub async fn accepting(&self, group: &GroupName) -> GroupLock {
        self.accepting.of(group).await
    }

    /// Locks a group to terminate instances of it, beside others that do the same.
    pub async fn shared_lock(&self, group: &GroupName) -> SharedGroupLock {
        self.locks.of_termination(group).await
    }

    /// Notes a group that cluster-autoscaler has grown, or an instance that it has given up: so these are ours.
    pub fn note_asked_for(&self, name: &str) {
        let seen = self.latest().map(|snapshot| snapshot.taken_at).unwrap_or_default();
        self.asked_for.lock().insert(name.to_owned(), seen);
    }

    /// Whether that was noted in this run, of what is there still.
    pub fn is_asked_for(&self, name: &str) -> bool {
        self.asked_for.lock().contains_key(name)
    }

    /// Notes that a size of ours may or may not have been set by `now`.
    pub(super) fn note_unclear(&self, group: &GroupName, now: Timestamp) {
        self.unclear.lock().insert(group.clone(), now);
    }

    /// Whether a description of `at` shows what has become of all sizes of the group that we have set.
    pub fn is_clear(&self, group: &GroupName, at: Timestamp) -> bool {
        self.unclear.lock().get(group).is_none_or(|set| elapsed(*set, at) >= SHOWN_WITHIN)
    }

    /// Which launches have failed lately.
    pub fn failed_launches(&self) -> &FailedLaunches {
        &self.failed_launches
    }

    /// Asks discovery for a refresh soon; several such requests make one.
    pub fn refresh_soon(&self) {
        self.refresh.notify_one();
    }

    /// Waits until somebody asks for a new refresh.
    pub async fn refresh_wanted(&self) {
        self.refresh.notified().await;
    }

    /// Waits for groups that were described after a moment; asks discovery for a refresh at once if there are none yet.
    pub async fn refreshed(&self, after: Timestamp) {
        let is_new = |view: &Option<Arc<Snapshot>>| view.as_ref().is_some_and(|view| view.taken_at >= after);
        let mut versions = self.versions();
        if !is_new(&versions.borrow()) {
            self.refresh_at_once();
        }
        // An error would mean that the groups themselves are gone.
        let _ = versions.wait_for(is_new).await;
    }

    /// Asks discovery for a refresh at once.
    pub fn refresh_at_once(&self) {
        self.urgent.notify_one();
    }

    /// Waits until somebody asks for a refresh at once.
    pub async fn refresh_wanted_at_once(&self) {
        self.urgent.notified().await;
    }

    /// Changes with the view.
    pub fn versions(&self) -> watch::Receiver<Option<Arc<Snapshot>>> {
        self.view.subscribe()
    }

    /// Has somebody look now, and after each change of the view. Never completes.
    pub async fn watch(&self, mut look: impl FnMut()) -> Infallible {
        let mut versions = self.versions();
        loop {
            look();
            if versions.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    fn take(&self, seen: &mut Seen, snapshot: Snapshot) -> Arc<Snapshot> {
        seen.changes.forget_shown(&snapshot);
        self.forget_gone(&snapshot);
        let snapshot = Arc::new(match &seen.base {
            Some(before) => snapshot.after(before),
            None => snapshot,
        });
        seen.base = Some(Arc::clone(&snapshot));
        self.swap(seen);
        snapshot
    }

    /// Drops entries of `asked_for` whose group or instance no snapshot has shown for [`MISSED_FOR`], and sizes that have been clear for long.
    fn forget_gone(&self, snapshot: &Snapshot) {
        let mut asked_for = self.asked_for.lock();
        asked_for.retain(|name, seen| {
            let name = name.as_str();
            if snapshot.groups.contains_key(name) || snapshot.by_instance.contains_key(name) {
                *seen = snapshot.taken_at;
            }
            elapsed(*seen, snapshot.taken_at) <= MISSED_FOR
        });
        self.unclear.lock().retain(|_, set| elapsed(*set, snapshot.taken_at) <= MISSED_FOR);
    }

    fn swap(&self, seen: &Seen) {
        let Some(base) = &seen.base else { return };
        let view = seen.changes.laid_over(base);
        self.failed_launches.note(&view);
        self.view.send_replace(Some(view));
    }
}

#[cfg(test)]
mod tests;
