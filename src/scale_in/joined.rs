//! Whose a group is, where an instance of it is held that has no Node here.

use std::collections::BTreeSet;

use super::context::Shared;
use crate::groups::Snapshot;
use crate::k8s::{GroupName, InstanceId};

/// Groups of which a Node was seen here. Of another it is not known whose it is: a selector that is too wide finds the
/// groups of other clusters, whose Nodes are there.
#[derive(Debug, Default)]
pub(super) struct Joined {
    groups: BTreeSet<GroupName>,
    /// Groups that were warned about.
    warned: BTreeSet<GroupName>,
}

impl Joined {
    /// Takes note of the groups that have Nodes.
    pub(super) fn look(&mut self, shared: &Shared, snapshot: &Snapshot) {
        let has_node = |id: &str| !shared.nodes.of_instance(id).is_empty();
        for group in snapshot.groups.values() {
            if !self.groups.contains(&group.asg.name)
                && group.asg.instances.iter().any(|instance| has_node(&instance.id))
            {
                self.groups.insert(group.asg.name.clone());
            }
        }
    }

    /// Whether a group is ours, or cluster-autoscaler has said so of it or of the instance. If nobody knows, the hook is
    /// left to its time-out: whoever's it is keeps it.
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
                "an instance is held that has no Node here, in a group of which none was ever seen: its lifecycle hook is left \
                 alone, as it may be another cluster's. --cluster-name and a tag kubernetes.io/cluster/NAME tell"
            );
        }
        is_ours
    }
}
