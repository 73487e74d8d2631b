//! Metrics of scale-ins. Counters are registered once; how many are under way is read off the Nodes at each scrape.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::history::{Ended, Ending};
use super::outcome::Removal;
use super::record::{Annotation, Cause, Phase, Record, Written};
use super::waiting::{Board, Progress, WaitReason};
use crate::aws::{AwsError, Lifecycle};
use crate::clock::{Clock, elapsed};
use crate::cluster::{Answer, Cordon, Nodes};
use crate::groups::Groups;
use crate::k8s::GroupName;
use crate::telemetry::gauges;
use crate::words::words;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Reply {
    going,
    gone,
    blocked,
    busy,
    unclear,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    call: Removal,
    answer: Reply,
}

words! {
    /// What became of a heartbeat.
    Beat {
        Ok = "ok",
        /// The hook holds the instance no more: it was completed, or its time is over.
        Over = "over",
        /// AWS throttled it, or did not answer, and may take the next one.
        Retried = "retried",
        Failed = "failed",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Heartbeat {
    group: String,
    outcome: Beat,
}

/// What became of a message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
pub(super) enum Handled {
    /// It is about instances of ours, and acted on.
    taken,
    /// It asks for nothing.
    ignored,
    /// It is about an instance that is not ours, and asks for nothing of ours.
    foreign,
    /// It cannot be read.
    malformed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Messages {
    outcome: Handled,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndedLabels {
    cause: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct InPhase {
    phase: &'static str,
}

/// A drain takes from seconds to the two days for which a hook can hold an instance.
const DURATIONS: [f64; 13] =
    [1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1_800.0, 3_600.0, 14_400.0, 43_200.0, 172_800.0];

/// A flush takes 5 s if nobody asks for more, with volumes a minute more, and at most an hour.
const AFTER_EXIT: [f64; 10] = [1.0, 2.5, 5.0, 7.5, 10.0, 15.0, 30.0, 60.0, 300.0, 3_600.0];

/// Time-outs of hooks are 30 s to 2 h, and half of one is left when the next heartbeat is sent.
const MARGINS: [f64; 9] = [0.0, 5.0, 10.0, 15.0, 30.0, 60.0, 150.0, 600.0, 3_600.0];

/// The notices for which a node can be closed and not drained.
const CORDONS: [Cause; 2] = [Cause::RebalanceRecommendation, Cause::ScheduledEvent];

/// Counters of what scale-ins ask for.
#[derive(Clone, Debug)]
pub struct Metrics {
    ended: Family<EndedLabels, Counter>,
    phases: Family<InPhase, Histogram, fn() -> Histogram>,
    after_exit: Histogram,
    asked: Family<Asked, Counter>,
    heartbeats: Family<Heartbeat, Counter>,
    /// Groups of whose instances there were heartbeats.
    beating: Arc<Mutex<BTreeSet<GroupName>>>,
    margins: Histogram,
    panics: Counter,
    undrained: Counter,
    suppressed: Counter,
    messages: Family<Messages, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            ended: Family::default(),
            phases: Family::new_with_constructor(|| Histogram::new(DURATIONS)),
            after_exit: Histogram::new(AFTER_EXIT),
            asked: Family::default(),
            heartbeats: Family::default(),
            beating: Arc::default(),
            margins: Histogram::new(MARGINS),
            suppressed: Counter::default(),
            panics: Counter::default(),
            undrained: Counter::default(),
            messages: Family::default(),
        };
        // A rate needs a zero before the first one.
        for (cause, ending) in Cause::ALL.into_iter().flat_map(|c| Ending::ALL.map(|e| (c, e))) {
            drop(metrics.ended_counter(cause, ending));
        }
        metrics
    }
}

impl Metrics {
    /// Registers everything about scale-ins.
    pub fn register(
        &self,
        registry: &mut Registry,
        nodes: Arc<Nodes>,
        board: Arc<Board>,
        groups: Arc<Groups>,
        clock: Clock,
    ) {
        registry.register(
            "ebbtide_scale_ins_ended",
            "Scale-ins that ended, by cause and outcome",
            self.ended.clone(),
        );
        registry.register_with_unit(
            "ebbtide_scale_in_phase_duration",
            "Durations of completed scale-in phases; Draining is the drain",
            Unit::Seconds,
            self.phases.clone(),
        );
        registry.register_with_unit(
            "ebbtide_scale_in_exit_to_release",
            "Time from the exit of a node's last workload until AWS accepted the instance's release",
            Unit::Seconds,
            self.after_exit.clone(),
        );
        registry.register_with_unit(
            "ebbtide_lifecycle_heartbeat_margin",
            "What was left of the lifecycle hook's time-out when AWS answered a heartbeat",
            Unit::Seconds,
            self.margins.clone(),
        );
        registry.register(
            "ebbtide_pod_removal_requests",
            "Requests to the API server to evict or delete a pod, by its answer",
            self.asked.clone(),
        );
        registry.register(
            "ebbtide_lifecycle_heartbeats",
            "Heartbeats sent for instances that the lifecycle hook holds",
            self.heartbeats.clone(),
        );
        registry.register(
            "ebbtide_scale_in_panics",
            "Panics of a node's worker, each restarted after a pause",
            self.panics.clone(),
        );
        registry.register(
            "ebbtide_nodes_undrained",
            "Nodes with workloads that their group ended without a lifecycle hook, so that nothing held them while they were drained, or whose hook was over before ebbtide saw that, so that nobody drained them",
            self.undrained.clone(),
        );
        registry.register(
            "ebbtide_pod_events_suppressed",
            "Events about pods that were asked to go, not published because there were too many in a minute",
            self.suppressed.clone(),
        );
        registry.register(
            "ebbtide_notices",
            "Messages read from the queues, each time they come, by what became of them: taken, ignored (they ask for \
             nothing), foreign (about an instance or under a hook that is not ours: left alone), malformed",
            self.messages.clone(),
        );
        registry.register_collector(Box::new(UnderWay { nodes, board, groups, clock }));
    }

    /// A phase or a scale-in has ended.
    pub(super) fn ended(&self, ended: Ended) {
        match ended {
            Ended::Phase(phase, took) => {
                let labels = InPhase { phase: phase.as_str() };
                self.phases.get_or_create(&labels).observe(took.as_secs_f64());
            }
            Ended::ScaleIn(cause, ending) => drop(self.ended_counter(cause, ending).inc()),
        }
    }

    fn ended_counter(&self, cause: Cause, ending: Ending) -> impl Deref<Target = Counter> {
        self.ended.get_or_create(&EndedLabels { cause: cause.as_str(), outcome: ending.as_str() })
    }

    /// AWS has taken the order to end an instance, so long after its last workload exited.
    pub(super) fn released(&self, after: Duration) {
        self.after_exit.observe(after.as_secs_f64());
    }

    pub(super) fn answered(&self, answer: &Answer, call: Removal) {
        let answer = match answer {
            Answer::Going | Answer::GoingAnyway => Reply::going,
            Answer::Gone => Reply::gone,
            Answer::Blocked(_) => Reply::blocked,
            Answer::Busy(..) => Reply::busy,
            Answer::Unclear(_) => Reply::unclear,
            Answer::Unsent => return,
        };
        self.asked.get_or_create(&Asked { call, answer }).inc();
    }

    pub(super) fn handled(&self, outcome: Handled) {
        self.messages.get_or_create(&Messages { outcome }).inc();
    }

    pub(super) fn suppressed(&self) {
        self.suppressed.inc();
    }

    /// A group ends a node with workloads, and no hook holds it.
    pub(super) fn undrained(&self) {
        self.undrained.inc();
    }

    pub(super) fn panicked(&self) {
        self.panics.inc();
    }

    /// A heartbeat for an instance of a group was answered, with so much of the hook's time-out left, if that is known. `is_retried`: the
    /// next one may be taken yet.
    pub(super) fn beat(
        &self,
        group: &GroupName,
        answer: &Result<(), AwsError>,
        is_retried: bool,
        left: Option<Duration>,
    ) {
        let outcome = match answer {
            Ok(()) => Beat::Ok,
            Err(AwsError::NoActiveHook { .. }) => Beat::Over,
            Err(AwsError::DryRun { .. }) => return,
            Err(_) if is_retried => Beat::Retried,
            Err(_) => Beat::Failed,
        };
        if self.beating.lock().insert(group.clone()) {
            // What has not happened is 0, and no gap.
            for outcome in Beat::ALL {
                drop(self.heartbeats.get_or_create(&Heartbeat { group: group.to_string(), outcome }));
            }
        }
        self.heartbeats.get_or_create(&Heartbeat { group: group.to_string(), outcome }).inc();
        if let Some(left) = left.filter(|_| outcome == Beat::Ok) {
            self.margins.observe(left.as_secs_f64());
        }
    }

    /// Drops what is counted by group of those that are not there any more.
    pub(super) fn keep_groups(&self, is_there: impl Fn(&GroupName) -> bool) {
        for group in self.beating.lock().extract_if(.., |group| !is_there(group)) {
            for outcome in Beat::ALL {
                self.heartbeats.remove(&Heartbeat { group: group.to_string(), outcome });
            }
        }
    }
}

#[derive(Debug)]
struct UnderWay {
    nodes: Arc<Nodes>,
    board: Arc<Board>,
    groups: Arc<Groups>,
    clock: Clock,
}

impl Collector for UnderWay {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        self.encode_nodes(&mut encoder)?;
        self.encode_pods(&mut encoder)?;
        let gauge = encoder.encode_descriptor(
            "ebbtide_scale_ins_held_by_load_balancers",
            "Scale-ins whose release waits for nothing but load balancers that still reach the instance",
            None,
            MetricType::Gauge,
        )?;
        let held = self.board.all().values().filter(|progress| progress.load_balancers.is_some()).count();
        ConstGauge::new(i64::try_from(held).unwrap_or(i64::MAX)).encode(gauge)
    }
}

impl UnderWay {
    /// Scale-ins, what their Nodes say of their time, and cordons.
    fn encode_nodes(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut scale_ins: BTreeMap<(String, String), i64> = BTreeMap::new();
        let mut cordoned = CORDONS.map(|cause| (cause, 0_i64));
        let mut oldest = Duration::ZERO;
        let mut nearest: Option<Duration> = None;
        let now = self.clock.cluster();
        let (board, snapshot) = (self.board.all(), self.groups.latest());
        // In the warm pool a record may stay for days: that scale-in is not stuck.
        let is_in_the_warm_pool = |record: &Record| {
            let found = snapshot.as_ref().and_then(|snapshot| snapshot.instance(&record.instance));
            found.is_some_and(|(_, instance)| instance.lifecycle == Lifecycle::Warmed)
        };
        for node in self.nodes.all() {
            let causes = node.closed_for().map(Cordon::causes).unwrap_or_default();
            for (_, count) in cordoned.iter_mut().filter(|(cause, _)| causes.contains(cause)) {
                *count += 1;
            }
            let labels = match node.record.as_deref().map(Annotation::written) {
                Some(Written::Request(_)) => (Cause::Operator.to_string(), "Queued".to_owned()),
                _ => match node.scale_in() {
                    Some(record) => {
                        if !is_in_the_warm_pool(record) {
                            oldest = oldest.max(elapsed(record.requested_at, now));
                        }
                        nearest = [nearest, limit_left(record, board.get(&node.name), now)]
                            .into_iter()
                            .flatten()
                            .min();
                        (record.cause.to_string(), record.phase.to_string())
                    }
                    None => continue,
                },
            };
            *scale_ins.entry(labels).or_default() += 1;
        }
        let mut gauge = encoder.encode_descriptor(
            "ebbtide_scale_ins",
            "Scale-ins under way, by cause and phase; Queued: requested by a person, not begun yet",
            None,
            MetricType::Gauge,
        )?;
        for ((cause, phase), count) in scale_ins {
            let labels = [("cause", cause), ("phase", phase)];
            ConstGauge::new(count).encode(gauge.encode_family(&labels)?)?;
        }
        let mut gauge = encoder.encode_descriptor(
            "ebbtide_nodes_cordoned",
            "Nodes that take no new pods because of notices from AWS, and are not drained, by cause",
            None,
            MetricType::Gauge,
        )?;
        for (cause, count) in cordoned {
            ConstGauge::new(count).encode(gauge.encode_family(&[("cause", cause.as_str())])?)?;
        }
        gauges::seconds(
            encoder,
            "ebbtide_scale_in_oldest_age",
            "How long ago the oldest scale-in under way was requested, without those of instances in a warm pool; 0 if none is",
            oldest,
        )?;
        let Some(nearest) = nearest else { return Ok(()) };
        gauges::seconds(
            encoder,
            "ebbtide_scale_in_nearest_limit",
            "Shortest time until a long drain deletes pods regardless of budgets: its first last call or, where unknown, its limit; \
            absent if no drain has one",
            nearest,
        )
    }

    /// Pods that scale-ins wait for, and why.
    fn encode_pods(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut waiting: BTreeMap<&'static str, i64> = BTreeMap::new();
        let mut blocked: BTreeMap<String, i64> = BTreeMap::new();
        for w in self.board.all().values().flat_map(|progress| &progress.waiting) {
            if let WaitReason::Budget { names, .. } = &w.why {
                // A budget that nobody can name is counted too. Names of budgets have a slash.
                let unknown = names.is_empty().then(|| "unknown".to_owned());
                for name in names.iter().cloned().chain(unknown) {
                    *blocked.entry(name).or_default() += 1;
                }
            }
            *waiting.entry(w.why.as_str()).or_default() += 1;
        }
        let mut gauge = encoder.encode_descriptor(
            "ebbtide_scale_in_pods_waiting",
            "Pods that scale-ins wait for, by reason",
            None,
            MetricType::Gauge,
        )?;
        for (why, count) in waiting {
            ConstGauge::new(count).encode(gauge.encode_family(&[("reason", why)])?)?;
        }
        encode_blocked(encoder, blocked)
    }
}

/// How long a drain must have gone on, and for half of its time at least, to be worth a look near its limit ...
const LASTING: Duration = Duration::from_mins(10);
/// ... if it was given more than this: shorter limits are a notice's, or somebody's choice.
const LONG: Duration = Duration::from_mins(30);

/// How soon a long drain that has gone on for a while deletes pods whatever their budgets say. Whose last call comes first, the leader knows.
fn limit_left(record: &Record, progress: Option<&Progress>, now: Timestamp) -> Option<Duration> {
    let limit = record.release_by.filter(|_| record.phase == Phase::Draining)?;
    let deletes = progress.and_then(|progress| progress.last_call.or(progress.phase_until)).unwrap_or(limit);
    let since = |at| elapsed(record.requested_at, at);
    (since(limit) > LONG && since(now) >= LASTING.max(since(deletes) / 2)).then(|| elapsed(now, deletes))
}

/// How many budgets have series of their own. More than these hold nodes up only if something is wrong with all of them.
const BUDGETS: usize = 50;

/// The budgets that block most pods, and all others together.
fn encode_blocked(encoder: &mut DescriptorEncoder<'_>, blocked: BTreeMap<String, i64>) -> std::fmt::Result {
    let mut gauge = encoder.encode_descriptor(
        "ebbtide_scale_in_pods_blocked",
        "Workload pods that a disruption budget (namespace/name) has no room for; beyond 50 budgets: other",
        None,
        MetricType::Gauge,
    )?;
    let mut blocked: Vec<_> = blocked.into_iter().collect();
    blocked.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let others = blocked.split_off(blocked.len().min(BUDGETS));
    let others = (!others.is_empty()).then(|| ("other".to_owned(), others.iter().map(|(_, n)| n).sum()));
    for (budget, count) in blocked.into_iter().chain(others) {
        ConstGauge::new(count).encode(gauge.encode_family(&[("budget", budget)])?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{AutoScalingGroup, Instance};
    use crate::cluster::{PodName, Sink as _};
    use crate::groups::{Group, Snapshot};
    use crate::k8s::names;
    use crate::scale_in::record::{self, Release};
    use crate::scale_in::waiting::Waiting;
    use crate::telemetry::captured;

    fn page(metrics: &Metrics, board: Arc<Board>) -> String {
        page_of(metrics, Arc::default(), board, Groups::new(Duration::MAX))
    }

    fn page_of(metrics: &Metrics, nodes: Arc<Nodes>, board: Arc<Board>, groups: Groups) -> String {
        captured::page(|registry| {
            metrics.register(registry, nodes, board, Arc::new(groups), Clock::system());
        })
    }

    #[test]
    fn a_scale_in_grows_no_older_while_its_instance_is_in_the_warm_pool() {
        use Lifecycle::{TerminatingWait, WarmPendingWait, Warmed};
        let now = Clock::system().now();
        let record =
            Record::new(Cause::Autoscaler, "g", "i-1", Release::LeftToGroup, now - Duration::from_hours(9));
        let node = serde_json::json!({
            "metadata": {
                "name": "n1", "uid": "u", "resourceVersion": "1",
                "annotations": { names::RECORD: record::write(&record) },
            },
            "spec": { "providerID": "aws:///us-east-1a/i-1" },
        });
        let age = |lifecycle| {
            let nodes = Nodes::default();
            nodes.apply(nodes.reduce(serde_json::from_value(node.clone()).expect("a Node")));
            let groups = Groups::new(Duration::MAX);
            let instance = Instance { id: "i-1".into(), lifecycle, ..Instance::default() };
            let asg = AutoScalingGroup {
                name: "g".into(),
                instances: vec![instance],
                ..AutoScalingGroup::default()
            };
            groups.publish(Snapshot::new(now, [Arc::new(Group { asg: Arc::new(asg), ..Group::default() })]));
            let page = page_of(&Metrics::default(), Arc::new(nodes), Arc::default(), groups);
            assert!(page.contains("ebbtide_scale_ins{cause=\"autoscaler\",phase=\"Draining\"} 1"), "{page}");
            let line =
                page.lines().find_map(|line| line.strip_prefix("ebbtide_scale_in_oldest_age_seconds "));
            line.expect("told")
                .split('.')
                .next()
                .map(|seconds| seconds.parse::<u64>().expect("seconds") / 3_600)
        };
        assert_eq!([TerminatingWait, WarmPendingWait, Warmed].map(age), [Some(9), Some(9), Some(0)]);
    }

    #[test]
    fn heartbeats_of_groups_that_are_not_there_any_more_are_not_shown() {
        let metrics = Metrics::default();
        for group in ["a", "b"] {
            metrics.beat(&group.into(), &Ok(()), false, None);
        }
        metrics.keep_groups(|group| group == "b");
        let page = page(&metrics, Arc::default());
        assert!(!page.contains("group=\"a\"") && page.contains("group=\"b\",outcome=\"ok\"} 1"), "{page}");
    }

    #[test]
    fn a_drain_is_near_its_limit_when_its_first_last_call_is_near_and_one_that_was_to_be_short_never() {
        let at = |minute: i64| Timestamp::from_second(60 * minute).expect("in range");
        let left = |release_by, progress: Option<[Option<i64>; 2]>, now| {
            let mut record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
            record.release_by = Some(at(release_by));
            let progress = progress.map(|[last_call, phase_until]| Progress {
                last_call: last_call.map(at),
                phase_until: phase_until.map(at),
                ..Progress::default()
            });
            limit_left(&record, progress.as_ref(), at(now)).map(|left| left.as_secs() / 60)
        };
        assert_eq!(
            [59, 60].map(|now| left(120, None, now)),
            [None, Some(60)],
            "a process that does not lead"
        );
        let called = Some([Some(40), Some(119)]);
        assert_eq!([19, 20, 50].map(|now| left(120, called, now)), [None, Some(20), Some(0)]);
        assert_eq!(left(120, Some([None, Some(118)]), 60), Some(58), "all have been asked");
        assert_eq!(left(120, Some([None, None]), 60), Some(60), "its pods are not listed");
        assert_eq!(left(120, Some([Some(15), Some(119)]), 9), None, "it has just begun");
        assert_eq!(left(120, Some([Some(15), Some(119)]), 10), Some(5), "the grace takes nearly all of it");
        assert_eq!(left(30, Some([Some(20), Some(29)]), 15), None);
    }

    #[test]
    fn a_budget_that_nobody_can_name_has_a_name_of_its_own() {
        let board = Arc::new(Board::default());
        let pod = PodName { namespace: "default".into(), name: "web".into() };
        let why = WaitReason::Budget { names: Vec::new(), words: "no room".into() };
        let progress = Progress { waiting: vec![Waiting { pod, why }], ..Progress::default() };
        board.set(&"n-1".into(), Some(progress));
        let page = page(&Metrics::default(), board);
        assert!(page.contains("ebbtide_scale_in_pods_blocked{budget=\"unknown\"} 1"), "{page}");
    }
}
