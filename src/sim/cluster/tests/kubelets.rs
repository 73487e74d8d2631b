//! Kubelets that die, are cut off and come back.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};
use kube::api::{DeleteParams, EvictParams};

use super::*;
use crate::sim::span::Span;

/// Two nodes, a workload and a DaemonSet pod on the first.
async fn two_nodes() -> Sim {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    sim.cluster.add(node("n1")).add(node("n2")).add(daemon_set("agent"));
    sim.cluster.add(pod("web").on("n1").exits_after(10).lines_per_second(1));
    sim.running("web", 1).await;
    sim.running("agent", 2).await;
    sim
}

fn conditions(cluster: &Cluster, pod: &str) -> Vec<PodCondition> {
    cluster.pod(pod).unwrap().status.unwrap().conditions.unwrap_or_default()
}

fn ready(cluster: &Cluster, node: &str) -> Option<String> {
    let conditions = cluster.node(node)?.status?.conditions?;
    Some(conditions.into_iter().find(|condition| condition.type_ == "Ready")?.status)
}

fn taints(cluster: &Cluster, node: &str) -> Vec<(String, String)> {
    let taints = cluster.node(node).unwrap().spec.unwrap().taints.unwrap_or_default();
    taints.into_iter().map(|taint| (taint.key, taint.effect)).collect()
}

fn is_going(cluster: &Cluster, pod: &str) -> bool {
    cluster.pod(pod).is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
}

fn exited(pod: &str) -> impl Fn(&Event) -> bool {
    move |event| matches!(event, Event::PodExited { pod: name, .. } if *name == *pod)
}

/// Seconds since `moment`.
fn since(sim: &Sim, moment: Timestamp) -> i64 {
    sim.now().duration_since(moment).as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_dead_kubelet_makes_its_node_unknown_and_its_pods_leave_and_nobody_confirms_it() {
    let sim = two_nodes().await;
    let died = sim.now();
    sim.cluster.kill_kubelet("n1");
    sim.until("the node is unknown", |cluster| ready(cluster, "n1").as_deref() == Some("Unknown")).await;
    let unknown = sim.now();
    assert!((40..=60).contains(&since(&sim, died)), "after {} s", since(&sim, died));
    let unreachable = |effect: &str| ("node.kubernetes.io/unreachable".to_owned(), effect.to_owned());
    let both = [unreachable("NoSchedule"), unreachable("NoExecute")];
    sim.until("the node is tainted", |cluster| taints(cluster, "n1") == both).await;
    let unready = |one: &PodCondition| one.type_ == "Ready" && one.status == "False";
    sim.until("the workload is not ready", |cluster| conditions(cluster, "web").iter().any(unready)).await;

    sim.until("the workload is to go", |cluster| is_going(cluster, "web")).await;
    assert!((299..=302).contains(&since(&sim, unknown)), "after {} s", since(&sim, unknown));
    let reason = |one: PodCondition| (one.type_ == "DisruptionTarget").then_some(one.reason).flatten();
    let reasons: Vec<String> = conditions(&sim.cluster, "web").into_iter().filter_map(reason).collect();
    assert_eq!(reasons, ["DeletionByTaintManager"]);
    tokio::time::sleep(Duration::from_hours(10)).await;
    assert!(is_going(&sim.cluster, "web"), "nobody confirms it");
    let agents =
        sim.cluster.pods_on("n1").into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    assert_eq!(agents.count(), 1, "the DaemonSet pod tolerates it for ever");
    assert!(sim.cluster.lines("n1").written > 36_000, "the container runs on");
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_a_node_that_was_deleted_go_within_a_minute_and_those_that_were_asked_before_have_their_grace()
 {
    let sim = two_nodes().await;
    sim.cluster.add(pod("asked").on("n1").grace(300).exits_after(200));
    sim.running("asked", 1).await;
    sim.pods().evict("asked", &EvictParams::default()).await.unwrap();
    let asked = sim.now();
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    let deleted = sim.now();
    sim.until("its pods are gone", |cluster| cluster.pods_on("n1").is_empty()).await;
    assert!((40..=60).contains(&since(&sim, deleted)), "after {} s", since(&sim, deleted));
    let collected = sim.now();
    let cut =
        |event: &Event| matches!(event, Event::CutShort { pod, by: Cut::GraceOver, .. } if *pod == *"web");
    sim.until("the other one is cut", |cluster| cluster.happened(cut)).await;
    assert_eq!(since(&sim, collected), 2);
    sim.until("it exits", |cluster| cluster.happened(exited("asked"))).await;
    assert!((199..=201).contains(&since(&sim, asked)), "after {} s", since(&sim, asked));
    assert!(!sim.cluster.has_node("n1"), "a kubelet that runs does not register again");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_ends_leaves_its_node_until_it_was_not_heard_of_for_long_enough() {
    let sim = two_nodes().await;
    let off = sim.now();
    sim.cluster.power_off("n1");
    sim.until("the node is gone", |cluster| !cluster.has_node("n1")).await;
    assert!((40..=65).contains(&since(&sim, off)), "after {} s", since(&sim, off));
    let removed = sim.now();
    sim.until("its pods are gone", |cluster| cluster.pods_on("n1").is_empty()).await;
    assert!((40..=60).contains(&since(&sim, removed)), "after {} s", since(&sim, removed));
}

#[tokio::test(start_paused = true)]
async fn the_node_of_a_dead_kubelet_goes_within_seconds_of_its_instance() {
    let sim = two_nodes().await;
    sim.cluster.kill_kubelet("n1");
    sim.until("the node is unknown", |cluster| ready(cluster, "n1").as_deref() == Some("Unknown")).await;
    tokio::time::sleep(LONG).await;
    assert!(sim.cluster.has_node("n1"), "its instance is there");
    let off = sim.now();
    sim.cluster.power_off("n1");
    sim.until("the node is gone", |cluster| !cluster.has_node("n1")).await;
    assert!(since(&sim, off) <= 5, "after {} s", since(&sim, off));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_heard_of_again_is_ready_and_keeps_its_pods() {
    let sim = two_nodes().await;
    sim.cluster.partition("n1");
    sim.until("the node is unknown", |cluster| ready(cluster, "n1").as_deref() == Some("Unknown")).await;
    tokio::time::sleep(Duration::from_secs(200)).await;
    sim.cluster.revive("n1");
    sim.until("the node is ready", |cluster| ready(cluster, "n1").as_deref() == Some("True")).await;
    sim.until("its taints are off", |cluster| taints(cluster, "n1").is_empty()).await;
    sim.running("web", 1).await;
    tokio::time::sleep(LONG).await;
    assert!(!is_going(&sim.cluster, "web"), "the time it tolerated begins anew");
}

#[tokio::test(start_paused = true)]
async fn behind_a_partition_the_kubelet_ends_pods_as_told_and_says_so_later() {
    let sim = two_nodes().await;
    sim.pods().evict("web", &EvictParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    sim.cluster.partition("n1");
    sim.until("it exits", |cluster| cluster.happened(exited("web"))).await;
    tokio::time::sleep(LONG).await;
    assert!(is_going(&sim.cluster, "web"), "the API server does not know");
    sim.cluster.revive("n1");
    sim.until("the pod is gone", |cluster| cluster.pod("web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_kubelet_kills_nobody_and_asks_again_with_the_whole_grace_when_it_is_back() {
    let sim = two_nodes().await;
    sim.cluster.add(pod("slow").on("n1").grace(20).exits_after(5_000));
    sim.running("slow", 1).await;
    sim.pods().delete("slow", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    sim.cluster.kill_kubelet("n1");
    tokio::time::sleep(LONG).await;
    assert!(!sim.cluster.happened(|event| matches!(event, Event::CutShort { .. })));
    sim.cluster.revive("n1");
    let back = sim.now();
    sim.until("it is cut", |cluster| cluster.happened(|event| matches!(event, Event::CutShort { .. }))).await;
    assert_eq!(since(&sim, back), 20);
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_while_nobody_heard_ends_when_the_node_is_back() {
    let sim = two_nodes().await;
    sim.cluster.partition("n1");
    sim.pods().delete("web", &DeleteParams::default().grace_period(0)).await.unwrap();
    tokio::time::sleep(LONG).await;
    assert!(!sim.cluster.happened(exited("web")), "it runs on");
    sim.cluster.revive("n1");
    sim.until("it is cut", |cluster| cluster.happened(|event| matches!(event, Event::CutShort { .. }))).await;
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_crashed_starts_its_pods_again_when_it_has_booted() {
    let sim = two_nodes().await;
    sim.cluster.crash("n1");
    assert!(sim.cluster.happened(|event| matches!(event, Event::CutShort { by: Cut::PowerOff, .. })));
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert!(running(&sim.cluster, "web").is_empty());
    sim.cluster.revive("n1");
    sim.running("web", 1).await;
    sim.running("agent", 2).await;
}

#[tokio::test(start_paused = true)]
async fn where_no_node_is_ready_nobody_is_driven_out() {
    let sim = two_nodes().await;
    sim.cluster.kill_kubelet("n1");
    sim.cluster.kill_kubelet("n2");
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(!is_going(&sim.cluster, "web"));
    sim.cluster.revive("n2");
    sim.until("the workload is to go", |cluster| is_going(cluster, "web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_adopts_the_node_of_an_earlier_machine_of_its_name() {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    sim.cluster.add(node("n1").provider_id("aws:///us-east-1a/i-1").annotation("mine", "old"));
    sim.cordon("n1").await;
    sim.cluster.power_off("n1");
    sim.cluster.register_node(node("n1").provider_id("aws:///us-east-1a/i-2").boots_after(20));
    sim.until("the node is ready", |cluster| ready(cluster, "n1").as_deref() == Some("True")).await;
    tokio::time::sleep(LONG).await;
    let adopted = sim.cluster.node("n1").unwrap();
    assert_eq!(adopted.metadata.annotations.unwrap()["mine"], "old");
    let spec = adopted.spec.unwrap();
    assert_eq!(spec.provider_id.as_deref(), Some("aws:///us-east-1a/i-1"));
    assert_eq!(spec.unschedulable, Some(true));
    assert_eq!(ready(&sim.cluster, "n1").as_deref(), Some("True"), "nobody removes it");
}

#[tokio::test(start_paused = true)]
async fn a_new_machine_starts_the_pods_of_an_earlier_one_of_its_name_and_ends_those_that_are_to_go() {
    let sim = two_nodes().await;
    sim.cluster.add(pod("stays").on("n1"));
    sim.running("stays", 1).await;
    sim.cluster.power_off("n1");
    sim.pods().evict("web", &EvictParams::default()).await.unwrap();
    sim.until("the node is gone", |cluster| !cluster.has_node("n1")).await;
    // The collector has not come to them when the name is taken again.
    sim.cluster.register_node(node("n1").boots_after(20));
    sim.until("the one that is to go is gone", |cluster| cluster.pod("web").is_none()).await;
    let starts = |entry: &Entry| matches!(&entry.what, Event::PodRunning { pod, .. } if *pod == *"stays");
    sim.until("the other one starts", |cluster| cluster.count(starts) == 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_that_finds_a_pod_that_had_ended_and_is_to_go_has_it_removed() {
    let sim = two_nodes().await;
    sim.cluster.set_timing(Timing { unmount: Span::seconds(30, 30), ..Timing::real() });
    sim.pods().evict("web", &EvictParams::default()).await.unwrap();
    sim.until("it has ended", |cluster| {
        cluster.pod("web").unwrap().status.unwrap().phase.as_deref() == Some("Succeeded")
    })
    .await;
    sim.cluster.crash("n1");
    tokio::time::sleep(LONG).await;
    assert!(is_going(&sim.cluster, "web"), "nobody confirms it");
    sim.cluster.revive("n1");
    sim.until("the pod is gone", |cluster| cluster.pod("web").is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_kubelet_gives_the_whole_grace_again_and_registers_a_node_that_is_gone() {
    let sim = two_nodes().await;
    sim.cluster.set_timing(Timing::brisk());
    sim.cluster.add(pod("slow").on("n1").grace(20).exits_after(5_000));
    sim.running("slow", 1).await;
    let asked = sim.now();
    sim.pods().delete("slow", &DeleteParams::default()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    sim.cluster.restart_kubelet("n1");
    sim.until("it is cut", |cluster| cluster.happened(|event| matches!(event, Event::CutShort { .. }))).await;
    assert_eq!(since(&sim, asked), 10 + 5 + 20);
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    sim.cluster.restart_kubelet("n1");
    sim.until("it is there again", |cluster| ready(cluster, "n1").as_deref() == Some("True")).await;
}

#[tokio::test(start_paused = true)]
async fn the_pre_stop_hook_and_the_sidecars_share_the_grace_and_get_two_seconds_whatever_is_left_of_it() {
    for (spec, seconds, whole) in [
        (pod("web").grace(30).pre_stop(5).exits_after(3), 8, true),
        (pod("web").grace(30).exits_after(3).sidecars_exit_after(9), 12, true),
        (pod("web").grace(10).pre_stop(60).exits_after(1), 11, true),
        (pod("web").grace(10).pre_stop(60).exits_after(5), 12, false),
        (pod("web").grace(10).exits_after(9).sidecars_exit_after(2), 11, true),
        (pod("web").grace(10).exits_after(9).sidecars_exit_after(5), 11, false),
    ] {
        let sim = sim();
        sim.cluster.add(node("n1")).add(spec.on("n1"));
        sim.running("web", 1).await;
        let asked = sim.now();
        sim.pods().delete("web", &DeleteParams::default()).await.unwrap();
        sim.until("it is gone", |cluster| cluster.pod("web").is_none()).await;
        assert_eq!((since(&sim, asked), sim.cluster.happened(exited("web"))), (seconds, whole));
    }
}

#[tokio::test(start_paused = true)]
async fn containers_that_crash_are_started_again_at_once_and_later_each_time() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("logs").starts_after(1));
    sim.running("logs", 1).await;
    let (pod, _) = running(&sim.cluster, "logs").remove(0);
    let is_up = |cluster: &Cluster| {
        let status = cluster.pod(pod.as_str()).and_then(|pod| pod.status).unwrap_or_default();
        assert_eq!(status.phase.as_deref(), Some("Running"));
        let containers = status.container_statuses.unwrap_or_default();
        let state = |one: &ContainerStatus| one.state.clone().unwrap_or_default();
        assert!(containers.iter().all(|one| one.ready == state(one).running.is_some()));
        (containers.iter().all(|one| one.ready), containers[0].restart_count)
    };
    for (restarts, pause) in [(1, 1), (2, 11), (3, 21)] {
        sim.cluster.crash_pod(pod.as_str());
        let crashed = sim.now();
        sim.until("it is down", |cluster| is_up(cluster) == (false, restarts)).await;
        sim.until("it is up", |cluster| is_up(cluster) == (true, restarts)).await;
        assert_eq!(sim.now().duration_since(crashed).as_secs(), pause);
    }
}
