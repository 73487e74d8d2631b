//! The ReplicaSet, StatefulSet and Job controllers, and how all controllers make pods.
//!
//! A ReplicaSet counts pods that are neither finished nor being deleted, so an evicted pod is replaced at once. A
//! StatefulSet makes a pod again only when the object of its name is gone, one at a time. A Job keeps its pods by a
//! finalizer until it has counted them.
//! <https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#deployment-and-scaling-guarantees>,
//! <https://kubernetes.io/docs/concepts/workloads/controllers/job/#job-tracking-with-finalizers>

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use super::deletion::{DeleteOptions, nothing_holds};
use super::journal::By;
use super::names::Name;
use super::object::{Object, integer, list, text};
use super::resources::Resource;
use super::rules::default;
use super::state::State;

/// The finalizer of a Job's pod until it is counted.
const TRACKING: &str = "batch.kubernetes.io/job-tracking";

impl State {
    /// Brings a ReplicaSet to its number of pods.
    pub(super) fn sync_replica_set(&mut self, name: &Name) {
        let Some(set) = self.store.get(Resource::ReplicaSets, name).cloned() else { return };
        if set.deleting() {
            return;
        }
        let wanted = integer(&set.value, &["spec", "replicas"]).unwrap_or(1).max(0) as usize;
        let mut pods = self.owned_pods(&set);
        pods.retain(|pod| pod.pod().active());
        let ready = pods.iter().filter(|pod| pod.pod().ready).count().min(wanted);
        for _ in pods.len()..wanted {
            self.new_pod(&set, |_| {});
        }
        if pods.len() > wanted {
            // Order of deletion: unscheduled, not ready, then the youngest.
            let age = |pod: &Object| text(&pod.value, &["metadata", "creationTimestamp"]).map(str::to_owned);
            pods.sort_by_cached_key(|pod| {
                let facts = pod.pod();
                (facts.node.is_some(), facts.ready, Reverse(age(pod)), pod.name.clone())
            });
            for pod in &pods[..pods.len() - wanted] {
                // Cannot fail: the object exists and no precondition is set.
                let _ = self.delete(Resource::Pods, &pod.name, &DeleteOptions::default(), By::Controller);
            }
        }
        self.edit(Resource::ReplicaSets, name, |value| {
            value["status"] = json!({
                "replicas": wanted,
                "fullyLabeledReplicas": wanted,
                "readyReplicas": ready,
                "availableReplicas": ready,
                "observedGeneration": set.generation(),
            });
        });
    }

    /// Brings a StatefulSet to its number of pods, in order.
    pub(super) fn sync_stateful_set(&mut self, name: &Name) {
        let Some(set) = self.store.get(Resource::StatefulSets, name).cloned() else { return };
        if set.deleting() {
            return;
        }
        let wanted = integer(&set.value, &["spec", "replicas"]).unwrap_or(1).max(0);
        let in_parallel = text(&set.value, &["spec", "podManagementPolicy"]) == Some("Parallel");
        let mut ready = 0;
        for ordinal in 0..wanted {
            let pod_name = Name::new(&name.namespace, &format!("{}-{ordinal}", name.name));
            let well = match self.store.get(Resource::Pods, &pod_name).cloned() {
                None => {
                    self.new_ordinal(&set, &pod_name);
                    false
                }
                // The old pod's, or another, object blocks the name until it is gone.
                Some(pod) if pod.deleting() => false,
                Some(pod) if pod.pod().finished() => {
                    self.delete_by_controller(&pod);
                    false
                }
                Some(pod) => pod.pod().ready,
            };
            ready += i64::from(well);
            if !well && !in_parallel {
                break;
            }
        }
        let surplus = self.owned_pods(&set).into_iter().filter(|pod| {
            let ordinal = pod.name.name.rsplit_once('-').and_then(|(_, ordinal)| ordinal.parse::<i64>().ok());
            ordinal.is_none_or(|ordinal| ordinal >= wanted)
        });
        if let Some(last) = surplus.max_by_key(|pod| pod.name.name.clone()).filter(|pod| !pod.deleting()) {
            self.delete_by_controller(&last);
        }
        self.edit(Resource::StatefulSets, name, |value| {
            value["status"] = json!({
                "replicas": wanted,
                "readyReplicas": ready,
                "availableReplicas": ready,
                "observedGeneration": set.generation(),
            });
        });
    }

    fn new_ordinal(&mut self, set: &Object, pod: &Name) {
        self.new_pod(set, |value| {
            value["metadata"]["name"] = json!(pod.name);
            value["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] = json!(pod.name);
            value["spec"]["hostname"] = json!(pod.name);
            if let Some(volume) = text(value, &["metadata", "annotations", super::volumes::ANNOTATION]) {
                let own = json!(format!("{volume}-{}", pod.name));
                value["metadata"]["annotations"][super::volumes::ANNOTATION] = own;
            }
        });
    }

    /// Counts a Job's ended pods, releases them, and creates the missing ones.
    pub(super) fn sync_job(&mut self, name: &Name) {
        let Some(job) = self.store.get(Resource::Jobs, name).cloned() else { return };
        if job.deleting() {
            return;
        }
        // With a failure policy a Job waits for a pod's end; without one, a pod being deleted counts as failed.
        let waits_for_the_end = job.value["spec"].get("podFailurePolicy").is_some();
        let status = |key| integer(&job.value, &["status", key]).unwrap_or(0);
        let (mut succeeded, mut failed, mut active) = (status("succeeded"), status("failed"), 0);
        for pod in self.owned_pods(&job) {
            let facts = pod.pod();
            let ended = facts.finished() || pod.deleting() && !waits_for_the_end;
            if !ended {
                active += 1;
            } else if list(&pod.value, &["metadata", "finalizers"]).iter().any(|one| one == TRACKING) {
                let well = facts.phase == super::object::Phase::Succeeded;
                *(if well { &mut succeeded } else { &mut failed }) += 1;
                self.let_go(&pod);
            }
        }
        let wanted = integer(&job.value, &["spec", "completions"]).unwrap_or(1);
        for _ in active..wanted - succeeded {
            self.new_pod(&job, |value| {
                value["metadata"]["finalizers"] = json!([TRACKING]);
                value["metadata"]["labels"]["batch.kubernetes.io/job-name"] = json!(name.name);
            });
        }
        self.edit(Resource::Jobs, name, |value| {
            value["status"] =
                json!({ "succeeded": succeeded, "failed": failed, "active": wanted - succeeded });
        });
    }

    /// Removes the Job's finalizer from a pod.
    fn let_go(&mut self, pod: &Object) {
        self.edit(Resource::Pods, &pod.name, |value| {
            if let Some(metadata) = value["metadata"].as_object_mut() {
                metadata.remove("finalizers");
            }
        });
        let now_free = self.store.get(Resource::Pods, &pod.name);
        if now_free.is_some_and(|pod| pod.deleting() && nothing_holds(pod)) {
            self.remove(Resource::Pods, &pod.name);
        }
    }

    pub(super) fn delete_by_controller(&mut self, pod: &Object) {
        // Cannot fail: the object exists and no precondition is set.
        let _ = self.delete(Resource::Pods, &pod.name, &DeleteOptions::default(), By::Controller);
    }

    pub(super) fn owned_pods(&self, set: &Object) -> Vec<Arc<Object>> {
        let mine = |pod: &&Arc<Object>| pod.pod().owner.as_ref().is_some_and(|owner| owner.uid == set.uid());
        self.store.all(Resource::Pods).filter(mine).cloned().collect()
    }

    /// Creates a pod from a set's template, adapted by `changed`.
    pub(super) fn new_pod(&mut self, set: &Object, changed: impl FnOnce(&mut Value)) {
        let template = &set.value["spec"]["template"];
        let suffix = self.suffix();
        let name = Name::new(&set.name.namespace, &format!("{}-{suffix}", set.name.name));
        let mut metadata = self.new_metadata(&name);
        for key in ["labels", "annotations"] {
            if let Some(value) = template["metadata"].get(key) {
                metadata[key] = value.clone();
            }
        }
        let (version, kind) = set.resource.type_meta(super::resources::Shape::Full);
        metadata["generateName"] = json!(format!("{}-", set.name.name));
        metadata["generation"] = json!(1);
        metadata["ownerReferences"] = json!([{
            "apiVersion": version,
            "kind": kind,
            "name": set.name.name,
            "uid": set.uid(),
            "controller": true,
            "blockOwnerDeletion": true,
        }]);
        let spec = template["spec"].clone();
        let mut pod = json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Pending" } });
        changed(&mut pod);
        default(Resource::Pods, &mut pod);
        self.put(Resource::Pods, pod);
    }
}
