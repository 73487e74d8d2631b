//! The API server's own documents: version, discovery, health, access reviews.

use serde_json::{Value, json};

use super::faults::Faults;
use super::object::text;
use super::resources::{ROWS, Row};
use super::route::Call;
use super::scale::scales;
use super::status::Failure;

/// An answer that depends only on the path.
pub(super) enum Document {
    Json(Value),
    /// The `ok` of a health check.
    Ok,
}

/// The document at `path`.
pub(super) fn document(path: &str) -> Option<Document> {
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let json = match segments.as_slice() {
        ["healthz" | "livez" | "readyz"] => return Some(Document::Ok),
        ["version"] => json!({
            "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "clean",
            "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.25", "compiler": "gc", "platform": "linux/amd64",
        }),
        ["api"] => json!({ "kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [] }),
        ["apis"] => {
            let mut groups: Vec<&str> =
                ROWS.iter().map(|kind| kind.group).filter(|group| !group.is_empty()).collect();
            groups.sort_unstable();
            groups.dedup();
            let groups: Vec<Value> = groups.into_iter().map(group).collect();
            json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": groups })
        }
        ["api", "v1"] => resources("", "v1"),
        ["apis", name] if ROWS.iter().any(|kind| kind.group == *name) => group(name),
        ["apis", name, "v1"] if ROWS.iter().any(|kind| kind.group == *name) => {
            resources(name, &format!("{name}/v1"))
        }
        _ => return None,
    };
    Some(Document::Json(json))
}

fn group(name: &str) -> Value {
    let version = json!({ "groupVersion": format!("{name}/v1"), "version": "v1" });
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": name,
        "versions": [version],
        "preferredVersion": version,
    })
}

fn resources(group: &str, group_version: &str) -> Value {
    let of = |kind: &Row| {
        let entry = |name: String, kind: &Row, verbs: &[&str]| {
            json!({
                "name": name,
                "singularName": kind.kind.to_lowercase(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": verbs,
            })
        };
        let all = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];
        let mut itself = entry(kind.plural.to_owned(), kind, &all);
        if !kind.short.is_empty() {
            itself["shortNames"] = json!([kind.short]);
        }
        // What `kubectl get all` shows.
        if matches!(kind.group, "apps" | "batch") || kind.plural == "pods" {
            itself["categories"] = json!(["all"]);
        }
        let mut entries = vec![itself];
        if kind.status {
            entries.push(entry(format!("{}/status", kind.plural), kind, &["get", "patch", "update"]));
        }
        if scales(kind.resource) {
            let mut scale = entry(format!("{}/scale", kind.plural), kind, &["get", "patch", "update"]);
            scale["kind"] = json!("Scale");
            scale["group"] = json!("autoscaling");
            scale["version"] = json!("v1");
            entries.push(scale);
        }
        if kind.plural == "pods" {
            let mut eviction = entry("pods/eviction".to_owned(), kind, &["create"]);
            eviction["kind"] = json!("Eviction");
            eviction["group"] = json!("policy");
            eviction["version"] = json!("v1");
            entries.push(eviction);
        }
        entries
    };
    let core_events = group.is_empty().then(|| {
        json!({ "name": "events", "singularName": "event", "namespaced": true, "kind": "Event",
                "shortNames": ["ev"], "verbs": ["create", "get", "list", "patch", "watch"] })
    });
    let mine = ROWS.iter().filter(|kind| kind.group == group).flat_map(of);
    let resources: Vec<Value> = mine.chain(core_events).collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": resources,
    })
}

/// Answers a SelfSubjectAccessReview: everything is allowed that was not forbidden.
pub(super) fn access_review(faults: &Faults, body: &[u8]) -> Result<Value, Failure> {
    let mut review: Value = serde_json::from_slice(body)
        .map_err(|e| Failure::bad_request(format!("the object provided is unrecognized: {e}")))?;
    let part = |key| text(&review, &["spec", "resourceAttributes", key]).unwrap_or_default();
    let resource = match part("subresource") {
        "" => part("resource").to_owned(),
        subresource => format!("{}/{subresource}", part("resource")),
    };
    let allowed = !faults.forbids(part("verb"), &resource);
    review["apiVersion"] = json!("authorization.k8s.io/v1");
    review["kind"] = json!("SelfSubjectAccessReview");
    review["status"] = json!({ "allowed": allowed });
    Ok(review)
}

/// The refusal of RBAC.
pub(super) fn forbidden(call: &Call<'_>, user: &str) -> Failure {
    let facts = call.resource.facts();
    let scope = match &call.namespace {
        Some(namespace) => format!("in the namespace \"{namespace}\""),
        None => "at the cluster scope".to_owned(),
    };
    let why = format!(
        "User \"{user}\" cannot {} resource \"{}\" in API group \"{}\" {scope}",
        call.verb,
        call.resource_path(),
        facts.group
    );
    Failure::forbidden(call.resource, call.name.as_deref().unwrap_or_default(), &why)
}
