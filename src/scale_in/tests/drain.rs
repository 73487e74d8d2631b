//! Draining: who is asked, in which order, and what is said of those who stay.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;

use super::scene::*;
use crate::cluster::{Answer, PodView};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::record::{Cause, Release};
use crate::scale_in::waiting::WaitReason;

#[test]
fn workloads_are_evicted_and_daemonset_mirror_finished_and_patient_pods_are_not() {
    let mut scene = node().by_autoscaler();
    scene.put(pod("web"));
    scene.put(pod("logs").daemon());
    scene.put(PodView { mirror: true, ..pod("static") });
    scene.put(PodView { finished: true, ..pod("job") });
    scene.put(pod("db").wishing(names::SAFE_TO_EVICT, "false"));
    let plan = scene.plan();
    assert_eq!(evictions(&plan), [("web".into(), None)]);
    assert_eq!(deletions(&plan), []);
    assert!(!touches_aws(&plan));
    let waiting: Vec<_> = plan.waiting.iter().map(|w| (w.pod.name.as_str(), &w.why)).collect();
    assert_eq!(waiting, [("db", &WaitReason::Patient), ("web", &WaitReason::Queued)]);
}

#[test]
fn an_eviction_is_asked_for_once_and_again_only_if_nothing_comes_of_it() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    assert_eq!(evictions(&scene.plan()).len(), 1);
    assert_eq!(evictions(&scene.plan()), [], "in flight");
    scene.granted("web");
    assert_eq!(evictions(&scene.plan()), [], "answered");
    scene.later(31);
    assert_eq!(evictions(&scene.plan()).len(), 1, "no sign of it going");
    scene.evicted("web");
    scene.later(1_000);
    assert_eq!(evictions(&scene.plan()), [], "going, however long it takes");
}

#[test]
fn lower_priorities_are_asked_before_higher_ones() {
    let mut scene = node().by_autoscaler();
    scene.put(pod("batch-1").priority(-10));
    scene.put(pod("batch-2").priority(-10));
    scene.put(pod("web"));
    scene.put(pod("dns").priority(2_000_000_000));
    let names = |plan: &Plan| evictions(plan).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&scene.plan()), ["batch-1", "batch-2"]);
    scene.evicted("batch-1");
    assert!(names(&scene.plan()).is_empty(), "one of the level has had no answer");
    scene.evicted("batch-2");
    assert_eq!(names(&scene.plan()), ["web"], "asked, not gone, is enough");
    scene.blocked("web");
    assert_eq!(names(&scene.plan()), ["dns"], "a blocked level does not hold the next one");
}

#[test]
fn a_priority_is_asked_at_its_last_call_whatever_lower_ones_answer() {
    // Of 700 s half of it is the flush's at most, which is 5 s.
    let mut scene = node().by_autoscaler().until(700);
    scene.put(pod("batch").priority(-10));
    scene.put(pod("db").grace(600));
    assert_eq!(evictions(&scene.plan()).len(), 1, "batch's API server says nothing");
    let mut plan = scene.plan();
    while evictions(&plan).is_empty() {
        scene.now = plan.wake_at.expect("at the last call of db at the latest");
        assert!(scene.now < at(92), "{}: 3 s are for its way", scene.now);
        plan = scene.plan();
    }
    assert_eq!((evictions(&plan), scene.now > at(60)), (vec![("db".into(), None)], true));
}

#[test]
fn patience_that_is_over_wakes_nobody() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::CompleteHook).with(pod("web"));
    scene.settings.patience = Some(Duration::from_hours(1));
    scene.plan();
    scene.evicted("web");
    assert_eq!(scene.plan().wake_at.map(|at| at <= scene.now), Some(false));
    scene.now = at(3_601);
    scene.plan();
    assert_eq!(scene.plan().wake_at.filter(|at| *at <= scene.now), None);
}

#[test]
fn a_blocking_budget_is_named_on_the_node_and_asked_again_after_a_while() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.plan();
    scene.blocked("web");
    let plan = scene.plan();
    assert_eq!(evictions(&plan), []);
    assert_eq!(reasons(&plan), ["ScaleInBlocked"]);
    let Some(Action::Announce(what)) = plan.actions.first() else { panic!("{plan:?}") };
    assert!(what.note.contains("default/web"), "{}", what.note);
    assert!(what.note.contains("needs 2 healthy pods"), "{}", what.note);
    assert_eq!(reasons(&scene.plan()), Vec::<&str>::new(), "said once");
    scene.later(7);
    assert_eq!(evictions(&scene.plan()).len(), 1, "about every five seconds");
    scene.blocked("web");
    scene.later(300);
    assert!(reasons(&scene.plan()).contains(&"ScaleInBlocked"), "repeated while it lasts");
}

#[test]
fn a_budget_that_gets_room_is_asked_at_once() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.plan();
    scene.blocked("web");
    assert_eq!(evictions(&scene.plan()), []);
    scene.set_budget("web", 0, "8");
    assert_eq!(evictions(&scene.plan()), [], "changed, but without room");
    scene.set_budget("web", 1, "9");
    assert_eq!(evictions(&scene.plan()).len(), 1);
    assert_eq!(evictions(&scene.plan()), [], "in flight");
}

#[test]
fn where_evictions_are_few_pods_that_are_refused_take_no_turn_from_those_never_asked() {
    let mut scene = node().by_autoscaler().budget("web", 0, "7");
    for pod in [pod("a").labelled("web"), pod("b").labelled("web"), pod("c"), pod("d").priority(1)] {
        scene.put(pod);
    }
    scene.permits = Some(1);
    let mut asked = Vec::new();
    for _ in 0..6 {
        for (name, _) in evictions(&scene.plan()) {
            if ["a", "b"].contains(&name.as_str()) {
                scene.blocked(&name);
            } else {
                scene.evicted(&name);
            }
            asked.push(name);
        }
        scene.later(10);
    }
    assert_eq!(asked, ["a", "b", "c", "d", "a", "b"]);
}

#[test]
fn an_api_server_that_is_busy_is_given_the_time_it_asks_for_though_a_budget_has_room() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.plan();
    scene.blocked("web");
    scene.set_budget("web", 1, "8");
    assert_eq!(evictions(&scene.plan()).len(), 1);
    scene.answered("web", Answer::Busy(SignedDuration::from_secs(7)));
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(6);
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn a_pod_in_a_final_phase_has_gone() {
    let mut scene = node().by_autoscaler().with(PodView { finished: true, ..pod("web").going(30) });
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"]);
}

#[test]
fn nothing_is_decided_before_the_pods_are_known() {
    let mut scene = node().by_autoscaler();
    scene.pods = None;
    assert_eq!(scene.plan().actions, []);
}

#[test]
fn a_plan_made_twice_asks_for_nothing_twice() {
    let mut scene = node().by_autoscaler().hooked(60);
    for n in 0..20 {
        scene.put(pod(&format!("web-{n}")).priority(n % 3));
    }
    let mut asked = BTreeSet::new();
    for _ in 0..10 {
        for (name, _) in evictions(&scene.plan()) {
            assert!(asked.insert(name.clone()), "{name} twice");
            scene.evicted(&name);
        }
    }
    assert_eq!(asked.len(), 20);
}
