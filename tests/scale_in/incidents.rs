//! What befalls a cluster while a node leaves: none of it cuts a workload, loses a line or takes a node too many.

use std::time::Duration;

use ebbtide::sim::aws::{Event as AwsEvent, GroupSpec, LifecycleState};
use ebbtide::sim::cluster::{
    Cluster, Event, Fault, Fixture, Timing, Verb, budget, daemon_set, job, pod, replica_set, stateful_set,
};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::DeleteParams;
use tonic::Code;

use crate::journal_queries::{
    a_hook_timed_out, assert_nothing_lost, aws_moments, daemons_on, decrements, eviction_requests, graces,
    has_exited, in_phase, is_asked, is_released, last_exit, notes, released_at, terminations,
};
use crate::scene::{Cause, Machine, Scene, TO_BE_DELETED, group, held_group, seconds};

/// Both ways of release.
fn groups() -> [GroupSpec; 2] {
    [group(2), held_group(2, 60)]
}

/// Two workloads leave the first node; as soon as both were asked, something happens; the node leaves well all the same.
async fn leaves_well_although(happens: impl AsyncFn(&Scene, &Machine)) {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        scene
            .run([pod("web").on(on).grace(60).exits_after(45), pod("api").on(on).grace(120).exits_after(100)])
            .await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web") && is_asked(w, "api")).await;
        happens(&scene, &machine).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(decrements(&scene.world), 1);
    }
}

fn cluster(scene: &Scene) -> &Cluster {
    &scene.world.cluster
}

#[tokio::test(start_paused = true)]
async fn another_controller_manager_takes_over_in_mid_drain() {
    leaves_well_although(async |scene, _| cluster(scene).change_leader()).await;
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_is_restarted_in_mid_drain() {
    leaves_well_although(async |scene, machine| cluster(scene).restart_kubelet(&machine.name)).await;
}

#[tokio::test(start_paused = true)]
async fn watches_fall_silent_in_mid_drain() {
    leaves_well_although(async |scene, _| cluster(scene).silence_watches()).await;
}

#[tokio::test(start_paused = true)]
async fn history_is_forgotten_and_watches_end_in_mid_drain() {
    leaves_well_although(async |scene, _| {
        cluster(scene).compact_history();
        cluster(scene).close_watches();
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn tokens_expire_in_mid_drain() {
    leaves_well_although(async |scene, _| cluster(scene).expire_tokens_for(seconds(150))).await;
}

fn cut_short(scene: &Scene) -> usize {
    scene.world.cluster.count(|entry| matches!(entry.what, Event::CutShort { .. }))
}

/// Somebody deletes a pod with this grace.
async fn somebody_asks(scene: &Scene, name: &str, grace_seconds: u32) {
    let pods: Api<Pod> = Api::default_namespaced(cluster(scene).client());
    pods.delete(name, &DeleteParams::default().grace_period(grace_seconds)).await.expect("deleted");
}

/// Nothing was cut short. What is written after the collector has taken the log shipper is nobody's to send.
fn assert_nothing_cut(scene: &Scene) {
    assert_eq!(cut_short(scene), 0, "cut short");
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn the_node_object_is_deleted_in_mid_drain_under_a_live_machine() {
    for restarted in [false, true] {
        for (group, is_held) in groups().into_iter().zip([false, true]) {
            let mut scene = Scene::with(group).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(400).exits_after(300)]).await;
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.until(|w| is_asked(w, "web")).await;
            // Before AWS is told, the record on the Node is all there is of a scale-in.
            let holds = |e: &AwsEvent| matches!(e, AwsEvent::EnteredWait { .. });
            scene.until(|w| !is_held || !aws_moments(w, holds).is_empty()).await;
            let nodes: Api<Node> = Api::all(cluster(&scene).client());
            nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
            if restarted {
                scene.pass_some(seconds(90)).await;
                scene.kill().await;
            }
            scene.pass_some(Duration::from_mins(20)).await;
            assert!(has_exited(&scene.world, "web"));
            assert_nothing_cut(&scene);
            assert_eq!(
                is_released(&scene.world, &machine),
                is_held,
                "without a hook there is no trace of it"
            );
        }
    }
}

/// In mid-drain, the Node is deleted of two pods that a budget and their own wish keep: `web` and `patient`.
async fn deletes_the_node_of_kept_pods(group: GroupSpec) -> (Scene, Machine) {
    let scene = Scene::with(group).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    let patient = pod("patient").on(on).annotation("ebbtide/drain", "wait");
    let pods = [pod("web").on(on), patient].map(|pod| pod.grace(300).exits_after(250));
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run(pods).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| !eviction_requests(w).is_empty()).await;
    let nodes: Api<Node> = Api::all(cluster(&scene).client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    (scene, machine)
}

#[tokio::test(start_paused = true)]
async fn what_a_budget_or_a_wish_keeps_has_its_whole_grace_though_the_node_object_is_deleted() {
    for group in groups() {
        let (scene, _) = deletes_the_node_of_kept_pods(group).await;
        scene.pass_some(Duration::from_mins(12)).await;
        assert!(has_exited(&scene.world, "web") && has_exited(&scene.world, "patient"));
        assert_nothing_cut(&scene);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_budget_or_a_wish_keeps_stays_where_the_watches_do_not_show_that_the_node_is_back() {
    for group in groups() {
        let (scene, machine) = deletes_the_node_of_kept_pods(group).await;
        scene.pass_some(seconds(2)).await;
        cluster(&scene).silence_watches();
        cluster(&scene).restart_kubelet(&machine.name);
        scene.pass_some(seconds(60)).await;
        assert!(scene.world.cluster.has_node(&machine.name));
        assert!(!is_asked(&scene.world, "web") && !is_asked(&scene.world, "patient"));
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_budget_or_a_wish_keeps_stays_where_the_kubelet_makes_the_node_anew() {
    for group in groups() {
        let (scene, machine) = deletes_the_node_of_kept_pods(group).await;
        scene.pass_some(seconds(10)).await;
        cluster(&scene).restart_kubelet(&machine.name);
        scene.pass_some(Duration::from_mins(12)).await;
        assert!(scene.world.cluster.has_node(&machine.name));
        assert!(!has_exited(&scene.world, "web") && !has_exited(&scene.world, "patient"));
    }
}

#[tokio::test(start_paused = true)]
async fn the_node_object_is_deleted_before_the_group_takes_the_machine() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
    somebody_asks(&scene, "web", 300).await;
    let nodes: Api<Node> = Api::all(cluster(&scene).client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    scene.until(|w| !w.cluster.has_node(&machine.name)).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_released(&machine).await;
    assert!(has_exited(&scene.world, "web"));
    assert_nothing_cut(&scene);
}

#[tokio::test(start_paused = true)]
async fn the_node_object_of_a_retained_machine_is_deleted_while_nobody_is_there() {
    let mut scene = Scene::with(held_group(2, 60).retaining()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
    scene.take_down().await;
    somebody_asks(&scene, "web", 300).await;
    scene.scale_in(&machine, Cause::Group).await;
    let is = |w: &World, state| w.aws.instance(&machine.instance).is_some_and(|one| one.state == state);
    scene.until(|w| is(w, LifecycleState::TerminatingRetained)).await;
    let nodes: Api<Node> = Api::all(cluster(&scene).client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    scene.bring_back();
    scene.until(|w| !is(w, LifecycleState::TerminatingRetained)).await;
    assert!(has_exited(&scene.world, "web"));
    assert_eq!(cut_short(&scene), 0, "cut short");
    assert_eq!((terminations(&scene.world, &machine).len(), decrements(&scene.world)), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn an_etcd_backup_is_restored_in_mid_drain() {
    // Without a hook there is nothing left of the scale-in: cluster-autoscaler asks again.
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(40)]).await;
    let backup = cluster(&scene).backup();
    scene.pass_some(seconds(120)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web") && !terminations(w, &machine).is_empty()).await;
    cluster(&scene).restore(&backup);
    assert!(scene.world.until(seconds(900), |w| !w.cluster.has_node(&machine.name)).await);
    assert_nothing_lost(&scene.world);
    assert_eq!((terminations(&scene.world, &machine).len(), decrements(&scene.world)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_backup_that_is_older_than_what_was_seen_does_not_make_the_program_blind() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let backup = cluster(&scene).backup();
    for n in 0..300 {
        scene
            .patch_node(&machine, serde_json::json!({ "metadata": { "labels": { "n": n.to_string() } } }))
            .await;
    }
    cluster(&scene).restore(&backup);
    scene.pass_some(seconds(30)).await;
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    assert!(scene.world.until(seconds(1_000), |w| !w.cluster.has_node(&machine.name)).await);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_is_overtaken_time_and_again_is_made_in_the_end() {
    for (group, cause) in groups().into_iter().zip([Cause::Operator, Cause::Autoscaler].into_iter().cycle()) {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        cluster(&scene).fail_next(8, Verb::Patch, "nodes", Fault::Overtaken);
        scene.scale_in(&machine, cause).await;
        assert!(scene.world.until(seconds(1_000), |w| !w.cluster.has_node(&machine.name)).await);
        scene.assert_left_well(&machine);
    }
}

/// It has emptied the node, and would open it again.
#[tokio::test(start_paused = true)]
async fn a_moment_of_trouble_with_the_api_server_costs_cluster_autoscaler_no_scale_in() {
    for fault in [
        Fault::TooManyRequests { retry_after_seconds: 1 },
        Fault::EtcdTimedOut { took_effect: true },
        Fault::EtcdTimedOut { took_effect: false },
        Fault::RequestLost,
        Fault::AnswerLost,
    ] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        cluster(&scene).fail_next(2, Verb::Patch, "nodes", fault);
        cluster(&scene).fail_next(1, Verb::Get, "nodes", fault);
        scene.delete(std::slice::from_ref(&machine)).await.expect("accepted");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(decrements(&scene.world), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_asks_for_time_is_not_asked_again_before_it_while_cluster_autoscaler_waits() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    cluster(&scene).fail_next(1_000, Verb::Patch, "nodes", Fault::TooManyRequests { retry_after_seconds: 1 });
    let status = scene.delete(std::slice::from_ref(&machine)).await.expect_err("not recorded");
    assert!(status.message().contains("Too many requests"), "{status}");
    let is_patch = |e: &Event| matches!(e, Event::Request { verb: Verb::Patch, resource: "nodes", .. });
    let patches = scene.world.cluster.journal().iter().filter(|entry| is_patch(&entry.what)).count();
    assert!((3..=5).contains(&patches), "{patches} in two and a half seconds");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_etcd_kept_without_saying_so_is_a_scale_in() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        cluster(&scene).fail_next(1, Verb::Patch, "nodes", Fault::EtcdTimedOut { took_effect: true });
        // cluster-autoscaler asks again if it was told that nothing came of it.
        if scene.delete(std::slice::from_ref(&machine)).await.is_err() {
            scene.delete(std::slice::from_ref(&machine)).await.expect("accepted");
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(decrements(&scene.world), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn evictions_that_etcd_carried_out_without_saying_so_are_evictions() {
    for took_effect in [true, false] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        cluster(&scene).fail_next(3, Verb::Create, "pods/eviction", Fault::EtcdTimedOut { took_effect });
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_webhook_keeps_is_asked_again_until_it_may_go() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        cluster(&scene).deny(Verb::Create, "pods/eviction", "kept");
        scene.run([pod("kept").on(on).exits_after(5), pod("web").on(on).exits_after(5)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| has_exited(w, "web")).await;
        scene.pass_some(seconds(300)).await;
        assert!(!is_asked(&scene.world, "kept"));
        cluster(&scene).no_more_faults();
        let again = seconds(60);
        assert!(scene.world.until(again, |w| is_asked(w, "kept")).await, "not within {again:?}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_evictions_a_webhook_postpones_for_ever_is_deleted_with_its_whole_grace() {
    let scene = Scene::with(held_group(2, 30)).await;
    let machine = scene.first();
    cluster(&scene).postpone(Verb::Create, "pods/eviction", "web");
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(115)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(600)).await;
    assert!(!is_asked(&scene.world, "web"));
    let notes = notes(&scene.world, &machine, "ScaleInBlocked");
    assert!(notes.iter().any(|note| note.contains("Eviction triggered evacuation")), "{notes:?}");
    let tries = eviction_requests(&scene.world).len();
    assert!((60..=130).contains(&tries), "{tries} in ten minutes");
    scene.until_gone(&machine).await;
    assert_eq!(graces(&scene.world, "web"), [120]);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_a_webhook_postpones_has_what_is_left_of_its_grace_from_a_program_that_has_just_started() {
    // A program that did not see the hook's hold begin reckons with a minute more, as AWS's clock may be ahead: its last call
    // for the pod was at 2,778 s.
    for (killed, grace) in [(2_770, 120), (2_825, 73)] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        cluster(&scene).postpone(Verb::Create, "pods/eviction", "web");
        scene.run([pod("web").on(&machine.name).grace(120).exits_after(115)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(killed)).await;
        scene.kill().await;
        assert!(!is_asked(&scene.world, "web"));
        scene.until_gone(&machine).await;
        assert_eq!(graces(&scene.world, "web"), [grace], "killed after {killed} s");
        assert!(!a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_says_nothing_holds_up_nothing_but_its_own() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    cluster(&scene).hang_webhook(Verb::Create, "pods/eviction");
    scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(600)).await;
    assert!(!is_asked(&scene.world, "web"));
    cluster(&scene).no_more_faults();
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn evictions_that_collide_with_others_on_their_budget_all_come_through() {
    let scene = Scene::with(held_group(3, 60)).await;
    let machine = scene.first();
    cluster(&scene).add(budget("web").min_available(2));
    cluster(&scene).add(replica_set("web", 8).exits_after(20).grace(60));
    scene.until(|w| running(w, "web-") == 8).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_that_is_rolled_in_mid_drain_costs_no_line() {
    leaves_well_although(async |scene, _| cluster(scene).roll("shipper")).await;
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_is_rolled_in_mid_drain_where_cluster_autoscaler_has_closed_the_node_itself() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(45)]).await;
        let stamp = scene.world.clock.now().as_second().to_string();
        let taint = serde_json::json!({ "key": TO_BE_DELETED, "value": stamp, "effect": "NoSchedule" });
        scene.patch_node(&machine, serde_json::json!({ "spec": { "taints": [taint] } })).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        cluster(&scene).roll("shipper");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_volumes_driver_that_wants_to_be_asked_goes_after_the_volumes() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let driver = daemon_set("agent").csi_driver().annotation("ebbtide/daemonset", "evict").exits_after(0);
        scene.run([driver]).await;
        scene.run([pod("db").on(&machine.name).volume("data").exits_after(10).detaches_after(10)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| has_exited(w, "db")).await;
        let detached =
            scene.world.until(seconds(30), |w| w.cluster.list::<VolumeAttachment>().is_empty()).await;
        assert!(detached, "the driver has gone before it had unmounted");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn the_pods_of_stateful_sets_and_jobs_leave_like_others() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let sets: [Fixture; 2] = [
            stateful_set("db", 2).volume("data").grace(60).exits_after(30).into(),
            job("batch", 2).ignores_disruptions().grace(60).exits_after(10).into(),
        ];
        scene.run(sets).await;
        scene.until(|w| running(w, "db-") == 2 && running(w, "batch-") == 2).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        assert_nothing_lost(&scene.world);
        assert_eq!(terminations(&scene.world, &machine).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_job_on_a_dead_node_does_not_hold_the_node() {
    let scene = Scene::with(held_group(2, 60)).await;
    cluster(&scene).add(job("batch", 1).ignores_disruptions().grace(30));
    scene.until(|w| running(w, "batch-") == 1).await;
    let node = cluster(&scene).list::<Pod>().into_iter().find_map(|pod| {
        let mine = pod.metadata.name.as_deref()?.starts_with("batch-");
        mine.then_some(pod.spec?.node_name).flatten()
    });
    let machine =
        scene.machines().into_iter().find(|machine| Some(&machine.name) == node.as_ref()).expect("its node");
    cluster(&scene).kill_kubelet(&machine.name);
    scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    assert!(scene.world.until(seconds(600), |w| !w.cluster.has_node(&machine.name)).await);
}

#[tokio::test(start_paused = true)]
async fn sidecars_and_pre_stop_hooks_have_their_time_before_the_flush() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        scene
            .run([
                pod("web")
                    .on(on)
                    .grace(60)
                    .pre_stop(20)
                    .exits_after(10)
                    .sidecars_exit_after(15)
                    .last_lines(500),
                pod("api").on(on).grace(10).pre_stop(60).exits_after(1).last_lines(500),
            ])
            .await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// A scale-in of the only node, to which a pod is about to be bound: that was decided before the cordon.
async fn with_a_pod_that_is_about_to_be_bound(group: GroupSpec) -> (Scene, Machine) {
    let scene = Scene::with(group).await;
    let machine = scene.first();
    let timing = Timing { binding: Span::exactly(seconds(4)), ..Timing::real() };
    cluster(&scene).set_timing(timing);
    cluster(&scene).add(pod("late").grace(60).starts_after(0).exits_after(30));
    scene.pass_some(seconds(1)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    (scene, machine)
}

async fn the_late_pod_leaves_first(scene: &Scene, machine: &Machine) {
    scene.until_gone(machine).await;
    assert!(has_exited(&scene.world, "late"), "it was bound when the node was cordoned");
    assert_nothing_lost(&scene.world);
    assert!(released_at(&scene.world, machine) >= last_exit(&scene.world, machine));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_bound_late_to_a_node_that_is_released_leaves_first() {
    let (scene, machine) = with_a_pod_that_is_about_to_be_bound(group(1)).await;
    the_late_pod_leaves_first(&scene, &machine).await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_silent_watches_do_not_show_leaves_before_its_node_is_released() {
    for group in [group(1), held_group(1, 60)] {
        let (scene, machine) = with_a_pod_that_is_about_to_be_bound(group).await;
        scene.until(|w| in_phase(w, &machine, "Flushing")).await;
        assert!(!is_asked(&scene.world, "late"), "it is not bound yet");
        cluster(&scene).silence_watches();
        the_late_pod_leaves_first(&scene, &machine).await;
    }
}

#[tokio::test(start_paused = true)]
async fn exits_that_a_stale_watch_cache_does_not_show_hold_no_node_for_long() {
    for group in groups() {
        // It shows that the pod is going, or not even that.
        for (shows, most) in [(true, 120), (false, 60)] {
            let scene = Scene::with(group.clone()).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
            scene.scale_in(&machine, Cause::Autoscaler).await;
            if shows {
                scene.until(|w| is_asked(w, "web")).await;
            }
            cluster(&scene).stall_watch_cache::<Pod>();
            scene.until_released(&machine).await;
            let waited =
                released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
            assert!(waited.as_secs() < most, "{waited}");
            assert_nothing_lost(&scene.world);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn lists_that_take_twenty_seconds_or_fail_hold_a_release_no_longer_than_that() {
    // What takes clearly longer than a minute is told.
    for (fault, times, within, told) in
        [(Fault::Slow(seconds(20)), 1_000, 0..=40, 0), (Fault::InternalError, 7, 75..=180, 1)]
    {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| in_phase(w, &machine, "Flushing")).await;
        let flushing = scene.world.clock.now();
        cluster(&scene).fail_next(times, Verb::List, "pods", fault);
        scene.until(|w| is_released(w, &machine)).await;
        let took = scene.world.clock.now().duration_since(flushing).as_secs();
        assert!(within.contains(&took), "{took} s");
        assert_eq!(notes(&scene.world, &machine, "ScaleInWaiting").len(), told, "{took} s");
    }
}

fn running(world: &World, prefix: &str) -> usize {
    let pods = world.cluster.list::<Pod>();
    let runs = |pod: &&Pod| {
        let name = pod.metadata.name.as_deref().unwrap_or_default();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        name.starts_with(prefix) && phase == Some("Running") && pod.metadata.deletion_timestamp.is_none()
    };
    pods.iter().filter(runs).count()
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_pod_that_is_replaced_around_the_last_exit_leaves_its_time_to_its_successor() {
    // Seconds from the last exit to the roll: before it, and in the flush that was asked for.
    for after in [-4, 20] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        // Its successor comes when it has gone.
        let agent = daemon_set("agent").annotation("ebbtide/flush-seconds", "60").grace(30).exits_after(8);
        scene.run([agent]).await;
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(30)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.pass_some(SignedDuration::from_secs(30 + after).unsigned_abs()).await;
        scene.world.cluster.roll("agent");
        scene.until_gone(&machine).await;
        let waited = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
        // From when the one before has gone, with 15 s for the start.
        let least = after + 8 + 15 + 60;
        assert!((least..least + 5).contains(&waited.as_secs()), "{waited} where {after} s after the exit");
        assert_nothing_lost(&scene.world);
    }
}

/// The image of a new version is on no node yet.
#[tokio::test(start_paused = true)]
async fn a_daemonset_pod_whose_successor_starts_slowly_is_waited_for_and_not_for_ever() {
    // How long the successor takes to start, and how long after the last exit the node is released.
    for (starts, least, most) in [(40, 8 + 40 + 10, 65), (900, 120, 130)] {
        let scene = Scene::with(held_group(2, 300)).await;
        let machine = scene.first();
        let agent = daemon_set("agent").annotation("ebbtide/flush-seconds", "10").grace(30).exits_after(8);
        scene.run([agent.starts_after(starts)]).await;
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(30)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| has_exited(w, "web")).await;
        scene.world.cluster.roll("agent");
        scene.until_gone(&machine).await;
        let waited = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
        assert!((least..=most).contains(&waited.as_secs()), "{waited} where it starts in {starts} s");
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn a_log_shipper_that_crashed_before_the_last_exit_is_waited_for_until_it_has_read_on() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(90).exits_after(30).last_lines(7)]).await;
    let shipper = daemons_on(&scene.world, &machine).remove(0);
    // From the second time on, there is a pause before it is started again.
    scene.world.cluster.crash_pod(shipper.as_str());
    scene.pass_some(seconds(20)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(28)).await;
    scene.world.cluster.crash_pod(shipper.as_str());
    scene.until_gone(&machine).await;
    let waited = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
    assert!((12..20).contains(&waited.as_secs()), "{waited}");
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_node_was_deleted_is_not_ended_before_its_pods_had_their_grace() {
    // In a drain, when the pods are known, and out of the blue.
    for (is_draining, granted) in [(true, 1_200 + 120), (false, 600 + 120)] {
        let scene = Scene::with(group(2)).await;
        let never_came = scene.world.aws.add_instance("web", LifecycleState::InService).expect("an instance");
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(1_200).exits_after(1_100)]).await;
        scene.pass_some(seconds(90)).await;
        if is_draining {
            scene.scale_in(&machine, Cause::Operator).await;
            scene.until(|w| is_asked(w, "web")).await;
        }
        let nodes: Api<Node> = Api::all(cluster(&scene).client());
        nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
        scene.pass_some(seconds(1)).await;
        // As cluster-autoscaler names an instance that no Node has.
        let unregistered = [Machine::that_never_came(machine.provider_id())];
        let other = Machine::that_never_came(&format!("aws:///us-east-1a/{never_came}"));
        let refused =
            scene.delete(&[unregistered[0].clone(), other]).await.expect_err("its pods have their grace");
        assert_eq!(refused.code(), Code::Unavailable, "{refused}");
        // What else is asked for is done.
        let is_in_service = |w: &World, id: &str| {
            w.aws.instance(id).is_some_and(|one| one.state == LifecycleState::InService)
        };
        scene.until(|w| !is_in_service(w, &never_came)).await;
        assert!(is_in_service(&scene.world, &machine.instance), "{refused}");
        scene.pass_some(seconds(granted - 20)).await;
        scene.delete(&unregistered).await.expect_err("its pods have their grace still");
        scene.pass_some(seconds(30)).await;
        scene.until_deleted(&unregistered).await;
    }
    // Our hook holds it for as long.
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(250)]).await;
    somebody_asks(&scene, "web", 300).await;
    let nodes: Api<Node> = Api::all(cluster(&scene).client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    scene.pass_some(seconds(1)).await;
    scene.until_deleted(&[Machine::that_never_came(machine.provider_id())]).await;
    scene.until_released(&machine).await;
    assert!(has_exited(&scene.world, "web"));
}

/// A node is drained by hand, with more grace than its pods have, and its Node deleted then.
#[tokio::test(start_paused = true)]
async fn a_grace_that_somebody_made_longer_is_whole_though_the_node_is_deleted() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(30).exits_after(1_000)]).await;
    somebody_asks(&scene, "web", 1_800).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| in_phase(w, &machine, "Draining")).await;
    let nodes: Api<Node> = Api::all(cluster(&scene).client());
    nodes.delete(&machine.name, &DeleteParams::default()).await.expect("deleted");
    scene.until_released(&machine).await;
    assert!(has_exited(&scene.world, "web"));
    assert_nothing_cut(&scene);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_released_while_the_watch_of_its_nodes_pods_is_broken() {
    // The watch has lost its place and no list comes, or neither, or both are had again but it is refused.
    for (is_compacted, refused) in [(true, Verb::List), (false, Verb::List), (false, Verb::Watch)] {
        for group in [group(1), held_group(1, 60)] {
            let scene = Scene::with(group).await;
            let machine = scene.first();
            // Chosen before the node is closed, and bound when the watch is broken.
            cluster(&scene).set_timing(Timing { binding: Span::exactly(seconds(4)), ..Timing::real() });
            cluster(&scene).add(pod("late").grace(60).exits_after(20));
            scene.pass_some(Duration::from_millis(500)).await;
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.until(|w| in_phase(w, &machine, "Flushing")).await;
            if is_compacted {
                cluster(&scene).compact_history();
            }
            cluster(&scene).close_watches();
            let busy = Fault::TooManyRequests { retry_after_seconds: 1 };
            cluster(&scene).fail_next(1_000, Verb::Watch, "pods", busy);
            if refused == Verb::List {
                cluster(&scene).fail_next(1_000, Verb::List, "pods", Fault::InternalError);
            }
            scene.pass_some(seconds(60)).await;
            cluster(&scene).no_more_faults();
            scene.until_gone(&machine).await;
            let what = format!("compacted: {is_compacted}, refused: {refused:?}");
            assert!(has_exited(&scene.world, "late"), "{what}");
            assert_nothing_lost(&scene.world);
        }
    }
}
