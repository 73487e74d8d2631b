//! Pods that are asked to go are told by an Event.

use ebbtide::sim::cluster::{Fault, Verb, budget, pod};
use jiff::SignedDuration;

use crate::journal_queries::{asked, notes, pod_notes};
use crate::scene::{Cause, Scene, config_with, group, seconds};

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_evicted_or_deleted_is_told_once_by_which_node_and_why() {
    let config = config_with(|it| it.drain_timeout = Some(seconds(120)));
    let scene = Scene::configured(group(2), config).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.world.cluster.add(budget("web").min_available(1));
    // The one of another namespace has more grace than there is time: it is cut at the end, in the same phase.
    let long = pod("shop/long").on(on).grace(600).exits_after(590);
    scene.run([pod("web").on(on), pod("quick").on(on), long]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.until_gone(&machine).await;
    let told = |pod: &str, reason: &str| pod_notes(&scene.world, pod, reason);
    let evicted = format!("node {on} is scaled in (cause operator): the pod was evicted");
    assert_eq!(told("quick", "ScaleInEvicted"), std::slice::from_ref(&evicted));
    assert_eq!(told("long", "ScaleInEvicted"), [evicted]);
    assert_eq!(told("web", "ScaleInDeleted").len(), 1);
    for (pod, reason) in [("quick", "ScaleInDeleted"), ("long", "ScaleInDeleted"), ("web", "ScaleInEvicted")]
    {
        assert!(told(pod, reason).is_empty(), "{pod} {reason}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_that_cannot_be_published_cost_no_eviction_any_time() {
    for fault in [Fault::Unauthorized, Fault::Slow(seconds(60))] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run((0..5).map(|n| pod(format!("web-{n}").as_str()).on(&machine.name))).await;
        scene.world.cluster.fail_next(100, Verb::Create, "events", fault);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let asked = asked(&scene.world, "web-");
        let apart = asked[4].0.duration_since(asked[0].0);
        assert!(asked.len() == 5 && apart < SignedDuration::from_secs(1), "{asked:?}");
        assert!((0..5).all(|n| pod_notes(&scene.world, &format!("web-{n}"), "ScaleInEvicted").len() <= 1));
    }
}

#[tokio::test(start_paused = true)]
async fn of_many_pods_that_go_at_once_some_are_told_and_every_node_is() {
    let scene = Scene::with(group(50)).await;
    let machines = scene.machines();
    let pods = machines.iter().enumerate().flat_map(|(n, machine)| {
        (0..8).map(move |p| pod(format!("web-{n}-{p}").as_str()).on(&machine.name).exits_after(20))
    });
    scene.run(pods).await;
    scene.delete(&machines).await.expect("accepted");
    scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
    assert_eq!(asked(&scene.world, "web-").len(), 400);
    let names = (0..50).flat_map(|n| (0..8).map(move |p| format!("web-{n}-{p}")));
    let told: usize = names.map(|name| pod_notes(&scene.world, &name, "ScaleInEvicted").len()).sum();
    assert_eq!(told, 300);
    for machine in &machines {
        for reason in ["ScaleInFlushing", "ScaleInReleasing"] {
            assert_eq!(notes(&scene.world, machine, reason).len(), 1, "{reason}");
        }
    }
}
