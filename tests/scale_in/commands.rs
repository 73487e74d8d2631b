//! `ebbtide status` and `ebbtide plan` beside the program: they read only, and say what it does.

use std::sync::Arc;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::cluster::Cluster;
use ebbtide::cluster::record::Cause as RecordCause;
use ebbtide::commands::status::Told;
use ebbtide::commands::{CommandError, Style, plan, status};
use ebbtide::config::{Config, LookOptions, Output, PlanOptions};
use ebbtide::scale_in::preview::{End, Preview, What};
use ebbtide::sim::aws::GroupSpec;
use ebbtide::sim::ca_drain::{Flags, drain_and_delete};
use ebbtide::sim::cluster::{self, Fault, Verb, budget, node, pod};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, aws_client, kube_client};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use serde_json::Value;

use crate::journal_queries::{TERMINATE, asked, in_phase, is_asked, notes, released_at};
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
async fn a_plan_is_made_without_aws_where_that_fails_and_says_so() {
    let (scene, machine) = busy(group(2)).await;
    scene.world.aws.outage(true);
    let preview = planned(&scene, &machine, config()).await;
    assert!(matches!(preview.end, End::Released { .. }), "{preview:#?}");
    let text = plan::render(&preview, Output::Table, Style::default(), scene.world.clock.now());
    for part in ["note: AWS was asked, and did not tell", "DescribeAutoScalingGroups", "no lifecycle hook"] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn somebody_with_a_kubeconfig_sees_what_a_drain_waits_for_as_the_leader_does() {
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

#[tokio::test(start_paused = true)]
async fn a_command_answers_though_the_api_server_is_busy_or_silent_for_a_moment() {
    let (scene, machine) = busy(group(2)).await;
    scene.world.cluster.add(budget("web").min_available(1));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(10)).await;
    let busy_now = Fault::TooManyRequests { retry_after_seconds: 3 };
    for (verb, resource, fault, times, least) in [
        (Verb::List, "nodes", busy_now, 2, 6),
        (Verb::Get, "nodes", Fault::EtcdTimedOut { took_effect: false }, 2, 1),
        (Verb::List, "pods", Fault::Slow(seconds(60)), 1, 10),
        (Verb::List, "poddisruptionbudgets", Fault::RequestLost, 2, 1),
    ] {
        let fail = || scene.world.cluster.fail_next(times, verb, resource, fault);
        fail();
        let began = scene.world.clock.now();
        let told = status::look(&reader(&scene.world), &scene.world.clock).await;
        let told = told.unwrap_or_else(|error| panic!("{resource}: {error}"));
        assert_eq!(told.scale_ins[0].waiting.as_ref().map(Vec::len), Some(2), "{resource}");
        let took = scene.world.clock.now().duration_since(began);
        assert!((least..least + 4).contains(&took.as_secs()), "{resource}: {took:#}");
        fail();
        planned(&scene, &machine, config()).await;
    }
    // Not for long, and not for what will not pass.
    scene.world.cluster.api_down();
    let began = scene.world.clock.now();
    let told = status::look(&reader(&scene.world), &scene.world.clock).await;
    assert!(told.is_err_and(|error| error.to_string().contains("Nodes could not be read")));
    scene.world.cluster.api_up();
    scene.world.cluster.forbid(Verb::List, "nodes");
    status::look(&reader(&scene.world), &scene.world.clock).await.expect_err("forbidden");
    let took = scene.world.clock.now().duration_since(began);
    assert!((3..6).contains(&took.as_secs()), "{took:#}");
}

/// An API server that does not list the pods of one Node.
struct Without {
    cluster: cluster::Cluster,
    node: String,
}

#[async_trait]
impl Service for Without {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let is_of_it = request.uri().query().is_some_and(|query| query.contains(&self.node));
        if is_of_it && request.uri().path().ends_with("/pods") {
            Err(Lost)
        } else {
            self.cluster.call(request).await
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_pods_cannot_be_read_is_shown_without_them_and_the_others_with_theirs() {
    let scene = Scene::with(group(3)).await;
    let machines = scene.machines();
    for (machine, name) in machines.iter().zip(["web", "api"]) {
        scene.run([pod(name).on(&machine.name).grace(600).exits_after(500)]).await;
        scene.scale_in(machine, Cause::Autoscaler).await;
    }
    scene.pass_some(seconds(10)).await;
    let without = Without { cluster: scene.world.cluster.clone(), node: machines[0].name.clone() };
    let told =
        status::look(&Cluster::new(kube_client(Arc::new(without))), &scene.world.clock).await.expect("told");
    let table = status::render(&told, Output::Table, Style::default(), scene.world.clock.now());
    let line = |machine: &Machine| table.lines().find(|line| line.contains(&machine.name)).expect("a line");
    let unknown = "unknown: pods could not be read from the API server";
    assert!(line(&machines[0]).contains("Draining") && line(&machines[0]).contains(unknown), "{table}");
    assert!(line(&machines[1]).contains("default/api"), "{table}");
    let document = serde_json::to_value(&told).expect("JSON");
    assert!(document["scaleIns"].as_array().is_some_and(|all| all.len() == 2), "{document}");
    assert!(document["unread"][&machines[0].name].is_string(), "{document}");
    assert!(document["unread"][&machines[1].name].is_null(), "{document}");
}

#[tokio::test(start_paused = true)]
async fn where_budgets_cannot_be_read_the_scale_ins_are_shown_without_them_and_with_why() {
    const UNREAD: &str = "disruption budgets could not be read from the API server";
    let (scene, machine) = busy(group(2)).await;
    scene.world.cluster.add(budget("web").min_available(1));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(10)).await;
    assert!(!status_table(&scene).await.contains(UNREAD));
    scene.world.cluster.forbid(Verb::List, "poddisruptionbudgets");
    let told = status::look(&reader(&scene.world), &scene.world.clock).await.expect("told");
    let table = status::render(&told, Output::Table, Style::default(), scene.world.clock.now());
    for part in ["Draining", "default/web (has not gone", "and 1 more", UNREAD, "forbidden"] {
        assert!(table.contains(part), "{part} in\n{table}");
    }
    let document = serde_json::to_value(&told).expect("JSON");
    assert!(document["budgetsUnread"].as_str().is_some_and(|why| why.starts_with(UNREAD)), "{document}");
}

#[tokio::test(start_paused = true)]
async fn a_watch_goes_on_after_a_look_that_failed() {
    let (scene, _machine) = busy(group(2)).await;
    let reader = reader(&scene.world);
    let mut looks = Vec::new();
    let watched = status::watch(&reader, &scene.world.clock, |told: Result<Told, CommandError>| {
        match looks.len() {
            0 => scene.world.cluster.api_down_for(seconds(20)),
            9 => return Err(CommandError::NoNode("enough".to_owned())),
            _ => {}
        }
        looks.push(told.is_ok());
        Ok(())
    });
    assert_eq!(watched.await.expect_err("enough").to_string(), "there is no Node enough");
    assert_eq!(looks, [true, false, false, false, true, true, true, true, true]);
    // One that has never answered is none.
    scene.world.cluster.api_down();
    let watched = status::watch(&reader, &scene.world.clock, |_| panic!("there is no answer"));
    let error: CommandError = watched.await.expect_err("no answer");
    assert!(error.to_string().contains("could not be read"), "{error}");
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
    assert!(wide.contains("default/web: has not gone; see the Events of its Node"), "{wide}");
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
        table.contains("several budgets cover it, only one may: default/web, default/web-too"),
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

/// cluster-autoscaler waits for the pods that it has evicted: with the flags of the manifests for two days.
#[tokio::test(start_paused = true)]
async fn a_node_that_cluster_autoscaler_drains_by_itself_is_told_with_the_pods_that_are_to_go() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    let stuck = pod("stuck").on(on).grace(30).exits_after(5).finalizer("example.com/backup");
    scene.run([pod("web").on(on).grace(7_200).exits_after(7_000), stuck]).await;
    let flags =
        Flags { max_graceful_termination_seconds: 172_800, evicts_daemon_sets: false, ..Flags::default() };
    let mut client = scene.client();
    let autoscaler = drain_and_delete(&scene.world, &mut client, "web", on, &flags);
    let look = async {
        scene.until(|w| is_asked(w, "web") && is_asked(w, "stuck")).await;
        scene.pass_some(seconds(3_600)).await;
        let table = status_table(&scene).await;
        assert!(!table.contains("no scale-in is under way"), "{table}");
        let line =
            table.lines().find(|line| line.contains(on)).unwrap_or_else(|| panic!("no line:\n{table}"));
        for part in ["1h0m", "default/stuck (should have exited by", "and 1 more"] {
            assert!(line.contains(part), "{part} in {line}");
        }
        let admin = scene.program().admin().expect("a loopback interface");
        let page = crate::status::get(admin, "/status").await;
        assert!(page.contains("Drained by cluster-autoscaler") && page.contains(on), "{page}");
    };
    tokio::select! {
        ended = autoscaler => panic!("it waits for days: {ended:?}"),
        () = look => {}
    }
}

#[tokio::test(start_paused = true)]
async fn scale_ins_that_nobody_works_on_are_told_as_such_and_how_long_a_hook_holds_them() {
    const NOBODY: &str = "nobody has worked on these since";
    let (mut scene, machine) = busy(held_group(2, 600)).await;
    scene.world.cluster.add(budget("web").min_available(1));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    for _ in 0..15 {
        scene.pass_some(seconds(61)).await;
        let table = status_table(&scene).await;
        assert!(table.contains("Draining") && !table.contains(NOBODY), "{table}");
    }
    scene.take_down().await;
    scene.pass_some(seconds(100)).await;
    let table = status_table(&scene).await;
    assert!(!table.contains(NOBODY), "another may just be about to lead\n{table}");
    scene.pass_some(seconds(220)).await;
    let table = status_table(&scene).await;
    assert!(table.contains("Draining") && table.contains(NOBODY) && table.contains("10m0s"), "{table}");
}
