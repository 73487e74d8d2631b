//! The journal: what happened, in order, for tests and timelines.
//!
//! Invariants: entries are never changed or dropped; `changed` moves with every entry and every write to the store, so that
//! a condition over either can be awaited.

use std::fmt;

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::health::readiness;
use super::names::Name;
use super::object::{Object, list, map, text};
use super::route::Verb;

/// One line of the journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Event,
}

/// What can happen in a cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The API server answered a request.
    Request {
        /// The verb.
        verb: Verb,
        /// The plural, such as `pods`.
        resource: &'static str,
        /// The subresource, such as `eviction`.
        subresource: Option<String>,
        /// The object; the name is empty for a collection.
        name: Name,
        /// The code of the answer's `Status`, or of the answer.
        code: u16,
        /// The user; `None`: an administrator, who has no token.
        by: Option<String>,
    },
    /// A Node object appeared.
    NodeRegistered {
        /// Its name.
        node: String,
    },
    /// A Node object is gone.
    NodeRemoved {
        /// Its name.
        node: String,
    },
    /// A Node changed in a field that a scale-in uses.
    NodeChanged {
        /// Its name.
        node: String,
        /// The changes.
        changes: Vec<NodeChange>,
    },
    /// A node's instance is gone, with every container.
    PoweredOff {
        /// Its name.
        node: String,
    },
    /// A kubelet went silent: it died, was cut off, or its machine crashed.
    KubeletLost {
        /// The node.
        node: String,
    },
    /// A kubelet reports again.
    KubeletBack {
        /// The node.
        node: String,
    },
    /// A pod was bound to a node.
    PodScheduled {
        /// The pod.
        pod: Name,
        /// The node.
        node: String,
    },
    /// A pod's containers run.
    PodRunning {
        /// The pod.
        pod: Name,
        /// The node.
        node: String,
    },
    /// A pod's containers were killed where they were, and will be started again.
    PodCrashed {
        /// The pod.
        pod: Name,
        /// The node.
        node: String,
    },
    /// The API server accepted a pod's eviction or deletion.
    PodAsked {
        /// The pod.
        pod: Name,
        /// How it was asked for.
        by: By,
        /// Its grace in seconds.
        grace: i64,
        /// Whether it had the condition DisruptionTarget; without it a Job counts the end as a failure.
        disruption_target: bool,
    },
    /// A pod's containers exited by themselves.
    PodExited {
        /// The pod.
        pod: Name,
        /// The node.
        node: String,
    },
    /// A pod's containers were killed while they still ran.
    CutShort {
        /// The pod.
        pod: Name,
        /// The node.
        node: String,
        /// The reason.
        by: Cut,
    },
    /// A budget refused an eviction.
    EvictionRefused {
        /// The pod.
        pod: Name,
        /// The budget, or all if there are several.
        budget: String,
    },
    /// An instance ended with log lines that no shipper had sent.
    LinesLost {
        /// The node.
        node: String,
        /// How many.
        count: u64,
    },
    /// Somebody wrote a Kubernetes Event.
    KubernetesEvent {
        /// The object's kind and name, such as `Node/n1`.
        regarding: String,
        /// Its reason.
        reason: String,
        /// Its text.
        note: String,
    },
}

/// How a pod is asked to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The eviction subresource.
    Eviction,
    /// A delete request.
    Delete,
    /// A controller: the pod's owner, the taint manager or the garbage collector.
    Controller,
}

/// Why a pod was cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// It outlasted its grace.
    GraceOver,
    /// Its instance ended or crashed.
    PowerOff,
}

/// One change of a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeChange {
    /// Cordoned (true) or uncordoned.
    Unschedulable(bool),
    /// The status of its condition Ready changed.
    Ready(String),
    /// A taint was added or has another value.
    Tainted {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
        /// Its effect.
        effect: String,
    },
    /// A taint is gone.
    TaintRemoved(String),
    /// An annotation was added or has another value.
    Annotated(String, String),
    /// An annotation is gone.
    AnnotationRemoved(String),
    /// A label was added or has another value.
    Labelled(String, String),
    /// A label is gone.
    LabelRemoved(String),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.at, self.what)
    }
}

pub(super) struct Journal {
    entries: Vec<Entry>,
    subscribers: Vec<mpsc::UnboundedSender<Entry>>,
    changed: watch::Sender<u64>,
}

impl Journal {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), subscribers: Vec::new(), changed: watch::Sender::new(0) }
    }

    pub(super) fn note(&mut self, at: Timestamp, what: Event) {
        let entry = Entry { at, what };
        self.subscribers.retain(|subscriber| subscriber.send(entry.clone()).is_ok());
        self.entries.push(entry);
        self.touch();
    }

    /// Signals a change that is no entry.
    pub(super) fn touch(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Entry> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.push(sender);
        receiver
    }

    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }
}

/// How a Node changed from one version to the next.
pub(super) fn node_changes(before: &Object, after: &Object) -> Vec<NodeChange> {
    let mut changes = Vec::new();
    let cordoned = |node: &Object| node.value["spec"]["unschedulable"] == Value::Bool(true);
    if cordoned(before) != cordoned(after) {
        changes.push(NodeChange::Unschedulable(cordoned(after)));
    }
    let (was, is) = (readiness(before), readiness(after));
    if was != is {
        changes.push(NodeChange::Ready(is.to_owned()));
    }
    let taints = |node: &Object| -> Vec<(String, String, String)> {
        let part = |taint: &Value, key| text(taint, &[key]).unwrap_or_default().to_owned();
        let taints = list(&node.value, &["spec", "taints"]).iter();
        taints.map(|taint| (part(taint, "key"), part(taint, "value"), part(taint, "effect"))).collect()
    };
    let (was, is) = (taints(before), taints(after));
    for (key, value, effect) in is.iter().filter(|taint| !was.contains(taint)).cloned() {
        changes.push(NodeChange::Tainted { key, value, effect });
    }
    let gone = was.into_iter().filter(|(key, _, effect)| !is.iter().any(|(k, _, e)| (k, e) == (key, effect)));
    changes.extend(gone.map(|(key, _, _)| NodeChange::TaintRemoved(key)));
    changes.extend(map_changes(
        before,
        after,
        "annotations",
        NodeChange::Annotated,
        NodeChange::AnnotationRemoved,
    ));
    changes.extend(map_changes(before, after, "labels", NodeChange::Labelled, NodeChange::LabelRemoved));
    changes
}

fn map_changes(
    before: &Object,
    after: &Object,
    field: &str,
    set: fn(String, String) -> NodeChange,
    removed: fn(String) -> NodeChange,
) -> Vec<NodeChange> {
    let path = ["metadata", field];
    let (was, is) = (map(&before.value, &path), map(&after.value, &path));
    let value = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let new =
        is.into_iter().flatten().filter(|(key, value)| was.and_then(|was| was.get(*key)) != Some(value));
    let gone = was.into_iter().flatten().filter(|(key, _)| is.is_none_or(|is| !is.contains_key(*key)));
    new.map(|(key, text)| set(key.clone(), value(text)))
        .chain(gone.map(|(key, _)| removed(key.clone())))
        .collect()
}
