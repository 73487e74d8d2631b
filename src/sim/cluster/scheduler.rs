//! The scheduler: binds every pending pod to a node, or reports that none fits.
//!
//! By priority, then age. Among fitting nodes, the one with the smallest share of CPU requested, then with fewest pods, then
//! the first by name: the same cluster always fills the same way, and evenly. No preemption, no spreading constraints, no
//! pod affinity.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fit::{pinned, selects, tolerates};
use super::journal::Event;
use super::names::Name;
use super::object::{Object, PodFacts, quantity, set_condition, text};
use super::queue::Task;
use super::resources::Resource;
use super::state::State;

/// Free capacity of a node.
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
        let here = state.store.pods_on(&node.name.name).filter(|pod| !pod.pod().finished());
        let to_come = state.chosen_for(&node.name.name);
        for pod in here.chain(to_come) {
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

    /// How full it is; the scheduler prefers the least.
    fn used(&self) -> (i64, i64) {
        ((self.cpu_in_all - self.cpu) * 1000 / self.cpu_in_all.max(1), self.running)
    }
}

/// Places a pod on a node with room. Returns the node's name.
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
    /// Schedules every pending pod.
    pub(super) fn schedule(&mut self) {
        let waiting = self.waiting_pods();
        if waiting.is_empty() {
            return;
        }
        // DaemonSet pods go to one node each: nobody else's room is reckoned for them.
        let only: Option<BTreeSet<&str>> = waiting.iter().map(|pod| pinned(&pod.value["spec"])).collect();
        let wanted = |node: &&Arc<Object>| only.as_ref().is_none_or(|only| only.contains(&*node.name.name));
        let nodes = self.store.all(Resource::Nodes).filter(wanted);
        let mut rooms: Vec<Room> = nodes.map(|node| Room::of(self, node)).collect();
        for pod in waiting {
            match place(&mut rooms, &pod) {
                Some(node) => self.choose(&pod, node),
                None => self.set_unschedulable(&pod.name),
            }
        }
    }

    /// The pods without a node, in scheduling order.
    pub(super) fn waiting_pods(&self) -> Vec<Arc<Object>> {
        let waiting = self.store.unbound_pods().filter(|pod| self.is_waiting(pod));
        let mut waiting: Vec<Arc<Object>> = waiting.cloned().collect();
        let age = |pod: &Object| text(&pod.value, &["metadata", "creationTimestamp"]).map(str::to_owned);
        waiting.sort_by_cached_key(|pod| (Reverse(pod.pod().priority), age(pod), pod.name.clone()));
        waiting
    }

    /// Free capacity of the nodes; those not ready are tainted.
    pub(super) fn rooms(&self) -> Vec<Room> {
        self.store.all(Resource::Nodes).map(|node| Room::of(self, node)).collect()
    }

    fn is_waiting(&self, pod: &Object) -> bool {
        let facts = pod.pod();
        facts.active() && !self.chosen.contains_key(&facts.uid)
    }

    /// The pods about to be bound to a node.
    fn chosen_for(&self, node: &str) -> impl Iterator<Item = &Arc<Object>> {
        let names = self.chosen.values().filter(move |(_, chosen)| chosen == node).map(|(pod, _)| pod);
        names.filter_map(|pod| self.store.get(Resource::Pods, pod))
    }

    /// A node is chosen for a pod, which is bound to it later.
    fn choose(&mut self, pod: &Object, node: String) {
        let has_volume = pod.annotation(super::volumes::ANNOTATION).is_some();
        let span = if has_volume { self.timing.volume_binding } else { self.timing.binding };
        let delay = span.draw(&mut self.dice);
        let uid = pod.pod().uid.clone();
        self.chosen.insert(uid.clone(), (pod.name.clone(), node));
        if delay.is_zero() {
            self.bind(&pod.name, &uid);
        } else {
            self.after(delay, Task::Bind(pod.name.clone(), uid));
        }
    }

    /// Binds a pod to its chosen node, whatever became of the node since.
    pub(super) fn bind(&mut self, pod: &Name, uid: &str) {
        let Some((_, node)) = self.chosen.remove(uid) else { return };
        let wants_it =
            |found: &Arc<Object>| found.uid() == uid && found.pod().node.is_none() && found.pod().active();
        if !self.store.get(Resource::Pods, pod).is_some_and(wants_it) {
            return;
        }
        let now = self.now;
        self.edit(Resource::Pods, pod, |value| {
            value["spec"]["nodeName"] = Value::from(node.as_str());
            set_condition(value, now, json!({ "type": "PodScheduled", "status": "True" }));
        });
        self.note(Event::PodScheduled { pod: pod.clone(), node });
    }

    fn set_unschedulable(&mut self, pod: &Name) {
        let now = self.now;
        let nodes = self.store.count(Resource::Nodes);
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
