//! Lifecycle hooks: ours is kept waiting for as long as it takes and then completed, other people's are left alone.

use std::sync::Arc;

use ebbtide::aws::Aws;
use ebbtide::sim::aws::{
    Event, HookResult, HookSpec, LifecycleState, Lose, Operation, Refusal, TerminationCause, Timing, Trouble,
    Which,
};
use ebbtide::sim::cluster::{By, Fault, NodeSpec, Verb, budget, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use tracing::Level;

use crate::clusters::{OURS, of_ours};
use crate::journal_queries::{
    a_hook_timed_out, asked, aws_moments, has_exited, in_phase, is_asked, longest_silence, notes, records,
    terminations,
};
use crate::replicas::other;
use crate::scene::{Cause, Scene, group, held_group, seconds, state};

/// Heartbeats go out at half the time-out of a hook of 60 s; a refresh and a try more is no silence.
fn assert_kept_waiting(scene: &Scene, machine: &crate::scene::Machine) {
    let silence = longest_silence(&scene.world, machine);
    assert!(silence <= SignedDuration::from_secs(35), "{silence} without a heartbeat");
    scene.assert_left_well(machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_takes_500_of_its_600_seconds_keeps_them_under_a_hook_of_60() {
    for cause in [Cause::Autoscaler, Cause::Group, Cause::Operator] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
        let beats = aws_moments(&scene.world, |e| matches!(e, Event::Heartbeat { .. })).len();
        assert!((16..=22).contains(&beats), "{beats} heartbeats in 500 s");
    }
}

#[tokio::test(start_paused = true)]
async fn where_aws_denies_heartbeats_no_node_is_terminated_before_its_drain_until_it_lets_one_through() {
    let scene = Scene::with(held_group(3, 120)).await;
    let machine = scene.first();
    scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, true);
    scene.run([pod("api").on(&machine.name).grace(900).exits_after(700)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "api")).await;
    let beats = scene.world.aws.calls(Operation::RecordLifecycleActionHeartbeat);
    scene.pass_some(seconds(650)).await;
    let beats = scene.world.aws.calls(Operation::RecordLifecycleActionHeartbeat) - beats;
    assert!((1..=3).contains(&beats), "tried anew {beats} times in eleven minutes");
    assert!(terminations(&scene.world, &machine).is_empty(), "drained first");
    let noted = |record: &String| record.contains("terminateAt");
    assert!(!records(&scene.world, &machine).iter().any(noted), "another leader would take it for sent");
    scene.until_gone(&machine).await;
    assert!(has_exited(&scene.world, "api") && !a_hook_timed_out(&scene.world));
    scene.assert_left_well(&machine);

    // With the right it is as ever, once that may be tried again.
    scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, false);
    scene.pass_some(seconds(300)).await;
    let machine = scene.first();
    scene.run([pod("db").on(&machine.name).grace(600).exits_after(400)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| !terminations(w, &machine).is_empty()).await;
    assert!(!has_exited(&scene.world, "db"));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_aws_lets_through_for_one_node_has_another_terminated_under_the_hook_at_once() {
    let scene = Scene::with(held_group(3, 120)).await;
    let [held, machine] = [0, 1].map(|n| scene.machines()[n].clone());
    scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, true);
    let pods = [("held", &held), ("api", &machine)];
    scene.run(pods.map(|(name, on)| pod(name).on(&on.name).grace(900).exits_after(700))).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "api")).await;
    scene.scale_in(&held, Cause::Group).await;
    scene.until(|w| is_asked(w, "held")).await;
    assert!(terminations(&scene.world, &machine).is_empty());
    scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, false);
    // That of the held one is tried four times a minute, one for the other in five minutes.
    scene.pass_some(seconds(30)).await;
    assert_eq!(terminations(&scene.world, &machine).len(), 1);
    for machine in [&held, &machine] {
        scene.until_gone(machine).await;
        scene.assert_left_well(machine);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_while_the_api_server_is_down_and_the_drain_ends_after() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.cluster.api_down_for(seconds(300));
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_when_it_is_restarted_while_the_api_server_is_down() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.cluster.api_down_for(seconds(300));
        scene.pass_some(seconds(40)).await;
        scene.kill().await;
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
    }
}

const READS: [Operation; 2] = [Operation::DescribeLifecycleHooks, Operation::DescribeAutoScalingGroups];

#[tokio::test(start_paused = true)]
async fn a_hold_that_begins_while_aws_throttles_every_read_gets_heartbeats_too() {
    for (cause, load_balancers) in [(Cause::Autoscaler, 0), (Cause::Group, 60), (Cause::Autoscaler, 100)] {
        let scene = Scene::with(held_group(2, 60).deregistering_for(load_balancers)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
        scene.scale_in(&machine, cause).await;
        if cause == Cause::Group {
            scene.until(|w| is_asked(w, "web")).await;
        } else {
            scene.until(|w| !terminations(w, &machine).is_empty()).await;
        }
        scene.world.aws.throttle_for(&READS, seconds(340));
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_while_aws_throttles_every_read_and_after_a_restart_in_it() {
    for restarted in [false, true] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(300)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.throttle_for(&READS, seconds(240));
        if restarted {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
    }
}

/// What was held then is known by its record alone, also for how long.
#[tokio::test(start_paused = true)]
async fn what_was_held_before_a_restart_is_held_on_while_aws_says_nothing_at_all_but_takes_heartbeats() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(300)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.pass_some(seconds(20)).await;
        let reads = [&READS[..], &[Operation::DescribeScalingActivities]].concat();
        scene.world.aws.throttle_for(&reads, seconds(240));
        scene.kill().await;
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_thirty_seconds_holds_though_a_description_goes_back_to_before_the_hold() {
    for (back, is_killed) in [(30, false), (60, false), (90, false), (90, true)] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(200)]).await;
        scene.pass_some(seconds(100)).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        let described = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(seconds(60));
        scene.world.aws.trouble(described, Trouble::Stale(seconds(back)));
        if is_killed {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        assert!(!a_hook_timed_out(&scene.world), "{back} s, killed: {is_killed}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_thirty_seconds_holds_though_a_list_of_hooks_leaves_it_out() {
    for is_killed in [false, true] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(200)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        let listed = Which::of(&[Operation::DescribeLifecycleHooks]).lasting(seconds(150));
        scene.world.aws.trouble(listed, Trouble::Without("ebbtide".into()));
        if is_killed {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        assert!(!a_hook_timed_out(&scene.world), "killed: {is_killed}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_whose_node_never_registered_is_completed_after_a_minute_and_a_half_and_not_before() {
    let scene = Scene::with(held_group(1, 120)).await;
    let bare = scene.world.aws.add_instance("web", LifecycleState::Pending).expect("an instance");
    scene.world.aws.terminate(&bare, TerminationCause::Rebalance);
    let held = |e: &Event| matches!(e, Event::EnteredWait { instance, .. } if *instance == bare);
    let done = |e: &Event| matches!(e, Event::HookCompleted { instance, .. } if *instance == bare);
    scene.until(|w| !aws_moments(w, done).is_empty()).await;
    let after = aws_moments(&scene.world, done)[0].duration_since(aws_moments(&scene.world, held)[0]);
    assert!(after >= SignedDuration::from_secs(90), "{after}");
    assert!(after <= SignedDuration::from_secs(90 + 40 + 5), "{after}: a refresh, and the grace period");
    assert!(!a_hook_timed_out(&scene.world));
}

fn completions(scene: &Scene, hook: &str) -> usize {
    aws_moments(&scene.world, |e| matches!(e, Event::HookCompleted { hook: h, .. } if h == hook)).len()
}

#[tokio::test(start_paused = true)]
async fn nothing_is_let_go_for_want_of_a_node_while_a_node_may_be_of_any_machine_of_the_group() {
    let (log, _guard) = captured::log(Level::WARN);
    let world = World::new(1);
    world.kubelets("web", |spec| NodeSpec { provider_id: None, ..spec });
    let scene = Scene::on(world, held_group(2, 600).retaining().tag(OURS, "owned"), of_ours()).await;
    let world = &scene.world;
    scene
        .run(world.cluster.node_names().iter().map(|node| pod(format!("on-{node}").as_str()).on(node)))
        .await;
    let instances = world.aws.group("web").expect("the group").instances;
    world.aws.terminate(&instances[0].id, TerminationCause::Rebalance);
    world.aws.set_state(&instances[1].id, LifecycleState::TerminatingRetained);
    scene.pass_some(seconds(1_800)).await;
    assert_eq!(completions(&scene, "ebbtide"), 0);
    assert_eq!(world.aws.calls(Operation::TerminateInstanceInAutoScalingGroup), 0);
    // As for one that may have had a Node: twelve minutes of heartbeats, not days.
    let first = |of: fn(&Event) -> bool| aws_moments(world, of)[0];
    let held = first(|e| matches!(e, Event::EnteredWait { .. }));
    let over = first(|e| matches!(e, Event::HookTimedOut { .. }));
    assert!(over.duration_since(held) < SignedDuration::from_mins(23), "{}", over.duration_since(held));
    assert_eq!(log.text().matches("no provider id of AWS").count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn hooks_of_other_people_are_never_completed_and_their_instances_not_drained() {
    let foreign = HookSpec::terminating("eks").heartbeat(600).by_default(HookResult::Continue);
    let scene = Scene::with(group(2).hook(foreign)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(a_hook_timed_out).await;
    assert_eq!(completions(&scene, "eks"), 0);
    assert!(!is_asked(&scene.world, "web"));
    assert!(aws_moments(&scene.world, |e| matches!(e, Event::Heartbeat { .. })).is_empty());
}

#[tokio::test(start_paused = true)]
async fn of_two_hooks_that_hold_an_instance_only_ours_is_completed() {
    let foreign = HookSpec::terminating("eks").heartbeat(900).by_default(HookResult::Continue);
    let scene = Scene::with(held_group(2, 60).hook(foreign)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(200).exits_after(150)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| has_exited(w, "web")).await;
    scene.until_gone(&machine).await;
    assert_eq!((completions(&scene, "ebbtide"), completions(&scene, "eks")), (1, 0));
    let ours = |e: &Event| matches!(e, Event::HookTimedOut { hook, .. } if hook == "ebbtide");
    assert!(aws_moments(&scene.world, ours).is_empty());
}

/// Who has come to the node meanwhile is not known.
#[tokio::test(start_paused = true)]
async fn heartbeats_go_on_for_as_long_as_a_release_waits_for_a_list_of_pods() {
    // Whether or not the watch, too, has broken.
    for breaks in [true, false] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        scene.world.aws.trouble(
            Which::of(&[Operation::CompleteLifecycleAction]).lasting(seconds(120)),
            Trouble::Lost(Lose::BeforeEffect),
        );
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| in_phase(w, &machine, "Releasing")).await;
        scene.world.cluster.fail_next(10_000, Verb::List, "pods", Fault::InternalError);
        if breaks {
            scene.world.cluster.compact_history();
            scene.world.cluster.close_watches();
        }
        scene.pass_some(seconds(900)).await;
        assert!(!a_hook_timed_out(&scene.world), "the watch breaks: {breaks}");
        scene.world.cluster.no_more_faults();
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_was_completed_gets_no_heartbeat() {
    // Descriptions show them for a while as they end, or never again.
    let at_once = Timing { terminating: Span::NONE, ..Timing::QUICK };
    // A call may be under way; another replica knows by the next description.
    let table = [
        (Cause::Autoscaler, Timing::QUICK, 1, 2),
        (Cause::Group, Timing::QUICK, 1, 2),
        (Cause::Autoscaler, at_once, 1, 2),
        (Cause::Group, at_once, 2, 12),
    ];
    for (cause, timing, programs, over_after) in table {
        let (log, _guard) = captured::log(Level::INFO);
        let scene = Scene::with(held_group(9, 60).timing(timing)).await;
        let _second = (programs == 2).then(|| Program::start(&scene.world, other()));
        let machines = scene.machines();
        let leaving = &machines[..8];
        for machine in leaving {
            scene.scale_in(machine, cause).await;
        }
        for machine in leaving {
            scene.until_gone(machine).await;
        }
        // A description might have left them out.
        scene.pass_some(seconds(180)).await;
        assert!(!log.text().contains("without a Node"), "{}", log.text());
        for machine in leaving {
            let is_completion = |e: &Event| matches!(e, Event::HookCompleted { instance, .. } if *instance == machine.instance);
            let completed = aws_moments(&scene.world, is_completion)[0];
            let over = completed + SignedDuration::from_secs(over_after);
            let beats = aws_moments(&scene.world, |e| is_heartbeat(e, &machine.instance));
            assert!(beats.iter().all(|at| *at < over), "{cause:?}: {beats:?} after {completed}");
        }
    }
}

/// Whether a heartbeat is asked for, taken or not.
fn is_heartbeat(event: &Event, of: &str) -> bool {
    let Event::Called { operation: Operation::RecordLifecycleActionHeartbeat, arguments, .. } = event else {
        return false;
    };
    arguments.get("InstanceId").is_some_and(|instance| instance == of)
}

#[tokio::test(start_paused = true)]
async fn what_a_group_holds_is_finished_although_the_group_lost_its_tag() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.untag_group("web", ebbtide::sim::program::TAG);
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
        // It is not ours any more.
        scene
            .until_told(|told| told.as_ref().is_err_and(|status| status.code() == tonic::Code::NotFound))
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_group_holds_is_finished_although_it_lost_its_tag_and_ebbtide_was_restarted_since() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        let mut scene = Scene::with(held_group(3, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.untag_group("web", ebbtide::sim::program::TAG);
        // No description is from before that by then.
        scene.pass_some(seconds(60)).await;
        scene.kill().await;
        // Nothing but the drain concerns cluster-autoscaler any more: it waits for no instance of the group's.
        scene.until_told(Result::is_ok).await;
        assert_eq!(scene.target().await.expect("told"), 0, "{cause:?}");
        scene.until_gone(&machine).await;
        assert_kept_waiting(&scene, &machine);
        // What nobody had begun is not touched.
        let other = scene.first();
        scene.run([pod("other").on(&other.name).exits_after(1)]).await;
        scene.world.aws.terminate(&other.instance, TerminationCause::Rebalance);
        scene.pass_some(seconds(300)).await;
        assert!(!is_asked(&scene.world, "other"));
        let beats = |e: &Event| matches!(e, Event::Heartbeat { instance, .. } if *instance == other.instance);
        assert!(aws_moments(&scene.world, beats).is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_goes_on_while_aws_does_not_show_the_group_that_only_its_record_names() {
    let mut scene = Scene::with(held_group(3, 900)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(700)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.untag_group("web", ebbtide::sim::program::TAG);
    scene.pass_some(seconds(10)).await;
    let refused =
        Refusal { code: "InternalFailure", status: 500, message: "An internal error has occurred." };
    let which = Which::of(&[Operation::DescribeAutoScalingGroups]).about("web").lasting(seconds(300));
    scene.world.aws.trouble(which, Trouble::Refused(refused, Lose::BeforeEffect));
    scene.kill().await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(notes(&scene.world, &machine, "ScaleInCancelled").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_restarted_run_to_which_aws_does_not_say_what_the_hook_is_like_goes_by_the_record() {
    let mut scene = Scene::with(held_group(2, 1_800)).await;
    let machine = scene.first();
    // With the shortest time-out there is, it would be ended after 49 minutes.
    scene.run([pod("web").on(&machine.name).grace(4 * 3_600).exits_after(9_000)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(300)).await;
    scene.world.aws.deny(Operation::DescribeLifecycleHooks, true);
    scene.kill().await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_run_to_which_aws_does_not_say_since_when_it_holds_an_instance_goes_by_the_record() {
    for code in ["InvalidAction", "Throttling", "ServiceUnavailable"] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(280)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(1_800)).await;
        let unsaid = Refusal { code, status: 400, message: "not now" };
        let activities = Operation::DescribeScalingActivities;
        scene.world.aws.refuse_next(activities, unsaid, Lose::BeforeEffect, u32::MAX);
        scene.kill().await;
        scene.until_gone(&machine).await;
        let [(_, by, grace)] = asked(&scene.world, "web")[..] else { panic!("asked once") };
        assert_eq!((by, grace), (By::Delete, 300), "{code}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_node_is_drained_although_aws_never_says_what_its_hook_is_like() {
    let mut scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.take_down().await;
    scene.world.aws.throttle_for(&[Operation::DescribeLifecycleHooks], seconds(100_000));
    scene.scale_in(&machine, Cause::Group).await;
    scene.bring_back();
    assert!(scene.world.until(seconds(60), |w| is_asked(w, "web")).await, "it is heartbeated, not drained");
    scene.until_gone(&machine).await;
    assert_kept_waiting(&scene, &machine);
}

#[tokio::test(start_paused = true)]
async fn a_note_that_was_written_without_an_answer_does_not_put_the_termination_off() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.delete(std::slice::from_ref(&machine)).await.expect("accepted");
    let accepted = scene.world.clock.now();
    scene.world.cluster.fail_next(1, Verb::Patch, "nodes", Fault::AnswerLost);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let told = terminations(&scene.world, &machine)[0].duration_since(accepted);
    assert!(told <= SignedDuration::from_secs(10), "AWS was told after {told}");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_never_registered_is_completed_without_a_list_of_nodes_and_not_while_the_watch_is_broken()
 {
    let scene = Scene::with(held_group(1, 120)).await;
    let bare = scene.world.aws.add_instance("web", LifecycleState::Pending).expect("an instance");
    let done = |e: &Event| matches!(e, Event::HookCompleted { instance, .. } if *instance == bare);
    let lists = scene.world.cluster.requests(Verb::List, "nodes");
    scene.world.cluster.api_down_for(seconds(200));
    scene.world.aws.terminate(&bare, TerminationCause::Rebalance);
    scene.pass_some(seconds(190)).await;
    assert!(aws_moments(&scene.world, done).is_empty(), "its Node may have come meanwhile");
    scene.until(|w| !aws_moments(w, done).is_empty()).await;
    let listed = scene.world.cluster.requests(Verb::List, "nodes") - lists;
    assert!(listed <= 1, "{listed} lists of Nodes: one may be the watch's");
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn heartbeats_that_aws_denies_are_tried_at_most_four_times_a_minute_and_told_once_in_five() {
    // A hook's time-out, how long they are denied, how often they are tried.
    for (timeout, denied, expected) in [(300, 120, 7..=9), (30, 8, 2..=4)] {
        let (log, _guard) = captured::log(Level::INFO);
        let scene = Scene::with(held_group(2, timeout)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
        scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, true);
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| w.aws.calls(Operation::RecordLifecycleActionHeartbeat) > 0).await;
        let tries = || scene.world.aws.calls(Operation::RecordLifecycleActionHeartbeat);
        let before = tries();
        scene.pass_some(seconds(denied)).await;
        assert!(expected.contains(&(tries() - before)), "{} in {denied} s", tries() - before);
        let told = |line: &str| log.text().matches(line).count();
        assert_eq!(told("heartbeat or completion of the lifecycle hook failed"), 1, "{}", log.text());
        scene.world.aws.deny(Operation::RecordLifecycleActionHeartbeat, false);
        scene.until_gone(&machine).await;
        assert_eq!(told("works again"), 1);
        assert!(!a_hook_timed_out(&scene.world));
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_that_aws_refuses_in_words_nobody_knows_are_tried_at_most_four_times_a_minute() {
    let scene = Scene::with(held_group(2, 300)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
    let beat = Operation::RecordLifecycleActionHeartbeat;
    let unknown = Refusal { code: "ValidationError", status: 400, message: "something new" };
    scene.world.aws.refuse_next(beat, unknown, Lose::BeforeEffect, u32::MAX);
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| w.aws.calls(beat) > 0).await;
    let before = scene.world.aws.calls(beat);
    scene.pass_some(seconds(120)).await;
    let tries = scene.world.aws.calls(beat) - before;
    assert!((7..=9).contains(&tries), "{tries} in two minutes");
    scene.world.aws.refuse_next(beat, unknown, Lose::BeforeEffect, 0);
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    scene.assert_left_well(&machine);
}

/// AWS has none shorter than 30 s, but others answer for it, and quickly.
#[tokio::test(start_paused = true)]
async fn a_hook_of_ten_seconds_holds_for_as_long_as_it_takes() {
    for cause in [Cause::Autoscaler, Cause::Group, Cause::Operator] {
        let scene = Scene::on(World::plain(1), held_group(2, 10), config()).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert!(!a_hook_timed_out(&scene.world), "{cause:?}");
    }
}

/// The description never shows that the hook is over: between two looks the machine has gone.
#[tokio::test(start_paused = true)]
async fn where_a_hook_ends_in_mid_drain_and_the_instance_is_not_described_any_more_people_are_told() {
    for is_over in [true, false] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.pass_some(seconds(20)).await;
        let described = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(seconds(100));
        scene.world.aws.trouble(described, Trouble::Without(machine.instance.clone()));
        if is_over {
            let somebody = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
            somebody
                .complete(&"web".into(), "ebbtide", &machine.instance.as_str().into())
                .await
                .expect("completed");
        }
        scene.pass_some(seconds(90)).await;
        let told = notes(&scene.world, &machine, "ScaleInHookOver");
        assert_eq!(told.iter().any(|note| note.contains("is over for instance")), is_over, "{told:?}");
        if !is_over {
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_instance_is_drained_and_let_go_though_the_list_of_hooks_does_not_show_ours_yet() {
    for restarted in [false, true] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        let list = Which::of(&[Operation::DescribeLifecycleHooks]);
        scene.world.aws.trouble(list.lasting(seconds(3_600)), Trouble::Without("ebbtide".to_owned()));
        scene.pass_some(seconds(700)).await;
        if restarted {
            scene.kill().await;
        }
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(60)).await;
        assert!(is_asked(&scene.world, "web"), "restarted: {restarted}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// Before a hook opens: in its own words AWS says "No active Lifecycle Action".
#[tokio::test(start_paused = true)]
async fn a_heartbeat_that_is_refused_in_other_words_before_the_hook_opens_limits_nothing() {
    let scene = Scene::with(held_group(2, 180).deregistering_for(300)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(30).exits_after(20)]).await;
    scene.world.cluster.add(budget("web").min_available(1));
    let refusal =
        Refusal { code: "ValidationError", status: 400, message: "Instance is not in a wait state" };
    let beats = Which::of(&[Operation::RecordLifecycleActionHeartbeat]);
    scene.world.aws.trouble(beats.lasting(seconds(3_600)), Trouble::Refused(refusal, Lose::BeforeEffect));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingWait)).await;
    assert!(!is_asked(&scene.world, "web"), "its budget has no room");
    scene.world.aws.no_more_trouble();
    scene.world.cluster.add(budget("web").min_available(0));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}
