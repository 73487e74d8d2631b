//! Machines: boot, power-off, log lines, volumes.

use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::api::{DeleteParams, EvictParams};

use super::*;

/// A node with a chatty workload that needs 10 s to exit, and a log shipper.
async fn chatty() -> Sim {
    let sim = sim();
    sim.cluster.add(node("n1").provider_id("aws:///us-east-1a/i-1"));
    sim.cluster.add(daemon_set("kube-system/shipper").log_shipper());
    sim.cluster.add(replica_set("web", 2).exits_after(10).lines_per_second(10).last_lines(7));
    sim.running("web", 2).await;
    sim.running("shipper", 1).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    sim
}

async fn drain(sim: &Sim, node: &str) {
    sim.cordon(node).await;
    for (pod, _) in running(&sim.cluster, "web") {
        sim.pods().evict(&pod, &EvictParams::default()).await.unwrap();
    }
    let left = |cluster: &Cluster| cluster.pods_on(node).len() == 1;
    sim.until("only the DaemonSet pod is left", left).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_drained_and_flushed_before_it_goes_loses_no_line() {
    let sim = chatty().await;
    drain(&sim, "n1").await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    sim.cluster.power_off("n1");
    let lines = sim.cluster.lines("n1");
    assert!(lines.written >= 2 * (70 * 10 + 7), "{lines:?}");
    assert_eq!((lines.shipped, lines.lost), (lines.written, 0));
    let bad = |event: &Event| matches!(event, Event::LinesLost { .. } | Event::CutShort { .. });
    assert!(!sim.cluster.happened(bad));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_goes_right_after_the_last_exit_loses_the_last_lines() {
    let sim = chatty().await;
    drain(&sim, "n1").await;
    sim.cluster.power_off("n1");
    let lines = sim.cluster.lines("n1");
    assert!(lines.lost >= 14, "{lines:?}");
    assert_eq!(lines.shipped + lines.lost, lines.written);
    assert!(sim.cluster.happened(|event| matches!(event, Event::LinesLost { node, count }
        if node == "n1" && *count == lines.lost)));
}

#[tokio::test(start_paused = true)]
async fn lines_from_before_a_crash_are_not_forgotten_when_the_machine_comes_back() {
    let sim = chatty().await;
    let runs = |cluster: &Cluster| {
        cluster.count(
            |entry| matches!(&entry.what, Event::PodRunning { pod, .. } if pod.name.starts_with("web")),
        )
    };
    let before = (runs(&sim.cluster), sim.cluster.lines("n1").written);
    sim.cluster.crash("n1");
    sim.cluster.revive("n1");
    sim.until("the pods start again", |cluster| runs(cluster) > before.0).await;
    assert!(sim.cluster.lines("n1").written >= before.1);
    sim.cluster.power_off("n1");
    let lines = sim.cluster.lines("n1");
    assert_eq!(lines.shipped + lines.lost, lines.written);
}

#[tokio::test(start_paused = true)]
async fn a_shipper_that_is_asked_first_ships_what_is_there_and_misses_the_rest() {
    let sim = chatty().await;
    let (shipper, _) = running(&sim.cluster, "shipper").remove(0);
    let system: Api<Pod> = Api::namespaced(sim.client.clone(), "kube-system");
    // As cluster-autoscaler does by default: all pods at once, under its taint.
    sim.cluster.add(node("n2"));
    let taint = serde_json::json!({ "spec": { "taints": [{ "key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule" }] } });
    let patch = kube::api::Patch::Merge(taint);
    sim.nodes().patch("n1", &kube::api::PatchParams::default(), &patch).await.unwrap();
    system.evict(&shipper, &EvictParams::default()).await.unwrap();
    for (pod, _) in running(&sim.cluster, "web") {
        sim.pods().evict(&pod, &EvictParams::default()).await.unwrap();
    }
    sim.until("n1 is empty", |cluster| cluster.pods_on("n1").is_empty()).await;
    sim.cluster.power_off("n1");
    let lines = sim.cluster.lines("n1");
    // Nine of the ten seconds that two pods needed to exit, and their last lines.
    assert_eq!(lines.lost, 2 * (9 * 10 + 7), "{lines:?}");
}

#[tokio::test(start_paused = true)]
async fn a_power_off_cuts_workloads_short_then_the_node_goes_then_its_pods() {
    let sim = chatty().await;
    let off = sim.now();
    sim.cluster.power_off("n1");
    let cuts =
        |entry: &Entry| matches!(entry.what, Event::CutShort { by: Cut::PowerOff, .. }) && entry.at == off;
    assert_eq!(sim.cluster.count(cuts), 2, "the DaemonSet pod does not count");
    assert_eq!(sim.cluster.pods_on("n1").len(), 3, "the API does not know yet");
    sim.until("the node is gone", |cluster| !cluster.has_node("n1")).await;
    sim.until("its pods are gone", |cluster| cluster.pods_on("n1").is_empty()).await;
    let removed = moment(&sim.cluster, |event| matches!(event, Event::NodeRemoved { .. }));
    assert_eq!(removed.duration_since(off).as_secs(), 5);
    sim.cluster.add(node("n2"));
    sim.running("web", 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_is_switched_off_while_it_boots_never_registers() {
    let sim = sim();
    sim.cluster.register_node(node("n1").boots_after(30));
    sim.cluster.power_off("n1");
    tokio::time::sleep(LONG).await;
    assert!(sim.cluster.node_names().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_released_some_seconds_after_its_pod_and_only_then_used_elsewhere() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("db", 1).volume("data").detaches_after(4));
    sim.running("db", 1).await;
    let attachments: Api<VolumeAttachment> = Api::all(sim.client.clone());
    let on = |cluster: &Cluster| -> Vec<String> {
        cluster.list::<VolumeAttachment>().into_iter().map(|attachment| attachment.spec.node_name).collect()
    };
    assert_eq!(on(&sim.cluster), ["n1"]);
    assert_eq!(attachments.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 1);
    sim.cluster.add(node("n2"));
    sim.cordon("n1").await;
    let (pod, _) = running(&sim.cluster, "db").remove(0);
    sim.pods().delete(&pod, &DeleteParams::default()).await.unwrap();
    sim.until("it is on the other node", |cluster| on(cluster) == ["n2"]).await;
    let moved = sim.now();
    let exited = moment(&sim.cluster, |event| matches!(event, Event::PodExited { .. }));
    assert_eq!(moved.duration_since(exited).as_secs(), 4);
    sim.running("db", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_a_machine_that_died_in_use_takes_six_minutes() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("db", 1).volume("data"));
    sim.running("db", 1).await;
    sim.cluster.add(node("n2"));
    sim.cluster.power_off("n1");
    let off = sim.now();
    sim.running("db", 0).await;
    sim.running("db", 1).await;
    assert!(sim.now().duration_since(off).as_secs() > 360);
}

#[tokio::test(start_paused = true)]
async fn without_the_driver_on_its_node_nothing_is_unmounted_and_nothing_detached() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("csi").csi_driver()).add(replica_set("db", 1).volume("data"));
    sim.running("db", 1).await;
    let taint = serde_json::json!({ "spec": { "taints": [{ "key": "stop", "effect": "NoSchedule" }] } });
    let (nodes, params) = (sim.nodes(), kube::api::PatchParams::default());
    nodes.patch("n1", &params, &kube::api::Patch::Merge(taint)).await.unwrap();
    for app in ["csi", "db"] {
        let (pod, _) = running(&sim.cluster, app).remove(0);
        sim.pods().evict(&pod, &EvictParams::default()).await.unwrap();
    }
    tokio::time::sleep(Duration::from_hours(2)).await;
    let held = sim.cluster.pods_on("n1");
    assert_eq!(held.len(), 1, "the pod object waits for the unmount");
    assert_eq!(held[0].status.as_ref().unwrap().phase.as_deref(), Some("Succeeded"));
    assert_eq!(sim.cluster.list::<VolumeAttachment>().len(), 1);
    let open = serde_json::json!({ "spec": { "taints": null } });
    nodes.patch("n1", &params, &kube::api::Patch::Merge(open)).await.unwrap();
    sim.running("csi", 1).await;
    sim.running("db", 1).await;
}

/// Not before nothing has been heard of it for a while, and until it is Ready again.
#[tokio::test(start_paused = true)]
async fn the_cloud_controller_taints_the_node_of_a_stopped_instance_until_it_is_ready_again() {
    let sim = sim();
    sim.cluster.add(node("n1").provider_id("aws:///us-east-1a/i-1"));
    let is_tainted = |cluster: &Cluster| {
        let taints = cluster.node("n1").and_then(|node| node.spec?.taints).unwrap_or_default();
        taints.iter().any(|taint| taint.key == "node.cloudprovider.kubernetes.io/shutdown")
    };
    sim.cluster.crash("n1");
    sim.cluster.stopped("n1");
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(!is_tainted(&sim.cluster));
    sim.until("it is tainted", is_tainted).await;
    sim.cluster.revive("n1");
    sim.until("it is so no more", |cluster| !is_tainted(cluster)).await;
    // One that is only not heard of is not.
    sim.cluster.crash("n1");
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert!(!is_tainted(&sim.cluster));
}
