//! Lifecycle hooks that the program puts on groups itself.

use std::sync::Arc;

use ebbtide::aws::{Aws, Hook};
use ebbtide::config::Config;
use ebbtide::groups::managed_hooks::Managed;
use ebbtide::sim::aws::{
    Event, GroupSpec, HookResult, HookSpec, Lose, Operation, Refusal, Trouble, WarmPoolSpec, Which,
};
use ebbtide::sim::cluster::{budget, pod};
use ebbtide::sim::http::aws_client;
use ebbtide::sim::program::{Program, TAG, config, second};
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured::{self, Log};
use jiff::{SignedDuration, Timestamp};
use tracing::Level;

use crate::journal_queries::{a_hook_timed_out, aws_moments, graces, is_asked, released_at};
use crate::metrics::value;
use crate::scene::{Cause, Scene, group, held_group, seconds};
use crate::status::get;

const PUT: Operation = Operation::PutLifecycleHook;
const UPDATE: Operation = Operation::UpdateAutoScalingGroup;

pub(crate) fn managed(retain: bool) -> Config {
    let config = config();
    let selectors = config.selectors.of_cluster(Some("prod".to_owned()));
    Config { managed_hooks: Some(Managed { heartbeat: seconds(300), retain }), selectors, ..config }
}

/// A group without instances.
fn empty(name: &str) -> GroupSpec {
    GroupSpec::named(name).size(0, 10, 0).tag(TAG, "true")
}

/// The same, its tags telling that it is this cluster's.
fn of_our_cluster(name: &str) -> GroupSpec {
    empty(name).tag("kubernetes.io/cluster/prod", "owned")
}

/// The terminating hooks of a group, as AWS tells them.
async fn hooks(world: &World, group: &str) -> Vec<Hook> {
    let aws = Aws::at(aws_client(Arc::new(world.aws.clone())));
    aws.lifecycle_hooks(&group.into()).await.expect("the group's hooks")
}

/// Our hook as it is to be.
fn ours(group: &str, abandons: bool) -> Hook {
    Hook { abandons, ..Hook::new("ebbtide", group, seconds(300)) }
}

/// When hooks were put on a group, or it was tried.
fn puts(world: &World, group: &str) -> Vec<Timestamp> {
    let of_it = |e: &Event| matches!(e, Event::Called { operation: PUT, arguments, .. } if arguments["AutoScalingGroupName"] == group);
    aws_moments(world, of_it)
}

/// How often the log says this.
fn told(log: &Log, words: &str) -> usize {
    log.text().lines().filter(|line| line.contains(words)).count()
}

#[tokio::test(start_paused = true)]
async fn a_group_without_a_hook_has_one_seconds_after_its_first_refresh_and_loses_no_node_undrained() {
    let (log, _guard) = captured::log(Level::INFO);
    let tagged = group(3).tag("kubernetes.io/cluster/prod", "owned");
    // Elsewhere the group is so new when the program starts that the first refresh does not show it.
    let scene = Scene::on(World::plain(1), tagged, managed(false)).await;
    scene.until(|w| !puts(w, "web").is_empty()).await;
    let refresh =
        |e: &Event| matches!(e, Event::Called { operation: Operation::DescribeAutoScalingGroups, .. });
    let after = puts(&scene.world, "web")[0].duration_since(aws_moments(&scene.world, refresh)[0]);
    assert!(after <= SignedDuration::from_secs(3), "{after:#} after the first refresh");
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    scene.pass_some(seconds(3600)).await;
    assert_eq!(puts(&scene.world, "web").len(), 1, "nothing is lacking");
    assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)]);
    assert_eq!(scene.world.aws.calls(UPDATE), 0);
    assert_eq!(told(&log, "the group had no lifecycle hook of ours: created"), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn without_the_flag_no_group_gets_a_hook() {
    let scene = Scene::with(group(1)).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!((scene.world.aws.calls(PUT), scene.world.aws.calls(UPDATE)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_group_that_comes_later_has_its_hook_with_the_refresh_that_finds_it() {
    let scene = Scene::configured(group(1), managed(false)).await;
    scene.pass_some(seconds(600)).await;
    let came = scene.world.clock.now();
    scene.world.aws.add_group(of_our_cluster("later"));
    scene.until(|w| !puts(w, "later").is_empty()).await;
    let after = puts(&scene.world, "later")[0].duration_since(came);
    assert!(after <= SignedDuration::from_secs(65), "{after:#}");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_may_be_another_clusters_gets_its_hook_with_its_first_node_and_not_before() {
    let scene = Scene::configured(group(1), managed(true)).await;
    scene.world.aws.add_group(empty("whose"));
    scene.pass_some(seconds(600)).await;
    assert_eq!(puts(&scene.world, "whose"), []);
    scene.world.aws.set_desired("whose", 1);
    let node = |w: &World| {
        let instances = w.aws.group("whose").expect("the group").instances;
        instances.iter().any(|instance| w.node_of(&instance.id).is_some())
    };
    scene.until(node).await;
    let joined = scene.world.clock.now();
    scene.until(|w| !puts(w, "whose").is_empty()).await;
    let after = puts(&scene.world, "whose")[0].duration_since(joined);
    assert!(after <= SignedDuration::from_secs(15), "{after:#}");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_somebody_deletes_or_changes_is_put_right_within_two_refreshes_and_that_is_told_once() {
    let launching = HookSpec::launching("ebbtide").heartbeat(300);
    let slow = HookSpec::terminating("ebbtide").heartbeat(3600).by_default(HookResult::Continue);
    let abandons = HookSpec::terminating("ebbtide").heartbeat(300).by_default(HookResult::Abandon);
    let deleted = "somebody had deleted the group's lifecycle hook: created again";
    let changed = "the group's lifecycle hook was not as configured: corrected";
    for (change, words) in
        [(None, deleted), (Some(launching), deleted), (Some(slow), changed), (Some(abandons), changed)]
    {
        let scene = Scene::configured(group(1), managed(false)).await;
        scene.pass_some(seconds(600)).await;
        let (log, _guard) = captured::log(Level::INFO);
        match change.clone() {
            None => scene.world.aws.delete_hook("web", "ebbtide"),
            Some(hook) => scene.world.aws.put_hook("web", hook),
        }
        scene.pass_some(seconds(125)).await;
        assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)], "{change:?}");
        scene.pass_some(seconds(600)).await;
        assert_eq!((puts(&scene.world, "web").len(), told(&log, words)), (2, 1), "{}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_its_other_owner_keeps_otherwise_is_put_ever_less_often() {
    let slow = HookSpec::terminating("ebbtide").heartbeat(3600).by_default(HookResult::Continue);
    let scene = Scene::configured(group(1), managed(false)).await;
    for _ in 0..240 {
        scene.pass_some(seconds(30)).await;
        scene.world.aws.put_hook("web", slow.clone());
    }
    let puts = puts(&scene.world, "web").len();
    assert!((8..=20).contains(&puts), "{puts} times in two hours");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_is_held_ends_on_the_terms_it_was_held_on_and_its_hook_is_put_right_after_that() {
    const HOUR: u64 = 3_600;
    // A new time-out that is longer would have us come too late, a shorter one end the drain at 100 of it.
    for (heartbeat, before, drain) in [(60, 30, 800), (1_800, 10 * HOUR, 11 * HOUR)] {
        let mut scene = Scene::configured(held_group(2, heartbeat), config()).await;
        let machine = scene.first();
        let drain = u32::try_from(drain).expect("small");
        scene.run([pod("web").on(&machine.name).grace(i64::from(drain) + 100).exits_after(drain)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(before)).await;
        scene.take_down().await;
        let _managing = Program::start(&scene.world, managed(false));
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert!(!a_hook_timed_out(&scene.world), "{heartbeat} s");
        scene.pass_some(seconds(300)).await;
        assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)]);
        // The default result harms nobody, and is put right at once.
        let right = |e: &Event| matches!(e, Event::Called { operation: PUT, arguments, .. } if arguments["HeartbeatTimeout"] == "300");
        let right = aws_moments(&scene.world, right);
        assert_eq!((right.len(), puts(&scene.world, "web").len()), (1, 2));
        assert!(right[0] >= released_at(&scene.world, &machine) && puts(&scene.world, "web")[0] < right[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_others_change_while_it_holds_an_instance_is_kept_by_the_shorter_time_out() {
    for is_killed in [false, true] {
        let mut scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(30)).await;
        scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(1_800));
        if is_killed {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert!(!a_hook_timed_out(&scene.world), "killed: {is_killed}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_others_lengthen_while_it_holds_an_instance_ends_when_it_was_to_end() {
    // Killed soon after the hold began, long after, or never.
    for (cause, change, killed) in [
        (Cause::Group, 300, None),
        (Cause::Group, 300, Some(0)),
        (Cause::Group, 10, Some(900)),
        (Cause::Autoscaler, 300, Some(0)),
        (Cause::Autoscaler, 10, Some(0)),
    ] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(55)]).await;
        scene.scale_in(&machine, cause).await;
        scene.pass_some(seconds(change)).await;
        scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(1_800));
        if let Some(after) = killed {
            scene.pass_some(seconds(after)).await;
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        let case = format!("{cause:?}, changed after {change} s, killed {killed:?} s after that");
        assert!(!a_hook_timed_out(&scene.world), "{case}");
        assert_eq!(graces(&scene.world, "web"), [60], "{case}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_others_shorten_a_moment_before_it_holds_an_instance_ends_by_the_shorter_time_out() {
    let scene = Scene::with(held_group(2, 1_800)).await;
    let machine = scene.first();
    scene.world.cluster.add(budget("web").min_available(1));
    scene.run([pod("web").on(&machine.name).grace(60).exits_after(55)]).await;
    scene.pass_some(seconds(100)).await;
    scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(60));
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    assert_eq!(graces(&scene.world, "web"), [60]);
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_others_shorten_while_it_holds_an_instance_takes_no_time_from_its_workloads() {
    for is_killed in [false, true] {
        let mut scene = Scene::with(held_group(2, 1_800)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(4 * 3_600).exits_after(9_000)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.pass_some(seconds(7_200)).await;
        scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(60));
        if is_killed {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        assert!(!a_hook_timed_out(&scene.world), "killed: {is_killed}");
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_somebody_else_stays_as_it_is_and_is_not_skipped_by_ours() {
    let eks = HookSpec::terminating("Terminate-LC-Hook").heartbeat(1_800).by_default(HookResult::Continue);
    let scene = Scene::configured(group(2).hook(eks), managed(false)).await;
    scene.until(|w| !puts(w, "web").is_empty()).await;
    // Descriptions lag behind.
    scene.pass_some(seconds(60)).await;
    let mut found = hooks(&scene.world, "web").await;
    found.sort_by(|a, b| b.name.cmp(&a.name));
    let theirs = Hook { abandons: false, ..Hook::new("Terminate-LC-Hook", "web", seconds(1_800)) };
    assert_eq!(found, [ours("web", false), theirs]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_aws_refuses_is_told_once_tried_ever_less_often_and_holds_no_other_up() {
    let (log, _guard) = captured::log(Level::INFO);
    let world = World::new(1);
    world.aws.add_group(of_our_cluster("other"));
    let refused = Refusal { code: "LimitExceeded", status: 400, message: "You have reached a limit." };
    let which = Which::of(&[PUT]).about("web").lasting(seconds(4 * 3600));
    world.aws.trouble(which, Trouble::Refused(refused, Lose::BeforeEffect));
    let scene = Scene::on(world, group(1), managed(false)).await;
    scene.pass_some(seconds(4 * 60)).await;
    assert_eq!(hooks(&scene.world, "other").await, [ours("other", false)]);
    let words = "cannot give the group its lifecycle hook";
    assert_eq!(told(&log, words), 1, "{}", log.text());
    scene.pass_some(seconds(3 * 3600)).await;
    let tries = puts(&scene.world, "web").len();
    assert!((20..=30).contains(&tries), "{tries}: one in ten minutes at last");
    scene.pass_some(seconds(4 * 3600)).await;
    assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)]);
}

#[tokio::test(start_paused = true)]
async fn a_missing_permission_is_named() {
    for (retain, operation) in [(false, PUT), (true, UPDATE)] {
        let (log, _guard) = captured::log(Level::INFO);
        let world = World::new(1);
        world.aws.deny(operation, true);
        let scene = Scene::on(world, group(1), managed(retain)).await;
        scene.pass_some(seconds(60)).await;
        let words = format!("not allowed to call autoscaling:{operation}");
        assert_eq!(told(&log, &words), 1, "{}", log.text());
        scene.world.aws.deny(operation, false);
        scene.pass_some(seconds(1200)).await;
        assert_eq!(hooks(&scene.world, "web").await, [ours("web", retain)]);
    }
}

#[tokio::test(start_paused = true)]
async fn while_aws_does_not_say_what_hooks_there_are_none_is_put_and_none_taken_for_deleted() {
    let (log, _guard) = captured::log(Level::INFO);
    let world = World::new(1);
    world.aws.throttle_for(&[Operation::DescribeLifecycleHooks], seconds(600));
    let scene = Scene::on(world, group(2), managed(false)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Operator).await;
    scene.pass_some(seconds(300)).await;
    assert_eq!(puts(&scene.world, "web"), []);
    scene.until(|w| !puts(w, "web").is_empty()).await;
    scene.pass_some(seconds(60)).await;
    assert_eq!(told(&log, "the group had no lifecycle hook of ours: created"), 1, "{}", log.text());
    assert_eq!(told(&log, "somebody had deleted"), 0);
}

#[tokio::test(start_paused = true)]
async fn of_two_processes_the_leader_puts_hooks_and_the_next_one_has_nothing_left_to_put() {
    let mut scene = Scene::configured(group(2), managed(true)).await;
    let _second = Program::start(&scene.world, second(managed(true)));
    scene.pass_some(seconds(300)).await;
    scene.take_down().await;
    scene.pass_some(seconds(1200)).await;
    assert_eq!((puts(&scene.world, "web").len(), scene.world.aws.calls(UPDATE)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn sixty_groups_have_their_hooks_within_a_minute_by_a_few_calls_a_second() {
    let world = World::new(1);
    let names: Vec<String> = (0..60).map(|n| format!("group-{n}")).collect();
    for name in &names {
        world.aws.add_group(of_our_cluster(name));
    }
    let scene = Scene::on(world, group(1), managed(false)).await;
    scene.until(|w| names.iter().all(|name| !puts(w, name).is_empty())).await;
    let all = aws_moments(&scene.world, |e| matches!(e, Event::Called { operation: PUT, .. }));
    assert_eq!(all.len(), 61);
    let took = all[60].duration_since(all[0]);
    assert!(took <= SignedDuration::from_secs(60), "{took:#}");
    let busiest = all.windows(5).map(|five| five[4].duration_since(five[0])).min().expect("five");
    assert!(busiest >= SignedDuration::from_millis(900), "five calls within {busiest:#}");
}

#[tokio::test(start_paused = true)]
async fn groups_that_are_not_selected_any_more_or_that_nobody_may_change_are_left_alone() {
    let world = World::new(1);
    world.aws.add_group(of_our_cluster("operated").operated_by("eks.amazonaws.com"));
    let scene = Scene::on(world, group(2), managed(true)).await;
    scene.pass_some(seconds(60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.pass_some(seconds(60)).await;
    scene.world.aws.untag_group("web", TAG);
    scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(600));
    scene.until_gone(&machine).await;
    assert!(!a_hook_timed_out(&scene.world));
    assert_eq!((puts(&scene.world, "web").len(), puts(&scene.world, "operated").len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn retain_sets_the_lifecycle_policy_then_the_default_result_and_both_again_when_they_drift() {
    let scene = Scene::configured(group(1), managed(true)).await;
    scene.pass_some(seconds(60)).await;
    assert_eq!(hooks(&scene.world, "web").await, [ours("web", true)]);
    let of = |w: &World, operation| {
        aws_moments(w, |e| matches!(e, Event::Called { operation: o, .. } if *o == operation))
    };
    assert!(of(&scene.world, UPDATE)[0] < of(&scene.world, PUT)[0], "or it would abandon what is not kept");
    scene.pass_some(seconds(600)).await;
    assert_eq!((scene.world.aws.calls(UPDATE), scene.world.aws.calls(PUT)), (1, 1));
    assert_eq!(scene.world.aws.group("web").expect("the group").desired, 1);
    scene.world.aws.stop_retaining("web");
    scene.pass_some(seconds(65)).await;
    assert_eq!(scene.world.aws.calls(UPDATE), 2);
}

#[tokio::test(start_paused = true)]
async fn what_the_group_retains_already_is_not_taken_back_without_retain() {
    let scene = Scene::configured(held_group(1, 300).retaining(), managed(false)).await;
    scene.pass_some(seconds(600)).await;
    assert_eq!(hooks(&scene.world, "web").await, [ours("web", true)]);
    assert_eq!((scene.world.aws.calls(PUT), scene.world.aws.calls(UPDATE)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_group_with_a_warm_pool_gets_a_hook_and_no_retention() {
    let pooled = group(1).size(0, 2, 1).warm_pool(WarmPoolSpec::stopped());
    let scene = Scene::configured(pooled, managed(true)).await;
    scene.pass_some(seconds(120)).await;
    assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)]);
    assert_eq!(scene.world.aws.calls(UPDATE), 0);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_made_anew_between_two_refreshes_has_its_hook_with_the_next_but_one() {
    let (log, _guard) = captured::log(Level::INFO);
    let world = World::new(1);
    let names: Vec<String> = (0..60).map(|n| format!("group-{n}")).collect();
    for name in &names {
        world.aws.add_group(of_our_cluster(name));
    }
    let scene = Scene::on(world, group(1), managed(false)).await;
    // All have theirs, and all are known.
    scene.pass_some(seconds(3_600)).await;
    scene.world.aws.remove_group("group-30");
    scene.world.aws.add_group(of_our_cluster("group-30"));
    scene.pass_some(seconds(125)).await;
    assert_eq!(hooks(&scene.world, "group-30").await, [ours("group-30", false)]);
    assert_eq!(puts(&scene.world, "group-30").len(), 2);
    assert_eq!(told(&log, "somebody had deleted"), 0, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn where_retention_is_taken_and_never_shown_the_hook_continues_and_it_is_asked_for_ever_less_often() {
    let (log, _guard) = captured::log(Level::INFO);
    let scene = Scene::configured(group(1).ignoring_retention(), managed(true)).await;
    // Long enough for a refresh after the time in which AWS may show what was before.
    scene.pass_some(seconds(120)).await;
    for _ in 0..36 {
        assert_eq!(hooks(&scene.world, "web").await, [ours("web", false)]);
        scene.pass_some(seconds(300)).await;
    }
    let (tries, puts) = (scene.world.aws.calls(UPDATE), puts(&scene.world, "web").len());
    assert!((15..=30).contains(&tries), "{tries} in three hours");
    assert_eq!(puts, 2, "with ABANDON as it was taken, and once that was not shown");
    assert_eq!(told(&log, "the group now keeps instances"), 0, "{}", log.text());
    let ignored = told(&log, "does not show it");
    assert!((1..=tries).contains(&ignored), "{}", log.text());
    let failed = r#"ebbtide_lifecycle_hook_changes_total{change="retention",outcome="failed"}"#;
    let failures = value(&get(scene.program().admin().expect("a port"), "/metrics").await, failed);
    // The last may not have been found out yet.
    assert!(
        failures.is_some_and(|n| (tries as f64 - 1.0..=tries as f64).contains(&n)),
        "{failures:?} of {tries}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_others_shorten_after_it_was_looked_up_gets_its_next_heartbeat_when_that_is_seen() {
    let scene = Scene::with(held_group(3, 300)).await;
    let [first, second, _] = &scene.machines()[..] else { panic!("three nodes") };
    for (machine, name) in [(first, "web"), (second, "api")] {
        scene.run([pod(name).on(&machine.name).grace(900).exits_after(800)]).await;
    }
    // While one leaves, AWS is looked at every ten seconds. Its hooks have just been looked up.
    scene.scale_in(first, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(120));
    scene.scale_in(second, Cause::Group).await;
    scene.until_gone(second).await;
    assert!(!a_hook_timed_out(&scene.world));
    scene.assert_left_well(second);
}
