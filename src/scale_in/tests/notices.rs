//! What notices from AWS make of a node.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::scene::*;
use crate::aws::Lifecycle;
use crate::cluster::{Cordon, CordonReason};
use crate::k8s::names;
use crate::scale_in::action::Action;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::node_patch;
use crate::scale_in::notices::{Expected, Noticed};
use crate::scale_in::record::{Cause, Phase, Release};
use crate::scale_in::settings::Treatment;
use crate::scale_in::turn::Turn;

/// Nothing has come that is not on record.
fn untold(scene: Scene) -> Scene {
    told_of(scene, &[])
}

/// Until when the node is closed because of which event.
fn closed_for(scene: &Scene) -> Vec<(Option<String>, Timestamp)> {
    let cordon = scene.view().cordon;
    let reasons = cordon.as_ref().map(Cordon::reasons).unwrap_or_default();
    reasons.iter().map(|reason| (reason.event.clone(), reason.until)).collect()
}

fn only(cause: Cause, until: Timestamp) -> Option<Cordon> {
    Cordon::of(vec![CordonReason { cause, until, event: None }])
}

#[test]
fn a_spot_interruption_drains_with_grace_that_fits_and_has_the_instance_replaced() {
    let mut scene = told(node().with(pod("web").grace(600)).with(pod("quick")), spot(120));
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    let record = scene.record();
    assert_eq!((record.cause, record.release), (Cause::SpotInterruption, Release::Terminate));
    assert_eq!((record.ends_at, record.release_by), (Some(at(120)), Some(at(120))));
    // 5 s to flush, 5 s of margin, 1 s to kill and report are kept back.
    assert_eq!(evictions(&scene.plan()), [("quick".into(), None), ("web".into(), Some(109))]);
}

#[test]
fn a_restart_keeps_the_end_that_a_notice_told() {
    let mut scene = told(node().with(pod("web").grace(600)), spot(120));
    scene.plan();
    scene.notices.clear();
    scene.memory = Memory::default();
    assert_eq!(evictions(&scene.plan()), [("web".into(), Some(109))]);
    assert_eq!(scene.record().release_by, Some(at(120)));
}

/// A drain of an interrupted instance that an earlier run began. The notice itself was deleted with that.
fn interrupted_before_a_restart() -> Scene {
    let mut scene = told(node().with(pod("web").grace(600)), spot(120));
    scene.plan();
    scene.memory = Memory::default();
    let mut scene = untold(scene);
    scene.plan();
    scene.from_another_run = false;
    scene
}

#[test]
fn what_a_person_writes_over_an_interrupted_drain_changes_nothing() {
    for word in ["now", "replace"] {
        let mut scene = interrupted_before_a_restart().annotated(word);
        scene.turn = Turn::waits(1, 3);
        scene.plan();
        let record = scene.record();
        assert_eq!((record.cause, record.release), (Cause::SpotInterruption, Release::Terminate), "{word}");
        assert_eq!((record.ends_at, record.release_by), (Some(at(120)), Some(at(120))));
    }
}

/// The drain of an interrupted instance that another process has called off, and a request that came then.
fn requested_after_a_restart(word: &str) -> Scene {
    let mut scene = interrupted_before_a_restart();
    scene.patch(&node_patch::take_off(&scene.view(), node_patch::marks(&scene.view()), None));
    let view = scene.view();
    scene.memory.claims.see(&view, false, scene.now);
    scene.annotated(word)
}

#[test]
fn a_request_for_a_machine_that_aws_is_about_to_end_waits_for_no_turn_and_has_no_more_time() {
    for (word, may_shrink, release) in [
        ("now", true, Release::TerminateAndDecrement),
        ("now", false, Release::Terminate),
        ("replace", true, Release::Terminate),
    ] {
        let mut scene = requested_after_a_restart(word);
        scene.turn = Turn::waits(1, 3);
        scene.may_shrink = may_shrink;
        scene.plan();
        let record = scene.record();
        assert_eq!((record.cause, record.release), (Cause::Operator, release), "{word} {may_shrink}");
        assert_eq!((record.ends_at, record.release_by), (Some(at(120)), Some(at(120))));
    }
}

#[test]
fn an_end_that_is_over_or_another_machines_makes_no_request_hurry() {
    let mut over = requested_after_a_restart("now");
    over.later(120);
    let mut anothers = requested_after_a_restart("now");
    anothers.patch(&json!({ "spec": { "providerID": "aws:///us-east-1a/i-2" } }));
    for mut scene in [over, anothers] {
        scene.turn = Turn::waits(1, 3);
        scene.plan();
        assert!(scene.view().scale_in().is_none());
        scene.turn = Turn::Now;
        scene.plan();
        assert_eq!(scene.record().ends_at, None);
    }
}

#[test]
fn maintenance_that_is_more_than_a_day_away_waits_for_its_turn_with_a_request_and_without() {
    const DAY: i64 = 86_400;
    for (word, second, waits) in [
        (None, DAY + 60, true),
        (None, DAY, false),
        (Some("replace"), DAY + 60, true),
        (Some("replace"), DAY, false),
    ] {
        let mut scene = node().with(pod("web"));
        scene.plan();
        scene.from_another_run = false;
        if let Some(word) = word {
            scene = scene.annotated(word);
        }
        let mut scene = told(scene, expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(second))));
        scene.turn = Turn::waits(1, 3);
        let reasons = reasons(&scene.plan());
        assert_eq!(reasons.contains(&"ScaleInQueued"), waits, "{word:?} {second}: {reasons:?}");
        assert_eq!(scene.view().scale_in().is_none(), waits, "{word:?} {second}");
        assert!(!scene.view().unschedulable || !waits, "open while it waits");
        scene.turn = Turn::Now;
        scene.plan();
        assert_eq!(scene.record().ends_at, Some(at(second)), "{word:?}");
    }
}

#[test]
fn a_drain_on_a_recommendation_waits_for_its_turn_with_a_request_and_without_and_replaces_at_the_minimum() {
    for (word, cause) in [
        (None, Cause::RebalanceRecommendation),
        (Some("replace"), Cause::Operator),
        (Some("now"), Cause::Operator),
    ] {
        let mut scene = node().with(pod("web"));
        if let Some(word) = word {
            scene = scene.annotated(word);
        }
        let mut scene = told(scene, expected(Cause::RebalanceRecommendation, Treatment::Drain, None));
        scene.may_shrink = false;
        scene.turn = Turn::waits(1, 3);
        assert_eq!(reasons(&scene.plan()), ["ScaleInQueued"], "{word:?}");
        assert!(scene.view().scale_in().is_none() && !scene.view().unschedulable, "{word:?}");
        scene.turn = Turn::Now;
        scene.plan();
        assert_eq!((scene.record().cause, scene.record().release), (cause, Release::Terminate), "{word:?}");
    }
}

#[test]
fn a_recommendation_closes_a_node_whose_maintenance_waits_for_its_turn() {
    let advice = expected(Cause::RebalanceRecommendation, Treatment::Cordon, None);
    let far = expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(100_000)));
    let mut scene = told_of(node().with(pod("web")), &[(advice, None), (far, Some("a"))]);
    scene.turn = Turn::waits(1, 3);
    scene.plan();
    assert_eq!((closed_for(&scene).len(), scene.view().scale_in().is_none()), (1, true));
}

#[test]
fn a_recommendation_closes_a_node_whose_request_waits_or_cannot_be_met() {
    let advice = expected(Cause::RebalanceRecommendation, Treatment::Cordon, None);
    let requested = |word: &str| told(node().with(pod("web")).annotated(word), advice);
    let mut waits = requested("replace");
    waits.turn = Turn::waits(1, 3);
    let mut at_the_minimum = requested("now");
    at_the_minimum.may_shrink = false;
    let mut suspended = requested("now");
    suspended.keeps_its_nodes = true;
    for mut scene in [waits, at_the_minimum, suspended] {
        scene.plan();
        scene.plan();
        assert_eq!((closed_for(&scene).len(), scene.view().scale_in().is_none()), (1, true), "{scene:?}");
        // The notice lapses, and the request still waits.
        scene = untold(scene);
        scene.now = at(0) + SignedDuration::from_secs(3_600);
        scene.plan();
        assert!(!spec(&scene).0, "{scene:?}");
    }
}

#[test]
fn an_end_that_has_passed_cuts_nobody_short_though_its_notice_still_counts() {
    // Nobody drains what is in Standby, unless a person wants it gone.
    let mut scene = told(node().with(pod("web").grace(600)).annotated("now"), spot(120));
    scene.instance = in_group(Lifecycle::Standby);
    scene.later(130);
    scene.plan();
    assert_eq!(evictions(&scene.plan()), [("web".into(), None)]);
    assert_eq!((scene.record().cause, scene.record().release_by), (Cause::Operator, None));
}

#[test]
fn under_the_hook_an_interrupted_drain_whose_annotation_is_taken_off_ends_when_its_machine_does() {
    for (annotation, cause) in [(json!(null), Cause::LifecycleHook), (json!("now"), Cause::SpotInterruption)]
    {
        let mut scene = interrupted_before_a_restart().hooked(300);
        scene.instance = in_group(Lifecycle::TerminatingWait);
        scene.held_since = Some(at(0));
        scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: annotation } } }));
        scene.plan();
        let record = scene.record();
        assert_eq!((record.cause, record.release_by), (cause, Some(at(120))), "{annotation}");
    }
}

#[test]
fn a_cause_that_comes_later_shortens_the_deadline_and_none_lengthens_it() {
    let mut scene = node().with(pod("web")).by_autoscaler();
    scene.plan();
    assert_eq!(scene.record().release_by, None);
    scene.later(10);
    scene = told(scene, spot(130));
    scene.plan();
    let record = scene.record();
    assert_eq!((record.release_by, record.cause), (Some(at(130)), Cause::Autoscaler));
    assert_eq!(record.release, Release::TerminateAndDecrement, "cluster-autoscaler does not want it back");
    scene = told(scene, spot(500));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(130)));
}

#[test]
fn of_a_limit_that_comes_late_in_a_drain_the_flush_takes_half_of_what_is_left() {
    let logs = pod("logs").daemon().wishing(names::FLUSH_SECONDS, "110");
    let mut scene = node().with(pod("asked")).with(logs).by_autoscaler();
    scene.plan();
    scene.later(3_600);
    scene.put(pod("web").grace(600));
    scene = told(scene, spot(3_720));
    scene.plan();
    assert_eq!(scene.record().limited_since, Some(at(3_600)));
    // The other half, less 5 s of margin and 1 s to kill and report.
    assert_eq!(evictions(&scene.plan()), [("web".into(), Some(54))]);
}

#[test]
fn the_same_while_it_is_not_yet_known_since_when_the_hook_holds() {
    let logs = pod("logs").daemon().wishing(names::FLUSH_SECONDS, "110");
    let mut scene = node().hooked(300).with(pod("asked")).with(logs);
    scene.instance = in_group(Lifecycle::Terminating);
    scene.plan();
    scene.later(200);
    scene.put(pod("web").grace(600));
    scene = told(scene, spot(320));
    scene.plan();
    assert_eq!(scene.record().limited_since, Some(at(200)));
    assert!(evictions(&scene.plan()).contains(&("web".into(), Some(54))));
}

#[test]
fn an_interruption_that_comes_while_the_hook_holds_shortens_that_too() {
    let mut scene = node().hooked(300).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.held_since = Some(at(0));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(29_700)));
    scene = told(scene, spot(120));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(120)));
}

#[test]
fn with_a_hook_of_ours_the_group_replaces_an_interrupted_instance_while_it_drains() {
    let mut scene = told(node().hooked(300).with(pod("web")), spot(120));
    scene.plan();
    let plan = scene.plan();
    let terminates = |a: &Action| matches!(a, Action::Terminate { decrement: false, under_hook: true, .. });
    assert!(all(&plan).iter().any(terminates), "{plan:?}");
}

#[test]
fn an_instance_whose_end_is_further_away_than_the_hook_holds_is_drained_first() {
    let event = expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(86_400)));
    let mut scene = told(node().hooked(60).with(pod("web").wishing(names::DRAIN, "wait")), event);
    scene.plan();
    let plan = scene.plan();
    // 100 time-outs less one.
    let under_hook = 86_400 - 5_940;
    assert!(!touches_aws(&plan), "{plan:?}");
    assert_eq!(scene.record().release_by, Some(at(86_400)));
    scene.now = at(under_hook - 1);
    assert_eq!(scene.plan().wake_at, Some(at(under_hook)));
    scene.later(1);
    let terminates = |a: &Action| matches!(a, Action::Terminate { decrement: false, under_hook: true, .. });
    assert!(all(&scene.plan()).iter().any(terminates));
}

#[test]
fn an_instance_that_somebody_stops_is_drained_and_left_to_its_group() {
    let mut scene = told(node().with(pod("web")), expected(Cause::StateChange, Treatment::Drain, None));
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    assert_eq!(evictions(&scene.plan()), [("web".into(), None)]);
    scene.remove("web");
    scene.plan();
    scene.later(6);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
    assert!(!touches_aws(&scene.plan()), "whoever stopped it may have told the group to leave it alone");
}

#[test]
fn a_machine_that_stops_stays_closed_until_it_has_started_again_or_has_not_stopped_for_long() {
    let ready = |scene: &mut Scene, second: i64| {
        let at = at(second).to_string();
        let condition = serde_json::json!({ "type": "Ready", "status": "True", "lastTransitionTime": at });
        scene.patch(&serde_json::json!({ "status": { "conditions": [condition] } }));
    };
    let stopping = || {
        let mut scene = told(node().with(pod("web")), expected(Cause::StateChange, Treatment::Drain, None));
        ready(&mut scene, -1_000);
        scene.plan();
        scene.now = at(60);
        scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(60) };
        scene
    };
    let mut scene = stopping();
    assert_eq!(evictions(&scene.plan()).len(), 1, "its group and its Node show it minutes later");
    assert!(spec(&scene).0);
    ready(&mut scene, 0);
    scene.plan();
    assert!(spec(&scene).0, "before AWS said so");
    ready(&mut scene, 50);
    scene.plan();
    assert!(!spec(&scene).0, "it has started again");

    let mut scene = stopping();
    scene.notices.clear();
    scene.now = at(599);
    scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(599) };
    scene.plan();
    assert_eq!(scene.plan().wake_at, Some(at(600)));
    scene.now = at(600);
    scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(600) };
    assert_eq!(reasons(&scene.plan()), ["ScaleInReturned"], "it has not stopped");
}

#[test]
fn an_end_that_is_now_limits_nothing_any_more() {
    for (second, ends_at) in [(0, None), (1, Some(at(1)))] {
        let mut scene = told(node().with(pod("web")).by_autoscaler(), spot(second));
        scene.plan();
        assert_eq!(scene.record().ends_at, ends_at);
    }
}

#[test]
fn a_notice_does_not_wait_behind_a_persons_request() {
    let mut scene = told(node().with(pod("web")), spot(120)).annotated("now");
    scene.turn = Turn::waits(1, 0);
    scene.plan();
    assert_eq!(scene.record().cause, Cause::SpotInterruption);
}

#[test]
fn at_the_minimum_a_machine_that_aws_ends_is_replaced_and_not_opened_again() {
    let mut scene = told(node().with(pod("web")).by_autoscaler(), spot(120));
    scene.plan();
    scene.memory.of_scale_in.at_minimum_since = Some(at(0));
    scene.plan();
    assert_eq!((scene.record().release, spec(&scene).0), (Release::Terminate, true));
}

#[test]
fn a_machine_whose_reservation_ends_is_not_replaced_where_its_group_may_shrink() {
    for (may_shrink, release) in [(true, Release::TerminateAndDecrement), (false, Release::Terminate)] {
        let mut scene = told(node(), expected(Cause::CapacityEnd, Treatment::Drain, Some(at(600))));
        scene.may_shrink = may_shrink;
        scene.plan();
        assert_eq!(scene.record().release, release);
    }
}

/// Its DeleteNodes never comes: from now on NodeGroupForNode names no group.
#[test]
fn a_node_that_cluster_autoscaler_is_draining_is_not_replaced_when_a_notice_comes_where_its_group_may_shrink()
{
    let drained = || node().tainted(names::TO_BE_DELETED).with(pod("web"));
    let noticed = |scene, cause, may_shrink| {
        let mut scene = told(scene, expected(cause, Treatment::Drain, Some(at(600))));
        scene.may_shrink = may_shrink;
        scene.plan();
        let record = scene.record();
        assert_eq!(record.cause, cause);
        record.release
    };
    assert_eq!(noticed(drained(), Cause::SpotInterruption, true), Release::TerminateAndDecrement);
    assert_eq!(noticed(drained(), Cause::ScheduledEvent, true), Release::TerminateAndDecrement);
    assert_eq!(noticed(drained(), Cause::SpotInterruption, false), Release::Terminate, "at the minimum");
    assert_eq!(noticed(drained(), Cause::StateChange, true), Release::LeftToGroup);
    assert_eq!(noticed(node(), Cause::SpotInterruption, true), Release::Terminate, "nobody wants fewer");
}

#[test]
fn a_cordon_lasts_as_long_as_the_notice_that_it_is_for_says_last() {
    let until = |second| Expected {
        until: at(second),
        ..expected(Cause::RebalanceRecommendation, Treatment::Cordon, None)
    };
    assert_eq!(told(node(), until(0)).plan().actions, [], "it has lapsed");
    let mut scene = told(node(), until(3_600));
    scene.plan();
    // What is a second longer is as good.
    for (second, wanted) in [(3_601, 3_600), (3_602, 3_602), (60, 3_602)] {
        scene = told(scene, until(second));
        scene.plan();
        assert_eq!(closed_for(&scene), [(None, at(wanted))], "{second}");
    }
    let mut scene = told(scene, expected(Cause::ScheduledEvent, Treatment::Nothing, None));
    assert_eq!(reasons(&scene.plan()), [""; 0], "something else is called off");
}

#[test]
fn a_longer_cordon_replaces_a_shorter_one() {
    let mut scene = told(node(), expected(Cause::RebalanceRecommendation, Treatment::Cordon, None));
    scene.plan();
    let longer = Expected { until: at(90_000), ..expected(Cause::ScheduledEvent, Treatment::Cordon, None) };
    scene = told(scene, longer);
    scene.plan();
    let cordon = scene.view().cordon.expect("a cordon");
    assert_eq!(
        (cordon.cause(), cordon.until(), cordon.reasons().len()),
        (Cause::ScheduledEvent, at(90_000), 2)
    );
}

#[test]
fn out_of_service_an_instance_is_its_operators() {
    let mut scene = told(node().with(pod("web")), expected(Cause::StateChange, Treatment::Drain, None));
    scene.instance = in_group(Lifecycle::Standby);
    assert_eq!(scene.plan().actions, []);
    let ends = |second| {
        let mut scene = told(node().with(pod("web").grace(30)), spot(second));
        scene.instance = in_group(Lifecycle::Standby);
        scene.plan();
        scene
    };
    assert_eq!(ends(120).record().cause, Cause::SpotInterruption, "its machine ends whoever works on it");
    assert_eq!(ends(3_601).view().scale_in(), None);
}

#[test]
fn a_cordon_for_a_notice_ends_when_that_has_lapsed_or_was_called_off() {
    for (called_off, cause) in [(false, Cause::RebalanceRecommendation), (true, Cause::ScheduledEvent)] {
        let mut scene = told(node().with(pod("web")), expected(cause, Treatment::Cordon, None));
        assert_eq!(reasons(&scene.plan()), ["ScaleInCordoned"]);
        assert_eq!((spec(&scene).0, scene.view().cordon), (true, only(cause, at(3_600))));
        scene = untold(scene);
        assert_eq!(scene.plan().wake_at, Some(at(3_600)));
        assert_eq!(evictions(&scene.plan()), [], "nothing is drained");
        if called_off {
            scene = told(scene, expected(cause, Treatment::Nothing, None));
        } else {
            scene.now = at(3_600);
        }
        assert_eq!(reasons(&scene.plan()), ["ScaleInUncordoned"]);
        assert_eq!((spec(&scene).0, scene.view().cordon), (false, None));
    }
}

#[test]
fn a_cordon_ends_with_its_notice_though_the_instance_is_in_no_group_of_ours_any_more() {
    let advice = expected(Cause::RebalanceRecommendation, Treatment::Cordon, None);
    let mut scene = told(node().with(pod("web")), advice);
    scene.plan();
    scene = untold(scene);
    scene.instance = Membership::Elsewhere { seen: at(60) };
    scene.now = at(60);
    let plan = scene.plan();
    assert_eq!((plan.actions, plan.wake_at), (vec![], Some(at(3_600))));
    scene.now = at(3_600);
    assert_eq!(reasons(&scene.plan()), ["ScaleInUncordoned"]);
    assert_eq!((spec(&scene).0, scene.view().cordon), (false, None));
    assert_eq!(scene.plan().wake_at, None);
}

#[test]
fn a_node_that_a_person_has_closed_or_opened_stays_so() {
    let advice = expected(Cause::RebalanceRecommendation, Treatment::Cordon, None);
    let mut closed = told(node(), advice);
    closed.patch(&serde_json::json!({ "spec": { "unschedulable": true } }));
    assert_eq!(closed.plan().actions, []);

    let mut opened = told(node(), advice);
    opened.plan();
    opened = untold(opened);
    opened.patch(&serde_json::json!({ "spec": { "unschedulable": null } }));
    assert_eq!(reasons(&opened.plan()), ["ScaleInUncordoned"]);
    assert_eq!((spec(&opened).0, opened.view().cordon), (false, None));
    assert_eq!(opened.plan().actions, []);
}

#[test]
fn a_scale_in_of_a_cordoned_node_that_is_cancelled_leaves_the_cordon() {
    let mut scene = told(node(), expected(Cause::RebalanceRecommendation, Treatment::Cordon, None));
    scene.plan();
    scene = scene.annotated("now");
    scene = untold(scene);
    scene.plan();
    assert_eq!(scene.record().cause, Cause::Operator);
    scene.patch(&serde_json::json!({ "metadata": { "annotations": { "ebbtide/scale-in": null } } }));
    scene.plan();
    assert!(spec(&scene).0 && scene.view().cordon.is_some());
    scene.now = at(0) + SignedDuration::from_secs(3_600);
    scene.plan();
    assert!(!spec(&scene).0);
}

#[test]
fn a_call_off_of_one_event_lifts_no_cordon_of_another() {
    let until =
        |second| Expected { until: at(second), ..expected(Cause::ScheduledEvent, Treatment::Cordon, None) };
    let off = || expected(Cause::ScheduledEvent, Treatment::Nothing, None);
    let both = || {
        let mut scene = told_of(node(), &[(until(3_600), Some("a"))]);
        scene.plan();
        let mut scene = told_of(scene, &[(until(7_200), Some("b"))]);
        assert_eq!(reasons(&scene.plan()), ["ScaleInCordoned"]);
        assert_eq!(closed_for(&scene), [(Some("b".into()), at(7_200)), (Some("a".into()), at(3_600))]);
        scene
    };
    for (called_off, left, end) in [("a", "b", 7_200), ("b", "a", 3_600)] {
        let mut scene = told_of(both(), &[(off(), Some(called_off))]);
        scene.plan();
        assert_eq!(closed_for(&scene), [(Some(left.into()), at(end))]);
        assert!(spec(&scene).0);
        let mut scene = untold(scene);
        assert_eq!(scene.plan().wake_at, Some(at(end)), "and until its end");
        scene.now = at(end);
        assert_eq!(reasons(&scene.plan()), ["ScaleInUncordoned"]);
    }
    let mut scene = told_of(both(), &[(off(), Some("a")), (off(), Some("b"))]);
    assert_eq!(reasons(&scene.plan()), ["ScaleInUncordoned"]);
    let mut scene = told_of(both(), &[(off(), Some("c"))]);
    assert_eq!(reasons(&scene.plan()), [""; 0], "of an event that was never told");
    let mut scene = told_of(both(), &[(off(), None)]);
    assert_eq!(reasons(&scene.plan()), ["ScaleInUncordoned"], "where AWS does not say which");
}

#[test]
fn a_call_off_of_one_event_keeps_no_drain_of_another_from_its_node() {
    let off = expected(Cause::ScheduledEvent, Treatment::Nothing, None);
    let drain = expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(3_600)));
    let mut scene = told_of(node().with(pod("web")), &[(off, Some("a")), (drain, Some("b"))]);
    scene.plan();
    assert_eq!(scene.record().ends_at, Some(at(3_600)));
    let mut scene = told_of(scene, &[(off, Some("a"))]);
    scene.plan();
    assert_eq!((scene.record().cause, scene.record().ends_at), (Cause::ScheduledEvent, Some(at(3_600))));
}

#[test]
fn the_end_of_a_machine_that_aws_calls_off_limits_its_drain_no_more() {
    for (event_of, is_called_off) in [(100_000, true), (99_940, true), (100_060, true), (100_061, false)] {
        let far = expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(100_000)));
        let mut scene = told(node().with(pod("db").grace(60)), far);
        scene.plan();
        assert_eq!(
            (scene.record().ends_at, scene.record().release_by),
            (Some(at(100_000)), Some(at(100_000)))
        );
        let off = expected(Cause::ScheduledEvent, Treatment::Nothing, None);
        scene.notices =
            vec![Noticed { expected: off, event: None, called_off: Some(at(event_of)), not_before: None }];
        scene.plan();
        let limit = (!is_called_off).then(|| at(100_000));
        assert_eq!((scene.record().ends_at, scene.record().release_by), (limit, limit), "{event_of}");
        assert_eq!(scene.record().cause, Cause::ScheduledEvent, "the drain goes on");
        scene = untold(scene);
        scene.later(100_000);
        assert_eq!(deletions(&scene.plan()).is_empty(), is_called_off, "{event_of}");
    }
}

#[test]
fn the_start_of_an_event_that_aws_moves_limits_its_drain_no_more_and_that_of_another_does() {
    for (event, is_moved) in [(Some("a"), true), (Some("b"), false), (None, false)] {
        let starts = |second| expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(second)));
        let mut scene = told_of(node().with(pod("db").grace(60)), &[(starts(100_000), Some("a"))]);
        scene.plan();
        assert_eq!(scene.record().event.as_deref(), Some("a"));
        scene.memory = Memory::default();
        scene = told_of(scene, &[(starts(900_000), event)]);
        scene.plan();
        let end = at(if is_moved { 900_000 } else { 100_000 });
        assert_eq!((scene.record().ends_at, scene.record().release_by), (Some(end), Some(end)), "{event:?}");
        assert_eq!(scene.record().event.as_deref(), Some("a"));
        scene = told_of(scene, &[(starts(50_000), event)]);
        scene.plan();
        assert_eq!((scene.record().ends_at, scene.record().event.as_deref()), (Some(at(50_000)), event));
    }
}

/// A person takes the record off, and AWS tells of another start.
#[test]
fn what_is_remembered_of_an_event_that_aws_moves_limits_no_later_drain() {
    let starts = |second| expected(Cause::ScheduledEvent, Treatment::Drain, Some(at(second)));
    let mut scene = told_of(node().with(pod("db").grace(60)), &[(starts(1_000), Some("a"))]);
    scene.plan();
    scene = untold(scene);
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.plan();
    assert_eq!(scene.view().scale_in(), None);
    scene = told_of(scene, &[(starts(900_000), Some("a"))]);
    scene.plan();
    assert_eq!(scene.record().ends_at, Some(at(900_000)));
}

#[test]
fn a_group_that_terminates_nothing_keeps_nodes_whose_machines_live_on() {
    const DAY: i64 = 86_400;
    for (cause, ends_at, is_kept) in [
        (Cause::SpotInterruption, Some(120), false),
        (Cause::ScheduledEvent, Some(3_600), false),
        (Cause::ScheduledEvent, Some(DAY + 60), true),
        (Cause::ScheduledEvent, None, true),
        (Cause::RebalanceRecommendation, None, true),
        (Cause::StateChange, None, false),
    ] {
        let mut scene = told(node().with(pod("web")), expected(cause, Treatment::Drain, ends_at.map(at)));
        scene.keeps_its_nodes = true;
        let told = reasons(&scene.plan());
        assert_eq!(scene.view().scale_in().is_none(), is_kept, "{cause} {ends_at:?}");
        assert_eq!(told.contains(&"ScaleInNotPossible"), is_kept, "{told:?}");
    }
    // What is out of service already is not its to keep.
    for lifecycle in [Lifecycle::TerminatingWait, Lifecycle::Retained] {
        let mut scene = node().asked_by(Cause::LifecycleHook, Release::Terminate).hooked(60);
        (scene.keeps_its_nodes, scene.instance) = (true, in_group(lifecycle));
        assert!(!reasons(&scene.plan()).contains(&"ScaleInNotPossible"), "{lifecycle:?}");
    }
}
