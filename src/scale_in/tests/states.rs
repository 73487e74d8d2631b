//! What a refresh shows of the instance while its node leaves, and what is made of it.

use jiff::Timestamp;
use serde_json::json;

use super::scene::*;
use crate::aws::{AwsError, Lifecycle, Operation};
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::scale_in::action::Action;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Task;
use crate::scale_in::record::{Cause, Phase, Release};

fn shown(scene: &mut Scene, lifecycle: Lifecycle) {
    scene.instance = Membership::In { group: "g".into(), lifecycle, seen: scene.now };
}

fn ready(scene: &mut Scene, status: &str) {
    scene.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } }));
}

#[test]
fn an_instance_in_service_again_ends_its_scale_in_once_a_new_refresh_shows_it_and_its_node_is_ready() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::CompleteHook).hooked(60);
    shown(&mut scene, Lifecycle::InService);
    scene.later(10);
    shown(&mut scene, Lifecycle::InService);
    assert!(!reasons(&scene.plan()).contains(&"ScaleInOver"), "the refresh may be from before");
    scene.later(30);
    shown(&mut scene, Lifecycle::InService);
    ready(&mut scene, "False");
    assert!(!reasons(&scene.plan()).contains(&"ScaleInOver"), "it boots");
    assert!(scene.view().record.is_some());
    ready(&mut scene, "True");
    assert_eq!(reasons(&scene.plan()), ["ScaleInOver"]);
    assert_eq!((scene.view().record, spec(&scene)), (None, (false, vec![], false)));
}

#[test]
fn one_description_from_before_does_not_end_the_scale_in_of_what_the_group_has_taken_out_in_mid_drain() {
    let mut scene =
        node().asked_by(Cause::LifecycleHook, Release::CompleteHook).hooked(60).with(pod("web").going(900));
    scene.later(300);
    for lifecycle in [Lifecycle::TerminatingWait, Lifecycle::InService, Lifecycle::TerminatingWait] {
        shown(&mut scene, lifecycle);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInOver"), "{lifecycle:?}");
        scene.later(10);
    }
    for over in [false, false, false, true] {
        shown(&mut scene, Lifecycle::InService);
        assert_eq!(reasons(&scene.plan()).contains(&"ScaleInOver"), over);
        scene.later(10);
    }
}

#[test]
fn only_a_kubelet_that_has_become_ready_since_the_release_has_adopted_the_node_of_an_instance_that_is_gone() {
    let ready_since = |scene: &mut Scene, since: Timestamp| {
        let ready = json!({ "type": "Ready", "status": "True", "lastTransitionTime": since });
        scene.patch(&json!({ "status": { "conditions": [ready] } }));
    };
    let mut scene =
        node().asked_by(Cause::LifecycleHook, Release::CompleteHook).in_phase(Phase::Releasing).hooked(60);
    ready_since(&mut scene, at(-3_600));
    for _ in 0..4 {
        scene.instance = Membership::Elsewhere { seen: scene.now };
        assert!(!reasons(&scene.plan()).contains(&"ScaleInOver"), "nobody is there to say that it is off");
        scene.later(60);
    }
    assert!(scene.view().record.is_some());
    let now = scene.now;
    ready_since(&mut scene, now);
    scene.instance = Membership::Elsewhere { seen: scene.now };
    assert_eq!(reasons(&scene.plan()), ["ScaleInOver"]);
    assert_eq!((scene.view().record, spec(&scene)), (None, (false, vec![], false)));
}

#[test]
fn a_node_is_drained_as_soon_as_the_group_takes_its_instance_out() {
    let mut scene = node().hooked(60).with(pod("web"));
    shown(&mut scene, Lifecycle::Terminating);
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn in_a_warm_pool_a_node_is_not_marked_again() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    shown(&mut scene, Lifecycle::Warmed);
    scene.plan();
    assert_eq!(scene.record().release, Release::CompleteHook, "it is not to be terminated");
    scene.patch(&json!({ "spec": { "taints": null, "unschedulable": null } }));
    for _ in 0..3 {
        scene.plan();
    }
    let (unschedulable, taints, _) = spec(&scene);
    assert_eq!((unschedulable, taints), (false, vec![]));
}

#[test]
fn a_retained_instance_is_drained_first_and_no_replacement_comes_for_it() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    shown(&mut scene, Lifecycle::Retained);
    assert!(all(&scene.plan()).contains(&Action::GiveUpReplacement { group: "g".into() }));
    assert_eq!(scene.record().release, Release::Terminate);
    let plan = scene.plan();
    assert!(!touches_aws(&plan), "a hook would hold it again, for a time");
    assert_eq!(evictions(&plan).len(), 1);
}

#[test]
fn an_instance_that_one_refresh_does_not_show_is_not_taken_for_replaced() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    ready(&mut scene, "Unknown");
    let gives_up = |action: &Action| matches!(action, Action::GiveUpReplacement { .. });
    scene.instance = Membership::Elsewhere { seen: scene.now };
    let plan = scene.plan();
    assert!(!all(&plan).iter().any(gives_up) && plan.actions.contains(&Action::Refresh), "{plan:?}");
    scene.later(5);
    scene.instance = Membership::Elsewhere { seen: scene.now };
    assert!(all(&scene.plan()).iter().any(gives_up), "two show it");
}

#[test]
fn what_aws_may_have_heard_during_the_drain_is_not_said_again_after_the_flush() {
    let mut scene = node().by_autoscaler().hooked(60);
    assert!(touches_aws(&scene.plan()));
    let operation = Operation::TerminateInstanceInAutoScalingGroup;
    scene.terminated(&Err(AwsError::Unreachable { operation, source: "timed out".into() }));
    // The hook has been taken away meanwhile.
    scene.hook = HookState::Known(TerminatingHooks::default());
    scene.plan();
    scene.later(5);
    shown(&mut scene, Lifecycle::InService);
    let plan = scene.plan();
    assert_eq!((scene.record().phase, touches_aws(&plan)), (Phase::Releasing, false));
    scene.later(30);
    shown(&mut scene, Lifecycle::InService);
    assert!(touches_aws(&scene.plan()), "it lives");
}

#[test]
fn a_completed_hook_is_completed_again_only_after_a_newer_refresh() {
    let mut scene =
        node().asked_by(Cause::LifecycleHook, Release::CompleteHook).hooked(60).in_phase(Phase::Releasing);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(touches_aws(&scene.plan()));
    scene.memory.worked(Task::Complete, scene.now);
    scene.later(10);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(!touches_aws(&scene.plan()), "refreshes lag");
    scene.later(20);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(touches_aws(&scene.plan()), "a hook that was completed holds nothing");
}
