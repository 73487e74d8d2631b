//! Deadlines: they cut into budgets, not into grace periods, and they hold.

use ebbtide::config::Config;
use ebbtide::scale_in::OnDeadline;
use ebbtide::sim::aws::{Event, GroupSpec, HookSpec, Lose, Operation, Trouble, Which};
use ebbtide::sim::cluster::{By, PodSpec, budget, daemon_set, pod};
use ebbtide::sim::program::config;
use jiff::SignedDuration;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::journal_queries::{
    a_hook_timed_out, asked, aws_moments, graces, has_exited, is_asked, last_exit, notes, records,
    released_at,
};
use crate::scene::{Cause, Machine, Scene, config_with, group, held_group, seconds};

fn within(minutes: u64) -> Config {
    config_with(|it| it.drain_timeout = Some(seconds(60 * minutes)))
}

/// Five minutes, after which it rather waits.
fn waiting() -> Config {
    config_with(|it| {
        it.drain_timeout = Some(seconds(300));
        it.on_deadline = OnDeadline::Wait;
    })
}

/// Drains a node with one pod that its budget never lets go (or that is patient). Returns the scene when it has gone.
async fn with_a_pod_that_stays(
    group: GroupSpec,
    config: Config,
    stays: PodSpec,
    cause: Cause,
) -> (Scene, Machine, jiff::Timestamp) {
    let scene = Scene::configured(group, config).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([stays.on(&machine.name), pod("other").on(&machine.name)]).await;
    let requested = scene.world.clock.now();
    scene.scale_in(&machine, cause).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    (scene, machine, requested)
}

/// It was deleted, not evicted, with its whole grace, no sooner than it had to be.
fn assert_deleted_at_its_last_call(scene: &Scene, machine: &Machine, grace: i64) {
    let asked = asked(&scene.world, "web");
    assert_eq!(asked.len(), 1, "{asked:?}");
    let (at, by, given) = asked[0];
    assert_eq!((by, given), (By::Delete, grace));
    let early = released_at(&scene.world, machine).duration_since(at).as_secs() - grace;
    assert!(early <= 15, "asked {early} s before it had to be");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_its_budget_keeps_is_deleted_with_its_whole_grace_before_the_time_is_up() {
    for group in [group(2), held_group(2, 60)] {
        for cause in [Cause::Autoscaler, Cause::Operator] {
            let stays = pod("web").grace(90).exits_after(88);
            let (scene, machine, requested) =
                with_a_pod_that_stays(group.clone(), within(5), stays, cause).await;
            assert_deleted_at_its_last_call(&scene, &machine, 90);
            let took = released_at(&scene.world, &machine).duration_since(requested);
            assert!(took <= SignedDuration::from_secs(300), "{took}");
        }
    }
}

/// From when a node is held, with a pod that its budget never lets go, AWS throttles heartbeats for so many seconds, or denies them for good.
async fn without_heartbeats(group: GroupSpec, throttled: Option<u64>, grace: u32) -> (Scene, Machine) {
    const BEAT: &[Operation] = &[Operation::RecordLifecycleActionHeartbeat];
    let scene = Scene::with(group).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).grace(grace).exits_after(50)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| w.aws.calls(BEAT[0]) > 0).await;
    match throttled {
        Some(time) => scene.world.aws.throttle_for(BEAT, seconds(time)),
        None => scene.world.aws.deny(BEAT[0], true),
    }
    (scene, machine)
}

#[tokio::test(start_paused = true)]
async fn where_aws_takes_no_heartbeats_a_pod_that_its_budget_keeps_is_deleted_with_its_whole_grace_before_the_hold_ends()
 {
    for throttled in [None, Some(3_600)] {
        let (scene, machine) = without_heartbeats(held_group(2, 300), throttled, 60).await;
        scene.until_gone(&machine).await;
        assert_deleted_at_its_last_call(&scene, &machine, 60);
        assert!(has_exited(&scene.world, "web") && !a_hook_timed_out(&scene.world));
        scene.assert_left_well(&machine);
        assert!(!notes(&scene.world, &machine, "ScaleInHookEnding").is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn where_aws_denies_heartbeats_of_a_short_hook_a_pod_that_its_budget_keeps_has_time_all_the_same() {
    for (timeout, grace) in [(60, 8), (120, 25)] {
        let scene = Scene::with(held_group(2, timeout)).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(grace).exits_after(grace - 2)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        let beat = Operation::RecordLifecycleActionHeartbeat;
        scene.until(|w| w.aws.calls(beat) > 0).await;
        scene.world.aws.deny(beat, true);
        scene.until_gone(&machine).await;
        let [(_, by, had)] = asked(&scene.world, "web")[..] else { panic!("asked once") };
        assert_eq!((by, had), (By::Delete, i64::from(grace)), "{timeout}");
        assert!(has_exited(&scene.world, "web") && !a_hook_timed_out(&scene.world), "{timeout}");
    }
}

#[tokio::test(start_paused = true)]
async fn where_aws_answers_nothing_a_pod_that_its_budget_keeps_has_its_whole_grace_before_the_hook_times_out()
{
    for (alone, cause) in [(false, Cause::Group), (true, Cause::Group), (false, Cause::Autoscaler)] {
        let config = Config { election: config().election.filter(|_| !alone), ..config() };
        let scene = Scene::configured(held_group(2, 300), config).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(20).exits_after(15)]).await;
        scene.scale_in(&machine, cause).await;
        // In the last case nobody sees the hold begin.
        let since = match cause {
            Cause::Group => Operation::RecordLifecycleActionHeartbeat,
            _ => Operation::TerminateInstanceInAutoScalingGroup,
        };
        scene.until(|w| w.aws.calls(since) > 0).await;
        let away = Which::any().lasting(seconds(3_600));
        scene.world.aws.trouble(away, Trouble::Silent(Lose::BeforeEffect));
        scene.until_gone(&machine).await;
        let [(_, by, grace)] = asked(&scene.world, "web")[..] else { panic!("asked once") };
        assert_eq!((by, grace), (By::Delete, 20), "alone: {alone}, {cause:?}");
        assert!(has_exited(&scene.world, "web") && a_hook_timed_out(&scene.world));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_aws_lets_hold_for_less_than_its_rule_says_ends_drains_sooner() {
    let group = group(2).hook(HookSpec::terminating("ebbtide").heartbeat(30).at_most(300));
    for cause in [Cause::Autoscaler, Cause::Group] {
        let stays = pod("web").grace(90).exits_after(88);
        let (scene, machine, _) = with_a_pod_that_stays(group.clone(), config(), stays, cause).await;
        let [(_, by, grace)] = asked(&scene.world, "web")[..] else { panic!("asked once") };
        assert_eq!((by, grace), (By::Delete, 90), "{cause:?}");
        assert!(has_exited(&scene.world, "web") && !a_hook_timed_out(&scene.world), "{machine:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_that_fail_for_a_while_cost_no_budget() {
    // What is left of 300 s when the first one fails is less than this grace.
    let (scene, machine) = without_heartbeats(held_group(2, 300), Some(150), 200).await;
    scene.pass_some(seconds(1_200)).await;
    assert!(asked(&scene.world, "web").is_empty(), "{:?}", asked(&scene.world, "web"));
    scene.remove::<PodDisruptionBudget>("web").await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn heartbeats_that_fail_for_a_while_cost_no_budget_though_aws_does_not_say_since_when_it_holds() {
    let mut scene = Scene::with(held_group(2, 300)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).grace(20).exits_after(15)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(600)).await;
    scene.world.aws.deny(Operation::DescribeScalingActivities, true);
    scene.kill().await;
    scene.pass_some(seconds(300)).await;
    scene.world.aws.throttle_for(&[Operation::RecordLifecycleActionHeartbeat], seconds(160));
    scene.pass_some(seconds(1_200)).await;
    let limited =
        records(&scene.world, &machine).iter().filter(|record| record.contains("limitedSince")).count();
    assert_eq!(limited, 2, "the deadline came closer, and went back");
    assert!(asked(&scene.world, "web").is_empty(), "{:?}", asked(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_keeps_what_its_hook_lets_go_needs_no_heartbeats_for_a_budget() {
    let (scene, machine) = without_heartbeats(held_group(2, 300).retaining(), None, 60).await;
    scene.pass_some(seconds(1_200)).await;
    assert!(asked(&scene.world, "web").is_empty(), "{:?}", asked(&scene.world, "web"));
    scene.remove::<PodDisruptionBudget>("web").await;
    scene.until_gone(&machine).await;
    assert!(has_exited(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn at_a_limit_that_is_only_ours_a_drain_that_is_to_wait_deletes_nothing_and_names_pods_and_budgets() {
    let config = waiting();
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = Scene::configured(group(2), config.clone()).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name), pod("slow").on(&machine.name).grace(600)]).await;
        scene.scale_in(&machine, cause).await;
        scene.pass_some(seconds(1_200)).await;
        assert!(asked(&scene.world, "web").is_empty(), "its budget counts");
        assert_eq!(graces(&scene.world, "slow"), [600]);
        let told = notes(&scene.world, &machine, "ScaleInOverTime");
        assert!((2..=4).contains(&told.len()), "repeated every five minutes: {told:?}");
        assert!(told.iter().all(|note| note.contains("default/web (budget default/web)")), "{told:?}");
        scene.remove::<PodDisruptionBudget>("web").await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_groups_tag_beats_the_flag_for_every_cause_also_across_a_restart() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        // The flag alone would have the pod deleted after five minutes.
        let mut scene = Scene::configured(group(2).tag("ebbtide/drain-timeout", "20m"), within(5)).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(55)]).await;
        let requested = scene.world.clock.now();
        scene.scale_in(&machine, cause).await;
        scene.pass_some(seconds(600)).await;
        scene.kill().await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_deleted_at_its_last_call(&scene, &machine, 60);
        let took = released_at(&scene.world, &machine).duration_since(requested);
        assert!((SignedDuration::from_mins(19)..=SignedDuration::from_mins(20)).contains(&took), "{took}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_tag_that_cannot_be_read_leaves_the_flag_and_none_takes_it_away() {
    let tagged = |value: &str| group(2).tag("ebbtide/drain-timeout", value);
    let stays = || pod("web").grace(60).exits_after(55);
    let (scene, machine, _) =
        with_a_pod_that_stays(tagged("soon"), within(5), stays(), Cause::Autoscaler).await;
    assert_deleted_at_its_last_call(&scene, &machine, 60);

    let mut scene = Scene::configured(tagged("none"), within(5)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([stays().on(&machine.name)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.pass_some(seconds(1_200)).await;
    scene.kill().await;
    scene.pass_some(seconds(1_200)).await;
    assert!(asked(&scene.world, "web").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_hook_ends_the_wait_of_a_drain_that_would_rather_wait() {
    let config = waiting();
    let stays = pod("web").grace(60).exits_after(55);
    let (scene, machine, requested) =
        with_a_pod_that_stays(held_group(2, 30), config, stays, Cause::Autoscaler).await;
    assert_deleted_at_its_last_call(&scene, &machine, 60);
    let took = released_at(&scene.world, &machine).duration_since(requested);
    assert!(took >= SignedDuration::from_mins(40), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_patient_pod_is_waited_for_and_deleted_at_its_last_call() {
    for (key, value) in [
        ("ebbtide/drain", "wait"),
        ("cluster-autoscaler.kubernetes.io/safe-to-evict", "false"),
        ("karpenter.sh/do-not-disrupt", "true"),
    ] {
        let stays = pod("web").annotation(key, value).grace(60).exits_after(55);
        let (scene, machine, _) = with_a_pod_that_stays(group(2), within(10), stays, Cause::Autoscaler).await;
        assert_deleted_at_its_last_call(&scene, &machine, 60);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_lets_go_of_no_instance_before_its_pods_had_their_time() {
    for (heartbeat, cause) in
        [(30, Cause::Autoscaler), (30, Cause::Group), (60, Cause::Autoscaler), (90, Cause::Autoscaler)]
    {
        let stays = pod("web").grace(60).exits_after(55);
        let (scene, machine, _) =
            with_a_pod_that_stays(held_group(2, heartbeat), config(), stays, cause).await;
        assert_deleted_at_its_last_call(&scene, &machine, 60);
        let held =
            |e: &Event| matches!(e, Event::EnteredWait { instance, .. } if *instance == machine.instance);
        let held_for = released_at(&scene.world, &machine).duration_since(aws_moments(&scene.world, held)[0]);
        let longest = i64::try_from(100 * heartbeat).expect("small");
        assert!(held_for <= SignedDuration::from_secs(longest), "{held_for}");
        // A heartbeat, a minute by which AWS's clock may be ahead, and from the refresh before to the hold.
        let kept_back = i64::try_from(heartbeat).expect("small") + 60 + 30;
        assert!(held_for >= SignedDuration::from_secs(longest - kept_back), "{held_for}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_patient_pod_without_a_deadline_is_waited_for_until_it_ends() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait").runs_for(40_000)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until_gone(&machine).await;
    assert!(asked(&scene.world, "web").is_empty());
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_ours_that_has_passed_when_it_is_set_leaves_graces_and_the_flush_whole() {
    for killed in [false, true] {
        let mut scene = Scene::with(group(2)).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.world.cluster.add(budget("slow").min_available(1));
        scene.run([daemon_set("agent").annotation("ebbtide/flush-seconds", "60")]).await;
        scene
            .run([
                pod("web").on(on).grace(60).exits_after(55),
                pod("slow").on(on).grace(1_200).exits_after(1_100),
            ])
            .await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.pass_some(seconds(1_300)).await;
        scene.remove::<PodDisruptionBudget>("slow").await;
        scene.until(|w| is_asked(w, "slow")).await;
        scene.pass_some(seconds(200)).await;
        let tagged = scene.world.clock.now();
        scene.world.aws.tag_group("web", "ebbtide/drain-timeout", "20m");
        scene.pass_some(seconds(100)).await;
        if killed {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!((graces(&scene.world, "slow"), graces(&scene.world, "web")), (vec![1_200], vec![60]));
        let released = released_at(&scene.world, &machine);
        let flushed = released.duration_since(last_exit(&scene.world, &machine));
        assert!(flushed >= SignedDuration::from_secs(60), "{flushed}");
        let took = released.duration_since(tagged);
        assert!(took <= SignedDuration::from_secs(1_200 + 60), "it is a limit: {took}");
    }
}
