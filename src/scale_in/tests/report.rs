//! What others are told of a drain by conditions of the Node.

use super::scene::*;
use crate::cluster::DrainState;
use crate::scale_in::node_patch;
use crate::scale_in::tries::Task;

#[test]
fn a_drain_is_reported_when_it_begins_when_all_have_left_and_when_it_is_called_off() {
    let mut scene = node().with(pod("web"));
    scene.plan();
    assert_eq!(scene.reports, [], "nothing is under way");
    let mut scene = scene.by_autoscaler();
    scene.plan();
    scene.plan();
    assert_eq!(scene.reports, [DrainState::InProgress]);
    scene.remove("web");
    scene.plan();
    scene.plan();
    assert_eq!(scene.reports, [DrainState::InProgress, DrainState::Drained]);
    let view = scene.view();
    scene.patch(&node_patch::take_off(&view, node_patch::marks(&view), None));
    scene.plan();
    scene.plan();
    assert_eq!(scene.reports, [DrainState::InProgress, DrainState::Drained, DrainState::Cancelled]);
}

#[test]
fn a_drain_that_ran_out_of_time_is_not_reported_as_done() {
    let mut scene = node().by_autoscaler().until(60).with(pod("web").going(500));
    scene.plan();
    scene.later(55);
    for _ in 0..4 {
        scene.plan();
    }
    assert_eq!(scene.reports, [DrainState::InProgress, DrainState::TimeOver]);
}

#[test]
fn no_report_goes_out_beside_a_write_of_the_node() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.memory.begin(&Task::Node, scene.now);
    scene.plan();
    assert_eq!(scene.reports, []);
}

#[test]
fn a_condition_that_somebody_else_takes_away_is_written_again_after_a_pause() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.plan();
    scene.memory.reported = Some((DrainState::InProgress, scene.now));
    ready(&mut scene, "True");
    scene.later(29);
    let wakes = scene.plan().wake_at;
    assert_eq!((scene.reports.len(), wakes), (1, Some(at(30))));
    scene.later(1);
    ready(&mut scene, "True");
    scene.plan();
    assert_eq!(scene.reports, [DrainState::InProgress; 2]);
}
