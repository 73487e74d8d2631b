//! Nodes that join, pods that are bound, and other writers.

use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use super::*;
use crate::sim::span::Span;

fn ready(cluster: &Cluster, node: &str) -> bool {
    let conditions = cluster.node(node).and_then(|node| node.status?.conditions).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn taints(cluster: &Cluster, node: &str) -> Vec<String> {
    let taints = cluster.node(node).unwrap().spec.unwrap().taints.unwrap_or_default();
    taints.into_iter().map(|taint| taint.key).collect()
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_bound_to_the_node_that_was_chosen_although_that_is_cordoned_by_then() {
    let sim = sim();
    sim.cluster.set_timing(Timing { binding: Span::seconds(2, 2), ..Timing::brisk() });
    sim.cluster.add(node("n1")).add(pod("web"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    sim.cordon("n1").await;
    sim.running("web", 1).await;
    assert_eq!(running(&sim.cluster, "web")[0].1, "n1");
}

#[tokio::test(start_paused = true)]
async fn what_is_chosen_and_not_bound_yet_takes_its_room() {
    let sim = sim();
    sim.cluster.set_timing(Timing { binding: Span::seconds(9, 9), ..Timing::brisk() });
    sim.cluster.add(node("n1").pods(1)).add(pod("first"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    sim.cluster.add(pod("second"));
    sim.running("first", 1).await;
    tokio::time::sleep(LONG).await;
    assert!(running(&sim.cluster, "second").is_empty());
    sim.pods().delete("first", &DeleteParams::default()).await.unwrap();
    sim.running("second", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_bound_to_a_node_that_is_gone_is_collected() {
    let sim = sim();
    sim.cluster.set_timing(Timing { binding: Span::seconds(9, 9), ..Timing::real() });
    sim.cluster.add(node("n1"));
    sim.until("the node is ready", |cluster| ready(cluster, "n1")).await;
    sim.cluster.add(pod("web"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    sim.until("the pod is bound", |cluster| cluster.pods_on("n1").len() == 1).await;
    sim.until("the pod is gone", |cluster| cluster.pod("web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_joins_tainted_and_is_ready_when_its_network_works() {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    let joined = sim.now();
    sim.cluster.add(node("n1")).add(pod("web")).add(daemon_set("agent"));
    assert!(!ready(&sim.cluster, "n1"));
    let all = ["node.cloudprovider.kubernetes.io/uninitialized", "node.kubernetes.io/not-ready"];
    assert_eq!(taints(&sim.cluster, "n1"), all);
    sim.until("the node is ready", |cluster| ready(cluster, "n1")).await;
    assert!((5..=30).contains(&sim.now().duration_since(joined).as_secs()));
    assert!(sim.cluster.pods_on("n1").is_empty(), "nobody was there before");
    sim.running("web", 1).await;
    sim.running("agent", 1).await;
    assert!(taints(&sim.cluster, "n1").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_writes_its_node_every_five_minutes_and_after_what_changes_on_it() {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    sim.cluster.add(node("n1"));
    tokio::time::sleep(LONG).await;
    let version = || sim.cluster.node("n1").unwrap().resource_version();
    let before = version();
    tokio::time::sleep(Duration::from_secs(311)).await;
    let later = version();
    assert_ne!(before, later);
    sim.cluster.add(pod("web").on("n1"));
    sim.running("web", 1).await;
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_ne!(later, version());
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_leaves_conditions_alone_that_it_does_not_know() {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    sim.cluster.add(node("n1"));
    tokio::time::sleep(LONG).await;
    let then = "2020-01-01T00:00:00Z";
    let told = json!({ "type": "DrainInProgress", "status": "True", "lastHeartbeatTime": then });
    let patch = Patch::Strategic(json!({ "status": { "conditions": [told] } }));
    sim.nodes().patch_status("n1", &PatchParams::default(), &patch).await.unwrap();
    assert!(ready(&sim.cluster, "n1"), "the patch names one condition only");
    let version = || sim.cluster.node("n1").unwrap().resource_version();
    let before = version();
    tokio::time::sleep(Duration::from_secs(311)).await;
    assert_ne!(before, version(), "it has reported");
    let conditions = sim.cluster.node("n1").unwrap().status.unwrap().conditions.unwrap();
    let found = conditions.iter().find(|condition| condition.type_ == "DrainInProgress").unwrap();
    assert_eq!(found.last_heartbeat_time.as_ref().unwrap().0.to_string(), then);
}

#[tokio::test(start_paused = true)]
async fn no_controller_works_while_another_takes_over() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("web", 2)).add(budget("web").min_available(1));
    sim.running("web", 2).await;
    sim.cluster.change_leader();
    let (gone, _) = running(&sim.cluster, "web").remove(0);
    sim.pods().delete(&gone, &DeleteParams::default()).await.unwrap();
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    sim.nodes().patch("n1", &PatchParams::default(), &patch).await.unwrap();
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(sim.cluster.list::<Pod>().len(), 1, "nobody takes its place");
    assert!(taints(&sim.cluster, "n1").is_empty(), "nobody writes the cordon down");
    sim.until("another takes its place", |cluster| cluster.list::<Pod>().len() == 2).await;
    let cordoned = ["node.kubernetes.io/unschedulable"];
    sim.until("the cordon is written down", |cluster| taints(cluster, "n1") == cordoned).await;
}
