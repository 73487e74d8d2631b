//! `ebbtide check` on the worlds: what is in order, and what is broken one by one.

use std::sync::Arc;

use ebbtide::aws::Aws;
use ebbtide::cluster::Cluster;
use ebbtide::commands::check::{Report, Severity, findings, gather};
use ebbtide::sim::aws::{HookSpec, Operation};
use ebbtide::sim::cluster::{Verb, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;

use crate::scene::{Scene, group, held_group};

async fn checked(scene: &Scene) -> Report {
    let aws = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
    let cluster = Cluster::new(scene.world.cluster.client());
    let facts = gather(&cluster, &aws, &config(), Vec::new(), &scene.world.clock).await;
    Report { findings: findings(&facts) }
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
