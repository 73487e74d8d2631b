//! Draining: who is asked, in which order, and what is said of those who stay.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::time::Duration;

use jiff::SignedDuration;
use serde_json::json;

use super::scene::*;
use crate::cluster::{Answer, PodName, PodView};
use crate::groups::hooks::HookState;
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::events::{self, Reason};
use crate::scale_in::record::{Cause, Phase, Release};
use crate::scale_in::settings::OnDeadline;
use crate::scale_in::tries::Task;
use crate::scale_in::waiting::WaitReason;

/// Whoever records another scale-in announces it; of one that cluster-autoscaler asked for, it may be a replica that does not lead.
#[test]
fn a_recorded_scale_in_is_announced_if_cluster_autoscaler_has_just_asked_for_it() {
    let announces = |mut scene: Scene| reasons(&scene.plan()).contains(&"ScaleInDraining");
    let by_autoscaler = || node().asked_by(Cause::Autoscaler, Release::TerminateAndDecrement);
    assert!(announces(by_autoscaler().with(pod("web"))));
    assert!(!announces(by_autoscaler().in_phase(Phase::Flushing)));
    assert!(!announces(node().asked_by(Cause::Operator, Release::Terminate).with(pod("web"))));
    let mut long_ago = by_autoscaler().with(pod("web"));
    long_ago.later(60);
    assert!(!announces(long_ago));
}

#[test]
fn a_node_that_cannot_be_written_is_told_of_from_the_fifth_failure_on() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.memory.not_written = Some("a policy refuses it".into());
    let mut told = Vec::new();
    for _ in 0..6 {
        scene.memory.failed(&Task::Node, scene.now, None);
        told.push(reasons(&scene.plan()).contains(&"ScaleInNotWritten"));
    }
    assert_eq!(told, [false, false, false, false, true, false]);
}

/// DaemonSet pods would be asked to go before a pod that the watch has not shown.
#[test]
fn no_flush_begins_while_a_watch_that_broke_may_have_missed_a_pod() {
    let mut scene = node().by_autoscaler();
    scene.is_relisting = true;
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    scene.is_relisting = false;
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    // Not beyond the limit.
    let mut scene = node().by_autoscaler().until(120);
    scene.is_relisting = true;
    scene.later(100);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    scene.later(19);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
}

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
    let waiting: Vec<_> = plan.waiting.iter().map(|w| (&*w.pod.name, &w.why)).collect();
    assert_eq!(waiting, [("db", &WaitReason::Patient), ("web", &WaitReason::Queued)]);
}

#[test]
fn an_eviction_is_asked_for_once_and_again_only_if_nothing_comes_of_it() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    assert_eq!(evictions(&scene.plan()).len(), 1);
    assert_eq!(evictions(&scene.plan()), [], "in flight");
    scene.granted("web");
    assert_eq!(evictions(&scene.plan()), [], "answered");
    let plan = scene.plan();
    let waiting: Vec<_> = plan.waiting.iter().map(|w| &w.why).collect();
    assert_eq!((plan.wake_at, waiting), (Some(at(30)), vec![&WaitReason::Exiting(at(30))]));
    scene.later(29);
    assert_eq!(evictions(&scene.plan()), [], "it may still show");
    scene.later(1);
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

/// A webhook may refuse deletions, and the budget have room later.
#[test]
fn a_pod_of_a_lost_machine_whose_deletion_is_refused_is_evicted_on() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.plan();
    scene.answered("web", Answer::Blocked("no room".into()));
    unheard(&mut scene, "Unknown");
    scene.later(299);
    assert_eq!(deletions(&scene.plan()), []);
    scene.answered("web", Answer::Blocked("no room".into()));
    scene.later(1);
    assert_eq!(deletions(&scene.plan()), [("web".into(), None)]);
    scene.answered("web", Answer::Unclear("denied".into()));
    scene.later(60);
    let plan = scene.plan();
    assert_eq!((evictions(&plan).len(), deletions(&plan).len()), (1, 1));
}

#[test]
fn patience_that_is_over_wakes_nobody() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup).with(pod("web"));
    scene.settings.patience = Some(Duration::from_hours(1));
    scene.plan();
    scene.evicted("web");
    assert_eq!(scene.plan().wake_at.map(|at| at <= scene.now), Some(false));
    for second in [3_600, 3_601] {
        scene.now = at(second);
        scene.plan();
        assert_eq!(scene.plan().wake_at.filter(|at| *at <= scene.now), None);
    }
}

#[test]
fn a_patient_pod_is_evicted_and_named_at_the_moment_patience_ends() {
    let mut scene = node().asked_by(Cause::LifecycleHook, Release::LeftToGroup);
    scene.put(pod("db").wishing(names::SAFE_TO_EVICT, "false"));
    scene.settings.patience = Some(Duration::from_hours(1));
    scene.now = at(3_599);
    scene.plan();
    let plan = scene.plan();
    assert_eq!((plan.wake_at, evictions(&plan)), (Some(at(3_600)), vec![]));
    scene.later(1);
    let plan = scene.plan();
    assert_eq!(evictions(&plan).len(), 1);
    assert!(all(&plan).contains(&Action::Announce(events::patience_over(&[pod("db").name]))), "{plan:?}");
}

#[test]
fn a_pod_that_asked_for_some_time_is_evicted_when_that_is_over() {
    let mut scene = node().by_autoscaler();
    scene.put(pod("db").wishing(names::DO_NOT_DISRUPT, "1010s"));
    let plan = scene.plan();
    assert_eq!(
        (plan.wake_at, evictions(&plan)),
        (Some(at(10)), vec![]),
        "it was made a thousand seconds ago"
    );
    scene.later(10);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

/// Before that the next one, of which it could not be told, might be evicted as well, and so on.
#[test]
fn a_pod_that_came_under_the_cordon_is_asked_once_the_next_one_will_be_told_from_it() {
    let come_back = || {
        let mut scene = node().by_autoscaler().with(pod("slow").going(900));
        scene.plan();
        scene.now = at(60);
        scene.with(PodView { created: Some(at(61)), ..pod("bound") })
    };
    let mut scene = come_back();
    let plan = scene.plan();
    assert_eq!((plan.wake_at, evictions(&plan)), (Some(at(61)), vec![]));
    assert_eq!(plan.waiting[0].why, WaitReason::Queued);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()).len(), 1);
    let mut scene = come_back().until(95);
    assert_eq!(evictions(&scene.plan()).len(), 1, "its grace would not fit any more");
}

#[test]
fn a_deletion_says_whether_the_pod_had_come_back() {
    let deleted = |created| {
        let pod = PodView { created: Some(at(created)), tolerates_cordon: true, ..pod("web") };
        let mut scene = node().by_autoscaler().with(pod).until(1_000);
        scene.plan();
        scene.blocked("web");
        scene.now = at(999);
        let plan = scene.plan();
        let owner = plan.actions.iter().find_map(|action| match action {
            Action::Delete(ask) => ask.owner.clone(),
            _ => None,
        });
        owner.expect("a workload").1
    };
    assert_eq!([-100, 100].map(deleted), [false, true]);
}

/// Its kubelet was heard last at 0.
fn unheard(scene: &mut Scene, status: &str) {
    let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": at(0) });
    scene.patch(&json!({ "status": { "conditions": [ready] } }));
}

#[test]
fn a_patient_pod_is_to_start_elsewhere_once_its_machine_counts_as_lost() {
    for (status, are_cut_off, from) in
        [("Unknown", false, Some(300)), ("Unknown", true, Some(3_600)), ("False", false, None)]
    {
        let mut scene = node().by_autoscaler().with(pod("db").wishing(names::DRAIN, "wait"));
        unheard(&mut scene, status);
        scene.are_kubelets_cut_off = are_cut_off;
        let asked = (1..=3_600).find(|second| {
            scene.now = at(*second);
            !evictions(&scene.plan()).is_empty()
        });
        assert_eq!(asked, from, "{status} {are_cut_off}");
    }
}

/// cluster-autoscaler waits for it for days, or removes what was lost before within seconds.
#[test]
fn what_dies_in_cluster_autoscalers_drain_is_scaled_in_when_it_is_lost_and_the_taint_is_five_minutes_old() {
    for (case, status, since, is_tainted, are_cut_off, from) in [
        ("it dies in the drain", "Unknown", 100, true, false, Some(400)),
        ("it was lost before", "Unknown", -1_200, true, false, Some(300)),
        ("nobody is heard", "Unknown", 0, true, true, Some(3_600)),
        ("its kubelet says that it is not Ready", "False", 0, true, false, Some(300)),
        ("its kubelet speaks", "True", 0, true, false, None),
        ("nobody drains it", "Unknown", 0, false, false, None),
    ] {
        let scene = node().with(pod("web").going(30));
        let mut scene = if is_tainted { scene.tainted(names::TO_BE_DELETED) } else { scene };
        let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": at(since) });
        scene.patch(&json!({ "status": { "conditions": [ready] } }));
        scene.are_kubelets_cut_off = are_cut_off;
        let begun = (since.max(0)..=3_600).find(|second| {
            scene.now = at(*second);
            scene.plan();
            scene.view().record.is_some()
        });
        assert_eq!(begun, from, "{case}");
    }
}

/// It is the API server that does not hear, or whoever looks.
#[test]
fn a_machine_that_is_not_heard_of_is_not_dead_where_most_are_not() {
    for (are_cut_off, expected) in
        [(false, events::flushing_dead()), (true, events::flushing(Duration::from_secs(5)))]
    {
        let mut scene = node().by_autoscaler();
        unheard(&mut scene, "Unknown");
        scene.are_kubelets_cut_off = are_cut_off;
        scene.memory.empty_since = Some(at(0));
        scene.later(100);
        assert!(all(&scene.plan()).contains(&Action::Announce(expected)), "{are_cut_off}");
    }
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    scene.are_kubelets_cut_off = true;
    scene.plan();
    let looks_again = scene.plan().wake_at.expect("nothing on the Node need change");
    assert!(looks_again <= at(10), "{looks_again}");
}

#[test]
fn a_pod_that_is_cut_at_the_deadline_is_deleted_again_after_a_pause_where_that_fails() {
    let mut scene = node().by_autoscaler().with(pod("web")).until(200);
    scene.plan();
    scene.blocked("web");
    scene.now = at(190);
    assert_eq!(deletions(&scene.plan()).len(), 1);
    scene.answered("web", Answer::Unclear("etcd timed out".into()));
    assert_eq!(deletions(&scene.plan()), []);
    scene.later(2);
    assert_eq!(deletions(&scene.plan()).len(), 1);
}

/// A webhook takes the cordon out.
#[test]
fn a_node_whose_writes_do_not_stay_is_written_at_a_pace() {
    let mut scene = node().by_autoscaler().with(pod("web").going(900));
    let write = |scene: &mut Scene| {
        scene.patch(&json!({ "spec": { "unschedulable": null } }));
        let plan = scene.plan();
        (plan.writes_node(), plan.wake_at)
    };
    let written: Vec<bool> = (0..8).map(|_| write(&mut scene).0).collect();
    let times = written.iter().take_while(|written| **written).count();
    assert!((3..=4).contains(&times) && !written[times..].contains(&true), "{written:?}");
    let (_, wake_at) = write(&mut scene);
    scene.now = wake_at.expect("it is written again");
    assert!(scene.now <= at(2), "{}", scene.now);
    assert!(write(&mut scene).0);
}

#[test]
fn our_own_pod_is_asked_once_another_process_has_had_time_to_lead() {
    let mut scene = node().by_autoscaler().with(pod("ebbtide")).with(pod("web"));
    scene.own_pod = Some(pod("ebbtide").name);
    assert!(scene.plan().actions.contains(&Action::HandOver));
    scene.remove("web");
    scene.memory.worked(&Task::HandOver, scene.now);
    let plan = scene.plan();
    assert_eq!((evictions(&plan), plan.wake_at), (vec![], Some(at(10))));
    assert!(!plan.actions.contains(&Action::HandOver), "once is enough");
    scene.later(9);
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()), [("ebbtide".into(), None)]);
    let mut other = node().by_autoscaler().with(PodView { finished: true, ..pod("ebbtide") });
    other.own_pod = Some(pod("ebbtide").name);
    assert!(!other.plan().actions.contains(&Action::HandOver), "it has ended already");
}

#[test]
fn no_termination_is_noted_before_our_own_pod_has_handed_over() {
    let own_node = || {
        let mut scene = node().by_autoscaler().hooked(60).with(pod("ebbtide"));
        scene.own_pod = Some(pod("ebbtide").name);
        scene
    };
    let hands_over = |plan: &Plan| plan.actions.contains(&Action::HandOver);
    let mut scene = own_node();
    let plan = scene.plan();
    assert!(hands_over(&plan) && !touches_aws(&plan));
    scene.memory.worked(&Task::HandOver, scene.now);
    let plan = scene.plan();
    assert_eq!((touches_aws(&plan), plan.wake_at), (false, Some(at(10))), "another is about to lead");
    scene.later(10);
    assert!(touches_aws(&scene.plan()), "none does");
    // One that was noted before the pods were known is sent first.
    let mut scene = own_node();
    let pods = scene.pods.take();
    assert!(touches_aws(&scene.plan()));
    scene.pods = pods;
    assert!(!hands_over(&scene.plan()));
    scene.terminated(&Ok(()));
    assert!(hands_over(&scene.plan()));
    let mut elsewhere = node().by_autoscaler().hooked(60).with(pod("web"));
    elsewhere.own_pod = Some(pod("ebbtide").name);
    assert!(touches_aws(&elsewhere.plan()));
}

#[test]
fn a_pod_whose_grace_is_over_for_a_minute_is_overdue() {
    let mut scene = node().by_autoscaler().with(pod("web").going(30));
    for (second, expected) in [(89, WaitReason::Exiting(at(30))), (90, WaitReason::Overdue(at(30)))] {
        scene.now = at(second);
        assert_eq!(scene.plan().waiting[0].why, expected);
    }
}

#[test]
fn the_first_last_call_of_the_pods_that_are_not_going_is_told() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("web")).with(pod("db").grace(300));
    // Until 990 s they must have gone.
    for (name, expected) in [("db", 687), ("web", 957)] {
        assert_eq!(scene.plan().last_call, Some(at(expected)), "{name}");
        scene.evicted(name);
    }
    assert_eq!(scene.plan().last_call, None, "both are going");
    let mut unlimited = node().by_autoscaler().with(pod("web"));
    assert_eq!(unlimited.plan().last_call, None);
}

#[test]
fn a_pod_that_was_cut_short_is_not_cut_short_again() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("stuck").grace(5_000));
    scene.plan();
    scene.evicted("stuck");
    scene.now = at(987);
    assert_eq!(deletions(&scene.plan()), []);
    scene.now = at(988);
    assert_eq!(deletions(&scene.plan()), [("stuck".into(), Some(1))]);
    scene.granted("stuck");
    assert_eq!(deletions(&scene.plan()), []);
}

#[test]
fn a_pod_whose_own_end_is_in_time_is_not_cut_short() {
    for (until, is_cut) in [(990, false), (991, true)] {
        let mut scene = node().by_autoscaler().until(1_000).with(pod("web").going(until));
        scene.now = at(989);
        assert_eq!(!deletions(&scene.plan()).is_empty(), is_cut, "until {until}");
    }
}

#[test]
fn the_rate_of_evictions_holds_a_pod_up_until_its_last_call_is_near_and_is_named() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("web"));
    scene.permits = Some(0);
    let plan = scene.plan();
    assert_eq!((evictions(&plan), &plan.waiting[0].why), (vec![], &WaitReason::Rate));
    scene.now = at(957);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn what_the_api_server_refuses_for_another_reason_is_said_in_its_words() {
    let mut scene = node().by_autoscaler().with(pod("web")).until(1_000);
    scene.plan();
    scene.answered("web", Answer::Unclear("no".into()));
    let plan = scene.plan();
    assert_eq!(plan.waiting[0].why, WaitReason::Refused("no".into()));
    let told = "pod default/web cannot be evicted or deleted yet (tried again); the API server says \"no\"";
    assert_eq!(refusals(&plan), [told]);
    scene.now = at(956);
    let plan = scene.plan();
    let why = &plan.waiting[0].why;
    assert_eq!((evictions(&plan).len(), why), (1, &WaitReason::Refused("no".into())), "and is tried again");
}

/// The texts of refused evictions.
fn refusals(plan: &Plan) -> Vec<String> {
    let note = |action: Action| match action {
        Action::Announce(event) if event.reason == Reason::Blocked => Some(event.note),
        _ => None,
    };
    all(plan).into_iter().filter_map(note).collect()
}

/// Thirty pods whose evictions were refused in these words.
fn thirty_refused(words: impl Fn(&PodView) -> String) -> Scene {
    let mut scene = (0..30).fold(node().by_autoscaler(), |scene, n| {
        let mut pod = pod(&format!("web-{n}"));
        pod.name.namespace = if n % 2 == 0 { "shop".into() } else { "bank".into() };
        scene.with(pod)
    });
    scene.plan();
    for pod in scene.pods.clone().unwrap_or_default().into_values() {
        scene.answered(&pod.name.name, Answer::Unclear(words(&pod)));
    }
    scene
}

#[test]
fn pods_that_the_api_server_refuses_for_one_reason_are_told_of_together() {
    let words = |pod: &PodView| {
        let PodName { namespace, name } = &pod.name;
        format!(
            "pods \"{name}\" is forbidden: User \"ebbtide\" cannot create resource \"pods/eviction\" in the namespace \"{namespace}\""
        )
    };
    let mut scene = thirty_refused(words);
    let told = refusals(&scene.plan());
    let [note] = &told[..] else { panic!("{told:?}") };
    assert!(note.starts_with("30 pods cannot be evicted or deleted yet (tried again): "), "{note}");
    for part in ["bank/web-1", "shop/web-0", " more; the API server says \"pods 'web-", "pods/eviction"] {
        assert!(note.contains(part), "{part} in {note}");
    }
    scene.later(299);
    assert_eq!(refusals(&scene.plan()), [""; 0]);
    scene.later(1);
    assert_eq!(refusals(&scene.plan()).len(), 1);
}

#[test]
fn of_a_node_whose_pods_are_each_refused_in_other_words_a_few_are_told() {
    let requests = Cell::new(0);
    let mut scene = thirty_refused(|_| {
        requests.update(|request| request + 1);
        format!("request {} failed", requests.get())
    });
    assert_eq!(refusals(&scene.plan()).len(), 3);
    for n in 0..30 {
        scene.later(1);
        scene.answered("web-7", Answer::Unclear(format!("another failed, {n}")));
        assert_eq!(refusals(&scene.plan()), [""; 0]);
    }
    scene.later(270);
    assert_eq!(refusals(&scene.plan()).len(), 3);
}

#[test]
fn what_the_api_server_refuses_at_the_last_call_is_said_in_its_words() {
    let mut scene =
        node().by_autoscaler().with(pod("db").wishing(names::SAFE_TO_EVICT, "false")).until(1_000);
    scene.now = at(957);
    let plan = scene.plan();
    assert_eq!((deletions(&plan).len(), &plan.waiting[0].why), (1, &WaitReason::Queued));
    scene.answered("db", Answer::Unclear("no".into()));
    assert_eq!(scene.plan().waiting[0].why, WaitReason::Refused("no".into()));
}

#[test]
fn a_limit_that_deletes_nothing_names_the_pods_left() {
    let mut scene = node().by_autoscaler().with(pod("db").wishing(names::SAFE_TO_EVICT, "false"));
    scene.settings.drain_timeout = Some(Duration::from_mins(10));
    scene.settings.on_deadline = OnDeadline::Wait;
    let told = |plan: &Plan| all(plan).contains(&Action::Announce(events::over_time(&plan.waiting)));
    scene.now = at(599);
    scene.plan();
    let plan = scene.plan();
    assert_eq!((told(&plan), plan.wake_at), (false, Some(at(600))));
    scene.later(1);
    assert!(told(&scene.plan()));
}

#[test]
fn the_flush_says_whether_workloads_are_left() {
    let flush = Duration::from_secs(5);
    let mut scene = node().by_autoscaler();
    assert!(all(&scene.plan()).contains(&Action::Announce(events::flushing(flush))));
    let mut scene = node().by_autoscaler().until(1_000).with(pod("stuck").going(5_000));
    scene.later(990);
    let plan = scene.plan();
    let event = events::flushing_with_workloads_left(1, flush);
    assert!(all(&plan).contains(&Action::Announce(event)), "{plan:?}");
    assert_eq!(scene.record().empty_since, None);
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
fn a_pod_that_a_budget_keeps_is_asked_every_five_seconds_once_its_limit_is_near() {
    let asked_at = |limit| {
        let pod = pod("web").labelled("web").grace(10);
        let mut scene = node().by_autoscaler().until(limit).with(pod).budget("web", 0, "7");
        let mut asked = Vec::new();
        for second in 0..90 {
            scene.now = at(second);
            if !evictions(&scene.plan()).is_empty() {
                asked.push(second);
                scene.blocked("web");
            }
        }
        asked
    };
    assert_eq!(asked_at(200), (0..90).step_by(5).collect::<Vec<_>>());
    let far = asked_at(10_000);
    assert!(far.len() <= 6, "{far:?}");
}

#[test]
fn a_pause_that_an_answer_asks_for_is_kept_though_a_limit_is_near() {
    let mut scene = node().by_autoscaler().until(200).with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.plan();
    scene.blocked("web");
    scene.later(5);
    assert_eq!(evictions(&scene.plan()).len(), 1);
    scene.answered("web", Answer::Busy(SignedDuration::from_secs(20), "later".into()));
    scene.later(19);
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn an_eviction_that_was_accepted_and_of_which_nothing_comes_costs_the_pod_no_second_of_its_grace() {
    // Its last call is at 77 s.
    let mut scene = node().by_autoscaler().until(120).with(pod("web").grace(30));
    for second in 0..77 {
        scene.now = at(second);
        let plan = scene.plan();
        assert_eq!(deletions(&plan), [], "{second}");
        if !evictions(&plan).is_empty() {
            scene.granted("web");
        }
    }
    scene.now = at(77);
    assert_eq!(deletions(&scene.plan()), [("web".into(), None)]);
    scene.granted("web");
    scene.later(6);
    assert_eq!(deletions(&scene.plan()), [], "a second one with what is left would take from its grace");
    // Nor does the first, of one that had less from the beginning: only the watch may lag.
    let mut scene = node().by_autoscaler().until(120).with(pod("web").grace(600));
    let [(_, given)] = &evictions(&scene.plan())[..] else { panic!("one is asked") };
    scene.granted("web");
    scene.later(6);
    assert_eq!(deletions(&scene.plan()), [("web".into(), *given)]);
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
    scene.answered("web", Answer::Busy(SignedDuration::from_secs(7), "later".into()));
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(6);
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn a_webhook_that_puts_off_for_ever_is_asked_no_more_often_than_a_budget_and_people_are_told() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    let is_told = |plan: &Plan| reasons(plan).contains(&"ScaleInBlocked");
    for n in 0..6 {
        let plan = scene.plan();
        assert_eq!((evictions(&plan).len(), is_told(&plan)), (1, false), "{n}");
        scene.answered("web", Answer::Busy(SignedDuration::from_secs(1), "it is being moved".into()));
        scene.later(1);
        if n >= 2 {
            scene.later(2);
            let plan = scene.plan();
            assert_eq!((evictions(&plan), is_told(&plan)), (vec![], n == 2), "{n}");
            scene.later(3);
        }
    }
}

#[test]
fn a_pod_in_a_final_phase_has_gone() {
    let mut scene = node().by_autoscaler().with(PodView { finished: true, ..pod("web").going(30) });
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"]);
}

#[test]
fn what_cluster_autoscaler_has_just_asked_for_is_announced_once() {
    let mut scene = node().by_autoscaler().with(pod("web").going(3_000));
    scene.memory.announced.clear();
    assert_eq!(reasons(&scene.plan()), ["ScaleInDraining"]);
    assert_eq!(reasons(&scene.plan()), [""; 0]);
    // A process that comes to it later does not announce it anew.
    scene.later(60);
    scene.memory.announced.clear();
    assert!(!reasons(&scene.plan()).contains(&"ScaleInDraining"));
}

#[test]
fn a_drain_that_our_hook_is_about_to_hold_is_announced_with_the_limit_that_it_sets() {
    let begun = |scene: &mut Scene| {
        let note = |action: Action| match action {
            Action::Announce(event) if event.reason.as_str() == "ScaleInDraining" => Some(event.note),
            _ => None,
        };
        all(&scene.plan()).into_iter().find_map(note).expect("announced")
    };
    let mut by_autoscaler = node().by_autoscaler().with(pod("web"));
    by_autoscaler.memory.announced.clear();
    by_autoscaler.hook = HookState::Unknown;
    assert!(!reasons(&by_autoscaler.plan()).contains(&"ScaleInDraining"), "it is not known yet");
    let mut unknown = node().annotated("now");
    unknown.hook = HookState::Unknown;
    assert_eq!(begun(&mut unknown), "cause operator: workloads are asked to leave i-1");
    for mut scene in [by_autoscaler, node().annotated("now"), node().annotated("replace")] {
        let mut beside = node().annotated("now");
        beside.hook = ours(hook(60), true);
        assert!(begun(&mut beside).ends_with("without a time limit"), "another's hook would hold it as well");
        scene = scene.hooked(60);
        let until = at(60 * 99).to_string();
        let note = begun(&mut scene);
        assert!(note.ends_with(&format!("until {until}")), "{note}");
    }
}

/// Hundreds of nodes make a plan for each of thousands of evictions.
#[test]
fn which_budgets_cover_a_pod_is_asked_when_it_is_to_be_evicted_and_not_again() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 1, "7");
    scene.plan();
    for _ in 0..10 {
        scene.plan();
    }
    assert_eq!(scene.budgets_asked.get(), 1, "the eviction is under way");
    scene.blocked("web");
    scene.plan();
    assert_eq!(scene.budgets_asked.get(), 1, "it was refused, and the budget has not changed");
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

#[test]
fn an_eviction_that_is_granted_again_and_again_without_effect_is_told() {
    let mut scene = node().by_autoscaler().with(pod("web").grace(3_600));
    for told in [false, false, true] {
        assert_eq!(evictions(&scene.plan()).len(), 1);
        scene.granted("web");
        let plan = scene.plan();
        assert_eq!(matches!(plan.waiting[0].why, WaitReason::Refused(_)), told, "{:?}", plan.waiting);
        assert_eq!(reasons(&plan).contains(&"ScaleInBlocked"), told);
        scene.later(30);
    }
    scene.evicted("web");
    assert!(matches!(scene.plan().waiting[0].why, WaitReason::Exiting(_)), "it goes after all");
}
