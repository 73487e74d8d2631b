//! What people and cluster-autoscaler do to a Node while it leaves, or before.

use ebbtide::sim::ca_drain::{Flags, drain_and_delete};
use ebbtide::sim::cluster::{Event, Verb, daemon_set, pod};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use serde_json::{Value, json};
use tracing::Level;

use crate::journal_queries::{
    TERMINATE, assert_nothing_lost, decrements, has_exited, is_asked, last_exit, notes, phase_at, stamps,
    terminations,
};
use crate::notices::scene_of;
use crate::scene::{
    Cause, DS_EVICTION, Machine, RECORD, Scene, TO_BE_DELETED, group, held_group, running, seconds,
};
use crate::status::status;

const CANDIDATE: &str = "DeletionCandidateOfClusterAutoscaler";
const LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Whether a Node is cordoned, tainted by cluster-autoscaler's key and out of load balancers.
fn marks(world: &World, machine: &Machine) -> (bool, bool, bool) {
    let node = world.cluster.node(&machine.name).expect("a Node");
    let spec = node.spec.unwrap_or_default();
    let tainted = spec.taints.unwrap_or_default().iter().any(|taint| taint.key == TO_BE_DELETED);
    let labels = node.metadata.labels.unwrap_or_default();
    (spec.unschedulable == Some(true), tainted, labels.contains_key(LOAD_BALANCERS))
}

/// The record on a Node, if there is one.
fn record(world: &World, machine: &Machine) -> Option<Value> {
    let annotations = world.cluster.node(&machine.name)?.metadata.annotations?;
    serde_json::from_str(annotations.get(RECORD)?).ok()
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_whose_annotation_is_removed_leaves_the_node_as_it_was() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        assert_eq!(marks(&scene.world, &machine), (true, true, true));
        scene.annotate(&machine, None).await;
        scene.until(|w| marks(w, &machine) == (false, false, false)).await;
        scene.until(|w| notes(w, &machine, "ScaleInCancelled").len() == 1).await;
        let annotations = scene.node(&machine.name).expect("there").metadata.annotations.unwrap_or_default();
        assert!(annotations.keys().all(|key| !key.starts_with("ebbtide/")), "{annotations:?}");

        scene.run([pod("new").node_selector("kubernetes.io/hostname", &machine.name)]).await;
        scene.pass_some(seconds(900)).await;
        assert!(has_exited(&scene.world, "web") && !is_asked(&scene.world, "new"));
        assert_eq!((scene.target().await.expect("answered"), scene.world.aws.calls(TERMINATE)), (2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_to_be_replaced_goes_at_the_minimum_too_and_the_size_stays() {
    for group in [group(2).size(2, 10, 2), held_group(2, 60).size(2, 10, 2)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
        let refused = scene.delete(std::slice::from_ref(&machine)).await.expect_err("at the minimum");
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition);
        scene.annotate(&machine, Some("replace")).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 0));
        let whole = |w: &World| w.aws.group("web").is_some_and(|g| (g.desired, g.instances.len()) == (2, 2));
        scene.until(whole).await;
        assert_eq!(scene.target().await.expect("answered"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_person_had_cordoned_before_stays_cordoned_when_the_scale_in_is_cancelled() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.patch_node(&machine, json!({ "spec": { "unschedulable": true } })).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.annotate(&machine, None).await;
    scene.until(|w| marks(w, &machine) == (true, false, false)).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_the_group_has_begun_to_take_out_cannot_be_kept() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(2, 120)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(3_000).exits_after(2_000)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web") && terminations(w, &machine).len() == 1).await;
        for (n, overwritten) in [None, Some("keep")].into_iter().enumerate() {
            let before = record(&scene.world, &machine);
            scene.annotate(&machine, overwritten).await;
            scene.until(|w| record(w, &machine).is_some()).await;
            scene.until(|w| notes(w, &machine, "ScaleInGoesOn").len() == n + 1).await;
            // What was told a moment ago is not told again.
            scene.pass_some(seconds(301)).await;
            let went_on = record(&scene.world, &machine);
            for field in ["cause", "requestedAt", "terminateAt"] {
                assert_eq!(
                    went_on.as_ref().map(|r| &r[field]),
                    before.as_ref().map(|r| &r[field]),
                    "{field}"
                );
            }
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        scene.pass_some(seconds(300)).await;
        let status = status(scene.program()).await;
        let [ended] = &status["ended"].as_array().expect("a list")[..] else { panic!("one: {status}") };
        assert_eq!(ended["outcome"], json!("released"));
    }
}

/// Or pods would be put on a machine that AWS is ending.
#[tokio::test(start_paused = true)]
async fn a_node_whose_record_is_taken_off_once_aws_was_told_stays_closed_until_it_goes() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| terminations(w, &machine).len() == 1).await;
    scene.annotate(&machine, None).await;
    let opened = |w: &World| w.cluster.node(&machine.name).is_some() && !marks(w, &machine).0;
    let is_over = |w: &World| opened(w) || !w.cluster.has_node(&machine.name);
    scene.until(is_over).await;
    assert!(!opened(&scene.world), "it was opened");
    assert!(!notes(&scene.world, &machine, "ScaleInGoesOn").is_empty(), "nobody is told");
    scene.pass_some(seconds(5)).await;
    let status = status(scene.program()).await;
    assert_eq!(status["ended"][0]["outcome"], json!("released"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn cordon_taint_and_label_that_somebody_takes_off_are_put_back() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    // As cluster-autoscaler does when it starts.
    let bare = json!({ "metadata": { "labels": { LOAD_BALANCERS: null } },
        "spec": { "unschedulable": false, "taints": null } });
    scene.patch_node(&machine, bare).await;
    let began = scene.world.clock.now();
    scene.until(|w| marks(w, &machine) == (true, true, true)).await;
    assert!(scene.world.clock.now().duration_since(began) < SignedDuration::from_secs(1));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn the_taint_is_never_older_than_five_minutes_in_an_hour() {
    let mut scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(3_700).exits_after(3_600)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(1_000)).await;
    scene.kill().await;
    scene.until(|w| has_exited(w, "web")).await;
    let mut stamps = stamps(&scene.world, &machine);
    stamps.push(scene.world.clock.now());
    let oldest = stamps.windows(2).map(|pair| pair[1].duration_since(pair[0])).max().expect("stamps");
    assert!(stamps.len() > 12 && oldest < SignedDuration::from_mins(4), "{oldest}");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// What the DaemonSet pods of a node say of cluster-autoscaler's evictions.
fn guards(world: &World, machine: &Machine, prefix: &str) -> Vec<Option<String>> {
    let pods = world.cluster.pods_on(&machine.name).into_iter();
    pods.filter(|pod| pod.metadata.name.as_deref().is_some_and(|name| name.starts_with(prefix)))
        .map(|pod| pod.metadata.annotations.unwrap_or_default().get(DS_EVICTION).cloned())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn daemonset_pods_of_a_candidate_are_guarded_until_it_is_none_any_more() {
    for kill in [false, true] {
        let mut scene = Scene::with(group(2)).await;
        scene.run([daemon_set("agent").annotation(DS_EVICTION, "true")]).await;
        scene.until(|w| running(w, "agent-") == 2).await;
        let (machine, other) = (scene.first(), scene.machines().remove(1));
        scene.run([pod("web").on(&machine.name)]).await;
        scene.taint(&machine, CANDIDATE).await;
        let guarded = |w: &World| guards(w, &machine, "shipper-") == [Some("false".to_owned())];
        scene.until(guarded).await;
        scene.pass_some(seconds(60)).await;
        assert_eq!(guards(&scene.world, &machine, "agent-"), [Some("true".to_owned())], "its own value");
        assert_eq!(guards(&scene.world, &machine, "web"), [None]);
        assert_eq!(guards(&scene.world, &other, "shipper-"), [None]);
        if kill {
            scene.kill().await;
        }
        scene.patch_node(&machine, json!({ "spec": { "taints": null } })).await;
        scene.until(|w| guards(w, &machine, "shipper-") == [None]).await;
        assert_eq!(guards(&scene.world, &machine, "agent-"), [Some("true".to_owned())]);
        let annotated = |w: &World| {
            let annotations = w.cluster.node(&machine.name).and_then(|node| node.metadata.annotations);
            annotations.unwrap_or_default().keys().any(|key| key.starts_with("ebbtide/"))
        };
        scene.until(|w| !annotated(w)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_cut_off_in_the_middle_is_taken_off_all_the_same() {
    let mut scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.taint(&machine, CANDIDATE).await;
    scene.until(|w| guards(w, &machine, "shipper-") == [Some("false".to_owned())]).await;
    scene.kill().await;
    scene.world.cluster.api_down_for(seconds(60));
    scene.pass_some(seconds(61)).await;
    scene.patch_node(&machine, json!({ "spec": { "taints": null } })).await;
    scene.until(|w| guards(w, &machine, "shipper-") == [None]).await;
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_forbidden_is_told_of_once_and_not_tried_without_end() {
    let (log, _guard) = captured::log(Level::WARN);
    let scene = Scene::with(group(2)).await;
    scene.world.cluster.forbid(Verb::Patch, "pods");
    for machine in scene.machines() {
        scene.taint(&machine, CANDIDATE).await;
    }
    scene.pass_some(seconds(900)).await;
    let tried = scene
        .world
        .cluster
        .count(|entry| matches!(&entry.what, Event::Request { verb: Verb::Patch, resource: "pods", .. }));
    assert!((10..=20).contains(&tried), "{tried} for two pods");
    assert_eq!(log.text().matches("could not be changed").count(), 3, "every five minutes: {}", log.text());
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_is_forbidden_for_a_moment_is_set_a_moment_later() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.world.cluster.deny(Verb::Patch, "pods", "shipper");
    scene.taint(&machine, CANDIDATE).await;
    scene.pass_some(seconds(10)).await;
    scene.world.cluster.no_more_faults();
    scene.pass_some(seconds(20)).await;
    assert_eq!(guards(&scene.world, &machine, "shipper-"), [Some("false".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_restart_does_not_strip_the_guard_of_a_candidates_daemonset_pods() {
    let mut scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.taint(&machine, CANDIDATE).await;
    let guards = |w: &World| {
        w.cluster
            .count(|entry| matches!(&entry.what, Event::Request { verb: Verb::Patch, resource: "pods", .. }))
    };
    scene.until(|w| guards(w) > 0).await;
    scene.pass_some(seconds(30)).await;
    let before = guards(&scene.world);
    // AWS takes a while to say whose the node is.
    scene.world.aws.delay(seconds(2), seconds(1));
    scene.kill().await;
    scene.pass_some(seconds(60)).await;
    assert_eq!(guards(&scene.world), before);
    let guarded = scene.world.cluster.pods_on(&machine.name).into_iter().all(|pod| {
        pod.metadata.annotations.unwrap_or_default().get(DS_EVICTION).is_some_and(|value| value == "false")
    });
    assert!(guarded);
}

#[tokio::test(start_paused = true)]
async fn a_cordon_of_cluster_autoscalers_goes_with_the_scale_in_that_is_cancelled() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    let flags = Flags { cordon: true, evicts_daemon_sets: false, ..Flags::default() };
    let mut client = scene.client();
    let autoscaler = drain_and_delete(&scene.world, &mut client, "web", &machine.name, &flags);
    autoscaler.await.expect("handed over");
    assert_eq!(marks(&scene.world, &machine), (true, true, true));
    scene.annotate(&machine, None).await;
    scene.until(|w| marks(w, &machine) == (false, false, false)).await;
}

#[tokio::test(start_paused = true)]
async fn after_cluster_autoscalers_own_drain_the_flush_counts_from_the_last_exit() {
    for group in [group(2), held_group(2, 60)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(31)]).await;
        let flags = Flags { evicts_daemon_sets: false, ..Flags::default() };
        let mut client = scene.client();
        let autoscaler = drain_and_delete(&scene.world, &mut client, "web", &machine.name, &flags);
        autoscaler.await.expect("handed over");
        let handed_over = scene.world.clock.now();
        scene.until_gone(&machine).await;
        assert_nothing_lost(&scene.world);
        let last = last_exit(&scene.world, &machine);
        let released = phase_at(&scene.world, &machine, "Releasing");
        let due = handed_over.max(last + SignedDuration::from_secs(7));
        assert!(
            released <= due + SignedDuration::from_secs(1),
            "released at {released}, the last exit at {last}"
        );
    }
}

/// Somebody suspends it so that nothing goes.
#[tokio::test(start_paused = true)]
async fn where_terminate_is_suspended_aws_is_told_to_terminate_nothing_until_that_is_over() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::with(group(3)).await;
        let machine = scene.first();
        let other = scene.machines().into_iter().find(|other| other.name != machine.name).expect("another");
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(60)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.suspend("web", "Terminate", true);
        scene.pass_some(seconds(900)).await;
        assert_eq!(scene.world.aws.calls(TERMINATE), 0, "{cause:?}");
        assert!(has_exited(&scene.world, "web"));
        assert!(!notes(&scene.world, &machine, "ScaleInNotPossible").is_empty());
        for word in ["now", "replace"] {
            scene.annotate(&other, Some(word)).await;
            scene.pass_some(seconds(60)).await;
            assert_eq!(marks(&scene.world, &other), (false, false, false), "none is begun");
            assert!(!notes(&scene.world, &other, "ScaleInNotPossible").is_empty());
        }
        scene.annotate(&other, None).await;
        scene.world.aws.suspend("web", "Terminate", false);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// It hangs, and somebody writes it once more.
#[tokio::test(start_paused = true)]
async fn a_request_over_a_scale_in_that_is_under_way_changes_nothing_and_says_so() {
    for (cause, word) in
        [(Cause::Autoscaler, "now"), (Cause::Autoscaler, "replace"), (Cause::Operator, "now")]
    {
        // At its minimum once the scale-in is accepted.
        let scene = Scene::with(group(2).size(1, 10, 2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        let before = record(&scene.world, &machine);
        scene.annotate(&machine, Some(word)).await;
        scene.until(|w| record(w, &machine).is_some()).await;
        assert_eq!(record(&scene.world, &machine), before, "{cause:?} {word}");
        assert_eq!(marks(&scene.world, &machine), (true, true, true));
        scene.until(|w| notes(w, &machine, "ScaleInGoesOn").len() == 1).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(decrements(&scene.world), 1);
        scene.pass_some(seconds(60)).await;
        let ended = status(scene.program()).await["ended"].clone();
        assert_eq!(ended.as_array().map(Vec::len), Some(1), "{ended}");
    }
}

#[tokio::test(start_paused = true)]
async fn opening_a_node_that_is_scaled_in_tells_why_it_is_closed_again() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    for _ in 0..3 {
        scene.patch_node(&machine, json!({ "spec": { "unschedulable": false } })).await;
        scene.until(|w| marks(w, &machine) == (true, true, true)).await;
        scene.pass_some(seconds(10)).await;
    }
    let told = notes(&scene.world, &machine, "ScaleInGoesOn");
    assert!(told.len() == 1 && told[0].contains("kubectl uncordon"), "{told:?}");
}

/// Or pods would come to a machine that has a minute left.
#[tokio::test(start_paused = true)]
async fn a_node_whose_machine_aws_ends_within_minutes_is_not_opened_by_taking_its_annotation_off() {
    let (scene, _) = scene_of(group(2), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
    scene.world.aws.interrupt_spot(&machine.instance);
    scene.until(|w| is_asked(w, "web")).await;
    scene.annotate(&machine, None).await;
    scene.until(|w| notes(w, &machine, "ScaleInGoesOn").len() == 1).await;
    scene.until(|w| record(w, &machine).is_some()).await;
    assert_eq!(marks(&scene.world, &machine), (true, true, true));
    scene.until_released(&machine).await;
}
