//! Requests and watches take time.

use futures::{StreamExt as _, pin_mut};
use jiff::fmt::rfc2822::DateTimeParser;
use kube::api::{DeleteParams, EvictParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::sim::http::World;
use crate::sim::span::Span;

/// A cluster whose requests take this long each way.
fn slow(seconds: u64) -> Sim {
    let sim = sim();
    let span = Span::seconds(seconds, seconds);
    sim.cluster.set_timing(Timing { request: span, answer: span, ..Timing::brisk() });
    sim
}

#[tokio::test(start_paused = true)]
async fn a_request_takes_time_to_arrive_and_its_answer_to_come_back() {
    let sim = slow(2);
    sim.cluster.add(node("n1"));
    let began = Instant::now();
    sim.nodes().cordon("n1").await.unwrap();
    assert_eq!(began.elapsed().as_secs(), 4);
    let cordoned = |event: &Event| matches!(event, Event::Request { verb: Verb::Patch, .. });
    assert_eq!(sim.now().duration_since(moment(&sim.cluster, cordoned)).as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_dated_when_it_is_given_however_late_it_comes() {
    let sim = slow(3);
    let began = sim.now();
    let request = http::Request::get("/api/v1/nodes").body(bytes::Bytes::new()).expect("a request");
    let answer = World::call(&sim.cluster, request).await.expect("an answer");
    let date = DateTimeParser::new().parse_timestamp(&answer.headers()[http::header::DATE]).expect("a date");
    assert_eq!((date.duration_since(began).as_secs(), sim.now().duration_since(began).as_secs()), (3, 6));
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_is_done_although_nobody_waits_for_it_any_more() {
    let sim = slow(2);
    sim.cluster.add(node("n1")).add(pod("web").on("n1"));
    let pods = sim.pods();
    let params = EvictParams::default();
    assert!(tokio::time::timeout(Duration::from_secs(1), pods.evict("web", &params)).await.is_err());
    assert!(sim.cluster.pod("web").unwrap().metadata.deletion_timestamp.is_none());
    sim.until("it is asked", |cluster| cluster.happened(|event| matches!(event, Event::PodAsked { .. })))
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_while_the_api_server_is_down_is_lost() {
    let sim = slow(2);
    sim.cluster.add(node("n1"));
    let (nodes, params) = (sim.nodes(), DeleteParams::default());
    let (deleted, ()) = tokio::join!(nodes.delete("n1", &params), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        sim.cluster.api_down_for(Duration::from_secs(5));
    });
    assert!(deleted.is_err() && sim.cluster.has_node("n1"));
}

#[tokio::test(start_paused = true)]
async fn each_watch_has_a_lag_of_its_own_and_keeps_its_order() {
    let sim = sim();
    sim.cluster.set_timing(Timing { watch_lag: Span::seconds(0, 10), ..Timing::brisk() });
    sim.cluster.add(node("n1"));
    let params = WatchParams::default().disable_bookmarks();
    let revision = sim.cluster.revision().to_string();
    let (nodes, began) = (sim.nodes(), Instant::now());
    let one = nodes.watch(&params, &revision).await.unwrap();
    let other = nodes.watch(&params, &revision).await.unwrap();
    for n in 0..9 {
        let patch = Patch::Merge(json!({ "metadata": { "labels": { "n": n.to_string() } } }));
        nodes.patch("n1", &PatchParams::default(), &patch).await.unwrap();
    }
    let read = async |events: futures::stream::BoxStream<'_, kube::Result<WatchEvent<Node>>>| {
        let labels = events.take(9).map(|event| match event.unwrap() {
            WatchEvent::Modified(node) => {
                (node.metadata.labels.unwrap()["n"].clone(), began.elapsed().as_millis())
            }
            other => panic!("{other:?}"),
        });
        pin_mut!(labels);
        labels.collect::<Vec<_>>().await
    };
    let (one, other) = tokio::join!(read(one.boxed()), read(other.boxed()));
    let labels = |seen: &[(String, u128)]| seen.iter().map(|(label, _)| label.clone()).collect::<Vec<_>>();
    assert_eq!(labels(&one), (0..9).map(|n| n.to_string()).collect::<Vec<_>>());
    assert_eq!(labels(&one), labels(&other));
    assert_ne!(one, other, "not at the same moments");
    assert!(one.last().unwrap().1 > 1_000, "{one:?}");
}
