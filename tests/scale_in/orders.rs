//! Pods say when they go (`ebbtide/drain-order`).

use ebbtide::config::Config;
use ebbtide::sim::cluster::{By, Event, PodSpec, budget, pod};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::journal_queries::{asked, is_asked, moments, notes, released_at};
use crate::scene::{Cause, Scene, config_with, group, held_group, seconds};

fn ordered(name: &str, order: &str) -> PodSpec {
    pod(name).annotation("ebbtide/drain-order", order)
}

/// When a pod's last container ended.
fn exited_at(world: &World, name: &str) -> Timestamp {
    moments(world, |e| matches!(e, Event::PodExited { pod, .. } if pod.name == name))[0]
}

fn asked_at(world: &World, name: &str) -> Timestamp {
    asked(world, name)[0].0
}

#[tokio::test(start_paused = true)]
async fn a_later_order_is_asked_once_all_pods_of_earlier_orders_have_gone() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        scene
            .run([
                ordered("first", "-1").on(on).grace(60).exits_after(20),
                ordered("early", "-1").on(on).grace(60).exits_after(40),
                pod("web").on(on).exits_after(10),
                ordered("proxy", "10").on(on).exits_after(3),
            ])
            .await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let world = &scene.world;
        assert!(
            asked_at(world, "early").duration_since(asked_at(world, "first")) < SignedDuration::from_secs(1)
        );
        for (earlier, later) in [("early", "web"), ("web", "proxy")] {
            let after = asked_at(world, later).duration_since(exited_at(world, earlier));
            let soon = SignedDuration::ZERO..SignedDuration::from_secs(3);
            assert!(soon.contains(&after), "{later} was asked {after} after the exit of {earlier}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_earlier_order_holds_later_ones_and_that_is_told() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name), ordered("proxy", "1").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(200)).await;
    assert!(!is_asked(&scene.world, "proxy"));
    let told = notes(&scene.world, &machine, "ScaleInWaiting");
    assert!(told.iter().any(|note| note.contains("default/proxy (after order 0)")), "{told:?}");
    scene.remove::<PodDisruptionBudget>("web").await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

fn within(limit: u64) -> Config {
    config_with(|it| it.drain_timeout = Some(seconds(limit)))
}

#[tokio::test(start_paused = true)]
async fn before_a_deadline_a_later_order_finds_its_whole_grace_after_the_earlier_one() {
    let scene = Scene::configured(group(2), within(400)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.world.cluster.add(budget("web").min_available(1));
    scene
        .run([
            pod("web").on(on).grace(60).exits_after(58),
            ordered("proxy", "1").on(on).grace(90).exits_after(85),
        ])
        .await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let (_, by, grace) = asked(&scene.world, "web")[0];
    assert_eq!((by, grace), (By::Delete, 60), "its budget gives way, in time for the proxy");
    let (at, by, grace) = asked(&scene.world, "proxy")[0];
    assert_eq!((by, grace), (By::Eviction, 90));
    assert!(at >= exited_at(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn where_time_is_short_orders_give_way_and_graces_do_not() {
    let scene = Scene::configured(group(2), within(160)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    let slow = |pod: PodSpec| pod.on(on).grace(100).exits_after(95);
    scene.run([slow(pod("web")), slow(ordered("proxy", "1"))]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!((asked(&scene.world, "web")[0].2, asked(&scene.world, "proxy")[0].2), (100, 100));
    let held = asked_at(&scene.world, "proxy").duration_since(asked_at(&scene.world, "web"));
    assert!((SignedDuration::from_secs(20)..SignedDuration::from_secs(60)).contains(&held), "{held}");
}

#[tokio::test(start_paused = true)]
async fn an_order_that_is_no_number_or_not_the_namespaces_to_ask_for_counts_as_none() {
    let only_mesh = config_with(|it| it.order_namespaces = ["mesh".to_owned()].into());
    for (config, order, is_told) in [(config(), "last", true), (only_mesh, "1", false)] {
        let scene = Scene::configured(group(2), config).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name), ordered("proxy", order).on(&machine.name)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let apart = asked_at(&scene.world, "proxy").duration_since(asked_at(&scene.world, "web"));
        assert!(apart.abs() < SignedDuration::from_secs(1), "{apart}");
        let told = notes(&scene.world, &machine, "ScaleInWishesIgnored");
        assert_eq!(told.len(), usize::from(is_told), "{told:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn mount_pods_are_asked_after_all_that_use_their_volumes() {
    let mounts = [
        pod("mp-s3").tolerates_everything(),
        pod("mp-s3-labelled").label("s3.csi.aws.com/mountpoint-version", "1.20.0"),
        pod("mp-juicefs")
            .label("app.kubernetes.io/name", "juicefs-mount")
            .tolerates("CriticalAddonsOnly", ""),
    ];
    for mount in mounts {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        let mount = mount.on(on).exits_after(1);
        scene.run([mount, pod("web").on(on).grace(60).exits_after(40), ordered("late", "5").on(on)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert!(asked_at(&scene.world, "mp-") >= exited_at(&scene.world, "late"));
        assert!(asked_at(&scene.world, "late") >= exited_at(&scene.world, "web"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_mount_pod_that_counts_as_a_daemon_is_not_asked_at_all() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let daemon = pod("mp-s3")
        .label("s3.csi.aws.com/mountpoint-version", "1.20.0")
        .annotation("cluster-autoscaler.kubernetes.io/daemonset-pod", "true");
    scene.run([daemon.on(&machine.name), pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    // Who collects the pods of a Node that is gone asks it then.
    let released = released_at(&scene.world, &machine);
    assert!(asked(&scene.world, "mp-").iter().all(|(at, ..)| *at >= released));
}
