//! The eviction subresource, step by step as the registry does it.
//!
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go>. Two things there
//! surprise: preconditions are looked at after the budget has been charged, and a pod with several budgets is answered
//! with HTTP 201 and a failed `Status` of code 500 as the result. Options are read from `deleteOptions` only; unknown
//! fields (kube's `Api::evict` sends `delete_options`) are dropped without a word, as the API server drops them.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::deletion::DeleteOptions;
use super::disruption::{selector, set_allowed_condition};
use super::journal::{By, Event};
use super::names::Name;
use super::object::{Object, integer, map, stamp, text};
use super::requests::Attempt;
use super::resources::Resource;
use super::route::Call;
use super::state::State;
use super::status::{Failure, success};
use super::verbs::Answer;

/// `MaxDisruptedPodSize`.
const MAX_DISRUPTED_PODS: usize = 2000;

const WOULD_VIOLATE: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

/// How often an eviction is tried whose budget or pod somebody else writes in between, and after what pause
/// (`EvictionsRetry`).
const TRIES: u32 = 20;
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// What an eviction must do.
enum Way {
    /// Delete the pod: no budget counts it.
    Delete,
    /// Delete it if it still does not run.
    DeletePending,
    /// Delete it if it is still what it was: this budget does not count what is not ready.
    DeleteUnready(Arc<Object>),
    /// Take one disruption from this budget, then delete it.
    Charge(Arc<Object>),
}

impl State {
    /// Evicts the pod of `call`, if its budget allows. Reading and writing are two steps with time in between; none is given
    /// when the second is still to come.
    pub(super) fn evict(
        &mut self,
        call: &Call<'_>,
        attempt: &mut Attempt,
    ) -> Result<Option<Answer>, Failure> {
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
        let way = self.way_of(&pod)?;
        let written = match &way {
            Way::Delete => None,
            Way::DeletePending | Way::DeleteUnready(_) => Some(&pod),
            Way::Charge(budget) => Some(budget),
        };
        if let Some(written) = written
            && !self.has_read(written, attempt)?
        {
            return match &way {
                Way::DeleteUnready(budget) if attempt.conflicts > 0 => {
                    Err(still_processed(&budget.name.name))
                }
                _ => Ok(None),
            };
        }
        if let Way::Charge(budget) = &way
            && !options.dry_run
        {
            self.charge(budget, &pod.name);
        }
        self.evict_now(&pod, &options)?;
        Ok(Some(Answer::Json(201, success(201, None).to_string())))
    }

    /// Whether an eviction has read an object and may write it now. The first time it has only read it; if somebody has
    /// written it since, it begins anew after a pause, and gives up in the end.
    fn has_read(&mut self, object: &Object, attempt: &mut Attempt) -> Result<bool, Failure> {
        let takes = self.timing.eviction.draw(&mut self.dice);
        let present = (object.resource, object.name.clone(), object.revision);
        match attempt.read.take() {
            None if takes.is_zero() => Ok(true),
            None => {
                attempt.read = Some(present);
                attempt.again_at = Some(self.now + takes);
                Ok(false)
            }
            Some(read) if read == present => Ok(true),
            Some(_) => {
                attempt.conflicts += 1;
                if attempt.conflicts >= TRIES {
                    return Err(Failure::modified(object.resource, &object.name.name));
                }
                let jitter = self.dice.u64(0..=AFTER_CONFLICT.as_millis() as u64 / 10);
                attempt.again_at = Some(self.now + AFTER_CONFLICT + Duration::from_millis(jitter));
                Ok(false)
            }
        }
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

    /// What the eviction of a pod comes to: which budget counts it, and whether that has room.
    fn way_of(&mut self, pod: &Object) -> Result<Way, Failure> {
        if ignores_budgets(pod) {
            let pending = pod.pod().phase == super::object::Phase::Pending && !pod.deleting();
            return Ok(if pending { Way::DeletePending } else { Way::Delete });
        }
        let all = self.store.all(Resource::Budgets);
        let mine = all.filter(|budget| budget.name.namespace == pod.name.namespace);
        let budgets: Vec<Arc<Object>> =
            mine.filter(|budget| selector(budget).matches(pod)).cloned().collect();
        let budget = match budgets.as_slice() {
            [] => return Ok(Way::Delete),
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
            return Ok(Way::DeleteUnready(Arc::clone(budget)));
        }
        check(budget).inspect_err(|_| self.refused(&pod.name, budget.name.name.clone()))?;
        Ok(Way::Charge(Arc::clone(budget)))
    }

    /// Takes one disruption from a budget (`checkAndDecrement`).
    fn charge(&mut self, budget: &Object, pod: &Name) {
        let now = self.now;
        self.edit(Resource::Budgets, &budget.name, |value| {
            let allowed = status(budget, "disruptionsAllowed") - 1;
            value["status"]["disruptionsAllowed"] = json!(allowed);
            value["status"]["disruptedPods"][&pod.name] = stamp(now);
            if allowed == 0 {
                set_allowed_condition(value, now);
            }
        });
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
    if status(budget, "observedGeneration") < budget.generation() {
        return Err(still_processed(name));
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
        let message =
            format!("The disruption budget {name} needs {desired} healthy pods and has {healthy} currently");
        return Err(violates(&message));
    }
    Ok(())
}

fn violates(message: &str) -> Failure {
    Failure::new(429, "TooManyRequests", WOULD_VIOLATE).cause("DisruptionBudget", message, None)
}

/// `createTooManyRequestsError`.
fn still_processed(budget: &str) -> Failure {
    violates(&format!("The disruption budget {budget} is still being processed by the server."))
        .retry_after(10)
}

fn status(budget: &Object, key: &str) -> i64 {
    integer(&budget.value, &["status", key]).unwrap_or(0)
}
