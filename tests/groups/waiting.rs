//! A size that is raised while other changes of the group take long: cluster-autoscaler backs a group off that it cannot raise within a
//! few seconds.

use std::time::Duration;

use ebbtide::provider::proto::RefreshRequest;
use ebbtide::sim::aws::{Behaviour, Lose, Operation, Refusal};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use tokio::time::Instant;

use crate::scene::{GROUP, SOON, Scene, eventually, group};

/// Every call of these takes so long from now on.
fn slow(scene: &Scene, operations: &[Operation], takes: Duration) {
    scene.world.aws.delay_some(operations, 1.0, takes, takes);
}

#[tokio::test(start_paused = true)]
async fn while_protection_is_taken_off_by_several_slow_calls_a_size_goes_up() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(1).await;
    scene.decrease(-1).await.expect("lowered");
    slow(&scene, &[Operation::SetInstanceProtection, Operation::DeleteTags], Duration::from_secs(4));
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await);
    scene.increase(1).await.expect("raised");
    assert_eq!(scene.desired(), 3);
}

#[tokio::test(start_paused = true)]
async fn while_what_launched_meanwhile_is_looked_for_slowly_a_size_goes_up() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(1).await;
    // Nothing else takes long.
    scene.world.aws.behave(Behaviour { way: Span::millis(10, 150), ..Behaviour::HARSH });
    slow(&scene, &[Operation::DescribeAutoScalingGroups], Duration::from_millis(2_500));
    scene.decrease(-1).await.expect("lowered");
    scene.increase(1).await.expect("raised");
    assert_eq!(scene.desired(), 3);
}

#[tokio::test(start_paused = true)]
async fn while_instances_are_protected_for_a_caller_that_has_given_up_a_size_goes_up() {
    let scene = Scene::with([group(GROUP, 240).size(0, 300, 240)]).await;
    scene.short_of(1).await;
    // Marked first, and then five calls, four at a time.
    slow(&scene, &[Operation::DescribeAutoScalingGroups, Operation::CreateTags], Duration::from_millis(900));
    slow(&scene, &[Operation::SetInstanceProtection], Duration::from_millis(4_500));
    scene.decrease(-1).await.expect_err("too late");
    scene.increase(1).await.expect("raised");
    assert_eq!(scene.desired(), 242);
    // What was protected for nothing is released.
    assert!(scene.world.until(SOON, |_| scene.protected() > 0).await);
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await);
}

#[tokio::test(start_paused = true)]
async fn while_aws_is_asked_about_an_instance_before_its_termination_a_size_goes_up() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    // What the last refresh has shown is old when these have exited.
    scene.occupy(30).await;
    let leaving = scene.node_of(&scene.in_service(GROUP)[0]);
    let node = leaving.name.clone();
    scene.delete(GROUP, vec![leaving]).await.expect("accepted");
    slow(&scene, &[Operation::DescribeAutoScalingGroups], Duration::from_millis(2_500));
    let is_noted = |world: &World| {
        let node = world.cluster.node(&node);
        let annotations = node.and_then(|node| node.metadata.annotations).unwrap_or_default();
        annotations.values().any(|value| value.contains("terminateAt"))
    };
    assert!(scene.world.until(SOON, is_noted).await);
    // The question is under way.
    tokio::time::sleep(Duration::from_millis(200)).await;
    scene.increase(1).await.expect("raised");
    let desired = |_: &World| scene.desired() == 2;
    assert!(scene.world.until(SOON, desired).await, "one more, and one less");
}

/// A group of two that AWS describes only after seven seconds, each time.
async fn slowly_described() -> Scene {
    let scene = Scene::with([group(GROUP, 2)]).await;
    slow(&scene, &[Operation::DescribeAutoScalingGroups], Duration::from_secs(7));
    scene
}

/// cluster-autoscaler has come for so long that the last refresh shows whatever another process has done.
async fn is_known(scene: &Scene) {
    scene.is_visited().await;
    scene.is_visited().await;
}

/// Asks for one node more, in vain, and asserts that AWS was not told of any size.
async fn does_not_grow(scene: &Scene) {
    let sizes = scene.world.aws.calls(Operation::SetDesiredCapacity);
    scene.increase(1).await.expect_err("nothing to go on from");
    assert_eq!(scene.world.aws.calls(Operation::SetDesiredCapacity), sizes);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_takes_seven_seconds_to_describe_grows_from_what_the_last_refresh_has_shown() {
    let scene = slowly_described().await;
    is_known(&scene).await;
    for size in [3, 4, 6] {
        let began = Instant::now();
        scene.increase(size - scene.target().await).await.expect("raised");
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
        assert_eq!((scene.desired() as i32, scene.target().await), (size, size));
        // At any moment between two refreshes.
        tokio::time::sleep(Duration::from_secs(7)).await;
        scene.is_visited().await;
    }
    assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).len() == 6).await);
}

#[tokio::test(start_paused = true)]
async fn a_group_does_not_grow_from_a_refresh_that_is_old() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    is_known(&scene).await;
    scene.world.aws.hang(&[Operation::DescribeAutoScalingGroups], true);
    tokio::time::sleep(Duration::from_secs(95)).await;
    does_not_grow(&scene).await;
}

/// It could be set to less than it has by now.
#[tokio::test(start_paused = true)]
async fn a_group_does_not_grow_from_a_refresh_that_may_not_show_a_size_of_ours() {
    let scene = slowly_described().await;
    is_known(&scene).await;
    let unwell = Refusal { code: "InternalFailure", status: 500, message: "An internal error has occurred." };
    let refuse =
        |times| scene.world.aws.refuse_next(Operation::SetDesiredCapacity, unwell, Lose::AfterEffect, times);
    refuse(u32::MAX);
    scene.increase(5).await.expect_err("AWS does not say whether it was set");
    // Its last try as well.
    tokio::time::sleep(Duration::from_secs(2)).await;
    refuse(0);
    does_not_grow(&scene).await;
    assert_eq!(scene.desired(), 7);
    assert!(eventually(SOON, || async { scene.increase(1).await.is_ok() }).await);
    assert_eq!((scene.desired(), scene.target().await), (8, 8));
}

/// The other process may have raised it a moment ago.
#[tokio::test(start_paused = true)]
async fn a_group_does_not_grow_from_a_refresh_of_when_cluster_autoscaler_had_just_come() {
    let scene = slowly_described().await;
    scene.program.client().refresh(RefreshRequest {}).await.expect("answered");
    does_not_grow(&scene).await;
    is_known(&scene).await;
    scene.increase(1).await.expect("raised");
    assert_eq!(scene.desired(), 3);
}

/// Descriptions may be refused for a while in which sizes can be set: AWS throttles reads on their own. Quick answers end the tries sooner
/// than a description that does not come.
#[tokio::test(start_paused = true)]
async fn a_group_that_is_refused_a_description_for_ten_seconds_grows_from_what_the_last_refresh_has_shown() {
    const DESCRIBE: Operation = Operation::DescribeAutoScalingGroups;
    let troubles: [fn(&World); 3] = [
        |world| world.aws.throttle_for(&[DESCRIBE], Duration::from_secs(10)),
        |world| {
            let unwell =
                Refusal { code: "ServiceUnavailable", status: 503, message: "Service is unavailable" };
            world.aws.refuse_next(DESCRIBE, unwell, Lose::BeforeEffect, u32::MAX);
        },
        |world| (0..1_000).for_each(|_| world.aws.lose_next(DESCRIBE, Lose::BeforeEffect)),
    ];
    for begins in troubles {
        let scene = Scene::with([group(GROUP, 2)]).await;
        is_known(&scene).await;
        scene.world.aws.behave(Behaviour { way: Span::millis(1, 5), ..Behaviour::HARSH });
        begins(&scene.world);
        let began = Instant::now();
        scene.increase(1).await.expect("raised");
        assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
        assert_eq!((scene.desired(), scene.target().await), (3, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_does_not_grow_where_its_description_is_denied() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    is_known(&scene).await;
    scene.world.aws.deny(Operation::DescribeAutoScalingGroups, true);
    does_not_grow(&scene).await;
}

/// cluster-autoscaler gives up instances that never came in its loop, and drains nodes beside it.
#[tokio::test(start_paused = true)]
async fn the_deletion_of_an_emptied_node_waits_for_a_size_that_is_lowered_slowly() {
    let scene = Scene::with([group(GROUP, 3).size(0, 9, 3)]).await;
    scene.short_of(1).await;
    let node = scene.node_of(&scene.in_service(GROUP).remove(0));
    slow(&scene, &[Operation::DescribeAutoScalingGroups], Duration::from_millis(900));
    slow(&scene, &[Operation::SetInstanceProtection], Duration::from_secs(10));
    let lowered = scene.decrease(-1);
    let deleted = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        scene.delete(GROUP, vec![node]).await
    };
    let (lowered, deleted) = tokio::join!(lowered, deleted);
    lowered.expect_err("too late");
    deleted.expect("accepted");
}
