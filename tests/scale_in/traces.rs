//! A scale-in that has ended is told to a collector as one trace, and no collector holds anything up.

use std::time::Duration;

use ebbtide::app::Outside;
use ebbtide::sim::aws::TerminationCause;
use ebbtide::sim::cluster::{budget, pod};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use ebbtide::telemetry::traces::collector::{Collector, Mood};
use ebbtide::telemetry::traces::proto::{KeyValue, Span};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::Api;
use kube::api::DeleteParams;
use tonic::transport::Channel;
use tracing::Level;

use crate::journal_queries::{has_exited, is_asked};
use crate::scene::{EVER, held_group, seconds};

/// The program on a world, which tells `collector`.
fn telling(world: &World, collector: Option<Channel>) -> Program {
    Program::start_in(world, config(), |outside| Outside { collector, ..outside })
}

/// A world with a node of a group that holds its instances, and the node's name and instance.
async fn world() -> (World, String, String) {
    let world = World::plain(1);
    world.aws.add_group(held_group(1, 300));
    assert!(world.until(EVER, |w| !w.cluster.node_names().is_empty()).await);
    let node = world.cluster.node_names().remove(0);
    let provider_id = world.cluster.node(&node).and_then(|node| node.spec?.provider_id).expect("an id");
    let instance = provider_id.rsplit('/').next().expect("an instance").to_owned();
    (world, node, instance)
}

async fn pass(world: &World, time: Duration) {
    assert!(!world.until(time, |_| false).await);
}

fn has(attributes: &[KeyValue], key: &str, value: &str) -> bool {
    attributes
        .iter()
        .any(|pair| pair.key == key && format!("{:?}", pair.value).contains(&format!("{value:?}")))
}

fn lasted(span: &Span) -> Duration {
    Duration::from_nanos(span.end_time_unix_nano - span.start_time_unix_nano)
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_is_one_trace_with_its_phases_and_what_was_asked_in_them_over_a_restart() {
    let (log, _guard) = captured::log(Level::INFO);
    let (world, node, instance) = world().await;
    let (collector, channel) = Collector::new(Mood::Listens);
    let first = telling(&world, Some(channel.clone()));
    world.cluster.add(budget("slow").min_available(1));
    world.cluster.add(pod("slow").on(&node).grace(60).exits_after(40)).add(pod("web").on(&node));
    pass(&world, seconds(30)).await;
    world.aws.terminate(&instance, TerminationCause::Rebalance);
    assert!(world.until(EVER, |w| is_asked(w, "web") && has_exited(w, "web")).await);
    first.kill().await;
    let second = telling(&world, Some(channel));
    pass(&world, seconds(20)).await;
    let budgets: Api<PodDisruptionBudget> = Api::default_namespaced(world.cluster.client());
    budgets.delete("slow", &DeleteParams::default()).await.expect("deleted");
    assert!(world.until(EVER, |_| !collector.spans().is_empty()).await);
    second.stop().await.expect("in good order");

    let spans = collector.spans();
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    let expected = ["scale-in", "Draining", "Flushing", "Releasing", "CompleteLifecycleAction"];
    assert_eq!(names, expected, "{spans:#?}");
    let [root, draining, flushing, releasing, call] = &spans[..] else { panic!("five") };
    for (key, value) in [
        ("k8s.node.name", node.as_str()),
        ("host.id", instance.as_str()),
        ("ebbtide.group", "web"),
        ("ebbtide.cause", "lifecycle-hook"),
        ("ebbtide.outcome", "released"),
    ] {
        assert!(has(&root.attributes, key, value), "{key}: {root:#?}");
    }
    let trace = format!("{:032x}", u128::from_be_bytes(root.trace_id[..].try_into().expect("16 bytes")));
    assert!(log.text().contains(&format!("trace_id=\"{trace}\"")), "the log names it: {}", log.text());
    assert!(spans.iter().all(|span| span.trace_id == root.trace_id && span.status.is_none()), "{spans:#?}");
    assert!(root.parent_span_id.is_empty());
    let mut ids: Vec<_> = spans.iter().map(|span| &span.span_id).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), spans.len());
    for phase in [draining, flushing, releasing] {
        assert_eq!(phase.parent_span_id, root.span_id);
    }
    assert_eq!(call.parent_span_id, releasing.span_id);
    let moments = [draining, flushing, releasing].map(|s| (s.start_time_unix_nano, s.end_time_unix_nano));
    assert_eq!((moments[0].0, moments[2].1), (root.start_time_unix_nano, root.end_time_unix_nano));
    assert_eq!((moments[0].1, moments[1].1), (moments[1].0, moments[2].0), "one after the other");
    assert!(lasted(draining) >= seconds(60) && lasted(draining) < seconds(120), "{:?}", lasted(draining));
    assert!(lasted(flushing) >= seconds(4) && lasted(flushing) < seconds(10), "{:?}", lasted(flushing));
    // What the first process asked for went with it.
    let events: Vec<_> = draining.events.iter().map(|event| event.name.as_str()).collect();
    assert_eq!(events, ["blocked", "evicted"], "{draining:#?}");
    assert!(has(&draining.events[0].attributes, "ebbtide.answer", "default/slow"), "{draining:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_collector_that_is_away_or_silent_changes_no_scale_in_and_no_stop() {
    let mut took = Vec::new();
    for mood in [None, Some(Mood::IsAway), Some(Mood::IsSilent), Some(Mood::IsBusy)] {
        let (world, node, instance) = world().await;
        let collector = mood.map(Collector::new);
        let channel = collector.as_ref().map(|(_, channel)| channel.clone());
        let program = telling(&world, channel);
        world.cluster.add(pod("web").on(&node).grace(60).exits_after(40));
        pass(&world, seconds(60)).await;
        let began = world.clock.now();
        world.aws.terminate(&instance, TerminationCause::Rebalance);
        assert!(world.until(EVER, |w| !w.cluster.node_names().contains(&node)).await);
        took.push(world.clock.now().duration_since(began).as_secs());
        pass(&world, seconds(5)).await;
        let stopped = world.clock.now();
        program.stop().await.expect("in good order");
        let took = world.clock.now().duration_since(stopped).as_secs();
        assert!(took <= 3, "{mood:?}: {took}");
    }
    let [without, with @ ..] = &took[..] else { panic!("four") };
    assert!(with.iter().all(|took| took.abs_diff(*without) <= 1), "{took:?}");
}
