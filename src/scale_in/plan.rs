//! What is to be done for a node now: a pure function of what is known of it.
//!
//! [`plan`] is called whenever anything about the node changes and when the moment it named has come. It returns data;
//! the worker carries it out and remembers the outcome in [`Memory`](super::memory::Memory). Calling it again without a change asks for
//! nothing new. The order of things (workloads, then DaemonSet pods, then the instance) is decided here and in the
//! files beside it: [`super::drain`], [`super::flush`], [`super::release`].

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, NodeEvent, Plan};
use super::membership::Membership;
use super::memory::Task;
use super::operator_queue;
use super::record::{Cause, Phase, Record, Release, Wish, Written};
use super::situation::{Situation, Turn};
use super::{deadline, drain, flush, guard, node_patch, release, twins};
use crate::aws::Lifecycle;
use crate::clock::later;
use crate::cluster::{DaemonOwner, PodName, Ready};
use crate::k8s::{GroupName, names};

/// What is to be done for the node now.
pub fn plan(s: &Situation<'_>) -> Plan {
    let mut plan = Plan::default();
    if !s.speaks {
        twins::beside(s, &mut plan);
        guard::guard(s, &mut plan);
        return plan;
    }
    let record = match s.written() {
        Some(Written::Record(record)) if s.node.instance.as_deref() == Some(&record.instance) => {
            let record = record.moved(-s.ahead).not_ahead_of(s.now, s.record_seen);
            under_way(s, &record, &mut plan);
            Some(record)
        }
        Some(Written::Record(_)) => {
            // The Node has been taken over by another instance: the record is about one that is gone.
            s.patch(&mut plan, node_patch::take_off(s.node), Vec::new());
            None
        }
        Some(Written::Wish(wish)) => {
            begin_for_operator(s, wish, &mut plan);
            None
        }
        Some(Written::Unreadable(text)) => {
            not_understood(s, &text, &mut plan);
            without_record(s, &mut plan);
            None
        }
        None => {
            without_record(s, &mut plan);
            None
        }
    };
    guard::guard(s, &mut plan);
    look_up_daemon_sets(s, &mut plan);
    // Until the node is closed, one may be on its way to it: what was decided before may be bound after.
    let is_closed = s.node.unschedulable || s.node.taint(names::TO_BE_DELETED).is_some();
    plan.occupied = s.pods.map(|_| !is_closed || s.workloads(record.as_ref()).next().is_some());
    plan
}

/// A word that means nothing is as good as none.
fn not_understood(s: &Situation<'_>, text: &str, plan: &mut Plan) {
    let note = format!(
        "annotation ebbtide/scale-in is {text:?}, which means nothing. Write \"now\" to have the node drained and released, \
         \"replace\" to have it replaced as well; take the annotation off to cancel"
    );
    let topic = format!("unreadable {text}");
    s.announce(plan, NodeEvent { topic, reason: "ScaleInNotUnderstood", note, warning: true });
}

/// Somebody else has written a record that is further than its scale-in.
fn not_believed(s: &Situation<'_>, plan: &mut Plan) {
    let Some(claimed) = s.memory.claims.not_believed() else { return };
    if claimed.phase == Phase::Draining && claimed.terminate_at.is_none() {
        return;
    }
    let note = format!(
        "somebody else than ebbtide has written annotation ebbtide/scale-in, with phase {}: the scale-in begins at its \
         beginning. Take the annotation off to cancel",
        claimed.phase
    );
    let topic = "not believed".into();
    s.announce(plan, NodeEvent { topic, reason: "ScaleInNotBelieved", note, warning: true });
}

/// Before a DaemonSet that the watch does not show is taken for deleted, the API server is asked: the watch of pods may be
/// ahead of that of DaemonSets.
fn look_up_daemon_sets(s: &Situation<'_>, plan: &mut Plan) {
    for pod in s.pods.into_iter().flat_map(|pods| pods.values()).filter(|pod| !pod.finished) {
        let Some(DaemonOwner::DaemonSet { uid, name }) = &pod.daemon else { continue };
        if (s.daemon_set_is_seen)(uid) || s.memory.deleted_daemon_sets.contains(uid) {
            continue;
        }
        let asked = |action: &Action| matches!(action, Action::LookUpDaemonSet { uid: of, .. } if of == uid);
        if !plan.actions.iter().any(asked) {
            let name = PodName { namespace: pod.name.namespace.clone(), name: name.clone() };
            s.attempt(plan, &Task::DaemonSet(uid.clone()), || Action::LookUpDaemonSet {
                name,
                uid: uid.clone(),
            });
        }
    }
}

fn under_way(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if s.memory.at_minimum && record.release == Release::TerminateAndDecrement {
        return cancel_at_minimum(s, record, plan);
    }
    if is_back(s, record, plan) {
        return;
    }
    if has_left_alive(s, record, plan) {
        let note = format!(
            "instance {} is in group {} no more: the node is back in service",
            record.instance, record.group
        );
        return s.patch(plan, node_patch::take_off(s.node), cancelled(note, true));
    }
    if is_adopted(s, record, plan) {
        let note = format!(
            "instance {} has gone, and its Node is Ready: the kubelet of another machine has the name now, and has taken the \
             Node over. It is back in service. Its provider id is still that of {}: delete the Node and restart its kubelet, or \
             nobody knows its instance",
            record.instance, record.instance
        );
        let adopted = NodeEvent { topic: "adopted".into(), reason: "ScaleInOver", note, warning: true };
        return s.patch(plan, node_patch::take_off(s.node), vec![Action::Announce(adopted)]);
    }
    if let Membership::Elsewhere { seen } = s.instance {
        release::ended_unseen(s, record, seen, plan);
    }
    twins::announce(s, plan);
    not_believed(s, plan);
    let record = release::brought_up_to_date(s, record, plan);
    let record = release::follow_the_group(s, &record, plan);
    release::announce_hook_over(s, &record, plan);
    match record.phase {
        Phase::Draining => drain::drain(s, &record, plan),
        Phase::Flushing => flush::flush(s, &record, plan),
        Phase::Releasing => release::release(s, &record, plan),
    }
    s.keep_marked(plan);
}

/// Whether the record is void: the group had taken the instance out, by the record's word, and has it in service again.
/// Its root volume was replaced, it came back out of the warm pool, or somebody has attached it again. The Node is in
/// service as soon as it is Ready.
fn is_back(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Membership::In { group, lifecycle: Lifecycle::Pending | Lifecycle::InService, seen } = &s.instance
    else {
        return false;
    };
    if record.release != Release::CompleteHook || !release::is_settled(s, record, *seen, plan) {
        return false;
    }
    if s.node.ready == Ready::Yes {
        let note =
            format!("group {group} has instance {} in service again, and so is the node", record.instance);
        let topic = "back".into();
        let back = NodeEvent { topic, reason: "ScaleInOver", note, warning: false };
        s.patch(plan, node_patch::take_off(s.node), vec![Action::Announce(back)]);
    }
    true
}

/// How long an instance that was taken out must have gone before a Node that is still Ready counts as another machine's: the node
/// lifecycle controller takes 50 s to call the Node of a machine that is off Unknown.
///
/// Source: [`--node-monitor-grace-period`](https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/).
const ADOPTED_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// Whether the instance has been taken out of its group, by our word or its own: what is Ready long after is not it.
fn is_taken_out(s: &Situation<'_>, record: &Record) -> bool {
    release::told_at(s, record).is_some() || record.release == Release::CompleteHook
}

/// Whether somebody has detached the instance, which lives on outside the group.
fn has_left_alive(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    match &s.instance {
        Membership::In { lifecycle, .. } => *lifecycle == Lifecycle::Detaching,
        Membership::Unknown => false,
        Membership::Elsewhere { seen } => {
            !is_taken_out(s, record) && is_ready_without(s, *seen, release::MISSING_FOR, plan)
        }
    }
}

/// Whether a kubelet of the same name has adopted the Node of an instance that has gone: it keeps annotations, taints and provider
/// id, which nobody can change, and no cloud controller removes a Node that is Ready. What the record says is of the earlier one.
///
/// Source: [`tryRegisterWithAPIServer`](https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kubelet_node_status.go).
fn is_adopted(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Membership::Elsewhere { seen } = s.instance else { return false };
    is_taken_out(s, record) && is_ready_without(s, seen, ADOPTED_AFTER, plan)
}

/// Whether the Node is Ready although its instance has been in none of our groups for so long, by the look at `seen`.
fn is_ready_without(s: &Situation<'_>, seen: Timestamp, duration: SignedDuration, plan: &mut Plan) -> bool {
    let Some(since) = s.memory.elsewhere_since.filter(|_| s.node.ready == Ready::Yes) else { return false };
    let over = later(since, duration);
    if seen < over {
        release::look_after(s, over, plan);
    }
    seen >= over
}

/// AWS refuses to shrink the group: better a node back in service than one that is held empty for ever.
fn cancel_at_minimum(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let note = format!(
        "group {} is at its minimum size: AWS refuses to terminate {} with a decrement. The node is back in service; \
         annotate it with ebbtide/scale-in=replace to have it replaced",
        record.group, record.instance
    );
    s.patch(plan, node_patch::take_off(s.node), cancelled(note, true));
}

fn cancelled(note: String, warning: bool) -> Vec<Action> {
    let topic = "cancelled".into();
    vec![Action::Announce(NodeEvent { topic, reason: "ScaleInCancelled", note, warning })]
}

fn without_record(s: &Situation<'_>, plan: &mut Plan) {
    match &s.instance {
        Membership::Unknown => {}
        Membership::Elsewhere { .. } => {
            if node_patch::has_scale_in_marks(s.node) {
                s.patch(plan, node_patch::take_off(s.node), Vec::new());
            }
        }
        // Load balancers let go of it first, for minutes: our hook is going to hold it, and there is no need to wait for that.
        Membership::In { group, lifecycle, .. }
            if lifecycle.is_held() || *lifecycle == Lifecycle::Terminating =>
        {
            begin_for_hook(s, group, plan);
        }
        Membership::In { group, lifecycle: Lifecycle::Retained, .. } => begin_for_retained(s, group, plan),
        // On an instance that is going anyway the marks of a cancelled scale-in may as well stay.
        Membership::In { lifecycle, .. } if lifecycle.is_terminating() => {}
        Membership::In { .. } => {
            if node_patch::has_scale_in_marks(s.node) {
                let note = "the record in annotation ebbtide/scale-in is gone: the node is back in service"
                    .to_owned();
                s.patch(plan, node_patch::take_off(s.node), cancelled(note, false));
            }
        }
    }
}

fn begin_for_hook(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let Some(hook) = s.hook.ours() else {
        // While somebody else's hook alone holds it, somebody else drains it.
        return s.attempt(plan, &Task::Hook, || Action::LookUpHook { group: group.to_owned() });
    };
    let Some(instance) = &s.node.instance else { return };
    let mut record = Record::new(Cause::LifecycleHook, group, instance, Release::CompleteHook, s.now);
    record.release_by = deadline::limit(s.settings, s.now, Some(hook), s.held_since.unwrap_or(s.now));
    begin(s, &record, plan);
}

/// The group keeps the instance, because its hook was abandoned: nobody was there in time. Now somebody is, and there is no
/// limit.
fn begin_for_retained(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let Some(instance) = &s.node.instance else { return };
    let mut record = Record::new(Cause::LifecycleHook, group, instance, Release::Terminate, s.now);
    record.release_by = deadline::limit(s.settings, s.now, None, s.now);
    begin(s, &record, plan);
}

fn begin_for_operator(s: &Situation<'_>, wish: Wish, plan: &mut Plan) {
    let (Membership::In { group, lifecycle, .. }, Some(instance)) = (&s.instance, &s.node.instance) else {
        if matches!(s.instance, Membership::Elsewhere { .. }) {
            s.announce(
                plan,
                NodeEvent {
                    topic: "foreign".into(),
                    reason: "ScaleInNotPossible",
                    note: "the node's instance is in none of the node groups that ebbtide runs".into(),
                    warning: true,
                },
            );
        }
        return;
    };
    if lifecycle.is_held() && !lifecycle.is_live() {
        return begin_for_hook(s, group, plan);
    }
    if wish.release == Release::TerminateAndDecrement && lifecycle.is_live() && !(s.may_shrink)() {
        let note = format!(
            "group {group} is at its minimum size or does not terminate instances at present; annotate the node with \
             ebbtide/scale-in=replace to have it replaced"
        );
        let topic = "at minimum".into();
        return s.announce(plan, NodeEvent { topic, reason: "ScaleInNotPossible", note, warning: true });
    }
    if let Turn::Waits { under_way, before } = (s.turn)() {
        return operator_queue::wait(s, wish, group, under_way, before, plan);
    }
    let mut record = Record::new(Cause::Operator, group, instance, wish.release, s.now);
    record.release_by = deadline::limit(s.settings, s.now, None, s.now);
    begin(s, &record, plan);
}

fn begin(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let note = started(s, record);
    s.enter(plan, record, Phase::Draining, note);
}

/// The text of the Event that opens a scale-in.
fn started(s: &Situation<'_>, record: &Record) -> String {
    let limit = record
        .release_by
        .map_or("without a time limit".to_owned(), |by| format!("until {:.0}", s.theirs(by)));
    format!("cause {}: workloads are asked to leave {}, {limit}", record.cause, record.instance)
}
