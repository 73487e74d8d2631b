//! What is around a node, as the watches and the last look at AWS have it.

use std::sync::Arc;

use super::controller::Shared;
use super::intents::record_on;
use super::record::Release;
use super::situation::Whereabouts;
use super::twins;
use crate::aws::Instance;
use crate::cluster::NodeView;
use crate::groups::{Group, sizes};

/// Volumes attached to nodes; until they have been listed, there may be one.
pub(super) fn attachments_on<'a>(shared: &Shared, nodes: impl IntoIterator<Item = &'a String>) -> usize {
    if !shared.attachments.is_synced() {
        return 1;
    }
    nodes.into_iter().map(|node| shared.attachments.count_on(node)).sum()
}

/// Whether the group of a Node's instance may lose one more for good.
pub(super) fn may_shrink(shared: &Shared, node: &NodeView) -> bool {
    let Some(snapshot) = shared.groups.latest() else { return false };
    let found = node.instance.as_deref().and_then(|instance| snapshot.instance(instance));
    found.is_some_and(|(group, instance)| {
        sizes::removable(&group.asg, [instance.id.as_str()], |instance| will_decrement(shared, instance))
            .is_ok()
    })
}

/// Whether a scale-in of the instance is accepted that lowers the desired capacity when it is released.
pub(super) fn will_decrement(shared: &Shared, instance: &Instance) -> bool {
    let record = twins::speaker(&shared.nodes, &instance.id).and_then(|node| record_on(&node));
    record.is_some_and(|record| record.release == Release::TerminateAndDecrement)
}

/// Where a Node's instance is, by the last look at AWS.
pub(super) fn whereabouts(shared: &Shared, node: &NodeView) -> Whereabouts {
    let Some(snapshot) = shared.groups.latest() else { return Whereabouts::Unknown };
    let found = node.instance.as_deref().and_then(|instance| snapshot.instance(instance));
    found.map_or(Whereabouts::Elsewhere { seen: snapshot.taken_at }, |(group, instance): (&Arc<Group>, _)| {
        Whereabouts::In {
            group: group.asg.name.clone(),
            lifecycle: instance.lifecycle,
            seen: snapshot.taken_at,
        }
    })
}
