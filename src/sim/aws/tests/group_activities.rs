//! What groups do on their own: failed launches, rebalancing, refresh, health checks, late launches.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_failed_launch_is_an_activity_and_is_tried_again() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 0));
    bench.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, 2);
    let set = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(1);
    set.send().await.expect("in range");
    let failed = |aws: &Aws| aws.journal().iter().any(|e| matches!(e.what, Event::LaunchFailed { .. }));
    bench.until("a launch fails", failed).await;
    let group = bench.aws.group("web").expect("the group");
    assert_eq!((group.desired, group.launches, group.instances.len()), (1, 1, 0));
    let answer = bench.asg.describe_scaling_activities().max_records(1).send().await.expect("activities");
    let [activity] = answer.activities() else { panic!("one activity") };
    assert_eq!(activity.status_code().map(|s| s.as_str()), Some("Failed"));
    assert_eq!(activity.progress(), Some(100));
    let message = activity.status_message().expect("a message");
    assert!(message.starts_with("We currently do not have sufficient m5.large capacity"), "{message}");
    assert!(message.ends_with("Launching EC2 instance failed."), "{message}");
    let text = format!("Launching a new EC2 instance.  Status Reason: {message}");
    assert_eq!(activity.description(), Some(text.as_str()));
    let cause = activity.cause().expect("a cause");
    assert!(cause.ends_with("increasing the capacity from 0 to 1."), "{cause}");

    bench.settled("web", 1).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::LaunchFailed { .. })), 2);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_fails_is_one_activity_for_all_that_were_missing_or_one_each() {
    for (fails_at_once, failed) in [(true, 1), (false, 3)] {
        let bench = bench();
        bench.aws.behave(Behaviour { fails_at_once, ..Behaviour::PLAIN });
        bench.aws.add_group(web().size(0, 10, 0));
        bench.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, 3);
        let set = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(3);
        set.send().await.expect("in range");
        bench.settled("web", 3).await;
        let answer = bench.asg.describe_scaling_activities().send().await.expect("activities");
        let (in_vain, others): (Vec<_>, Vec<_>) = answer
            .activities()
            .iter()
            .partition(|activity| activity.status_code().is_some_and(|status| status.as_str() == "Failed"));
        assert_eq!((in_vain.len(), others.len()), (failed, 3), "what comes has one each");
        for activity in answer.activities() {
            let cause = activity.cause().expect("a cause");
            assert!(cause.ends_with("increasing the capacity from 0 to 3."), "{cause}");
        }
        assert_eq!(bench.happened(|e| matches!(e, Event::LaunchFailed { .. })), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn lowering_desired_capacity_gives_up_what_was_not_launched_first() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.fail_launches("web", LaunchFailure::VcpuLimit, u32::MAX);
    let set = |n| bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(n).send();
    set(5).await.expect("in range");
    bench.pass(100).await;
    set(2).await.expect("in range");
    bench.settled("web", 2).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::TerminationStarted { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn a_late_launch_between_describe_and_set_costs_an_instance() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    let set = |n| bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(n).send();
    set(3).await.expect("in range");
    bench.aws.before_next(Operation::SetDesiredCapacity, |state, now| {
        state.launch_now("web", now);
    });
    bench.pass(60).await;
    set(2).await.expect("in range");
    bench.pass(19).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::TerminationStarted { .. })), 0, "it looks later");
    bench.pass(1).await;
    assert_eq!(bench.in_service("web").len(), 2);
    assert_eq!(bench.happened(|e| matches!(e, Event::TerminationStarted { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn an_effect_after_a_call_is_seen_by_the_next() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.after_next(Operation::DescribeAutoScalingGroups, |state, now| {
        state.launch_now("web", now);
    });
    let ask = || bench.asg.describe_auto_scaling_groups().send();
    assert_eq!(ask().await.expect("groups").auto_scaling_groups()[0].instances().len(), 2);
    assert_eq!(ask().await.expect("groups").auto_scaling_groups()[0].instances().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_rebalance_launches_before_it_terminates_even_at_max() {
    let bench = bench();
    bench.aws.add_group(
        web().size(2, 2, 2).zones(["us-east-1a", "us-east-1b"]).hook(HookSpec::terminating("ebbtide")),
    );
    let old = bench.aws.rebalance_group("web").expect("somebody");
    assert_eq!(bench.aws.group("web").expect("the group").launches, 1);
    assert_eq!(bench.state(&old), LifecycleState::InService);
    bench.until_state(&old, LifecycleState::TerminatingWait).await;
    assert_eq!(bench.in_service("web").len(), 2);
    assert_eq!(bench.desired("web"), 2);
    let causes =
        |e: &Event| matches!(e, Event::TerminationStarted { cause: TerminationCause::Rebalance, .. });
    assert_eq!(bench.happened(causes), 1);
    let order: Vec<_> = bench.aws.journal().into_iter().map(|e| e.what).collect();
    let service = order.iter().rposition(|e| matches!(e, Event::InService { .. }));
    assert!(service < order.iter().position(causes));
}

#[tokio::test(start_paused = true)]
async fn a_rebalance_goes_no_further_above_max_than_the_margin() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 20, 20));
    let ids = bench.in_service("web");
    assert!(ids[..5].iter().all(|id| bench.aws.rebalance(id)));
    assert!(!bench.aws.rebalance(&ids[0]), "once is enough");
    assert_eq!(bench.aws.group("web").expect("the group").launches, 2);
    bench.settled("web", 20).await;
    let left = bench.in_service("web");
    assert!(ids[..5].iter().all(|id| !left.contains(id)));
    assert!(ids[5..].iter().all(|id| left.contains(id)));
}

#[tokio::test(start_paused = true)]
async fn a_refresh_replaces_one_instance_at_a_time() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 3));
    let before = bench.in_service("web");
    let mut entries = bench.aws.subscribe();
    bench.aws.refresh("web");
    let renewed = |aws: &Aws| {
        aws.group("web").is_some_and(|g| {
            g.in_state(LifecycleState::InService).len() == 3
                && g.instances.iter().all(|i| !before.contains(&i.id))
        })
    };
    bench.aws.until(renewed).await;
    let (mut on_their_way, mut most) = (0, 0);
    while let Ok(entry) = entries.try_recv() {
        match entry.what {
            Event::TerminationStarted { cause, .. } => {
                assert_eq!(cause, TerminationCause::Refresh);
                on_their_way += 1;
            }
            Event::Terminated { .. } => on_their_way -= 1,
            _ => {}
        }
        most = most.max(on_their_way);
    }
    assert_eq!(most, 1);
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_instance_is_replaced() {
    let bench = bench();
    bench.aws.add_group(web().suspended("ReplaceUnhealthy"));
    let sick = bench.in_service("web").remove(0);
    bench.aws.fail_health_check(&sick);
    assert_eq!(bench.state(&sick), LifecycleState::InService);
    let shown = bench.asg.describe_auto_scaling_instances().instance_ids(&sick).send().await.expect("it");
    assert_eq!(shown.auto_scaling_instances()[0].health_status(), Some("UNHEALTHY"));
    bench.asg.resume_processes().auto_scaling_group_name("web").send().await.expect("resumed");
    assert_eq!(bench.state(&sick), LifecycleState::Terminating);
    bench.settled("web", 2).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_late_is_done_at_its_own_moment() {
    // Without `run`: only reads move this world on.
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let aws = Aws::new(clock, 1);
    aws.add_group(GroupSpec::named("web").size(0, 1, 1));
    tokio::time::sleep(Duration::from_hours(1)).await;
    let seconds: Vec<_> = aws.journal().iter().map(|entry| entry.at.as_second()).collect();
    assert_eq!(seconds, [2, 22, 22], "launched, switched on, in service");
}

#[tokio::test(start_paused = true)]
async fn the_address_of_an_instance_that_has_gone_is_given_again() {
    let bench = bench();
    bench.aws.add_group(web());
    let id = bench.in_service("web").remove(0);
    bench.aws.terminate(&id, TerminationCause::Request);
    bench.until_state(&id, LifecycleState::Terminated).await;
    let (address, before) = (bench.aws.instance(&id).expect("known").address, bench.aws.group("web"));
    bench.aws.reuse_address(&id);
    bench.aws.set_desired("web", before.expect("the group").desired + 1);
    let has_it = |aws: &Aws| {
        aws.group("web")
            .is_some_and(|group| group.instances.iter().any(|i| i.id != id && i.address == address))
    };
    bench.until("the next one has it", has_it).await;
}
