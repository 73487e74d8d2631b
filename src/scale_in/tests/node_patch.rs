//! What is written to a Node: only over the version that was read, and a cordon with the taint of whoever set it.

use jiff::SignedDuration;
use serde_json::json;

use super::scene::*;
use crate::cluster::{Cordon, CordonReason, NodeView};
use crate::k8s::names;
use crate::scale_in::node_patch;
use crate::scale_in::record::{Cause, Record, Release};

#[test]
fn every_patch_is_refused_if_the_node_has_changed_since() {
    let view = node().view();
    let record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
    let reason = CordonReason { cause: Cause::RebalanceRecommendation, until: at(9), event: None };
    let patches = [
        node_patch::put_on(&view, node_patch::marks(&view), None, at(0)).expect("marks are missing"),
        node_patch::with_record(&view, &record, at(0)),
        node_patch::with_request(&view, "now"),
        node_patch::without_record(&view),
        node_patch::take_off(&view, node_patch::marks(&view), None),
        node_patch::cordon(&view, &Cordon::of(vec![reason]).expect("a reason")),
        node_patch::end_cordon(&view, true),
        node_patch::guard(&view, true, None),
    ];
    for patch in patches {
        assert_eq!(patch["metadata"]["resourceVersion"], json!("1"), "{patch}");
        assert_eq!(patch["metadata"]["uid"], json!("node-uid"), "{patch}");
    }
    assert_eq!(node_patch::record_in(&node_patch::with_request(&view, "now")), Some("now"));
}

#[test]
fn what_a_newer_version_has_put_on_a_node_stays_listed_and_the_list_names_who_wrote_it_last() {
    let listed = |patch: &serde_json::Value| patch["metadata"]["annotations"]["ebbtide/marks"].clone();
    let view = NodeView { marks: Some("cordon, quarantine ,Oops, theirs/ebbtide".into()), ..node().view() };
    let marks = node_patch::marks(&view);
    let put_on =
        node_patch::put_on(&view, marks.clone(), Some("ours/ebbtide"), at(0)).expect("marks are missing");
    assert_eq!(listed(&put_on), "cordon,load-balancer,taint,quarantine,ours/ebbtide");
    assert_eq!(node_patch::marked_by(&view), Some("theirs/ebbtide"));
    assert_eq!(listed(&node_patch::guard(&view, true, None)), "cordon,guard,quarantine");
    assert_eq!(listed(&node_patch::take_off(&view, marks, None)), "quarantine");
    let many = (0..20).map(|n| format!("m{}", "x".repeat(n))).collect::<Vec<_>>().join(",");
    let view = NodeView { marks: Some(many), ..node().view() };
    assert_eq!(
        listed(&node_patch::guard(&view, false, None)).as_str().expect("a list").split(',').count(),
        8
    );
}

#[test]
fn a_cordon_goes_with_the_scale_in_if_cluster_autoscaler_set_it_with_its_taint() {
    let table = [(-2, true), (-1, false), (0, false), (10, false), (11, true)];
    for (second, stays) in table {
        let mut scene = node();
        let cordoned = at(0) + SignedDuration::from_secs(second);
        scene.patch(&json!({ "spec": { "unschedulable": true, "taints": [
            { "key": names::TO_BE_DELETED, "value": at(0).as_second().to_string(), "effect": "NoSchedule" },
            { "key": names::UNSCHEDULABLE, "effect": "NoSchedule", "timeAdded": cordoned.to_string() },
        ] } }));
        let mut scene = scene.by_autoscaler();
        let view = scene.view();
        scene.patch(&node_patch::take_off(&view, node_patch::marks(&view), None));
        assert_eq!(scene.view().unschedulable, stays, "cordoned {second} s after the taint");
    }
    // A person's, right after our taint.
    let mut scene = node().by_autoscaler();
    let cordon =
        json!({ "key": names::UNSCHEDULABLE, "effect": "NoSchedule", "timeAdded": at(1).to_string() });
    let ours = json!({
        "key": names::TO_BE_DELETED, "value": at(0).as_second().to_string(), "effect": "PreferNoSchedule",
    });
    scene.patch(&json!({
        "metadata": { "annotations": { names::MARKS: "load-balancer,taint" } },
        "spec": { "unschedulable": true, "taints": [ours, cordon] },
    }));
    let view = scene.view();
    let renewed =
        node_patch::put_on(&view, node_patch::marks(&view), None, at(200)).expect("the taint is old");
    assert_eq!(renewed["metadata"]["annotations"][names::MARKS], json!("load-balancer,taint"));
    // A person's, while our taint is there already.
    let mut scene = node().by_autoscaler();
    let view = scene.view();
    scene.patch(&node_patch::take_off(&view, node_patch::marks(&view), None));
    assert!(!scene.view().unschedulable);
}
