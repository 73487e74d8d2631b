//! Deletion, graceful and not.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use super::*;

fn grace(seconds: u32) -> DeleteParams {
    DeleteParams::default().grace_period(seconds)
}

/// Waits until its containers end so. How many seconds after `asked` that is.
async fn ends_after(sim: &Sim, asked: Timestamp, so: impl Fn(&Event) -> bool) -> i64 {
    sim.until("they end", |cluster| cluster.happened(&so)).await;
    moment(&sim.cluster, so).duration_since(asked).as_secs()
}

#[tokio::test(start_paused = true)]
async fn a_running_pod_is_given_its_grace_and_goes_when_it_has_exited() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web-1").on("n1").grace(30).exits_after(10));
    sim.running("web-1", 1).await;
    let asked = sim.now();
    let going = sim.pods().delete("web-1", &DeleteParams::default()).await.unwrap().unwrap_left();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    let until = going.metadata.deletion_timestamp.unwrap().0;
    // Timestamps in objects are cut to seconds.
    assert!((29..=30).contains(&until.duration_since(asked).as_secs()), "{until}");
    sim.until("the pod is gone", |cluster| cluster.pod("web-1").is_none()).await;
    let exited =
        moment(&sim.cluster, |event| matches!(event, Event::PodExited { pod, .. } if *pod == "web-1"));
    assert_eq!(exited.duration_since(asked).as_secs(), 10);
    assert!(!sim.cluster.happened(|event| matches!(event, Event::CutShort { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_needs_longer_than_its_grace_is_cut_short() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("slow").on("n1").grace(5).exits_after(20));
    sim.running("slow", 1).await;
    let asked = sim.now();
    sim.pods().delete("slow", &DeleteParams::default()).await.unwrap();
    sim.until("the pod is gone", |cluster| cluster.pod("slow").is_none()).await;
    let cut = moment(
        &sim.cluster,
        |event| matches!(event, Event::CutShort { pod, node, by: Cut::GraceOver } if *pod == "slow" && node == "n1"),
    );
    assert_eq!(cut.duration_since(asked).as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_second_delete_can_shorten_but_not_lengthen() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("slow").on("n1").grace(60).exits_after(50));
    sim.running("slow", 1).await;
    sim.pods().delete("slow", &DeleteParams::default()).await.unwrap();
    let longer = sim.pods().delete("slow", &grace(120)).await.unwrap().unwrap_left();
    assert_eq!(longer.metadata.deletion_grace_period_seconds, Some(60));
    let before = sim.now();
    let shorter = sim.pods().delete("slow", &grace(7)).await.unwrap().unwrap_left();
    assert_eq!(shorter.metadata.deletion_grace_period_seconds, Some(7));
    assert_eq!(ends_after(&sim, before, |event| matches!(event, Event::CutShort { .. })).await, 7);
}

#[tokio::test(start_paused = true)]
async fn no_grace_removes_the_object_at_once_and_leaves_the_containers_two_seconds() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web").on("n1").grace(300).exits_after(20));
    sim.running("web", 1).await;
    let asked = sim.now();
    sim.pods().delete("web", &grace(0)).await.unwrap();
    assert!(sim.cluster.pod("web").is_none());
    assert_eq!(ends_after(&sim, asked, |event| matches!(event, Event::CutShort { .. })).await, 2);
}

/// The API server has the shorter grace, and what runs has the first one.
#[tokio::test(start_paused = true)]
async fn less_grace_in_a_second_delete_is_too_late_for_containers_that_have_been_asked() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web").on("n1").grace(60).exits_after(40));
    sim.running("web", 1).await;
    let asked = sim.now();
    // What would have been over before is over now.
    for (seconds, ends) in [(60, 60), (3, 5), (1, 5)] {
        let going = sim.pods().delete("web", &grace(seconds)).await.unwrap().unwrap_left().metadata;
        assert_eq!(going.deletion_grace_period_seconds, Some(if ends == 60 { 60 } else { 1 }));
        let ends_after = going.deletion_timestamp.unwrap().0.duration_since(asked);
        assert!((ends - 1..=ends).contains(&ends_after.as_secs()), "{ends_after}");
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    sim.pods().delete("web", &grace(0)).await.unwrap();
    assert!(sim.cluster.pod("web").is_none());
    assert_eq!(ends_after(&sim, asked, |event| matches!(event, Event::PodExited { .. })).await, 40);
}

#[tokio::test(start_paused = true)]
async fn sigkill_comes_two_seconds_after_sigterm_at_the_soonest() {
    let sim = sim();
    sim.cluster
        .add(node("n1"))
        .add(pod("quick").on("n1").exits_after(1))
        .add(pod("slow").on("n1").exits_after(9));
    sim.running("quick", 1).await;
    let asked = sim.now();
    for pod in ["quick", "slow"] {
        sim.pods().delete(pod, &grace(1)).await.unwrap();
    }
    sim.until("both are gone", |cluster| cluster.list::<Pod>().is_empty()).await;
    let cuts: Vec<Entry> =
        sim.cluster.journal().into_iter().filter(|e| matches!(e.what, Event::CutShort { .. })).collect();
    assert_eq!(cuts.len(), 1, "{cuts:?}");
    assert_eq!(cuts[0].at.duration_since(asked).as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn unscheduled_and_finished_pods_are_removed_at_once() {
    let sim = sim();
    sim.cluster.add(pod("waiting"));
    sim.pods().delete("waiting", &DeleteParams::default()).await.unwrap();
    assert!(sim.cluster.pod("waiting").is_none());

    sim.cluster.add(node("n1")).add(pod("job").on("n1").runs_for(5));
    let succeeded =
        |cluster: &Cluster| cluster.pod("job").unwrap().status.unwrap().phase.as_deref() == Some("Succeeded");
    sim.until("the job is done", succeeded).await;
    sim.pods().delete("job", &DeleteParams::default()).await.unwrap();
    assert!(sim.cluster.pod("job").is_none());
}

#[tokio::test(start_paused = true)]
async fn preconditions_guard_a_delete() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web-1").on("n1"));
    let pod = sim.pods().get("web-1").await.unwrap();
    let given = |uid: Option<String>, resource_version: Option<String>| {
        DeleteParams::default().preconditions(Preconditions { uid, resource_version })
    };
    for wrong in [given(Some("other".to_owned()), None), given(None, Some("1".to_owned()))] {
        let status = refused(sim.pods().delete("web-1", &wrong).await);
        assert!(status.is_conflict(), "{status:?}");
        assert!(status.message.contains("in the precondition"), "{}", status.message);
    }
    sim.pods().delete("web-1", &given(pod.uid(), pod.resource_version())).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_holds_an_object_until_it_is_taken_off() {
    let sim = sim();
    let api: Api<ConfigMap> = Api::default_namespaced(sim.client.clone());
    let held = json!({ "metadata": { "name": "held", "finalizers": ["example.com/wait"] } });
    api.create(&PostParams::default(), &serde_json::from_value(held).unwrap()).await.unwrap();
    let held = api.delete("held", &DeleteParams::default()).await.unwrap().unwrap_left();
    assert!(held.metadata.deletion_timestamp.is_some());
    let release = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
    api.patch("held", &PatchParams::default(), &release).await.unwrap();
    assert!(refused(api.get("held").await).is_not_found());

    sim.cluster.add(node("n1"));
    let kept = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/wait"] } }));
    sim.nodes().patch("n1", &PatchParams::default(), &kept).await.unwrap();
    for _ in 0..2 {
        let held = sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap().unwrap_left();
        assert!(held.metadata.deletion_timestamp.is_some() && held.metadata.finalizers.is_some());
    }
    sim.nodes().patch("n1", &PatchParams::default(), &release).await.unwrap();
    assert!(refused(sim.nodes().get("n1").await).is_not_found());

    sim.cluster.add(node("n1")).add(pod("kept").on("n1").finalizer("example.com/wait"));
    sim.running("kept", 1).await;
    sim.pods().delete("kept", &DeleteParams::default()).await.unwrap();
    let phase = |cluster: &Cluster| cluster.pod("kept").unwrap().status.unwrap().phase;
    sim.until("it has exited", |cluster| phase(cluster).as_deref() == Some("Succeeded")).await;
    tokio::time::sleep(LONG).await;
    assert!(sim.cluster.pod("kept").is_some());
    sim.pods().patch("kept", &PatchParams::default(), &release).await.unwrap();
    assert!(sim.cluster.pod("kept").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_collection_is_deleted_by_its_label() {
    let sim = sim();
    sim.cluster.add(pod("a").label("batch", "1")).add(pod("b").label("batch", "1")).add(pod("c"));
    let some = ListParams::default().labels("batch=1");
    sim.pods().delete_collection(&DeleteParams::default(), &some).await.unwrap();
    assert_eq!(sim.cluster.list::<Pod>().len(), 1);
}

/// The largest grace period that an API server was seen to take.
const ABSURD: i64 = 9_000_000_000_000_000_000;

#[tokio::test(start_paused = true)]
async fn the_deletion_timestamp_of_an_absurd_grace_lies_in_the_past_and_nobody_is_cut() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("endless").on("n1").grace(ABSURD).exits_after(40));
    sim.running("endless", 1).await;
    let going = sim.pods().delete("endless", &DeleteParams::default()).await.unwrap().unwrap_left();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(ABSURD));
    assert_eq!(going.metadata.deletion_timestamp.unwrap().0.strftime("%Y").to_string(), "1803");
    sim.until("the pod is gone", |cluster| cluster.pod("endless").is_none()).await;
    assert!(!sim.cluster.happened(|event| matches!(event, Event::CutShort { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_absurd_grace_can_be_shortened() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("endless").on("n1").grace(ABSURD).exits_after(4_000));
    sim.running("endless", 1).await;
    let asked = sim.now();
    sim.pods().delete("endless", &DeleteParams::default()).await.unwrap();
    let shorter = sim.pods().delete("endless", &grace(5)).await.unwrap().unwrap_left();
    let until = shorter.metadata.deletion_timestamp.unwrap().0;
    assert!((3..=5).contains(&until.duration_since(asked).as_secs()), "{until}");
    sim.until("the pod is cut", |cluster| cluster.happened(|event| matches!(event, Event::CutShort { .. })))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_negative_grace_is_one_second() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("hasty").on("n1").grace(-5).exits_after(0));
    sim.running("hasty", 1).await;
    assert_eq!(
        sim.pods().get("hasty").await.unwrap().spec.unwrap().termination_grace_period_seconds,
        Some(1)
    );
}

#[tokio::test(start_paused = true)]
async fn the_journal_tells_whether_a_pod_was_marked_as_the_target_of_a_disruption() {
    let sim = sim();
    let mark = |kind: &str| json!({ "status": { "conditions": [{ "type": kind, "status": "True" }] } });
    for name in ["merged", "strategic", "unmarked", "evicted"] {
        sim.cluster.add(pod(name).on("n1"));
    }
    sim.cluster.add(node("n1"));
    sim.running("evicted", 1).await;
    let params = PatchParams::default();
    let strategic = Patch::Strategic(mark("DisruptionTarget"));
    let marked = sim.pods().patch_status("strategic", &params, &strategic).await.unwrap();
    assert!(marked.status.unwrap().conditions.unwrap().len() > 1, "the others stay");
    sim.pods().patch_status("merged", &params, &Patch::Merge(mark("DisruptionTarget"))).await.unwrap();
    sim.pods().evict("evicted", &EvictParams::default()).await.unwrap();
    for name in ["merged", "strategic", "unmarked"] {
        sim.pods().delete(name, &DeleteParams::default()).await.unwrap();
    }
    let marked: Vec<(String, bool)> = sim
        .cluster
        .journal()
        .into_iter()
        .filter_map(|entry| match entry.what {
            Event::PodAsked { pod, disruption_target, .. } => Some((pod.name, disruption_target)),
            _ => None,
        })
        .collect();
    let expected = [("evicted", true), ("merged", true), ("strategic", true), ("unmarked", false)];
    assert_eq!(marked, expected.map(|(pod, marked)| (pod.to_owned(), marked)));
}
