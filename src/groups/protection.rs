//! Scale-in protection while a size goes down: instances in service are protected, so that one that launches at the
//! last moment makes the group end none of them, and released after.
//!
//! - An instance carries the tag [`MARK`] from before it is protected until after it is released. What an interrupted
//!   run has left is found by it and taken back by the next run, once; and what this run could not take off is tried
//!   again until it is.
//! - Protection is taken off nothing that neither has the mark nor was protected by this process: it is somebody
//!   else's. Marked instances that are in no group of ours are another's to take back.
//! - Everything here happens in the group's turn, so that no two changes get into each other's way.
//! - A mark that cannot be set or taken off does not keep a size from going down.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use tokio::sync::{Notify, oneshot};

use super::{Groups, Instance, Lifecycle, Turn};
use crate::aws::{Aws, AwsError, Operation};
use crate::clock::Clock;
use crate::telemetry::chain;

/// The tag of an instance that is protected from scale-in by us; its value says since when. `deploy/iam-policy.json`
/// allows to write no other.
pub const MARK: &str = "ebbtide/protected-from-scale-in";

/// What marks may take out of the caller's few seconds (see [`crate::provider`]): EC2 answers within half of it.
const MARK_WITHIN: Duration = Duration::from_secs(1);
/// What each other call may take, so that a group's turn comes to an end: 1,000 instances are 20 calls.
const WITHIN: Duration = Duration::from_secs(5);
/// Before something is taken back: a request that was given up, or that a killed run sent last, may still arrive.
const SETTLES: Duration = Duration::from_secs(10);
/// The longest wait between two tries. It doubles up to this from [`SETTLES`].
const RETRY_AT_MOST: Duration = Duration::from_mins(5);

/// Protects instances while a size goes down, and takes back what is left of that.
#[derive(Debug)]
pub struct Protection {
    aws: Aws,
    groups: Arc<Groups>,
    clock: Clock,
    /// By group, what this process has to release.
    owed: Mutex<BTreeMap<String, Owed>>,
    /// Something is owed that nobody is at work on.
    left: Notify,
    /// Whether it was said that marks cannot be set.
    warned: AtomicBool,
}

#[derive(Clone, Debug, Default)]
struct Owed {
    instances: BTreeSet<String>,
    /// Whether they may have the mark.
    marked: bool,
}

impl Protection {
    /// Owes nothing yet.
    pub fn new(aws: Aws, groups: Arc<Groups>, clock: Clock) -> Self {
        Self {
            aws,
            groups,
            clock,
            owed: Mutex::default(),
            left: Notify::new(),
            warned: AtomicBool::new(false),
        }
    }

    /// Sets a lower size for the group whose turn it is, `instances` protected meanwhile. What AWS says of the size is
    /// told as soon as it is known; the rest is done whether or not anybody listens.
    pub(super) async fn lower(
        &self,
        turn: Turn,
        to: i32,
        instances: Vec<String>,
        answer: oneshot::Sender<Result<(), AwsError>>,
    ) {
        let group = turn.group();
        let mark = within(MARK_WITHIN, Operation::CreateTags, self.mark(&instances).boxed()).await;
        self.note_marks(mark.as_ref().err());
        // What EC2 refuses it has not done.
        let marked = mark.as_ref().err().is_none_or(AwsError::is_transient);
        self.owe(group, &instances, marked);

        let on = self.aws.protect(group, &instances, true).boxed();
        let protected = within(WITHIN, Operation::SetInstanceProtection, on).await;
        // Some may be marked or protected, or be so a little later, though this was not heard.
        let is_certain = (mark.is_ok() || !marked) && protected.is_ok();
        let set = match protected {
            Ok(()) => self.aws.set_desired(group, to).await,
            Err(error) => Err(error),
        };
        // Nobody listens if the caller has given up.
        let _ = answer.send(set);

        let off = self.aws.protect(group, &instances, false).boxed();
        let mut released = within(WITHIN, Operation::SetInstanceProtection, off).await;
        if released.is_ok() && marked {
            let unmark = self.aws.untag_instances(&instances, MARK).boxed();
            released = within(MARK_WITHIN, Operation::DeleteTags, unmark).await;
        }
        if released.is_ok() && is_certain {
            self.settled(group, &instances);
            return;
        }
        if let Err(error) = released {
            tracing::warn!(group, instances = ?instances, error = %chain(&error), "instances are not released from scale-in protection yet");
        }
        self.left.notify_one();
    }

    async fn mark(&self, instances: &[String]) -> Result<(), AwsError> {
        self.aws.tag_instances(instances, MARK, &self.clock.now().to_string()).await
    }

    /// Says once when marks cannot be set, and once when they can again.
    fn note_marks(&self, error: Option<&AwsError>) {
        match (error, self.warned.swap(error.is_some(), Ordering::Relaxed)) {
            (Some(error), false) => {
                tracing::warn!(
                    tag = MARK,
                    error = %chain(error),
                    "instances are protected from scale-in without the mark: should this program be killed meanwhile, \
                     they stay protected"
                );
            }
            (None, true) => tracing::info!(tag = MARK, "instances are marked again while they are protected"),
            _ => {}
        }
    }

    /// Takes back what an interrupted run has left, as soon as the groups are known and until that has worked once;
    /// then, for ever, what this process could not take off.
    pub async fn run(&self) -> Infallible {
        let mut versions = self.groups.versions();
        // The sender lives in `self.groups`.
        while self.groups.latest().is_none() && versions.changed().await.is_ok() {}
        let (mut suspects, mut failures) = (None, 0_u32);
        loop {
            let pause = SETTLES.saturating_mul(2_u32.saturating_pow(failures)).min(RETRY_AT_MOST);
            tokio::time::sleep(pause).await;
            match self.take_back(&mut suspects).await {
                Ok(()) => {
                    failures = 0;
                    self.left.notified().await;
                }
                Err(error) => {
                    if failures == 0 {
                        tracing::warn!(error = %chain(&error), "scale-in protection that is left over cannot be taken back yet");
                    }
                    failures += 1;
                }
            }
        }
    }

    /// Takes back all that is owed, and what the groups that are suspected have that is marked. Who is a suspect is
    /// asked for if that is not known.
    async fn take_back(&self, suspects: &mut Option<BTreeSet<String>>) -> Result<(), AwsError> {
        let mut outcome = Ok(());
        let owing: Vec<String> = self.owed().keys().cloned().collect();
        for group in owing {
            outcome = outcome.and(self.take_back_owed(&group).await);
        }
        let found = match suspects.take() {
            Some(known) => known,
            None => match self.groups_with_marks().await {
                Ok(found) => found,
                Err(error) => return outcome.and(Err(error)),
            },
        };
        let left = suspects.insert(BTreeSet::new());
        for group in found {
            if let Err(error) = self.take_back_marked(&group).await {
                outcome = outcome.and(Err(error));
                left.insert(group);
            }
        }
        outcome
    }

    async fn take_back_owed(&self, group: &str) -> Result<(), AwsError> {
        let turn = self.groups.turn(group).await;
        let owed = self.owed().get(group).cloned();
        if let Some(Owed { instances, marked }) = owed {
            self.release(&turn, &instances, marked).await?;
            self.settled(group, &instances);
        }
        Ok(())
    }

    /// Looks at the marks again: in the group's turn nobody is about to take them off.
    async fn take_back_marked(&self, group: &str) -> Result<(), AwsError> {
        let turn = self.groups.turn(group).await;
        let marked = self.marked().await?;
        self.release(&turn, &marked.into_iter().collect(), true).await
    }

    async fn marked(&self) -> Result<Vec<String>, AwsError> {
        within(WITHIN, Operation::DescribeTags, self.aws.tagged_instances(MARK).boxed()).await
    }

    /// Which of our groups have marked instances.
    async fn groups_with_marks(&self) -> Result<BTreeSet<String>, AwsError> {
        let marked = self.marked().await?;
        let view = self.groups.latest();
        let group_of = |instance: &String| view.as_ref()?.by_instance.get(instance).cloned();
        Ok(marked.iter().filter_map(group_of).collect())
    }

    /// Takes protection and mark off those of `instances` that the group has.
    async fn release(&self, turn: &Turn, instances: &BTreeSet<String>, marked: bool) -> Result<(), AwsError> {
        let group = turn.group();
        let name = [group.to_owned()];
        let described = self.aws.describe_groups(&name).boxed();
        let described = within(WITHIN, Operation::DescribeAutoScalingGroups, described).await?;
        let ours: Vec<Instance> = described
            .into_iter()
            .flat_map(|described| described.group.instances)
            .filter(|instance| instances.contains(&instance.id))
            .collect();
        let ids = |which: fn(&Instance) -> bool| -> Vec<String> {
            ours.iter().filter(|&instance| which(instance)).map(|instance| instance.id.clone()).collect()
        };
        let protected = ids(is_to_be_released);
        let off = self.aws.protect(group, &protected, false).boxed();
        within(WITHIN, Operation::SetInstanceProtection, off).await?;
        if marked {
            let all = ids(|_| true);
            let unmark = self.aws.untag_instances(&all, MARK).boxed();
            within(WITHIN, Operation::DeleteTags, unmark).await?;
        }
        if !protected.is_empty() {
            tracing::info!(group, instances = ?protected, "released from scale-in protection that was left over");
        }
        Ok(())
    }

    fn owe(&self, group: &str, instances: &[String], marked: bool) {
        let mut owed = self.owed();
        let owed = owed.entry(group.to_owned()).or_default();
        owed.instances.extend(instances.iter().cloned());
        owed.marked |= marked;
    }

    fn settled<'a>(&self, group: &str, instances: impl IntoIterator<Item = &'a String>) {
        let mut all = self.owed();
        if let Some(owed) = all.get_mut(group) {
            for instance in instances {
                owed.instances.remove(instance);
            }
            if owed.instances.is_empty() {
                all.remove(group);
            }
        }
    }

    fn owed(&self) -> MutexGuard<'_, BTreeMap<String, Owed>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
