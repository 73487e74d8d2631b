use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::*;
use crate::cluster::DaemonOwner;
use crate::k8s::names;
use crate::scale_in::record;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).expect("in range")
}

/// A Node with this taint of cluster-autoscaler's key, if any.
fn node(name: &str, taint: Option<(i64, &str)>) -> NodeView {
    let taint = taint.map(|(second, effect)| {
        let value = at(second).as_second().to_string();
        json!({ "key": names::TO_BE_DELETED, "value": value, "effect": effect })
    });
    let node = json!({
        "metadata": { "name": name, "uid": "u", "resourceVersion": "1" },
        "spec": { "providerID": "aws:///us-east-1a/i-1", "taints": taint.as_slice() },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    });
    NodeView::from(&serde_json::from_value::<Node>(node).expect("a Node"))
}

fn with_record(node: NodeView, record: &Record) -> NodeView {
    let record = Some(Box::new(Annotation::from(record::write(record).as_str())));
    NodeView { record, ..node }
}

#[test]
fn a_node_that_cluster_autoscaler_drains_is_one_with_its_taint_and_without_a_scale_in() {
    let scale_in = Record::new(Cause::Autoscaler, "g", "i-1", Release::Terminate, at(0));
    let nodes = [
        node("younger", Some((200, "NoSchedule"))),
        node("older", Some((100, "NoSchedule"))),
        node("ours", Some((0, "PreferNoSchedule"))),
        with_record(node("asked-for", Some((0, "NoSchedule"))), &scale_in),
        node("stays", None),
    ];
    let told = AutoscalerDrain::among(&nodes);
    let told: Vec<_> = told.iter().map(|one| (one.node.as_str(), one.since)).collect();
    assert_eq!(told, [("older", Some(at(100))), ("younger", Some(at(200)))]);
}

#[test]
fn the_pods_that_it_waits_for_are_workloads_that_were_asked_to_go_overdue_ones_first() {
    let pod = |name: &str, until: Option<i64>| PodView {
        name: PodName { namespace: "default".into(), name: name.into() },
        deletion_timestamp: until.map(at),
        ..PodView::default()
    };
    let pods = [
        pod("exiting", Some(90)),
        PodView { finished: true, ..pod("finished", Some(40)) },
        pod("stays", None),
        PodView { daemon: Some(DaemonOwner::Other), ..pod("daemon", Some(0)) },
        pod("just-due", Some(41)),
    ];
    let told = AutoscalerDrain::going(&pods, at(100));
    let told: Vec<_> = told.iter().map(|wait| (wait.pod.as_str(), wait.reason)).collect();
    let expected =
        [("default/finished", "overdue"), ("default/just-due", "exiting"), ("default/exiting", "exiting")];
    assert_eq!(told, expected);
}

#[test]
fn scale_ins_are_unattended_once_five_minutes_have_brought_no_sign_of_work_on_any() {
    let begun = |phase| {
        Record::new(Cause::LifecycleHook, "g", "i-1", Release::LeftToGroup, at(-900))
            .entering(phase, at(-800))
    };
    let draining = Record { heartbeat_timeout_seconds: Some(600), ..begun(Phase::Draining) };
    let tainted = |name: &str, second| node(name, Some((second, "PreferNoSchedule")));
    let since = |nodes: &[NodeView], now| Unattended::among(nodes, at(now)).map(|told| told.since);

    let one = [with_record(tainted("a", 0), &draining)];
    assert_eq!([300, 301].map(|now| since(&one, now)), [None, Some(at(0))]);
    assert_eq!(since(&one, -60), None, "a clock is behind");
    let told = Unattended::among(&one, at(301)).expect("nobody works on it");
    assert_eq!(told.heartbeat_timeout_seconds, [("a".into(), 600)].into());

    let others = [with_record(tainted("b", 100), &begun(Phase::Releasing)), one[0].clone()];
    assert_eq!([400, 401].map(|now| since(&others, now)), [None, Some(at(100))], "a sign on another");
    let just_begun = [with_record(tainted("a", 0), &draining.entering(Phase::Flushing, at(200)))];
    assert_eq!(since(&just_begun, 499), None, "a phase has begun");
    let theirs = [with_record(node("a", Some((0, "NoSchedule"))), &draining)];
    assert_eq!(since(&theirs, 0), Some(at(-800)), "another's taint is no sign");
}

#[test]
fn nobody_is_missed_where_no_taint_is_renewed() {
    let draining = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(-900));
    let tainted = || node("a", Some((0, "PreferNoSchedule")));
    let request = Some(Box::new(Annotation::from("now since 2023-11-14T22:00:00Z")));
    for (what, node) in [
        ("nothing is under way", node("a", None)),
        ("requested", NodeView { record: request, ..node("a", None) }),
        ("released", with_record(tainted(), &draining.entering(Phase::Releasing, at(-800)))),
        (
            "in the warm pool, or gone",
            NodeView { ready: Ready::Unknown, ..with_record(tainted(), &draining) },
        ),
    ] {
        assert_eq!(Unattended::among([&node], at(86_400)), None, "{what}");
    }
}
