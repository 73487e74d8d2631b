//! The timeline of one node: both journals and the program's own life, in order.
//!
//! At the same moment, the group's own decision comes first, then the cluster's events, then calls to AWS: cause before
//! effect.

use jiff::Timestamp;

use super::bars::bars;
use super::fold::{Lines, Repeated};
use super::node::{Kind, NodeReport, PhaseSpan, ProgramMark};
use super::scale_ins::{ScaleIn, cause_words, reason_of};
use super::seconds::Seconds;
use super::seen::Seen;
use super::short;
use crate::k8s::names;
use crate::scale_in::events::Reason;
use crate::scale_in::record::{Phase, Release, Written, read};
use crate::sim::aws::{self, LifecycleState, Operation, Outcome, TerminationCause, Transition};
use crate::sim::cluster::{self, By, Name, NodeChange};

const DECISION: u8 = 0;
const CLUSTER: u8 = 1;
const CALLS: u8 = 2;
const PROGRAM: u8 = 3;

/// The report of one node.
pub(super) fn node(seen: &Seen<'_>, scale_in: &ScaleIn) -> NodeReport {
    let life = seen.lives.get(&scale_in.instance);
    let since = |at: Timestamp| Seconds::between(scale_in.start, at);
    let gone = life.and_then(|life| life.gone).or(scale_in.powered_off);
    let mut teller = Teller { seen, scale_in, phase: None, lines: Lines::default(), until: seen.ended };
    if let Some(over) = [scale_in.removed, gone].into_iter().flatten().max() {
        teller.until = over;
    }
    let until = teller.until;
    let heartbeats = seen.aws.iter().filter(|entry| {
        matches!(&entry.what, aws::Event::Heartbeat { instance, .. } if *instance == scale_in.instance)
    });
    let here = |at: &Timestamp| (scale_in.start..=gone.unwrap_or(until)).contains(at);
    let program = seen.facts.program.iter().filter(|(at, _)| here(at));
    let scene = seen.facts.scenes.iter().rev().find(|scene| scene.at <= scale_in.start);
    NodeReport {
        node: scale_in.node.clone(),
        instance: scale_in.instance.clone(),
        group: scale_in.group.clone(),
        held_by_hook: life.is_some_and(|life| life.held),
        cause: scale_in.cause.clone(),
        scene: scene.map(|scene| scene.title.clone()),
        start: Seconds::between(seen.started, scale_in.start),
        took: gone.map(since),
        span: since(until),
        last_exit: seen.last_exit(scale_in).at().map(since),
        exit_to_flush: seen.exit_to_flush(scale_in).map(|(exit, flush)| Seconds::between(exit, flush)),
        phases: phases(scale_in, gone.unwrap_or(until)),
        pods: bars(seen, scale_in),
        heartbeats: heartbeats.filter(|entry| here(&entry.at)).map(|entry| since(entry.at)).collect(),
        program: program.clone().map(|(at, what)| ProgramMark { at: since(*at), what: *what }).collect(),
        lines: {
            for (at, what) in program {
                teller.lines.add(since(*at), PROGRAM, Kind::Program, what.words());
            }
            teller.tell()
        },
    }
}

fn phases(scale_in: &ScaleIn, over: Timestamp) -> Vec<PhaseSpan> {
    let over = scale_in.cancelled.unwrap_or(over);
    let ends = scale_in.phases.iter().skip(1).map(|(_, at)| *at).chain([over]);
    let since = |at| Seconds::between(scale_in.start, at);
    let spans = scale_in.phases.iter().zip(ends);
    spans
        .map(|((phase, from), to)| PhaseSpan { phase: *phase, from: since(*from), to: since(to.max(*from)) })
        .collect()
}

struct Teller<'a> {
    seen: &'a Seen<'a>,
    scale_in: &'a ScaleIn,
    phase: Option<Phase>,
    lines: Lines,
    until: Timestamp,
}

impl Teller<'_> {
    fn tell(mut self) -> Vec<super::node::Line> {
        let time = self.scale_in.start..=self.until;
        for entry in self.seen.cluster.iter().filter(|entry| time.contains(&entry.at)) {
            self.tell_cluster(entry);
        }
        for entry in self.seen.aws.iter().filter(|entry| time.contains(&entry.at)) {
            self.tell_aws(entry);
        }
        self.tell_asked();
        self.lines.finish()
    }

    fn since(&self, at: Timestamp) -> Seconds {
        Seconds::between(self.scale_in.start, at)
    }

    fn add(&mut self, at: Timestamp, rank: u8, kind: Kind, text: impl Into<String>) {
        self.lines.add(self.since(at), rank, kind, text);
    }

    fn tell_cluster(&mut self, entry: &cluster::Entry) {
        use cluster::Event;
        let (at, ours) = (entry.at, self.scale_in.node.as_str());
        match &entry.what {
            Event::NodeChanged { node, changes } if node == ours => self.tell_changes(at, changes),
            Event::PodExited { pod, node } if node == ours => {
                let text = format!("{} exited", self.call(pod));
                self.add(at, CLUSTER, Kind::Exited, text);
            }
            Event::CutShort { pod, node, .. } if node == ours => self.tell_cut(at, pod),
            Event::EvictionRefused { pod, budget } if self.is_here(pod, at) => {
                let what = Repeated::Budget(budget.clone());
                self.lines.repeat(self.since(at), CLUSTER, what, &short::pod(pod));
            }
            Event::LinesLost { node, count } if node == ours => {
                let text = format!("{} LOST with the instance", short::count(*count, "log line"));
                self.add(at, CALLS, Kind::LinesLost, text);
            }
            Event::NodeRemoved { node } if node == ours => {
                self.add(at, CLUSTER, Kind::Removed, "Node removed");
            }
            Event::KubernetesEvent { regarding, reason, note }
                if regarding.strip_prefix("Node/") == Some(ours) =>
            {
                self.tell_said(at, reason, note);
            }
            _ => {}
        }
    }

    /// Tells from Events only what the record does not say; phases come from the record.
    fn tell_said(&mut self, at: Timestamp, reason: &str, note: &str) {
        match reason_of(reason) {
            None | Some(Reason::Draining | Reason::Flushing | Reason::Released) => {}
            Some(Reason::Releasing) => {
                let volumes = note.split([',', ':']).find(|part| part.contains("volumes"));
                if let Some(volumes) = volumes {
                    self.add(at, CLUSTER, Kind::Volumes, volumes.trim());
                }
            }
            Some(_) => {
                let what = Repeated::Said(reason.to_owned());
                self.lines.repeat(self.since(at), CLUSTER, what, note);
            }
        }
    }

    fn tell_cut(&mut self, at: Timestamp, pod: &Name) {
        let mut runs = self.seen.runs_in(self.scale_in);
        let end = runs.find(|run| run.pod == *pod && run.end.is_some_and(|(end, _)| end == at));
        let why = end.and_then(|run| run.end).map_or("killed", |(_, how)| how.words());
        let text = format!("{} CUT SHORT: {why}", self.call(pod));
        self.add(at, CLUSTER, Kind::CutShort, text);
    }

    fn tell_changes(&mut self, at: Timestamp, changes: &[NodeChange]) {
        let mut marks = Vec::new();
        let mut written = None;
        for change in changes {
            match change {
                NodeChange::Unschedulable(true) => marks.push("cordoned"),
                NodeChange::Unschedulable(false) => marks.push("uncordoned"),
                NodeChange::Tainted { key, .. } if key == names::TO_BE_DELETED => marks.push("tainted"),
                NodeChange::TaintRemoved(key) if key == names::TO_BE_DELETED => marks.push("taint taken off"),
                NodeChange::Labelled(key, _) if key == names::EXCLUDE_FROM_LOAD_BALANCERS => {
                    marks.push("out of load balancers");
                }
                NodeChange::Annotated(key, value) if key == names::RECORD => written = Some(read(value)),
                NodeChange::AnnotationRemoved(key) if key == names::RECORD => {
                    self.phase = None;
                    self.add(at, CLUSTER, Kind::Cancelled, "scale-in called off");
                }
                _ => {}
            }
        }
        let marks = marks.join(", ");
        let with_marks =
            |text: &str| if marks.is_empty() { text.to_owned() } else { format!("{text}: {marks}") };
        match written {
            Some(Written::Record(record)) if self.phase.is_none() => {
                self.phase = Some(record.phase);
                let who = match self.scale_in.cause.as_str() {
                    "autoscaler" => "DeleteNodes accepted",
                    "lifecycle-hook" => "found in Terminating:Wait",
                    _ => "scale-in began",
                };
                self.add(at, CLUSTER, Kind::Began, with_marks(who));
            }
            Some(Written::Record(record)) if self.phase != Some(record.phase) => {
                self.phase = Some(record.phase);
                let text = self.enters(record.phase, at);
                self.add(at, CLUSTER, Kind::Phase, text);
            }
            Some(Written::Request(request)) if request.since.is_none() => {
                let word = if request.release == Release::Terminate { "replace" } else { "now" };
                let text = format!("a person asks: {}={word}", names::RECORD);
                self.add(at, CLUSTER, Kind::Began, text);
            }
            // A renewed taint is not told.
            _ if marks.is_empty() || marks == "tainted" => {}
            _ => self.add(at, CLUSTER, Kind::Marked, marks),
        }
    }

    fn enters(&self, phase: Phase, at: Timestamp) -> String {
        match phase {
            Phase::Draining => "a workload has come: draining again".to_owned(),
            Phase::Releasing => "DaemonSet pods have had their time".to_owned(),
            Phase::Flushing => {
                let workloads = || self.seen.runs_in(self.scale_in).filter(|run| run.is_workload());
                let began_before = |at: Timestamp| move |from: Timestamp| from <= at;
                let left =
                    workloads().filter(|run| run.lasts_beyond(at) && run.from.is_some_and(began_before(at)));
                let left = left.count() as u64;
                let who = if left > 0 {
                    format!("time is up with {} left", short::count(left, "workload pod"))
                } else if workloads().next().is_some() {
                    "last workload exited".to_owned()
                } else {
                    "no workload on the node".to_owned()
                };
                let mut later = self.scale_in.phases.iter().map(|(_, from)| *from);
                let what = later
                    .find(|from| *from > at)
                    .map_or("flush".to_owned(), |next| format!("have {} s", Seconds::between(at, next)));
                format!("{who}; DaemonSet pods {what}")
            }
        }
    }

    /// Takes asked pods from the runs: the journal does not say where a pod is when it is asked.
    fn tell_asked(&mut self) {
        let seen = self.seen;
        for run in seen.runs_in(self.scale_in) {
            let Some(asked) = run.asked.filter(|asked| asked.at >= self.scale_in.start) else { continue };
            let how = match asked.by {
                By::Eviction => "asked to go",
                By::Delete => "deleted",
                By::Controller => "asked to go by its controller",
            };
            let text = format!("{} {how} (grace {} s)", self.call(&run.pod), asked.grace);
            self.add(asked.at, CLUSTER, Kind::Asked, text);
        }
    }

    fn call(&self, pod: &Name) -> String {
        let name = short::pod(pod);
        if self.seen.facts.is_daemon(pod) { format!("DaemonSet pod {name}") } else { name }
    }

    fn is_here(&self, pod: &Name, at: Timestamp) -> bool {
        self.seen.runs_in(self.scale_in).any(|run| run.pod == *pod && run.lasts_beyond(at))
    }

    fn tell_aws(&mut self, entry: &aws::Entry) {
        use aws::Event;
        let (at, ours) = (entry.at, self.scale_in.instance.as_str());
        match &entry.what {
            Event::Called { operation, arguments, outcome }
                if arguments.get("InstanceId").is_some_and(|id| id == ours) =>
            {
                self.tell_call(at, *operation, outcome);
            }
            Event::TerminationStarted { instance, cause, decrement, .. } if instance == ours => {
                self.tell_termination(at, *cause, *decrement);
            }
            Event::EnteredWait { instance, hook, transition: Transition::Terminating, .. }
                if instance == ours =>
            {
                let text = format!("hook {hook} holds the instance");
                self.add(at, CALLS, Kind::Held, text);
            }
            Event::Heartbeat { instance, hook, .. } if instance == ours => {
                self.lines.repeat(self.since(at), CALLS, Repeated::Heartbeats(hook.clone()), "");
            }
            Event::HookCompleted { instance, hook, result, .. } if instance == ours => {
                let text = format!("instance released: hook {hook} completed, {}", result.name());
                self.add(at, CALLS, Kind::Released, text);
            }
            Event::HookTimedOut { instance, hook, result, .. } if instance == ours => {
                let text = format!("HOOK {hook} TIMED OUT: {}", result.name());
                self.add(at, CALLS, Kind::TimedOut, text);
            }
            Event::Entered { instance, state: LifecycleState::TerminatingRetained, .. }
                if instance == ours =>
            {
                self.add(at, CALLS, Kind::Held, "the group keeps the instance, workloads running");
            }
            Event::Terminated { instance, .. } if instance == ours => {
                self.add(at, CALLS, Kind::Gone, "instance gone");
            }
            _ => {}
        }
    }

    fn tell_call(&mut self, at: Timestamp, operation: Operation, outcome: &Outcome) {
        let how = match outcome {
            Outcome::Answered => return,
            Outcome::Refused(code) => format!("refused with {code}"),
            Outcome::LostBefore => "lost on the way there".to_owned(),
            Outcome::LostAfter => "done, its answer lost".to_owned(),
        };
        self.lines.repeat(self.since(at), CALLS, Repeated::Call(format!("{operation} {how}")), "");
    }

    fn tell_termination(&mut self, at: Timestamp, cause: TerminationCause, decrement: bool) {
        let desired = if decrement { "desired capacity goes down" } else { "a replacement comes" };
        let held = self.seen.lives.get(&self.scale_in.instance).is_some_and(|life| life.held);
        match cause {
            TerminationCause::Request if held => {
                let text = format!("taken out of the group: {desired}");
                self.add(at, CALLS, Kind::Terminating, text);
            }
            TerminationCause::Request => {
                let text = format!("instance released: terminated, {desired}");
                self.add(at, CALLS, Kind::Released, text);
            }
            other => {
                let text = format!("the group terminates the instance: {}", cause_words(other));
                self.add(at, DECISION, Kind::Terminating, text);
            }
        }
    }
}
