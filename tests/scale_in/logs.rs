//! What is logged of a scale-in can be found by one field, the instance: from the notice to the release, over a restart.

use std::collections::BTreeSet;

use ebbtide::config::Config;
use ebbtide::sim::aws::QueueSpec;
use ebbtide::sim::cluster::{Verb, budget, pod};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::LogFormat;
use ebbtide::telemetry::captured::{self, Log};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::Value;
use tracing::Level;

use crate::journal_queries::{is_asked, notes};
use crate::scene::{Cause, Machine, Scene, held_group, seconds};

/// A scale-in on which a budget blocks for a while, with a kill in the middle of it. Returns the node, and the one that stays.
async fn scale_in() -> [Machine; 2] {
    let world = World::plain(1);
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    let config = Config { queue_urls: vec![queue], ..config() };
    let mut scene = Scene::on(world, held_group(2, 300), config).await;
    let [machine, other] = <[Machine; 2]>::try_from(scene.machines()).expect("two");
    scene.world.cluster.add(budget("web").min_available(1));
    scene
        .run([pod("web").on(&machine.name).exits_after(200).grace(300), pod("other").on(&machine.name)])
        .await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "other")).await;
    scene.kill().await;
    scene.remove::<PodDisruptionBudget>("web").await;
    scene.until_gone(&machine).await;
    [machine, other]
}

fn lines(log: &Log) -> Vec<String> {
    log.text().lines().map(str::to_owned).collect()
}

/// Lines without which the way of a scale-in is not told.
const STEPS: [&str; 5] = [
    "notice from AWS",
    "eviction asked for",
    "Event on the Node",
    "lifecycle hook completed",
    "scale-in ended",
];

#[tokio::test(start_paused = true)]
async fn every_line_of_a_scale_in_has_its_instance_in_json() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::DEBUG);
    let [machine, other] = scale_in().await;
    let mut followed = Vec::new();
    for line in lines(&log) {
        let value: Value = serde_json::from_str(&line).expect("JSON");
        let is_about = |machine: &Machine| {
            line.contains(&format!("{:?}", machine.name)) || line.contains(&machine.instance)
        };
        if is_about(&machine) && !is_about(&other) {
            assert_eq!(value["instance"], machine.instance.as_str(), "{line}");
        }
        if value["instance"] == machine.instance.as_str() {
            followed.push(line);
        }
    }
    for step in STEPS {
        assert!(followed.iter().any(|line| line.contains(step)), "{step}: {followed:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_line_of_a_scale_in_has_its_instance_in_text_too() {
    let (log, _guard) = captured::log(Level::DEBUG);
    let [machine, _] = scale_in().await;
    let field = format!("instance={:?}", machine.instance);
    let followed: Vec<_> = lines(&log).into_iter().filter(|line| line.contains(&field)).collect();
    for line in lines(&log).iter().filter(|line| line.contains(&format!("node={:?}", machine.name))) {
        assert_eq!(line.matches(&field).count().min(1), 1, "{line}");
    }
    for step in STEPS {
        assert!(followed.iter().any(|line| line.contains(step)), "{step}: {followed:#?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_a_warning_is_one_in_the_log_and_no_other_is() {
    let (log, _guard) = captured::log_as(LogFormat::Json, Level::INFO);
    scale_in().await;
    let lines: Vec<Value> =
        lines(&log).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let events = lines.iter().filter(|line| line["message"] == "Event on the Node");
    let levels: BTreeSet<_> =
        events.filter_map(|line| Some((line["reason"].as_str()?, line["level"].as_str()?))).collect();
    for told in [("ScaleInBlocked", "WARN"), ("ScaleInDraining", "INFO"), ("ScaleInReleasing", "INFO")] {
        assert!(levels.contains(&told), "{levels:?}");
    }
    assert!(!levels.contains(&("ScaleInBlocked", "INFO")), "{levels:?}");
}

/// How many lines have these words.
fn count(log: &Log, words: &str) -> usize {
    lines(log).iter().filter(|line| line.contains(words)).count()
}

#[tokio::test(start_paused = true)]
async fn evictions_that_are_refused_for_good_flood_neither_the_log_nor_the_events_of_a_node() {
    let scene = Scene::with(held_group(2, 600)).await;
    let machine = scene.first();
    for n in 0..20 {
        let name = format!("web-{n}");
        scene.run([pod(name.as_str()).on(&machine.name)]).await;
        scene.world.cluster.deny(Verb::Create, "pods/eviction", name.as_str());
    }
    let (log, _guard) = captured::log(Level::INFO);
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(620)).await;
    assert_eq!(count(&log, "eviction asked for"), 20, "{}", log.text());
    let told = notes(&scene.world, &machine, "ScaleInBlocked");
    assert!((2..=3).contains(&told.len()), "{told:#?}");
    assert!(
        told[1].starts_with("20 pods cannot be evicted") && told[1].contains("denied the request"),
        "{told:#?}"
    );
    scene.world.cluster.no_more_faults();
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(count(&log, "eviction asked for"), 40, "that each goes is told as well");
}
