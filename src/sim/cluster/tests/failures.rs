//! What can be broken on purpose.

use futures::{StreamExt as _, pin_mut};
use kube::api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, WatchParams};
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
    assert!(sim.cluster.node("n1").is_none());
    sim.cluster.fail_next(1, Verb::Delete, "nodes", Fault::RequestLost);
    assert!(sim.nodes().delete("n2", &DeleteParams::default()).await.is_err());
    assert!(sim.cluster.node("n2").is_some());
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
    let never = sim.cluster.until(Duration::from_secs(1), |cluster| cluster.node("n2").is_some()).await;
    assert!(!never);
}
