//! What AWS refuses at first: tried again while cluster-autoscaler waits, for which a failed change means that it leaves the
//! group alone for minutes.

use std::time::Duration;

use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupDeleteNodesRequest, RefreshRequest};
use ebbtide::sim::aws::{
    Behaviour, LifecycleState, Lose, Operation, Refusal, TerminationCause, Timing, Trouble, Which,
};
use ebbtide::sim::program::{Program, config, second};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::scene::{GROUP, SOON, Scene, ZONE, code, eventually, group, placeholder};

/// What cluster-autoscaler waits for an answer.
const CALL: Duration = Duration::from_secs(5);

const THROTTLED: Refusal = Refusal { code: "Throttling", status: 400, message: "Rate exceeded" };
const BUSY: Refusal = Refusal {
    code: "ScalingActivityInProgress",
    status: 400,
    message: "Scaling activity 1 is in progress and blocks this action",
};
const CONTENTION: Refusal = Refusal {
    code: "ResourceContention",
    status: 500,
    message: "You already have a pending update to an Amazon EC2 Auto Scaling resource",
};

/// What answers in AWS's place, and what of it has no code: nothing, a page for people, JSON.
const NO_WORD: Refusal = Refusal { code: "", status: 503, message: "" };
const PAGE: Refusal = Refusal {
    code: "",
    status: 503,
    message: "<html><body><h1>503 Service Temporarily Unavailable</h1></body></html>",
};
const OTHER_JSON: Refusal = Refusal { code: "", status: 500, message: r#"{"message":null}"# };

/// A group of two Nodes, and a third instance that has none and never will.
async fn with_an_instance_that_never_registers() -> (Scene, ExternalGrpcNode) {
    let never = Timing { boot: Span::exactly(Duration::from_hours(10)), ..Timing::default() };
    let scene = Scene::on(near(), [group(GROUP, 2).timing(never)]).await;
    scene.increase(1).await.expect("grown");
    let pending = |scene: &Scene| {
        let group = scene.world.aws.group(GROUP).expect("a group");
        group.in_state(LifecycleState::Pending).first().map(|&id| id.to_owned())
    };
    assert!(scene.world.until(SOON, |_| pending(&scene).is_some()).await);
    let provider_id = format!("aws:///{ZONE}/{}", pending(&scene).expect("just seen"));
    assert!(eventually(SOON, || async { scene.listed().await.contains_key(&provider_id) }).await);
    let node = ExternalGrpcNode { name: provider_id.clone(), provider_id, ..ExternalGrpcNode::default() };
    scene.is_visited().await;
    (scene, node)
}

/// A world in which no call takes a second.
fn near() -> World {
    let world = World::new(1);
    world.aws.behave(Behaviour { way: Span::millis(10, 150), ..Behaviour::HARSH });
    world
}

/// Changes something while AWS refuses the call so many times, and asserts that it took as many more and came in time.
async fn is_done_in_time(
    scene: &Scene,
    operation: Operation,
    refusal: Refusal,
    times: u32,
    change: impl Future<Output = Result<(), Status>>,
) {
    let what = format!("{operation} refused {times} times with {}", refusal.code);
    scene.world.aws.refuse_next(operation, refusal, Lose::BeforeEffect, times);
    let (before, began) = (scene.world.aws.calls(operation), Instant::now());
    change.await.unwrap_or_else(|status| panic!("{what}: {status}"));
    assert!(began.elapsed() < CALL, "{what}: {:?}", began.elapsed());
    assert_eq!(scene.world.aws.calls(operation) - before, times as usize + 1, "{what}");
}

#[tokio::test(start_paused = true)]
async fn a_size_that_aws_refuses_once_or_twice_goes_up_within_the_call() {
    for refusal in [THROTTLED, BUSY, CONTENTION, NO_WORD, PAGE, OTHER_JSON] {
        for times in [1, 2] {
            let scene = Scene::on(near(), [group(GROUP, 2)]).await;
            let change = scene.increase(1);
            is_done_in_time(&scene, Operation::SetDesiredCapacity, refusal, times, change).await;
            assert_eq!((scene.desired(), scene.target().await), (3, 3));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_aws_refuses_once_or_twice_goes_down_within_the_call() {
    for refusal in [THROTTLED, BUSY, CONTENTION, PAGE] {
        for times in [1, 2] {
            let scene = Scene::on(near(), [group(GROUP, 2)]).await;
            scene.short_of(2).await;
            let change = scene.decrease(-1);
            is_done_in_time(&scene, Operation::SetDesiredCapacity, refusal, times, change).await;
            assert_eq!((scene.desired(), scene.target().await), (3, 3));
            let change = scene.delete(GROUP, vec![placeholder(3)]);
            is_done_in_time(&scene, Operation::SetDesiredCapacity, refusal, times, change).await;
            assert_eq!((scene.desired(), scene.target().await), (2, 2));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_a_node_whose_end_aws_refuses_once_or_twice_ends_within_the_call() {
    for refusal in [THROTTLED, BUSY] {
        for times in [1, 2] {
            let (scene, node) = with_an_instance_that_never_registers().await;
            let change = scene.delete(GROUP, vec![node]);
            let operation = Operation::TerminateInstanceInAutoScalingGroup;
            is_done_in_time(&scene, operation, refusal, times, change).await;
            assert_eq!((scene.desired(), scene.target().await), (2, 2));
        }
    }
}

/// A proxy, say, that lets through only what others need.
#[tokio::test(start_paused = true)]
async fn where_protection_is_not_to_be_had_aws_own_words_say_so_and_not_that_the_group_is_busy() {
    let unknown = Refusal {
        code: "InvalidAction",
        status: 400,
        message: "Could not find operation SetInstanceProtection for version 2011-01-01.",
    };
    let scene = Scene::on(near(), [group(GROUP, 2)]).await;
    scene.short_of(2).await;
    scene.world.aws.refuse_next(Operation::SetInstanceProtection, unknown, Lose::BeforeEffect, u32::MAX);
    let status = scene.decrease(-1).await.expect_err("not lowered");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("Could not find operation"), "{status}");
    assert_eq!(scene.desired(), 4);
}

/// The next descriptions of the group alone leave it out.
fn leave_out(scene: &Scene, which: fn(Which) -> Which) {
    let descriptions = Which::of(&[Operation::DescribeAutoScalingGroups]).about(GROUP);
    scene.world.aws.trouble(which(descriptions), Trouble::Without(GROUP.to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_a_description_or_two_leave_out_grows_within_the_call() {
    for which in [(|which| which) as fn(Which) -> Which, |which| which.times(2)] {
        let scene = Scene::on(near(), [group(GROUP, 2)]).await;
        leave_out(&scene, which);
        let began = Instant::now();
        scene.increase(1).await.expect("grown");
        assert!(began.elapsed() < CALL, "{:?}", began.elapsed());
        assert_eq!((scene.desired(), scene.target().await), (3, 3));
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_no_description_shows_may_be_there_again_in_the_next_loop() {
    let scene = Scene::on(near(), [group(GROUP, 2)]).await;
    leave_out(&scene, |which| which.lasting(SOON));
    let began = Instant::now();
    let status = scene.increase(1).await.expect_err("not shown");
    assert_eq!(status.code(), Code::Unavailable, "{status}");
    assert!(status.message().contains("descriptions of group web leave it out"), "{status}");
    assert!(began.elapsed() < CALL, "{:?}", began.elapsed());
    tokio::time::sleep(SOON).await;
    scene.increase(1).await.expect("grown");
    assert_eq!((scene.desired(), scene.target().await), (3, 3));
}

#[tokio::test(start_paused = true)]
async fn what_aws_goes_on_to_refuse_is_answered_in_time_and_not_done_later() {
    for refusal in [THROTTLED, BUSY] {
        let scene = Scene::with([group(GROUP, 2)]).await;
        let (operation, side) = (Operation::SetDesiredCapacity, Lose::BeforeEffect);
        scene.world.aws.refuse_next(operation, refusal, side, u32::MAX);
        let began = Instant::now();
        assert_eq!(code(&scene.increase(1).await), Code::Unavailable);
        assert!(began.elapsed() < CALL, "{:?}", began.elapsed());
        scene.world.aws.refuse_next(operation, refusal, side, 0);
        tokio::time::sleep(SOON).await;
        assert_eq!((scene.desired(), scene.target().await), (2, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn contention_that_lasts_says_nothing_of_the_effect_and_keeps_no_other_size_from_being_set() {
    for (side, desired) in [(Lose::BeforeEffect, 2), (Lose::AfterEffect, 3)] {
        let scene = Scene::with([group(GROUP, 2)]).await;
        scene.world.aws.refuse_next(Operation::SetDesiredCapacity, CONTENTION, side, u32::MAX);
        assert_eq!(code(&scene.increase(1).await), Code::Unavailable);
        scene.world.aws.refuse_next(Operation::SetDesiredCapacity, CONTENTION, side, 0);
        let told = || async { scene.target().await == desired as i32 };
        assert!(eventually(CALL, told).await, "{side:?}: a refresh shows what became of it");
        assert_eq!(scene.desired(), desired, "{side:?}");
        scene.increase(1).await.expect("what was answered does not come late");
        assert_eq!(scene.desired(), desired + 1, "{side:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_a_server_before_aws_answers_for_may_still_come_unless_the_same_one_is_set_after_it() {
    let size = || Which::of(&[Operation::SetDesiredCapacity]);
    let scene = Scene::on(near(), [group(GROUP, 2)]).await;
    scene.world.aws.trouble(size(), Trouble::Refused(PAGE, Lose::AfterEffect));
    scene.increase(1).await.expect("set again");
    scene.increase(1).await.expect("nothing is to come");
    assert_eq!((scene.desired(), scene.target().await), (4, 4));

    scene.world.aws.trouble(size(), Trouble::Refused(PAGE, Lose::BeforeEffect));
    scene.world.aws.trouble(size().times(9), Trouble::Refused(CONTENTION, Lose::BeforeEffect));
    assert_eq!(code(&scene.increase(2).await), Code::Unavailable);
    scene.world.aws.no_more_trouble();
    let status = scene.increase(1).await.expect_err("the first may still come");
    assert!(status.message().contains("an earlier change of its size to 6"), "{status}");
    tokio::time::sleep(Duration::from_mins(2)).await;
    scene.increase(1).await.expect("it has not come");
    assert_eq!((scene.desired(), scene.target().await), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_a_server_before_aws_answers_for_is_not_sent_again() {
    for refusal in [NO_WORD, PAGE, OTHER_JSON] {
        for side in [Lose::BeforeEffect, Lose::AfterEffect] {
            let (scene, node) = with_an_instance_that_never_registers().await;
            let terminate = Operation::TerminateInstanceInAutoScalingGroup;
            scene.world.aws.refuse_next(terminate, refusal, side, 1);
            scene.delete(GROUP, vec![node]).await.expect_err("it may have had its effect");
            assert_eq!(scene.world.aws.calls(terminate), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contention_while_a_size_goes_down_keeps_instances_protected_as_if_it_had() {
    for side in [Lose::BeforeEffect, Lose::AfterEffect] {
        let scene = Scene::with([group(GROUP, 2)]).await;
        scene.short_of(2).await;
        // Refusals that follow say nothing of the first.
        let size = || Which::of(&[Operation::SetDesiredCapacity]);
        scene.world.aws.trouble(size().times(1), Trouble::Refused(CONTENTION, side));
        scene.world.aws.trouble(size().lasting(CALL), Trouble::Refused(BUSY, Lose::BeforeEffect));
        assert_eq!(code(&scene.decrease(-2).await), Code::Unavailable);
        tokio::time::sleep(Duration::from_secs(25)).await;
        assert_eq!(scene.protected(), 2, "{side:?}");
        assert!(scene.world.until(SOON, |_| scene.protected() == 0).await, "{side:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_without_a_node_is_terminated_once_however_late_descriptions_are_and_whatever_aws_answers()
 {
    for is_unreadable in [false, true] {
        let (scene, node) = with_an_instance_that_never_registers().await;
        scene.world.until(Duration::from_secs(50), |_| false).await;
        scene.is_visited().await;
        let describe = Operation::DescribeAutoScalingGroups;
        let late = Which::of(&[describe]).lasting(Duration::from_mins(5));
        scene.world.aws.trouble(late, Trouble::Stale(Duration::from_mins(2)));
        let terminate = Operation::TerminateInstanceInAutoScalingGroup;
        if is_unreadable {
            scene.world.aws.trouble(Which::of(&[terminate]).times(9), Trouble::Unreadable);
        }
        for _ in 0..10 {
            scene.delete(GROUP, vec![node.clone()]).await.expect("it ends");
            scene.world.until(Duration::from_secs(10), |_| false).await;
        }
        assert_eq!((scene.world.aws.calls(terminate), scene.desired()), (1, 2));
    }
}

/// Its group would lose a healthy one for the second decrement.
#[tokio::test(start_paused = true)]
async fn an_instance_without_a_node_that_another_process_has_terminated_is_not_terminated_again() {
    for restarts in [false, true] {
        let (mut scene, node) = with_an_instance_that_never_registers().await;
        let other = Program::start(&scene.world, second(config()));
        scene.world.until(SOON, |_| false).await;
        let describe = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(Duration::from_mins(5));
        scene.world.aws.trouble(describe, Trouble::Stale(Duration::from_mins(2)));
        scene.is_visited().await;
        scene.delete(GROUP, vec![node.clone()]).await.expect("it ends");
        if restarts {
            scene = scene.restarted().await;
            scene.answers().await;
        }
        let program = if restarts { &scene.program } else { &other };
        let mut codes = Vec::new();
        for _ in 0..16 {
            program.client().refresh(RefreshRequest {}).await.expect("answered");
            let request = NodeGroupDeleteNodesRequest { id: GROUP.into(), nodes: vec![node.clone()] };
            codes.push(code(&program.client().node_group_delete_nodes(request).await));
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        let terminations = scene.world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup);
        assert_eq!((terminations, scene.desired()), (1, 2), "{codes:?}");
        assert!(codes[0] == Code::Unavailable && codes.contains(&Code::Ok), "{codes:?}");
    }
}

/// With an error cluster-autoscaler would ask for it in every loop, and be told each time that it is done.
#[tokio::test(start_paused = true)]
async fn what_the_minimum_keeps_beside_a_termination_without_an_answer_bears_no_error_meanwhile() {
    let never = Timing { boot: Span::exactly(Duration::from_hours(10)), ..Timing::default() };
    let scene = Scene::with([group(GROUP, 2).size(2, 10, 2).timing(never)]).await;
    let before = scene.in_service(GROUP);
    scene.world.aws.terminate(&before[0], TerminationCause::HealthCheck);
    let pending =
        || scene.world.aws.group(GROUP).expect("a group").in_state(LifecycleState::Pending).concat();
    assert!(
        scene.world.until(SOON, |_| !pending().is_empty()).await,
        "its replacement, which never registers"
    );
    let provider_id = format!("aws:///{ZONE}/{}", pending());
    let bare = ExternalGrpcNode { name: provider_id.clone(), provider_id, ..ExternalGrpcNode::default() };
    scene.short_of(1).await;
    let bears_an_error = || async {
        let listed = scene.listed().await;
        let missing = listed.get(&placeholder(2).provider_id).expect("it is missing");
        missing.status.as_ref().is_some_and(|status| status.error_info.is_some())
    };
    assert!(eventually(SOON, bears_an_error).await);
    scene.is_visited().await;
    let terminate = Which::of(&[Operation::TerminateInstanceInAutoScalingGroup]);
    scene.world.aws.trouble(terminate.times(9), Trouble::Silent(Lose::BeforeEffect));
    scene.delete(GROUP, vec![bare]).await.expect_err("AWS does not answer");
    scene.delete(GROUP, vec![placeholder(2)]).await.expect("as far as that goes");
    assert_eq!(scene.desired(), 3, "the minimum and what is being terminated");
    assert!(!bears_an_error().await);
    assert!(eventually(Duration::from_mins(3), bears_an_error).await, "it was not terminated after all");
    scene.delete(GROUP, vec![placeholder(2)]).await.expect("given up");
    assert_eq!(scene.desired(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_termination_whose_caller_has_given_up_keeps_its_turn_until_it_has_its_effect() {
    let (scene, node) = with_an_instance_that_never_registers().await;
    let takes = |operation, millis| {
        let time = Duration::from_millis(millis);
        scene.world.aws.delay_some(&[operation], 1.0, time, time);
    };
    takes(Operation::TerminateInstanceInAutoScalingGroup, 2_400);
    takes(Operation::SetDesiredCapacity, 1_000);
    let given_up = tokio::time::timeout(Duration::from_secs(1), scene.delete(GROUP, vec![node])).await;
    assert!(given_up.is_err(), "AWS has not carried it out yet");
    scene.increase(1).await.expect("grown");
    assert_eq!(scene.desired(), 3, "one more, and one less");
}

#[tokio::test(start_paused = true)]
async fn a_size_that_waits_for_another_one_of_its_group_is_answered_in_time() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    scene.short_of(2).await;
    scene.world.aws.hang(&[Operation::SetDesiredCapacity], true);
    // It comes when the first one has waited for some time, which goes on at AWS when its caller has been told.
    let second = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        (scene.decrease(-1).await, began.elapsed())
    };
    let (first, (second, took)) = tokio::join!(scene.decrease(-1), second);
    assert!(first.is_err() && second.is_err(), "{first:?} {second:?}");
    assert!(took < CALL, "{took:?}");
}
