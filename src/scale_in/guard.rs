//! The guard: DaemonSet pods of a Node that cluster-autoscaler may drain carry its own annotation that keeps it from
//! evicting them, so that they outlive the workloads whatever its flags say. Pure.
//!
//! It is set when the Node becomes a candidate, which is by default ten minutes before cluster-autoscaler acts, and taken
//! off when the Node is none any more. A value that the pod's owner set is left alone.

use super::action::{Action, Plan};
use super::membership::Membership;
use super::memory::Task;
use super::node_patch;
use super::situation::Situation;
use crate::cluster::PodView;
use crate::k8s::names;

/// Plans the guard of a node's DaemonSet pods.
pub(super) fn guard(s: &Situation<'_>, plan: &mut Plan) {
    if s.instance == Membership::Unknown {
        // Right after the start: what the last run has set stays until it is known whose the node is.
        return;
    }
    let ours = matches!(s.instance, Membership::In { .. });
    let marked = node_patch::is_guarded(s.node);
    let wanted = s.settings.guard && ours && (is_candidate(s) || (marked && is_going(s)));
    if !wanted && !marked {
        return;
    }
    if wanted && !marked {
        // The mark comes first, so that a guard is never left behind.
        return s.patch(plan, node_patch::guard(s.node, true), Vec::new());
    }
    let Some(pods) = s.pods else { return };
    let mut left = 0;
    for pod in pods.values().filter(|pod| pod.daemon.is_some() && !pod.finished) {
        let on = if wanted { needs_guard(pod) } else { false };
        let off = !wanted && is_guarded(pod);
        if on || off {
            left += 1;
            s.attempt(plan, &Task::Guard(pod.uid.clone()), || Action::Guard {
                pod: pod.name.clone(),
                uid: pod.uid.clone(),
                on,
            });
        }
    }
    if !wanted && left == 0 {
        s.patch(plan, node_patch::guard(s.node, false), Vec::new());
    }
}

/// Whether cluster-autoscaler may be about to drain the node. Its taint on a Node that we scale in is our doing.
fn is_candidate(s: &Situation<'_>) -> bool {
    s.node.taint(names::DELETION_CANDIDATE).is_some()
        || (s.node.taint(names::TO_BE_DELETED).is_some() && !node_patch::has_scale_in_marks(s.node))
}

/// Whether the node is on its way out: what was guarded before stays guarded.
fn is_going(s: &Situation<'_>) -> bool {
    s.node.taint(names::TO_BE_DELETED).is_some()
        || s.node.record.as_ref().is_some_and(|written| written.record().is_some())
}

fn needs_guard(pod: &PodView) -> bool {
    pod.wish(names::ENABLE_DS_EVICTION).is_none()
}

fn is_guarded(pod: &PodView) -> bool {
    pod.wish(names::GUARDED).is_some()
}
