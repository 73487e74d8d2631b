//! Why an RPC fails, and which gRPC code says so. One table, tested; a caller's mistake is never INTERNAL.

use tonic::{Code, Status};

use super::SizingError;
use crate::cluster::ApiError;
use crate::groups::Stale;
use crate::groups::sizes::SizeError;
use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::scale_in::IntentError;
use crate::telemetry::{chain, cut};

/// Cuts a text from outside to what fits into an answer or a log line: 300 bytes. A group's name has at most 255 characters.
pub(super) fn excerpt(text: &str) -> String {
    cut(text, 300)
}

/// Why an RPC fails.
#[derive(Debug, thiserror::Error)]
pub enum RpcError {
    /// There is no snapshot, or it is too old.
    #[error("the node groups are not known at present")]
    Stale(#[from] Stale),
    /// No group of this name is ours.
    #[error("there is no node group {:?}", excerpt(.0))]
    NoSuchGroup(String),
    /// The only node of the call is not of the group.
    #[error("node {node:?} is not of group {group:?}")]
    NotOfGroup {
        /// Provider id, or the name if there is none.
        node: String,
        /// Name of the group.
        group: String,
    },
    /// A node of a batch is not of the group; none of the batch was touched.
    #[error("node {node:?} of the batch is not of group {group:?}; nothing was changed")]
    BatchNotOfGroup {
        /// Provider id, or the name if there is none.
        node: String,
        /// Name of the group.
        group: String,
    },
    /// The caller knows a Node of this instance that our watch does not show (yet). Terminating the instance would kill
    /// its workloads.
    #[error("node {node} of instance {instance} is not seen in the cluster; nothing was changed")]
    NodeUnseen {
        /// Name of the Node, as the caller has it.
        node: String,
        /// EC2 instance id.
        instance: String,
    },
    /// A Node does not say which of the group's machines it is: terminating the instance could kill its workloads.
    #[error(
        "node {node} has no provider id of AWS, and may be that of instance {instance}: give it the provider id of \
         its machine (kubelet's --provider-id, or the AWS cloud controller); nothing was changed"
    )]
    Unidentified {
        /// Name of a Node without a provider id of AWS.
        node: NodeName,
        /// EC2 instance id.
        instance: InstanceId,
    },
    /// The instance's Node was deleted a while ago, and containers on it have their grace still.
    #[error("the Node of instance {0} is gone, but its pods still have grace; nothing was changed")]
    OutlivesItsNode(InstanceId),
    /// The watch of Nodes is broken, or was a moment ago: the instance may have a Node by now.
    #[error(
        "whether instance {0} has a Node is not known: the watch of Nodes does not work; nothing was changed"
    )]
    NodesOutdated(InstanceId),
    /// Nodes have not been listed yet: an instance that seems to have no Node may run workloads, and records of
    /// scale-ins are on Nodes.
    #[error("the Nodes of the cluster are not known yet")]
    NodesUnknown,
    /// The size does not allow it.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// One description of the group is from before another one, or before a size of ours; or somebody has set that again.
    #[error(
        "the desired capacity may be {} or {}: AWS's description of group {group} is out of date, or somebody has changed it in the last \
         minute; it is not lowered while that is not known", sizes[0], sizes[1]
    )]
    SizeInDoubt {
        /// Name of the group.
        group: GroupName,
        /// What its desired capacity may be.
        sizes: [i32; 2],
    },
    /// AWS did not read or change the size.
    #[error("the size of the group could not be read or changed")]
    Sizing(#[from] SizingError),
    /// The scale-in could not be recorded on the Node.
    #[error(transparent)]
    Intent(#[from] IntentError),
    /// A call was not answered in time. It may have been carried out.
    #[error("{what} was not answered in time")]
    TimedOut {
        /// The call.
        what: &'static str,
    },
    /// An earlier termination got no answer, and a second one would take another node with it.
    #[error("whether AWS terminates instance {0} is not known: an earlier call was not answered")]
    Unclear(InstanceId),
    /// Another process may have terminated it a moment ago, and a second termination would take another node with it.
    #[error(
        "cannot tell whether instance {0} is being terminated: cluster-autoscaler has used this process for less than two and a half minutes"
    )]
    MayBeTerminated(InstanceId),
    /// Part of a batch failed.
    #[error("{} of {of} nodes were not scaled in: {}", failed.len(), list(failed))]
    Unfinished {
        /// How many there were to do.
        of: usize,
        /// Node name or instance id, and why.
        failed: Vec<(String, Self)>,
    },
    /// No template has been computed so far, and nodes of the group are to come.
    #[error("group {0} has no template yet")]
    NoTemplateYet(String),
    /// A price was asked for and `--prices` is off.
    #[error("prices are not implemented: --prices is off")]
    PricesOff,
    /// A node has neither an instance type with a known price nor a group of ours.
    #[error("node {:?} has neither an instance type whose price is known nor a group", excerpt(.0))]
    NoPrice(String),
    /// A price was asked for without a start or an end.
    #[error("the period of the price has no start or no end")]
    NoPeriod,
    /// A pod whose price was asked for cannot be read.
    #[error("the pod cannot be read")]
    UnreadablePod(#[from] prost::DecodeError),
}

impl RpcError {
    /// The gRPC code for it.
    ///
    /// UNAVAILABLE may be over by cluster-autoscaler's next loop. FAILED_PRECONDITION needs somebody to change
    /// something: the group's limits, its configuration or our permissions. A template that is to come within seconds is
    /// UNIMPLEMENTED: cluster-autoscaler then buys nothing, while any other code ends its whole loop.
    pub fn code(&self) -> Code {
        match self {
            Self::NoSuchGroup(_) | Self::NotOfGroup { .. } | Self::NoPrice(_) => Code::NotFound,
            Self::BatchNotOfGroup { .. }
            | Self::Size(SizeError::Delta { .. })
            | Self::NoPeriod
            | Self::UnreadablePod(_) => Code::InvalidArgument,
            Self::Size(
                SizeError::AboveMax { .. }
                | SizeError::BelowMin { .. }
                | SizeError::Stopped { .. }
                | SizeError::Weighted { .. }
                | SizeError::BelowMinUnits { .. },
            )
            | Self::Unidentified { .. }
            | Self::Intent(IntentError::NotRecorded { source: ApiError::DryRun, .. }) => {
                Code::FailedPrecondition
            }
            Self::Stale(_)
            | Self::NodeUnseen { .. }
            | Self::OutlivesItsNode(_)
            | Self::NodesUnknown
            | Self::NodesOutdated(_)
            | Self::Unclear(_)
            | Self::MayBeTerminated(_)
            | Self::SizeInDoubt { .. }
            | Self::Intent(_) => Code::Unavailable,
            Self::Sizing(error) if error.is_transient() => Code::Unavailable,
            Self::Sizing(_) => Code::FailedPrecondition,
            Self::TimedOut { .. } => Code::DeadlineExceeded,
            Self::Unfinished { failed, .. } => common_code(failed),
            Self::PricesOff | Self::NoTemplateYet(_) => Code::Unimplemented,
        }
    }
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Self {
        Self::new(error.code(), chain(&error))
    }
}

/// The code that all parts have in common; UNAVAILABLE if they differ, since some may be worth another try.
fn common_code(failed: &[(String, RpcError)]) -> Code {
    let mut codes = failed.iter().map(|(_, error)| error.code());
    match codes.next() {
        Some(first) if codes.all(|code| code == first) => first,
        _ => Code::Unavailable,
    }
}

fn list(failed: &[(String, RpcError)]) -> String {
    failed.iter().map(|(node, error)| format!("{node}: {}", chain(error))).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{AwsError, Operation};

    fn below_min() -> SizeError {
        SizeError::BelowMin { group: "g".into(), size: 0, min: 1 }
    }

    fn unreachable() -> SizingError {
        AwsError::unreachable(Operation::TerminateInstanceInAutoScalingGroup, "no route to host").into()
    }

    fn of_aws(code: &str) -> SizingError {
        AwsError::of_service(Operation::SetDesiredCapacity, 400, code, "it may not").into()
    }

    fn timed_out() -> RpcError {
        RpcError::TimedOut { what: "describing the group" }
    }

    fn unrecorded() -> RpcError {
        let source = ApiError::TimedOut;
        IntentError::NotRecorded { node: "n".into(), source }.into()
    }

    #[test]
    fn a_name_of_any_length_goes_back_in_an_answer_that_arrives() {
        // A client takes some 8 KB of status.
        assert!(RpcError::NoSuchGroup("x".repeat(100_000)).to_string().len() < 400);
    }

    #[test]
    fn every_error_has_its_code_and_none_is_internal() {
        let delta = SizeError::Delta { call: "IncreaseSize", wanted: "positive", delta: 0 };
        let above = SizeError::AboveMax { group: "g".into(), size: 9, leaving: 0, max: 8 };
        let stopped = SizeError::Stopped { group: "g".into(), change: "grow", why: "it may not".into() };
        let (node, group) = (String::from("n"), String::from("g"));
        let unfinished = |failed: Vec<RpcError>| RpcError::Unfinished {
            of: 3,
            failed: failed.into_iter().map(|e| ("n".into(), e)).collect(),
        };
        let table: Vec<(RpcError, Code)> = vec![
            (Stale.into(), Code::Unavailable),
            (RpcError::NoSuchGroup("g".into()), Code::NotFound),
            (RpcError::NotOfGroup { node: node.clone(), group: group.clone() }, Code::NotFound),
            (RpcError::BatchNotOfGroup { node: node.clone(), group: group.clone() }, Code::InvalidArgument),
            (RpcError::NodeUnseen { node, instance: "i-1".into() }, Code::Unavailable),
            (RpcError::Unidentified { node: "n".into(), instance: "i-1".into() }, Code::FailedPrecondition),
            (RpcError::OutlivesItsNode("i-1".into()), Code::Unavailable),
            (RpcError::NodesUnknown, Code::Unavailable),
            (RpcError::Unclear("i-1".into()), Code::Unavailable),
            (RpcError::MayBeTerminated("i-1".into()), Code::Unavailable),
            (RpcError::SizeInDoubt { group: "g".into(), sizes: [8, 2] }, Code::Unavailable),
            (RpcError::NodesOutdated("i-1".into()), Code::Unavailable),
            (delta.into(), Code::InvalidArgument),
            (above.into(), Code::FailedPrecondition),
            (below_min().into(), Code::FailedPrecondition),
            (SizeError::Weighted { group: "g".into() }.into(), Code::FailedPrecondition),
            (stopped.into(), Code::FailedPrecondition),
            (
                SizeError::BelowMinUnits { group: "g".into(), units: 1, min: 2 }.into(),
                Code::FailedPrecondition,
            ),
            (of_aws("Throttling").into(), Code::Unavailable),
            (of_aws("ScalingActivityInProgress").into(), Code::Unavailable),
            (SizingError::MayCome(3).into(), Code::Unavailable),
            (SizingError::LeftOut("g".into()).into(), Code::Unavailable),
            (SizingError::CutOff.into(), Code::Unavailable),
            (IntentError::CutOff.into(), Code::Unavailable),
            (of_aws("ValidationError").into(), Code::FailedPrecondition),
            (of_aws("AccessDenied").into(), Code::FailedPrecondition),
            (unreachable().into(), Code::Unavailable),
            (unrecorded(), Code::Unavailable),
            (timed_out(), Code::DeadlineExceeded),
            (unfinished(vec![unrecorded(), unrecorded()]), Code::Unavailable),
            (unfinished(vec![below_min().into()]), Code::FailedPrecondition),
            (unfinished(vec![below_min().into(), timed_out()]), Code::Unavailable),
            (RpcError::NoTemplateYet("g".into()), Code::Unimplemented),
            (RpcError::PricesOff, Code::Unimplemented),
        ];
        for (error, code) in table {
            assert_eq!(error.code(), code, "{error:?}");
        }
    }

    #[test]
    fn the_status_says_the_whole_story_once() {
        let status = Status::from(RpcError::from(unreachable()));
        assert_eq!(
            status.message(),
            "the size of the group could not be read or changed: TerminateInstanceInAutoScalingGroup got no answer: no route to host"
        );
        let failed = vec![("n1".to_owned(), timed_out()), ("i-2".to_owned(), unreachable().into())];
        let status = Status::from(RpcError::Unfinished { of: 3, failed });
        assert_eq!(
            status.message(),
            "2 of 3 nodes were not scaled in: n1: describing the group was not answered in time; i-2: the size of \
             the group could not be read or changed: TerminateInstanceInAutoScalingGroup got no answer: no route to host"
        );
    }
}
