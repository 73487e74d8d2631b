//! When refreshes come, and what outages do to them.

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

#[tokio::test(start_paused = true)]
async fn an_outage_leaves_the_last_snapshot_and_ends_by_itself() {
    let mut world = world([ours("web").size(0, 5, 2)]).await;
    world.run();
    let before = world.until(|snapshot| snapshot.groups.len() == 1).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    world.sim.outage(true);
    let outage = world.clock.now();
    tokio::time::sleep(Duration::from_mins(8)).await;
    let during = world.groups.latest().expect("stays");
    assert!(during.taken_at >= before.taken_at && during.taken_at <= outage);
    assert!(world.groups.fresh(world.clock.now()).is_ok(), "the last refresh is young enough to serve");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(world.groups.fresh(world.clock.now()).is_err(), "and then it is not");
    world.sim.outage(false);
    let back = world.clock.now();
    let after = world.until(|snapshot| snapshot.taken_at > back).await;
    assert_eq!(after.groups.len(), 1);
    assert!(world.clock.now().duration_since(back).as_secs() <= 61);
}

#[tokio::test(start_paused = true)]
async fn a_throttled_call_is_tried_again_and_fails_no_refresh() {
    let world = world([ours("web").size(0, 5, 2)]).await;
    world.sim.throttle_next(Operation::DescribeAutoScalingGroups, 2);
    let snapshot = world.discovery(crate::world::by_tag()).refresh().await.expect("the third attempt works");
    assert_eq!(snapshot.groups.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_size_is_sent_once_whatever_becomes_of_the_answer() {
    let world = world([ours("web").size(0, 5, 3)]).await;
    let instance =
        world.discovery(crate::world::by_tag()).refresh().await.expect("sees").groups["web"].asg.instances[0]
            .id
            .clone();
    world.sim.lose_next(Operation::TerminateInstanceInAutoScalingGroup, ebbtide::sim::aws::Lose::AfterEffect);
    let error = world.aws.terminate(&instance, true).await.expect_err("no answer came");
    assert!(matches!(error, ebbtide::aws::AwsError::Unreachable { .. }), "{error:?}");
    assert_eq!(world.sim.calls(Operation::TerminateInstanceInAutoScalingGroup), 1);
}
