//! Scale-in protection while a size goes down: instances in service are protected, so that one that launches at the
//! last moment makes the group end none of them, and released when the group has come to rest.
//!
//! - AWS only notes a desired capacity down and acts on it later, so that protection has to outlast the call. An instance
//!   that came in between lives: the size is raised to what is there.
//! - An instance carries the tag [`PROTECTION_TAG`] from before it is protected until after it is released. What an interrupted
//!   run has left is found by it and released by the next one.
//! - A mark counts if its value is a moment of the last day: whoever may tag instances could strip protection with it.
//! - Protection is taken off nothing that neither has the mark nor was protected by this process: it is somebody
//!   else's. Marked instances that are in no group of ours are another's to release.
//! - Everything here happens under the group's lock, so that no two changes get into each other's way.
//! - A mark that cannot be set or taken off does not keep a size from going down.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::{Change, GroupLock, Groups, sizes};
use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance, Lifecycle, Operation};
use crate::clock::{Clock, backoff};
use crate::cluster::Leadership;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::{Outage, chain};

/// The tag of an instance that is protected from scale-in by us; its value says since when. `deploy/iam-policy.json`
/// allows to write no other.
pub const PROTECTION_TAG: &str = "ebbtide/protected-from-scale-in";

/// What marks may take out of the caller's few seconds (see [`crate::provider`]): EC2 answers within half of it.
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// What each other step may take, so that a group's lock is released.
const WITHIN: Duration = Duration::from_secs(5);
/// How long instances stay protected after a size was set, or may have been. Auto Scaling was seen to look for a victim 15 to
/// 91 s after that, and a request that was given up, or that a killed run sent last, may still arrive.
///
/// Sources: [kubernetes/autoscaler#9182](https://github.com/kubernetes/autoscaler/issues/9182),
/// [#10147](https://github.com/kubernetes/autoscaler/issues/10147) (20:16:05 to 20:16:25),
/// [kube-aws-autoscaler#7](https://github.com/hjacobs/kube-aws-autoscaler/issues/7).
const HOLD: Duration = Duration::from_mins(2);
/// How long they stay protected at most while the group has more than it should: whoever wants it so (Terminate is
/// suspended, a person has lowered the size meanwhile) has the say then.
const HOLD_AT_MOST: Duration = Duration::from_mins(5);
/// From one look at a group whose size went down to the next: no group was seen to look for a victim sooner than 15 s after.
const LOOK: Duration = Duration::from_secs(10);
/// The longest wait between two tries at what fails. It doubles up to this from [`LOOK`].
const RETRY_AT_MOST: Duration = Duration::from_mins(5);

/// How often a process that leads looks for what others have left protected: with one call for up to a thousand instances. Such
/// instances are drained and deleted like all others; only the group's own scale-in passes them over.
const LOOK_FOR_LEFT: Duration = Duration::from_mins(15);
/// An instance tagged longer ago has been left: longer than [`HOLD_AT_MOST`], even where a second size goes down meanwhile, or
/// clocks differ.
const AT_WORK: SignedDuration = SignedDuration::from_mins(15);

/// Protects instances while a size goes down, and releases them.
#[derive(Debug)]
pub struct Protection {
    aws: Aws,
    groups: Arc<Groups>,
    clock: Clock,
    /// By group, what is to be released.
    owed: Mutex<BTreeMap<GroupName, Owed>>,
    /// Something else is owed than before.
    changed: Notify,
    /// Marks cannot be set.
    unmarked: Mutex<Outage>,
}

#[derive(Clone, Debug)]
struct Owed {
    instances: BTreeSet<InstanceId>,
    /// Whether they may have the mark.
    marked: bool,
    /// The size that was set.
    size: Option<i32>,
    /// When that was, or may have been.
    since: Instant,
    /// How long after that they stay protected at the least.
    hold: Duration,
    /// When to release them, or to try again.
    due: Instant,
    /// They cannot be released.
    outage: Outage,
    /// Whether these were missing in a look, when the others were released.
    missed: bool,
}

/// What has come of a try to release what is owed.
enum Released {
    None,
    /// These were not seen.
    AllBut(BTreeSet<InstanceId>),
    All,
}

impl Protection {
    /// Owes nothing yet.
    pub fn new(aws: Aws, groups: Arc<Groups>, clock: Clock) -> Self {
        let (owed, changed, unmarked) = (Mutex::default(), Notify::new(), Mutex::default());
        Self { aws, groups, clock, owed, changed, unmarked }
    }

    /// Sets a lower size for the group whose lock it holds, `instances` protected from now on. What AWS says of the size is
    /// told as soon as it is known; the rest is done whether or not anybody listens. Nobody listening any more before AWS is told
    /// of the size, it is not.
    pub(crate) async fn lower(
        &self,
        lock: GroupLock,
        (from, to): (i32, i32),
        instances: Vec<InstanceId>,
        answer: oneshot::Sender<Result<(), AwsError>>,
    ) {
        let group = lock.group();
        let mark = within(MARK_WITHIN, Operation::CreateTags, self.mark(&instances).boxed()).await;
        self.note_marks(mark.as_ref().err());
        // What EC2 refuses it has not done.
        let marked = !instances.is_empty() && mark.as_ref().err().is_none_or(AwsError::is_transient);
        let before = self.owed().get(group).cloned();
        self.owe(group, instances.iter().cloned(), marked, None);

        let on = self.aws.protect(group, &instances, true).boxed();
        let protected = within(WITHIN, Operation::SetInstanceProtection, on).await;
        if answer.is_closed() {
            // It was decided from a look that is old by now, and whoever asked counts on nothing.
            tracing::info!(
                group = group.as_str(),
                to,
                "a size is not lowered: whoever asked for it has given up"
            );
            self.was_not_set(group, before, HOLD);
            return self.changed.notify_one();
        }
        let set = match protected {
            Ok(()) => self.aws.set_desired(group, to).await,
            Err(error) => Err(error),
        };
        let is_set = set.is_ok();
        // A refusal is certain: there is nothing to outlast.
        let is_refused = set.as_ref().is_err_and(AwsError::is_refusal);
        if is_set {
            self.note(Change::Desired { group: group.to_owned(), from, to });
        }
        // Nobody listens if the caller has given up.
        let _ = answer.send(set);
        if is_set {
            self.owe(group, None, marked, Some(to));
            let looked = match self.describe(group).await {
                Ok(Some(seen)) => self.raise(&seen, Some(to)).await.map(drop),
                outcome => outcome.map(drop),
            };
            if let Err(error) = looked {
                tracing::warn!(group = group.as_str(), error = %chain(&error), "whether an instance came at the last moment cannot be seen yet");
            }
        } else if is_refused {
            self.was_not_set(group, before, Duration::ZERO);
        }
        self.changed.notify_one();
    }

    /// A size was not set for certain. What is owed for the one `before` is owed for as long as it was; else protection
    /// may end after `hold`.
    fn was_not_set(&self, group: &GroupName, before: Option<Owed>, hold: Duration) {
        let mut all = self.owed();
        let Some(owed) = all.get_mut(group) else { return };
        if let Some(before) = before {
            (owed.size, owed.since, owed.hold, owed.due) =
                (before.size, before.since, before.hold, before.due);
        } else {
            (owed.hold, owed.due) = (hold, Instant::now());
        }
    }

    /// Lowers the size of the group whose lock it holds by one, unless that would cost an instance that lives or go below the
    /// minimum, once the instances that `decrements` says so of have gone. Whether it did.
    pub async fn give_up_one(
        &self,
        lock: GroupLock,
        decrements: impl Fn(&Instance) -> bool,
    ) -> Result<bool, AwsError> {
        let Some(mut seen) = self.describe(lock.group()).await? else { return Ok(false) };
        if let Some(known) = self.groups.latest().and_then(|view| view.groups.get(lock.group()).cloned()) {
            // `--nodes` may allow less than the group itself.
            seen.min = seen.min.max(known.asg.min);
        }
        let to = sizes::decreased(&seen, -1, decrements).unwrap_or(seen.desired);
        if to >= seen.desired {
            return Ok(false);
        }
        let (answer, set) = oneshot::channel();
        let from = seen.desired;
        self.lower(lock, (from, to), to_protect(&seen), answer).await;
        match set.await {
            Ok(Ok(())) => Ok(true),
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    /// Notes what AWS has accepted, whether or not somebody still waits for it: a description may not show it for a while.
    pub(crate) fn note(&self, change: Change) {
        self.groups.changed(self.clock.now(), change);
    }

    /// Raises the size to what is there, if it is what was set and the group has more: an instance has come that was given
    /// up. Whether the group has no more than it should, then.
    async fn raise(&self, seen: &AutoScalingGroup, size: Option<i32>) -> Result<bool, AwsError> {
        let (group, live) = (&seen.name, seen.live().count() as i32);
        let (from, to) = (seen.desired, live.min(seen.max));
        if size != Some(from) || to <= from {
            return Ok(live <= from);
        }
        self.aws.set_desired(group, to).await?;
        self.note(Change::Desired { group: group.clone(), from, to });
        tracing::info!(group = group.as_str(), from, to, "an instance came that was given up: it stays");
        Ok(live <= to)
    }

    async fn describe(&self, group: &GroupName) -> Result<Option<AutoScalingGroup>, AwsError> {
        let described = self.aws.describe_group_now(group).boxed();
        let described = within(WITHIN, Operation::DescribeAutoScalingGroups, described).await?;
        Ok(described.map(|described| self.brought_up_to_date(described)))
    }

    /// A group as it was just described, with changes of ours that the description may not show yet.
    pub(crate) fn brought_up_to_date(&self, group: AutoScalingGroup) -> AutoScalingGroup {
        self.groups.brought_up_to_date(group, self.clock.now())
    }

    async fn mark(&self, instances: &[InstanceId]) -> Result<(), AwsError> {
        self.aws.tag_instances(instances, PROTECTION_TAG, &self.clock.wall().to_string()).await
    }

    /// Says when marks cannot be set, and when they can again.
    fn note_marks(&self, error: Option<&AwsError>) {
        let mut outage = self.unmarked.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error {
            if let Some(lasted) = outage.lasts() {
                tracing::warn!(
                    tag = PROTECTION_TAG,
                    lasts_seconds = lasted.as_secs(),
                    error = %chain(error),
                    "instances cannot be tagged while they are protected from scale-in: if ebbtide is killed now, \
                     they stay protected"
                );
            }
        } else if outage.ends().is_some() {
            tracing::info!(tag = PROTECTION_TAG, "instances can be tagged again");
        }
    }

    /// Releases what is due, and while this process leads takes over what others have left, for ever.
    pub async fn run(&self, leadership: &Leadership) -> Infallible {
        tokio::join!(self.take_over(leadership), self.release_what_is_due()).1
    }

    /// Takes over tagged instances of our groups: at first all of them, so that a restart finishes what the last run began; later
    /// those that a replica which does not lead has left when it was killed.
    async fn take_over(&self, leadership: &Leadership) -> Infallible {
        let (mut outage, mut warned) = (Outage::default(), BTreeSet::new());
        let mut oldest_at_work = SignedDuration::MIN;
        loop {
            leadership.begun().await;
            // An error only if the sender is gone, which lives in `self.groups`.
            let _ = self.groups.versions().wait_for(Option::is_some).await;
            // Nothing at the start waits for this, nor is it to wait for it.
            tokio::time::sleep(LOOK).await;
            let tagged = self.aws.tagged_instances(PROTECTION_TAG).boxed();
            let pause = match within(WITHIN, Operation::DescribeTags, tagged).await {
                Ok(tagged) => {
                    if outage.ends().is_some() {
                        tracing::info!(
                            tag = PROTECTION_TAG,
                            "instances left protected can be looked for again"
                        );
                    }
                    self.take_on_left(tagged, oldest_at_work, &mut warned);
                    oldest_at_work = AT_WORK;
                    LOOK_FOR_LEFT
                }
                Err(error) => {
                    if let Some(lasted) = outage.lasts() {
                        tracing::warn!(
                            tag = PROTECTION_TAG,
                            lasts_seconds = lasted.as_secs(),
                            error = %chain(&error),
                            "instances left protected from scale-in by an earlier run cannot be looked for"
                        );
                    }
                    backoff(outage.failures(), LOOK, RETRY_AT_MOST)
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Owes the release of instances in our groups whose tag is older than `at_work`. Warns of a value that counts for nothing once.
    fn take_on_left(
        &self,
        tagged: Vec<(InstanceId, String)>,
        at_work: SignedDuration,
        warned: &mut BTreeSet<(InstanceId, String)>,
    ) {
        let Some(view) = self.groups.latest() else { return };
        let now = self.clock.wall();
        warned.retain(|warned| tagged.contains(warned));
        for (instance, value) in tagged {
            let Some(group) = view.by_instance.get(&instance) else { continue };
            match age(&value, now) {
                Some(age) if age > at_work => self.take_on(group, instance),
                Some(_) => {}
                None => {
                    if warned.insert((instance.clone(), value.clone())) {
                        tracing::warn!(
                            group = group.as_str(),
                            instance = instance.as_str(),
                            tag = PROTECTION_TAG,
                            value,
                            "the tag's value is no moment of the last day: the instance's protection is left as it is"
                        );
                    }
                }
            }
        }
        self.changed.notify_one();
    }

    async fn release_what_is_due(&self) -> Infallible {
        loop {
            let due = self.owed().values().map(|owed| owed.due).min();
            let pause = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = pause => {}
                () = self.changed.notified() => continue,
            }
            let now = Instant::now();
            let due: Vec<GroupName> = self
                .owed()
                .iter()
                .filter(|(_, owed)| owed.due <= now)
                .map(|(group, _)| group.clone())
                .collect();
            for group in due {
                self.release(&group).await;
            }
        }
    }

    /// Releases what is owed to a group, or says when it is looked at again.
    async fn release(&self, group: &GroupName) {
        let lock = self.groups.lock(group).await;
        // It may have been put off while others had their turn.
        let Some(owed) = self.owed().get(group).cloned().filter(|owed| owed.due <= Instant::now()) else {
            return;
        };
        let released = self.try_to_release(lock.group(), &owed).await;
        let mut all = self.owed();
        let Some(owed) = all.get_mut(group) else { return };
        let pause = match &released {
            Ok(_) => {
                if let Some(lasted) = owed.outage.ends() {
                    let lasted_seconds = lasted.as_secs();
                    tracing::info!(
                        group = group.as_str(),
                        lasted_seconds,
                        "scale-in protection can be taken off again"
                    );
                }
                LOOK
            }
            Err(error) => {
                if let Some(lasted) = owed.outage.lasts() {
                    tracing::warn!(
                        group = group.as_str(),
                        instances = ?owed.instances,
                        lasts_seconds = lasted.as_secs(),
                        error = %chain(error),
                        "scale-in protection cannot be taken off"
                    );
                }
                backoff(owed.outage.failures(), LOOK, RETRY_AT_MOST)
            }
        };
        owed.due = Instant::now() + pause;
        match released {
            Ok(Released::All) => drop(all.remove(group)),
            Ok(Released::AllBut(missing)) => (owed.instances, owed.missed) = (missing, true),
            Ok(Released::None) | Err(_) => {}
        }
    }

    /// Takes protection and mark off, unless it is too early for that, or the group still has more than it should.
    async fn try_to_release(&self, group: &GroupName, owed: &Owed) -> Result<Released, AwsError> {
        // One look may leave out what is there.
        let Some(seen) = self.describe(group).await? else {
            let all = || Released::AllBut(owed.instances.clone());
            return Ok(if owed.missed { Released::All } else { all() });
        };
        self.protect_newcomers(&seen, owed).await;
        let is_whole = self.raise(&seen, owed.size).await?;
        if owed.since.elapsed() < if is_whole { owed.hold } else { HOLD_AT_MOST } {
            return Ok(Released::None);
        }
        let ours: Vec<&Instance> = seen.instances.iter().filter(|i| owed.instances.contains(&i.id)).collect();
        let ids = |which: fn(&Instance) -> bool| -> Vec<InstanceId> {
            ours.iter().filter(|&&instance| which(instance)).map(|instance| instance.id.clone()).collect()
        };
        let protected = ids(is_to_be_released);
        let off = self.aws.protect(group, &protected, false).boxed();
        within(WITHIN, Operation::SetInstanceProtection, off).await?;
        if owed.marked {
            let all = ids(|_| true);
            let unmark = self.aws.untag_instances(&all, PROTECTION_TAG).boxed();
            within(WITHIN, Operation::DeleteTags, unmark).await?;
        }
        let there: BTreeSet<&InstanceId> = ours.iter().map(|instance| &instance.id).collect();
        let missing: BTreeSet<InstanceId> =
            owed.instances.iter().filter(|id| !there.contains(id)).cloned().collect();
        Ok(if missing.is_empty() || owed.missed { Released::All } else { Released::AllBut(missing) })
    }

    /// Protects what came into service since the size was set, which AWS refused before: its node may have joined and have workloads
    /// by then, and nobody else would be left for the group to choose. One that cannot be protected keeps no other from being released.
    ///
    /// Source: [Use instance scale-in
    /// protection](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ec2-auto-scaling-instance-protection.html), which
    /// starts with `InService`.
    async fn protect_newcomers(&self, seen: &AutoScalingGroup, owed: &Owed) {
        if owed.size.is_none() || owed.since.elapsed() >= owed.hold {
            return;
        }
        let group = &seen.name;
        let newcomers: Vec<InstanceId> =
            to_protect(seen).into_iter().filter(|id| !owed.instances.contains(id)).collect();
        if newcomers.is_empty() {
            return;
        }
        let mark = within(MARK_WITHIN, Operation::CreateTags, self.mark(&newcomers).boxed()).await;
        let marked = mark.as_ref().err().is_none_or(AwsError::is_transient);
        if let Some(owed) = self.owed().get_mut(group) {
            owed.instances.extend(newcomers.iter().cloned());
            owed.marked |= marked;
        }
        let on = self.aws.protect(group, &newcomers, true).boxed();
        if let Err(error) = within(WITHIN, Operation::SetInstanceProtection, on).await {
            tracing::warn!(group = group.as_str(), instances = ?newcomers, error = %chain(&error), "new instances cannot be protected while the size goes down");
        }
    }

    /// Owes what an interrupted run has left, beside whatever else is owed to the group.
    fn take_on(&self, group: &GroupName, instance: InstanceId) {
        if let Some(owed) = self.owed().get_mut(group) {
            owed.marked = true;
            owed.instances.insert(instance);
            return;
        }
        self.owe(group, [instance], true, None);
    }

    fn owe(
        &self,
        group: &GroupName,
        instances: impl IntoIterator<Item = InstanceId>,
        marked: bool,
        size: Option<i32>,
    ) {
        let since = Instant::now();
        let mut all = self.owed();
        let owed = all.entry(group.to_owned()).or_insert(Owed {
            instances: BTreeSet::new(),
            marked,
            size,
            since,
            hold: HOLD,
            due: since + LOOK,
            outage: Outage::default(),
            missed: false,
        });
        owed.instances.extend(instances);
        owed.marked |= marked;
        // An instance that comes meanwhile is to be seen before the group looks for a victim.
        (owed.size, owed.since, owed.hold, owed.due) = (size, since, HOLD, since + LOOK);
        owed.missed = false;
    }

    fn owed(&self) -> MutexGuard<'_, BTreeMap<GroupName, Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How old a mark may be that an earlier run has left. Whoever may tag an instance could have somebody else's protection
/// taken off; a mark that is older than any restart takes is nobody's.
const MARK_LIVES: SignedDuration = SignedDuration::from_hours(24);

/// What the wall clocks of two machines may differ by.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);

/// How old a tag is, by its value. None if ebbtide did not set it, or so long ago that it counts no more.
fn age(value: &str, now: Timestamp) -> Option<SignedDuration> {
    let made: Timestamp = value.parse().ok()?;
    Some(now.duration_since(made)).filter(|age| (-CLOCKS_DIFFER..=MARK_LIVES).contains(age))
}

/// Instances that a size going down might cost if another one arrives at the same time: those in service. AWS refuses to protect
/// one that is not yet, though its node may have joined and have workloads; one that is protected already is protected by somebody
/// else, who alone may take that off.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
pub fn to_protect(group: &AutoScalingGroup) -> Vec<InstanceId> {
    let in_service = group.instances.iter().filter(|i| i.lifecycle == Lifecycle::InService);
    in_service.filter(|i| !i.protected).map(|i| i.id.clone()).collect()
}

/// Whether the instance is protected and AWS takes that off it: of one on its way out it does not, nor does it matter.
///
/// Source: [SetInstanceProtection](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetInstanceProtection.html).
fn is_to_be_released(instance: &Instance) -> bool {
    instance.protected && matches!(instance.lifecycle, Lifecycle::InService | Lifecycle::Standby)
}

/// Gives a call up after a while. It may have its effect all the same. Boxed: the SDK's calls are large.
async fn within<T>(
    limit: Duration,
    operation: Operation,
    call: BoxFuture<'_, Result<T, AwsError>>,
) -> Result<T, AwsError> {
    let late = |elapsed| Err(AwsError::Unreachable { operation, source: Box::new(elapsed) });
    tokio::time::timeout(limit, call).await.unwrap_or_else(late)
}
