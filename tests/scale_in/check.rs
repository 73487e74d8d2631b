//! `ebbtide check` on the worlds: what is in order, and what is broken one by one.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::cluster::Cluster;
use ebbtide::commands::Style;
use ebbtide::commands::check::{Report, Severity, gather};
use ebbtide::config::{Config, Output};
use ebbtide::groups::selector::Selectors;
use ebbtide::provider::TlsOptions;
use ebbtide::sim::aws::{GroupSpec, HookSpec, Operation, QueueSpec, TargetGroupSpec};
use ebbtide::sim::cluster::{NodeSpec, Verb, node, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::{TAG, config};
use ebbtide::sim::world::World;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::scene::{Scene, config_with, group, held_group, seconds};

async fn checked(scene: &Scene) -> Report {
    checked_with(scene, &config()).await
}

pub(crate) async fn checked_with(scene: &Scene, config: &Config) -> Report {
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    let cluster = Cluster::new(scene.world.cluster.client());
    let facts = gather(&cluster, &aws, config, &scene.world.clock).await;
    Report::of(&facts)
}

/// What is worse than a note: check and severity.
fn troubles(report: &Report) -> Vec<(&'static str, Severity)> {
    let worse = report.findings.iter().filter(|finding| finding.severity != Severity::Note);
    worse.map(|finding| (finding.check, finding.severity)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_world_in_order_has_nothing_but_notes_and_is_not_changed() {
    let scene = Scene::with(held_group(2, 60)).await;
    scene.run([pod("web").on(scene.first().name.as_str())]).await;
    let tags = |scene: &Scene| scene.world.aws.calls(Operation::CreateTags);
    let before = scene.world.aws.group("web").expect("the group");
    let report = checked(&scene).await;
    assert_eq!((troubles(&report), report.exit_code()), (Vec::new(), 0), "{report:#?}");
    assert_eq!(tags(&scene), 1, "the dry run");
    let after = scene.world.aws.group("web").expect("the group");
    assert_eq!(format!("{after:?}"), format!("{before:?}"));
}

#[tokio::test(start_paused = true)]
async fn the_files_of_the_expander_are_read_too_and_those_of_both_addresses_once() {
    let scene = Scene::with(held_group(1, 60)).await;
    let options = |name: &str| TlsOptions {
        cert: format!("/nowhere/{name}.crt").into(),
        key: format!("/nowhere/{name}.key").into(),
        client_ca: None,
        client_crl: None,
        allowed_clients: Vec::new(),
    };
    let told = async |tls: Option<&str>, expander: &str| {
        let expander_listen = Some(((Ipv4Addr::LOCALHOST, 8087).into(), options(expander)));
        let config = Config { tls: tls.map(options), expander_listen, ..config() };
        let report = checked_with(&scene, &config).await;
        let of_tls = report.findings.into_iter().filter(|finding| finding.check == "tls");
        of_tls.map(|finding| finding.text).collect::<Vec<_>>()
    };
    let named = |told: &[String], name: &str| {
        told.iter().filter(|text| text.contains(&format!("/nowhere/{name}."))).count()
    };
    let both = told(Some("tls"), "expander").await;
    assert_eq!((named(&both, "tls"), named(&both, "expander")), (2, 2), "{both:?}");
    assert_eq!(named(&told(None, "expander").await, "expander"), 2);
    assert_eq!(named(&told(Some("tls"), "tls").await, "tls"), 2, "once");
}

#[tokio::test(start_paused = true)]
async fn nodes_without_a_provider_id_of_aws_are_found_and_matter_where_a_group_has_no_others() {
    let found = async |scene: &Scene| {
        let found = checked(scene).await.findings;
        let such = found.into_iter().filter(|finding| finding.check == "provider ids");
        such.map(|finding| (finding.severity, finding.subject)).collect::<Vec<_>>()
    };
    let scene = Scene::with(held_group(1, 60)).await;
    scene.world.cluster.add(node("somewhere"));
    assert_eq!(found(&scene).await, [(Severity::Note, "somewhere".to_owned())]);
    let world = World::new(1);
    world.kubelets("web", |spec| NodeSpec { provider_id: Some("k3s://n".to_owned()), ..spec });
    let scene = Scene::on(world, held_group(1, 60), config()).await;
    let node = scene.world.cluster.node_names()[0].clone();
    assert_eq!(found(&scene).await, [(Severity::Error, node)]);
}

/// From 1.35 on cluster-autoscaler looks for their GPUs in a group's template.
#[tokio::test(start_paused = true)]
async fn nodes_of_no_group_that_lack_their_gpus_are_found() {
    const GPU: (&str, &str) = ("k8s.amazonaws.com/accelerator", "nvidia-tesla-t4");
    let world = World::new(1);
    world.kubelets("web", |spec| spec.label(GPU.0, GPU.1));
    let scene = Scene::on(world, held_group(1, 60), config()).await;
    scene.world.cluster.add(node("somewhere").label(GPU.0, GPU.1));
    scene.world.cluster.add(node("elsewhere"));
    let found = checked(&scene).await.findings;
    let such = found.iter().filter(|finding| finding.text.contains(GPU.0));
    let such: Vec<_> = such.map(|finding| (finding.check, finding.subject.as_str())).collect();
    assert_eq!(such, [("cluster-autoscaler", "somewhere")]);
}

#[tokio::test(start_paused = true)]
async fn what_is_broken_is_found_where_it_is() {
    let scene = Scene::with(group(2)).await;
    let report = checked(&scene).await;
    assert_eq!(troubles(&report), [("hooks", Severity::Warning)], "{report:#?}");
    assert_eq!(report.exit_code(), 1);
    let scene = Scene::with(group(2).hook(HookSpec::terminating("ebbtide").heartbeat(30))).await;
    scene.run([pod("slow").on(scene.first().name.as_str()).grace(4_000)]).await;
    let report = checked(&scene).await;
    let [short] = &report.findings.iter().filter(|f| f.check == "hooks").collect::<Vec<_>>()[..] else {
        panic!("one: {report:#?}")
    };
    assert!(short.text.contains("default/slow") && short.fix.contains("41 s"), "{short:?}");

    scene.world.cluster.forbid(Verb::Create, "pods/eviction");
    scene.world.aws.deny(Operation::DescribeScalingActivities, true);
    scene.world.aws.deny(Operation::CreateTags, true);
    let report = checked(&scene).await;
    let errors: Vec<_> =
        report.findings.iter().filter(|finding| finding.severity == Severity::Error).collect();
    let subjects: Vec<_> = errors.iter().map(|finding| (finding.check, finding.subject.as_str())).collect();
    let expected = [
        ("iam", "autoscaling:DescribeScalingActivities"),
        ("iam", "ec2:CreateTags"),
        ("rbac", "create pods/eviction"),
    ];
    assert_eq!(subjects, expected, "{report:#?}");
    assert_eq!(report.exit_code(), 2);

    scene.world.aws.outage(true);
    let report = checked(&scene).await;
    assert!(report.findings.iter().any(|finding| finding.check == "aws"), "{report:#?}");
}

/// What was found about one thing: severity and text.
fn about<'a>(report: &'a Report, check: &str, subject: &str) -> Vec<(Severity, &'a str)> {
    let found = report.findings.iter();
    let found = found.filter(|finding| finding.check == check && finding.subject.contains(subject));
    found.map(|finding| (finding.severity, finding.text.as_str())).collect()
}

#[tokio::test(start_paused = true)]
async fn every_queue_is_asked_how_it_is_set_up_and_no_message_is_touched() {
    let policy = r#"{"Statement": {"Effect": "Allow", "Principal": {"Service": "events.amazonaws.com"}, "Action": "sqs:SendMessage"}}"#;
    let scene = Scene::with(held_group(2, 60)).await;
    let aws = &scene.world.aws;
    let good = QueueSpec::named("ebbtide-good").policy(policy).dead_letters("ebbtide-dead", 1_000);
    let good = aws.add_queue(good.retention(Duration::from_hours(14 * 24)));
    let closed = aws
        .add_queue(QueueSpec::named("ebbtide-closed").dead_letters("ebbtide-dead", 3).key("alias/aws/sqs"));
    let gone = good.replace("good", "gone");
    aws.put_message(&good, "{}");
    let before = aws.queue(&good);
    let config = Config { queue_urls: vec![good.clone(), closed, gone], ..config() };
    let report = checked_with(&scene, &config).await;
    assert_eq!(about(&report, "queues", "good"), [], "{report:#?}");
    assert_eq!(aws.queue(&good), before);
    let closed: Vec<_> = about(&report, "queues", "closed").iter().map(|(severity, _)| *severity).collect();
    assert_eq!(closed, [Severity::Warning; 4], "policy, key, receives and retention: {report:#?}");
    assert_eq!(about(&report, "queues", "gone"), [(Severity::Error, "there is no such queue")]);

    scene.world.aws.deny(Operation::GetQueueAttributes, true);
    let report = checked_with(&scene, &config).await;
    assert_eq!(about(&report, "queues", ""), []);
    assert_eq!(about(&report, "iam", "sqs:GetQueueAttributes"), [(Severity::Error, "AWS denies it")]);
}

#[tokio::test(start_paused = true)]
async fn load_balancers_are_asked_for_only_where_nodes_wait_for_them() {
    let scene = Scene::with(held_group(2, 60).preventing_force_deletion()).await;
    scene.world.aws.add_target_group(TargetGroupSpec::named("k8s-web").delay(60));
    let looks = [
        Operation::DescribeTargetGroups,
        Operation::DescribeTargetHealth,
        Operation::DescribeTargetGroupAttributes,
    ];
    let calls = || looks.map(|operation| scene.world.aws.calls(operation));
    let report = checked(&scene).await;
    assert_eq!(calls(), [0; 3]);
    assert_eq!(about(&report, "groups", "web"), []);
    let config = config_with(|it| it.wait_for_load_balancers = true);
    assert_eq!(troubles(&checked_with(&scene, &config).await), []);
    assert_eq!(calls(), [1; 3]);
    scene.world.aws.deny(Operation::DescribeTargetHealth, true);
    let report = checked_with(&scene, &config).await;
    assert_eq!(troubles(&report), [("iam", Severity::Error)], "{report:#?}");
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_that_was_scaled_to_nothing_is_passed_over() {
    let scene = Scene::with(held_group(2, 60)).await;
    let deployments: Api<Deployment> = Api::namespaced(scene.world.cluster.client(), "default");
    let old = json!({
        "metadata": { "name": "old" },
        "spec": {
            "replicas": 0,
            "selector": { "matchLabels": { "app": "old" } },
            "template": {
                "metadata": { "labels": { "app": "old" } },
                "spec": { "containers": [{
                    "name": "it", "image": "registry/cluster-autoscaler:v1.34.0", "args": ["--cloud-provider=aws"],
                }] },
            },
        },
    });
    let old: Deployment = serde_json::from_value(old).expect("a Deployment");
    deployments.create(&PostParams::default(), &old).await.expect("created");
    let report = checked(&scene).await;
    assert_eq!(about(&report, "cluster-autoscaler", "old"), [], "{report:#?}");
    let one = json!({ "spec": { "replicas": 1 } });
    deployments.patch("old", &PatchParams::default(), &Patch::Merge(one)).await.expect("patched");
    let report = checked(&scene).await;
    let [(Severity::Warning, text)] = about(&report, "cluster-autoscaler", "old")[..] else {
        panic!("one: {report:#?}")
    };
    assert!(text.starts_with("does not use this provider"), "{text}");
    // What asks ebbtide alone not to be disturbed is evicted by cluster-autoscaler.
    let waits = |name: &str| pod(name).on(scene.first().name.as_str()).annotation("ebbtide/drain", "wait");
    scene
        .run([
            waits("job"),
            waits("safe").annotation("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
            pod("web"),
        ])
        .await;
    let report = checked(&scene).await;
    let [(Severity::Warning, text)] = about(&report, "cluster-autoscaler", "web")[..] else {
        panic!("one: {report:#?}")
    };
    assert!(text.contains("pod default/job (and 0 more)"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_can_be_deleted_with_its_instances_is_told() {
    let scene = Scene::with(held_group(2, 60)).await;
    let report = checked(&scene).await;
    let [(severity, text)] = about(&report, "groups", "web")[..] else { panic!("one: {report:#?}") };
    assert!(severity == Severity::Note && text.contains("deleted together with their instances"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_not_there_and_one_of_another_cluster_are_told_and_so_are_those_selected() {
    let scene = Scene::with(held_group(1, 60)).await;
    scene
        .world
        .aws
        .add_group(GroupSpec::named("green").tag(TAG, "true").tag("kubernetes.io/cluster/green", "owned"));
    // Until AWS's answers show it.
    scene.pass_some(seconds(30)).await;
    let selectors = Selectors::parse(["0:3:nope"], [format!("asg:tag={TAG}")]).expect("a selector");
    let config = Config { selectors: selectors.of_cluster(Some("blue".into())), ..config() };
    let report = checked_with(&scene, &config).await;
    assert!(matches!(about(&report, "groups", "nope")[..], [(Severity::Error, _)]), "{report:#?}");
    assert!(matches!(about(&report, "groups", "green")[..], [(Severity::Warning, _)]), "{report:#?}");
    let text = report.render(Output::Table, Style::default());
    assert!(text.ends_with("groups selected (1): web\n"), "{text}");
}
