//! The machines under the nodes: they boot, register, break, recover and end; and the cloud controller.
//!
//! Invariants: a machine that is off or has crashed runs no container; the API server does not know what a kubelet that is
//! not [`Kubelet::Well`] does or learns; only the cloud controller removes a Node whose machine is off.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::deletion::DeleteOptions;
use super::health::NOT_READY;
use super::journal::{By, Event};
use super::names::Name;
use super::object::{list, set_condition, stamp};
use super::queue::Task;
use super::resources::Resource;
use super::spec::NodeSpec;
use super::state::State;
use crate::sim::span::Span;

/// The cloud controller's taint of a Node whose instance is stopped.
const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";

/// The taint of a Node before the cloud controller has initialised it.
const UNINITIALISED: &str = "node.cloudprovider.kubernetes.io/uninitialized";

/// An instance, from its request on.
pub(super) struct Machine {
    spec: NodeSpec,
    registered: bool,
    off: bool,
    /// AWS has stopped its instance, and may start it again.
    stopped: bool,
    kubelet: Kubelet,
    /// When its silence has lasted too long.
    pub(super) unheard_at: Option<Timestamp>,
}

/// The state of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kubelet {
    Well,
    /// It does nothing; containers run on.
    Dead,
    /// It goes on with what it knows; it and the API server do not reach each other.
    CutOff,
    /// The whole machine hangs: nothing runs on it.
    Crashed,
}

impl State {
    /// Starts a machine; its Node registers when it has booted.
    pub(super) fn start_machine(&mut self, spec: NodeSpec) {
        let (name, boots_in) = (spec.name.clone(), std::time::Duration::from_secs(spec.boot_seconds));
        let machine = Machine {
            spec,
            registered: false,
            off: false,
            stopped: false,
            kubelet: Kubelet::Well,
            unheard_at: None,
        };
        self.machines.insert(name.clone(), machine);
        if boots_in.is_zero() {
            self.boot(&name);
        } else {
            self.after(boots_in, Task::Boot(name));
        }
    }

    /// The kubelet's state, if its machine is on and has booted.
    fn kubelet(&self, node: &str) -> Option<Kubelet> {
        let machine = self.machines.get(node).filter(|machine| machine.registered && !machine.off);
        machine.map(|machine| machine.kubelet)
    }

    /// Whether the node's kubelet and the API server reach each other.
    pub(super) fn kubelet_hears(&self, node: &str) -> bool {
        self.kubelet(node) == Some(Kubelet::Well)
    }

    /// Whether the node's kubelet works, connected or not.
    pub(super) fn kubelet_lives(&self, node: &str) -> bool {
        matches!(self.kubelet(node), Some(Kubelet::Well | Kubelet::CutOff))
    }

    pub(super) fn boot(&mut self, node: &str) {
        let Some(machine) = self.machines.get_mut(node) else { return };
        if machine.registered || machine.off {
            return;
        }
        machine.registered = true;
        self.register(node, true);
        // Pods of an earlier machine of this name may be bound to it still.
        self.hear_anew(node);
    }

    /// A kubelet starts and registers its Node. An existing Node is adopted as it is, with the annotations, taints and
    /// provider id of the machine that had the name before (`tryRegisterWithAPIServer`).
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kubelet_node_status.go>
    fn register(&mut self, node: &str, boots: bool) {
        let Some(spec) = self.machines.get(node).map(|machine| machine.spec.clone()) else { return };
        let (name, now) = (Name::cluster(node), self.now);
        let metadata = self.new_metadata(&name);
        let mut new = spec.object(metadata);
        self.report_node_later(node, self.timing.status_report);
        if self.store.get(Resource::Nodes, &name).is_none() {
            set_healthy(&mut new, now);
            let joining = self.timing.joining.draw(&mut self.dice);
            if !joining.is_zero() {
                set_joining(&mut new, now);
                let initialised = self.timing.cloud_controller.draw(&mut self.dice);
                self.after(initialised, Task::Initialise(node.to_owned()));
                self.after(joining, Task::Joined(node.to_owned()));
            }
            self.put(Resource::Nodes, new);
            return;
        }
        // Its network works only once its agent is up.
        let joining =
            if boots { self.timing.joining.draw(&mut self.dice) } else { std::time::Duration::ZERO };
        self.edit(Resource::Nodes, &name, |old| {
            for key in ["capacity", "allocatable", "addresses", "nodeInfo"] {
                old["status"][key] = new["status"][key].clone();
            }
            if joining.is_zero() {
                set_healthy(old, now);
            } else {
                set_unready(old, now);
            }
        });
        if !joining.is_zero() {
            self.after(joining, Task::Joined(node.to_owned()));
        }
    }

    /// The cloud controller initialises a new Node: it removes its taint.
    pub(super) fn initialise(&mut self, node: &str) {
        self.edit(Resource::Nodes, &Name::cluster(node), |value| {
            if let Some(taints) = value["spec"]["taints"].as_array_mut() {
                taints.retain(|taint| taint["key"] != UNINITIALISED);
            }
            if list(value, &["spec", "taints"]).is_empty()
                && let Some(spec) = value["spec"].as_object_mut()
            {
                spec.remove("taints");
            }
        });
    }

    /// The network of a new node works: it is Ready.
    pub(super) fn joined(&mut self, node: &str) {
        if self.kubelet_hears(node) {
            let now = self.now;
            self.edit(Resource::Nodes, &Name::cluster(node), |value| set_healthy(value, now));
        }
    }

    /// A kubelet reports its Node's status: what changed, or just a heartbeat.
    pub(super) fn report_node(&mut self, node: &str) {
        if self.kubelet_hears(node) {
            let now = self.now;
            self.edit(Resource::Nodes, &Name::cluster(node), |value| {
                // It leaves conditions alone that it does not know.
                let known = ["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"];
                for condition in value["status"]["conditions"].as_array_mut().into_iter().flatten() {
                    let is_known = condition["type"].as_str().is_some_and(|kind| known.contains(&kind));
                    if is_known && condition.get("lastHeartbeatTime").is_some() {
                        condition["lastHeartbeatTime"] = stamp(now);
                    }
                }
            });
            self.report_node_later(node, self.timing.status_report);
        }
    }

    /// Schedules a kubelet's report, if it reports at all.
    pub(super) fn report_node_later(&mut self, node: &str, within: Span) {
        if within != Span::NONE {
            let delay = within.draw(&mut self.dice);
            self.after(delay, Task::NodeStatus(node.to_owned()));
        }
    }

    /// The instance is gone, from this moment.
    pub(super) fn power_off(&mut self, node: &str) {
        let Some(machine) = self.machines.get_mut(node).filter(|machine| !machine.off) else { return };
        machine.off = true;
        let had_booted = machine.registered;
        self.note(Event::PoweredOff { node: node.to_owned() });
        if !had_booted {
            self.machines.remove(node);
            return;
        }
        self.kill_containers(node);
        let now = self.now;
        let lost = self.logs.get_mut(node).map_or(0, |logs| logs.power_off(now));
        if lost > 0 {
            self.note(Event::LinesLost { node: node.to_owned(), count: lost });
        }
        self.not_heard_of(node);
        self.look_in_the_cloud(node);
    }

    /// A kubelet dies, is cut off, or its whole machine crashes.
    pub(super) fn break_kubelet(&mut self, node: &str, how: Kubelet) {
        if self.kubelet(node).is_none_or(|was| was == how) {
            return;
        }
        if let Some(machine) = self.machines.get_mut(node) {
            machine.kubelet = how;
        }
        self.note(Event::KubeletLost { node: node.to_owned() });
        if how == Kubelet::Crashed {
            self.kill_containers(node);
        }
        self.not_heard_of(node);
    }

    /// A kubelet is stopped and started again.
    pub(super) fn restart_kubelet(&mut self, node: &str) {
        self.break_kubelet(node, Kubelet::Dead);
        let back = self.timing.kubelet_restart.draw(&mut self.dice);
        self.after(back, Task::Revive(node.to_owned()));
    }

    /// A kubelet works again; a crashed machine has booted again.
    pub(super) fn revive(&mut self, node: &str) {
        let Some(was) = self.kubelet(node).filter(|was| *was != Kubelet::Well) else { return };
        if let Some(machine) = self.machines.get_mut(node) {
            machine.kubelet = Kubelet::Well;
            machine.unheard_at = None;
        }
        self.note(Event::KubeletBack { node: node.to_owned() });
        self.look_in_the_cloud(node);
        if was == Kubelet::CutOff {
            let reported = self.timing.reported.draw(&mut self.dice);
            self.after(reported, Task::Joined(node.to_owned()));
        } else {
            self.ask_again(node);
            self.register(node, false);
        }
        self.hear_anew(node);
    }

    /// A kubelet learns of all its pods, and of those that are gone.
    pub(super) fn hear_anew(&mut self, node: &str) {
        let now = self.now;
        for uid in self.containers_on(node) {
            let gone = self.containers.get(&uid).is_some_and(|container| {
                let known = self.store.get(Resource::Pods, &container.pod.name);
                known.is_none_or(|known| known.uid() != uid)
            });
            if gone {
                self.forget_object(&uid);
            }
            self.look_at_container(&uid, now);
        }
        let pods: Vec<Name> = self.store.pods_on(node).map(|pod| pod.name.clone()).collect();
        for pod in pods {
            self.queue.add(Task::Kubelet(pod), now);
        }
    }

    /// A kubelet goes silent.
    fn not_heard_of(&mut self, node: &str) {
        let at = self.now + self.timing.unheard.draw(&mut self.dice);
        if let Some(machine) = self.machines.get_mut(node)
            && machine.unheard_at.is_none()
        {
            machine.unheard_at = Some(at);
            self.queue.add(Task::Unheard(node.to_owned()), at);
        }
    }

    /// AWS has stopped a node's instance.
    pub(super) fn stop_machine(&mut self, node: &str) {
        if let Some(machine) = self.machines.get_mut(node) {
            machine.stopped = true;
            self.look_in_the_cloud(node);
        }
    }

    /// Schedules the cloud controller's check of a Node whose instance is gone, or was stopped.
    pub(super) fn look_in_the_cloud(&mut self, node: &str) {
        if self.machines.get(node).is_some_and(|machine| machine.off || machine.stopped) {
            let soon = self.timing.cloud_controller.draw(&mut self.dice);
            self.after(soon, Task::Cloud(node.to_owned()));
        }
    }

    /// The cloud controller removes the Node of an instance that is gone, and taints that of one that is stopped until it is Ready again.
    /// <https://github.com/kubernetes/cloud-provider/blob/master/controllers/nodelifecycle/node_lifecycle_controller.go>
    pub(super) fn sync_with_the_cloud(&mut self, node: &str) {
        let name = Name::cluster(node);
        let Some(machine) = self.machines.get_mut(node) else { return };
        let ready = self.store.get(Resource::Nodes, &name).is_some_and(|node| node.condition("Ready"));
        if machine.off && !(self.timing.cloud_waits_for_not_ready && ready) {
            self.machines.remove(node);
            // A Node that is already gone is fine.
            let _ = self.delete(Resource::Nodes, &name, &DeleteOptions::default(), By::Controller);
        } else if !machine.off && machine.stopped {
            let runs = machine.kubelet == Kubelet::Well;
            machine.stopped = !(runs && ready);
            match (runs, ready) {
                (true, true) => self.edit(Resource::Nodes, &name, |value| set_shut_down(value, false)),
                (false, false) => self.edit(Resource::Nodes, &name, |value| set_shut_down(value, true)),
                (true, false) => self.look_in_the_cloud(node),
                // It looks at nothing while a Node is Ready.
                (false, true) => {}
            }
        }
    }
}

/// The taints and conditions of a Node until its network works and the cloud controller has initialised it.
fn set_joining(node: &mut Value, now: Timestamp) {
    set_unready(node, now);
    let mut taints = list(node, &["spec", "taints"]).to_vec();
    taints.push(json!({ "key": UNINITIALISED, "value": "true", "effect": "NoSchedule" }));
    // The admission plugin TaintNodesByCondition taints it before the conditions are first checked.
    taints.push(json!({ "key": NOT_READY, "effect": "NoSchedule" }));
    node["spec"]["taints"] = Value::Array(taints);
}

/// The condition Ready while the network does not work yet.
fn set_unready(node: &mut Value, now: Timestamp) {
    let condition = json!({
        "type": "Ready",
        "status": "False",
        "reason": "KubeletNotReady",
        "message": "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady \
                    message:Network plugin returns error: cni plugin not initialized",
        "lastHeartbeatTime": stamp(now),
    });
    set_condition(node, now, condition);
}

/// Adds or removes the taint of a stopped instance.
fn set_shut_down(node: &mut Value, is_so: bool) {
    let mut taints = list(node, &["spec", "taints"]).to_vec();
    taints.retain(|taint| taint["key"] != SHUT_DOWN);
    if is_so {
        taints.push(json!({ "key": SHUT_DOWN, "effect": "NoSchedule" }));
    }
    node["spec"]["taints"] = Value::Array(taints);
}

/// The conditions of a healthy node.
fn set_healthy(node: &mut Value, now: Timestamp) {
    for (kind, status, reason) in [
        ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID"),
        ("Ready", "True", "KubeletReady"),
    ] {
        let condition =
            json!({ "type": kind, "status": status, "reason": reason, "lastHeartbeatTime": stamp(now) });
        set_condition(node, now, condition);
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
        let mut node = json!({
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
        });
        if self.is_like_eks {
            super::eks_node::fill(&mut node, &self.name);
        }
        node
    }
}
