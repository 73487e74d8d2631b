//! The target size while nodes leave, and asking for the same thing again and again.

use ebbtide::sim::aws::{Event, Lose, Operation};
use ebbtide::sim::cluster::pod;
use ebbtide::sim::world::World;

use crate::journal_queries::{TERMINATE, aws_moments, decrements, has_exited};
use crate::scene::{Cause, EVER, Scene, group, held_group, seconds};

async fn ten_times(mut scene: Scene) {
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(40)]).await;
    scene.world.aws.delay(seconds(0), seconds(1));
    assert_eq!(scene.target().await.expect("answered"), 3);

    let same = || scene.delete(std::slice::from_ref(&machine));
    let answers = futures::future::join_all([same(), same(), same(), same()]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let until_exit = scene.target_stays(2, |w| has_exited(w, "web"));
    assert!(tokio::time::timeout(EVER, until_exit).await.expect("exits") > 1);
    for _ in 0..2 {
        scene.delete(std::slice::from_ref(&machine)).await.expect("under way");
    }
    scene.kill().await;
    scene.ready().await;
    for _ in 0..2 {
        scene.delete(std::slice::from_ref(&machine)).await.expect("under way after a restart");
    }
    let off = |e: &Event| matches!(e, Event::Terminated { instance, .. } if *instance == machine.instance);
    scene.target_stays(2, |w| !aws_moments(w, off).is_empty()).await;
    assert!(scene.node(&machine.name).is_some(), "its Node is still there");
    for _ in 0..2 {
        scene.delete(std::slice::from_ref(&machine)).await.expect("gone from the group, its Node is not");
    }
    scene.target_stays(2, |w| !w.cluster.has_node(&machine.name)).await;

    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 1));
    assert_eq!(scene.world.aws.group("web").expect("the group").desired, 2);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn ten_requests_for_one_node_take_one_instance_and_the_target_size_is_right_at_every_moment() {
    ten_times(Scene::with(group(3)).await).await;
}

#[tokio::test(start_paused = true)]
async fn ten_requests_for_one_node_take_one_instance_under_a_hook() {
    ten_times(Scene::with(held_group(3, 120)).await).await;
}

/// As where load balancers call a node unhealthy because cluster-autoscaler's taint is on it, and the group launches first.
#[tokio::test(start_paused = true)]
async fn a_node_whose_replacement_its_group_has_launched_first_leaves_without_a_decrement() {
    for group in [group(3), held_group(3, 120)] {
        let scene = Scene::with(group.launching_first()).await;
        let machines = scene.machines();
        let machine = &machines[0];
        scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
        scene.world.aws.fail_health_check(&machine.instance);
        let instances = |w: &World| w.aws.group("web").expect("the group").instances.len();
        scene.until(|w| instances(w) == 4).await;
        scene.scale_in(machine, Cause::Autoscaler).await;
        scene.until_gone(machine).await;
        scene.pass_some(seconds(600)).await;
        scene.assert_left_well(machine);
        assert_eq!(decrements(&scene.world), 0);
        let ended = aws_moments(&scene.world, |e| matches!(e, Event::Terminated { .. })).len();
        assert_eq!(ended, 1, "a decrement would have cost another");
        assert_eq!((scene.target().await.expect("answered"), instances(&scene.world)), (3, 3));
    }
}

/// A termination whose answer, or which itself, was lost.
async fn a_lost_termination(scene: Scene, lose: Lose, calls: usize) {
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.lose_next(TERMINATE, lose);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.target_stays(2, |w| w.aws.calls(TERMINATE) == 1).await;
    // What became of it cannot be seen for a while, longer than the pause before another try.
    scene.world.aws.fail_next(Operation::DescribeAutoScalingGroups, 12);
    scene.target_stays(2, |w| !w.cluster.has_node(&machine.name)).await;
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (calls, 1));
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_termination_whose_answer_was_lost_is_not_repeated() {
    a_lost_termination(Scene::with(group(3)).await, Lose::AfterEffect, 1).await;
    a_lost_termination(Scene::with(held_group(3, 120)).await, Lose::AfterEffect, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_was_lost_is_repeated_once() {
    a_lost_termination(Scene::with(group(3)).await, Lose::BeforeEffect, 2).await;
    a_lost_termination(Scene::with(held_group(3, 120)).await, Lose::BeforeEffect, 2).await;
}
