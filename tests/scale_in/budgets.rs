//! What the API server answers to evictions.

use ebbtide::sim::cluster::{By, Event, Fault, Verb, budget, pod, stateful_set};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::journal_queries::{asked, eviction_requests, has_exited, is_asked, moments, notes};
use crate::scene::{Cause, Scene, group, seconds};

#[tokio::test(start_paused = true)]
async fn a_blocked_pod_is_named_with_its_budget_and_goes_as_soon_as_there_is_room() {
    let scene = Scene::with(group(2)).await;
    let (machine, other) = (scene.first(), scene.machines().remove(1));
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(203)).await;
    let refused = moments(&scene.world, |e| matches!(e, Event::EvictionRefused { .. })).len();
    assert!((7..=14).contains(&refused), "{refused} tries in 200 s");
    let notes = notes(&scene.world, &machine, "ScaleInBlocked");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("default/web") && notes[0].contains("pod default/web "), "{notes:?}");

    scene.run([pod("web-2").label("app", "web").on(&other.name)]).await;
    let room =
        moments(&scene.world, |e| matches!(e, Event::PodRunning { pod, .. } if pod.name == "web-2"))[0];
    scene.until_gone(&machine).await;
    let went = asked(&scene.world, "web")[0].0.duration_since(room);
    assert!(went < SignedDuration::from_secs(1), "{went} after there was room");
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_with_two_budgets_is_named_and_goes_when_one_of_them_is_gone() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").max_unavailable(1)).add(budget("too").selects("app", "web"));
    scene.run([pod("web").on(&machine.name), pod("free").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(60)).await;
    assert!(has_exited(&scene.world, "free") && !is_asked(&scene.world, "web"));
    let notes = notes(&scene.world, &machine, "ScaleInBlocked");
    let named = "pod default/web cannot be evicted while several disruption budgets cover it (leave one): default/too, default/web";
    assert_eq!(notes, [named]);
    let tries = moments(&scene.world, |e| matches!(e, Event::EvictionRefused { .. })).len();
    assert!((3..=10).contains(&tries), "{tries}");
    scene.remove::<PodDisruptionBudget>("web").await;
    scene.remove::<PodDisruptionBudget>("too").await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn flow_control_is_given_the_time_it_asks_for() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    let busy = Fault::TooManyRequests { retry_after_seconds: 7 };
    scene.world.cluster.fail_next(2, Verb::Create, "pods/eviction", busy);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    let tries = eviction_requests(&scene.world);
    assert_eq!(tries.len(), 3, "{tries:?}");
    for pair in tries.windows(2) {
        let pause = pair[1].duration_since(pair[0]);
        assert!(pause >= SignedDuration::from_secs(7) && pause < SignedDuration::from_secs(10), "{pause}");
    }
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn failures_and_lost_answers_are_tried_again() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20), pod("api").on(&machine.name)]).await;
    for fault in [Fault::InternalError, Fault::RequestLost, Fault::AnswerLost] {
        scene.world.cluster.fail_next(2, Verb::Create, "pods/eviction", fault);
        scene.world.cluster.fail_next(1, Verb::Patch, "nodes", fault);
    }
    let requested = scene.world.clock.now();
    // cluster-autoscaler would ask again as well.
    while scene.delete(std::slice::from_ref(&machine)).await.is_err() {
        scene.pass_some(seconds(10)).await;
    }
    scene.until_released(&machine).await;
    assert!(scene.world.clock.now().duration_since(requested) < SignedDuration::from_mins(4));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_was_replaced_under_the_same_name_is_asked_in_its_own_right() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let web = || pod("web").on(&machine.name).grace(60).exits_after(20);
    scene
        .run([
            web().annotation("ebbtide/drain", "wait"),
            pod("stays").on(&machine.name).grace(90).exits_after(80),
        ])
        .await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "stays")).await;
    let uid = || scene.world.cluster.pod("web").and_then(|pod| pod.metadata.uid);
    let first = uid();
    scene.remove::<Pod>("web").await;
    scene.until(|w| w.cluster.pod("web").is_none()).await;
    scene.run([web()]).await;
    assert_ne!(uid(), first);
    scene.until_gone(&machine).await;
    let asked = asked(&scene.world, "web");
    assert!(asked.iter().any(|(_, by, _)| *by == By::Eviction), "{asked:?}");
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_of_a_namespace_that_is_going_is_waited_for() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("team/web").on(&machine.name).exits_after(20)]).await;
    scene.world.cluster.terminate_namespace("team");
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(100)).await;
    assert!(scene.node(&machine.name).is_some());
    // Nobody deletes it, as where a webhook refuses the namespace controller's request.
    scene.until(|w| !notes(w, &machine, "ScaleInBlocked").is_empty()).await;
    let told = notes(&scene.world, &machine, "ScaleInBlocked");
    assert!(told.iter().any(|note| note.contains("its namespace is being deleted")), "{told:?}");
    scene.remove::<Pod>("team/web").await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

fn is_running(pod: &Pod, prefix: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    phase == Some("Running") && pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(prefix))
}

/// The API server takes the room for the pod of this name before it sees that it is another one.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_end_the_watch_has_missed_is_not_asked_again_at_its_successors_cost() {
    let scene = Scene::with(group(3)).await;
    scene.world.cluster.add(budget("db").max_unavailable(1));
    scene.run([stateful_set("db", 3).grace(30).exits_after(2)]).await;
    scene.until(|w| w.cluster.list::<Pod>().iter().filter(|pod| is_running(pod, "db-")).count() == 3).await;
    let on = scene.world.cluster.pod("db-0").and_then(|pod| pod.spec?.node_name).expect("bound");
    let machine = scene.machines().into_iter().find(|machine| machine.name == on).expect("a node");
    scene.world.cluster.stall_watch_cache::<Pod>();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| has_exited(w, "db-0")).await;
    scene.pass_some(seconds(40)).await;
    let budgets = scene.world.cluster.list::<PodDisruptionBudget>();
    let status = budgets[0].status.clone().expect("reckoned");
    assert_eq!(status.disruptions_allowed, Some(1));
    assert_eq!(eviction_requests(&scene.world).len(), 1);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}
