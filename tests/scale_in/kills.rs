//! Killed at any moment, the program carries on where it was.

use std::time::Duration;

use ebbtide::sim::aws::{GroupSpec, Lose};
use ebbtide::sim::cluster::{Fault, Verb, pod};
use ebbtide::sim::world::World;

use crate::journal_queries::{TERMINATE, decrements, has_exited, in_phase, is_asked, records, terminations};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds};

/// Kills the program when `moment` has come, with and without a hook; the node leaves well all the same.
async fn killed_when(moment: impl Fn(&World, &Machine) -> bool) {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| moment(w, &machine)).await;
        scene.kill().await;
        ends_well(&scene, &machine).await;
    }
}

async fn begin(group: GroupSpec) -> Scene {
    let scene = Scene::with(group).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.run([pod("web").on(on).exits_after(20), pod("api").on(on).grace(90).exits_after(70)]).await;
    scene
}

async fn ends_well(scene: &Scene, machine: &Machine) {
    scene.until_gone(machine).await;
    scene.assert_left_well(machine);
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn killed_right_after_it_accepted_a_scale_in() {
    killed_when(|_, _| true).await;
}

#[tokio::test(start_paused = true)]
async fn killed_when_workloads_were_asked() {
    killed_when(|w, _| is_asked(w, "api")).await;
}

#[tokio::test(start_paused = true)]
async fn killed_between_two_exits() {
    killed_when(|w, _| has_exited(w, "web")).await;
}

#[tokio::test(start_paused = true)]
async fn killed_after_the_last_exit() {
    killed_when(|w, _| has_exited(w, "api")).await;
}

#[tokio::test(start_paused = true)]
async fn killed_while_it_flushes() {
    killed_when(|w, machine| in_phase(w, machine, "Flushing")).await;
}

#[tokio::test(start_paused = true)]
async fn killed_while_it_releases() {
    killed_when(|w, machine| in_phase(w, machine, "Releasing")).await;
}

#[tokio::test(start_paused = true)]
async fn killed_when_the_instance_was_told_to_terminate() {
    killed_when(|w, machine| !terminations(w, machine).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn killed_before_the_answer_to_a_termination_came() {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.world.aws.lose_next(TERMINATE, Lose::AfterEffect);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| !terminations(w, &machine).is_empty()).await;
        scene.kill().await;
        ends_well(&scene, &machine).await;
    }
}

/// Nobody waits minutes for a call that AWS has not carried out.
#[tokio::test(start_paused = true)]
async fn killed_between_two_tries_of_a_termination_that_aws_throttles() {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.world.aws.throttle_for(&[TERMINATE], seconds(120));
        scene.scale_in(&machine, Cause::Autoscaler).await;
        let is_refused = |record: &String| record.contains("voidTermination");
        scene.until(|w| records(w, &machine).last().is_some_and(is_refused)).await;
        scene.kill().await;
        assert!(scene.world.until(seconds(180), |w| !terminations(w, &machine).is_empty()).await);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(decrements(&scene.world), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn killed_again_and_again() {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        while scene.node(&machine.name).is_some() {
            scene.kill().await;
            let _gone = scene.world.until(seconds(3), |w| !w.cluster.has_node(&machine.name)).await;
        }
        ends_well(&scene, &machine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn killed_again_and_again_while_the_group_takes_the_instance_out() {
    let mut scene = begin(held_group(2, 60)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Group).await;
    while scene.node(&machine.name).is_some() {
        scene.kill().await;
        let _gone = scene.world.until(seconds(3), |w| !w.cluster.has_node(&machine.name)).await;
    }
    scene.assert_left_well(&machine);
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn killed_while_the_api_server_is_down() {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "api")).await;
        scene.world.cluster.api_down();
        scene.pass_some(seconds(10)).await;
        scene.kill().await;
        scene.pass_some(seconds(200)).await;
        scene.world.cluster.api_up();
        ends_well(&scene, &machine).await;
    }
}

/// Nothing depends on an Event, nor on a condition.
#[tokio::test(start_paused = true)]
async fn a_stop_hands_over_at_once_though_nobody_takes_what_others_are_told() {
    let mut scene = begin(held_group(2, 60)).await;
    let machine = scene.first();
    scene.world.cluster.hang_webhook(Verb::Create, "events");
    scene.world.cluster.hang_webhook(Verb::Patch, "nodes/status");
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    let took = scene.stop().await;
    assert!(took <= Duration::from_secs(2), "{took:?}");
    ends_well(&scene, &machine).await;
}

#[tokio::test(start_paused = true)]
async fn stopped_in_mid_drain_it_is_gone_within_five_seconds_and_the_next_one_carries_on() {
    for group in [group(2), held_group(2, 60)] {
        let mut scene = begin(group).await;
        let machine = scene.first();
        scene.world.cluster.fail_next(1, Verb::Create, "pods/eviction", Fault::Slow(seconds(60)));
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        let took = scene.stop().await;
        assert!(took <= seconds(5), "{took:?}");
        ends_well(&scene, &machine).await;
    }
}
