//! Whom a scale-in waits for, and why.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::cluster::PodName;
use crate::k8s::NodeName;

/// A pod that a scale-in waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The pod.
    pub pod: PodName,
    /// What for.
    pub why: WaitReason,
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitReason {
    /// Asked to go, with time until then.
    Exiting(Timestamp),
    /// Had time until then; its kubelet has not confirmed its exit.
    Overdue(Timestamp),
    /// A budget has no room.
    Budget {
        /// The budgets that cover the pod, `namespace/name`: mostly one, none if nobody knows.
        names: Vec<String>,
        /// The API server's words.
        words: String,
    },
    /// Several budgets cover it, `namespace/name` each, and the API server evicts no such pod.
    Budgets(Vec<String>),
    /// Asked not to be disturbed.
    Patient,
    /// Pods of this order, which is an earlier one, are still there.
    After(i32),
    /// The API server refused for another reason.
    Refused(String),
    /// It is other nodes' turn under the rate of evictions.
    Rate,
    /// Not asked yet, or not answered.
    Queued,
    /// It has exited, and its volumes are being unmounted; or it is a DaemonSet's, which is asked once all are detached: it may be the one
    /// that unmounts them.
    Volumes,
}

impl WaitReason {
    /// Spelling in metrics and in the status.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Exiting(_) => "exiting",
            Self::Overdue(_) => "overdue",
            Self::Budget { .. } => "budget",
            Self::Patient => "patient",
            Self::After(_) => "order",
            Self::Refused(_) | Self::Budgets(_) => "refused",
            Self::Rate => "rate",
            Self::Queued => "queued",
            Self::Volumes => "volumes",
        }
    }
}

/// What a worker knows of its node's scale-in beyond the record. For people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Pods that it waits for.
    pub waiting: Vec<Waiting>,
    /// When the phase ends at the latest, by the API server's clock; `None`: nothing limits it.
    pub phase_until: Option<Timestamp>,
    /// When the first pod that has not been asked to go is deleted, whatever its budgets say, by the API server's clock; `None`: none is
    /// before the phase ends.
    pub last_call: Option<Timestamp>,
    /// The target groups of load balancers, if these are all that the release waits for.
    pub load_balancers: Option<Vec<String>>,
    /// Whether another's lifecycle hook is all that holds the instance.
    pub held_by_another: bool,
    /// AWS's words if it refuses to release the instance.
    pub refused: Option<String>,
}

/// How far each scale-in is, now. Only the leader writes here.
#[derive(Debug, Default)]
pub struct Board(Mutex<BTreeMap<NodeName, Progress>>);

impl Board {
    /// Notes how far a node is; `None`: it is not ours to say.
    pub(super) fn set(&self, node: &NodeName, progress: Option<Progress>) {
        let mut board = self.0.lock();
        match progress {
            Some(progress) => board.insert(node.clone(), progress),
            None => board.remove(node),
        };
    }

    pub(super) fn forget(&self, node: &NodeName) {
        self.set(node, None);
    }

    /// How far each scale-in is, by node.
    pub fn all(&self) -> BTreeMap<NodeName, Progress> {
        self.0.lock().clone()
    }
}
