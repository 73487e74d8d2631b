//! Reports of small scenarios. [`told`] is one in which all goes well; each test changes one thing.

mod pictures;
mod timelines;
mod verdicts;
mod worlds;

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::*;
use crate::k8s::names;
use crate::scale_in::record::{self, Cause, Phase, Record, Release};
use crate::sim::aws::{self, HookResult, Operation, Outcome, Power, TerminationCause, Transition};
use crate::sim::cluster::{self, By, Cut, Lines, Name, NodeChange};

const NODE: &str = "ip-10-0-0-5";
const INSTANCE: &str = "i-0abc123456789def0";
const GROUP: &str = "web";
const HOOK: &str = "ebbtide";
const AGENT: &str = "logging/agent-2xk9p";

/// This many milliseconds after the scale-in began.
fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + milliseconds).expect("in range")
}

#[derive(Clone, Default)]
struct Scenario {
    aws: Vec<aws::Entry>,
    cluster: Vec<cluster::Entry>,
    facts: Facts,
}

impl Scenario {
    fn aws(&mut self, milliseconds: i64, what: aws::Event) -> &mut Self {
        self.aws.push(aws::Entry { at: at(milliseconds), what });
        self.aws.sort_by_key(|entry| entry.at);
        self
    }

    fn cluster(&mut self, milliseconds: i64, what: cluster::Event) -> &mut Self {
        self.cluster.push(cluster::Entry { at: at(milliseconds), what });
        self.cluster.sort_by_key(|entry| entry.at);
        self
    }

    /// Removes the matching entries; fails if there are none.
    fn without(&mut self, such: impl Fn(&str) -> bool) -> &mut Self {
        let before = self.aws.len() + self.cluster.len();
        self.aws.retain(|entry| !such(&format!("{:?}", entry.what)));
        self.cluster.retain(|entry| !such(&format!("{:?}", entry.what)));
        assert_ne!(before, self.aws.len() + self.cluster.len(), "nothing of the kind");
        self
    }

    fn report(&self) -> Report {
        Report::from(&self.aws, &self.cluster, &self.facts)
    }

    fn runs(&mut self, milliseconds: i64, pod: &str) -> &mut Self {
        let (pod, node) = (Name::from(pod), NODE.to_owned());
        self.cluster(
            milliseconds - 2_000,
            cluster::Event::PodScheduled { pod: pod.clone(), node: node.clone() },
        );
        self.cluster(milliseconds, cluster::Event::PodRunning { pod, node })
    }

    fn asked(&mut self, milliseconds: i64, pod: &str, by: By, grace: i64) -> &mut Self {
        self.cluster(
            milliseconds,
            cluster::Event::PodAsked { pod: pod.into(), by, grace, disruption_target: by == By::Eviction },
        )
    }

    fn exited(&mut self, milliseconds: i64, pod: &str) -> &mut Self {
        self.cluster(milliseconds, cluster::Event::PodExited { pod: pod.into(), node: NODE.to_owned() })
    }

    fn cut(&mut self, milliseconds: i64, pod: &str, by: Cut) -> &mut Self {
        self.cluster(milliseconds, cluster::Event::CutShort { pod: pod.into(), node: NODE.to_owned(), by })
    }

    fn refused(&mut self, milliseconds: i64, pod: &str, budget: &str) -> &mut Self {
        let budget = budget.to_owned();
        self.cluster(milliseconds, cluster::Event::EvictionRefused { pod: pod.into(), budget })
    }

    fn said(&mut self, milliseconds: i64, reason: &str, note: &str) -> &mut Self {
        let (reason, note) = (reason.to_owned(), note.to_owned());
        let regarding = format!("Node/{NODE}");
        self.cluster(milliseconds, cluster::Event::KubernetesEvent { regarding, reason, note })
    }

    fn recorded(&mut self, milliseconds: i64, phase: Phase, release: Release) -> &mut Self {
        let record = Record::new(Cause::Autoscaler, GROUP, INSTANCE, release, at(0));
        let value = record::write(&record.entering(phase, at(milliseconds)));
        self.changed(milliseconds, vec![NodeChange::Annotated(names::RECORD.to_owned(), value)])
    }

    fn changed(&mut self, milliseconds: i64, mut changes: Vec<NodeChange>) -> &mut Self {
        if milliseconds == 0 {
            let (key, effect) = (names::TO_BE_DELETED.to_owned(), "NoSchedule".to_owned());
            changes.push(NodeChange::Unschedulable(true));
            changes.push(NodeChange::Tainted { key, value: "1800000000".to_owned(), effect });
        }
        self.cluster(milliseconds, cluster::Event::NodeChanged { node: NODE.to_owned(), changes })
    }

    fn terminate_called(&mut self, milliseconds: i64, outcome: Outcome) -> &mut Self {
        let arguments = [("InstanceId", INSTANCE), ("ShouldDecrementDesiredCapacity", "true")];
        let arguments = arguments.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let operation = Operation::TerminateInstanceInAutoScalingGroup;
        self.aws(milliseconds, aws::Event::Called { operation, arguments, outcome })
    }

    fn desired(&mut self, milliseconds: i64, from: u32, to: u32) -> &mut Self {
        let by = Operation::TerminateInstanceInAutoScalingGroup;
        self.aws(milliseconds, aws::Event::DesiredChanged { group: GROUP.to_owned(), from, to, by })
    }

    fn terminating(&mut self, milliseconds: i64, cause: TerminationCause) -> &mut Self {
        let (group, instance) = (GROUP.to_owned(), INSTANCE.to_owned());
        let decrement = cause == TerminationCause::Request;
        self.aws(milliseconds, aws::Event::TerminationStarted { group, instance, cause, decrement })
    }

    fn held(&mut self, milliseconds: i64) -> &mut Self {
        let (group, instance, hook) = (GROUP.to_owned(), INSTANCE.to_owned(), HOOK.to_owned());
        let (token, transition) = ("t".to_owned(), Transition::Terminating);
        self.aws(milliseconds, aws::Event::EnteredWait { group, instance, hook, token, transition })
    }

    fn heartbeat(&mut self, milliseconds: i64) -> &mut Self {
        let (group, instance, hook) = (GROUP.to_owned(), INSTANCE.to_owned(), HOOK.to_owned());
        self.aws(
            milliseconds,
            aws::Event::Heartbeat { group, instance, hook, until: at(milliseconds + 30_000) },
        )
    }

    fn completed(&mut self, milliseconds: i64) -> &mut Self {
        let (group, instance, hook) = (GROUP.to_owned(), INSTANCE.to_owned(), HOOK.to_owned());
        self.aws(
            milliseconds,
            aws::Event::HookCompleted { group, instance, hook, result: HookResult::Continue },
        )
    }

    fn timed_out(&mut self, milliseconds: i64) -> &mut Self {
        let (group, instance, hook) = (GROUP.to_owned(), INSTANCE.to_owned(), HOOK.to_owned());
        self.aws(
            milliseconds,
            aws::Event::HookTimedOut { group, instance, hook, result: HookResult::Abandon },
        )
    }

    fn gone(&mut self, milliseconds: i64) -> &mut Self {
        let (group, instance, node) = (GROUP.to_owned(), INSTANCE.to_owned(), NODE.to_owned());
        self.aws(milliseconds, aws::Event::Terminated { group, instance });
        self.cluster(milliseconds, cluster::Event::PoweredOff { node: node.clone() });
        self.cluster(milliseconds + 5_000, cluster::Event::NodeRemoved { node })
    }
}

/// A node with two workloads, a tight budget and a log shipper comes up and is scaled in under a hook.
fn told() -> Scenario {
    let mut scenario = Scenario::default();
    let (group, instance) = (GROUP.to_owned(), INSTANCE.to_owned());
    let machine = Machine { instance: instance.clone(), group: group.clone() };
    scenario.facts = Facts {
        nodes: BTreeMap::from([(NODE.to_owned(), machine)]),
        daemons: [AGENT.into()].into(),
        lines: BTreeMap::from([(NODE.to_owned(), Lines { written: 120, shipped: 120, lost: 0 })]),
        scenes: vec![Scene { at: at(-100_000), title: "A slow workload <and> a tight budget".to_owned() }],
        ..Facts::default()
    };
    let (zone, instance_type) = ("us-east-1a".to_owned(), "m5.large".to_owned());
    let launched = aws::Event::InstanceLaunched {
        group: group.clone(),
        instance: instance.clone(),
        zone,
        instance_type,
    };
    scenario.aws(-90_000, launched).aws(-60_000, aws::Event::InService { group, instance });
    scenario.cluster(-50_000, cluster::Event::NodeRegistered { node: NODE.to_owned() });
    scenario.runs(-45_000, AGENT).runs(-40_000, "web-7f9c-a").runs(-40_000, "web-7f9c-b");
    scenario.recorded(0, Phase::Draining, Release::TerminateAndDecrement);
    scenario.terminate_called(100, Outcome::Answered).terminating(100, TerminationCause::Request);
    scenario.held(100).desired(100, 3, 2);
    scenario.recorded(200, Phase::Draining, Release::LeftToGroup);
    scenario.asked(200, "web-7f9c-a", By::Eviction, 60);
    for milliseconds in [200, 4_200, 8_300, 12_300] {
        scenario.refused(milliseconds, "web-7f9c-b", "web");
        scenario.said(milliseconds, "ScaleInBlocked", "disruption budget default/web: needs 1");
    }
    scenario.exited(12_400, "web-7f9c-a").asked(12_500, "web-7f9c-b", By::Eviction, 60);
    scenario.heartbeat(15_000).heartbeat(30_000).exited(41_200, "web-7f9c-b");
    scenario.recorded(41_250, Phase::Flushing, Release::LeftToGroup);
    scenario.said(41_250, "ScaleInFlushing", "the last workload has exited");
    scenario.recorded(46_250, Phase::Releasing, Release::LeftToGroup);
    scenario.completed(46_300).gone(48_300);
    scenario
}
