//! Which groups are short, and what explains it.

use std::sync::Arc;

use super::super::Group;
use super::*;
use crate::aws::{Instance, Lifecycle, Weights};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

fn activity(second: i64, status: &str, description: &str, message: &str) -> Activity {
    Activity {
        id: format!("launch at {second}"),
        started: at(second),
        status: status.into(),
        description: description.into(),
        cause: String::new(),
        message: message.into(),
    }
}

fn failed(second: i64) -> Activity {
    activity(second, "Failed", "Launching a new EC2 instance.  Status Reason: x", "VcpuLimitExceeded - x")
}

fn snapshot(second: i64, desired: i32, live: usize) -> Snapshot {
    let instances = (0..live).map(|n| Instance {
        id: format!("i-{n}").into(),
        lifecycle: Lifecycle::InService,
        ..Instance::default()
    });
    let group = Group {
        asg: Arc::new(AutoScalingGroup {
            name: "g".into(),
            desired,
            instances: instances.collect(),
            ..AutoScalingGroup::default()
        }),
        ..Group::default()
    };
    Snapshot::new(at(second), [Arc::new(group)])
}

/// A group that has `i-0` to `i-1`, and misses as many more.
fn short_of(missing: i32) -> AutoScalingGroup {
    AutoScalingGroup::clone(&snapshot(0, 2 + missing, 2).groups["g"].asg)
}

fn launch(second: i64, status: &str, instance: &str) -> Activity {
    activity(second, status, &format!("Launching a new EC2 instance: {instance}"), "")
}

fn explain(group: &AutoScalingGroup, activities: &[Activity], since: Timestamp) -> Option<LaunchFailure> {
    let mut shortage = Shortage {
        seen_at: since,
        desired: group.desired,
        live: live(group),
        failed: Vec::new(),
        spent: BTreeMap::new(),
        since,
        asked_at: None,
        failure: None,
    };
    shortage.learn(group, activities);
    shortage.failure
}

/// Of a try that was to take the group from one size to another.
fn of_try(from: i32, to: i32, launch: Activity) -> Activity {
    let began = launch.started;
    let cause = format!("At {began} an instance was started, increasing the capacity from {from} to {to}.");
    Activity { cause, ..launch }
}

/// With an id of its own, as several may begin in one second.
fn nth(n: usize, launch: Activity) -> Activity {
    Activity { id: format!("{} {n}", launch.id), ..launch }
}

#[test]
fn only_a_failed_launch_since_the_request_explains_a_shortage() {
    let fine = launch(30, "Successful", "i-1");
    let terminated = activity(29, "Failed", "Terminating EC2 instance: i-2", "X - y");
    assert_eq!(explain(&short_of(1), &[fine.clone(), terminated.clone()], at(0)), None);
    let found = explain(&short_of(1), &[fine, terminated, failed(20)], at(10)).expect("explained");
    assert_eq!((found.code.as_str(), found.launches), ("VcpuLimitExceeded", 1));
    assert_eq!(explain(&short_of(1), &[failed(20)], at(21)), None);
}

#[test]
fn what_failed_before_a_launch_that_is_under_way_explains_nothing() {
    let activities = [launch(60, "InProgress", "i-9"), failed(20), failed(19)];
    assert_eq!(explain(&short_of(2), &activities, at(0)), None);
    // Of one try, some fail and some do not.
    let activities = [failed(61), launch(60, "InProgress", "i-9"), failed(59), failed(20)];
    assert_eq!(explain(&short_of(3), &activities, at(0)).map(|f| f.launches), Some(2));
    // What has an instance is not missing any more.
    let activities = [failed(60), launch(60, "PreInService", "i-1")];
    assert_eq!(explain(&short_of(1), &activities, at(0)).map(|f| f.launches), Some(1));
}

#[test]
fn a_launch_into_the_warm_pool_is_no_launch_of_the_group_and_one_from_it_is() {
    let of_pool = |second, status, way: &str| {
        activity(second, status, &format!("Launching a new EC2 instance {way} warm pool: i-9"), "")
    };
    let explained = |activities: &[Activity]| explain(&short_of(1), activities, at(0)).map(|f| f.launches);
    // The next try may be on its way, and the one that is missing may come.
    assert_eq!(explained(&[of_pool(60, "InProgress", "into"), failed(20)]), Some(1));
    assert_eq!(explained(&[of_pool(60, "InProgress", "from"), failed(20)]), None);
    assert_eq!(explained(&[of_pool(21, "InProgress", "into"), failed(20)]), Some(1));
    assert_eq!(explained(&[of_pool(21, "InProgress", "from"), failed(20)]), None);
    let in_vain = "Launching a new EC2 instance into warm pool.  Status Reason: x";
    assert_eq!(explained(&[activity(20, "Failed", in_vain, "VcpuLimitExceeded - x")]), None);
}

#[test]
fn no_more_is_explained_than_has_failed_or_is_missing() {
    let launches = |missing, failures: usize| {
        let activities: Vec<_> = (0..failures).map(|n| nth(n, failed(20))).collect();
        explain(&short_of(missing), &activities, at(0)).map_or(0, |failure| failure.launches)
    };
    assert_eq!([launches(3, 1), launches(3, 3), launches(1, 3), launches(0, 2)], [1, 3, 1, 0]);
    let activities = [failed(20), failed(20), launch(20, "InProgress", "i-9")];
    assert_eq!(explain(&short_of(2), &activities, at(0)).map(|f| f.launches), Some(1));
}

#[test]
fn a_try_that_fails_explains_all_that_it_was_for_in_one_activity_or_in_one_each() {
    let explained = |missing, activities: &[Activity]| {
        explain(&short_of(missing), activities, at(0)).map_or(0, |failure| failure.launches)
    };
    let of_ten = |launch| of_try(2, 12, launch);
    assert_eq!(explained(10, &[of_ten(failed(20))]), 10);
    assert_eq!(explained(4, &[of_ten(failed(20))]), 4, "no more than are missing");
    let each: Vec<_> = (0..10).map(|n| nth(n, of_ten(failed(20)))).collect();
    assert_eq!(explained(10, &each), 10);
    assert_eq!(explained(10, &each[..1]), 10, "nothing tells that the others are still to be tried");
    // Those that have not failed have activities of their own: they are under way, or not shown in the group yet.
    for status in ["InProgress", "Successful"] {
        let others = (1..10).map(|n| nth(n, of_ten(launch(20, status, "i-9"))));
        let one: Vec<_> = others.chain([each[0].clone()]).collect();
        assert_eq!(explained(10, &one), 1, "{status}");
        let others = (1..8).map(|n| nth(n, of_ten(launch(20, status, "i-9"))));
        let three: Vec<_> = others.chain([each[0].clone()]).collect();
        assert_eq!(explained(10, &three), 3, "{status}: of one zone, where one activity tells of all");
    }
    // Two tries, and two zones of one try.
    assert_eq!(explained(10, &[of_try(2, 12, failed(80)), of_ten(failed(20))]), 10);
    assert_eq!(explained(10, &each[..2]), 10);
}

#[test]
fn units_that_were_tried_in_vain_are_no_instances() {
    let mut group = short_of(10);
    group.weights = Some(Weights::default());
    let found = explain(&group, &[of_try(2, 12, failed(20))], at(0));
    assert_eq!(found.map(|failure| failure.launches), Some(1));
}

#[test]
fn a_group_is_asked_about_only_while_it_is_short() {
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot(0, 2, 2));
    assert_eq!(shortages.due(at(0)), []);
    shortages.observe(&snapshot(60, 3, 2));
    assert_eq!(shortages.due(at(60)), [], "a launch takes a moment");
    shortages.observe(&snapshot(70, 3, 2));
    let since = at(0) - SKEW;
    assert_eq!(shortages.due(at(70)), [("g".into(), since)]);
    shortages.learn(&snapshot(70, 3, 2).groups["g"].asg, at(70), &[failed(61)]);
    assert!(shortages.failure("g").is_some_and(|failure| failure.out_of_resources));
    assert_eq!(shortages.due(at(80)), [], "what is known stands for a while");
    assert_eq!(shortages.due(at(130)).len(), 1);
    shortages.observe(&snapshot(140, 3, 3));
    assert_eq!(shortages.failure("g"), None);
    assert_eq!(shortages.due(at(300)), []);
}

#[test]
fn an_old_failure_does_not_explain_a_larger_request() {
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot(0, 3, 2));
    shortages.learn(&snapshot(0, 3, 2).groups["g"].asg, at(10), &[failed(1)]);
    assert!(shortages.failure("g").is_some());
    shortages.observe(&snapshot(60, 5, 2));
    assert_eq!(shortages.failure("g"), None);
    assert_eq!(shortages.due(at(70)), [("g".into(), at(0) - SKEW)]);
    // A smaller one is still the old request.
    shortages.learn(&snapshot(60, 5, 2).groups["g"].asg, at(70), &[failed(66), failed(65)]);
    shortages.observe(&snapshot(120, 4, 2));
    assert!(shortages.failure("g").is_some());
}

#[test]
fn what_was_given_up_for_a_failed_launch_is_not_given_up_for_it_again() {
    let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
    let short = |second, desired, live| snapshot(second, desired, live).groups["g"].clone();
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot(0, 6, 2));
    let three = [failed(3), failed(2), failed(1)];
    shortages.learn(&short(0, 6, 2).asg, at(10), &three);
    assert_eq!(explained(&shortages), 3);
    // A node that is scaled in takes its part along, and a launch that works is no failure's.
    shortages.observe(&snapshot(20, 5, 1));
    shortages.observe(&snapshot(21, 5, 2));
    assert_eq!(explained(&shortages), 3);
    shortages.observe(&snapshot(30, 3, 1));
    assert_eq!(explained(&shortages), 2, "of two one was scaled in");
    shortages.learn(&short(30, 4, 1).asg, at(90), &three);
    assert_eq!(explained(&shortages), 2);
    shortages.observe(&snapshot(100, 2, 1));
    shortages.learn(&short(100, 4, 1).asg, at(110), &three);
    assert_eq!(explained(&shortages), 1);
    // The next try is a failure of its own.
    let four = [&[failed(120)][..], &three].concat();
    shortages.learn(&short(110, 4, 1).asg, at(130), &four);
    assert_eq!(explained(&shortages), 2);
}

#[test]
fn of_a_failure_for_several_those_that_have_been_given_up_are_not_explained_again() {
    let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
    let short = |desired| snapshot(0, desired, 2).groups["g"].clone();
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot(0, 12, 2));
    let first = of_try(2, 12, failed(3));
    shortages.learn(&short(12).asg, at(10), std::slice::from_ref(&first));
    assert_eq!(explained(&shortages), 10);
    // Some are given up, and then some more: what is left is left however often the activities are read.
    for (second, desired) in [(20, 9), (30, 8)] {
        shortages.observe(&snapshot(second, desired, 2));
        for _ in 0..2 {
            assert_eq!(explained(&shortages), desired as usize - 2);
            shortages.learn(&short(desired).asg, at(second + 5), std::slice::from_ref(&first));
        }
    }
    // One of them comes after all.
    shortages.learn(&snapshot(0, 8, 3).groups["g"].asg, at(40), std::slice::from_ref(&first));
    assert_eq!(explained(&shortages), 5);
    // The next try is for those that are left, and is a failure of its own: the newest explains what is left.
    let second = of_try(2, 8, failed(60));
    shortages.learn(&short(8).asg, at(65), &[second.clone(), first.clone()]);
    assert_eq!(explained(&shortages), 6);
    shortages.observe(&snapshot(70, 6, 2));
    shortages.learn(&short(6).asg, at(75), &[second.clone(), first.clone()]);
    assert_eq!(explained(&shortages), 4);
    // It is all given up but what the minimum keeps, for which only another try counts.
    shortages.observe(&snapshot(80, 4, 2));
    shortages.observe(&snapshot(85, 3, 2));
    shortages.learn(&short(3).asg, at(90), &[second.clone(), first.clone()]);
    assert_eq!(explained(&shortages), 1);
    shortages.observe(&snapshot(95, 2, 2));
    shortages.observe(&snapshot(97, 5, 2));
    shortages.learn(&short(5).asg, at(99), &[second.clone(), first.clone()]);
    assert_eq!(explained(&shortages), 0, "what is asked for anew has not been tried");
    shortages.learn(&short(5).asg, at(125), &[of_try(2, 5, failed(120)), second, first]);
    assert_eq!(explained(&shortages), 3);
}

#[test]
fn a_failure_of_which_all_have_been_given_up_explains_none_that_stays_missing() {
    let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
    let short = |desired| snapshot(0, desired, 2).groups["g"].clone();
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot(0, 7, 2));
    let activities = [
        nth(1, of_try(2, 7, launch(3, "InProgress", "i-8"))),
        nth(2, of_try(2, 7, launch(3, "InProgress", "i-9"))),
        of_try(2, 7, failed(3)),
    ];
    shortages.learn(&short(7).asg, at(10), &activities);
    assert_eq!(explained(&shortages), 3);
    shortages.observe(&snapshot(20, 4, 2));
    shortages.learn(&short(4).asg, at(25), &activities);
    assert_eq!(explained(&shortages), 0, "two are on their way");
    // One of the two fails as well.
    let [one, _, all] = activities.clone();
    let late = nth(2, of_try(2, 7, failed(3)));
    for (live, why) in [(2, "the other one is on its way"), (1, "what was lost since has not been tried")] {
        let group = snapshot(0, 4, live).groups["g"].clone();
        shortages.learn(&group.asg, at(35), &[one.clone(), late.clone(), all.clone()]);
        assert_eq!(explained(&shortages), 1, "{why}");
    }
}

#[test]
fn a_launch_that_fails_after_another_was_given_up_is_explained_though_it_began_before() {
    let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
    let short = |second, desired| snapshot(second, desired, 2).groups["g"].clone();
    let under_way = |second| launch(second, "InProgress", "i-9");
    // The others fail after the size was lowered, or between the last read of activities and that.
    for learned_between in [true, false] {
        let mut shortages = Shortages::default();
        shortages.observe(&snapshot(0, 5, 2));
        shortages.learn(&short(0, 5).asg, at(10), &[under_way(3), under_way(2), failed(1)]);
        assert_eq!(explained(&shortages), 1);
        shortages.observe(&snapshot(16, 4, 2));
        assert_eq!(explained(&shortages), 0);
        if learned_between {
            shortages.learn(&short(16, 4).asg, at(20), &[under_way(3), under_way(2), failed(1)]);
            assert_eq!(explained(&shortages), 0);
        }
        shortages.learn(&short(16, 4).asg, at(40), &[failed(3), failed(2), failed(1)]);
        assert_eq!(explained(&shortages), 2);
    }
}

#[test]
fn of_many_groups_that_are_short_a_few_are_due_at_once_and_those_asked_for_longest_ago_first() {
    let groups = (0..15).map(|n| {
        let asg =
            AutoScalingGroup { name: format!("g{n:02}").into(), desired: 1, ..AutoScalingGroup::default() };
        Arc::new(Group { asg: Arc::new(asg), ..Group::default() })
    });
    let snapshot = Snapshot::new(at(0), groups);
    let mut shortages = Shortages::default();
    shortages.observe(&snapshot);
    let due = |shortages: &Shortages, second| -> Vec<GroupName> {
        shortages.due(at(second)).into_iter().map(|(name, _)| name).collect()
    };
    let first = due(&shortages, 10);
    assert_eq!(first.len(), A_LOOK);
    for (n, name) in (0..).zip(&first) {
        shortages.learn(&snapshot.groups[name].asg, at(20 - n), &[]);
    }
    let then = due(&shortages, 60);
    assert_eq!(then.len(), A_LOOK);
    assert!(then[..5].iter().all(|name| !first.contains(name)), "{then:?}");
    let longest_ago: Vec<_> = first.iter().rev().take(5).cloned().collect();
    assert_eq!(then[5..], longest_ago);
}

#[test]
fn a_group_that_may_not_launch_is_not_short() {
    let mut group = AutoScalingGroup { desired: 1, ..AutoScalingGroup::default() };
    assert!(is_short(&group));
    group.suspended.insert("Launch".into());
    assert!(!is_short(&group));
}
