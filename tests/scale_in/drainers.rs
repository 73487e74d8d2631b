//! Somebody else who drains a node as soon as its instance is held: EKS for its managed node groups, aws-node-termination-handler,
//! a Lambda function.
//!
//! Sources: [EKS](https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html),
//! [aws-node-termination-handler](https://github.com/aws/aws-node-termination-handler), which completes whatever hook its queue
//! hears of.

use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::sim::aws::{Event as AwsEvent, GroupSpec, HookSpec, LifecycleState, Operation};
use ebbtide::sim::cluster::{By, Event, budget, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::json;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, aws_moments, eviction_requests, has_exited, moments, notes,
    released_at,
};
use crate::scene::{Cause, Machine, Scene, held_group, seconds};

/// The hook of EKS on its managed node groups.
const OF_EKS: &str = "Terminate-LC-Hook";

/// Who else drains, and how.
#[derive(Clone, Copy, Default)]
struct Drainer {
    /// The grace it gives, whatever a pod has.
    grace: Option<i64>,
    /// Whether it deletes pods, budgets or not.
    deletes: bool,
    /// Whether it waits for a minute only, and not for pods to go.
    hurries: bool,
    /// The hook it completes.
    completes: Option<&'static str>,
    /// Whether it deletes the Node in the end.
    removes_node: bool,
}

impl Drainer {
    /// Does what it does once the instance is held.
    async fn drain(self, scene: &Scene, machine: &Machine) {
        let world = &scene.world;
        let held = |w: &World| {
            w.aws.instance(&machine.instance).is_some_and(|i| i.state == LifecycleState::TerminatingWait)
        };
        scene.until(held).await;
        scene.patch_node(machine, json!({ "spec": { "unschedulable": true } })).await;
        let pods: Api<Pod> = Api::namespaced(world.cluster.client(), "default");
        let here = ListParams::default().fields(&format!("spec.nodeName={}", machine.name));
        let workloads = || async {
            let listed = pods.list(&here).await.expect("listed");
            let names = listed.items.into_iter().filter_map(|pod| pod.metadata.name);
            names.filter(|name| name.starts_with("web")).collect::<Vec<_>>()
        };
        for name in workloads().await {
            self.ask(world, &pods, &name).await;
        }
        if self.hurries {
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        while !self.hurries && !workloads().await.is_empty() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        if let Some(hook) = self.completes {
            let aws = Aws::at(aws_client(std::sync::Arc::new(world.aws.clone())));
            // Until the hook can be completed, and not for ever: somebody else may have been first.
            for _ in 0..30 {
                if aws.complete(&"web".into(), hook, &machine.instance.as_str().into()).await.is_ok() {
                    break;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        if self.removes_node {
            let nodes: Api<Node> = Api::all(world.cluster.client());
            // The cloud controller may have been first.
            let _ = nodes.delete(&machine.name, &DeleteParams::default()).await;
        }
    }

    /// Asks one pod to go, again and again where its budget says no.
    async fn ask(self, world: &World, pods: &Api<Pod>, name: &str) {
        if self.deletes {
            let grace = self.grace.and_then(|grace| u32::try_from(grace).ok());
            let how = DeleteParams { grace_period_seconds: grace, ..DeleteParams::default() };
            pods.delete(name, &how).await.expect("deleted");
            return;
        }
        loop {
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": { "name": name, "namespace": "default" },
                "deleteOptions": { "gracePeriodSeconds": self.grace },
            });
            let request = http::Request::post(format!("/api/v1/namespaces/default/pods/{name}/eviction"))
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(eviction.to_string().into_bytes())
                .expect("a request");
            match world.cluster.client().request::<kube::core::Status>(request).await {
                Err(kube::Error::Api(status)) if status.code == 429 => {
                    tokio::time::sleep(Duration::from_secs(5)).await;
                }
                _ => return,
            }
        }
    }
}

/// A group that EKS has a hook on as well.
fn managed() -> GroupSpec {
    held_group(2, 60).hook(HookSpec::terminating(OF_EKS).heartbeat(1_800))
}

/// A node with two workloads that take 200 of their 600 seconds; the group takes its instance out, and both drain it until it has
/// been released.
async fn drained_by_both(group: GroupSpec, drainer: Drainer) -> (Scene, Machine) {
    let scene = Scene::with(group).await;
    let machine = scene.first();
    scene.run(["web-1", "web-2"].map(|name| pod(name).on(&machine.name).grace(600).exits_after(200))).await;
    scene.scale_in(&machine, Cause::Group).await;
    tokio::join!(drainer.drain(&scene, &machine), scene.until_released(&machine));
    (scene, machine)
}

fn cuts(world: &World) -> Vec<Timestamp> {
    moments(world, |e| matches!(e, Event::CutShort { .. }))
}

/// A request and another try for each pod of two, by each of two, and what collides.
fn assert_no_fight(world: &World) {
    let requests = eviction_requests(world).len();
    assert!(requests <= 12, "{requests} evictions of two pods");
}

/// When our hook was completed.
fn completions(world: &World, machine: &Machine) -> Vec<Timestamp> {
    aws_moments(
        world,
        |e| matches!(e, AwsEvent::HookCompleted { instance, hook, .. } if *instance == machine.instance && hook == "ebbtide"),
    )
}

#[tokio::test(start_paused = true)]
async fn beside_the_drain_of_a_managed_node_group_nothing_is_cut_and_our_hook_is_held_until_the_flush() {
    let drainer = Drainer { completes: Some(OF_EKS), ..Drainer::default() };
    let (scene, machine) = drained_by_both(managed(), drainer).await;
    scene.until(|w| !completions(w, &machine).is_empty()).await;
    scene.until_gone(&machine).await;
    let world = &scene.world;
    assert!(cuts(world).is_empty() && !a_hook_timed_out(world));
    assert_eq!(world.cluster.all_lines().lost, 0, "lines lost");
    let exits = moments(world, |e| matches!(e, Event::PodExited { pod, .. } if pod.name.starts_with("web")));
    let [completed] = completions(world, &machine)[..] else { panic!("once") };
    assert!(completed >= *exits.last().expect("both") + SignedDuration::from_secs(5), "and flushed");
    assert!(asked(world, "shipper-").is_empty());
    assert_eq!(world.aws.calls(TERMINATE), 0);
    assert_no_fight(world);
    assert!(notes(world, &machine, "ScaleInHookOver").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_keeps_two_drainers_waiting_is_asked_no_more_than_twice_as_often() {
    let scene = Scene::with(managed()).await;
    let machine = scene.first();
    let web = |name: &str| pod(name).on(&machine.name).label("app", "web").grace(600).exits_after(100);
    scene.run([web("web-1")]).await;
    scene.world.cluster.add(budget("web").selects("app", "web").max_unavailable(0));
    scene.scale_in(&machine, Cause::Group).await;
    let frees = async {
        scene.pass_some(seconds(300)).await;
        scene.remove::<k8s_openapi::api::policy::v1::PodDisruptionBudget>("web").await;
    };
    let drainer = Drainer { completes: Some(OF_EKS), ..Drainer::default() };
    tokio::join!(drainer.drain(&scene, &machine), frees, scene.until_gone(&machine));
    assert!(cuts(&scene.world).is_empty() && has_exited(&scene.world, "web-1"));
    let requests = eviction_requests(&scene.world).len();
    // Every five seconds each, for five minutes, and a few when they collide.
    assert!(requests <= 2 * 60 + 20, "{requests}");
}

#[tokio::test(start_paused = true)]
async fn a_drainer_that_gives_less_grace_cuts_pods_and_the_flush_and_the_hook_stay_ours() {
    for deletes in [false, true] {
        let drainer = Drainer { grace: Some(20), deletes, ..Drainer::default() };
        let (scene, machine) = drained_by_both(held_group(2, 60), drainer).await;
        let world = &scene.world;
        // Whoever came first: what ebbtide asks for is the whole grace.
        let way = if deletes { By::Delete } else { By::Eviction };
        let such = |(_, by, grace): &&(Timestamp, By, i64)| *grace == 600 || (*by == way && *grace == 20);
        let all = asked(world, "web");
        assert_eq!(all.iter().filter(such).count(), all.len(), "{all:?}");
        let ends = moments(
            world,
            |e| matches!(e, Event::PodExited { pod, .. } | Event::CutShort { pod, .. } if pod.name.starts_with("web")),
        );
        assert!(released_at(world, &machine) >= *ends.last().expect("ended") + SignedDuration::from_secs(5));
        scene.until_gone(&machine).await;
        assert_eq!(scene.world.cluster.all_lines().lost, 0, "lines lost");
        assert!(!a_hook_timed_out(&scene.world));
        assert_no_fight(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn completing_our_hook_ends_the_drain_and_an_operator_is_told() {
    for hurries in [true, false] {
        let drainer = Drainer { hurries, completes: Some("ebbtide"), ..Drainer::default() };
        let (scene, machine) = drained_by_both(held_group(2, 60), drainer).await;
        if hurries {
            let told = |w: &World| !notes(w, &machine, "ScaleInHookOver").is_empty();
            assert!(scene.world.until(seconds(120), told).await);
        }
        scene.until_gone(&machine).await;
        let world = &scene.world;
        assert_eq!(completions(world, &machine).len(), 1, "once, whoever was first");
        assert_eq!((world.aws.calls(TERMINATE), cuts(world).len()), (0, if hurries { 2 } else { 0 }));
        assert_no_fight(world);
        let calls = world.aws.calls(Operation::RecordLifecycleActionHeartbeat);
        scene.pass_some(seconds(3_600)).await;
        assert_eq!(scene.world.aws.calls(Operation::RecordLifecycleActionHeartbeat), calls, "it is over");
    }
}

#[tokio::test(start_paused = true)]
async fn a_drainer_that_deletes_the_node_leaves_our_hook_to_us() {
    let drainer = Drainer { removes_node: true, completes: Some(OF_EKS), ..Drainer::default() };
    let (scene, machine) = drained_by_both(managed(), drainer).await;
    scene.until(|w| !completions(w, &machine).is_empty()).await;
    assert!(cuts(&scene.world).is_empty() && !a_hook_timed_out(&scene.world));
    assert_eq!(scene.world.aws.calls(TERMINATE), 0);
    assert_no_fight(&scene.world);
}
