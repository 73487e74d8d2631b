//! The net under everything else: with hooks that retain, nobody at home costs time and no workload.

use std::time::Duration;

use ebbtide::sim::aws::{Event as AwsEvent, HookResult, LifecycleState, Power, TerminationCause};
use ebbtide::sim::cluster::{By, Event, budget, pod, replica_set};
use ebbtide::sim::program::{Program, second};
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::Pod;

use crate::journal_queries::{asked, aws_moments, decrements, is_asked, last_exit, moments, terminations};
use crate::managed_hooks::managed;
use crate::scene::{Machine, Scene, group, seconds};

/// The name of the pod that runs on this node alone.
fn solo(machine: &Machine) -> String {
    format!("solo-{}", machine.instance)
}

fn is_retained(world: &World, machine: &Machine) -> bool {
    let instance = world.aws.instance(&machine.instance).expect("the instance");
    (instance.state, instance.power) == (LifecycleState::TerminatingRetained, Power::Running)
}

/// Whether this pod runs, where it always did.
fn runs(world: &World, machine: &Machine) -> bool {
    world.cluster.get::<Pod>(solo(machine).as_str()).is_some_and(|pod| {
        pod.metadata.deletion_timestamp.is_none()
            && pod.status.and_then(|status| status.phase).as_deref() == Some("Running")
    })
}

/// No workload was cut, no line lost, and nobody was asked past a budget.
fn assert_whole(world: &World) {
    assert_eq!(moments(world, |e| matches!(e, Event::CutShort { .. })), [], "cut short");
    assert_eq!(world.cluster.all_lines().lost, 0, "lines lost");
    let asks = asked(world, "solo-").into_iter().chain(asked(world, "api-"));
    assert!(asks.into_iter().all(|(_, by, _)| by == By::Eviction), "a budget was passed over");
}

#[tokio::test(start_paused = true)]
async fn every_replica_is_dead_for_three_hours_in_the_middle_of_a_rebalance_and_no_workload_is_cut() {
    dead_for_three_hours(None).await;
}

#[tokio::test(start_paused = true)]
async fn every_replica_is_dead_for_three_hours_beyond_a_drain_timeout_and_no_workload_is_cut() {
    dead_for_three_hours(Some(seconds(3_600))).await;
}

async fn dead_for_three_hours(drain_timeout: Option<Duration>) {
    let mut config = managed(true);
    config.scale_in.drain_timeout = drain_timeout;
    let another = |scene: &Scene| Program::start(&scene.world, second(config.clone()));
    let mut scene = Scene::configured(group(10), config.clone()).await;
    let second = another(&scene);
    let machines = scene.machines();
    scene.world.cluster.add(budget("api").max_unavailable(2));
    scene.world.cluster.add(replica_set("api", 20).exits_after(30).grace(120));
    scene.run(machines.iter().map(|m| pod(solo(m).as_str()).on(&m.name).grace(900).exits_after(600))).await;
    scene.pass_some(seconds(60)).await;

    // Five are draining when everybody dies, five more are taken out when nobody is there.
    let (draining, unseen) = machines.split_at(5);
    let rebalance = |machine: &Machine| {
        scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    };
    draining.iter().for_each(rebalance);
    scene.until(|w| draining.iter().all(|machine| is_asked(w, &solo(machine)))).await;
    unseen.iter().for_each(rebalance);
    scene.take_down().await;
    second.kill().await;
    let died = scene.world.clock.now();
    scene.pass_some(seconds(3 * 3600)).await;

    assert!(machines.iter().all(|machine| is_retained(&scene.world, machine)));
    assert!(unseen.iter().all(|machine| runs(&scene.world, machine)), "their workloads run on");
    let web = scene.world.aws.group("web").expect("the group");
    assert_eq!(
        (web.desired, web.in_state(LifecycleState::InService).len()),
        (10, 10),
        "replacements are there"
    );
    assert_whole(&scene.world);

    let back = scene.world.clock.now();
    scene.bring_back();
    let _second = another(&scene);
    scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
    assert_whole(&scene.world);
    for machine in &machines {
        let [group, ours] = terminations(&scene.world, machine)[..] else {
            panic!("the group's, and ours when it was drained")
        };
        assert!(group <= died && ours >= back && ours >= last_exit(&scene.world, machine), "{machine:?}");
    }
    let timed_out = |e: &AwsEvent| matches!(e, AwsEvent::HookTimedOut { result: HookResult::Abandon, .. });
    let timed_out = aws_moments(&scene.world, timed_out);
    assert_eq!(timed_out.len(), 10, "none after it was back");
    assert!(timed_out.iter().all(|at| *at > died && *at < back));
    assert_eq!(decrements(&scene.world), 0);
    scene.until_target(10).await;
}

#[tokio::test(start_paused = true)]
async fn without_retention_the_same_costs_workloads() {
    // The world is no kinder than AWS: it is the policy that saves them.
    let mut scene = Scene::configured(group(2), managed(false)).await;
    let machine = scene.first();
    scene.run([pod(solo(&machine).as_str()).on(&machine.name).grace(900).exits_after(600)]).await;
    scene.pass_some(seconds(60)).await;
    scene.take_down().await;
    scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    scene.pass_some(seconds(3600)).await;
    assert_eq!(moments(&scene.world, |e| matches!(e, Event::CutShort { .. })).len(), 1);
}
