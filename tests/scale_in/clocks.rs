//! The wall clock of the machine that the program runs on is set back or forward in mid-drain.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::sim::cluster::{Cluster, budget, pod, replica_set};
use ebbtide::sim::http::{Lost, Request, Response, World, aws_client, kube_client};
use http::header::DATE;
use jiff::SignedDuration;
use jiff::fmt::rfc2822::{DateTimeParser, DateTimePrinter};

use crate::journal_queries::{
    asked, decrements, in_phase, is_asked, is_released, longest_silence, notes, phase_at, released_at,
};
use crate::scene::{Cause, Scene, config_with, group, held_group, running, seconds};
use crate::status::status;

const STEPS: [SignedDuration; 2] = [SignedDuration::from_hours(-1), SignedDuration::from_hours(1)];

#[tokio::test(start_paused = true)]
async fn a_step_while_workloads_leave_costs_neither_them_nor_the_hook_anything() {
    for by in STEPS {
        for cause in [Cause::Autoscaler, Cause::Group, Cause::Operator] {
            let scene = Scene::with(held_group(2, 60)).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
            scene.scale_in(&machine, cause).await;
            scene.until(|w| is_asked(w, "web")).await;
            scene.step_clock(by);
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            let silence = longest_silence(&scene.world, &machine);
            assert!(
                silence <= SignedDuration::from_secs(35),
                "{silence} without a heartbeat, {by} {cause:?}"
            );
            assert_eq!(decrements(&scene.world), usize::from(cause != Cause::Group));
        }
    }
}

/// The API server dates deletions, and its clock is behind.
#[tokio::test(start_paused = true)]
async fn a_grace_is_whole_though_the_clock_is_ahead_and_the_kubelet_is_not_heard_of_for_a_minute() {
    for by in [SignedDuration::from_mins(5), SignedDuration::from_mins(30)] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.step_clock(by);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.cluster.partition(&machine.name);
        scene.pass_some(seconds(100)).await;
        scene.world.cluster.revive(&machine.name);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// The API server dates deletions, and its clock is ahead.
#[tokio::test(start_paused = true)]
async fn a_dead_machine_is_given_back_a_minute_after_the_grace_though_the_clock_is_behind() {
    let behind = [SignedDuration::from_mins(-5), SignedDuration::from_hours(-1)];
    for (by, restarts) in [(behind[0], false), (behind[1], false), (behind[1], true)] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(90).exits_after(80)]).await;
        scene.step_clock(by);
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        let asked = scene.world.clock.now();
        scene.world.cluster.crash(&machine.name);
        if restarts {
            scene.kill().await;
            scene.step_clock(by);
        }
        scene.until_released(&machine).await;
        let took = released_at(&scene.world, &machine).duration_since(asked);
        assert!(
            (148..=165).contains(&took.as_secs()),
            "{took} with a clock set by {by}, restarts: {restarts}"
        );
    }
}

/// To a clock that is behind, every pod of the last minutes seems to be made under the cordon.
#[tokio::test(start_paused = true)]
async fn pods_that_came_shortly_before_the_cordon_leave_under_their_budget_though_the_clock_is_behind() {
    let scene = Scene::with(group(1)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([replica_set("web", 2).grace(60).exits_after(20)]).await;
    scene.until(|w| running(w, "web-") == 2).await;
    scene.step_clock(SignedDuration::from_mins(-5));
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(600)).await;
    assert!(notes(&scene.world, &machine, "ScaleInPodsReturned").is_empty());
    assert!(!is_released(&scene.world, &machine), "the budget holds the second one");
    scene.world.aws.set_desired("web", 2);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_the_pods_of_the_last_minutes_though_the_clock_is_behind() {
    for by in STEPS {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
        scene.step_clock(by);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        let began = scene.world.clock.now();
        scene.until(|w| is_asked(w, "web")).await;
        let waited = scene.world.clock.now().duration_since(began);
        assert!(waited <= SignedDuration::from_secs(5), "{waited} with a clock set by {by}");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// The API server's controllers date what they make of a Node that is not heard of.
#[tokio::test(start_paused = true)]
async fn a_machine_is_lost_five_minutes_after_it_was_heard_of_last_whatever_the_clock_says() {
    for by in STEPS {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        let web = pod("web").on(&machine.name).grace(30).exits_after(20).tolerates_everything();
        scene.run([web.annotation("ebbtide/drain", "wait")]).await;
        scene.step_clock(by);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.pass_some(seconds(60)).await;
        scene.world.cluster.crash(&machine.name);
        scene.until(|w| !w.cluster.is_ready(&machine.name)).await;
        let silent_since = scene.world.clock.now();
        scene.until(|w| is_asked(w, "web")).await;
        let waited = asked(&scene.world, "web")[0].0.duration_since(silent_since);
        assert!((298..=305).contains(&waited.as_secs()), "{waited} with a clock set by {by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_while_the_node_flushes_neither_shortens_nor_lengthens_that() {
    for by in STEPS {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| in_phase(w, &machine, "Flushing")).await;
        scene.step_clock(by);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let flushed =
            released_at(&scene.world, &machine).duration_since(phase_at(&scene.world, &machine, "Flushing"));
        assert!(flushed <= SignedDuration::from_secs(7), "{flushed} after a step of {by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_under_a_deadline_moves_it_for_nobody() {
    for by in STEPS {
        let config = config_with(|it| it.drain_timeout = Some(seconds(900)));
        let scene = Scene::configured(group(2), config).await;
        let machine = scene.first();
        scene
            .run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait").grace(60).exits_after(50)])
            .await;
        let requested = scene.world.clock.now();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.pass_some(seconds(20)).await;
        scene.step_clock(by);
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let took = released_at(&scene.world, &machine).duration_since(requested);
        assert!(took <= SignedDuration::from_secs(900) && took > SignedDuration::from_secs(800), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_step_the_sizes_that_aws_shows_are_believed() {
    for by in STEPS {
        let scene = Scene::with(group(3)).await;
        scene.step_clock(-by);
        scene.increase(1).await.expect("grown");
        scene.step_clock(by);
        scene.pass_some(seconds(130)).await;
        assert_eq!(scene.target().await.expect("answered"), 4);
        let person = Aws::at(aws_client(Arc::new(scene.world.aws.clone())));
        person.set_desired(&"web".into(), 3).await.expect("set");
        scene.pass_some(seconds(130)).await;
        assert_eq!(scene.target().await.expect("answered"), 3, "after a step of {by}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_was_wrong_when_the_record_was_written_holds_nothing_up_after_a_restart() {
    let mut scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.step_clock(SignedDuration::from_hours(1));
    scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    // The one that starts anew has a clock that is right.
    scene.kill().await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    let flushed =
        released_at(&scene.world, &machine).duration_since(phase_at(&scene.world, &machine, "Flushing"));
    assert!(flushed <= SignedDuration::from_secs(60), "{flushed}");
}

/// Only AWS tells it what time it is until the API server answers: since when an instance is held, for one.
#[tokio::test(start_paused = true)]
async fn a_clock_that_is_hours_off_ends_no_drain_at_a_start_while_the_api_server_is_away() {
    let mut scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| in_phase(w, &machine, "Draining")).await;
    // One is an hour behind, and the next two hours ahead.
    for _ in 0..2 {
        scene.world.cluster.api_down();
        scene.kill().await;
        scene.pass_some(seconds(60)).await;
        scene.world.cluster.api_up();
        scene.pass_some(seconds(120)).await;
        assert_eq!(asked(&scene.world, "web"), []);
    }
    scene.world.cluster.add(budget("web").min_available(0));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

/// Two API servers behind one address: every other answer is by a clock that is six minutes ahead.
struct Two {
    cluster: Cluster,
    answers: AtomicUsize,
}

#[async_trait]
impl World for Two {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let mut answer = self.cluster.call(request).await?;
        if self.answers.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            let date = DateTimeParser::new().parse_timestamp(&answer.headers()[DATE]).expect("a date");
            let ahead = date + SignedDuration::from_mins(6);
            let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&ahead).expect("a date");
            answer.headers_mut().insert(DATE, date.parse().expect("a header"));
        }
        Ok(answer)
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_is_whole_though_the_clocks_of_two_api_servers_are_minutes_apart() {
    for group in [group(2), held_group(2, 60)] {
        for cause in [Cause::Autoscaler, Cause::Operator] {
            let way = |cluster| {
                let two = Two { cluster, answers: AtomicUsize::default() };
                kube_client(Arc::new(two))
            };
            let mut scene = Scene::behind(group.clone(), way).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(600).exits_after(400)]).await;
            scene.scale_in(&machine, cause).await;
            scene.until(|w| is_asked(w, "web")).await;
            scene.kill().await;
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            assert_eq!(decrements(&scene.world), 1, "{cause:?}");
            let flushed = released_at(&scene.world, &machine).duration_since(phase_at(
                &scene.world,
                &machine,
                "Flushing",
            ));
            assert!(flushed >= SignedDuration::from_secs(5), "{flushed} {cause:?}");
            scene.pass_some(seconds(60)).await;
            let ended = status(scene.program()).await["ended"].clone();
            let outcomes: Vec<_> =
                ended.as_array().into_iter().flatten().map(|one| &one["outcome"]).collect();
            assert_eq!(outcomes, ["released"], "{cause:?}: {ended}");
        }
    }
}
