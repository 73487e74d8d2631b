//! What a run remembers of its tries, and for how long.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use super::scene::{Fixture as _, at, in_group, node, pod, settings};
use crate::aws::{AwsError, Lifecycle, Operation};
use crate::cluster::{Answer, BudgetSeen, NodeView};
use crate::scale_in::action::Action;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::record::{self, Cause, Record, Release};
use crate::scale_in::tries::Task;

#[test]
fn pauses_grow_to_half_a_minute_and_differ_from_task_to_task() {
    let mut memory = Memory::default();
    let mut pauses = Vec::new();
    for _ in 0..8 {
        memory.failed(&Task::Terminate, at(0), None);
        pauses.push(
            memory.tries(&Task::Terminate).may_begin_at().expect("no try is under way").duration_since(at(0)),
        );
    }
    for (failures, base) in [(0, 1_000), (1, 2_000), (7, 30_000)] {
        let pause = pauses[failures].as_millis();
        assert!((base * 8 / 10..=base * 12 / 10).contains(&pause), "{failures}: {pause} ms");
    }
    let of_pods = |n: u32| {
        let mut memory = Memory::default();
        memory.note_eviction(n.to_string(), Answer::Unclear("no".into()), Vec::new(), at(0));
        memory.tries(&Task::Evict(n.to_string())).may_begin_at()
    };
    let of_nodes = |n: u32| {
        let mut memory = Memory::of_node(&n.to_string().as_str().into());
        memory.failed(&Task::Node, at(0), None);
        memory.tries(&Task::Node).may_begin_at()
    };
    let completions = |n: u32| {
        let throttled =
            AwsError::of_service(Operation::CompleteLifecycleAction, 400, "Throttling", "Rate exceeded");
        let mut memory = Memory::of_node(&n.to_string().as_str().into());
        memory.note_completion(&Err(throttled), at(0));
        memory.tries(&Task::Complete).may_begin_at()
    };
    let assert_spread = |of: &dyn Fn(u32) -> Option<Timestamp>, base: i128| {
        let pause = |n| of(n).expect("no try is under way").duration_since(at(0)).as_millis() * 100 / base;
        let all: Vec<_> = (0..200).map(pause).collect();
        assert!(all.iter().all(|share| (80..=120).contains(share)), "{all:?}");
        assert!(all.iter().min() < Some(&85) && all.iter().max() > Some(&115), "{all:?}");
    };
    assert_spread(&of_pods, 1_000);
    assert_spread(&of_nodes, 1_000);
    assert_spread(&completions, 500);
}

#[test]
fn a_record_is_put_back_in_the_last_five_minutes_before_aws_ends_the_machine_and_not_sooner_or_later() {
    let ends = Record {
        ends_at: Some(at(1_000)),
        ..Record::new(Cause::SpotInterruption, "g", "i-1", Release::Terminate, at(0))
    };
    let mut scene = node().annotated(&record::write(&ends));
    scene.plan();
    let marked = scene.view();
    let mut memory = Memory::default();
    memory.claims.see(&marked, true, at(0));
    memory.claims.see(&NodeView { record: None, ..marked }, true, at(10));
    for (now, is_put_back) in [(699, false), (700, true), (999, true), (1_000, false), (1_001, false)] {
        let found = memory.overruled_in_vain(&"i-1".into(), at(now)).is_some();
        assert_eq!(found, is_put_back, "{now}");
    }
    assert_eq!(memory.overruled_in_vain(&"i-2".into(), at(800)), None);
}

#[test]
fn a_pod_that_budgets_refuse_is_tried_ever_less_often() {
    let budgets = [BudgetSeen { name: "default/web".into(), resource_version: "1".into() }];
    let pauses = |budgets: &[BudgetSeen]| {
        let (mut memory, task) = (Memory::default(), Task::Evict("a".into()));
        let mut pause = |_| {
            memory.note_eviction("a".into(), Answer::Blocked("no".into()), budgets.to_vec(), at(0));
            memory.tries(&task).may_begin_at().expect("no try is under way").duration_since(at(0)).as_secs()
        };
        [1, 2, 3, 4, 5].map(&mut pause)
    };
    for (seen, expected) in [(&budgets[..], [5, 10, 20, 30, 30]), (&[], [5; 5])] {
        for (pause, about) in pauses(seen).into_iter().zip(expected) {
            assert!((about * 8 / 10..=about * 12 / 10).contains(&pause), "{pause} s, not about {about}");
        }
    }
}

#[test]
fn that_a_budget_refuses_a_pod_is_known_until_something_else_does() {
    let mut memory = Memory::default();
    let mut answered = |answer| {
        memory.note_eviction("a".into(), answer, Vec::new(), at(0));
        memory.is_blocked_by_a_budget()
    };
    assert!(answered(Answer::Blocked("no".into())));
    assert!(!answered(Answer::Unclear("a webhook says no".into())));
    assert!(answered(Answer::Blocked("no".into())));
    assert!(!answered(Answer::Going));
}

#[test]
fn a_completion_that_passes_by_itself_is_tried_again_soon() {
    let operation = Operation::CompleteLifecycleAction;
    let throttled = Err(AwsError::of_service(operation, 400, "Throttling", "Rate exceeded"));
    let mut memory = Memory::default();
    for about in [500, 1_000, 2_000, 4_000, 5_000, 5_000] {
        memory.note_completion(&throttled, at(0));
        let again = memory.tries(&Task::Complete).may_begin_at().expect("no try is under way");
        let pause = again.duration_since(at(0)).as_millis();
        assert!((about * 8 / 10..=about * 12 / 10).contains(&pause), "{pause} ms, not about {about}");
    }
}

#[test]
fn what_is_put_off_is_tried_after_its_pause() {
    let mut memory = Memory::default();
    memory.put_off(&Task::Refresh, at(10), SignedDuration::from_secs(30));
    assert_eq!(memory.tries(&Task::Refresh).may_begin_at(), Some(at(40)));
}

#[test]
fn a_record_that_goes_once_aws_was_told_is_lost_as_long_as_the_node_is_marked() {
    let scene = node().by_autoscaler();
    let told = Record { terminate_at: Some(at(1)), ..scene.record() };
    let mut memory = Memory::default();
    let in_service = in_group(Lifecycle::InService);
    memory.note_before(Some(told.clone()), &scene.view(), &in_service);
    assert_eq!(memory.lost.as_ref(), Some(&told));
    memory.note_before(None, &node().view(), &in_group(Lifecycle::Terminating));
    assert_eq!(memory.lost, Some(told), "its instance is on its way out");
    memory.note_before(None, &node().view(), &in_service);
    assert_eq!(memory.lost, None);
}

#[test]
fn of_the_last_try_to_list_the_pods_it_is_known_whether_it_failed() {
    let mut memory = Memory::default();
    assert!(!memory.is_listing_failing());
    memory.failed(&Task::ListPods, at(0), None);
    assert!(memory.is_listing_failing());
    memory.worked(&Task::ListPods, at(1));
    assert!(!memory.is_listing_failing());
}

#[test]
fn the_last_terminations_without_effect_are_known_by_the_moment_for_which_they_were_noted() {
    let mut memory = Memory::default();
    for second in 0..9 {
        memory.note_void(at(second));
    }
    let known: Vec<bool> = (0..10).map(|second| memory.is_void(at(second))).collect();
    assert_eq!(known, [false, true, true, true, true, true, true, true, true, false], "no more than eight");
    let apart = |micros| memory.is_void(at(8) + SignedDuration::from_micros(micros));
    assert_eq!([-10, -9, 9, 10].map(apart), [false, true, true, false]);
}

#[test]
fn a_daemonset_pod_that_was_asked_to_go_is_not_waited_for_as_one_that_others_replace() {
    let (flush, shipper) = (settings().flush, pod("logs").daemon());
    let there = BTreeMap::from([(shipper.uid.clone(), shipper.clone())]);
    let goes = |ask: &dyn Fn(&mut Memory)| {
        let mut memory = Memory::default();
        memory.note_daemons(&there, &flush, (at(0), SignedDuration::ZERO));
        ask(&mut memory);
        memory.note_daemons(&BTreeMap::new(), &flush, (at(1), SignedDuration::ZERO));
        memory.of_scale_in.absences.until(Duration::ZERO)
    };
    assert_eq!(goes(&|_| {}), Some(at(16)), "nobody here has asked it");
    let asking = |memory: &mut Memory| memory.failed(&Task::DeletePod(shipper.uid.clone()), at(0), None);
    assert_eq!(goes(&asking), None, "the answer was lost");
    let asked = |memory: &mut Memory| {
        memory.of_mut(&shipper.uid).to_go = Some(at(0));
    };
    assert_eq!(goes(&asked), None);
}

#[test]
fn an_announcement_is_forgotten_when_it_may_be_repeated() {
    let mut memory = Memory::default();
    memory.note_announced("a".into(), at(0));
    memory.note_announced("b".into(), at(299));
    assert_eq!(memory.announced.len(), 2);
    memory.note_announced("c".into(), at(300));
    assert_eq!(memory.announced.keys().collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn a_node_is_empty_since_the_first_look_that_found_no_workload() {
    let mut memory = Memory::default();
    let looks =
        [(Some(false), Some(1)), (None, Some(1)), (Some(false), Some(1)), (Some(true), None), (None, None)];
    for (second, (occupied, since)) in (1..).zip(looks) {
        memory.note_occupied(occupied, at(second));
        assert_eq!(memory.empty_since, since.map(at), "look {second}");
    }
}

#[test]
fn nothing_is_remembered_of_pods_that_are_gone() {
    let mut memory = Memory::default();
    let guard = |name: &str| Task::Guard(format!("uid-{name}"));
    for name in ["gone", "there"] {
        memory.note_eviction(format!("uid-{name}"), Answer::Blocked("full".into()), Vec::new(), at(0));
        memory.of_mut(&format!("uid-{name}")).to_go = Some(at(0));
        memory.worked(&guard(name), at(0));
    }
    memory.worked(&Task::Node, at(0));
    memory.note_pods(&BTreeMap::from([("uid-there".to_owned(), pod("there"))]), at(0));
    for (name, is_there) in [("gone", false), ("there", true)] {
        let uid = format!("uid-{name}");
        let held = [
            memory.of(&uid).refusal.is_some(),
            memory.of(&uid).to_go.is_some(),
            memory.of(&uid).eviction.ended.is_some(),
            memory.tries(&guard(name)).done,
        ];
        assert_eq!(held, [is_there; 4], "{name}");
    }
    assert!(memory.tries(&Task::Node).done);
}

/// What was noted of them goes with the scale-in: a pod that was there all the time would seem to have come back.
#[test]
fn pods_are_noted_once_for_each_change_and_anew_for_another_scale_in() {
    let mut memory = Memory::default();
    let is_news = |memory: &mut Memory| [1, 1, 2, 2].map(|version| memory.is_news(version));
    assert_eq!(is_news(&mut memory), [true, false, true, false]);
    memory.forget_the_scale_in();
    assert!(memory.is_news(2));
}

#[test]
fn awss_words_are_kept_only_where_trying_again_does_not_help() {
    const COMPLETE: Operation = Operation::CompleteLifecycleAction;
    let denied = || AwsError::of_service(COMPLETE, 403, "AccessDenied", "you may not");
    let away = || AwsError::unreachable(COMPLETE, "timed out");
    let kept = |error| {
        let mut memory = Memory::default();
        memory.note_completion(&Err(error), at(0));
        assert!(!memory.tries(&Task::Complete).done);
        memory.refused_by_aws().map(str::to_owned)
    };
    assert!(kept(denied()).is_some_and(|words| words.contains("you may not")));
    assert_eq!(kept(away()), None);
    let mut memory = Memory::default();
    memory.note_completion(&Err(denied()), at(0));
    memory.note_completion(&Ok(()), at(1));
    assert_eq!((memory.refused_by_aws().is_none(), memory.tries(&Task::Complete).done), (true, true));
}

#[test]
fn awss_words_are_kept_for_as_long_as_the_instance_is_to_be_released_in_that_way() {
    use Lifecycle::{
        InService, ReplacingVolumeWait, Retained, Terminating, TerminatingWait, WarmPendingWait,
    };
    let denied = |operation| Err(AwsError::of_service(operation, 403, "AccessDenied", "no"));
    let terminate = |memory: &mut Memory| {
        let answer = denied(Operation::TerminateInstanceInAutoScalingGroup);
        memory.note_termination(at(0), &answer, at(0));
    };
    let complete = |memory: &mut Memory| {
        memory.note_completion(&denied(Operation::CompleteLifecycleAction), at(0));
    };
    let kept = |refused: &dyn Fn(&mut Memory), instance: Membership| {
        let mut memory = Memory::default();
        refused(&mut memory);
        memory.note_membership(&Membership::Unknown);
        memory.note_membership(&instance);
        memory.refused_by_aws().is_some()
    };
    for (lifecycle, by_terminating, by_the_hook) in [
        (InService, true, false),
        (Retained, true, false),
        (ReplacingVolumeWait, true, true),
        (Terminating, false, true),
        (TerminatingWait, false, true),
        (WarmPendingWait, false, true),
    ] {
        let kept = [kept(&terminate, in_group(lifecycle)), kept(&complete, in_group(lifecycle))];
        assert_eq!(kept, [by_terminating, by_the_hook], "{lifecycle:?}");
    }
    let gone = || Membership::Elsewhere { seen: at(1) };
    assert!(!kept(&terminate, gone()) && !kept(&complete, gone()));
}

/// Or nobody would be told that somebody else completes the hook that holds it when it leaves once more.
#[test]
fn a_completion_is_forgotten_once_its_instance_is_back_in_service() {
    let in_service =
        |second| Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: at(second) };
    let mut memory = Memory::default();
    memory.note_completion(&Ok(()), at(0));
    let (operation, message) = (Operation::CompleteLifecycleAction, String::new());
    memory.note_completion(&Err(AwsError::NoActiveHook { operation, message }), at(0));
    // A description may be older than the call.
    for (instance, is_known) in
        [(in_group(Lifecycle::TerminatingWait), true), (in_service(30), true), (in_service(31), false)]
    {
        memory.note_membership(&instance);
        let known = [memory.tries(&Task::Complete).ended, memory.of_scale_in.not_held_by_ours_since];
        assert_eq!(known.map(|at| at.is_some()), [is_known; 2], "{instance:?}");
    }
}

/// A write of the Node that wants `what`, done or, with `Some`, come too late. Returns the pause after it, in seconds.
fn write(memory: &mut Memory, what: &str, second: i64, came_late: Option<SignedDuration>) -> i64 {
    let patch = json!({"metadata": {"resourceVersion": second.to_string(), "annotations": {"wants": what}}});
    memory.note_begun(&Action::PatchNode { patch: patch.clone(), then: Vec::new() }, at(second));
    match came_late {
        None => memory.note_written(&node().view(), at(second)),
        late => memory.note_not_written(&[], late, at(second)),
    }
    assert_eq!(memory.same_write_waits_until(&json!({"metadata": {"annotations": {"wants": "else"}}})), None);
    assert!(memory.tries(&Task::Node).may_begin_at().is_some_and(|at_once| at_once <= at(second)));
    let again = memory.same_write_waits_until(&patch);
    again.map_or(0, |again| again.duration_since(at(second)).as_secs())
}

#[test]
fn writes_that_want_the_same_are_paced_from_the_fourth_on_and_told_of_once_in_a_while() {
    let mut memory = Memory::default();
    let (mut second, mut pauses, mut told) = (0, Vec::new(), Vec::new());
    for n in 0..10 {
        let came_late = (n % 2 == 1).then_some(SignedDuration::ZERO);
        let pause = write(&mut memory, "cordon", second, came_late);
        pauses.push(pause);
        if memory.tells_of_same_writes(at(second)) {
            told.push(n);
        }
        // As late as it can be and still be the same.
        second += pause + 9;
    }
    assert_eq!((pauses, told), (vec![0, 0, 1, 2, 4, 8, 16, 30, 30, 30], vec![6]));
    assert!(memory.tells_of_same_writes(at(second + 300)));
    assert_eq!(write(&mut memory, "flush", second, None), 0, "it wants something else");
    assert!(!memory.tells_of_same_writes(at(second + 900)));
}

#[test]
fn writes_that_want_the_same_and_are_far_apart_or_without_an_answer_are_no_sign_of_anybody() {
    let mut memory = Memory::default();
    let pauses: Vec<_> = (0..3).map(|n| write(&mut memory, "cordon", n, None)).collect();
    assert_eq!(pauses, [0, 0, 1]);
    assert_eq!(write(&mut memory, "cordon", 2 + 10 + 1, None), 0, "ten seconds and the pause later");
    let patch = json!({"metadata": {"annotations": {"wants": "cordon"}}});
    let mut memory = Memory::default();
    for n in 0..9 {
        memory.note_begun(&Action::PatchNode { patch: patch.clone(), then: Vec::new() }, at(n));
        memory.note_not_written(&[], None, at(n));
        assert!(!memory.tells_of_same_writes(at(n)), "not answered");
    }
}

#[test]
fn a_node_is_written_again_after_five_seconds_at_most_for_as_long_as_a_spot_notice_gives() {
    let mut memory = Memory::default();
    let mut now = at(0);
    let mut tried_again = || {
        memory.failed(&Task::Node, now, None);
        let next = memory.tries(&Task::Node).may_begin_at().expect("no try is under way");
        let pause = next.duration_since(now);
        now = next;
        (now, pause)
    };
    let quick: Vec<_> = (0..25).map(|_| tried_again()).collect();
    let (until, _) = quick.last().expect("tries");
    assert!(*until > at(90), "{until}");
    assert!(quick.iter().all(|(_, pause)| *pause <= SignedDuration::from_secs(6)), "{quick:?}");
    assert!(
        tried_again().1 >= SignedDuration::from_secs(24),
        "hundreds of nodes may have it refused for hours"
    );
}

#[test]
fn what_was_not_sent_is_no_answer_and_is_tried_a_second_later() {
    let mut memory = Memory::default();
    let (evict, delete) = (Task::Evict("a".into()), Task::DeletePod("a".into()));
    for task in [&evict, &delete] {
        memory.begin(task, at(0));
    }
    memory.note_eviction("a".into(), Answer::Unsent, Vec::new(), at(10));
    memory.note_deletion("a".into(), Answer::Unsent, at(10));
    assert!(memory.of("a").refusal.is_none() && memory.of("a").to_go.is_none());
    for tries in [&evict, &delete].map(|task| memory.tries(task)) {
        let pause = tries.may_begin_at().expect("none is under way").duration_since(at(10));
        assert!(tries.ended.is_none() && (800..=1_200).contains(&pause.as_millis()), "{tries:?}");
    }
}
