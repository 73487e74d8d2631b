//! Metrics of scale-ins. Counters are registered once; how many are under way is read off the Nodes at each scrape.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use super::record::{Annotation, Cause, Written};
use super::waiting::{WaitReason, Waiting};
use crate::clock::{Clock, elapsed};
use crate::cluster::{Answer, Nodes};
use crate::k8s::NodeName;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are spelled as Prometheus has them")]
enum Reply {
    going,
    gone,
    blocked,
    busy,
    unclear,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are spelled as Prometheus has them")]
enum Call {
    eviction,
    deletion,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Asked {
    call: Call,
    answer: Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are spelled as Prometheus has them")]
enum Beat {
    ok,
    failed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Heartbeat {
    outcome: Beat,
}

/// What became of a message of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are spelled as Prometheus has them")]
pub(super) enum Handled {
    /// It is about instances of ours, and acted on.
    taken,
    /// It asks for nothing.
    nothing,
    /// It is about no instance of ours.
    foreign,
    /// It cannot be read.
    malformed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Messages {
    outcome: Handled,
}

/// Counters of what scale-ins ask for.
#[derive(Clone, Debug, Default)]
pub struct Metrics {
    asked: Family<Asked, Counter>,
    heartbeats: Family<Heartbeat, Counter>,
    panics: Counter,
    messages: Family<Messages, Counter>,
}

impl Metrics {
    /// Registers everything about scale-ins.
    pub fn register(&self, registry: &mut Registry, nodes: Arc<Nodes>, board: Arc<Board>, clock: Clock) {
        registry.register(
            "ebbtide_pods_asked_to_go",
            "Evictions and deletions asked of the API server, by its answer",
            self.asked.clone(),
        );
        registry.register(
            "ebbtide_lifecycle_heartbeats",
            "Heartbeats sent for instances that the lifecycle hook holds",
            self.heartbeats.clone(),
        );
        registry.register(
            "ebbtide_scale_in_panics",
            "Defects that stopped the work on a node; it was taken up again",
            self.panics.clone(),
        );
        registry.register(
            "ebbtide_notices",
            "Messages read from the queues, each time they come, by what became of them: taken, nothing (they ask for \
             nothing), foreign (about no instance of ours: left alone), malformed",
            self.messages.clone(),
        );
        registry.register_collector(Box::new(UnderWay { nodes, board, clock }));
    }

    pub(super) fn answered(&self, answer: &Answer, evicted: bool) {
        let answer = match answer {
            Answer::Going | Answer::GoingAnyway => Reply::going,
            Answer::Gone => Reply::gone,
            Answer::Blocked(_) => Reply::blocked,
            Answer::Busy(_) => Reply::busy,
            Answer::Unclear(_) => Reply::unclear,
        };
        let call = if evicted { Call::eviction } else { Call::deletion };
        self.asked.get_or_create(&Asked { call, answer }).inc();
    }

    pub(super) fn handled(&self, outcome: Handled) {
        self.messages.get_or_create(&Messages { outcome }).inc();
    }

    pub(super) fn panicked(&self) {
        self.panics.inc();
    }

    pub(super) fn beat(&self, ok: bool) {
        let outcome = if ok { Beat::ok } else { Beat::failed };
        self.heartbeats.get_or_create(&Heartbeat { outcome }).inc();
    }
}

/// Whom each drain waits for, now.
#[derive(Debug, Default)]
pub struct Board(Mutex<BTreeMap<NodeName, Vec<Waiting>>>);

impl Board {
    pub(super) fn set(&self, node: &NodeName, waiting: Vec<Waiting>) {
        let mut board = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_empty() {
            board.remove(node);
        } else {
            board.insert(node.clone(), waiting);
        }
    }

    pub(super) fn forget(&self, node: &NodeName) {
        self.set(node, Vec::new());
    }

    /// Whom each drain waits for, by node.
    pub fn all(&self) -> BTreeMap<NodeName, Vec<Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct UnderWay {
    nodes: Arc<Nodes>,
    board: Arc<Board>,
    clock: Clock,
}

impl Collector for UnderWay {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut scale_ins: BTreeMap<(String, String), i64> = BTreeMap::new();
        let mut oldest = Duration::ZERO;
        for node in self.nodes.all() {
            let labels = match node.record.as_ref().map(Annotation::written) {
                Some(Written::Wish(_)) => (Cause::Operator.to_string(), "Queued".to_owned()),
                _ => match node.scale_in() {
                    Some(record) => {
                        oldest = oldest.max(elapsed(record.requested_at, self.clock.wall()));
                        (record.cause.to_string(), record.phase.to_string())
                    }
                    None => continue,
                },
            };
            *scale_ins.entry(labels).or_default() += 1;
        }
        let mut gauge = encoder.encode_descriptor(
            "ebbtide_scale_ins",
            "Scale-ins under way, by cause and phase; Queued: wished for by a person, and not begun",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for ((cause, phase), count) in scale_ins {
            let labels = [("cause", cause), ("phase", phase)];
            ConstGauge::new(count).encode(gauge.encode_family(&labels)?)?;
        }
        let gauge = encoder.encode_descriptor(
            "ebbtide_scale_in_oldest_age",
            "How long ago the oldest scale-in under way was requested; 0 if none is",
            Some(&Unit::Seconds),
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        ConstGauge::new(oldest.as_secs_f64()).encode(gauge)?;
        let mut waiting: BTreeMap<&'static str, i64> = BTreeMap::new();
        for w in self.board.all().values().flatten() {
            let why = match w.why {
                WaitReason::Exiting(_) => "exiting",
                WaitReason::Overdue(_) => "overdue",
                WaitReason::Budget(..) => "budget",
                WaitReason::Patient => "patient",
                WaitReason::After(_) => "order",
                WaitReason::Refused(_) => "refused",
                WaitReason::Rate => "rate",
                WaitReason::Queued => "queued",
            };
            *waiting.entry(why).or_default() += 1;
        }
        let mut gauge = encoder.encode_descriptor(
            "ebbtide_scale_in_pods_waiting",
            "Workload pods that scale-ins wait for, by reason",
            None,
            prometheus_client::metrics::MetricType::Gauge,
        )?;
        for (why, count) in waiting {
            ConstGauge::new(count).encode(gauge.encode_family(&[("reason", why)])?)?;
        }
        Ok(())
    }
}
