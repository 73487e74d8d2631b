//! What a group ends that has no lifecycle hook: AWS lets load balancers go of the instance first, and in that time its node is drained.

use ebbtide::config::Config;
use ebbtide::sim::aws::{Event as AwsEvent, GroupSpec, HookSpec, LifecycleState, Power, TargetGroupSpec};
use ebbtide::sim::cluster::{By, daemon_set, pod};
use ebbtide::sim::program::{Program, config};
use ebbtide::sim::world::World;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;

use crate::journal_queries::{
    TERMINATE, a_hook_timed_out, asked, assert_nothing_lost, aws_moments, daemons_on, decrements, has_exited,
    in_phase, is_asked, last_exit, notes, records, terminations,
};
use crate::replicas::other;
use crate::scene::{Cause, Machine, Scene, group, seconds, state};
use crate::status::status;

/// A group without a hook, behind a target group with this deregistration delay.
async fn behind_load_balancers(group: GroupSpec, delay: u64) -> Scene {
    let world = World::new(1);
    world.aws.add_target_group(TargetGroupSpec::named("own").delay(delay).attached_to("web"));
    world.cluster.add(daemon_set("agent").annotation("ebbtide/daemonset", "evict"));
    Scene::on(world, group.deregistering_for(delay), config()).await
}

/// When AWS shuts the machine down.
fn off_at(world: &World, machine: &Machine) -> Timestamp {
    let off = |e: &AwsEvent| matches!(e, AwsEvent::Powered { instance, power: Power::ShuttingDown, .. } if *instance == machine.instance);
    aws_moments(world, off)[0]
}

/// Every workload has left with its grace before the machine ended, DaemonSet pods after them, and nobody but the group has ended the instance.
fn assert_drained_in_time(scene: &Scene, machine: &Machine) {
    let world = &scene.world;
    assert_nothing_lost(world);
    let (last, off) = (last_exit(world, machine), off_at(world, machine));
    assert!(last + SignedDuration::from_secs(5) <= off, "the last exit at {last}, off at {off}");
    for daemon in daemons_on(world, machine) {
        let early = |(at, by, _): &(Timestamp, By, i64)| *by != By::Controller && *at < last;
        assert!(!asked(world, &daemon).iter().any(early), "{daemon} was asked before");
    }
    assert_eq!((terminations(world, machine).len(), world.aws.calls(TERMINATE)), (1, 0));
    let is_of = |record: &String| record == "now" || record.contains(r#""cause":"state-change""#);
    let written = records(world, machine);
    assert!(written.iter().all(is_of), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_whose_group_has_no_hook_is_drained_while_load_balancers_let_go_of_its_instance() {
    let scene = behind_load_balancers(group(2), 300).await;
    let machine = scene.first();
    let on = machine.name.as_str();
    scene.run([pod("web").on(on).grace(180).exits_after(170), pod("api").on(on).exits_after(20)]).await;
    let began = scene.world.clock.now();
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| in_phase(w, &machine, "Releasing")).await;
    assert_eq!(state(&scene.world, &machine), Some(LifecycleState::Terminating));
    scene.until_gone(&machine).await;
    assert_drained_in_time(&scene, &machine);
    for (pod, whole) in [("web", 180), ("api", 30)] {
        let [(at, by, grace)] = asked(&scene.world, pod)[..] else { panic!("{pod} is asked once") };
        assert_eq!((by, grace), (By::Eviction, whole), "{pod}");
        assert!(at.duration_since(began) <= SignedDuration::from_secs(80), "with the next refresh");
    }
    let agent = daemons_on(&scene.world, &machine).into_iter().find(|pod| pod.starts_with("agent-"));
    assert!(is_asked(&scene.world, &agent.expect("an agent")), "in its turn");
    let told = notes(&scene.world, &machine, "ScaleInNotHeld");
    assert!(told.len() == 1 && told[0].contains("2 workload pods"), "{told:?}");
    assert!(notes(&scene.world, &machine, "ScaleInNodeLost").is_empty());
    scene.pass_some(seconds(5)).await;
    let status = status(scene.program()).await;
    let ended = (&status["ended"][0]["cause"], &status["ended"][0]["outcome"]);
    assert_eq!(ended, (&json!("state-change"), &json!("released")), "{status}");
}

#[tokio::test(start_paused = true)]
async fn its_drain_goes_on_after_a_restart_and_under_another_leader_and_is_told_of_once() {
    for by_another in [false, true] {
        let mut scene = behind_load_balancers(group(2), 300).await;
        let second = by_another.then(|| Program::start(&scene.world, other()));
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(180).exits_after(120)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        if by_another {
            scene.take_down().await;
        } else {
            scene.kill().await;
        }
        scene.until_gone(&machine).await;
        assert_drained_in_time(&scene, &machine);
        assert_eq!(asked(&scene.world, "web").len(), 1, "by another: {by_another}");
        assert_eq!(notes(&scene.world, &machine, "ScaleInNotHeld").len(), 1, "by another: {by_another}");
        drop(second);
    }
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_the_group_gets_meanwhile_holds_the_instance_until_its_drain_is_over() {
    let scene = behind_load_balancers(group(2), 300).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| is_asked(w, "web")).await;
    scene.world.aws.put_hook("web", HookSpec::terminating("ebbtide").heartbeat(120));
    scene.until(|w| state(w, &machine) == Some(LifecycleState::TerminatingWait)).await;
    assert!(!has_exited(&scene.world, "web"));
    scene.until_gone(&machine).await;
    scene.assert_left_well(&machine);
    assert_drained_in_time(&scene, &machine);
    assert!(!a_hook_timed_out(&scene.world));
}

#[tokio::test(start_paused = true)]
async fn what_ebbtide_has_ended_itself_is_not_drained_again_when_somebody_takes_its_record_off() {
    for is_killed in [false, true] {
        let mut scene = behind_load_balancers(group(2), 300).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(20)]).await;
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until(|w| state(w, &machine) == Some(LifecycleState::Terminating)).await;
        // A refresh has shown it.
        scene.pass_some(seconds(20)).await;
        let written = records(&scene.world, &machine).len();
        scene.annotate(&machine, None).await;
        if is_killed {
            scene.kill().await;
        }
        scene.run([pod("late").on(&machine.name).grace(600).exits_after(500)]).await;
        scene.until_gone(&machine).await;
        assert_eq!(records(&scene.world, &machine).len(), written, "killed: {is_killed}");
        assert!(notes(&scene.world, &machine, "ScaleInNotHeld").is_empty(), "killed: {is_killed}");
        assert_eq!((terminations(&scene.world, &machine).len(), decrements(&scene.world)), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_autoscaler_and_a_person_who_want_such_a_node_gone_as_well_change_no_size() {
    for cause in [Cause::Autoscaler, Cause::Operator] {
        let scene = behind_load_balancers(group(2), 300).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(180).exits_after(120)]).await;
        scene.scale_in(&machine, Cause::Group).await;
        scene.until(|w| is_asked(w, "web")).await;
        scene.scale_in(&machine, cause).await;
        scene.until_gone(&machine).await;
        assert_drained_in_time(&scene, &machine);
        assert_eq!(scene.world.aws.group("web").expect("there").desired, 2, "{cause:?}");
    }
}

/// Without a load balancer there are seconds.
#[tokio::test(start_paused = true)]
async fn a_machine_that_its_group_ends_at_once_has_its_node_closed_and_that_is_told() {
    let often = Config { refresh_interval: seconds(5), ..config() };
    let scene = Scene::configured(group(2), often).await;
    let machine = scene.first();
    scene.run([pod("web").on(&machine.name).grace(900).exits_after(800)]).await;
    scene.scale_in(&machine, Cause::Group).await;
    scene.until(|w| in_phase(w, &machine, "Draining")).await;
    scene.until_gone(&machine).await;
    assert_eq!(notes(&scene.world, &machine, "ScaleInNotHeld").len(), 1);
    assert_eq!(scene.world.aws.calls(TERMINATE), 0);
    scene.pass_some(seconds(5)).await;
    let status = status(scene.program()).await;
    assert_eq!(status["ended"][0]["outcome"], json!("lost"), "{status}");
}
