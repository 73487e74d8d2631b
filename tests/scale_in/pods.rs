//! Each kind of pod is treated as its kind is.

use std::collections::BTreeSet;

use ebbtide::scale_in::Flush;
use ebbtide::sim::aws::Event as AwsEvent;
use ebbtide::sim::cluster::{By, Event, Fault, Timing, Verb, budget, daemon_set, pod, replica_set};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::journal_queries::{
    a_hook_timed_out, asked, aws_moments, has_exited, in_phase, is_asked, last_exit, moments, notes,
    phase_at, released_at,
};
use crate::scene::{Cause, Scene, config_with, group, held_group, seconds};

#[tokio::test(start_paused = true)]
async fn mirror_pods_and_finished_pods_are_left_alone_and_hold_nothing_up() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.run([pod("proxy").on(on).mirror(), pod("job").on(on).runs_for(5)]).await;
    scene.until(|w| has_exited(w, "job")).await;
    scene.run([pod("web").on(on)]).await;
    // A mirror pod goes down with its machine; here that would count as cut short.
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Releasing")).await;
    assert!(!is_asked(&scene.world, "proxy") && !is_asked(&scene.world, "job"));
    assert!(has_exited(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn a_pod_without_any_grace_has_gone_when_its_containers_have_exited_and_not_with_its_object() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.world.cluster.add(daemon_set("agent").annotation("ebbtide/daemonset", "evict"));
        scene.run([pod("web").on(&machine.name).grace(0).exits_after(2)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn the_orphan_of_a_deleted_daemonset_is_a_workload() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).owned_by("DaemonSet", "deleted").exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    assert_eq!(asked(&scene.world, "web").len(), 1);
    scene.assert_left_well(&machine);
    let took = released_at(&scene.world, &machine).duration_since(last_exit_of(&scene.world, "web"));
    assert!(took <= SignedDuration::from_secs(8), "nobody makes another one: {took}");
}

#[tokio::test(start_paused = true)]
async fn the_lowest_priority_is_asked_first_and_one_that_is_blocked_holds_nobody_up() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.world.cluster.add(budget("low").min_available(1));
    scene
        .run([
            pod("high").on(on).priority(1_000).exits_after(20),
            pod("low").on(on).priority(-10),
            pod("middle").on(on).exits_after(20),
        ])
        .await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| has_exited(w, "high")).await;
    let tries = scene.world.cluster.journal();
    let order = tries.iter().filter_map(|entry| match &entry.what {
        Event::Request { subresource: Some(sub), name, .. } if sub == "eviction" => Some(name.name.as_str()),
        _ => None,
    });
    assert_eq!(order.take(3).collect::<Vec<_>>(), ["low", "middle", "high"]);
    let (middle, high) = (asked(&scene.world, "middle")[0].0, asked(&scene.world, "high")[0].0);
    assert!(high.duration_since(middle) < SignedDuration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_pod_that_wants_to_be_asked_gets_its_grace_and_its_replacement_holds_nothing_up() {
    for (key, value) in
        [("ebbtide/daemonset", "evict"), ("cluster-autoscaler.kubernetes.io/enable-ds-eviction", "true")]
    {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        let agent = daemon_set("agent").annotation(key, value);
        scene.run([agent.grace(40).exits_after(30).starts_after(1)]).await;
        scene.run([pod("web").on(&machine.name).exits_after(10)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        let asked = asked(&scene.world, "agent-");
        let here: Vec<_> = asked.iter().filter(|(_, by, _)| *by != By::Controller).collect();
        assert_eq!(here.len(), 1, "{asked:?}");
        assert_eq!((here[0].1, here[0].2), (By::Delete, 40));
        let held = released_at(&scene.world, &machine).duration_since(here[0].0);
        assert!(held >= SignedDuration::from_secs(30) && held <= SignedDuration::from_secs(42), "{held}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_flushes_for_as_long_as_its_daemonset_pods_ask_for() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([daemon_set("agent").annotation("ebbtide/flush-seconds", "25")]).await;
    scene.run([pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    let flush = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
    assert!(flush >= SignedDuration::from_secs(25) && flush <= SignedDuration::from_secs(27), "{flush}");
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn volumes_are_waited_for_and_not_for_ever() {
    // An exit is noticed within a second, and unmounting takes one or two.
    for (detaches, at_least, at_most) in [(30, 30, 34), (300, 65, 67)] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).volume("data").detaches_after(detaches)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        let waited = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
        assert!(waited >= SignedDuration::from_secs(at_least), "{waited}");
        assert!(waited <= SignedDuration::from_secs(at_most), "{waited}");
        scene.assert_left_well(&machine);
    }
}

/// Without an attached volume, only the pod's object shows that its kubelet is not done: EFS, FSx and large emptyDirs.
#[tokio::test(start_paused = true)]
async fn a_pod_whose_volumes_are_being_unmounted_is_waited_for_and_not_for_ever() {
    for (unmounts, finalizer, at_least, at_most) in
        [(40, false, 40, 44), (300, false, 60, 67), (300, true, 5, 12)]
    {
        let scene = Scene::with(held_group(2, 300)).await;
        let machine = scene.first();
        let unmount = Span::exactly(seconds(unmounts));
        let driver = daemon_set("agent").annotation("ebbtide/daemonset", "evict").exits_after(0);
        scene.run([driver]).await;
        scene.run([pod("web").on(&machine.name).exits_after(10)]).await;
        if finalizer {
            // Its object stays, whatever becomes of its volumes.
            let pods: Api<Pod> = Api::namespaced(scene.world.cluster.client(), "default");
            let patch = Patch::Merge(json!({ "metadata": { "finalizers": ["example.com/kept"] } }));
            pods.patch("web", &PatchParams::default(), &patch).await.expect("kept");
        }
        scene.world.cluster.set_timing(Timing { unmount, ..Timing::real() });
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_released(&machine).await;
        let last = last_exit_of(&scene.world, "web");
        let waited = released_at(&scene.world, &machine).duration_since(last).as_secs();
        assert!((at_least..=at_most).contains(&waited), "{waited} s where it takes {unmounts}");
        let asked = asked(&scene.world, "agent")[0].0.duration_since(last).as_secs();
        assert!(
            asked >= if finalizer { 0 } else { i64::try_from(unmounts).expect("seconds").min(60) },
            "the driver was asked after {asked} s"
        );
        assert!(!a_hook_timed_out(&scene.world));
    }
}

/// The DaemonSet pod of a node, if it has one that is not going.
fn agent_on(scene: &Scene, node: &str) -> Option<String> {
    let pods = scene.world.cluster.pods_on(node);
    let names = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    names.filter_map(|pod| pod.metadata.name).find(|name| name.starts_with("agent-"))
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_pod_that_somebody_deletes_in_mid_drain_comes_back_and_holds_nothing_up() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([daemon_set("agent").starts_after(1)]).await;
    scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
    let old = agent_on(&scene, &machine.name).expect("an agent");
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.remove::<Pod>(&old).await;
    scene.pass_some(seconds(30)).await;
    let new = agent_on(&scene, &machine.name).expect("it has come back");
    assert_ne!(new, old);
    let runs = moments(&scene.world, |e| matches!(e, Event::PodRunning { pod, .. } if pod.name == new));
    assert_eq!(runs.len(), 1);
    scene.until_gone(&machine).await;
    assert!(!asked(&scene.world, &new).iter().any(|(_, by, _)| *by == By::Eviction));
    assert!(last_exit(&scene.world, &machine) > runs[0]);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_while_the_node_flushes_leaves_first() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    // As a DaemonSet's orphan, or a pod whose owner sets nodeName, can.
    scene.run([pod("late").on(&machine.name).exits_after(15)]).await;
    scene.until_gone(&machine).await;
    assert!(phase_at(&scene.world, &machine, "Flushing") >= last_exit(&scene.world, &machine));
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn pods_that_tolerate_everything_come_back_and_are_evicted_once() {
    for group in [group(1), held_group(1, 60)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        let operator = replica_set("operator", 1).tolerates_everything().grace(30).exits_after(5);
        scene.world.cluster.add(operator);
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        let asked = asked(&scene.world, "operator-");
        let evicted: Vec<_> = asked.iter().filter(|(_, by, _)| *by == By::Eviction).collect();
        assert_eq!(
            evicted.len(),
            3,
            "the one that was there, the first that came back, and a last one: {asked:?}"
        );
        let last = evicted[2].0;
        assert!(last >= last_exit_of(&scene.world, "web"), "{last}");
        // What came after that is cut, when its machine ends.
        let is_cut = |entry: &_| matches!(entry, Event::CutShort { .. });
        assert!(scene.world.cluster.journal().iter().filter(|entry| is_cut(&entry.what)).count() <= 1);
        let told = notes(&scene.world, &machine, "ScaleInPodsReturned");
        assert!((1..=3).contains(&told.len()) && told[0].contains("default/operator-"), "{told:?}");
        assert!(
            released_at(&scene.world, &machine)
                >= last_exit_of(&scene.world, "web") + SignedDuration::from_secs(5)
        );
        assert!(!a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_their_owner_binds_to_the_node_by_name_are_evicted_at_a_pace_until_no_scheduler_can_have_bound_them()
 {
    for group in [group(1), held_group(1, 60)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([replica_set("bound", 1).bound_to(&machine.name).grace(30).exits_after(5)]).await;
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        let is_gone = scene.world.until(seconds(1_800), |w| !w.cluster.has_node(&machine.name)).await;
        let asked = asked(&scene.world, "bound-");
        let evicted: Vec<_> = asked.iter().filter(|(_, by, _)| *by == By::Eviction).collect();
        assert!(is_gone && (2..=20).contains(&evicted.len()), "{is_gone}, {} evictions", evicted.len());
        let told = notes(&scene.world, &machine, "ScaleInPodsReturned");
        assert!((1..=3).contains(&told.len()) && told[0].contains("default/bound-"), "{told:?}");
        assert!(!a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_to_a_node_that_somebody_opens_for_a_moment_is_asked_to_go_all_of_it() {
    let scene = Scene::with(group(1)).await;
    let machine = scene.first();
    scene.run([replica_set("web", 4).grace(60).exits_after(20)]).await;
    scene.run([pod("patient").on(&machine.name).annotation("ebbtide/drain", "wait").runs_for(300)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(60)).await;
    let refused = Fault::EtcdTimedOut { took_effect: false };
    scene.world.cluster.fail_next(2, Verb::Create, "pods/eviction", refused);
    scene.patch_node(&machine, serde_json::json!({ "spec": { "unschedulable": false } })).await;
    scene.until_gone(&machine).await;
    let evicted = asked(&scene.world, "web-").into_iter().filter(|(_, by, _)| *by == By::Eviction).count();
    assert_eq!(evicted, 8, "four that were there, four that came");
    assert!(notes(&scene.world, &machine, "ScaleInPodsReturned").is_empty());
}

#[tokio::test(start_paused = true)]
async fn those_that_a_webhook_keeps_until_the_deadline_come_back_and_are_deleted_once() {
    let scene = Scene::with(held_group(1, 30)).await;
    let machine = scene.first();
    scene.world.cluster.postpone(Verb::Create, "pods/eviction", "operator");
    scene.world.cluster.add(replica_set("operator", 1).tolerates_everything().grace(0).exits_after(0));
    scene.pass_some(seconds(30)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    let asked = asked(&scene.world, "operator-");
    let deleted: Vec<_> = asked.iter().filter(|(_, by, _)| *by == By::Delete).collect();
    assert_eq!(
        deleted.len(),
        3,
        "the one that was there, the first that came back, and a last one: {asked:?}"
    );
    let flushes = notes(&scene.world, &machine, "ScaleInFlushing");
    assert!(flushes.len() <= 2, "{flushes:?}");
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_and_is_refused_is_asked_again() {
    let scene = Scene::with(group(1)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(60)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(20)).await;
    let refused = Fault::EtcdTimedOut { took_effect: false };
    scene.world.cluster.fail_next(2, Verb::Create, "pods/eviction", refused);
    scene.world.cluster.add(replica_set("late", 1).tolerates_everything().grace(30).exits_after(5));
    scene.until_gone(&machine).await;
    let asked = asked(&scene.world, "late-");
    let last = last_exit_of(&scene.world, "web");
    assert_eq!(asked.len(), 2, "the next one that comes is asked only once all others have gone");
    assert!(asked[0].0 < last && last <= asked[1].0, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn one_that_comes_back_and_is_refused_for_ever_holds_its_node_for_a_minute() {
    let scene = Scene::with(group(1)).await;
    let machine = scene.first();
    let operator = replica_set("operator", 1).tolerates_everything().grace(9_000).exits_after(5);
    scene.world.cluster.add(operator);
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    // Two are evicted: the one that was there, and the first that came back.
    scene.until(|w| asked(w, "operator-").len() == 2).await;
    scene.world.cluster.postpone(Verb::Create, "pods/eviction", "operator");
    scene.until_gone(&machine).await;
    let waited = released_at(&scene.world, &machine).duration_since(last_exit_of(&scene.world, "web"));
    assert!((60..=75).contains(&waited.as_secs()), "{waited}");
    let asked = asked(&scene.world, "operator-");
    assert_eq!(asked.iter().filter(|(_, by, _)| *by == By::Eviction).count(), 2, "refused: {asked:?}");
}

/// When a pod of this name ended by itself.
fn last_exit_of(world: &World, name: &str) -> Timestamp {
    *moments(world, |e| matches!(e, Event::PodExited { pod, .. } if pod.name == name)).last().expect("ended")
}

#[tokio::test(start_paused = true)]
async fn a_controller_of_kind_daemonset_of_another_group_and_a_pod_that_says_so_make_daemons() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene
        .run([
            pod("agent-kruise").on(on).owned_by_api("apps.kruise.io/v1alpha1", "DaemonSet", "agent"),
            pod("agent-says").on(on).annotation("cluster-autoscaler.kubernetes.io/daemonset-pod", "true"),
            pod("web").on(on).grace(90).exits_after(60),
        ])
        .await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| !aws_moments(w, |e| matches!(e, AwsEvent::HookCompleted { .. })).is_empty()).await;
    assert!(asked(&scene.world, "agent-").is_empty());
    assert!(
        released_at(&scene.world, &machine)
            >= last_exit_of(&scene.world, "web") + SignedDuration::from_secs(5)
    );
}

#[tokio::test(start_paused = true)]
async fn a_daemonset_that_the_watch_does_not_show_yet_is_asked_for_before_its_pods_are_taken_for_orphans() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
    // From now on nothing is heard of DaemonSets: the watch may lag behind that of pods.
    scene.world.cluster.forbid(Verb::Watch, "daemonsets");
    scene.world.cluster.forbid(Verb::List, "daemonsets");
    scene.world.cluster.close_watches();
    scene.pass_some(seconds(5)).await;
    scene.world.cluster.add(daemon_set("agent"));
    scene.pass_some(seconds(20)).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| !aws_moments(w, |e| matches!(e, AwsEvent::HookCompleted { .. })).is_empty()).await;
    assert!(asked(&scene.world, "agent-").is_empty());
    assert!(scene.world.cluster.requests(Verb::Get, "daemonsets") >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_daemonset_holds_a_flush_no_longer_than_is_allowed() {
    let named = BTreeSet::from(["logging".to_owned()]);
    for (namespaces, flush) in [(BTreeSet::new(), 25), (named, 5)] {
        let config =
            config_with(|it| it.flush = Flush { default: seconds(5), longest: seconds(25), namespaces });
        let scene = Scene::configured(group(2), config).await;
        let machine = scene.first();
        scene.run([daemon_set("agent").annotation("ebbtide/flush-seconds", "1800")]).await;
        scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until_gone(&machine).await;
        let flushed = released_at(&scene.world, &machine).duration_since(last_exit(&scene.world, &machine));
        assert!(flushed >= SignedDuration::from_secs(flush), "{flushed}");
        assert!(flushed <= SignedDuration::from_secs(flush + 5), "{flushed}");
    }
}

#[tokio::test(start_paused = true)]
async fn patience_with_pods_that_asked_not_to_be_disturbed_ends_where_the_autoscaler_has_not_asked() {
    for (cause, ends) in [(Cause::Operator, true), (Cause::Group, true), (Cause::Autoscaler, false)] {
        let config = config_with(|it| it.patience = Some(seconds(600)));
        let scene = Scene::configured(held_group(2, 300), config).await;
        let machine = scene.first();
        let patient = pod("web").on(&machine.name).annotation("ebbtide/drain", "wait");
        scene.run([patient.grace(60).exits_after(30)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| in_phase(w, &machine, "Draining")).await;
        scene.pass_some(seconds(590)).await;
        assert!(!is_asked(&scene.world, "web"), "{cause:?}");
        scene.pass_some(seconds(30)).await;
        assert_eq!(is_asked(&scene.world, "web"), ends, "{cause:?}");
        let told = notes(&scene.world, &machine, "ScaleInPatienceOver");
        assert_eq!(told.iter().any(|note| note.contains("default/web")), ends, "{cause:?}: {told:?}");
    }
}
