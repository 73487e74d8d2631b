//! The eviction subresource, rule by rule, and the arithmetic of budgets.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::*;
use crate::sim::span::Span;

impl Sim {
    async fn evict(&self, pod: &str) -> kube::Result<Status> {
        self.pods().evict(pod, &EvictParams::default()).await
    }

    /// An eviction with options, which kube's own `evict` does not manage to send.
    async fn evict_with(&self, pod: &str, options: Value) -> kube::Result<Status> {
        let body = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod }, "deleteOptions": options,
        });
        let uri = format!("/api/v1/namespaces/default/pods/{pod}/eviction");
        let request = http::Request::post(uri).header("content-type", "application/json");
        self.client.request(request.body(body.to_string().into_bytes()).unwrap()).await
    }

    fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::default_namespaced(self.client.clone())
    }

    /// A budget's status: expected, healthy, desired, allowed.
    fn account(&self, budget: &str) -> (i32, i32, i32, i32) {
        let status = self.cluster.get::<PodDisruptionBudget>(budget).unwrap().status.unwrap_or_default();
        let known = |count: Option<i32>| count.unwrap_or(-1);
        (
            known(status.expected_pods),
            known(status.current_healthy),
            known(status.desired_healthy),
            known(status.disruptions_allowed),
        )
    }

    /// Waits until the controller has reckoned all budgets, with no eviction left to count.
    async fn settle(&self) {
        let is_reckoned = |budget: PodDisruptionBudget| {
            budget.status.is_some_and(|status| {
                status.observed_generation == budget.metadata.generation && status.disrupted_pods.is_none()
            })
        };
        self.until("budgets are reckoned", |cluster| cluster.list().into_iter().all(is_reckoned)).await;
    }
}

fn causes(status: &Status) -> Vec<(String, String)> {
    let causes = status.details.as_ref().map(|details| details.causes.clone()).unwrap_or_default();
    causes.into_iter().map(|cause| (cause.reason, cause.message)).collect()
}

/// Two replicas of `web`, running on two nodes.
async fn web() -> Sim {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2")).add(replica_set("web", 2).exits_after(10));
    sim.running("web", 2).await;
    sim
}

#[tokio::test(start_paused = true)]
async fn an_eviction_without_a_budget_deletes_gracefully_and_says_why() {
    let sim = web().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let status = sim.evict(&pod).await.unwrap();
    assert!(status.is_success() && status.code == 201);
    let going = sim.cluster.pod(pod.as_str()).unwrap();
    assert_eq!(going.metadata.deletion_grace_period_seconds, Some(30));
    let conditions = going.status.unwrap().conditions.unwrap();
    let target = conditions.iter().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!(target.reason.as_deref(), Some("EvictionByEvictionAPI"));
    assert!(
        sim.cluster.happened(|event| matches!(event, Event::PodAsked { by: By::Eviction, grace: 30, .. }))
    );
    assert_eq!(sim.cluster.requests(Verb::Create, "pods/eviction"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_gone_is_not_found() {
    let sim = sim();
    assert!(refused(sim.evict("gone").await).is_not_found());
}

#[tokio::test(start_paused = true)]
async fn the_options_of_an_eviction_are_obeyed() {
    let sim = web().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let other = refused(sim.evict_with(&pod, json!({ "preconditions": { "uid": "other" } })).await);
    assert_eq!((other.code, other.reason.as_str()), (409, "Conflict"));
    let uid = sim.cluster.pod(pod.as_str()).unwrap().uid();
    let mine = json!({ "gracePeriodSeconds": 12, "preconditions": { "uid": uid } });
    sim.evict_with(&pod, mine).await.unwrap();
    assert_eq!(sim.cluster.pod(pod.as_str()).unwrap().metadata.deletion_grace_period_seconds, Some(12));
}

#[tokio::test(start_paused = true)]
async fn options_under_a_name_the_server_does_not_know_are_dropped() {
    let sim = web().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let options = DeleteParams::default().grace_period(12);
    let params = EvictParams { delete_options: Some(options), ..EvictParams::default() };
    sim.pods().evict(&pod, &params).await.unwrap();
    assert_eq!(sim.cluster.pod(pod.as_str()).unwrap().metadata.deletion_grace_period_seconds, Some(30));
}

#[tokio::test(start_paused = true)]
async fn a_budget_without_room_refuses_and_says_what_it_needs() {
    let sim = web().await;
    sim.cluster.add(budget("web").min_available(2));
    sim.settle().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let status = refused(sim.evict(&pod).await);
    assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
    assert_eq!(status.message, "Cannot evict pod as it would violate the pod's disruption budget.");
    let message = "The disruption budget web needs 2 healthy pods and has 2 currently";
    assert_eq!(causes(&status), [("DisruptionBudget".to_owned(), message.to_owned())]);
    assert!(
        sim.cluster
            .happened(|event| matches!(event, Event::EvictionRefused { budget, .. } if budget == "web"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_budget_the_controller_has_not_seen_yet_asks_for_ten_seconds() {
    let sim = web().await;
    sim.cluster.add(budget("web").min_available(1));
    sim.settle().await;
    let generous = Patch::Merge(json!({ "spec": { "minAvailable": 0 } }));
    sim.budgets().patch("web", &PatchParams::default(), &generous).await.unwrap();
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let status = refused(sim.evict(&pod).await);
    assert_eq!(status.code, 429);
    assert_eq!(status.details.as_ref().unwrap().retry_after_seconds, 10);
    assert!(causes(&status)[0].1.contains("still being processed"));
    sim.settle().await;
    sim.evict(&pod).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_allowed_eviction_is_charged_at_once_and_given_back_by_the_replacement() {
    let sim = web().await;
    sim.cluster.add(budget("web").max_unavailable(1));
    sim.settle().await;
    assert_eq!(sim.account("web"), (2, 2, 1, 1));
    let pods = running(&sim.cluster, "web");
    sim.evict(&pods[0].0).await.unwrap();
    let status = sim.cluster.get::<PodDisruptionBudget>("web").unwrap().status.unwrap();
    assert_eq!(status.disruptions_allowed, Some(0));
    assert!(status.disrupted_pods.unwrap().contains_key(&pods[0].0));
    assert_eq!(refused(sim.evict(&pods[1].0).await).code, 429);
    sim.until("the budget has room again", |_| sim.account("web") == (2, 2, 1, 1)).await;
    assert!(sim.cluster.get::<PodDisruptionBudget>("web").unwrap().status.unwrap().disrupted_pods.is_none());
    sim.evict(&pods[1].0).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn several_budgets_for_one_pod_are_an_internal_error() {
    let sim = web().await;
    sim.cluster.add(budget("web").min_available(1)).add(budget("all").selects("app", "web").min_available(1));
    sim.settle().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let status = refused(sim.evict(&pod).await);
    assert_eq!(status.code, 500);
    let message =
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    assert_eq!(status.message, message);
    assert!(sim.cluster.pod(pod.as_str()).unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn pending_finished_and_terminating_pods_need_no_budget() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(budget("web").min_available(9));
    for (name, spec) in [
        ("pending", pod("pending").cpu_millis(900_000)),
        ("done", pod("done").on("n1").runs_for(1)),
        ("going", pod("going").on("n1").exits_after(20)),
    ] {
        sim.cluster.add(spec.label("app", "web"));
        assert!(sim.cluster.pod(name).is_some());
    }
    let phase = |cluster: &Cluster, pod: &str| cluster.pod(pod).and_then(|pod| pod.status?.phase);
    let begun = [("done", "Succeeded"), ("going", "Running")];
    sim.until("one has ended, one runs", |cluster| {
        begun.iter().all(|(pod, expected)| phase(cluster, pod).as_deref() == Some(expected))
    })
    .await;
    sim.pods().delete("going", &DeleteParams::default()).await.unwrap();
    for name in ["pending", "done", "going"] {
        sim.evict(name).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn unready_pods_go_when_the_others_suffice_or_the_policy_says_so() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("ill").on("n1").label("app", "web").never_ready());
    sim.cluster.add(pod("well").on("n1").label("app", "web")).add(budget("web").min_available(2));
    sim.until("it is counted", |_| sim.account("web") == (2, 1, 2, 0)).await;
    assert_eq!(refused(sim.evict("ill").await).code, 429);
    let always = Patch::Merge(json!({ "spec": { "unhealthyPodEvictionPolicy": "AlwaysAllow" } }));
    sim.budgets().patch("web", &PatchParams::default(), &always).await.unwrap();
    sim.evict("ill").await.unwrap();

    sim.cluster.add(pod("ill-2").on("n1").label("app", "web").never_ready());
    let less = json!({ "spec": { "unhealthyPodEvictionPolicy": null, "minAvailable": 1 } });
    sim.budgets().patch("web", &PatchParams::default(), &Patch::Merge(less)).await.unwrap();
    sim.until("it is counted", |_| sim.account("web") == (2, 1, 1, 0)).await;
    sim.evict("ill-2").await.unwrap();
    assert_eq!(refused(sim.evict("well").await).code, 429);
}

#[tokio::test(start_paused = true)]
async fn a_terminating_namespace_refuses_and_says_so() {
    let sim = web().await;
    sim.cluster.terminate_namespace("default");
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let status = refused(sim.evict(&pod).await);
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    assert_eq!(causes(&status)[0].0, "NamespaceTerminating");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_asks_the_budget_and_charges_nothing() {
    let sim = web().await;
    sim.cluster.add(budget("web").max_unavailable(1));
    sim.settle().await;
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let post_options = PostParams { dry_run: true, ..PostParams::default() };
    let params = EvictParams { post_options, ..EvictParams::default() };
    sim.pods().evict(&pod, &params).await.unwrap();
    assert_eq!(sim.account("web"), (2, 2, 1, 1));
    assert!(sim.cluster.pod(pod.as_str()).unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn percentages_are_of_what_the_controllers_want_and_round_up() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(replica_set("web", 5));
    sim.running("web", 5).await;
    sim.cluster.add(budget("web").min_available_percent(50));
    sim.cluster.add(budget("most").selects("app", "web").max_unavailable_percent(30));
    sim.cluster.add(budget("nobody").selects("app", "none").min_available(0));
    sim.settle().await;
    assert_eq!(sim.account("web"), (5, 5, 3, 2));
    assert_eq!(sim.account("most"), (5, 5, 3, 2));
    assert_eq!(sim.account("nobody"), (0, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_a_budgets_for_as_long_as_it_has_the_label() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(budget("web").min_available(1));
    sim.cluster.add(pod("one").on("n1").label("app", "web")).add(pod("two").on("n1").label("app", "web"));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(sim.account("web"), (2, 2, 1, 1));
    for (label, account) in [("other", (1, 1, 1, 0)), ("web", (2, 2, 1, 1))] {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "app": label } } }));
        sim.pods().patch("two", &PatchParams::default(), &patch).await.unwrap();
        // Another write to it, which leaves the label.
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "label": label } } }));
        sim.pods().patch("two", &PatchParams::default(), &patch).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(sim.account("web"), account, "{label}");
    }
    sim.pods().delete("two", &DeleteParams::default().grace_period(0)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(sim.account("web"), (1, 1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_computed_allows_nothing() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(daemon_set("agent")).add(budget("agent").max_unavailable(1));
    sim.running("agent", 1).await;
    sim.settle().await;
    let status = sim.cluster.get::<PodDisruptionBudget>("agent").unwrap().status.unwrap();
    assert_eq!(
        (status.disruptions_allowed, status.conditions.unwrap()[0].reason.as_str()),
        (Some(0), "SyncFailed")
    );
}

/// Makes evictions take this long between reading and writing.
fn with_time_between(sim: &Sim, time: Span) {
    sim.cluster.set_timing(Timing { eviction: time, ..Timing::brisk() });
}

#[tokio::test(start_paused = true)]
async fn evictions_that_collide_on_their_budget_begin_anew_half_a_second_later() {
    let sim = web().await;
    sim.cluster.add(budget("web").min_available(0));
    sim.settle().await;
    with_time_between(&sim, Span::millis(100, 100));
    let pods = running(&sim.cluster, "web");
    let began = sim.now();
    let (one, other) = tokio::join!(sim.evict(&pods[0].0), sim.evict(&pods[1].0));
    assert!(one.is_ok() && other.is_ok());
    let took = sim.now().duration_since(began).as_millis();
    assert!((600..=1_400).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn an_eviction_whose_budget_is_written_all_the_time_ends_in_a_conflict_about_the_budget() {
    let sim = web().await;
    sim.cluster.add(budget("web").min_available(0));
    sim.settle().await;
    with_time_between(&sim, Span::millis(200, 200));
    let (pod, _) = running(&sim.cluster, "web").remove(0);
    let busy = async {
        for n in 0.. {
            let patch = Patch::Merge(json!({ "metadata": { "annotations": { "n": n.to_string() } } }));
            sim.budgets().patch("web", &PatchParams::default(), &patch).await.unwrap();
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    };
    let began = sim.now();
    let status = tokio::select! {
        outcome = sim.evict(&pod) => refused(outcome),
        () = busy => unreachable!(),
    };
    assert_eq!((status.code, status.details.unwrap().kind), (409, "poddisruptionbudgets".to_owned()));
    let took = sim.now().duration_since(began).as_secs();
    assert!((10..=16).contains(&took), "{took} s");
    assert!(sim.cluster.pod(pod.as_str()).unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_unready_pod_that_changes_meanwhile_is_not_evicted_and_asks_for_ten_seconds() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("ill").on("n1").label("app", "web").never_ready());
    sim.cluster.add(pod("well").on("n1").label("app", "web")).add(budget("web").min_available(1));
    sim.until("it is counted", |_| sim.account("web") == (2, 1, 1, 0)).await;
    with_time_between(&sim, Span::seconds(2, 2));
    let touch = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let patch = Patch::Merge(json!({ "metadata": { "annotations": { "a": "b" } } }));
        sim.pods().patch("ill", &PatchParams::default(), &patch).await.unwrap();
    };
    let (evicted, ()) = tokio::join!(sim.evict("ill"), touch);
    let status = refused(evicted);
    assert_eq!((status.code, status.details.as_ref().unwrap().retry_after_seconds), (429, 10));
    assert_eq!(causes(&status)[0].0, "DisruptionBudget");
}
