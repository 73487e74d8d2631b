//! The two worlds' own journals give reports like the hand-made ones.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::JoinSet;

use super::*;
use crate::clock::Clock;
use crate::sim::cluster::{Cluster, Timing, daemon_set, node, replica_set};

/// Writes the record of a scale-in.
async fn annotate(nodes: &Api<Node>, phase: Phase) {
    let record = Record::new(Cause::Operator, GROUP, INSTANCE, Release::Terminate, at(0));
    let value = record::write(&record.entering(phase, at(0)));
    let patch = json!({ "metadata": { "annotations": { names::RECORD: value } } });
    nodes.patch(NODE, &PatchParams::default(), &Patch::Merge(patch)).await.expect("annotated");
}

#[tokio::test(start_paused = true)]
async fn a_drain_of_a_simulated_cluster_is_told_from_its_journal() {
    let cluster = Cluster::new(Clock::starting_at(at(0)), 7);
    cluster.set_timing(Timing::brisk());
    let mut alive = JoinSet::new();
    let living = cluster.clone();
    alive.spawn(async move { living.run().await });
    cluster.add(node(NODE)).add(replica_set("web", 2)).add(daemon_set("agent").log_shipper());
    let limit = Duration::from_mins(5);
    let running = |cluster: &Cluster| {
        let entries = cluster.journal();
        entries.iter().filter(|entry| matches!(entry.what, cluster::Event::PodRunning { .. })).count()
    };
    assert!(cluster.until(limit, |cluster| running(cluster) == 3).await);
    let nodes: Api<Node> = Api::all(cluster.client());
    let pods: Api<Pod> = Api::default_namespaced(cluster.client());
    nodes.cordon(NODE).await.expect("cordoned");
    annotate(&nodes, Phase::Draining).await;
    let of = |app: &str| -> Vec<String> {
        let names = cluster.pods_on(NODE).into_iter().filter_map(|pod| pod.metadata.name);
        names.filter(|name| name.starts_with(app)).collect()
    };
    let (web, agent) = (of("web"), of("agent"));
    for pod in &web {
        pods.evict(pod, &EvictParams::default()).await.expect("evicted");
    }
    assert!(cluster.until(limit, |_| of("web").is_empty()).await);
    annotate(&nodes, Phase::Flushing).await;
    pods.delete(&agent[0], &DeleteParams::default()).await.expect("deleted");
    tokio::time::sleep(Duration::from_secs(5)).await;
    cluster.power_off(NODE);
    assert!(cluster.until(limit, |cluster| !cluster.has_node(NODE)).await);

    let journal = cluster.journal();
    let scheduled = journal.iter().filter_map(|entry| match &entry.what {
        cluster::Event::PodScheduled { pod, .. } => Some(pod.name.as_str()),
        _ => None,
    });
    let daemons: Vec<&str> = scheduled.filter(|name| name.starts_with("agent")).collect();
    let machine = Machine { instance: INSTANCE.to_owned(), group: GROUP.to_owned() };
    let facts = Facts {
        nodes: BTreeMap::from([(NODE.to_owned(), machine)]),
        daemons: daemons.iter().map(|name| Name::new("default", name)).collect(),
        lines: BTreeMap::from([(NODE.to_owned(), cluster.lines(NODE))]),
        ..Facts::default()
    };
    let report = Report::from(&[], &journal, &facts);
    let [node] = report.nodes.as_slice() else { panic!("one node") };
    let said: Vec<_> = node.lines.iter().map(|line| line.text.as_str()).collect();
    let (one, other) = (&web[0], &web[1]);
    let asked = |pod: &str| format!("{pod} asked to go (grace 30 s)");
    let exited = |pod: &str| format!("{pod} exited");
    let daemon = format!("DaemonSet pod {}", daemons[0]);
    assert_eq!(
        said,
        [
            "cordoned",
            "scale-in began",
            &asked(one),
            &asked(other),
            &exited(one),
            &exited(other),
            "last workload exited; DaemonSet pods flush",
            &format!("{daemon} deleted (grace 30 s)"),
            &format!("{daemon} exited"),
            "Node removed",
        ]
    );
    assert!(node.pods.iter().filter(|bar| !bar.daemon).all(|bar| bar.end == Some(PodEnd::Exited)));
    let failed: Vec<_> = report.verdict.checks.iter().filter(|check| !check.passed).collect();
    let [check] = failed.as_slice() else { panic!("{failed:?}") };
    assert_eq!(check.name, "scale-ins not finished", "there is no AWS in which the instance has gone");
}
