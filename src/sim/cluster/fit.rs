//! Whether a pod may be on a node: taints and tolerations, node selectors, node affinity.
//!
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/>,
//! <https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/>

use serde_json::Value;

use super::object::{Object, at, integer, list, map, text};
use super::selectors::expression_holds;

/// Whether a pod spec tolerates `node`'s taints of these effects. A cordon counts as a taint, even before the node lifecycle
/// controller has written one.
pub(super) fn tolerates(spec: &Value, extra: &[Value], node: &Object, effects: &[&str]) -> bool {
    let tolerated = |taint: &Value| {
        let tolerations = list(spec, &["tolerations"]).iter().chain(extra);
        tolerations.into_iter().any(|toleration| covers(toleration, taint))
    };
    let cordon = serde_json::json!({ "key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule" });
    let cordoned =
        node.value["spec"]["unschedulable"] == Value::Bool(true) && effects.contains(&"NoSchedule");
    let mut taints = list(&node.value, &["spec", "taints"]).iter().chain(cordoned.then_some(&cordon));
    taints.all(|taint| {
        let concerned = text(taint, &["effect"]).is_some_and(|effect| effects.contains(&effect));
        !concerned || tolerated(taint)
    })
}

/// How long a pod spec lets a pod stay on `node` under its NoExecute taints: `None` without limit, zero if it does not
/// tolerate one (`getMinTolerationTime`).
pub(super) fn toleration_seconds(spec: &Value, node: &Object) -> Option<u64> {
    let tolerations = list(spec, &["tolerations"]);
    let taints = list(&node.value, &["spec", "taints"]).iter();
    let taints = taints.filter(|taint| text(taint, &["effect"]) == Some("NoExecute"));
    let bounds = taints.filter_map(|taint| match tolerations.iter().find(|one| covers(one, taint)) {
        Some(used) => Some(integer(used, &["tolerationSeconds"])?.max(0).unsigned_abs()),
        None => Some(0),
    });
    bounds.min()
}

fn covers(toleration: &Value, taint: &Value) -> bool {
    let part = |value: &'_ Value, key: &str| text(value, &[key]).unwrap_or_default().to_owned();
    let (key, effect) = (part(toleration, "key"), part(toleration, "effect"));
    let exists = text(toleration, &["operator"]) == Some("Exists");
    (effect.is_empty() || effect == part(taint, "effect"))
        && (key == part(taint, "key") || key.is_empty() && exists)
        && (exists || part(toleration, "value") == part(taint, "value"))
}

/// Whether a pod spec's `nodeSelector` and required node affinity match `node`.
pub(super) fn selects(spec: &Value, node: &Object) -> bool {
    let labels = map(spec, &["nodeSelector"]).into_iter().flatten();
    let wanted = labels.into_iter().all(|(key, value)| node.label(key) == value.as_str());
    wanted && affinity_terms(spec).is_none_or(|terms| terms.iter().any(|term| term_holds(term, node)))
}

/// The one node that a pod spec's affinity names, as the DaemonSet controller's pods do.
pub(super) fn pinned(spec: &Value) -> Option<&str> {
    let [term] = affinity_terms(spec)? else { return None };
    let [field] = list(term, &["matchFields"]) else { return None };
    let [node] = list(field, &["values"]) else { return None };
    (text(field, &["key"]) == Some("metadata.name")).then(|| node.as_str())?
}

fn affinity_terms(spec: &Value) -> Option<&[Value]> {
    let required = at(spec, &["affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"])?;
    Some(list(required, &["nodeSelectorTerms"]))
}

fn term_holds(term: &Value, node: &Object) -> bool {
    let key = |expression: &Value| text(expression, &["key"]).unwrap_or_default().to_owned();
    let labels = list(term, &["matchExpressions"]).iter();
    let fields = list(term, &["matchFields"]).iter();
    labels.into_iter().all(|expression| expression_holds(expression, node.label(&key(expression))))
        && fields.into_iter().all(|expression| expression_holds(expression, Some(&node.name.name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::sim::cluster::resources::Resource;

    #[test]
    fn a_toleration_without_a_key_tolerates_everything_and_one_without_an_effect_every_effect() {
        let taints = json!([{ "key": "a", "value": "1", "effect": "NoSchedule" }]);
        let node = Object::new(
            Resource::Nodes,
            1,
            json!({ "metadata": { "name": "n1" }, "spec": { "taints": taints } }),
        );
        let fits = |toleration: Value| {
            tolerates(&json!({ "tolerations": [toleration] }), &[], &node, &["NoSchedule"])
        };
        assert!(fits(json!({ "operator": "Exists" })));
        assert!(fits(json!({ "key": "a", "operator": "Exists" })));
        assert!(fits(json!({ "key": "a", "value": "1", "effect": "NoSchedule" })));
        assert!(!fits(json!({ "key": "a", "value": "2" })));
        assert!(!fits(json!({ "key": "a", "operator": "Exists", "effect": "NoExecute" })));
        assert!(!fits(json!({ "key": "b", "operator": "Exists" })));
    }
}
