//! What is said of a record that somebody else has written.

use super::scene::*;
use crate::scale_in::membership::Membership;
use crate::scale_in::node_patch;
use crate::scale_in::record::{Phase, Record};

/// Another replica accepts only what is in a group of ours.
#[test]
fn a_record_of_somebody_else_drains_nothing_that_is_in_no_group_of_ours() {
    for (is_written_by_others, was_seen, asked) in [(true, false, 0), (true, true, 1), (false, false, 1)] {
        let mut scene = node().by_autoscaler().with(pod("web"));
        scene.from_another_run = !is_written_by_others;
        if was_seen {
            scene.memory.note_membership(&scene.instance);
        }
        scene.instance = Membership::Elsewhere { seen: at(0) };
        assert_eq!(evictions(&scene.plan()).len(), asked, "{is_written_by_others} {was_seen}");
    }
}

#[test]
fn a_record_of_somebody_else_is_told_of_where_it_claims_more_than_its_scale_in_has_done() {
    for (phase, terminate_at, is_told) in [
        (Phase::Draining, None, false),
        (Phase::Draining, Some(at(5)), true),
        (Phase::Flushing, None, true),
        (Phase::Releasing, Some(at(5)), true),
    ] {
        let mut scene = node().by_autoscaler().with(pod("web"));
        scene.plan();
        scene.from_another_run = false;
        scene.later(60);
        let claimed = Record { phase, terminate_at, requested_at: at(-60), ..scene.record() };
        scene.patch(&node_patch::with_record(&scene.view(), &claimed, scene.now));
        assert_eq!(
            reasons(&scene.plan()).contains(&"ScaleInNotBelieved"),
            is_told,
            "{phase} {terminate_at:?}"
        );
    }
}
