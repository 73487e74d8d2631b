//! Templates of new nodes: from a real node of the group if there is one, else from the provider.
//!
//! Source: `processors/nodeinfosprovider/mixed_nodeinfos_processor.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use prost::Message as _;
use serde_json::{Value, json};

use super::options::Version;
use crate::k8s::names::TO_BE_DELETED;

/// A node must have been Ready this long to be an example.
const STABLE: Duration = Duration::from_mins(1);

/// A node that is Ready at once, for simulations.
pub(super) type Template = Value;

/// Whether a Node is a good example of its group.
pub(super) fn is_example(node: &Node, version: Version, now: Timestamp) -> bool {
    let spec = node.spec.as_ref();
    let ready = node.status.as_ref().and_then(|s| s.conditions.as_ref()?.iter().find(|c| c.type_ == "Ready"));
    let stable = ready.is_some_and(|ready| {
        ready.status == "True" && ready.last_transition_time.as_ref().is_some_and(|t| t.0 + STABLE < now)
    });
    let is_going = version == Version::Core2026 && has_taint(node, TO_BE_DELETED);
    stable && !is_going && !spec.and_then(|spec| spec.unschedulable).unwrap_or_default()
}

pub(super) fn has_taint(node: &Node, key: &str) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == key)
}

/// A copy of this node, without what is specific to it.
pub(super) fn like(node: &Node) -> Template {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let taints: Vec<_> = taints
        .into_iter()
        .filter(|taint| taint.key != TO_BE_DELETED && !taint.key.starts_with("node.kubernetes.io/"))
        .map(|taint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect }))
        .collect();
    let status = node.status.clone().unwrap_or_default();
    let mut like = template(
        &json!(node.metadata.labels),
        &json!(taints),
        &json!(status.allocatable),
        &json!(status.capacity),
    );
    like["spec"]["providerID"] = json!(node.spec.as_ref().and_then(|spec| spec.provider_id.clone()));
    like
}

/// The node that the provider describes; `None` if it cannot be decoded.
pub(super) fn decode(encoded: &[u8]) -> Option<Template> {
    let node = k8s_pb::api::core::v1::Node::decode(encoded).ok()?;
    let taints: Vec<_> = node.spec.unwrap_or_default().taints;
    let taints: Vec<_> = taints
        .iter()
        .map(|taint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect }))
        .collect();
    let status = node.status.unwrap_or_default();
    let [allocatable, capacity] = [status.allocatable, status.capacity].map(|all| {
        all.into_iter().map(|(resource, quantity)| (resource, quantity.string)).collect::<BTreeMap<_, _>>()
    });
    let labels = node.metadata.unwrap_or_default().labels;
    Some(template(&json!(labels), &json!(taints), &json!(allocatable), &json!(capacity)))
}

fn template(labels: &Value, taints: &Value, allocatable: &Value, capacity: &Value) -> Template {
    json!({
        "metadata": { "labels": labels },
        "spec": { "taints": taints },
        "status": {
            "allocatable": allocatable,
            "capacity": capacity,
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    })
}

/// `count` nodes of a template, each with its own name.
pub(super) fn nodes(template: &Template, name: &str, count: i32) -> Vec<Value> {
    let named = |n| {
        let mut node = template.clone();
        node["metadata"]["name"] = Value::from(format!("{name}-{n}"));
        node
    };
    (0..count).map(named).collect()
}
