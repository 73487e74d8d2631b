//! Two clusters in one account, and a selector that finds the groups of both.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::provider::proto::{NodeGroupIncreaseSizeRequest, NodeGroupsRequest};
use ebbtide::sim::aws::{
    Event, GroupSpec, HookSpec, LifecycleState, Operation, TerminationCause, Trouble, Which,
};
use ebbtide::sim::cluster::{node, pod};
use ebbtide::sim::program::{TAG, config};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use tracing::Level;

use crate::journal_queries::{TERMINATE, a_hook_timed_out, aws_moments, decrements, has_exited, is_asked};
use crate::scene::{Cause, Machine, Scene, held_group, seconds};

pub(crate) const OURS: &str = "kubernetes.io/cluster/ours";
const THEIRS: &str = "kubernetes.io/cluster/theirs";

pub(crate) fn of_ours() -> Config {
    let config = config();
    Config { selectors: config.selectors.of_cluster(Some("ours".into())), ..config }
}

/// A group whose nodes are nodes of another cluster, with an ebbtide there and our hook's name.
fn theirs() -> GroupSpec {
    let hook = HookSpec::terminating("ebbtide").heartbeat(300);
    GroupSpec::named("theirs")
        .size(0, 10, 0)
        .zones(["us-east-1a"])
        .template("m5.large")
        .tag(TAG, "true")
        .hook(hook)
}

/// Heartbeats and completions for an instance.
fn calls(world: &World, id: &str) -> usize {
    let of_it = |e: &Event| matches!(e, Event::Heartbeat { instance, .. } | Event::HookCompleted { instance, .. } if instance == id);
    aws_moments(world, of_it).len()
}

impl Scene {
    async fn groups(&self) -> Vec<String> {
        let answer = self.client().node_groups(NodeGroupsRequest {}).await.expect("answered");
        answer.into_inner().node_groups.into_iter().map(|group| group.id).collect()
    }

    /// Adds the other cluster's group, which holds an instance of its own.
    async fn holding(&self, group: GroupSpec) -> String {
        // Its node joins elsewhere.
        self.world.kubelets("theirs", |spec| spec.boots_after(1_000_000));
        self.world.aws.add_group(group);
        let instance = self.world.aws.add_instance("theirs", LifecycleState::InService).expect("an instance");
        self.pass_some(seconds(120)).await;
        self.world.aws.terminate(&instance, TerminationCause::Rebalance);
        instance
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_another_clusters_tag_names_is_left_out() {
    let scene = Scene::configured(held_group(2, 60).tag(OURS, "owned"), of_ours()).await;
    let instance = scene.holding(theirs().tag(THEIRS, "owned")).await;
    assert!(scene.world.until(seconds(1_200), a_hook_timed_out).await);
    assert_eq!(calls(&scene.world, &instance), 0);
    assert_eq!(scene.groups().await, ["web"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_begun_is_finished_by_a_run_that_is_told_another_name_of_the_cluster() {
    let mut scene = Scene::configured(held_group(2, 60).tag(OURS, "owned"), of_ours()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    let mistyped =
        |config: Config| Config { selectors: config.selectors.of_cluster(Some("our".into())), ..config };
    scene.start_with(mistyped).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn of_a_group_that_another_cluster_has_taken_over_only_what_was_begun_is_finished() {
    let scene = Scene::configured(held_group(2, 60).tag(OURS, "owned"), of_ours()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.untag_group("web", OURS);
    scene.world.aws.tag_group("web", THEIRS, "owned");
    // Its node is one of the other cluster's.
    let theirs = scene.world.aws.add_instance("web", LifecycleState::InService).expect("an instance");
    scene.pass_some(seconds(60)).await;
    scene.world.aws.terminate(&theirs, TerminationCause::Rebalance);
    scene.until_gone(&machine).await;
    assert!(has_exited(&scene.world, "web"));
    assert_eq!(calls(&scene.world, &theirs), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_is_not_completed_for_want_of_a_node_in_a_group_that_nobody_has_seen_to_be_ours() {
    let scene = Scene::configured(held_group(2, 60), of_ours()).await;
    let instance = scene.holding(theirs()).await;
    assert!(scene.world.until(seconds(1_200), a_hook_timed_out).await);
    let done = |e: &Event| matches!(e, Event::HookCompleted { instance: of, .. } if *of == instance);
    assert!(aws_moments(&scene.world, done).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_our_clusters_tag_names_needs_no_node_to_be_ours() {
    let scene = Scene::configured(held_group(2, 60), of_ours()).await;
    let instance = scene.holding(theirs().tag(OURS, "owned")).await;
    let done = |e: &Event| matches!(e, Event::HookCompleted { instance: of, .. } if *of == instance);
    scene.until(|w| !aws_moments(w, done).is_empty()).await;
    assert!(!a_hook_timed_out(&scene.world));
}

/// A retained instance without a Node in this group of theirs, and when it came.
async fn with_a_retained_instance(group: GroupSpec) -> (Scene, String, Timestamp) {
    let scene = Scene::configured(held_group(2, 60), of_ours()).await;
    scene.world.kubelets("theirs", |spec| spec.boots_after(1_000_000));
    scene.world.aws.add_group(group.retaining());
    scene.pass_some(seconds(120)).await;
    let instance = scene.world.aws.add_instance("theirs", LifecycleState::TerminatingRetained);
    let began = scene.world.clock.now();
    (scene, instance.expect("an instance"), began)
}

/// When AWS was asked to end one.
fn ended(world: &World) -> Vec<Timestamp> {
    aws_moments(world, |e| matches!(e, Event::Called { operation: TERMINATE, .. }))
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_without_a_node_is_ended_without_a_decrement_where_its_group_is_ours() {
    for is_ours in [true, false] {
        let group = if is_ours { theirs().tag(OURS, "owned") } else { theirs() };
        let (scene, instance, began) = with_a_retained_instance(group).await;
        let there = |w: &World| {
            w.aws.group("theirs").is_some_and(|g| g.instances.iter().any(|one| one.id == instance))
        };
        if is_ours {
            scene.until(|w| !there(w)).await;
            let after = ended(&scene.world)[0].duration_since(began);
            let soon = SignedDuration::from_secs(60)..SignedDuration::from_secs(150);
            assert!(soon.contains(&after), "{after:#}");
        } else {
            scene.pass_some(seconds(3_600)).await;
        }
        assert_eq!((there(&scene.world), ended(&scene.world).len()), (!is_ours, usize::from(is_ours)));
        assert_eq!(decrements(&scene.world), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_whose_node_a_stale_watch_cache_does_not_show_is_not_ended_as_one_without() {
    let (scene, instance, _) = with_a_retained_instance(theirs().tag(OURS, "owned")).await;
    scene.world.cluster.stall_watch_cache::<Node>();
    scene.world.cluster.add(node("late").provider_id(&format!("aws:///us-east-1a/{instance}")));
    scene.until(|w| !ended(w).is_empty()).await;
    let late = scene.node("late").expect("it is there");
    let record = late.metadata.annotations.and_then(|all| all.get("ebbtide/scale-in").cloned());
    let is_released = record.is_some_and(|record| record.contains("\"phase\":\"Releasing\""));
    assert!(is_released, "drained and flushed first");
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_whose_node_comes_while_the_groups_lock_is_waited_for_is_not_ended_as_one_without()
 {
    let ours = || theirs().tag(OURS, "owned");
    let (without, _, began) = with_a_retained_instance(ours()).await;
    without.until(|w| !ended(w).is_empty()).await;
    let after = ended(&without.world)[0].duration_since(began).unsigned_abs();
    // The same, with a Node while somebody else has the lock.
    let (scene, instance, _) = with_a_retained_instance(ours()).await;
    scene.pass_some(after.saturating_sub(seconds(1))).await;
    let late = Which::of(&[Operation::SetDesiredCapacity]);
    scene.world.aws.trouble(late, Trouble::Late(Duration::from_millis(2_500)));
    let request = NodeGroupIncreaseSizeRequest { id: "theirs".into(), delta: 1 };
    let mut client = scene.client();
    let grows = client.node_group_increase_size(request);
    let registers = async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        scene.world.cluster.add(node("late").provider_id(&format!("aws:///us-east-1a/{instance}")));
    };
    let (outcome, ()) = tokio::join!(grows, registers);
    outcome.expect("accepted");
    // It is flushed first.
    scene.pass_some(seconds(2)).await;
    assert!(scene.world.cluster.has_node("late"));
    assert_eq!(ended(&scene.world), []);
    scene.until(|w| !ended(w).is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_without_a_node_that_aws_does_not_let_be_ended_is_told_of_and_not_at_every_try() {
    let (log, _guard) = captured::log(Level::WARN);
    let (scene, instance, _) = with_a_retained_instance(theirs().tag(OURS, "owned")).await;
    scene.world.aws.deny(TERMINATE, true);
    scene.until(|w| ended(w).len() == 6).await;
    let told: Vec<_> = log
        .text()
        .lines()
        .filter(|line| line.contains("termination of a retained"))
        .map(str::to_owned)
        .collect();
    assert!(told.len() == 1 && told[0].contains(&instance) && told[0].contains("not authorized"), "{told:?}");
    scene.world.aws.deny(TERMINATE, false);
    let is_out = |w: &World| w.aws.group("theirs").is_some_and(|group| group.instances.is_empty());
    scene.until(is_out).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_fails_to_join_is_given_up_although_none_ever_joined() {
    let scene = Scene::configured(held_group(0, 600), of_ours()).await;
    scene.world.kubelets("web", |spec| spec.boots_after(1_000_000));
    scene.increase(1).await.expect("grown");
    let lives = |w: &World| w.aws.group("web").is_some_and(|group| !group.instances.is_empty());
    scene.until(lives).await;
    scene.pass_some(seconds(900)).await;
    let never_joined = Machine::that_never_came(&scene.listed().await[0]);
    scene.until_deleted(&[never_joined]).await;
    scene.until(|w| !lives(w)).await;
    assert_eq!(decrements(&scene.world), 1);
    assert!(!a_hook_timed_out(&scene.world), "the hook is completed");
}
