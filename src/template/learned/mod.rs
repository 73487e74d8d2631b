//! What real nodes of a group have shown, to correct its template. Pure.
//!
//! - Only nodes of what the group launches today teach: a new launch template version clears everything but the memory
//!   of instance types, which does not depend on it, and EKS's last answer.
//! - Figures are kept by instance type, from its last node, so that a group of several types is not taken for its
//!   largest. Labels are learned if all nodes always had them alike and, in a group of several types, nodes of two
//!   types did; labels of one node or its place are not.
//! - What starting nodes lack (a device whose plugin is not up) does not count as missing; what only they have (startup
//!   taints) is not learned.
//! - Taints are those that nodes have from registration. After the first settled nodes they only become fewer: else a
//!   taint put on by hand would stay, and keep the group's pods from scaling it from zero.
//! - What EKS says is not learned from nodes. Its last answer is kept for a start without EKS, even if the group never had a node.

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

/// Labels of one node, its type or its place: nodes of a group differ in them, and the template has its own.
const OF_ONE_NODE: [&str; 9] = [
    names::HOSTNAME,
    names::INSTANCE_TYPE,
    names::BETA_INSTANCE_TYPE,
    names::REGION,
    names::BETA_REGION,
    names::ZONE,
    names::BETA_ZONE,
    names::EBS_ZONE,
    names::EXCLUDE_FROM_LOAD_BALANCERS,
];

/// Labels of a node's place, beside its zone: what AWS says of it, from the zone's id down to its network node.
///
/// Source: [cloud-provider-aws](https://github.com/kubernetes/cloud-provider-aws), `network-node-layer-…`.
const PLACES: &str = "topology.k8s.aws/";

/// How many of a group's newest nodes to compare: enough to tell the group's labels from one node's.
const TEACHERS: usize = 32;

/// A node Ready for this long is complete: device plugins and agents set labels and remove their taints within seconds
/// of starting.
const SETTLED: Duration = Duration::from_mins(1);

/// What is known of a group's nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Learned {
    /// The launch template versions it is about.
    pub revisions: BTreeSet<Revision>,
    /// Capacity and allocatable by instance type.
    pub types: BTreeMap<String, Figures>,
    /// Memory in KiB, by instance type, that nodes of earlier revisions had.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub memory: BTreeMap<String, i64>,
    /// Instance type of the last node.
    pub last: String,
    /// Types with a settled node seen so far. Settled nodes teach labels and taints; before the first, none are
    /// certain.
    pub settled: BTreeSet<String>,
    /// Labels that all nodes share, and those of EKS's last answer.
    pub labels: BTreeMap<String, String>,
    /// Labels whose values differ between nodes.
    pub varying: BTreeSet<String>,
    /// Taints that all nodes have had from registration, and those of EKS's last answer.
    pub taints: Vec<Taint>,
    /// Labels and taints that EKS has ever given; nodes do not teach those.
    pub given: Given,
    /// Since when no refresh has shown the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent_since: Option<Timestamp>,
}

/// Keys of labels and taints that EKS gives to a managed node group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Given {
    /// Keys of labels.
    pub labels: BTreeSet<String>,
    /// Keys of taints.
    pub taints: BTreeSet<String>,
}

impl Learned {
    /// What is known after looking at these nodes, all launched from `revisions`; `None` if nothing. `types` are what the group launches
    /// now, of which others teach nothing; none if that is not known. `given` is EKS's answer, if there is one.
    pub fn from(
        known: Option<&Self>,
        revisions: &BTreeSet<Revision>,
        types: &[&str],
        given: Option<&ManagedNodeGroup>,
        nodes: &[Arc<NodeView>],
        now: Timestamp,
    ) -> Option<Self> {
        let mut learned = Self { revisions: revisions.clone(), ..Self::default() };
        match known {
            Some(known) if known.revisions == *revisions => learned.clone_from(known),
            Some(earlier) => learned.keep_of(earlier),
            None => {}
        }
        let is_first = !learned.has_seen_nodes();
        if let Some(given) = given {
            learned.remember(given);
        }
        let mut teachers: Vec<&NodeView> = nodes
            .iter()
            .map(Arc::as_ref)
            .filter(|node| can_teach(node) && !is_of_past(node, types))
            .collect();
        teachers.sort_by_key(|node| std::cmp::Reverse(node.created));
        teachers.truncate(TEACHERS);
        if teachers.is_empty() {
            if is_first {
                // Of no revision: an older ebbtide would take it for what nodes of this one have shown.
                learned.revisions.clear();
            }
            let is_of_use = !is_first || !learned.memory.is_empty() || learned.given != Given::default();
            return is_of_use.then_some(learned);
        }
        learned.learn_figures(&teachers, now);
        let settled: Vec<_> =
            teachers.iter().copied().filter(|node| is_settled(node.ready_since, now)).collect();
        if !settled.is_empty() {
            if learned.is_of_other_types(types) && settled.iter().any(|node| is_among(node, types)) {
                learned.forget_labels();
            }
            learned.learn_labels(&settled);
            learned.learn_taints(&settled);
            learned.settled.extend(types_of(&settled));
        } else if is_first {
            learned.learn_labels(&teachers);
        }
        Some(learned)
    }

    /// Whether a node of what the group launches has been seen. Until then only memory is known, and EKS's answer.
    pub(super) fn has_seen_nodes(&self) -> bool {
        !self.last.is_empty() || !self.settled.is_empty()
    }

    /// The memory in KiB that nodes of this type had, if any was seen. The last one of the current revisions is in
    /// [`types`](Self::types).
    pub(super) fn memory_kib(&self, instance_type: &str) -> Option<i64> {
        self.memory.get(instance_type).copied().filter(|kib| *kib > 0)
    }

    /// Adds what `earlier` knows that does not depend on what is launched, where it is not known: memory, and EKS's last answer.
    fn keep_of(&mut self, earlier: &Self) {
        let seen = earlier.types.iter().map(|(name, shown)| (name, shown.capacity.memory_kib));
        let before = earlier.memory.iter().map(|(name, kib)| (name, *kib));
        for (name, kib) in seen.filter(|(_, kib)| *kib > 0).chain(before) {
            self.memory.entry(name.clone()).or_insert(kib);
        }
        if self.given == Given::default() {
            self.remember(&earlier.answer_of_eks());
        }
    }

    /// What is kept of EKS's last answer.
    pub(super) fn answer_of_eks(&self) -> ManagedNodeGroup {
        let labels = self.labels.iter().filter(|(key, _)| self.given.labels.contains(*key));
        let taints = self.taints.iter().filter(|taint| self.given.taints.contains(&taint.key));
        ManagedNodeGroup {
            labels: labels.map(|(key, value)| (key.clone(), value.clone())).collect(),
            taints: taints.cloned().collect(),
            ..ManagedNodeGroup::default()
        }
    }

    /// Replaces EKS's last answer.
    fn remember(&mut self, answer: &ManagedNodeGroup) {
        self.given.labels.extend(answer.labels.keys().cloned());
        self.given.taints.extend(answer.taints.iter().map(|taint| taint.key.clone()));
        self.labels.retain(|key, _| !self.given.labels.contains(key));
        self.labels.extend(answer.labels.clone());
        self.taints.retain(|taint| !self.given.taints.contains(&taint.key));
        self.taints.extend(answer.taints.iter().cloned());
        sort(&mut self.taints);
    }

    /// Forgets what nodes of types that are no longer launched have shown: nodes of other types would seem to differ from it.
    fn forget_labels(&mut self) {
        let of_eks = self.answer_of_eks();
        (self.labels, self.taints) = (of_eks.labels.into_iter().collect(), of_eks.taints);
        self.varying.clear();
        self.settled.clear();
    }

    fn learn_figures(&mut self, teachers: &[&NodeView], now: Timestamp) {
        let mut last: BTreeMap<&str, &NodeView> = BTreeMap::new();
        for node in teachers {
            if let Some(name) = node.labels.get(names::INSTANCE_TYPE) {
                last.entry(name).or_insert(node);
            }
        }
        if let Some(name) = teachers.iter().find_map(|node| node.labels.get(names::INSTANCE_TYPE)) {
            name.clone_into(&mut self.last);
        }
        for (name, node) in last {
            let mut shown = Figures::reported(node);
            let known = self.types.get(name);
            if let Some(known) = known.filter(|_| !is_settled(node.ready_since, now)) {
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

    /// Labels of a new node of a group that may launch these types. One type does not speak for others, which may have
    /// another GPU or none.
    pub(super) fn labels_among(&self, types: &[&str]) -> impl Iterator<Item = (&String, &String)> {
        let speak = !self.is_of_other_types(types) && (types.len() < 2 || self.settled.len() > 1);
        self.labels.iter().filter(move |(key, _)| speak || self.given.labels.contains(*key))
    }

    /// Whether the group launches these types now, and all nodes that have settled were of others.
    pub(super) fn is_of_other_types(&self, types: &[&str]) -> bool {
        !self.settled.is_empty() && self.settled.iter().all(|name| is_past(name, types))
    }

    /// A type's figures, corrected by its last node.
    pub(super) fn correct(&self, instance_type: &str, computed: Figures) -> Figures {
        match self.types.get(instance_type) {
            Some(shown) => computed.overlaid(shown),
            None => computed,
        }
    }
}

/// Whether a group that now launches these types no longer launches this one. A name that is no EC2 type's (as k3s labels nodes) tells
/// nothing.
fn is_past(name: &str, types: &[&str]) -> bool {
    !types.is_empty() && name.contains('.') && !types.contains(&name)
}

fn is_of_past(node: &NodeView, types: &[&str]) -> bool {
    node.labels.get(names::INSTANCE_TYPE).is_some_and(|name| is_past(name, types))
}

fn is_among(node: &NodeView, types: &[&str]) -> bool {
    node.labels.get(names::INSTANCE_TYPE).is_some_and(|name| types.contains(&name))
}

/// Whether a node is typical of its group: Ready, not under maintenance, not about to go.
fn can_teach(node: &NodeView) -> bool {
    node.ready_since.is_some()
        && !node.unschedulable
        && node.record.is_none()
        && node.taint(names::TO_BE_DELETED).is_none()
}

/// Sorted, so that equal sets compare equal.
fn sort(taints: &mut [Taint]) {
    taints.sort_by(|a, b| (&a.key, &a.effect).cmp(&(&b.key, &b.effect)));
}

/// Instance types of these nodes.
fn types_of(nodes: &[&NodeView]) -> BTreeSet<String> {
    nodes.iter().map(|node| node.labels.get(names::INSTANCE_TYPE).unwrap_or_default().to_owned()).collect()
}

/// Whether a label first seen on nodes of these types belongs to the group: earlier nodes of another type, gone by now,
/// may have lacked it.
fn speak_for_all(types: &BTreeSet<String>, before: &BTreeSet<String>) -> bool {
    types.len() > 1 || before.is_subset(types)
}

fn is_settled(ready_since: Option<Timestamp>, now: Timestamp) -> bool {
    ready_since.is_some_and(|since| elapsed(since, now) >= SETTLED)
}

/// Whether a label is about this one node.
fn is_of_one_node(node: &NodeView, (key, value): (&str, &str)) -> bool {
    OF_ONE_NODE.contains(&key)
        || key.starts_with(PLACES)
        || [names::ZONE, names::ZONE_ID].into_iter().any(|place| node.labels.get(place) == Some(value))
        || value == node.name
        || node.instance.as_ref().is_some_and(|instance| value.contains(instance.as_str()))
}

/// Whether a taint comes and goes with a node's condition or start.
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
