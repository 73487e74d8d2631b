//! The RPCs that change something: IncreaseSize, DecreaseTargetSize, DeleteNodes.
//!
//! Each changes one group at a time, decides from what AWS says at that moment, and lays what AWS has accepted over
//! the view before it returns. The client may give up at any await, which drops the call there: nothing that follows
//! is needed for what came before, and where AWS may have done more than we heard of, a new look is asked for.

use std::sync::Arc;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream;
use tracing::info;

use super::deadline::Deadline;
use super::deletion::{Deletion, NodeToDrain};
use super::proto::ExternalGrpcNode;
use super::{Provider, RpcError};
use crate::groups::protection::to_protect;
use crate::groups::sizes::{self, SizeError};
use crate::groups::{Change, Group, GroupLock, Groups, Snapshot};
use crate::k8s::{GroupName, InstanceId};
use crate::scale_in::Accepted;

/// Calls of one batch to AWS or the API server at once. Cluster-autoscaler's batches are 10 nodes by default, so that
/// one goes out whole, and a huge one does not use up what the API server or AWS grants this client.
const AT_ONCE: usize = 16;

/// Asks for a new look at AWS unless a call to it came to a good end: it may have been carried out.
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

impl Provider {
    /// Sets the desired capacity for `delta` more nodes.
    pub(super) async fn increase_size(&self, group: &GroupName, delta: i32) -> Result<(), RpcError> {
        let decide = |group: &Group| {
            sizes::increased(&group.asg, delta, |i| self.scale_ins.leaves(&group.asg.name, &i.id))
        };
        let (deadline, lock) = self.turn_to(group, &decide).await?;
        let fresh = self.look(deadline, group).await?;
        let to = decide(&fresh)?;
        self.set_desired(deadline, &lock, &fresh, to, &[]).await
    }

    /// Sets the desired capacity for up to `-delta` nodes fewer of those that are not there yet: the last that were asked
    /// for. What the minimum does not let go, and what has come, stays without a complaint.
    pub(super) async fn decrease_target_size(&self, group: &GroupName, delta: i32) -> Result<(), RpcError> {
        let decide =
            |group: &Group| sizes::decreased(&group.asg, delta, |i| self.scale_ins.will_decrement(&i.id));
        let (deadline, lock) = self.turn_to(group, &decide).await?;
        let missing = self.missing(group)?;
        let fresh = self.look(deadline, group).await?;
        let to = decide(&fresh)?;
        if to == fresh.asg.desired {
            info!(group = group.as_str(), delta, "nothing of the target size can be given up");
            return Ok(());
        }
        let given_up = usize::try_from(fresh.asg.desired - to).unwrap_or_default().min(missing.len());
        self.give_up(deadline, &lock, &fresh, to, &missing[missing.len() - given_up..]).await
    }

    /// Waits for the turn of a group whose size is to change, unless the delta makes no sense.
    async fn turn_to(
        &self,
        name: &str,
        decide: impl Fn(&Group) -> Result<i32, SizeError>,
    ) -> Result<(Deadline, GroupLock), RpcError> {
        let deadline = Deadline::start();
        let seen = group(&*self.view()?, name)?;
        if let Err(mistake @ SizeError::Delta { .. }) = decide(&seen) {
            return Err(mistake.into());
        }
        Ok((deadline, deadline.call(OTHER_CHANGE, self.groups.lock(&seen.asg.name)).await?))
    }

    fn missing(&self, name: &str) -> Result<Vec<usize>, RpcError> {
        Ok(self.placeholders.of(&*group(&*self.view()?, name)?))
    }

    /// Removes these nodes; see [`Deletion`] for what is an error.
    pub(super) async fn delete_nodes(&self, name: &str, batch: &[ExternalGrpcNode]) -> Result<(), RpcError> {
        let deadline = Deadline::start();
        let known = group(&*self.view()?, name)?;
        let lock = deadline.call(OTHER_CHANGE, self.groups.lock(&known.asg.name)).await?;

        let (view, missing) = (self.view()?, self.missing(name)?);
        let mut deletion = Deletion::read(&view, &*group(&view, name)?, &missing, batch, &*self.scale_ins)?;
        drop(view);
        let mut failed = Vec::new();
        if !deletion.placeholders.is_empty() || !deletion.unregistered.is_empty() {
            let fresh = self.look(deadline, name).await?;
            if let Some(to) = deletion.settle(&fresh, &missing, &*self.scale_ins)?
                && let Err(error) = self.give_up(deadline, &lock, &fresh, to, &deletion.placeholders).await
            {
                failed.push((NEVER_CAME.to_owned(), error));
            }
        }

        let lock = &lock;
        let terminate = deletion.unregistered.into_iter().map(|instance| {
            async move {
                let done = self.terminate(deadline, lock, &instance).await;
                (instance.to_string(), done)
            }
            .boxed()
        });
        let accept = deletion.nodes.into_iter().map(|node| {
            async move {
                let done = self.accept(deadline, lock.group(), &node).await;
                (node.node.to_string(), done)
            }
            .boxed()
        });
        finish(failed, terminate.chain(accept).collect()).await
    }

    /// Lowers the size by instances that never came.
    async fn give_up(
        &self,
        deadline: Deadline,
        lock: &GroupLock,
        group: &Group,
        to: i32,
        placeholders: &[usize],
    ) -> Result<(), RpcError> {
        let done = self.set_desired(deadline, lock, group, to, &to_protect(&group.asg)).await;
        match &done {
            Ok(()) => self.placeholders.given_up(&group.asg.name, placeholders),
            Err(_) => self.placeholders.refused(&group.asg.name, self.clock.now()),
        }
        done
    }

    /// The group as AWS says it is now. Where that is not what the view has, the view learns it.
    async fn look(&self, deadline: Deadline, name: &str) -> Result<Group, RpcError> {
        let seen = group(&*self.view()?, name)?;
        let fresh = deadline.call("describing the group", self.sizing.current(&seen)).await??;
        for change in learned(&seen, &fresh) {
            self.groups.changed(self.clock.now(), change);
        }
        Ok(fresh)
    }

    async fn set_desired(
        &self,
        deadline: Deadline,
        lock: &GroupLock,
        group: &Group,
        to: i32,
        protect: &[InstanceId],
    ) -> Result<(), RpcError> {
        let unsure = RefreshOnDrop::of(&self.groups);
        let (name, from) = (&group.asg.name, group.asg.desired);
        deadline.call("setting the size", self.sizing.set_desired(lock, from, to, protect)).await??;
        unsure.settled();
        if to > from {
            self.groups.note_asked_for(name);
        }
        info!(group = %name, from, to, "desired capacity set");
        Ok(())
    }

    async fn terminate(
        &self,
        deadline: Deadline,
        lock: &GroupLock,
        instance: &InstanceId,
    ) -> Result<(), RpcError> {
        let (unsure, group) = (RefreshOnDrop::of(&self.groups), lock.group());
        deadline.call("terminating the instance", self.sizing.terminate(lock, instance, true)).await??;
        unsure.settled();
        self.groups.note_asked_for(instance);
        info!(
            group = group.as_str(),
            instance = instance.as_str(),
            "terminated an instance that has no Node"
        );
        Ok(())
    }

    async fn accept(
        &self,
        deadline: Deadline,
        group: &GroupName,
        node: &NodeToDrain,
    ) -> Result<(), RpcError> {
        let call = self.scale_ins.accept(&node.node, group, &node.instance);
        let accepted = deadline.call("recording the scale-in", call).await??;
        if accepted == Accepted::New {
            info!(
                group = group.as_str(),
                node = node.node.as_str(),
                instance = node.instance.as_str(),
                "scale-in accepted"
            );
        }
        Ok(())
    }
}

const OTHER_CHANGE: &str = "another change of the group";
const NEVER_CAME: &str = "instances that never came";

fn group(view: &Snapshot, name: &str) -> Result<Arc<Group>, RpcError> {
    view.groups.get(name).cloned().ok_or_else(|| RpcError::NoSuchGroup(name.to_owned()))
}

/// What others have done to the group since the view was made. The view has to know, because a change of ours is laid
/// over it only where it has the size that the change started from; and a termination that somebody else here is
/// about to report must not lower the size twice.
fn learned(seen: &Group, fresh: &Group) -> Vec<Change> {
    let group = || seen.asg.name.clone();
    let going = |id: &str| fresh.asg.instances.iter().any(|i| i.id == id && i.lifecycle.is_leaving());
    let mut changes: Vec<_> = seen
        .asg
        .live()
        .filter(|i| going(&i.id))
        .map(|i| Change::Terminated { group: group(), instance: i.id.clone(), decrement: false })
        .collect();
    if fresh.asg.desired != seen.asg.desired {
        changes.push(Change::Desired { group: group(), from: seen.asg.desired, to: fresh.asg.desired });
    }
    changes
}

/// Does all of it, and says what could not be done, beside what has `failed` before.
async fn finish(
    mut failed: Vec<(String, RpcError)>,
    work: Vec<BoxFuture<'_, (String, Result<(), RpcError>)>>,
) -> Result<(), RpcError> {
    let of = failed.len() + work.len();
    let more: Vec<_> = stream::iter(work)
        .buffer_unordered(AT_ONCE)
        .filter_map(|(node, done)| std::future::ready(done.err().map(|error| (node, error))))
        .collect()
        .await;
    failed.extend(more);
    if failed.is_empty() { Ok(()) } else { Err(RpcError::Unfinished { of, failed }) }
}
