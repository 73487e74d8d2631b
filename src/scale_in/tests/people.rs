//! What people do to a Node in the middle of it, and cluster-autoscaler.

use serde_json::{Value, json};

use super::scene::*;
use crate::aws::Lifecycle;
use crate::cluster::PodView;
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::events::{self, ScaleInEvent};
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::record::{self, Cause, Record, Release};
use crate::scale_in::turn::Turn;

#[test]
fn a_person_drains_with_now_and_replaces_with_replace() {
    for (word, release) in [("now", Release::TerminateAndDecrement), ("replace", Release::Terminate)] {
        let mut scene = node().annotated(word);
        scene.settings.installation = Some("kube-system/ebbtide".to_owned());
        scene.plan();
        assert_eq!((scene.record().cause, scene.record().release), (Cause::Operator, release));
        assert_eq!(scene.record().installation, scene.settings.installation, "whose it is");
        assert_eq!(scene.view().marks.as_deref(), Some("cordon,load-balancer,taint,kube-system/ebbtide"));
    }
    // The group is at its minimum: the request waits until it is not.
    let mut scene = node().annotated("now");
    scene.may_shrink = false;
    let plan = scene.plan();
    assert_eq!((reasons(&plan), plan.writes_node()), (vec!["ScaleInNotPossible"], false));
    let mut scene = node().annotated("later");
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotUnderstood"]);
    let mut scene = node().annotated("now");
    scene.instance = Membership::Elsewhere { seen: at(-1) };
    // Another installation's, maybe.
    let plan = scene.plan();
    assert_eq!((reasons(&plan), plan.wake_at), (vec![], Some(at(10))));
    scene.later(10);
    let plan = scene.plan();
    assert_eq!((reasons(&plan), plan.actions), (vec![], vec![Action::Refresh]), "launched since, maybe");
    scene.undescribed_since = Some(at(10));
    scene.later(60);
    assert_eq!(reasons(&scene.plan()), ["ScaleInWaiting"]);
    scene.undescribed_since = None;
    scene.instance = Membership::Elsewhere { seen: at(10) };
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotPossible"]);
}

/// Which has groups of its own, and may have taken the Node up or put things on it at any time.
#[test]
fn what_another_installation_has_put_on_a_node_of_its_own_stays() {
    let theirs = Some("theirs/ebbtide".to_owned());
    let planned = |mut scene: Scene| {
        scene.settings.installation.clone_from(&theirs);
        scene.plan();
        scene.memory = Memory::default();
        scene
    };
    let begun = || planned(node().annotated("now"));
    let with = |annotation: Value| {
        let mut scene = begun();
        scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: annotation } } }));
        scene
    };
    for installation in [None, Some("ours/ebbtide".to_owned()), theirs.clone()] {
        let is_theirs = installation == theirs;
        let record = begun().record();
        let of_an_earlier_machine = Record { instance: "i-2".into(), ..record.clone() };
        let records = [record, of_an_earlier_machine].map(|record| json!(record::write(&record)));
        let annotations = records.into_iter().chain([json!("now"), json!("nonsense"), json!(null)]);
        let guarded = planned(node().tainted(names::DELETION_CANDIDATE));
        let scenes = annotations.map(with).chain([guarded]);
        for (n, mut scene) in scenes.enumerate() {
            scene.settings.installation.clone_from(&installation);
            scene.from_another_run = false;
            let before = scene.node.clone();
            for _ in 0..4 {
                scene.later(60);
                scene.instance = Membership::Elsewhere { seen: scene.now };
                let plan = scene.plan();
                assert!(is_theirs || plan.actions.is_empty(), "{n}: {plan:?}");
            }
            assert_eq!(scene.node == before, !is_theirs, "{n} {installation:?}");
        }
        // A group that both have, or an installation under another name.
        let mut scene = with(json!(null));
        scene.settings.installation = installation;
        scene.plan();
        assert_eq!((spec(&scene), scene.view().marks), ((false, vec![], false), None));
    }
}

/// Both annotations were taken off: the one whose group it is opens the node, uncordons it and says so.
#[test]
fn a_node_that_nothing_says_whose_it_is_is_left_to_whoever_keeps_its_taint_fresh() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null, names::MARKS: null } } }));
    scene.memory = Memory::default();
    let view = scene.view();
    scene.memory.claims.see(&view, false, scene.now);
    for (seconds, stays) in [(0, true), (200, true), (60, false)] {
        scene.later(seconds);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        scene.plan();
        assert_eq!(scene.view().taints.is_empty(), !stays, "{:?}", scene.view());
    }
}

#[test]
fn a_request_that_waits_for_its_turn_has_been_taken_up_by_whoever_has_its_group() {
    let mut scene = node().annotated("now since 2023-11-14T22:00:00Z");
    for (seconds, instance, told) in [
        (20, Membership::Elsewhere { seen: at(20) }, vec![]),
        (0, in_group(Lifecycle::Standby), vec![]),
        (20, Membership::Elsewhere { seen: at(40) }, vec!["ScaleInNotPossible"]),
    ] {
        scene.later(seconds);
        scene.instance = instance;
        scene.turn = Turn::waits(1, 3);
        let plan = scene.plan();
        let reasons: Vec<_> = reasons(&plan).into_iter().filter(|it| *it == "ScaleInNotPossible").collect();
        assert_eq!(reasons, told, "{plan:?}");
    }
}

/// Or the hook would hold it until it times out, and its pods would be cut off.
#[test]
fn a_request_that_has_to_wait_or_cannot_be_met_keeps_nothing_from_draining_that_a_hook_holds_for_its_root_volume()
 {
    for (word, may_shrink, cause, release) in [
        ("now", false, Cause::LifecycleHook, Release::LeftToGroup),
        ("now", true, Cause::Operator, Release::TerminateAndDecrement),
        ("replace", true, Cause::Operator, Release::Terminate),
    ] {
        let mut scene = node().hooked(60).annotated(word);
        (scene.may_shrink, scene.turn) = (may_shrink, Turn::waits(1, 3));
        scene.plan();
        assert_eq!(scene.view().scale_in(), None, "{word} {may_shrink}");
        scene.instance = in_group(Lifecycle::ReplacingVolumeWait);
        scene.held_since = Some(at(0));
        scene.plan();
        let record = scene.record();
        assert_eq!((record.cause, record.release), (cause, release), "{word} {may_shrink}");
    }
    // Another's hook is none of ours.
    let mut scene = node().annotated("now");
    (scene.may_shrink, scene.instance) = (false, in_group(Lifecycle::ReplacingVolumeWait));
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotPossible"]);
}

/// As when an old copy of its annotations is applied.
#[test]
fn marks_that_somebody_takes_off_with_the_record_are_known() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::MARKS: null, names::RECORD: null } } }));
    assert_eq!(told(&scene.plan()), [events::cancelled_by_a_person()]);
    assert_eq!((spec(&scene), scene.plan().actions), ((false, vec![], false), vec![]));
}

#[test]
fn marks_that_somebody_has_taken_off_are_found_again() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::MARKS: null } } }));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    assert_eq!(spec(&scene), (false, vec![], false), "it is back in service");
    // What a person put on stays.
    let mut scene = node();
    let labels = json!({ names::EXCLUDE_FROM_LOAD_BALANCERS: "true" });
    scene.patch(&json!({ "metadata": { "labels": labels } }));
    let mut scene = scene.by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::MARKS: "guard" } } }));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.plan();
    assert_eq!(spec(&scene), (false, vec![], true));
}

#[test]
fn where_nothing_lists_the_marks_any_more_what_is_certainly_ours_comes_off_and_people_are_told_of_the_cordon()
{
    let left = |label: &str, effect: &str, is_cordoned: bool| {
        let mut scene = node();
        let taint = json!({ "key": names::TO_BE_DELETED, "value": "1", "effect": effect });
        let labels = json!({ names::EXCLUDE_FROM_LOAD_BALANCERS: label });
        let spec_of_node = json!({ "unschedulable": is_cordoned, "taints": [taint] });
        scene.patch(&json!({ "metadata": { "labels": labels }, "spec": spec_of_node }));
        let told = told(&scene.plan());
        (told, spec(&scene))
    };
    let cordon_stays = || vec![events::cancelled_without_a_list()];
    assert_eq!(left("ebbtide", "PreferNoSchedule", true), (cordon_stays(), (true, vec![], false)));
    assert_eq!(left("true", "PreferNoSchedule", true), (cordon_stays(), (true, vec![], true)));
    let is_open = vec![events::cancelled_by_a_person()];
    assert_eq!(left("ebbtide", "PreferNoSchedule", false), (is_open, (false, vec![], false)));
    let theirs = vec![names::TO_BE_DELETED.to_owned()];
    assert_eq!(
        left("true", "NoSchedule", true),
        (vec![], (true, theirs, true)),
        "cluster-autoscaler drains it"
    );
}

/// What a plan announces.
fn told(plan: &Plan) -> Vec<ScaleInEvent> {
    let event = |action| match action {
        Action::Announce(event) => Some(event),
        _ => None,
    };
    all(plan).into_iter().filter_map(event).collect()
}

#[test]
fn removing_the_annotation_gives_the_node_back_as_it_was() {
    let mut scene = node().tainted("dedicated").by_autoscaler();
    let taints = vec!["dedicated".to_owned(), names::TO_BE_DELETED.to_owned()];
    assert_eq!(spec(&scene), (true, taints, true));
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    assert_eq!(spec(&scene), (false, vec!["dedicated".into()], false));
    assert_eq!(scene.view().marks, None);
    assert_eq!(scene.plan().actions, []);
}

#[test]
fn a_cordon_that_was_there_before_stays_when_the_scale_in_is_cancelled() {
    let mut scene = node();
    scene.patch(&json!({ "spec": { "unschedulable": true } }));
    let mut scene = scene.by_autoscaler();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.plan();
    assert_eq!(spec(&scene), (true, vec![], false));
}

#[test]
fn a_scale_in_that_the_group_has_begun_cannot_be_cancelled() {
    let mut scene = node().hooked(60).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.plan();
    assert_eq!(scene.record().cause, Cause::LifecycleHook);
}

#[test]
fn cordon_and_taint_are_put_back_when_the_autoscaler_takes_them_off_and_kept_fresh() {
    let mut scene = node().by_autoscaler().with(pod("web").going(3_000));
    assert_eq!(scene.plan().actions, []);
    scene.patch(&json!({ "spec": { "unschedulable": null, "taints": null } }));
    scene.plan();
    assert_eq!(spec(&scene), (true, vec![names::TO_BE_DELETED.into()], true));
    let stamp = |scene: &Scene| {
        scene
            .view()
            .taint(names::TO_BE_DELETED)
            .and_then(|t| t.value.as_deref()?.parse().ok())
            .unwrap_or(0i64)
    };
    for _ in 0..100 {
        scene.later(60);
        scene.plan();
        assert!(scene.now.as_second() - stamp(&scene) < 5 * 60);
    }
    assert_eq!(scene.view().taints.len(), 1);
}

#[test]
fn a_taint_of_a_moment_beyond_all_moments_breaks_nothing() {
    for stamp in [253_402_207_200, i64::MAX, i64::MIN, -377_705_023_201] {
        let mut scene = node().by_autoscaler().with(pod("web"));
        let taint =
            json!({ "key": names::TO_BE_DELETED, "value": stamp.to_string(), "effect": "NoSchedule" });
        scene.patch(&json!({ "spec": { "taints": [taint] } }));
        assert_eq!(evictions(&scene.plan()).len(), 1, "{stamp}");
    }
}

#[test]
fn a_record_of_another_instance_is_void() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.patch(&json!({ "spec": { "providerID": "aws:///us-east-1a/i-2" } }));
    let plan = scene.plan();
    assert!(evictions(&plan).is_empty() && !touches_aws(&plan));
    assert_eq!(spec(&scene), (false, vec![], false));
}

#[test]
fn daemonset_pods_of_a_candidate_are_guarded_and_let_go_again() {
    let owned = |value: &str| pod(value).daemon().wishing(names::ENABLE_DS_EVICTION, value);
    let mut scene = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon()).with(owned("true"));
    scene.put(pod("web"));
    let guards = |plan: &Plan| {
        plan.actions
            .iter()
            .filter_map(|a| match a {
                Action::Guard { pod, on, .. } => Some((pod.name.clone(), *on)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert!(guards(&scene.plan()).is_empty(), "the mark on the Node comes first");
    assert_eq!(guards(&scene.plan()), [("logs".into(), true)]);
    scene.put(owned("false").wishing(names::GUARDED, "true"));
    scene.remove("logs");
    assert!(scene.plan().actions.is_empty());
    scene.patch(&json!({ "spec": { "taints": null } }));
    assert_eq!(guards(&scene.plan()), [("false".into(), false)]);
    scene.remove("false");
    scene.plan();
    assert_eq!(scene.view().marks, None);
    let mut off = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon());
    off.settings.guard = false;
    assert!(off.plan().actions.is_empty());
}

#[test]
fn words_that_mean_nothing_are_not_remembered_for_ever() {
    let mut scene = node();
    for n in 0..1_000 {
        scene = scene.annotated(&format!("word {n}"));
        scene.later(1);
        scene.plan();
    }
    assert!(scene.memory.announced.len() <= 301, "{}", scene.memory.announced.len());
}

#[test]
fn what_came_back_in_a_scale_in_that_was_called_off_is_asked_in_the_next() {
    let came_back = PodView { tolerates_cordon: true, created: Some(at(100)), ..pod("web") };
    let mut scene = node().by_autoscaler().with(came_back.clone());
    scene.memory.of_scale_in.returns.asked(came_back.owner(), true);
    scene.later(200);
    let stays = pod("stays").going(900);
    scene.put(stays);
    assert_eq!(evictions(&scene.plan()), [], "it would come back for ever");
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    scene.plan();
    assert_eq!(evictions(&scene.by_autoscaler().plan()), [("web".into(), None)]);
}

#[test]
fn what_comes_back_for_ever_is_asked_a_last_time_once_the_others_have_gone_or_its_grace_needs_what_is_left() {
    // By the limit, when the pod that comes back is asked: its grace, the time to kill it, and a chance for others before that.
    for (limit, stays, expected) in [(None, 300, 300), (Some(3_600), 3_500, 3_500), (Some(400), 10_000, 347)]
    {
        let came_back = PodView { tolerates_cordon: true, created: Some(at(100)), ..pod("web").grace(30) };
        let mut scene = node().by_autoscaler().with(came_back.clone()).with(pod("stays").going(20_000));
        if let Some(limit) = limit {
            scene = scene.until(limit);
        }
        scene.memory.of_scale_in.returns.asked(came_back.owner(), true);
        let asked = (1..4_000).find(|second| {
            scene.now = at(*second);
            if *second == stays {
                scene.remove("stays");
            }
            evictions(&scene.plan()) == [("web".into(), None)]
        });
        assert_eq!(asked, Some(expected), "{limit:?}");
        scene.evicted("web");
        scene.remove("web");
        scene.put(PodView { uid: "next".into(), ..came_back });
        scene.later(5);
        assert_eq!(evictions(&scene.plan()), [], "what comes after that ends with the machine");
    }
}

#[test]
fn a_scale_in_that_was_called_off_does_not_come_back_with_the_next_request() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.from_another_run = false;
    // The marks are still on: what takes them off has not got through.
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    let view = scene.view();
    scene.memory.claims.see(&view, false, scene.now);
    let mut scene = scene.annotated("replace");
    scene.plan();
    assert_eq!((scene.record().cause, scene.record().release), (Cause::Operator, Release::Terminate));
    // Written directly over it, it begins no other.
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.from_another_run = false;
    let mut scene = scene.annotated("replace");
    assert_eq!(reasons(&scene.plan()), ["ScaleInGoesOn"]);
    assert_eq!(scene.record().cause, Cause::Autoscaler);
    // Again and again, it is told once in a while.
    scene.plan();
    let mut scene = scene.annotated("now");
    assert_eq!(reasons(&scene.plan()), [""; 0]);
    assert_eq!(scene.record().cause, Cause::Autoscaler);
}

#[test]
fn a_second_request_before_the_record_is_back_begins_no_other_either() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    scene.from_another_run = false;
    let mut scene = scene.annotated("now");
    let view = scene.view();
    scene.memory.claims.see(&view, false, scene.now);
    let mut scene = scene.annotated("replace");
    scene.plan();
    assert_eq!(
        (scene.record().cause, scene.record().release),
        (Cause::Autoscaler, Release::TerminateAndDecrement)
    );
}

#[test]
fn a_request_over_a_record_that_nobody_has_seen_waits_for_no_turn_and_one_that_cannot_be_opens_the_node() {
    for (word, may_shrink, begins) in [("replace", true, true), ("now", true, true), ("now", false, false)] {
        let mut scene = node().by_autoscaler().with(pod("web").going(900));
        scene.plan();
        let mut scene = scene.annotated(word);
        scene.memory = Memory::default();
        (scene.turn, scene.may_shrink) = (Turn::waits(1, 3), may_shrink);
        let told = reasons(&scene.plan());
        assert_eq!(scene.view().scale_in().is_some(), begins, "{word}: {told:?}");
        assert_eq!(spec(&scene).0, begins, "{word}");
        assert_eq!(told.contains(&"ScaleInNotPossible"), !begins, "{told:?}");
    }
    // Of an instance that has left its group alive.
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.plan();
    let mut scene = scene.annotated("now");
    (scene.memory, scene.instance) = (Memory::default(), Membership::Elsewhere { seen: at(0) });
    scene.plan();
    assert_eq!(spec(&scene), (false, vec![], false));
}
