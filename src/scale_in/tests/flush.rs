//! Flushing: what DaemonSet pods get, and what holds the release.

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::scene::*;
use crate::aws::Lifecycle;
use crate::cluster::{Answer, Containers, DaemonOwner, PodView};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::load_balancers::{Reached, Targets};
use crate::scale_in::record::Phase;
use crate::scale_in::tries::Task;
use crate::scale_in::waiting::{WaitReason, Waiting};

#[test]
fn the_last_exit_starts_the_flush_and_the_flush_comes_before_the_release() {
    let mut scene = node().by_autoscaler().with(pod("web")).with(pod("logs").daemon());
    scene.plan();
    scene.evicted("web");
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    scene.later(12);
    scene.remove("web");
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"]);
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(4);
    assert!(!touches_aws(&scene.plan()));
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    let plan = scene.plan();
    assert_eq!(reasons(&plan), ["ScaleInReleasing"]);
    let of_aws: Vec<_> = all(&plan).into_iter().filter(|a| matches!(a, Action::Terminate { .. })).collect();
    assert_eq!(of_aws, [terminate(&scene, false)], "in the same breath, once it is noted");
    assert_eq!(scene.record().terminate_at, Some(scene.now));
    assert_eq!(scene.plan().actions, [], "once");
}

#[test]
fn a_deletion_at_the_deadline_that_fails_is_repeated_while_daemonset_pods_flush() {
    let mut scene = node().by_autoscaler().until(600).with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.put(pod("logs").daemon().wishing(names::FLUSH_SECONDS, "60"));
    while scene.now < at(500) {
        scene.plan();
        scene.blocked("web");
        scene.later(10);
    }
    let unclear = || Answer::Unclear("etcdserver: leader changed".into());
    while scene.record().phase == Phase::Draining {
        scene.plan();
        scene.answered("web", unclear());
        scene.later(1);
    }
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.answered("web", unclear());
    let deleted = (0..40).map(|_| {
        scene.later(1);
        deletions(&scene.plan())
    });
    assert_eq!(deleted.flatten().next(), Some(("web".into(), Some(1))));
    scene.evicted("web");
    scene.later(10);
    assert_eq!(deletions(&scene.plan()), [], "once it worked");
}

#[test]
fn a_refused_deletion_during_the_flush_is_told_with_its_words() {
    let csi = || pod("csi").daemon().wishing(names::ENABLE_DS_EVICTION, "true");
    let refused = |plan: &Plan, name: &str| {
        let why = WaitReason::Refused("a policy".into());
        plan.waiting == [Waiting { pod: pod(name).name, why }]
    };
    let mut scene = node().by_autoscaler().with(csi());
    scene.plan();
    let plan = scene.plan();
    assert_eq!((deletions(&plan).len(), &plan.waiting[0].why), (1, &WaitReason::Exiting(at(35))));
    scene.answered("csi", Answer::Busy(SignedDuration::from_secs(1), "too many requests".into()));
    assert_eq!(scene.plan().waiting[0].why, WaitReason::Queued, "it has not been asked");
    scene.later(1);
    scene.plan();
    scene.answered("csi", Answer::Unclear("a policy".into()));
    let plan = scene.plan();
    assert!(refused(&plan, "csi"), "{:?}", plan.waiting);
    assert_eq!(reasons(&plan), ["ScaleInBlocked"]);
    scene.later(10);
    scene.plan();
    scene.granted("csi");
    assert!(matches!(scene.plan().waiting[0].why, WaitReason::Exiting(_)));

    // A workload for which there is no time.
    let mut scene = node().by_autoscaler().until(100).with(pod("web").grace(5_000));
    scene.now = at(91);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.plan();
    scene.answered("web", Answer::Unclear("a policy".into()));
    let plan = scene.plan();
    assert!(refused(&plan, "web"), "{:?}", plan.waiting);
    assert_eq!(reasons(&plan), ["ScaleInBlocked"]);
}

fn condition(status: &str, since: i64) -> Value {
    let ready = json!({ "type": "Ready", "status": status, "lastTransitionTime": at(since).to_string() });
    json!({ "status": { "conditions": [ready] } })
}

#[test]
fn a_kubelet_that_is_not_ready_for_a_moment_costs_nobody_the_flush() {
    // Its grace ended long ago, and its kubelet has not said what became of it.
    let overdue = || node().by_autoscaler().with(pod("web").going(-600)).with(pod("logs").daemon());
    for (status, since, is_given_up, is_dead) in [
        ("True", -1_000, false, false),
        ("False", -10, false, false),
        // It lives, and with it whatever is to flush.
        ("False", -300, true, false),
        ("Unknown", -10, true, true),
    ] {
        let mut scene = overdue();
        scene.patch(&condition(status, since));
        let told = format!("{:?}", scene.plan());
        let expected = if is_given_up { Phase::Flushing } else { Phase::Draining };
        assert_eq!(scene.record().phase, expected, "{status} since {since}");
        assert_eq!(told.contains("the node is dead"), is_dead, "{told}");
        scene.plan();
        assert_eq!(
            scene.record().phase == Phase::Releasing,
            is_dead,
            "nobody flushes, {status} since {since}"
        );
    }
}

/// Its clock is ten minutes behind.
#[test]
fn a_kubelet_that_dates_by_a_clock_that_is_off_is_not_taken_for_silent_at_once() {
    let mut scene = node().by_autoscaler().with(pod("web").going(-600)).with(pod("logs").daemon());
    scene.plan();
    scene.later(10);
    scene.patch(&condition("False", -600));
    scene.plan();
    scene.later(299);
    let plan = scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    assert_eq!(plan.wake_at, Some(at(310)), "nothing else need happen");
    scene.later(1);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
}

/// A pod may have come and gone that it has not seen.
#[test]
fn what_a_replica_saw_before_it_led_does_not_shorten_the_flush() {
    for (leads_since, empty_since) in [(-1_000, 0), (40, 40)] {
        let mut scene = node().by_autoscaler().with(pod("logs").daemon());
        scene.memory.note_occupied(Some(false), at(0));
        (scene.now, scene.leads_since) = (at(41), at(leads_since));
        scene.plan();
        let record = scene.record();
        assert_eq!((record.phase, record.empty_since), (Phase::Flushing, Some(at(empty_since))));
    }
}

/// A kubelet that can be heard again may say that pods have exited before it says that it is there.
#[test]
fn a_kubelet_that_is_not_heard_of_for_a_minute_after_the_last_exit_flushes_nothing() {
    for (status, since, released) in [
        ("True", -1_000, 110),
        ("False", -300, 110),
        ("Unknown", -100, 60),
        ("Unknown", 30, 90),
        ("Unknown", 100, 110),
    ] {
        let logs = pod("logs").daemon().wishing(names::FLUSH_SECONDS, "110");
        let mut scene = node().by_autoscaler().with(logs);
        let told = format!("{:?}", scene.plan());
        assert!(told.contains("DaemonSet pods have at least 110 s to finish"), "{told}");
        scene.patch(&condition(status, since));
        let mut woken = scene.plan().wake_at;
        while scene.record().phase == Phase::Flushing {
            scene.later(woken.expect("a moment").duration_since(scene.now).as_secs());
            woken = scene.plan().wake_at;
        }
        assert_eq!(
            (scene.record().phase, scene.now),
            (Phase::Releasing, at(released)),
            "{status} since {since}"
        );
    }
}

#[test]
fn an_empty_node_flushes_too() {
    let mut scene = node().by_autoscaler();
    assert_eq!(reasons(&scene.plan()), ["ScaleInFlushing"]);
    scene.later(4);
    assert!(scene.plan().actions.is_empty());
}

#[test]
fn the_longest_flush_any_daemonset_pod_asks_for_is_given() {
    let mut scene = node().by_autoscaler().with(pod("logs").daemon().wishing(names::FLUSH_SECONDS, "20"));
    scene.plan();
    scene.later(19);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn what_a_daemonset_pod_needs_that_is_asked_to_go_is_kept_of_the_time_before_a_limit() {
    let evict = || pod("csi").daemon().grace(60).wishing(names::DAEMON_SET, "evict");
    let other = PodView { daemon: Some(DaemonOwner::Other), ..evict() };
    // Until when workloads may stay, of 600 s: 5 s are for the release, and 65 s for the pod, or a flush of 5 s. Half at most is kept.
    for (daemon, namespaces, limit, gone_by) in [
        (evict(), &[][..], 600, 530),
        (evict(), &["default"], 600, 530),
        (evict(), &["logging"], 600, 590),
        (other, &[], 600, 590),
        (pod("csi").daemon().grace(60), &[], 600, 590),
        (evict(), &[], 80, 35),
    ] {
        let mut scene = node().by_autoscaler().until(limit).with(daemon).with(pod("web"));
        scene.settings.flush.namespaces = namespaces.iter().map(|&name| name.to_owned()).collect();
        assert_eq!(scene.plan().phase_until, Some(at(gone_by)), "{namespaces:?} {limit}");
    }
}

#[test]
fn a_pod_that_may_hold_no_flush_is_asked_to_go_and_waited_for_no_longer_than_the_flush() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().grace(600).wishing(names::DAEMON_SET, "evict"));
    scene.settings.flush.namespaces = ["logging".to_owned()].into();
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.later(5);
    assert!(touches_aws(&scene.plan()));
}

#[test]
fn daemonset_pods_of_class_evict_get_their_grace_while_the_node_flushes_and_replacements_are_let_be() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().grace(20).wishing(names::DAEMON_SET, "evict"));
    scene.put(pod("web").going(30));
    assert_eq!(deletions(&scene.plan()), [], "not while a workload is there");
    scene.remove("web");
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.later(15);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing, "it has 20 s");
    scene.remove("csi");
    scene.put(PodView {
        created: Some(scene.now),
        ..pod("csi-2").daemon().grace(20).wishing(names::DAEMON_SET, "evict")
    });
    let plan = scene.plan();
    assert_eq!(deletions(&plan), [], "the replacement is let be");
    assert_eq!(scene.record().phase, Phase::Releasing, "and does not hold the node");
}

#[test]
fn a_pod_whose_daemonset_may_have_been_deleted_is_no_daemon_until_the_api_server_has_told() {
    for (failures, flushes) in [(0, false), (4, false), (5, true)] {
        let daemon = Some(DaemonOwner::DaemonSet { uid: "unseen".into(), name: "unseen".into() });
        let mut scene = node().by_autoscaler().with(PodView { daemon, ..pod("agent") });
        let plan = scene.plan();
        assert!(all(&plan).iter().any(|action| matches!(action, Action::LookUpDaemonSet { .. })));
        let task = Task::DaemonSet("unseen".into());
        scene.memory.begin(&task, scene.now);
        for _ in 0..failures {
            scene.memory.failed(&task, scene.now, None);
        }
        scene.plan();
        assert_eq!(scene.record().phase == Phase::Flushing, flushes, "{failures}");
        if !flushes {
            scene.memory.put_off(&task, scene.now, SignedDuration::from_secs(30));
            scene.plan();
            assert_eq!(scene.record().phase, Phase::Flushing, "it is there");
        }
    }
}

#[test]
fn a_shipper_that_was_asked_in_a_flush_before_has_a_successor_that_is_waited_for() {
    let shipper = |name: &str| pod(name).daemon().wishing(names::DAEMON_SET, "evict");
    let mut scene = node().by_autoscaler().with(shipper("old"));
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("old".into(), None)]);
    scene.evicted("old");
    scene.put(pod("late"));
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    scene.remove("old");
    scene.put(shipper("new"));
    scene.plan();
    scene.later(60);
    scene.evicted("late");
    scene.remove("late");
    scene.put(PodView { containers: Containers::Down, created: Some(scene.now), ..shipper("new") });
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(19);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing, "15 s to run again, and the flush");
    scene.later(1);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

/// An earlier run has asked the one before it.
#[test]
fn after_a_restart_the_successor_of_a_shipper_that_was_asked_is_not_waited_for() {
    let mut scene = node().by_autoscaler();
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.memory = crate::scale_in::memory::Memory::default();
    let next = pod("new").daemon().wishing(names::DAEMON_SET, "evict");
    scene.put(PodView { containers: Containers::Down, created: Some(scene.now), ..next });
    scene.later(5);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn daemonset_pods_that_are_waited_for_are_told_with_their_end() {
    let agent = pod("csi").daemon().grace(600).wishing(names::DAEMON_SET, "evict");
    let mut scene = node().by_autoscaler().with(agent);
    scene.attachments = 1;
    scene.plan();
    let waiting = |plan: &Plan| {
        let told = |w: &Waiting| (w.pod.name.clone(), w.why.clone());
        plan.waiting.iter().map(told).collect::<Vec<_>>()
    };
    assert_eq!(waiting(&scene.plan()), [("csi".into(), WaitReason::Volumes)]);
    scene.attachments = 0;
    assert_eq!(deletions(&scene.plan()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.plan();
    scene.later(59);
    assert_eq!(reasons(&scene.plan()), [] as [&str; 0]);
    scene.later(1);
    let plan = scene.plan();
    assert_eq!(waiting(&plan), [("csi".into(), WaitReason::Exiting(at(600)))]);
    assert_eq!(reasons(&plan), ["ScaleInWaiting"]);
}

#[test]
fn a_daemonset_pod_that_is_asked_late_has_its_grace_all_the_same() {
    // Volumes that go late, that never go, and nobody there to ask.
    for (detaches_at, asked_at) in [(Some(40), 40), (None, 60), (Some(0), 300)] {
        let agent = || pod("csi").daemon().grace(10).wishing(names::DAEMON_SET, "evict");
        let mut scene = node().by_autoscaler().with(agent());
        scene.attachments = usize::from(detaches_at != Some(0));
        scene.plan();
        if asked_at < 300 {
            for _ in 0..asked_at {
                assert_eq!(deletions(&scene.plan()), []);
                scene.later(1);
            }
        } else {
            scene.later(asked_at);
        }
        if detaches_at.is_some() {
            scene.attachments = 0;
        }
        assert_eq!(deletions(&scene.plan()), [("csi".into(), None)], "{detaches_at:?}");
        assert_eq!(scene.record().phase, Phase::Flushing, "{detaches_at:?}");
        scene.evicted("csi");
        scene.later(9);
        scene.plan();
        assert_eq!(scene.record().phase, Phase::Flushing, "{detaches_at:?}");
        scene.remove("csi");
        scene.later(60);
        scene.plan();
        assert_eq!(scene.record().phase, Phase::Releasing, "{detaches_at:?}");
    }
}

#[test]
fn a_daemonset_pod_whose_time_is_over_is_waited_for_no_more_though_another_flushes() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().wishing(names::DAEMON_SET, "evict").going(20));
    scene.put(pod("logs").daemon().wishing(names::FLUSH_SECONDS, "60"));
    scene.plan();
    let plan = scene.plan();
    let WaitReason::Exiting(end) = plan.waiting[0].why else { panic!("{:?}", plan.waiting) };
    scene.now = end - SignedDuration::from_secs(1);
    assert_eq!(scene.plan().waiting.len(), 1);
    scene.now = end;
    let plan = scene.plan();
    assert_eq!((plan.waiting.len(), scene.record().phase), (0, Phase::Flushing));
}

#[test]
fn the_grace_of_a_daemonset_pod_counts_from_when_it_can_be_asked() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().grace(10).wishing(names::DAEMON_SET, "evict"));
    scene.plan();
    for _ in 0..3 {
        while deletions(&scene.plan()).is_empty() {
            scene.later(1);
        }
        scene.answered("csi", Answer::Unclear("denied".into()));
    }
    scene.later(2);
    let plan = scene.plan();
    assert_eq!(deletions(&plan), [], "the next try is not due");
    assert_eq!(plan.phase_until, Some(scene.now + SignedDuration::from_secs(15)));
}

#[test]
fn a_daemonset_pod_that_can_never_be_asked_holds_nobody_for_ever() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().grace(10).wishing(names::DAEMON_SET, "evict"));
    scene.plan();
    let mut tried = 0;
    for _ in 0..80 {
        if scene.record().phase == Phase::Flushing && !deletions(&scene.plan()).is_empty() {
            scene.answered("csi", Answer::Unclear("denied".into()));
            tried += 1;
        }
        scene.later(1);
    }
    assert_eq!((scene.record().phase, tried), (Phase::Releasing, 5), "not before it counts as hopeless");
}

#[test]
fn the_release_waits_until_the_successor_of_a_daemonset_pod_has_read_on() {
    let mut scene = node().by_autoscaler().with(pod("web").going(100)).with(pod("logs").daemon());
    scene.plan();
    scene.later(10);
    scene.remove("logs");
    scene.put(pod("logs-2").daemon());
    scene.plan();
    scene.remove("web");
    scene.plan();
    // It starts within 15 s, and flushes for 5.
    for (second, phase) in [(29, Phase::Flushing), (30, Phase::Releasing)] {
        scene.now = at(second);
        scene.plan();
        assert_eq!(scene.record().phase, phase, "{second}");
    }
}

#[test]
fn a_replacement_made_in_the_second_in_which_the_flush_began_is_let_be() {
    let agent = |name| pod(name).daemon().grace(20).wishing(names::DAEMON_SET, "evict");
    let mut scene = node().by_autoscaler().with(agent("csi"));
    // Creation timestamps are of whole seconds.
    let second = scene.now;
    scene.now = second + SignedDuration::from_millis(300);
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.remove("csi");
    scene.now = second + SignedDuration::from_millis(500);
    scene.put(PodView { created: Some(second), ..agent("csi-2") });
    assert_eq!(deletions(&scene.plan()), []);
}

/// A count looks at every attachment of the cluster.
#[test]
fn volumes_are_counted_when_a_release_may_wait_for_them_and_not_before() {
    let mut scene = node().by_autoscaler().with(pod("web").grace(30));
    for _ in 0..10 {
        scene.plan();
        scene.later(1);
    }
    scene.remove("web");
    scene.plan();
    scene.later(4);
    scene.plan();
    assert_eq!((scene.record().phase, scene.attachments_asked.get()), (Phase::Flushing, 0));
    scene.later(1);
    scene.plan();
    assert_eq!((scene.record().phase, scene.attachments_asked.get()), (Phase::Releasing, 2));
}

#[test]
fn attached_volumes_hold_the_release_but_not_for_ever() {
    let mut scene = node().by_autoscaler();
    scene.attachments = 1;
    scene.plan();
    scene.later(30);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.attachments = 0;
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
    let mut scene = node().by_autoscaler();
    scene.attachments = 1;
    scene.plan();
    scene.later(66);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn a_workload_that_comes_while_the_node_flushes_leaves_first() {
    let mut scene = node().by_autoscaler();
    scene.plan();
    scene.put(pod("late"));
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Draining);
    assert_eq!(evictions(&scene.plan()).len(), 1);
}

#[test]
fn what_was_empty_while_it_was_open_is_not_empty_for_long() {
    let mut scene = node().tainted(names::DELETION_CANDIDATE);
    scene.plan();
    scene.later(600);
    scene.patch(&serde_json::json!({ "metadata": { "annotations": { names::RECORD: "now" } } }));
    scene.plan();
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    assert!(!touches_aws(&scene.plan()), "what was decided before the cordon may be bound after it");
    scene.later(5);
    assert!(touches_aws(&scene.plan()));
}

#[test]
fn a_daemonset_pod_that_is_asked_has_what_a_hard_deadline_leaves_and_not_more() {
    // Released by 100, 5 s of that being kept back for the release.
    let evict = |grace| pod("csi").daemon().grace(grace).wishing(names::DAEMON_SET, "evict");
    let mut scene = node().by_autoscaler().until(100).with(evict(600));
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("csi".into(), Some(94))]);
    scene.granted("csi");
    assert_eq!(deletions(&scene.plan()), [], "once");
    scene.later(94);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    assert!(touches_aws(&scene.plan()));
    // Without one, half an hour is the most.
    let mut scene = node().by_autoscaler().with(evict(9_000));
    scene.plan();
    assert_eq!(deletions(&scene.plan()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.later(1_799);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    assert!(touches_aws(&scene.plan()));
}

#[test]
fn a_daemonset_pod_that_may_be_the_driver_of_volumes_is_asked_when_they_are_gone_or_after_a_minute() {
    for detached in [true, false] {
        let mut scene = node().by_autoscaler().with(pod("csi").daemon().wishing(names::DAEMON_SET, "evict"));
        scene.attachments = 1;
        scene.plan();
        assert_eq!(deletions(&scene.plan()), []);
        if detached {
            scene.attachments = 0;
        } else {
            scene.later(59);
            assert_eq!(deletions(&scene.plan()), []);
            scene.later(1);
        }
        assert_eq!(deletions(&scene.plan()), [("csi".into(), None)], "detached: {detached}");
    }
}

/// The instance is a target, by a look of this second, of a target group with this delay.
fn reached(seen: i64, delay: u64) -> Targets {
    let group = Reached { name: "k8s-web".into(), delay: std::time::Duration::from_secs(delay) };
    Targets::In { seen: at(seen), groups: vec![group] }
}

/// When the node is released, of which AWS tells this all the time; its flush is over after 5 s.
fn released_with(targets: &Targets, mut scene: Scene) -> i64 {
    scene.targets = targets.clone();
    for second in 0..4_000 {
        let held = scene.plan().held_by_load_balancers.is_some();
        if scene.record().phase == Phase::Releasing {
            return second;
        }
        assert_eq!(held, second >= 5, "{second}: {targets:?}");
        scene.later(1);
    }
    panic!("it never is: {targets:?}");
}

#[test]
fn load_balancers_hold_a_release_for_as_long_as_connections_live_and_not_beyond_a_limit() {
    let table = [
        (Targets::NotAsked, None, 5),
        (Targets::In { seen: at(0), groups: Vec::new() }, None, 5),
        (reached(0, 0), None, 30),
        (reached(0, 60), None, 90),
        (reached(0, 3_600), None, 3_630),
        (reached(0, 3_600), Some(200), 195),
        // What is known no longer, or not yet, is taken for AWS's default.
        (reached(-1, 60), None, 330),
        (Targets::In { seen: at(-1), groups: Vec::new() }, None, 330),
        (Targets::Unknown, None, 330),
        (Targets::Unknown, Some(200), 195),
    ];
    for (targets, limit, expected) in table {
        let scene = node().by_autoscaler();
        let scene = if let Some(limit) = limit { scene.until(limit) } else { scene };
        assert_eq!(released_with(&targets, scene), expected, "{targets:?} {limit:?}");
    }
}

#[test]
fn load_balancers_that_let_go_end_the_wait_and_a_dead_node_waits_for_none() {
    let mut scene = node().by_autoscaler();
    scene.targets = reached(0, 300);
    scene.plan();
    scene.later(20);
    let waits = scene.plan();
    assert_eq!(reasons(&waits), ["ScaleInWaiting"]);
    assert!(waits.wake_at.is_some_and(|wake| wake <= at(330)), "{:?}", waits.wake_at);
    scene.targets = Targets::In { seen: at(20), groups: Vec::new() };
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);

    let mut dead = node().by_autoscaler().in_phase(Phase::Flushing);
    dead.targets = reached(0, 300);
    dead.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": "Unknown" }] } }));
    dead.plan();
    assert_eq!(dead.record().phase, Phase::Flushing, "it may be heard of yet");
    dead.later(60);
    dead.plan();
    assert_eq!(dead.record().phase, Phase::Releasing);
}

#[test]
fn a_daemonset_pod_that_is_asked_is_waited_for_as_long_as_its_grace_and_the_kubelet_take() {
    let csi = || pod("csi").daemon().wishing(names::ENABLE_DS_EVICTION, "true");
    let mut scene = node().by_autoscaler().with(csi());
    scene.plan();
    assert_eq!(scene.plan().phase_until, Some(at(35)));
    // It may be what unmounts the volumes: it keeps its grace before the deadline, less 5 s of margin.
    let mut scene = node().by_autoscaler().until(60).with(csi());
    scene.attachments = 1;
    scene.plan();
    scene.now = at(24);
    assert_eq!(deletions(&scene.plan()), []);
    scene.now = at(25);
    assert_eq!(deletions(&scene.plan()).len(), 1);
}

#[test]
fn nothing_is_released_before_its_pods_are_listed_but_at_the_deadline() {
    let lists = |plan: &Plan| plan.actions.iter().any(|action| matches!(action, Action::ListPods { .. }));
    let mut scene = node().by_autoscaler().until(60).in_phase(Phase::Flushing);
    scene.is_silent = true;
    scene.now = at(3);
    let plan = scene.plan();
    assert!(!lists(&plan), "while it flushes");
    assert_eq!(plan.wake_at, Some(at(4)));
    scene.now = at(4);
    let plan = scene.plan();
    assert!(lists(&plan), "so early that the answer is there when the flush ends");
    assert_eq!(
        plan.wake_at,
        Some(at(55)),
        "nothing but the answer changes the plan, and who does not lead gets none"
    );
    for second in [5, 20, 54] {
        scene.now = at(second);
        scene.plan();
        assert_eq!(scene.record().phase, Phase::Flushing, "{second}");
    }
    scene.now = at(55);
    scene.plan();
    assert_eq!(scene.record().phase, Phase::Releasing);

    // A termination that is tried again, and a hook that is to be completed.
    for instance in [in_group(Lifecycle::InService), in_group(Lifecycle::TerminatingWait)] {
        let mut scene = node().by_autoscaler().hooked(60).until(60).in_phase(Phase::Releasing);
        (scene.instance, scene.is_silent) = (instance, true);
        let plan = scene.plan();
        assert!(lists(&plan) && !touches_aws(&plan), "{plan:?}");
        assert_eq!(plan.wake_at, Some(at(55)), "however long the list takes");
        scene.is_silent = false;
        scene.memory.worked(&Task::ListPods, scene.now);
        assert!(touches_aws(&scene.plan()));
    }
}
