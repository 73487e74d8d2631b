//! What can be broken on purpose.

use futures::{StreamExt as _, pin_mut};
use kube::api::{
    DeleteParams, EvictParams, ListParams, Patch, PatchParams, VersionMatch, WatchEvent, WatchParams,
};
use serde_json::json;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_down_refuses_breaks_watches_and_comes_back() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let events = sim.nodes().watch(&WatchParams::default().disable_bookmarks(), "0").await.unwrap();
    pin_mut!(events);
    assert!(events.next().await.is_some());
    sim.cluster.api_down_for(Duration::from_secs(30));
    assert!(events.next().await.is_none());
    let error = sim.nodes().get("n1").await.unwrap_err();
    assert!(!matches!(error, kube::Error::Api(_)), "{error:?}");
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(sim.nodes().get("n1").await.is_ok());
    sim.cluster.api_down();
    tokio::time::sleep(LONG).await;
    assert!(sim.nodes().get("n1").await.is_err());
    sim.cluster.api_up();
    assert!(sim.nodes().get("n1").await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn flow_control_answers_429_in_plain_text_for_as_many_requests_as_were_said() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web-1").on("n1"));
    let busy = Fault::TooManyRequests { retry_after_seconds: 3 };
    sim.cluster.fail_next(2, Verb::Create, "pods/eviction", busy);
    let evict = async || sim.pods().evict("web-1", &EvictParams::default()).await;
    for _ in 0..2 {
        let status = refused(evict().await);
        assert_eq!(status.code, 429);
        assert!(status.details.is_none(), "flow control sends no causes");
    }
    evict().await.unwrap();

    sim.cluster.fail_next(1, Verb::Get, "nodes", busy);
    let request = http::Request::get("/api/v1/nodes/n1").body(kube::client::Body::empty()).unwrap();
    let response = sim.client.send(request).await.unwrap();
    assert_eq!(response.headers()["retry-after"], "3");
}

#[tokio::test(start_paused = true)]
async fn a_fault_is_for_its_verb_and_resource_only_and_can_be_taken_back() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    sim.cluster.fail_next(1, Verb::List, "nodes", Fault::InternalError);
    assert!(sim.nodes().get("n1").await.is_ok());
    assert_eq!(refused(sim.nodes().list(&ListParams::default()).await).code, 500);
    sim.cluster.fail_next(5, Verb::List, "nodes", Fault::Expired);
    assert_eq!(refused(sim.nodes().list(&ListParams::default()).await).code, 410);
    sim.cluster.no_more_faults();
    assert!(sim.nodes().list(&ListParams::default()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_be_lost_after_its_effect_and_a_request_before() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2"));
    sim.cluster.fail_next(1, Verb::Delete, "nodes", Fault::AnswerLost);
    assert!(sim.nodes().delete("n1", &DeleteParams::default()).await.is_err());
    assert!(!sim.cluster.has_node("n1"));
    sim.cluster.fail_next(1, Verb::Delete, "nodes", Fault::RequestLost);
    assert!(sim.nodes().delete("n2", &DeleteParams::default()).await.is_err());
    assert!(sim.cluster.has_node("n2"));
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_takes_its_time() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    sim.cluster.fail_next(1, Verb::Patch, "nodes", Fault::Slow(Duration::from_secs(20)));
    let began = Instant::now();
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    let nodes = sim.nodes();
    let params = PatchParams::default();
    let patch = tokio::time::timeout(Duration::from_secs(5), nodes.patch("n1", &params, &cordon));
    assert!(patch.await.is_err());
    assert_eq!(began.elapsed().as_secs(), 5);
    assert_eq!(sim.cluster.node("n1").unwrap().spec.unwrap().unschedulable, Some(true), "it had its effect");
}

#[tokio::test(start_paused = true)]
async fn what_is_forbidden_is_refused_and_known_beforehand() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    sim.cluster.forbid(Verb::Patch, "nodes");
    let cordon = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    let status = refused(sim.nodes().patch("n1", &PatchParams::default(), &cordon).await);
    assert_eq!((status.code, status.reason.as_str()), (403, "Forbidden"));
    let review = async |verb: &str| -> serde_json::Value {
        let body = json!({ "spec": { "resourceAttributes": { "verb": verb, "resource": "nodes" } } });
        let uri = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
        let request = http::Request::post(uri).body(body.to_string().into_bytes()).unwrap();
        sim.client.request(request).await.unwrap()
    };
    assert_eq!(review("patch").await["status"]["allowed"], false);
    assert_eq!(review("get").await["status"]["allowed"], true);
}

#[tokio::test(start_paused = true)]
async fn the_journal_can_be_followed() {
    let sim = sim();
    let mut entries = sim.cluster.subscribe();
    sim.cluster.add(node("n1"));
    assert_eq!(entries.recv().await.unwrap().what, Event::NodeRegistered { node: "n1".to_owned() });
    let never = sim.cluster.until(Duration::from_secs(1), |cluster| cluster.has_node("n2")).await;
    assert!(!never);
}

#[tokio::test(start_paused = true)]
async fn an_etcd_that_answers_too_late_may_have_done_it() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2"));
    for (node, took_effect) in [("n1", true), ("n2", false)] {
        sim.cluster.fail_next(1, Verb::Delete, "nodes", Fault::EtcdTimedOut { took_effect });
        let status = refused(sim.nodes().delete(node, &DeleteParams::default()).await);
        assert_eq!((status.code, status.reason.as_str()), (500, "InternalError"));
        assert_eq!(!sim.cluster.has_node(node), took_effect);
    }
    let mut effects = 0;
    for n in 0..40 {
        let name = format!("m{n}");
        sim.cluster.add(node(&name)).fail_next(1, Verb::Delete, "nodes", Fault::InternalError);
        sim.nodes().delete(&name, &DeleteParams::default()).await.unwrap_err();
        effects += i32::from(!sim.cluster.has_node(&name));
    }
    assert!((5..35).contains(&effects), "{effects} of 40");
}

#[tokio::test(start_paused = true)]
async fn the_later_write_has_an_old_version() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let version = sim.nodes().get("n1").await.unwrap().metadata.resource_version;
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "unschedulable": true } });
    sim.cluster.fail_next(1, Verb::Patch, "nodes", Fault::Overtaken);
    let params = PatchParams::default();
    assert!(refused(sim.nodes().patch("n1", &params, &Patch::Merge(&patch)).await).is_conflict());
}

#[tokio::test(start_paused = true)]
async fn a_webhook_denies_one_pod_and_another_says_nothing_for_ten_seconds() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("mine").on("n1")).add(pod("other").on("n1"));
    sim.cluster.deny(Verb::Create, "pods/eviction", "mine");
    let params = EvictParams::default();
    let status = refused(sim.pods().evict("mine", &params).await);
    assert_eq!((status.code, status.details.is_none()), (403, true));
    assert!(status.message.contains("denied the request"), "{}", status.message);
    sim.pods().evict("other", &params).await.unwrap();

    sim.cluster.hang_webhook(Verb::Delete, "pods");
    let began = Instant::now();
    let status = refused(sim.pods().delete("mine", &DeleteParams::default()).await);
    assert_eq!((status.code, began.elapsed().as_secs()), (500, 10));
    assert!(status.message.contains("failed calling webhook"), "{}", status.message);
    assert!(sim.cluster.pod("mine").unwrap().metadata.deletion_timestamp.is_none());
    sim.cluster.no_more_faults();
    sim.pods().evict("mine", &params).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_webhook_has_the_eviction_of_a_pod_made_again_later_and_its_deletion_is_none_of_its_business() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("mine").on("n1"));
    sim.cluster.postpone(Verb::Create, "pods/eviction", "mine");
    for _ in 0..3 {
        let status = refused(sim.pods().evict("mine", &EvictParams::default()).await);
        assert_eq!((status.code, status.reason.as_str()), (429, "TooManyRequests"));
        assert!(status.details.is_none() && status.message.contains("evacuation"), "{status:?}");
    }
    sim.pods().delete("mine", &DeleteParams::default()).await.unwrap();
    assert!(sim.cluster.pod("mine").unwrap().metadata.deletion_timestamp.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_token_that_has_expired_is_nobodys() {
    let sim = sim();
    sim.cluster.add(node("n1")).expire_tokens_for(Duration::from_mins(1));
    let status = refused(sim.nodes().get("n1").await);
    assert_eq!((status.code, status.reason.as_str()), (401, "Unauthorized"));
    tokio::time::sleep(Duration::from_mins(1)).await;
    sim.nodes().get("n1").await.unwrap();
    sim.cluster.fail_next(1, Verb::Get, "nodes", Fault::Unauthorized);
    assert_eq!(refused(sim.nodes().get("n1").await).code, 401);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_has_gone_silent_neither_speaks_nor_ends() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let events = sim.nodes().watch(&WatchParams::default().timeout(60), "0").await.unwrap();
    pin_mut!(events);
    assert!(events.next().await.is_some());
    sim.cluster.silence_watches();
    sim.cordon("n1").await;
    assert!(tokio::time::timeout(LONG, events.next()).await.is_err());
    let others = sim.nodes().watch(&WatchParams::default(), "0").await.unwrap();
    pin_mut!(others);
    assert!(others.next().await.is_some(), "a new one speaks");
}

#[tokio::test(start_paused = true)]
async fn a_restored_api_server_counts_from_an_older_version() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(pod("web").on("n1").exits_after(3));
    sim.running("web", 1).await;
    let backup = sim.cluster.backup();
    let then = sim.cluster.revision();
    sim.cordon("n1").await;
    sim.pods().evict("web", &EvictParams::default()).await.unwrap();
    sim.until("the pod is gone", |cluster| cluster.pod("web").is_none()).await;
    let seen = sim.nodes().list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();

    sim.cluster.restore(&backup);
    assert!(sim.cluster.revision() < seen.parse().unwrap());
    assert_ne!(sim.cluster.node("n1").unwrap().spec.unwrap().unschedulable, Some(true));
    let early = sim.nodes().list(&ListParams::default().at(&seen).matching(VersionMatch::NotOlderThan)).await;
    assert_eq!(refused(early).code, 504, "a version of the future");
    let events = sim.nodes().watch(&WatchParams::default(), &seen).await.unwrap();
    pin_mut!(events);
    sim.cordon("n1").await;
    assert!(sim.cluster.revision() > then);
    let silent = tokio::time::timeout(Duration::from_millis(1), events.next()).await;
    assert!(silent.is_err(), "what happens before that version comes again is not told");
    sim.until("the pod runs again", |cluster| {
        cluster.count(|entry| matches!(entry.what, Event::PodRunning { .. })) == 2
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn versions_are_forgotten_after_some_minutes() {
    let sim = sim();
    sim.cluster.set_timing(Timing::real());
    sim.cluster.add(node("n1"));
    let version = sim.nodes().list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    tokio::time::sleep(Duration::from_mins(4)).await;
    let first = async || {
        let events = sim.nodes().watch(&WatchParams::default(), &version).await.unwrap();
        pin_mut!(events);
        events.next().await.unwrap().unwrap()
    };
    let is_expired =
        |event: &WatchEvent<Node>| matches!(event, WatchEvent::Error(status) if status.code == 410);
    assert!(!is_expired(&first().await));
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!(is_expired(&first().await));
}
