//! What a plan is made of: data only.

use jiff::Timestamp;
use serde_json::Value;

use super::events::ScaleInEvent;
use super::waiting::{WaitReason, Waiting};
use crate::aws::Hook;
use crate::cluster::{BudgetSeen, DrainState, PodName, PodView};
use crate::k8s::{GroupName, InstanceId, NodeName};

/// Something to be done, once.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write to the Node, then do what follows.
    PatchNode {
        /// A merge patch with the Node's resource version as a precondition.
        patch: Value,
        /// Performed once the patch is in, and only then.
        then: Vec<Action>,
    },
    /// Ask the API server to evict a pod; with a grace only if the pod's own does not fit.
    Evict(Ask),
    /// Delete a pod regardless of budgets. To a workload it is a disruption, as the condition DisruptionTarget tells.
    Delete(Ask),
    /// List the pods of these Nodes: a silent watch may have missed new pods.
    ListPods {
        /// The Nodes.
        nodes: Vec<NodeName>,
    },
    /// Ask the API server whether a DaemonSet exists.
    LookUpDaemonSet {
        /// The DaemonSet.
        name: PodName,
        /// Its UID.
        uid: String,
    },
    /// Set or take off the guard on a DaemonSet pod.
    Guard {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Set it.
        on: bool,
    },
    /// Terminate an instance.
    Terminate {
        /// Name of the group.
        group: GroupName,
        /// EC2 instance id.
        instance: InstanceId,
        /// Whether the desired capacity goes down with it.
        decrement: bool,
        /// Whether to do it only if the group has our hook and no other, so that ours holds the instance.
        under_hook: bool,
        /// The moment that the record notes.
        noted_at: Timestamp,
    },
    /// Lower the desired capacity by one, unless that would end a live instance: the group itself ended an instance under
    /// scale-in, and replaces it.
    GiveUpReplacement {
        /// Name of the group.
        group: GroupName,
        /// When the scale-in was requested: a group that was made after that has nothing to do with it.
        requested_at: Timestamp,
    },
    /// Refresh from AWS: only that shows what became of a call.
    Refresh,
    /// Complete our lifecycle hook.
    CompleteHook {
        /// The hook.
        hook: Hook,
        /// EC2 instance id.
        instance: InstanceId,
    },
    /// Send a heartbeat for an instance that is not held yet, which tells whether AWS lets any through.
    Heartbeat {
        /// The hook.
        hook: Hook,
        /// EC2 instance id.
        instance: InstanceId,
    },
    /// Let another process lead: our own pod is on the node.
    HandOver,
    /// Report the drain's progress in the Node's conditions.
    Report(DrainState),
    /// Delete the Node as it was seen, if its instance does not exist any more, and publish an Event.
    DeleteNode {
        /// EC2 instance id.
        instance: InstanceId,
        /// The Event.
        event: ScaleInEvent,
    },
    /// Publish an Event on the Node.
    Announce(ScaleInEvent),
}

/// Which pod is asked to go, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The pod.
    pub pod: PodName,
    /// Its UID, a precondition.
    pub uid: String,
    /// Grace in seconds; `None`: the pod's own.
    pub grace: Option<i64>,
    /// Of a workload: the pod's owner, and whether the pod has come back to the cordoned node.
    pub owner: Option<(String, bool)>,
    /// Whether a workload is deleted because its machine or its Node is lost; otherwise because time is up.
    pub is_lost: bool,
    /// Of an eviction: the budgets that cover the pod, kept if it is refused.
    pub budgets: Vec<BudgetSeen>,
}

impl Ask {
    /// Asks a pod to go, whatever its budgets say.
    pub(super) fn new(pod: &PodView, grace: Option<i64>, owner: Option<(String, bool)>) -> Self {
        let (pod, uid) = (pod.name.clone(), pod.uid.clone());
        Self { pod, uid, grace, owner, is_lost: false, budgets: Vec::new() }
    }
}

/// What to do, and when to plan again if nothing happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To do now, in this order.
    pub actions: Vec<Action>,
    /// When time alone changes the plan.
    pub wake_at: Option<Timestamp>,
    /// Pods that it waits for.
    pub waiting: Vec<Waiting>,
    /// When the phase ends at the latest; `None`: nothing limits it.
    pub phase_until: Option<Timestamp>,
    /// When the first pod not yet asked to go is deleted regardless of budgets; `None`: no pod is before the phase ends.
    pub last_call: Option<Timestamp>,
    /// If pods that come back are to be asked a last time from now on: until when.
    pub asks_last: Option<Timestamp>,
    /// Whether workloads are on the node, or may come; `None` until its pods are listed.
    pub occupied: Option<bool>,
    /// Target groups through which load balancers still reach the instance, if the release waits for nothing else; empty: AWS has not
    /// said which.
    pub held_by_load_balancers: Option<Vec<String>>,
    /// Whether another's lifecycle hook is all that holds the instance.
    pub held_by_another: bool,
}

impl Plan {
    /// Whether the plan has a write to the Node.
    pub(super) fn writes_node(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::PatchNode { .. }))
    }

    /// Why the plan takes the record off.
    pub(super) fn calls_off(&self) -> Option<&ScaleInEvent> {
        self.actions.iter().find_map(|action| {
            let Action::PatchNode { then, .. } = action else { return None };
            then.iter().find_map(|action| match action {
                Action::Announce(event) if event.reason.ends_scale_in() => Some(event),
                _ => None,
            })
        })
    }

    /// How many pods have to exit before there is something to do; 0: something else may be to do.
    pub(super) fn exits_to_come(&self) -> usize {
        let is_exiting = |waiting: &Waiting| matches!(waiting.why, WaitReason::Exiting(_));
        let is_all = self.actions.is_empty() && self.waiting.iter().all(is_exiting);
        if is_all { self.waiting.len() } else { 0 }
    }

    /// Plans again at `moment`, if there is one, at the latest.
    pub(super) fn wake(&mut self, moment: impl Into<Option<Timestamp>>) {
        self.wake_at = self.wake_at.into_iter().chain(moment.into()).min();
    }
}
