//! What whoever may create a pod, annotate a Node or send an answer can make of figures and words; and a defect of our own.

use std::sync::Arc;

use async_trait::async_trait;
use ebbtide::scale_in::OnDeadline;
use ebbtide::sim::aws::Event;
use ebbtide::sim::cluster::{self, pod};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, kube_client};
use ebbtide::sim::world::World;
use jiff::SignedDuration;

use crate::journal_queries::{
    a_hook_timed_out, asked, aws_moments, has_exited, in_phase, is_asked, is_released, longest_silence,
    notes, released_at, terminations,
};
use crate::scene::{Cause, Scene, config_with, group, held_group, seconds};

#[tokio::test(start_paused = true)]
async fn a_pods_absurd_grace_period_costs_no_other_node_anything_and_its_own_hook_is_kept() {
    for grace in [9_000_000_000_000_000_000, i64::MAX, 1_000_000_000] {
        let mut scene = Scene::with(held_group(3, 30)).await;
        let machines = scene.machines();
        scene
            .run([
                pod("absurd").on(&machines[0].name).grace(grace).exits_after(40),
                pod("web").on(&machines[1].name).grace(90).exits_after(80),
            ])
            .await;
        for machine in &machines[..2] {
            scene.scale_in(machine, Cause::Group).await;
        }
        scene.until(|w| is_asked(w, "web") && is_asked(w, "absurd")).await;
        scene.kill().await;
        for machine in &machines[..2] {
            scene.until_gone(machine).await;
            scene.assert_left_well(machine);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_absurd_grace_period_ends_at_the_deadline_and_not_before() {
    let limited = config_with(|it| it.drain_timeout = Some(seconds(600)));
    let scene = Scene::configured(group(2), limited).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(i64::MAX).exits_after(100_000)]).await;
    let requested = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    let took = released_at(&scene.world, &machine).duration_since(requested);
    assert!((SignedDuration::from_secs(580)..=SignedDuration::from_secs(600)).contains(&took), "{took}");
    let (_, _, grace) = asked(&scene.world, "web")[0];
    assert!((500..600).contains(&grace), "asked with what fits, at once: {grace}");
}

#[tokio::test(start_paused = true)]
async fn an_absurd_grace_period_is_not_over_because_its_timestamp_lies_in_the_past_and_the_kubelet_is_dead() {
    let limited = config_with(|it| {
        it.drain_timeout = Some(seconds(3_600));
        it.on_deadline = OnDeadline::Wait;
    });
    for grace in [9_000_000_000_000_000_000, i64::MAX] {
        let scene = Scene::configured(group(2), limited.clone()).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(grace).exits_after(900)]).await;
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.cluster.kill_kubelet(&machine.name);
        scene.pass_some(seconds(600)).await;
        assert!(!is_released(&scene.world, &machine), "{grace}");
    }
}

/// An API server in front of which something panics, within the program, whenever the pod `cursed` is to be evicted.
pub(crate) struct Cursed(pub(crate) cluster::Cluster);

#[async_trait]
impl Service for Cursed {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        assert!(!request.uri().path().contains("/pods/cursed/eviction"), "a defect");
        self.0.call(request).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_the_work_on_one_node_costs_that_node_a_pause_and_nobody_else_anything() {
    let scene = Scene::behind(held_group(3, 30), |cluster| kube_client(Arc::new(Cursed(cluster)))).await;
    let machines = scene.machines();
    let on = |n: usize| machines[n].name.as_str();
    scene
        .run([pod("cursed").on(on(0)).exits_after(20), pod("web").on(on(1)).grace(90).exits_after(80)])
        .await;
    for machine in &machines[..2] {
        scene.scale_in(machine, Cause::Group).await;
    }
    scene.until_released(&machines[1]).await;
    scene.assert_left_well(&machines[1]);
    let told = notes(&scene.world, &machines[0], "ScaleInFailed");
    assert!((3..=12).contains(&told.len()), "{told:?}");
    assert!(told[0].contains("a defect"), "{told:?}");
    assert!(longest_silence(&scene.world, &machines[0]) <= SignedDuration::from_secs(20), "its hook is kept");
    // The defect goes away (here: with the pod), and the node leaves.
    scene.remove::<k8s_openapi::api::core::v1::Pod>("cursed").await;
    scene.until_gone(&machines[0]).await;
    assert!(has_exited(&scene.world, "cursed") && !a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn a_panic_after_the_wall_clock_was_set_moves_no_deadline() {
    for by in [SignedDuration::from_hours(-1), SignedDuration::from_hours(1)] {
        let config = config_with(|it| it.drain_timeout = Some(seconds(900)));
        let way = |cluster| kube_client(Arc::new(Cursed(cluster)));
        let scene = Scene::made(World::new(1), group(2), config, way).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(400).exits_after(300)]).await;
        let requested = scene.world.clock.now();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.step_clock(by);
        // Bound to it before it was cordoned, as it were.
        scene.world.cluster.add(pod("cursed").on(&machine.name).exits_after(20));
        scene.until(|w| !notes(w, &machine, "ScaleInFailed").is_empty()).await;
        scene.remove::<k8s_openapi::api::core::v1::Pod>("cursed").await;
        scene.until_released(&machine).await;
        let took = released_at(&scene.world, &machine).duration_since(requested);
        let whole = SignedDuration::from_secs(300)..=SignedDuration::from_secs(420);
        assert!(whole.contains(&took), "{took} after a step of {by}");
        assert!(has_exited(&scene.world, "web"), "{by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_word_that_means_nothing_does_not_keep_a_held_node_from_being_drained() {
    for word in ["true", "", "{\"phase\":\"Releasing\"}", "yes"] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
        scene.annotate(&machine, Some(word)).await;
        scene.pass_some(seconds(30)).await;
        let told = notes(&scene.world, &machine, "ScaleInNotUnderstood");
        assert!(
            told.len() == 1 && told[0].contains("\"now\"") && told[0].contains("\"replace\""),
            "{told:?}"
        );
        assert!(!is_asked(&scene.world, "web"));
        scene.scale_in(&machine, Cause::Group).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_word_over_a_scale_in_under_way_cancels_it_cleanly_or_lets_it_go_on() {
    // Without a hook nothing has been done that cannot be undone.
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait")]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Draining")).await;
    scene.annotate(&machine, Some("true")).await;
    let untainted = |w: &World| {
        let spec = w.cluster.node(&machine.name).and_then(|node| node.spec).unwrap_or_default();
        spec.taints.unwrap_or_default().is_empty()
    };
    scene.until(|w| !notes(w, &machine, "ScaleInCancelled").is_empty() && untainted(w)).await;
    let node = scene.node(&machine.name).expect("there");
    let annotations = node.metadata.annotations.unwrap_or_default();
    assert!(annotations.keys().all(|key| !key.starts_with("ebbtide/")), "{annotations:?}");
    let spec = node.spec.unwrap_or_default();
    assert_eq!((spec.unschedulable, spec.taints.unwrap_or_default().len()), (None, 0));
    assert_eq!(notes(&scene.world, &machine, "ScaleInCancelled").len(), 1);
    assert!(terminations(&scene.world, &machine).is_empty());
    // Under a hook the instance goes in any case.
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| !aws_moments(w, |e| matches!(e, Event::EnteredWait { .. })).is_empty()).await;
    scene.annotate(&machine, Some("true")).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}
