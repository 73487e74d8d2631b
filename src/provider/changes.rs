//! The RPCs that change something: IncreaseSize, DecreaseTargetSize, DeleteNodes.
//!
//! Each, unless it only has nodes drained, holds the group's lock and decides from a fresh description (IncreaseSize from a recent refresh
//! where AWS does not describe the group in time); before it returns, the snapshot has what AWS accepted. The client may cancel at any
//! await: no step depends on a later one, and where AWS may have done more than we heard of, a refresh is requested.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream;
use jiff::Timestamp;
use tonic::Code;

use super::deadline::Deadline;
use super::deletion::{Deletion, NodeToDrain};
use super::placeholders::Refusal;
use super::proto::ExternalGrpcNode;
use super::terminations::{Intended, Sent};
use super::{Provider, RpcError, SizingError};
use crate::aws::Instance;
use crate::clock::elapsed;
use crate::groups::protection::to_protect;
use crate::groups::sizes::{self, SizeError};
use crate::groups::{Change, Group, GroupLock, Groups, LowerLock, Snapshot, size_in_doubt};
use crate::k8s::{GroupName, InstanceId};
use crate::scale_in::{Accepted, IntentError};
use crate::telemetry::chain;

/// Oldest refresh to grow a group from that AWS does not describe in time: refreshes are a minute apart and take up to half a minute.
const RECENT: Duration = Duration::from_secs(90);

/// How many calls of one batch are made at once. cluster-autoscaler's batches have 10 nodes by default; a huge one must
/// not use up our rate limit at AWS or the API server.
const AT_ONCE: usize = 16;

/// Requests a refresh unless the call to AWS succeeded: a call that failed or was cancelled may have been carried out.
struct RefreshOnDrop<'a>(Option<&'a Groups>);

impl<'a> RefreshOnDrop<'a> {
    fn of(groups: &'a Groups) -> Self {
        Self(Some(groups))
    }

    fn settled(mut self) {
        self.0 = None;
    }
}

impl Drop for RefreshOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(groups) = self.0 {
            groups.refresh_soon();
        }
    }
}

/// Where to look groups up: the view to answer from, or what is known.
type Look = fn(&Provider) -> Result<Arc<Snapshot>, RpcError>;

impl Provider {
    /// Raises the desired capacity by `delta` nodes, or by as many as the maximum has room for.
    pub(super) async fn increase_size(&self, group: &GroupName, delta: i32) -> Result<(), RpcError> {
        let decide = |group: &Group| self.increased(group, delta);
        let (deadline, group) = (Deadline::start(), &self.checked(group, decide)?);
        let lock = deadline.call(OTHER_CHANGE, self.groups.lock(group)).await?;
        let asked_at = self.clock.wall();
        let Described { mut group, or } = match self.describe(deadline, group).await {
            // Nothing can be set any more once the time is up.
            Err(error) if !deadline.has_passed() => self.seen_recently(group, error)?,
            described => described?,
        };
        let name = group.asg.name.clone();
        let described = group.asg.desired;
        // One node too many costs money for a while; a smaller size, set by mistake, costs nodes.
        let from = or.map_or(described, |or| or.max(described));
        Arc::make_mut(&mut group.asg).desired = from;
        let to = decide(&group)?;
        self.set(deadline, &group, to, self.sizing.raise(&lock, from, to, asked_at)).await?;
        if to - from < delta {
            tracing::info!(
                group = name.as_str(),
                delta,
                "the group grows by less than cluster-autoscaler asked for: its maximum has room for no more"
            );
        }
        if described < from {
            // Descriptions may show the lower size for a while.
            self.groups
                .changed(self.clock.now(), Change::Desired { group: name.clone(), from: described, to });
        }
        self.groups.note_asked_for(&name);
        Ok(())
    }

    /// The group as the last refresh showed it, for when AWS does not describe it in time (no answer, or a transient refusal). Only if that
    /// refresh is recent and shows every size that cluster-autoscaler has had set; otherwise returns `error`. A larger size that somebody
    /// else has set since is undone, and nodes go for it: the in-tree provider always goes by what it saw last.
    fn seen_recently(&self, name: &GroupName, error: RpcError) -> Result<Described, RpcError> {
        let passes = match &error {
            RpcError::TimedOut { .. } => true,
            RpcError::Sizing(SizingError::Aws(error)) => error.is_transient(),
            _ => false,
        };
        let view = self.view()?;
        // A machine that was suspended finds its connections dead, and its own clock where it stood.
        let age = elapsed(view.taken_at, self.clock.now()).max(elapsed(view.asked_at, self.clock.wall()));
        let shows_all =
            !self.visits.may_be_unseen(view.taken_at) && self.groups.is_clear(name, view.taken_at);
        if !(passes && age <= RECENT && shows_all) {
            return Err(error);
        }
        tracing::info!(
            group = name.as_str(),
            age_seconds = age.as_secs(),
            error = %chain(&error),
            "AWS did not describe the group in time: growing it from the size in the last refresh"
        );
        let group = Group::clone(&*group(&view, name)?);
        Ok(Described { or: group.asg.described_desired, group })
    }

    /// The size of a group that grows by `delta`.
    fn increased(&self, group: &Group, delta: i32) -> Result<i32, SizeError> {
        let leaves = |i: &Instance| self.scale_ins.leaves(&group.asg.name, i);
        let to = sizes::increased(&group.asg, delta, leaves)?;
        // The nodes of such a group are of use together only.
        let takes_less = group.options.zero_or_max_node_scaling != Some(true);
        if takes_less || to - group.asg.desired == delta {
            Ok(to)
        } else {
            Err(sizes::above_max(&group.asg, delta, leaves))
        }
    }

    /// Lowers the desired capacity by up to `-delta` instances that have not come yet, the oldest request first: the next ones that
    /// cluster-autoscaler would delete. Those that the minimum needs, that have come, or that replace others just gone, stay: no error.
    pub(super) async fn decrease_target_size(&self, group: &GroupName, delta: i32) -> Result<(), RpcError> {
        let decide = |group: &Group| sizes::decreased(&group.asg, delta, self.decrements(&group.asg.name));
        let (deadline, group) = (Deadline::start(), &self.checked(group, decide)?);
        // So that scale-ins accepted meanwhile cannot break the minimum.
        let _accepting = deadline.call(OTHER_CHANGE, self.groups.accepting(group)).await?;
        let lock = deadline.call(OTHER_CHANGE, self.groups.lock_to_lower(group)).await?;
        let asked_at = self.clock.wall();
        let described = self.describe(deadline, group).await?;
        self.refuse_doubtful(&described)?;
        let (fresh, missing) = (described.group, self.missing(group, Self::view)?.len());
        let names = self.placeholders.not_on_their_way(group, self.clock.now());
        let late = fresh.asg.missing().saturating_sub(missing.saturating_sub(names.len()));
        let late = i32::try_from(late).unwrap_or(i32::MAX);
        let to = decide(&fresh)?.max(fresh.asg.desired.saturating_sub(late));
        if to == fresh.asg.desired {
            tracing::info!(
                group = group.as_str(),
                delta,
                "the target size was not lowered: all instances have come or are on their way, or the minimum keeps them"
            );
            return Ok(());
        }
        let given_up = usize::try_from(fresh.asg.desired - to).unwrap_or_default();
        let have_come = missing.saturating_sub(fresh.asg.missing());
        let oldest: Vec<usize> = names.into_iter().skip(have_come).take(given_up).collect();
        self.give_up(deadline, &lock, &fresh, to, &oldest, asked_at).await
    }

    /// The name of a group that exists, or an error if it does not or the delta makes no sense.
    fn checked(
        &self,
        name: &str,
        decide: impl Fn(&Group) -> Result<i32, SizeError>,
    ) -> Result<GroupName, RpcError> {
        let seen = group(&*self.view()?, name)?;
        match decide(&seen) {
            Err(mistake @ SizeError::Delta { .. }) => Err(mistake.into()),
            _ => Ok(seen.asg.name.clone()),
        }
    }

    fn missing(&self, name: &str, look: Look) -> Result<Vec<usize>, RpcError> {
        let group = || group(&*look(self)?, name);
        self.placeholders.of(self.clock.now(), group).map(|(_, missing)| missing)
    }

    /// Removes these nodes. [`Deletion`] says what is an error.
    pub(super) async fn delete_nodes(&self, name: &str, batch: &[ExternalGrpcNode]) -> Result<(), RpcError> {
        let deadline = Deadline::start();
        let name = &group(&*self.known()?, name)?.asg.name.clone();
        // What another change holds for as long as an RPC may take: once it is free, accepting takes a moment.
        let accepting = deadline.all_of(OTHER_CHANGE, self.groups.accepting(name)).await?;
        let being_terminated =
            |id: &InstanceId| self.terminations.of(id, self.clock.now()) == Some(Sent::Unclear);
        let read = |look: Look| {
            let (view, missing) = (look(self)?, self.missing(name, look)?);
            let (group, scale_ins) = (group(&view, name)?, &*self.scale_ins);
            let deletion = Deletion::read(&view, &group, &missing, batch, scale_ins, &being_terminated)?;
            Ok::<_, RpcError>((deletion, missing))
        };
        // cluster-autoscaler calls once for a node that it has emptied, in hours perhaps, whatever becomes of AWS meanwhile: to accept that
        // takes the API server alone, and AWS is asked before the node is released.
        let (deletion, _) = read(Self::known)?;
        let stay = |deletion: &Deletion| {
            let stays = |id: &InstanceId| (id.to_string(), RpcError::OutlivesItsNode(id.clone()));
            let refused = |why: &SizeError| (NEVER_REGISTERED.to_owned(), RpcError::Size(why.clone()));
            let stay = deletion.outliving.iter().map(stays);
            stay.chain(deletion.refused.iter().map(refused)).collect::<Vec<_>>()
        };
        let accept = |node: NodeToDrain| {
            let accepted = self.scale_ins.accept(&node.node, name, &node.instance);
            async move { (node.node.to_string(), self.accept(deadline, name, node, accepted).await) }.boxed()
        };
        if deletion.is_of_nodes_alone() {
            let (stay, accepts) = (stay(&deletion), deletion.nodes.into_iter().map(accept).collect());
            // The minimum is kept with them from now on: others need not wait until they are recorded.
            drop(accepting);
            return finish(stay, accepts).await;
        }

        self.view()?;
        let lock = deadline.call(OTHER_CHANGE, self.groups.lock_to_lower(name)).await?;
        let asked_at = self.clock.wall();
        let (mut deletion, missing) = read(Self::view)?;
        let (mut given_up, mut replaced) = (Ok(()), BTreeSet::new());
        if !deletion.is_of_nodes_alone() {
            let described = self.describe(deadline, name).await?;
            let named = deletion.placeholders.len();
            if named > 0 {
                given_up = self.refuse_doubtful(&described);
            }
            if given_up.is_err() {
                deletion.placeholders.clear();
            }
            let fresh = described.group;
            let is_replaced = |one: &&Instance| sizes::is_replaced_first(&fresh.asg, one);
            replaced = fresh.asg.live().filter(is_replaced).map(|one| one.id.clone()).collect();
            let to = deletion.settle(&fresh, &missing, &*self.scale_ins, &being_terminated)?;
            if deletion.placeholders.len() < named {
                // AWS has tried again, or the minimum was raised: a refresh removes the errors that make cluster-autoscaler ask again in
                // every loop.
                self.groups.refresh_soon();
            }
            if let Some(to) = to {
                given_up = self.give_up(deadline, &lock, &fresh, to, &deletion.placeholders, asked_at).await;
            }
        }
        let mut failed = stay(&deletion);
        failed.extend(given_up.err().map(|error| (NEVER_CAME.to_owned(), error)));

        let mut work = self.terminate_all(
            deadline,
            lock.size(),
            (deletion.unregistered, &replaced),
            asked_at,
            &mut failed,
        );
        work.extend(deletion.nodes.into_iter().map(accept));
        // All count against the minimum from now on: the next drained node need not wait for these terminations.
        drop(accepting);
        finish(failed, work).await
    }

    /// The terminations of these instances, without a decrement of those that are being `replaced`; of those that may be under way already,
    /// why not.
    fn terminate_all<'a>(
        &'a self,
        deadline: Deadline,
        lock: &'a GroupLock,
        (instances, replaced): (Vec<InstanceId>, &BTreeSet<InstanceId>),
        asked_at: Timestamp,
        failed: &mut Vec<(String, RpcError)>,
    ) -> Vec<Work<'a>> {
        let mut work = Vec::new();
        for instance in instances {
            let (now, decrement) = (self.clock.now(), !replaced.contains(&instance));
            match self.terminations.of(&instance, now) {
                Some(Sent::Done) => continue,
                Some(Sent::Unclear) => {
                    failed.push((instance.to_string(), RpcError::Unclear(instance)));
                    continue;
                }
                None if self.visits.may_be_unseen(now) => {
                    failed.push((instance.to_string(), RpcError::MayBeTerminated(instance)));
                    continue;
                }
                None => {}
            }
            let mut intended = self.terminations.intend(instance, now);
            let terminate = async move {
                let done = self.terminate(deadline, lock, &mut intended, decrement, asked_at).await;
                (intended.instance.to_string(), done)
            };
            work.push(terminate.boxed());
        }
        work
    }

    /// Lowers the size by the placeholders that are given up; `group` was asked for at `asked_at` by the wall clock.
    async fn give_up(
        &self,
        deadline: Deadline,
        lock: &LowerLock,
        group: &Group,
        to: i32,
        placeholders: &[usize],
        asked_at: Timestamp,
    ) -> Result<(), RpcError> {
        self.placeholders.giving_up(&group.asg.name, placeholders);
        let protect = to_protect(&group.asg);
        let call = self.sizing.lower(lock, group.asg.desired, to, &protect, asked_at);
        let done = self.set(deadline, group, to, call).await;
        match &done {
            Ok(()) => self.placeholders.given_up(&group.asg.name),
            Err(error) => {
                let lasts = error.code() == Code::FailedPrecondition;
                let why = if lasts { Refusal::Lasts } else { Refusal::Passes };
                self.placeholders.refused(&group.asg.name, why, self.clock.now());
            }
        }
        done
    }

    /// The group as AWS describes it now. The snapshot is updated where it differs.
    async fn describe(&self, deadline: Deadline, name: &str) -> Result<Described, RpcError> {
        let (asked, view) = (self.clock.now(), self.view()?);
        let seen = group(&view, name)?;
        let group = deadline.call("describing the group", self.sizing.current(&seen)).await??;
        self.groups.learn(&view, &group.asg, asked, self.clock.now());
        let or = size_in_doubt(&view, &group.asg, asked);
        Ok(Described { group, or })
    }

    /// Refuses a size that is in doubt: one lowered from it could be far too low for the group as it is.
    fn refuse_doubtful(&self, described: &Described) -> Result<(), RpcError> {
        let Some(or) = described.or else { return Ok(()) };
        self.groups.refresh_soon();
        let asg = &described.group.asg;
        Err(RpcError::SizeInDoubt { group: asg.name.clone(), sizes: [or, asg.desired] })
    }

    /// Waits for the call that sets the size.
    async fn set(
        &self,
        deadline: Deadline,
        group: &Group,
        to: i32,
        call: impl Future<Output = Result<(), SizingError>>,
    ) -> Result<(), RpcError> {
        let unsure = RefreshOnDrop::of(&self.groups);
        deadline.call("setting the size", call).await??;
        unsure.settled();
        tracing::info!(group = %group.asg.name, from = group.asg.desired, to, "desired capacity set");
        Ok(())
    }

    /// Terminates an instance. The client may cancel.
    async fn terminate(
        &self,
        deadline: Deadline,
        lock: &GroupLock,
        intended: &mut Intended<'_>,
        decrement: bool,
        asked_at: Timestamp,
    ) -> Result<(), RpcError> {
        let (unsure, group) = (RefreshOnDrop::of(&self.groups), lock.group());
        let instance = intended.instance.clone();
        let note = |sent| self.terminations.note(&instance, sent, self.clock.now());
        let call = async {
            intended.begin();
            self.sizing.terminate(lock, &instance, decrement, asked_at).await
        };
        match deadline.call("terminating the instance", call).await? {
            Err(error) if error.may_have_happened() => {
                note(Some(Sent::Unclear));
                return Err(error.into());
            }
            answer => {
                note(answer.is_ok().then_some(Sent::Done));
                answer?;
            }
        }
        unsure.settled();
        self.groups.note_asked_for(&instance);
        tracing::info!(
            group = group.as_str(),
            instance = instance.as_str(),
            decrement,
            "terminated an instance that has no Node"
        );
        Ok(())
    }

    /// Waits until a scale-in is recorded. If that takes longer, recording goes on.
    async fn accept(
        &self,
        deadline: Deadline,
        group: &GroupName,
        node: NodeToDrain,
        accepted: BoxFuture<'static, Result<Accepted, IntentError>>,
    ) -> Result<(), RpcError> {
        let group = group.clone();
        let recorded = async {
            let record = async move {
                let accepted = accepted.await;
                if matches!(accepted, Ok(Accepted::New)) {
                    tracing::info!(
                        group = group.as_str(),
                        node = node.node.as_str(),
                        instance = node.instance.as_str(),
                        "scale-in accepted"
                    );
                }
                accepted
            };
            self.running.start(record).await
        };
        match deadline.call(RECORDING, recorded).await? {
            Ok(accepted) => accepted.map(drop).map_err(RpcError::from),
            Err(_) => Err(IntentError::CutOff.into()),
        }
    }
}

/// A group as AWS describes it now.
struct Described {
    group: Group,
    /// The size that it may have instead ([`size_in_doubt`]).
    or: Option<i32>,
}

const RECORDING: &str = "recording the scale-in";
const OTHER_CHANGE: &str = "another change of the group";
const NEVER_CAME: &str = "instances that never came";
const NEVER_REGISTERED: &str = "instances that never registered";

fn group(view: &Snapshot, name: &str) -> Result<Arc<Group>, RpcError> {
    view.groups.get(name).cloned().ok_or_else(|| RpcError::NoSuchGroup(name.to_owned()))
}

/// What is done about one node of a batch, and its name.
type Work<'a> = BoxFuture<'a, (String, Result<(), RpcError>)>;

/// Does all of `work`. Returns what failed, together with what `failed` before.
async fn finish(mut failed: Vec<(String, RpcError)>, work: Vec<Work<'_>>) -> Result<(), RpcError> {
    let of = failed.len() + work.len();
    let more: Vec<_> = stream::iter(work)
        .buffer_unordered(AT_ONCE)
        .filter_map(|(node, done)| std::future::ready(done.err().map(|error| (node, error))))
        .collect()
        .await;
    failed.extend(more);
    if failed.is_empty() { Ok(()) } else { Err(RpcError::Unfinished { of, failed }) }
}
