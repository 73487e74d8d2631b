//! Subnets so small that an address is given again as soon as it is free.

use std::sync::Arc;

use ebbtide::sim::aws::{Event as AwsEvent, LifecycleState};
use ebbtide::sim::cluster::Event;
use ebbtide::sim::world::World;

use super::Stage;

/// How often somebody grows a group of which a node has just gone, so that an instance comes at once: each adds a node to a run.
const GROWS: u32 = 2;

impl Stage {
    /// The next instance gets the address of one that has gone, and its Node the name, once the Node of that one is no more: pods of
    /// it may still be there. (`tests/scale_in/adopted.rs` has the kubelet that comes before, and adopts the Node.)
    pub(super) fn reuse_addresses(&mut self) {
        let (world, mut events) = (Arc::clone(&self.world), self.world.cluster.subscribe());
        self.others.spawn(async move {
            let mut grows = GROWS;
            while let Some(entry) = events.recv().await {
                let Event::NodeRemoved { node } = entry.what else { continue };
                let Some((group, instance)) = last_of(&world, &node) else { continue };
                world.aws.reuse_address(&instance);
                let Some(now) = world.aws.group(&group) else { continue };
                if grows > 0 && now.desired < now.max {
                    grows -= 1;
                    world.aws.set_desired(&group, now.desired + 1);
                }
            }
        });
    }
}

/// The last instance whose Node had this name, with its group, if it has gone.
fn last_of(world: &World, node: &str) -> Option<(String, String)> {
    let bears = |id: &String| world.aws.instance(id).is_some_and(|i| i.private_dns_name() == node);
    let (group, instance) = world.aws.journal().into_iter().rev().find_map(|entry| match entry.what {
        AwsEvent::InstanceLaunched { group, instance, .. } if bears(&instance) => Some((group, instance)),
        _ => None,
    })?;
    let is_gone = world.aws.instance(&instance)?.state == LifecycleState::Terminated;
    is_gone.then_some((group, instance))
}
