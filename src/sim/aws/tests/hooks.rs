//! Lifecycle hooks: which instances they hold, for how long, and what ends it.

use super::*;

const HELD: &str = "No active Lifecycle Action found with";

async fn complete(bench: &Bench, id: &str, hook: &str, result: HookResult) -> Result<(), (String, String)> {
    let call = bench.asg.complete_lifecycle_action().auto_scaling_group_name("web").lifecycle_hook_name(hook);
    let answer = call.instance_id(id).lifecycle_action_result(result.name()).send().await;
    answer.map(drop).map_err(|error| refusal(&error))
}

async fn heartbeat(bench: &Bench, id: &str, hook: &str) -> Result<(), (String, String)> {
    let call = bench.asg.record_lifecycle_action_heartbeat().auto_scaling_group_name("web");
    let answer = call.lifecycle_hook_name(hook).instance_id(id).send().await;
    answer.map(drop).map_err(|error| refusal(&error))
}

/// Terminates the group's first instance and returns its id.
async fn terminate_first(bench: &Bench) -> String {
    let id = bench.in_service("web").remove(0);
    let call = bench.asg.terminate_instance_in_auto_scaling_group().instance_id(&id);
    call.should_decrement_desired_capacity(true).send().await.expect("terminating");
    id
}

#[tokio::test(start_paused = true)]
async fn a_terminating_hook_holds_the_instance_until_it_is_completed() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(60)));
    let id = terminate_first(&bench).await;
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait);
    let shown = bench.asg.describe_auto_scaling_instances().instance_ids(&id).send().await.expect("it");
    assert_eq!(shown.auto_scaling_instances()[0].lifecycle_state(), Some("Terminating:Wait"));
    complete(&bench, &id, "ebbtide", HookResult::Continue).await.expect("held");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
    let again = complete(&bench, &id, "ebbtide", HookResult::Continue).await;
    assert_eq!(again, Err(("ValidationError".to_owned(), format!("{HELD} instance ID {id}"))));
    bench.settled("web", 1).await;
    assert_eq!(bench.happened(|e| matches!(e, Event::HookTimedOut { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn a_hook_times_out_without_heartbeats_and_the_instance_goes() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(60)));
    let start = bench.clock.now();
    let id = terminate_first(&bench).await;
    bench.pass(50).await;
    heartbeat(&bench, &id, "ebbtide").await.expect("held");
    bench.until_state(&id, LifecycleState::TerminatingProceed).await;
    assert_eq!(bench.clock.now().duration_since(start).as_secs(), 110);
    assert_eq!(bench.happened(|e| matches!(e, Event::HookTimedOut { result: HookResult::Abandon, .. })), 1);
    assert!(heartbeat(&bench, &id, "ebbtide").await.is_err());
}

#[tokio::test(start_paused = true)]
async fn no_heartbeat_holds_beyond_a_hundred_time_outs_or_48_hours() {
    for (seconds, limit) in [(60, 6000), (7200, 48 * 3600)] {
        let bench = bench();
        bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(seconds)));
        let shown = bench.asg.describe_lifecycle_hooks().auto_scaling_group_name("web").send().await;
        let hook = shown.expect("hooks").lifecycle_hooks.expect("hooks").remove(0);
        assert_eq!(hook.heartbeat_timeout(), i32::try_from(seconds).ok());
        assert_eq!(hook.global_timeout(), Some(limit));
        let start = bench.clock.now();
        let id = terminate_first(&bench).await;
        while heartbeat(&bench, &id, "ebbtide").await.is_ok() {
            bench.pass(seconds / 2).await;
        }
        let timed_out =
            bench.aws.journal().into_iter().find(|e| matches!(e.what, Event::HookTimedOut { .. }));
        let held = timed_out.expect("a time-out").at.duration_since(start);
        assert_eq!(held.as_secs(), i64::from(limit));
    }
}

#[tokio::test(start_paused = true)]
async fn several_hooks_hold_at_once_each_with_its_own_timer() {
    let bench = bench();
    let long = HookSpec::terminating("long").heartbeat(100).by_default(HookResult::Continue);
    let short = HookSpec::terminating("short").heartbeat(30).by_default(HookResult::Continue);
    bench.aws.add_group(web().hook(long).hook(short));
    let id = terminate_first(&bench).await;
    assert_eq!(bench.aws.instance(&id).expect("it").waits.len(), 2);
    bench.pass(31).await;
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait, "the other hook holds on");
    complete(&bench, &id, "short", HookResult::Continue).await.expect_err("timed out");
    complete(&bench, &id, "long", HookResult::Continue).await.expect("held");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
}

#[tokio::test(start_paused = true)]
async fn abandon_ends_all_hooks() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("one")).hook(HookSpec::terminating("two")));
    let id = terminate_first(&bench).await;
    complete(&bench, &id, "one", HookResult::Abandon).await.expect("held");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
}

#[tokio::test(start_paused = true)]
async fn a_token_names_the_action_as_well_as_the_instance_does() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide")));
    let mut entries = bench.aws.subscribe();
    let id = terminate_first(&bench).await;
    let token = loop {
        if let Event::EnteredWait { token, instance, transition, .. } =
            entries.recv().await.expect("more").what
        {
            assert_eq!((instance, transition), (id.clone(), Transition::Terminating));
            break token;
        }
    };
    let call = |token: &str| {
        let call = bench.asg.complete_lifecycle_action().auto_scaling_group_name("web");
        let call = call.lifecycle_hook_name("ebbtide").lifecycle_action_token(token);
        call.lifecycle_action_result("CONTINUE").send()
    };
    let wrong = "00000000-0000-0000-0000-000000000000";
    let error = call(wrong).await.expect_err("no such token");
    assert_eq!(refusal(&error).1, format!("{HELD} token {wrong}"));
    call(&token).await.expect("held");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
}

#[tokio::test(start_paused = true)]
async fn a_launching_hook_comes_between_pending_and_in_service() {
    let bench = bench();
    bench.aws.add_group(GroupSpec::named("web").size(0, 3, 1).hook(HookSpec::launching("init")));
    let waiting =
        |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(LifecycleState::PendingWait).len() == 1);
    bench.aws.until(waiting).await;
    let first = bench.ids("web", LifecycleState::PendingWait).remove(0);
    complete(&bench, &first, "init", HookResult::Abandon).await.expect("held");
    assert_eq!(bench.state(&first), LifecycleState::Terminating, "abandoned");
    bench.aws.until(waiting).await;
    let second = bench.ids("web", LifecycleState::PendingWait).remove(0);
    assert_ne!(first, second, "a replacement comes");
    complete(&bench, &second, "init", HookResult::Continue).await.expect("held");
    assert_eq!(bench.in_service("web"), [second]);
}

#[tokio::test(start_paused = true)]
async fn protection_starts_with_in_service_and_a_victim_is_taken_from_those_that_wait_to_come_in() {
    let bench = bench();
    let group = GroupSpec::named("web").size(0, 3, 2).already_running().protecting_new_instances();
    bench.aws.add_group(group.hook(HookSpec::launching("init")));
    bench.aws.set_desired("web", 3);
    let waiting =
        |aws: &Aws| aws.group("web").is_some_and(|g| g.in_state(LifecycleState::PendingWait).len() == 1);
    bench.aws.until(waiting).await;
    let [new] = &bench.ids("web", LifecycleState::PendingWait)[..] else { panic!("one") };
    let protect = bench.asg.set_instance_protection().auto_scaling_group_name("web").instance_ids(new);
    let refused = protect.protected_from_scale_in(true).send().await.expect_err("not in service");
    assert_eq!(refusal(&refused).0, "ValidationError");
    bench.aws.set_desired("web", 2);
    bench.aws.until(|aws| aws.instance(new).is_some_and(|i| i.state.is_terminating())).await;
    assert_eq!(bench.in_service("web").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn hooks_can_be_put_changed_and_deleted() {
    let bench = bench();
    bench.aws.add_group(web());
    let put = || bench.asg.put_lifecycle_hook().auto_scaling_group_name("web").lifecycle_hook_name("new");
    let error = put().send().await.expect_err("no transition");
    assert_eq!(refusal(&error).0, "ValidationError");
    let transition = "autoscaling:EC2_INSTANCE_TERMINATING";
    for seconds in [29, 7201] {
        let wrong = put().lifecycle_transition(transition).heartbeat_timeout(seconds).send().await;
        assert_eq!(refusal(&wrong.expect_err("out of range")).0, "ValidationError");
    }
    put().lifecycle_transition(transition).notification_metadata("m").send().await.expect("put");
    put().heartbeat_timeout(300).default_result("CONTINUE").send().await.expect("changed");
    let ask = || bench.asg.describe_lifecycle_hooks().auto_scaling_group_name("web");
    let shown = ask().lifecycle_hook_names("new").send().await.expect("hooks");
    let [hook] = shown.lifecycle_hooks() else { panic!("one hook") };
    assert_eq!(hook.lifecycle_transition(), Some(transition));
    assert_eq!(hook.heartbeat_timeout(), Some(300));
    assert_eq!(hook.default_result(), Some("CONTINUE"));
    assert_eq!(hook.notification_metadata(), Some("m"));

    let id = terminate_first(&bench).await;
    let delete =
        || bench.asg.delete_lifecycle_hook().auto_scaling_group_name("web").lifecycle_hook_name("new");
    delete().send().await.expect("deleted");
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed, "what it held goes on");
    assert_eq!(refusal(&delete().send().await.expect_err("gone")).0, "ValidationError");
    assert!(ask().send().await.expect("hooks").lifecycle_hooks().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_has_fifty_hooks_at_most_and_a_changed_one_holds_only_later_instances() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("held").heartbeat(600)));
    let put = |name: &str| {
        let put = bench.asg.put_lifecycle_hook().auto_scaling_group_name("web").lifecycle_hook_name(name);
        put.lifecycle_transition("autoscaling:EC2_INSTANCE_TERMINATING")
    };
    let id = terminate_first(&bench).await;
    bench.until_state(&id, LifecycleState::TerminatingWait).await;
    put("held").heartbeat_timeout(30).send().await.expect("changed");
    bench.pass(300).await;
    assert_eq!(bench.state(&id), LifecycleState::TerminatingWait, "on the old terms");

    for number in 1..50 {
        put(&format!("launch-{number}")).send().await.expect("put");
    }
    assert_eq!(refusal(&put("one-more").send().await.expect_err("too many")).0, "LimitExceeded");
    put("held").heartbeat_timeout(60).send().await.expect("it is there");
    for name in ["", "a b", &"x".repeat(256)] {
        assert_eq!(refusal(&put(name).send().await.expect_err("no name")).0, "ValidationError", "{name}");
    }
}
