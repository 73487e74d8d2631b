//! What is said of a record that somebody else has written.

use serde_json::{Value, json};

use super::scene::*;
use crate::scale_in::membership::Membership;
use crate::scale_in::node_patch;
use crate::scale_in::record::{self, Cause, Phase, Record, Release};

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

/// RPCs, status and metrics go by what is written on the Node.
#[test]
fn what_is_not_believed_stays_on_no_node_as_a_record() {
    let of_autoscaler =
        || Record::new(Cause::Autoscaler, "g", "i-1", Release::TerminateAndDecrement, at(-60));
    let written = |record: &Record, changes: &[(&str, &str)]| {
        let mut text: Value = serde_json::from_str(&record::write(record)).expect("JSON");
        for (key, word) in changes {
            text[*key] = json!(word);
        }
        text.to_string()
    };
    let taken_out = Record { release: Release::LeftToGroup, ..of_autoscaler() };
    for text in [
        written(&taken_out, &[]),
        written(&Record { phase: Phase::Releasing, ..taken_out }, &[]),
        written(&of_autoscaler(), &[("cause", "solar-flare")]),
        written(&of_autoscaler(), &[("phase", "Melting")]),
    ] {
        let mut scene = node().annotated(&text);
        scene.from_another_run = false;
        assert!(scene.view().scale_in().is_some(), "{text}");
        let plan = scene.plan();
        assert_eq!((reasons(&plan), plan.writes_node()), (vec!["ScaleInNotBelieved"], true), "{text}");
        assert!(scene.view().record.is_none(), "{text}");
        assert!(!scene.plan().writes_node(), "{text}");
        // Another installation may be at work there.
        for elsewhere in [Membership::Elsewhere { seen: at(0) }, Membership::Unknown] {
            let mut scene = node().annotated(&text);
            (scene.from_another_run, scene.instance) = (false, elsewhere);
            assert_eq!(scene.plan().actions, [], "{text}");
        }
    }
    // A person's, whose turn has not come, or whose group is at its minimum.
    let of_a_person = Record { cause: Cause::Operator, phase: Phase::Flushing, ..of_autoscaler() };
    let mut scene = node().annotated(&written(&of_a_person, &[]));
    (scene.from_another_run, scene.may_shrink) = (false, false);
    scene.plan();
    let text = scene.view().record.as_ref().map(|annotation| annotation.text().to_owned());
    assert_eq!((text.as_deref(), scene.view().scale_in().is_none()), (Some("now"), true));
    assert!(!scene.plan().writes_node());
    let mut scene = node().annotated(&written(&of_a_person, &[]));
    (scene.from_another_run, scene.instance) = (false, Membership::Elsewhere { seen: at(0) });
    assert!(!scene.plan().writes_node());
}
