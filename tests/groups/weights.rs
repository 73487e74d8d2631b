//! Groups that give their instances weights: sizes there are units, and no unit is ever taken for a node.

use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::provider::proto::instance_status::InstanceState;
use ebbtide::sim::aws::{Event, GroupSpec, LaunchFailure, MixedSpec, Operation};
use ebbtide::sim::http::aws_client;
use tonic::Code;

use crate::scene::{GROUP, SOON, Scene, code, eventually, group, placeholder};

/// Longer than cluster-autoscaler waits for a node before it gives it up.
const LONG: Duration = Duration::from_mins(20);

/// Six units of at least `min`: one instance of four, two of one.
fn weighted(min: u32) -> GroupSpec {
    group(GROUP, 0).size(min, 20, 6).mixed(MixedSpec::weighing([("m5.xlarge", 4), ("m5.large", 1)]))
}

/// The instance of four units, and the others.
fn by_weight(scene: &Scene) -> (String, Vec<String>) {
    let heavy = |id: &String| scene.world.aws.instance(id).expect("there").instance_type == "m5.xlarge";
    let (heavy, light): (Vec<_>, Vec<_>) = scene.in_service(GROUP).into_iter().partition(heavy);
    assert_eq!((heavy.len(), light.len()), (1, 2));
    (heavy[0].clone(), light)
}

async fn limits(scene: &Scene) -> (i32, i32) {
    let group = scene.groups().await.expect("groups").remove(0);
    (group.min_size, group.max_size)
}

fn ended(scene: &Scene) -> Vec<String> {
    let ended = scene.world.aws.journal().into_iter().filter_map(|entry| match entry.what {
        Event::TerminationStarted { instance, .. } => Some(instance),
        _ => None,
    });
    ended.collect()
}

#[tokio::test(start_paused = true)]
async fn a_weighted_group_is_as_large_as_its_instances_are_many_and_is_not_to_grow() {
    let scene = Scene::with([weighted(0)]).await;
    assert_eq!((scene.target().await, limits(&scene).await), (3, (0, 3)));
    assert_eq!(scene.listed_in(InstanceState::InstanceRunning).await.len(), 3);
    assert_eq!(scene.listed().await.len(), 3, "no placeholders");
    let debug = scene.groups().await.expect("groups").remove(0).debug;
    assert!(debug.contains("weights"), "{debug}");

    // Units that do not come are no nodes that do not come.
    scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, u32::MAX);
    let somebody = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    somebody.set_desired(&GROUP.into(), 12).await.expect("set");
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.desired(), scene.target().await, limits(&scene).await), (12, 3, (0, 3)));
    assert_eq!(scene.listed().await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_reckons_units_in_nodes_is_refused_with_the_reason_and_ends_nobody() {
    let scene = Scene::with([weighted(0)]).await;
    let before = scene.writes();
    let node = scene.node_of(&scene.in_service(GROUP)[0]);
    let refused = [
        scene.increase(1).await,
        scene.decrease(-1).await,
        scene.delete(GROUP, vec![placeholder(0)]).await,
        scene.delete(GROUP, vec![node, placeholder(0)]).await,
    ];
    for refused in refused {
        let status = refused.expect_err("refused");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("weights"), "{status}");
    }
    assert_eq!(code(&scene.increase(0).await), Code::InvalidArgument);
    tokio::time::sleep(LONG).await;
    assert_eq!((scene.writes(), scene.desired(), scene.target().await), (before, 6, 3));
    assert_eq!(ended(&scene), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_scaled_in_takes_its_units_along_and_nothing_comes_for_it() {
    let scene = Scene::with([weighted(0)]).await;
    let (heavy, light) = by_weight(&scene);
    scene.delete(GROUP, vec![scene.node_of(&heavy)]).await.expect("accepted");
    assert_eq!((scene.target().await, limits(&scene).await), (2, (0, 2)));
    let left = || async {
        assert_eq!(scene.target().await, 2, "at every moment");
        scene.world.aws.instance(&heavy).is_none_or(|i| i.state.is_terminating())
    };
    assert!(eventually(SOON, left).await);
    tokio::time::sleep(LONG).await;
    assert_eq!((scene.desired(), scene.target().await), (2, 2));
    assert_eq!((scene.in_service(GROUP), ended(&scene)), (light, vec![heavy]));
    assert_eq!(scene.world.aws.calls(Operation::SetDesiredCapacity), 0);
}

#[tokio::test(start_paused = true)]
async fn the_minimum_of_a_weighted_group_is_kept_in_units() {
    let scene = Scene::with([weighted(3)]).await;
    let (heavy, light) = by_weight(&scene);
    // Cluster-autoscaler may not choose: it might choose the heavy one.
    assert_eq!(limits(&scene).await, (3, 3));
    let before = scene.writes();
    assert_eq!(code(&scene.delete(GROUP, vec![scene.node_of(&heavy)]).await), Code::FailedPrecondition);
    assert_eq!(scene.writes(), before);

    let nodes = light.iter().map(|instance| scene.node_of(instance)).collect();
    scene.delete(GROUP, nodes).await.expect("two units fewer");
    assert_eq!(code(&scene.delete(GROUP, vec![scene.node_of(&heavy)]).await), Code::FailedPrecondition);
    assert!(scene.world.until(SOON, |_| scene.desired() == 4).await);
    assert_eq!((scene.in_service(GROUP), scene.target().await), (vec![heavy], 1));
}
