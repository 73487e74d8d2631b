//! When refreshes come.

use std::time::Duration;

use ebbtide::aws::Lifecycle;
use ebbtide::groups::Change;
use ebbtide::sim::aws::{HookSpec, LifecycleState, Operation};

use crate::world::{INTERVAL, ours, world};

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_held_is_seen_well_before_its_heartbeat_runs_out() {
    let mut world =
        world([ours("web").size(0, 5, 2).hook(HookSpec::terminating("ebbtide").heartbeat(60))]).await;
    world.run();
    let snapshot = world.until(|snapshot| snapshot.groups["web"].asg.instances.len() == 2).await;
    let instance = snapshot.groups["web"].asg.instances[0].id.clone();
    world.sim.rebalance(&instance);
    let is_held = |sim: &ebbtide::sim::aws::Aws| {
        sim.instance(&instance).is_some_and(|found| found.state == LifecycleState::TerminatingWait)
    };
    world.sim.until(is_held).await;
    let began = world.clock.now();
    world
        .until(|snapshot| {
            snapshot.instance(&instance).is_some_and(|(_, i)| i.lifecycle == Lifecycle::TerminatingWait)
        })
        .await;
    let took = world.clock.now().duration_since(began);
    assert!(took.as_secs() <= 20, "it took {took:#}");
}

#[tokio::test(start_paused = true)]
async fn a_calm_world_is_looked_at_once_an_interval() {
    let mut world = world([ours("web").size(0, 5, 2)]).await;
    world.run();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let before = world.sim.calls(Operation::DescribeAutoScalingGroups);
    tokio::time::sleep(INTERVAL * 10).await;
    assert_eq!(world.sim.calls(Operation::DescribeAutoScalingGroups) - before, 10);
}

#[tokio::test(start_paused = true)]
async fn a_change_of_ours_is_followed_by_a_look_and_many_changes_by_few() {
    let mut world = world([ours("web").size(0, 50, 0)]).await;
    world.run();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let before = world.sim.calls(Operation::DescribeAutoScalingGroups);
    for from in 0..20 {
        world.aws.set_desired(&"web".into(), from + 1).await.expect("is within its bounds");
        let change = Change::Desired { group: "web".into(), from, to: from + 1 };
        world.groups.changed(world.clock.now(), change);
    }
    world.sim.until(|sim| sim.calls(Operation::DescribeAutoScalingGroups) > before).await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(world.sim.calls(Operation::DescribeAutoScalingGroups) - before, 1, "and no second one");
    assert_eq!(world.groups.latest().expect("published").groups["web"].asg.desired, 20);
}

#[tokio::test(start_paused = true)]
async fn changes_that_go_on_for_minutes_cost_a_look_every_five_seconds_at_most() {
    let mut world = world([ours("web").size(0, 500, 0)]).await;
    world.run();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let before = world.sim.calls(Operation::DescribeAutoScalingGroups);
    for _ in 0..240 {
        world.groups.refresh_soon();
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    let refreshes = world.sim.calls(Operation::DescribeAutoScalingGroups) - before;
    assert!((20..=24).contains(&refreshes), "{refreshes} refreshes in two minutes");
}
