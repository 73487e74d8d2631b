//! Giving the instance back, when AWS, other hooks, the group or a person are in the way.

use std::sync::Arc;
use std::time::Duration;

use aws_sdk_autoscaling::Client;
use ebbtide::config::Config;
use ebbtide::sim::aws::{
    Event, HookResult, HookSpec, LaunchFailure, LifecycleState, Lose, Operation, TerminationCause,
};
use ebbtide::sim::cluster::{By, Event as ClusterEvent, Fault, Timing, Verb, budget, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::config;
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::SignedDuration;
use serde_json::json;
use tracing::Level;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, aws_moments, decrements, has_exited, in_phase, is_asked, moments,
    notes, phase_at, released_at, terminations,
};
use crate::scene::{Cause, Machine, RECORD, Scene, config_with, group, held_group, seconds};

/// Somebody else's client of the same AWS.
fn person(scene: &Scene) -> Client {
    let config = aws_sdk_autoscaling::Config::builder()
        .behavior_version_latest()
        .region(aws_sdk_autoscaling::config::Region::new("us-east-1"))
        .credentials_provider(aws_credential_types::Credentials::from_keys("a", "b", None))
        .http_client(aws_client(Arc::new(scene.world.aws.clone())));
    Client::from_conf(config.build())
}

/// EKS's hook of managed node groups.
fn of_eks() -> HookSpec {
    HookSpec::terminating("Terminate-LC-Hook").heartbeat(1_800).by_default(HookResult::Continue)
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_aws_carries_out_late_is_not_repeated_meanwhile() {
    for restarted in [false, true] {
        let mut scene = Scene::with(group(3)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name)]).await;
        // The connection breaks; AWS has the request and takes its time.
        scene.world.aws.lose_next(TERMINATE, Lose::BeforeEffect);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| w.aws.calls(TERMINATE) == 1).await;
        let first = scene.world.clock.now();
        if restarted {
            scene.kill().await;
        }
        scene.until(|w| w.aws.calls(TERMINATE) == 2).await;
        let after = scene.world.clock.now().duration_since(first);
        // Another process may have been 45 s about its note, and stopped before it sent its request, which AWS takes for five minutes.
        let least = SignedDuration::from_secs(if restarted { 345 } else { 120 });
        let in_time = least..=least + SignedDuration::from_secs(15);
        assert!(in_time.contains(&after), "again after {after}, restarted: {restarted}");
        scene.until_gone(&machine).await;
        assert_eq!(decrements(&scene.world), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_is_set_while_a_node_is_terminated_is_not_a_node_too_many() {
    for late in 0..8 {
        let scene = Scene::with(group(5)).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| in_phase(w, &machine, "Flushing")).await;
        // Both at the same time, either first, and AWS slow.
        scene.world.aws.delay(Duration::from_millis(300), Duration::from_millis(400));
        scene.pass_some(Duration::from_millis(4_600 + 100 * late)).await;
        scene.increase(1).await.expect("grown");
        scene.until_gone(&machine).await;
        scene.pass_some(seconds(120)).await;
        assert_eq!(scene.world.aws.group("web").expect("there").desired, 5, "{late}");
        assert_eq!(scene.target().await.expect("answered"), 5, "{late}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_was_taken_away_is_not_relied_on() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    // It was seen a moment ago.
    scene.pass_some(seconds(65)).await;
    let gone =
        person(&scene).delete_lifecycle_hook().lifecycle_hook_name("ebbtide").auto_scaling_group_name("web");
    gone.send().await.expect("deleted");
    // AWS may answer from before for a while: nobody can know better then.
    scene.pass_some(seconds(21)).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn beside_somebody_elses_hook_a_node_is_drained_before_it_is_terminated() {
    let scene = Scene::with(held_group(2, 60).hook(of_eks())).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| has_exited(w, "web")).await;
    assert!(terminations(&scene.world, &machine).is_empty(), "EKS would have begun to drain it by itself");
    scene.until(|w| !terminations(w, &machine).is_empty()).await;
    let ours = |e: &Event| matches!(e, Event::HookCompleted { hook, .. } if hook == "ebbtide");
    scene.until(|w| !aws_moments(w, ours).is_empty()).await;
    assert_eq!(decrements(&scene.world), 1);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_when_the_hold_began_whatever_becomes_of_the_record() {
    // Held for 100 heartbeats of 30 s at most; the pod's budget never lets it go.
    for restarted in [false, true] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(50)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| in_phase(w, &machine, "Draining")).await;
        scene.pass_some(seconds(1_500)).await;
        if restarted {
            // Neither what the program remembers nor the record has survived.
            scene.annotate(&machine, None).await;
            scene.kill().await;
        } else {
            scene.annotate(&machine, Some("gone")).await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        let (_, by, grace) = asked(&scene.world, "web")[0];
        assert_eq!((by, grace), (By::Delete, 60), "it kept its whole grace, restarted: {restarted}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_known_although_the_api_server_was_down_when_the_hold_began() {
    let scene = Scene::with(held_group(2, 30)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(50)]).await;
    scene.world.cluster.api_down_for(seconds(1_200));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(asked(&scene.world, "web")[0].2, 60);
}

#[tokio::test(start_paused = true)]
async fn what_the_group_takes_out_by_itself_keeps_its_decrement() {
    for group in [group(3), held_group(3, 60)] {
        let often = Config { refresh_interval: seconds(5), ..config() };
        let scene = Scene::configured(group, often).await;
        scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
        // Terminate is not possible for a moment, and meanwhile the group finds the instance unhealthy.
        scene.world.aws.deny(TERMINATE, true);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.pass_some(seconds(20)).await;
        scene.world.aws.deny(TERMINATE, false);
        scene.world.aws.terminate(&machine.instance, TerminationCause::HealthCheck);
        scene.pass_some(seconds(400)).await;
        assert_eq!(scene.world.aws.group("web").expect("there").desired, 2);
        assert_eq!(scene.target().await.expect("answered"), 2);
        let left = scene.world.aws.group("web").expect("there").in_state(LifecycleState::InService).len();
        assert_eq!(left, 2, "nobody else went");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_group_has_replaced_since_the_last_description_costs_no_healthy_instance() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let rarely = Config { refresh_interval: Duration::from_mins(5), ..config() };
        let scene = Scene::configured(held_group(2, 7_200), rarely).await;
        scene.pass_some(seconds(60)).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Group).await;
        let in_service =
            |w: &World| w.aws.group("web").expect("there").in_state(LifecycleState::InService).len();
        scene.until(|w| in_service(w) == 1).await;
        scene.until(|w| in_service(w) == 2).await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        scene.pass_some(seconds(300)).await;
        assert_eq!((in_service(&scene.world), decrements(&scene.world)), (2, 0), "{cause:?}");
        assert!(!a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_without_a_hook_while_daemonset_pods_flush() {
    let refresh_interval = Duration::from_mins(5);
    let rarely = Config { refresh_interval, ..config_with(|it| it.flush.default = seconds(100)) };
    let scene = Scene::configured(group(2), rarely).await;
    scene.pass_some(seconds(60)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(600)).await;
    let by_scale_in =
        |e: &Event| matches!(e, Event::TerminationStarted { cause: TerminationCause::ScaleIn, .. });
    assert_eq!(aws_moments(&scene.world, by_scale_in), [], "a healthy one goes");
}

#[tokio::test(start_paused = true)]
async fn the_same_while_aws_says_nothing_of_the_group() {
    let refresh_interval = Duration::from_mins(5);
    let rarely = Config { refresh_interval, ..config_with(|it| it.flush.default = seconds(10)) };
    let group = group(2).hook(HookSpec::terminating("another").heartbeat(120));
    let scene = Scene::configured(group, rarely).await;
    scene.pass_some(seconds(60)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(60));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(600)).await;
    let by_scale_in =
        |e: &Event| matches!(e, Event::TerminationStarted { cause: TerminationCause::ScaleIn, .. });
    assert_eq!(aws_moments(&scene.world, by_scale_in), [], "a healthy one goes");
}

/// It waits for the description for five minutes at most: somebody who looks for the reason finds AWS's words.
#[tokio::test(start_paused = true)]
async fn a_termination_that_waits_for_a_description_tells_what_aws_answers() {
    let (log, _guard) = captured::log(Level::WARN);
    let words = || {
        let text = log.text();
        let lines =
            text.lines().filter(|line| line.contains("could not be looked up before its termination"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let scene = Scene::configured(group(2), config_with(|it| it.flush.default = seconds(10))).await;
    scene.pass_some(seconds(60)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    scene.world.aws.throttle_for(&[Operation::DescribeAutoScalingGroups], seconds(900));
    let began = scene.world.clock.now();
    scene.until(|_| !words().is_empty()).await;
    assert!(words()[0].contains("DescribeAutoScalingGroups was throttled"), "{:?}", words());
    assert_eq!(terminations(&scene.world, &machine), []);
    scene.until_gone(&machine).await;
    let sent = terminations(&scene.world, &machine).into_iter().map(|at| at.duration_since(began).as_secs());
    assert!(matches!(sent.collect::<Vec<_>>()[..], [300..420]), "{}", log.text());
    assert!((1..=3).contains(&words().len()), "{:?}", words());
}

#[tokio::test(start_paused = true)]
async fn what_was_set_aside_since_the_last_description_costs_no_healthy_instance() {
    let refresh_interval = Duration::from_mins(5);
    let rarely = Config { refresh_interval, ..config_with(|it| it.flush.default = seconds(100)) };
    let scene = Scene::configured(group(3), rarely).await;
    scene.pass_some(seconds(60)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    scene.world.aws.set_aside(&machine.instance, true);
    scene.until_gone(&machine).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!(decrements(&scene.world), 0, "set aside with one already");
    let group = scene.world.aws.group("web").expect("there");
    assert_eq!((group.desired, group.in_state(LifecycleState::InService).len()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn forty_terminations_at_once_cost_one_look_at_their_group() {
    let rarely = Config { refresh_interval: Duration::from_mins(5), ..config() };
    let scene = Scene::configured(held_group(40, 7_200), rarely).await;
    scene.pass_some(seconds(60)).await;
    let described = || scene.world.aws.calls(Operation::DescribeAutoScalingGroups);
    let (before, machines) = (described(), scene.machines());
    scene.delete(&machines).await.expect("accepted");
    scene.until(|w| decrements(w) == 40).await;
    assert!(described() - before <= 3, "{} looks", described() - before);
}

#[tokio::test(start_paused = true)]
async fn what_aws_refuses_for_good_is_told_on_the_node_in_its_own_words() {
    let cases = [
        (group(2), TERMINATE, "termination failed or not confirmed"),
        (held_group(2, 60), Operation::CompleteLifecycleAction, "lifecycle hook not completed"),
    ];
    for (group, operation, line) in cases {
        let (log, _guard) = captured::log(Level::WARN);
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name)]).await;
        scene.world.aws.deny(operation, true);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.pass_some(seconds(200)).await;
        let told = notes(&scene.world, &machine, "ScaleInRefused");
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("not authorized") && told[0].contains(operation.name()), "{told:?}");
        assert_eq!(log.text().matches(line).count(), 1, "not at every try: {}", log.text());
        scene.world.aws.deny(operation, false);
        scene.until_gone(&machine).await;
        assert!(!a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn where_the_hook_can_never_be_completed_it_ends_by_its_time_out_after_the_drain() {
    let (log, _guard) = captured::log(Level::WARN);
    let told = |words: &str| log.text().matches(words).count();
    let scene = Scene::with(held_group(2, 300)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(700)]).await;
    scene.world.aws.deny(Operation::CompleteLifecycleAction, true);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Releasing")).await;
    scene.pass_some(seconds(290)).await;
    assert!(told("after five minutes no more heartbeats are sent") > 0, "{}", log.text());
    assert_eq!(told("no more heartbeats are sent for the instance"), 0);
    assert!(scene.world.until(seconds(330), a_hook_timed_out).await);
    assert_eq!(told("no more heartbeats are sent for the instance"), 1, "{}", log.text());
    assert_eq!(told("heartbeats go on"), 0);
    assert!(has_exited(&scene.world, "web"));
    scene.until_gone(&machine).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_instance_is_detached_in_mid_drain_is_back_in_service() {
    for state in [LifecycleState::Detaching, LifecycleState::Detached] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(600).exits_after(500)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.set_state(&machine.instance, state);
        scene.pass_some(seconds(180)).await;
        let node = scene.node(&machine.name).expect("it lives");
        let spec = node.spec.unwrap_or_default();
        assert_eq!((spec.unschedulable, spec.taints.unwrap_or_default().len()), (None, 0));
        assert!(!node.metadata.annotations.unwrap_or_default().contains_key(RECORD));
        assert_eq!(notes(&scene.world, &machine, "ScaleInCancelled").len(), 1);
        assert_eq!(scene.world.aws.calls(TERMINATE), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_look_that_leaves_an_instance_out_once_does_not_end_its_scale_in() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(600).exits_after(300)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.set_state(&machine.instance, LifecycleState::WarmedRunning);
    scene.pass_some(seconds(15)).await;
    scene.world.aws.set_state(&machine.instance, LifecycleState::InService);
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_deleted_at_a_deadline_bears_the_condition_that_spares_its_job() {
    let limited = config_with(|it| it.drain_timeout = Some(seconds(300)));
    let scene = Scene::configured(group(2), limited).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene
        .run([
            pod("web").on(&machine.name),
            pod("waits").on(&machine.name).annotation("ebbtide/drain", "wait"),
        ])
        .await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    for name in ["web", "waits"] {
        let told = |e: &ClusterEvent| matches!(e, ClusterEvent::PodAsked { pod, by: By::Delete, disruption_target: true, .. } if pod.name == name);
        assert_eq!(moments(&scene.world, told).len(), 1, "{name}");
    }
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_pod_whose_status_may_not_be_written_is_deleted_at_its_deadline_all_the_same() {
    let limited = config_with(|it| it.drain_timeout = Some(seconds(300)));
    let scene = Scene::configured(group(2), limited).await;
    let machine = scene.first();
    scene.world.cluster.forbid(Verb::Patch, "pods/status");
    scene.run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait")]).await;
    let requested = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert!(released_at(&scene.world, &machine).duration_since(requested) <= SignedDuration::from_secs(300));
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_while_the_node_is_released_leaves_first() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.world.aws.deny(TERMINATE, true);
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Releasing") && w.aws.calls(TERMINATE) > 0).await;
    scene.pass_some(seconds(1)).await;
    // Its binding was decided before the cordon.
    scene.run([pod("late").on(&machine.name).grace(90).exits_after(80)]).await;
    scene.world.aws.deny(TERMINATE, false);
    scene.until_gone(&machine).await;
    let (at, by, grace) = asked(&scene.world, "late")[0];
    assert_eq!((by, grace), (By::Eviction, 90));
    assert!(
        released_at(&scene.world, &machine) >= at + SignedDuration::from_secs(5),
        "and the flush begins anew"
    );
}

/// A workload comes to a node that is scaled in, while the answer to the write that notes the termination takes its time, and the next one
/// fails. It leaves first.
async fn comes_while_the_release_is_written(scene: &Scene, machine: &Machine, is_unseen: bool) {
    scene.until(|w| in_phase(w, machine, "Flushing")).await;
    scene.pass_some(seconds(1)).await;
    scene.world.cluster.fail_next(1, Verb::Patch, "nodes", Fault::Slow(seconds(10)));
    scene.until(|w| in_phase(w, machine, "Releasing")).await;
    scene.world.cluster.fail_next(3, Verb::Patch, "nodes", Fault::RequestLost);
    if is_unseen {
        for verb in [Verb::List, Verb::Watch] {
            scene.world.cluster.fail_next(8, verb, "pods", Fault::RequestLost);
        }
        scene.world.cluster.close_watches();
    }
    scene.run([pod("late").on(&machine.name).grace(90).exits_after(80)]).await;
    scene.until_gone(machine).await;
    let (at, by, grace) = asked(&scene.world, "late")[0];
    let [terminated] = terminations(&scene.world, machine)[..] else { panic!("terminated once") };
    assert_eq!((by, grace, at < terminated), (By::Eviction, 90, true), "{is_unseen}");
    scene.assert_left_well(machine);
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_while_the_release_is_written_leaves_first() {
    // Also one that no watch shows yet.
    for is_unseen in [false, true] {
        let scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        comes_while_the_release_is_written(&scene, &machine, is_unseen).await;
    }
}

/// The first machine's clock is an hour behind the API server's, the next one's two hours ahead: more than the deadline leaves.
#[tokio::test(start_paused = true)]
async fn whether_there_is_time_for_a_workload_that_comes_then_is_by_the_clock_of_the_deadline() {
    let limited = |minutes: u64| config_with(|it| it.drain_timeout = Some(seconds(minutes * 60)));
    let scene = Scene::configured(group(2), limited(5)).await;
    let machine = scene.first();
    let exit_noticed = Span::exactly(seconds(50_000));
    scene.world.cluster.set_timing(Timing { exit_noticed, ..Timing::real() });
    scene.run([pod("stuck").on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_released(&machine).await;
    let noted = phase_at(&scene.world, &machine, "Releasing");
    let waited = released_at(&scene.world, &machine).duration_since(noted);
    assert!(waited < SignedDuration::from_millis(500), "there is none: {waited}");

    let mut scene = Scene::configured(group(2), limited(30)).await;
    scene.kill().await;
    scene.ready().await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Autoscaler).await;
    comes_while_the_release_is_written(&scene, &machine, false).await;
}

/// Between two tries of a completion that AWS throttles.
#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_while_a_completion_is_tried_again_leaves_first() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.world.aws.throttle_next(Operation::CompleteLifecycleAction, 2);
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| w.aws.calls(Operation::CompleteLifecycleAction) > 0).await;
    scene.run([pod("late").on(&machine.name).grace(90).exits_after(80)]).await;
    scene.until_gone(&machine).await;
    let (at, by, _) = asked(&scene.world, "late")[0];
    assert_eq!((by, at < released_at(&scene.world, &machine)), (By::Eviction, true));
}

#[tokio::test(start_paused = true)]
async fn an_unanswered_completion_is_tried_again_while_the_hook_holds() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name)]).await;
    scene.world.aws.lose_next(Operation::CompleteLifecycleAction, Lose::BeforeEffect);
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_forged_record_neither_shortens_a_deadline_nor_ends_an_instance() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    let record = json!({
        "cause": "lifecycle-hook", "group": "web", "instance": machine.instance, "phase": "Releasing",
        "requestedAt": "2025-12-31T00:00:00Z", "phaseSince": "2025-12-31T00:00:00Z",
        "releaseBy": "2025-12-31T00:00:01Z", "release": "complete-hook",
    });
    scene.annotate(&machine, Some(&record.to_string())).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}
