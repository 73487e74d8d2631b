//! The admission policies of `deploy/admission.yaml`, written out by hand, and the users that they tell apart.
//!
//! A policy sees the object as it was and as it would be. A request that names nobody comes from an administrator, who may
//! do anything.

use serde_json::{Map, Value};

use super::object::text;
use super::resources::Resource;
use super::route::Call;
use super::status::Failure;

/// The service account that the program runs as.
pub const EBBTIDE: &str = "system:serviceaccount:kube-system:ebbtide";

/// What the program writes on DaemonSet pods.
const GUARD: [&str; 2] = ["cluster-autoscaler.kubernetes.io/enable-ds-eviction", "ebbtide/guarded"];

/// What of a pod's status is not ebbtide's to write.
const STATUS: [&str; 12] = [
    "phase",
    "reason",
    "message",
    "nominatedNodeName",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "initContainerStatuses",
    "containerStatuses",
    "ephemeralContainerStatuses",
];

/// Somebody who is known to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct User {
    pub(super) name: String,
    pub(super) rights: Rights,
}

/// What a user may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// Nothing.
    None,
    /// Whatever RBAC has verbs of the API server for.
    Write,
    /// That, and the verb `scale-in` on nodes.
    ScaleIn,
}

/// Whether the policies let a request of `user` make `new` of `old`.
pub(super) fn admit(user: &User, call: &Call<'_>, old: Option<&Value>, new: &Value) -> Result<(), Failure> {
    let before = old.map(annotations).unwrap_or_default();
    let after = annotations(new);
    let (policy, why) = match call.resource {
        Resource::Nodes
            if user.rights != Rights::ScaleIn
                && differs(&before, &after, |key| key.starts_with("ebbtide/")) =>
        {
            (
                "ebbtide-nodes",
                "annotations ebbtide/* end machines: writing them needs the verb scale-in on nodes",
            )
        }
        Resource::Pods if user.name == EBBTIDE && old.is_some() => {
            let of_status = call.subresource.is_some();
            let guard = |key: &str| !of_status && GUARD.contains(&key);
            let same = |part: &str, keys: &[&str]| {
                old.is_some_and(|old| keys.iter().all(|key| old[part][key] == new[part][key]))
            };
            let kept = same("metadata", &["labels", "finalizers", "ownerReferences"]);
            let spec = old.is_some_and(|old| old["spec"] == new["spec"]);
            if differs(&before, &after, |key| !guard(key)) || !spec || !kept {
                ("ebbtide-guard", "ebbtide may change two annotations of pods, and nothing else")
            } else if of_status && !(same("status", &STATUS) && old.map(conditions) == Some(conditions(new)))
            {
                (
                    "ebbtide-guard",
                    "ebbtide may set the condition DisruptionTarget of pods, and nothing else of their status",
                )
            } else {
                return Ok(());
            }
        }
        _ => return Ok(()),
    };
    let name = text(new, &["metadata", "name"]).unwrap_or_default();
    let why = format!("ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}");
    Err(Failure::forbidden(call.resource, name, &why))
}

fn annotations(object: &Value) -> Map<String, Value> {
    object["metadata"]["annotations"].as_object().cloned().unwrap_or_default()
}

/// A pod's conditions but the one that ebbtide sets.
fn conditions(pod: &Value) -> Vec<&Value> {
    let all = pod["status"]["conditions"].as_array().into_iter().flatten();
    all.filter(|condition| condition["type"] != "DisruptionTarget").collect()
}

/// Whether one of the annotations that are looked at is new, gone or another.
fn differs(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    looked_at: impl Fn(&str) -> bool,
) -> bool {
    before.keys().chain(after.keys()).any(|key| looked_at(key) && before.get(key) != after.get(key))
}
