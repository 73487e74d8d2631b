//! Deadlines, hooks and the release.

use std::time::Duration;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::scene::*;
use crate::aws::{AwsError, Lifecycle, Operation};
use crate::cluster::Answer;
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::events::{self, Reason, ScaleInEvent};
use crate::scale_in::holds::Heartbeats;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::node_patch;
use crate::scale_in::record::{Cause, Phase, Record, Release};
use crate::scale_in::tries::Task;
use crate::scale_in::waiting::WaitReason;

const TERMINATE: Operation = Operation::TerminateInstanceInAutoScalingGroup;

#[test]
fn without_a_limit_it_waits_for_ever() {
    let mut scene = node().by_autoscaler().with(pod("db").wishing(names::DRAIN, "wait"));
    for _ in 0..1_000 {
        scene.later(3_600);
        let plan = scene.plan();
        assert!(evictions(&plan).is_empty() && deletions(&plan).is_empty() && !touches_aws(&plan));
    }
    assert!(reasons(&scene.plan()).is_empty());
    scene.later(300);
    assert_eq!(reasons(&scene.plan()), ["ScaleInWaiting"], "and says for whom");
}

#[test]
fn at_its_last_call_a_blocked_or_patient_pod_is_deleted_with_its_whole_grace() {
    // Released by 1000: gone by 990 (5 s flush, 5 s margin), last call for 30 s of grace at 957.
    let mut scene =
        node().by_autoscaler().until(1_000).with(pod("web").labelled("web")).budget("web", 0, "1");
    scene.put(pod("db").wishing(names::DRAIN, "wait"));
    scene.plan();
    scene.blocked("web");
    scene.later(956);
    assert_eq!(deletions(&scene.plan()), []);
    scene.blocked("web");
    scene.later(1);
    let both = [("db".into(), None), ("web".into(), None)];
    assert_eq!(deletions(&scene.plan()), both, "whenever the next try of an eviction is due");
}

#[test]
fn whatever_has_kept_a_pod_until_its_last_call_it_is_deleted_with_its_whole_grace() {
    let busy = Answer::Busy(SignedDuration::from_secs(1), "later".into());
    for answer in [busy, Answer::Unclear("denied".into()), Answer::Going, Answer::GoingAnyway] {
        let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
        assert_eq!(evictions(&scene.plan()).len(), 1);
        scene.answered("web", answer.clone());
        scene.later(957);
        assert_eq!(deletions(&scene.plan()), [("web".into(), None)], "{answer:?}");
    }
}

#[test]
fn a_pod_whose_namespace_is_being_deleted_has_its_whole_grace_at_its_last_call_however_often_it_was_asked() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
    let mut asked = 0;
    let first_cut = (0..1_000).find_map(|_| {
        let plan = scene.plan();
        if !evictions(&plan).is_empty() {
            asked += 1;
            scene.answered("web", Answer::GoingAnyway);
            let plan = scene.plan();
            let is_told = matches!(plan.waiting[0].why, WaitReason::Refused(_));
            assert_eq!(is_told, asked >= 3, "no refusal, unless nobody deletes it");
        }
        scene.later(1);
        deletions(&plan).pop()
    });
    assert_eq!((asked, first_cut), (32, Some(("web".into(), None))));
}

#[test]
fn a_pod_whose_last_call_failed_again_and_again_hears_of_its_end_when_that_comes() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
    let mut deleted = Vec::new();
    for second in 0..=990 {
        scene.now = at(second);
        let plan = scene.plan();
        deleted.extend(deletions(&plan).into_iter().map(|(_, grace)| (second, grace)));
        if !(evictions(&plan).is_empty() && deletions(&plan).is_empty()) {
            scene.answered("web", Answer::Unclear("denied".into()));
        }
    }
    assert_eq!((deleted[0], deleted.last()), ((957, None), Some(&(990, Some(1)))), "{deleted:?}");
}

#[test]
fn a_hook_that_nobody_has_seen_holding_limits_no_drain_and_its_time_out_is_noted_once_it_does() {
    let mut scene = node().hooked(60).asked_by(Cause::LifecycleHook, Release::LeftToGroup);
    scene.instance = in_group(Lifecycle::TerminatingWait);
    // Longer than the hook holds.
    scene.put(pod("db").grace(10_800).labelled("db"));
    scene.set_budget("db", 0, "1");
    scene.plan();
    scene.blocked("db");
    scene.later(60);
    assert_eq!(deletions(&scene.plan()), []);
    assert_eq!(scene.record().heartbeat_timeout_seconds, None);
    scene.held_since = Some(at(0));
    scene.plan();
    assert_eq!(scene.record().heartbeat_timeout_seconds, Some(60));
}

#[test]
fn a_last_call_is_made_once_and_made_again_after_a_pause_where_it_failed() {
    let mut scene =
        node().by_autoscaler().until(1_000).with(pod("web").labelled("web")).budget("web", 0, "1");
    scene.plan();
    scene.blocked("web");
    scene.later(957);
    assert_eq!(deletions(&scene.plan()), [("web".into(), None)]);
    assert_eq!(deletions(&scene.plan()), [], "it is under way");
    scene.answered("web", Answer::Unclear("etcd timed out".into()));
    assert_eq!(deletions(&scene.plan()), [], "not in the same breath");
    scene.later(3);
    assert_eq!(deletions(&scene.plan()).len(), 1);
}

#[test]
fn what_a_pods_evictions_came_to_costs_its_last_call_nothing() {
    let busy = Answer::Busy(SignedDuration::from_secs(30), "later".into());
    for answer in [Answer::Blocked("full".into()), busy, Answer::Unclear("denied".into())] {
        for is_answered in [true, false] {
            let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
            while scene.now < at(957) {
                let tries = evictions(&scene.plan()).len();
                if tries > 0 && (is_answered || scene.now < at(900)) {
                    scene.answered("web", answer.clone());
                }
                scene.later(1);
            }
            assert_eq!(deletions(&scene.plan()), [("web".into(), None)], "{answer:?}");
            for failed in [
                Answer::Unclear("etcd timed out".into()),
                Answer::Busy(SignedDuration::from_secs(1), "busy".into()),
            ] {
                scene.answered("web", failed);
                scene.later(2);
                assert_eq!(deletions(&scene.plan()).len(), 1, "{answer:?}");
            }
        }
    }
}

#[test]
fn an_eviction_without_an_answer_keeps_no_pod_from_its_last_call_for_more_than_ten_seconds() {
    // Gone by 990 with 30 s of grace: the last call is at 957, and this one was asked five seconds before it.
    let mut scene = node().by_autoscaler().until(1_000);
    scene.later(952);
    scene.put(pod("web"));
    assert_eq!(evictions(&scene.plan()).len(), 1);
    scene.later(9);
    let plan = scene.plan();
    assert_eq!((deletions(&plan), plan.wake_at), (vec![], Some(at(962))));
    scene.later(1);
    assert_eq!(deletions(&scene.plan()), [("web".into(), Some(27))]);
}

#[test]
fn a_hard_deadline_is_hard() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("stuck").going(5_000));
    scene.later(900);
    assert_eq!(deletions(&scene.plan()), [], "it may still go by itself");
    scene.later(88);
    assert_eq!(deletions(&scene.plan()), [("stuck".into(), Some(1))], "cut at the end, not before");
    scene.later(2);
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"], "gone or not");
    scene.later(5);
    assert!(touches_aws(&scene.plan()));
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn under_a_short_deadline_evictions_carry_a_grace_that_fits() {
    let mut scene = node().by_autoscaler().until(120).with(pod("slow").grace(600)).with(pod("web").grace(30));
    assert_eq!(evictions(&scene.plan()), [("slow".into(), Some(109)), ("web".into(), None)]);
}

#[test]
fn the_drain_timeout_limits_every_scale_in() {
    let mut scene = node().annotated("now");
    scene.settings.drain_timeout = Some(Duration::from_mins(30));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(1_800)));
}

#[test]
fn where_the_group_has_our_hook_the_instance_is_terminated_first_and_drained_under_it() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.hook = HookState::Unknown;
    let plan = scene.plan();
    assert_eq!(evictions(&plan).len(), 1, "the drain does not wait for AWS");
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    let plan = scene.plan();
    assert!(all(&plan).contains(&terminate(&scene, true)));
    scene.terminated(&Ok(()));
    scene.instance = in_group(Lifecycle::Terminating);
    scene.plan();
    assert_eq!(scene.record().release, Release::LeftToGroup);
    assert_eq!(scene.record().release_by, Some(at(5_940)), "100 times the heartbeat time-out, less one");
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.remove("web");
    scene.plan();
    scene.later(5);
    scene.plan();
    let plan = scene.plan();
    assert_eq!(plan.actions, [Action::CompleteHook { hook: hook(60), instance: "i-1".into() }]);
}

#[test]
fn an_instance_in_terminating_wait_is_drained_if_the_hook_is_ours() {
    let mut scene = node().hooked(3_600).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    let record = scene.record();
    assert_eq!((record.cause, record.release), (Cause::LifecycleHook, Release::LeftToGroup));
    assert_eq!(record.release_by, Some(at(169_200)), "48 hours at most, less one heartbeat time-out");
    assert_eq!(evictions(&scene.plan()).len(), 1);
    let mut scene = node().with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    let plan = scene.plan();
    assert!(
        evictions(&plan).is_empty() && !touches_aws(&plan) && !plan.writes_node(),
        "somebody else's hook"
    );
}

/// A drain of a pod of this grace, which its budget keeps, with a limit of an hour, under a leader that began at `leads_since`, in that
/// moment. When it is to be released.
fn led_again(grace: i64, leads_since: i64) -> (Scene, i64) {
    let scene = node().with(pod("web").grace(grace).labelled("web")).with(pod("logs").daemon());
    let mut scene = scene.budget("web", 0, "7").by_autoscaler().until(3_600);
    scene.plan();
    scene.memory = Memory::default();
    (scene.now, scene.leads_since) = (at(leads_since), at(leads_since));
    scene.plan();
    let by = scene.record().release_by.expect("limited");
    (scene, by.as_second() - START)
}

#[test]
fn a_limit_of_ours_that_passed_while_nobody_led_counts_anew_and_one_too_close_takes_no_grace() {
    // 60 s of grace, 5 s to flush, 5 s of margin, 3 s for the kubelet and a late timer.
    for (leads_since, by) in [(7_200, 10_800), (3_600, 7_200), (3_590, 3_663), (3_000, 3_600), (0, 3_600)] {
        let (mut scene, told) = led_again(60, leads_since);
        assert_eq!(told, by, "{leads_since}");
        let mut asked = Vec::new();
        for _ in 0..5 {
            let plan = scene.plan();
            asked.extend(deletions(&plan));
            if !evictions(&plan).is_empty() {
                scene.blocked("web");
                let deleted = deletions(&scene.plan());
                if !deleted.is_empty() {
                    scene.evicted("web");
                }
                asked.extend(deleted);
            }
            scene.later(10);
        }
        // Its budget has had its time.
        let whole_grace = (leads_since == 3_590).then(|| ("web".to_owned(), None));
        assert_eq!(asked, Vec::from_iter(whole_grace), "{leads_since}");
        let record = scene.record();
        assert_eq!((record.phase, record.release_by), (Phase::Draining, Some(at(by))), "{leads_since}");
        // Leaders that follow each other put nothing off again.
        (scene.memory, scene.leads_since) = (Memory::default(), scene.now);
        scene.plan();
        assert_eq!(scene.record().release_by, Some(at(by)), "{leads_since}");
    }
    // What does not fit into the limit is cut at it.
    assert_eq!(led_again(7_200, 1_800).1, 3_600);
}

/// The leader before it noted a moment by a clock that is behind, or the watch was slow; and the first write does not work.
#[test]
fn a_limit_that_passed_while_nobody_led_counts_anew_for_a_standby_that_saw_the_record_late() {
    let scene = node().with(pod("web").labelled("web")).budget("web", 0, "7");
    let mut scene = scene.by_autoscaler().until(3_600);
    for (phase, noted, seen) in [(Phase::Flushing, 5, 5), (Phase::Draining, 10, 12)] {
        let record = scene.record().entering(phase, at(noted));
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene.memory.claims.see(&scene.view(), true, at(seen));
    }
    assert!(scene.memory.claims.not_believed().is_some());
    (scene.now, scene.leads_since) = (at(7_200), at(7_200));
    scene.memory.failed(&Task::Node, scene.now, None);
    let plan = scene.plan();
    assert_eq!((deletions(&plan), plan.writes_node()), (vec![], false), "no moment that has passed");
    scene.later(10);
    scene.plan();
    assert_eq!((scene.record().phase, scene.record().release_by), (Phase::Draining, Some(at(10_800))));
}

/// As when an old copy of its annotations is applied.
#[test]
fn what_somebody_writes_over_a_record_brings_no_limit_back_that_was_moved() {
    for (leads_since, by) in [(7_200, 10_800), (3_590, 3_663)] {
        let (mut scene, told) = led_again(60, leads_since);
        assert_eq!(told, by);
        scene.plan();
        scene.from_another_run = false;
        scene.later(30);
        let old = Record { release_by: Some(at(3_600)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &old, scene.now));
        let plan = scene.plan();
        assert_eq!((deletions(&plan), scene.record().release_by), (vec![], Some(at(by))), "{leads_since}");
    }
}

/// The option was not set when it began.
#[test]
fn a_limit_that_is_not_on_record_counts_from_the_request_whoever_leads() {
    let mut scene = node().with(pod("web")).by_autoscaler();
    scene.plan();
    scene.settings.drain_timeout = Some(Duration::from_hours(1));
    (scene.now, scene.leads_since) = (at(100), at(100));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(3_600)));
}

#[test]
fn a_limit_that_somebody_brings_closer_late_in_a_drain_leaves_the_one_on_record_where_it_is() {
    let (mut scene, _) = led_again(60, 100);
    scene.settings.drain_timeout = Some(Duration::from_mins(50));
    scene.now = at(3_550);
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(3_600)), "the pod's grace would take until 3,623");
}

/// AWS does not say since when the hook holds the instance, and an earlier run knew.
#[test]
fn the_nearer_deadline_of_an_earlier_run_stands_where_it_is_not_known_since_when_a_hook_holds() {
    for (at_the_latest, written, expected) in
        [(true, 500, 500), (false, 500, 5_950), (true, 9_000, 5_950), (true, 10, 5_950)]
    {
        let mut scene =
            node().hooked(60).with(pod("web")).asked_by(Cause::LifecycleHook, Release::LeftToGroup);
        let record = Record { release_by: Some(at(written)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene.instance = in_group(Lifecycle::TerminatingWait);
        (scene.now, scene.leads_since) = (at(20), at(10));
        (scene.held_since, scene.held_at_the_latest) = (Some(at(10)), at_the_latest);
        scene.plan();
        assert_eq!(scene.record().release_by, Some(at(expected)), "{at_the_latest} {written}");
    }
}

#[test]
fn the_time_out_of_a_hook_is_on_record_only_of_an_instance_that_leaves_by_it() {
    for (release, seconds) in [(Release::LeftToGroup, Some(60)), (Release::Terminate, None)] {
        let mut scene = node().hooked(60).with(pod("web")).asked_by(Cause::Operator, release);
        scene.instance = in_group(Lifecycle::ReplacingVolumeWait);
        scene.held_since = Some(at(0));
        scene.plan();
        assert_eq!(scene.record().heartbeat_timeout_seconds, seconds);
    }
}

/// Held, it would get none, and its hook would end the drain.
#[test]
fn nothing_is_terminated_under_a_hook_whose_heartbeats_aws_denies_until_one_has_been_tried_again() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.heartbeats = Heartbeats::DeniedAt(at(0));
    scene.later(1);
    let plan = scene.plan();
    assert!(!touches_aws(&plan));
    assert!(!plan.actions.iter().any(|action| matches!(action, Action::Heartbeat { .. })));
    scene.later(299);
    let plan = scene.plan();
    assert!(!touches_aws(&plan));
    assert!(plan.actions.contains(&Action::Heartbeat { hook: hook(60), instance: "i-1".into() }));
    scene.heartbeats = Heartbeats::Taken;
    assert!(touches_aws(&scene.plan()));
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.heartbeats = Heartbeats::Unknown;
    let plan = scene.plan();
    assert!(!touches_aws(&plan), "nor before one has been tried at all");
    assert!(plan.actions.contains(&Action::Heartbeat { hook: hook(60), instance: "i-1".into() }));
}

#[test]
fn an_empty_node_waits_a_moment_for_the_heartbeat_that_says_whether_the_hook_will_hold_it() {
    let empty = || {
        let mut scene = node().by_autoscaler().hooked(60);
        scene.heartbeats = Heartbeats::Unknown;
        let plan = scene.plan();
        assert!(plan.actions.iter().any(|action| matches!(action, Action::Heartbeat { .. })));
        assert_eq!((scene.record().phase, plan.wake_at), (Phase::Draining, Some(at(2))));
        scene
    };
    let mut answered = empty();
    answered.heartbeats = Heartbeats::Taken;
    assert!(touches_aws(&answered.plan()));
    assert_eq!(answered.record().phase, Phase::Draining, "its termination is noted first");
    let mut silent = empty();
    silent.later(2);
    silent.plan();
    assert_eq!(silent.record().phase, Phase::Flushing);
}

#[test]
fn an_end_that_a_machine_has_outlived_cuts_nobody_short() {
    for (status, second, ends) in
        [("True", 241, None), ("True", 240, Some(at(120))), ("Unknown", 241, Some(at(120)))]
    {
        let mut scene = node().asked_by(Cause::ScheduledEvent, Release::Terminate).with(pod("web").grace(60));
        let record = Record { ends_at: Some(at(120)), release_by: Some(at(120)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        ready(&mut scene, status);
        scene.later(second);
        scene.plan();
        assert_eq!(scene.record().ends_at, ends, "{status} {second}");
        if ends.is_none() {
            assert_eq!(evictions(&scene.plan()), [("web".into(), None)]);
        }
    }
}

#[test]
fn a_hook_of_somebody_else_is_never_completed() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert!(!touches_aws(&scene.plan()));
}

#[test]
fn that_ebbtide_does_not_drain_a_node_which_its_group_ends_is_told_once_if_workloads_are_on_it() {
    let others = |others| HookState::Known(TerminatingHooks { others, ..TerminatingHooks::default() });
    // State, hooks, whether a workload is there, what is told.
    let table = [
        (Lifecycle::Terminating, others(true), true, Some(false)),
        (Lifecycle::TerminatingWait, others(true), true, Some(false)),
        (Lifecycle::TerminatingWait, others(false), true, None),
        (Lifecycle::Terminating, others(true), false, None),
        (Lifecycle::Terminating, HookState::Unknown, true, None),
        (Lifecycle::InService, others(false), true, None),
        // Our hook is over, and no drain has begun.
        (Lifecycle::TerminatingProceed, ours(hook(30), false), true, Some(true)),
        (Lifecycle::TerminatingProceed, ours(hook(30), true), true, Some(true)),
        (Lifecycle::TerminatingProceed, ours(hook(30), false), false, None),
        (Lifecycle::TerminatingProceed, others(true), true, None),
        (Lifecycle::TerminatingProceed, HookState::Unknown, true, None),
    ];
    for (lifecycle, hook, is_busy, told) in table {
        let mut scene = node().with(pod("logs").daemon());
        if is_busy {
            scene.put(pod("web"));
        }
        (scene.instance, scene.hook) = (in_group(lifecycle), hook.clone());
        let warnings = |plan: &Plan| {
            let warning = |action| match action {
                Action::Announce(event) if event.reason == Reason::NotHeld => Some(event.warning),
                _ => None,
            };
            all(plan).into_iter().filter_map(warning).collect::<Vec<_>>()
        };
        assert_eq!(warnings(&scene.plan()), Vec::from_iter(told), "{lifecycle:?} {hook:?}");
        scene.later(900);
        assert_eq!(warnings(&scene.plan()), [] as [bool; 0], "{lifecycle:?} {hook:?}");
        assert!(scene.view().record.is_none());
    }
}

#[test]
fn that_anothers_hook_is_all_that_holds_an_instance_is_told_once_a_refresh_shows_it() {
    let released = || {
        let record = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).in_phase(Phase::Releasing);
        let mut scene = record.hooked(60);
        scene.instance = in_group(Lifecycle::TerminatingWait);
        scene.held_since = Some(at(0));
        scene
    };
    let mut scene = released();
    scene.hook = ours(hook(60), true);
    assert!(!scene.plan().held_by_another, "ours holds it as well");
    scene.memory.note_completion(&Ok(()), scene.now);
    assert!(!scene.plan().held_by_another, "the refresh is from before");
    scene.later(5);
    seen_now(&mut scene, Lifecycle::TerminatingWait);
    let plan = scene.plan();
    assert_eq!((plan.held_by_another, reasons(&plan)), (true, vec!["ScaleInWaiting"]));
    let mut foreign = released();
    foreign.hook = HookState::Known(TerminatingHooks { others: true, ..TerminatingHooks::default() });
    assert!(foreign.plan().held_by_another);
    let mut by_others = released();
    by_others.hook = ours(hook(60), true);
    let mut told = Vec::new();
    for _ in 0..3 {
        let (operation, message) = (Operation::CompleteLifecycleAction, String::new());
        by_others.memory.note_completion(&Err(AwsError::NoActiveHook { operation, message }), by_others.now);
        by_others.later(20);
        seen_now(&mut by_others, Lifecycle::TerminatingWait);
        told.push(by_others.plan().held_by_another);
    }
    assert_eq!(told, [false, true, true], "AWS says so before a hook opens, too");
    // Ours is completed again where its hold is still shown, and AWS says that it is over.
    scene.later(30);
    let (operation, message) = (Operation::CompleteLifecycleAction, String::new());
    scene.memory.note_completion(&Err(AwsError::NoActiveHook { operation, message }), scene.now);
    scene.later(1);
    seen_now(&mut scene, Lifecycle::TerminatingWait);
    assert!(scene.plan().held_by_another);
    let mut alone = released();
    alone.memory.note_completion(&Ok(()), alone.now);
    alone.later(5);
    seen_now(&mut alone, Lifecycle::TerminatingWait);
    assert!(!alone.plan().held_by_another, "a refresh lags");
}

/// AWS has refused a termination, in its words.
fn refused(code: &str, words: &str) -> AwsError {
    AwsError::of_service(TERMINATE, 400, code, words)
}

/// AWS has not answered.
fn no_answer() -> AwsError {
    AwsError::unreachable(TERMINATE, "timed out")
}

fn seen_now(scene: &mut Scene, lifecycle: Lifecycle) {
    scene.instance = Membership::In { group: "g".into(), lifecycle, seen: scene.now };
}

#[test]
fn a_termination_without_an_answer_is_repeated_only_after_two_minutes_and_a_newer_refresh() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    assert!(touches_aws(&scene.plan()));
    scene.later(1);
    scene.terminated(&Err(no_answer()));
    scene.later(119);
    seen_now(&mut scene, Lifecycle::InService);
    assert!(!touches_aws(&scene.plan()), "it may still arrive, or not be seen yet");
    scene.later(60);
    let plan = scene.plan();
    assert!(!touches_aws(&plan), "the refresh is as old as before");
    assert!(plan.actions.contains(&Action::Refresh));
    scene.memory.failed(&Task::Refresh, scene.now, None);
    seen_now(&mut scene, Lifecycle::InService);
    assert!(touches_aws(&scene.plan()), "it lives: the try had no effect");
    scene.terminated(&Err(no_answer()));
    scene.later(60);
    seen_now(&mut scene, Lifecycle::Terminating);
    assert!(!touches_aws(&scene.plan()), "it had");
}

#[test]
fn that_a_termination_may_have_been_lost_is_told_after_half_a_minute_with_when_it_is_tried_again() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    scene.terminated(&Err(no_answer()));
    let told = |plan: &Plan| {
        let note = |action| match action {
            Action::Announce(event) if event.reason == Reason::Waiting => Some(event.note),
            _ => None,
        };
        all(plan).into_iter().find_map(note)
    };
    scene.later(29);
    seen_now(&mut scene, Lifecycle::InService);
    assert_eq!(told(&scene.plan()), None);
    scene.later(31);
    assert_eq!(told(&scene.plan()), None, "nothing younger has been seen");
    seen_now(&mut scene, Lifecycle::InService);
    let note = told(&scene.plan()).expect("told");
    assert!(
        note.contains(&format!("told again after {:.0}", scene.now + SignedDuration::from_secs(60))),
        "{note}"
    );
    assert_eq!(told(&scene.plan()), None, "once");

    let mut replaced = node().asked_by(Cause::Operator, Release::Terminate).in_phase(Phase::Releasing);
    replaced.plan();
    replaced.terminated(&Err(no_answer()));
    replaced.later(31);
    seen_now(&mut replaced, Lifecycle::InService);
    let plan = replaced.plan();
    assert!(told(&plan).is_none() && touches_aws(&plan), "it is sent again");
}

#[test]
fn after_an_answer_of_ok_a_stale_refresh_does_not_bring_a_second_one_nor_does_a_restart() {
    // After a restart it is not known whether the request has left: as long as it may be on its way, and AWS takes a signed one. One that
    // AWS has acknowledged needs no other, however late descriptions are.
    let repeated_after = 345;
    for restarted in [false, true] {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        assert!(touches_aws(&scene.plan()));
        scene.terminated(&Ok(()));
        if restarted {
            scene.memory = Memory::default();
        }
        scene.later(repeated_after - 20);
        seen_now(&mut scene, Lifecycle::InService);
        assert!(!touches_aws(&scene.plan()), "restarted: {restarted}");
        scene.later(20);
        seen_now(&mut scene, Lifecycle::InService);
        assert!(touches_aws(&scene.plan()), "restarted: {restarted}");
    }
}

#[test]
fn what_aws_has_refused_is_written_down_before_the_next_try_so_that_a_restart_need_not_wait() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    assert!(touches_aws(&scene.plan()));
    scene.terminated(&Err(refused("Throttling", "Rate exceeded")));
    let noted_at = scene.record().terminate_at;
    assert!(!touches_aws(&scene.plan()));
    assert_eq!((scene.record().terminate_at, scene.record().void_termination), (noted_at, noted_at));
    scene.memory = Memory::default();
    scene.later(2);
    seen_now(&mut scene, Lifecycle::InService);
    assert!(touches_aws(&scene.plan()));
    assert_eq!((scene.record().told_at(), scene.record().void_termination), (Some(scene.now), None));
    scene.terminated(&Err(no_answer()));
    scene.plan();
    assert_eq!(scene.record().void_termination, None, "it may arrive");
}

#[test]
fn a_refusal_makes_no_earlier_call_void_that_may_still_arrive() {
    let mut scene = node().asked_by(Cause::Operator, Release::Terminate).in_phase(Phase::Releasing);
    assert!(touches_aws(&scene.plan()));
    scene.terminated(&Err(no_answer()));
    scene.later(31);
    seen_now(&mut scene, Lifecycle::InService);
    assert!(touches_aws(&scene.plan()), "a second one does no harm");
    scene.terminated(&Err(refused("Throttling", "Rate exceeded")));
    scene.plan();
    assert_eq!(scene.record().void_termination, None);
}

/// It lives on, and a minute later its node is back in service.
#[test]
fn of_an_instance_that_somebody_detaches_before_aws_was_told_nobody_says_that_it_is_released() {
    for (ready, told) in [("True", vec![]), ("Unknown", vec!["ScaleInReleased"])] {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        scene.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }));
        scene.instance = Membership::Elsewhere { seen: at(0) };
        assert_eq!(reasons(&scene.plan()), told, "Ready: {ready}");
    }
}

#[test]
fn a_termination_that_had_to_wait_for_its_turn_counts_from_when_aws_was_told() {
    for answered in [true, false] {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        assert!(touches_aws(&scene.plan()));
        // A change of the group's size had its turn meanwhile.
        scene.later(29);
        scene.terminated(&if answered { Ok(()) } else { Err(no_answer()) });
        scene.later(3);
        seen_now(&mut scene, Lifecycle::InService);
        assert!(!touches_aws(&scene.plan()), "answered: {answered}");
        // Another record of the same scale-in does not make it unsaid.
        let record = Record { terminate_at: None, ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        assert!(!touches_aws(&scene.plan()), "answered: {answered}");
        scene.later(if answered { 342 } else { 120 });
        seen_now(&mut scene, Lifecycle::InService);
        assert!(touches_aws(&scene.plan()), "answered: {answered}");
    }
}

#[test]
fn an_instance_in_standby_goes_without_a_decrement_that_would_cost_another_one() {
    for (hooked, phase) in [(true, Phase::Draining), (false, Phase::Flushing), (false, Phase::Releasing)] {
        let mut scene = node().by_autoscaler().in_phase(phase);
        if hooked {
            scene = scene.hooked(60);
        }
        scene.later(5);
        seen_now(&mut scene, Lifecycle::Standby);
        let plan = scene.plan();
        let decrements = |action: &Action| matches!(action, Action::Terminate { decrement: true, .. });
        assert!(touches_aws(&plan) && !all(&plan).iter().any(decrements), "{phase}");
    }
}

#[test]
fn one_refresh_that_leaves_an_instance_out_changes_nothing_however_long_it_is_the_last() {
    for (ready, told) in [("True", None), ("Unknown", None), ("True", Some(at(0)))] {
        let mut scene = node().by_autoscaler().with(pod("web"));
        let record = Record { terminate_at: told, ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }));
        scene.instance = Membership::Elsewhere { seen: at(0) };
        scene.memory.elsewhere_since = Some(at(0));
        scene.plan();
        scene.later(120);
        let before = scene.record();
        scene.plan();
        assert_eq!(scene.record(), before, "Ready: {ready}");
    }
}

#[test]
fn an_instance_that_stays_away_from_the_group_is_detached_or_gone() {
    let away = |ready: &str, release: Release| {
        let mut scene = node().asked_by(Cause::Operator, release).with(pod("web"));
        scene.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": ready }] } }));
        scene.memory.elsewhere_since = Some(at(0));
        scene.later(60);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        scene
    };
    let mut scene = away("True", Release::TerminateAndDecrement);
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    // AWS had refused to terminate it before.
    let mut scene = away("True", Release::TerminateAndDecrement);
    let record = Record { terminate_at: Some(at(1)), ..scene.record() };
    scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
    scene.memory.note_void(at(1));
    // The clocks have parted a little since.
    scene.ahead = SignedDuration::from_micros(3);
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    let mut scene = away("Unknown", Release::TerminateAndDecrement);
    assert!(all(&scene.plan()).contains(&gives_up(&scene)));
    // Nothing more is to be done for it, at no pace.
    let mut scene = away("Unknown", Release::Terminate);
    scene.pods = None;
    scene.plan();
    scene.later(3_000);
    scene.plan();
    let plan = scene.plan();
    assert!(plan.wake_at.is_none_or(|at| at > scene.now), "{plan:?}");
}

/// As one takes over from the other, each notes a termination, and one of the two writes has failed.
#[test]
fn the_note_of_another_process_a_millisecond_before_one_that_failed_is_not_void() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    let theirs = Record { terminate_at: Some(at(1)), ..scene.record() };
    let ours = at(1) + SignedDuration::from_millis(1);
    scene.memory.note_void(ours);
    scene.patch(&node_patch::with_record(&scene.view(), &theirs, scene.now));
    scene.later(40);
    seen_now(&mut scene, Lifecycle::InService);
    assert!(!touches_aws(&scene.plan()), "it was sent");
}

#[test]
fn a_note_that_was_written_though_its_write_failed_is_void_after_another_has_failed_too() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    let first = Record { terminate_at: Some(at(1)), ..scene.record() };
    for second in [1, 3] {
        let terminate = Action::Terminate {
            group: "g".into(),
            instance: "i-1".into(),
            decrement: true,
            noted_at: at(second),
            under_hook: false,
        };
        scene.memory.note_not_written(&[terminate], None, at(second));
    }
    scene.patch(&node_patch::with_record(&scene.view(), &first, scene.now));
    scene.later(40);
    scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: scene.now };
    assert!(touches_aws(&scene.plan()), "neither was sent");
}

#[test]
fn what_is_in_a_state_nobody_knows_after_it_was_terminated_is_not_terminated_again() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.instance = in_group(Lifecycle::Unknown);
    assert!(touches_aws(&scene.plan()), "a state that AWS added later may be one in service");
    scene.terminated(&Ok(()));
    let mut told = 0;
    for _ in 0..10 {
        scene.later(40);
        scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::Unknown, seen: scene.now };
        let plan = scene.plan();
        assert!(!touches_aws(&plan) && !plan.actions.contains(&Action::Refresh), "{plan:?}");
        told += reasons(&plan).len();
    }
    assert_eq!(told, 2, "in 400 s");
}

#[test]
fn what_our_hook_was_to_hold_is_not_terminated_again_in_a_state_nobody_knows() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    assert!(touches_aws(&scene.plan()));
    scene.terminated(&Ok(()));
    for _ in 0..10 {
        scene.later(40);
        scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::Unknown, seen: scene.now };
        assert!(!touches_aws(&scene.plan()), "{:?}", scene.now);
    }
    scene.remove("web");
    for _ in 0..10 {
        scene.later(40);
        scene.instance = Membership::In { group: "g".into(), lifecycle: Lifecycle::Unknown, seen: scene.now };
        assert!(!touches_aws(&scene.plan()), "{:?}", scene.now);
    }
}

#[test]
fn an_instance_that_aws_is_about_to_end_leaves_though_somebody_detaches_it() {
    for instance in [in_group(Lifecycle::Detaching), Membership::Elsewhere { seen: at(0) }] {
        for (ends_at, leaves) in [(120, true), (200_000, false)] {
            let mut scene = node().asked_by(Cause::SpotInterruption, Release::Terminate).with(pod("web"));
            let record = Record { ends_at: Some(at(ends_at)), ..scene.record() };
            scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
            scene.instance = instance.clone();
            for second in (0..=80).step_by(10) {
                scene.now = at(second);
                if let Membership::Elsewhere { seen } = &mut scene.instance {
                    *seen = at(second);
                }
                assert!(!touches_aws(&scene.plan()));
            }
            assert_eq!(scene.view().scale_in().is_some(), leaves, "{instance:?}, {ends_at}");
        }
    }
}

#[test]
fn an_instance_that_somebody_moves_to_another_group_is_let_be_unless_it_has_been_taken_out() {
    let goes_on = |mut scene: Scene, lifecycle| {
        scene.plan();
        scene.later(10);
        scene.instance = Membership::In { group: "h".into(), lifecycle, seen: scene.now };
        scene.plan();
        scene.view().scale_in().is_some()
    };
    let asked = || node().by_autoscaler().with(pod("web"));
    for lifecycle in [Lifecycle::InService, Lifecycle::Pending, Lifecycle::Standby] {
        assert!(!goes_on(asked(), lifecycle), "{lifecycle:?}");
    }
    assert!(goes_on(asked(), Lifecycle::Terminating), "its group there ends it");
    let told = node().by_autoscaler().in_phase(Phase::Releasing);
    assert!(goes_on(told, Lifecycle::InService), "AWS was told");
    let taken_out = node().asked_by(Cause::StateChange, Release::LeftToGroup).with(pod("web"));
    assert!(goes_on(taken_out, Lifecycle::Standby), "its group had taken it out");
    // Somebody has written another's name into the record.
    let mut claimed = asked();
    claimed.instance = Membership::In { group: "h".into(), lifecycle: Lifecycle::InService, seen: at(0) };
    claimed.plan();
    assert_eq!(claimed.record().group, "h");
}

#[test]
fn what_goes_into_a_warm_pool_while_it_is_released_is_let_be() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    for lifecycle in [Lifecycle::WarmPending, Lifecycle::Warmed] {
        for _ in 0..10 {
            scene.later(40);
            scene.instance = Membership::In { group: "g".into(), lifecycle, seen: scene.now };
            let plan = scene.plan();
            assert!(!touches_aws(&plan) && !plan.actions.contains(&Action::Refresh), "{plan:?}");
        }
    }
}

#[test]
fn a_held_node_whose_hook_aws_does_not_tell_of_is_drained_as_if_it_were_short() {
    let mut scene = node().with(pod("web"));
    scene.hook = HookState::Presumed(hook(30));
    scene.held_since = Some(at(0));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(2_970)));
    let plan = scene.plan();
    assert_eq!(evictions(&plan).len(), 1);
    scene.hook = ours(hook(600), false);
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(59_400)));
    // Its hold ends sooner where AWS takes no heartbeats.
    scene.hold_ends = Some(at(250));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(250)));
    scene.hold_ends = None;
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(59_400)));
    // What is not held yet is not terminated under a hook that may not be there.
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.hook = HookState::Presumed(hook(30));
    assert!(!touches_aws(&scene.plan()));
}

#[test]
fn a_termination_that_aws_certainly_refused_is_repeated_soon() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    assert!(touches_aws(&scene.plan()));
    scene.terminated(&Err(refused("ScalingActivityInProgress", "Activity is in progress.")));
    assert!(!touches_aws(&scene.plan()), "not in the same breath");
    scene.later(2);
    assert!(touches_aws(&scene.plan()));
}

#[test]
fn a_termination_that_another_process_has_noted_is_repeated_when_its_request_can_be_none_any_more() {
    let noted = |told_at| {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        let record = Record { terminate_at: Some(at(1)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene.memory.told_at = told_at;
        scene
    };
    for (told_at, again) in [(None, 346), (Some(at(0)), 346), (Some(at(1)), 121)] {
        let mut scene = noted(told_at);
        for (second, touches) in [(again - 1, false), (again, true)] {
            scene.now = at(second);
            scene.instance =
                Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: scene.now };
            assert_eq!(touches_aws(&scene.plan()), touches, "told at {told_at:?}, at {second}");
        }
    }
}

#[test]
fn what_an_earlier_run_told_aws_outlives_the_record_that_says_so() {
    let noted = || {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        let record = Record { terminate_at: Some(at(1)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        scene.later(2);
        scene.plan();
        scene
    };
    // Somebody takes the annotation off: the node stays closed for as long as the request may live.
    let mut scene = noted();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    for (second, is_closed) in [(3, true), (345, true), (346, false)] {
        scene.now = at(second);
        seen_now(&mut scene, Lifecycle::InService);
        scene.plan();
        assert_eq!(spec(&scene).0, is_closed, "at {second}");
    }
    // And where the next run finds no annotation, from when it does; gone from its group, until it is plain that the machine lives on.
    let (seen_at, lives_on) = (10, 10 + 30 * 60);
    let garbage = json!("{");
    for (is_gone, left, opens_at) in
        [(false, &Value::Null, 355), (true, &Value::Null, lives_on), (false, &garbage, 355)]
    {
        let mut scene = noted();
        scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: left } } }));
        scene.memory = Memory::default();
        for (second, is_closed) in [(seen_at, true), (opens_at - 1, true), (opens_at, false)] {
            scene.now = at(second);
            seen_now(&mut scene, Lifecycle::InService);
            if is_gone {
                scene.instance = Membership::Elsewhere { seen: scene.now };
            }
            scene.plan();
            assert_eq!(spec(&scene).0, is_closed, "at {second}, gone: {is_gone}");
        }
        assert_eq!(scene.view().marks, None);
    }
    // Or writes over it: AWS is told anew only after that, and by a run that finds only that, from when it does.
    for (restarts, cause, told_again) in [(false, Cause::Autoscaler, 346), (true, Cause::Operator, 355)] {
        let mut scene = noted().annotated("now");
        if restarts {
            scene.now = at(10);
            scene.memory = Memory::default();
        }
        seen_now(&mut scene, Lifecycle::InService);
        scene.plan();
        let told = (10..400).find(|second| {
            scene.now = at(*second);
            seen_now(&mut scene, Lifecycle::InService);
            touches_aws(&scene.plan())
        });
        assert_eq!((scene.record().cause, told), (cause, Some(told_again)), "{restarts}");
    }
}

#[test]
fn a_termination_for_a_scale_in_that_was_called_off_counts_while_it_may_take_effect() {
    for (told_at, touches) in [(-299, false), (-300, true)] {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        scene.memory.told_at = Some(at(told_at));
        scene.instance =
            Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(-310) };
        assert_eq!(touches_aws(&scene.plan()), touches, "{told_at}");
    }
}

#[test]
fn beside_somebody_elses_hook_the_node_is_drained_first() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.hook = ours(hook(60), true);
    assert!(!touches_aws(&scene.plan()));
    scene.remove("web");
    scene.plan();
    scene.later(5);
    assert!(touches_aws(&scene.plan()), "and terminated then");
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert!(touches_aws(&scene.plan()), "our hook is completed, which would hold it otherwise");
}

#[test]
fn a_deadline_counts_from_when_the_hold_began_whatever_the_record_says() {
    let mut scene = node().hooked(60).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.later(1_000);
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(6_940)), "while the beginning is not known");
    scene.held_since = Some(at(10));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(5_950)));
    let forged = Record { release_by: Some(at(1_001)), ..scene.record() };
    scene.patch(&node_patch::with_record(&scene.view(), &forged, scene.now));
    let plan = scene.plan();
    assert_eq!((scene.record().release_by, deletions(&plan)), (Some(at(5_950)), vec![]));
}

#[test]
fn a_workload_that_comes_before_the_release_is_drained_first() {
    for hooked in [false, true] {
        let mut scene = if hooked {
            node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(60)
        } else {
            node().by_autoscaler()
        };
        if hooked {
            scene.instance = in_group(Lifecycle::TerminatingWait);
        }
        let mut scene = scene.in_phase(Phase::Releasing).with(pod("late"));
        let plan = scene.plan();
        assert!(!touches_aws(&plan), "under a hook: {hooked}");
        assert_eq!(reasons(&plan), ["ScaleInDraining"]);
        scene.pods = None;
        let mut scene = scene.in_phase(Phase::Releasing);
        assert!(!touches_aws(&scene.plan()), "nothing is released before the pods are known");
    }
}

#[test]
fn a_workload_that_comes_while_the_instance_is_not_let_go_yet_leaves_first() {
    let releasing = |hooked: bool| {
        let scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup);
        let mut scene = if hooked { scene.hooked(60) } else { scene };
        scene.instance = in_group(Lifecycle::Terminating);
        scene.in_phase(Phase::Releasing).with(pod("late"))
    };
    let anothers = HookState::Known(TerminatingHooks { others: true, ..TerminatingHooks::default() });
    for (case, instance, hook) in [
        ("load balancers let go of it", in_group(Lifecycle::Terminating), None),
        ("another's hook alone holds it", in_group(Lifecycle::TerminatingWait), Some(anothers)),
    ] {
        let mut scene = releasing(hook.is_none());
        scene.hook = hook.unwrap_or(scene.hook);
        scene.instance = instance;
        assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"], "{case}");
        assert_eq!(scene.record().phase, Phase::Draining, "{case}");
    }
    let mut scene = releasing(true);
    scene.instance = in_group(Lifecycle::TerminatingProceed);
    assert_eq!(reasons(&scene.plan()), [""; 0], "it has been let go");
    // It has SIGTERM at least.
    let mut scene = releasing(true).until(100);
    scene.now = at(100);
    assert_eq!(deletions(&scene.plan()), [("late".into(), Some(1))]);
    assert_eq!(scene.record().phase, Phase::Releasing);
    scene.evicted("late");
    assert_eq!(deletions(&scene.plan()), [], "once");
}

#[test]
fn that_load_balancers_let_go_of_an_instance_first_is_told() {
    for (hooked, told) in [(true, vec!["ScaleInWaiting"]), (false, vec![])] {
        let scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup);
        let mut scene = if hooked { scene.hooked(60) } else { scene };
        scene.instance = in_group(Lifecycle::Terminating);
        let mut scene = scene.in_phase(Phase::Releasing);
        scene.later(59);
        seen_now(&mut scene, Lifecycle::Terminating);
        assert_eq!(reasons(&scene.plan()), [""; 0]);
        scene.later(1);
        assert_eq!(reasons(&scene.plan()), [""; 0], "no description is as late");
        seen_now(&mut scene, Lifecycle::Terminating);
        assert_eq!(reasons(&scene.plan()), told, "without a hook, EC2 ends it");
    }
}

#[test]
fn that_aws_does_not_describe_the_groups_is_told_of_a_release_that_waits() {
    for instance in [
        in_group(Lifecycle::Terminating),
        in_group(Lifecycle::TerminatingWait),
        in_group(Lifecycle::InService),
        in_group(Lifecycle::WarmPendingWait),
        Membership::Unknown,
    ] {
        let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(600);
        scene.instance = instance.clone();
        let mut scene = scene.in_phase(Phase::Releasing);
        scene.memory.note_completion(&Ok(()), scene.now);
        scene.later(59);
        let plan = scene.plan();
        assert_eq!(reasons(&plan), [""; 0], "{instance:?}");
        // Nothing else would tell that refreshes fail.
        assert!(
            plan.wake_at.is_some_and(|at| at <= scene.now + SignedDuration::from_mins(1)),
            "{instance:?}"
        );
        scene.undescribed_since = Some(at(0));
        assert_eq!(reasons(&scene.plan()), [""; 0], "{instance:?}");
        scene.later(1);
        assert_eq!(reasons(&scene.plan()), ["ScaleInWaiting"], "{instance:?}");
        assert_eq!(reasons(&scene.plan()), [""; 0], "once");
    }
    // Nothing more is to be done for these.
    for instance in [in_group(Lifecycle::Warmed), Membership::Elsewhere { seen: at(0) }] {
        let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).hooked(600);
        scene.instance = instance;
        let mut scene = scene.in_phase(Phase::Releasing);
        scene.later(120);
        scene.undescribed_since = Some(at(0));
        assert!(!reasons(&scene.plan()).contains(&"ScaleInWaiting"), "{:?}", scene.instance);
    }
}

#[test]
fn what_the_group_takes_out_by_itself_is_not_replaced() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert_eq!(all(&scene.plan())[1..], [gives_up(&scene)]);
    assert_eq!(scene.record().release, Release::LeftToGroup);
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.plan();
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert_eq!(all(&scene.plan())[1..], [], "it was on our word, with a decrement");
    let mut scene = node().by_autoscaler().in_phase(Phase::Flushing);
    scene.instance = in_group(Lifecycle::Terminating);
    assert!(all(&scene.plan()).contains(&gives_up(&scene)), "after the drain, too");
}

#[test]
fn a_refused_decrement_gives_the_node_back() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.plan();
    scene.terminated(&Err(refused(
        "ValidationError",
        "Currently, desiredSize equals minSize (1). Terminating instance without replacement will violate group's min \
         size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's min size.",
    )));
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
    assert_eq!(spec(&scene), (false, vec![], false));
    assert_eq!(scene.view().record, None);
}

/// Its words are documented nowhere.
#[test]
fn a_termination_that_is_refused_in_other_words_gives_the_node_back_where_the_group_is_at_its_minimum() {
    for (code, may_shrink, keeps, gives_back) in [
        ("ValidationError", false, false, true),
        ("ValidationError", true, false, false),
        ("ValidationError", false, true, false),
        ("AccessDenied", false, false, false),
    ] {
        let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
        scene.plan();
        scene.later(5);
        scene.terminated(&Err(refused(code, "That would go below what the group is to have")));
        (scene.may_shrink, scene.instance) = (may_shrink, in_service_at(0));
        scene.keeps_its_nodes = keeps;
        assert!(!reasons(&scene.plan()).contains(&"ScaleInCancelled"), "the description may be older");
        scene.later(5);
        scene.instance = in_service_at(10);
        assert_eq!(reasons(&scene.plan()).contains(&"ScaleInCancelled"), gives_back, "{code} {may_shrink}");
    }
}

/// A look at this moment shows it in service.
fn in_service_at(second: i64) -> Membership {
    Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(second) }
}

/// The description may be from before somebody else has ended it.
#[test]
fn a_refused_decrement_gives_the_node_back_only_once_a_later_look_shows_its_instance_in_service() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.later(20);
    scene.memory.of_scale_in.at_minimum_since = Some(at(10));
    scene.instance = in_service_at(9);
    let plan = scene.plan();
    assert_eq!((reasons(&plan), plan.actions), (vec![], vec![Action::Refresh]));
    scene.instance = in_service_at(10);
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
}

/// A pod may have come that the watch has not shown.
#[test]
fn a_release_waits_for_pods_that_are_being_listed_anew_and_not_beyond_its_limit() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing).until(100);
    scene.is_relisting = true;
    scene.later(94);
    let plan = scene.plan();
    assert_eq!((touches_aws(&plan), plan.wake_at), (false, Some(at(95))));
    scene.later(1);
    assert!(touches_aws(&scene.plan()));
}

/// A new leader lists pods of nodes that have drained for hours.
#[test]
fn that_pods_are_not_listed_is_told_once_it_has_lasted() {
    for phase in Phase::ALL {
        let mut scene = node().by_autoscaler().in_phase(phase).with(pod("web"));
        scene.later(3_600);
        let pods = scene.pods.take();
        scene.is_relisting = true;
        let mut told = || {
            let told = reasons(&scene.plan()).contains(&"ScaleInWaiting");
            scene.later(59);
            told
        };
        assert_eq!([told(), told(), told(), told()], [false, false, true, false], "{phase:?}");
        // Nor of a list that has come.
        (scene.pods, scene.is_relisting) = (pods, false);
        scene.memory.announced.clear();
        scene.plan();
        (scene.pods, scene.is_relisting) = (None, true);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInWaiting"), "{phase:?}");
    }
}

#[test]
fn a_node_whose_scale_in_is_called_off_too_late_stays_closed_until_a_look_shows_what_came_of_it() {
    let mut scene = node().by_autoscaler();
    let record = Record { terminate_at: Some(at(0)), ..scene.record() };
    scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.later(100);
    scene.instance = in_service_at(100);
    scene.plan();
    let plan = scene.plan();
    assert_eq!((plan.wake_at, spec(&scene).0), (Some(at(345)), true));
    scene.now = at(345);
    scene.instance = in_service_at(344);
    assert!(scene.plan().actions.contains(&Action::Refresh));
    scene.instance = in_service_at(345);
    assert_eq!(reasons(&scene.plan()), ["ScaleInCancelled"]);
}

#[test]
fn taking_the_record_off_too_late_tells_that_the_scale_in_goes_on_and_why() {
    for (terminate_at, event) in
        [(Some(at(1)), events::goes_on as fn(&str) -> ScaleInEvent), (None, events::goes_on_with_its_group)]
    {
        let mut scene = node().by_autoscaler();
        let record = Record { terminate_at, ..scene.record() };
        scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
        scene.memory.lost = Some(record);
        scene.instance = in_group(Lifecycle::TerminatingProceed);
        assert_eq!(all(&scene.plan()), [Action::Announce(event("i-1"))]);
    }
}

#[test]
fn a_long_flush_takes_no_more_than_half_of_a_short_limit() {
    // Released by 200: 100 s of flush, although 125 are allowed and 1800 asked for, and 5 s margin: gone by 95.
    let mut scene = node().by_autoscaler().until(200).with(pod("web")).with(pod("stuck").going(5_000));
    scene.put(pod("logs").daemon().wishing(names::FLUSH_SECONDS, "1800"));
    assert_eq!(evictions(&scene.plan()), [("web".into(), None)], "workloads are asked all the same");
    scene.remove("web");
    scene.later(92);
    assert_eq!(deletions(&scene.plan()), [], "it has this half");
    scene.later(1);
    assert_eq!(deletions(&scene.plan()), [("stuck".into(), Some(1))]);
    scene.later(2);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(99);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing, "DaemonSet pods have the other");
    scene.later(1);
    assert!(touches_aws(&scene.plan()));
}

#[test]
fn a_pod_that_nobody_could_ask_in_time_is_told_at_the_end() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
    scene.later(991);
    let plan = scene.plan();
    assert_eq!(deletions(&plan), [("web".into(), Some(1))]);
    assert_eq!(scene.record().phase, Phase::Flushing);
}

#[test]
fn a_person_is_told_at_once_that_the_group_cannot_shrink() {
    let mut scene = node().annotated("now").with(pod("web"));
    scene.may_shrink = false;
    assert_eq!(reasons(&scene.plan()), ["ScaleInNotPossible"]);
    let mut scene = node().annotated("replace").with(pod("web"));
    scene.may_shrink = false;
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
}

#[test]
fn a_written_deadline_is_neither_applied_nor_replaced_until_the_hook_is_known() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).with(pod("web"));
    let forged = Record { release_by: Some(at(50)), ..scene.record() };
    scene.patch(&node_patch::with_record(&scene.view(), &forged, scene.now));
    scene.hook = HookState::Unknown;
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.later(45);
    let plan = scene.plan();
    assert_eq!((deletions(&plan), evictions(&plan)), (vec![], vec![("web".into(), None)]));
    assert_eq!(scene.record().release_by, Some(at(50)));
}

#[test]
fn a_deadline_that_is_a_second_off_is_not_written_again() {
    for (written, kept) in [(1_001, true), (999, true), (1_002, false), (998, false)] {
        let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
        let record = Record { release_by: Some(at(written)), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
        assert_eq!(scene.plan().writes_node(), !kept, "{written}");
    }
}

#[test]
fn after_the_drain_a_workload_that_comes_is_drained_if_there_is_time() {
    for (second, phase) in [(989, Phase::Draining), (990, Phase::Releasing)] {
        let mut scene = node().by_autoscaler().until(1_000).in_phase(Phase::Flushing).with(pod("late"));
        scene.now = at(second);
        scene.plan();
        assert_eq!(scene.record().phase, phase, "{second}");
    }
}
