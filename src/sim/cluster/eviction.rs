//! The eviction subresource, step by step as the registry does it.
//!
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go>. Two things there
//! surprise: preconditions are looked at after the budget has been charged, and a pod with several budgets is answered
//! with HTTP 201 and a failed `Status` of code 500 as the result. Options are read from `deleteOptions` only; unknown
//! fields (kube's `Api::evict` sends `delete_options`) are dropped without a word, as the API server drops them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::api::Answer;
use super::deletion::DeleteOptions;
use super::disruption::{selector, set_allowed_condition};
use super::journal::{By, Event};
use super::names::Name;
use super::object::{Object, integer, map, stamp, text};
use super::resources::Resource;
use super::route::Call;
use super::state::State;
use super::status::{Failure, success};

/// `MaxDisruptedPodSize`.
const MAX_DISRUPTED_PODS: usize = 2000;

const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

impl State {
    /// Evicts the pod of `call`, if its budget allows.
    pub(super) fn evict(&mut self, call: &Call<'_>) -> Result<Answer, Failure> {
        let name = call.target();
        if self.namespace_terminating(&name.namespace) {
            return Err(Failure::namespace_terminating(Resource::Pods, &name));
        }
        let body: Value = serde_json::from_slice(call.body)
            .map_err(|e| Failure::bad_request(format!("the object provided is unrecognized: {e}")))?;
        if text(&body, &["metadata", "name"]).is_some_and(|stated| stated != name.name) {
            return Err(Failure::bad_request("name in URL does not match name in Eviction object"));
        }
        let mut options = DeleteOptions::of_value(&body["deleteOptions"]);
        options.dry_run |= call.dry_run();
        let pod = self.store.get(Resource::Pods, &name).cloned();
        let pod = pod.ok_or_else(|| Failure::not_found(Resource::Pods, &name.name))?;
        if !ignores_budgets(&pod) {
            self.charge_budget(&pod, options.dry_run)?;
        }
        self.evict_now(&pod, &options)?;
        Ok(Answer::Json(201, success(201, None).to_string()))
    }

    /// Marks the pod as the target of a disruption, then deletes it (`addConditionAndDeletePod`).
    fn evict_now(&mut self, pod: &Object, options: &DeleteOptions) -> Result<(), Failure> {
        options.check(pod)?;
        let mut options = options.clone();
        if !options.dry_run {
            self.edit_disruption(&pod.name, "EvictionByEvictionAPI", "Eviction API: evicting");
            // We are the one who changed it.
            options.revision = None;
        }
        self.delete(Resource::Pods, &pod.name, &options, By::Eviction).map(drop)
    }

    /// Takes one disruption from the pod's budget, if it has one and counts the pod.
    fn charge_budget(&mut self, pod: &Object, dry_run: bool) -> Result<(), Failure> {
        let all = self.store.all(Resource::Budgets);
        let mine = all.filter(|budget| budget.name.namespace == pod.name.namespace);
        let budgets: Vec<Arc<Object>> =
            mine.filter(|budget| selector(budget).matches(pod)).cloned().collect();
        let budget = match budgets.as_slice() {
            [] => return Ok(()),
            [budget] => budget,
            several => {
                let names: Vec<&str> = several.iter().map(|budget| budget.name.name.as_str()).collect();
                self.refused(&pod.name, names.join(", "));
                let message = "This pod has more than one PodDisruptionBudget, which the eviction subresource does \
                               not support.";
                return Err(Failure::new(500, "", message));
            }
        };
        if !pod.pod().ready && counts_no_unready(budget) {
            return Ok(());
        }
        let checked = check(budget);
        if checked.is_err() {
            self.refused(&pod.name, budget.name.name.clone());
        }
        checked?;
        if dry_run {
            return Ok(());
        }
        let now = self.now;
        self.edit(Resource::Budgets, &budget.name, |value| {
            let allowed = status(budget, "disruptionsAllowed") - 1;
            value["status"]["disruptionsAllowed"] = json!(allowed);
            value["status"]["disruptedPods"][&pod.name.name] = stamp(now);
            if allowed == 0 {
                set_allowed_condition(value, now);
            }
        });
        Ok(())
    }

    fn refused(&mut self, pod: &Name, budget: String) {
        self.note(Event::EvictionRefused { pod: pod.clone(), budget });
    }
}

/// `canIgnorePDB`: such a pod disrupts nobody any more (or not yet).
fn ignores_budgets(pod: &Object) -> bool {
    let pod = pod.pod();
    pod.deleting || pod.finished() || pod.phase == super::object::Phase::Pending
}

/// Whether unready pods may go without being charged: always, or while the budget has what it needs.
fn counts_no_unready(budget: &Object) -> bool {
    let (healthy, desired) = (status(budget, "currentHealthy"), status(budget, "desiredHealthy"));
    text(&budget.value, &["spec", "unhealthyPodEvictionPolicy"]) == Some("AlwaysAllow")
        || (healthy >= desired && desired > 0)
}

/// The checks of `checkAndDecrement`.
fn check(budget: &Object) -> Result<(), Failure> {
    let name = &budget.name.name;
    let violates = |message: String| {
        Failure::new(429, "TooManyRequests", WOULD_VIOLATE).cause("DisruptionBudget", &message, None)
    };
    if status(budget, "observedGeneration") < budget.generation() {
        let message = format!("The disruption budget {name} is still being processed by the server.");
        return Err(violates(message).retry_after(10));
    }
    let allowed = status(budget, "disruptionsAllowed");
    let disrupted = map(&budget.value, &["status", "disruptedPods"]).map_or(0, serde_json::Map::len);
    if allowed < 0 {
        return Err(Failure::forbidden(Resource::Budgets, name, "pdb disruptions allowed is negative"));
    }
    if disrupted > MAX_DISRUPTED_PODS {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Failure::forbidden(Resource::Budgets, name, why));
    }
    if allowed == 0 {
        let (desired, healthy) = (status(budget, "desiredHealthy"), status(budget, "currentHealthy"));
        return Err(violates(format!(
            "The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
        )));
    }
    Ok(())
}

fn status(budget: &Object, key: &str) -> i64 {
    integer(&budget.value, &["status", key]).unwrap_or(0)
}
