//! DeleteNodes.

use std::sync::Arc;
use std::time::Duration;

use ebbtide::aws::Lifecycle;
use ebbtide::groups::Group;
use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupDeleteNodesRequest, RefreshRequest};
use ebbtide::sim::aws::{Lose, Operation, Refusal, State, Trouble, Which};
use futures::future::join_all;
use jiff::{SignedDuration, Timestamp};
use tonic::Code;

use crate::world::{Asked, GROUP, With as _, World, code, failure, node, placeholders, unregistered, web};

const TERMINATE: Operation = Operation::TerminateInstanceInAutoScalingGroup;

fn three() -> Group {
    web(3).in_service(&["i-1", "i-2", "i-3"])
}

fn terminated(instance: &str) -> Asked {
    Asked::Terminate { instance: instance.into() }
}

#[tokio::test(start_paused = true)]
async fn the_target_size_is_lower_as_soon_as_the_call_has_returned_and_nothing_is_terminated() {
    let world = World::with(three()).registered(&["i-1", "i-2", "i-3"]);
    world.delete(vec![node("i-1"), node("i-2")]).await.expect("accepted");
    assert_eq!(world.target_size().await, 1);
    assert_eq!(world.accepted(), ["n-1", "n-2"]);
    assert_eq!((world.asked(), world.aws.calls(Operation::DescribeAutoScalingGroups)), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_that_would_have_been_replaced_becomes_one_that_lowers_the_size() {
    let world = World::with(three()).registered(&["i-1"]).under_way("i-1", false);
    world.delete(vec![node("i-1")]).await.expect("accepted");
    assert_eq!((world.target_size().await, world.accepted()), (2, vec!["n-1".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_not_of_the_group_is_not_found_and_spoils_a_batch() {
    let world = World::with(three().with("i-detached", Lifecycle::Detaching)).registered(&["i-1", "i-9"]);
    let mut other = web(1).in_service(&["i-9"]);
    Arc::make_mut(&mut other.asg).name = "other".into();
    world.publish([three().with("i-detached", Lifecycle::Detaching), other]);
    world.leaving.now().under_way.insert(("other".into(), "i-gone".into()), true);
    let strangers = [
        node("i-9"),
        node("i-unknown"),
        node("i-detached"),
        node("i-gone"),
        unregistered("i-placeholder-other-0"),
        ExternalGrpcNode { name: "n-1".into(), ..Default::default() },
        ExternalGrpcNode { provider_id: "gce:///z/i-1".into(), ..Default::default() },
    ];
    for stranger in strangers {
        assert_eq!(code(&world.delete(vec![stranger.clone()]).await), Code::NotFound, "{stranger:?}");
        let batch = vec![node("i-1"), stranger.clone()];
        let refused = world.delete(batch).await.expect_err("one of them is wrong");
        assert_eq!(refused.code(), Code::InvalidArgument, "{stranger:?}");
        let named = if stranger.provider_id.is_empty() { &stranger.name } else { &stranger.provider_id };
        assert!(refused.message().contains(named.as_str()), "{refused}");
    }
    assert!(world.is_untouched());
    let request = NodeGroupDeleteNodesRequest { id: "nobody's".into(), nodes: vec![] };
    let unknown = world.client().await.node_group_delete_nodes(request).await;
    assert_eq!(code(&unknown), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn batches_at_the_same_time_do_not_pass_the_minimum_together() {
    let world = World::with(three().limits(2, 10)).registered(&["i-1", "i-2", "i-3"]);
    let done = join_all([world.delete(vec![node("i-1")]), world.delete(vec![node("i-2")])]).await;
    let mut codes: Vec<_> = done.iter().map(code).collect();
    codes.sort_by_key(|code| *code as i32);
    assert_eq!(codes, [Code::Ok, Code::FailedPrecondition]);
    assert_eq!(world.accepted().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_launched_in_place_of_a_placeholder_lives() {
    let fresh = web(4).in_service(&["i-1", "i-2"]).with("i-3", Lifecycle::Pending);
    let world = World::seen(web(4).in_service(&["i-1", "i-2"]), &fresh);
    world.delete(placeholders(2..4)).await.expect("one of them is given up");
    let protect = ["i-1", "i-2"].map(str::to_owned).to_vec();
    assert_eq!(world.asked(), [Asked::Set { from: 4, to: 3, protect }]);
    assert_eq!(world.target_size().await, 3);
}

/// Or the last of them would have been emptied in vain.
#[tokio::test(start_paused = true)]
async fn what_never_came_is_not_given_up_below_the_minimum_that_nodes_being_drained_will_need() {
    let mut group = web(5).in_service(&["i-1", "i-2", "i-3", "i-4"]).limits(3, 10);
    group.failure = Some(failure(1));
    let world = World::with(group).registered(&["i-1", "i-2", "i-3"]);
    assert_eq!(world.with_errors().await, ["i-placeholder-web-4"], "it can be given up");
    // cluster-autoscaler begins to drain two.
    world.leaving.now().tainted = ["i-1".into(), "i-2".into()].into();
    assert_eq!(world.with_errors().await, [""; 0]);
    world.delete(placeholders(4..5)).await.expect("nothing to do");
    world.decrease(-1).await.expect("nothing to do");
    assert_eq!(code(&world.delete(vec![unregistered("i-4")]).await), Code::FailedPrecondition);
    assert_eq!(world.asked(), []);
    world.delete(vec![node("i-1")]).await.expect("accepted");
    world.delete(vec![node("i-2")]).await.expect("accepted");
    assert_eq!(world.accepted(), ["n-1", "n-2"]);
}

/// Or all of them would run until that node is empty.
#[tokio::test(start_paused = true)]
async fn as_many_instances_that_never_registered_are_terminated_as_the_minimum_allows_beside_a_node_being_drained()
 {
    let group = web(4).in_service(&["i-1", "i-2", "i-3", "i-4"]).limits(2, 10);
    let world = World::with(group).registered(&["i-1", "i-2"]).visited().await;
    world.leaving.now().tainted = ["i-1".into()].into();
    let batch = || vec![unregistered("i-3"), unregistered("i-4")];
    for _ in 0..2 {
        let kept = world.delete(batch()).await.expect_err("one of them stays");
        assert_eq!(kept.code(), Code::FailedPrecondition);
        assert_eq!(world.asked(), [terminated("i-3")]);
    }
    world.delete(vec![node("i-1")]).await.expect("the minimum is kept with it");
    assert_eq!(world.accepted(), ["n-1"]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_may_not_be_terminated_keeps_no_placeholder() {
    let mut group = web(4).in_service(&["i-1", "i-2"]).limits(0, 10);
    Arc::make_mut(&mut group.asg).suspended.insert("Terminate".into());
    let world = World::with(group).registered(&["i-1"]).visited().await;
    let mut batch = placeholders(2..4);
    batch.push(unregistered("i-2"));
    let kept = world.delete(batch).await.expect_err("it stays");
    assert_eq!(kept.code(), Code::FailedPrecondition);
    assert!(kept.message().contains("group web cannot shrink: its process Terminate is suspended"), "{kept}");
    assert_eq!(world.asked(), [Asked::Set { from: 4, to: 2, protect: vec!["i-1".into(), "i-2".into()] }]);
    assert_eq!(world.target_size().await, 2);
}

#[tokio::test(start_paused = true)]
async fn placeholders_that_cannot_be_given_up_keep_no_instance_alive_that_never_registered() {
    let world = World::with(web(5).in_service(&["i-1", "i-2"])).registered(&["i-1"]).visited().await;
    world.aws.deny(Operation::SetDesiredCapacity, true);
    let mut batch = placeholders(2..4);
    batch.push(unregistered("i-2"));
    assert_eq!(code(&world.delete(batch).await), Code::FailedPrecondition);
    assert_eq!(world.asked(), [terminated("i-2")]);
}

/// It is empty, and would be opened again if its call failed.
#[tokio::test(start_paused = true)]
async fn a_drained_node_waits_for_no_termination_of_an_instance_that_never_registered() {
    let world = World::with(three()).registered(&["i-1", "i-3"]).visited().await;
    world.aws.trouble(Which::of(&[TERMINATE]), Trouble::Late(Duration::from_millis(2_500)));
    let drained = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let before = tokio::time::Instant::now();
        world.delete(vec![node("i-1")]).await.expect("accepted");
        assert!(before.elapsed() < Duration::from_secs(1), "{:?}", before.elapsed());
        // The one that is being terminated counts already: the minimum is 1.
        assert_eq!(code(&world.delete(vec![node("i-3")]).await), Code::FailedPrecondition);
        assert_eq!(world.asked(), []);
    };
    let (terminating, ()) = tokio::join!(world.delete(vec![unregistered("i-2")]), drained);
    terminating.expect("terminated");
    assert_eq!((world.asked(), world.accepted()), (vec![terminated("i-2")], vec!["n-1".to_owned()]));
    assert_eq!(world.target_size().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_termination_whose_answer_was_lost_is_not_repeated_while_descriptions_may_lag() {
    let world = World::with(three()).registered(&["i-1"]).visited().await;
    world.aws.trouble(Which::of(&[TERMINATE]).times(u32::MAX), Trouble::Lost(Lose::BeforeEffect));
    for _ in 0..13 {
        world.is_visited().await;
        assert_eq!(code(&world.delete(vec![unregistered("i-2")]).await), Code::Unavailable);
        tokio::time::advance(Duration::from_secs(9)).await;
    }
    assert_eq!(world.asked(), [terminated("i-2")]);
    world.aws.no_more_trouble();
    tokio::time::advance(Duration::from_secs(3)).await;
    world.is_visited().await;
    world.delete(vec![unregistered("i-2")]).await.expect("it is still in service: it was not carried out");
    assert_eq!(world.asked(), [terminated("i-2"), terminated("i-2")]);
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_was_never_sent_is_sent_by_the_next_call() {
    let expired = Refusal { code: "ExpiredToken", status: 403, message: "of yesterday" };
    let world = World::with(three()).registered(&["i-1"]).visited().await;
    world.aws.refuse_next(TERMINATE, expired, Lose::BeforeEffect, u32::MAX);
    assert_eq!(code(&world.delete(vec![unregistered("i-2")]).await), Code::Unavailable);
    world.aws.refuse_next(TERMINATE, expired, Lose::BeforeEffect, 0);
    world.delete(vec![unregistered("i-2")]).await.expect("AWS has not heard of it");
    assert_eq!(world.asked(), [terminated("i-2")]);
}

/// Otherwise a healthy node would go as well.
#[tokio::test(start_paused = true)]
async fn an_instance_that_never_registered_goes_without_a_decrement_where_its_replacement_has_been_launched()
{
    // Replacements, how many are unhealthy, and the size after it: one replacement is not that of two.
    for (replacements, unhealthy, desired) in [(1, 1, 3), (0, 1, 2), (1, 0, 2), (1, 2, 2)] {
        let mut group = three();
        let of_group = Arc::make_mut(&mut group.asg);
        of_group.instances.iter_mut().skip(1).take(unhealthy).for_each(|one| one.unhealthy = true);
        let group = (0..replacements).fold(group, |group, _| group.with("i-4", Lifecycle::Pending));
        let world = World::with(group).registered(&["i-1", "i-3"]).visited().await;
        world.delete(vec![unregistered("i-2")]).await.expect("terminated");
        assert_eq!(world.asked(), [terminated("i-2")]);
        assert_eq!(world.aws.group("web").expect("the group").desired, desired, "{replacements} {unhealthy}");
    }
}

/// As after a bad image: what the time of a call was too short for is nothing that AWS may have heard of.
#[tokio::test(start_paused = true)]
async fn terminations_that_a_large_batch_had_no_time_for_are_sent_by_the_next_call() {
    let cancelled = [Duration::from_secs(3), Duration::from_mins(1)];
    for after in cancelled {
        let ids: Vec<String> = (1..=24).map(|n| format!("i-{n}")).collect();
        let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
        let world = World::with(web(24).in_service(&ids).limits(0, 30)).registered(&["i-1"]).visited().await;
        let batch = || ids[1..].iter().map(|id| unregistered(id)).collect::<Vec<_>>();
        let late = |operation, times, seconds| {
            world
                .aws
                .trouble(Which::of(&[operation]).times(times), Trouble::Late(Duration::from_secs(seconds)));
        };
        late(Operation::DescribeAutoScalingGroups, 1, 2);
        late(TERMINATE, 16, 3);
        let first = tokio::time::timeout(after, world.delete(batch())).await;
        assert_eq!(first.is_ok(), after.as_secs() > 4);
        world.aws.no_more_trouble();
        world.is_visited().await;
        world.delete(batch()).await.expect("AWS is at sixteen and has not heard of the others");
        assert_eq!(world.asked(), ids[1..].iter().map(|id| terminated(id)).collect::<Vec<_>>());
    }
}

/// As when the machine was suspended: it may have registered meanwhile, and have workloads.
#[tokio::test(start_paused = true)]
async fn no_instance_is_terminated_that_had_no_node_before_a_pause() {
    let world = World::with(three()).registered(&["i-1"]).visited().await;
    let clock = world.clock.clone();
    let pause = move |_: &mut State, _: Timestamp| clock.step(SignedDuration::from_mins(1));
    world.aws.before_next(Operation::DescribeAutoScalingGroups, pause);
    assert_eq!(code(&world.delete(vec![unregistered("i-2")]).await), Code::Unavailable);
    assert_eq!(world.asked(), []);
    world.delete(vec![unregistered("i-2")]).await.expect("it still has none");
    assert_eq!(world.asked(), [terminated("i-2")]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_everything_does_everything() {
    let world = World::with(web(6).in_service(&["i-1", "i-2", "i-3"])).registered(&["i-1"]).visited().await;
    let mut batch = placeholders(3..5);
    batch.extend([node("i-1"), unregistered("i-2")]);
    world.delete(batch).await.expect("done");
    assert_eq!(world.accepted(), ["n-1"]);
    let protect = ["i-1", "i-2", "i-3"].map(str::to_owned).to_vec();
    assert_eq!(world.asked(), [Asked::Set { from: 6, to: 4, protect }, terminated("i-2")]);
    assert_eq!(world.target_size().await, 2);
}

#[tokio::test(start_paused = true)]
async fn what_was_not_recorded_is_named_and_the_rest_stands() {
    let world = World::with(web(5).in_service(&["i-1", "i-2", "i-3", "i-4", "i-5"]))
        .registered(&["i-1", "i-2", "i-3", "i-4"]);
    world.leaving.now().refuses = ["n-2".into()].into();
    world.leaving.now().hangs = ["n-3".into()].into();
    let before = tokio::time::Instant::now();
    let refused = world.delete(["i-1", "i-2", "i-3", "i-4"].map(node).to_vec()).await.expect_err("not all");
    assert_eq!(before.elapsed(), Duration::from_secs(3));
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().starts_with("2 of 4 nodes were not scaled in: "), "{refused}");
    for text in ["n-2: the scale-in of node n-2 could not be recorded", "n-3: recording the scale-in was not"]
    {
        assert!(refused.message().contains(text), "{refused}");
    }
    assert_eq!((world.accepted(), world.target_size().await), (vec!["n-1".to_owned(), "n-4".to_owned()], 3));
}

#[tokio::test(start_paused = true)]
async fn an_error_of_aws_about_placeholders_stops_the_batch_before_it_has_begun() {
    let world = World::with(web(4).in_service(&["i-1", "i-2"])).registered(&["i-1"]);
    world.aws.throttle_next(Operation::DescribeAutoScalingGroups, u32::MAX);
    let mut batch = placeholders(2..3);
    batch.push(node("i-1"));
    assert_eq!(code(&world.delete(batch).await), Code::Unavailable);
    assert!(world.is_untouched());
    assert_eq!(world.target_size().await, 4);
    world.aws.throttle_next(Operation::DescribeAutoScalingGroups, 0);
    world.delete(placeholders(2..3)).await.expect("given up");
}

/// As where it computes for most of some loops.
#[tokio::test(start_paused = true)]
async fn an_autoscaler_that_is_silent_for_most_of_every_other_loop_has_not_been_elsewhere() {
    let world = World::with(three()).registered(&["i-1"]);
    let mut client = world.client().await;
    for seconds in [12, 50].repeat(4) {
        world.refresh_view();
        client.refresh(RefreshRequest {}).await.expect("answered");
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }
    let request =
        |instance| NodeGroupDeleteNodesRequest { id: GROUP.into(), nodes: vec![unregistered(instance)] };
    client.node_group_delete_nodes(request("i-2")).await.expect("terminated");
    // Over another connection it may have come from anywhere.
    tokio::time::advance(Duration::from_secs(50)).await;
    let answer = world.client().await.node_group_delete_nodes(request("i-3")).await;
    assert_eq!(code(&answer), Code::Unavailable, "{answer:?}");
    assert_eq!(world.asked(), [terminated("i-2")]);
}
