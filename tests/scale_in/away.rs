//! Something that is needed is away for an hour in the middle of drains: the API server, AWS, a queue. What does not need it goes on,
//! nothing is done on a guess, and everything is taken up again.

use ebbtide::config::Config;
use ebbtide::sim::aws::{Event as AwsEvent, Lose, Operation, QueueSpec, Refusal, Trouble, Which};
use ebbtide::sim::cluster::{By, budget, pod};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use tonic::Code;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, decrements, eviction_requests, has_exited, in_phase, is_asked,
    is_released, longest_silence, released_at, terminations,
};
use crate::scene::{Cause, Scene, config_with, group, held_group, seconds};

const HOUR: u64 = 3_600;

#[tokio::test(start_paused = true)]
async fn without_the_api_server_for_an_hour_instances_are_held_and_nothing_ends() {
    for cause in [Cause::Autoscaler, Cause::Group] {
        // A hook of 120 s holds an instance for 3 h 20 min.
        let scene = Scene::with(held_group(4, 120)).await;
        let machines = scene.machines();
        let [exits, blocked, flushes, stays] = &machines[..] else { panic!("four nodes") };
        scene.world.cluster.add(budget("blocked").min_available(1));
        let slow = pod("exits").on(&exits.name).grace(900).exits_after(300);
        scene.run([slow, pod("blocked").on(&blocked.name).grace(60).exits_after(30)]).await;
        for machine in [exits, blocked] {
            scene.scale_in(machine, cause).await;
        }
        scene.until(|w| is_asked(w, "exits") && in_phase(w, blocked, "Draining")).await;
        scene.scale_in(flushes, cause).await;
        scene.until(|w| in_phase(w, flushes, "Flushing")).await;
        scene.until(|w| [exits, blocked, flushes].iter().all(|m| terminations(w, m).len() == 1)).await;
        let from = scene.world.clock.now();
        scene.world.cluster.api_down_for(seconds(HOUR));
        scene.pass_some(seconds(HOUR)).await;
        let to = scene.world.clock.now();
        assert!(has_exited(&scene.world, "exits"), "which nobody is told");
        for machine in [exits, blocked, flushes] {
            assert!(!is_released(&scene.world, machine), "{cause:?}: {machine:?}");
        }
        let told: Vec<_> = scene
            .world
            .aws
            .journal()
            .into_iter()
            .filter(|entry| {
                matches!(entry.what, AwsEvent::TerminationStarted { .. }) && from < entry.at && entry.at < to
            })
            .collect();
        assert!(told.is_empty(), "{cause:?}: {told:?}");
        scene.world.cluster.add(budget("blocked").min_available(0));
        for machine in [exits, blocked, flushes] {
            scene.until_gone(machine).await;
            let silence = longest_silence(&scene.world, machine);
            assert!(silence <= SignedDuration::from_secs(65), "{cause:?}: {silence}");
        }
        scene.assert_left_well(exits);
        scene.assert_left_well(blocked);
        assert!(!a_hook_timed_out(&scene.world));
        assert_eq!(decrements(&scene.world), if cause == Cause::Autoscaler { 3 } else { 0 });
        assert!(scene.node(&stays.name).is_some() && !is_released(&scene.world, stays));
    }
}

/// From now on no call to AWS is heard of, for an hour.
fn aws_is_away(world: &World) {
    world.aws.trouble(Which::any().lasting(seconds(HOUR)), Trouble::Silent(Lose::BeforeEffect));
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_ours_that_passes_without_the_api_server_cuts_nobody() {
    let limited = config_with(|it| it.drain_timeout = Some(seconds(1_800)));
    for group in [group(2), held_group(2, 120)] {
        let scene = Scene::configured(group, limited.clone()).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| in_phase(w, &machine, "Draining")).await;
        scene.world.cluster.api_down_for(seconds(HOUR));
        scene.pass_some(seconds(HOUR + 120)).await;
        assert!(asked(&scene.world, "web").is_empty() && !is_released(&scene.world, &machine));
        // Its budget has the limit's whole time once more.
        scene.until_gone(&machine).await;
        let [(_, by, grace)] = asked(&scene.world, "web")[..] else { panic!("asked once") };
        assert_eq!((by, grace), (By::Delete, 60), "at its last call");
        assert!(has_exited(&scene.world, "web"));
    }
}

#[tokio::test(start_paused = true)]
async fn without_aws_for_an_hour_workloads_leave_and_releases_wait() {
    // Only a long time-out holds an instance without heartbeats.
    let cases = [(false, Cause::Autoscaler), (true, Cause::Autoscaler), (true, Cause::Group)];
    for (hook, cause) in cases {
        let scene = Scene::with(if hook { held_group(3, 7_200) } else { group(3) }).await;
        let machines = scene.machines();
        let [before, during, _] = &machines[..] else { panic!("three nodes") };
        scene.run([pod("old").on(&before.name).grace(300).exits_after(200)]).await;
        scene.run([pod("new").on(&during.name).grace(60).exits_after(30)]).await;
        scene.scale_in(before, cause).await;
        scene.until(|w| is_asked(w, "old")).await;
        aws_is_away(&scene.world);
        let back = scene.world.clock.now() + SignedDuration::from_secs(HOUR as i64);
        // cluster-autoscaler is answered from the last refresh, and can have a node drained.
        scene.pass_some(seconds(60)).await;
        scene.target().await.expect("known");
        let refused = scene.increase(1).await.expect_err("nobody is there").code();
        assert!(matches!(refused, Code::Unavailable | Code::DeadlineExceeded), "{refused}");
        scene.delete(std::slice::from_ref(during)).await.expect("accepted");
        scene.until(|w| has_exited(w, "old")).await;
        // After ten minutes what was known is too old to answer with, and not too old to drain by.
        scene.until_told(|told| matches!(told, Err(status) if status.code() == Code::Unavailable)).await;
        assert!(scene.world.clock.now() < back);
        assert!(has_exited(&scene.world, "new"), "drained without AWS");
        assert!(!is_released(&scene.world, before), "{cause:?}");
        for machine in [before, during] {
            scene.until_gone(machine).await;
            scene.assert_left_well(machine);
            assert!(released_at(&scene.world, machine) >= back, "{cause:?}");
        }
        assert_eq!(eviction_requests(&scene.world).len(), 2, "{cause:?}");
        let told = if cause == Cause::Autoscaler { 2 } else { 1 };
        assert_eq!(decrements(&scene.world), told, "{cause:?}");
        assert!(!a_hook_timed_out(&scene.world));
        assert!(scene.world.aws.calls(TERMINATE) >= told);
        scene.until_target(3 - told as i32).await;
    }
}

/// Three held nodes, and a queue that AWS tells everything.
async fn with_a_queue() -> Scene {
    let world = World::new(1);
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide"));
    world.aws.send_events_to(&queue);
    let config = Config { queue_urls: vec![queue], ..config() };
    Scene::on(world, held_group(3, 120), config).await
}

#[tokio::test(start_paused = true)]
async fn without_the_queue_for_an_hour_refreshes_go_on_and_it_is_said_every_five_minutes() {
    let (log, _captured) = captured::log(tracing::Level::INFO);
    let scene = with_a_queue().await;
    let gone = Which::of(&[Operation::ReceiveMessage]).lasting(seconds(HOUR));
    scene.world.aws.trouble(gone, Trouble::Silent(Lose::BeforeEffect));
    let describes = scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    scene.until(|_| log.text().contains("the queue of notices can be read again")).await;
    let lines = log.text().lines().filter(|line| line.contains("queue of notices cannot be read")).count();
    assert!((11..=13).contains(&lines), "{lines} lines in an hour");
    let looked = scene.world.aws.calls(Operation::DescribeAutoScalingGroups) - describes;
    assert!(looked >= 60, "{looked} refreshes in an hour");
}

#[tokio::test(start_paused = true)]
async fn messages_that_cannot_be_deleted_are_said_to_every_five_minutes_and_cost_nothing() {
    let (log, _captured) = captured::log(tracing::Level::INFO);
    let scene = with_a_queue().await;
    let refused =
        Refusal { code: "InternalFailure", status: 500, message: "An internal error has occurred." };
    let gone = Which::of(&[Operation::DeleteMessageBatch]).lasting(seconds(720));
    scene.world.aws.trouble(gone, Trouble::Refused(refused, Lose::BeforeEffect));
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    scene.pass_some(seconds(900)).await;
    let text = log.text();
    let lines = |words: &str| text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(lines("messages can be deleted and kept again"), 1);
    let failed = lines("messages could not be deleted");
    assert!((2..=3).contains(&failed), "{failed} lines in twelve minutes");
}
