//! The order of things, whatever the cause: workloads, then the flush, then the instance.

use ebbtide::sim::cluster::pod;
use jiff::SignedDuration;

use crate::journal_queries::{TERMINATE, decrements, last_exit, phase_at};
use crate::scene::{Cause, Scene, group, held_group};

async fn leaves_in_order(scene: Scene, cause: Cause) {
    let machine = scene.first();
    let on = machine.name.as_str();
    scene
        .run([
            pod("quick").on(on).last_lines(40),
            pod("slow").on(on).grace(60).exits_after(50).lines_per_second(20).last_lines(500),
        ])
        .await;
    scene.scale_in(&machine, cause).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let idle = phase_at(&scene.world, &machine, "Flushing").duration_since(last_exit(&scene.world, &machine));
    // A kubelet looks at its containers once a second.
    assert!(idle < SignedDuration::from_millis(1_300), "noticed after {idle}");
    let ours = usize::from(cause != Cause::Group);
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (ours, ours));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cluster_autoscaler_deletes_leaves_in_order() {
    leaves_in_order(Scene::with(group(2)).await, Cause::Autoscaler).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_cluster_autoscaler_deletes_leaves_in_order_under_a_hook() {
    leaves_in_order(Scene::with(held_group(2, 120)).await, Cause::Autoscaler).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_the_group_takes_out_leaves_in_order() {
    leaves_in_order(Scene::with(held_group(2, 120)).await, Cause::Group).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_person_sends_away_leaves_in_order() {
    leaves_in_order(Scene::with(group(2)).await, Cause::Operator).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_a_person_sends_away_leaves_in_order_under_a_hook() {
    leaves_in_order(Scene::with(held_group(2, 120)).await, Cause::Operator).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_workloads_is_flushed_too() {
    let scene = Scene::with(group(1)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    let released = crate::journal_queries::released_at(&scene.world, &machine);
    // It is empty, and closed, from the record on.
    let closed = phase_at(&scene.world, &machine, "Draining");
    assert!(released >= closed + SignedDuration::from_secs(5), "closed at {closed}, released at {released}");
}
