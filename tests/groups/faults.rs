//! AWS throttles or does not answer: what is told, for how long, and what goes on.

use std::time::Duration;

use ebbtide::provider::proto::{ExternalGrpcNode, RefreshRequest};
use ebbtide::sim::aws::{Entry, Event, Operation};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use tonic::Code;

use crate::scene::{GROUP, SOON, Scene, code, eventually, group};

/// Between two refreshes, by default and in simulations. `--snapshot-max-age` is ten times that.
const INTERVAL: Duration = Duration::from_mins(1);

async fn groups_are_told_for(scene: &Scene, how_long: Duration) {
    let until = tokio::time::Instant::now() + how_long;
    while tokio::time::Instant::now() < until {
        assert_eq!(scene.groups().await.expect("the last snapshot").len(), 1);
        assert_eq!(scene.target().await, 2);
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_not_felt_until_the_snapshot_is_too_old_and_ends_by_itself() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.world.aws.outage(true);
    groups_are_told_for(&scene, 9 * INTERVAL).await;
    tokio::time::sleep(INTERVAL + Duration::from_secs(1)).await;
    assert_eq!(code(&scene.groups().await), Code::Unavailable);
    assert_eq!(code(&scene.try_target().await), Code::Unavailable);
    assert_eq!(code(&scene.increase(1).await), Code::Unavailable);
    scene.world.aws.outage(false);
    let again = || async { scene.groups().await.is_ok_and(|groups| groups.len() == 1) };
    assert!(eventually(INTERVAL + Duration::from_secs(10), again).await);
    assert_eq!(scene.target().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_few_throttled_calls_are_not_felt() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    for _ in 0..5 {
        scene.world.aws.throttle_any(4);
        groups_are_told_for(&scene, INTERVAL * 2).await;
    }
    let refreshes = scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let looked = |w: &World| w.aws.calls(Operation::DescribeAutoScalingGroups) > refreshes;
    assert!(scene.world.until(SOON, looked).await, "refreshes go on");
}

#[tokio::test(start_paused = true)]
async fn throttling_of_everything_is_not_felt_and_looks_never_overlap() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    tokio::time::sleep(SOON).await;
    let takes = Duration::from_secs(2);
    scene.world.aws.delay(takes, Duration::ZERO);
    scene.world.aws.throttle_for(Operation::ALL, 9 * INTERVAL);
    let began = scene.world.aws.journal().len();
    let until = tokio::time::Instant::now() + 9 * INTERVAL;
    while tokio::time::Instant::now() < until {
        scene.program.client().refresh(RefreshRequest {}).await.expect("is never refused");
        assert_eq!(scene.groups().await.expect("the last snapshot").len(), 1);
        assert_eq!((scene.target().await, scene.listed().await.len()), (2, 2));
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let calls = scene.world.aws.journal().split_off(began);
    let is_refresh = |entry: &Entry| {
        matches!(entry.what, Event::Called { operation: Operation::DescribeAutoScalingGroups, .. })
    };
    let refreshes: Vec<_> = calls.iter().filter(|entry| is_refresh(entry)).map(|entry| entry.at).collect();
    assert!(refreshes.len() > 20, "{} tries", refreshes.len());
    let apart = refreshes.windows(2).map(|pair| pair[1].duration_since(pair[0])).min().expect("several");
    assert!(apart >= SignedDuration::try_from(takes).expect("short"), "{apart}: one waits for the other");
    let looked = scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let again = |w: &World| w.aws.calls(Operation::DescribeAutoScalingGroups) > looked;
    assert!(scene.world.until(SOON, again).await, "refreshes go on");
}

/// cluster-autoscaler calls once, when it has emptied the node, and opens it again if that fails.
#[tokio::test(start_paused = true)]
async fn the_deletion_of_a_node_that_cluster_autoscaler_has_emptied_is_accepted_in_an_outage() {
    let scene = Scene::with([group(GROUP, 3)]).await;
    scene.short_of(1).await;
    let is_missing = |id: &String| id.contains("placeholder");
    let missing = scene.listed().await.into_keys().find(is_missing).expect("one that never came");
    let placeholder = ExternalGrpcNode { name: missing.clone(), provider_id: missing, ..Default::default() };
    let node = scene.node_of(&scene.in_service(GROUP).remove(0));
    let name = node.name.clone();
    scene.world.aws.outage(true);
    tokio::time::sleep(15 * INTERVAL).await;
    assert_eq!(
        code(&scene.delete(GROUP, vec![placeholder]).await),
        Code::Unavailable,
        "a size may be any by now"
    );
    scene.delete(GROUP, vec![node.clone()]).await.expect("accepted");
    scene.delete(GROUP, vec![node]).await.expect("is no error");
    scene.world.aws.outage(false);
    let gone = scene.world.until(Duration::from_mins(30), |w| !w.cluster.has_node(&name)).await;
    assert!(gone && scene.world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup) >= 1);
    assert_eq!(scene.desired(), 3, "one was missing, and one has gone");
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_under_way_goes_on_while_groups_cannot_be_seen() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.occupy(900).await;
    let leaving = scene.in_service(GROUP).remove(0);
    let node = scene.node_of(&leaving);
    let name = node.name.clone();
    scene.delete(GROUP, vec![node]).await.expect("accepted");

    let reads = [
        Operation::DescribeAutoScalingGroups,
        Operation::DescribeLifecycleHooks,
        Operation::DescribeScalingActivities,
        Operation::DescribeLaunchTemplateVersions,
    ];
    scene.world.aws.throttle_for(&reads, Duration::from_hours(1));
    let gone = scene.world.until(Duration::from_mins(30), |w| !w.cluster.has_node(&name)).await;
    assert!(gone, "the workloads need 15 minutes, which is more than a snapshot lasts");
    assert_eq!(code(&scene.groups().await), Code::Unavailable);
    assert_eq!(scene.desired(), 1);
    assert_eq!(scene.world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup), 1);
    assert!(eventually(Duration::from_hours(1), || async { scene.groups().await.is_ok() }).await);
    assert_eq!(scene.target().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_size_is_not_lowered_any_more_when_its_caller_has_given_up() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(1).await;
    let desired = scene.desired();
    // Longer than cluster-autoscaler is kept waiting for, shorter than the protection may take.
    let takes = Duration::from_millis(4_500);
    scene.world.aws.delay_some(&[Operation::SetInstanceProtection], 1.0, takes, takes);
    assert!(scene.decrease(-1).await.is_err());
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.desired(), scene.protected()), (desired, 0));
    scene.world.aws.delay_some(&[Operation::SetInstanceProtection], 0.0, takes, takes);
    scene.decrease(-1).await.expect("lowered");
    assert_eq!(scene.desired(), desired - 1);
}
