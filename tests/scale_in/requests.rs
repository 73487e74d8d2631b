//! Many scale-ins that people ask for by annotation, at once.

use std::collections::BTreeSet;

use ebbtide::scale_in::AtOnce;
use ebbtide::sim::aws::LaunchFailure;
use ebbtide::sim::cluster::{Event, Name, NodeChange, Verb, pod};
use ebbtide::sim::world::World;
use serde_json::json;

use crate::journal_queries::{assert_nothing_lost, has_exited, is_asked, is_released, notes};
use crate::scene::{Cause, Machine, RECORD, Scene, config_with, group, held_group, seconds};

/// The Nodes whose scale-in for a person has begun, in the order of that.
fn begun(world: &World) -> Vec<String> {
    let began = |change: &NodeChange| matches!(change, NodeChange::Annotated(key, value) if key == RECORD && value.contains("\"operator\""));
    let mut names: Vec<String> = Vec::new();
    for entry in world.cluster.journal() {
        if let Event::NodeChanged { node, changes } = entry.what
            && changes.iter().any(began)
            && !names.contains(&node)
        {
            names.push(node);
        }
    }
    names
}

/// How many of them have not been released.
fn under_way(world: &World, machines: &[Machine]) -> usize {
    let begun: BTreeSet<String> = begun(world).into_iter().collect();
    machines.iter().filter(|machine| begun.contains(&machine.name) && !is_released(world, machine)).count()
}

#[tokio::test(start_paused = true)]
async fn of_many_requests_no_more_are_carried_out_at_once_than_are_allowed_and_the_others_in_their_order() {
    for (group, killed) in [(group(20), false), (held_group(20, 60), true)] {
        let mut scene = Scene::with(group).await;
        let all = scene.machines();
        // Not in the order of their names.
        let requested: Vec<Machine> = [7, 3, 11, 0, 5, 1].map(|n: usize| all[n].clone()).into();
        for (n, machine) in requested.iter().enumerate() {
            scene.run([pod(format!("web-{n}").as_str()).on(&machine.name).grace(120).exits_after(90)]).await;
        }
        for machine in &requested {
            scene.scale_in(machine, Cause::Operator).await;
            scene.pass_some(seconds(2)).await;
        }
        assert_eq!(begun(&scene.world).len(), 2, "a tenth of twenty");
        let told = notes(&scene.world, &requested[5], "ScaleInQueued");
        assert!(told[0].contains("under way: 2") && told[0].contains("ahead of this one: 3"), "{told:?}");
        let (_, names) = told[0].split_once("Under way: ").expect("who they are");
        let mut names: Vec<&str> = names.split(", ").collect();
        names.sort_unstable();
        assert_eq!(names, [all[3].name.as_str(), all[7].name.as_str()], "{told:?}");
        if killed {
            scene.kill().await;
        }
        let most = scene.most_at_once(&requested, under_way).await;
        assert_eq!(most, 2, "killed: {killed}");
        let names: Vec<&String> = requested.iter().map(|machine| &machine.name).collect();
        assert_eq!(begun(&scene.world).iter().collect::<Vec<_>>(), names, "killed: {killed}");
        scene.until(|w| requested.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn requests_made_at_one_moment_are_not_all_carried_out_at_once() {
    let three = config_with(|it| it.operator_at_once = AtOnce::Number(3));
    let scene = Scene::configured(group(10), three).await;
    let machines = scene.machines();
    for machine in &machines {
        scene
            .run([pod(format!("web-{}", machine.name).as_str()).on(&machine.name).grace(60).exits_after(50)])
            .await;
        scene.annotate(machine, Some("replace")).await;
    }
    let most = scene.most_at_once(&machines, under_way).await;
    assert_eq!(most, 3);
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn a_record_written_by_hand_waits_for_its_turn_as_a_request_does() {
    let scene = Scene::with(group(5)).await;
    let machines = scene.machines();
    for machine in &machines[..3] {
        scene
            .run([pod(format!("web-{}", machine.name).as_str()).on(&machine.name).grace(60).exits_after(50)])
            .await;
    }
    for machine in &machines[..3] {
        let record = json!({
            "cause": "operator", "group": "web", "instance": machine.instance, "phase": "Releasing",
            "requestedAt": "2025-12-31T00:00:00Z", "phaseSince": "2025-12-31T00:00:00Z", "release": "terminate",
        });
        scene.annotate(machine, Some(&record.to_string())).await;
    }
    let asked = |w: &World, machines: &[Machine]| {
        let asked = |m: &&Machine| is_asked(w, &format!("web-{}", m.name)) && !is_released(w, m);
        machines.iter().filter(asked).count()
    };
    let most = scene.most_at_once(&machines[..3], asked).await;
    assert_eq!(most, 1);
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_carried_out_or_was_taken_back_holds_nobody_up() {
    let scene = Scene::with(group(3).size(3, 10, 3)).await;
    let [impossible, taken_back, last] = [0, 1, 2].map(|n: usize| scene.machines().remove(n));
    scene.run([pod("web").on(&last.name).grace(60).exits_after(50)]).await;
    scene.run([pod("patient").on(&taken_back.name).annotation("ebbtide/drain", "wait")]).await;
    // The group is at its minimum.
    scene.annotate(&impossible, Some("now")).await;
    scene.annotate(&taken_back, Some("replace")).await;
    scene.pass_some(seconds(5)).await;
    scene.annotate(&last, Some("replace")).await;
    scene.pass_some(seconds(60)).await;
    assert!(
        !is_asked(&scene.world, "web") && !notes(&scene.world, &impossible, "ScaleInNotPossible").is_empty()
    );
    scene.annotate(&taken_back, None).await;
    scene.until_released(&last).await;
    assert!(has_exited(&scene.world, "web"));
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_node_cannot_be_written_holds_the_others_up_for_half_a_minute() {
    let scene = Scene::with(group(10)).await;
    let [first, refused, last] = [0, 1, 2].map(|n: usize| scene.machines().remove(n));
    for machine in [&first, &refused, &last] {
        scene
            .run([pod(format!("web-{}", machine.name).as_str()).on(&machine.name).grace(60).exits_after(50)])
            .await;
        scene.annotate(machine, Some("now")).await;
        scene.pass_some(seconds(2)).await;
    }
    scene.pass_some(seconds(10)).await;
    scene.world.cluster.deny(Verb::Patch, "nodes", Name::cluster(&refused.name));
    scene.until_gone(&first).await;
    let goes = scene.world.until(seconds(60), |w| begun(w).contains(&last.name)).await;
    assert!(goes, "{:?}", begun(&scene.world));
    scene.until_released(&last).await;
    assert!(!begun(&scene.world).contains(&refused.name));
    scene.world.cluster.no_more_faults();
    scene.until_released(&refused).await;
    assert_nothing_lost(&scene.world);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_launches_nothing_at_present_replaces_nothing() {
    for held in [false, true] {
        let scene = Scene::with(if held { held_group(4, 60) } else { group(4) }).await;
        let [first, second, ..] = &scene.machines()[..] else { panic!("four") };
        scene.world.aws.suspend("web", "Launch", true);
        // The next look at the group shows it.
        scene.pass_some(seconds(90)).await;
        scene.annotate(first, Some("replace")).await;
        scene.pass_some(seconds(3_600)).await;
        assert_eq!(begun(&scene.world).len(), 0, "nothing would come in its place");
        let told = notes(&scene.world, first, "ScaleInQueued");
        let why = "Launches of the group fail: \"process Launch is suspended\"";
        assert!(told.last().is_some_and(|note| note.ends_with(why)), "{told:?}");
        // One that is not to be replaced need not wait for it.
        scene.annotate(second, Some("now")).await;
        scene.until(|w| !w.cluster.has_node(&second.name)).await;
        scene.world.aws.suspend("web", "Launch", false);
        scene.until(|w| !w.cluster.has_node(&first.name)).await;
        assert_nothing_lost(&scene.world);
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_launches_fail_is_not_emptied_by_requests_to_replace_its_nodes() {
    for held in [false, true] {
        let scene = Scene::with(if held { held_group(4, 60) } else { group(4) }).await;
        let machines = scene.machines();
        scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
        for machine in &machines {
            scene.annotate(machine, Some("replace")).await;
        }
        scene.pass_some(seconds(3_600)).await;
        let begun = begun(&scene.world);
        assert_eq!(begun.len(), 1, "the next one waits for a replacement");
        let waiting = machines.iter().find(|machine| !begun.contains(&machine.name)).expect("it waits");
        let told = notes(&scene.world, waiting, "ScaleInQueued");
        let why = "Launches of the group fail: \"InsufficientInstanceCapacity\"";
        assert!(told.last().is_some_and(|note| note.ends_with(why)), "{told:?}");
        scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, 0);
        scene.until(|w| machines.iter().all(|machine| !w.cluster.has_node(&machine.name))).await;
        assert_nothing_lost(&scene.world);
    }
}
