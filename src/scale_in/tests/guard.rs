//! The guard of DaemonSet pods: when it is set, and when it is taken off.

use serde_json::json;

use super::scene::*;
use crate::aws::Lifecycle;
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::membership::Membership;
use crate::scale_in::record::Cause;
use crate::scale_in::tries::Task;

fn guards(plan: &Plan) -> Vec<(String, bool)> {
    let guard = |action: &Action| match action {
        Action::Guard { pod, on, .. } => Some((pod.name.to_string(), *on)),
        _ => None,
    };
    plan.actions.iter().filter_map(guard).collect()
}

/// A candidate whose one DaemonSet pod is guarded. It could be tried again: the watch shows that it need not be.
fn guarded() -> Scene {
    let mut scene = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon());
    scene.plan();
    assert_eq!(guards(&scene.plan()), [("logs".into(), true)]);
    let guarded = pod("logs").daemon().wishing(names::ENABLE_DS_EVICTION, "false");
    scene.put(guarded.wishing(names::GUARDED, "true"));
    scene.memory.failed(&Task::Guard("uid-logs".into()), scene.now, None);
    scene.later(10);
    scene
}

fn taints(scene: &mut Scene, keys: &[&str]) {
    let taints: Vec<_> =
        keys.iter().map(|key| json!({ "key": key, "value": "1", "effect": "NoSchedule" })).collect();
    scene.patch(&json!({ "spec": { "taints": taints } }));
}

#[test]
fn a_guard_stays_until_it_is_known_whose_the_node_is() {
    let mut scene = guarded();
    taints(&mut scene, &[]);
    scene.instance = Membership::Unknown;
    assert_eq!(scene.plan().actions, []);
    scene.instance = in_group(Lifecycle::InService);
    assert_eq!(guards(&scene.plan()), [("logs".into(), false)]);
}

#[test]
fn a_guard_stays_while_the_node_goes() {
    // cluster-autoscaler puts one taint on, and takes the other one off.
    let mut scene = guarded();
    taints(&mut scene, &[names::TO_BE_DELETED]);
    assert_eq!(guards(&scene.plan()), []);
    let mut scene = guarded().by_autoscaler();
    taints(&mut scene, &[names::TO_BE_DELETED]);
    assert_eq!(guards(&scene.plan()), []);
}

#[test]
fn the_mark_of_a_guard_is_the_last_that_is_taken_off() {
    let mut scene = guarded();
    let marks = scene.view().marks;
    taints(&mut scene, &[]);
    assert_eq!(guards(&scene.plan()), [("logs".into(), false)]);
    assert_eq!(scene.view().marks, marks, "the pod has it still");
    scene.put(pod("logs").daemon());
    scene.plan();
    assert_eq!(scene.view().marks, None);
}

#[test]
fn a_node_of_somebody_elses_is_not_guarded() {
    let mut scene = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon());
    scene.instance = Membership::Elsewhere { seen: at(0) };
    assert_eq!(scene.plan().actions, []);
}

#[test]
fn a_guard_stays_where_one_description_leaves_the_instance_out() {
    let mut scene = guarded();
    for (seconds, off) in [(0, vec![]), (59, vec![]), (1, vec![("logs".to_owned(), false)])] {
        scene.later(seconds);
        scene.instance = Membership::Elsewhere { seen: scene.now };
        scene.memory.note_membership(&scene.instance);
        assert_eq!(guards(&scene.plan()), off);
    }
}

#[test]
fn a_node_that_cluster_autoscaler_drains_itself_is_guarded_too() {
    let mut scene = node().tainted(names::TO_BE_DELETED).with(pod("logs").daemon());
    scene.plan();
    assert_eq!(guards(&scene.plan()), [("logs".into(), true)]);
}

#[test]
fn a_guard_stays_while_a_record_is_there_though_the_taint_has_been_taken_off() {
    let mut scene = guarded().by_autoscaler();
    taints(&mut scene, &[]);
    assert_eq!(guards(&scene.plan()), []);
}

#[test]
fn where_a_scale_in_begins_just_as_cluster_autoscaler_has_begun_its_own_drain_the_guard_comes_with_it() {
    for (is_set, guarded) in [(true, vec![("logs".to_owned(), true)]), (false, vec![])] {
        let mut scene = node().annotated("replace").with(pod("logs").daemon()).with(pod("web"));
        scene.settings.guard = is_set;
        taints(&mut scene, &[names::TO_BE_DELETED]);
        scene.plan();
        assert_eq!(scene.record().cause, Cause::Operator);
        assert_eq!(guards(&scene.plan()), guarded);
        assert_eq!(scene.view().marks.is_some_and(|marks| marks.contains("guard")), is_set);
    }
}
