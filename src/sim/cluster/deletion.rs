//! Deletion: preconditions, graceful deletion of pods, finalizers, and dependents.
//!
//! Follows `rest.BeforeDelete` and the pod strategy's `CheckGracefulDelete`: a running pod gets its grace and goes when its
//! kubelet says so; an unscheduled or finished one goes at once; a second delete can only shorten the grace.
//! <https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go>

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::journal::{By, Event};
use super::names::Name;
use super::object::{Object, integer, list, stamp, text};
use super::resources::Resource;
use super::route::Call;
use super::state::State;
use super::status::Failure;

/// The options of a delete that are modelled.
#[derive(Clone, Debug, Default)]
pub(super) struct DeleteOptions {
    pub(super) grace: Option<i64>,
    pub(super) uid: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) orphan: bool,
    pub(super) dry_run: bool,
}

/// The result of a delete.
pub(super) struct Deleted {
    /// The object as it is, or last was.
    pub(super) object: Arc<Object>,
    /// Whether it is gone.
    pub(super) gone: bool,
}

impl DeleteOptions {
    /// Reads a `DeleteOptions` object.
    pub(super) fn of_value(value: &Value) -> Self {
        let precondition = |key| text(value, &["preconditions", key]).filter(|text| !text.is_empty());
        Self {
            grace: integer(value, &["gracePeriodSeconds"]),
            uid: precondition("uid").map(str::to_owned),
            revision: precondition("resourceVersion").map(str::to_owned),
            orphan: text(value, &["propagationPolicy"]) == Some("Orphan"),
            dry_run: list(value, &["dryRun"]).iter().any(|stage| stage == "All"),
        }
    }

    /// Reads the body, and the query parameters that kubectl and others use instead.
    pub(super) fn of_call(call: &Call<'_>) -> Result<Self, Failure> {
        let mut options = if call.body.is_empty() {
            Self::default()
        } else {
            let value = serde_json::from_slice(call.body)
                .map_err(|e| Failure::bad_request(format!("DeleteOptions cannot be handled: {e}")))?;
            Self::of_value(&value)
        };
        if let Some(grace) = call.param("gracePeriodSeconds").and_then(|grace| grace.parse().ok()) {
            options.grace = Some(grace);
        }
        options.dry_run |= call.dry_run();
        options.orphan |= call.param("propagationPolicy") == Some("Orphan");
        Ok(options)
    }

    /// Refuses if a precondition (uid, version) does not hold.
    pub(super) fn check(&self, object: &Object) -> Result<(), Failure> {
        let name = &object.name.name;
        if let Some(uid) = self.uid.as_deref().filter(|uid| *uid != object.uid()) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({}). The object might have been \
                 deleted and then recreated",
                object.uid()
            );
            return Err(Failure::precondition(object.resource, name, &why));
        }
        let current = object.revision.to_string();
        if let Some(revision) = self.revision.as_deref().filter(|revision| *revision != current) {
            let why = format!(
                "the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record \
                 ({current}). The object might have been modified"
            );
            return Err(Failure::precondition(object.resource, name, &why));
        }
        Ok(())
    }
}

/// Whether a deleted object can be removed: no finalizers and no grace left.
pub(super) fn nothing_holds(object: &Object) -> bool {
    list(&object.value, &["metadata", "finalizers"]).is_empty()
        && integer(&object.value, &["metadata", "deletionGracePeriodSeconds"]).unwrap_or(0) == 0
}

impl State {
    /// Deletes an object at once, or when its grace and finalizers allow.
    pub(super) fn delete(
        &mut self,
        resource: Resource,
        name: &Name,
        options: &DeleteOptions,
        by: By,
    ) -> Result<Deleted, Failure> {
        let found = self.store.get(resource, name).cloned();
        let object = found.ok_or_else(|| Failure::not_found(resource, &name.name))?;
        options.check(&object)?;
        if options.dry_run {
            return Ok(Deleted { object, gone: false });
        }
        let Some(grace) = new_grace(&object, options) else {
            // Already being deleted, and this would not shorten the grace.
            return Ok(Deleted { object, gone: false });
        };
        if resource == Resource::Pods && !object.pod().finished() {
            let disruption_target = object.condition("DisruptionTarget");
            self.note(Event::PodAsked { pod: name.clone(), by, grace, disruption_target });
        }
        if options.orphan {
            self.orphan_dependents(object.uid());
        }
        let mut marked = object.value.clone();
        mark(&mut marked, &object, grace, self.now);
        let marked = Object::new(resource, object.revision, marked);
        if nothing_holds(&marked) {
            self.remove(resource, name);
            return Ok(Deleted { object, gone: true });
        }
        let stored = self.put(resource, marked.value);
        Ok(Deleted { object: stored.unwrap_or(object), gone: false })
    }

    /// Deletes what the object with this uid owned.
    pub(super) fn collect_dependents(&mut self, uid: &str) {
        for (resource, name) in self.dependents(uid) {
            // Cannot fail: the object exists and no precondition is set.
            let _ = self.delete(resource, &name, &DeleteOptions::default(), By::Controller);
        }
    }

    fn orphan_dependents(&mut self, uid: &str) {
        for (resource, name) in self.dependents(uid) {
            self.edit(resource, &name, |value| {
                let metadata = &mut value["metadata"];
                if let Some(owners) = metadata["ownerReferences"].as_array_mut() {
                    owners.retain(|owner| text(owner, &["uid"]) != Some(uid));
                }
                if list(metadata, &["ownerReferences"]).is_empty()
                    && let Some(metadata) = metadata.as_object_mut()
                {
                    metadata.remove("ownerReferences");
                }
            });
        }
    }

    /// Owned ReplicaSets before owned pods.
    fn dependents(&self, uid: &str) -> Vec<(Resource, Name)> {
        let of = |resource| self.store.owned_by(uid).filter(move |(owned, _)| *owned == resource);
        of(Resource::ReplicaSets).chain(of(Resource::Pods)).cloned().collect()
    }
}

/// The grace in seconds that a delete sets; `None` if it changes nothing.
fn new_grace(object: &Object, options: &DeleteOptions) -> Option<i64> {
    let running = integer(&object.value, &["metadata", "deletionGracePeriodSeconds"]);
    let asked = options.grace.map(at_least_one);
    if object.deleting() {
        return match (asked, running) {
            (_, None) => Some(0),
            (Some(shorter), Some(running)) if shorter < running => Some(shorter),
            _ => None,
        };
    }
    if object.resource != Resource::Pods {
        return Some(0);
    }
    let pod = object.pod();
    if pod.node.is_none() || pod.finished() {
        return Some(0);
    }
    let own = integer(&object.value, &["spec", "terminationGracePeriodSeconds"]);
    Some(at_least_one(asked.or(own).unwrap_or(0)))
}

/// A negative grace counts as one second, as in `BeforeDelete` and the defaults of a pod.
pub(super) fn at_least_one(grace: i64) -> i64 {
    if grace < 0 { 1 } else { grace }
}

/// `grace` as Go computes it: 64 bits of nanoseconds, which wrap. The largest grace that the API server accepts gives a
/// deletion timestamp in the year 1803.
fn wrapping(grace: i64) -> SignedDuration {
    SignedDuration::from_nanos(grace.wrapping_mul(1_000_000_000))
}

/// Less grace counts from the first request, and ends no earlier than now: one second is left of what is over.
fn mark(value: &mut Value, old: &Object, grace: i64, now: Timestamp) {
    let started = text(&old.value, &["metadata", "deletionTimestamp"])
        .and_then(|end| end.parse::<Timestamp>().ok())
        .zip(integer(&old.value, &["metadata", "deletionGracePeriodSeconds"]))
        .map(|(end, grace)| end - wrapping(grace));
    let ends = started.unwrap_or(now) + wrapping(grace);
    let is_over = started.is_some() && ends < now;
    let (ends, grace) = if is_over { (now, grace.min(1)) } else { (ends, grace) };
    let metadata = &mut value["metadata"];
    metadata["deletionTimestamp"] = stamp(ends);
    if old.resource == Resource::Pods {
        metadata["deletionGracePeriodSeconds"] = json!(grace);
    }
    if !old.deleting() && old.generation() > 0 {
        metadata["generation"] = json!(old.generation() + 1);
    }
}
