//! A Node, as far as scale-ins and templates need it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::cordon::Cordon;
use super::drain_state::DrainState;
use super::interner::TextMap;
use super::record::{Annotation, Record};
use crate::k8s::{InstanceId, NodeName, ProviderId, names};

/// The Node's condition Ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ready {
    /// `True`.
    Yes,
    /// `False` (the kubelet says so itself), or there is no such condition.
    #[default]
    No,
    /// `Unknown`: the kubelet has been silent for a while (50 s by default). Source: [Node
    /// status](https://kubernetes.io/docs/reference/node/node-status/#condition).
    Unknown,
}

/// What is kept of a Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeView {
    /// `metadata.name`.
    pub name: NodeName,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`, the precondition of every write.
    pub resource_version: String,
    /// Of all changes of Nodes, the one that made this one what it is; heartbeats are none. 0 until [`Nodes`](super::Nodes) has it.
    pub change: u64,
    /// EC2 instance id from `spec.providerID`; `None` if that is not of an instance.
    pub instance: Option<InstanceId>,
    /// Nothing tells which machine this is, so that it may be one of ours: `spec.providerID` is empty, or names neither an instance nor
    /// Fargate nor another cloud's machine.
    pub is_unidentified: bool,
    /// `spec.providerID` as it is written, unless that is [`ProviderId::text_of_instance`] with the zone of its label.
    pub odd_provider_id: Option<Box<str>>,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// `spec.taints`.
    pub taints: Vec<Taint>,
    /// Annotation `ebbtide/scale-in`.
    pub record: Option<Box<Annotation>>,
    /// Annotation `ebbtide/marks`, raw.
    pub marks: Option<String>,
    /// Annotation `ebbtide/cordon`.
    pub cordon: Option<Cordon>,
    /// `metadata.labels`.
    pub labels: TextMap,
    /// `metadata.creationTimestamp`.
    pub created: Option<Timestamp>,
    /// Whether it is Ready.
    pub ready: Ready,
    /// Since when it is Ready; `None` while it is not.
    pub ready_since: Option<Timestamp>,
    /// Since when it is not Ready: as its kubelet says (`False`), or as it is not heard of (`Unknown`); `None` while it is.
    pub unready_since: Option<Timestamp>,
    /// What its conditions DrainInProgress and Drained say, if we have written them.
    pub drain_state: Option<DrainState>,
    /// `status.capacity`.
    pub capacity: TextMap,
    /// `status.allocatable`.
    pub allocatable: TextMap,
}

/// A provider id that is longer is not repeated: whoever makes a Node up may write a megabyte, and an answer to cluster-autoscaler has
/// to fit into four.
const LONGEST_PROVIDER_ID: usize = 128;

/// How the provider ids of AWS begin, and on Fargate the last part of them.
const AWS: &str = "aws://";
const FARGATE: &str = "fargate-";

/// Prefixes of the provider ids of machines that are certainly none of AWS's: EKS Hybrid Nodes, clouds whose controllers write the ids of
/// their own machines, nodes that kwok simulates. Not those of distributions, which run on any cloud (`k3s://`, `rke2://`): an id not
/// listed here may be anyone's.
///
/// Sources: `hybridProviderIdPrefix` in [eks-hybrid](https://github.com/aws/eks-hybrid); the [cloud providers that were part of
/// Kubernetes](https://github.com/kubernetes/enhancements/tree/master/keps/sig-cloud-provider/2395-removing-in-tree-cloud-providers);
/// `getProviderID` of cluster-autoscaler's `cloudprovider/kwok/kwok_helpers.go`.
const ELSEWHERE: [&str; 6] = ["eks-hybrid:///", "azure://", "gce://", "openstack://", "vsphere://", "kwok:"];

/// Whether a provider id without an instance is certainly of no machine of EC2.
fn is_elsewhere(provider_id: &str) -> bool {
    let last = provider_id.rsplit('/').next().unwrap_or(provider_id);
    provider_id.starts_with(AWS) && last.starts_with(FARGATE)
        || ELSEWHERE.iter().any(|scheme| provider_id.starts_with(scheme))
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        let meta = &node.metadata;
        let annotation = |key: &str| meta.annotations.as_ref().and_then(|all| all.get(key)).cloned();
        let (spec, status) = (node.spec.as_ref(), node.status.as_ref());
        let written = spec.and_then(|spec| spec.provider_id.as_deref()).unwrap_or_default();
        let (instance, is_unidentified) = match written.parse() {
            Ok(ProviderId::Instance { instance, .. }) => (Some(instance), false),
            Ok(ProviderId::Placeholder { .. }) => (None, false),
            Err(_) => (None, !is_elsewhere(written)),
        };
        let labels: TextMap = meta.labels.iter().flatten().collect();
        let is_usual = |instance: &InstanceId| {
            let usual = labels.get(names::ZONE).map(|zone| ProviderId::text_of_instance(zone, instance));
            usual.as_deref() == Some(written)
        };
        let is_short = written.len() <= LONGEST_PROVIDER_ID;
        Self {
            name: meta.name.clone().unwrap_or_default().into(),
            uid: meta.uid.clone().unwrap_or_default(),
            resource_version: meta.resource_version.clone().unwrap_or_default(),
            change: 0,
            odd_provider_id: instance.as_ref().filter(|id| is_short && !is_usual(id)).map(|_| written.into()),
            instance,
            is_unidentified,
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            record: annotation(names::RECORD).as_deref().map(|text| Box::new(Annotation::from(text))),
            marks: annotation(names::MARKS),
            cordon: annotation(names::CORDON).as_deref().map(Cordon::read),
            labels,
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            ready: status.map(ready).unwrap_or_default(),
            ready_since: status.and_then(|status| since(status, "True")),
            unready_since: status
                .and_then(|status| since(status, "False").or_else(|| since(status, "Unknown"))),
            drain_state: status.and_then(DrainState::read),
            capacity: quantities(status.and_then(|status| status.capacity.as_ref())),
            allocatable: quantities(status.and_then(|status| status.allocatable.as_ref())),
        }
    }
}

fn ready_condition(status: &NodeStatus) -> Option<&NodeCondition> {
    status.conditions.iter().flatten().find(|condition| condition.type_ == "Ready")
}

fn ready(status: &NodeStatus) -> Ready {
    match ready_condition(status).map(|ready| ready.status.as_str()) {
        Some("True") => Ready::Yes,
        Some("Unknown") => Ready::Unknown,
        _ => Ready::No,
    }
}

/// Since when the condition Ready has this status; `None` if it has another.
fn since(status: &NodeStatus, value: &str) -> Option<Timestamp> {
    let ready = ready_condition(status)?;
    ready.last_transition_time.as_ref().filter(|_| ready.status == value).map(|time| time.0)
}

fn quantities(of: Option<&BTreeMap<String, Quantity>>) -> TextMap {
    of.into_iter().flatten().map(|(name, quantity)| (name, &quantity.0)).collect()
}

impl NodeView {
    /// `spec.providerID`, if that is of an instance; one that is too long to be repeated as the AWS cloud provider would write it.
    pub(super) fn provider_id(&self) -> Option<String> {
        let usual =
            || Some(ProviderId::text_of_instance(self.labels.get(names::ZONE)?, self.instance.as_deref()?));
        self.odd_provider_id.as_deref().map(str::to_owned).or_else(usual)
    }

    /// Whether it has the label that takes it out of external load balancers.
    pub fn is_out_of_load_balancers(&self) -> bool {
        self.labels.get(names::EXCLUDE_FROM_LOAD_BALANCERS).is_some()
    }

    /// Whether somebody wants it gone: it carries a record or request of ours, or cluster-autoscaler's taint.
    pub(super) fn is_marked(&self) -> bool {
        self.record.is_some() || self.taint(names::TO_BE_DELETED).is_some()
    }

    /// Whether `other` is the same save for the version.
    pub(super) fn is_but_for_its_version(&self, other: &Self) -> bool {
        let Self {
            name,
            uid,
            resource_version: _,
            change: _,
            instance,
            is_unidentified,
            odd_provider_id,
            unschedulable,
            taints,
            record,
            marks,
            cordon,
            labels,
            created,
            ready,
            ready_since,
            unready_since,
            drain_state,
            capacity,
            allocatable,
        } = self;
        (name, uid, unschedulable) == (&other.name, &other.uid, &other.unschedulable)
            && (instance, is_unidentified, odd_provider_id)
                == (&other.instance, &other.is_unidentified, &other.odd_provider_id)
            && (taints, record, marks, cordon) == (&other.taints, &other.record, &other.marks, &other.cordon)
            && (created, ready, ready_since, unready_since)
                == (&other.created, &other.ready, &other.ready_since, &other.unready_since)
            && (drain_state, labels, capacity, allocatable)
                == (&other.drain_state, &other.labels, &other.capacity, &other.allocatable)
    }

    /// The scale-in under way. A record that names another instance is void.
    pub fn scale_in(&self) -> Option<&Record> {
        let record = self.record.as_ref()?.record()?;
        (self.instance.as_deref() == Some(&record.instance)).then_some(record)
    }

    /// The cordon that keeps new pods away, and nothing more: the Node is neither on its way out, nor has somebody opened it.
    pub fn closed_for(&self) -> Option<&Cordon> {
        self.cordon.as_ref().filter(|_| self.unschedulable && self.scale_in().is_none())
    }

    /// Whether the cloud controller says that the machine is off: nothing runs there.
    pub fn is_off(&self) -> bool {
        self.ready == Ready::Unknown && self.taint(names::SHUT_DOWN).is_some()
    }

    /// The taint of this key, if the Node carries it.
    pub fn taint(&self, key: &str) -> Option<&Taint> {
        self.taints.iter().find(|taint| taint.key == key)
    }
}
