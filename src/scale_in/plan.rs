//! What to do for a node now: a pure function of what is known of it.
//!
//! [`plan`] is called on every change and at the wake time it returned. It returns data; the worker performs it and
//! keeps the outcome in [`Memory`](super::memory::Memory). Without a change, it asks for nothing new. The order (workloads,
//! DaemonSet pods, instance) is decided here and in [`super::drain`], [`super::flush`], [`super::release`].
//!
//! A function that takes the plan sets its wake time if time alone may change the answer; one named `ensure_…` also plans the missing step.

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Plan};
use super::context::{is_of_another, is_on_its_way_in};
use super::deadline::{self, HeldBy};
use super::events::ScaleInEvent;
use super::membership::{Membership, SETTLED_AFTER};
use super::notices::{self, Expected};
use super::operator_queue;
use super::record::{Cause, End, Phase, Record, Release, Request, Written};
use super::settings::Treatment;
use super::situation::{Situation, UNABLE_FOR};
use super::tries::{LASTING_AFTER, Task};
use super::turn::Turn;
use super::{cordon, drain, events, flush, guard, limit, node_patch, release, report, twins};
use crate::aws::Lifecycle;
use crate::clock::later;
use crate::cluster::Ready;
use crate::groups::hooks::HookState;
use crate::k8s::{GroupName, InstanceId, names};

/// What to do for the node now.
pub fn plan(s: &Situation<'_>) -> Plan {
    let mut plan = Plan::default();
    if is_of_another(s.node, &s.instance, s.installation()) {
        // Its worker may have begun before that could be told, as by a request.
        return plan;
    }
    if !s.is_primary {
        twins::secondary(s, &mut plan);
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
            // Another instance has taken the Node over: the record is about the old one.
            s.patch(&mut plan, s.take_off(), Vec::new());
            None
        }
        Some(Written::Request(request)) => {
            if !put_back(s, &mut plan) {
                begin_for_operator(s, *request, &mut plan);
                if passes_for_a_scale_in(s) {
                    // Whoever reads the Node would take it for a scale-in under way, while it waits or cannot begin.
                    s.patch(&mut plan, node_patch::with_request(s.node, &request.text()), Vec::new());
                }
            }
            None
        }
        Some(Written::Unreadable(_)) if passes_for_a_scale_in(s) => {
            // The same of a record that cannot be: cluster-autoscaler's DeleteNodes would be answered, and nothing would come of it.
            without_record(s, &mut plan);
            let told = s.unless_told(events::no_scale_in());
            s.patch(&mut plan, node_patch::without_record(s.node), told);
            None
        }
        Some(Written::Unreadable(text)) => {
            // An unreadable value counts as none. So does a record that is not believed: it may be another installation's, or from a backup.
            if s.node.scale_in().is_none() {
                s.announce(&mut plan, events::not_understood(text));
            }
            without_record(s, &mut plan);
            None
        }
        None => {
            without_record(s, &mut plan);
            None
        }
    };
    guard::guard(s, &mut plan);
    report::report(s, record.as_ref(), &mut plan);
    announce_not_written(s, &mut plan);
    look_up_daemon_sets(s, &mut plan);
    // Until the Node is cordoned, a pod may be on its way: an earlier scheduling decision may be bound later.
    let is_closed = s.node.unschedulable || s.node.taint(names::TO_BE_DELETED).is_some();
    let asks_last = plan.asks_last.is_some();
    let has_workloads =
        || asks_last || s.workloads(record.as_ref()).next().is_some() || s.awaits_daemon_sets();
    plan.occupied = s.pods.map(|_| !is_closed || has_workloads());
    plan
}

/// Whether what is written on the Node, believed or not, is read as a scale-in of an instance of ours. What is written of others is theirs,
/// or another installation's.
fn passes_for_a_scale_in(s: &Situation<'_>) -> bool {
    matches!(s.instance, Membership::In { .. }) && s.node.scale_in().is_some()
}

/// A scale-in that cluster-autoscaler requested within this time is announced by the leader, not by the replica that records it.
const JUST_ACCEPTED: SignedDuration = SignedDuration::from_mins(1);

/// Announces that a scale-in begins that a replica has recorded.
fn announce_accepted(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let is_new = s.now < record.requested_at + JUST_ACCEPTED && s.hook != HookState::Unknown;
    if record.cause == Cause::Autoscaler && record.phase == Phase::Draining && is_new {
        s.announce(plan, draining(s, record));
    }
}

/// Announces that the API server refuses to have the Node written, and with what words.
fn announce_not_written(s: &Situation<'_>, plan: &mut Plan) {
    let failures = s.memory.tries(&Task::Node).failures;
    if let Some(words) = s.memory.not_written.as_ref().filter(|_| failures >= LASTING_AFTER) {
        s.announce(plan, events::not_written(words));
    }
}

/// Announces that somebody else has written a record that claims more than its scale-in has done.
fn not_believed(s: &Situation<'_>, plan: &mut Plan) {
    let Some(claimed) = s.memory.claims.forged() else { return };
    if claimed.phase == Phase::Draining && claimed.terminate_at.is_none() {
        return;
    }
    s.announce(plan, events::not_believed(claimed.phase));
}

/// Asks the API server before a DaemonSet missing from the watch counts as deleted: the pod watch may be ahead.
fn look_up_daemon_sets(s: &Situation<'_>, plan: &mut Plan) {
    for (uid, name) in s.unseen_daemon_sets() {
        let asked = |action: &Action| matches!(action, Action::LookUpDaemonSet { uid: of, .. } if of == uid);
        if !plan.actions.iter().any(asked) {
            let uid = uid.to_owned();
            s.attempt(plan, s.memory.tries(&Task::DaemonSet(uid.clone())), || Action::LookUpDaemonSet {
                name,
                uid,
            });
        }
    }
}

fn under_way(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if is_refused_at_minimum(s, record) {
        return cancel_at_minimum(s, record, plan);
    }
    if put_back_in_service(s, record, plan) {
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
    if matches!(s.instance, Membership::Elsewhere { .. }) && s.memory.is_only_claimed() {
        return;
    }
    s.look_again_while_cut_off(plan);
    twins::announce(s, plan);
    not_believed(s, plan);
    let record = release::brought_up_to_date(s, record, plan);
    let record = release::follow_the_group(s, &record, plan);
    release::announce_hook_ending(s, &record, plan);
    release::announce_hook_over(s, &record, plan);
    announce_accepted(s, &record, plan);
    match record.phase {
        Phase::Draining => drain::drain(s, &record, plan),
        Phase::Flushing => flush::flush(s, &record, plan),
        Phase::Releasing => release::release(s, &record, plan),
    }
    release::delete_node(s, &record, plan);
    s.keep_marked(plan);
    hand_over(s, plan);
}

/// Lets another process lead, once, if our own pod is on the node: it would be evicted with the rest.
fn hand_over(s: &Situation<'_>, plan: &mut Plan) {
    // First this process sends what it has noted: the next leader would take it for sent, and wait.
    let is_under_way = |task| s.memory.tries(task).in_flight;
    let notes = plan.writes_node() || [Task::Node, Task::Terminate].iter().any(is_under_way);
    if s.is_our_own_node() && !notes && !s.memory.tries(&Task::HandOver).done {
        s.attempt(plan, s.memory.tries(&Task::HandOver), || Action::HandOver);
    }
}

/// If the record is void (the group took the instance out and has it in service again: root volume replaced, back from the warm pool, or
/// attached again), puts the Node back into service once it is Ready, or has not become Ready in time; if AWS ends its machine, has it leave
/// for good instead. Returns whether the record is void.
fn put_back_in_service(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Membership::In { group, lifecycle, seen } = &s.instance else { return false };
    if !matches!(lifecycle, Lifecycle::Pending | Lifecycle::InService) {
        return false;
    }
    if record.release != Release::LeftToGroup || !release::ensure_settled(s, record, *seen, plan) {
        return false;
    }
    // What an earlier run was told may be missing in descriptions for longer.
    if !s.memory.of_scale_in.was_seen_out && release::may_still_end(s, *seen, plan) {
        return false;
    }
    // One description may show what was before.
    let believed = s.memory.in_service_since.map_or(*seen, |since| later(since, SETTLED_AFTER));
    if *seen < believed {
        release::refresh_after(s, believed, plan);
        return false;
    }
    if record.cause == Cause::StateChange && !was_spared(s, record, plan) {
        return false;
    }
    if let Some(end) = record.end().filter(|end| limit::still_ends(s, end)).map(|end| end.at) {
        // AWS ends the machine all the same, and does not announce that again.
        if end > s.now {
            if *lifecycle == Lifecycle::InService {
                leave_before(s, record, group, end, plan);
            }
            return true;
        }
        if s.node.ready == Ready::Yes {
            // It may be about to end.
            plan.wake(later(end, limit::OUTLIVED_AFTER + SignedDuration::from_secs(1)));
            return true;
        }
    }
    // `None`: it is on its way.
    let given_up = s.memory.back_since.map(|since| later(since, NEVER_READY_AFTER));
    if s.node.ready == Ready::Yes {
        take_off(s, plan, events::back_in_service(group, &record.instance));
    } else if given_up.is_some_and(|at| s.has_come(at, plan)) {
        take_off(s, plan, events::back_but_not_ready(group, &record.instance));
    }
    true
}

/// Has an instance that is back leave for good, as AWS ends its machine. An end that is far away was a scheduled event's.
fn leave_before(s: &Situation<'_>, record: &Record, group: &GroupName, end: Timestamp, plan: &mut Plan) {
    let cause = if notices::is_far(Some(end), s.now) { Cause::ScheduledEvent } else { record.cause };
    let record = Record { cause, release: Release::Terminate, ..record.clone() };
    let told = s.unless_told(events::back_before_its_end(group, &record.instance, s.theirs(end)));
    s.patch(plan, s.with_record(&record), told);
}

/// A Node that is not Ready this long after its instance came back is as broken as any other. Its record comes off: while it is there,
/// cluster-autoscaler counts the instance as a node to come; then it sees the Node and may remove it. This is how long cluster-autoscaler
/// waits for a node by default.
///
/// Source: [`--max-node-provision-time`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md).
const NEVER_READY_AFTER: SignedDuration = SignedDuration::from_mins(15);

/// A machine that AWS says is stopping is down within this time.
const STOPS_WITHIN: SignedDuration = SignedDuration::from_mins(10);

/// Whether a machine that AWS said was stopping has started again, or never stopped. Its group and its Node show a stop only minutes later.
fn was_spared(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let has_restarted = s.node.ready_since.is_some_and(|since| s.ours(since) > record.requested_at);
    let would_be_down = s.has_come(later(record.requested_at, STOPS_WITHIN), plan);
    has_restarted || s.node.ready == Ready::Yes && would_be_down
}

/// How long an instance must be gone before a Node that is still Ready counts as another machine's: the node lifecycle
/// controller takes 50 s to mark the Node of a dead machine Unknown.
///
/// Source: [`--node-monitor-grace-period`](https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/).
const ADOPTED_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// How long an instance that AWS was told to end must be gone before a Node that is still Ready means that it lives on: it was detached
/// before AWS got the call. EC2 takes minutes to end a machine, and the controller that marks the Nodes of dead ones may be down too.
const LIVES_ON: SignedDuration = SignedDuration::from_mins(30);

/// Whether somebody has detached the instance, which lives on outside the group, or in another.
fn has_left_alive(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    // A machine that AWS is about to end goes on leaving, whosever it is now.
    let ends = |at| !limit::has_outlived(s, at) && !notices::is_far(Some(at), s.now);
    if record.ends_at.is_some_and(ends) {
        return false;
    }
    match &s.instance {
        Membership::In { lifecycle: Lifecycle::Detaching, .. } => true,
        Membership::In { group, lifecycle, .. } => {
            // Else somebody has written another group's name.
            let was_there = s.memory.first_group.as_ref() == Some(&record.group);
            let has_moved = was_there && *group != record.group;
            has_moved && !lifecycle.is_terminating() && !release::record_says_taken_out(s, record)
        }
        Membership::Unknown => false,
        Membership::Elsewhere { seen } => {
            let taken_out = release::record_says_taken_out(s, record);
            is_ready_without(s, *seen, if taken_out { LIVES_ON } else { release::MISSING_FOR }, plan)
        }
    }
}

/// Whether another machine's kubelet has adopted the Node by its name. It keeps annotations, taints and the immutable
/// provider id, and no cloud controller removes a Ready Node; the record is about the old machine.
///
/// Source: [`tryRegisterWithAPIServer`](https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kubelet_node_status.go).
///
/// Such a Node became Ready after the phase began. One that only stays Ready may be a dead machine's, while the API server
/// or its controllers are away.
fn is_adopted(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Membership::Elsewhere { seen } = s.instance else { return false };
    let has_become_ready = s.node.ready_since.is_some_and(|since| s.ours(since) > record.phase_since);
    has_become_ready
        && release::record_says_taken_out(s, record)
        && is_ready_without(s, seen, ADOPTED_AFTER, plan)
}

/// Whether the Node is Ready although its instance has been in none of our groups for `duration`, by the refresh of `seen`.
fn is_ready_without(s: &Situation<'_>, seen: Timestamp, duration: SignedDuration, plan: &mut Plan) -> bool {
    s.node.ready == Ready::Yes && release::is_missing_for(s, seen, duration, plan)
}

/// Whether AWS refuses to shrink the group by an instance in service. One that is leaving was taken out by somebody else, or by an earlier
/// call of ours; one whose machine AWS ends is not put back into service, but replaced.
fn is_refused_at_minimum(s: &Situation<'_>, record: &Record) -> bool {
    let is_live = matches!(&s.instance, Membership::In { lifecycle, .. } if lifecycle.is_live());
    let may_be_spared = record.release == Release::TerminateAndDecrement && record.ends_at.is_none();
    may_be_spared && is_live && s.refused_at_minimum().is_some()
}

/// AWS refuses to shrink the group: cancels, rather than keep an empty node for ever, once a refresh that began after the refusal shows the
/// instance in service.
fn cancel_at_minimum(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let (Membership::In { seen, .. }, Some(refused_at)) = (&s.instance, s.refused_at_minimum()) else {
        return;
    };
    if *seen < refused_at {
        release::refresh_after(s, refused_at, plan);
    } else if !release::may_still_end(s, *seen, plan) {
        take_off(s, plan, events::cancelled_at_minimum(&record.group, &record.instance));
    }
}

/// Puts the node back into service and announces why.
fn take_off(s: &Situation<'_>, plan: &mut Plan, why: ScaleInEvent) {
    s.patch(plan, s.take_off(), vec![Action::Announce(why)]);
}

/// Puts back the record that somebody has overruled in vain, if there is one. Returns whether there is.
fn put_back(s: &Situation<'_>, plan: &mut Plan) -> bool {
    let now_noted = later(s.now, s.ahead);
    let overruled = s.node.instance.as_ref().and_then(|it| s.memory.overruled_in_vain(it, now_noted));
    let Some(record) = overruled.filter(|record| !is_written_over_when_back(s, record)) else { return false };
    let event = match (s.written(), record.ends_at) {
        (Some(Written::Request(_)), _) | (_, None) => events::under_way_already(record.cause),
        (_, Some(end)) => events::goes_on_to_its_end(&record.instance, s.theirs(s.noted(end))),
    };
    s.patch(plan, s.with_noted(record), s.unless_told(event));
    true
}

/// Whether a request was written over the record of a scale-in whose instance is back: nothing is under way any more.
fn is_written_over_when_back(s: &Situation<'_>, record: &Record) -> bool {
    let Membership::In { lifecycle, seen, .. } = &s.instance else { return false };
    let is_request = matches!(s.written(), Some(Written::Request(_)));
    is_request && is_on_its_way_in(record, *lifecycle, || Some(later(*seen, s.ahead)))
}

/// Tells whoever has taken the record off that it is too late for that.
fn announce_goes_on(s: &Situation<'_>, plan: &mut Plan) {
    if let Some(lost) = &s.memory.lost {
        let told = lost.told_at().is_some();
        let event = if told { events::goes_on } else { events::goes_on_with_its_group };
        s.announce(plan, event(&lost.instance));
    }
}

/// A machine that ends this soon is drained even if somebody works on it: there is no time to ask.
const ENDS_SOON: SignedDuration = SignedDuration::from_hours(1);

/// Whether a notice asks for a drain. An instance out of service (`Standby`), which somebody works on, is drained only if its machine
/// ends soon.
fn is_to_be_drained(s: &Situation<'_>, lifecycle: Lifecycle, expected: &Expected) -> bool {
    let ends_soon = expected.ends_at.is_some_and(|at| at > s.now && at <= later(s.now, ENDS_SOON));
    let is_node = lifecycle.is_node() || lifecycle == Lifecycle::Standby && ends_soon;
    expected.treatment == Treatment::Drain && is_node
}

/// Whether a drain would leave an empty node behind: its group terminates nothing at present, and AWS does not end the machine soon.
fn would_leave_an_empty_node(s: &Situation<'_>, expected: &Expected) -> bool {
    let ends_by_itself = expected.cause == Cause::StateChange
        || expected.ends_at.is_some_and(|end| !notices::is_far(Some(end), s.now));
    !ends_by_itself && release::keeps_it(s).is_some()
}

fn without_record(s: &Situation<'_>, plan: &mut Plan) {
    match &s.instance {
        Membership::Unknown => {}
        // AWS has ended it, on our word. Its Node stays closed until it goes, unless the machine lives on.
        Membership::Elsewhere { seen }
            if (s.memory.lost.is_some() || s.is_marked_told())
                && !is_ready_without(s, *seen, LIVES_ON, plan) =>
        {
            announce_goes_on(s, plan);
            if let Some(lost) = &s.memory.lost {
                release::delete_node(s, &lost.moved(-s.ahead), plan);
            }
        }
        Membership::Elsewhere { .. } => {
            if !s.has_scale_in_marks() {
                cordon::end(s, plan);
            } else if !is_looked_after(s, plan) {
                s.patch(plan, s.take_off(), Vec::new());
            }
        }
        // In Terminating, load balancers let go of it first, for minutes: start before our hook holds it, and where none will.
        Membership::In { group, lifecycle, .. }
            if lifecycle.is_held() || *lifecycle == Lifecycle::Terminating =>
        {
            announce_goes_on(s, plan);
            begin_for_group(s, group, plan);
        }
        Membership::In { group, lifecycle: Lifecycle::Retained, .. } => begin_for_retained(s, group, plan),
        // The instance is going anyway: marks of a cancelled scale-in may stay.
        Membership::In { group, lifecycle, .. } if lifecycle.is_terminating() => {
            announce_goes_on(s, plan);
            missed(s, group, plan);
        }
        Membership::In { seen, .. } if s.has_scale_in_marks() => call_off(s, *seen, plan),
        Membership::In { group, lifecycle, .. } => begin_unasked(s, group, *lifecycle, plan),
    }
}

/// A taint that is due to be renewed has been by then: another process may have to lead first.
const RENEWED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Whether a Node of which nothing says whose it is may be another installation's, which is about to put it right: that one keeps its taint
/// fresh. An instance that we have seen in a group of ours is not.
fn is_looked_after(s: &Situation<'_>, plan: &mut Plan) -> bool {
    let is_unnamed = s.node.marks.is_none() && s.memory.first_group.is_none();
    let stale = node_patch::taint_expires(s.node).map(|at| later(s.ours(at), RENEWED_WITHIN));
    is_unnamed && stale.is_some_and(|at| !s.has_come(at, plan))
}

/// Puts a node whose record somebody has taken off back into service, unless it is too late for that.
fn call_off(s: &Situation<'_>, seen: Timestamp, plan: &mut Plan) {
    if put_back(s, plan) {
        return;
    }
    if release::may_still_end(s, seen, plan) {
        return announce_goes_on(s, plan);
    }
    let is_left_closed = s.node.marks.is_none() && s.is_closed_by_somebody();
    let why = if is_left_closed {
        events::cancelled_without_a_list()
    } else {
        let end = s.node.instance.as_ref().and_then(|instance| end_of(s, instance));
        end.map_or_else(events::cancelled_by_a_person, |end| events::cancelled_before(s.theirs(end.at)))
    };
    take_off(s, plan, why);
}

/// Begins without a request: by a notice, or because the machine has died in cluster-autoscaler's drain. Else notices may close the node.
fn begin_unasked(s: &Situation<'_>, group: &GroupName, lifecycle: Lifecycle, plan: &mut Plan) {
    if let Some(expected) = s.expected().filter(|expected| is_to_be_drained(s, lifecycle, expected)) {
        if would_leave_an_empty_node(s, &expected) {
            s.announce(plan, events::terminates_nothing(group));
            return cordon::cordon(s, plan);
        }
        if notices::may_wait(s.notices, s.now) {
            if let Some(at) = notices::not_before(s.notices, s.now) {
                plan.wake(at);
                return cordon::cordon(s, plan);
            }
            if let Turn::Waits(ahead) = (s.turn)() {
                operator_queue::wait(s, group, &ahead, plan);
                return cordon::cordon(s, plan);
            }
        }
        return begin_for_notice(s, group, &expected, plan);
    }
    if !lifecycle.is_node() || !has_died_in_its_drain(s, plan) {
        return cordon::cordon(s, plan);
    }
    let Some(instance) = &s.node.instance else { return };
    let release = release_of_surplus_instance(s);
    begin(s, Record::new(Cause::Autoscaler, group, instance, release, s.now), None, plan);
}

/// Whether a machine has died in cluster-autoscaler's drain. cluster-autoscaler waits `--max-graceful-termination-sec` for the pods that
/// it has evicted, whatever their grace, before it calls DeleteNodes: days, where long graces are not to be cut.
///
/// Source: [`waitPodsToDisappear`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-release-1.30/cluster-autoscaler/core/scaledown/actuation/drain.go).
fn has_died_in_its_drain(s: &Situation<'_>, plan: &mut Plan) -> bool {
    if !s.is_drained_by_autoscaler() || release::keeps_it(s).is_some() {
        return false;
    }
    s.look_again_while_cut_off(plan);
    // One that was lost before is removed in the ordinary way: DeleteNodes comes seconds after the taint.
    let tainted_at = node_patch::tainted_at(s.node);
    let not_before = tainted_at.map_or(Timestamp::MIN, |at| later(s.ours(at), UNABLE_FOR));
    // Nor does a kubelet confirm exits while its runtime hangs.
    let lost_at = |node| s.lost_at(node).or_else(|| s.unable_at(node));
    let lost_at = s.nodes().try_fold(not_before, |latest, node| Some(lost_at(node)?.max(latest)));
    lost_at.is_some_and(|at| s.has_come(at, plan))
}

/// Begins because the group takes the instance out, under our hook or with none at all. What only another's hook holds is its owner's.
fn begin_for_group(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let Some(instance) = &s.node.instance else { return };
    let cause = if s.hook.ours().is_some() {
        Cause::LifecycleHook
    } else if !is_unheld(s) {
        return held_by_another(s, group, instance, plan);
    } else if has_been_released(s) || s.pods.is_none() {
        // What is on it is known in a moment.
        return;
    } else {
        not_held(s, |workloads| events::not_held(group, instance, workloads), plan);
        Cause::StateChange
    };
    let record = Record::new(cause, group, instance, Release::LeftToGroup, s.now);
    let record = match &s.memory.lost {
        Some(lost) => Record {
            cause: lost.cause,
            requested_at: s.noted(lost.requested_at),
            release_by: lost.release_by.map(|at| s.noted(at)),
            limited_since: lost.limited_since.map(|at| s.noted(at)),
            terminate_at: lost.terminate_at.map(|at| s.noted(at)),
            void_termination: lost.void_termination.map(|at| s.noted(at)),
            ..record
        },
        None => record,
    };
    let record = limit::with_timeout(s, record);
    begin(s, record, s.held_by(), plan);
}

/// Whether the group ends the instance and has no hook, ours or another's, that will hold it.
fn is_unheld(s: &Situation<'_>) -> bool {
    s.hook.has_none() && matches!(s.instance, Membership::In { lifecycle: Lifecycle::Terminating, .. })
}

/// Whether ebbtide has drained the node and had AWS end the instance, by a record that is not there any more.
fn has_been_released(s: &Situation<'_>) -> bool {
    match &s.memory.lost {
        Some(lost) => lost.phase == Phase::Releasing && lost.told_at().is_some(),
        None => s.is_marked_told(),
    }
}

/// Announces, once, that no hook of ours holds an instance that the group ends. `event`: of so many workloads on its Node, if there are any.
fn not_held(s: &Situation<'_>, event: impl FnOnce(usize) -> ScaleInEvent, plan: &mut Plan) {
    if s.memory.told_not_held {
        return;
    }
    let workloads = s.workloads(None).count();
    if workloads > 0 {
        s.announce(plan, event(workloads));
    }
}

/// Announces that only another's hook holds an instance that the group ends: its owner drains it.
fn held_by_another(s: &Situation<'_>, group: &GroupName, instance: &InstanceId, plan: &mut Plan) {
    let (HookState::Known(hooks), Membership::In { lifecycle, .. }) = (&s.hook, &s.instance) else { return };
    let is_held = matches!(lifecycle, Lifecycle::Terminating | Lifecycle::TerminatingWait) && hooks.others;
    if is_held {
        not_held(s, |_| events::held_by_another(group, instance), plan);
    }
}

/// Announces that our hook is over for an instance that the group ends, before a drain of its workloads has begun.
fn missed(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let (HookState::Known(hooks), Some(instance)) = (&s.hook, &s.node.instance) else { return };
    let is_released = s.memory.lost.is_some() || s.is_marked_told();
    if hooks.ours.is_some() && !is_released {
        not_held(s, |workloads| events::missed(group, instance, workloads), plan);
    }
}

/// Begins for an instance that the group retained because its hook was abandoned. No hook limits the drain now.
fn begin_for_retained(s: &Situation<'_>, group: &GroupName, plan: &mut Plan) {
    let Some(instance) = &s.node.instance else { return };
    begin(s, Record::new(Cause::LifecycleHook, group, instance, Release::Terminate, s.now), None, plan);
}

/// Another installation in the cluster turns a request for one of its nodes into a record within this time.
const OTHERS_TAKE_IT_UP: SignedDuration = SignedDuration::from_secs(10);

fn begin_for_operator(s: &Situation<'_>, request: Request, plan: &mut Plan) {
    let (Membership::In { group, lifecycle, seen }, Some(instance)) = (&s.instance, &s.node.instance) else {
        return not_ours(s, request, plan);
    };
    if *lifecycle == Lifecycle::Retained {
        return begin_for_retained(s, group, plan);
    }
    if *lifecycle == Lifecycle::Terminating && s.hook == HookState::Unknown {
        // Its group takes it out: under which hook, is known in a moment.
        return;
    }
    let is_taken_out = *lifecycle == Lifecycle::Terminating && (s.hook.ours().is_some() || is_unheld(s));
    if is_taken_out || lifecycle.is_held() && !lifecycle.is_live() {
        return begin_for_group(s, group, plan);
    }
    if let Some(expected) = s.expected()
        && is_to_be_drained(s, *lifecycle, &expected)
        && !notices::may_wait(s.notices, s.now)
        && !would_leave_an_empty_node(s, &expected)
    {
        // It goes now, whatever requests are ahead of it.
        return begin_for_notice(s, group, &expected, plan);
    }
    // What waits, or cannot be done, is closed by notices as without a request.
    let close = |plan: &mut Plan| {
        if !s.has_scale_in_marks() {
            cordon::cordon(s, plan);
        }
    };
    let ends_at = end_of(s, instance).map(|end| end.at);
    // Held for a new root volume: its pods are to leave now, whatever becomes of the request.
    let is_held = lifecycle.is_held() && s.hook.ours().is_some();
    let may_wait = !is_held && (ends_at.is_none() || notices::is_far(ends_at, s.now));
    if may_wait && let Some(group) = release::keeps_it(s) {
        s.announce(plan, events::terminates_nothing(group));
        return close(plan);
    }
    let goes_anyway = ends_at.is_some() || notices::may_wait(s.notices, s.now);
    let Some(release) = release_of_request(s, request, *lifecycle, goes_anyway && !is_held) else {
        if is_held {
            return begin_for_group(s, group, plan);
        }
        if s.has_scale_in_marks() && !release::may_still_end(s, *seen, plan) {
            return take_off(s, plan, events::cannot_shrink(group));
        }
        s.announce(plan, events::cannot_shrink(group));
        return close(plan);
    };
    // A node still closed for an earlier scale-in, whose record this request replaced while nobody looked, need not wait for a turn.
    let is_under_way = node_patch::has_our_taint(s.node);
    if may_wait
        && !is_under_way
        && let Turn::Waits(ahead) = (s.turn)()
    {
        if request.since.is_none() {
            s.patch(plan, node_patch::with_request(s.node, &request.waiting(s.theirs(s.now))), Vec::new());
        }
        operator_queue::wait(s, group, &ahead, plan);
        return close(plan);
    }
    begin(s, Record::new(Cause::Operator, group, instance, release, s.now), None, plan);
}

/// Answers a request on a Node whose instance is in none of our groups.
fn not_ours(s: &Situation<'_>, request: Request, plan: &mut Plan) {
    let Membership::Elsewhere { seen } = s.instance else { return release::announce_undescribed(s, plan) };
    // Closed for a scale-in whose record this request replaced while nobody looked.
    if s.has_scale_in_marks() {
        return without_record(s, plan);
    }
    // One that waits for its turn has been taken up, by us only if we have seen its group.
    if request.since.is_some() && s.memory.first_group.is_none() {
        return;
    }
    if !s.has_come(later(s.record_seen, OTHERS_TAKE_IT_UP), plan) {
        return;
    }
    // A group may have launched it since AWS was looked at last.
    if seen < s.record_seen {
        release::announce_undescribed(s, plan);
        return release::refresh_after(s, s.record_seen, plan);
    }
    s.announce(plan, events::not_ours());
}

/// How to carry out a request. If the group may not shrink, an instance that goes anyway is replaced; `None`: it stays.
fn release_of_request(
    s: &Situation<'_>,
    request: Request,
    lifecycle: Lifecycle,
    goes_anyway: bool,
) -> Option<Release> {
    let shrinks = request.release == Release::TerminateAndDecrement && lifecycle.is_live();
    if !shrinks || (s.may_shrink)() {
        return Some(request.release);
    }
    goes_anyway.then_some(Release::Terminate)
}

/// Begins because a notice says that the instance may have to go.
fn begin_for_notice(s: &Situation<'_>, group: &GroupName, expected: &Expected, plan: &mut Plan) {
    let Some(instance) = &s.node.instance else { return };
    // No replacement: it would be launched into the reservation that ends; or cluster-autoscaler drains the node to shrink the group, and
    // will not ask for its deletion any more.
    let is_drained = s.node.taint(names::TO_BE_DELETED).is_some() && !s.has_scale_in_marks();
    let release = match expected.cause {
        // Whoever stops an instance may have told its group to leave it alone: the group decides what becomes of it.
        Cause::StateChange => Release::LeftToGroup,
        cause if cause == Cause::CapacityEnd || is_drained => release_of_surplus_instance(s),
        _ => Release::Terminate,
    };
    begin(s, Record::new(expected.cause, group, instance, release, s.now), None, plan);
}

/// How to release a surplus instance: with a decrement, if the group may shrink.
fn release_of_surplus_instance(s: &Situation<'_>) -> Release {
    if (s.may_shrink)() { Release::TerminateAndDecrement } else { Release::Terminate }
}

/// Begins a scale-in, limited by the hook that holds the instance (`held`), if one does.
fn begin(s: &Situation<'_>, record: Record, held: Option<HeldBy<'_>>, plan: &mut Plan) {
    let installation = s.settings.installation.clone();
    let end = end_of(s, &record.instance);
    let mut record = Record { installation, ..record.ending(end) };
    record.release_by = if record.requested_at < s.now {
        // It goes on.
        limit::effective_limit(s, &record, held)
    } else {
        deadline::limit(s.our_limit, &record, held)
    };
    let event = draining(s, &record);
    s.enter(plan, &record, Phase::Draining, event);
}

/// The Event that a drain begins, with its limit if that is known.
fn draining(s: &Situation<'_>, record: &Record) -> ScaleInEvent {
    let until = release::expected_limit(s, record).map(|by| s.theirs(by));
    let is_unlimited = s.hook != HookState::Unknown && record.release != Release::LeftToGroup;
    events::draining(record.cause, &record.instance, until, is_unlimited)
}

/// When AWS will end the machine, according to a notice or an earlier record.
fn end_of(s: &Situation<'_>, instance: &InstanceId) -> Option<End> {
    let recorded = s.memory.claims.told_end(instance).cloned();
    let recorded = recorded.map(|end| End { at: s.noted(end.at), ..end });
    let recorded = recorded.filter(|end| limit::still_ends(s, end));
    // One that has passed sets no limit: the machine was spared.
    recorded.into_iter().chain(s.told_end()).filter(|end| end.at > s.now).min_by_key(|end| end.at)
}
