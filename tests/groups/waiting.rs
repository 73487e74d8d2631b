//! A size that is raised while other changes of the group take long: cluster-autoscaler backs a group off that it cannot raise within a
//! few seconds.

use std::time::Duration;

use ebbtide::sim::aws::{Behaviour, Operation};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;

use crate::scene::{GROUP, SOON, Scene, group};

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
