//! Giving the instance back, through our lifecycle hook if the group has it. Pure.
//!
//! Invariants:
//! - An instance is released only when no workload is on its node, or when time is up.
//! - A termination is noted in the record before AWS is called. It is repeated only after a pause and a later refresh that shows the
//!   instance alive: a call whose answer was lost may take effect late, refreshes lag, and a second decrement ends a healthy node. The
//!   pause is [`SETTLED_AFTER`] without a decrement; with one, [`DELIVERED_WITHIN`] if AWS did not answer, [`SENT_WITHIN`] and
//!   [`SIGNATURE_LIFE`] if AWS acknowledged it or another process noted it. Only a call that AWS certainly refused is repeated sooner.
//! - Hooks of others are never completed; ABANDON is never sent.
//! - What the group takes out itself is not terminated, unless retained (`Terminating:Retained`). Instances outside the
//!   desired capacity (retained, `Standby`) are terminated without a decrement.

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Plan};
use super::deadline::{HeldBy, SAME_WITHIN, limited};
use super::deletion::cut_off;
use super::events::ScaleInEvent;
use super::holds::{Heartbeats, Hold};
use super::membership::{Membership, SETTLED_AFTER};
use super::record::{Phase, Record, Release};
use super::situation::Situation;
use super::tries::Task;
use super::{deadline, events, limit};
use crate::aws::{DELIVERED_WITHIN, Hook, Lifecycle};
use crate::clock::{later, signed};
use crate::cluster::Ready;
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::{GroupName, InstanceId};

/// A termination that has waited longer than this is noted anew, since other runs go by the noted time. The write of the note comes first,
/// and may take as long as admission webhooks hang.
pub(super) const SENT_WITHIN: SignedDuration = SignedDuration::from_secs(45);

/// How long AWS accepts a request after it was signed. A process that was stopped just before sending a termination sends it when it goes
/// on, so a termination that another process has noted may take effect this much later.
///
/// Source: [Signing AWS API
/// requests](https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html): a request must reach AWS within five
/// minutes of its time stamp.
const SIGNATURE_LIFE: SignedDuration = SignedDuration::from_mins(5);

/// A termination that a description this much younger does not show publishes an Event.
const UNSHOWN: SignedDuration = SignedDuration::from_secs(30);

/// A wait for a list of the node's pods publishes an Event after this long. A list takes seconds.
const ANNOUNCE_UNLISTED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// An instance that AWS ends, and that no lifecycle hook holds this long after everything was done, publishes an Event.
const ANNOUNCE_NOT_HELD_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// What waits for a description, while AWS has given none for this long, publishes an Event.
const ANNOUNCE_UNDESCRIBED_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// How long a list of the node's pods counts.
const LISTED_FOR: SignedDuration = SignedDuration::from_secs(5);

/// Once AWS has denied a heartbeat, our hook is to hold no instance. After this time, one more heartbeat is tried.
const DENIED_FOR: SignedDuration = SignedDuration::from_mins(5);

/// A heartbeat that has had no answer for this long is not waited for.
const HEARTBEAT_ANSWERED_WITHIN: SignedDuration = SignedDuration::from_secs(2);

/// How long an instance must be missing from our groups before it counts as detached: one refresh may leave it out, and if
/// somebody ended the machine, its Node soon stops being Ready.
pub(super) const MISSING_FOR: SignedDuration = SignedDuration::from_mins(1);

/// The record brought up to date; written if that changes it.
pub(super) fn brought_up_to_date(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    let (release, then) = way_of_release(s, record);
    let group = match &s.instance {
        Membership::In { group, .. } => group,
        Membership::Unknown | Membership::Elsewhere { .. } => &record.group,
    };
    // A cause that comes later may shorten the deadline, never lengthen it: only what AWS takes back counts no more.
    let told = s.told_end().filter(|end| end.at > s.now);
    let recorded = record.end().filter(|end| limit::still_ends(s, end));
    let end = recorded.into_iter().chain(told).min_by_key(|end| end.at);
    let void_termination =
        if is_refused_for_now(s, record) { record.terminate_at } else { record.void_termination };
    let changed = Record { release, group: group.clone(), void_termination, ..record.clone().ending(end) };
    let changed = if s.held.is_some() { limit::with_timeout(s, changed) } else { changed };
    let release_by = limit::deadline_of(s, &changed);
    let is_known = limit::is_deadline_known(s, &changed);
    // A machine's end that is told later limits it from now on, whatever else is not known yet.
    let changed = if is_known || changed.ends_at != record.ends_at {
        limited(&changed, release_by, s.now)
    } else {
        Record { release_by, ..changed }
    };
    let is_as_good = match (release_by, record.release_by) {
        _ if !is_known => true,
        (Some(known), Some(written)) => known.duration_since(written).abs() <= SAME_WITHIN,
        (known, written) => known == written,
    };
    let (release_by, limited_since) = (record.release_by, record.limited_since);
    let is_same = Record { release_by, limited_since, ..changed.clone() } == *record;
    if is_as_good && is_same && s.memory.claims.not_believed().is_none() {
        return changed;
    }
    s.patch(plan, s.with_record(&changed), then.into_iter().collect());
    changed
}

/// Whether the noted termination certainly had no effect. That is recorded before the next try: another leader would wait minutes for it.
fn is_refused_for_now(s: &Situation<'_>, record: &Record) -> bool {
    // An earlier one that had no answer is noted no more, and may still arrive.
    let is_settled = s.memory.told_at.is_none_or(|told| settled_at(s, told, false) <= s.now);
    let is_void = is_settled && record.told_at().is_some_and(|at| s.memory.is_void(at));
    is_void && s.memory.tries(&Task::Terminate).may_begin_at().is_some_and(|at| at > s.now)
}

/// How to give the instance back if something other than us has changed that, and what else to do then.
fn way_of_release(s: &Situation<'_>, record: &Record) -> (Release, Option<Action>) {
    let Membership::In { lifecycle, seen: described, .. } = &s.instance else {
        let Membership::Elsewhere { seen } = &s.instance else { return (record.release, None) };
        let gone = s.memory.elsewhere_since.is_some_and(|since| later(since, MISSING_FOR) <= *seen);
        // If it ever comes back, this scale-in is over.
        let done = gone && told_at(s, record).is_some();
        return (if done { Release::LeftToGroup } else { record.release }, None);
    };
    if *lifecycle == Lifecycle::Retained {
        return (Release::Terminate, give_up_replacement(s, record));
    }
    if record.ends_at.is_some()
        && record.release == Release::TerminateAndDecrement
        && s.refused_at_minimum().is_some()
    {
        return (Release::Terminate, None);
    }
    // An earlier decrement may still arrive until it has settled.
    if record.release == Release::TerminateAndDecrement
        && told_at(s, record).is_none_or(|at| settled_at(s, at, false) <= *described)
        && (s.is_replaced_first)()
    {
        return (Release::Terminate, None);
    }
    // It goes into the warm pool because the group shrinks: no replacement comes.
    (if lifecycle.is_warm() { Release::LeftToGroup } else { record.release }, None)
}

/// While a node drains: if the group has our hook, terminates the instance at once; from then on the record says
/// that completing the hook releases it. Returns the record as it stands.
pub(super) fn take_out_of_the_group(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    let Membership::In { group, lifecycle, seen } = &s.instance else { return record.clone() };
    if lifecycle.is_terminating() {
        return leave_by_hook(s, record, plan);
    }
    if is_to_be_held(s, record) {
        if let Some(not_before) = not_held_before(s, record) {
            plan.wake(not_before);
            return record.clone();
        }
        // If this process no longer led when it was to send what it had noted, the next leader would take it for sent, for minutes.
        if let Some(until) = s.others_may_lead_until().filter(|_| s.is_our_own_node()) {
            plan.wake(until);
        } else if ensure_heartbeats(s, record, plan) {
            announce_refusal(s, record, plan);
            terminate(s, record, group, *seen, plan);
        }
    }
    record.clone()
}

/// Whether AWS accepts heartbeats for instances of the group. If that is unknown, or AWS denied one a while ago, one is tried for this
/// instance: AWS checks rights first, and too early it does no harm. It comes before the termination is noted: another leader would take
/// the note for sent.
fn ensure_heartbeats(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let Some(hook) = s.hook.ours() else { return true };
    let not_before = match s.heartbeats {
        Heartbeats::Taken => return true,
        Heartbeats::Unknown => s.now,
        Heartbeats::DeniedAt(at) => later(at, DENIED_FOR),
    };
    if s.has_come(not_before, plan) {
        let (hook, instance) = (hook.clone(), record.instance.clone());
        s.attempt(plan, s.memory.tries(&Task::Heartbeat), || Action::Heartbeat { hook, instance });
    }
    false
}

/// Whether a heartbeat is being tried that decides whether the instance is terminated now, under our hook, or after the flush. It is answered
/// in a moment.
pub(super) fn awaits_heartbeat(s: &Situation<'_>, plan: &mut Plan) -> bool {
    let is_planned = plan.actions.iter().any(|action| matches!(action, Action::Heartbeat { .. }));
    let tries = s.memory.tries(&Task::Heartbeat);
    let began = if is_planned { Some(s.now) } else { tries.began.filter(|_| tries.in_flight) };
    let until = began.map(|began| later(began, HEARTBEAT_ANSWERED_WITHIN)).filter(|until| *until > s.now);
    plan.wake(until);
    until.is_some()
}

/// Whether our hook is to hold the instance while it drains, if AWS accepts heartbeats. Not if it is retained: a hook would hold it again,
/// for a limited time; nor if it is being detached, and so no longer the group's; nor beside another's hook.
fn is_to_be_held(s: &Situation<'_>, record: &Record) -> bool {
    let may_be = matches!(&s.instance, Membership::In { lifecycle, .. } if !matches!(lifecycle, Lifecycle::Retained | Lifecycle::Detaching));
    s.hook.is_ours_alone() && may_be && record.release != Release::LeftToGroup
}

/// Until when the hook must not hold the instance yet: its limit would end the drain long before AWS ends the machine.
fn not_held_before(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let (hook, end) = s.hook.ours().zip(record.ends_at)?;
    Some(later(end, -signed(hook.drain_limit()))).filter(|at| *at > s.now)
}

/// The limit of a drain that begins. Where our hook is about to hold the instance, the limit that it will have then.
pub(super) fn expected_limit(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let is_held = is_to_be_held(s, record) && !matches!(s.heartbeats, Heartbeats::DeniedAt(_));
    if is_held && not_held_before(s, record).is_none() {
        return deadline::limit(s.our_limit, record, s.held_by());
    }
    record.release_by
}

/// The group is taking the instance out, on our word or by itself: from now on completing our hook releases it. Returns the record as it
/// stands.
fn leave_by_hook(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    if record.release == Release::LeftToGroup || s.hook == HookState::Unknown {
        return record.clone();
    }
    let release_by = limit::effective_limit(s, record, s.held_by());
    let held = Record { release: Release::LeftToGroup, ..limited(record, release_by, s.now) };
    let held = limit::with_timeout(s, held);
    s.patch(plan, s.with_record(&held), give_up_replacement(s, record).into_iter().collect());
    held
}

/// After the drain: if the group takes the instance out by itself, gives up the replacement as well.
pub(super) fn follow_the_group(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    match &s.instance {
        Membership::In { lifecycle, .. }
            if record.phase != Phase::Draining
                && lifecycle.is_terminating()
                && give_up_replacement(s, record).is_some() =>
        {
            leave_by_hook(s, record, plan)
        }
        _ => record.clone(),
    }
}

/// If the group by itself took out an instance that was to go for good: gives up the replacement it is about to launch.
fn give_up_replacement(s: &Situation<'_>, record: &Record) -> Option<Action> {
    let by_itself = told_at(s, record).is_none() && record.release == Release::TerminateAndDecrement;
    by_itself
        .then(|| Action::GiveUpReplacement { group: record.group.clone(), requested_at: record.requested_at })
}

/// The instance is gone from the group, and its machine with it, before anybody here saw it terminating. Waits for a
/// second refresh: one may leave an instance out.
pub(super) fn ended_unseen(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) {
    let Some(give_up) = give_up_replacement(s, record).filter(|_| s.node.ready != Ready::Yes) else { return };
    if s.memory.elsewhere_since.is_none_or(|since| since >= seen) {
        refresh_after(s, s.now, plan);
    } else {
        let record = Record { release: Release::LeftToGroup, ..record.clone() };
        s.patch(plan, s.with_record(&record), vec![give_up]);
    }
}

/// Deletes the Node of an instance that is gone for as long as the settings say, which is the cloud controller's work where there
/// is one. Not a Ready one: a kubelet speaks for it.
pub(super) fn delete_node(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let (Some(after), Membership::Elsewhere { seen }) = (s.settings.delete_node_after, &s.instance) else {
        return;
    };
    let ended = record.ends_at.is_some_and(|at| at <= s.now);
    if s.node.ready == Ready::Yes || !(ended || record_says_taken_out(s, record)) {
        return;
    }
    if is_missing_for(s, *seen, signed(after), plan) && !plan.writes_node() {
        let event = events::node_deleted(&record.instance, after);
        let instance = record.instance.clone();
        s.attempt(plan, s.memory.tries(&Task::Delete), || Action::DeleteNode { instance, event });
    }
}

/// Whether the instance has been taken out of its group, by us or by the group, as far as the record says.
pub(super) fn record_says_taken_out(s: &Situation<'_>, record: &Record) -> bool {
    told_at(s, record).is_some() || record.release == Release::LeftToGroup
}

/// Whether the instance has been in none of our groups for `duration`, by the refresh of `seen`.
pub(super) fn is_missing_for(
    s: &Situation<'_>,
    seen: Timestamp,
    duration: SignedDuration,
    plan: &mut Plan,
) -> bool {
    let Some(since) = s.memory.elsewhere_since else { return false };
    let over = later(since, duration);
    if seen < over {
        refresh_after(s, over, plan);
    }
    seen >= over
}

/// Announces that our hook ends before its longest hold, as AWS takes no heartbeats.
pub(super) fn announce_hook_ending(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if record.phase == Phase::Releasing || !limit::is_bound_by_the_hook(s, record) {
        return;
    }
    let Some(HeldBy { hook, hold: Hold { ends: Some(ends), .. } }) = s.held_by() else { return };
    if ends > s.now {
        s.announce(plan, events::hook_ending(&hook.name, &record.group, &record.instance, s.theirs(ends)));
    }
}

/// Announces that no hook holds the instance any more before its drain is over: somebody else completed ours, or no
/// heartbeat came in time. Descriptions may leave an instance out for which AWS takes heartbeats.
pub(super) fn announce_hook_over(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let group = match &s.instance {
        Membership::In { group, lifecycle: Lifecycle::TerminatingProceed, .. } => group,
        Membership::Elsewhere { seen }
            if record.release == Release::LeftToGroup
                && s.memory.elsewhere_since.is_some_and(|since| since < *seen)
                && !s.held.is_some_and(|held| held.is_renewed) =>
        {
            &record.group
        }
        _ => return,
    };
    let hook = s.hook.ours().map(|hook| hook.name.as_str());
    // Ours may have been deleted meanwhile: the record tells that it held the instance.
    if hook.is_none() && record.heartbeat_timeout_seconds.is_none() {
        return;
    }
    let is_our_doing = s.memory.tries(&Task::Complete).ended.is_some();
    if record.phase == Phase::Releasing || is_our_doing {
        return;
    }
    s.announce(plan, events::hook_over(hook, group, &record.instance, record.phase));
}

/// Goes back to draining if a workload has come to the node and there is time. Returns whether it does.
pub(super) fn go_back_for_workloads(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let has_time =
        record.release_by.is_none_or(|by| deadline::gone_by(by, s.time_for_daemons(record)) > s.now);
    let goes_back = has_time && s.workloads(Some(record)).next().is_some();
    if goes_back {
        s.enter(plan, record, Phase::Draining, events::draining_again());
    }
    goes_back
}

/// Begins the release. If that means terminating the instance, the same write notes it.
pub(super) fn begin(s: &Situation<'_>, record: &Record, event: ScaleInEvent, plan: &mut Plan) {
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
    if !s.is_away() {
        announce_undescribed(s, plan);
    }
    let Membership::In { group, lifecycle, seen } = &s.instance else {
        // One that somebody has detached lives on.
        let may_be_off = record_says_taken_out(s, record) || s.node.ready != Ready::Yes;
        if may_be_off && matches!(s.instance, Membership::Elsewhere { .. }) {
            s.announce(plan, events::released(&record.instance, &record.group));
        }
        return;
    };
    announce_refusal(s, record, plan);
    if is_told_and_in_a_state_unknown(s, record, plan) {
        return;
    }
    // Which pods have been bound to the node meanwhile is known only once they are listed.
    let hard = deadline::released_anyway(record);
    if s.is_relisting && hard.is_none_or(|hard| hard > s.now) {
        announce_unlisted(s, plan);
        plan.wake(hard);
        return;
    }
    // Comes first: a termination that was noted may still wait to be sent, and is sent only in this phase.
    if may_go_back(s, record, *lifecycle, *seen) && go_back_for_workloads(s, record, plan) {
        return;
    }
    if is_ours_to_end(record, *lifecycle) {
        if s.pods.is_some()
            && may_terminate(s, record, *seen, plan)
            && ensure_listed(&Task::Terminate, s, record, plan)
        {
            terminate(s, record, group, *seen, plan);
        }
    } else if lifecycle.is_held()
        && let Some(hook) = s.hook.ours()
    {
        complete(s, record, hook, *seen, plan);
    } else if *lifecycle == Lifecycle::Terminating {
        not_held_yet(s, record, *seen, plan);
    }
    hold_of_another(s, record, group, *lifecycle, *seen, plan);
}

/// Whether the node's pods were listed a moment ago and the watch shows them all; if not, has them listed before the next try of `task`. An
/// API server that dies leaves its watches silent, not broken, for a minute, and a pod may have been bound to the node since. At the
/// deadline, a missing list holds nothing up.
pub(super) fn ensure_listed(task: &Task, s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let is_due = s.memory.tries(task).may_begin_at().is_some_and(|at| at <= s.now);
    let is_recent = s.listed_at.is_some_and(|at| later(at, LISTED_FOR) > s.now);
    let hard = deadline::released_anyway(record);
    if !is_due || is_recent || hard.is_some_and(|hard| hard <= s.now) {
        return true;
    }
    plan.wake(hard);
    if s.memory.is_listing_failing() {
        announce_unlisted_since(s, record.phase_since, plan);
    }
    list_pods(s, plan);
    false
}

/// Has the node's pods listed, which shows whether the watch has missed something.
pub(super) fn list_pods(s: &Situation<'_>, plan: &mut Plan) {
    if !plan.actions.iter().any(|action| matches!(action, Action::ListPods { .. })) {
        let nodes = s.nodes().map(|node| node.name.clone()).collect();
        s.attempt(plan, s.memory.tries(&Task::ListPods), || Action::ListPods { nodes });
    }
}

/// Announces, after a while, that the drain or the release waits because the node's pods cannot be listed.
pub(super) fn announce_unlisted(s: &Situation<'_>, plan: &mut Plan) {
    announce_unlisted_since(s, s.memory.unlisted_since.unwrap_or(s.now), plan);
}

fn announce_unlisted_since(s: &Situation<'_>, since: Timestamp, plan: &mut Plan) {
    if s.has_come(later(since, ANNOUNCE_UNLISTED_AFTER), plan) {
        s.announce(plan, events::waiting_for_a_list());
    }
}

/// Whether the machine still runs for a workload that comes: it is ours to end, or a hook holds it or will, or its group ends it by itself
/// and has load balancers let go of it first. Our hook does not hold it once we have completed it.
fn may_go_back(s: &Situation<'_>, record: &Record, lifecycle: Lifecycle, seen: Timestamp) -> bool {
    let completion = s.memory.tries(&Task::Complete);
    let is_completed = completion.done && completion.ended.is_some_and(|at| seen < later(at, SETTLED_AFTER));
    let is_held = lifecycle.is_held() && !completion.in_flight && !is_completed;
    is_ours_to_end(record, lifecycle)
        || is_held
        || lifecycle == Lifecycle::Terminating && (is_to_come_to_hooks(s) || told_at(s, record).is_none())
}

/// Whether the group has a terminating hook, ours or another's.
fn is_to_come_to_hooks(s: &Situation<'_>) -> bool {
    s.hook.has_any()
}

/// AWS has begun to end the instance, and reaches its lifecycle hooks once load balancers have let go of it: in minutes, an hour at most.
/// A workload that comes too late for its grace is asked to go all the same.
fn not_held_yet(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) {
    if is_to_come_to_hooks(s) {
        for (pod, _) in s.workloads(Some(record)) {
            cut_off(s, record, pod, record.phase_since, plan);
        }
        if seen >= later(record.phase_since, ANNOUNCE_NOT_HELD_AFTER) {
            s.announce(plan, events::waiting_for_its_hooks(&record.instance));
        }
    }
}

/// Announces that only another's hook still holds the instance, by a refresh that began after ours was completed. If somebody else or an
/// earlier run completed ours, AWS calls it not active, as it does for some seconds before a hook opens.
fn hold_of_another(
    s: &Situation<'_>,
    record: &Record,
    group: &GroupName,
    lifecycle: Lifecycle,
    seen: Timestamp,
    plan: &mut Plan,
) {
    let HookState::Known(TerminatingHooks { ours, others: true, .. }) = &s.hook else { return };
    let completion = s.memory.tries(&Task::Complete);
    let over_since = s.memory.of_scale_in.not_held_by_ours_since.map(|at| later(at, SETTLED_AFTER));
    let over_since = over_since.or(completion.ended.filter(|_| completion.done));
    let is_completed = over_since.is_some_and(|at| at < seen);
    if lifecycle.is_held() && (ours.is_none() || is_completed) {
        plan.held_by_another = true;
        s.announce(plan, events::waiting_for_anothers_hook(&record.instance, group));
    }
}

/// Whether to release by terminating: neither does the group take the instance out by itself, nor is somebody detaching it.
fn is_ours_to_end(record: &Record, lifecycle: Lifecycle) -> bool {
    let is_leaving = lifecycle.is_terminating() || lifecycle == Lifecycle::Detaching;
    lifecycle == Lifecycle::Retained || !is_leaving && record.release != Release::LeftToGroup
}

/// Whether the refresh is newer than everything in the record, as refreshes lag. If not, asks for another.
pub(super) fn ensure_settled(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) -> bool {
    let last = record.requested_at.max(record.phase_since);
    let again = later(record.terminate_at.map_or(last, |at| at.max(last)), SETTLED_AFTER);
    if seen < again {
        refresh_after(s, again, plan);
    }
    seen >= again
}

fn complete(s: &Situation<'_>, record: &Record, hook: &Hook, seen: Timestamp, plan: &mut Plan) {
    let tries = s.memory.tries(&Task::Complete);
    if let Some(done) = tries.ended.filter(|_| tries.done) {
        let again = later(done, SETTLED_AFTER);
        if seen < again {
            return refresh_after(s, again, plan);
        }
    }
    if s.pods.is_none() || tries.in_flight || !ensure_listed(&Task::Complete, s, record, plan) {
        return;
    }
    let instance = record.instance.clone();
    s.attempt(plan, tries, || Action::CompleteHook { hook: hook.clone(), instance });
}

fn terminate(s: &Situation<'_>, record: &Record, group: &GroupName, seen: Timestamp, plan: &mut Plan) {
    if may_terminate(s, record, seen, plan) {
        let (record, terminate) = noted(s, record, group);
        s.patch(plan, s.with_record(&record), vec![terminate]);
    }
}

/// When AWS was told to terminate the instance, ignoring calls that certainly had no effect. That may be later than noted: the call may
/// have waited for the group's lock. A call for an earlier, cancelled scale-in of the node counts while it may still take effect.
pub(super) fn told_at(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let is_sent = |at: &Timestamp| !s.memory.is_void(*at);
    let counts = |at: &Timestamp| later(*at, SIGNATURE_LIFE) > record.requested_at;
    record.told_at().filter(is_sent).max(told_before(s, &record.instance).filter(counts))
}

/// When AWS was told to terminate the instance: by this process, or by an earlier one, according to a record that may be gone.
fn told_before(s: &Situation<'_>, instance: &InstanceId) -> Option<Timestamp> {
    let noted = s.memory.claims.told_termination(instance).map(|at| s.noted(at));
    s.memory.told_at.max(noted.filter(|at| !s.memory.is_void(*at)))
}

/// Whether AWS was told to terminate an instance that it shows in a state we do not know. Such a state counts as in service, so each
/// further try could lower the desired capacity again.
fn is_told_and_in_a_state_unknown(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    let is_unknown = matches!(&s.instance, Membership::In { lifecycle: Lifecycle::Unknown, .. });
    let is_so = is_unknown && told_at(s, record).is_some();
    if is_so {
        s.announce(plan, events::state_unknown(&record.instance));
    }
    is_so
}

/// When a termination sent at `at` has certainly shown its effect, so that another one may be sent:
/// - where a second one does no harm (`is_repeatable`): after [`SETTLED_AFTER`];
/// - sent by another run, or acknowledged by AWS: when its signature has expired;
/// - sent by this run, and not answered: when a connection that was cut can deliver it no more.
fn settled_at(s: &Situation<'_>, at: Timestamp, is_repeatable: bool) -> Timestamp {
    let is_anothers = s.memory.told_at.is_none_or(|told| told < at);
    let settles = match (is_repeatable, is_anothers || s.memory.is_acknowledged) {
        (true, _) => SETTLED_AFTER,
        (false, true) => SENT_WITHIN + SIGNATURE_LIFE,
        (false, false) => DELIVERED_WITHIN,
    };
    later(at, settles)
}

/// The group that has the instance in service and ends none on request now, as when Terminate is suspended: nothing goes.
pub(super) fn keeps_it<'a>(s: &'a Situation<'_>) -> Option<&'a GroupName> {
    match &s.instance {
        Membership::In { group, lifecycle, .. } if lifecycle.is_live() && (s.group_keeps_its_nodes)() => {
            Some(group)
        }
        _ => None,
    }
}

/// Whether AWS may be told now without the risk of telling it twice.
fn may_terminate(s: &Situation<'_>, record: &Record, seen: Timestamp, plan: &mut Plan) -> bool {
    if is_told_and_in_a_state_unknown(s, record, plan) {
        return false;
    }
    if let Some(group) = keeps_it(s) {
        s.announce(plan, events::terminates_nothing(group));
        return false;
    }
    if let Some(at) = told_at(s, record) {
        let settled = settled_at(s, at, record.release != Release::TerminateAndDecrement);
        if seen < settled {
            announce_unshown(s, record, at, settled, plan);
            refresh_after(s, settled, plan);
            return false;
        }
    }
    s.memory.tries(&Task::Terminate).may_begin_at().is_some_and(|at| s.has_come(at, plan))
}

/// Announces that a description (`seen`) that is so much younger than a termination sent at `at` does not show it: the call may have been
/// lost.
fn announce_unshown(s: &Situation<'_>, record: &Record, at: Timestamp, settled: Timestamp, plan: &mut Plan) {
    let Membership::In { seen, .. } = &s.instance else { return };
    let is_sent = !s.memory.tries(&Task::Terminate).in_flight;
    // Where the size stays, another one does no harm and is sent soon.
    if is_sent && *seen >= later(at, UNSHOWN) && record.release == Release::TerminateAndDecrement {
        s.announce(plan, events::termination_unshown(&record.instance, s.theirs(at), s.theirs(settled)));
    }
}

/// Whether a termination sent for a scale-in that has since been called off may still end the instance, unseen so far. Meanwhile, its node
/// stays closed.
pub(super) fn may_still_end(s: &Situation<'_>, seen: Timestamp, plan: &mut Plan) -> bool {
    if s.memory.tries(&Task::Terminate).in_flight {
        return true;
    }
    let Some(at) = s.node.instance.as_ref().and_then(|instance| told_before(s, instance)) else {
        return false;
    };
    let settled = settled_at(s, at, false);
    if seen < settled {
        refresh_after(s, settled, plan);
    }
    seen < settled
}

/// The record that notes the termination, and the action. Decrements only for what the desired capacity counts: AWS
/// refuses it for a retained instance, and does not document it for Standby.
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
    (Record { terminate_at: Some(s.now), void_termination: None, ..record.clone() }, terminate)
}

/// Asks for a refresh that begins after `moment`: no earlier one tells.
pub(super) fn refresh_after(s: &Situation<'_>, moment: Timestamp, plan: &mut Plan) {
    if s.has_come(moment, plan) {
        s.attempt(plan, s.memory.tries(&Task::Refresh), || Action::Refresh);
    }
}

/// Announces, after a while, that AWS does not describe the groups. Looks again in a while if it does: no refresh that fails is told.
pub(super) fn announce_undescribed(s: &Situation<'_>, plan: &mut Plan) {
    let since = s.undescribed_since.unwrap_or(s.now);
    if s.has_come(later(since, ANNOUNCE_UNDESCRIBED_AFTER), plan) {
        s.announce(plan, events::waiting_for_a_description(s.theirs(since)));
    }
}

/// Announces why AWS refuses to release the instance.
fn announce_refusal(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if let Some(words) = s.memory.refused_by_aws() {
        s.announce(plan, events::release_refused(&record.instance, words));
    }
}
