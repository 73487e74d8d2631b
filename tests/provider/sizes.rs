//! IncreaseSize and DecreaseTargetSize.

use std::time::Duration;

use ebbtide::aws::Lifecycle;
use ebbtide::sim::aws::{Operation, State};
use futures::FutureExt as _;
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tonic::Code;

use crate::world::{Asked, GROUP, With as _, World, code, unregistered, web};

fn set(from: u32, to: u32, protect: &[&str]) -> Asked {
    Asked::Set { from, to, protect: protect.iter().map(|id| (*id).to_owned()).collect() }
}

#[tokio::test(start_paused = true)]
async fn two_calls_at_once_both_count() {
    let world = World::with(web(1).in_service(&["i-1"]));
    world.aws.delay(Duration::from_millis(300), Duration::ZERO);
    let done = join_all([world.increase(1), world.increase(2), world.increase(3)]).await;
    assert!(done.iter().all(Result::is_ok), "{done:?}");
    assert_eq!(world.aws.group(GROUP).expect("there").desired, 7);
    assert_eq!(world.target_size().await, 7);
}

/// cluster-autoscaler knows a maximum from before nodes began to leave. Refused, it would leave the group alone for minutes.
#[tokio::test(start_paused = true)]
async fn a_group_grows_by_as_much_as_there_is_room_for_and_is_refused_where_that_is_nothing() {
    let world = World::with(web(7).in_service(&["i-1", "i-2", "i-3"]).limits(0, 10)).under_way("i-1", true);
    assert_eq!(world.target_size().await, 6);
    world.increase(4).await.expect("by three");
    assert_eq!((world.asked(), world.target_size().await), (vec![set(7, 10, &[])], 9));
    let refused = world.increase(4).await.expect_err("no room");
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("would have 14 instances (1 of them still draining)"), "{refused}");
    assert_eq!((world.asked().len(), world.target_size().await), (1, 9));
}

#[tokio::test(start_paused = true)]
async fn a_group_of_all_or_nothing_grows_by_all_that_was_asked_for_or_not_at_all() {
    let mut group = web(2).in_service(&["i-1", "i-2"]).limits(0, 4);
    group.options.zero_or_max_node_scaling = Some(true);
    let world = World::with(group);
    assert_eq!(code(&world.increase(3).await), Code::FailedPrecondition);
    assert!(world.is_untouched());
    world.increase(2).await.expect("grown");
    assert_eq!(world.asked(), [set(2, 4, &[])]);
}

#[tokio::test(start_paused = true)]
async fn instances_in_service_are_protected_and_no_others_while_the_target_size_goes_down() {
    let group =
        web(5).in_service(&["i-1"]).with("i-2", Lifecycle::Pending).with("i-3", Lifecycle::Terminating);
    let world = World::with(group);
    world.decrease(-2).await.expect("lowered");
    assert_eq!(world.asked(), [set(5, 3, &["i-1"])]);
    assert_eq!(world.aws.calls(Operation::SetInstanceProtection), 1, "AWS refuses none of them");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_came_in_between_is_not_given_up() {
    let world = World::seen(web(2).in_service(&["i-1"]), &web(2).in_service(&["i-1", "i-2"]));
    assert_eq!(code(&world.decrease(-1).await), Code::Ok);
    assert!(world.is_untouched());
}

/// A description with the size before ours, after one that has shown ours: it is old, or somebody has set that size again.
#[tokio::test(start_paused = true)]
async fn a_size_that_somebody_has_set_again_is_neither_lowered_nor_grown_from_the_smaller() {
    let sized = |size| web(size).in_service(&["i-1", "i-2", "i-3", "i-4"]);
    let world = World::with(sized(8)).visited().await;
    let desired = || world.aws.group(GROUP).expect("there").desired;
    world.decrease(-3).await.expect("lowered");
    world.publish([sized(5)]);
    world.aws.set_desired(GROUP, 8);
    let is_not_lowered = async |sizes: &str| {
        let placeholder = world.listed().await.pop().expect("one is missing");
        for refused in [world.decrease(-1).await, world.delete(vec![unregistered(&placeholder)]).await] {
            let refused = refused.expect_err("the size is in doubt");
            assert_eq!(refused.code(), Code::Unavailable, "{refused}");
            assert!(refused.message().contains(sizes), "{refused}");
        }
    };
    is_not_lowered("desired capacity may be 8 or 5").await;
    world.increase(1).await.expect("grown");
    assert_eq!((desired(), world.target_size().await), (9, 9));
    // Somebody takes that back.
    world.publish([sized(9)]);
    world.aws.set_desired(GROUP, 8);
    is_not_lowered("desired capacity may be 8 or 9").await;

    // A refresh has seen it before AWS describes nothing.
    let world = World::with(sized(8)).visited().await;
    world.decrease(-3).await.expect("lowered");
    for size in [5, 8] {
        world.publish([sized(size)]);
    }
    world.aws.set_desired(GROUP, 8);
    world.aws.hang(&[Operation::DescribeAutoScalingGroups], true);
    world.increase(1).await.expect("grown");
    assert_eq!(world.aws.group(GROUP).expect("there").desired, 9);
}

/// From 1.36 on cluster-autoscaler takes a scale-up back when it is late, as many as it was for, however many of those have come.
#[tokio::test(start_paused = true)]
async fn a_scale_up_that_is_taken_back_takes_no_replacement_along() {
    let world = World::with(web(5).in_service(&["i-1", "i-2", "i-3", "i-4"]));
    assert_eq!(world.listed().await.last().expect("one is missing"), "i-placeholder-web-4");
    tokio::time::advance(Duration::from_mins(15)).await;
    // The group replaces two meanwhile.
    let left = web(5).in_service(&["i-1", "i-2"]);
    world.exists(&left);
    world.publish([left]);
    let replacements = ["i-placeholder-web-5", "i-placeholder-web-6"];
    assert_eq!(world.listed().await[3..], replacements);
    world.decrease(-3).await.expect("the one");
    assert_eq!(world.asked(), [set(5, 4, &["i-1", "i-2"])]);
    assert_eq!(world.listed().await, [&["i-1", "i-2"][..], &replacements].concat());
    world.decrease(-3).await.expect("none");
    assert_eq!((world.asked().len(), world.target_size().await), (1, 4));
}

#[tokio::test(start_paused = true)]
async fn an_answer_comes_before_the_client_gives_up_and_a_doubt_asks_for_a_new_refresh() {
    let world = World::with(web(1).in_service(&["i-1"])).visited().await;
    world.aws.hang(&[Operation::DescribeAutoScalingGroups, Operation::SetDesiredCapacity], true);
    let before = tokio::time::Instant::now();
    world.decrease(-1).await.expect_err("no answer");
    assert_eq!(before.elapsed().as_secs(), 3);
    // A size that goes up is tried without the description.
    let before = tokio::time::Instant::now();
    world.increase(1).await.expect_err("no answer");
    assert_eq!(before.elapsed().as_secs(), 4);
    // Two calls of 2.5 s each: the second one has no 3 s left.
    let world = World::with(web(1).in_service(&["i-1"]));
    world.aws.delay(Duration::from_millis(2500), Duration::ZERO);
    let before = tokio::time::Instant::now();
    assert_eq!(code(&world.increase(1).await), Code::DeadlineExceeded);
    assert_eq!(before.elapsed().as_secs(), 4);
    assert!(world.groups.refresh_wanted().now_or_never().is_some(), "the size may have been set");
}

/// As when the machine was suspended: another process may have set another size meanwhile.
#[tokio::test(start_paused = true)]
async fn no_size_is_set_that_was_decided_from_a_description_from_before_a_pause() {
    for delta in [1, -1] {
        let world = World::with(web(3).in_service(&["i-1"]));
        let clock = world.clock.clone();
        let pause = move |_: &mut State, _: Timestamp| clock.step(SignedDuration::from_mins(1));
        world.aws.before_next(Operation::DescribeAutoScalingGroups, pause);
        let call = async || if delta > 0 { world.increase(delta).await } else { world.decrease(delta).await };
        assert_eq!(code(&call().await), Code::Unavailable, "{delta}");
        assert_eq!(world.aws.group(GROUP).expect("there").desired, 3);
        call().await.expect("by a description of now");
    }
}

/// Dead connections, and a last refresh that is hours old though the machine's own clock stood still.
#[tokio::test(start_paused = true)]
async fn a_machine_that_was_suspended_sets_no_size_by_what_it_saw_before() {
    for suspended in [false, true] {
        let world = World::with(web(3).in_service(&["i-1"])).visited().await;
        world.aws.hang(&[Operation::DescribeAutoScalingGroups], true);
        if suspended {
            world.clock.step(SignedDuration::from_hours(1));
        }
        let answer = world.increase(1).await;
        assert_eq!(answer.is_err(), suspended, "{answer:?}");
        assert_eq!(world.aws.group(GROUP).expect("there").desired, if suspended { 3 } else { 4 });
    }
}
