//! The machines under the nodes: they boot, register, and go away; and the controllers that clean up after them.
//!
//! Invariants: a machine that is off runs no container; a Node whose machine is off is removed by the cloud controller,
//! its pods by the garbage collector, and nobody else does either.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::deletion::DeleteOptions;
use super::fit::tolerates;
use super::journal::{By, Cut, Event};
use super::names::Name;
use super::object::{Object, list, set_condition, stamp, text};
use super::resources::Resource;
use super::spec::NodeSpec;
use super::state::{State, Task};

/// How long the cloud controller takes to find that an instance is gone: it looks every 5 s
/// (`--node-monitor-period`). The real one waits for the node to become NotReady first, which takes 40 s more.
const CLOUD_CONTROLLER_AFTER: Duration = Duration::from_secs(5);

/// How long pods outlive their Node. The real collector runs every 20 s and waits 40 s; here, as scenarios want to get
/// on.
pub(super) const GC_AFTER: Duration = Duration::from_secs(2);

/// The taint that a cordon becomes.
const CORDON: &str = "node.kubernetes.io/unschedulable";

/// An instance, from the moment it was asked for.
pub(super) struct Machine {
    spec: NodeSpec,
    registered: bool,
    off: bool,
}

impl State {
    /// Starts a machine; its Node registers when it has booted.
    pub(super) fn start_machine(&mut self, spec: NodeSpec) {
        let (name, boots_in) = (spec.name.clone(), Duration::from_secs(spec.boot_seconds));
        self.machines.insert(name.clone(), Machine { spec, registered: false, off: false });
        if boots_in.is_zero() {
            self.boot(&name);
        } else {
            self.after(boots_in, Task::Boot(name));
        }
    }

    /// Whether the node's kubelet runs.
    pub(super) fn powered(&self, node: &str) -> bool {
        self.machines.get(node).is_some_and(|machine| machine.registered && !machine.off)
    }

    pub(super) fn boot(&mut self, node: &str) {
        let Some(machine) = self.machines.get_mut(node) else { return };
        if machine.registered || machine.off {
            return;
        }
        machine.registered = true;
        let spec = machine.spec.clone();
        let name = Name::cluster(node);
        // A Node of that name from an earlier machine is not this one.
        self.remove(Resource::Nodes, &name);
        let metadata = self.new_metadata(&name);
        let now = self.now;
        let mut value = spec.object(metadata);
        for (kind, status, reason) in [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", "True", "KubeletReady"),
        ] {
            set_condition(&mut value, now, json!({ "type": kind, "status": status, "reason": reason }));
        }
        self.put(Resource::Nodes, value);
    }

    /// The instance is gone, at this instant.
    pub(super) fn power_off(&mut self, node: &str) {
        let Some(machine) = self.machines.get_mut(node).filter(|machine| !machine.off) else { return };
        machine.off = true;
        let had_booted = machine.registered;
        self.note(Event::PoweredOff { node: node.to_owned() });
        if !had_booted {
            self.machines.remove(node);
            return;
        }
        let dead: Vec<String> = self.containers_on(node);
        for uid in dead {
            self.kill_container(&uid, Cut::PowerOff);
        }
        let now = self.now;
        let lost = self.logs.get_mut(node).map_or(0, |logs| logs.power_off(now));
        if lost > 0 {
            self.note(Event::LinesLost { node: node.to_owned(), count: lost });
        }
        self.after(CLOUD_CONTROLLER_AFTER, Task::CloudGone(node.to_owned()));
    }

    /// The cloud controller removes the Node of an instance that is gone.
    pub(super) fn remove_gone_node(&mut self, node: &str) {
        if self.machines.get(node).is_some_and(|machine| machine.off) {
            self.machines.remove(node);
            // A Node that is gone already is what is wanted.
            let _ =
                self.delete(Resource::Nodes, &Name::cluster(node), &DeleteOptions::default(), By::Controller);
        }
    }

    /// The pod garbage collector: pods of nodes that do not exist.
    pub(super) fn collect_pods(&mut self) {
        let exists = |node: &str| self.store.get(Resource::Nodes, &Name::cluster(node)).is_some();
        let all = self.store.all(Resource::Pods);
        let orphans = all.filter(|pod| pod.pod().node.as_deref().is_some_and(|node| !exists(node)));
        let orphans: Vec<Name> = orphans.map(|pod| pod.name.clone()).collect();
        let now = self.now;
        for pod in orphans {
            self.edit(Resource::Pods, &pod, |value| {
                if !matches!(value["status"]["phase"].as_str(), Some("Succeeded" | "Failed")) {
                    value["status"]["phase"] = json!("Failed");
                }
                let condition = json!({
                    "type": "DisruptionTarget",
                    "status": "True",
                    "reason": "DeletionByPodGC",
                    "message": "PodGC: node no longer exists",
                });
                set_condition(value, now, condition);
            });
            self.finish_deletion(&pod);
        }
    }

    /// The node lifecycle controller: writes the cordon down as a taint (and takes it off again), and lets pods leave a
    /// node whose NoExecute taints they do not tolerate, at once (`tolerationSeconds` are taken as for ever).
    pub(super) fn sync_taints(&mut self, node: &str) {
        let name = Name::cluster(node);
        let Some(object) = self.store.get(Resource::Nodes, &name).cloned() else { return };
        let mut taints = list(&object.value, &["spec", "taints"]).to_vec();
        let written = |taint: &Value| text(taint, &["key"]) == Some(CORDON);
        let cordoned = object.value["spec"]["unschedulable"] == Value::Bool(true);
        if cordoned != taints.iter().any(written) {
            taints.retain(|taint| !written(taint));
            if cordoned {
                taints.push(json!({ "key": CORDON, "effect": "NoSchedule", "timeAdded": stamp(self.now) }));
            }
            self.edit(Resource::Nodes, &name, |value| {
                if let Some(spec) = value["spec"].as_object_mut() {
                    spec.remove("taints");
                    if !taints.is_empty() {
                        spec.insert("taints".to_owned(), Value::Array(taints));
                    }
                }
            });
        }
        let unwelcome = |pod: &&Arc<Object>| {
            pod.pod().active() && !tolerates(&pod.value["spec"], &[], &object, &["NoExecute"])
        };
        let leaving: Vec<Name> =
            self.store.pods_on(node).filter(unwelcome).map(|pod| pod.name.clone()).collect();
        for pod in leaving {
            // It is there, and no precondition is set: nothing can be refused.
            let _ = self.delete(Resource::Pods, &pod, &DeleteOptions::default(), By::Controller);
        }
    }
}

impl NodeSpec {
    /// The Node as its kubelet registers it, without conditions.
    fn object(self, mut metadata: Value) -> Value {
        let mut labels = json!({
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        });
        for (key, value) in self.labels {
            labels[key] = json!(value);
        }
        metadata["labels"] = labels;
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        let mut spec = json!({});
        if let Some(id) = self.provider_id {
            spec["providerID"] = json!(id);
        }
        if !self.taints.is_empty() {
            let taint = |taint: super::spec::Taint| json!({ "key": taint.key, "value": taint.value, "effect": taint.effect });
            spec["taints"] = self.taints.into_iter().map(taint).collect();
        }
        let capacity = json!({
            "cpu": self.cpu.to_string(),
            "memory": format!("{}Mi", self.memory_mib),
            "pods": self.pods.to_string(),
        });
        let mut allocatable = capacity.clone();
        for (resource, quantity) in self.allocatable {
            allocatable[resource] = json!(quantity);
        }
        json!({
            "metadata": metadata,
            "spec": spec,
            "status": {
                "capacity": capacity,
                "allocatable": allocatable,
                "addresses": [{ "type": "Hostname", "address": self.name }],
                "nodeInfo": {
                    "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "containerd://2.1.0",
                    "kernelVersion": "6.12", "kubeProxyVersion": "", "kubeletVersion": "v1.36.2", "machineID": "",
                    "operatingSystem": "linux", "osImage": "Linux", "systemUUID": "",
                },
            },
        })
    }
}
