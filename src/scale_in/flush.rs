//! Flushing: only DaemonSet pods are left, and have time to finish. Pure.

use jiff::{SignedDuration, Timestamp};

use super::class::{Class, Daemon};
use super::deadline::{MARGIN, shortened_grace};
use super::memory::Task;
use super::plan::{Action, Plan, Situation};
use super::record::{Phase, Record};
use crate::cluster::PodView;

/// Longest wait for volumes to be detached after the flush. An EBS volume takes seconds; one that a DaemonSet pod
/// mounts never goes, and what is still attached is detached with the instance.
const VOLUME_WAIT: SignedDuration = SignedDuration::from_secs(60);

/// Plans the flushing of a node.
pub(super) fn flush(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if s.pods.is_none() {
        return;
    }
    let flush = s.flush_time(record);
    let hard = record.release_by.map(|by| by - MARGIN);
    let time_is_up = hard.is_some_and(|hard| hard <= s.now);
    let workloads_may_wait = record.release_by.is_none_or(|by| super::deadline::gone_by(by, flush) > s.now);
    if workloads_may_wait && s.workloads().next().is_some() {
        let note = "a workload pod has come to the node: it leaves first".to_owned();
        return s.enter(plan, record, Phase::Draining, note);
    }
    let mut until = record.phase_since + flush;
    if let Some(asked_until) = ask_daemons(s, record, hard, plan) {
        until = until.max(asked_until);
    }
    if s.attachments > 0 && until <= s.now {
        until = until.max(record.phase_since + flush + VOLUME_WAIT);
    }
    if let Some(hard) = hard {
        until = until.min(hard);
    }
    if until <= s.now || time_is_up {
        let volumes = if s.attachments > 0 {
            format!(", {} volumes still attached", s.attachments)
        } else {
            String::new()
        };
        let note =
            format!("DaemonSet pods have had their time{volumes}: instance {} is released", record.instance);
        return s.enter(plan, record, Phase::Releasing, note);
    }
    plan.wake(until);
}

/// Asks the DaemonSet pods that want to be asked. Returns until when to wait for them. A pod that came later replaces
/// one that was asked, and is let be.
fn ask_daemons(
    s: &Situation<'_>,
    record: &Record,
    hard: Option<Timestamp>,
    plan: &mut Plan,
) -> Option<Timestamp> {
    let asked = |pod: &PodView| pod.created.is_none_or(|created| s.ours(created) <= record.phase_since);
    let mut until = None;
    for (pod, class) in s.daemons() {
        if class != Class::Daemon(Daemon::Evict) || !asked(pod) {
            continue;
        }
        // Its own grace from when it was asked; should the kubelet not answer, the node does not wait longer.
        let end = pod
            .going_until
            .map_or(record.phase_since + SignedDuration::from_secs(pod.grace_seconds + 5), |until| {
                s.ours(until)
            });
        until = until.max(Some(end));
        let task = Task::Pod(pod.uid.clone());
        if pod.going_until.is_none() && !s.memory.is_done(&task) {
            let grace = hard.and_then(|hard| shortened_grace(hard, pod.grace_seconds, s.now));
            s.attempt(plan, &task, || Action::Delete { pod: pod.name.clone(), uid: pod.uid.clone(), grace });
        }
    }
    until
}
