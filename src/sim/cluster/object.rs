//! A stored object: its JSON, and the facts that the simulation often reads from it.
//!
//! Invariants: an [`Object`] never changes (a write makes a new one); its value has no `apiVersion` and `kind`, which depend
//! on the address it is read at; derived facts are computed at most once.

use std::fmt::Write as _;
use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::names::Name;
use super::resources::{Resource, Shape};

/// One version of one object.
pub(super) struct Object {
    pub(super) resource: Resource,
    pub(super) name: Name,
    pub(super) revision: u64,
    pub(super) value: Value,
    json: OnceLock<String>,
    pod: OnceLock<PodFacts>,
}

/// The phase of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// The controller in an object's owner references.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// What controllers need to know of a pod.
#[derive(Clone, Debug)]
pub(super) struct PodFacts {
    pub(super) uid: String,
    pub(super) node: Option<String>,
    pub(super) phase: Phase,
    pub(super) deleting: bool,
    pub(super) ready: bool,
    pub(super) owner: Option<Owner>,
    /// Whether a DaemonSet, of any API group, controls it, or its annotation says that it belongs to one
    /// (<https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/pod/pod.go>).
    pub(super) daemon: bool,
    pub(super) cpu_millis: i64,
    pub(super) memory_bytes: i64,
    pub(super) priority: i64,
}

impl PodFacts {
    /// Succeeded or Failed: its containers will never run again.
    pub(super) fn finished(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Neither finished nor being deleted.
    pub(super) fn active(&self) -> bool {
        !self.deleting && !self.finished()
    }
}

impl Object {
    pub(super) fn new(resource: Resource, revision: u64, mut value: Value) -> Self {
        value["metadata"]["resourceVersion"] = Value::String(revision.to_string());
        let part = |key| text(&value, &["metadata", key]).unwrap_or_default();
        let name = Name::new(part("namespace"), part("name"));
        Self { resource, name, revision, value, json: OnceLock::new(), pod: OnceLock::new() }
    }

    /// The same object, as written at `revision`.
    pub(super) fn at(&self, revision: u64) -> Self {
        Self::new(self.resource, revision, self.value.clone())
    }

    pub(super) fn uid(&self) -> &str {
        text(&self.value, &["metadata", "uid"]).unwrap_or_default()
    }

    pub(super) fn label(&self, key: &str) -> Option<&str> {
        text(&self.value, &["metadata", "labels", key])
    }

    pub(super) fn annotation(&self, key: &str) -> Option<&str> {
        text(&self.value, &["metadata", "annotations", key])
    }

    pub(super) fn deleting(&self) -> bool {
        text(&self.value, &["metadata", "deletionTimestamp"]).is_some()
    }

    pub(super) fn generation(&self) -> i64 {
        integer(&self.value, &["metadata", "generation"]).unwrap_or(0)
    }

    /// An annotation's number of seconds.
    pub(super) fn seconds(&self, annotation: &str) -> Option<Duration> {
        let seconds: f64 = self.annotation(annotation)?.parse().ok()?;
        Duration::try_from_secs_f64(seconds).ok()
    }

    /// Whether the condition `kind` is True.
    pub(super) fn condition(&self, kind: &str) -> bool {
        condition(&self.value, kind).is_some_and(|found| text(found, &["status"]) == Some("True"))
    }

    /// The facts of a pod.
    pub(super) fn pod(&self) -> &PodFacts {
        self.pod.get_or_init(|| {
            let requests = |key| {
                list(&self.value, &["spec", "containers"])
                    .iter()
                    .filter_map(|container| text(container, &["resources", "requests", key]))
                    .map(quantity)
                    .sum::<f64>()
            };
            let owner = controller(&self.value);
            let says_so = self.annotation("cluster-autoscaler.kubernetes.io/daemonset-pod") == Some("true");
            PodFacts {
                uid: self.uid().to_owned(),
                node: text(&self.value, &["spec", "nodeName"]).map(str::to_owned),
                phase: match text(&self.value, &["status", "phase"]) {
                    Some("Running") => Phase::Running,
                    Some("Succeeded") => Phase::Succeeded,
                    Some("Failed") => Phase::Failed,
                    _ => Phase::Pending,
                },
                deleting: self.deleting(),
                ready: self.condition("Ready"),
                daemon: says_so || owner.as_ref().is_some_and(|owner| owner.kind == "DaemonSet"),
                owner,
                cpu_millis: (requests("cpu") * 1000.0).round() as i64,
                memory_bytes: requests("memory") as i64,
                priority: integer(&self.value, &["spec", "priority"]).unwrap_or(0),
            }
        })
    }

    /// Its JSON in `shape`, with `kind` and `apiVersion`.
    pub(super) fn render(&self, shape: Shape) -> String {
        let (version, kind) = self.resource.type_meta(shape);
        let mut out = String::with_capacity(2048);
        let _ = write!(out, r#"{{"kind":"{kind}","apiVersion":"{version}","#);
        match shape {
            Shape::Full => out.push_str(&self.json()[1..]),
            _ => out.push_str(&self.shaped(shape)[1..]),
        }
        out
    }

    /// Its JSON as a list item: without `kind` and `apiVersion` where the real server omits them.
    pub(super) fn render_item(&self, shape: Shape, out: &mut String) {
        match shape {
            Shape::Full | Shape::Table(_) => out.push_str(self.json()),
            Shape::Metadata => out.push_str(&self.render(shape)),
            Shape::CoreEvent => out.push_str(&self.shaped(shape)),
        }
    }

    fn json(&self) -> &str {
        self.json.get_or_init(|| self.value.to_string())
    }

    fn shaped(&self, shape: Shape) -> String {
        match shape {
            Shape::Full | Shape::Table(_) => self.json().to_owned(),
            Shape::Metadata => json!({ "metadata": self.value["metadata"] }).to_string(),
            Shape::CoreEvent => to_core_event(self.value.clone()).to_string(),
        }
    }
}

/// Fields of an events.k8s.io/v1 Event that core/v1 names differently.
/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/events/v1/conversion.go>
const EVENT_FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

fn to_core_event(mut event: Value) -> Value {
    rename(&mut event, EVENT_FIELDS);
    for required in ["involvedObject", "source"] {
        if event.get(required).is_none() {
            event[required] = json!({});
        }
    }
    event
}

/// The stored form of a core/v1 Event.
pub(super) fn from_core_event(mut event: Value) -> Value {
    rename(&mut event, EVENT_FIELDS.map(|(new, old)| (old, new)));
    event
}

fn rename(event: &mut Value, pairs: [(&str, &str); 7]) {
    let Some(fields) = event.as_object_mut() else { return };
    for (from, to) in pairs {
        if let Some(value) = fields.remove(from) {
            fields.insert(to.to_owned(), value);
        }
    }
}

/// The value at `path`.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, key| value.get(key))
}

/// The text at `path`.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> Option<&'a str> {
    at(value, path)?.as_str()
}

/// The number at `path`.
pub(super) fn integer(value: &Value, path: &[&str]) -> Option<i64> {
    at(value, path)?.as_i64()
}

/// The list at `path`, or an empty one.
pub(super) fn list<'a>(value: &'a Value, path: &[&str]) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// The map at `path`.
pub(super) fn map<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Map<String, Value>> {
    at(value, path)?.as_object()
}

/// The condition `kind` in `status.conditions`.
pub(super) fn condition<'a>(value: &'a Value, kind: &str) -> Option<&'a Value> {
    list(value, &["status", "conditions"]).iter().find(|found| text(found, &["type"]) == Some(kind))
}

/// The owner that is an object's controller.
pub(super) fn controller(value: &Value) -> Option<Owner> {
    let owner = list(value, &["metadata", "ownerReferences"])
        .iter()
        .find(|owner| owner.get("controller") == Some(&Value::Bool(true)))?;
    let part = |key| text(owner, &[key]).unwrap_or_default().to_owned();
    Some(Owner { kind: part("kind"), name: part("name"), uid: part("uid") })
}

/// Sets a condition in `status.conditions`; its transition time changes only with its status.
pub(super) fn set_condition(value: &mut Value, now: Timestamp, mut new: Value) {
    let conditions = &mut value["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(conditions) = conditions.as_array_mut() else { return };
    let old = conditions.iter_mut().find(|old| old.get("type") == new.get("type"));
    new["lastTransitionTime"] = match &old {
        Some(old) if old.get("status") == new.get("status") => old["lastTransitionTime"].clone(),
        _ => stamp(now),
    };
    match old {
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// A moment in Kubernetes' format: whole seconds.
pub(super) fn stamp(moment: Timestamp) -> Value {
    Value::String(moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

/// A quantity in base units (cores, bytes); zero if it cannot be read.
/// <https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/>
pub(super) fn quantity(text: &str) -> f64 {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor = match suffix {
        "" => 1.0,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        "Ti" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => 0.0,
    };
    number.parse::<f64>().unwrap_or(0.0) * factor
}
