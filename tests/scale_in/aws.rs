//! What AWS does to a scale-in: answers that are old or never come, calls that are carried out late, machines that die, hooks
//! that come and go.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::sim::aws::{
    Behaviour, Bucket, Death, Event, GroupSpec, HookResult, HookSpec, LifecycleState, Lose, Operation,
    TerminationCause, Timing, Trouble, Which,
};
use ebbtide::sim::cluster::{By, Event as ClusterEvent, NodeChange, Timing as ClusterTiming, pod};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use jiff::SignedDuration;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, assert_nothing_lost, aws_moments, decrements, has_exited, in_phase,
    is_asked, longest_silence, moments, notes, released_at, terminations,
};
use crate::scene::{Cause, Machine, RECORD, Scene, config_with, group, held_group, seconds};

const DESCRIBE: [Operation; 1] = [Operation::DescribeAutoScalingGroups];

fn groups() -> [GroupSpec; 2] {
    [group(3), held_group(3, 60)]
}

/// When our hook began to hold the instance.
fn held_at(world: &World, machine: &Machine) -> jiff::Timestamp {
    let held = |e: &Event| matches!(e, Event::EnteredWait { instance, hook, .. } if *instance == machine.instance && hook == "ebbtide");
    *aws_moments(world, held).first().expect("held")
}

fn is_held(world: &World, machine: &Machine) -> bool {
    let held = |e: &Event| matches!(e, Event::EnteredWait { instance, .. } if *instance == machine.instance);
    !aws_moments(world, held).is_empty()
}

#[tokio::test(start_paused = true)]
async fn looks_that_are_twenty_seconds_old_cost_no_second_termination() {
    for group in groups() {
        for side in [Lose::BeforeEffect, Lose::AfterEffect] {
            let scene = Scene::with(group.clone()).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
            let old = Which::of(&DESCRIBE).lasting(seconds(400));
            scene.world.aws.trouble(old, Trouble::Stale(seconds(20)));
            scene.world.aws.trouble(Which::of(&[TERMINATE]), Trouble::Silent(side));
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            assert_eq!(decrements(&scene.world), 1, "{side:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_aws_acknowledged_is_not_repeated_though_looks_do_not_show_it_for_minutes() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
        scene.pass_some(seconds(150)).await;
        scene.world.aws.trouble(Which::of(&DESCRIBE).lasting(seconds(400)), Trouble::Stale(seconds(120)));
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        assert_eq!((decrements(&scene.world), scene.world.aws.calls(TERMINATE)), (1, 1));
    }
}

/// The hook is kept for it, and the node closed.
#[tokio::test(start_paused = true)]
async fn a_drain_under_the_hook_goes_on_while_looks_do_not_show_for_minutes_that_aws_ends_the_instance() {
    // With a hook of 30 s, each look is younger than what counts as too old to show a hold.
    for (is_killed, heartbeat) in [(false, 60), (false, 30), (true, 60), (true, 30)] {
        let mut scene = Scene::with(held_group(2, heartbeat)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(240).exits_after(200)]).await;
        scene.pass_some(seconds(150)).await;
        scene.world.aws.trouble(Which::of(&DESCRIBE).lasting(seconds(400)), Trouble::Stale(seconds(120)));
        scene.scale_in(&machine, Cause::Autoscaler).await;
        if is_killed {
            scene.until(|w| is_held(w, &machine)).await;
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert!(!a_hook_timed_out(&scene.world), "killed: {is_killed}, hook of {heartbeat} s");
        assert!(has_exited(&scene.world, "web"));
        assert_eq!(notes(&scene.world, &machine, "ScaleInReturned"), [""; 0]);
        assert_eq!((decrements(&scene.world), scene.world.aws.calls(TERMINATE)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_termination_whose_answer_nobody_can_read_is_not_repeated() {
    for group in groups() {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
        // A look that is recent enough, and does not show it yet.
        scene.world.aws.trouble(Which::of(&DESCRIBE).lasting(seconds(400)), Trouble::Stale(seconds(10)));
        scene.world.aws.trouble(Which::of(&[TERMINATE]).times(9), Trouble::Unreadable);
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!((decrements(&scene.world), scene.world.aws.calls(TERMINATE)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_arrives_after_its_caller_gave_up_or_died_is_not_repeated() {
    for group in groups() {
        for (killed, late) in [(false, 20), (false, 45), (false, 100), (true, 20), (true, 100)] {
            let mut scene = Scene::with(group.clone()).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
            scene
                .world
                .aws
                .trouble(Which::of(&[TERMINATE]).about(&machine.instance), Trouble::Late(seconds(late)));
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.pass_some(seconds(if killed { 33 } else { 1 })).await;
            if killed {
                scene.kill().await;
            }
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
            assert_eq!(
                (scene.world.aws.calls(TERMINATE), decrements(&scene.world)),
                (1, 1),
                "killed: {killed}, late by {late} s"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_cannot_be_completed_when_it_is_first_shown_is_completed_soon_after() {
    let timing = Timing { action: Span::exactly(seconds(25)), ..Timing::PUBLISHED };
    for cause in [Cause::Autoscaler, Cause::Group] {
        let scene = Scene::with(held_group(2, 60).timing(timing)).await;
        let machine = scene.first();
        scene.scale_in(&machine, cause).await;
        scene.until_released(&machine).await;
        let held_for = released_at(&scene.world, &machine).duration_since(held_at(&scene.world, &machine));
        assert!(held_for <= SignedDuration::from_secs(65), "{held_for}");
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_dies_while_it_is_held_does_not_hold_its_node_for_two_days() {
    for death in [Death::Interrupted, Death::Stopped, Death::Impaired] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.world.aws.kill_machine(&machine.instance, death);
        scene.until_released(&machine).await;
        let (at, _, grace) = asked(&scene.world, "web")[0];
        let after = released_at(&scene.world, &machine).duration_since(at);
        assert!(after <= SignedDuration::from_secs(grace + 180), "{death:?}: {after}");
        assert!(!a_hook_timed_out(&scene.world), "{death:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn log_lines_are_lost_where_daemonset_pods_get_no_time_to_flush_and_only_there() {
    for (flush, lost) in [(0, true), (5, false)] {
        let config = config_with(|it| it.flush.default = seconds(flush));
        for group in groups() {
            // The machine stops as soon as it is let go.
            let group = group.timing(Timing { deregister: Span::NONE, ..Timing::PUBLISHED });
            let scene = Scene::configured(group, config.clone()).await;
            let machine = scene.first();
            // Its kubelet is done at once, and waits for nothing that would give the shipper time.
            let at_once = ClusterTiming { unmount: Span::NONE, ..ClusterTiming::real() };
            scene.world.cluster.set_timing(at_once);
            scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
            scene.scale_in(&machine, Cause::Autoscaler).await;
            scene.until_gone(&machine).await;
            assert_eq!(scene.world.cluster.all_lines().lost > 0, lost, "a flush of {flush} s");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn heartbeats_of_forty_instances_leave_room_for_others_in_the_bucket_that_all_share() {
    let scene = Scene::with(held_group(41, 60)).await;
    let mut machines = scene.machines();
    let last = machines.pop().expect("a machine");
    let pods = machines
        .iter()
        .map(|m| pod(format!("web-{}", m.instance).as_str()).on(&m.name).grace(900).exits_after(600));
    scene.run(pods).await;
    let bucket = Some(Bucket { size: 10, per_second: 5.0 });
    scene.world.aws.behave(Behaviour { bucket, ..Behaviour::HARSH });
    scene.world.aws.others_call(2.0);
    for machine in &machines {
        scene.scale_in(machine, Cause::Group).await;
    }
    scene.pass_some(seconds(300)).await;
    let requested = scene.world.clock.now();
    scene.scale_in(&last, Cause::Autoscaler).await;
    scene.until_released(&last).await;
    let took = released_at(&scene.world, &last).duration_since(requested);
    assert!(took <= SignedDuration::from_secs(120), "{took}");
    scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
    assert_nothing_lost(&scene.world);
    for machine in &machines {
        assert!(longest_silence(&scene.world, machine) <= SignedDuration::from_secs(55));
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_is_put_on_the_group_in_mid_drain_is_completed() {
    let scene = Scene::with(group(2)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.pass_some(seconds(90)).await;
    scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(60));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(decrements(&scene.world), 1);
}

/// What ebbtide and cluster-autoscaler put on a Node is off it.
fn is_as_it_was(scene: &Scene, machine: &Machine) -> bool {
    let node = scene.node(&machine.name).expect("there");
    let spec = node.spec.unwrap_or_default();
    let keys = |map: Option<BTreeMap<String, String>>| map.into_iter().flatten().map(|(key, _)| key);
    let mut marks = keys(node.metadata.annotations).chain(keys(node.metadata.labels));
    spec.unschedulable != Some(true)
        && spec.taints.unwrap_or_default().is_empty()
        && !marks
            .any(|key| key.starts_with("ebbtide/") || key.contains("exclude-from-external-load-balancers"))
}

#[tokio::test(start_paused = true)]
async fn a_decrement_that_aws_refuses_gives_the_node_back_and_is_not_asked_for_again() {
    for (group, cause) in [
        (group(2), Cause::Autoscaler),
        (group(2), Cause::Operator),
        (held_group(2, 60), Cause::Autoscaler),
        (held_group(2, 60), Cause::Operator),
    ] {
        let scene = Scene::with(group.size(1, 1_000, 2)).await;
        let [machine, other] = &scene.machines()[..] else { panic!("two nodes") };
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
        // Everything was checked, and now the other instance is taken out of the group for good: one is the least it may have.
        let other = other.instance.clone();
        scene.world.aws.before_next(TERMINATE, move |aws, now| aws.detach(&other, true, now));
        scene.scale_in(machine, cause).await;
        scene.until(|w| !notes(w, machine, "ScaleInCancelled").is_empty()).await;
        let told = notes(&scene.world, machine, "ScaleInCancelled");
        assert!(told[0].contains("minimum size") && told[0].contains("ebbtide/scale-in=replace"), "{told:?}");
        scene.pass_some(seconds(600)).await;
        assert_eq!(scene.world.aws.calls(TERMINATE), 1, "{cause:?}");
        assert_eq!(terminations(&scene.world, machine), [], "{cause:?}");
        assert!(is_as_it_was(&scene, machine), "{cause:?}: {:?}", scene.node(&machine.name));
        assert_eq!(notes(&scene.world, machine, "ScaleInCancelled").len(), 1);
        assert_eq!(scene.target().await.expect("answered"), 1);
        let refused = scene.delete(std::slice::from_ref(machine)).await.expect_err("one is the least");
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");

        // Once there is one more, it may go after all.
        scene.world.aws.set_desired("web", 2);
        scene
            .until(|w| w.aws.group("web").is_some_and(|g| g.in_state(LifecycleState::InService).len() == 2))
            .await;
        scene.until_target(2).await;
        scene.delete(std::slice::from_ref(machine)).await.expect("accepted");
        scene.until_gone(machine).await;
        assert_nothing_lost(&scene.world);
        assert_eq!((terminations(&scene.world, machine).len(), decrements(&scene.world)), (1, 1));
    }
}

/// Its node would be opened, and what comes to it end with the machine.
#[tokio::test(start_paused = true)]
async fn a_node_whose_instance_somebody_else_ends_at_that_moment_stays_closed_though_aws_refuses_the_decrement()
 {
    for group in [group(2), held_group(2, 60)] {
        let scene = Scene::with(group.size(1, 1_000, 2)).await;
        let machine = scene.first();
        let instance = machine.instance.clone();
        scene.world.aws.before_next(TERMINATE, move |aws, now| {
            aws.terminate(&instance, TerminationCause::Request, now);
            aws.set_desired("web", 1, now);
        });
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        let is_opened = |e: &ClusterEvent| matches!(e, ClusterEvent::NodeChanged { node, changes } if *node == machine.name && changes.contains(&NodeChange::Unschedulable(false)));
        assert_eq!(moments(&scene.world, is_opened), []);
        assert_eq!(notes(&scene.world, &machine, "ScaleInCancelled"), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_of_somebody_elses_that_is_put_in_mid_drain_is_left_to_him() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    let foreign = HookSpec::terminating("theirs").heartbeat(600).by_default(HookResult::Continue);
    scene.world.aws.put_hook("web", foreign);
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    let done = |e: &Event| matches!(e, Event::HookCompleted { hook, .. } if hook == "theirs");
    assert!(aws_moments(&scene.world, done).is_empty());
    let ours = |e: &Event| matches!(e, Event::HookTimedOut { hook, .. } if hook == "ebbtide");
    assert!(aws_moments(&scene.world, ours).is_empty());
    assert_eq!(scene.world.cluster.all_lines().lost, 0);
}

#[tokio::test(start_paused = true)]
async fn pages_with_a_gap_forget_neither_a_hold_nor_a_scale_in() {
    for (group, cause) in [(group(3), Cause::Autoscaler), (held_group(3, 30), Cause::Group)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        for left_out in [machine.instance.as_str(), "web", machine.instance.as_str(), "web"] {
            scene.world.aws.trouble(Which::of(&DESCRIBE), Trouble::Without(left_out.to_owned()));
            scene.pass_some(seconds(25)).await;
        }
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

/// Nobody has said that it counts still.
#[tokio::test(start_paused = true)]
async fn an_instance_that_the_look_before_its_decrement_leaves_out_is_not_decremented() {
    let scene = Scene::with(group(3)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| in_phase(w, &machine, "Flushing")).await;
    let left_out = Trouble::Without(machine.instance.clone());
    scene.world.aws.trouble(Which::of(&DESCRIBE).lasting(seconds(60)), left_out);
    scene.world.aws.terminate(&machine.instance, TerminationCause::Rebalance);
    scene.until_gone(&machine).await;
    assert_eq!((decrements(&scene.world), scene.world.aws.calls(TERMINATE)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_first_page_that_is_empty_is_not_the_last() {
    let scene = Scene::with(held_group(2, 60)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    scene.world.aws.trouble(Which::of(&DESCRIBE).times(3), Trouble::EmptyPage);
    scene.scale_in(&machine, Cause::Group).await;
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
}

#[tokio::test(start_paused = true)]
async fn decrements_that_leave_zones_out_of_balance_leave_no_surplus() {
    let scene = Scene::with(group(6).zones(["us-east-1a", "us-east-1b"])).await;
    let zone = |machine: &Machine| scene.world.aws.instance(&machine.instance).expect("there").zone;
    let leaving: Vec<Machine> = scene.machines().into_iter().filter(|m| zone(m) == "us-east-1b").collect();
    scene.delete(&leaving).await.expect("accepted");
    for machine in &leaving {
        scene.until_gone(machine).await;
    }
    scene.pass_some(seconds(2_000)).await;
    let group = scene.world.aws.group("web").expect("there");
    assert_eq!((group.desired, group.launches), (3, 0));
    assert_eq!(group.in_state(LifecycleState::InService).len(), 3);
    assert_eq!(scene.target().await.expect("answered"), 3);
}

#[tokio::test(start_paused = true)]
async fn credentials_that_expire_for_half_a_minute_cost_nobody_anything() {
    for (group, cause) in [(group(3), Cause::Autoscaler), (held_group(3, 90), Cause::Group)] {
        for at in [0, 15, 30, 100] {
            let scene = Scene::with(group.clone()).await;
            let machine = scene.first();
            scene.run([pod("web").on(&machine.name).grace(120).exits_after(90)]).await;
            scene.scale_in(&machine, cause).await;
            scene.pass_some(seconds(at)).await;
            scene.world.aws.expire_credentials(seconds(30));
            scene.until_gone(&machine).await;
            scene.assert_left_well(&machine);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_drain_begins_while_load_balancers_still_let_go_of_the_instance() {
    let scene = Scene::with(held_group(2, 60).deregistering_for(300)).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(120).exits_after(100)]).await;
    let began = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| has_exited(w, "web")).await;
    let (at, ..) = asked(&scene.world, "web")[0];
    assert!(at.duration_since(began) <= SignedDuration::from_secs(80), "with the next refresh");
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_eq!(terminations(&scene.world, &machine).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_restart_one_question_tells_since_when_forty_instances_of_a_group_are_held() {
    let mut scene = Scene::with(held_group(40, 60)).await;
    let machines = scene.machines();
    let pods = machines
        .iter()
        .map(|m| pod(format!("web-{}", m.instance).as_str()).on(&m.name).grace(900).exits_after(600));
    scene.run(pods).await;
    for machine in &machines {
        scene.scale_in(machine, Cause::Group).await;
    }
    scene.until(|w| machines.iter().all(|machine| is_held(w, machine))).await;
    scene.take_down().await;
    scene.pass_some(seconds(20)).await;
    let asked_before = scene.world.aws.calls(Operation::DescribeScalingActivities);
    scene.bring_back();
    scene.pass_some(seconds(60)).await;
    let asked = scene.world.aws.calls(Operation::DescribeScalingActivities) - asked_before;
    // Discovery may ask too, for why the group is short of instances.
    assert!((1..=2).contains(&asked), "{asked}");
    scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_is_kept_though_the_clock_of_aws_is_minutes_off() {
    use ebbtide::sim::cluster::budget;
    for minutes in [-10, -1, 1, 10] {
        let mut scene = Scene::with(held_group(2, 30)).await;
        let machine = scene.first();
        scene.world.aws.set_clock_ahead(SignedDuration::from_mins(minutes));
        scene.world.cluster.add(budget("web").min_available(1));
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(50)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| !aws_moments(w, |e| matches!(e, Event::EnteredWait { .. })).is_empty()).await;
        scene.kill().await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_in_which_every_call_times_out_delays_a_drain_and_costs_nothing_else() {
    // Without a hook nothing would hold what the group takes out.
    let cases = [
        (group(3), Cause::Autoscaler),
        (held_group(3, 1_800), Cause::Autoscaler),
        (held_group(3, 1_800), Cause::Group),
    ];
    for (group, cause) in cases {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(300).exits_after(200)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| is_asked(w, "web")).await;
        // No connection is refused: nothing is heard of any call, and each costs its whole time-out.
        let outage = Which::any().lasting(seconds(600));
        scene.world.aws.trouble(outage, Trouble::Silent(Lose::BeforeEffect));
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
    }
}

#[tokio::test(start_paused = true)]
async fn a_machine_that_takes_ten_minutes_to_shut_down_is_told_so_once() {
    for group in groups() {
        let timing = Timing { terminating: Span::exactly(seconds(600)), ..Timing::PUBLISHED };
        let scene = Scene::with(group.timing(timing)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(20)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_released(&machine).await;
        scene.pass_some(seconds(590)).await;
        assert!(scene.node(&machine.name).is_some(), "its group lists it still");
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_scale_in_is_called_off_is_open_again_only_when_its_termination_had_no_effect() {
    let sides = [Lose::BeforeEffect, Lose::AfterEffect];
    for (side, is_killed) in sides.into_iter().flat_map(|side| [(side, false), (side, true)]) {
        let mut scene = Scene::with(group(3)).await;
        let machine = scene.first();
        scene.world.aws.trouble(Which::of(&DESCRIBE).lasting(seconds(40)), Trouble::Stale(seconds(8)));
        scene.world.aws.trouble(Which::of(&[TERMINATE]), Trouble::Silent(side));
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until(|w| w.aws.calls(TERMINATE) == 1).await;
        scene.annotate(&machine, None).await;
        if is_killed {
            scene.kill().await;
        }
        let is_open = |w: &World| {
            let node = w.cluster.node(&machine.name);
            node.is_some_and(|node| !node.spec.unwrap_or_default().unschedulable.unwrap_or_default())
        };
        if side == Lose::BeforeEffect {
            scene.until(is_open).await;
            scene.pass_some(seconds(600)).await;
            assert!(is_open(&scene.world) && scene.world.aws.calls(TERMINATE) == 1);
        } else {
            let gone = |w: &World| !w.cluster.has_node(&machine.name);
            scene.until(|w| is_open(w) || gone(w)).await;
            assert!(gone(&scene.world), "opened while its machine ended, killed: {is_killed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn descriptions_that_take_seven_seconds_each_hold_no_termination_up_for_long() {
    let scene = Scene::with(group(20)).await;
    let machines = scene.machines();
    let slow = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(Duration::from_mins(30));
    scene.world.aws.trouble(slow, Trouble::Late(seconds(7)));
    for machine in &machines[..15] {
        scene.scale_in(machine, Cause::Autoscaler).await;
    }
    scene.pass_some(seconds(90)).await;
    assert_eq!((scene.world.aws.calls(TERMINATE), decrements(&scene.world)), (15, 15));
}

/// The machine of a scale-in whose termination was noted, and waits until AWS has answered for another change of the group.
async fn with_a_termination_that_waits() -> (Scene, Machine) {
    let scene = Scene::with(group(3)).await;
    let machine = scene.first();
    scene.scale_in(&machine, Cause::Operator).await;
    scene.pass_some(seconds(2)).await;
    let late = Which::of(&[Operation::SetDesiredCapacity]);
    scene.world.aws.trouble(late, Trouble::Late(seconds(8)));
    scene.increase(1).await.expect_err("AWS does not answer in time");
    scene.until(|w| record(w, &machine).is_some_and(|record| record.contains("terminateAt"))).await;
    assert_eq!(scene.world.aws.calls(TERMINATE), 0, "another change of the group is under way");
    (scene, machine)
}

fn record(world: &World, machine: &Machine) -> Option<String> {
    world.cluster.node(&machine.name)?.metadata.annotations?.remove(RECORD)
}

#[tokio::test(start_paused = true)]
async fn a_workload_that_comes_while_a_termination_waits_to_be_sent_leaves_first() {
    let (scene, machine) = with_a_termination_that_waits().await;
    scene.run([pod("late").on(&machine.name).grace(90)]).await;
    scene.until_gone(&machine).await;
    // Its kubelet has not started it yet, so that it goes at once.
    let (at, by, grace) = asked(&scene.world, "late")[0];
    let [terminated] = terminations(&scene.world, &machine)[..] else { panic!("terminated once") };
    assert_eq!((by, grace, at < terminated), (By::Eviction, 90, true));
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_waits_for_another_change_of_its_group_is_not_sent_once_it_is_cancelled() {
    let (scene, machine) = with_a_termination_that_waits().await;
    scene.annotate(&machine, None).await;
    scene.pass_some(seconds(60)).await;
    assert_eq!(scene.world.aws.calls(TERMINATE), 0);
    assert_eq!(record(&scene.world, &machine), None);
}
