//! AWS throttles: by chance, from before the program starts until after the nodes have gone.

use ebbtide::sim::cluster::pod;
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;

use crate::scene::{Cause, Machine, Scene, held_group};
use crate::story::{assert_nothing_lost, decrements, terminations};

/// Runs of each case, each with a seed of its own.
const RUNS: u64 = 20;

/// Three nodes go at once while this share of all calls is throttled, in every run.
async fn three_nodes_leave_whole(share: f64, heartbeat_seconds: u64, cause: Cause) {
    for seed in 1..=RUNS {
        // The program's own jitter comes from here too.
        fastrand::seed(seed);
        let world = World::new(seed);
        world.aws.throttle_share(share);
        let scene = Scene::on(world, held_group(4, heartbeat_seconds), config()).await;
        let mut machines = scene.machines();
        let _stays = machines.pop();
        scene
            .run(machines.iter().map(|machine| pod("web").on(&machine.name).grace(120).exits_after(90)))
            .await;
        if cause == Cause::Autoscaler {
            scene.delete(&machines).await.expect("accepted");
        } else {
            for machine in &machines {
                scene.scale_in(machine, cause).await;
            }
        }
        for machine in &machines {
            scene.until_gone(machine).await;
        }
        assert_each_left_once(&scene, &machines, cause, seed);
    }
}

fn assert_each_left_once(scene: &Scene, machines: &[Machine], cause: Cause, seed: u64) {
    let world = &scene.world;
    assert_nothing_lost(world);
    for machine in machines {
        assert_eq!(terminations(world, machine).len(), 1, "run {seed}");
    }
    let expected = if cause == Cause::Autoscaler { machines.len() } else { 0 };
    assert_eq!(decrements(world), expected, "run {seed}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_group_takes_nodes_out_and_every_second_call_is_throttled() {
    three_nodes_leave_whole(0.5, 20, Cause::Group).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_autoscaler_takes_nodes_out_and_every_second_call_is_throttled() {
    three_nodes_leave_whole(0.5, 20, Cause::Autoscaler).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_group_takes_nodes_out_and_four_of_five_calls_are_throttled() {
    three_nodes_leave_whole(0.8, 60, Cause::Group).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_autoscaler_takes_nodes_out_and_four_of_five_calls_are_throttled() {
    three_nodes_leave_whole(0.8, 60, Cause::Autoscaler).await;
}
