//! `ebbtide status` and `ebbtide plan` beside the program: they read only, and say what it does.

use std::sync::Arc;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::cluster::Cluster;
use ebbtide::cluster::record::Cause as RecordCause;
use ebbtide::commands::{Style, plan, status};
use ebbtide::config::{Config, LookOptions, Output, PlanOptions};
use ebbtide::scale_in::preview::{End, Preview, What};
use ebbtide::sim::aws::GroupSpec;
use ebbtide::sim::cluster::{self, Verb, budget, node, pod};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, aws_client, kube_client};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use serde_json::Value;

use crate::journal_queries::{TERMINATE, asked, in_phase, notes, released_at};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds};

/// The API server of somebody who reads.
struct ReadOnly(cluster::Cluster);

#[async_trait]
impl Service for ReadOnly {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        assert_eq!(request.method(), http::Method::GET, "{}", request.uri());
        self.0.call(request).await
    }
}

fn reader(world: &World) -> Cluster {
    Cluster::new(kube_client(Arc::new(ReadOnly(world.cluster.clone()))))
}

async fn planned(scene: &Scene, machine: &Machine, config: Config) -> Preview {
    let options = PlanOptions {
        node: machine.name.clone(),
        cause: RecordCause::Autoscaler,
        look: LookOptions { output: Output::Table, context: None, namespace: None, config },
    };
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    plan::look(&reader(&scene.world), Some(&aws), &options, &scene.world.clock).await.expect("planned")
}

/// A node with pods of two priorities, one of which takes its whole grace.
async fn busy(group: GroupSpec) -> (Scene, Machine) {
    let scene = Scene::with(group).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    let high = pod("api").on(on).priority(1_000).grace(60).exits_after(59);
    scene.run([pod("web").on(on).grace(30).exits_after(20), high]).await;
    (scene, machine)
}

#[tokio::test(start_paused = true)]
async fn a_plan_says_what_the_program_then_does_and_how_long_at_most() {
    for group in [group(2), held_group(2, 60)] {
        let (scene, machine) = busy(group).await;
        let preview = planned(&scene, &machine, config()).await;
        assert_eq!(scene.world.aws.calls(TERMINATE), 0);
        let End::Released { after_seconds } = preview.end else { panic!("released: {preview:#?}") };
        let began = scene.world.clock.now();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        let took = released_at(&scene.world, &machine).duration_since(began);
        let most = SignedDuration::from_secs(i64::try_from(after_seconds).expect("small"));
        assert!(took <= most + SignedDuration::from_secs(3), "{took} of {most}");
        assert!(took >= most - SignedDuration::from_secs(5), "{took} of {most}: not far off");
        let evicted: Vec<_> = preview
            .steps
            .iter()
            .filter(|step| step.what == What::Evict)
            .map(|step| step.pod.clone().unwrap_or_default())
            .collect();
        assert_eq!(evicted, ["default/web", "default/api"]);
        let [web, api] = ["web", "api"].map(|name| asked(&scene.world, name)[0].0);
        assert!(web <= api, "in the same order");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_plan_names_the_budget_that_blocks_and_the_group_that_cannot_shrink() {
    let (scene, machine) = busy(group(2)).await;
    scene.world.cluster.add(budget("web").min_available(1));
    let preview = planned(&scene, &machine, config()).await;
    let text = plan::render(&preview, Output::Table, Style::default(), scene.world.clock.now());
    for part in ["waits without a limit for default/web (budget default/web)", "default/web (0)", "shipper"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    let (scene, machine) = busy(group(2).size(2, 10, 2)).await;
    let End::Refused { why } = planned(&scene, &machine, config()).await.end else { panic!("refused") };
    assert!(why.contains("minimum"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn somebody_with_a_kubeconfig_sees_whom_a_drain_waits_for_as_the_leader_does() {
    sees_whom_a_drain_waits_for(group(2)).await;
}

#[tokio::test(start_paused = true)]
async fn so_does_somebody_who_does_not_know_the_limit_that_the_groups_tag_sets() {
    sees_whom_a_drain_waits_for(group(2).tag("ebbtide/drain-timeout", "1h")).await;
}

async fn sees_whom_a_drain_waits_for(group: GroupSpec) {
    let (scene, machine) = busy(group).await;
    scene.world.cluster.add(budget("web").min_available(1));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(10)).await;
    let now = scene.world.clock.now();
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    let [one] = &told.scale_ins[..] else { panic!("one: {told:?}") };
    let mut waiting: Vec<_> =
        one.waiting.iter().flatten().map(|wait| (wait.pod.as_str(), wait.reason)).collect();
    waiting.sort_unstable();
    assert_eq!(waiting, [("default/api", "exiting"), ("default/web", "budget")]);
    let table = status::render(&told, Output::Table, Style::default(), now);
    let line = table.lines().nth(1).expect("a line");
    for part in
        [machine.name.as_str(), "Draining", "autoscaler", "default/web (budget default/web) and 1 more"]
    {
        assert!(line.contains(part), "{part} in {line}");
    }
    let wide = status::render(&told, Output::Wide, Style { colour: true }, now);
    assert!(wide.contains("\u{1b}[34mDraining") && wide.contains("  default/api: exiting"), "{wide}");
    scene.until(|w| crate::journal_queries::has_exited(w, "api")).await;
    scene.remove::<k8s_openapi::api::policy::v1::PodDisruptionBudget>("web").await;
    scene.until_gone(&machine).await;
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    assert_eq!(status::render(&told, Output::Table, Style::default(), now), "no scale-in is under way\n");
}

/// What `ebbtide status` prints.
pub(crate) async fn status_table(scene: &Scene) -> String {
    let now = scene.world.clock.now();
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    status::render(&told, Output::Table, Style::default(), now)
}

/// Whom the command says that the one scale-in waits for, and why; the same from the leader.
async fn told_by_both(scene: &Scene) -> [Vec<(String, String)>; 2] {
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    let leader = crate::status::status(scene.program()).await;
    let by = |told: &Value| {
        let waiting = told["scaleIns"][0]["waiting"].as_array().expect("a list").iter();
        let word = |wait: &Value, key: &str| wait[key].as_str().expect("text").to_owned();
        let mut waiting: Vec<_> = waiting.map(|wait| (word(wait, "pod"), word(wait, "reason"))).collect();
        waiting.sort();
        waiting
    };
    [by(&serde_json::to_value(told).expect("JSON")), by(&leader)]
}

#[tokio::test(start_paused = true)]
async fn of_a_pod_whose_eviction_is_refused_a_kubeconfig_tells_no_more_than_it_knows() {
    let (scene, machine) = busy(group(2)).await;
    for name in ["web", "api"] {
        scene.world.cluster.deny(Verb::Create, "pods/eviction", name);
    }
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(20)).await;
    let [command, leader] = told_by_both(&scene).await;
    let each = |reason: &str| ["api", "web"].map(|name| (format!("default/{name}"), reason.to_owned()));
    assert_eq!(leader, each("refused"));
    assert_eq!(command, each("unknown"));
    let now = scene.world.clock.now();
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    let wide = status::render(&told, Output::Wide, Style::default(), now);
    assert!(wide.contains("default/web: has not gone; why: Event ScaleInBlocked"), "{wide}");
    assert!(!notes(&scene.world, &machine, "ScaleInBlocked").is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_budgets_over_one_pod_are_refused_for_good_and_told_so_by_both() {
    let (scene, machine) = busy(group(2)).await;
    for name in ["web", "web-too"] {
        scene.world.cluster.add(budget(name).selects("app", "web").min_available(0));
    }
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(20)).await;
    let [command, leader] = told_by_both(&scene).await;
    let expected = [("default/api", "exiting"), ("default/web", "refused")];
    assert_eq!(leader, expected.map(|(pod, reason)| (pod.to_owned(), reason.to_owned())));
    assert_eq!(command, leader);
    let table = status_table(&scene).await;
    assert!(
        table.contains("several budgets, of which an eviction takes one: default/web, default/web-too"),
        "{table}"
    );
}

#[tokio::test(start_paused = true)]
async fn pods_on_another_node_of_the_machine_are_waited_for_in_the_command_too() {
    let (scene, machine) = busy(group(2)).await;
    scene.world.cluster.register_node(node("twin").provider_id(machine.provider_id()));
    scene.until(|w| w.cluster.is_ready("twin")).await;
    scene.run([pod("away").on("twin").grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(200)).await;
    let [command, leader] = told_by_both(&scene).await;
    assert_eq!(leader, [("default/away".to_owned(), "exiting".to_owned())]);
    assert_eq!(command, leader);
}

#[tokio::test(start_paused = true)]
async fn no_phase_says_that_nothing_is_waited_for() {
    let (scene, machine) = busy(held_group(2, 60)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    let waits_for = [
        ("Flushing", "DaemonSet pods, volumes or load balancers"),
        ("Releasing", "AWS, load balancers, a lifecycle hook, or whoever deletes the Node"),
    ];
    for (phase, what) in waits_for {
        scene.until(|w| in_phase(w, &machine, phase)).await;
        let table = status_table(&scene).await;
        assert!(table.contains(what) && table.contains("see its Events"), "{table}");
    }
}

#[tokio::test(start_paused = true)]
async fn somebody_with_a_kubeconfig_sees_whom_a_held_drain_waits_for() {
    let (scene, machine) = busy(held_group(2, 60)).await;
    scene.world.cluster.add(budget("web").min_available(1));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    for _ in 0..4 {
        scene.pass_some(seconds(60)).await;
        let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
        let [one] = &told.scale_ins[..] else { panic!("one: {told:?}") };
        assert_eq!(one.release.map(|release| release.as_str()), Some("complete-hook"));
        let waiting: Vec<_> =
            one.waiting.iter().flatten().map(|wait| (wait.pod.as_str(), wait.reason)).collect();
        assert_eq!(waiting, [("default/web", "budget")]);
    }
}
