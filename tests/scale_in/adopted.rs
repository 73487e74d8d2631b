//! A machine that gets the name of an earlier one while the Node of that is still there: its kubelet adopts the Node with
//! everything on it, the record of the other one's scale-in and its provider id too.

use ebbtide::sim::aws::{GroupSpec, LifecycleState, Timing};
use ebbtide::sim::cluster::pod;
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use serde_json::json;

use crate::journal_queries::{TERMINATE, a_hook_timed_out, is_asked, last_exit, notes, terminations};
use crate::scene::{Cause, Machine, RECORD, Scene, TO_BE_DELETED, group, held_group, seconds};
use crate::status::status;

/// Whether nothing on the Node tells of a scale-in, and it is Ready.
fn in_service(world: &World, machine: &Machine) -> bool {
    world.cluster.is_ready(&machine.name)
        && world.cluster.node(&machine.name).is_some_and(|node| {
            let spec = node.spec.unwrap_or_default();
            !spec.unschedulable.unwrap_or_default()
                && !spec.taints.unwrap_or_default().iter().any(|taint| taint.key == TO_BE_DELETED)
                && !node.metadata.annotations.unwrap_or_default().contains_key(RECORD)
        })
}

fn is_gone(world: &World, machine: &Machine) -> bool {
    world.aws.instance(&machine.instance).is_some_and(|i| i.state == LifecycleState::Terminated)
}

/// EC2 takes five minutes to call a machine terminated.
fn slow_to_end(group: GroupSpec) -> GroupSpec {
    group.timing(Timing { terminating: Span::exactly(seconds(300)), ..Timing::PUBLISHED })
}

/// The next instance has the name of this one. Returns which it is, when its kubelet has adopted the Node.
async fn adopts(scene: &Scene, machine: &Machine) -> Machine {
    let uid = |w: &World| w.cluster.node(&machine.name).and_then(|node| node.metadata.uid);
    let before = uid(&scene.world);
    scene.world.aws.reuse_address(&machine.instance);
    let desired = scene.world.aws.group("web").expect("the group").desired;
    scene.world.aws.set_desired("web", desired + 1);
    let address = scene.world.aws.instance(&machine.instance).map(|instance| instance.address);
    let successor = |w: &World| {
        let group = w.aws.group("web")?;
        let such =
            |i: &&ebbtide::sim::aws::InstanceSnapshot| i.id != machine.instance && Some(i.address) == address;
        group.instances.iter().find(such).map(|i| i.id.clone())
    };
    scene.until(|w| successor(w).is_some()).await;
    let instance = successor(&scene.world).expect("one");
    scene.until(|w| is_gone(w, machine) && w.cluster.is_ready(&machine.name)).await;
    assert!(before.is_some() && uid(&scene.world) == before, "the same Node");
    let mut successor = machine.clone();
    successor.instance = instance;
    successor
}

#[tokio::test(start_paused = true)]
async fn the_record_of_an_earlier_machine_neither_ends_the_one_that_adopts_its_node_nor_closes_it_for_ever() {
    for (group, cause, restarted) in [
        (group(2), Cause::Autoscaler, false),
        (group(2), Cause::Autoscaler, true),
        (held_group(2, 60), Cause::Autoscaler, false),
        (held_group(2, 60), Cause::Group, true),
    ] {
        let mut scene = Scene::with(slow_to_end(group)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
        scene.scale_in(&machine, cause).await;
        scene.until_released(&machine).await;
        last_exit(&scene.world, &machine);
        let calls = scene.world.aws.calls(TERMINATE);
        let successor = adopts(&scene, &machine).await;
        if restarted {
            scene.kill().await;
        }
        scene.run([pod("next").on(&machine.name)]).await;
        scene.until(|w| in_service(w, &machine)).await;
        let told = |w: &World| {
            notes(w, &machine, "ScaleInReturned").iter().any(|note| note.contains("another machine"))
        };
        scene.until(told).await;
        scene.pass_some(seconds(3_600)).await;
        let status = status(scene.program()).await;
        assert_eq!(status["ended"][0]["outcome"], json!("returned"), "{status}");
        assert!(in_service(&scene.world, &machine), "and stays so");
        assert!(!is_asked(&scene.world, "next"), "{cause:?}");
        assert_eq!(terminations(&scene.world, &successor), []);
        assert_eq!(scene.world.aws.calls(TERMINATE), calls, "{cause:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_scale_in_whose_node_another_machine_adopts_in_mid_drain_is_told_as_returned_and_why() {
    let mut scene = Scene::with(slow_to_end(held_group(2, 60))).await;
    let machine = scene.first();
    let long = |name: &str| pod(name).on(&machine.name).grace(50_000).exits_after(40_000);
    scene.run([long("web")]).await;
    scene.scale_in(&machine, Cause::Autoscaler).await;
    scene.until(|w| is_asked(w, "web")).await;
    // The hook holds it, and without heartbeats is over in a minute.
    scene.pass_some(seconds(60)).await;
    scene.take_down().await;
    scene.until(a_hook_timed_out).await;
    adopts(&scene, &machine).await;
    scene.run([long("next")]).await;
    scene.bring_back();
    scene.until(|w| in_service(w, &machine)).await;
    scene.pass_some(seconds(2)).await;
    let status = status(scene.program()).await;
    let [ended] = &status["ended"].as_array().expect("a list")[..] else { panic!("one: {status}") };
    assert_eq!((&ended["outcome"], &ended["stages"][0]["phase"]), (&json!("returned"), &json!("Draining")));
    assert!(ended["why"].as_str().is_some_and(|why| why.contains("another machine")), "{ended}");
}
