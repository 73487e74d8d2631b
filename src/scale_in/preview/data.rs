//! What a preview is made from, and what it says.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use serde::Serialize;

use crate::aws::{Instance, Lifecycle};
use crate::cluster::{Budget, Nodes, PodView, Store};
use crate::groups::Group;
use crate::groups::hooks::HookState;
use crate::groups::sizes::SizeError;
use crate::k8s::{GroupName, InstanceId, NodeName};
use crate::scale_in::class::{Class, Daemon};
use crate::scale_in::context::removable;
use crate::scale_in::record::Cause;
use crate::scale_in::settings::Settings;
use crate::scale_in::status::Wait;
use crate::template::tags::{self, DrainTimeout};

/// What is known of a node.
#[derive(Debug)]
pub struct Facts {
    /// The Node.
    pub node: Node,
    /// The pods on it.
    pub pods: Vec<PodView>,
    /// The disruption budgets.
    pub budgets: Arc<Store<Budget>>,
    /// UIDs of the DaemonSets; `None`: not known, so that a pod that says it belongs to one is believed.
    pub daemon_sets: Option<BTreeSet<String>>,
    /// How many volumes are attached to the node.
    pub attachments: usize,
    /// Where its instance is.
    pub place: Place,
    /// Settings of scale-ins.
    pub settings: Settings,
}

/// Where a node's instance is.
#[derive(Clone, Debug)]
pub enum Place {
    /// AWS was not asked.
    Unknown,
    /// AWS was asked, and this is why it has not told.
    Untold(String),
    /// In no group of ours.
    Outside,
    /// In a group.
    In(Member),
}

/// What AWS says of a node.
#[derive(Clone, Debug)]
pub struct Member {
    /// Name of the group.
    pub group: GroupName,
    /// State of the instance.
    pub lifecycle: Lifecycle,
    /// The group's terminating hooks.
    pub hook: HookState,
    /// The group's own limit on drains.
    pub drain_timeout: Option<DrainTimeout>,
    /// Whether the group may shrink by it.
    pub removable: Result<(), SizeError>,
}

impl Member {
    /// Whether the group ends none of its instances on request at present.
    pub(super) fn is_kept(&self) -> bool {
        matches!(self.removable, Err(SizeError::Stopped { .. }))
    }

    /// An instance of a group, with the Nodes of the cluster and the group's hooks.
    pub fn of(group: &Group, instance: &Instance, nodes: &Nodes, hook: HookState) -> Self {
        let asg = &group.asg;
        Self {
            group: asg.name.clone(),
            lifecycle: instance.lifecycle,
            hook,
            drain_timeout: tags::drain_timeout(&asg.tags),
            removable: removable(nodes, asg, &instance.id),
        }
    }
}

impl Facts {
    pub(super) fn member(&self) -> Option<&Member> {
        match &self.place {
            Place::In(member) => Some(member),
            Place::Unknown | Place::Untold(_) | Place::Outside => None,
        }
    }
}

/// What a scale-in would do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// Name of the Node.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: Option<InstanceId>,
    /// Name of the group; `null`: AWS was not asked, or has not told.
    pub group: Option<GroupName>,
    /// Why the node goes.
    pub cause: Cause,
    /// Whether a scale-in is under way already, which the preview carries on.
    pub under_way: bool,
    /// What people should know first.
    pub notes: Vec<String>,
    /// The pods on the node, in the order in which they are asked.
    pub pods: Vec<PodPreview>,
    /// What happens when.
    pub steps: Vec<Step>,
    /// How it ends.
    pub end: End,
}

/// A pod on the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPreview {
    /// What becomes of it.
    pub treatment: PodTreatment,
    /// Its place in the order of drains.
    pub order: i32,
    /// Its priority: within an order, the lowest goes first.
    pub priority: i32,
    /// `namespace/name`.
    pub pod: String,
    /// Its grace.
    pub grace_seconds: i64,
    /// The budgets that cover it.
    pub budgets: Vec<BudgetPreview>,
}

/// What becomes of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PodTreatment {
    /// Evicted.
    Evicted,
    /// Waited for: it asked not to be disturbed.
    WaitedFor,
    /// Asked to go after the last workload.
    AskedInFlush,
    /// Runs until the machine stops.
    Stays,
    /// Neither asked nor waited for.
    Ignored,
}

/// A budget that covers a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BudgetPreview {
    /// `namespace/name`.
    pub name: String,
    /// How many disruptions it allows now.
    pub room: i32,
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    /// How long after now.
    pub after_seconds: u64,
    /// What.
    pub what: What,
    /// The pod that it happens to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// More of it.
    pub text: String,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// A phase begins.
    Phase,
    /// A pod is evicted.
    Evict,
    /// A pod may not be evicted.
    Blocked,
    /// A pod is deleted, whatever its budgets say.
    Delete,
    /// A pod has exited, at the latest.
    Exit,
    /// AWS is told to terminate the instance.
    Terminate,
    /// Our lifecycle hook is completed.
    CompleteHook,
}

/// How it ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum End {
    /// The instance is released, this long after now at the latest.
    #[serde(rename_all = "camelCase")]
    Released {
        /// Seconds after now.
        after_seconds: u64,
    },
    /// Nothing limits the wait for these pods.
    #[serde(rename_all = "camelCase")]
    Waits {
        /// Who holds it up.
        waiting: Vec<Wait>,
    },
    /// Nothing is done.
    #[serde(rename_all = "camelCase")]
    Refused {
        /// Why.
        why: String,
    },
}

impl PodTreatment {
    pub(super) fn of(class: Class) -> Self {
        match class {
            Class::Workload => Self::Evicted,
            Class::Patient => Self::WaitedFor,
            Class::Daemon(Daemon::Evict) => Self::AskedInFlush,
            Class::Daemon(Daemon::Keep) => Self::Stays,
            Class::Mirror | Class::Finished | Class::GivenUp | Class::Returned => Self::Ignored,
        }
    }

    /// In words.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::Evicted => "evicted",
            Self::WaitedFor => "waited for",
            Self::AskedInFlush => "asked in the flush",
            Self::Stays => "stays",
            Self::Ignored => "ignored",
        }
    }
}
