//! The Nodes of machines that have gone, where no cloud controller deletes them.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::sim::cluster::{Event, Fault, Timing, Verb, pod};
use ebbtide::sim::program::{Program, second};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use serde_json::json;

use crate::journal_queries::{is_released, notes};
use crate::scene::{Cause, EVER, Machine, Scene, config_with, group, held_group, seconds};

/// From now on no cloud controller works in the cluster.
pub(crate) fn no_cloud_controller(scene: &Scene) {
    scene.world.cluster.set_timing(Timing { cloud_controller: Span::exactly(EVER), ..Timing::real() });
}

fn deleting() -> Config {
    config_with(|it| it.delete_node_after = Some(seconds(900)))
}

fn is_off(world: &World, machine: &Machine) -> bool {
    world.cluster.happened(|e| matches!(e, Event::PoweredOff { node } if *node == machine.name))
}

fn deletions(world: &World) -> usize {
    world.cluster.requests(Verb::Delete, "nodes")
}

#[tokio::test(start_paused = true)]
async fn a_node_that_nobody_deletes_goes_as_long_after_its_instance_as_the_flag_says() {
    for (group, cause) in [
        (group(3), Cause::Autoscaler),
        (held_group(3, 60), Cause::Autoscaler),
        (held_group(3, 60), Cause::Group),
    ] {
        let scene = Scene::configured(group, deleting()).await;
        no_cloud_controller(&scene);
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_off(w, &machine)).await;
        let off = scene.world.clock.now();
        scene.until_gone(&machine).await;
        let after = scene.world.clock.now().duration_since(off);
        let minutes = |n| SignedDuration::from_mins(n);
        assert!(minutes(15) <= after && after <= minutes(18), "{cause:?}: {after:#}");
        scene.until(|w| !notes(w, &machine, "ScaleInNodeDeleted").is_empty()).await;
        assert_eq!(deletions(&scene.world), 1);
        scene.assert_left_well(&machine);
        assert_eq!(scene.machines().len(), scene.world.cluster.node_names().len());
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_and_beside_a_cloud_controller_no_node_is_deleted() {
    let scene = Scene::with(held_group(3, 60)).await;
    no_cloud_controller(&scene);
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(Duration::from_hours(3)).await;
    assert!(is_released(&scene.world, &machine) && scene.node(&machine.name).is_some());
    assert_eq!(deletions(&scene.world), 0);
    let scene = Scene::configured(held_group(3, 60), deleting()).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.pass_some(Duration::from_hours(1)).await;
    assert_eq!(deletions(&scene.world), 0);
}

#[tokio::test(start_paused = true)]
async fn a_restart_and_a_busy_api_server_only_delay_a_nodes_deletion() {
    let mut scene = Scene::configured(held_group(3, 60), deleting()).await;
    no_cloud_controller(&scene);
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_off(w, &machine)).await;
    scene.pass_some(seconds(600)).await;
    scene.kill().await;
    let restarted = scene.world.clock.now();
    scene.world.cluster.fail_next(1, Verb::Delete, "nodes", Fault::Overtaken);
    scene.world.cluster.fail_next(1, Verb::Delete, "nodes", Fault::EtcdTimedOut { took_effect: false });
    scene.until_gone(&machine).await;
    let after = scene.world.clock.now().duration_since(restarted);
    assert!(after >= SignedDuration::from_mins(15), "counted from what this run has seen: {after:#}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_finalizer_keeps_is_told_as_kept_and_as_deleted_once_it_has_gone() {
    let scene = Scene::configured(held_group(3, 60), deleting()).await;
    no_cloud_controller(&scene);
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    let finalizers = |names| json!({ "metadata": { "finalizers": names } });
    scene.patch_node(&machine, finalizers(Some(["wrangler.cattle.io/node"]))).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| deletions(w) > 0).await;
    scene.pass_some(Duration::from_hours(1)).await;
    let told_as_deleted = || notes(&scene.world, &machine, "ScaleInNodeDeleted");
    assert_eq!(told_as_deleted(), [""; 0], "it is there");
    let mut kept = notes(&scene.world, &machine, "ScaleInWaiting");
    kept.retain(|note| note.ends_with("wrangler.cattle.io/node"));
    assert!((11..=13).contains(&kept.len()), "every five minutes: {kept:?}");
    scene.patch_node(&machine, finalizers(None)).await;
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!(told_as_deleted().len(), 1);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn one_of_two_programs_deletes_a_node() {
    let scene = Scene::configured(held_group(3, 60), deleting()).await;
    let _second = Program::start(&scene.world, second(deleting()));
    no_cloud_controller(&scene);
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!(deletions(&scene.world), 1);
}

#[tokio::test(start_paused = true)]
async fn the_node_of_an_instance_that_somebody_has_detached_stays() {
    let scene = Scene::configured(group(3), deleting()).await;
    no_cloud_controller(&scene);
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(2_000).grace(3_600)]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.pass_some(seconds(30)).await;
    scene.world.aws.detach(&machine.instance, true);
    // Nobody says any more whether the machine lives.
    scene.world.cluster.partition(&machine.name);
    scene.pass_some(Duration::from_hours(2)).await;
    assert_eq!(deletions(&scene.world), 0);
    assert!(scene.node(&machine.name).is_some());
}
