//! What a group ends that has no lifecycle hook: nothing holds the instance, and its node is drained in the time that AWS leaves it.

use std::time::Duration;

use serde_json::json;

use super::scene::*;
use crate::aws::Lifecycle;
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::events::Reason;
use crate::scale_in::memory::Memory;
use crate::scale_in::node_patch;
use crate::scale_in::record::{Cause, Phase, Record, Release};
use crate::scale_in::turn::Turn;

/// A node whose instance the group ends, without a hook.
fn unheld() -> Scene {
    let mut scene = node();
    shown(&mut scene, Lifecycle::Terminating);
    scene
}

/// How often a plan tells that nothing holds the instance.
fn times_told(plan: &Plan) -> usize {
    let is_it =
        |action: &Action| matches!(action, Action::Announce(event) if event.reason == Reason::NotHeld);
    all(plan).iter().filter(|action| is_it(action)).count()
}

/// Somebody takes the record off.
fn take_off_the_record(scene: &mut Scene) -> Record {
    let record = scene.record();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    record
}

#[test]
fn a_node_that_its_group_ends_without_a_hook_is_drained_at_once_and_left_to_the_group() {
    let mut scene = unheld().with(pod("web").grace(900)).with(pod("logs").daemon());
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotHeld", "ScaleInDraining"]);
    assert_eq!(spec(&scene), (true, vec![names::TO_BE_DELETED.to_owned()], true));
    let record = scene.record();
    let begun = (record.cause, record.release, record.release_by, record.terminate_at);
    assert_eq!(begun, (Cause::StateChange, Release::LeftToGroup, None, None));
    assert_eq!(
        evictions(&scene.plan()),
        [("web".into(), None)],
        "with its whole grace, and no DaemonSet pod"
    );
    scene.evicted("web");
    scene.plan();
    scene.later(800);
    shown(&mut scene, Lifecycle::Terminating);
    assert_eq!(scene.plan().wake_at, Some(at(960)), "nothing limits it");
    scene.remove("web");
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(5);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
    for _ in 0..60 {
        scene.later(60);
        shown(&mut scene, Lifecycle::Terminating);
        let plan = scene.plan();
        assert!(!touches_aws(&plan), "{plan:?}");
        assert_eq!(reasons(&plan), [""; 0], "AWS ends it when its load balancers have let go of it");
    }
}

/// The scheduler must not put pods on it.
#[test]
fn a_node_without_workloads_is_closed_as_well_and_nothing_is_told_of_pods() {
    let mut scene = unheld().with(pod("logs").daemon());
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    assert!(spec(&scene).0);
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"]);
}

#[test]
fn the_drain_begins_when_its_pods_are_known_and_that_nothing_holds_the_instance_is_told_once() {
    let mut scene = unheld();
    scene.pods = None;
    assert_eq!(scene.plan().actions, []);
    let mut scene = scene.with(pod("web"));
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotHeld", "ScaleInDraining"]);
    scene.later(900);
    assert_eq!(times_told(&scene.plan()), 0);
    // Another run finds the record.
    scene.memory = Memory::default();
    assert_eq!(times_told(&scene.plan()), 0);
}

/// No hook holds a machine that EC2 stops.
#[test]
fn of_a_machine_that_somebody_stops_it_is_not_told_when_its_group_ends_it() {
    let mut scene = node().asked_by(Cause::StateChange, Release::LeftToGroup).with(pod("web"));
    scene.plan();
    shown(&mut scene, Lifecycle::Terminating);
    assert_eq!(times_told(&scene.plan()), 0);
}

#[test]
fn only_a_limit_of_ours_and_an_end_that_aws_announces_cut_its_drain_short() {
    let mut limited = unheld().with(pod("web").grace(30));
    limited.settings.drain_timeout = Some(Duration::from_secs(100));
    limited.plan();
    assert_eq!(limited.record().release_by, Some(at(100)));
    limited.plan();
    limited.blocked("web");
    limited.now = at(57);
    shown(&mut limited, Lifecycle::Terminating);
    assert_eq!(deletions(&limited.plan()), [("web".into(), None)], "its grace just fits");
    let mut restarted = limited;
    restarted.memory = Memory::default();
    restarted.hook = HookState::Unknown;
    restarted.plan();
    assert_eq!(restarted.record().release_by, Some(at(100)));

    let mut interrupted = told(unheld().with(pod("web").grace(600)), spot(120));
    interrupted.plan();
    assert_eq!(
        (interrupted.record().cause, interrupted.record().release_by),
        (Cause::StateChange, Some(at(120)))
    );
    assert_eq!(evictions(&interrupted.plan()), [("web".into(), Some(109))], "what fits into two minutes");
}

#[test]
fn what_anothers_hook_holds_stays_its_owners_business_and_what_is_not_known_waits() {
    let anothers = HookState::Known(TerminatingHooks { others: true, ..TerminatingHooks::default() });
    for hook in [anothers, HookState::Unknown] {
        let mut scene = unheld().with(pod("web"));
        scene.hook = hook;
        let plan = scene.plan();
        assert!(!plan.writes_node(), "{:?}", scene.hook);
        assert_eq!(scene.view().record, None);
        // Else it would give up the replacement once the hooks are known.
        let mut asked = scene.annotated("now");
        let waits = asked.hook == HookState::Unknown;
        assert_eq!(!asked.plan().writes_node(), waits, "{:?}", asked.hook);
    }
}

#[test]
fn a_request_for_such_a_node_waits_for_nobody_and_changes_no_size() {
    for word in ["now", "replace"] {
        let mut scene = unheld().annotated(word).with(pod("web"));
        (scene.turn, scene.may_shrink, scene.keeps_its_nodes) = (Turn::waits(1, 0), false, true);
        let plan = scene.plan();
        assert_eq!(reasons(&plan), ["ScaleInNotHeld", "ScaleInDraining"], "{word}");
        let record = scene.record();
        assert_eq!((record.cause, record.release), (Cause::StateChange, Release::LeftToGroup), "{word}");
        let gives_up = |action: &Action| matches!(action, Action::GiveUpReplacement { .. });
        assert!(!all(&plan).iter().chain(&all(&scene.plan())).any(gives_up), "{word}");
    }
}

#[test]
fn a_node_that_cluster_autoscaler_drains_goes_on_with_its_guard_under_our_taint() {
    let mut scene = unheld().tainted(names::TO_BE_DELETED).with(pod("web").going(20));
    scene.plan();
    assert_eq!(scene.record().cause, Cause::StateChange);
    let view = scene.view();
    assert!(node_patch::has_our_taint(&view) && node_patch::is_guarded(&view));
}

/// Whether its record was taken off or written over, and whichever run sees that.
#[test]
fn what_ebbtide_itself_has_ended_after_its_drain_is_not_drained_once_more() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    scene.terminated(&Ok(()));
    scene.memory.lost = Some(take_off_the_record(&mut scene));
    shown(&mut scene, Lifecycle::Terminating);
    let mut scene = scene.with(pod("late"));
    assert_eq!(reasons(&scene.plan()), ["ScaleInGoesOn"]);
    let mut restarted = scene;
    for _ in 0..2 {
        restarted.memory = Memory::default();
        assert_eq!(restarted.plan().actions, []);
        restarted = restarted.annotated("now");
        assert_eq!(restarted.plan().actions, []);
    }
    assert!(spec(&restarted).0, "it stays closed");
}

#[test]
fn what_somebody_takes_the_record_off_of_before_its_drain_is_over_goes_on_as_it_was() {
    let lost = |phase, terminate_at, void_termination| Record {
        phase,
        terminate_at,
        void_termination,
        ..Record::new(Cause::Autoscaler, "g", "i-1", Release::LeftToGroup, at(-500))
    };
    for lost in [
        // Its hook, which was to hold it, has been taken off.
        lost(Phase::Draining, Some(at(-499)), None),
        // The group ends it by itself.
        lost(Phase::Releasing, None, None),
        lost(Phase::Releasing, Some(at(-10)), Some(at(-10))),
    ] {
        let mut scene = unheld().with(pod("web"));
        scene.memory.lost = Some(lost);
        assert!(reasons(&scene.plan()).contains(&"ScaleInDraining"));
        let record = scene.record();
        let begun = (record.cause, record.requested_at, record.phase);
        assert_eq!(begun, (Cause::Autoscaler, at(-500), Phase::Draining));
    }
}

#[test]
fn a_hook_that_the_group_gets_in_mid_drain_holds_the_instance_and_is_completed() {
    let mut scene = unheld().with(pod("web"));
    scene.plan();
    scene.now = at(10);
    shown(&mut scene, Lifecycle::TerminatingWait);
    (scene.hook, scene.held_since) = (ours(hook(60), false), Some(at(10)));
    scene.plan();
    let record = scene.record();
    let held = (record.cause, record.heartbeat_timeout_seconds, record.release_by);
    assert_eq!(held, (Cause::StateChange, Some(60), Some(at(10 + 5_940))));
    scene.remove("web");
    scene.plan();
    scene.later(5);
    shown(&mut scene, Lifecycle::TerminatingWait);
    scene.plan();
    let plan = scene.plan();
    let completes = |action: &Action| matches!(action, Action::CompleteHook { .. });
    assert!(all(&plan).iter().any(completes), "{plan:?}");
}

#[test]
fn a_workload_that_comes_late_leaves_first_while_aws_has_not_ended_the_machine_unless_that_was_our_word() {
    let mut scene = unheld();
    scene.plan();
    let mut scene = scene.in_phase(Phase::Releasing).with(pod("late"));
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    assert_eq!(evictions(&scene.plan()), [("late".into(), None)]);

    let mut ours = node().by_autoscaler().in_phase(Phase::Releasing);
    ours.plan();
    ours.terminated(&Ok(()));
    shown(&mut ours, Lifecycle::Terminating);
    let mut ours = ours.with(pod("late"));
    assert!(!reasons(&ours.plan()).contains(&"ScaleInDraining"));
}

/// An instance that is being terminated does not come back, whatever descriptions show.
#[test]
fn a_node_whose_instance_is_shown_in_service_again_stays_closed_until_it_has_outlived_that_for_long() {
    let mut scene = unheld().with(pod("web").going(900));
    scene.plan();
    let back_at = (10..900).step_by(10).find(|second| {
        scene.now = at(*second);
        shown(&mut scene, Lifecycle::InService);
        reasons(&scene.plan()).contains(&"ScaleInReturned")
    });
    assert_eq!(back_at, Some(600));
}
