//! When EKS is asked for managed node groups, and what that costs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::groups::Snapshot;
use ebbtide::groups::discovery::Discovery;
use ebbtide::sim::aws::{
    Aws as SimulatedAws, GroupSpec, NodeGroupSpec, Operation, TemplateData, TemplateSpec,
};
use ebbtide::sim::http::{self, Lost, Request, Response, aws_client};
use tokio::time::Instant;

use crate::templates::{label, node};
use crate::world::{INTERVAL, by_tag, ours, world};

/// A group of a managed node group of the same name.
fn managed(name: &str) -> GroupSpec {
    ours(name).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", name)
}

/// Whether the group's template has what EKS says of its node group; none while it has no template.
fn is_known(snapshot: &Snapshot, group: &str) -> Option<bool> {
    snapshot.groups[group].template.as_ref()?;
    Some(label(&node(snapshot, group), "of-eks").is_some())
}

#[tokio::test(start_paused = true)]
async fn a_group_has_no_template_before_eks_was_asked_and_no_look_waits_for_that() {
    let world = world([managed("web"), ours("plain")]).await;
    world.sim.add_node_group(NodeGroupSpec::named("web").label("of-eks", "yes"));
    let discovery = world.discovery(by_tag());
    let first = discovery.refresh().await.expect("sees");
    assert_eq!(world.sim.calls(Operation::DescribeNodegroup), 0);
    assert_eq!((is_known(&first, "web"), is_known(&first, "plain")), (None, Some(false)));
    let second = discovery.refresh().await.expect("sees");
    assert_eq!((is_known(&second, "web"), is_known(&second, "plain")), (Some(true), Some(false)));
    assert_eq!(world.sim.calls(Operation::DescribeNodegroup), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_node_groups_are_known_after_a_quarter_of_a_minute() {
    let mut world = world([]).await;
    let names: Vec<_> = (0..100).map(|n| format!("group-{n}")).collect();
    for name in &names {
        world.sim.add_group(managed(name));
        world.sim.add_node_group(NodeGroupSpec::named(name).label("of-eks", "yes"));
    }
    let began = world.clock.now();
    world.run();
    world
        .until(|snapshot| {
            snapshot.groups.len() == 100 && names.iter().all(|name| is_known(snapshot, name) == Some(true))
        })
        .await;
    let took = world.clock.now().duration_since(began);
    assert!(took.as_secs() <= 15, "it took {took:#}");
    assert_eq!(world.sim.calls(Operation::DescribeNodegroup), 100);
}

#[tokio::test(start_paused = true)]
async fn forty_node_groups_cost_a_look_in_a_steady_state_one_call_at_most() {
    let world = world([]).await;
    for n in 0..40 {
        let name = format!("group-{n}");
        world.sim.add_template(TemplateSpec::named(&name).version(TemplateData::of("m5.large")));
        world.sim.add_group(managed(&name).size(0, 5, n % 2).launch_template(&name, "$Latest"));
        world.sim.add_node_group(NodeGroupSpec::named(&name).label("of-eks", "yes"));
    }
    let discovery = world.discovery(by_tag());
    for _ in 0..5 {
        discovery.refresh().await.expect("sees");
    }
    assert_eq!(world.sim.calls(Operation::DescribeNodegroup), 40);
    let mut seen = 0;
    world.calls_since(&mut seen);
    let mut asked = 0;
    for round in 0..60 {
        tokio::time::sleep(INTERVAL).await;
        let snapshot = discovery.refresh().await.expect("sees");
        assert!(snapshot.groups.keys().all(|group| is_known(&snapshot, group) == Some(true)));
        let calls = world.calls_since(&mut seen);
        let total: usize = calls.values().sum();
        // One page of groups, and three more.
        assert!(total <= 4, "refresh {round}: {calls:?}");
        assert!(
            calls.contains_key(&Operation::DescribeLifecycleHooks),
            "refresh {round}: hooks have their share"
        );
        asked += calls.get(&Operation::DescribeNodegroup).copied().unwrap_or_default();
    }
    assert!((50..=60).contains(&asked), "they are kept fresh: {asked} calls");
}

#[tokio::test(start_paused = true)]
async fn a_node_group_is_asked_for_every_five_minutes_at_most() {
    let world = world([managed("web")]).await;
    let discovery = world.discovery(by_tag());
    for _ in 0..60 {
        discovery.refresh().await.expect("sees");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(world.sim.calls(Operation::DescribeNodegroup), 2, "ten minutes");
}

/// An AWS whose EKS takes requests and never answers, as one that a private network has no way to.
struct WithoutEks(SimulatedAws);

#[async_trait]
impl http::World for WithoutEks {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        if request.uri().path().starts_with("/clusters/") {
            std::future::pending::<()>().await;
        }
        http::World::call(&self.0, request).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_eks_that_never_answers_holds_a_look_for_seconds_every_other_minute() {
    let world = world([]).await;
    let names: Vec<_> = (0..40).map(|n| format!("group-{n}")).collect();
    for name in &names {
        world.sim.add_group(managed(name));
    }
    let aws = Aws::at(aws_client(Arc::new(WithoutEks(world.sim.clone()))));
    let (groups, hooks) = (Arc::clone(&world.groups), Arc::clone(&world.hooks));
    let discovery =
        Discovery::new(aws, by_tag(), groups, hooks, Arc::default(), world.clock.clone(), INTERVAL);
    discovery.refresh().await.expect("sees");
    let mut held = 0;
    for round in 0..60 {
        let began = Instant::now();
        let snapshot = discovery.refresh().await.expect("sees");
        assert!(began.elapsed() <= Duration::from_secs(6), "refresh {round} took {:?}", began.elapsed());
        held += usize::from(began.elapsed() >= Duration::from_secs(1));
        assert!(names.iter().all(|name| is_known(&snapshot, name) == Some(false)), "refresh {round}");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    assert!(held <= 3, "{held} of 60 refreshes in five minutes were held");
}
