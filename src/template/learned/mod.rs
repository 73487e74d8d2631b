//! What real nodes of a group have shown, and how it corrects the template. Pure.
//!
//! - Only nodes of what the group launches today teach: with another version of the launch template all is forgotten.
//! - Figures are those of the last node of each instance type, so that a group of several types is not taken for its
//!   largest one. Labels are those that all nodes have alike and always had, in a group of several types nodes of two of
//!   them; what tells of one node or of where it is is not learned.
//! - What a node lacks when it starts (a device whose plugin is not up) is not taken for missing, and what it has only
//!   then (startup taints) is not taken for given.
//! - Taints are those that nodes have from their registration: after the first settled nodes they only become fewer. One
//!   that somebody puts on by hand would else stay for ever with a group that its pods can then not wake from zero.
//! - Nodes do not teach what EKS says. Its last answer is remembered, for a start at which EKS is silent.

pub mod config_map;
mod merge;
pub mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::capacity::Figures;
use crate::aws::{ManagedNodeGroup, Revision};
use crate::clock::elapsed;
use crate::cluster::NodeView;
use crate::k8s::{Taint, names};

/// Label of a node's instance type.
pub(super) const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";

/// Labels that tell of one node, of its type or of its place: a group has several of each, and the template's own are
/// right for the node that it shows.
const OF_ONE_NODE: [&str; 9] = [
    "kubernetes.io/hostname",
    INSTANCE_TYPE,
    "beta.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/region",
    ZONE,
    "failure-domain.beta.kubernetes.io/zone",
    "topology.ebs.csi.aws.com/zone",
    names::EXCLUDE_FROM_LOAD_BALANCERS,
];

/// Labels that tell of a node's place: its zone ...
const ZONE: &str = "topology.kubernetes.io/zone";
/// ... its zone by the id that is the same in all accounts ...
const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// ... and whatever else AWS says of it, down to the network node that it hangs on.
///
/// Source: [cloud-provider-aws](https://github.com/kubernetes/cloud-provider-aws), `network-node-layer-…`.
const PLACES: &str = "topology.k8s.aws/";

/// The newest nodes of a group that are asked what they have in common: enough to tell the group's from one node's.
const TEACHERS: usize = 32;

/// A node has what it will have when it has been Ready for this long: device plugins, agents that set labels, and those
/// that take off a taint of their own, do so within seconds of being up.
const SETTLED: Duration = Duration::from_mins(1);

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
    /// Types of which a settled node has been seen. Such nodes teach labels and taints; until there was one, none is
    /// known for sure.
    pub settled: BTreeSet<String>,
    /// Labels that all nodes have alike, and those of EKS's last answer.
    pub labels: BTreeMap<String, String>,
    /// Labels that nodes had with different values.
    pub varying: BTreeSet<String>,
    /// Taints that all nodes have had from the first, and those of EKS's last answer.
    pub taints: Vec<Taint>,
    /// What of that EKS has ever given: nodes do not teach it.
    pub given: Given,
}

/// Keys of what EKS gives to the nodes of a managed node group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Given {
    /// Of labels.
    pub labels: BTreeSet<String>,
    /// Of taints.
    pub taints: BTreeSet<String>,
}

impl Learned {
    /// What is known after these nodes of the group (all launched from `revisions`) have been looked at; none if
    /// nothing is. `given` is what EKS says of its nodes, if it has said anything.
    pub fn from(
        known: Option<&Self>,
        revisions: &BTreeSet<Revision>,
        given: Option<&ManagedNodeGroup>,
        nodes: &[Arc<NodeView>],
        now: Timestamp,
    ) -> Option<Self> {
        let known = known.filter(|known| known.revisions == *revisions);
        let mut learned =
            known.cloned().unwrap_or_else(|| Self { revisions: revisions.clone(), ..Self::default() });
        if let Some(given) = given {
            learned.remember(given);
        }
        let mut teachers: Vec<&NodeView> =
            nodes.iter().map(Arc::as_ref).filter(|node| can_teach(node)).collect();
        teachers.sort_by_key(|node| std::cmp::Reverse(node.created));
        teachers.truncate(TEACHERS);
        if teachers.is_empty() {
            return known.map(|_| learned);
        }
        learned.learn_figures(&teachers, now);
        let settled: Vec<_> = teachers.iter().copied().filter(|node| is_settled(node, now)).collect();
        if !settled.is_empty() {
            learned.learn_labels(&settled);
            learned.learn_taints(&settled);
            learned.settled.extend(types_of(&settled));
        } else if known.is_none() {
            learned.learn_labels(&teachers);
        }
        Some(learned)
    }

    /// Takes EKS's answer in place of its last one.
    fn remember(&mut self, answer: &ManagedNodeGroup) {
        self.given.labels.extend(answer.labels.keys().cloned());
        self.given.taints.extend(answer.taints.iter().map(|taint| taint.key.clone()));
        self.labels.retain(|key, _| !self.given.labels.contains(key));
        self.labels.extend(answer.labels.clone());
        self.taints.retain(|taint| !self.given.taints.contains(&taint.key));
        self.taints.extend(answer.taints.iter().cloned());
        sort(&mut self.taints);
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
            let mut shown = Figures::reported(node);
            let known = self.types.get(name);
            if let Some(known) = known.filter(|_| !is_settled(node, now)) {
                shown = known.clone().overlaid(&shown);
            }
            if !known.is_some_and(|known| known.is_near(&shown)) {
                self.types.insert(name.to_owned(), shown);
            }
        }
    }

    fn learn_labels(&mut self, teachers: &[&NodeView]) {
        let Some((newest, others)) = teachers.split_first() else { return };
        let speak_for_all = speak_for_all(&types_of(teachers), &self.settled);
        let is_own = |key: &str| !self.given.labels.contains(key);
        let mut common = BTreeMap::new();
        let of_group = |pair: &(&str, &str)| is_own(pair.0) && !is_of_one_node(newest, *pair);
        for (key, value) in newest.labels.iter().filter(of_group) {
            let known = self.labels.get(key);
            let values: Vec<_> = others.iter().map(|node| node.labels.get(key)).collect();
            let differs = values.iter().flatten().any(|other| *other != value)
                || known.is_some_and(|before| before != value);
            if differs {
                self.varying.insert(key.to_owned());
            } else if values.iter().all(Option::is_some)
                && !self.varying.contains(key)
                && (speak_for_all || known.is_some())
            {
                common.insert(key.to_owned(), value.to_owned());
            }
        }
        common.extend(std::mem::take(&mut self.labels).into_iter().filter(|(key, _)| !is_own(key)));
        self.labels = common;
    }

    fn learn_taints(&mut self, teachers: &[&NodeView]) {
        let Some(newest) = teachers.first() else { return };
        if self.settled.is_empty() {
            let own = newest
                .taints
                .iter()
                .filter(|taint| !passes(&taint.key) && !self.given.taints.contains(&taint.key));
            self.taints.extend(own.map(|taint| Taint {
                key: taint.key.clone(),
                value: taint.value.clone().unwrap_or_default(),
                effect: taint.effect.clone(),
            }));
        }
        let is_on = |node: &&NodeView, taint: &Taint| {
            node.taints.iter().any(|other| other.key == taint.key && other.effect == taint.effect)
        };
        let given = &self.given.taints;
        self.taints
            .retain(|taint| given.contains(&taint.key) || teachers.iter().all(|node| is_on(node, taint)));
        sort(&mut self.taints);
    }

    /// The labels of a new node of a group that may launch `types` types. One type does not speak for others: theirs may
    /// have another GPU, or none.
    pub(super) fn labels_among(&self, types: usize) -> impl Iterator<Item = (&String, &String)> {
        let speak = types < 2 || self.settled.len() > 1;
        self.labels.iter().filter(move |(key, _)| speak || self.given.labels.contains(*key))
    }

    /// The figures of a type, corrected by what its last node has shown.
    pub(super) fn correct(&self, instance_type: &str, computed: Figures) -> Figures {
        match self.types.get(instance_type) {
            Some(shown) => computed.overlaid(shown),
            None => computed,
        }
    }
}

/// Whether a node looks as nodes of the group do: it is Ready, and nobody is at work on it or about to take it away.
fn can_teach(node: &NodeView) -> bool {
    node.ready_since.is_some()
        && !node.unschedulable
        && node.record.is_none()
        && node.taint(names::TO_BE_DELETED).is_none()
}

/// In one order, so that what is the same is equal.
fn sort(taints: &mut [Taint]) {
    taints.sort_by(|a, b| (&a.key, &a.effect).cmp(&(&b.key, &b.effect)));
}

/// The types of these nodes.
fn types_of(nodes: &[&NodeView]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.labels.get(INSTANCE_TYPE).unwrap_or_default().to_owned()).collect()
}

/// Whether a label that is new with nodes of these types is one of the group: nodes of another type that are gone by
/// now may have lacked it.
fn speak_for_all(types: &BTreeSet<String>, before: &BTreeSet<String>) -> bool {
    types.len() > 1 || before.is_subset(types)
}

fn is_settled(node: &NodeView, now: Timestamp) -> bool {
    node.ready_since.is_some_and(|since| elapsed(since, now) >= SETTLED)
}

/// Whether a label tells of this one node.
fn is_of_one_node(node: &NodeView, (key, value): (&str, &str)) -> bool {
    OF_ONE_NODE.contains(&key)
        || key.starts_with(PLACES)
        || [ZONE, ZONE_ID].into_iter().any(|place| node.labels.get(place) == Some(value))
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
