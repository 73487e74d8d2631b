//! Which groups are this cluster's: asked when a held or retained instance has no Node here.

use std::collections::BTreeSet;

use super::context::Shared;
use crate::groups::Snapshot;
use crate::k8s::{GroupName, InstanceId};

/// Groups with a Node seen here. A group without one may be another cluster's, found by too wide a selector, with its
/// Nodes there.
#[derive(Debug, Default)]
pub(super) struct Joined {
    groups: BTreeSet<GroupName>,
    /// Groups that were warned about.
    warned: BTreeSet<GroupName>,
}

impl Joined {
    /// Adds the groups that have Nodes.
    pub(super) fn observe(&mut self, shared: &Shared, snapshot: &Snapshot) {
        let has_node = |id: &str| !shared.nodes.of_instance(id).is_empty();
        for group in snapshot.groups.values() {
            if !self.groups.contains(&group.asg.name)
                && group.asg.instances.iter().any(|instance| has_node(&instance.id))
            {
                self.groups.insert(group.asg.name.clone());
            }
        }
    }

    /// Whether a group is this cluster's: by a Node seen, its tags, what was learned of it, or because cluster-autoscaler
    /// asked for it or the instance. If nobody knows, the instance is left alone: its owner keeps it, or its hook times out.
    pub(super) fn is_ours(&mut self, shared: &Shared, group: &GroupName, instance: &InstanceId) -> bool {
        let view = shared.groups.latest();
        let tags = view.as_ref().and_then(|view| view.groups.get(group)).map(|group| &group.asg.tags);
        let is_ours = self.groups.contains(group)
            || tags.is_some_and(|tags| shared.selectors.is_of_our_cluster(tags) == Some(true))
            || shared.learned.known(group).is_some()
            || shared.groups.is_asked_for(group)
            || shared.groups.is_asked_for(instance);
        if !is_ours && self.warned.insert(group.clone()) {
            tracing::warn!(
                group = group.as_str(),
                instance = instance.as_str(),
                "an instance is held or retained that has no Node here, in a group of which none was ever seen: it is left \
                 alone, as it may be another cluster's. --cluster-name and a tag kubernetes.io/cluster/NAME tell"
            );
        }
        is_ours
    }
}
