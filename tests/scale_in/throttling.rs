//! AWS throttles, by chance, from before the program starts until after the nodes have gone; or some of it never answers.

use ebbtide::provider::proto::NodeGroupIncreaseSizeRequest;
use ebbtide::sim::aws::{
    Event, GroupSpec, LaunchFailure, LifecycleState, NodeGroupSpec, Operation, Outcome, Timing,
};
use ebbtide::sim::cluster::pod;
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::SignedDuration;

use crate::journal_queries::{
    a_hook_timed_out, asked, assert_nothing_lost, aws_moments, decrements, has_exited, longest_silence,
    terminations,
};
use crate::replicas::other;
use crate::scene::{Cause, Machine, Scene, held_group, seconds};

/// Runs of each case, each with a seed of its own.
const RUNS: u64 = 20;

/// This share of all calls is throttled.
fn throttled(share: f64) -> impl Fn(&World) {
    move |world| world.aws.throttle_share(share)
}

/// Three nodes go at once while AWS is `impaired`, in every run.
async fn three_nodes_leave_whole(impaired: impl Fn(&World), heartbeat_seconds: u64, cause: Cause) {
    for seed in 1..=RUNS {
        let world = World::new(seed);
        impaired(&world);
        let scene = Scene::on(world, held_group(4, heartbeat_seconds), config()).await;
        let mut machines = scene.machines();
        let _stays = machines.pop();
        scene
            .run(machines.iter().map(|machine| pod("web").on(&machine.name).grace(120).exits_after(90)))
            .await;
        if cause == Cause::Autoscaler {
            // A refresh may have left one of them out: cluster-autoscaler asks again in its next loop.
            while scene.delete(&machines).await.is_err() {
                scene.pass_some(seconds(10)).await;
            }
        } else {
            for machine in &machines {
                scene.scale_in(machine, cause).await;
            }
        }
        for machine in &machines {
            scene.until_gone(machine).await;
        }
        assert_each_left_once(&scene, &machines, cause, seed);
    }
}

fn assert_each_left_once(scene: &Scene, machines: &[Machine], cause: Cause, seed: u64) {
    let world = &scene.world;
    assert_nothing_lost(world);
    for machine in machines {
        assert_eq!(terminations(world, machine).len(), 1, "run {seed}");
    }
    let expected = if cause == Cause::Autoscaler { machines.len() } else { 0 };
    assert_eq!(decrements(world), expected, "run {seed}");
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_group_takes_nodes_out_and_every_second_call_is_throttled() {
    three_nodes_leave_whole(throttled(0.5), 30, Cause::Group).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_autoscaler_takes_nodes_out_and_every_second_call_is_throttled() {
    three_nodes_leave_whole(throttled(0.5), 30, Cause::Autoscaler).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_group_takes_nodes_out_and_four_of_five_calls_are_throttled() {
    three_nodes_leave_whole(throttled(0.8), 60, Cause::Group).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_when_the_autoscaler_takes_nodes_out_and_four_of_five_calls_are_throttled() {
    three_nodes_leave_whole(throttled(0.8), 60, Cause::Autoscaler).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_is_cut_while_every_third_call_takes_much_longer_or_for_ever() {
    for cause in [Cause::Group, Cause::Autoscaler] {
        three_nodes_leave_whole(
            |world| world.aws.delay_some(Operation::ALL, 0.3, seconds(2), seconds(3_600)),
            60,
            cause,
        )
        .await;
    }
}

/// What a refresh asks for besides the groups themselves.
const OPTIONAL: [Operation; 7] = [
    Operation::DescribeImages,
    Operation::DescribeInstanceTypes,
    Operation::DescribeLaunchConfigurations,
    Operation::DescribeLaunchTemplateVersions,
    Operation::DescribeLifecycleHooks,
    Operation::DescribeNodegroup,
    Operation::DescribeScalingActivities,
];

/// A scene in which a refresh needs all of that: the group is EKS's, and short of an instance that cannot be launched.
async fn curious_scene() -> Scene {
    let world = World::new(1);
    world.aws.add_node_group(NodeGroupSpec::named("web"));
    let group = held_group(2, 30).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", "web");
    let scene = Scene::on(world, group, config()).await;
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    // Long enough for everything to be known, and to be due again.
    scene.pass_some(seconds(400)).await;
    scene
}

/// Lets no such read come to anything, or no longer: the calls hang, or are throttled.
fn impede(scene: &Scene, hang: bool, on: bool) {
    if hang {
        scene.world.aws.hang(&OPTIONAL, on);
    } else {
        scene.world.aws.throttle_for(&OPTIONAL, seconds(if on { 3_600 } else { 0 }));
    }
}

fn assert_drains_within(scene: &Scene, machine: &Machine, limit: u64, what: &str) {
    let held = |e: &Event| matches!(e, Event::EnteredWait { instance, .. } if *instance == machine.instance);
    let (held, asked) = (aws_moments(&scene.world, held)[0], asked(&scene.world, "web")[0].0);
    let after = asked.duration_since(held);
    assert!(after <= SignedDuration::from_secs(limit as i64), "{what}: asked to go {after:#} later");
    let silence = longest_silence(&scene.world, machine);
    assert!(silence <= SignedDuration::from_secs(20), "{what}: {silence:#} without a heartbeat");
}

#[tokio::test(start_paused = true)]
async fn a_drain_begins_with_the_refresh_that_sees_its_instance_held_whatever_else_that_waits_for() {
    for hang in [true, false] {
        let scene = curious_scene().await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(120).exits_after(90)]).await;
        impede(&scene, hang, true);
        // Anywhere between two refreshes, and while one is under way.
        scene.pass_some(seconds(67)).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| has_exited(w, "web")).await;
        impede(&scene, hang, false);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        // A third of the hook's time-out from one refresh to the next.
        assert_drains_within(&scene, &machine, 13, if hang { "hangs" } else { "throttled" });
    }
}

#[tokio::test(start_paused = true)]
async fn a_restarted_program_keeps_hooks_waiting_before_it_knows_any_template() {
    for hang in [true, false] {
        let mut scene = curious_scene().await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(120).exits_after(90)]).await;
        impede(&scene, hang, true);
        scene.scale_in(&machine, Cause::Group).await;
        let held = |e: &Event| matches!(e, Event::EnteredWait { .. });
        scene.until(|w| !aws_moments(w, held).is_empty()).await;
        let beats = |w: &World| aws_moments(w, |e| matches!(e, Event::Heartbeat { .. })).len();
        // An action can be heard of some seconds after the instance is shown to wait.
        scene.pass_some(seconds(12)).await;
        scene.kill().await;
        let before = beats(&scene.world);
        assert!(scene.world.until(seconds(2), |w| beats(w) > before).await, "one refresh, and no more");
        scene.pass_some(seconds(60)).await;
        impede(&scene, hang, false);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_begins_in_time_though_reading_why_launches_failed_takes_longer_than_that() {
    // Twenty launches fail every two seconds.
    let timing = Timing { retry: Span::exactly(seconds(2)), ..Timing::QUICK };
    let scene = Scene::on(World::plain(1), held_group(2, 30).timing(timing), config()).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(90)]).await;
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.world.aws.set_desired("web", 22);
    scene.pass_some(seconds(120)).await;
    // Five pages of a hundred.
    let activities = Operation::DescribeScalingActivities;
    scene.world.aws.delay_some(&[activities], 1.0, seconds(4), seconds(4));
    let before = scene.world.aws.calls(activities);
    scene.until(|w| w.aws.calls(activities) > before).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_drains_within(&scene, &machine, 13, "slow");
}

/// How many heartbeats were sent, and how many of them AWS throttled.
fn beats(world: &World) -> [usize; 2] {
    let beat =
        |e: &Event| matches!(e, Event::Called { operation: Operation::RecordLifecycleActionHeartbeat, .. });
    let throttled =
        |e: &Event| beat(e) && matches!(e, Event::Called { outcome: Outcome::Refused("Throttling"), .. });
    [aws_moments(world, beat).len(), aws_moments(world, throttled).len()]
}

async fn grows(program: &Program) -> Result<(), tonic::Status> {
    let request = NodeGroupIncreaseSizeRequest { id: "other".into(), delta: 1 };
    program.client().node_group_increase_size(request).await.map(drop)
}

/// The bucket has room for a hundred calls at once, and for twenty a second after that.
#[tokio::test(start_paused = true)]
async fn heartbeats_of_hundreds_that_are_held_leave_room_for_other_calls_when_they_begin_and_after_a_restart()
{
    for (many, timeout) in [(300, 300), (100, 60)] {
        let world = World::new(1);
        world.aws.add_group(GroupSpec::named("other").size(0, 1_000, 0).tag(TAG, "true"));
        let mut scene = Scene::on(world, held_group(0, timeout), config()).await;
        // Without Nodes they are held for twelve minutes by a program that finds them.
        scene.world.aws.suspend("web", "Terminate", true);
        for _ in 0..many {
            scene.world.aws.add_instance("web", LifecycleState::Pending).expect("an instance");
        }
        scene.kill().await;
        let second = Program::start(&scene.world, other());
        scene.ready().await;
        scene.pass_some(seconds(30)).await;
        scene.world.aws.suspend("web", "Terminate", false);
        scene
            .until(|w| {
                w.aws
                    .group("web")
                    .is_some_and(|it| it.in_state(LifecycleState::TerminatingWait).len() == many)
            })
            .await;
        for _ in 0..20 {
            grows(scene.program()).await.expect("when they begin");
            scene.pass_some(seconds(timeout / 20)).await;
        }
        scene.kill().await;
        scene.pass_some(seconds(1)).await;
        grows(&second).await.expect("a second after the restart");
        scene.ready().await;
        grows(scene.program()).await.expect("as soon as it is ready");
        scene.pass_some(seconds(timeout)).await;
        assert!(!a_hook_timed_out(&scene.world), "of {many}");
        let [sent, throttled] = beats(&scene.world);
        assert!(throttled * 50 <= sent, "{throttled} of {sent} heartbeats for {many} were throttled");
    }
}
