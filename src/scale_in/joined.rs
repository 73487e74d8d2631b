//! Which groups are this cluster's, and whether their Nodes say of which machine they are: asked when a held or retained instance has no
//! Node here.

use std::collections::BTreeSet;

use super::context::{self, Shared};
use crate::groups::Snapshot;
use crate::k8s::{GroupName, InstanceId, NodeName};

/// Groups with a Node seen here. A group without one may be another cluster's, found by too wide a selector, with its
/// Nodes there.
#[derive(Debug, Default)]
pub(super) struct Joined {
    groups: BTreeSet<GroupName>,
    /// Groups that were warned about.
    warned: BTreeSet<GroupName>,
    /// Groups of which a Node may be of any instance.
    unidentified: BTreeSet<GroupName>,
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
        self.unidentified.retain(|group| unidentified_node(shared, group).is_some());
    }

    /// Forgets groups that are not there any more: one made anew under the name may be another cluster's.
    pub(super) fn keep_groups(&mut self, is_there: impl Fn(&GroupName) -> bool) {
        self.groups.retain(&is_there);
        self.warned.retain(&is_there);
    }

    /// Whether the group's instance without a Node may be the machine of an unidentified Node. It may be busy, so its hook times out, or
    /// its owner keeps it. Not if its Node has gone: that one was identified.
    pub(super) fn may_be_unidentified(
        &mut self,
        shared: &Shared,
        group: &GroupName,
        instance: &InstanceId,
    ) -> bool {
        // Nodes of this group, now or earlier, say of which machine they are.
        let are_identified = self.groups.contains(group) || shared.learned.known(group).is_some();
        if are_identified || shared.nodes.gone_for(instance).is_some() {
            return false;
        }
        let Some(node) = unidentified_node(shared, group) else { return false };
        if self.unidentified.insert(group.clone()) {
            tracing::warn!(
                group = group.as_str(),
                instance = instance.as_str(),
                node = node.as_str(),
                "this Node, which has no provider id of AWS, may be that of a held or retained instance: the instance is neither drained \
                 nor let go. Its hook times out; a retained one stays until somebody ends it"
            );
        }
        true
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
                "a held or retained instance has no Node here, and no Node of its group was ever seen: it is left \
                 alone, as it may be another cluster's. --cluster-name and a tag kubernetes.io/cluster/NAME decide that"
            );
        }
        is_ours
    }
}

fn unidentified_node(shared: &Shared, group: &GroupName) -> Option<NodeName> {
    let view = shared.groups.latest();
    let group = view.as_ref().and_then(|view| view.groups.get(group));
    context::unidentified_node(&shared.nodes, group.map_or(&[], |group| &group.asg.instances))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_a_node_of_a_group_was_seen_is_forgotten_with_the_group() {
        let all = || BTreeSet::from(["a", "b"].map(GroupName::from));
        let mut joined = Joined { groups: all(), warned: all(), unidentified: BTreeSet::new() };
        joined.keep_groups(|group| group == "b");
        assert_eq!(
            (joined.groups, joined.warned),
            (BTreeSet::from(["b".into()]), BTreeSet::from(["b".into()]))
        );
    }
}
