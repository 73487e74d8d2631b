//! Instance states other than entering and leaving: retained, renewed, warm, in standby, detached.

use aws_sdk_autoscaling::types::{InstanceLifecyclePolicy, RetentionAction, RetentionTriggers};

use super::*;

async fn complete(bench: &Bench, id: &str, result: HookResult) -> Result<(), (String, String)> {
    let call = bench.asg.complete_lifecycle_action().auto_scaling_group_name("web");
    let call = call.lifecycle_hook_name("ebbtide").instance_id(id);
    let answer = call.lifecycle_action_result(result.name()).send().await;
    answer.map(drop).map_err(|error| refusal(&error))
}

async fn terminate(bench: &Bench, id: &str, decrement: bool) -> Result<(), (String, String)> {
    let call = bench.asg.terminate_instance_in_auto_scaling_group().instance_id(id);
    let answer = call.should_decrement_desired_capacity(decrement).send().await;
    answer.map(drop).map_err(|error| refusal(&error))
}

async fn set(bench: &Bench, desired: i32) -> Result<(), (String, String)> {
    let call = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(desired);
    call.send().await.map(drop).map_err(|error| refusal(&error))
}

fn entered(bench: &Bench, id: &str) -> Vec<LifecycleState> {
    let of_it = |entry: Entry| match entry.what {
        Event::Entered { instance, state, .. } if instance == id => Some(state),
        _ => None,
    };
    bench.aws.journal().into_iter().filter_map(of_it).collect()
}

fn powered(bench: &Bench, id: &str) -> Vec<Power> {
    let of_it = |entry: Entry| match entry.what {
        Event::Powered { instance, power, .. } if instance == id => Some(power),
        _ => None,
    };
    bench.aws.journal().into_iter().filter_map(of_it).collect()
}

fn held() -> HookSpec {
    HookSpec::terminating("ebbtide").heartbeat(60)
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_hook_keeps_the_instance_where_the_group_says_so() {
    let bench = bench();
    bench.aws.add_group(web().hook(held()).retaining());
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, false).await.expect("terminating");
    bench.until_state(&id, LifecycleState::TerminatingRetained).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::HookTimedOut { .. })), 1);
    bench.pass(24 * 3600).await;
    let group = bench.aws.group("web").expect("the group");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingRetained, "for ever");
    assert_eq!((group.desired, group.instances.len()), (2, 3), "a replacement came");
    assert_eq!(bench.aws.instance(&id).expect("it").power, Power::Running);

    let shown = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let [shown] = shown.auto_scaling_groups() else { panic!("one group") };
    let policy = shown.instance_lifecycle_policy().and_then(|policy| policy.retention_triggers());
    let action = policy.and_then(|triggers| triggers.terminate_hook_abandon());
    assert_eq!(action, Some(&RetentionAction::Retain));
    let states = shown.instances().iter().filter_map(|instance| instance.lifecycle_state());
    let retained = aws_sdk_autoscaling::types::LifecycleState::TerminatingRetained;
    assert_eq!(states.filter(|state| **state == retained).count(), 1);
    let activities = bench.asg.describe_scaling_activities().send().await.expect("activities");
    let cancelled = activities.activities().iter().find(|a| {
        a.description().is_some_and(|text| text.starts_with(&format!("Terminating EC2 instance: {id}.")))
    });
    let message = cancelled.and_then(|a| a.status_message()).expect("a cancelled activity");
    assert!(message.contains("was abandoned"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_retained_instance_ends_without_a_decrement_only_and_its_hooks_hold_it_again() {
    let bench = bench();
    bench.aws.add_group(web().hook(held()).retaining());
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, false).await.expect("terminating");
    complete(&bench, &id, HookResult::Abandon).await.expect("held");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingRetained);
    let (code, text) = terminate(&bench, &id, true).await.expect_err("with a decrement");
    assert_eq!(code, "ValidationError");
    assert!(
        text.contains("is in a Retained state and can't be terminated while decreasing desired"),
        "{text}"
    );

    terminate(&bench, &id, false).await.expect("without");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait, "held again");
    bench.until_state(&id, LifecycleState::TerminatingRetained).await;
    terminate(&bench, &id, false).await.expect("without");
    complete(&bench, &id, HookResult::Continue).await.expect("held");
    bench.settled("web", 2).await;
    assert_eq!(bench.state(&id), LifecycleState::Terminated);
    assert_eq!(bench.desired("web"), 2);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_continues_by_default_keeps_nothing() {
    let bench = bench();
    bench.aws.add_group(web().hook(held().by_default(HookResult::Continue)).retaining());
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, true).await.expect("terminating");
    bench.settled("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_root_volume_is_replaced_under_an_instance_that_stays() {
    use LifecycleState::{
        InService, ReplacingRootVolume, ReplacingRootVolumeProceed, ReplacingRootVolumeWait,
        RootVolumeReplaced,
    };
    let bench = bench();
    bench.aws.add_group(web().hook(held()));
    let ids = bench.in_service("web");
    bench.aws.replace_root_volumes("web");
    let (first, second) = (&ids[0], &ids[1]);
    assert_eq!(bench.state(first), ReplacingRootVolumeWait, "the terminating hook holds it");
    assert_eq!(bench.state(second), InService, "one at a time");
    bench.pass(30).await;
    complete(&bench, first, HookResult::Continue).await.expect("held");
    bench.until_state(second, ReplacingRootVolumeWait).await;
    let way = [ReplacingRootVolume, ReplacingRootVolumeProceed, RootVolumeReplaced, InService];
    assert_eq!(entered(&bench, first), way);
    assert_eq!(bench.happened(|e| matches!(e, Event::Rebooted { instance, .. } if instance == first)), 1);
    // Nobody completes the second: its time-out lets it go on as well.
    bench.settled("web", 2).await;
    bench.pass(3600).await;
    assert_eq!(bench.in_service("web"), ids, "nobody was replaced");
    assert_eq!(bench.happened(|e| matches!(e, Event::InstanceLaunched { .. })), 2);
    assert_eq!(bench.happened(|e| matches!(e, Event::Rebooted { .. })), 2);
}

#[tokio::test(start_paused = true)]
async fn an_instance_goes_back_to_the_warm_pool_under_the_terminating_hook_and_comes_out_again() {
    use LifecycleState::{Pending, WarmedPending, WarmedPendingProceed, WarmedPendingWait, WarmedStopped};
    use Power::{Running, Stopped};
    let bench = bench();
    bench.aws.add_group(web().hook(held()).warm_pool(WarmPoolSpec::stopped().prepared(2).reusing()));
    set(&bench, 1).await.expect("smaller");
    let waits = |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(WarmedPendingWait).len() == 1);
    bench.aws.until(waits).await;
    let id = bench.ids("web", WarmedPendingWait).remove(0);
    assert_eq!(bench.happened(|e| matches!(e, Event::TerminationStarted { .. })), 0);
    assert_eq!(bench.aws.instance(&id).expect("it").power, Running, "while it is held");
    let shown = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let shown = &shown.auto_scaling_groups()[0];
    assert!(
        !shown.instances().iter().any(|i| i.instance_id() == Some(&id)),
        "the pool's are not the group's"
    );
    let policy = shown.warm_pool_configuration().and_then(|pool| pool.instance_reuse_policy());
    assert_eq!(policy.and_then(|policy| policy.reuse_on_scale_in()), Some(true));
    assert_eq!(shown.warm_pool_size(), Some(1));
    let pool = bench.asg.describe_warm_pool().auto_scaling_group_name("web").send().await.expect("a pool");
    let [warm] = pool.instances() else { panic!("one instance") };
    assert_eq!(warm.lifecycle_state().map(|s| s.as_str()), Some("Warmed:Pending:Wait"));
    let (_, text) = terminate(&bench, &id, false).await.expect_err("not in a warm pool");
    assert!(text.contains("warm pool"), "{text}");
    complete(&bench, &id, HookResult::Continue).await.expect("held");
    bench.until_state(&id, WarmedStopped).await;
    assert_eq!(entered(&bench, &id), [WarmedPending, WarmedPendingProceed, WarmedStopped]);

    set(&bench, 2).await.expect("larger");
    assert_eq!(bench.state(&id), Pending);
    let back = |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(LifecycleState::InService).len() == 2);
    bench.aws.until(back).await;
    assert!(bench.in_service("web").contains(&id), "the same instance");
    assert_eq!(bench.happened(|e| matches!(e, Event::InstanceLaunched { .. })), 2);
    assert_eq!(powered(&bench, &id), [Running, Stopped, Power::Pending, Running]);
}

#[tokio::test(start_paused = true)]
async fn a_return_to_the_warm_pool_goes_on_when_its_hook_is_abandoned_unless_the_group_keeps_such_instances()
{
    for (retains, state) in
        [(false, LifecycleState::WarmedStopped), (true, LifecycleState::WarmedPendingRetained)]
    {
        let bench = bench();
        let group = web().hook(held()).warm_pool(WarmPoolSpec::stopped().prepared(2).reusing());
        bench.aws.add_group(if retains { group.retaining() } else { group });
        set(&bench, 1).await.expect("smaller");
        let there = |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(state).len() == 1);
        tokio::time::timeout(Duration::from_hours(1), bench.aws.until(there)).await.expect("that state");
    }
}

#[tokio::test(start_paused = true)]
async fn a_warm_pool_is_filled_and_what_it_has_too_much_goes_under_the_hook() {
    use LifecycleState::{WarmedStopped, WarmedTerminatingWait};
    let bench = bench();
    bench.aws.add_group(web().hook(held()).warm_pool(WarmPoolSpec::stopped().prepared(4)));
    let filled = |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(WarmedStopped).len() == 2);
    bench.aws.until(filled).await;
    assert_eq!(bench.desired("web"), 2);
    set(&bench, 3).await.expect("larger");
    bench.pass(300).await;
    let group = bench.aws.group("web").expect("the group");
    assert_eq!(
        group.in_state(WarmedStopped).len(),
        1,
        "one came out of the pool, and the pool is as large as it should be"
    );
    assert_eq!(group.in_state(LifecycleState::InService).len(), 3);
    // A termination by a call never returns an instance to the pool.
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, true).await.expect("terminating");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait);
    let update = bench.asg.update_auto_scaling_group().auto_scaling_group_name("web");
    update.max_size(2).desired_capacity(2).send().await.expect("updated");
    bench.aws.script(|state, now| {
        state.groups.get_mut("web").expect("it").policies.warm_pool =
            Some(WarmPoolSpec::stopped().prepared(2));
        state.set_state(&id, LifecycleState::TerminatingProceed, now);
    });
    let group = bench.aws.group("web").expect("the group");
    assert!(!group.in_state(WarmedTerminatingWait).is_empty(), "{group:?}");
}

#[tokio::test(start_paused = true)]
async fn detaching_leaves_the_machine_running_outside_of_the_group() {
    for decrement in [true, false] {
        let bench = bench();
        bench.aws.add_group(web());
        let id = bench.in_service("web").remove(0);
        let call = bench.asg.detach_instances().auto_scaling_group_name("web").instance_ids(&id);
        call.should_decrement_desired_capacity(decrement).send().await.expect("detached");
        bench.settled("web", if decrement { 1 } else { 2 }).await;
        assert!(!bench.in_service("web").contains(&id));
        assert_eq!(bench.aws.instance(&id).expect("it").power, Power::Running);
        let shown = bench.ec2.describe_instances().instance_ids(&id).send().await.expect("still there");
        assert_eq!(shown.reservations().len(), 1);
        assert_eq!(bench.happened(|e| matches!(e, Event::TerminationStarted { .. })), 0);
        let (_, text) = terminate(&bench, &id, false).await.expect_err("in no group");
        assert!(text.contains("No managed instance found"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_in_standby_does_not_count_and_its_end_with_a_decrement_may_cost_a_healthy_one() {
    for (behaviour, left) in [(Behaviour::PLAIN, 2), (Behaviour::HARSH, 1)] {
        let bench = bench();
        bench.aws.add_group(web().size(0, 10, 3));
        bench.aws.behave(behaviour);
        let id = bench.in_service("web").remove(0);
        let call = bench.asg.enter_standby().auto_scaling_group_name("web").instance_ids(&id);
        call.should_decrement_desired_capacity(true).send().await.expect("set aside");
        assert_eq!((bench.desired("web"), bench.state(&id)), (2, LifecycleState::Standby));
        terminate(&bench, &id, true).await.expect("terminating");
        bench.settled("web", left).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_comes_out_of_standby_and_counts_again() {
    let bench = bench();
    bench.aws.add_group(web());
    let id = bench.in_service("web").remove(0);
    let call = bench.asg.enter_standby().auto_scaling_group_name("web").instance_ids(&id);
    call.should_decrement_desired_capacity(true).send().await.expect("set aside");
    let call = bench.asg.exit_standby().auto_scaling_group_name("web").instance_ids(&id);
    call.send().await.expect("back");
    assert_eq!((bench.desired("web"), bench.state(&id)), (2, LifecycleState::InService));
    bench.settled("web", 2).await;
}

#[tokio::test(start_paused = true)]
async fn a_group_that_a_service_operates_is_changed_by_nobody_else() {
    let bench = bench();
    bench.aws.add_group(web().operated_by("eks.amazonaws.com"));
    let shown = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    let operator = shown.auto_scaling_groups()[0].operator().and_then(|operator| operator.principal());
    assert_eq!(operator, Some("eks.amazonaws.com"));
    let id = bench.in_service("web").remove(0);
    set(&bench, 1).await.expect_err("refused");
    terminate(&bench, &id, true).await.expect_err("refused");
    let protect = bench.asg.set_instance_protection().auto_scaling_group_name("web").instance_ids(&id);
    protect.protected_from_scale_in(true).send().await.expect_err("refused");
    bench.pass(600).await;
    assert_eq!(bench.in_service("web").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_being_deleted_is_shown_refuses_changes_and_waits_for_its_hooks() {
    let bench = bench();
    bench.aws.add_group(web().hook(held()));
    let id = bench.in_service("web").remove(0);
    bench.aws.delete_group("web");
    assert_eq!(bench.ids("web", LifecycleState::TerminatingWait).len(), 2);
    let (code, text) = set(&bench, 1).await.expect_err("pending delete");
    assert_eq!(code, "ValidationError");
    assert_eq!(text, "The AutoScaling group may not be modified while it is pending delete");
    let shown = bench.asg.describe_auto_scaling_groups().send().await.expect("groups");
    assert_eq!(shown.auto_scaling_groups()[0].status(), Some("Delete in progress"));
    complete(&bench, &id, HookResult::Continue).await.expect("held");
    bench.pass(55).await;
    assert_eq!(bench.aws.group("web").expect("still there").instances.len(), 1);
    bench.until("the group is gone", |aws| aws.group("web").is_none()).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::GroupDeleted { .. })), 1);
}

#[tokio::test(start_paused = true)]
async fn a_replacement_comes_first_where_the_group_launches_before_it_terminates() {
    let bench = bench();
    bench.aws.add_group(web().launching_first());
    let id = bench.in_service("web").remove(0);
    bench.aws.fail_health_check(&id);
    assert_eq!(bench.state(&id), LifecycleState::InService, "until its replacement is there");
    bench.aws.until(|aws| aws.group("web").is_some_and(|g| g.instances.len() == 3)).await;
    assert_eq!(bench.desired("web"), 2);
    bench.settled("web", 2).await;
    assert_eq!(bench.state(&id), LifecycleState::Terminated);
}

#[tokio::test(start_paused = true)]
async fn the_instance_lifecycle_policy_is_set_and_taken_back_and_nothing_else_changes() {
    let bench = bench();
    bench.aws.add_group(web());
    let before = bench.aws.group("web").expect("the group");
    let shown = async || {
        let group = bench.asg.describe_auto_scaling_groups().auto_scaling_group_names("web");
        let group = group.send().await.expect("described").auto_scaling_groups()[0].clone();
        let triggers = group.instance_lifecycle_policy.and_then(|policy| policy.retention_triggers);
        triggers.and_then(|triggers| triggers.terminate_hook_abandon)
    };
    assert_eq!(shown().await, None);
    for (action, expected) in
        [(RetentionAction::Retain, Some(RetentionAction::Retain)), (RetentionAction::Terminate, None)]
    {
        let triggers = RetentionTriggers::builder().terminate_hook_abandon(action).build();
        let policy = InstanceLifecyclePolicy::builder().retention_triggers(triggers).build();
        let update = bench.asg.update_auto_scaling_group().auto_scaling_group_name("web");
        update.instance_lifecycle_policy(policy).send().await.expect("updated");
        assert_eq!(shown().await, expected);
        assert_eq!(bench.aws.group("web").expect("the group"), before);
    }
    let triggers = RetentionTriggers::builder().terminate_hook_abandon("keep".into()).build();
    let policy = InstanceLifecyclePolicy::builder().retention_triggers(triggers).build();
    let update = bench.asg.update_auto_scaling_group().auto_scaling_group_name("web");
    let refused = update.instance_lifecycle_policy(policy).send().await.expect_err("no such action");
    assert_eq!(refusal(&refused).0, "ValidationError");
}
