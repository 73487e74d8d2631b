//! What the API server does to an object before it stores it: its own metadata, defaults, validation.
//!
//! Validation covers what our clients can get wrong: schema, names, label and annotation syntax, taints, events.
//!
//! Validation covers what a client of ours can get wrong: schema, names, label and annotation syntax, taints, events.
//! <https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/registry/rest/>

use serde_json::{Value, json};

use super::deletion::at_least_one;
use super::names::Name;
use super::object::{Object, integer, list, map, text};
use super::resources::Resource;
use super::route::Call;
use super::state::State;
use super::status::Failure;

/// Metadata that an update never changes.
const OWNED: [&str; 6] = [
    "namespace",
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

/// Total size of an object's annotations, in bytes.
const ANNOTATIONS_LIMIT: usize = 256 * 1024;

/// Total size of a ConfigMap's data, in bytes (`MaxSecretSize`).
const DATA_LIMIT: usize = 1024 * 1024;

const NAME_PART: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
                         an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for \
                         validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";

impl State {
    /// Turns a create request's body into an object.
    pub(super) fn prepare_create(&mut self, call: &Call<'_>, mut value: Value) -> Result<Value, Failure> {
        let resource = call.resource;
        let namespace = call.namespace.clone().unwrap_or_default();
        if !value["metadata"].is_object() {
            value["metadata"] = json!({});
        }
        if text(&value, &["metadata", "resourceVersion"]).is_some_and(|version| !version.is_empty()) {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        if let Some(stated) = text(&value, &["metadata", "namespace"])
            && stated != namespace
        {
            return Err(Failure::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        let name = match (text(&value, &["metadata", "name"]), text(&value, &["metadata", "generateName"])) {
            (Some(name), _) if !name.is_empty() => name.to_owned(),
            (_, Some(prefix)) if !prefix.is_empty() => {
                let prefix = prefix.to_owned();
                format!("{prefix}{}", self.suffix())
            }
            _ => {
                let why = "Required value: name or generateName is required";
                return Err(Failure::invalid(resource, "", "metadata.name", why));
            }
        };
        let name = Name::new(&namespace, &name);
        if resource.facts().namespaced {
            if self.store.get(Resource::Namespaces, &Name::cluster(&namespace)).is_none() {
                return Err(Failure::not_found(Resource::Namespaces, &namespace));
            }
            if self.namespace_terminating(&namespace) {
                return Err(Failure::namespace_terminating(resource, &name));
            }
        }
        if self.store.get(resource, &name).is_some() {
            return Err(Failure::exists(resource, &name.name));
        }
        let Value::Object(metadata) = self.new_metadata(&name) else {
            return Err(Failure::internal("metadata"));
        };
        for (key, owned) in metadata {
            value["metadata"][key] = owned;
        }
        for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink"] {
            if let Some(metadata) = value["metadata"].as_object_mut() {
                metadata.remove(key);
            }
        }
        if resource.facts().generation {
            value["metadata"]["generation"] = json!(1);
        }
        default(resource, &mut value);
        validate(resource, &name, &value)?;
        Ok(value)
    }
}

/// The next version of `old` after an update or a patch.
pub(super) fn prepare_update(call: &Call<'_>, old: &Object, mut new: Value) -> Result<Value, Failure> {
    let resource = call.resource;
    let name = &old.name.name;
    if let Some(stated) = text(&new, &["metadata", "name"])
        && stated != name
    {
        return Err(Failure::bad_request(format!(
            "the name of the object ({stated}) does not match the name on the URL ({name})"
        )));
    }
    match text(&new, &["metadata", "resourceVersion"]).filter(|version| !version.is_empty()) {
        Some(version) if version != old.revision.to_string() => {
            return Err(Failure::modified(resource, name));
        }
        None if !resource.facts().unconditional => {
            let why = "Invalid value: 0: must be specified for an update";
            return Err(Failure::invalid(resource, name, "metadata.resourceVersion", why));
        }
        _ => {}
    }
    if let Some(uid) = text(&new, &["metadata", "uid"])
        && !uid.is_empty()
        && uid != old.uid()
    {
        let why = format!("Invalid value: \"{uid}\": field is immutable");
        return Err(Failure::invalid(resource, name, "metadata.uid", &why));
    }
    if !new["metadata"].is_object() {
        new["metadata"] = json!({});
    }
    new["metadata"]["name"] = json!(name);
    for key in OWNED {
        keep(&mut new["metadata"], &old.value["metadata"], key);
    }
    keep(&mut new["metadata"], &json!({}), "managedFields");
    let of_status = call.subresource.as_deref() == Some("status");
    if of_status {
        keep(&mut new, &old.value, "spec");
    } else if resource.facts().status {
        keep(&mut new, &old.value, "status");
    }
    default(resource, &mut new);
    if resource.facts().generation && new.get("spec") != old.value.get("spec") {
        new["metadata"]["generation"] = json!(old.generation() + 1);
    }
    if resource == Resource::Pods
        && text(&new, &["spec", "nodeName"]) != text(&old.value, &["spec", "nodeName"])
    {
        let why = "Forbidden: pod updates may not change fields other than images, tolerations and grace";
        return Err(Failure::invalid(resource, name, "spec", why));
    }
    validate(resource, &old.name, &new)?;
    Ok(new)
}

/// Sets `key` of `new` to what `old` has there, absence included.
fn keep(new: &mut Value, old: &Value, key: &str) {
    let Some(fields) = new.as_object_mut() else { return };
    match old.get(key) {
        Some(value) => drop(fields.insert(key.to_owned(), value.clone())),
        None => drop(fields.remove(key)),
    }
}

/// Drops what Go's encoder omits, and sets the defaults that something here depends on.
pub(super) fn default(resource: Resource, value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.remove("apiVersion");
        fields.remove("kind");
    }
    drop_nulls(value);
    let empty = |value: &Value| match value {
        Value::Bool(set) => !set,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    for (part, key) in [
        ("metadata", "labels"),
        ("metadata", "annotations"),
        ("metadata", "finalizers"),
        ("metadata", "ownerReferences"),
        ("spec", "taints"),
        ("spec", "unschedulable"),
    ] {
        if let Some(fields) = value.get_mut(part).and_then(Value::as_object_mut)
            && fields.get(key).is_some_and(empty)
        {
            fields.remove(key);
        }
    }
    let mut set = |path: [&str; 2], default: Value| {
        if value[path[0]].get(path[1]).is_none() {
            value[path[0]][path[1]] = default;
        }
    };
    match resource {
        Resource::Pods => {
            set(["spec", "terminationGracePeriodSeconds"], json!(30));
            set(["spec", "restartPolicy"], json!("Always"));
            set(["status", "phase"], json!("Pending"));
            tolerate_for_a_while(value);
            if let Some(grace) = integer(value, &["spec", "terminationGracePeriodSeconds"]) {
                value["spec"]["terminationGracePeriodSeconds"] = json!(at_least_one(grace));
            }
        }
        Resource::ReplicaSets | Resource::Deployments | Resource::StatefulSets => {
            set(["spec", "replicas"], json!(1));
        }
        Resource::Namespaces => set(["status", "phase"], json!("Active")),
        _ => {}
    }
}

/// The tolerations that the admission plugin DefaultTolerationSeconds adds: five minutes on an unhealthy node, unless the
/// pod says otherwise.
/// <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions>
fn tolerate_for_a_while(pod: &mut Value) {
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let tolerations = list(pod, &["spec", "tolerations"]);
        let part = |toleration: &Value, key| text(toleration, &[key]).unwrap_or_default().to_owned();
        let says_so = tolerations.iter().any(|one| {
            let named = part(one, "key");
            (named.is_empty() || named == key) && matches!(part(one, "effect").as_str(), "" | "NoExecute")
        });
        if !says_so {
            let mut tolerations = tolerations.to_vec();
            tolerations.push(
                json!({ "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300 }),
            );
            pod["spec"]["tolerations"] = Value::Array(tolerations);
        }
    }
}

fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, field| !field.is_null());
            fields.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

fn validate(resource: Resource, name: &Name, value: &Value) -> Result<(), Failure> {
    let Name { namespace, name } = name;
    let kind = resource.facts().kind;
    (resource.facts().decodes)(value).map_err(|e| {
        Failure::bad_request(format!("{kind} in version \"v1\" cannot be handled as a {kind}: {e}"))
    })?;
    let invalid = |field: &str, why: String| Err(Failure::invalid(resource, name, field, &why));
    if !is_subdomain(name) {
        let why = format!(
            "Invalid value: \"{name}\": a lowercase RFC 1123 subdomain must consist of lower case \
             alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character"
        );
        return invalid("metadata.name", why);
    }
    for (key, value) in map(value, &["metadata", "labels"]).into_iter().flatten() {
        let value = value.as_str().unwrap_or_default();
        if !is_qualified(key) || !is_label_value(value) {
            return invalid("metadata.labels", format!("Invalid value: \"{key}={value}\": not a label"));
        }
    }
    let annotations = || map(value, &["metadata", "annotations"]).into_iter().flatten();
    if let Some((key, _)) = annotations().find(|(key, _)| !is_qualified(&key.to_lowercase())) {
        return invalid("metadata.annotations", format!("Invalid value: \"{key}\": {NAME_PART}"));
    }
    let size: usize = annotations().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
    if size > ANNOTATIONS_LIMIT {
        return invalid(
            "metadata.annotations",
            format!("Too long: may not be more than {ANNOTATIONS_LIMIT} bytes"),
        );
    }
    match resource {
        Resource::Nodes => validate_taints(name, value),
        Resource::Events => validate_event(namespace, name, value),
        Resource::ConfigMaps if size_of_data(value) > DATA_LIMIT => {
            invalid("[]", format!("Too long: may not be more than {DATA_LIMIT} bytes"))
        }
        _ => Ok(()),
    }
}

/// Size of a ConfigMap's keys and values, in bytes.
fn size_of_data(config_map: &Value) -> usize {
    let data = ["data", "binaryData"].into_iter().filter_map(|part| map(config_map, &[part])).flatten();
    data.map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum()
}

fn validate_taints(node: &str, value: &Value) -> Result<(), Failure> {
    let taints = list(value, &["spec", "taints"]);
    let part = |taint: &Value, key| text(taint, &[key]).unwrap_or_default().to_owned();
    for (index, taint) in taints.iter().enumerate() {
        let (key, value, effect) = (part(taint, "key"), part(taint, "value"), part(taint, "effect"));
        let field = format!("metadata.taints[{index}]");
        let known = matches!(effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute");
        if !is_qualified(&key) || !is_label_value(&value) || !known {
            let why = format!("Invalid value: \"{key}={value}:{effect}\": not a taint");
            return Err(Failure::invalid(Resource::Nodes, node, &field, &why));
        }
        let twice =
            taints[..index].iter().any(|other| part(other, "key") == key && part(other, "effect") == effect);
        if twice {
            let written = format!("Key:\"{key}\", Value:\"{value}\", Effect:\"{effect}\", TimeAdded:<nil>");
            let why = format!(
                "Duplicate value: core.Taint{{{written}}}: taints must be unique by key and effect pair"
            );
            return Err(Failure::invalid(Resource::Nodes, node, &field, &why));
        }
    }
    Ok(())
}

/// <https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/events.go>; as there, core/v1 events
/// (without an event time) are checked less.
fn validate_event(namespace: &str, name: &str, event: &Value) -> Result<(), Failure> {
    let invalid = |field: &str, why: &str| Err(Failure::invalid(Resource::Events, name, field, why));
    let regarding = text(event, &["regarding", "namespace"]).unwrap_or_default();
    let of_none = matches!(namespace, "default" | "kube-system");
    let at_home = if regarding.is_empty() { of_none } else { namespace == regarding };
    if !at_home {
        return invalid("involvedObject.namespace", "Invalid value: does not match event.namespace");
    }
    if text(event, &["eventTime"]).is_none() {
        return Ok(());
    }
    for (field, limit) in
        [("reportingController", 128), ("reportingInstance", 128), ("action", 128), ("reason", 128)]
    {
        let value = text(event, &[field]).unwrap_or_default();
        if value.is_empty() {
            return invalid(field, "Required value");
        }
        if value.len() > limit {
            return invalid(field, &format!("Invalid value: can have at most {limit} characters"));
        }
    }
    if text(event, &["note"]).is_some_and(|note| note.len() > 1024) {
        return invalid("message", "Invalid value: \"\": can have at most 1024 characters");
    }
    if !matches!(text(event, &["type"]), Some("Normal" | "Warning")) {
        return invalid("type", "Invalid value: has invalid value");
    }
    if event.get("series").is_some() && integer(event, &["series", "count"]).unwrap_or(0) < 2 {
        return invalid("series.count", "Invalid value: should be at least 2");
    }
    Ok(())
}

fn is_subdomain(name: &str) -> bool {
    let label = |label: &str| {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        label.starts_with(edge) && label.ends_with(edge) && label.chars().all(|c| edge(c) || c == '-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

fn is_qualified(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_subdomain) && !name.is_empty() && is_label_value(name)
}

fn is_label_value(value: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    value.is_empty()
        || value.len() <= 63 && value.starts_with(edge) && value.ends_with(edge) && value.chars().all(inner)
}
