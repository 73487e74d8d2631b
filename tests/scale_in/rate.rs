//! Evictions over all nodes are bounded (`--eviction-qps`, and how many are under way), and no deadline waits for that.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::sim::cluster::{By, Event, Verb, pod};
use ebbtide::sim::program::config;
use jiff::{SignedDuration, Timestamp};

use crate::journal_queries::{asked, notes};
use crate::scene::{Cause, Scene, config_with, group, seconds};

/// When pods were asked to go, and on which node: their names begin with it.
fn asked_where(scene: &Scene) -> Vec<(Timestamp, String)> {
    let journal = scene.world.cluster.journal();
    let asked = journal.iter().filter_map(|entry| match &entry.what {
        Event::PodAsked { pod, by: By::Eviction, .. } => {
            Some((entry.at, pod.name.split('.').next()?.to_owned()))
        }
        _ => None,
    });
    asked.collect()
}

#[tokio::test(start_paused = true)]
async fn evictions_of_all_nodes_keep_to_the_rate_and_nodes_take_turns() {
    let config = Config { eviction_pause: Some(seconds(3)), ..config() };
    let scene = Scene::configured(group(4), config).await;
    let machines = scene.machines();
    let pods = |n: usize| if n == 0 { 20 } else { 4 };
    for (n, machine) in machines[..3].iter().enumerate() {
        scene.run((0..pods(n)).map(|k| pod(format!("n{n}.{k}").as_str()).on(&machine.name))).await;
    }
    scene.delete(&machines[..3]).await.expect("accepted");
    scene.pass_some(seconds(70)).await;
    let told = notes(&scene.world, &machines[0], "ScaleInWaiting");
    assert!(told.iter().any(|note| note.contains("(evictions are rate-limited)")), "{told:?}");
    for machine in &machines[..3] {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
    }
    let asked = asked_where(&scene);
    assert_eq!(asked.len(), 28);
    // A request is on its way for some of the time.
    for pair in asked.windows(2) {
        let apart = pair[1].0.duration_since(pair[0].0);
        assert!(apart >= SignedDuration::from_millis(2_400), "{apart}");
    }
    let took = asked[27].0.duration_since(asked[0].0).as_secs();
    assert!((27 * 3 - 1..=27 * 3 + 6).contains(&took), "{took} s");
    let mut of: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, node) in &asked[..12] {
        *of.entry(node).or_default() += 1;
    }
    assert!(of.values().all(|count| (3..=5).contains(count)), "{of:?}");
}

#[tokio::test(start_paused = true)]
async fn no_deadline_waits_for_the_rate() {
    let config = Config {
        eviction_pause: Some(Duration::from_secs(100)),
        ..config_with(|it| it.drain_timeout = Some(seconds(120)))
    };
    let scene = Scene::configured(group(2), config).await;
    let machine = scene.first();
    let pods = (0..10).map(|k| pod(format!("web-{k}").as_str()).grace(40).exits_after(35).on(&machine.name));
    scene.run(pods).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(asked(&scene.world, "web-").iter().all(|(_, by, grace)| (*by, *grace) == (By::Eviction, 40)));
}

/// Each has a connection of its own: nine thousand at once would take all our memory, and the API server.
#[tokio::test(start_paused = true)]
async fn fifty_evictions_are_under_way_at_once_over_all_nodes() {
    let scene = Scene::with(group(4)).await;
    let machines = scene.machines();
    for (n, machine) in machines.iter().enumerate() {
        let pods = (0..30).map(|k| pod(format!("n{n}.{k}").as_str()).exits_after(5).on(&machine.name));
        scene.run(pods).await;
    }
    // Each takes ten seconds in vain.
    scene.world.cluster.hang_webhook(Verb::Create, "pods/eviction");
    scene.delete(&machines).await.expect("accepted");
    scene.pass_some(seconds(8)).await;
    assert_eq!(scene.world.cluster.requests(Verb::Create, "pods/eviction"), 50);
    scene.world.cluster.no_more_faults();
    for machine in &machines {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
    }
}

#[tokio::test(start_paused = true)]
async fn no_deadline_waits_for_evictions_that_hang() {
    let config = config_with(|it| it.drain_timeout = Some(seconds(120)));
    let scene = Scene::configured(group(2), config).await;
    let machine = scene.first();
    let pods = (0..105).map(|k| pod(format!("web-{k}").as_str()).grace(40).exits_after(35).on(&machine.name));
    scene.run(pods).await;
    scene.world.cluster.hang_webhook(Verb::Create, "pods/eviction");
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    let asked = asked(&scene.world, "web-");
    assert_eq!(asked.len(), 105, "{asked:?}");
    let cut: Vec<_> = asked.iter().filter(|(_, _, grace)| *grace != 40).collect();
    assert!(cut.is_empty(), "{cut:?}");
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_is_not_evicted_once_its_scale_in_is_called_off() {
    let config = config_with(|it| it.drain_timeout = Some(seconds(120)));
    let scene = Scene::configured(group(2), config).await;
    let machine = scene.first();
    // The last calls of all are near from the beginning.
    let pods = (0..250).map(|k| pod(format!("web-{k}").as_str()).grace(110).on(&machine.name));
    scene.run(pods).await;
    scene.world.cluster.hang_webhook(Verb::Create, "pods/eviction");
    scene.scale_in(&machine, Cause::Operator).await;
    scene.pass_some(seconds(3)).await;
    let evictions = || scene.world.cluster.requests(Verb::Create, "pods/eviction");
    assert_eq!(evictions(), 100);
    scene.annotate(&machine, None).await;
    scene.pass_some(seconds(40)).await;
    assert_eq!(evictions(), 100);
}
