//! The guard: cluster-autoscaler's own annotation against eviction, set on DaemonSet pods of a Node that it may drain, so
//! that they outlive the workloads whatever its flags say. Pure.
//!
//! Set when the Node becomes a candidate, by default ten minutes before cluster-autoscaler acts, and taken off when it no
//! longer is one. A value set by the pod's owner is left alone.

use super::action::{Action, Plan};
use super::membership::Membership;
use super::node_patch;
use super::release;
use super::situation::Situation;
use crate::cluster::PodView;
use crate::k8s::names;

/// Plans the guard of a node's DaemonSet pods.
pub(super) fn guard(s: &Situation<'_>, plan: &mut Plan) {
    if s.instance == Membership::Unknown {
        // Right after the start: keep what the last run set until we know whose node this is.
        return;
    }
    let ours = matches!(s.instance, Membership::In { .. });
    let marked = node_patch::is_guarded(s.node);
    if let Membership::Elsewhere { seen } = s.instance
        && marked
        && !release::is_missing_for(s, seen, release::MISSING_FOR, plan)
    {
        // One description may leave an instance out.
        return;
    }
    let wanted = s.settings.guard && ours && (is_candidate(s) || (marked && is_going(s)));
    if !wanted && !marked {
        return;
    }
    if wanted && !marked {
        // Mark first, so that no guard is left behind.
        return s.patch(plan, node_patch::guard(s.node, true, s.installation()), Vec::new());
    }
    let Some(pods) = s.pods else { return };
    let daemons = pods.values().filter(|pod| pod.daemon.is_some() && !pod.finished);
    let left: Vec<_> =
        daemons.filter(|pod| if wanted { needs_guard(pod) } else { is_guarded(pod) }).collect();
    for pod in &left {
        s.attempt(plan, &s.memory.of(&pod.uid).guard, || Action::Guard {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            on: wanted,
        });
    }
    if !wanted && left.is_empty() {
        s.patch(plan, node_patch::guard(s.node, false, s.installation()), Vec::new());
    }
}

/// Whether cluster-autoscaler may be about to drain the node.
fn is_candidate(s: &Situation<'_>) -> bool {
    s.node.taint(names::DELETION_CANDIDATE).is_some() || s.is_drained_by_autoscaler()
}

/// Whether the node is on its way out: existing guards stay.
fn is_going(s: &Situation<'_>) -> bool {
    s.node.taint(names::TO_BE_DELETED).is_some()
        || s.node.record.as_ref().is_some_and(|written| written.record().is_some())
}

fn needs_guard(pod: &PodView) -> bool {
    pod.annotation(names::ENABLE_DS_EVICTION).is_none()
}

fn is_guarded(pod: &PodView) -> bool {
    pod.annotation(names::GUARDED).is_some()
}
