//! Draining: evicts workloads, under their disruption budgets and with full grace. Pure.
//!
//! Lowest [order](super::order) first, and within it lowest priority. A level is asked once every pod below it has
//! answered, not once it has gone: that would add up grace periods and cost higher levels their time.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Ask, Plan};
use super::asked::{Asked, BLOCKED, Obstacle};
use super::class::{Class, is_patient, patient_until, unreadable_wishes};
use super::deadline::{self, cut, grace_to_ask, last_call, soft_limit};
use super::deletion::{ask_workload, cut_off, cut_short, delete};
use super::events::ScaleInEvent;
use super::eviction_rate::Permit;
use super::record::{Phase, Record};
use super::returns::Returns;
use super::situation::{Situation, TWINS_CONFIRM_WITHIN};
use super::tries::Task;
use super::waiting::{WaitReason, Waiting};
use super::{events, order, release};
use crate::clock::later;
use crate::cluster::{BudgetSeen, PodName, PodView};

/// A pod that was asked to go and shows no sign of it is asked again after this time.
pub(super) const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(30);

/// A watch shows an evicted pod's deletion within this time. If not, the pod still gets its last call: a webhook may have made the
/// eviction a dry run.
const SHOWN_WITHIN: SignedDuration = SignedDuration::from_secs(5);

/// A pod still there this long after its grace is reported as overdue.
pub(super) const OVERDUE_AFTER: SignedDuration = SignedDuration::from_mins(1);

/// An eviction that has had no answer for this long counts as refused at the pod's last call: a webhook may hang three times as long.
const UNANSWERED: SignedDuration = SignedDuration::from_secs(10);

/// While its limit is this near, a pod that a budget keeps is asked every [`BLOCKED`].
const NEAR: SignedDuration = SignedDuration::from_mins(5);

/// At most this many reasons for refused evictions are announced per node within five minutes: a webhook may give a new one each time.
const REASONS: usize = 3;

/// What the API server says of a pod that several budgets cover.
///
/// Source: [`eviction.go`](https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go).
pub(super) const SEVERAL_BUDGETS: &str = "more than one PodDisruptionBudget";

/// A pod of the node with its class.
type Classified<'a> = (&'a PodView, Class);

/// Plans the draining of a node.
pub(super) fn drain(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    // If our hook will hold the instance, take it out of the group first and drain while it is held.
    let record = release::take_out_of_the_group(s, record, plan);
    if plan.writes_node() {
        // The deadline is being written; it decides how much grace to ask for.
        return;
    }
    if s.pods.is_none() {
        return release::announce_unlisted(s, plan);
    }
    let pods: Vec<Classified<'_>> = s.classified(Some(&record)).collect();
    announce_given_up(s, &record, &pods, plan);
    let limit = record.release_by.map(|by| deadline::gone_by(by, s.time_for_daemons(&record)));
    plan.asks_last = asks_last(s, &pods, limit, plan);
    let pods = if plan.asks_last.is_some() { s.last_round(&record).collect() } else { pods };
    let last_round_ends = plan.asks_last.or_else(|| s.memory.of_scale_in.returns.asked_last_until());
    let workloads: Vec<Classified<'_>> = pods.into_iter().filter(|(_, class)| class.is_workload()).collect();
    let late = limit.is_some_and(|limit| limit <= s.now);
    if late {
        // Deadline passed: delete the rest with 1 s grace so that they get SIGTERM.
        for (pod, _) in &workloads {
            cut_off(s, &record, pod, limit.unwrap_or(s.now), plan);
        }
    }
    if workloads.is_empty() && !late && s.is_relisting {
        // Pods bound to the node meanwhile are known only once the list is in.
        plan.wake(limit);
        return release::announce_unlisted(s, plan);
    }
    if workloads.is_empty() && !late && (s.awaits_daemon_sets() || release::awaits_heartbeat(s, plan)) {
        plan.wake(limit);
        return;
    }
    if workloads.is_empty() || late {
        return enter_flushing(s, &record, workloads.len(), plan);
    }
    plan.phase_until = limit;
    plan.wake(limit);
    let silent = s.nodes().flat_map(|node| [s.lost_at(node), s.unable_at(node)]).flatten();
    let ends = s.settings.patience_ends(&record).into_iter().chain(silent);
    for end in ends.chain(last_round_ends).filter(|end| *end > s.now) {
        plan.wake(end);
    }
    let patient = workloads.iter().filter(|(_, class)| *class == Class::Patient);
    for until in patient.filter_map(|(pod, _)| patient_until(pod)).filter(|until| *until < Timestamp::MAX) {
        plan.wake(s.ours(until));
    }
    evict(s, &record, workloads, limit, plan);
    announce_waiting(s, &record, plan);
    announce_over_time(s, &record, plan);
}

/// If pods that come back are asked a last time from now on, until when: once all others have gone, or where their graces need what is left
/// before the limit.
fn asks_last(
    s: &Situation<'_>,
    pods: &[Classified<'_>],
    limit: Option<Timestamp>,
    plan: &mut Plan,
) -> Option<Timestamp> {
    let returned = pods.iter().filter(|(_, class)| *class == Class::Returned);
    let grace = returned.map(|(pod, _)| pod.grace_seconds).max()?;
    if s.memory.of_scale_in.returns.asked_last_until().is_some() {
        return None;
    }
    if !pods.iter().any(|(_, class)| class.is_workload()) {
        return Some(Returns::last_round_ends(s.now));
    }
    let limit = limit?;
    s.has_come(order::first_call(limit, grace), plan).then(|| Returns::last_round_ends(limit))
}

fn enter_flushing(s: &Situation<'_>, record: &Record, left: usize, plan: &mut Plan) {
    let flush = s.flush_time(record);
    // The flush counts from the last exit, which may be a while ago if cluster-autoscaler drained the node. What a replica saw that did not
    // lead, nobody has confirmed by a list: its watch may have been silent.
    let empty_since = (left == 0).then(|| s.memory.empty_since.map_or(s.now, |at| at.max(s.leads_since)));
    let event = if left > 0 {
        events::flushing_with_workloads_left(left, flush)
    } else if s.is_dead_from(record, empty_since.unwrap_or(s.now)).is_some_and(|from| from <= s.now) {
        events::flushing_dead()
    } else {
        events::flushing(flush)
    };
    let record = Record { empty_since, ..record.entering(Phase::Flushing, s.now) };
    s.enter_and(plan, &record, event, None);
}

/// The time that a pod has.
#[derive(Clone, Copy)]
struct Time {
    /// When every workload must have gone; `None`: no limit.
    limit: Option<Timestamp>,
    /// The same less what later orders need.
    gone_by: Option<Timestamp>,
    /// An earlier order that has pods on the node.
    after: Option<i32>,
}

/// A pod that may be asked to go.
#[derive(Clone, Copy)]
struct Candidate<'a> {
    pod: &'a PodView,
    class: Class,
    time: Time,
    /// Whether all pods of its order that have lower priorities have answered.
    lower_have_answered: bool,
}

fn evict(
    s: &Situation<'_>,
    record: &Record,
    workloads: Vec<Classified<'_>>,
    limit: Option<Timestamp>,
    plan: &mut Plan,
) {
    let mut orders: BTreeMap<i32, Vec<Classified<'_>>> = BTreeMap::new();
    for (pod, class) in workloads {
        let order = if s.is_own(pod) { order::LAST } else { order::of(pod, &s.settings.order_namespaces) };
        orders.entry(order).or_default().push((pod, class));
    }
    let longest = |pods: &Vec<Classified<'_>>| pods.iter().map(|(pod, _)| pod.grace_seconds).max();
    let graces: Vec<i64> = orders.values().filter_map(longest).collect();
    let mut after = None;
    for (n, (order, pods)) in orders.into_iter().enumerate() {
        let later_graces = graces.iter().skip(n + 1).copied();
        let gone_by = limit.map(|limit| order::gone_by(limit, record.shared_from(), later_graces));
        evict_order(s, record, pods, Time { limit, gone_by, after }, plan);
        after = Some(order);
    }
}

/// Evicts pods of one order, lowest priority first.
fn evict_order(s: &Situation<'_>, record: &Record, pods: Vec<Classified<'_>>, time: Time, plan: &mut Plan) {
    let mut levels: BTreeMap<i32, Vec<Classified<'_>>> = BTreeMap::new();
    for (pod, class) in pods {
        levels.entry(pod.priority).or_default().push((pod, class));
    }
    let mut lower_have_answered = true;
    let mut all = Vec::new();
    for pods in levels.into_values() {
        all.extend(pods.iter().map(|&(pod, class)| Candidate { pod, class, time, lower_have_answered }));
        lower_have_answered &= pods.iter().all(|&(pod, class)| has_answered(s, pod, class));
    }
    let mut all: Vec<_> = all.into_iter().enumerate().collect();
    // Where evictions are few (`--eviction-qps`), pods that are refused again and again must not take every one.
    all.sort_by_cached_key(|(_, candidate)| last_try(s, candidate.pod));
    let mut waiting: Vec<_> = all
        .into_iter()
        .map(|(place, candidate)| {
            let why = ask(s, record, candidate, plan);
            (place, Waiting { pod: candidate.pod.name.clone(), why })
        })
        .collect();
    waiting.sort_by_key(|(place, _)| *place);
    plan.waiting.extend(waiting.into_iter().map(|(_, waiting)| waiting));
}

/// Whether a pod need not be waited for before higher priorities are asked.
fn has_answered(s: &Situation<'_>, pod: &PodView, class: Class) -> bool {
    pod.deletion_timestamp.is_some() || class == Class::Patient || last_try(s, pod).is_some()
}

/// When the last try to have a pod go ended; `None`: it was never asked.
fn last_try(s: &Situation<'_>, pod: &PodView) -> Option<Timestamp> {
    s.memory.of(&pod.uid).eviction.ended
}

/// Asks a pod to go if it is time. Returns why it is still there.
fn ask(s: &Situation<'_>, record: &Record, candidate: Candidate<'_>, plan: &mut Plan) -> WaitReason {
    let Candidate { pod, class, time: Time { gone_by, after, .. }, lower_have_answered } = candidate;
    if let Some(why) = wait_for_exit(s, record, candidate, plan) {
        return why;
    }
    if let Some(at) = s.memory.of(&pod.uid).to_go.filter(|at| *at + ASK_AGAIN > s.now) {
        let is_shown = gone_by.is_none() || s.has_come(later(at, SHOWN_WITHIN), plan);
        if is_shown && !s.memory.of(&pod.uid).deletion.done {
            cut_at_last_call(s, record, candidate, at, plan);
        }
        plan.wake(at + ASK_AGAIN);
        let exiting = || WaitReason::Exiting(s.theirs(at + SignedDuration::from_secs(pod.grace_seconds)));
        return refused(s, pod).unwrap_or_else(exiting);
    }
    if cut_at_last_call(s, record, candidate, s.now, plan) {
        return refused(s, pod).unwrap_or(WaitReason::Queued);
    }
    if delete_from_lost_machine(s, record, pod, plan) {
        return refused(s, pod).unwrap_or(WaitReason::Queued);
    }
    if class == Class::Patient {
        return WaitReason::Patient;
    }
    let first_call = gone_by.map(|by| order::first_call(by, pod.grace_seconds));
    let is_late = first_call.is_some_and(|call| call <= s.now);
    let comes_next = after.is_none() && lower_have_answered;
    // Priorities and orders give way before graces do.
    if !comes_next && !is_late {
        plan.wake(first_call);
        return after.map_or(WaitReason::Queued, WaitReason::After);
    }
    let own_waits = s.is_own(pod).then(|| s.others_may_lead_until()).flatten();
    let returned_waits = s.memory.of_scale_in.returns.asked_from(pod).map(|at| s.ours(at));
    let returned_waits = returned_waits.filter(|at| *at > s.now && !is_late);
    if let Some(until) = own_waits.max(returned_waits) {
        plan.wake(until);
        return WaitReason::Queued;
    }
    if !is_seen_to_stay(s, pod, plan) {
        return refused(s, pod).unwrap_or(WaitReason::Queued);
    }
    try_eviction(s, record, candidate, plan)
}

/// Whether a pod that was asked to go, and shows no sign of it, is there still by a list: the watch may have missed its end, and the API
/// server takes the room of its budget for a pod of its name before it looks whose UID that is. Where no list comes, it is asked all the same.
///
/// Source: [`eviction.go`](https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go).
fn is_seen_to_stay(s: &Situation<'_>, pod: &PodView, plan: &mut Plan) -> bool {
    let Some(at) = s.memory.of(&pod.uid).to_go else { return true };
    let is_seen = s.listed_at.is_some_and(|listed| listed >= at + ASK_AGAIN) && !s.is_relisting;
    if is_seen || s.memory.tries(&Task::ListPods).failures > 0 {
        return true;
    }
    // A watch that begins anew has a list of its own.
    if !s.is_relisting {
        release::list_pods(s, plan);
    }
    false
}

/// Whether an eviction of the pod was answered before, or has had no answer for too long.
fn was_tried(s: &Situation<'_>, pod: &PodView, plan: &mut Plan) -> bool {
    let tries = &s.memory.of(&pod.uid).eviction;
    let began = tries.began.filter(|_| tries.in_flight);
    let is_unanswered = began.is_some_and(|began| s.has_come(later(began, UNANSWERED), plan));
    is_unanswered || tries.ended.is_some()
}

/// Deletes a pod at its last call, if an eviction was tried or the pod is patient, with the grace due at `asked_at`: a shorter one would
/// cut a pod that is going already while the watch lags. Returns whether it does.
fn cut_at_last_call(
    s: &Situation<'_>,
    record: &Record,
    candidate: Candidate<'_>,
    asked_at: Timestamp,
    plan: &mut Plan,
) -> bool {
    let Candidate { pod, class, time, .. } = candidate;
    let Time { limit: Some(limit), gone_by: Some(gone_by), .. } = time else { return false };
    let call = last_call(gone_by, pod.grace_seconds);
    plan.last_call = Some(plan.last_call.map_or(call, |first| first.min(call)));
    if !s.has_come(call, plan) || class != Class::Patient && !was_tried(s, pod, plan) {
        return false;
    }
    let grace = grace_to_ask(Some(limit), pod.grace_seconds, asked_at);
    s.attempt(plan, &s.memory.of(&pod.uid).deletion, || delete(s, record, pod, grace));
    true
}

/// Deletes a pod that is kept, as by a budget, though its machine is lost: it is to start elsewhere, and the taint manager deletes pods of
/// lost machines as well, whatever their budgets. Returns whether it does; if a deletion failed, the eviction is to be tried, too.
fn delete_from_lost_machine(s: &Situation<'_>, record: &Record, pod: &PodView, plan: &mut Plan) -> bool {
    let asked = s.memory.of(&pod.uid);
    let is_kept =
        asked.refusal.as_ref().is_some_and(|it| it.by != Obstacle::Busy || asked.is_put_off_for_ever());
    if !is_kept || s.lost_at(s.node_of(pod)).is_none_or(|at| at > s.now) {
        return false;
    }
    let grace = grace_to_ask(None, pod.grace_seconds, s.now);
    s.attempt(plan, &asked.deletion, || {
        Action::Delete(Ask { is_lost: true, ..ask_workload(s, record, pod, grace) })
    });
    asked.deletion.failures == 0
}

/// Waits for a pod that is going; `None`: it is not. If its grace ends after the limit, cuts it at the end, not before.
fn wait_for_exit(
    s: &Situation<'_>,
    record: &Record,
    Candidate { pod, time, .. }: Candidate<'_>,
    plan: &mut Plan,
) -> Option<WaitReason> {
    let until = s.grace_ends(pod)?;
    if let Some(cut) = time.limit.filter(|limit| *limit < until).map(cut) {
        let asked = s.memory.of(&pod.uid);
        if s.has_come(cut, plan) && asked.to_go.is_none_or(|at| at < cut) {
            s.attempt(plan, &asked.deletion, || cut_short(s, record, pod));
        }
    }
    if !s.has_come(later(until, OVERDUE_AFTER), plan) {
        return Some(WaitReason::Exiting(s.theirs(until)));
    }
    if !s.twins.is_empty() {
        plan.wake(later(until, TWINS_CONFIRM_WITHIN));
    }
    // Its exit may be one that the watch has missed.
    if !s.is_relisting && s.listed_at.is_none_or(|at| s.has_come(later(at, OVERDUE_AFTER), plan)) {
        release::list_pods(s, plan);
    }
    Some(WaitReason::Overdue(s.theirs(until)))
}

/// Whether a pod that is due waits for the rate of evictions. It does not once its last call is near.
fn waits_for_its_turn(s: &Situation<'_>, pod: &PodView, time: Time, plan: &mut Plan) -> bool {
    let call = time.gone_by.map(|by| order::first_call(by, pod.grace_seconds));
    if call.is_some_and(|call| call <= s.now) {
        return false;
    }
    let Permit::Wait(until) = (s.permit)() else { return false };
    plan.wake(call.map_or(until, |call| call.min(until)));
    true
}

/// Evicts a pod if a try is due. Returns what the last try came to.
fn try_eviction(s: &Situation<'_>, record: &Record, candidate: Candidate<'_>, plan: &mut Plan) -> WaitReason {
    let Candidate { pod, time, .. } = candidate;
    let asked = s.memory.of(&pod.uid);
    let (tries, refusal) = (&asked.eviction, asked.refusal.as_ref());
    // Do not wait for the next try if the budget has changed since it refused, and has room.
    let has_room =
        refusal.is_some_and(|refusal| refusal.by == Obstacle::Budget && (s.have_room)(&refusal.budgets));
    let evict = || {
        let grace = grace_to_ask(time.limit, pod.grace_seconds, s.now);
        let budgets = (s.budgets)(pod).iter().map(|budget| BudgetSeen::from(&**budget)).collect();
        Action::Evict(Ask { budgets, ..ask_workload(s, record, pod, grace) })
    };
    let at_once = (has_room || is_urgent(s, asked, time, plan)) && !tries.in_flight;
    let is_due = at_once || tries.may_begin_at().is_some_and(|at| at <= s.now);
    let waits = is_due && waits_for_its_turn(s, pod, time, plan);
    if at_once && !waits {
        plan.actions.push(evict());
    } else if !waits {
        s.attempt(plan, tries, evict);
    }
    match refusal {
        Some(refusal) if refusal.by == Obstacle::Budget => {
            let names = refusal.budgets.iter().map(|budget| budget.name.clone()).collect();
            WaitReason::Budget { names, words: refusal.text.clone() }
        }
        _ => refused(s, pod).unwrap_or(if waits { WaitReason::Rate } else { WaitReason::Queued }),
    }
}

/// Whether a pod that a budget keeps is to be tried without the long pause, as its limit is near: an unhealthy pod may need no room, and a
/// watch of budgets may have fallen silent. A pause that an answer asked for is kept.
fn is_urgent(s: &Situation<'_>, asked: &Asked, time: Time, plan: &mut Plan) -> bool {
    let is_near = time.limit.is_some_and(|limit| limit <= later(s.now, NEAR));
    let is_kept = asked.refusal.as_ref().is_some_and(|refusal| refusal.by == Obstacle::Budget);
    if !is_near || !is_kept || asked.is_put_off() {
        return false;
    }
    asked.eviction.ended.is_some_and(|ended| s.has_come(later(ended, BLOCKED), plan))
}

/// The API server's words, if it refused the last try and no budget was the reason.
pub(super) fn refused(s: &Situation<'_>, pod: &PodView) -> Option<WaitReason> {
    let asked = s.memory.of(&pod.uid);
    let refusal = asked.refusal.as_ref()?;
    let is_told = match refusal.by {
        Obstacle::Budget => false,
        // Flow control says no more than that it is to be tried again.
        Obstacle::Busy => asked.is_put_off_for_ever(),
        Obstacle::Other => true,
    };
    let names = || refusal.budgets.iter().map(|budget| budget.name.clone()).collect();
    let is_for_several = refusal.text.contains(SEVERAL_BUDGETS) && !refusal.budgets.is_empty();
    is_told.then(|| {
        if is_for_several { WaitReason::Budgets(names()) } else { WaitReason::Refused(refusal.text.clone()) }
    })
}

/// Announces pods that are not waited for, or whose wish is not followed.
fn announce_given_up(s: &Situation<'_>, record: &Record, pods: &[Classified<'_>], plan: &mut Plan) {
    let patience_is_over = s.settings.patience_ends(record).is_some_and(|end| end <= s.now);
    let named = |is: &dyn Fn(&PodView, Class) -> bool| -> Vec<PodName> {
        pods.iter().filter(|(pod, class)| is(pod, *class)).map(|(pod, _)| pod.name.clone()).collect()
    };
    let mut tell = |pods: Vec<PodName>, event: fn(&[PodName]) -> ScaleInEvent| {
        if !pods.is_empty() {
            s.announce(plan, event(&pods));
        }
    };
    tell(named(&|_, class| class == Class::GivenUp), events::pods_given_up);
    let disturbed = named(&|pod, class| {
        class.is_workload() && class != Class::Patient && is_patient(pod, s.theirs(s.now))
    });
    tell(
        disturbed,
        if patience_is_over { events::patience_over } else { events::patience_ends_with_the_machine },
    );
    tell(named(&|_, class| class == Class::Returned), events::pods_returned);
    let ignored = pods.iter().flat_map(|(pod, _)| {
        unreadable_wishes(pod).into_iter().map(|annotation| format!("{} ({annotation})", pod.name))
    });
    let ignored: Vec<String> = ignored.collect();
    if !ignored.is_empty() {
        s.announce(plan, events::wishes_ignored(ignored));
    }
}

/// After a limit of ours at which nothing is deleted: announces which pods the drain still waits for.
fn announce_over_time(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let Some(limit) = soft_limit(s.our_limit, record) else { return };
    if s.has_come(limit, plan) && !plan.waiting.is_empty() {
        s.announce(plan, events::over_time(&plan.waiting));
    }
}

/// Longer than most grace periods: a phase that takes longer is slow.
const SLOW: SignedDuration = SignedDuration::from_secs(60);

/// Announces which pods a slow phase waits for.
pub(super) fn announce_slow(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if s.has_come(record.phase_since + SLOW, plan) && !plan.waiting.is_empty() {
        s.announce(plan, events::waiting(&plan.waiting));
    }
}

/// Announces what holds the drain up: each budget by name and, after a while, all pods that it waits for.
fn announce_waiting(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let waiting = std::mem::take(&mut plan.waiting);
    let mut by_budget: BTreeMap<String, Vec<&Waiting>> = BTreeMap::new();
    for w in &waiting {
        if let WaitReason::Budget { names, .. } | WaitReason::Budgets(names) = &w.why {
            by_budget.entry(names.join(", ")).or_default().push(w);
        }
    }
    for (names, blocked) in by_budget {
        let Some(Waiting { pod, why }) = blocked.first() else { continue };
        let more = blocked.len().saturating_sub(1);
        s.announce(
            plan,
            match why {
                WaitReason::Budget { words, .. } => events::blocked(pod, more, &names, words),
                _ => events::blocked_by_several(pod, more, &names),
            },
        );
    }
    plan.waiting = waiting;
    announce_refused(s, plan);
    announce_slow(s, record, plan);
}

/// Announces pods that may not be evicted for a reason other than a budget: together, if the API server says the same of them.
pub(super) fn announce_refused(s: &Situation<'_>, plan: &mut Plan) {
    let waiting = std::mem::take(&mut plan.waiting);
    let mut by_reason: BTreeMap<String, (&str, Vec<&PodName>)> = BTreeMap::new();
    for Waiting { pod, why } in &waiting {
        if let WaitReason::Refused(words) = why {
            by_reason.entry(reason_of(pod, words)).or_insert((words, Vec::new())).1.push(pod);
        }
    }
    let is_told = |topic: &str| s.told_until(topic).is_some();
    let is_of_these = |topic: &&String| topic.starts_with(events::REFUSED) && is_told(topic);
    let mut told = s.memory.announced.keys().filter(is_of_these).count();
    for (reason, (words, refused)) in by_reason {
        let event = match refused[..] {
            [pod] => events::eviction_refused(&reason, pod, words),
            _ => events::evictions_refused(&reason, &refused, words),
        };
        let is_new = !is_told(&event.topic);
        if is_new && told == REASONS {
            continue;
        }
        told += usize::from(is_new);
        s.announce(plan, event);
    }
    plan.waiting = waiting;
}

/// The API server's words, less what they say of this pod alone.
fn reason_of(pod: &PodName, words: &str) -> String {
    let quoted = |text: &str| format!("\"{text}\"");
    words.replace(&quoted(&pod.namespace), "").replace(&*pod.name, "")
}
