//! What holds of every plan, whatever is on the node.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use proptest::prelude::*;

use super::scene::*;
use crate::aws::Lifecycle;
use crate::cluster::PodView;
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::record::Phase;

/// A pod of any class, in any state.
fn any_pod(n: usize) -> impl Strategy<Value = PodView> {
    (0..6u8, -1..2i32, proptest::option::of(0..200i64), 0..700i64).prop_map(
        move |(kind, priority, going, grace)| {
            let pod = pod(&format!("p{n}")).priority(priority).grace(grace);
            let pod = match kind {
                0 => pod.daemon(),
                1 => pod.daemon().wishing(names::DAEMON_SET, "evict"),
                2 => PodView { mirror: true, ..pod },
                3 => PodView { finished: true, ..pod },
                4 => pod.wishing(names::DRAIN, "wait"),
                _ => pod,
            };
            going.map_or(pod.clone(), |until| pod.going(until))
        },
    )
}

fn any_scene() -> impl Strategy<Value = Scene> {
    let pods = (0..8usize).prop_flat_map(|count| (0..count).map(any_pod).collect::<Vec<_>>());
    (pods, proptest::option::of(20..5_000i64), any::<bool>(), 0..5_000i64).prop_map(
        |(pods, limit, hooked, later)| {
            let mut scene = node();
            if hooked {
                scene = scene.hooked(60);
            }
            scene = scene.by_autoscaler();
            if let Some(limit) = limit {
                scene = scene.until(limit);
            }
            for pod in pods {
                scene.put(pod);
            }
            scene.later(later);
            scene
        },
    )
}

fn names_of(plan: &Plan, which: impl Fn(&Action) -> Option<&str>) -> Vec<String> {
    plan.actions.iter().filter_map(which).map(str::to_owned).collect()
}

proptest! {
    #[test]
    fn nobody_is_asked_out_of_turn(mut scene in any_scene()) {
        let pods = scene.pods.clone().unwrap_or_default();
        let of = |name: &str| pods.values().find(|pod| *pod.name.name == *name).expect("on the node");
        let is_to_leave = |pod: &&PodView| {
            pod.is_workload() && !pod.finished && pod.annotations.is_empty() && pod.deletion_timestamp.is_none()
        };
        let mut answered = BTreeSet::new();
        // Three priorities, each after the answers of the one below; a write of the Node comes before, a last call between.
        for _ in 0..8 {
            let phase = scene.record().phase;
            let plan = scene.plan();
            let evicted = names_of(&plan, |a| match a { Action::Evict(ask) => Some(&ask.pod.name), _ => None });
            for name in &evicted {
                let pod = of(name);
                prop_assert!(is_to_leave(&pod), "{pod:?}");
                prop_assert_eq!(phase, Phase::Draining);
                // A last call waits for no turn; the flush takes 125 s at most.
                let last = SignedDuration::from_secs(pod.grace_seconds + 125 + 20);
                if scene.record().release_by.is_some_and(|by| by - last <= scene.now) {
                    continue;
                }
                for lower in pods.values().filter(is_to_leave).filter(|other| other.priority < pod.priority) {
                    prop_assert!(answered.contains(&*lower.name.name), "{} before {}", pod.name, lower.name);
                }
            }
            let deleted = names_of(&plan, |a| match a { Action::Delete(ask) => Some(&ask.pod.name), _ => None });
            for name in &deleted {
                let pod = of(name);
                prop_assert!(!pod.mirror && !pod.finished);
                prop_assert!(pod.daemon.is_none() || phase == Phase::Flushing, "a DaemonSet pod while draining");
            }
            if touches_aws(&plan) && scene.hook.ours().is_none() {
                prop_assert_eq!(scene.record().phase, Phase::Releasing, "nothing holds the instance");
            }
            for (n, name) in evicted.iter().enumerate() {
                if n % 2 == 0 { scene.evicted(name) } else { scene.blocked(name) }
            }
            for name in &deleted {
                scene.granted(name);
            }
            answered.extend(evicted.into_iter().chain(deleted));
        }
        if scene.record().phase == Phase::Draining {
            for pod in pods.values().filter(is_to_leave) {
                prop_assert!(answered.contains(&*pod.name.name), "{} never had its turn", pod.name);
            }
        }
    }

    #[test]
    fn without_a_limit_an_instance_is_released_only_when_every_workload_has_gone(mut scene in any_scene()) {
        let workload = |pod: &PodView| pod.is_workload() && !pod.finished;
        let limited = scene.record().release_by.is_some();
        let occupied = scene.pods.iter().flatten().any(|(_, pod)| workload(pod));
        // A DaemonSet pod that is asked to go has its grace, up to 700 s here.
        for _ in 0..12 {
            scene.plan();
            scene.later(100);
        }
        if occupied && !limited {
            prop_assert_eq!(scene.record().phase, Phase::Draining);
        } else if !occupied {
            prop_assert_eq!(scene.record().phase, Phase::Releasing);
        }
        scene.instance = in_group(Lifecycle::TerminatingProceed);
        prop_assert!(!touches_aws(&scene.plan()));
    }
}
