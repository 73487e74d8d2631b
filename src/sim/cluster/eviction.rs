//! The eviction subresource, step by step as in the registry.
//!
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go>. Two surprises there:
//! preconditions are checked after the budget has been charged, and a pod with several budgets is answered with an error of code
//! 500. Only `deleteOptions` is read; unknown fields (kube's `Api::evict` sends `delete_options`)
//! are dropped silently, as in the API server.

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

/// Tries of an eviction whose budget or pod somebody else writes in between, and the pause between them (`EvictionsRetry`).
const TRIES: u32 = 20;
const AFTER_CONFLICT: Duration = Duration::from_millis(500);

/// What an eviction has to do.
enum Way {
    /// Delete the pod: no budget counts it.
    Delete,
    /// Delete it if it is still pending.
    DeletePending,
    /// Delete it if it is unchanged: this budget does not count unready pods.
    DeleteUnready(Arc<Object>),
    /// Charge this budget one disruption, then delete it.
    Charge(Arc<Object>),
}

impl State {
    /// Evicts the pod of `call` if its budget allows. Time passes between reading and writing; `None` until the write.
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

    /// Whether an eviction may write the object now. The first call only reads it; if somebody wrote it since, the eviction
    /// starts again after a pause, and finally fails.
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

    /// Sets the condition DisruptionTarget, then deletes the pod (`addConditionAndDeletePod`).
    fn evict_now(&mut self, pod: &Object, options: &DeleteOptions) -> Result<(), Failure> {
        options.check(pod)?;
        let mut options = options.clone();
        if !options.dry_run {
            self.edit_disruption(&pod.name, "EvictionByEvictionAPI", "Eviction API: evicting");
            // The change was our own.
            options.revision = None;
        }
        self.delete(Resource::Pods, &pod.name, &options, By::Eviction).map(drop)
    }

    /// What an eviction of a pod has to do: which budget counts it, and whether that allows it.
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

    /// Charges a budget one disruption (`checkAndDecrement`).
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

/// `canIgnorePDB`: such a pod no longer (or not yet) counts.
fn ignores_budgets(pod: &Object) -> bool {
    let pod = pod.pod();
    pod.deleting || pod.finished() || pod.phase == super::object::Phase::Pending
}

/// Whether unready pods can be evicted without a charge: always, or while the budget is met.
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
