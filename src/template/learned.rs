//! What real nodes of a group have shown, and how it corrects the template. Pure.
//!
//! - Only nodes of what the group launches today teach: with another version of the launch template all is forgotten.
//! - Figures are those of the last node of each instance type, so that a group of several types is not taken for its
//!   largest one. Labels are those that all nodes have alike and always had; what tells of one node or of where it is
//!   is not learned.
//! - What a node lacks when it starts (a device whose plugin is not up) is not taken for missing, and what it has only
//!   then (startup taints) is not taken for given.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::capacity::{Figures, Resources};
use super::quantity;
use crate::aws::{NodeGroup, Revision};
use crate::clock::elapsed;
use crate::cluster::{NodeView, Pairs};
use crate::groups::tags::Taint;
use crate::scale_in::names;

/// Label of a node's instance type.
pub(super) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Labels that tell of one node, of its type or of its place: a group has several of each, and the template's own are
/// right for the node that it shows.
const OF_ONE_NODE: [&str; 10] = [
    "kubernetes.io/hostname",
    INSTANCE_TYPE,
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/zone",
    "topology.ebs.csi.aws.com/zone",
    "topology.k8s.aws/zone-id",
    names::EXCLUDE_FROM_LOAD_BALANCERS,
];

/// The newest nodes of a group that are asked what they have in common: enough to tell the group's from one node's.
const TEACHERS: usize = 32;

/// A node has what it will have when it has been Ready for this long: device plugins, agents that set labels, and those
/// that take off a taint of their own, do so within seconds of being up.
const SETTLED: Duration = Duration::from_mins(1);

/// Figures that differ by less are the same: memory differs by some KiB from host to host.
const NOISE: f64 = 0.005;

/// What is known of a group's nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Learned {
    /// The versions of launch templates it is about.
    pub revisions: BTreeSet<Revision>,
    /// What a node of an instance type has and gives to pods.
    pub types: BTreeMap<String, Figures>,
    /// Type of the last node.
    pub last: String,
    /// Labels that all nodes have alike.
    pub labels: BTreeMap<String, String>,
    /// Labels that nodes had with different values.
    pub varying: BTreeSet<String>,
    /// Taints that all nodes keep.
    pub taints: Vec<Taint>,
}

impl Learned {
    /// What is known after these nodes of the group (all launched from `revisions`) have been looked at; none if
    /// nothing is. Labels and taints that EKS gives the nodes are not learned: what it says of the next one counts.
    pub fn from(
        known: Option<&Self>,
        revisions: &BTreeSet<Revision>,
        given: Option<&NodeGroup>,
        nodes: &[Arc<NodeView>],
        now: Timestamp,
    ) -> Option<Self> {
        let known = known.filter(|known| known.revisions == *revisions);
        let mut teachers: Vec<&NodeView> =
            nodes.iter().map(Arc::as_ref).filter(|node| can_teach(node)).collect();
        teachers.sort_by_key(|node| std::cmp::Reverse(node.created));
        teachers.truncate(TEACHERS);
        if teachers.is_empty() {
            return known.cloned();
        }
        let mut learned = known.cloned().unwrap_or_default();
        learned.revisions.clone_from(revisions);
        learned.learn_figures(&teachers, now);
        let settled: Vec<_> = teachers.iter().copied().filter(|node| is_settled(node, now)).collect();
        if !settled.is_empty() {
            learned.learn_labels(&settled);
            learned.learn_taints(&settled);
        } else if known.is_none() {
            learned.learn_labels(&teachers);
        }
        if let Some(given) = given {
            learned.labels.retain(|key, _| !given.labels.contains_key(key));
            learned.taints.retain(|taint| !given.taints.iter().any(|other| other.key == taint.key));
        }
        Some(learned)
    }

    fn learn_figures(&mut self, teachers: &[&NodeView], now: Timestamp) {
        let mut last: BTreeMap<&str, &NodeView> = BTreeMap::new();
        for node in teachers {
            if let Some(name) = node.labels.get(INSTANCE_TYPE) {
                last.entry(name).or_insert(node);
            }
        }
        if let Some(name) = teachers.iter().find_map(|node| node.labels.get(INSTANCE_TYPE)) {
            name.clone_into(&mut self.last);
        }
        for (name, node) in last {
            let mut shown =
                Figures { capacity: resources(&node.capacity), allocatable: resources(&node.allocatable) };
            let known = self.types.get(name);
            if let Some(known) = known.filter(|_| !is_settled(node, now)) {
                shown.capacity = overlaid(known.capacity.clone(), &shown.capacity);
                shown.allocatable = overlaid(known.allocatable.clone(), &shown.allocatable);
            }
            if !known.is_some_and(|known| is_same(known, &shown)) {
                self.types.insert(name.to_owned(), shown);
            }
        }
    }

    fn learn_labels(&mut self, teachers: &[&NodeView]) {
        let Some((newest, others)) = teachers.split_first() else { return };
        let mut common = BTreeMap::new();
        for (key, value) in newest.labels.iter().filter(|pair| !is_of_one_node(newest, *pair)) {
            let values: Vec<_> = others.iter().map(|node| node.labels.get(key)).collect();
            let differs = values.iter().flatten().any(|other| *other != value)
                || self.labels.get(key).is_some_and(|before| before != value);
            if differs {
                self.varying.insert(key.to_owned());
            } else if values.iter().all(Option::is_some) && !self.varying.contains(key) {
                common.insert(key.to_owned(), value.to_owned());
            }
        }
        self.labels = common;
    }

    fn learn_taints(&mut self, teachers: &[&NodeView]) {
        let Some((newest, others)) = teachers.split_first() else { return };
        let is_on = |node: &NodeView, taint: &Taint| {
            node.taints.iter().any(|other| other.key == taint.key && other.effect == taint.effect)
        };
        self.taints = newest
            .taints
            .iter()
            .filter(|taint| !passes(&taint.key))
            .map(|taint| Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            })
            .filter(|taint| others.iter().all(|node| is_on(node, taint)))
            .collect();
    }

    /// The figures of a type, corrected by what its last node has shown.
    pub(super) fn correct(&self, instance_type: &str, computed: Figures) -> Figures {
        match self.types.get(instance_type) {
            Some(shown) => Figures {
                capacity: overlaid(computed.capacity, &shown.capacity),
                allocatable: overlaid(computed.allocatable, &shown.allocatable),
            },
            None => computed,
        }
    }
}

/// Whether a node looks as nodes of the group do: it is Ready and nobody is about to take it away.
fn can_teach(node: &NodeView) -> bool {
    node.ready_since.is_some() && node.record.is_none() && node.taint(names::TO_BE_DELETED).is_none()
}

fn is_settled(node: &NodeView, now: Timestamp) -> bool {
    node.ready_since.is_some_and(|since| elapsed(since, now) >= SETTLED)
}

/// Whether a label tells of this one node.
fn is_of_one_node(node: &NodeView, (key, value): (&str, &str)) -> bool {
    OF_ONE_NODE.contains(&key)
        || value == node.name
        || node.instance.as_ref().is_some_and(|instance| value.contains(instance.as_str()))
}

/// Whether a taint comes and goes with a node's condition or its start.
///
/// Sources: [Taint based evictions](https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/),
/// [well-known taints](https://kubernetes.io/docs/reference/labels-annotations-taints/), cluster-autoscaler's
/// [taints.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/utils/taints/taints.go).
/// Agents name theirs `…/agent-not-ready` (the EBS and EFS drivers, Cilium).
fn passes(key: &str) -> bool {
    const PREFIXES: [&str; 7] = [
        "node.kubernetes.io/",
        "node.cloudprovider.kubernetes.io/",
        "startup-taint.cluster-autoscaler.kubernetes.io/",
        "status-taint.cluster-autoscaler.kubernetes.io/",
        "ignore-taint.cluster-autoscaler.kubernetes.io/",
        "aws-node-termination-handler/",
        "node.cluster.x-k8s.io/uninitialized",
    ];
    matches!(key, names::TO_BE_DELETED | names::DELETION_CANDIDATE)
        || PREFIXES.iter().any(|prefix| key.starts_with(prefix))
        || key.ends_with("not-ready")
}

fn resources(from: &Pairs) -> Resources {
    let mut resources = Resources::default();
    for (name, text) in from.iter() {
        let Some(value) = quantity::parse(text) else { continue };
        let kib = || (value / 1024.0) as i64;
        match name {
            "cpu" => resources.cpu_millis = (value * 1000.0).round() as i64,
            "memory" => resources.memory_kib = kib(),
            "ephemeral-storage" => resources.storage_kib = kib(),
            "pods" => resources.pods = value as i64,
            _ => {
                resources.devices.insert(name.to_owned(), value as i64);
            }
        }
    }
    // Huge pages that are not set up, a device whose plugin has found none yet.
    resources.devices.retain(|_, count| *count > 0);
    resources
}

/// `computed` with everything in it that `shown` has.
fn overlaid(computed: Resources, shown: &Resources) -> Resources {
    let or = |shown: i64, computed: i64| if shown > 0 { shown } else { computed };
    let mut devices = computed.devices;
    devices.extend(shown.devices.clone());
    Resources {
        cpu_millis: or(shown.cpu_millis, computed.cpu_millis),
        memory_kib: or(shown.memory_kib, computed.memory_kib),
        pods: or(shown.pods, computed.pods),
        storage_kib: or(shown.storage_kib, computed.storage_kib),
        devices,
    }
}

fn is_same(a: &Figures, b: &Figures) -> bool {
    let near = |a: i64, b: i64| (a - b).abs() as f64 <= NOISE * a.max(b) as f64;
    let same = |a: &Resources, b: &Resources| {
        a.devices == b.devices
            && a.cpu_millis == b.cpu_millis
            && a.pods == b.pods
            && near(a.memory_kib, b.memory_kib)
            && near(a.storage_kib, b.storage_kib)
    };
    same(&a.capacity, &b.capacity) && same(&a.allocatable, &b.allocatable)
}
