//! A short history in which everything is as it should be, and one for each invariant in which it is violated: written by hand, so that
//! what a check finds does not depend on what the worlds do.

use std::collections::BTreeMap;

use ebbtide::k8s::names;
use ebbtide::sim::autoscaler::Event as AutoscalerEvent;
use ebbtide::sim::aws::{
    Entry as AwsEntry, Event as AwsEvent, GroupSnapshot, HookResult, InstanceSnapshot, LifecycleState,
    Operation, Outcome, Power, TerminationCause, Transition,
};
use ebbtide::sim::cluster::{By, EBBTIDE, Entry, Event, Name, Verb};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, NodeSpec, NodeStatus, Taint};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::history::{End, History, Machine, Note};
use crate::play::OURS;
use crate::scenario::{Budget, Cause, Flags, Group, Kind, Scenario, Workload};

const NODE: &str = "n1";
const INSTANCE: &str = "i-1";

/// The parts of a history.
struct Example {
    aws: Vec<AwsEntry>,
    cluster: Vec<Entry>,
    autoscaler: Vec<(Timestamp, AutoscalerEvent)>,
    diary: Vec<(Timestamp, Note)>,
    nodes: Vec<Node>,
    target: i32,
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

fn machine() -> Machine {
    Machine { node: NODE.to_owned(), instance: INSTANCE.to_owned(), group: "web".to_owned() }
}

impl Example {
    /// One node with a workload and a shipper, and the program that runs.
    fn begun() -> Self {
        let (group, instance) = ("web".to_owned(), INSTANCE.to_owned());
        Self {
            aws: vec![],
            cluster: vec![],
            autoscaler: vec![],
            diary: vec![(at(0), Note::Started(0)), (at(10), Note::Began)],
            nodes: vec![],
            target: 1,
        }
        .aws(
            0,
            AwsEvent::InstanceLaunched {
                group: group.clone(),
                instance: instance.clone(),
                zone: "a".to_owned(),
                instance_type: "m5.large".to_owned(),
            },
        )
        .aws(0, AwsEvent::InService { group, instance })
        .runs(5, "shipper-1")
        .runs(6, "api-1")
    }

    fn aws(mut self, second: i64, what: AwsEvent) -> Self {
        self.aws.push(AwsEntry { at: at(second), what });
        self
    }

    fn cluster(mut self, second: i64, what: Event) -> Self {
        self.cluster.push(Entry { at: at(second), what });
        self
    }

    fn note(mut self, second: i64, note: Note) -> Self {
        self.diary.push((at(second), note));
        self
    }

    fn runs(self, second: i64, pod: &str) -> Self {
        let (pod, node) = (Name::from(pod), NODE.to_owned());
        self.cluster(second, Event::PodScheduled { pod: pod.clone(), node: node.clone() })
            .cluster(second, Event::PodRunning { pod, node })
    }

    fn asked(self, second: i64, pod: &str, by: By, grace: i64) -> Self {
        self.cluster(second, Event::PodAsked { pod: Name::from(pod), by, grace, disruption_target: true })
    }

    fn exits(self, second: i64, pod: &str) -> Self {
        self.cluster(second, Event::PodExited { pod: Name::from(pod), node: NODE.to_owned() })
    }

    /// Somebody wishes the end of the node, and the program terminates it under our hook.
    fn leaves(self, second: i64) -> Self {
        let (group, instance) = ("web".to_owned(), INSTANCE.to_owned());
        let waits = AwsEvent::EnteredWait {
            group: group.clone(),
            instance: instance.clone(),
            hook: OURS.to_owned(),
            token: String::new(),
            transition: Transition::Terminating,
        };
        self.note(second, Note::Asked(Cause::DeleteNodes, machine()))
            .terminated(second + 1, true)
            .aws(second + 1, waits)
    }

    /// The program terminates the instance.
    fn terminated(self, second: i64, decrement: bool) -> Self {
        let (group, instance) = ("web".to_owned(), INSTANCE.to_owned());
        let cause = TerminationCause::Request;
        self.called(second, Operation::TerminateInstanceInAutoScalingGroup, &[("InstanceId", INSTANCE)])
            .aws(second, AwsEvent::TerminationStarted { group, instance, cause, decrement })
    }

    fn called(self, second: i64, operation: Operation, arguments: &[(&str, &str)]) -> Self {
        let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let arguments = arguments.iter().map(pair).collect();
        self.aws(second, AwsEvent::Called { operation, arguments, outcome: Outcome::Answered })
    }

    fn told(self, second: i64, target: i32) -> Self {
        self.note(second, Note::Told("web".to_owned(), Ok(target)))
    }

    fn lowered(self, second: i64, from: u32, to: u32) -> Self {
        let by = Operation::TerminateInstanceInAutoScalingGroup;
        self.aws(second, AwsEvent::DesiredChanged { group: "web".to_owned(), from, to, by })
    }

    fn completed(self, second: i64) -> Self {
        let (group, instance, hook) = ("web".to_owned(), INSTANCE.to_owned(), OURS.to_owned());
        self.called(second, Operation::CompleteLifecycleAction, &[("InstanceId", INSTANCE)])
            .aws(
                second,
                AwsEvent::HookCompleted {
                    group: group.clone(),
                    instance: instance.clone(),
                    hook,
                    result: HookResult::Continue,
                },
            )
            .aws(second, AwsEvent::Powered { group, instance, power: Power::ShuttingDown })
    }

    fn requested(self, second: i64, verb: Verb, resource: &'static str) -> Self {
        let (name, by) = (Name::from(NODE), Some(EBBTIDE.to_owned()));
        self.cluster(second, Event::Request { verb, resource, subresource: None, name, code: 200, by })
    }

    fn stays(mut self, annotation: Option<&str>, unschedulable: bool) -> Self {
        let annotations =
            annotation.map(|value| BTreeMap::from([(names::RECORD.to_owned(), value.to_owned())]));
        let name = Some(NODE.to_owned());
        self.nodes.push(Node {
            metadata: ObjectMeta { name, annotations, ..ObjectMeta::default() },
            spec: Some(NodeSpec { unschedulable: Some(unschedulable), ..NodeSpec::default() }),
            status: None,
        });
        self
    }

    /// The taint that its last node carries in the end.
    fn tainted(mut self, effect: &str) -> Self {
        let (key, effect) = (names::TO_BE_DELETED.to_owned(), effect.to_owned());
        let spec = self.nodes.last_mut().and_then(|node| node.spec.as_mut()).expect("a node stays");
        spec.taints = Some(vec![Taint { key, effect, ..Taint::default() }]);
        self
    }

    /// The condition that its last node says in the end that it is drained by.
    fn drained_by_condition(mut self) -> Self {
        let (type_, status) = ("DrainInProgress".to_owned(), "True".to_owned());
        let conditions = Some(vec![NodeCondition { type_, status, ..NodeCondition::default() }]);
        let node = self.nodes.last_mut().expect("a node stays");
        node.status = Some(NodeStatus { conditions, ..NodeStatus::default() });
        self
    }

    /// An instance is in service in the end, and protected.
    fn protected_to_the_end(self) -> History {
        let mut history = self.ended();
        history.end.groups[0].instances.push(InstanceSnapshot {
            id: INSTANCE.to_owned(),
            group: "web".to_owned(),
            zone: "a".to_owned(),
            instance_type: "m5.large".to_owned(),
            state: LifecycleState::InService,
            healthy: true,
            protected: true,
            spot: false,
            address: [10, 0, 0, 1],
            launched: at(0),
            tags: BTreeMap::new(),
            waits: BTreeMap::new(),
            power: Power::Running,
        });
        history
    }

    fn ended(self) -> History {
        let group = GroupSnapshot {
            name: "web".to_owned(),
            min: 1,
            max: 3,
            desired: 1,
            launches: 0,
            instances: Vec::new(),
        };
        let targets = BTreeMap::from([("web".to_owned(), Ok(self.target))]);
        let (hits, gaps) = Default::default();
        let end = End { at: at(3_000), nodes: self.nodes, groups: vec![group], targets, hits, gaps };
        let names = BTreeMap::from([(INSTANCE.to_owned(), NODE.to_owned())]);
        History::made(scenario(), self.aws, self.cluster, self.autoscaler, self.diary, end, names)
    }
}

fn scenario() -> Scenario {
    Scenario {
        seed: 0,
        program: Flags {
            replicas: 1,
            drain_timeout: None,
            waits_at_deadline: false,
            patience: None,
            flush: 5,
            has_queue: false,
            drains_on_rebalance: false,
            manages_hooks: false,
        },
        autoscaler: None,
        reuses_addresses: false,
        stays_blocked: false,
        is_hasty: false,
        groups: vec![Group {
            name: "web",
            min: 1,
            max: 3,
            nodes: 2,
            zones: 1,
            hook: Some(60),
            foreign: None,
            retains: false,
            warm_pool: false,
            weighs: false,
            is_spot: false,
            launches_first: false,
            deregisters: 0,
        }],
        workloads: vec![Workload {
            name: "api".to_owned(),
            comes_to: None,
            kind: Kind::Replicas,
            pods: 1,
            grace: 60,
            exits: 10,
            budget: Some(Budget::Unavailable(1)),
            priority: None,
            is_patient: false,
            tolerates_all: false,
            has_finalizer: false,
            pre_stop: 0,
            order: None,
            is_postponed: false,
            cpu: 100,
        }],
        happenings: Vec::new(),
    }
}

/// Histories in which all is well.
pub(super) const GOOD: [fn() -> History; 2] = [good, drained_in_vain];

/// cluster-autoscaler began to drain a node, and was started anew while nobody answered it.
fn drained_in_vain() -> History {
    Example { target: 0, ..Example::begun() }.stays(None, false).tainted("NoSchedule").ended()
}

/// A node leaves as it should.
fn good() -> History {
    Example::begun()
        .told(90, 2)
        .leaves(100)
        .lowered(101, 2, 1)
        .asked(102, "api-1", By::Eviction, 60)
        .exits(112, "api-1")
        .completed(120)
        .told(300, 1)
        .ended()
}

pub(super) fn released() -> History {
    Example::begun()
        .leaves(100)
        .asked(102, "api-1", By::Eviction, 60)
        .completed(110)
        .exits(112, "api-1")
        .ended()
}

pub(super) fn not_flushed() -> History {
    Example::begun()
        .leaves(100)
        .asked(102, "api-1", By::Eviction, 60)
        .exits(112, "api-1")
        .completed(114)
        .ended()
}

pub(super) fn dawdled() -> History {
    Example::begun()
        .leaves(1_000)
        .asked(1_002, "api-1", By::Eviction, 60)
        .exits(1_012, "api-1")
        .completed(1_200)
        .ended()
}

pub(super) fn daemon_asked() -> History {
    Example::begun().leaves(100).asked(105, "shipper-1", By::Delete, 30).exits(112, "api-1").ended()
}

pub(super) fn deleted() -> History {
    Example::begun().leaves(100).asked(105, "api-1", By::Delete, 60).exits(112, "api-1").ended()
}

/// The collector is not there yet.
pub(super) fn deleted_at_once() -> History {
    let removed = Event::NodeRemoved { node: NODE.to_owned() };
    Example::begun()
        .leaves(100)
        .cluster(104, removed)
        .asked(105, "api-1", By::Delete, 60)
        .exits(112, "api-1")
        .ended()
}

pub(super) fn hurried() -> History {
    Example::begun().leaves(100).asked(105, "api-1", By::Eviction, 20).exits(112, "api-1").ended()
}

pub(super) fn late() -> History {
    Example::begun().leaves(100).asked(5_760, "api-1", By::Eviction, 20).exits(5_770, "api-1").ended()
}

pub(super) fn line_lost() -> History {
    let lost = Event::LinesLost { node: NODE.to_owned(), count: 3 };
    Example::begun().leaves(100).exits(112, "api-1").completed(113).cluster(114, lost).ended()
}

pub(super) fn lowered_twice() -> History {
    let again = &[("InstanceId", INSTANCE)];
    Example::begun()
        .leaves(100)
        .called(101, Operation::TerminateInstanceInAutoScalingGroup, again)
        .lowered(101, 3, 2)
        .called(140, Operation::TerminateInstanceInAutoScalingGroup, again)
        .lowered(140, 2, 1)
        .ended()
}

pub(super) fn too_small() -> History {
    Example::begun().leaves(100).lowered(101, 1, 0).ended()
}

pub(super) fn unasked() -> History {
    Example::begun().terminated(100, true).ended()
}

pub(super) fn wrong_target() -> History {
    Example { target: 2, ..Example::begun() }.ended()
}

pub(super) fn told_wrong() -> History {
    Example::begun().leaves(100).lowered(101, 2, 1).told(300, 2).ended()
}

pub(super) fn endless() -> History {
    Example::begun().stays(Some("{}"), true).ended()
}

pub(super) fn timed_out() -> History {
    let hook = OURS.to_owned();
    let (group, instance, result) = ("web".to_owned(), INSTANCE.to_owned(), HookResult::Abandon);
    Example::begun().leaves(100).aws(500, AwsEvent::HookTimedOut { group, instance, hook, result }).ended()
}

pub(super) fn cordoned() -> History {
    Example::begun().stays(None, true).ended()
}

pub(super) fn tainted() -> History {
    Example::begun().stays(None, false).tainted("PreferNoSchedule").ended()
}

pub(super) fn draining() -> History {
    Example::begun().stays(None, false).drained_by_condition().ended()
}

pub(super) fn protected() -> History {
    Example::begun().protected_to_the_end()
}

pub(super) fn loop_failed() -> History {
    let failed = AutoscalerEvent::LoopFailed("target size: Internal".to_owned());
    Example { autoscaler: vec![(at(500), failed)], ..Example::begun() }.ended()
}

pub(super) fn terminated_twice() -> History {
    Example::begun().leaves(100).terminated(120, true).ended()
}

pub(super) fn many_calls() -> History {
    let refresh = |example: Example, n| {
        let (second, operation) = (600 + n / 10, Operation::DescribeAutoScalingGroups);
        example.called(second, operation, &[])
    };
    (0_i64..100).fold(Example::begun(), refresh).ended()
}

pub(super) fn many_requests() -> History {
    let watch = |example: Example, n| example.requested(600 + n / 10, Verb::Watch, "nodes");
    (0_i64..10).fold(Example::begun(), watch).ended()
}

pub(super) fn strange_request() -> History {
    Example::begun().requested(600, Verb::List, "secrets").ended()
}

pub(super) fn panicked() -> History {
    Example::begun().note(100, Note::Panicked("at a line".to_owned())).ended()
}
