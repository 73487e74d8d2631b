//! Scale-in protection while a size goes down: instances in service are protected, so that one that launches at the last
//! moment costs none of them, and released once Auto Scaling has acted on the size.
//!
//! - AWS accepts a lower size at once and acts on it later, so protection outlasts the call. If an instance launches in
//!   between, the size is raised again, to its old value at most: a group that launches before it terminates has more for a while. After a
//!   restart the old value is not known, and nothing is raised.
//! - An instance has the tag [`PROTECTION_TAG`] from before it is protected until after it is released. By the tag the next run
//!   finds what a killed one has left. Tags older than a day do not count: whoever may tag instances could strip protection with them.
//! - Another replica that lowers the size meanwhile protects only who is not protected yet, and relies on the rest: a smaller size that is
//!   described counts as one of our own, and a tag that has another value by now is the other one's.
//! - Only instances with the tag, or protected by this process, are released; others are somebody else's, and so are tagged
//!   instances outside our groups.
//! - Everything here holds the lock of the group's protection, and that of its size only to set one: taking protection off takes several
//!   calls, which the next scale-up of the group need not wait for.
//! - A tag that cannot be set does not keep a size from going down.
//! - A dry run protects nothing, and so releases nothing: what has the tag is another process's.

mod calls;
mod late_sizes;
mod pending;
mod tag;
mod take_over;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use self::late_sizes::LateSizes;
use self::pending::{PendingRelease, PendingReleases};
pub use self::tag::PROTECTION_TAG;
use super::{Change, Groups, LowerLock, size_in_doubt, sizes};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance, Lifecycle, Operation};
use crate::clock::{Clock, elapsed, later};
use crate::cluster::Leadership;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::{Outage, chain};

/// At most this many instances are named in a line of the log.
const FIRST: usize = 10;

/// Groups at once that are looked at, each by some calls one after the other: slow ones of one group do not hold the others up.
const AT_ONCE: usize = 8;

/// Protects instances while a size goes down, and releases them.
#[derive(Debug)]
pub struct Protection {
    aws: Aws,
    groups: Arc<Groups>,
    clock: Clock,
    pending: PendingReleases,
    late_sizes: LateSizes,
    /// Lasts while instances cannot be tagged.
    untagged: Mutex<Outage>,
}

/// What came of an attempt to release instances.
enum Released {
    /// It is too early.
    None,
    /// These were not in the description, or cannot be released yet.
    AllBut {
        left: BTreeSet<InstanceId>,
        /// Those that were not in it.
        missed: BTreeSet<InstanceId>,
    },
    All,
}

/// Longest time from asking for what a change is decided from to asking AWS for it: if this process, or its whole machine, was stopped in between,
/// another may have led since.
const DECIDED_WITHIN: Duration = Duration::from_secs(20);

/// What AWS's clock reads is known to within this.
const CLOCK_OF_AWS_WITHIN: SignedDuration = SignedDuration::from_secs(3);

/// Another change of a size is in the way, as far as is known.
fn in_progress(message: String) -> AwsError {
    AwsError::ScalingActivityInProgress { operation: Operation::SetDesiredCapacity, message }
}

impl Protection {
    /// Protects nothing yet.
    pub fn new(aws: Aws, groups: Arc<Groups>, clock: Clock) -> Self {
        Self {
            aws,
            groups,
            clock,
            pending: PendingReleases::default(),
            late_sizes: LateSizes::default(),
            untagged: Mutex::default(),
        }
    }

    /// Sets the size of a locked group, decided from what was asked for at `asked_at` by the wall clock.
    pub(crate) async fn set(&self, group: &GroupName, to: i32, asked_at: Timestamp) -> Result<(), AwsError> {
        self.refuse_old(Operation::SetDesiredCapacity, asked_at)?;
        let set = self.aws.set_desired(group, to).await;
        let now = self.clock.now();
        if set.as_ref().is_err_and(|error| !error.is_refusal()) {
            self.groups.note_unclear(group, now);
        }
        if set.as_ref().is_err_and(AwsError::may_come) {
            self.late_sizes.note(group, to, now);
        }
        set
    }

    /// Refuses what was decided from what was asked for at `asked_at` by the wall clock, unless that was just now.
    pub(crate) fn refuse_old(&self, operation: Operation, asked_at: Timestamp) -> Result<(), AwsError> {
        if elapsed(asked_at, self.clock.wall()) <= DECIDED_WITHIN {
            return Ok(());
        }
        let message = "it was decided before this process was stopped for a while".to_owned();
        Err(AwsError::ScalingActivityInProgress { operation, message })
    }

    /// A size that AWS was told and has not answered, and that may still come to a group which is described with the size `seen`.
    pub(crate) fn late_size(&self, group: &GroupName, seen: i32) -> Option<i32> {
        self.late_sizes.of(group, seen, self.clock.now())
    }

    /// Protects `instances` and lowers the size of the locked group, decided as for [`set`](Self::set). `answer` gets AWS's answer to the
    /// size as soon as it is known; the rest is done whether or not anybody listens. If nobody listens any more before the size is set, it
    /// is not set.
    pub(crate) async fn lower(
        &self,
        lock: LowerLock,
        (from, to): (i32, i32),
        instances: Vec<InstanceId>,
        asked_at: Timestamp,
        mut answer: oneshot::Sender<Result<(), AwsError>>,
    ) {
        let LowerLock { protection: lock, size } = lock;
        let (group, tag) = (lock.group(), self.clock.cluster().to_string());
        let (result, tagged) = calls::tag(&self.aws, &instances, &tag).await;
        self.note_tagging(result.as_ref().err());
        let before = self.pending.get(group);
        if !self.aws.is_dry_run() {
            self.pending.add(group, instances.iter().cloned(), Some(&*tag).filter(|_| tagged), None);
        }

        let mut protecting = pin!(self.protect(group, &instances, true));
        let protected = tokio::select! {
            biased;
            () = answer.closed() => None,
            protected = &mut protecting => Some(protected),
        };
        let Some(protected) = protected else {
            // The size was decided from a view that is old by now.
            drop(size);
            tracing::info!(
                group = group.as_str(),
                to,
                "desired capacity not lowered: the caller has given up"
            );
            // The next try goes on from here: in a large group, protecting takes longer than anybody waits. And a call that nothing was
            // heard of may protect them later.
            let _ = protecting.await;
            self.pending.was_not_set(group, before, pending::HOLD);
            return self.pending.notify();
        };
        let described = protected.map(|seen| seen.map(|seen| seen.described_desired.unwrap_or(seen.desired)));
        let set = match described {
            Ok(Some(size)) if size != from => {
                Err(in_progress(format!("somebody else has set its desired capacity to {size}")))
            }
            // A dry run tells which size it would have set.
            Ok(_) | Err(AwsError::DryRun { .. }) => self.set(group, to, asked_at).await,
            Err(error) => Err(error),
        };
        let is_set = set.is_ok();
        let is_refused = set.as_ref().is_err_and(AwsError::is_refusal);
        if is_set {
            self.note(Change::Desired { group: group.to_owned(), from, to });
        }
        drop(size);
        // Nobody listens if the caller has given up.
        let _ = answer.send(set);
        if is_set {
            self.pending.add(group, None, None, Some((from, to)));
            self.raise_after_lowering(group).await;
        } else if is_refused {
            // Certainly without effect: no need to hold.
            self.pending.was_not_set(group, before, Duration::ZERO);
        } else {
            // It may have been set all the same.
            self.pending.add(group, None, None, Some((from, to)));
        }
        self.pending.notify();
    }

    /// Turns protection of instances on or off. If one is leaving, AWS refuses the whole call and names it: then the group is described
    /// again, the call repeated for those that stay, and the description returned. A second such refusal counts as one that may pass.
    async fn protect(
        &self,
        group: &GroupName,
        instances: &[InstanceId],
        on: bool,
    ) -> Result<Option<AutoScalingGroup>, AwsError> {
        let refusal = match calls::protect(&self.aws, group, instances, on).await {
            Err(refusal) if refusal.is_refused_request() => refusal,
            outcome => return outcome.map(|()| None),
        };
        let Some(seen) = self.describe(group).await? else { return Err(refusal) };
        // The description may be older than the refusal.
        let text = refusal.to_string();
        let stays = |i: &&Instance| {
            (if on { is_to_be_protected(i) } else { is_to_be_released(i) }) && !text.contains(i.id.as_str())
        };
        let asked: BTreeSet<&InstanceId> = instances.iter().collect();
        let still = seen.instances.iter().filter(stays).filter(|i| asked.contains(&i.id));
        let still: Vec<InstanceId> = still.map(|i| i.id.clone()).collect();
        let passes = |(operation, message)| AwsError::ScalingActivityInProgress { operation, message };
        let again = |again: AwsError| again.as_refused_request().map_or_else(|other| other, passes);
        calls::protect(&self.aws, group, &still, on).await.map(|()| Some(seen)).map_err(again)
    }

    /// Lowers the size of the locked group by one, unless that would cost a live instance or leave less than the minimum once the
    /// instances that `decrements` holds of are gone, or this process does not lead any more; nor if the group was made `since`, under the
    /// name of one that is gone. Returns whether it did.
    pub async fn give_up_one(
        &self,
        lock: LowerLock,
        since: Timestamp,
        decrements: impl Fn(&Instance) -> bool,
        leads: impl Fn() -> bool,
    ) -> Result<bool, AwsError> {
        let (group, asked_at) = (lock.size().group(), self.clock.wall());
        let Some(mut seen) = self.describe(group).await? else { return Ok(false) };
        let made = seen.created.map(|created| later(created, -self.clock.aws_ahead()));
        if made.is_some_and(|made| made > later(since, CLOCK_OF_AWS_WITHIN)) {
            return Ok(false);
        }
        if let Some(known) = self.groups.latest().and_then(|view| view.groups.get(group).cloned()) {
            // `--nodes` may allow less than the group itself.
            seen.min = seen.min.max(known.asg.min);
        }
        let to = sizes::decreased(&seen, -1, decrements).unwrap_or(seen.desired);
        if to >= seen.desired {
            return Ok(false);
        }
        if let Some(late) = self.late_size(group, seen.desired) {
            return Err(in_progress(format!(
                "an earlier change of its desired capacity to {late} got no answer; it may take effect"
            )));
        }
        let (now, view) = (self.clock.now(), self.groups.latest());
        if let Some(or) = view.and_then(|view| size_in_doubt(&view, &seen, now)) {
            return Err(in_progress(format!(
                "its desired capacity may be {or} or {}: a description is out of date, or somebody has changed it",
                seen.desired
            )));
        }
        // The description may have taken long.
        if !leads() {
            return Err(in_progress("another process leads by now".to_owned()));
        }
        let (answer, set) = oneshot::channel();
        let from = seen.desired;
        self.lower(lock, (from, to), to_protect(&seen), asked_at, answer).await;
        match set.await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                Err(in_progress("it was cut off: the program is stopping, or its task panicked".to_owned()))
            }
        }
    }

    /// Notes a change that AWS has accepted: descriptions may not show it for a while.
    pub(crate) fn note(&self, change: Change) {
        self.groups.changed(self.clock.now(), change);
    }

    async fn raise_after_lowering(&self, group: &GroupName) {
        let raised = match (self.describe(group).await, self.pending.get(group)) {
            (Ok(Some(seen)), Some(pending)) => self.raise(&seen, &pending).await.map(drop),
            (outcome, _) => outcome.map(drop),
        };
        if let Err(error) = raised {
            tracing::warn!(
                group = group.as_str(),
                error = %chain(&error),
                "cannot check yet whether an instance launched while the desired capacity was lowered"
            );
        }
    }

    /// Raises the size, if it is still described as the one we set, to the number of live instances: one launched after we lowered it. A
    /// description of another size may be from before, or somebody may have set that since. Not above what it was before: any instance
    /// beyond that replaces one that is still to go, and the group would keep one too many for good. Returns whether live ≤ desired.
    async fn raise(&self, seen: &AutoScalingGroup, pending: &PendingRelease) -> Result<bool, AwsError> {
        let live = |group: &AutoScalingGroup| group.live().count() as i32;
        let raised = |group: &AutoScalingGroup| {
            let to = pending.from.map_or(group.desired, |most| live(group).min(group.max).min(most));
            let is_ours = pending.size == Some(group.desired) && group.described_desired.is_none();
            (is_ours && to > group.desired).then_some(to)
        };
        if raised(seen).is_none() {
            return Ok(live(seen) <= seen.desired);
        }
        let group = &seen.name;
        let _size = self.groups.lock(group).await;
        let asked_at = self.clock.wall();
        // Somebody may have set it before it was locked.
        let Some(seen) = self.describe(group).await? else { return Ok(false) };
        let from = seen.desired;
        let Some(to) = raised(&seen) else { return Ok(live(&seen) <= from) };
        self.set(group, to, asked_at).await?;
        self.note(Change::Desired { group: group.clone(), from, to });
        // Another one may come after this one.
        self.pending.update(group, |pending| pending.size = Some(to));
        tracing::info!(
            group = group.as_str(),
            from,
            to,
            "desired capacity raised again: an instance launched after it was lowered"
        );
        Ok(live(&seen) <= to)
    }

    async fn describe(&self, group: &GroupName) -> Result<Option<AutoScalingGroup>, AwsError> {
        let described = calls::describe(&self.aws, group).await?;
        Ok(described.map(|described| self.brought_up_to_date(described)))
    }

    /// A description with changes of ours that it may not show yet.
    pub(crate) fn brought_up_to_date(&self, group: AutoScalingGroup) -> AutoScalingGroup {
        self.groups.brought_up_to_date(group, self.clock.now())
    }

    /// Logs when instances cannot be tagged, and when they can again. That a dry run tags none is no trouble.
    fn note_tagging(&self, error: Option<&AwsError>) {
        if matches!(error, Some(AwsError::DryRun { .. })) {
            return;
        }
        let mut outage = self.untagged.lock();
        if let Some(error) = error {
            if let Some(outage_seconds) = outage.failed() {
                tracing::warn!(
                    tag = PROTECTION_TAG,
                    outage_seconds,
                    error = %chain(error),
                    "cannot tag instances while they are protected from scale-in: if ebbtide is killed now, they stay \
                     protected"
                );
            }
        } else if outage.recovered().is_some() {
            tracing::info!(tag = PROTECTION_TAG, "instances can be tagged again");
        }
    }

    /// Releases what is due, and finds what other runs have left, for ever. In a dry run neither: that is for the process which works.
    pub async fn run(self: Arc<Self>, leadership: Leadership) -> Infallible {
        if self.aws.is_dry_run() {
            return std::future::pending().await;
        }
        let take_over =
            take_over::take_over(&self.aws, &self.groups, &self.clock, &leadership, &self.pending);
        tokio::join!(take_over, self.release_what_is_due()).1
    }

    async fn release_what_is_due(&self) -> Infallible {
        loop {
            let due = stream::iter(self.pending.due().await);
            due.for_each_concurrent(AT_ONCE, |group| async move { self.release(&group).await }).await;
        }
    }

    async fn release(&self, group: &GroupName) {
        let _lock = self.groups.lock_protection(group).await;
        // Whoever held the lock may have put it off.
        let Some(pending) = self.pending.get_due(group) else { return };
        match self.try_to_release(group, &pending).await {
            Ok(Released::All) => self.pending.remove(group),
            Ok(released) => self.pending.check_again(group, |pending| {
                if let Some(outage_seconds) = pending.outage.recovered() {
                    tracing::info!(
                        group = group.as_str(),
                        outage_seconds,
                        "scale-in protection can be taken off again"
                    );
                }
                if let Released::AllBut { left, missed } = released {
                    pending.keep(left, missed);
                    // Once the others are released, the size is nobody's concern.
                    pending.size = pending.size.filter(|_| pending.is_held());
                }
            }),
            Err(error) => self.pending.check_again(group, |pending| {
                if let Some(outage_seconds) = pending.outage.failed() {
                    tracing::warn!(
                        group = group.as_str(),
                        instances = pending.instances.len(),
                        first = ?pending.instances.iter().take(FIRST).collect::<Vec<_>>(),
                        outage_seconds,
                        error = %chain(&error),
                        "cannot take scale-in protection off"
                    );
                }
            }),
        }
    }

    /// Takes protection and tags off, unless that is too early.
    async fn try_to_release(
        &self,
        group: &GroupName,
        pending: &PendingRelease,
    ) -> Result<Released, AwsError> {
        let Some(seen) = self.describe(group).await? else {
            let all = pending.instances.clone();
            let are_gone = all == pending.missed;
            let released = Released::AllBut { left: all.clone(), missed: all };
            return Ok(if are_gone { Released::All } else { released });
        };
        self.pending.update(group, |pending| pending.note_described(seen.desired));
        let Some(pending) = &self.pending.get(group) else { return Ok(Released::None) };
        let raised = self.raise(&seen, pending).await;
        let has_newcomers = self.protect_newcomers(&seen, pending).await;
        let has_surplus = !raised?;
        if has_newcomers || pending.is_too_early(has_surplus) {
            return Ok(Released::None);
        }
        let ours: Vec<&Instance> =
            seen.instances.iter().filter(|i| pending.instances.contains(&i.id)).collect();
        let ids = |which: fn(&Instance) -> bool| -> Vec<InstanceId> {
            ours.iter().filter(|&&instance| which(instance)).map(|instance| instance.id.clone()).collect()
        };
        self.protect(group, &ids(is_to_be_released), false).await?;
        let done = ids(|instance| !is_to_be_released_later(instance));
        for (tag, instances) in pending.tags_of(&done) {
            calls::untag(&self.aws, &instances, tag).await?;
        }
        let later = ids(is_to_be_released_later);
        // What is missing once may be there all the same.
        let is_missed =
            |id: &&InstanceId| !later.contains(id) && !done.contains(id) && !pending.missed.contains(*id);
        let missed: BTreeSet<InstanceId> = pending.instances.iter().filter(is_missed).cloned().collect();
        let left: BTreeSet<InstanceId> = later.into_iter().chain(missed.iter().cloned()).collect();
        Ok(if left.is_empty() { Released::All } else { Released::AllBut { left, missed } })
    }

    /// Protects instances that came into service since the size was set, which AWS refused before: their nodes may have
    /// workloads, and Auto Scaling could choose nobody else. If that fails the others are released all the same. Returns whether
    /// there were any: they are not in `pending` yet.
    ///
    /// Source: [Use instance scale-in
    /// protection](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html), which
    /// starts with `InService`.
    async fn protect_newcomers(&self, seen: &AutoScalingGroup, pending: &PendingRelease) -> bool {
        if pending.size.is_none() || !pending.is_held() {
            return false;
        }
        let group = &seen.name;
        let newcomers = to_protect(seen);
        if newcomers.is_empty() {
            return false;
        }
        let tag = self.clock.cluster().to_string();
        let (_, tagged) = calls::tag(&self.aws, &newcomers, &tag).await;
        let tag = Some(&*tag).filter(|_| tagged);
        self.pending.update(group, |pending| pending.extend(newcomers.iter().cloned(), tag));
        if let Err(error) = self.protect(group, &newcomers, true).await {
            tracing::warn!(
                group = group.as_str(),
                instances = newcomers.len(),
                first = ?newcomers.iter().take(FIRST).collect::<Vec<_>>(),
                error = %chain(&error),
                "cannot protect new instances from scale-in while the desired capacity goes down"
            );
        }
        true
    }
}

/// Instances that a lower size might cost if another one launches at the same time: those in service. AWS refuses to protect
/// others; one that is protected already belongs to somebody else.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
pub fn to_protect(group: &AutoScalingGroup) -> Vec<InstanceId> {
    group.instances.iter().filter(|i| is_to_be_protected(i)).map(|i| i.id.clone()).collect()
}

fn is_to_be_protected(instance: &Instance) -> bool {
    !instance.protected && instance.lifecycle == Lifecycle::InService
}

/// Whether the instance is in a state in which AWS takes protection off. On one that is leaving it does not matter. Whether it is
/// protected does not count: a description may be older than the call that did so.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
fn is_to_be_released(instance: &Instance) -> bool {
    matches!(instance.lifecycle, Lifecycle::InService | Lifecycle::Standby)
}

/// Whether it comes back from where it is: its group replaces its root volume.
fn is_to_be_released_later(instance: &Instance) -> bool {
    matches!(
        instance.lifecycle,
        Lifecycle::ReplacingVolume | Lifecycle::ReplacingVolumeWait | Lifecycle::VolumeReplaced
    )
}
