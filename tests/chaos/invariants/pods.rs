//! What becomes of pods.

use std::collections::BTreeSet;

use ebbtide::k8s::names;
use ebbtide::sim::aws::{Event as AwsEvent, Operation, Power};
use ebbtide::sim::cluster::{By, Event, NodeChange};
use ebbtide::sim::report::{PodEnd, Run};
use jiff::{SignedDuration, Timestamp};

use super::Violation;
use crate::history::{History, Note};
use crate::play::OURS;
use crate::scenario::{Cause, Damage, Deed, GroupCause, Kind, Upset, What, Workload};

/// How long a pod on a dead machine is waited for beyond its grace.
pub(super) const DEAD: SignedDuration = SignedDuration::from_mins(1);

/// After so long without a word of its kubelet a machine counts as lost.
const LOST: SignedDuration = SignedDuration::from_mins(5);

/// As exact as timestamps of Kubernetes are, and the dates of the API server's answers, by which its clock is known: a second each.
const DATED: SignedDuration = SignedDuration::from_secs(2);

/// A last call is so early, and evictions of one node may take so long beside other ones.
const LATE: SignedDuration = SignedDuration::from_secs(10);

/// Trouble so long before a last call excuses that it comes late: what failed is tried again by then, and what was not known is.
const TROUBLE: SignedDuration = SignedDuration::from_mins(6);

/// The longest grace that anybody waits for.
const LONGEST: i64 = 100_000;

/// How long containers run on at most that are killed without a grace.
const KILLED: SignedDuration = SignedDuration::from_secs(3);

/// What a release takes beside the flush at the most: volumes are waited for a minute, and a refresh is one away.
const PROMPT: SignedDuration = SignedDuration::from_mins(2);

/// cluster-autoscaler gives no more grace than this.
const MOST_OF_CA: i64 = 600;

/// An instance is let go while a workload runs on it.
pub(super) fn released(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, instance) in releases(history) {
        for run in history.workloads_at(&instance, at) {
            if !history.need_not_be_waited_for(run, &instance, at) {
                let what = format!("{instance} released while {} runs on {}", run.pod.name, run.node);
                found.push(Violation { at, what });
            }
        }
    }
    found
}

/// An instance is let go sooner after the last exit of a workload than DaemonSet pods need to flush.
pub(super) fn flush(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let flush = SignedDuration::from_secs(i64::from(history.scenario.program.flush));
    for (at, instance) in releases(history) {
        let exited = |run: &&Run| {
            let ran = run.is_workload() && history.instance_at(&run.node, at) == Some(instance.as_str());
            let is_waited_for = history.workload(run).is_none_or(|workload| !workload.tolerates_all);
            ran && is_waited_for && run.from.is_some_and(|from| from < at)
        };
        // The object of one that somebody else deletes without a grace has gone before its containers have.
        let seen = |run: &Run, end| run.asked.filter(|asked| asked.grace == 0).map_or(end, |asked| asked.at);
        let ends = history.runs.iter().filter(exited).filter_map(|run| match run.end {
            Some((end, PodEnd::Exited | PodEnd::GraceOver)) if end <= at => Some(seen(run, end)),
            _ => None,
        });
        let Some(last) = ends.max() else { continue };
        let is_excused = history.time_is_up(&instance, 0, at) || history.is_dead(&instance, at);
        if at < last + flush && !is_excused {
            found.push(Violation { at, what: format!("{instance} released, last exit at {last}") });
        }
    }
    found
}

/// An instance whose last pod has gone is kept though nothing is in the way.
pub(super) fn prompt(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let flush = SignedDuration::from_secs(i64::from(history.scenario.program.flush));
    // Their objects outlive their containers until somebody ends that.
    if history.scenario.workloads.iter().any(|workload| workload.has_finalizer) {
        return found;
    }
    for (at, instance) in releases(history) {
        let ends = history.runs.iter().filter_map(|run| {
            let (end, _) = run.end?;
            (end <= at && history.instance_at(&run.node, end) == Some(instance.as_str())).then_some(end)
        });
        let held = history.aws.iter().filter_map(|entry| match &entry.what {
            AwsEvent::EnteredWait { instance: id, .. } if *id == instance && entry.at <= at => Some(entry.at),
            _ => None,
        });
        let Some(since) = ends.chain(held).chain(history.requested(&instance)).max() else { continue };
        let is_excused = history.aws_had_trouble(since - TROUBLE, at)
            || history.cluster_had_trouble(since - TROUBLE, at)
            || history.was_disturbed(since - TROUBLE, at)
            || history.is_dead(&instance, at)
            || history.lost_its_node(&instance).is_some();
        if at > since + flush + PROMPT && !is_excused {
            found.push(Violation {
                at,
                what: format!("{instance} released, nothing was left from {since} on"),
            });
        }
    }
    found
}

/// When the program let go of which instance: it completed our hook, or terminated one that no hook of ours then held.
fn releases(history: &History) -> Vec<(Timestamp, String)> {
    let mut all = Vec::new();
    for (n, entry) in history.aws.iter().enumerate() {
        match &entry.what {
            AwsEvent::HookCompleted { instance, hook, .. }
                if hook == OURS && is_completed(history, n, instance) =>
            {
                all.push((entry.at, instance.clone()));
            }
            AwsEvent::TerminationStarted { instance, .. } if is_called(history, n, instance) => {
                let held = |e: &AwsEvent| matches!(e, AwsEvent::EnteredWait { instance: id, hook, .. } if id == instance && hook == OURS);
                let is_held = history.aws[n..].iter().any(|later| held(&later.what));
                if !is_held && !loses_its_hook(history, instance, entry.at) {
                    all.push((entry.at, instance.clone()));
                }
            }
            _ => {}
        }
    }
    all
}

/// Descriptions may be so old: a hook that was taken off so shortly before is shown still when AWS is asked once more.
const OLD: SignedDuration = SignedDuration::from_secs(22);

/// Whether somebody took our hook off the instance's group after the instance began to end, or so shortly before that no description need have
/// shown it, and before the hook held it: minutes may pass.
fn loses_its_hook(history: &History, instance: &str, at: Timestamp) -> bool {
    let group = history.lives.get(instance).map_or("", |life| life.group.as_str());
    let ends = |e: &AwsEvent| matches!(e, AwsEvent::Powered { instance: id, power: Power::ShuttingDown, .. } if id == instance);
    let end = history.aws.iter().find(|entry| entry.at >= at && ends(&entry.what)).map(|entry| entry.at);
    history.diary.iter().any(|(when, note)| match note {
        Note::AskedOfGroup(GroupCause::Unhooked, name) => {
            name == group && *when >= at - OLD && end.is_none_or(|end| *when <= end)
        }
        _ => false,
    })
}

/// Whether the hook that is completed at this place of the journal is so by a call, and not because somebody has taken it off.
fn is_completed(history: &History, n: usize, instance: &str) -> bool {
    called(history, n, Operation::CompleteLifecycleAction, instance)
}

/// Whether the termination at this place of the journal was asked for by a call.
pub(super) fn is_called(history: &History, n: usize, instance: &str) -> bool {
    called(history, n, Operation::TerminateInstanceInAutoScalingGroup, instance)
}

fn called(history: &History, n: usize, of: Operation, instance: &str) -> bool {
    let of_this = |e: &AwsEvent| match e {
        AwsEvent::Called { operation, arguments, .. } => {
            *operation == of && arguments.get("InstanceId").is_some_and(|id| id == instance)
        }
        _ => false,
    };
    let at = history.aws[n].at;
    history.aws[..n].iter().rev().take_while(|entry| entry.at == at).any(|entry| of_this(&entry.what))
}

/// What pods are granted of which nothing is known.
const UNKNOWN_GRACE: i64 = 600;

/// A request for a guard that was lost or late holds up those that follow.
const UNGUARDED: SignedDuration = SignedDuration::from_secs(60);

/// A pod that has come may be seen this much later.
const SEEN: SignedDuration = SignedDuration::from_secs(5);

/// A watch that has fallen silent is begun anew when it has lasted a minute, by a list.
const SILENT: SignedDuration = SignedDuration::from_secs(70);

impl History {
    /// The workloads that ran on an instance at a moment.
    fn workloads_at<'a>(&'a self, instance: &'a str, at: Timestamp) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(move |run| {
            run.is_workload()
                && run.from.is_some_and(|from| from < at)
                && run.lasts_beyond(at)
                && self.instance_at(&run.node, at) == Some(instance)
        })
    }

    fn workload(&self, run: &Run) -> Option<&Workload> {
        self.scenario.workload_of(&run.pod.name)
    }

    /// The documented reasons not to wait for a workload.
    fn need_not_be_waited_for(&self, run: &Run, instance: &str, at: Timestamp) -> bool {
        let grace = run.asked.map_or(0, |asked| asked.grace);
        // Time is up: what is left was asked for the last time its whole grace fitted, or hears of its end.
        if self.time_is_up(instance, 0, at) {
            return true;
        }
        // On a dead machine nobody confirms an exit: grace and a minute, from a deletion timestamp of whole seconds.
        if let Some(asked) = run.asked
            && self.is_dead(instance, at)
            && asked.at + SignedDuration::from_secs(grace.clamp(0, 100_000)) + DEAD <= at + DATED
        {
            return true;
        }
        // cluster-autoscaler gives a pod without a grace none, and so do a person and, where its machine is not heard of, the taint manager:
        // its object has gone before its containers have.
        if let Some(asked) = run.asked.filter(|asked| asked.grace == 0 && at < asked.at + KILLED)
            && (asked.by == By::Controller
                || self.is_drained_by_autoscaler(instance, at)
                || at >= self.mended())
        {
            return true;
        }
        // Who was not there when somebody deleted the Node does not know that there was one, and nobody knows graces of pods that were not
        // watched.
        if self.lost_its_node(instance).is_some_and(|lost| {
            let restarts = |(when, note): &_| matches!(note, Note::Started(_)) && (lost..=at).contains(when);
            grace > UNKNOWN_GRACE || self.diary.iter().any(restarts)
        }) {
            return true;
        }
        self.comes_for_ever(run)
    }

    /// Whether it tolerates the cordon, and came when all others had left, or about then: those that had come before are asked a last time.
    fn comes_for_ever(&self, run: &Run) -> bool {
        let tolerates_all = |run: &Run| self.workload(run).is_some_and(|workload| workload.tolerates_all);
        let others = self.runs.iter().filter(|other| other.node == run.node && other.is_workload());
        let ends = others.filter(|other| !tolerates_all(other)).filter_map(|other| Some(other.end?.0));
        let left = ends.max();
        tolerates_all(run) && left.is_none_or(|left| run.from.is_none_or(|from| from >= left - SEEN))
    }

    /// When somebody has deleted the Node of an instance: of its pods nothing is known.
    fn lost_its_node(&self, instance: &str) -> Option<Timestamp> {
        let is_it = |note: &Note| matches!(note, Note::Person(Deed::DeleteNode, machine) if machine.instance == instance);
        self.diary.iter().find(|(_, note)| is_it(note)).map(|(at, _)| *at)
    }

    /// Whether cluster-autoscaler has begun to drain an instance's node.
    fn is_drained_by_autoscaler(&self, instance: &str, at: Timestamp) -> bool {
        self.diary.iter().take_while(|(when, _)| *when <= at).any(|(_, note)| match note {
            Note::Asked(Cause::Autoscaler | Cause::AutoscalerOfAll, machine) => machine.instance == instance,
            _ => false,
        })
    }

    /// Whether cluster-autoscaler asked DaemonSet pods as well while what guards them could not be written, or while nobody could see that it
    /// would: the watches were silent, or our own taint was there already, so that it left no sign.
    fn is_unguarded(&self, instance: &str, node: &str, at: Timestamp) -> bool {
        let is_of_all = |(_, note): &&_| matches!(note, Note::Asked(Cause::AutoscalerOfAll, machine) if machine.instance == instance);
        let Some((begun, _)) = self.diary.iter().take_while(|(when, _)| *when <= at).find(is_of_all) else {
            return false;
        };
        let is_its_taint = |change: &NodeChange| matches!(change, NodeChange::Tainted { key, effect, .. } if key == names::TO_BE_DELETED && effect == "NoSchedule");
        let is_sign = |e: &Event| matches!(e, Event::NodeChanged { node: name, changes } if name == node && changes.iter().any(is_its_taint));
        let has_left_a_sign =
            self.cluster.iter().any(|entry| (*begun..=at).contains(&entry.at) && is_sign(&entry.what));
        let is_silence = |note: &Note| matches!(note, Note::Did(What::Cluster(Upset::SilenceWatches)));
        let is_silent =
            self.diary.iter().any(|(when, note)| (at - SILENT..=at).contains(when) && is_silence(note));
        let is_hit = self.end.hits[1].iter().any(|hit| (at - UNGUARDED..=at).contains(hit));
        !has_left_a_sign || is_silent || is_hit
    }

    /// Whether nothing has been heard of a node for five minutes, or the cloud controller says that its machine is off: a pod there whose
    /// eviction is refused is to start elsewhere.
    fn is_lost(&self, node: &str, at: Timestamp) -> bool {
        let changes =
            self.cluster.iter().filter(|entry| entry.at <= at).filter_map(|entry| match &entry.what {
                Event::NodeChanged { node: of, changes } if of == node => Some((entry.at, changes)),
                _ => None,
            });
        let (mut silent_since, mut is_off) = (None, false);
        for (when, change) in changes.flat_map(|(when, all)| all.iter().map(move |change| (when, change))) {
            match change {
                NodeChange::Ready(status) => silent_since = (status == "Unknown").then_some(when),
                NodeChange::Tainted { key, .. } if key == names::SHUT_DOWN => is_off = true,
                NodeChange::TaintRemoved(key) if key == names::SHUT_DOWN => is_off = false,
                _ => {}
            }
        }
        silent_since.is_some_and(|since| is_off || at + DATED >= since + LOST)
    }

    /// Whether somebody has broken this instance's machine or kubelet, and nobody has mended it, or AWS has taken it.
    pub(super) fn is_dead(&self, instance: &str, at: Timestamp) -> bool {
        let is_off = |e: &AwsEvent| matches!(e, AwsEvent::Powered { instance: id, power: Power::Terminated, .. } if id == instance);
        if self.aws.iter().take_while(|entry| entry.at <= at).any(|entry| is_off(&entry.what)) {
            return true;
        }
        let (mut is_dead, mut for_good) = (false, false);
        for (when, note) in self.diary.iter().filter(|(when, _)| *when <= at) {
            match note {
                Note::Damaged(Damage::Revive, machine) if machine.instance == instance => is_dead = for_good,
                Note::Damaged(Damage::KubeletRestarts, _) => {}
                Note::Damaged(damage, machine) if machine.instance == instance => {
                    is_dead = true;
                    for_good |= matches!(damage, Damage::Impaired | Damage::Stopped | Damage::Interrupted);
                }
                // Revived, but Ready only some seconds later.
                Note::Mended => {
                    is_dead &= for_good || at.duration_since(*when) < SignedDuration::from_secs(30);
                }
                _ => {}
            }
        }
        is_dead
    }

    /// Every request to a pod to go, with its stay; not those to pods that have not run where they were scheduled last, or have exited there:
    /// a StatefulSet's next pod has the same name, and no grace before it has a node.
    fn asks(&self) -> impl Iterator<Item = (Timestamp, By, i64, &Run)> {
        self.cluster.iter().enumerate().filter_map(|(n, entry)| match &entry.what {
            Event::PodAsked { pod, by, grace, .. } => {
                let of_it = |e: &Event| matches!(e, Event::PodScheduled { pod: name, .. } if name == pod);
                let scheduled =
                    self.cluster[..n].iter().rfind(|entry| of_it(&entry.what)).map(|entry| entry.at);
                let ran = |run: &&Run| {
                    run.from.is_some_and(|from| (scheduled..=Some(entry.at)).contains(&Some(from)))
                        && run.end.is_none_or(|(end, _)| end >= entry.at)
                };
                let run = self.runs.iter().filter(|run| run.pod == *pod).rfind(ran)?;
                Some((entry.at, *by, *grace, run))
            }
            _ => None,
        })
    }
}

/// A DaemonSet pod is asked, or its end begins, while a workload runs beside it.
pub(super) fn daemons(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    // A rolling update is its controller's.
    for (at, _, _, run) in history.asks().filter(|(_, by, _, run)| run.daemon && *by != By::Controller) {
        let Some(instance) = history.instance_at(&run.node, at) else { continue };
        if history.is_unguarded(instance, &run.node, at) {
            continue;
        }
        for other in history.workloads_at(instance, at) {
            if !history.need_not_be_waited_for(other, instance, at) {
                let what = format!("{} asked while {} runs on {}", run.pod.name, other.pod.name, run.node);
                found.push(Violation { at, what });
            }
        }
    }
    found
}

/// So long after somebody has deleted a Node, workloads that are left on its machine are asked: soon they are collected without a grace.
const LEFT_BEHIND: SignedDuration = SignedDuration::from_secs(20);

/// A workload is deleted, not evicted, before its last call.
pub(super) fn budgets(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    for (at, by, grace, run) in
        history.asks().filter(|(_, by, _, run)| run.is_workload() && *by == By::Delete)
    {
        let is_patient = history.workload(run).is_some_and(|workload| workload.is_patient);
        // A person ends what asked to be waited for, so that runs come to an end.
        if is_patient && at >= history.mended() {
            continue;
        }
        if history.node_gone_since(&run.node, at).is_some_and(|gone| at.duration_since(gone) >= LEFT_BEHIND) {
            continue;
        }
        if history.is_lost(&run.node, at) {
            continue;
        }
        let instance = history.instance_at(&run.node, at);
        if !instance.is_some_and(|instance| history.time_is_up(instance, grace, at)) {
            found.push(Violation { at, what: format!("{} deleted by {by:?}, grace {grace}", run.pod.name) });
        }
    }
    found
}

/// A workload is given less grace than it has, before that must be.
pub(super) fn graces(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let asks = history.asks().filter(|(_, by, _, run)| run.is_workload() && *by != By::Controller);
    for (at, by, grace, run) in asks {
        let Some(workload) = history.workload(run) else { continue };
        let own = workload.grace;
        if grace >= own || grace == MOST_OF_CA || matches!(workload.kind, Kind::Daemon { .. }) {
            continue;
        }
        let instance = history.instance_at(&run.node, at);
        if !instance.is_some_and(|instance| history.time_is_up(instance, own, at)) {
            let what = format!("{} asked by {by:?} with {grace} s of {own}", run.pod.name);
            found.push(Violation { at, what });
        }
    }
    found
}

/// A workload is asked for the first time when its whole grace does not fit any more, though it was there when that did.
pub(super) fn late(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    for (at, by, grace, run) in history.asks().filter(|(.., run)| run.is_workload()) {
        let is_first = seen.insert((&run.pod, run.from)) && by != By::Controller;
        let own = history.workload(run).map_or(0, |workload| workload.grace);
        let Some(instance) = history.instance_at(&run.node, at) else { continue };
        if !is_first || grace >= own || grace == MOST_OF_CA || own > LONGEST {
            continue;
        }
        // What it was given ends when it must have gone.
        let call = at - SignedDuration::from_secs(own - grace) - LATE;
        let since = history.limited_since(instance, at).into_iter().chain(run.from).max();
        let is_excused = since.is_none_or(|since| call < since + LATE)
            || history.aws_had_trouble(call - TROUBLE, at)
            || history.cluster_had_trouble(call - TROUBLE, at)
            || history.was_disturbed(call - TROUBLE, at);
        if !is_excused {
            let what =
                format!("{} asked by {by:?} with {grace} s of {own}, which fitted at {call}", run.pod.name);
            found.push(Violation { at, what });
        }
    }
    found
}

/// Lines of workloads are lost although their node was drained, flushed and released by the program.
pub(super) fn lines(history: &History) -> Vec<Violation> {
    let releases = releases(history);
    // Pods that tolerate everything write until the end.
    let is_excused = history.scenario.workloads.iter().any(|workload| workload.tolerates_all);
    let mut found = Vec::new();
    for entry in history.cluster.iter().filter(|_| !is_excused) {
        let Event::LinesLost { node, count } = &entry.what else { continue };
        let Some(instance) = history.instance_at(node, entry.at) else { continue };
        let is_ours = releases.iter().any(|(at, id)| id == instance && *at <= entry.at);
        // Nobody ships from a machine that was broken, that AWS took back, or whose Node was deleted, its shipper with the others.
        let was_broken = history.diary.iter().any(|(_, note)| match note {
            Note::Damaged(_, machine)
            | Note::Asked(Cause::Spot, machine)
            | Note::Person(Deed::DeleteNode, machine) => machine.instance == instance,
            _ => false,
        });
        // A Node that has an earlier one's name may have no shipper for as long as the earlier one's is there.
        let launched = history.lives.get(instance).and_then(|life| life.launched);
        let has_shipper = history.runs.iter().any(|run| {
            run.daemon && run.node == *node && run.pod.name.starts_with("shipper-") && run.from >= launched
        });
        let was_lost = was_broken || is_switched_off_by_others(history, instance, entry.at);
        if is_ours && has_shipper && !was_lost && !history.time_is_up(instance, 0, entry.at) {
            found.push(Violation { at: entry.at, what: format!("{count} lines of {node}") });
        }
    }
    found
}

/// Whether the machine was switched off with whatever ran on it: its group stopped it for the warm pool, or another's hook, which was all that
/// held it, timed out.
fn is_switched_off_by_others(history: &History, instance: &str, at: Timestamp) -> bool {
    let until_then = || history.aws.iter().take_while(|entry| entry.at <= at);
    let switched = until_then().filter_map(|entry| match &entry.what {
        AwsEvent::Powered { instance: id, power, .. } if id == instance => Some(*power),
        _ => None,
    });
    let ran_last = switched.filter(|power| matches!(power, Power::Running | Power::Stopped)).last();
    let times_out = |e: &AwsEvent| matches!(e, AwsEvent::HookTimedOut { instance: id, hook, .. } if id == instance && hook != OURS);
    ran_last == Some(Power::Stopped) || until_then().any(|entry| times_out(&entry.what))
}
