//! Flushing: only DaemonSet pods are left and get time to finish. Pure.

use jiff::{SignedDuration, Timestamp};

use super::action::{Action, Ask, Plan};
use super::class::{Class, Daemon, LONGEST_FLUSH, grace_and_kill, may_hold_the_flush, replaces_asked};
use super::deadline::{self, grace_to_ask};
use super::deletion::cut_off;
use super::load_balancers::{DEFAULT_DELAY, Targets};
use super::record::Record;
use super::situation::Situation;
use super::tries::Task;
use super::waiting::{WaitReason, Waiting};
use super::{drain, events, release};
use crate::clock::{later, signed};
use crate::cluster::PodView;

/// Longest wait for volumes to be unmounted and to detach after the flush. An EBS volume takes seconds; one that a DaemonSet pod mounts
/// never detaches, and what is left is detached with the instance.
const VOLUME_WAIT: SignedDuration = SignedDuration::from_secs(60);

/// Longest wait for a DaemonSet pod that was away or its successor, and for what that has to read.
const OUTAGE_WAIT: SignedDuration = SignedDuration::from_secs(120);

/// The node's pods are listed this long before the release, which then need not wait for an answer. Until a list has come, the flush is
/// said to last this much longer.
const LISTED_WITHIN: SignedDuration = SignedDuration::from_secs(1);

/// After this many failed requests in a row (15 s, by the pauses between them) a DaemonSet pod counts as one that cannot be asked to go:
/// its grace counts from the beginning of the phase.
const UNASKABLE_AFTER: u32 = 5;

/// Within this time, whatever registers Nodes with load balancers has noticed that one is excluded.
const EXCLUDED_WITHIN: SignedDuration = SignedDuration::from_secs(30);

/// Plans the flushing of a node.
pub(super) fn flush(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if s.pods.is_none() {
        return release::announce_unlisted(s, plan);
    }
    if release::go_back_for_workloads(s, record, plan) {
        return;
    }
    // No time is left for these, which came late or whose deletion has failed.
    for (pod, _) in s.workloads(Some(record)) {
        cut_off(s, record, pod, record.phase_since, plan);
        if let Some(why) = drain::refused(s, pod) {
            plan.waiting.push(Waiting { pod: pod.name.clone(), why });
        }
    }
    let dead_from = s.is_dead_from(record, record.empty_since.unwrap_or(record.phase_since));
    if dead_from.is_some_and(|from| s.has_come(from, plan)) {
        return release::begin(s, record, events::releasing_dead(&record.instance), plan);
    }
    let hard = deadline::released_anyway(record);
    let flush_time = s.flush_time(record);
    let flushed = record.empty_since.unwrap_or(record.phase_since) + flush_time;
    let mut until = flushed;
    if let Some(asked_until) = ask_daemons(s, record, hard, plan) {
        until = until.max(asked_until);
    }
    if until <= s.now && has_volumes(s) {
        until = until.max(flushed.max(record.phase_since) + VOLUME_WAIT);
        let waiting = |pod: &PodView| Waiting { pod: pod.name.clone(), why: WaitReason::Volumes };
        plan.waiting.extend(torn_down(s).map(waiting));
    }
    if let Some(drained) = drained_by(s, record).filter(|_| until <= s.now) {
        let drained = hard.map_or(drained, |hard| drained.min(hard));
        until = until.max(drained);
        held_by_load_balancers(s, flushed, drained, plan);
    }
    if let Some(back) = s.memory.of_scale_in.absences.until(flush_time) {
        until = until.max(back.min(flushed.max(record.phase_since) + OUTAGE_WAIT));
    }
    let is_listed = ensure_listed_for(until, s, record, plan);
    if !is_listed {
        until = until.max(later(s.now, LISTED_WITHIN));
    }
    until = hard.map_or(until, |hard| until.min(hard));
    if until <= s.now {
        return release::begin(s, record, events::releasing(&record.instance, (s.attachments)()), plan);
    }
    plan.phase_until = Some(until);
    // A list that comes brings a new plan by itself; where another process leads, none comes.
    plan.wake(if is_listed { Some(until) } else { hard });
    drain::announce_refused(s, plan);
    drain::announce_slow(s, record, plan);
}

/// Whether volumes are attached to the node, or workloads' are being unmounted.
fn has_volumes(s: &Situation<'_>) -> bool {
    (s.attachments)() > 0 || torn_down(s).next().is_some()
}

/// Workloads that have exited, and that the kubelet is about to remove.
fn torn_down<'a>(s: &'a Situation<'_>) -> impl Iterator<Item = &'a PodView> {
    let all = s.pods.into_iter().flat_map(|pods| pods.values());
    all.filter(|pod| pod.is_being_torn_down() && pod.daemon.is_none() && !pod.mirror)
}

/// Whether the node's pods are listed for a release at `until`, or need not be yet.
fn ensure_listed_for(until: Timestamp, s: &Situation<'_>, record: &Record, plan: &mut Plan) -> bool {
    if s.is_relisting {
        // Which pods are bound to the node meanwhile is known only when that is done.
        release::announce_unlisted(s, plan);
        return false;
    }
    !s.has_come(later(until, -LISTED_WITHIN), plan) || release::ensure_listed(&Task::Node, s, record, plan)
}

/// Until when connections may come through load balancers; `None`: none do. The time counts from the write that began the scale-in, which
/// excludes the Node.
fn drained_by(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let longest = match &s.targets {
        Targets::NotAsked => return None,
        Targets::In { seen, groups } if *seen >= record.requested_at => {
            groups.iter().map(|group| group.delay).max()?
        }
        // A look from before the request counts as none.
        Targets::Unknown | Targets::In { .. } => DEFAULT_DELAY,
    };
    Some(later(record.requested_at, signed(longest) + EXCLUDED_WITHIN))
}

/// Announces that only load balancers hold the release, until `drained` at most; for a while, waits for AWS to say which.
fn held_by_load_balancers(s: &Situation<'_>, flushed: Timestamp, drained: Timestamp, plan: &mut Plan) {
    if drained <= s.now {
        return;
    }
    let names: Vec<&str> = match &s.targets {
        Targets::In { groups, .. } => groups.iter().map(|group| group.name.as_str()).collect(),
        Targets::NotAsked | Targets::Unknown => Vec::new(),
    };
    plan.held_by_load_balancers = Some(names.iter().map(|&name| name.to_owned()).collect());
    let tell_at = if names.is_empty() { later(flushed, EXCLUDED_WITHIN) } else { s.now };
    if s.has_come(tell_at, plan) {
        s.announce(plan, events::waiting_for_load_balancers(&names, s.theirs(drained)));
    }
}

/// Asks the DaemonSet pods that opted in to go. Returns until when to wait for them. A pod that may have been created since the phase began
/// replaces one that was asked, and is left alone: if it were asked too, it would be replaced at once.
fn ask_daemons(
    s: &Situation<'_>,
    record: &Record,
    hard: Option<Timestamp>,
    plan: &mut Plan,
) -> Option<Timestamp> {
    let flushing_since = s.theirs(record.phase_since);
    let mut until = None;
    for (pod, class) in s.daemons() {
        if class != Class::Daemon(Daemon::Evict) || replaces_asked(pod, flushing_since) {
            continue;
        }
        let grace = SignedDuration::from_secs(pod.grace_seconds);
        let asked = s.memory.of(&pod.uid);
        // It may be the CSI driver that unmounts the volumes.
        let volumes_by = record.phase_since + VOLUME_WAIT;
        let volumes_by = hard.map_or(volumes_by, |hard| volumes_by.min(hard - grace));
        if s.now < volumes_by && asked.to_go.is_none() && pod.deletion_timestamp.is_none() && has_volumes(s) {
            until = until.max(Some(volumes_by));
            plan.waiting.push(Waiting { pod: pod.name.clone(), why: WaitReason::Volumes });
            continue;
        }
        // The grace counts from the request, which may be now, or from the phase's beginning if the pod cannot be asked. If the kubelet
        // does not answer, do not wait longer.
        let counts_from = asked.to_go.unwrap_or_else(|| match &asked.deletion {
            tries if tries.failures >= UNASKABLE_AFTER => record.phase_since,
            tries if tries.in_flight => tries.began.unwrap_or(s.now),
            _ => s.now,
        });
        let end = s.grace_ends(pod).unwrap_or_else(|| later(counts_from, grace_and_kill(pod)));
        let may_hold = may_hold_the_flush(pod, &s.settings.flush);
        let end = end.min(record.phase_since + if may_hold { LONGEST_FLUSH } else { s.flush_time(record) });
        until = until.max(Some(end));
        if end > s.now {
            let is_unasked = asked.to_go.is_none() && pod.deletion_timestamp.is_none();
            let why = if is_unasked && asked.deletion.failures > 0 {
                drain::refused(s, pod).unwrap_or(WaitReason::Queued)
            } else {
                WaitReason::Exiting(s.theirs(end))
            };
            plan.waiting.push(Waiting { pod: pod.name.clone(), why });
        }
        if pod.deletion_timestamp.is_none() && !asked.deletion.done {
            let grace = grace_to_ask(hard, pod.grace_seconds, s.now);
            s.attempt(plan, &asked.deletion, || Action::Delete(Ask::new(pod, grace, None)));
        }
    }
    until
}
