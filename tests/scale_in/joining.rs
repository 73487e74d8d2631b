//! Nodes that join while a launching hook still holds their instance (`Pending:Wait`): pods run on them, AWS protects them
//! from nothing, and the hook is somebody else's.

use ebbtide::sim::aws::{Event, GroupSpec, HookSpec, LifecycleState, Operation};
use ebbtide::sim::cluster::{Fault, Verb, pod};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;

use crate::journal_queries::{aws_moments, decrements, has_exited, is_asked};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds, state};

/// The launching hook of somebody else, who needs so long for it.
const BOOTSTRAP: &str = "bootstrap";

/// Two instances in service, and a launching hook that holds every other one for an hour.
fn two(hooked: bool) -> GroupSpec {
    let group = behind(BOOTSTRAP);
    if hooked { group.hook(HookSpec::terminating("ebbtide").heartbeat(60)) } else { group }
}

fn behind(hook: &str) -> GroupSpec {
    group(2).protecting_new_instances().hook(HookSpec::launching(hook).heartbeat(3600))
}

/// A third instance comes, and its Node is Ready.
async fn third(scene: &Scene) -> Machine {
    let before = scene.machines();
    scene.increase(1).await.expect("grown");
    let joined =
        |w: &World| w.cluster.node_names().iter().filter(|node| w.cluster.is_ready(node)).count() == 3;
    scene.until(joined).await;
    scene.machines().into_iter().find(|machine| !before.contains(machine)).expect("a third one")
}

/// The same, which is held on its way in, and a pod runs on its Node that takes 200 of its 600 seconds to exit.
async fn one_joins(scene: &Scene) -> Machine {
    let machine = third(scene).await;
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(200)]).await;
    assert_eq!(state(&scene.world, &machine), Some(LifecycleState::PendingWait));
    // Long enough for every description to show it.
    scene.pass_some(seconds(60)).await;
    machine
}

/// Nobody beats for, or completes, a hook that holds the instance on its way in. One heartbeat under our hook tells whether AWS lets any
/// through, right before the instance is terminated.
fn assert_launch_is_nobodys_business(scene: &Scene) {
    let ours = [Operation::RecordLifecycleActionHeartbeat, Operation::CompleteLifecycleAction];
    let called = |e: &Event| matches!(e, Event::Called { operation, .. } if ours.contains(operation));
    let began = aws_moments(&scene.world, |e| matches!(e, Event::TerminationStarted { .. }));
    let calls = aws_moments(&scene.world, called);
    let a_moment = SignedDuration::from_secs(1);
    assert!(
        calls.iter().all(|call| began.first().is_some_and(|began| *call + a_moment >= *began)),
        "{calls:?}"
    );
    let touched = aws_moments(&scene.world, |e| match e {
        Event::Heartbeat { hook, .. } | Event::HookCompleted { hook, .. } => hook == BOOTSTRAP,
        _ => false,
    });
    assert_eq!(touched, []);
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_launch_is_held_is_left_alone() {
    // A hook on the way in that bears our name is none of ours either.
    for group in [two(true), behind("ebbtide")] {
        let scene = Scene::with(group).await;
        let machine = one_joins(&scene).await;
        scene.pass_some(seconds(1_800)).await;
        assert_eq!(state(&scene.world, &machine), Some(LifecycleState::PendingWait));
        assert!(!is_asked(&scene.world, "web"));
        assert_launch_is_nobodys_business(&scene);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_launch_is_held_is_drained_when_the_group_takes_it_back() {
    for restarted in [false, true] {
        let mut scene = Scene::with(two(true)).await;
        let machine = one_joins(&scene).await;
        // The others are protected, which it cannot be.
        scene.world.aws.set_desired("web", 2);
        scene.until(|w| is_asked(w, "web")).await;
        if restarted {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_launch_is_nobodys_business(&scene);
        assert_eq!(decrements(&scene.world), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_launch_is_held_can_be_deleted_like_any_other() {
    for hooked in [true, false] {
        for cause in [Cause::Autoscaler, Cause::Operator] {
            let scene = Scene::with(two(hooked)).await;
            let machine = one_joins(&scene).await;
            scene.scale_in(&machine, cause).await;
            scene.until_released(&machine).await;
            assert!(has_exited(&scene.world, "web"));
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            assert_launch_is_nobodys_business(&scene);
            assert_eq!(decrements(&scene.world), 1);
            assert_eq!(scene.target().await.expect("answered"), 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_comes_through_in_mid_drain_changes_nothing() {
    let scene = Scene::with(two(false)).await;
    let machine = one_joins(&scene).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.set_state(&machine.instance, LifecycleState::InService);
    scene.until_released(&machine).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(decrements(&scene.world), 1);
}

/// Its machine would end with all that runs there, for want of a Node.
#[tokio::test(start_paused = true)]
async fn a_node_that_a_stale_watch_cache_does_not_show_is_drained_before_its_instance_is_let_go() {
    // How long lists fail as well, at once or after half a minute.
    let fails = Fault::EtcdTimedOut { took_effect: false };
    for (timeout, fault) in [
        (30, None),
        (30, Some((fails, 600))),
        (30, Some((Fault::Slow(seconds(100)), 600))),
        (300, Some((fails, 1_000))),
    ] {
        behind_a_stale_cache(Scene::with(held_group(2, timeout)).await, fault).await;
    }
}

async fn behind_a_stale_cache(scene: Scene, fault: Option<(Fault, u64)>) {
    scene.world.cluster.stall_watch_cache::<Node>();
    let machine = third(&scene).await;
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
    scene.pass_some(seconds(300)).await;
    let failing = fault.as_ref().map_or(0, |(_, failing)| *failing);
    if let Some((fault, _)) = fault {
        scene.world.cluster.fail_next(u32::MAX, Verb::List, "nodes", fault);
    }
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(failing)).await;
    let is_slow = matches!(fault, Some((Fault::Slow(_), _)));
    assert!(failing == 0 || is_slow || !is_asked(&scene.world, "web"), "nobody knows of it");
    scene.world.cluster.no_more_faults();
    let well_since = scene.world.clock.now();
    scene.until(|w| is_asked(w, "web")).await;
    let waited = scene.world.clock.now().duration_since(well_since).as_secs();
    assert!(failing == 0 || waited <= 45, "asked {waited} s after lists work again");
    scene.until_released(&machine).await;
    assert!(has_exited(&scene.world, "web"));
    scene.assert_left_well(&machine);
}
