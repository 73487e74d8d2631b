//! Scheduler, ReplicaSets, DaemonSets, and the collectors.

use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams};
use serde_json::json;

use super::*;
use crate::sim::span::Span;

const CA_TAINT: &str = "ToBeDeletedByClusterAutoscaler";

async fn taint(sim: &Sim, node: &str, key: &str, effect: &str) {
    let patch =
        Patch::Merge(json!({ "spec": { "taints": [{ "key": key, "value": "1", "effect": effect }] } }));
    sim.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
}

fn on(cluster: &Cluster, app: &str, node: &str) -> Vec<String> {
    running(cluster, app).into_iter().filter(|(_, at)| at == node).map(|(pod, _)| pod).collect()
}

#[tokio::test(start_paused = true)]
async fn pods_are_spread_over_the_nodes_that_have_room() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2")).add(node("n3")).add(replica_set("web", 6));
    sim.running("web", 6).await;
    for node in ["n1", "n2", "n3"] {
        assert_eq!(on(&sim.cluster, "web", node).len(), 2, "{node}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_fits_nowhere_is_marked_and_scheduled_when_a_node_comes() {
    let sim = sim();
    sim.cluster.add(node("small").cpu(1)).add(node("tainted").taint("gpu", "", "NoSchedule"));
    sim.cluster.add(pod("big").cpu_millis(3000));
    let unschedulable = |cluster: &Cluster| {
        let status = cluster.pod("big").unwrap().status.unwrap();
        status.conditions.unwrap_or_default().iter().any(|condition| {
            (condition.type_.as_str(), condition.reason.as_deref()) == ("PodScheduled", Some("Unschedulable"))
        })
    };
    sim.until("it is marked", unschedulable).await;
    sim.cluster.register_node(node("large").cpu(8).boots_after(40));
    sim.running("big", 1).await;
    assert_eq!(on(&sim.cluster, "big", "large"), ["big"]);
}

#[tokio::test(start_paused = true)]
async fn taints_selectors_and_pod_counts_are_respected() {
    let sim = sim();
    sim.cluster
        .add(node("n1").taint("gpu", "", "NoSchedule"))
        .add(node("n2").label("disk", "ssd"))
        .add(node("n3").pods(1));
    sim.cluster.add(pod("gpu").tolerates("gpu", "NoSchedule").node_selector("kubernetes.io/hostname", "n1"));
    sim.cluster.add(pod("ssd").node_selector("disk", "ssd"));
    sim.running("gpu", 1).await;
    sim.running("ssd", 1).await;
    sim.cordon("n2").await;
    sim.cluster.add(pod("first"));
    sim.running("first", 1).await;
    sim.cluster.add(pod("second"));
    tokio::time::sleep(LONG).await;
    let node = |app: &str| running(&sim.cluster, app).first().map(|(_, node)| node.clone());
    assert_eq!(node("gpu").as_deref(), Some("n1"));
    assert_eq!(node("ssd").as_deref(), Some("n2"));
    assert_eq!(node("first").as_deref(), Some("n3"));
    assert_eq!(node("second"), None);
}

#[tokio::test(start_paused = true)]
async fn an_evicted_replica_comes_back_elsewhere() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("web", 3).exits_after(20));
    sim.running("web", 3).await;
    sim.cluster.add(node("n2"));
    sim.cordon("n1").await;
    for (pod, _) in running(&sim.cluster, "web") {
        sim.pods().evict(&pod, &EvictParams::default()).await.unwrap();
    }
    sim.running("web", 3).await;
    assert_eq!(on(&sim.cluster, "web", "n2").len(), 3);
    assert_eq!(sim.cluster.pods_on("n1").len(), 3, "the old ones are still exiting");
    sim.until("n1 is empty", |cluster| cluster.pods_on("n1").is_empty()).await;
    assert_eq!(sim.cluster.count(|entry| matches!(entry.what, Event::PodExited { .. })), 3);
}

#[tokio::test(start_paused = true)]
async fn a_replica_set_shrinks_and_takes_its_pods_with_it() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("web", 4));
    sim.running("web", 4).await;
    let api: Api<ReplicaSet> = Api::default_namespaced(sim.client.clone());
    let fewer = Patch::Merge(json!({ "spec": { "replicas": 1 } }));
    api.patch("web", &PatchParams::default(), &fewer).await.unwrap();
    sim.running("web", 1).await;
    assert_eq!(api.get("web").await.unwrap().status.unwrap().replicas, 1);
    api.delete("web", &DeleteParams::default()).await.unwrap();
    sim.until("its pods are gone", |cluster| cluster.list::<Pod>().is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn an_orphaning_delete_leaves_the_pods_without_an_owner() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("logs"));
    sim.running("logs", 1).await;
    let api: Api<DaemonSet> = Api::default_namespaced(sim.client.clone());
    api.delete("logs", &DeleteParams::orphan()).await.unwrap();
    let orphan = |cluster: &Cluster| cluster.list::<Pod>().remove(0);
    sim.until("it has no owner", |cluster| orphan(cluster).owner_references().is_empty()).await;
    tokio::time::sleep(LONG).await;
    assert!(orphan(&sim.cluster).metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_has_one_pod_on_every_node_old_and_new() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("kube-system/logs"));
    sim.running("logs", 1).await;
    sim.cluster.add(node("n2"));
    sim.running("logs", 2).await;
    assert_eq!(on(&sim.cluster, "logs", "n2").len(), 1);
    let counted = |cluster: &Cluster| {
        let status = cluster.get::<DaemonSet>("kube-system/logs").unwrap().status.unwrap();
        (status.desired_number_scheduled, status.number_ready) == (2, 2)
    };
    sim.until("its status says so", counted).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemon_pod_comes_back_under_a_cordon_but_not_under_the_taint_of_cluster_autoscaler() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("logs").exits_after(3));
    sim.running("logs", 1).await;
    sim.cordon("n1").await;
    let (old, _) = running(&sim.cluster, "logs").remove(0);
    sim.pods().evict(&old, &EvictParams::default()).await.unwrap();
    sim.running("logs", 1).await;
    let (new, _) = running(&sim.cluster, "logs").remove(0);
    assert_ne!(new, old);
    let came = moment(
        &sim.cluster,
        |event| matches!(event, Event::PodScheduled { pod, .. } if *pod == new.as_str()),
    );
    let left =
        moment(&sim.cluster, |event| matches!(event, Event::PodExited { pod, .. } if *pod == old.as_str()));
    assert!(left < came, "a replacement waits for the old pod to be gone");

    taint(&sim, "n1", CA_TAINT, "NoSchedule").await;
    tokio::time::sleep(LONG).await;
    assert_eq!(running(&sim.cluster, "logs").len(), 1, "the taint drives nobody out");
    sim.pods().evict(&new, &EvictParams::default()).await.unwrap();
    tokio::time::sleep(LONG).await;
    assert!(running(&sim.cluster, "logs").is_empty(), "the taint keeps it from coming back");
}

#[tokio::test(start_paused = true)]
async fn a_daemon_pod_with_the_toleration_comes_back_under_the_taint_too() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("logs").tolerates(CA_TAINT, "NoSchedule"));
    sim.running("logs", 1).await;
    taint(&sim, "n1", CA_TAINT, "NoSchedule").await;
    let (old, _) = running(&sim.cluster, "logs").remove(0);
    sim.pods().evict(&old, &EvictParams::default()).await.unwrap();
    sim.running("logs", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_tolerates_everything_comes_back_to_a_cordoned_node() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("cilium", 1).tolerates_everything().exits_after(3));
    sim.running("cilium", 1).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    sim.cordon("n1").await;
    taint(&sim, "n1", CA_TAINT, "NoSchedule").await;
    for _ in 0..3 {
        let asked = sim.now();
        let (old, _) = running(&sim.cluster, "cilium").remove(0);
        sim.pods().evict(&old, &EvictParams::default()).await.unwrap();
        sim.running("cilium", 1).await;
        let (new, node) = running(&sim.cluster, "cilium").remove(0);
        assert_eq!((new != old, node.as_str()), (true, "n1"));
        let created = sim.cluster.pod(new.as_str()).unwrap().creation_timestamp().unwrap().0;
        assert!(created.duration_since(asked).as_secs() >= 0, "made at {created}, asked for at {asked}");
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_of_another_api_is_one_too() {
    let sim = sim();
    let own = pod("own").on("n1").annotation("cluster-autoscaler.kubernetes.io/daemonset-pod", "true");
    sim.cluster
        .add(node("n1"))
        .add(daemon_set("agent"))
        .add(pod("kruise").on("n1").owned_by_api("apps.kruise.io/v1beta1", "DaemonSet", "agent"))
        .add(own);
    sim.running("kruise", 1).await;
    sim.running("agent", 1).await;
    let owner = sim.cluster.pod("kruise").unwrap().owner_references().to_vec().remove(0);
    let agent: Api<DaemonSet> = Api::default_namespaced(sim.client.clone());
    let agent = agent.get("agent").await.unwrap();
    assert_eq!(owner.api_version, "apps.kruise.io/v1beta1");
    assert_ne!(Some(owner.uid), agent.uid(), "the set of the same name is another");
    assert_eq!(sim.cluster.workloads_on("n1"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cordon_is_written_down_as_a_taint_until_it_is_lifted() {
    let sim = sim();
    sim.cluster.add(node("n1").taint("mine", "", "NoSchedule"));
    let taints = |cluster: &Cluster| -> Vec<String> {
        let taints = cluster.node("n1").unwrap().spec.unwrap().taints.unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect()
    };
    sim.cordon("n1").await;
    sim.until("the taint is there", |cluster| {
        taints(cluster) == ["mine", "node.kubernetes.io/unschedulable"]
    })
    .await;
    sim.nodes().uncordon("n1").await.unwrap();
    sim.until("the taint is gone", |cluster| taints(cluster) == ["mine"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_no_execute_taint_evicts_pods_that_do_not_tolerate_it() {
    let sim = sim();
    sim.cluster
        .add(node("n1"))
        .add(pod("stays").on("n1").tolerates("gone", "NoExecute"))
        .add(pod("goes").on("n1"));
    sim.cluster.add(daemon_set("logs"));
    sim.running("goes", 1).await;
    taint(&sim, "n1", "gone", "NoExecute").await;
    sim.until("the others are gone", |cluster| cluster.list::<Pod>().len() == 1).await;
    assert!(sim.cluster.pod("stays").is_some());
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_gives_the_same_history() {
    let history = async || {
        let sim = sim();
        sim.cluster.add(node("n1")).add(node("n2")).add(replica_set("web", 5)).add(daemon_set("logs"));
        sim.running("web", 5).await;
        sim.cluster.power_off("n1");
        sim.until("n1 is gone", |cluster| !cluster.has_node("n1")).await;
        sim.running("web", 5).await;
        sim.cluster.journal()
    };
    let (first, second) = (history().await, history().await);
    assert_eq!(first, second);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_set_that_is_rolled_replaces_its_pods_one_after_the_other() {
    let sim = sim();
    for n in 1..=3 {
        sim.cluster.add(node(&format!("n{n}")));
    }
    sim.cluster.add(daemon_set("logs").exits_after(5));
    sim.running("logs", 3).await;
    let old: Vec<String> = running(&sim.cluster, "logs").into_iter().map(|(pod, _)| pod).collect();
    sim.cluster.roll("logs");
    let fresh = |cluster: &Cluster| {
        let now = running(cluster, "logs");
        assert!(now.len() >= 2, "one at a time");
        now.len() == 3 && now.iter().all(|(pod, _)| !old.contains(pod))
    };
    sim.until("all are new", fresh).await;
}

#[tokio::test(start_paused = true)]
async fn a_rolling_update_deletes_the_pod_of_a_node_that_takes_no_new_one() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2")).add(daemon_set("logs"));
    sim.running("logs", 2).await;
    taint(&sim, "n1", CA_TAINT, "NoSchedule").await;
    sim.cluster.roll("logs");
    sim.until("n1 is empty", |cluster| cluster.pods_on("n1").is_empty()).await;
    tokio::time::sleep(LONG).await;
    assert!(sim.cluster.pods_on("n1").is_empty(), "it stays so");
    assert_eq!(sim.cluster.pods_on("n2").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_daemon_pod_is_replaced_once_it_has_ended_although_its_object_is_still_there() {
    let sim = sim();
    sim.cluster.set_timing(Timing { unmount: Span::seconds(30, 30), ..Timing::brisk() });
    sim.cluster.add(node("n1")).add(daemon_set("logs").exits_after(5).starts_after(1));
    sim.running("logs", 1).await;
    let (old, _) = running(&sim.cluster, "logs").remove(0);
    sim.pods().delete(&old, &DeleteParams::default()).await.unwrap();
    sim.until("there is another", |cluster| running(cluster, "logs").iter().any(|(pod, _)| *pod != old))
        .await;
    assert!(sim.cluster.pod(old.as_str()).is_some());
    assert_eq!(sim.cluster.pods_on("n1").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_makes_a_pod_anew_when_the_object_of_its_name_is_gone() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2")).add(stateful_set("db", 3).volume("data").exits_after(20));
    sim.running("db", 3).await;
    let names: Vec<String> = running(&sim.cluster, "db").into_iter().map(|(pod, _)| pod).collect();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    let asked = sim.now();
    sim.pods().evict("db-1", &EvictParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(19)).await;
    assert_eq!(running(&sim.cluster, "db").len(), 2, "the old one is in the way");
    sim.running("db", 3).await;
    assert!(sim.now().duration_since(asked).as_secs() >= 20);
}

#[tokio::test(start_paused = true)]
async fn a_stateful_set_on_a_dead_node_waits_for_the_end_of_the_old_object() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(stateful_set("db", 1));
    sim.running("db", 1).await;
    sim.cluster.add(node("n2")).kill_kubelet("n1");
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!(running(&sim.cluster, "db").is_empty());
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    sim.running("db", 1).await;
    assert_eq!(on(&sim.cluster, "db", "n2").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_holds_its_pods_until_it_has_counted_them() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(job("batch", 2).runs_for(60));
    sim.running("batch", 2).await;
    let (evicted, _) = running(&sim.cluster, "batch").remove(0);
    assert_eq!(sim.cluster.pod(evicted.as_str()).unwrap().finalizers().len(), 1);
    sim.pods().evict(&evicted, &EvictParams::default()).await.unwrap();
    let done = |cluster: &Cluster| {
        let status = cluster.get::<Job>("batch").unwrap().status.unwrap_or_default();
        (status.succeeded, status.failed) == (Some(2), Some(1))
    };
    sim.until("two have ended well", done).await;
    assert!(sim.cluster.pod(evicted.as_str()).is_none());
    assert!(sim.cluster.list::<Pod>().iter().all(|pod| pod.finalizers().is_empty()));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_waits_for_the_end_holds_a_pod_of_a_dead_node() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(job("batch", 1).ignores_disruptions());
    sim.running("batch", 1).await;
    let (held, _) = running(&sim.cluster, "batch").remove(0);
    sim.cluster.add(node("n2")).kill_kubelet("n1");
    let is_going =
        |cluster: &Cluster| cluster.pod(held.as_str()).unwrap().metadata.deletion_timestamp.is_some();
    sim.until("it is to go", is_going).await;
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert_eq!(sim.cluster.pod(held.as_str()).unwrap().finalizers().len(), 1);
    assert_eq!(sim.cluster.list::<Pod>().len(), 1, "nobody takes its place");
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    sim.running("batch", 1).await;
}
