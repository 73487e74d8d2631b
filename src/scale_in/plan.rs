//! What is to be done for a node now: a pure function of what is known of it.
//!
//! [`plan`] is called whenever anything about the node changes and when the moment it named has come. It returns data;
//! the worker carries it out and remembers the outcome in [`Memory`](super::memory::Memory). Calling it again without a change asks for
//! nothing new. The order of things (workloads, then DaemonSet pods, then the instance) is decided here and in the
//! files beside it: [`super::drain`], [`super::flush`], [`super::release`].

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Plan};
use super::events::NodeEvent;
use super::membership::Membership;
use super::memory::Task;
use super::operator_queue;
use super::record::{Cause, Phase, Record, Release, Wish, Written};
use super::situation::{Situation, Turn};
use super::{deadline, drain, events, flush, guard, node_patch, release, twins};
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
            // A word that means nothing is as good as none.
            s.announce(&mut plan, events::not_understood(&text));
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

/// Somebody else has written a record that is further than its scale-in.
fn not_believed(s: &Situation<'_>, plan: &mut Plan) {
    let Some(claimed) = s.memory.claims.not_believed() else { return };
    if claimed.phase == Phase::Draining && claimed.terminate_at.is_none() {
        return;
    }
    s.announce(plan, events::not_believed(claimed.phase));
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
        let cancelled = events::cancelled_by_detaching(&record.group, &record.instance);
        return take_off(s, plan, cancelled);
    }
    if is_adopted(s, record, plan) {
        return take_off(s, plan, events::adopted(&record.instance));
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
        take_off(s, plan, events::back_in_service(group, &record.instance));
    }
    true
}

/// How long an instance that was taken out must have gone before a Node that is still Ready counts as another machine's: the node
/// lifecycle controller takes 50 s to call the Node of a machine that is off Unknown.
///
/// Source: [`--node-monitor-grace-period`](https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/).
const ADOPTED_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// Whether the instance has been taken out of its group, by our word or its own: a Node that is Ready long afterwards cannot be its.
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
///
/// Such a kubelet has become Ready since. While the API server or its controllers are away, the Node of a machine that is off
/// stays Ready as it was.
fn is_adopted(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Membership::Elsewhere { seen } = s.instance else { return false };
    let has_become_ready = s.node.ready_since.is_some_and(|since| s.ours(since) > record.phase_since);
    has_become_ready && is_taken_out(s, record) && is_ready_without(s, seen, ADOPTED_AFTER, plan)
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
    take_off(s, plan, events::cancelled_at_minimum(&record.group, &record.instance));
}

/// Puts the node back into service, and says why.
fn take_off(s: &Situation<'_>, plan: &mut Plan, why: NodeEvent) {
    s.patch(plan, node_patch::take_off(s.node), vec![Action::Announce(why)]);
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
                take_off(s, plan, events::cancelled_by_a_person());
            }
        }
    }
}

fn begin_for_hook(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let Some(hook) = s.hook.ours() else {
        // While somebody else's hook alone holds it, somebody else drains it.
        return;
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
            s.announce(plan, events::not_ours());
        }
        return;
    };
    if lifecycle.is_held() && !lifecycle.is_live() {
        return begin_for_hook(s, group, plan);
    }
    if wish.release == Release::TerminateAndDecrement && lifecycle.is_live() && !(s.may_shrink)() {
        return s.announce(plan, events::cannot_shrink(group));
    }
    if let Turn::Waits { under_way, before } = (s.turn)() {
        return operator_queue::wait(s, wish, group, under_way, before, plan);
    }
    let mut record = Record::new(Cause::Operator, group, instance, wish.release, s.now);
    record.release_by = deadline::limit(s.settings, s.now, None, s.now);
    begin(s, &record, plan);
}

fn begin(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let until = record.release_by.map(|by| s.theirs(by));
    s.enter(plan, record, Phase::Draining, events::draining(record.cause, &record.instance, until));
}
