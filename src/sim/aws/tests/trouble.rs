//! Harsh behaviour: varying times, launches that cannot be recalled, machines that die.

use super::*;

async fn set(bench: &Bench, desired: i32) {
    let call = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(desired);
    call.send().await.expect("in range");
}

fn when(bench: &Bench, mut accept: impl FnMut(&Event) -> bool) -> Timestamp {
    let journal = bench.aws.journal();
    journal.iter().find(|entry| accept(&entry.what)).expect("it happened").at
}

#[tokio::test(start_paused = true)]
async fn a_group_looks_for_a_victim_between_15_and_91_seconds_after_its_size_went_down() {
    let mut seconds = Vec::new();
    for seed in 0..40 {
        let bench = seeded(seed);
        bench.aws.behave(Behaviour::HARSH);
        bench.aws.add_group(web());
        let start = bench.clock.now();
        set(&bench, 1).await;
        bench.settled("web", 1).await;
        let began = when(&bench, |e| matches!(e, Event::TerminationStarted { .. }));
        seconds.push(began.duration_since(start).as_secs());
    }
    assert!(seconds.iter().all(|s| (15..=91).contains(s)), "{seconds:?}");
    assert!(seconds.iter().any(|s| *s < 30) && seconds.iter().any(|s| *s > 75), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn a_launch_under_way_comes_whatever_the_group_wants_meanwhile() {
    for (behaviour, launched) in [(Behaviour::PLAIN, 2), (Behaviour::HARSH, 3)] {
        let bench = bench();
        bench.aws.behave(behaviour);
        bench.aws.add_group(web());
        set(&bench, 3).await;
        set(&bench, 2).await;
        bench.pass(3600).await;
        bench.settled("web", 2).await;
        assert_eq!(bench.happened(|e| matches!(e, Event::InstanceLaunched { .. })), launched);
        let ended = bench.happened(|e| matches!(e, Event::TerminationStarted { .. }));
        assert_eq!(ended, launched - 2, "somebody else goes for the one that came");
    }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_failed_is_not_tried_again_once_it_is_not_wanted() {
    let bench = bench();
    bench.aws.behave(Behaviour::HARSH);
    bench.aws.add_group(web());
    bench.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, 1);
    set(&bench, 3).await;
    bench.aws.until(|aws| aws.journal().iter().any(|e| matches!(e.what, Event::LaunchFailed { .. }))).await;
    set(&bench, 2).await;
    bench.pass(3600).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::InstanceLaunched { .. })), 2);
}

#[tokio::test(start_paused = true)]
async fn another_zone_is_tried_when_one_has_no_capacity() {
    let bench = bench();
    bench.aws.add_group(GroupSpec::named("web").zones(["us-east-1a", "us-east-1b"]).size(0, 3, 1));
    bench.aws.fail_launches_in("web", "us-east-1a", LaunchFailure::InsufficientCapacity, u32::MAX);
    bench.settled("web", 1).await;
    let id = bench.in_service("web").remove(0);
    assert_eq!(bench.aws.instance(&id).expect("it").zone, "us-east-1b");
    assert_eq!(bench.happened(|e| matches!(e, Event::LaunchFailed { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn a_launch_can_fail_after_pending_and_is_told_as_cancelled() {
    let bench = bench();
    bench.aws.fail_boots("web", 1);
    bench.aws.add_group(GroupSpec::named("web").size(0, 3, 1));
    bench.aws.fail_boots("web", 1);
    bench.settled("web", 1).await;
    let shown = bench.asg.describe_scaling_activities().send().await.expect("activities");
    let failed = shown.activities().iter().find(|a| a.status_message().is_some()).expect("a message");
    assert_eq!(failed.status_code().map(|code| code.as_str()), Some("Cancelled"));
    let message = failed.status_message().unwrap_or_default();
    assert!(message.starts_with("Instance became unhealthy while waiting for instance to be in InService"));
    assert!(failed.description().unwrap_or_default().contains("Status Reason: Instance became unhealthy"));
}

#[tokio::test(start_paused = true)]
async fn a_machine_is_off_as_soon_as_its_instance_is_let_go_and_gone_up_to_ten_minutes_later() {
    let mut seconds = Vec::new();
    for seed in 0..20 {
        let bench = seeded(seed);
        bench.aws.behave(Behaviour::HARSH);
        bench.aws.add_group(web());
        let id = bench.in_service("web").remove(0);
        bench.aws.terminate(&id, TerminationCause::Request);
        bench.until_state(&id, LifecycleState::Terminated).await;
        let off = when(&bench, |e| matches!(e, Event::Powered { power: Power::ShuttingDown, .. }));
        let gone = when(&bench, |e| matches!(e, Event::Terminated { .. }));
        seconds.push(gone.duration_since(off).as_secs());
    }
    assert!(seconds.iter().all(|s| (30..=600).contains(s)), "{seconds:?}");
    assert!(seconds.iter().any(|s| *s > 300), "{seconds:?}");
}

#[tokio::test(start_paused = true)]
async fn load_balancers_come_first_and_only_then_hooks_hold_an_instance() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(60)).deregistering_for(300));
    let id = bench.in_service("web").remove(0);
    bench.aws.terminate(&id, TerminationCause::Rebalance);
    bench.pass(299).await;
    assert_eq!(bench.state(&id), LifecycleState::Terminating);
    assert_eq!(bench.aws.instance(&id).expect("it").power, Power::Running);
    bench.pass(2).await;
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait);
}

#[tokio::test(start_paused = true)]
async fn where_no_hook_holds_it_a_machine_ends_once_load_balancers_have_let_go_of_it() {
    let bench = bench();
    bench.aws.add_group(web().deregistering_for(300));
    let id = bench.in_service("web").remove(0);
    bench.aws.terminate(&id, TerminationCause::Rebalance);
    for (passed, power) in [(299, Power::Running), (2, Power::ShuttingDown)] {
        bench.pass(passed).await;
        assert_eq!(bench.state(&id), LifecycleState::Terminating);
        assert_eq!(bench.aws.instance(&id).expect("it").power, power);
    }
}

#[tokio::test(start_paused = true)]
async fn an_action_can_be_completed_only_a_while_after_the_instance_is_shown_to_wait() {
    let bench = bench();
    let timing = Timing { action: crate::sim::span::Span::seconds(7, 7), ..Timing::QUICK };
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(60)).timing(timing));
    let id = bench.in_service("web").remove(0);
    bench.aws.terminate(&id, TerminationCause::Rebalance);
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait);
    let complete = || {
        let call = bench.asg.complete_lifecycle_action().auto_scaling_group_name("web");
        let call = call.lifecycle_hook_name("ebbtide").instance_id(&id);
        call.lifecycle_action_result("CONTINUE").send()
    };
    let beat = || {
        let call = bench.asg.record_lifecycle_action_heartbeat().auto_scaling_group_name("web");
        call.lifecycle_hook_name("ebbtide").instance_id(&id).send()
    };
    let error = complete().await.expect_err("too early");
    assert!(refusal(&error).1.starts_with("No active Lifecycle Action found"));
    beat().await.expect_err("too early");
    bench.pass(8).await;
    beat().await.expect("by now");
    complete().await.expect("by now");
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_while_a_hook_holds_it_is_held_until_the_hook_is_done() {
    for death in [Death::Interrupted, Death::Stopped, Death::Impaired] {
        let bench = bench();
        bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(600)));
        let id = bench.in_service("web").remove(0);
        bench.aws.terminate(&id, TerminationCause::Rebalance);
        bench.aws.kill_machine(&id, death);
        bench.pass(500).await;
        assert_eq!(bench.state(&id), LifecycleState::TerminatingWait, "{death:?}");
        let power = bench.aws.instance(&id).expect("it").power;
        assert_eq!(power == Power::Running, death == Death::Impaired, "{power}");
        bench.settled("web", 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_in_service_is_replaced() {
    let bench = bench();
    bench.aws.add_group(web());
    let id = bench.in_service("web").remove(0);
    bench.aws.kill_machine(&id, Death::Interrupted);
    bench.settled("web", 2).await;
    assert_eq!(bench.state(&id), LifecycleState::Terminated);
}

#[tokio::test(start_paused = true)]
async fn decrements_that_leave_zones_out_of_balance_are_followed_by_a_rebalance_over_the_maximum() {
    for (behaviour, launched) in [(Behaviour::PLAIN, 0), (Behaviour::HARSH, 1)] {
        let bench = bench();
        bench.aws.behave(behaviour);
        let zones = ["us-east-1a", "us-east-1b"];
        bench.aws.add_group(GroupSpec::named("web").zones(zones).size(0, 4, 4).already_running());
        let of_b = |id: &String| bench.aws.instance(id).is_some_and(|i| i.zone == "us-east-1b");
        for id in bench.in_service("web").into_iter().filter(of_b) {
            let call = bench.asg.terminate_instance_in_auto_scaling_group().instance_id(id);
            call.should_decrement_desired_capacity(true).send().await.expect("terminating");
        }
        let update = bench.asg.update_auto_scaling_group().auto_scaling_group_name("web");
        update.max_size(2).send().await.expect("updated");
        let mut most = 0;
        for _ in 0..3600 {
            let group = bench.aws.group("web").expect("the group");
            most = most.max(group.instances.iter().filter(|i| i.state.counts()).count());
            bench.pass(1).await;
        }
        assert_eq!(bench.happened(|e| matches!(e, Event::InstanceLaunched { .. })), 4 + launched);
        assert_eq!(most, 2 + launched, "for a while");
        bench.settled("web", 2).await;
    }
}

#[tokio::test(start_paused = true)]
async fn with_terminate_suspended_a_rebalance_leaves_the_group_larger_than_it_should_be() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 2, 2).suspended("Terminate"));
    let id = bench.in_service("web").remove(0);
    assert!(bench.aws.rebalance(&id));
    bench.pass(3600).await;
    assert_eq!(bench.in_service("web").len(), 3, "over its maximum");
    let resume = bench.asg.resume_processes().auto_scaling_group_name("web");
    resume.send().await.expect("resumed");
    bench.settled("web", 2).await;
}

#[tokio::test(start_paused = true)]
async fn hooks_come_and_go_at_any_time() {
    let bench = bench();
    bench.aws.add_group(web());
    let id = bench.in_service("web").remove(0);
    bench.aws.put_hook("web", HookSpec::terminating("late").heartbeat(600));
    bench.aws.terminate(&id, TerminationCause::Rebalance);
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait);
    bench.aws.delete_hook("web", "late");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
}
