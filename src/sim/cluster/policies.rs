//! The admission policies of `deploy/base/admission.yaml`, hand-written, and the users that they distinguish. `tests::policies` holds them
//! against the shipped text.
//!
//! A policy sees the object before and after. A request without a token comes from an administrator, who may do anything.

use serde_json::{Map, Value};

use super::object::text;
use super::resources::Resource;
use super::route::Call;
use super::status::Failure;

/// The service account that the program runs as.
pub const EBBTIDE: &str = "system:serviceaccount:kube-system:ebbtide";

/// The annotations that the program writes on DaemonSet pods.
const GUARD: [&str; 2] = ["cluster-autoscaler.kubernetes.io/enable-ds-eviction", "ebbtide/guarded"];

/// Fields of a pod's status that ebbtide may not write.
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

/// A user known to the API server.
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
    /// Everything that RBAC grants through API verbs.
    Write,
    /// The same, and the verb `scale-in` on nodes.
    ScaleIn,
}

/// Whether the policies allow `user` to change `old` into `new`.
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

/// A pod's conditions, except the one that ebbtide sets.
fn conditions(pod: &Value) -> Vec<&Value> {
    let all = pod["status"]["conditions"].as_array().into_iter().flatten();
    all.filter(|condition| condition["type"] != "DisruptionTarget").collect()
}

/// Whether one of these annotations was added, removed or changed.
fn differs(
    before: &Map<String, Value>,
    after: &Map<String, Value>,
    looked_at: impl Fn(&str) -> bool,
) -> bool {
    before.keys().chain(after.keys()).any(|key| looked_at(key) && before.get(key) != after.get(key))
}
