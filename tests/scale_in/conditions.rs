//! Others see a drain by the Node's conditions (KEP-5683), and no drain waits for them.

use std::time::Duration;

use ebbtide::sim::cluster::{Event, Fault, Verb, pod};
use ebbtide::sim::world::World;
use jiff::SignedDuration;

use crate::journal_queries::{asked, moments, phase_at, released_at};
use crate::scene::{Cause, Machine, Scene, group, held_group};

/// Status and reason of a condition.
fn condition(world: &World, machine: &Machine, kind: &str) -> Option<(String, String)> {
    let conditions = world.cluster.node(&machine.name)?.status?.conditions?;
    let found = conditions.into_iter().find(|condition| condition.type_ == kind)?;
    Some((found.status, found.reason.unwrap_or_default()))
}

fn says(world: &World, machine: &Machine, in_progress: &str, drained: &str, reason: &str) -> bool {
    let is =
        |kind, status: &str| condition(world, machine, kind) == Some((status.to_owned(), reason.to_owned()));
    is("DrainInProgress", in_progress) && is("Drained", drained)
}

fn status_writes(world: &World) -> usize {
    let is_ours = |e: &Event| matches!(e, Event::Request { verb: Verb::Patch, resource: "nodes", subresource: Some(sub), .. } if sub == "status");
    moments(world, is_ours).len()
}

#[tokio::test(start_paused = true)]
async fn a_drain_is_told_by_conditions_from_its_beginning_to_its_end_in_two_writes() {
    for (group, cause) in [(group(2), Cause::Autoscaler), (held_group(2, 60), Cause::Group)] {
        let scene = Scene::with(group).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).grace(60).exits_after(30)]).await;
        assert_eq!(condition(&scene.world, &machine, "DrainInProgress"), None);
        scene.scale_in(&machine, cause).await;
        scene.until(|w| says(w, &machine, "True", "False", "ScaleInDraining")).await;
        assert!(asked(&scene.world, "web").len() <= 1);
        scene.until(|w| says(w, &machine, "False", "True", "ScaleInDrained")).await;
        assert!(phase_at(&scene.world, &machine, "Flushing") <= scene.world.clock.now());
        // A kubelet's report of its own conditions leaves these alone.
        assert_eq!(condition(&scene.world, &machine, "Ready").map(|ready| ready.0), Some("True".into()));
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        assert_eq!(status_writes(&scene.world), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn conditions_are_cleared_when_a_scale_in_is_cancelled_also_while_the_program_was_down() {
    for is_down in [false, true] {
        let mut scene = Scene::with(group(2)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).annotation("ebbtide/drain", "wait")]).await;
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until(|w| says(w, &machine, "True", "False", "ScaleInDraining")).await;
        if is_down {
            scene.take_down().await;
        }
        scene.annotate(&machine, None).await;
        if is_down {
            scene.bring_back();
        }
        scene.until(|w| says(w, &machine, "False", "False", "ScaleInCancelled")).await;
        // They are told anew by the next one.
        scene.scale_in(&machine, Cause::Operator).await;
        scene.until(|w| says(w, &machine, "True", "False", "ScaleInDraining")).await;
    }
}

#[tokio::test(start_paused = true)]
async fn conditions_that_cannot_be_written_cost_a_drain_no_time() {
    let mut took = Vec::new();
    for fault in [None, Some(Fault::Unauthorized), Some(Fault::Slow(Duration::from_mins(1)))] {
        let scene = Scene::with(held_group(2, 60)).await;
        let machine = scene.first();
        scene.run([pod("web").on(&machine.name).exits_after(5)]).await;
        if let Some(fault) = fault {
            scene.world.cluster.fail_next(1_000, Verb::Patch, "nodes/status", fault);
        }
        let requested = scene.world.clock.now();
        scene.scale_in(&machine, Cause::Autoscaler).await;
        scene.until_gone(&machine).await;
        scene.assert_left_well(&machine);
        took.push(released_at(&scene.world, &machine).duration_since(requested));
        assert!(status_writes(&scene.world) <= 30, "tries are spaced");
    }
    let longest = took[0] + SignedDuration::from_secs(3);
    assert!(took[1..].iter().all(|took| *took <= longest), "{took:?}");
}
