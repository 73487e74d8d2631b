//! Faults: throttling, denials, losses, outages, delays, internal errors.

use super::*;

#[tokio::test(start_paused = true)]
async fn throttling_has_the_code_and_status_of_its_service_and_no_effect() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.throttle_next(Operation::SetDesiredCapacity, 1);
    bench.aws.throttle_next(Operation::DescribeInstanceTypes, 1);
    let set = || bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(1).send();
    let error = set().await.expect_err("throttled");
    assert_eq!(refusal(&error), ("Throttling".to_owned(), "Rate exceeded".to_owned()));
    assert_eq!(error.raw_response().map(|raw| raw.status().as_u16()), Some(400));
    assert_eq!(bench.desired("web"), 2);
    let error = bench.ec2.describe_instance_types().send().await.expect_err("throttled");
    assert_eq!(refusal(&error).0, "RequestLimitExceeded");
    assert_eq!(error.raw_response().map(|raw| raw.status().as_u16()), Some(503));
    set().await.expect("once only");
    let refused = |e: &Event| matches!(e, Event::Called { outcome: Outcome::Refused("Throttling"), .. });
    assert_eq!(bench.happened(refused), 1);
}

#[tokio::test(start_paused = true)]
async fn the_sdk_retries_what_was_throttled_on_virtual_time() {
    let bench = bench_with(RetryConfig::standard().with_max_attempts(4));
    bench.aws.add_group(web());
    bench.aws.throttle_any(3);
    let started = tokio::time::Instant::now();
    bench.asg.describe_auto_scaling_groups().send().await.expect("the fourth try");
    assert_eq!(bench.aws.calls(Operation::DescribeAutoScalingGroups), 4);
    assert!(started.elapsed() > Duration::ZERO, "it backed off");
}

#[tokio::test(start_paused = true)]
async fn some_operations_can_be_throttled_for_a_while() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.throttle_for(&[Operation::DescribeLaunchConfigurations], Duration::from_mins(1));
    for _ in 0..5 {
        bench.asg.describe_launch_configurations().send().await.expect_err("throttled");
    }
    bench.asg.describe_auto_scaling_groups().send().await.expect("another operation");
    bench.pass(60).await;
    bench.asg.describe_launch_configurations().send().await.expect("over");
}

#[tokio::test(start_paused = true)]
async fn what_a_policy_does_not_allow_is_denied_until_it_does() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.deny(Operation::SetDesiredCapacity, true);
    bench.aws.deny(Operation::DescribeInstances, true);
    let set = || bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(1).send();
    assert_eq!(refusal(&set().await.expect_err("denied")).0, "AccessDenied");
    let instances = bench.ec2.describe_instances().send().await;
    assert_eq!(refusal(&instances.expect_err("denied")).0, "UnauthorizedOperation");
    assert_eq!(bench.desired("web"), 2);
    bench.aws.deny(Operation::SetDesiredCapacity, false);
    set().await.expect("allowed");
}

#[tokio::test(start_paused = true)]
async fn a_call_is_lost_before_or_after_its_effect() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.lose_next(Operation::SetDesiredCapacity, Lose::BeforeEffect);
    bench.aws.lose_next(Operation::SetDesiredCapacity, Lose::AfterEffect);
    let set = |n| bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(n).send();
    let error = set(1).await.expect_err("lost");
    assert!(matches!(error, SdkError::DispatchFailure(_)), "{error:?}");
    assert_eq!(bench.desired("web"), 2);
    set(1).await.expect_err("lost");
    assert_eq!(bench.desired("web"), 1);
    set(0).await.expect("nothing more to lose");
    let lost =
        |e: &Event| matches!(e, Event::Called { outcome: Outcome::LostBefore | Outcome::LostAfter, .. });
    assert_eq!(bench.happened(lost), 2);
}

#[tokio::test(start_paused = true)]
async fn in_an_outage_nothing_arrives_and_hooks_run_out() {
    let bench = bench();
    bench.aws.add_group(web().hook(HookSpec::terminating("ebbtide").heartbeat(60)));
    let id = bench.in_service("web").remove(0);
    bench.aws.terminate(&id, TerminationCause::Rebalance);
    bench.aws.outage(true);
    let heartbeat = || {
        let call = bench.asg.record_lifecycle_action_heartbeat().auto_scaling_group_name("web");
        call.lifecycle_hook_name("ebbtide").instance_id(&id).send()
    };
    assert!(matches!(heartbeat().await, Err(SdkError::DispatchFailure(_))));
    bench.pass(61).await;
    bench.aws.outage(false);
    assert_eq!(bench.state(&id), LifecycleState::TerminatingProceed);
    assert_eq!(refusal(&heartbeat().await.expect_err("too late")).0, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn calls_take_the_time_they_are_told_to() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.delay(Duration::from_secs(2), Duration::from_secs(1));
    let started = tokio::time::Instant::now();
    bench.asg.describe_launch_configurations().send().await.expect("late");
    let first = started.elapsed();
    assert!(first >= Duration::from_secs(2) && first <= Duration::from_millis(3010), "{first:?}");
    let started = tokio::time::Instant::now();
    bench.asg.describe_launch_configurations().send().await.expect("late");
    assert_ne!(started.elapsed(), first, "jitter");
}

#[tokio::test(start_paused = true)]
async fn an_internal_error_is_a_500_with_its_services_code() {
    let bench = bench();
    bench.aws.fail_next(Operation::DescribeLaunchConfigurations, 1);
    bench.aws.fail_next(Operation::DescribeInstances, 1);
    let error = bench.asg.describe_launch_configurations().send().await.expect_err("failed");
    assert_eq!(refusal(&error).0, "InternalFailure");
    assert_eq!(error.raw_response().map(|raw| raw.status().as_u16()), Some(500));
    let error = bench.ec2.describe_instances().send().await.expect_err("failed");
    assert_eq!(refusal(&error).0, "InternalError");
}

#[tokio::test(start_paused = true)]
async fn a_share_of_all_calls_is_throttled_and_the_seed_decides_which() {
    let pattern = async |seed| {
        let bench = seeded(seed);
        bench.aws.throttle_share(0.5);
        let mut refused = Vec::new();
        for _ in 0..200 {
            refused.push(bench.asg.describe_launch_configurations().send().await.is_err());
        }
        refused
    };
    let first = pattern(1).await;
    assert_eq!(first, pattern(1).await);
    assert_ne!(first, pattern(2).await);
    let refused = first.iter().filter(|refused| **refused).count();
    assert!((70..=130).contains(&refused), "{refused} of 200");
}

#[tokio::test(start_paused = true)]
async fn any_error_is_answered_before_or_after_the_effect() {
    let bench = bench();
    bench.aws.add_group(web());
    let busy = Refusal { code: "ResourceContention", status: 500, message: "You have a pending update." };
    let set = || bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(1).send();
    for (side, desired) in [(Lose::BeforeEffect, 2), (Lose::AfterEffect, 1)] {
        bench.aws.refuse_next(Operation::SetDesiredCapacity, busy, side, 2);
        for _ in 0..2 {
            let error = set().await.expect_err("refused");
            assert_eq!(refusal(&error), (busy.code.to_owned(), busy.message.to_owned()));
            assert_eq!(error.raw_response().map(|raw| raw.status().as_u16()), Some(500));
            assert_eq!(bench.desired("web"), desired);
        }
    }
    set().await.expect("no more refusals");
}

#[tokio::test(start_paused = true)]
async fn a_server_before_aws_answers_for_it_with_whatever_it_says_and_no_code() {
    let bench = bench();
    bench.aws.add_group(web());
    for message in ["", "<html><body>Service Unavailable</body></html>", "{}"] {
        let page = Refusal { code: "", status: 503, message };
        bench.aws.refuse_next(Operation::SetDesiredCapacity, page, Lose::BeforeEffect, 1);
        let set = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(1);
        let error = set.send().await.expect_err("refused");
        let answer = error.raw_response().expect("a whole answer");
        assert_eq!((answer.status().as_u16(), answer.body().bytes()), (503, Some(message.as_bytes())));
        assert_eq!(error.code(), None);
        assert_eq!(bench.desired("web"), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn some_calls_of_an_operation_take_much_longer_and_the_others_do_not() {
    let bench = bench();
    let slow = [Operation::DescribeLaunchConfigurations];
    bench.aws.delay_some(&slow, 0.25, Duration::from_secs(2), Duration::from_mins(1));
    let mut took = Vec::new();
    for _ in 0..200 {
        let started = tokio::time::Instant::now();
        bench.asg.describe_launch_configurations().send().await.expect("late");
        took.push(started.elapsed().as_secs());
        let started = tokio::time::Instant::now();
        bench.asg.describe_auto_scaling_groups().send().await.expect("an answer");
        assert_eq!(started.elapsed().as_secs(), 0, "another operation");
    }
    let at_least = |seconds: u64| took.iter().filter(|took| **took >= seconds).count();
    assert!((30..=70).contains(&at_least(2)), "{took:?}");
    assert!(at_least(8) >= 4 && at_least(8) * 2 < at_least(2), "{took:?}");
    assert_eq!(at_least(1), at_least(2));
    assert_eq!(at_least(61), 0);
}

/// Allows changes of groups that are tagged `ours`, one tag of instances, and queues called `ours…`.
const POLICY: &str = r#"{ "Statement": [
    { "Effect": "Allow", "Action": ["autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup"],
      "Resource": "*", "Condition": { "Null": { "aws:ResourceTag/ours": "false" } } },
    { "Effect": "Allow", "Action": ["ec2:CreateTags", "ec2:DeleteTags"], "Resource": "arn:*:ec2:*:*:instance/*",
      "Condition": { "ForAllValues:StringEquals": { "aws:TagKeys": "mark" }, "Null": { "aws:TagKeys": "false" } } },
    { "Effect": "Allow", "Action": "sqs:ReceiveMessage", "Resource": "arn:*:sqs:*:*:ours*" }
] }"#;

#[tokio::test(start_paused = true)]
async fn a_policy_allows_its_actions_on_its_resources_under_its_conditions() {
    let bench = bench();
    bench.aws.add_group(web());
    bench.aws.add_group(
        GroupSpec::named("tagged").size(0, 5, 1).template("m5.large").tag("ours", "yes").already_running(),
    );
    bench.aws.permit([POLICY]);
    let set = |group: &str| {
        bench.asg.set_desired_capacity().auto_scaling_group_name(group).desired_capacity(2).send()
    };
    set("tagged").await.expect("its tag");
    assert_eq!(refusal(&set("web").await.expect_err("no tag")).0, "AccessDenied");
    let describe = bench.asg.describe_auto_scaling_groups().send().await;
    assert_eq!(refusal(&describe.expect_err("not in the policy")).0, "AccessDenied");
    let instance = bench.aws.group("tagged").expect("a group").instances[0].id.clone();
    let tag = |key: &str| {
        let tag = aws_sdk_ec2::types::Tag::builder().key(key).value("1").build();
        bench.ec2.create_tags().resources(&instance).tags(tag).send()
    };
    tag("mark").await.expect("the one tag");
    assert_eq!(refusal(&tag("other").await.expect_err("another")).0, "UnauthorizedOperation");
    let all = bench.ec2.delete_tags().resources(&instance).send().await;
    assert_eq!(refusal(&all.expect_err("all tags")).0, "UnauthorizedOperation");
    let terminate = |id: &str| {
        let call = bench.asg.terminate_instance_in_auto_scaling_group().instance_id(id);
        call.should_decrement_desired_capacity(true).send()
    };
    terminate(&instance).await.expect("of a group with the tag");
    let others = bench.aws.group("web").expect("a group").instances[0].id.clone();
    assert_eq!(refusal(&terminate(&others).await.expect_err("without it")).0, "AccessDenied");
}
