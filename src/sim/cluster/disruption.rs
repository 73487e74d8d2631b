//! The disruption controller: how many disruptions each PodDisruptionBudget allows.
//!
//! Follows <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/disruption/disruption.go>: the expected pods
//! come from the scale of their controllers (for percentages and `maxUnavailable`) or from counting; percentages round up; a
//! pod is healthy if it is Ready, not being deleted and not promised to an eviction; a budget that cannot be computed allows
//! nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::names::Name;
use super::object::{Object, controller, integer, map, set_condition};
use super::queue::Task;
use super::resources::Resource;
use super::selectors::Selector;
use super::state::State;

/// How long an allowed eviction counts while its pod is not being deleted (`DeletionTimeout`).
const PROMISED_FOR: Duration = Duration::from_mins(2);

/// The pods of a budget.
pub(super) fn selector(budget: &Object) -> Selector {
    Selector::of_object(budget.value["spec"].get("selector"))
}

/// Sets the condition that says whether the budget allows a disruption (`UpdateDisruptionAllowedCondition`).
pub(super) fn set_allowed_condition(budget: &mut Value, now: Timestamp) {
    let room = integer(budget, &["status", "disruptionsAllowed"]).unwrap_or(0) > 0;
    let (status, reason) = if room { ("True", "SufficientPods") } else { ("False", "InsufficientPods") };
    allowed_condition(budget, now, status, reason, "");
}

fn allowed_condition(budget: &mut Value, now: Timestamp, status: &str, reason: &str, message: &str) {
    let condition = json!({
        "type": "DisruptionAllowed",
        "status": status,
        "reason": reason,
        "message": message,
        "observedGeneration": integer(budget, &["status", "observedGeneration"]).unwrap_or(0),
    });
    set_condition(budget, now, condition);
}

struct Expectation {
    pods: i64,
    healthy: i64,
}

impl State {
    /// Updates the status of a budget.
    pub(super) fn sync_budget(&mut self, name: &Name) {
        let Some(budget) = self.store.get(Resource::Budgets, name).cloned() else { return };
        let selector = selector(&budget);
        let pods: Vec<Arc<Object>> = self.store.pods_of(&name.namespace, &selector).cloned().collect();
        let now = self.now;
        let expected = match self.expectation(&budget, &pods) {
            Ok(expected) => expected,
            Err(why) => {
                self.edit(Resource::Budgets, name, |value| {
                    value["status"]["disruptionsAllowed"] = json!(0);
                    allowed_condition(value, now, "False", "SyncFailed", &why);
                });
                return;
            }
        };
        let (promised, recheck) = promised(&budget, &pods, now);
        let healthy = pods.iter().filter(|pod| {
            let facts = pod.pod();
            facts.ready && !facts.deleting && !promised.contains_key(&pod.name.name)
        });
        let healthy = healthy.count() as i64;
        let room = if expected.pods > 0 { (healthy - expected.healthy).max(0) } else { 0 };
        self.edit(Resource::Budgets, name, |value| {
            let status = &mut value["status"];
            if !status.is_object() {
                *status = json!({});
            }
            status["currentHealthy"] = json!(healthy);
            status["desiredHealthy"] = json!(expected.healthy);
            status["expectedPods"] = json!(expected.pods);
            status["disruptionsAllowed"] = json!(room);
            status["observedGeneration"] = json!(budget.generation());
            match status.as_object_mut() {
                Some(fields) if promised.is_empty() => drop(fields.remove("disruptedPods")),
                Some(fields) => drop(fields.insert("disruptedPods".to_owned(), Value::Object(promised))),
                None => {}
            }
            set_allowed_condition(value, now);
        });
        if let Some(at) = recheck {
            self.queue.add(Task::Budget(name.clone()), at);
        }
    }

    fn expectation(&self, budget: &Object, pods: &[Arc<Object>]) -> Result<Expectation, String> {
        let spec = &budget.value["spec"];
        let counted = pods.len() as i64;
        match (spec.get("maxUnavailable"), spec.get("minAvailable")) {
            (Some(most), _) => {
                let pods = self.scale_of(pods)?;
                Ok(Expectation { pods, healthy: (pods - scaled(most, pods)?).max(0) })
            }
            (None, Some(least)) if least.is_number() => {
                Ok(Expectation { pods: counted, healthy: scaled(least, counted)? })
            }
            (None, Some(least)) => {
                let pods = self.scale_of(pods)?;
                Ok(Expectation { pods, healthy: scaled(least, pods)? })
            }
            (None, None) => Ok(Expectation { pods: 0, healthy: 0 }),
        }
    }

    /// The sum of replicas that the pods' controllers want. Pods without a controller count as zero.
    fn scale_of(&self, pods: &[Arc<Object>]) -> Result<i64, String> {
        let mut scales: BTreeMap<String, i64> = BTreeMap::new();
        for pod in pods {
            let Some(owner) = &pod.pod().owner else { continue };
            let resource = match owner.kind.as_str() {
                "ReplicaSet" => Some(Resource::ReplicaSets),
                "StatefulSet" => Some(Resource::StatefulSets),
                _ => None,
            };
            let namespace = &pod.name.namespace;
            let find = |resource, name: &str| self.store.get(resource, &Name::new(namespace, name));
            let found = resource
                .and_then(|resource| find(resource, &owner.name))
                .filter(|found| found.uid() == owner.uid)
                .ok_or_else(|| format!("found no controllers for pod \"{}\"", pod.name.name))?;
            let above = controller(&found.value).filter(|above| above.kind == "Deployment");
            let top = above
                .and_then(|above| find(Resource::Deployments, &above.name).filter(|it| it.uid() == above.uid))
                .unwrap_or(found);
            let replicas = integer(&top.value, &["spec", "replicas"]).unwrap_or(1);
            scales.insert(top.uid().to_owned(), replicas);
        }
        Ok(scales.values().sum())
    }
}

/// An absolute number, or a percentage of `total` rounded up.
fn scaled(value: &Value, total: i64) -> Result<i64, String> {
    if let Some(number) = value.as_i64() {
        return Ok(number);
    }
    let text = value.as_str().unwrap_or_default();
    let percent: i64 = text
        .strip_suffix('%')
        .and_then(|digits| digits.parse().ok())
        .ok_or_else(|| format!("invalid value for IntOrString: invalid type: {text} is not a percentage"))?;
    Ok((percent * total + 99) / 100)
}

/// The pods whose eviction was allowed but that are not being deleted yet, and when to check again.
fn promised(
    budget: &Object,
    pods: &[Arc<Object>],
    now: Timestamp,
) -> (Map<String, Value>, Option<Timestamp>) {
    let mut still = Map::new();
    let mut recheck = None;
    for (name, since) in map(&budget.value, &["status", "disruptedPods"]).into_iter().flatten() {
        let waiting = pods.iter().any(|pod| pod.name.name == *name && !pod.deleting());
        let until =
            since.as_str().and_then(|since| since.parse::<Timestamp>().ok()).map(|at| at + PROMISED_FOR);
        if let Some(until) = until.filter(|until| waiting && *until > now) {
            still.insert(name.clone(), since.clone());
            recheck = Some(recheck.map_or(until, |earlier: Timestamp| earlier.min(until)));
        }
    }
    (still, recheck)
}
