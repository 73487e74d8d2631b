//! The scale-ins under way as their records showed them, and the last ones that ended. For people and metrics: nothing is
//! decided by it. The records' own moments count, so that a restart or another leader changes no duration.
//!
//! Every process keeps its own, from the Nodes that it sees; what ended before its start is not in it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use super::events::{Reason, ScaleInEvent};
use super::record::{Cause, Phase, Record};
use crate::aws::{AwsError, Operation};
use crate::clock::elapsed;
use crate::cluster::PodName;
use crate::k8s::{GroupName, NodeName};
use crate::telemetry::chain;
use crate::words::words;

/// How many that ended are kept.
const KEPT: usize = 100;

/// Phases of one scale-in that are kept: workloads that keep coming back to a node bring it back to Draining each time.
const STAGES: usize = 16;

/// Steps of one scale-in that are kept: twice as many as there are pods on most nodes.
const STEPS: usize = 256;

words! {
    /// How a scale-in ended.
    pub Ending {
        /// The Node is gone after its instance was released.
        Released = "released",
        /// The same, after workloads were deleted because time was up.
        CutShort = "cut_short",
        /// The Node went while workloads or DaemonSet pods still ran.
        Lost = "lost",
        /// The Node is in use again after its release: a new root volume, back from the warm pool, or another machine's now.
        Returned = "returned",
        /// It was called off: by a person, by the group's minimum, by detaching the instance, by a new scale-in.
        Cancelled = "cancelled",
    }
}

/// What has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// A phase, after so long.
    Phase(Phase, Duration),
    /// The scale-in.
    ScaleIn(Cause, Ending),
}

/// A phase and when it began, by the API server's clock.
pub(super) type Stage = (Phase, Timestamp);

/// Something that was asked for in a scale-in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// What: of AWS by AWS's name.
    pub(super) name: &'static str,
    /// Of which pod; `None`: of AWS.
    pub(super) pod: Option<PodName>,
    pub(super) began: Timestamp,
    pub(super) ended: Timestamp,
    /// What there is to say of the answer: AWS's error, or the budgets that block.
    pub(super) told: Option<String>,
}

/// A scale-in as it went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Course {
    pub(super) record: Record,
    pub(super) stages: Vec<Stage>,
    /// What this process has asked for, in order.
    pub(super) steps: Vec<Step>,
    /// How this process has called it off, or put the node back into service.
    why: Option<ScaleInEvent>,
    /// Workloads were deleted because time was up.
    is_cut_short: bool,
    /// AWS was told to end the instance.
    is_released: bool,
}

/// A scale-in that ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Past {
    pub(super) node: NodeName,
    pub(super) course: Course,
    pub(super) outcome: Ending,
    pub(super) at: Timestamp,
}

impl Past {
    /// Why the node is in service again, if that is known: only the process that did it knows.
    pub(super) fn why(&self) -> Option<&str> {
        let is_again = matches!(self.outcome, Ending::Cancelled | Ending::Returned);
        self.course.why.as_ref().filter(|_| is_again).map(|why| why.note.as_str())
    }
}

/// Scale-ins under way, and the last ones that ended.
#[derive(Debug, Default)]
pub struct History(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    under_way: BTreeMap<NodeName, Course>,
    ended: VecDeque<Past>,
}

impl History {
    /// Notes a Node's record. `why`: what is left of a scale-in is to be taken off, because of this. Returns what has ended by that.
    pub(super) fn see(
        &self,
        node: &NodeName,
        record: Option<&Record>,
        why: Option<&ScaleInEvent>,
        now: Timestamp,
    ) -> Vec<Ended> {
        let mut inner = self.0.lock();
        let mut ended = Vec::new();
        if let Some(record) = record {
            if inner.under_way.get(node).is_some_and(|course| !course.is_of(record)) {
                ended = inner.end(node, false, now);
            }
            let course = inner.under_way.entry(node.clone()).or_insert_with(|| Course::of(record));
            ended.extend(course.see(record));
        }
        if let Some((course, why)) = inner.under_way.get_mut(node).zip(why) {
            course.why = Some(why.clone());
        }
        if record.is_none() {
            ended = inner.end(node, false, now);
        }
        ended
    }

    /// Notes that a Node is gone. Returns what has ended by that.
    pub(super) fn gone(&self, node: &NodeName, now: Timestamp) -> Vec<Ended> {
        self.0.lock().end(node, true, now)
    }

    /// Drops what is under way on a Node that nobody works on any more. Whoever does again begins it anew, from the record.
    pub(super) fn forget(&self, node: &NodeName) {
        self.0.lock().under_way.remove(node);
    }

    /// Notes that workloads are deleted because time is up.
    pub(super) fn cut_short(&self, node: &NodeName) {
        if let Some(course) = self.0.lock().under_way.get_mut(node) {
            course.is_cut_short = true;
        }
    }

    /// Notes that AWS was told to end the instance. How long ago the last workload exited, the first time this is said.
    pub(super) fn released(&self, node: &NodeName, now: Timestamp) -> Option<Duration> {
        let mut inner = self.0.lock();
        let releasing = |course: &&mut Course| course.record.phase == Phase::Releasing;
        let course = inner.under_way.get_mut(node).filter(releasing)?;
        let is_new = !std::mem::replace(&mut course.is_released, true);
        course.record.empty_since.filter(|_| is_new).map(|exit| elapsed(exit, now))
    }

    /// Notes what was asked for in the scale-in on a Node. Of a pod the same is kept once.
    pub(super) fn note(&self, node: &NodeName, step: Step) {
        let mut inner = self.0.lock();
        let Some(course) = inner.under_way.get_mut(node).filter(|course| course.steps.len() < STEPS) else {
            return;
        };
        let is_again =
            |other: &Step| step.pod.is_some() && (other.name, &other.pod) == (step.name, &step.pod);
        if !course.steps.iter().any(is_again) {
            course.steps.push(step);
        }
    }

    /// Notes a call to AWS for the scale-in on a Node.
    pub(super) fn note_call(
        &self,
        node: &NodeName,
        operation: Operation,
        [began, ended]: [Timestamp; 2],
        result: &Result<(), AwsError>,
    ) {
        let told = result.as_ref().err().map(|error| chain(error));
        self.note(node, Step { name: operation.name(), pod: None, began, ended, told });
    }

    /// The last scale-in that ended on a Node.
    pub(super) fn last(&self, node: &NodeName) -> Option<Past> {
        self.0.lock().ended.iter().rev().find(|past| past.node == *node).cloned()
    }

    /// The stages of the scale-in under way on a Node.
    pub(super) fn stages(&self, node: &NodeName, record: &Record) -> Vec<Stage> {
        let inner = self.0.lock();
        let course = inner.under_way.get(node).filter(|course| course.is_of(record));
        course.map_or_else(|| stages_of(record), |course| course.stages.clone())
    }

    /// How many instances of each group AWS took back since then, of those that are kept.
    pub fn interruptions(&self, since: Timestamp) -> BTreeMap<GroupName, usize> {
        let inner = self.0.lock();
        let records = inner.under_way.values().chain(inner.ended.iter().map(|past| &past.course));
        let mut counts = BTreeMap::new();
        for Course { record, .. } in records {
            if record.cause == Cause::SpotInterruption && record.requested_at >= since {
                *counts.entry(record.group.clone()).or_default() += 1;
            }
        }
        counts
    }

    /// Those that ended, the last first.
    pub(super) fn ended(&self) -> Vec<Past> {
        self.0.lock().ended.iter().rev().cloned().collect()
    }
}

impl Inner {
    fn end(&mut self, node: &NodeName, is_gone: bool, at: Timestamp) -> Vec<Ended> {
        let Some(course) = self.under_way.remove(node) else { return Vec::new() };
        let outcome = course.ending(is_gone);
        let ended = vec![course.phase_until(at), Ended::ScaleIn(course.record.cause, outcome)];
        if self.ended.len() == KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(Past { node: node.clone(), course, outcome, at });
        ended
    }
}

impl Course {
    fn of(record: &Record) -> Self {
        let stages = stages_of(record);
        let steps = Vec::new();
        Self { stages, steps, record: record.clone(), why: None, is_cut_short: false, is_released: false }
    }

    /// How it ended, if it has. `is_gone`: the Node.
    fn ending(&self, is_gone: bool) -> Ending {
        match (self.record.phase, is_gone) {
            // Another process, that deleted them, may have led before: the record tells of those that were left in the end.
            (Phase::Releasing, true) if self.is_cut_short || self.record.empty_since.is_none() => {
                Ending::CutShort
            }
            (Phase::Releasing, true) => Ending::Released,
            (Phase::Draining | Phase::Flushing, true) => Ending::Lost,
            (_, false) if self.is_returned() => Ending::Returned,
            (_, false) => Ending::Cancelled,
        }
    }

    /// Whether the node is in service again for another reason than that it was called off. Of what another process did, the phase tells.
    fn is_returned(&self) -> bool {
        self.why.as_ref().map_or(self.record.phase == Phase::Releasing, |why| why.reason == Reason::Returned)
    }

    fn phase_until(&self, end: Timestamp) -> Ended {
        Ended::Phase(self.record.phase, elapsed(self.record.phase_since, end))
    }

    /// Whether the record is the same scale-in's, whose moments may be corrected. A cause that takes over keeps neither its time nor its
    /// place.
    fn is_of(&self, record: &Record) -> bool {
        let is_same = |ours: &Record| ours.requested_at == record.requested_at || ours.cause == record.cause;
        self.record.instance == record.instance && is_same(&self.record)
    }

    fn see(&mut self, record: &Record) -> Option<Ended> {
        let ended = (record.phase != self.record.phase).then(|| self.phase_until(record.phase_since));
        let stage = (record.phase, record.phase_since);
        if self.stages.last().is_none_or(|last| last.0 != stage.0) {
            self.stages.truncate(STAGES - 1);
            self.stages.push(stage);
        }
        if self.record != *record {
            self.record = record.clone();
        }
        ended
    }
}

/// Stages with their ends; the last one ends at `end`.
pub(super) fn with_ends<End: From<Timestamp>>(
    stages: &[Stage],
    end: End,
) -> impl Iterator<Item = (Phase, Timestamp, End)> {
    let ends = stages.iter().skip(1).map(|(_, since)| End::from(*since)).chain([end]);
    stages.iter().zip(ends).map(|(&(phase, since), until)| (phase, since, until))
}

/// The stages that a record tells. One in Releasing does not say when its flush began, but that its last workload had exited.
pub(super) fn stages_of(record: &Record) -> Vec<Stage> {
    let mut stages = vec![(Phase::Draining, record.requested_at)];
    if record.phase == Phase::Releasing {
        stages.extend(record.empty_since.map(|since| (Phase::Flushing, since.max(record.requested_at))));
    }
    if record.phase != Phase::Draining {
        stages.push((record.phase, record.phase_since));
    }
    stages
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale_in::events;
    use crate::scale_in::record::{Cause, Release};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn record(second: i64) -> Record {
        Record::new(Cause::Autoscaler, "web", "i-1", Release::Terminate, at(second))
    }

    #[test]
    fn a_scale_in_is_kept_with_its_phases_and_how_it_ended() {
        let (history, node) = (History::default(), NodeName::from("n"));
        let first = record(100);
        history.see(&node, Some(&first), None, at(100));
        history.see(&node, Some(&first), None, at(101));
        let flushing = Record { empty_since: Some(at(130)), ..first.entering(Phase::Flushing, at(130)) };
        history.see(&node, Some(&flushing), None, at(130));
        let releasing = flushing.entering(Phase::Releasing, at(135));
        history.see(&node, Some(&releasing), None, at(135));
        let stages = [(Phase::Draining, at(100)), (Phase::Flushing, at(130)), (Phase::Releasing, at(135))];
        assert_eq!(history.stages(&node, &releasing), stages);
        history.gone(&node, at(150));
        history.gone(&node, at(151));
        let [past] = &history.ended()[..] else { panic!("one") };
        assert_eq!(
            (past.outcome, past.at, &past.course.stages[..]),
            (Ending::Released, at(150), &stages[..])
        );
    }

    #[test]
    fn one_that_is_called_off_keeps_the_reason_and_one_that_vanishes_has_none() {
        let history = History::default();
        let nodes = ["off", "gone", "again"].map(NodeName::from);
        for node in &nodes {
            history.see(node, Some(&record(100)), None, at(100));
        }
        let why = events::cancelled_at_minimum("web", "i-1");
        history.see(&nodes[0], Some(&record(100)), Some(&why), at(101));
        history.see(&nodes[0], None, None, at(102));
        history.gone(&nodes[1], at(103));
        history.see(&nodes[2], Some(&Record { cause: Cause::Operator, ..record(200) }), None, at(200));
        let ended = history.ended();
        let told: Vec<_> = ended.iter().rev().map(|past| (past.outcome, past.why())).collect();
        let reason = Some(why.note.as_str());
        assert_eq!(told, [(Ending::Cancelled, reason), (Ending::Lost, None), (Ending::Cancelled, None)]);
    }

    #[test]
    fn a_moment_of_the_request_that_is_corrected_begins_no_other_scale_in() {
        let (history, node) = (History::default(), NodeName::from("n"));
        history.see(&node, Some(&record(100)), None, at(100));
        assert_eq!(history.see(&node, Some(&record(103)), None, at(104)), []);
        assert_eq!(history.stages(&node, &record(103)), [(Phase::Draining, at(100))]);
        let releasing = record(103).entering(Phase::Releasing, at(170));
        history.see(&node, Some(&releasing), None, at(170));
        let ended = history.gone(&node, at(200));
        assert_eq!(ended.last(), Some(&Ended::ScaleIn(Cause::Autoscaler, Ending::CutShort)));
        let another = Record { instance: "i-2".into(), ..record(103) };
        history.see(&node, Some(&record(103)), None, at(201));
        assert_eq!(history.see(&node, Some(&another), None, at(202)).len(), 2, "of another machine");
    }

    #[test]
    fn it_holds_no_more_than_the_last_hundred_and_no_endless_phases() {
        let history = History::default();
        for n in 0..250 {
            let node = NodeName::from(format!("n-{n}").as_str());
            let record = record(n);
            history.see(&node, Some(&record), None, at(n));
            for turn in 0..50 {
                let phase = if turn % 2 == 0 { Phase::Flushing } else { Phase::Draining };
                history.see(&node, Some(&record.entering(phase, at(n + turn))), None, at(n + turn));
            }
            assert!(history.stages(&node, &record).len() <= STAGES);
            history.gone(&node, at(n + 60));
        }
        let ended = history.ended();
        assert_eq!((ended.len(), ended[0].node.as_str()), (KEPT, "n-249"));
        assert!(history.0.lock().under_way.is_empty());
    }

    #[test]
    fn what_began_before_the_start_is_told_by_its_record() {
        let flushing =
            Record { empty_since: Some(at(120)), ..record(100).entering(Phase::Flushing, at(121)) };
        assert_eq!(stages_of(&flushing), [(Phase::Draining, at(100)), (Phase::Flushing, at(121))]);
        let releasing = flushing.entering(Phase::Releasing, at(130));
        let stages = [(Phase::Draining, at(100)), (Phase::Flushing, at(120)), (Phase::Releasing, at(130))];
        assert_eq!(stages_of(&releasing), stages);
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn releasing() -> Record {
        Record { empty_since: Some(at(160)), ..record(100).entering(Phase::Flushing, at(160)) }
            .entering(Phase::Releasing, at(170))
    }

    #[test]
    fn each_phase_is_told_when_it_ends_and_the_scale_in_with_the_last() {
        let (history, node) = (History::default(), NodeName::from("n"));
        let see = |record: &Record, now| history.see(&node, Some(record), None, at(now));
        assert_eq!(see(&record(100), 101), []);
        assert_eq!(see(&record(100), 110), []);
        assert_eq!(history.released(&node, at(111)), None, "under a hook, a termination is no release");
        let flushing = record(100).entering(Phase::Flushing, at(160));
        assert_eq!(see(&flushing, 161), [Ended::Phase(Phase::Draining, seconds(60))]);
        assert_eq!(see(&releasing(), 171), [Ended::Phase(Phase::Flushing, seconds(10))]);
        assert_eq!(history.released(&node, at(172)), Some(seconds(12)));
        assert_eq!(history.released(&node, at(173)), None, "AWS is told twice");
        let end = Ended::ScaleIn(Cause::Autoscaler, Ending::Released);
        assert_eq!(history.gone(&node, at(200)), [Ended::Phase(Phase::Releasing, seconds(30)), end]);
        assert_eq!(history.gone(&node, at(201)), []);
    }

    #[test]
    fn what_this_process_did_the_last_phase_and_what_became_of_the_node_say_how_it_ended() {
        use Ending::{Cancelled, CutShort, Lost, Released, Returned};
        let ending = |record: &Record, is_cut_short, why: Option<&ScaleInEvent>, is_gone| {
            let (history, node) = (History::default(), NodeName::from("n"));
            history.see(&node, Some(record), why.filter(|_| is_gone), at(180));
            if is_cut_short {
                history.cut_short(&node);
            }
            let ended =
                if is_gone { history.gone(&node, at(200)) } else { history.see(&node, None, why, at(200)) };
            let [past] = &history.ended()[..] else { panic!("one") };
            assert_eq!(past.why().is_some(), why.is_some() && !is_gone);
            match ended[..] {
                [Ended::Phase(..), Ended::ScaleIn(_, ending)] => ending,
                ref other => panic!("{other:?}"),
            }
        };
        let (off, back) = (events::cancelled_by_a_person(), events::adopted("i-1"));
        for why in [None, Some(&off), Some(&back)] {
            assert_eq!(ending(&releasing(), false, why, true), Released);
            assert_eq!(ending(&releasing(), true, why, true), CutShort);
            assert_eq!(ending(&record(100), false, why, true), Lost);
        }
        assert_eq!(ending(&releasing(), false, None, false), Returned);
        assert_eq!(ending(&record(100), false, None, false), Cancelled);
        for record in [record(100), releasing()] {
            assert_eq!(ending(&record, false, Some(&off), false), Cancelled);
            assert_eq!(ending(&record, false, Some(&back), false), Returned);
        }
    }
}
