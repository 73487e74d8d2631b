//! A process that is stopped for a minute in the middle of a drain, while another takes over, and then goes on: what it was about to
//! say is said a minute late, to the API server and to AWS, and what it is told is a minute old.

use std::time::Duration;

use ebbtide::aws::Aws;
use ebbtide::sim::aws::{Event as AwsEvent, GroupSpec};
use ebbtide::sim::cluster::{Event, pod};
use ebbtide::sim::http::{aws_client, kube_client};
use ebbtide::sim::paused::{Switch, Way};
use ebbtide::sim::program::{Program, config, second};
use ebbtide::sim::world::World;
use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;

use crate::journal_queries::{
    a_hook_timed_out, aws_moments, eviction_requests, has_exited, in_phase, is_asked, last_exit,
    longest_silence, moments, released_at, terminations,
};
use crate::scene::{Cause, Machine, Scene, group, held_group, seconds};

/// For how long the process is stopped.
const STOPPED: Duration = seconds(60);

fn holder(world: &World) -> String {
    let lease: Lease = world.cluster.get("ebbtide").expect("a Lease");
    lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default()
}

/// The scene, whose own program follows; the program that leads; and the switch that stops it.
async fn led_by_another(group: GroupSpec, before: Option<&'static str>) -> (Scene, Program, Switch) {
    let mut scene = Scene::with(group).await;
    let switch = Switch::new(false);
    let aws = Aws::at(aws_client(Way::to(scene.world.aws.clone(), &switch, before)));
    let client = kube_client(Way::to(scene.world.cluster.clone(), &switch, None));
    let leader = Program::start_with(&scene.world, aws, client, second(config()));
    scene.take_down().await;
    scene.until(|w| holder(w).starts_with("ebbtide-1")).await;
    scene.bring_back();
    scene.ready().await;
    (scene, leader, switch)
}

/// The leader is stopped at this moment of a drain, for a minute in which another takes over, and goes on as a second one.
async fn stopped_when(moment: impl Fn(&World, &Machine) -> bool) {
    stopped(None, CASES, moment).await;
}

/// The same, the leader being stopped when it is about to send a request with this word.
async fn stopped_before(word: &'static str, cases: &[Case]) {
    stopped(Some(word), cases, |_, _| false).await;
}

/// Whether the group has our hook, why the node goes, and whether the leader's wall clock goes on without its other one, as that of a
/// machine that sleeps.
type Case = (bool, Cause, bool);

const CASES: &[Case] =
    &[(false, Cause::Autoscaler, false), (true, Cause::Autoscaler, true), (true, Cause::Group, false)];

async fn stopped(before: Option<&'static str>, cases: &[Case], moment: impl Fn(&World, &Machine) -> bool) {
    for &(hook, cause, slept) in cases {
        let case = format!("{cause:?}, slept: {slept}");
        let group = if hook { held_group(3, 60) } else { group(3) };
        let (scene, leader, switch) = led_by_another(group, before).await;
        let machine = scene.first();
        let on = machine.name.as_str();
        scene.run([pod("web").on(on).exits_after(20), pod("api").on(on).grace(90).exits_after(60)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until(|w| moment(w, &machine) || *switch.borrow()).await;
        switch.send_replace(true);
        if slept {
            leader.step_clock(SignedDuration::from_secs(60));
        }
        scene.pass_some(STOPPED).await;
        assert!(holder(&scene.world).starts_with("ebbtide-0"), "{case}: another took over");
        switch.send_replace(false);
        scene.until_gone(&machine).await;
        scene.pass_some(seconds(120)).await;
        assert!(holder(&scene.world).starts_with("ebbtide-0"), "{case}: and goes on");
        assert_harmless(&scene, &machine, cause, &case);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_when_it_had_begun_a_drain_does_no_harm_as_a_second_one() {
    stopped_when(|w, machine| in_phase(w, machine, "Draining")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_when_it_had_asked_pods_to_go_does_no_harm_as_a_second_one() {
    stopped_when(|w, _| is_asked(w, "api")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_when_a_pod_had_gone_does_no_harm_as_a_second_one() {
    stopped_when(|w, _| has_exited(w, "web")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_during_a_flush_does_no_harm_as_a_second_one() {
    stopped_when(|w, machine| in_phase(w, machine, "Flushing")).await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_was_stopped_when_it_was_to_release_an_instance_does_no_harm_as_a_second_one() {
    stopped_when(|w, machine| in_phase(w, machine, "Releasing")).await;
}

#[tokio::test(start_paused = true)]
async fn a_termination_that_a_stopped_leader_sends_a_minute_late_costs_no_second_decrement() {
    stopped_before("TerminateInstance", &CASES[..2]).await;
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_a_stopped_leader_sends_a_minute_late_does_no_harm() {
    stopped_before("CompleteLifecycleAction", &CASES[1..]).await;
}

fn assert_harmless(scene: &Scene, machine: &Machine, cause: Cause, what: &str) {
    let world = &scene.world;
    assert_eq!(moments(world, |e| matches!(e, Event::CutShort { .. })), [], "{what}");
    assert_eq!(world.cluster.all_lines().lost, 0, "{what}: lines lost");
    assert!(!a_hook_timed_out(world), "{what}");
    assert_eq!(terminations(world, machine).len(), 1, "{what}: terminations");
    let released = released_at(world, machine);
    let flushed = last_exit(world, machine) + SignedDuration::from_secs(5);
    assert!(released >= flushed, "{what}: released {released}, flushed until {flushed}");
    // Each process may ask each pod once: the UID is the same until the pod is gone.
    assert!(eviction_requests(world).len() <= 4, "{what}: {:?}", eviction_requests(world));
    assert!(longest_silence(world, machine) <= SignedDuration::from_secs(35), "{what}");
    let changes = aws_moments(world, |e| matches!(e, AwsEvent::DesiredChanged { .. })).len();
    assert_eq!(changes, usize::from(cause == Cause::Autoscaler), "{what}: decrements");
    // The machines that stay are as they were.
    for other in scene.machines() {
        let spec = scene.node(&other.name).and_then(|node| node.spec).unwrap_or_default();
        assert!(spec.unschedulable.is_none() && terminations(world, &other).is_empty(), "{what}");
    }
}
