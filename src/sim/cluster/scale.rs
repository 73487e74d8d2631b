//! The subresource `scale` of what has replicas: what `kubectl scale` reads and writes.
//!
//! <https://kubernetes.io/docs/reference/kubernetes-api/autoscaling-resources/scale-v1/>

use serde_json::{Value, json};

use super::object::{Object, integer, map, text};
use super::patch;
use super::resources::Resource;
use super::route::{Call, Verb};
use super::state::State;
use super::status::Failure;
use super::verbs::{Answer, body};

/// Whether objects of this kind can be scaled.
pub(super) fn scales(resource: Resource) -> bool {
    matches!(resource, Resource::Deployments | Resource::ReplicaSets | Resource::StatefulSets)
}

impl State {
    /// Reads or changes the number of replicas.
    pub(super) fn scale(&mut self, call: &Call<'_>) -> Result<Answer, Failure> {
        let name = call.target();
        let current = self.store.get(call.resource, &name).cloned();
        let current = current.ok_or_else(|| Failure::not_found(call.resource, &name.name))?;
        let wanted = match call.verb {
            Verb::Get => return Ok(Answer::Json(200, scale_of(&current).to_string())),
            Verb::Patch => patch::apply(call.content_type, &scale_of(&current), call.body)?,
            Verb::Update => body(call)?,
            _ => return Err(Failure::new(405, "MethodNotAllowed", "the server does not allow this method")),
        };
        let version = text(&wanted, &["metadata", "resourceVersion"]).filter(|version| !version.is_empty());
        if version.is_some_and(|version| version != current.revision.to_string()) {
            return Err(Failure::modified(call.resource, &name.name));
        }
        let replicas = integer(&wanted, &["spec", "replicas"]).unwrap_or(0);
        if replicas < 0 {
            let why = format!("Invalid value: {replicas}: must be greater than or equal to 0");
            return Err(Failure::invalid(call.resource, &name.name, "spec.replicas", &why));
        }
        let mut new = current.value.clone();
        new["spec"]["replicas"] = json!(replicas);
        new["metadata"]["generation"] = json!(current.generation() + 1);
        let stored = if call.dry_run() { None } else { self.put(call.resource, new) };
        Ok(Answer::Json(200, scale_of(&stored.unwrap_or(current)).to_string()))
    }
}

fn scale_of(object: &Object) -> Value {
    let value = &object.value;
    let part = |key: &str| value["metadata"][key].clone();
    let labels = map(value, &["spec", "selector", "matchLabels"]).into_iter().flatten();
    let selector: Vec<_> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": part("name"),
            "namespace": part("namespace"),
            "uid": part("uid"),
            "resourceVersion": part("resourceVersion"),
            "creationTimestamp": part("creationTimestamp"),
        },
        "spec": { "replicas": integer(value, &["spec", "replicas"]).unwrap_or(0) },
        "status": {
            "replicas": integer(value, &["status", "replicas"]).unwrap_or(0),
            "selector": selector.join(","),
        },
    })
}
