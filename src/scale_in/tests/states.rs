//! What a refresh shows of the instance while its node leaves, and what is made of it.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::scene::*;
use crate::aws::{AwsError, Lifecycle, Operation};
use crate::cluster::{DaemonOwner, PodView};
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::events;
use crate::scale_in::membership::Membership;
use crate::scale_in::node_patch;
use crate::scale_in::record::{Cause, Phase, Record, Release};
use crate::scale_in::tries::Task;
use crate::scale_in::turn::Turn;

#[test]
fn an_instance_in_service_again_ends_its_scale_in_once_a_new_refresh_shows_it_and_its_node_is_ready() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60);
    shown(&mut scene, Lifecycle::InService);
    scene.later(10);
    shown(&mut scene, Lifecycle::InService);
    assert!(!reasons(&scene.plan()).contains(&"ScaleInReturned"), "the refresh may be from before");
    scene.later(30);
    shown(&mut scene, Lifecycle::InService);
    ready(&mut scene, "False");
    assert!(!reasons(&scene.plan()).contains(&"ScaleInReturned"), "it boots");
    assert!(scene.view().record.is_some());
    ready(&mut scene, "True");
    assert_eq!(reasons(&scene.plan()), ["ScaleInReturned"]);
    assert_eq!((scene.view().record, spec(&scene)), (None, (false, vec![], false)));
}

/// The program has started anew, and AWS describes the instance as it was before the last one was told that it ends.
#[test]
fn an_instance_that_an_earlier_run_had_ended_is_not_back_before_that_shows_for_certain() {
    let told = || {
        let mut scene = node().asked_by(Cause::Autoscaler, Release::LeftToGroup).hooked(60).with(pod("web"));
        let record = Record { terminate_at: Some(at(0)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene
    };
    let back_at = |mut scene: Scene| {
        for second in (0..600).step_by(5) {
            scene.now = at(second);
            shown(&mut scene, Lifecycle::InService);
            if reasons(&scene.plan()).contains(&"ScaleInReturned") {
                return second;
            }
        }
        panic!("never back");
    };
    assert_eq!(back_at(told()), 345);
    // This one has seen it leave.
    let mut scene = told();
    shown(&mut scene, Lifecycle::TerminatingWait);
    scene.plan();
    assert_eq!(back_at(scene), 30);
}

/// Its root volume was replaced, or it is back from the warm pool. AWS tells of an end once.
#[test]
fn what_aws_ends_leaves_for_good_though_its_instance_is_in_service_again_unless_that_came_to_nothing() {
    // When AWS ends the machine, and whether that counts when it is seen in service again.
    for (end, counts) in [(at(120), true), (at(200_000), true), (at(-200), false)] {
        let mut scene = node()
            .asked_by(Cause::LifecycleHook, Release::LeftToGroup)
            .in_phase(Phase::Releasing)
            .hooked(60)
            .with(pod("logs").daemon());
        let record = Record { ends_at: Some(end), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        for second in [31, 62] {
            scene.now = at(second);
            shown(&mut scene, Lifecycle::InService);
            assert!(second == 62 || reasons(&scene.plan()).is_empty(), "one description may be old");
        }
        let told = reasons(&scene.plan());
        assert_eq!(told.contains(&"ScaleInReturned"), !counts, "{end}: {told:?}");
        if !counts {
            continue;
        }
        assert_eq!(told, ["ScaleInGoesOn"], "{end}");
        let record = scene.record();
        assert_eq!((record.release, record.ends_at), (Release::Terminate, Some(end)));
        let cause = if end == at(120) { Cause::LifecycleHook } else { Cause::ScheduledEvent };
        assert_eq!(record.cause, cause, "{end}");
        assert!(spec(&scene).0, "it stays closed");
        let terminates = |action: &Action| matches!(action, Action::Terminate { decrement: false, .. });
        // First its limit is written.
        let is_told = (0..2).any(|_| all(&scene.plan()).iter().any(terminates));
        assert!(is_told, "{end}");
    }
}

/// It may be about to end, or was spared.
#[test]
fn an_end_that_has_just_passed_keeps_the_node_of_an_instance_that_is_back_closed_for_a_while() {
    let back_at = |is_ready: &str| {
        let mut scene =
            node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).in_phase(Phase::Releasing).hooked(60);
        let record = Record { ends_at: Some(at(20)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        ready(&mut scene, is_ready);
        (31..2_000).find(|second| {
            scene.now = at(*second);
            shown(&mut scene, Lifecycle::InService);
            let plan = scene.plan();
            assert!(!touches_aws(&plan), "{second}: {plan:?}");
            reasons(&plan).contains(&"ScaleInReturned")
        })
    };
    assert_eq!(back_at("True"), Some(141));
    assert_eq!(back_at("False"), Some(31 + 900));
}

/// What it is written over is about the time before.
#[test]
fn a_request_for_a_node_whose_instance_is_in_service_again_begins_anew() {
    for (seconds, begins) in [(0, false), (31, true)] {
        let mut scene = node()
            .asked_by(Cause::LifecycleHook, Release::LeftToGroup)
            .in_phase(Phase::Releasing)
            .with(pod("web"));
        scene.plan();
        scene.later(seconds);
        shown(&mut scene, if begins { Lifecycle::InService } else { Lifecycle::TerminatingWait });
        let mut scene = scene.annotated("now");
        let told = reasons(&scene.plan());
        assert_eq!(told, [if begins { "ScaleInDraining" } else { "ScaleInGoesOn" }], "{seconds}");
        assert_eq!(scene.record().cause, if begins { Cause::Operator } else { Cause::LifecycleHook });
    }
}

/// Else cluster-autoscaler would count it as a node to come for ever, and remove it never.
#[test]
fn a_node_that_does_not_become_ready_when_its_instance_is_back_leaves_no_more() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60);
    ready(&mut scene, "False");
    // A launching hook may take its time.
    for _ in 0..20 {
        shown(&mut scene, Lifecycle::Pending);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInReturned"));
        scene.later(60);
    }
    shown(&mut scene, Lifecycle::InService);
    assert_eq!((reasons(&scene.plan()), scene.plan().wake_at), (vec![], Some(at(1_200 + 900))));
    scene.later(900);
    assert_eq!(reasons(&scene.plan()), ["ScaleInReturned"]);
    assert_eq!((scene.view().record, spec(&scene)), (None, (false, vec![], false)));
}

#[test]
fn one_description_from_before_does_not_end_the_scale_in_of_what_the_group_has_taken_out_in_mid_drain() {
    let mut scene =
        node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60).with(pod("web").going(900));
    scene.later(300);
    for lifecycle in [Lifecycle::TerminatingWait, Lifecycle::InService, Lifecycle::TerminatingWait] {
        shown(&mut scene, lifecycle);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInReturned"), "{lifecycle:?}");
        scene.later(10);
    }
    for over in [false, false, false, true] {
        shown(&mut scene, Lifecycle::InService);
        assert_eq!(reasons(&scene.plan()).contains(&"ScaleInReturned"), over);
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
        node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).in_phase(Phase::Releasing).hooked(60);
    ready_since(&mut scene, at(0));
    for _ in 0..4 {
        scene.instance = Membership::Elsewhere { seen: scene.now };
        assert!(
            !reasons(&scene.plan()).contains(&"ScaleInReturned"),
            "nobody is there to say that it is off"
        );
        scene.later(60);
    }
    assert!(scene.view().record.is_some());
    let now = scene.now;
    ready_since(&mut scene, now);
    scene.instance = Membership::Elsewhere { seen: scene.now };
    assert_eq!(reasons(&scene.plan()), ["ScaleInReturned"]);
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
    assert_eq!(scene.record().release, Release::LeftToGroup, "it is not to be terminated");
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
    assert!(all(&scene.plan()).contains(&gives_up(&scene)));
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
    ready(&mut scene, "True");
    assert!(!all(&scene.plan()).iter().any(gives_up), "somebody speaks for it");
    ready(&mut scene, "Unknown");
    assert!(all(&scene.plan()).iter().any(gives_up), "two show it");
    assert_eq!(scene.record().release, Release::LeftToGroup);
}

#[test]
fn a_retained_instance_whose_node_has_no_record_is_drained_and_terminated() {
    let mut scene = node().with(pod("web"));
    scene.settings.drain_timeout = Some(Duration::from_mins(10));
    shown(&mut scene, Lifecycle::Retained);
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    let record = scene.record();
    let begun = (record.cause, record.release, record.release_by);
    assert_eq!(begun, (Cause::LifecycleHook, Release::Terminate, Some(at(600))));
}

#[test]
fn a_request_for_what_a_hook_holds_or_is_about_to_is_the_hooks_scale_in_and_waits_for_nobody() {
    let waits = || Turn::waits(1, 0);
    let table = [
        (Lifecycle::InService, Turn::Now, Cause::Operator),
        (Lifecycle::Standby, Turn::Now, Cause::Operator),
        (Lifecycle::Terminating, waits(), Cause::LifecycleHook),
        (Lifecycle::TerminatingWait, waits(), Cause::LifecycleHook),
        (Lifecycle::Retained, waits(), Cause::LifecycleHook),
    ];
    for (lifecycle, turn, cause) in table {
        let mut scene = node().hooked(60).annotated("now");
        scene.turn = turn;
        shown(&mut scene, lifecycle);
        scene.plan();
        assert_eq!(scene.record().cause, cause, "{lifecycle:?}");
    }
}

#[test]
fn a_record_that_was_taken_off_once_aws_was_told_goes_on_as_it_was_under_the_hook() {
    let mut scene = node().hooked(60);
    let lost = Record {
        limited_since: Some(at(-400)),
        terminate_at: Some(at(-300)),
        void_termination: Some(at(-300)),
        ..Record::new(Cause::Autoscaler, "g", "i-1", Release::TerminateAndDecrement, at(-500))
    };
    scene.memory.lost = Some(lost.clone());
    shown(&mut scene, Lifecycle::TerminatingWait);
    scene.plan();
    let of = |record: Record| {
        let told = (record.terminate_at, record.void_termination);
        (record.cause, record.requested_at, record.limited_since, told)
    };
    assert_eq!((of(scene.record()), scene.record().release), (of(lost), Release::LeftToGroup));
}

#[test]
fn taking_the_record_off_under_the_hook_brings_back_no_limit_that_passed_before_it_was_set() {
    for is_set_before in [true, false] {
        let mut scene = node().hooked(600).asked_by(Cause::LifecycleHook, Release::LeftToGroup);
        shown(&mut scene, Lifecycle::TerminatingWait);
        scene.held_since = Some(at(0));
        scene.put(pod("web").grace(600).labelled("web"));
        scene.set_budget("web", 0, "7");
        scene.plan();
        scene.now = at(7_200);
        let timeout = Some(Duration::from_mins(30));
        if is_set_before {
            scene.settings.drain_timeout = timeout;
            scene.plan();
        }
        let record = scene.record();
        let limit = if is_set_before { record.release_by } else { Some(at(7_260 + 613)) };
        assert!(limit.is_some_and(|limit| limit >= at(7_200 + 613)), "the pod's grace fits: {limit:?}");
        scene.later(60);
        scene.settings.drain_timeout = timeout;
        scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
        scene.memory.lost = Some(record);
        scene.plan();
        assert_eq!(
            (scene.record().requested_at, scene.record().release_by),
            (at(0), limit),
            "{is_set_before}"
        );
        assert_eq!(deletions(&scene.plan()), [], "{is_set_before}");
    }
}

#[test]
fn marks_of_a_cancelled_scale_in_stay_on_a_node_whose_instance_goes_anyway() {
    let mut scene = node().by_autoscaler();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    shown(&mut scene, Lifecycle::TerminatingProceed);
    assert_eq!(scene.plan().actions, []);
}

#[test]
fn the_record_follows_an_instance_into_another_group_and_notes_when_it_is_gone_for_good() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.instance = Membership::In { group: "h".into(), lifecycle: Lifecycle::InService, seen: scene.now };
    scene.plan();
    assert_eq!(scene.record().group, "h");

    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    scene.terminated(&Ok(()));
    for (second, release) in [
        (0, Release::TerminateAndDecrement),
        (59, Release::TerminateAndDecrement),
        (60, Release::LeftToGroup),
    ] {
        scene.now = at(second);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        scene.plan();
        assert_eq!(scene.record().release, release, "{second}");
    }
}

#[test]
fn the_node_of_an_instance_that_is_gone_is_deleted_after_a_while_unless_a_kubelet_speaks_for_it() {
    let deletes = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::DeleteNode { .. }));
    let gone = |ready_is: &str, release: Release, ends_at: Option<i64>| {
        let mut scene = node().asked_by(Cause::LifecycleHook, release);
        let record = Record { ends_at: ends_at.map(at), release_by: ends_at.map(at), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        ready(&mut scene, ready_is);
        scene.settings.delete_node_after = Some(Duration::from_mins(5));
        scene.memory.elsewhere_since = Some(at(0));
        scene
    };
    let table = [
        ("Unknown", Release::LeftToGroup, None, true),
        ("True", Release::LeftToGroup, None, false),
        ("Unknown", Release::Terminate, None, false),
        ("Unknown", Release::Terminate, Some(300), true),
        ("Unknown", Release::Terminate, Some(900), false),
    ];
    for (ready_is, release, ends_at, expected) in table {
        let mut scene = gone(ready_is, release, ends_at);
        scene.now = at(299);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        assert!(!(0..4).any(|_| deletes(&scene.plan())), "{ready_is} {release:?} {ends_at:?}");
        scene.now = at(300);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        let plans: Vec<_> = (0..4).map(|_| scene.plan()).collect();
        assert_eq!(plans.iter().any(deletes), expected, "{ready_is} {release:?} {ends_at:?}");
        assert!(!plans.iter().any(|plan| plan.actions.contains(&Action::Refresh)), "one is enough");
    }
    // Or its record, which somebody has taken off too late, says so.
    let mut scene = gone("Unknown", Release::LeftToGroup, None);
    scene.memory.lost = Some(scene.record());
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    for (second, expected) in [(299, false), (300, true)] {
        scene.now = at(second);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        assert_eq!((0..4).any(|_| deletes(&scene.plan())), expected, "{second}");
    }
    let mut scene = gone("Unknown", Release::LeftToGroup, None);
    scene.now = at(299);
    scene.instance = Membership::Elsewhere { seen: scene.now };
    (0..4).for_each(|_| drop(scene.plan()));
    assert_eq!(scene.plan().wake_at, Some(at(300)));
    scene.now = at(300);
    assert!(scene.plan().actions.contains(&Action::Refresh), "a refresh from before tells nothing");
}

#[test]
fn that_the_hook_ends_early_as_aws_takes_no_heartbeats_is_told_until_the_node_is_released() {
    use Phase::{Draining, Flushing, Releasing};
    for (phase, ends, told) in [
        (Draining, Some(300), true),
        (Flushing, Some(300), true),
        (Releasing, Some(300), false),
        (Draining, Some(0), false),
        (Draining, None, false),
    ] {
        let mut scene =
            node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60).in_phase(phase);
        (scene.held_since, scene.hold_ends) = (Some(at(-10)), ends.map(at));
        scene.put(pod("web").going(900));
        let event = ends.map(|ends| Action::Announce(events::hook_ending("ebbtide", "g", "i-1", at(ends))));
        let plan = scene.plan();
        assert_eq!(reasons(&plan).contains(&"ScaleInHookEnding"), told, "{phase} {ends:?}");
        assert!(!told || event.is_some_and(|event| all(&plan).contains(&event)), "{phase} {ends:?}");
    }
}

#[test]
fn somebody_elses_completion_of_our_hook_is_told_while_the_node_drains() {
    for (phase, completed, told) in
        [(Phase::Draining, false, true), (Phase::Draining, true, false), (Phase::Releasing, false, false)]
    {
        let mut scene =
            node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60).in_phase(phase);
        scene.put(pod("web").going(900));
        shown(&mut scene, Lifecycle::TerminatingProceed);
        if completed {
            scene.memory.worked(&Task::Complete, scene.now);
        }
        let event = events::hook_over(Some("ebbtide"), "g", "i-1", phase);
        let plan = scene.plan();
        assert_eq!(all(&plan).contains(&Action::Announce(event)), told, "{phase}, by us: {completed}");
    }
}

#[test]
fn the_end_of_a_hold_is_told_where_our_hook_is_deleted_meanwhile_and_of_no_hook_that_never_was() {
    for (held, by_ours, told) in [(true, true, true), (false, true, false), (false, false, false)] {
        let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup);
        scene.put(pod("web").going(900));
        if held {
            let record = Record { heartbeat_timeout_seconds: Some(60), ..scene.record() };
            scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        }
        let lifecycle = if by_ours { Lifecycle::TerminatingProceed } else { Lifecycle::Terminating };
        shown(&mut scene, lifecycle);
        assert_eq!(reasons(&scene.plan()).contains(&"ScaleInHookOver"), told, "{held}");
    }
}

#[test]
fn the_end_of_a_hold_is_told_where_a_second_description_shows_the_instance_no_more() {
    use Release::{LeftToGroup, TerminateAndDecrement};
    // While AWS takes heartbeats for it, it is held, whatever descriptions leave out.
    let table =
        [(LeftToGroup, false, true), (LeftToGroup, true, false), (TerminateAndDecrement, false, false)];
    for (release, renewed, told) in table {
        let mut scene = node().asked_by(Cause::LifecycleHook, release).hooked(60);
        (scene.held_since, scene.hold_is_renewed) = (Some(at(0)), renewed);
        scene.put(pod("web").going(900));
        for (seen, told) in [(0, false), (10, told)] {
            scene.instance = Membership::Elsewhere { seen: at(seen) };
            scene.now = at(seen);
            assert_eq!(reasons(&scene.plan()).contains(&"ScaleInHookOver"), told, "{release:?} {seen}");
        }
    }
}

#[test]
fn a_daemonset_that_the_watch_does_not_show_is_looked_up_once() {
    let of = |name: &str, uid: &str| PodView {
        daemon: Some(DaemonOwner::DaemonSet { uid: uid.into(), name: "old".into() }),
        ..pod(name)
    };
    let asked = |plan: &Plan| {
        plan.actions.iter().filter(|action| matches!(action, Action::LookUpDaemonSet { .. })).count()
    };
    let mut scene = node().with(pod("known").daemon()).with(PodView { finished: true, ..of("c", "ended") });
    assert_eq!(asked(&scene.plan()), 0);
    let mut scene = scene.with(of("a", "old")).with(of("b", "old"));
    assert_eq!(asked(&scene.plan()), 1);
    scene.memory.worked(&Task::DaemonSet("old".into()), scene.now);
    scene.memory.deleted_daemon_sets.insert("old".into());
    assert_eq!(asked(&scene.plan()), 0);
}

#[test]
fn what_aws_may_have_heard_during_the_drain_is_not_said_again_after_the_flush() {
    let mut scene = node().by_autoscaler().hooked(60);
    assert!(touches_aws(&scene.plan()));
    let operation = Operation::TerminateInstanceInAutoScalingGroup;
    scene.terminated(&Err(AwsError::unreachable(operation, "timed out")));
    // The hook has been taken away meanwhile.
    scene.hook = HookState::Known(TerminatingHooks::default());
    scene.plan();
    scene.later(5);
    shown(&mut scene, Lifecycle::InService);
    let plan = scene.plan();
    assert_eq!((scene.record().phase, touches_aws(&plan)), (Phase::Releasing, false));
    scene.later(120);
    shown(&mut scene, Lifecycle::InService);
    assert!(touches_aws(&scene.plan()), "it lives");
}

#[test]
fn a_completed_hook_is_completed_again_only_after_a_newer_refresh() {
    let mut scene =
        node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60).in_phase(Phase::Releasing);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(touches_aws(&scene.plan()));
    scene.memory.worked(&Task::Complete, scene.now);
    scene.later(10);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(!touches_aws(&scene.plan()), "refreshes lag");
    scene.later(20);
    shown(&mut scene, Lifecycle::TerminatingWait);
    assert!(touches_aws(&scene.plan()), "a hook that was completed holds nothing");
}

#[test]
fn until_a_node_is_closed_a_pod_may_be_on_its_way_to_it() {
    let mut scene = node();
    assert_eq!(scene.plan().occupied, Some(true));
    scene.patch(&json!({ "spec": { "unschedulable": true } }));
    assert_eq!(scene.plan().occupied, Some(false));
    assert_eq!(node().tainted(names::TO_BE_DELETED).plan().occupied, Some(false));
}

#[test]
fn a_refresh_counts_half_a_minute_after_the_last_write_of_the_record() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).with(pod("web").going(900));
    scene.now = at(10);
    shown(&mut scene, Lifecycle::InService);
    scene.plan();
    assert_eq!(scene.plan().wake_at, Some(at(30)));
    scene.now = at(30);
    assert!(scene.plan().actions.contains(&Action::Refresh));
    scene.memory.worked(&Task::Refresh, scene.now);
    shown(&mut scene, Lifecycle::InService);
    assert!(!scene.plan().actions.contains(&Action::Refresh));
}

#[test]
fn what_aws_refuses_for_good_is_told() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    let operation = Operation::TerminateInstanceInAutoScalingGroup;
    scene.terminated(&Err(AwsError::of_service(operation, 403, "AccessDenied", "you may not")));
    let words = scene.memory.refused_by_aws().expect("kept").to_owned();
    let event = Action::Announce(events::release_refused("i-1", &words));
    assert!(scene.plan().actions.contains(&event));
}
