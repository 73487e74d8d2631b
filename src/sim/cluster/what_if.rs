//! Where pods would go with other nodes, without changing anything: an autoscaler's question.

use std::sync::Arc;

use serde_json::Value;

use super::Cluster;
use super::daemon_sets::daemon_tolerations;
use super::fit::{selects, tolerates};
use super::names::Name;
use super::object::Object;
use super::resources::Resource;
use super::scheduler::{Room, place};
use super::state::State;

impl Cluster {
    /// The pods that would find no node even if these nodes existed. The new nodes also get their DaemonSet pods.
    pub fn without_a_place(&self, new_nodes: &[Value]) -> Vec<Name> {
        self.read(|state| {
            let mut rooms = state.rooms();
            rooms.extend(new_nodes.iter().map(|node| state.room_of_new(node)));
            let waiting = state.waiting_pods();
            waiting
                .iter()
                .filter(|pod| place(&mut rooms, pod).is_none())
                .map(|pod| pod.name.clone())
                .collect()
        })
    }
}

impl State {
    fn room_of_new(&self, node: &Value) -> Room {
        let node = Arc::new(Object::new(Resource::Nodes, 0, node.clone()));
        let mut room = Room::empty(Arc::clone(&node));
        for set in self.store.all(Resource::DaemonSets) {
            let pod = Object::new(Resource::Pods, 0, set.value["spec"]["template"].clone());
            let spec = &pod.value["spec"];
            if selects(spec, &node)
                && tolerates(spec, &daemon_tolerations(), &node, &["NoSchedule", "NoExecute"])
            {
                room.take(pod.pod());
            }
        }
        room
    }
}
