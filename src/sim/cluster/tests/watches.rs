//! Watches, and how the real watcher handles them.

use futures::{StreamExt as _, TryStreamExt as _, pin_mut};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, VersionMatch, WatchEvent, WatchParams};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event as Seen};
use kube::runtime::{WatchStreamExt as _, watcher as watch};
use serde_json::json;

use super::*;

/// One event of a watch, shortened.
fn short<K: kube::ResourceExt>(event: &WatchEvent<K>) -> String {
    match event {
        WatchEvent::Added(object) => format!("+{}", object.name_any()),
        WatchEvent::Modified(object) => format!("~{}", object.name_any()),
        WatchEvent::Deleted(object) => format!("-{}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(status) => format!("error {}", status.code),
    }
}

async fn label(sim: &Sim, node: &str, zone: &str) {
    let patch = Patch::Merge(json!({ "metadata": { "labels": { "zone": zone } } }));
    sim.nodes().patch(node, &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_watch_sends_what_comes_into_its_selection_changes_in_it_and_leaves_it() {
    let sim = sim();
    sim.cluster.add(node("n1").label("zone", "a")).add(node("n2").label("zone", "b"));
    let params = WatchParams::default().labels("zone=a").disable_bookmarks();
    let events = sim.nodes().watch(&params, "0").await.unwrap();
    pin_mut!(events);
    label(&sim, "n2", "a").await;
    sim.cordon("n2").await;
    label(&sim, "n1", "b").await;
    sim.nodes().delete("n2", &DeleteParams::default()).await.unwrap();
    let seen: Vec<String> = events.take(5).map(|event| short(&event.unwrap())).collect().await;
    assert_eq!(seen, ["+n1", "+n2", "~n2", "-n1", "-n2"]);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_version_gets_every_later_change_once() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let list = sim.nodes().list(&ListParams::default()).await.unwrap();
    sim.cordon("n1").await;
    sim.cluster.add(node("n2"));
    let version = list.metadata.resource_version.unwrap();
    let events = sim.nodes().watch(&WatchParams::default().disable_bookmarks(), &version).await.unwrap();
    pin_mut!(events);
    sim.nodes().uncordon("n1").await.unwrap();
    let seen: Vec<String> = events.take(3).map(|event| short(&event.unwrap())).collect().await;
    assert_eq!(seen, ["~n1", "+n2", "~n1"]);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_object_carries_the_version_of_its_deletion() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let events = sim.nodes().watch(&WatchParams::default().disable_bookmarks(), "0").await.unwrap();
    pin_mut!(events);
    sim.nodes().delete("n1", &DeleteParams::default()).await.unwrap();
    let deletion = sim.cluster.revision();
    let _ = events.try_next().await.unwrap();
    let Some(WatchEvent::Deleted(gone)) = events.try_next().await.unwrap() else { panic!("not deleted") };
    assert_eq!(gone.resource_version(), Some(deletion.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_at_its_time_and_has_had_bookmarks_until_then() {
    let sim = sim();
    let events = sim.nodes().watch(&WatchParams::default().timeout(150), "0").await.unwrap();
    let seen: Vec<String> = events.map(|event| short(&event.unwrap())).collect().await;
    assert_eq!(seen, ["bookmark", "bookmark"]);
}

#[tokio::test(start_paused = true)]
async fn a_list_of_a_version_from_the_future_is_refused() {
    let sim = sim();
    let ahead = ListParams::default().at("999999").matching(VersionMatch::NotOlderThan);
    assert_eq!(refused(sim.nodes().list(&ahead).await).code, 504);
}

#[tokio::test(start_paused = true)]
async fn a_watch_from_a_forgotten_version_gets_410_as_an_event() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let version = sim.cluster.revision().to_string();
    sim.cluster.compact_history();
    let events = sim.nodes().watch(&WatchParams::default(), &version).await.unwrap();
    let seen: Vec<String> = events.map(|event| short(&event.unwrap())).collect().await;
    assert_eq!(seen, ["error 410"]);
    let exact = ListParams::default().at(&version).matching(VersionMatch::Exact);
    assert_eq!(refused(sim.nodes().list(&exact).await).code, 410);
}

#[tokio::test(start_paused = true)]
async fn the_watcher_recovers_from_a_compaction_with_a_new_list() {
    let sim = sim();
    sim.cluster.add(node("n1"));
    let events = watch(sim.nodes(), watcher::Config::default());
    pin_mut!(events);
    for _ in 0..3 {
        events.try_next().await.unwrap();
    }
    // n2 comes while the watch is cut, and its history is then forgotten.
    assert!(tokio::time::timeout(Duration::from_millis(1), events.next()).await.is_err());
    assert_eq!(sim.cluster.requests(Verb::Watch, "nodes"), 1);
    sim.cluster.close_watches();
    sim.cluster.add(node("n2"));
    sim.cluster.compact_history();
    let mut listed = Vec::new();
    let mut errors = 0;
    while let Some(event) = events.next().await {
        match event {
            Ok(Seen::InitApply(node)) => listed.push(node.name_any()),
            Ok(Seen::InitDone) => break,
            Ok(_) => {}
            Err(_) => errors += 1,
        }
    }
    assert_eq!((listed, errors), (vec!["n1".to_owned(), "n2".to_owned()], 1));
}

#[tokio::test(start_paused = true)]
async fn a_list_is_not_streamed() {
    let sim = sim();
    let streamed = sim.nodes().watch(&WatchParams::default().initial_events(), "0").await;
    assert_eq!(refused(streamed.map(|_| ())).code, 422);
}

#[tokio::test(start_paused = true)]
async fn a_watch_of_metadata_and_one_by_node_see_their_part() {
    let sim = sim();
    sim.cluster.add(node("n1")).add(node("n2"));
    let only: Api<PartialObjectMeta<Node>> = Api::all(sim.client.clone());
    let metadata = watch(only, watcher::Config::default()).applied_objects();
    pin_mut!(metadata);
    assert_eq!(metadata.try_next().await.unwrap().unwrap().name_any(), "n1");
    let all: Api<Pod> = Api::all(sim.client.clone());
    let here = watch(all, watcher::Config::default().fields("spec.nodeName=n1")).touched_objects();
    pin_mut!(here);
    sim.cluster.add(pod("elsewhere").on("n2")).add(pod("here").on("n1"));
    assert_eq!(here.try_next().await.unwrap().unwrap().name_any(), "here");
}
