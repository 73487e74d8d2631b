//! What a plan is made of: data only.

use jiff::Timestamp;
use serde_json::Value;

use super::events::NodeEvent;
use super::waiting::Waiting;
use crate::aws::Hook;
use crate::cluster::PodName;
use crate::k8s::{GroupName, InstanceId};

/// Something to be done, once.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write to the Node, and say so when it is written.
    PatchNode {
        /// A merge patch with the Node's resource version as a precondition.
        patch: Value,
        /// To be done once the patch is in, and only then.
        then: Vec<Action>,
    },
    /// Ask the API server to evict a pod; a grace only where the pod's own does not fit.
    Evict {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Grace in seconds.
        grace: Option<i64>,
        /// The budgets that cover it, `namespace/name` and resource version, for the record of a refusal.
        budgets: Vec<(String, String)>,
        /// Whose it is.
        owner: String,
        /// Whether it has come back to the cordoned node.
        returned: bool,
    },
    /// Delete a pod, whatever its budgets say.
    Delete {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Grace in seconds.
        grace: Option<i64>,
        /// Whether it is a disruption, which its owner is told of by the pod's condition DisruptionTarget.
        disruption: bool,
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
        /// Whether it must not be done unless the group has our hook, and no other, which then holds the instance.
        under_hook: bool,
        /// What the record on the Node says of it.
        noted_at: Timestamp,
    },
    /// Lower the desired capacity by one, unless that would cost an instance that lives: the group has taken one out by
    /// itself that cluster-autoscaler had given up.
    GiveUpReplacement {
        /// Name of the group.
        group: GroupName,
    },
    /// Have AWS looked at again: only that shows what became of a call.
    LookAtAws,
    /// Complete our lifecycle hook.
    CompleteHook {
        /// The hook.
        hook: Hook,
        /// EC2 instance id.
        instance: InstanceId,
    },
    /// Publish an Event on the Node.
    Announce(NodeEvent),
}

/// What is to be done, and when to look again if nothing happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be done now, in this order.
    pub actions: Vec<Action>,
    /// When time alone changes the plan.
    pub wake_at: Option<Timestamp>,
    /// Whom the drain waits for.
    pub waiting: Vec<Waiting>,
    /// Whether workloads are on the node, or may come; none until its pods have been listed.
    pub occupied: Option<bool>,
}

impl Plan {
    /// Whether the plan has a write to the Node.
    pub(super) fn writes_node(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::PatchNode { .. }))
    }

    /// Looks again at `moment` at the latest.
    pub(super) fn wake(&mut self, moment: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(moment, |at| at.min(moment)));
    }
}
