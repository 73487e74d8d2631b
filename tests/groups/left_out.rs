//! Descriptions of groups that leave out what AWS's API promises, or end early.

use std::collections::BTreeSet;

use ebbtide::sim::aws::{LaunchFailure, Operation, Trouble, Which};

use crate::scene::{GROUP, SOON, Scene, eventually, group};

/// A group of two, of which every description lacks this element.
async fn without(element: &'static str) -> Scene {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.world.aws.leave_out(Some(element));
    assert!(!scene.world.until(SOON, |_| false).await);
    scene
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_zone_aws_leaves_out_is_listed_by_its_nodes_provider_id() {
    let scene = without("AvailabilityZone").await;
    let listed: BTreeSet<String> = scene.listed().await.into_keys().collect();
    let nodes =
        scene.world.cluster.node_names().into_iter().filter_map(|name| scene.world.cluster.node(&name));
    let registered: BTreeSet<String> = nodes.filter_map(|node| node.spec?.provider_id).collect();
    assert_eq!(listed, registered);
}

#[tokio::test(start_paused = true)]
async fn protection_that_aws_does_not_tell_of_is_taken_off_again() {
    let scene = without("ProtectedFromScaleIn").await;
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.increase(1).await.expect("grown");
    assert!(!scene.world.until(SOON, |_| false).await, "it does not come");
    scene.decrease(-1).await.expect("given up");
    assert_eq!(scene.protected(), 2);
    assert!(scene.world.until(2 * SOON, |_| scene.protected() == 0).await);
}

/// The SDK reads what is there, and has a size that is not there for 0.
#[tokio::test(start_paused = true)]
async fn descriptions_that_end_early_change_nothing_that_is_known() {
    for hundredths in [20, 35, 50, 65, 80, 95] {
        let scene = Scene::with([group(GROUP, 2).size(1, 5, 2)]).await;
        let before = (scene.groups().await.expect("told"), scene.target().await, scene.listed().await);
        let descriptions = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(2 * SOON);
        scene.world.aws.trouble(descriptions, Trouble::EndsAfter(hundredths));
        assert!(!scene.world.until(2 * SOON, |_| false).await);
        let after = (scene.groups().await.expect("told"), scene.target().await, scene.listed().await);
        assert_eq!(after, before, "{hundredths}");
        assert!(eventually(SOON, || async { scene.increase(1).await.is_ok() }).await);
        assert_eq!(scene.desired(), 3, "{hundredths}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_description_that_ends_early_is_asked_for_again_at_once() {
    let scene = Scene::with([group(GROUP, 2).size(1, 5, 2)]).await;
    let next = Which::of(&[Operation::DescribeAutoScalingGroups]).about(GROUP).times(2);
    scene.world.aws.trouble(next, Trouble::EndsAfter(20));
    scene.increase(1).await.expect("raised");
    assert_eq!((scene.desired(), scene.target().await), (3, 3));
}
