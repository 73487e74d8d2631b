//! Objects as rows of a table, which is what `kubectl get` asks for and prints.
//!
//! Columns and cells are those of the real server's printers; the ones of priority 1 are for `--output wide`.
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#receiving-resources-as-tables>,
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/printers/internalversion/printers.go>

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::object::{Object, condition, integer, list, map, text};
use super::resources::{Resource, Shape};
use crate::clock::elapsed;

/// Name, type and priority.
type Column = (&'static str, &'static str, u8);

/// What it prints where there is nothing.
const NONE: &str = "<none>";

/// The label that names a node's role, with the role after it.
const ROLE: &str = "node-role.kubernetes.io/";

const NAME: Column = ("Name", "string", 0);
const AGE: Column = ("Age", "string", 0);

/// What a row has of its object: `kubectl get --sort-by` wants all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Include {
    Nothing,
    Metadata,
    Object,
}

impl Include {
    pub(super) fn of(param: Option<&str>) -> Self {
        match param {
            Some("None") => Self::Nothing,
            Some("Object") => Self::Object,
            _ => Self::Metadata,
        }
    }
}

/// A table of these objects, with the metadata of their list.
pub(super) fn table(
    resource: Resource,
    objects: &[Arc<Object>],
    metadata: &Value,
    include: Include,
    now: Timestamp,
) -> Value {
    let columns = columns(resource).iter().map(|(name, kind, priority)| {
        let format = if *name == "Name" { "name" } else { "" };
        json!({ "name": name, "type": kind, "format": format, "description": "", "priority": priority })
    });
    let rows = objects.iter().map(|object| {
        let shown = match include {
            Include::Nothing => Value::Null,
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.value["metadata"],
            }),
            Include::Object => serde_json::from_str(&object.render(Shape::Full)).unwrap_or_default(),
        };
        json!({ "cells": cells(object, now), "object": shown })
    });
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": columns.collect::<Vec<_>>(),
        "rows": rows.collect::<Vec<_>>(),
    })
}

fn columns(resource: Resource) -> &'static [Column] {
    match resource {
        Resource::Namespaces => &[NAME, ("Status", "string", 0), AGE],
        Resource::Nodes => &[
            NAME,
            ("Status", "string", 0),
            ("Roles", "string", 0),
            AGE,
            ("Version", "string", 0),
            ("Internal-IP", "string", 1),
            ("External-IP", "string", 1),
            ("OS-Image", "string", 1),
            ("Kernel-Version", "string", 1),
            ("Container-Runtime", "string", 1),
        ],
        Resource::Pods => &[
            NAME,
            ("Ready", "string", 0),
            ("Status", "string", 0),
            ("Restarts", "string", 0),
            AGE,
            ("IP", "string", 1),
            ("Node", "string", 1),
            ("Nominated Node", "string", 1),
            ("Readiness Gates", "string", 1),
        ],
        Resource::ConfigMaps => &[NAME, ("Data", "string", 0), AGE],
        Resource::Events => &[
            ("Last Seen", "string", 0),
            ("Type", "string", 0),
            ("Reason", "string", 0),
            ("Object", "string", 0),
            ("Subobject", "string", 1),
            ("Source", "string", 1),
            ("Message", "string", 0),
            ("First Seen", "string", 1),
            ("Count", "string", 1),
            ("Name", "string", 1),
        ],
        Resource::ReplicaSets => &[
            NAME,
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            AGE,
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::DaemonSets => &[
            NAME,
            ("Desired", "integer", 0),
            ("Current", "integer", 0),
            ("Ready", "integer", 0),
            ("Up-to-date", "integer", 0),
            ("Available", "integer", 0),
            ("Node Selector", "string", 0),
            AGE,
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::Deployments => &[
            NAME,
            ("Ready", "string", 0),
            ("Up-to-date", "integer", 0),
            ("Available", "integer", 0),
            AGE,
            ("Containers", "string", 1),
            ("Images", "string", 1),
            ("Selector", "string", 1),
        ],
        Resource::StatefulSets => {
            &[NAME, ("Ready", "string", 0), AGE, ("Containers", "string", 1), ("Images", "string", 1)]
        }
        Resource::Budgets => &[
            NAME,
            ("Min Available", "string", 0),
            ("Max Unavailable", "string", 0),
            ("Allowed Disruptions", "integer", 0),
            AGE,
        ],
        Resource::VolumeAttachments => &[
            NAME,
            ("Attacher", "string", 0),
            ("PV", "string", 0),
            ("Node", "string", 0),
            ("Attached", "boolean", 0),
            AGE,
        ],
        Resource::Leases => &[NAME, ("Holder", "string", 0), AGE],
        Resource::Jobs => {
            &[NAME, ("Status", "string", 0), ("Completions", "string", 0), ("Duration", "string", 0), AGE]
        }
    }
}

fn cells(object: &Object, now: Timestamp) -> Vec<Value> {
    let value = &object.value;
    let name = json!(object.name.name);
    let age = since(text(value, &["metadata", "creationTimestamp"]), now);
    let said = |path: &[&str]| json!(text(value, path).unwrap_or_default());
    let some = |path: &[&str]| json!(text(value, path).unwrap_or(NONE));
    let count = |path: &[&str]| json!(integer(value, path).unwrap_or(0));
    let of_both = |a: &[&str], b: &[&str]| json!(format!("{}/{}", count(a), count(b)));
    match object.resource {
        Resource::Namespaces => vec![name, said(&["status", "phase"]), age],
        Resource::Nodes => {
            let info = |key| said(&["status", "nodeInfo", key]);
            vec![
                name,
                node_status(object),
                roles(value),
                age,
                info("kubeletVersion"),
                address(value, "InternalIP"),
                address(value, "ExternalIP"),
                info("osImage"),
                info("kernelVersion"),
                info("containerRuntimeVersion"),
            ]
        }
        Resource::Pods => vec![
            name,
            ready_containers(value),
            pod_status(object),
            json!(restarts(value).to_string()),
            age,
            some(&["status", "podIP"]),
            some(&["spec", "nodeName"]),
            some(&["status", "nominatedNodeName"]),
            json!(NONE),
        ],
        Resource::ConfigMaps => {
            vec![name, json!(map(value, &["data"]).map_or(0, |data| data.len()).to_string()), age]
        }
        Resource::Events => event(object, name, now),
        Resource::ReplicaSets | Resource::DaemonSets | Resource::Deployments | Resource::StatefulSets => {
            controller(object, name, age)
        }
        Resource::Budgets => {
            let either = |key| match &value["spec"][key] {
                Value::Null => json!("N/A"),
                Value::String(share) => json!(share),
                number => json!(number.to_string()),
            };
            let allowed = count(&["status", "disruptionsAllowed"]);
            vec![name, either("minAvailable"), either("maxUnavailable"), allowed, age]
        }
        Resource::VolumeAttachments => {
            let of = |path| said(path);
            let attached = json!(value["status"]["attached"] == true);
            vec![
                name,
                of(&["spec", "attacher"]),
                of(&["spec", "source", "persistentVolumeName"]),
                of(&["spec", "nodeName"]),
                attached,
                age,
            ]
        }
        Resource::Leases => vec![name, said(&["spec", "holderIdentity"]), age],
        Resource::Jobs => {
            let has =
                |kind| condition(value, kind).is_some_and(|found| text(found, &["status"]) == Some("True"));
            let status = if has("Complete") {
                "Complete"
            } else if has("Failed") {
                "Failed"
            } else {
                "Running"
            };
            let begun = text(value, &["status", "startTime"]).and_then(|at| at.parse().ok());
            let ended = text(value, &["status", "completionTime"]).and_then(|at| at.parse().ok());
            let lasted =
                begun.map_or(json!(""), |at| json!(lasted(elapsed(at, ended.unwrap_or(now)).as_secs())));
            vec![
                name,
                json!(status),
                of_both(&["status", "succeeded"], &["spec", "completions"]),
                lasted,
                age,
            ]
        }
    }
}

/// What makes pods and keeps their number.
fn controller(object: &Object, name: Value, age: Value) -> Vec<Value> {
    let value = &object.value;
    let count = |path: &[&str]| integer(value, path).unwrap_or(0);
    let of_status = |key| json!(count(&["status", key]));
    let replicas = count(&["spec", "replicas"]);
    let ready = json!(format!("{}/{replicas}", count(&["status", "readyReplicas"])));
    let [containers, images] = containers(value);
    match object.resource {
        Resource::DaemonSets => {
            let counts = [
                "desiredNumberScheduled",
                "currentNumberScheduled",
                "numberReady",
                "updatedNumberScheduled",
                "numberAvailable",
            ];
            let nodes = pairs(map(value, &["spec", "template", "spec", "nodeSelector"]));
            let rest = vec![nodes, age, containers, images, selector(value)];
            [vec![name], counts.map(of_status).to_vec(), rest].concat()
        }
        Resource::Deployments => {
            let counts = ["updatedReplicas", "availableReplicas"].map(of_status);
            let rest = vec![age, containers, images, selector(value)];
            [vec![name, ready], counts.to_vec(), rest].concat()
        }
        Resource::StatefulSets => vec![name, ready, age, containers, images],
        _ => {
            let counts = ["replicas", "readyReplicas"].map(of_status);
            let rest = vec![age, containers, images, selector(value)];
            [vec![name, json!(replicas)], counts.to_vec(), rest].concat()
        }
    }
}

fn node_status(node: &Object) -> Value {
    let ready = match condition(&node.value, "Ready").and_then(|ready| text(ready, &["status"])) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let closed = if node.value["spec"]["unschedulable"] == true { ",SchedulingDisabled" } else { "" };
    json!(format!("{ready}{closed}"))
}

fn roles(node: &Value) -> Value {
    let labels = map(node, &["metadata", "labels"]).into_iter().flatten();
    let roles: Vec<&str> = labels.filter_map(|(key, _)| key.strip_prefix(ROLE)).collect();
    json!(if roles.is_empty() { NONE.to_owned() } else { roles.join(",") })
}

fn address(node: &Value, kind: &str) -> Value {
    let found = list(node, &["status", "addresses"]).iter().find(|one| text(one, &["type"]) == Some(kind));
    json!(found.and_then(|one| text(one, &["address"])).unwrap_or(NONE))
}

fn ready_containers(pod: &Value) -> Value {
    let ready = list(pod, &["status", "containerStatuses"]).iter().filter(|status| status["ready"] == true);
    json!(format!("{}/{}", ready.count(), list(pod, &["spec", "containers"]).len()))
}

fn restarts(pod: &Value) -> i64 {
    list(pod, &["status", "containerStatuses"])
        .iter()
        .filter_map(|status| status["restartCount"].as_i64())
        .sum()
}

/// Why its containers wait or have ended, or else its phase. A pod that is being deleted is Terminating.
fn pod_status(pod: &Object) -> Value {
    let value = &pod.value;
    let mut reasons = list(value, &["status", "containerStatuses"]).iter().filter_map(|status| {
        let waiting = text(status, &["state", "waiting", "reason"]);
        waiting.or_else(|| text(status, &["state", "terminated", "reason"]))
    });
    let phase = text(value, &["status", "reason"]).or_else(|| text(value, &["status", "phase"]));
    let reason = reasons.next().or(phase).unwrap_or_default();
    let is_going = pod.deleting() && !pod.pod().finished();
    json!(match reason {
        "NodeLost" if is_going => "Unknown",
        _ if is_going => "Terminating",
        reason => reason,
    })
}

fn event(event: &Object, name: Value, now: Timestamp) -> Vec<Value> {
    let value = &event.value;
    let at = |path: &[&str]| text(value, path).filter(|at| !at.is_empty());
    let first = at(&["deprecatedFirstTimestamp"]).or_else(|| at(&["eventTime"]));
    let last = at(&["series", "lastObservedTime"]).or_else(|| at(&["deprecatedLastTimestamp"])).or(first);
    let count = integer(value, &["series", "count"]).or_else(|| integer(value, &["deprecatedCount"]));
    let part = |key| text(value, &["regarding", key]).unwrap_or_default();
    let said = |path: &[&str]| json!(text(value, path).unwrap_or_default());
    let source =
        text(value, &["deprecatedSource", "component"]).or_else(|| text(value, &["reportingController"]));
    vec![
        since(last, now),
        said(&["type"]),
        said(&["reason"]),
        json!(format!("{}/{}", part("kind").to_lowercase(), part("name"))),
        json!(part("fieldPath")),
        json!(source.unwrap_or_default()),
        json!(text(value, &["note"]).unwrap_or_default().trim()),
        since(first, now),
        json!(count.unwrap_or(1).to_string()),
        name,
    ]
}

/// Names and images of the containers that a controller makes.
fn containers(value: &Value) -> [Value; 2] {
    let all = list(value, &["spec", "template", "spec", "containers"]);
    ["name", "image"].map(|key| {
        let each: Vec<&str> = all.iter().filter_map(|container| text(container, &[key])).collect();
        json!(each.join(","))
    })
}

fn selector(value: &Value) -> Value {
    pairs(map(value, &["spec", "selector", "matchLabels"]))
}

fn pairs(labels: Option<&serde_json::Map<String, Value>>) -> Value {
    let pair = |(key, value): (&String, &Value)| format!("{key}={}", value.as_str().unwrap_or_default());
    let pairs: Vec<String> = labels.into_iter().flatten().map(pair).collect();
    json!(if pairs.is_empty() { NONE.to_owned() } else { pairs.join(",") })
}

fn since(moment: Option<&str>, now: Timestamp) -> Value {
    let moment: Option<Timestamp> = moment.and_then(|at| at.parse().ok());
    json!(moment.map_or("<unknown>".to_owned(), |at| lasted(elapsed(at, now).as_secs())))
}

/// A duration with about two digits that matter.
///
/// <https://github.com/kubernetes/apimachinery/blob/master/pkg/util/duration/duration.go>
fn lasted(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    let two = |first: u64, unit, second: u64, smaller| match second {
        0 => format!("{first}{unit}"),
        second => format!("{first}{unit}{second}{smaller}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_told_as_kubectl_does() {
        let told = [5, 119, 120, 125, 601, 10_800, 10_870, 30_000, 172_800, 180_000, 864_000].map(lasted);
        assert_eq!(told, ["5s", "119s", "2m", "2m5s", "10m", "3h", "3h1m", "8h", "2d", "2d2h", "10d"]);
    }

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        for row in &super::super::resources::ROWS {
            let object = Object::new(row.resource, 1, json!({ "metadata": { "name": "x" } }));
            let cells = cells(&object, Timestamp::UNIX_EPOCH);
            assert_eq!(cells.len(), columns(row.resource).len(), "{}", row.plural);
        }
    }
}
