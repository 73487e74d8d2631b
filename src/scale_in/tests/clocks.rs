//! The clock of the record and of the API server, which is not ours.

use jiff::SignedDuration;
use serde_json::json;

use super::scene::*;
use crate::clock::later;
use crate::k8s::names;
use crate::scale_in::action::Action;
use crate::scale_in::record::{Cause, Record, Release};
use crate::scale_in::{events, node_patch};

/// Their clock is a minute behind ours.
fn behind() -> Scene {
    let mut scene = node();
    scene.ahead = -SignedDuration::from_mins(1);
    scene
}

#[test]
fn a_deadline_counts_from_the_request_by_the_clock_that_noted_it() {
    let mut scene = behind().with(pod("web"));
    scene.settings.drain_timeout = Some(std::time::Duration::from_secs(1_000));
    let requested_at = later(scene.now, scene.ahead);
    let record = Record::new(Cause::Autoscaler, "g", "i-1", Release::TerminateAndDecrement, requested_at);
    scene.patch(&node_patch::with_record(&scene.view(), &record, scene.now));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(940)), "by their clock");
    scene.put(pod("web").going(5_000));
    scene.later(987);
    assert_eq!(deletions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(deletions(&scene.plan()).len(), 1);
}

#[test]
fn an_exit_that_nobody_confirms_is_overdue_by_the_clock_of_the_api_server() {
    // Their 300 is our 360, and a minute passes after it; their -60, when the Node was not Ready any more, is our 0.
    for (grace_until, given_up) in [(-60, 300), (240, 360), (300, 420)] {
        let mut scene = behind().by_autoscaler().with(pod("web").going(grace_until));
        let unready =
            json!({ "type": "Ready", "status": "False", "lastTransitionTime": at(-60).to_string() });
        scene.patch(&json!({ "status": { "conditions": [unready] } }));
        scene.now = at(given_up - 1);
        assert!(!reasons(&scene.plan()).contains(&"ScaleInFlushing"), "{grace_until}");
        scene.later(1);
        assert!(reasons(&scene.plan()).contains(&"ScaleInFlushing"), "{grace_until}");
    }
}

/// It is set while the node drains: the record is read as it was when it came, and what the API server dates by what it reads now.
#[test]
fn a_step_of_the_api_servers_clock_moves_no_deadline_and_no_kubelets_silence() {
    let mut scene = node().by_autoscaler().with(pod("train").wishing(names::DRAIN, "wait"));
    scene.settings.drain_timeout = Some(std::time::Duration::from_secs(1_000));
    scene.plan();
    assert_eq!(scene.record().release_by, Some(at(1_000)));
    scene.cluster_ahead = Some(SignedDuration::from_hours(1));
    // Their 3,700 is our 100.
    let unready =
        json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": at(3_700).to_string() });
    scene.patch(&json!({ "status": { "conditions": [unready] } }));
    scene.now = at(399);
    assert_eq!(evictions(&scene.plan()), []);
    scene.later(1);
    assert_eq!(evictions(&scene.plan()).len(), 1);
    assert_eq!(scene.record().release_by, Some(at(1_000)));
}

#[test]
fn the_end_of_a_machine_is_told_by_the_clock_that_noted_it() {
    let mut scene = behind();
    let requested_at = later(scene.now, scene.ahead);
    let ends = Record {
        ends_at: Some(at(200)),
        ..Record::new(Cause::SpotInterruption, "g", "i-1", Release::Terminate, requested_at)
    };
    scene.patch(&node_patch::with_record(&scene.view(), &ends, scene.now));
    scene.plan();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    let goes_on = Action::Announce(events::goes_on_to_its_end("i-1", at(200)));
    let plan = scene.plan();
    assert!(all(&plan).contains(&goes_on), "{plan:?}");
    assert_eq!(scene.record().ends_at, Some(at(200)));
}
