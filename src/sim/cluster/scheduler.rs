//! The scheduler: gives every pending pod a node, or says that none fits.
//!
//! In order of priority, then age. Among the nodes that fit, the one with the smallest share of its CPU requested wins,
//! then the one with fewer pods, then the first by name: the same cluster is always filled the same way, and evenly.
//! No preemption, no spreading constraints, no pod affinity.

use std::cmp::Reverse;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fit::{pinned, selects, tolerates};
use super::journal::Event;
use super::names::Name;
use super::object::{Object, PodFacts, quantity, set_condition, text};
use super::resources::Resource;
use super::state::State;

/// What is left on a node.
pub(super) struct Room {
    node: Arc<Object>,
    cpu: i64,
    memory: i64,
    pods: i64,
    cpu_in_all: i64,
    running: i64,
}

impl Room {
    /// A node without pods.
    pub(super) fn empty(node: Arc<Object>) -> Self {
        let allocatable = |key| {
            let written = text(&node.value, &["status", "allocatable", key]);
            written.map_or(0.0, quantity)
        };
        let cpu_in_all = (allocatable("cpu") * 1000.0) as i64;
        let (memory, pods) = (allocatable("memory") as i64, allocatable("pods") as i64);
        Self { node, cpu: cpu_in_all, memory, pods, cpu_in_all, running: 0 }
    }

    fn of(state: &State, node: &Arc<Object>) -> Self {
        let mut room = Self::empty(Arc::clone(node));
        for pod in state.store.pods_on(&node.name.name).filter(|pod| !pod.pod().finished()) {
            room.take(pod.pod());
        }
        room
    }

    pub(super) fn take(&mut self, pod: &PodFacts) {
        self.cpu -= pod.cpu_millis;
        self.memory -= pod.memory_bytes;
        self.pods -= 1;
        self.running += 1;
    }

    fn has(&self, pod: &PodFacts) -> bool {
        self.pods > 0
            && (pod.cpu_millis == 0 || pod.cpu_millis <= self.cpu)
            && (pod.memory_bytes == 0 || pod.memory_bytes <= self.memory)
    }

    /// The less the better.
    fn used(&self) -> (i64, i64) {
        ((self.cpu_in_all - self.cpu) * 1000 / self.cpu_in_all.max(1), self.running)
    }
}

/// Gives a pod one of the rooms, if it fits into any. The node's name.
pub(super) fn place(rooms: &mut [Room], pod: &Object) -> Option<String> {
    let spec = &pod.value["spec"];
    let only = pinned(spec);
    let fits = |room: &&mut Room| {
        only.is_none_or(|only| only == room.node.name.name)
            && room.has(pod.pod())
            && tolerates(spec, &[], &room.node, &["NoSchedule", "NoExecute"])
            && selects(spec, &room.node)
    };
    let room = rooms.iter_mut().filter(fits).min_by_key(|room| room.used())?;
    room.take(pod.pod());
    Some(room.node.name.name.clone())
}

impl State {
    /// Looks at every pending pod.
    pub(super) fn schedule(&mut self) {
        let waiting = self.waiting_pods();
        if waiting.is_empty() {
            return;
        }
        let mut rooms = self.rooms();
        for pod in waiting {
            match place(&mut rooms, &pod) {
                Some(node) => self.bind(&pod.name, &node),
                None => self.set_unschedulable(&pod.name),
            }
        }
    }

    /// The pods that want a node, in the order in which they are looked at.
    pub(super) fn waiting_pods(&self) -> Vec<Arc<Object>> {
        let waiting =
            self.store.all(Resource::Pods).filter(|pod| pod.pod().node.is_none() && pod.pod().active());
        let mut waiting: Vec<Arc<Object>> = waiting.cloned().collect();
        let age = |pod: &Object| text(&pod.value, &["metadata", "creationTimestamp"]).map(str::to_owned);
        waiting.sort_by_cached_key(|pod| (Reverse(pod.pod().priority), age(pod), pod.name.clone()));
        waiting
    }

    /// What is left on the nodes; those that are not ready are tainted.
    pub(super) fn rooms(&self) -> Vec<Room> {
        self.store.all(Resource::Nodes).map(|node| Room::of(self, node)).collect()
    }

    fn bind(&mut self, pod: &Name, node: &str) {
        let now = self.now;
        self.edit(Resource::Pods, pod, |value| {
            value["spec"]["nodeName"] = Value::from(node);
            set_condition(value, now, json!({ "type": "PodScheduled", "status": "True" }));
        });
        self.note(Event::PodScheduled { pod: pod.clone(), node: node.to_owned() });
    }

    fn set_unschedulable(&mut self, pod: &Name) {
        let now = self.now;
        let nodes = self.store.all(Resource::Nodes).count();
        self.edit(Resource::Pods, pod, |value| {
            let condition = json!({
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": format!("0/{nodes} nodes are available"),
            });
            set_condition(value, now, condition);
        });
    }
}
