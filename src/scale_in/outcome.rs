//! What came of an action.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

use super::action::{Action, Ask};
use super::events::ScaleInEvent;
use crate::aws::{AwsError, Hook};
use crate::cluster::{Answer, ApiError, DrainState, NodeView, PodView};
use crate::k8s::{GroupName, InstanceId};

/// How a pod was asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Removal {
    /// An eviction, under its budgets.
    Eviction,
    /// The deletion of a DaemonSet's pod, which wants to be asked.
    DaemonSet,
    /// A deletion because time is up, whatever its budgets say.
    Deletion,
    /// The same because its node is lost.
    LostDeletion,
}

/// As Prometheus shows it.
impl EncodeLabelValue for Removal {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        let value = match self {
            Self::Eviction => "eviction",
            Self::DaemonSet => "daemonset",
            Self::Deletion | Self::LostDeletion => "deletion",
        };
        value.encode(encoder)
    }
}

/// Result of an action.
pub(super) enum Outcome {
    NodeWritten(Result<Arc<NodeView>, ApiError>, Vec<Action>),
    Asked(Ask, Answer, Removal),
    Guarded {
        uid: String,
        result: Result<(), ApiError>,
    },
    PodsListed(Result<Vec<PodView>, ApiError>),
    DaemonSet {
        uid: String,
        exists: Result<bool, ApiError>,
    },
    /// Not terminated: our hook, which was to hold the instance, is missing, is not the only one, or is not known.
    NotHeld {
        noted_at: Timestamp,
        unknown: Option<AwsError>,
    },
    /// Not terminated: the group takes the instance out by itself or AWS does not describe it, its lock came too late for the moment noted
    /// in the record, the record is another by now, or another process leads.
    NotSent {
        noted_at: Timestamp,
        unknown: Option<AwsError>,
    },
    Terminated {
        noted_at: Timestamp,
        group: GroupName,
        instance: InstanceId,
        result: Result<(), AwsError>,
    },
    Completed {
        hook: Hook,
        instance: InstanceId,
        result: Result<(), AwsError>,
    },
    Reported(DrainState, Result<Box<NodeView>, ApiError>),
    Refreshed,
    /// Whether AWS lets heartbeats for instances of the group through is known, or why not.
    HeartbeatTried {
        group: GroupName,
        error: Option<AwsError>,
    },
    GivenUp,
    HandedOver,
    /// The Node is deleted, or not. `overtaken`: not, as it had changed by then. `once_gone`: finalizers keep it; this Event is due once
    /// it is gone.
    NodeDeleted {
        overtaken: bool,
        once_gone: Option<ScaleInEvent>,
    },
    Announced,
}
