//! `serve --dry-run`: every read is answered, nothing is changed, and what would have been done is told.

use ebbtide::config::Config;
use ebbtide::groups::managed_hooks::Managed;
use ebbtide::sim::aws::{Operation, QueueSpec};
use ebbtide::sim::cluster::{By, Event, Verb, pod};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use k8s_openapi::api::coordination::v1::Lease;
use serde_json::Value;
use tonic::Code;

use crate::scene::{Cause, Scene, group, held_group, seconds};
use crate::status::{get, status};

/// Everything that changes something at AWS, as far as the program knows of it.
fn aws_writes(world: &World) -> usize {
    let reads = ["Describe", "Get"];
    let writes = Operation::ALL
        .iter()
        .filter(|operation| !reads.iter().any(|read| operation.name().starts_with(read)));
    writes.map(|operation| world.aws.calls(*operation)).sum()
}

/// Requests to the API server that are no reads, of anybody with a client.
fn cluster_writes(world: &World) -> usize {
    world.cluster.count(|entry| match &entry.what {
        Event::Request { verb, .. } => !matches!(verb, Verb::Get | Verb::List | Verb::Watch),
        _ => false,
    })
}

fn dry() -> Config {
    Config { dry_run: true, ..config() }
}

/// What would have been done.
async fn would(program: &Program) -> Vec<Value> {
    status(program).await["dryRun"].as_array().expect("a dry run").clone()
}

/// The same, one below the other.
fn told(would: &[Value]) -> String {
    would.iter().filter_map(|one| one["what"].as_str().map(str::to_owned)).collect::<Vec<_>>().join("\n")
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_answers_reads_changes_nothing_and_tells_what_it_would_have_done() {
    let (log, _captured) = captured::log(tracing::Level::WARN);
    let managed_hooks = Some(Managed { heartbeat: seconds(300), retain: true });
    let scene = Scene::configured(held_group(3, 60), Config { managed_hooks, ..dry() }).await;
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
    // cluster-autoscaler is about to ask for another.
    scene.taint(&scene.machines()[1], "DeletionCandidateOfClusterAutoscaler").await;
    assert_eq!((scene.target().await.expect("answered"), scene.listed().await.len()), (3, 3));
    let before = (aws_writes(&scene.world), cluster_writes(&scene.world));
    assert_eq!(before.0, 0);

    for refused in [scene.delete(std::slice::from_ref(&machine)).await, scene.increase(2).await] {
        let status = refused.expect_err("nothing is changed");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains("--dry-run"), "{status}");
    }
    // The group takes one out by itself, which the hook holds.
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(40)).await;
    let is_expected =
        |line: &&str| line.contains("WARN ebbtide::app: dry run: nothing") || line.contains("RPC failed");
    let text = log.text();
    let warnings: Vec<&str> = text.lines().filter(|line| !is_expected(line)).collect();
    assert!(warnings.is_empty(), "what is not done is told, and is no trouble: {warnings:#?}");
    assert_eq!((aws_writes(&scene.world), cluster_writes(&scene.world)), before, "nothing was sent");
    let lease = scene.world.cluster.get::<Lease>("ebbtide");
    assert!(lease.is_none_or(|lease| lease.spec.and_then(|spec| spec.holder_identity).is_none()), "not ours");

    let metrics = get(scene.program().admin().expect("a loopback interface"), "/metrics").await;
    assert!(!metrics.contains("ebbtide_lifecycle_hook_changes_total{"), "neither done nor failed: {metrics}");

    let would = would(scene.program()).await;
    let beat = |one: &&Value| one["what"].as_str().is_some_and(|what| what.contains("ActionHeartbeat"));
    assert!(would.iter().filter(beat).all(|beat| beat["times"].as_u64() < Some(4)), "{would:?}");
    let told = told(&would);
    for part in [
        format!("PATCH /api/v1/nodes/{}", machine.name),
        "autoscaling:SetDesiredCapacity web to 5".to_owned(),
        format!("autoscaling:RecordLifecycleActionHeartbeat {}", machine.instance),
        format!("ScaleInDraining {}: cause lifecycle-hook", machine.name),
        "autoscaling:UpdateAutoScalingGroup web".to_owned(),
        "autoscaling:PutLifecycleHook ebbtide of web".to_owned(),
    ] {
        assert!(told.contains(&part), "{part} in\n{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_tells_that_it_would_drain_a_node_that_its_group_ends_without_a_hook() {
    let scene = Scene::configured(group(3).deregistering_for(300), dry()).await;
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
    let before = (aws_writes(&scene.world), cluster_writes(&scene.world));
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(200)).await;
    assert_eq!((aws_writes(&scene.world), cluster_writes(&scene.world)), before, "nothing was sent");
    let told = told(&would(scene.program()).await);
    for part in [
        format!("ScaleInNotHeld {}: group \"web\" ends", machine.name),
        format!("ScaleInDraining {}: cause state-change", machine.name),
    ] {
        assert!(told.contains(&part), "{part} in\n{told}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_beside_the_real_one_leaves_lease_queue_and_drain_to_it() {
    let scene = Scene::with(held_group(3, 60)).await;
    let url = scene.world.aws.add_queue(QueueSpec::named("notices"));
    let dry_run = Program::start(&scene.world, Config { queue_urls: vec![url], ..dry() });
    let machine = scene.first();
    scene.run([pod("web").on(machine.name.as_str()).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(scene.world.aws.calls(Operation::ReceiveMessage), 0, "that would hide messages");
    let status = status(&dry_run).await;
    assert_eq!(status["queues"], Value::Array(Vec::new()));
    let asked = crate::journal_queries::asked(&scene.world, "web");
    let evictions = asked.iter().filter(|(_, by, _)| *by == By::Eviction).count();
    assert_eq!(evictions, 1, "by the one that leads: {asked:?}");
}
