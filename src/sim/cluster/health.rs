//! Unhealthy nodes: conditions, the taints of conditions, and the pods that must leave.
//!
//! Follows the node lifecycle controller, the taint eviction controller and the pod garbage collector:
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/nodelifecycle/node_lifecycle_controller.go>,
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/tainteviction/taint_eviction.go>,
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/podgc/gc_controller.go>.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::deletion::DeleteOptions;
use super::fit::toleration_seconds;
use super::journal::By;
use super::kubelet::set_ready_conditions;
use super::names::Name;
use super::object::{Object, condition, list, set_condition, stamp, text};
use super::queue::Task;
use super::resources::Resource;
use super::state::State;

/// The taint for a cordon.
const CORDON: &str = "node.kubernetes.io/unschedulable";
/// The taints for the condition Ready being False and Unknown.
pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The taints that the node lifecycle controller adds and removes.
const ITS_OWN: [(&str, &str); 5] = [
    (CORDON, "NoSchedule"),
    (NOT_READY, "NoSchedule"),
    (UNREACHABLE, "NoSchedule"),
    (NOT_READY, "NoExecute"),
    (UNREACHABLE, "NoExecute"),
];

/// The status of a Node's condition Ready.
pub(super) fn readiness(node: &Object) -> &str {
    condition(&node.value, "Ready").and_then(|ready| text(ready, &["status"])).unwrap_or("Unknown")
}

impl State {
    /// A kubelet was silent for too long: its node's conditions become Unknown, its pods not ready.
    pub(super) fn mark_unheard(&mut self, node: &str) {
        let Some(at) = self.machines.get(node).and_then(|machine| machine.unheard_at) else { return };
        if self.now < at {
            self.queue.add(Task::Unheard(node.to_owned()), at);
            return;
        }
        let now = self.now;
        self.edit(Resource::Nodes, &Name::cluster(node), |value| {
            for kind in ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"] {
                let heard = condition(value, kind).map(|old| old["lastHeartbeatTime"].clone());
                let condition = json!({
                    "type": kind,
                    "status": "Unknown",
                    "reason": "NodeStatusUnknown",
                    "message": "Kubelet stopped posting node status.",
                    "lastHeartbeatTime": heard,
                });
                set_condition(value, now, condition);
            }
        });
        let pods: Vec<Name> = self.store.pods_on(node).map(|pod| pod.name.clone()).collect();
        for pod in pods {
            self.edit(Resource::Pods, &pod, |value| set_ready_conditions(value, now, false));
        }
        self.look_in_the_cloud(node);
    }

    /// Writes the taints for a cordon and for the condition Ready, and evicts pods that do not, or no longer, tolerate the
    /// NoExecute taints.
    pub(super) fn sync_taints(&mut self, node: &str) {
        let name = Name::cluster(node);
        let Some(object) = self.store.get(Resource::Nodes, &name).cloned() else { return };
        let wanted = self.taints_of_conditions(&object);
        let mut taints = list(&object.value, &["spec", "taints"]).to_vec();
        let is = |taint: &Value, key: &str, effect: &str| {
            text(taint, &["key"]) == Some(key) && text(taint, &["effect"]) == Some(effect)
        };
        taints.retain(|taint| {
            let own = ITS_OWN.iter().any(|(key, effect)| is(taint, key, effect));
            !own || wanted.iter().any(|(key, effect)| is(taint, key, effect))
        });
        for (key, effect) in wanted {
            if !taints.iter().any(|taint| is(taint, key, effect)) {
                taints.push(json!({ "key": key, "effect": effect, "timeAdded": stamp(self.now) }));
            }
        }
        if taints != list(&object.value, &["spec", "taints"]) {
            self.edit(Resource::Nodes, &name, |value| {
                if let Some(spec) = value["spec"].as_object_mut() {
                    spec.remove("taints");
                    if !taints.is_empty() {
                        spec.insert("taints".to_owned(), Value::Array(taints));
                    }
                }
            });
        }
        self.evict_intolerant(node);
    }

    /// The taints for a node's conditions. If no node is ready, none is NoExecute: the fault is more likely ours ("master
    /// disruption mode").
    fn taints_of_conditions(&self, node: &Object) -> Vec<(&'static str, &'static str)> {
        let mut taints = Vec::new();
        let key = match readiness(node) {
            "True" => None,
            "False" => Some(NOT_READY),
            _ => Some(UNREACHABLE),
        };
        if let Some(key) = key {
            taints.push((key, "NoSchedule"));
            if self.store.ready_nodes > 0 {
                taints.push((key, "NoExecute"));
            }
        }
        if node.value["spec"]["unschedulable"] == Value::Bool(true) {
            taints.push((CORDON, "NoSchedule"));
        }
        taints
    }

    /// Evicts pods under a node's NoExecute taints: intolerant ones at once, the others when their shortest
    /// `tolerationSeconds` is over, counted from when the taint was seen.
    fn evict_intolerant(&mut self, node: &str) {
        let Some(object) = self.store.get(Resource::Nodes, &Name::cluster(node)).cloned() else { return };
        let pods: Vec<Arc<Object>> =
            self.store.pods_on(node).filter(|pod| pod.pod().active()).cloned().collect();
        let mut next: Option<Timestamp> = None;
        for pod in pods {
            let uid = &pod.pod().uid;
            let Some(seconds) = toleration_seconds(&pod.value["spec"], &object) else {
                self.tolerating.remove(uid);
                continue;
            };
            let since = *self.tolerating.entry(uid.clone()).or_insert(self.now);
            let due = since + Duration::from_secs(seconds);
            if due > self.now {
                next = Some(next.map_or(due, |earlier| earlier.min(due)));
                continue;
            }
            self.tolerating.remove(uid);
            self.edit_disruption(
                &pod.name,
                "DeletionByTaintManager",
                "Taint manager: deleting due to NoExecute taint",
            );
            // Cannot fail: the object exists and no precondition is set.
            let _ = self.delete(Resource::Pods, &pod.name, &DeleteOptions::default(), By::Controller);
        }
        if let Some(next) = next {
            self.queue.add(Task::Taints(node.to_owned()), next);
        }
    }

    /// The pod garbage collector: deletes pods of nodes that do not exist. A live kubelet still gives their containers the
    /// grace.
    pub(super) fn collect_pods(&mut self) {
        let exists = |node: &str| self.store.get(Resource::Nodes, &Name::cluster(node)).is_some();
        let all = self.store.all(Resource::Pods);
        let orphans = all.filter(|pod| pod.pod().node.as_deref().is_some_and(|node| !exists(node)));
        let orphans: Vec<Name> = orphans.map(|pod| pod.name.clone()).collect();
        for pod in orphans {
            self.edit_disruption(&pod, "DeletionByPodGC", "PodGC: node no longer exists");
            self.edit(Resource::Pods, &pod, |value| {
                if !matches!(value["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
                    value["status"]["phase"] = json!("Failed");
                }
            });
            let options = DeleteOptions { grace: Some(0), ..DeleteOptions::default() };
            // Cannot fail: the object exists and no precondition is set.
            let _ = self.delete(Resource::Pods, &pod, &options, By::Controller);
        }
    }

    /// Sets the condition DisruptionTarget with a reason.
    pub(super) fn edit_disruption(&mut self, pod: &Name, reason: &str, message: &str) {
        let now = self.now;
        self.edit(Resource::Pods, pod, |value| {
            let condition =
                json!({ "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message });
            set_condition(value, now, condition);
        });
    }
}
