//! What the worlds wrote down, as questions with one answer each.
//!
//! Nothing here reads what ebbtide says of itself, save for the record on the Node, which is its contract.

use ebbtide::sim::aws::{Event as AwsEvent, Operation, Power};
use ebbtide::sim::cluster::{By, Event, NodeChange, Verb};
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};

use crate::scene::{Machine, RECORD, Scene, TO_BE_DELETED};

pub(crate) const TERMINATE: Operation = Operation::TerminateInstanceInAutoScalingGroup;

/// Whether a pod, by the names that the tests give, is of a DaemonSet.
fn is_daemon(pod: &str) -> bool {
    pod.starts_with("shipper-") || pod.starts_with("agent-")
}

/// When something of this kind happened in the cluster.
pub(crate) fn moments(world: &World, such: impl Fn(&Event) -> bool) -> Vec<Timestamp> {
    world.cluster.journal().iter().filter(|entry| such(&entry.what)).map(|entry| entry.at).collect()
}

/// When something of this kind happened in AWS.
pub(crate) fn aws_moments(world: &World, such: impl Fn(&AwsEvent) -> bool) -> Vec<Timestamp> {
    world.aws.journal().iter().filter(|entry| such(&entry.what)).map(|entry| entry.at).collect()
}

/// When pods whose name begins so were asked to go, and by which way.
pub(crate) fn asked(world: &World, prefix: &str) -> Vec<(Timestamp, By, i64)> {
    let journal = world.cluster.journal();
    let asks = journal.iter().filter_map(|entry| match &entry.what {
        Event::PodAsked { pod, by, grace, .. } if pod.name.starts_with(prefix) => {
            Some((entry.at, *by, *grace))
        }
        _ => None,
    });
    asks.collect()
}

/// With which graces they were asked.
pub(crate) fn graces(world: &World, prefix: &str) -> Vec<i64> {
    asked(world, prefix).into_iter().map(|(_, _, grace)| grace).collect()
}

/// Whether a pod whose name begins so was asked to go.
pub(crate) fn is_asked(world: &World, prefix: &str) -> bool {
    world.cluster.happened(|e| matches!(e, Event::PodAsked { pod, .. } if pod.name.starts_with(prefix)))
}

/// Whether a pod whose name begins so has exited by itself.
pub(crate) fn has_exited(world: &World, prefix: &str) -> bool {
    world.cluster.happened(|e| matches!(e, Event::PodExited { pod, .. } if pod.name.starts_with(prefix)))
}

/// When an eviction of any pod was asked for, granted or not.
pub(crate) fn eviction_requests(world: &World) -> Vec<Timestamp> {
    moments(
        world,
        |e| matches!(e, Event::Request { verb: Verb::Create, resource: "pods", subresource: Some(sub), .. } if sub == "eviction"),
    )
}

/// Whether the Node's record has come to this phase.
pub(crate) fn in_phase(world: &World, machine: &Machine, phase: &str) -> bool {
    let words = format!("\"phase\":\"{phase}\"");
    world.cluster.happened(|e| {
        matches!(e, Event::NodeChanged { node, changes } if *node == machine.name && changes.iter().any(|change| {
            matches!(change, NodeChange::Annotated(key, value) if key == RECORD && value.contains(&words))
        }))
    })
}

/// The records that were written on the Node.
pub(crate) fn records(world: &World, machine: &Machine) -> Vec<String> {
    let of_node = |e: &Event| match e {
        Event::NodeChanged { node, changes } if *node == machine.name => changes.clone(),
        _ => Vec::new(),
    };
    let journal = world.cluster.journal();
    let changes = journal.iter().flat_map(|entry| of_node(&entry.what));
    let record = |change| match change {
        NodeChange::Annotated(key, value) if key == RECORD => Some(value),
        _ => None,
    };
    changes.filter_map(record).collect()
}

/// When the Node's record first came to this phase.
pub(crate) fn phase_at(world: &World, machine: &Machine, phase: &str) -> Timestamp {
    *phases(world, machine, phase).first().unwrap_or_else(|| panic!("the record never came to {phase}"))
}

/// When the Node's record was written in this phase, by whomever.
fn phases(world: &World, machine: &Machine, phase: &str) -> Vec<Timestamp> {
    let words = format!("\"phase\":\"{phase}\"");
    let wrote = |change: &NodeChange| matches!(change, NodeChange::Annotated(key, value) if key == RECORD && value.contains(&words));
    moments(
        world,
        |e| matches!(e, Event::NodeChanged { node, changes } if *node == machine.name && changes.iter().any(wrote)),
    )
}

/// When the last workload pod of a node ended.
pub(crate) fn last_exit(world: &World, machine: &Machine) -> Timestamp {
    let ends = moments(
        world,
        |e| matches!(e, Event::PodExited { node, pod } if *node == machine.name && !is_daemon(&pod.name)),
    );
    *ends.last().expect("a workload exited")
}

/// Whether the instance has been let go: its hook is completed, or its machine shuts down.
pub(crate) fn is_released(world: &World, machine: &Machine) -> bool {
    let off = |e: &AwsEvent| match e {
        AwsEvent::HookCompleted { instance, .. }
        | AwsEvent::Powered { instance, power: Power::ShuttingDown, .. } => *instance == machine.instance,
        _ => false,
    };
    !aws_moments(world, off).is_empty()
}

/// When the instance was let go: told to terminate, or its hook completed.
pub(crate) fn released_at(world: &World, machine: &Machine) -> Timestamp {
    let of_hook =
        |e: &AwsEvent| matches!(e, AwsEvent::HookCompleted { instance, .. } if *instance == machine.instance);
    let of_call = |e: &AwsEvent| matches!(e, AwsEvent::TerminationStarted { instance, .. } if *instance == machine.instance);
    let completed = aws_moments(world, of_hook);
    *completed.first().or(aws_moments(world, of_call).first()).expect("released")
}

/// When the group began to hold or shut down the instance.
pub(crate) fn terminations(world: &World, machine: &Machine) -> Vec<Timestamp> {
    aws_moments(
        world,
        |e| matches!(e, AwsEvent::TerminationStarted { instance, .. } if *instance == machine.instance),
    )
}

/// How often the desired capacity was lowered by a termination.
pub(crate) fn decrements(world: &World) -> usize {
    aws_moments(world, |e| matches!(e, AwsEvent::TerminationStarted { decrement: true, .. })).len()
}

/// The longest time from one sign of life to the next while our hook held an instance.
pub(crate) fn longest_silence(world: &World, machine: &Machine) -> SignedDuration {
    let beats = aws_moments(world, |e| match e {
        AwsEvent::EnteredWait { instance, hook, .. }
        | AwsEvent::Heartbeat { instance, hook, .. }
        | AwsEvent::HookCompleted { instance, hook, .. } => {
            *instance == machine.instance && hook == "ebbtide"
        }
        _ => false,
    });
    beats.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().unwrap_or_default()
}

/// Whether somebody let a hook time out.
pub(crate) fn a_hook_timed_out(world: &World) -> bool {
    !aws_moments(world, |e| matches!(e, AwsEvent::HookTimedOut { .. })).is_empty()
}

/// Kubernetes Events on the Node of this reason.
pub(crate) fn notes(world: &World, machine: &Machine, reason: &str) -> Vec<String> {
    let of = format!("Node/{}", machine.name);
    let journal = world.cluster.journal();
    let notes = journal.iter().filter_map(|entry| match &entry.what {
        Event::KubernetesEvent { regarding, reason: r, note } if *regarding == of && r == reason => {
            Some(note.clone())
        }
        _ => None,
    });
    notes.collect()
}

/// Kubernetes Events on the pod of this name and reason.
pub(crate) fn pod_notes(world: &World, pod: &str, reason: &str) -> Vec<String> {
    let of = format!("Pod/{pod}");
    let journal = world.cluster.journal();
    let notes = journal.iter().filter_map(|entry| match &entry.what {
        Event::KubernetesEvent { regarding, reason: r, note } if *regarding == of && r == reason => {
            Some(note.clone())
        }
        _ => None,
    });
    notes.collect()
}

/// When the Node got cluster-autoscaler's taint, or another value of it.
pub(crate) fn stamps(world: &World, machine: &Machine) -> Vec<Timestamp> {
    let stamp =
        |change: &NodeChange| matches!(change, NodeChange::Tainted { key, .. } if key == TO_BE_DELETED);
    moments(
        world,
        |e| matches!(e, Event::NodeChanged { node, changes } if *node == machine.name && changes.iter().any(stamp)),
    )
}

/// Nothing was cut short and no line was lost.
pub(crate) fn assert_nothing_lost(world: &World) {
    let cuts: Vec<_> =
        world.cluster.journal().into_iter().filter(|e| matches!(e.what, Event::CutShort { .. })).collect();
    assert_eq!(cuts, [], "cut short");
    assert_eq!(world.cluster.all_lines().lost, 0, "lines lost");
    assert!(!a_hook_timed_out(world), "a hook timed out: {:#?}", hook_story(world));
}

/// Everything about hooks, for a failed test to show.
fn hook_story(world: &World) -> Vec<String> {
    let told = |e: &AwsEvent| !matches!(e, AwsEvent::Called { operation, .. } if operation.name().starts_with("Describe"));
    world.aws.journal().iter().filter(|e| told(&e.what)).map(|e| format!("{} {:?}", e.at, e.what)).collect()
}

impl Scene {
    /// The node has gone in the right order, whole, and for good.
    pub(crate) fn assert_left_well(&self, machine: &Machine) {
        let world = &self.world;
        assert_nothing_lost(world);
        assert_eq!(terminations(world, machine).len(), 1, "terminations");
        assert_eq!(world.cluster.requests(Verb::Get, "pods"), 0, "pods were asked for one by one");
        let (last, released) = (last_exit(world, machine), released_at(world, machine));
        // The last of them: a workload that comes late leaves first, and somebody may have forged one before.
        let flushing = *phases(world, machine, "Flushing").last().expect("a flush");
        for daemon in daemons_on(world, machine) {
            // What a rolling update replaces is its controller's.
            let mut ours = asked(world, &daemon).into_iter().filter(|(_, by, _)| *by != By::Controller);
            assert!(ours.all(|(at, ..)| at >= last), "{daemon} was asked before");
        }
        assert!(flushing >= last, "flushing from {flushing}, the last workload exited at {last}");
        assert!(
            released >= last + SignedDuration::from_secs(5),
            "the last exit at {last}, released at {released}"
        );
    }
}

/// The DaemonSet pods that ran on a node.
pub(crate) fn daemons_on(world: &World, machine: &Machine) -> Vec<String> {
    let journal = world.cluster.journal();
    let pods = journal.iter().filter_map(|entry| match &entry.what {
        Event::PodRunning { pod, node } if *node == machine.name && is_daemon(&pod.name) => {
            Some(pod.name.clone())
        }
        _ => None,
    });
    pods.collect()
}
