//! Giving the instance back, through the group's lifecycle hook where it has ours. Pure.
//!
//! Invariants:
//! - An instance is released only while no workload is on its node, or when time is up.
//! - A termination is noted in the record before AWS is told, and not repeated before [`REPEAT_AFTER`] has passed and a
//!   look at AWS that began after that shows the instance alive: a call whose answer was lost may arrive late, looks may
//!   lag, and a second decrement ends a healthy node. Only a call that AWS refused for certain is repeated sooner.
//! - A hook of somebody else is never completed; ABANDON is never said.
//! - What the group takes out itself is not terminated, unless it keeps it (`Terminating:Retained`); what the desired
//!   capacity does not count (the same, and `Standby`) is terminated without a decrement.

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Plan};
use super::events::NodeEvent;
use super::membership::Membership;
use super::memory::Task;
use super::record::{Phase, Record, Release};
use super::situation::Situation;
use super::{deadline, events};
use crate::aws::{Hook, Lifecycle};
use crate::clock::later;
use crate::cluster::Ready;
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::GroupName;

/// How long a call to AWS may still take effect after it was made, and a look may still show what was before.
const REPEAT_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// How long an instance must have been missing from our groups before it counts as detached: one look may leave one out,
/// and the Node of one that was ended by somebody else is soon not Ready.
pub(super) const MISSING_FOR: SignedDuration = SignedDuration::from_mins(1);

/// A deadline this much off is as good as the one that can be computed: it need not be written again.
const AS_GOOD: SignedDuration = SignedDuration::from_secs(1);

/// The record as what is known now makes it, written if that is something else.
pub(super) fn brought_up_to_date(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    let (release, then) = way_of_release(s, record);
    let group = match &s.instance {
        Membership::In { group, .. } => group,
        Membership::Unknown | Membership::Elsewhere { .. } => &record.group,
    };
    let changed = Record { release, group: group.clone(), ..record.clone() };
    let changed = Record { release_by: deadline_of(s, &changed), ..changed };
    let is_as_good = match (changed.release_by, record.release_by) {
        _ if !is_deadline_known(s, &changed) => true,
        (Some(known), Some(written)) => known.duration_since(written).abs() <= AS_GOOD,
        (known, written) => known == written,
    };
    let is_same = release == record.release && *group == record.group;
    if is_as_good && is_same && s.memory.claims.not_believed().is_none() {
        return changed;
    }
    s.patch(plan, s.with_record(&changed), then);
    changed
}

/// Whether all that bears on the deadline is known. Until then nothing is cut short because the record says so, and what it
/// says stands.
fn is_deadline_known(s: &Situation<'_>, record: &Record) -> bool {
    record.release != Release::CompleteHook || (s.hook.ours().is_some() && s.held_since.is_some())
}

/// The deadline that follows from what is known now: the record may have been written anew after the hook began to hold
/// the instance, or by hand.
fn deadline_of(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    match (record.release, s.hook.ours(), s.held_since) {
        (Release::CompleteHook, Some(hook), Some(since)) => {
            deadline::limit(s.settings, record.requested_at, Some(hook), since)
        }
        _ => deadline::limit(s.settings, record.requested_at, None, s.now),
    }
}

/// How the instance is given back by now, where something else than us has changed that, and what is to be done then.
fn way_of_release(s: &Situation<'_>, record: &Record) -> (Release, Vec<Action>) {
    let Membership::In { lifecycle, .. } = &s.instance else {
        let gone = s.memory.elsewhere_since.is_some_and(|since| later(since, MISSING_FOR) <= s.now);
        // Should it come back one day, what it left for is done with.
        let done = gone && told_at(s, record).is_some();
        return (if done { Release::CompleteHook } else { record.release }, Vec::new());
    };
    if *lifecycle == Lifecycle::Retained {
        return (Release::Terminate, given_up(s, record));
    }
    // Into the pool it goes because the group is to be smaller: it is not replaced.
    (if lifecycle.is_warm() { Release::CompleteHook } else { record.release }, Vec::new())
}

/// While a node drains: where the group has our hook, the instance is terminated at once, and the record says from
/// then on that completing the hook releases it. Returns the record as it stands.
pub(super) fn take_out_of_the_group(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    let Membership::In { group, lifecycle, seen } = &s.instance else { return record.clone() };
    if lifecycle.is_terminating() {
        return taken_out(s, record, plan);
    }
    // A hook would hold a retained one again, for a time. There is no hurry: it is drained first. Beside ours, somebody else's
    // hook would have it drained by rules of their own as soon as it is held.
    let holds = matches!(&s.hook, HookState::Known(TerminatingHooks { ours: Some(_), others: false }));
    if holds && record.release != Release::CompleteHook && *lifecycle != Lifecycle::Retained {
        terminate(s, record, group, *seen, plan);
    }
    record.clone()
}

/// The group is taking the instance out, on our word or by itself.
fn taken_out(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    if record.release == Release::CompleteHook || s.hook == HookState::Unknown {
        return record.clone();
    }
    let held_since = s.held_since.unwrap_or(s.now);
    let release_by = deadline::limit(s.settings, record.requested_at, s.hook.ours(), held_since);
    let held = Record { release: Release::CompleteHook, release_by, ..record.clone() };
    s.patch(plan, s.with_record(&held), given_up(s, record));
    held
}

/// After the drain: if the group takes the instance out by itself now, it gives the replacement up as well.
pub(super) fn follow_the_group(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    match &s.instance {
        Membership::In { lifecycle, .. }
            if record.phase != Phase::Draining
                && lifecycle.is_terminating()
                && !given_up(s, record).is_empty() =>
        {
            taken_out(s, record, plan)
        }
        _ => record.clone(),
    }
}

/// The group has taken the instance out: if that was by itself, although the instance was to go for good, it is about to
/// replace it.
fn given_up(s: &Situation<'_>, record: &Record) -> Vec<Action> {
    let by_itself = told_at(s, record).is_none() && record.release == Release::TerminateAndDecrement;
    by_itself.then(|| Action::GiveUpReplacement { group: record.group.clone() }).into_iter().collect()
}

/// The instance is gone from the group, and the machine with it, before anybody here saw it terminating. One look may
/// leave out an instance that is there.
pub(super) fn ended_unseen(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) {
    let given_up = given_up(s, record);
    if s.node.ready == Ready::Yes || given_up.is_empty() {
        return;
    }
    if s.memory.elsewhere_since.is_none_or(|since| since >= seen) {
        look_after(s, s.now, plan);
    } else {
        let record = Record { release: Release::CompleteHook, ..record.clone() };
        s.patch(plan, s.with_record(&record), given_up);
    }
}

/// Says so when nothing holds the instance any more although its drain is not over: it was somebody else who completed our hook, or
/// nobody held it in time.
pub(super) fn announce_hook_over(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let Membership::In { group, lifecycle: Lifecycle::TerminatingProceed, .. } = &s.instance else { return };
    let HookState::Known(TerminatingHooks { ours: Some(hook), .. }) = &s.hook else { return };
    let is_our_doing = s.memory.tries(&Task::Complete).is_some_and(|tries| tries.ended.is_some());
    if record.phase == Phase::Releasing || is_our_doing {
        return;
    }
    s.announce(plan, events::hook_over(&hook.name, group, &record.instance, record.phase));
}

/// Goes back to draining if a workload has come to the node and there is time for it. Whether it does.
pub(super) fn go_back_for_workloads(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let has_time = record.release_by.is_none_or(|by| deadline::gone_by(by, s.flush_time(record)) > s.now);
    let goes_back = has_time && s.workloads(Some(record)).next().is_some();
    if goes_back {
        s.enter(plan, record, Phase::Draining, events::draining_again());
    }
    goes_back
}

/// Begins the release: where that means to terminate the instance, it is noted in the same write.
pub(super) fn begin(s: &Situation<'_>, record: &Record, event: NodeEvent, plan: &mut Plan) {
    let record = record.entering(Phase::Releasing, s.now);
    let Membership::In { group, lifecycle, seen } = &s.instance else {
        return s.enter_and(plan, &record, event, None);
    };
    if is_ours_to_end(&record, *lifecycle) && may_terminate(s, &record, *seen, plan) {
        let (record, terminate) = noted(s, &record, group);
        s.enter_and(plan, &record, event, Some(terminate));
    } else {
        s.enter_and(plan, &record, event, None);
    }
}

/// Plans the release of the instance.
pub(super) fn release(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let Membership::In { group, lifecycle, seen } = &s.instance else {
        if matches!(s.instance, Membership::Elsewhere { .. }) {
            s.announce(plan, events::released(&record.instance, &record.group));
        }
        return;
    };
    announce_refusal(s, record, plan);
    if *lifecycle == Lifecycle::Unknown && told_at(s, record).is_some() {
        // Taken for in service, it would lose the group a unit of its size with each try.
        return s.announce(plan, events::state_unknown(&record.instance));
    }
    if is_ours_to_end(record, *lifecycle) {
        if s.pods.is_some()
            && may_terminate(s, record, *seen, plan)
            && !go_back_for_workloads(s, record, plan)
        {
            terminate(s, record, group, *seen, plan);
        }
    } else if lifecycle.is_held()
        && let Some(hook) = s.hook.ours()
    {
        complete(s, record, hook, *seen, plan);
    }
}

/// Whether the instance is given back by terminating it: the group does not take it out by itself.
fn is_ours_to_end(record: &Record, lifecycle: Lifecycle) -> bool {
    lifecycle == Lifecycle::Retained || !lifecycle.is_terminating() && record.release != Release::CompleteHook
}

/// Whether what a look shows is newer than all that the record tells of: looks may lag. If not, AWS is looked at again.
pub(super) fn is_settled(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) -> bool {
    let last = record.requested_at.max(record.phase_since);
    let again = later(record.terminate_at.map_or(last, |at| at.max(last)), REPEAT_AFTER);
    if seen < again {
        look_after(s, again, plan);
    }
    seen >= again
}

fn complete(s: &Situation<'_>, record: &Record, hook: &Hook, seen: Timestamp, plan: &mut Plan) {
    let tries = s.memory.tries(&Task::Complete);
    if let Some(done) = tries.filter(|tries| tries.done).and_then(|tries| tries.ended) {
        let again = later(done, REPEAT_AFTER);
        if seen < again {
            return look_after(s, again, plan);
        }
    }
    if s.pods.is_none()
        || tries.is_some_and(|tries| tries.in_flight)
        || go_back_for_workloads(s, record, plan)
    {
        return;
    }
    let instance = record.instance.clone();
    s.attempt(plan, &Task::Complete, || Action::CompleteHook { hook: hook.clone(), instance });
}

fn terminate(s: &Situation<'_>, record: &Record, group: &GroupName, seen: Timestamp, plan: &mut Plan) {
    announce_refusal(s, record, plan);
    if may_terminate(s, record, seen, plan) {
        let (record, terminate) = noted(s, record, group);
        s.patch(plan, s.with_record(&record), vec![terminate]);
    }
}

/// When AWS was told to terminate the instance, unless it certainly did not do so then. The call may have waited for its
/// turn after it was noted.
pub(super) fn told_at(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let noted = record.terminate_at.filter(|at| s.memory.void_termination != Some(*at));
    noted.max(s.memory.told_at)
}

/// Whether AWS may be told now, without the danger that it is told twice.
fn may_terminate(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) -> bool {
    if let Some(at) = told_at(s, record) {
        let again = later(at, REPEAT_AFTER);
        if seen < again {
            look_after(s, again, plan);
            return false;
        }
    }
    match s.memory.may_try_at(&Task::Terminate) {
        Some(at) if at <= s.now => true,
        Some(at) => {
            plan.wake(at);
            false
        }
        None => false,
    }
}

/// The record that says that AWS is told now, and what tells it. Only what the desired capacity counts comes off it; AWS
/// refuses a decrement for a retained instance, and does not say what it does for one in Standby.
///
/// Source: [Manage retained
/// instances](https://docs.aws.amazon.com/autoscaling/ec2/userguide/manage-retained-instances.html).
fn noted(s: &Situation<'_>, record: &Record, group: &GroupName) -> (Record, Action) {
    let counts = matches!(&s.instance, Membership::In { lifecycle, .. } if lifecycle.is_live());
    let terminate = Action::Terminate {
        group: group.to_owned(),
        instance: record.instance.clone(),
        decrement: record.release == Release::TerminateAndDecrement && counts,
        under_hook: record.phase == Phase::Draining,
        noted_at: s.now,
    };
    (Record { terminate_at: Some(s.now), ..record.clone() }, terminate)
}

/// Has AWS looked at once `moment` has come: only a look that begins after that tells.
pub(super) fn look_after(s: &Situation<'_>, moment: Timestamp, plan: &mut Plan) {
    if moment > s.now {
        plan.wake(moment);
    } else {
        s.attempt(plan, &Task::Look, || Action::LookAtAws);
    }
}

/// Tells people what AWS says when it refuses to let the instance go.
fn announce_refusal(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if let Some(words) = &s.memory.refused_by_aws {
        s.announce(plan, events::release_refused(&record.instance, words));
    }
}
