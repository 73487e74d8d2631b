//! The answers of the RPCs that only read, from the snapshot. Pure.

use std::fmt::Write as _;

use super::error::excerpt;
use super::proto::instance_status::InstanceState;
use super::proto::{Instance, InstanceErrorInfo, InstanceStatus, NodeGroup};
use crate::aws::{self, Lifecycle};
use crate::groups::sizes::{self, Leaves};
use crate::groups::{Group, LaunchFailure, Snapshot};
use crate::k8s::ProviderId;
use crate::scale_in::ScaleIns;

/// Class of a launch failure that another group may not have (no capacity, quota).
const OUT_OF_RESOURCES: i32 = 1;
/// Class of every other launch failure.
const OTHER: i32 = 99;

/// A group with its effective limits, and a line about it for people.
///
/// While cluster-autoscaler drains nodes of it and its launches `have_failed` lately, it does not grow. Those nodes are registered but off
/// the target size, so a scale-up by as many would seem to work at once: no failure would make cluster-autoscaler back the group off, and
/// it would try no other until the drain ends.
///
/// Source: `updateScaleRequests` and `areThereUpcomingNodesInNodeGroup` of
/// [`clusterstate.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.34.0/cluster-autoscaler/clusterstate/clusterstate.go).
pub fn node_group(group: &Group, have_failed: bool, scale_ins: &dyn ScaleIns) -> NodeGroup {
    let leaves = |instance: &aws::Instance| scale_ins.leaves(&group.asg.name, instance);
    let (min_size, mut max_size) = sizes::limits(&group.asg, leaves);
    if have_failed && group.asg.live().any(|instance| leaves(instance) == Leaves::BeingDrained) {
        max_size = max_size.min(sizes::target_size(&group.asg, leaves)).max(min_size);
    }
    NodeGroup { id: group.asg.name.to_string(), min_size, max_size, debug: debug(group, scale_ins) }
}

/// A group as answered for one of its nodes. cluster-autoscaler drains the node if the target size is above the minimum in this answer, but
/// gives up what never came by the minimum of NodeGroups. So a group whose nodes may not leave is reported at its minimum here,
/// however far its size rises before the next loop; so is the group of an instance that is no node at present, as in Standby, where somebody works on it.
///
/// Source: `verifyMinSize` in
/// [`unneeded/nodes.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.30.2/cluster-autoscaler/core/scaledown/unneeded/nodes.go),
/// with the group that NodeGroupForNode returned.
pub fn node_group_of_node(
    (group, instance): (&Group, Option<&aws::Instance>),
    told: NodeGroup,
    scale_ins: &dyn ScaleIns,
) -> NodeGroup {
    let is_aside = instance.is_some_and(|instance| !instance.lifecycle.is_node());
    if !is_aside && !sizes::keeps_its_nodes(&group.asg) {
        return told;
    }
    let target = sizes::target_size(&group.asg, |i| scale_ins.leaves(&group.asg.name, i));
    let size = told.max_size.max(target);
    NodeGroup { min_size: size, max_size: size, ..told }
}

fn debug(group: &Group, scale_ins: &dyn ScaleIns) -> String {
    let leaving = group.asg.instances.iter().filter(|i| is_leaving(group, i, scale_ins)).count();
    let mut line = format!(
        "{}: {} live of {} desired ({}..{}), {leaving} leaving",
        group.asg.name,
        group.asg.live().count(),
        group.asg.desired,
        group.asg.min,
        group.asg.max
    );
    if !group.asg.suspended.is_empty() {
        let processes: Vec<_> = group.asg.suspended.iter().map(String::as_str).collect();
        let _ = write!(line, ", suspended: {}", processes.join(" "));
    }
    if group.asg.is_weighted() {
        line.push_str(
            ", sizes in units by its instances' weights: nodes leave one by one, the group is not grown",
        );
    }
    if let Some(failure) = &group.failure {
        let _ = write!(line, ", launches fail: {}", failure.code);
    }
    line
}

/// The group of the node with this provider id, and its instance. `None` while the node leaves: cluster-autoscaler compares a group's
/// nodes with its target size, and leaving nodes are not in the target size; with them a scale-up would seem to have
/// worked at once, and a failed launch would go unnoticed. A node that cluster-autoscaler is about to delete belongs to
/// its group until the DeleteNodes.
///
/// A GPU node without a GPU keeps its group while it leaves, in Standby and in a warm pool: from 1.35 on cluster-autoscaler reckons quotas from all Nodes,
/// looks for such a node's GPUs in its group's template and, if it has no group, neither grows nor shrinks any group.
///
/// Sources: `areThereUpcomingNodesInNodeGroup` of cluster-autoscaler's `clusterstate/clusterstate.go`; `calculateUsages` in
/// [`resourcequotas/usage.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/resourcequotas/usage.go).
pub fn owner<'a>(
    view: &'a Snapshot,
    provider_id: &ProviderId,
    scale_ins: &dyn ScaleIns,
) -> Option<(&'a Group, Option<&'a aws::Instance>)> {
    match provider_id {
        ProviderId::Placeholder { group, .. } => {
            view.groups.get(group.as_str()).map(|group| (&**group, None))
        }
        ProviderId::Instance { instance, .. } => view
            .instance(instance)
            .filter(|(group, found)| {
                let stays = found.lifecycle.is_node() && !is_leaving(group, found, scale_ins);
                stays || scale_ins.lacks_its_gpu(&found.id)
            })
            .map(|(group, found)| (&**group, Some(found))),
    }
}

/// The instances of a group that are nodes.
///
/// An instance's provider id is spelled as on its Node: cluster-autoscaler compares the texts, and would delete an instance listed under
/// an id that no Node has.
pub fn instances(group: &Group, scale_ins: &dyn ScaleIns) -> impl Iterator<Item = Instance> {
    group.asg.instances.iter().filter(|instance| instance.lifecycle.is_node()).map(|instance| {
        let spelled = scale_ins.provider_id(&instance.id, &instance.zone);
        let id = spelled.unwrap_or_else(|| ProviderId::text_of_instance(&instance.zone, &instance.id));
        listed(id, state(group, instance, scale_ins), None)
    })
}

/// A placeholder for each instance that a group misses. The newest carry the error of failed launches: as many as those were for, and no
/// more than can be given up, because cluster-autoscaler asks at once to delete those.
pub fn placeholders(
    group: &Group,
    missing: &[usize],
    can_be_given_up: usize,
) -> impl Iterator<Item = Instance> {
    let zone = group.asg.zones.first().cloned().unwrap_or_default();
    let failed = group.failure.as_ref().map_or(0, |failure| failure.launches).min(can_be_given_up);
    let in_time = missing.len().saturating_sub(failed);
    missing.iter().enumerate().map(move |(n, &index)| {
        let id = ProviderId::Placeholder { zone: zone.clone(), group: group.asg.name.clone(), index };
        let failure = group.failure.as_ref().filter(|_| n >= in_time);
        listed(id.to_string(), InstanceState::InstanceCreating, failure.map(error_info))
    })
}

fn listed(id: String, state: InstanceState, error_info: Option<InstanceErrorInfo>) -> Instance {
    Instance { id, status: Some(InstanceStatus { instance_state: state.into(), error_info }) }
}

fn state(group: &Group, instance: &aws::Instance, scale_ins: &dyn ScaleIns) -> InstanceState {
    if is_leaving(group, instance, scale_ins) {
        InstanceState::InstanceDeleting
    } else if instance.lifecycle == Lifecycle::Pending {
        InstanceState::InstanceCreating
    } else {
        InstanceState::InstanceRunning
    }
}

/// Whether the node no longer belongs to its group: on its way out and off the target size. One that its group has back counts, though its
/// record is still there: with fewer nodes than the target size, cluster-autoscaler would lower that in every loop, and do nothing else.
fn is_leaving(group: &Group, instance: &aws::Instance, scale_ins: &dyn ScaleIns) -> bool {
    let is_off_the_size = |leaves| matches!(leaves, Leaves::Replaced | Leaves::WithDecrement);
    instance.lifecycle.is_leaving() || is_off_the_size(scale_ins.leaves(&group.asg.name, instance))
}

fn error_info(failure: &LaunchFailure) -> InstanceErrorInfo {
    // The client takes an empty code for no error.
    let code = if failure.code.is_empty() { "LaunchFailed" } else { &failure.code };
    InstanceErrorInfo {
        error_code: code.to_owned(),
        error_message: excerpt(&failure.message),
        instance_error_class: if failure.out_of_resources { OUT_OF_RESOURCES } else { OTHER },
    }
}
