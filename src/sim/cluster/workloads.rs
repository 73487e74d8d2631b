//! The ReplicaSet and DaemonSet controllers.
//!
//! A ReplicaSet counts pods that are neither finished nor being deleted, so that an evicted pod is replaced at once. A
//! DaemonSet has at most one pod object on a node, so that a replacement comes only when the old pod is gone; its pods
//! tolerate the cordon and the conditions of a node, not the taints of cluster-autoscaler.
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/daemon/daemon_controller.go>

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::deletion::DeleteOptions;
use super::fit::{pinned, selects, tolerates};
use super::journal::By;
use super::names::Name;
use super::object::{Object, integer, list};
use super::resources::Resource;
use super::rules::default;
use super::state::State;

/// What every DaemonSet pod tolerates.
/// <https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations>
pub(super) fn daemon_tolerations() -> [Value; 6] {
    let tolerates = |key: &str, effect: &str| json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect });
    [
        tolerates("not-ready", "NoExecute"),
        tolerates("unreachable", "NoExecute"),
        tolerates("disk-pressure", "NoSchedule"),
        tolerates("memory-pressure", "NoSchedule"),
        tolerates("pid-pressure", "NoSchedule"),
        tolerates("unschedulable", "NoSchedule"),
    ]
}

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
            self.new_pod(&set, None);
        }
        if pods.len() > wanted {
            // The least useful go first: unscheduled, not ready, then the youngest.
            let age = |pod: &Object| {
                super::object::text(&pod.value, &["metadata", "creationTimestamp"]).map(str::to_owned)
            };
            pods.sort_by_cached_key(|pod| {
                let facts = pod.pod();
                (facts.node.is_some(), facts.ready, Reverse(age(pod)), pod.name.clone())
            });
            for pod in &pods[..pods.len() - wanted] {
                // It is there, and no precondition is set: nothing can be refused.
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

    /// Brings a DaemonSet to one pod on every node that it is for.
    pub(super) fn sync_daemon_set(&mut self, name: &Name) {
        let Some(set) = self.store.get(Resource::DaemonSets, name).cloned() else { return };
        if set.deleting() {
            return;
        }
        let mut by_node: BTreeMap<String, Vec<Arc<Object>>> = BTreeMap::new();
        for pod in self.owned_pods(&set) {
            let node = pod.pod().node.clone().or_else(|| pinned(&pod.value["spec"]).map(str::to_owned));
            by_node.entry(node.unwrap_or_default()).or_default().push(pod);
        }
        let spec = set.value["spec"]["template"]["spec"].clone();
        let extra = daemon_tolerations();
        let nodes: Vec<Arc<Object>> = self.store.all(Resource::Nodes).cloned().collect();
        let (mut wanted, mut current, mut ready) = (0, 0, 0);
        for node in nodes {
            let pods = by_node.remove(&node.name.name).unwrap_or_default();
            let may_stay = selects(&spec, &node) && tolerates(&spec, &extra, &node, &["NoExecute"]);
            let may_come = may_stay && tolerates(&spec, &extra, &node, &["NoSchedule", "NoExecute"]);
            wanted += i64::from(may_come);
            current += i64::from(may_come && !pods.is_empty());
            ready += i64::from(may_come && pods.iter().any(|pod| pod.pod().ready && !pod.deleting()));
            if may_come && pods.is_empty() {
                self.new_pod(&set, Some(&node.name.name));
            }
            let unwanted = pods.iter().filter(|pod| !pod.deleting() && (!may_stay || pod.pod().finished()));
            for pod in unwanted {
                // It is there, and no precondition is set: nothing can be refused.
                let _ = self.delete(Resource::Pods, &pod.name, &DeleteOptions::default(), By::Controller);
            }
        }
        self.edit(Resource::DaemonSets, name, |value| {
            value["status"] = json!({
                "desiredNumberScheduled": wanted,
                "currentNumberScheduled": current,
                "numberMisscheduled": 0,
                "numberReady": ready,
                "numberAvailable": ready,
                "observedGeneration": set.generation(),
            });
        });
    }

    fn owned_pods(&self, set: &Object) -> Vec<Arc<Object>> {
        let mine = |pod: &&Arc<Object>| pod.pod().owner.as_ref().is_some_and(|owner| owner.uid == set.uid());
        self.store.all(Resource::Pods).filter(mine).cloned().collect()
    }

    /// Makes a pod from a set's template; for a DaemonSet, for one node.
    fn new_pod(&mut self, set: &Object, node: Option<&str>) {
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
        let mut spec = template["spec"].clone();
        if let Some(node) = node {
            let mut tolerations = list(&spec, &["tolerations"]).to_vec();
            tolerations.extend(daemon_tolerations());
            spec["tolerations"] = Value::Array(tolerations);
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
            let terms = json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
            spec["affinity"]["nodeAffinity"] =
                json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms });
        }
        let mut pod = json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Pending" } });
        default(Resource::Pods, &mut pod);
        self.put(Resource::Pods, pod);
    }
}
