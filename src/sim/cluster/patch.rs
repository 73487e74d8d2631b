//! Patches, as functions from document to document.
//!
//! Merge patch (RFC 7386) and JSON patch (RFC 6902) are exact. Strategic merge is an approximation without a schema: maps
//! are merged; the lists of [`MERGE_KEYS`] by their key, `finalizers` as a set, with `$patch: delete` and `$patch: replace`;
//! every other list (taints and tolerations among them) is replaced, as in Kubernetes. Server-side apply is answered with
//! 415.

use serde_json::Value;

use super::status::Failure;

/// The lists that a strategic merge merges, and their keys (`patchMergeKey` of the Go types).
const MERGE_KEYS: [(&str, &str); 8] = [
    ("conditions", "type"),
    ("addresses", "type"),
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("volumeMounts", "mountPath"),
    ("ownerReferences", "uid"),
];

/// Applies `body` to `current` as `content_type` says.
pub(super) fn apply(content_type: &str, current: &Value, body: &[u8]) -> Result<Value, Failure> {
    let media_type = content_type.split(';').next().unwrap_or_default().trim();
    let undecodable = |e: serde_json::Error| Failure::bad_request(format!("error decoding patch: {e}"));
    let mut patched = current.clone();
    match media_type {
        "application/merge-patch+json" => {
            let patch: Value = serde_json::from_slice(body).map_err(undecodable)?;
            json_patch::merge(&mut patched, &patch);
        }
        "application/json-patch+json" => {
            let patch: json_patch::Patch = serde_json::from_slice(body).map_err(undecodable)?;
            json_patch::patch(&mut patched, &patch).map_err(|_| Failure::inapplicable())?;
        }
        "application/strategic-merge-patch+json" => {
            let patch: Value = serde_json::from_slice(body).map_err(undecodable)?;
            merge(&mut patched, patch);
        }
        other => return Err(Failure::unsupported(other)),
    }
    Ok(patched)
}

fn merge(target: &mut Value, patch: Value) {
    let Value::Object(mut patch) = patch else {
        *target = patch;
        return;
    };
    let replaces = patch.remove("$patch").is_some_and(|directive| directive == "replace");
    if replaces || !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Some(fields) = target.as_object_mut() else { return };
    for (key, value) in patch {
        match (value, MERGE_KEYS.iter().find(|(list, _)| *list == key)) {
            (Value::Null, _) => drop(fields.remove(&key)),
            (Value::Array(items), Some((_, merge_key))) => {
                merge_list(fields.entry(key).or_insert_with(|| Value::Array(Vec::new())), items, merge_key);
            }
            (Value::Array(items), None) if key == "finalizers" => {
                let list = fields.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                if let Some(list) = list.as_array_mut() {
                    let new: Vec<Value> = items.into_iter().filter(|item| !list.contains(item)).collect();
                    list.extend(new);
                }
            }
            (value, _) => merge(fields.entry(key).or_insert(Value::Null), value),
        }
    }
}

fn merge_list(target: &mut Value, items: Vec<Value>, key: &str) {
    let directive = |item: &Value| item.get("$patch").and_then(Value::as_str).map(str::to_owned);
    let replaces =
        items.iter().any(|item| directive(item).as_deref() == Some("replace") && item.get(key).is_none());
    if replaces || !target.is_array() {
        *target = Value::Array(Vec::new());
    }
    let Some(list) = target.as_array_mut() else { return };
    // New entries precede those that the patch does not mention (`normalizeElementOrder`).
    let mut new = 0;
    for item in items {
        let Some(name) = item.get(key) else { continue };
        let found = list.iter().position(|old| old.get(key) == Some(name));
        match (directive(&item).as_deref(), found) {
            (Some("delete"), Some(index)) => drop(list.remove(index)),
            (Some("delete"), None) => {}
            (_, Some(index)) => merge(&mut list[index], item),
            (_, None) => {
                list.insert(new, item);
                new += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn strategic(current: &Value, patch: &Value) -> Value {
        apply("application/strategic-merge-patch+json", current, patch.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_strategic_merge_merges_conditions_by_type_and_replaces_taints() {
        let node = json!({
            "spec": { "taints": [{ "key": "a" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }, { "type": "Disk", "status": "True" }] },
        });
        let patch = json!({
            "spec": { "taints": [{ "key": "b" }] },
            "status": { "conditions": [{ "type": "Ready", "status": "False" }, { "type": "New" }] },
        });
        let patched = strategic(&node, &patch);
        assert_eq!(patched["spec"]["taints"], json!([{ "key": "b" }]));
        let conditions = json!([
            { "type": "New" },
            { "type": "Ready", "status": "False" },
            { "type": "Disk", "status": "True" },
        ]);
        assert_eq!(patched["status"]["conditions"], conditions);
    }

    #[test]
    fn a_strategic_merge_deletes_by_null_and_by_directive() {
        let pod = json!({ "metadata": { "labels": { "a": "1", "b": "2" } }, "spec": { "volumes": [{ "name": "v" }] } });
        let patch = json!({
            "metadata": { "labels": { "a": null } },
            "spec": { "volumes": [{ "name": "v", "$patch": "delete" }] },
        });
        let patched = strategic(&pod, &patch);
        assert_eq!(patched, json!({ "metadata": { "labels": { "b": "2" } }, "spec": { "volumes": [] } }));
    }
}
