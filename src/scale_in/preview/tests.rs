use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::json;

use super::*;
use crate::aws::{Hook, Lifecycle};
use crate::cluster::{DaemonOwner, PodName, PodView, Sink as _, Store};
use crate::groups::hooks::TerminatingHooks;
use crate::k8s::names;
use crate::scale_in::settings::OnDeadline;
use crate::scale_in::tests::settings;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("in range")
}

const NOW: i64 = 1_700_000_000;

fn node() -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": "n-1", "uid": "u", "resourceVersion": "1" },
        "spec": { "providerID": "aws:///us-east-1a/i-0123456789abcdef0" },
        "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
    }))
    .expect("a Node")
}

fn pod(name: &str, grace_seconds: i64) -> PodView {
    PodView {
        name: PodName { namespace: "default".into(), name: name.into() },
        uid: name.into(),
        node: "n-1".into(),
        grace_seconds,
        labels: [("app".to_owned(), name.to_owned())].into(),
        ..PodView::default()
    }
}

fn shipper() -> PodView {
    let owner = DaemonOwner::DaemonSet { uid: "ds".into(), name: "shipper".into() };
    PodView { daemon: Some(owner), ..pod("shipper", 30) }
}

/// A budget of the pods of an app, with this much room.
fn budget(name: &str, app: &str, room: i32) -> PodDisruptionBudget {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "default", "resourceVersion": "7" },
        "spec": { "selector": { "matchLabels": { "app": app } } },
        "status": { "disruptionsAllowed": room, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
    }))
    .expect("a budget")
}

fn facts(pods: Vec<PodView>, budgets: Vec<PodDisruptionBudget>) -> Facts {
    let store = Store::default();
    for budget in budgets {
        store.apply(store.reduce(budget));
    }
    Facts {
        node: node(),
        pods,
        budgets: Arc::new(store),
        daemon_sets: Some(["ds".to_owned()].into()),
        attachments: 0,
        place: Place::In(Member {
            group: "web".into(),
            lifecycle: Lifecycle::InService,
            hook: HookState::Known(TerminatingHooks::default()),
            drain_timeout: None,
            removable: Ok(()),
        }),
        settings: settings(),
    }
}

fn member(facts: &mut Facts) -> &mut Member {
    let Place::In(member) = &mut facts.place else { panic!("in a group") };
    member
}

fn played(facts: &Facts) -> Preview {
    preview(facts, Cause::Autoscaler, at(NOW))
}

fn steps(preview: &Preview) -> Vec<(u64, What, &str)> {
    let pod = |step: &Step| -> usize { step.pod.as_deref().map_or(0, str::len) };
    preview
        .steps
        .iter()
        .map(|step| {
            let text = if pod(step) > 0 { step.pod.as_deref().unwrap_or_default() } else { &step.text };
            (step.after_seconds, step.what, text)
        })
        .collect()
}

#[test]
fn workloads_go_first_and_the_instance_when_the_daemons_have_flushed() {
    let facts = facts(vec![shipper(), pod("web", 30), pod("api", 60)], Vec::new());
    let preview = played(&facts);
    let expected = [
        (0, What::Phase, "Draining"),
        (0, What::Evict, "default/api"),
        (0, What::Evict, "default/web"),
        (30, What::Exit, "default/web"),
        (60, What::Exit, "default/api"),
        (60, What::Phase, "Flushing"),
        (65, What::Terminate, "the desired capacity goes down with it"),
    ];
    assert_eq!(steps(&preview), expected, "{preview:#?}");
    assert_eq!(preview.end, End::Released { after_seconds: 65 });
    let treatments: Vec<_> = preview.pods.iter().map(|pod| (pod.pod.as_str(), pod.treatment)).collect();
    let expected = [
        ("default/api", PodTreatment::Evicted),
        ("default/web", PodTreatment::Evicted),
        ("default/shipper", PodTreatment::Stays),
    ];
    assert_eq!(treatments, expected);
}

#[test]
fn a_budget_without_room_holds_it_for_ever_and_is_named_with_its_room() {
    let facts = facts(vec![pod("web", 30), pod("api", 30)], vec![budget("web", "web", 0)]);
    let preview = played(&facts);
    let End::Waits { waiting } = &preview.end else { panic!("it waits: {preview:#?}") };
    let told: Vec<_> = waiting.iter().map(|wait| (wait.pod.as_str(), wait.budget.as_deref())).collect();
    assert_eq!(told, [("default/web", Some("default/web"))], "{preview:#?}");
    assert!(steps(&preview).contains(&(0, What::Blocked, "default/web")), "{preview:#?}");
    let web = preview.pods.iter().find(|pod| pod.pod == "default/web").expect("listed");
    assert_eq!(web.budgets, [BudgetPreview { name: "default/web".into(), room: 0 }]);
}

#[test]
fn a_budget_lets_as_many_go_as_it_has_room_for() {
    let two = ["web-1", "web-2"]
        .map(|name| PodView { labels: [("app".to_owned(), "web".to_owned())].into(), ..pod(name, 30) });
    let preview = played(&facts(two.into(), vec![budget("web", "web", 1)]));
    let evicted = preview.steps.iter().filter(|step| step.what == What::Evict).count();
    let blocked = preview.steps.iter().filter(|step| step.what == What::Blocked).count();
    assert_eq!((evicted, blocked), (1, 1), "{preview:#?}");
}

#[test]
fn a_deadline_tells_when_a_blocked_pod_is_deleted_and_when_the_instance_goes() {
    let mut facts = facts(vec![pod("web", 30)], vec![budget("web", "web", 0)]);
    facts.settings.drain_timeout = Some(Duration::from_mins(10));
    let preview = played(&facts);
    let deleted = preview.steps.iter().find(|step| step.what == What::Delete).expect("deleted");
    // Ten minutes less the flush of 5 s, the margin of 5 s, its grace of 30 s and 3 s to be early.
    assert_eq!((deleted.after_seconds, deleted.pod.as_deref()), (557, Some("default/web")), "{preview:#?}");
    let End::Released { after_seconds } = preview.end else { panic!("released: {preview:#?}") };
    assert!((592..=600).contains(&after_seconds), "{after_seconds}");
    let blocked = preview.steps.iter().filter(|step| step.what == What::Blocked).count();
    assert_eq!(blocked, 1, "not each of its tries: {preview:#?}");

    facts.settings.on_deadline = OnDeadline::Wait;
    assert!(matches!(played(&facts).end, End::Waits { .. }), "nothing is deleted");
}

#[test]
fn the_limit_of_a_scale_in_under_way_is_not_put_off_as_if_nobody_had_led() {
    let mut facts = facts(vec![pod("web", 60)], vec![budget("web", "web", 0)]);
    facts.settings.drain_timeout = Some(Duration::from_hours(1));
    // Ten seconds are left.
    let requested = at(NOW - 3_590);
    let record = Record {
        release_by: Some(at(NOW + 10)),
        ..Record::new(Cause::Operator, "web", "i-0123456789abcdef0", Release::Terminate, requested)
    };
    let annotations = facts.node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&record));
    let preview = played(&facts);
    assert!(matches!(preview.end, End::Released { after_seconds: ..=10 }), "{preview:#?}");
}

#[test]
fn a_limit_that_only_the_record_knows_of_is_believed() {
    let mut facts = facts(vec![pod("web", 60)], vec![budget("web", "web", 0)]);
    facts.place = Place::Unknown;
    let record = Record {
        release_by: Some(at(NOW + 600)),
        ..Record::new(Cause::Autoscaler, "web", "i-0123456789abcdef0", Release::LeftToGroup, at(NOW))
    };
    let annotations = facts.node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&record));
    let preview = played(&facts);
    assert!(preview.steps.iter().any(|step| step.what == What::Delete), "{preview:#?}");
}

#[test]
fn with_our_hook_aws_is_told_first_and_the_hook_completed_last() {
    let mut facts = facts(vec![shipper(), pod("web", 30)], Vec::new());
    let hook = Hook::new("ebbtide", "web", Duration::from_mins(5));
    member(&mut facts).hook =
        HookState::Known(TerminatingHooks { ours: Some(hook), ..TerminatingHooks::default() });
    let preview = played(&facts);
    let told: Vec<_> = preview.steps.iter().map(|step| step.what).collect();
    assert_eq!(told.first(), Some(&What::Phase), "{preview:#?}");
    let place = |what| told.iter().position(|one| *one == what).expect("it happens");
    assert!(place(What::Terminate) < place(What::Evict) && place(What::Exit) < place(What::CompleteHook));
    assert_eq!(told.last(), Some(&What::CompleteHook));
    assert!(matches!(preview.end, End::Released { after_seconds: 35..=60 }), "{preview:#?}");
}

fn at_minimum() -> SizeError {
    SizeError::BelowMin { group: "web".into(), size: 2, min: 3 }
}

#[test]
fn what_would_not_begin_says_why() {
    let mut at_minimum = facts(vec![pod("web", 30)], Vec::new());
    member(&mut at_minimum).removable = Err(SizeError::BelowMin { group: "web".into(), size: 2, min: 3 });
    let mut suspended = facts(vec![pod("web", 30)], Vec::new());
    let why = "its process Terminate is suspended".to_owned();
    member(&mut suspended).removable = Err(SizeError::Stopped { group: "web".into(), change: "shrink", why });
    let mut elsewhere = facts(Vec::new(), Vec::new());
    elsewhere.node.spec = None;
    let outside = Facts { place: Place::Outside, ..facts(Vec::new(), Vec::new()) };
    let refused = |facts: &Facts| match played(facts).end {
        End::Refused { why } => why,
        end => panic!("{end:?}"),
    };
    let why = refused(&at_minimum);
    assert!(why.contains("2 instances, its minimum is 3") && why.contains("replace"), "{why}");
    let why = refused(&suspended);
    assert!(why.contains("Terminate is suspended") && !why.contains("replace"), "{why}");
    suspended
        .node
        .metadata
        .annotations
        .get_or_insert_default()
        .insert(names::RECORD.into(), "replace".into());
    let why = refused(&suspended);
    assert!(why.contains("Terminate is suspended: the request is not met"), "{why}");
    for (facts, word) in [(elsewhere, "provider id"), (outside, "none of")] {
        let why = refused(&facts);
        assert!(why.contains(word), "{why}");
    }
}

#[test]
fn a_drained_node_of_a_group_that_terminates_nothing_waits() {
    let mut facts = facts(vec![pod("web", 30)], Vec::new());
    let why = "its process Terminate is suspended".to_owned();
    member(&mut facts).removable = Err(SizeError::Stopped { group: "web".into(), change: "shrink", why });
    let record =
        Record::new(Cause::Operator, "web", "i-0123456789abcdef0", Release::TerminateAndDecrement, at(NOW));
    let annotations = facts.node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&record));
    let preview = played(&facts);
    assert!(matches!(preview.end, End::Waits { .. }), "{preview:#?}");
    assert!(preview.steps.iter().all(|step| step.what != What::Terminate), "{preview:#?}");
    let last = preview.steps.last().expect("it was drained");
    assert!(last.after_seconds < 60, "{preview:#?}");
}

#[test]
fn a_patient_pod_is_waited_for_and_told_as_such() {
    let mut patient = pod("batch", 30);
    patient.annotations.insert(names::DRAIN.into(), "wait".into());
    let preview = played(&facts(vec![patient], Vec::new()));
    let End::Waits { waiting } = &preview.end else { panic!("it waits: {preview:#?}") };
    assert_eq!(waiting[0].reason, "patient");
}

#[test]
fn a_pod_that_is_long_overdue_is_named_and_not_taken_to_exit_at_once() {
    let overdue_for =
        |seconds: i64| PodView { deletion_timestamp: Some(at(NOW - seconds)), ..pod("api", 30) };
    let mut facts = facts(vec![overdue_for(6 * 3_600), pod("web", 30)], Vec::new());
    let preview = played(&facts);
    let End::Waits { waiting } = &preview.end else { panic!("it waits: {preview:#?}") };
    let told: Vec<_> = waiting.iter().map(|wait| (wait.pod.as_str(), wait.reason)).collect();
    assert_eq!(told, [("default/api", "overdue")]);
    let exits: Vec<_> = preview.steps.iter().filter(|step| step.what == What::Exit).collect();
    assert!(matches!(exits[..], [web] if web.pod.as_deref() == Some("default/web")), "{exits:?}");

    facts.settings.drain_timeout = Some(Duration::from_mins(10));
    let End::Released { after_seconds } = played(&facts).end else { panic!("its limit ends it") };
    assert!((590..=600).contains(&after_seconds), "{after_seconds}");

    facts.settings.drain_timeout = None;
    facts.pods = vec![overdue_for(10)];
    assert!(matches!(played(&facts).end, End::Released { .. }), "a kubelet takes some seconds");
}

/// In three minutes, when the machine counts as lost; its grace and the flush follow.
#[test]
fn what_its_budget_keeps_on_a_machine_that_is_silent_is_deleted_in_time() {
    let mut facts = facts(vec![pod("web", 30)], vec![budget("web", "web", 0)]);
    let since = at(NOW - 120).to_string();
    let ready = json!({ "type": "Ready", "status": "Unknown", "lastTransitionTime": since });
    let ready = serde_json::from_value(ready).expect("a condition");
    facts.node.status.get_or_insert_default().conditions = Some(vec![ready]);
    let preview = played(&facts);
    let End::Released { after_seconds } = preview.end else { panic!("it ends: {preview:#?}") };
    assert_eq!(after_seconds, 180 + 30 + 5);
}

#[test]
fn the_pods_that_a_scale_in_waits_for_are_told_without_a_memory() {
    let mut facts = facts(
        vec![pod("web", 30), PodView { deletion_timestamp: Some(at(NOW + 20)), ..pod("api", 30) }],
        vec![budget("web", "web", 0)],
    );
    let record = Record::new(Cause::Operator, "web", "i-0123456789abcdef0", Release::Terminate, at(NOW - 10));
    let annotations = facts.node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&record));
    let told: Vec<_> = waiting(&facts, at(NOW)).into_iter().map(|wait| (wait.pod, wait.reason)).collect();
    assert_eq!(told, [("default/api".to_owned(), "exiting"), ("default/web".to_owned(), "budget")]);
}

#[test]
fn they_are_told_too_where_only_the_record_knows_the_limit() {
    let table = [
        (Release::Terminate, None, None),
        (Release::TerminateAndDecrement, Some(Duration::from_mins(2)), None),
        (Release::LeftToGroup, Some(Duration::from_hours(2)), None),
        (Release::Terminate, None, Some(at(NOW + 3_600))),
    ];
    for (release, option, ends_at) in table {
        let mut facts = facts(vec![pod("web", 30)], vec![budget("web", "web", 0)]);
        facts.place = Place::Unknown;
        // What the options are where this is told is not what they are where the node is drained.
        facts.settings.drain_timeout = option;
        let limited = Record {
            release_by: Some(at(NOW + 590)),
            ends_at,
            ..Record::new(Cause::Operator, "web", "i-0123456789abcdef0", release, at(NOW - 10))
        };
        let annotations = facts.node.metadata.annotations.get_or_insert_default();
        annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&limited));
        let told: Vec<_> = waiting(&facts, at(NOW)).into_iter().map(|wait| (wait.pod, wait.reason)).collect();
        assert_eq!(told, [("default/web".to_owned(), "budget")], "{release:?}");
        let preview = played(&facts);
        let deleted = preview.steps.iter().find(|step| step.what == What::Delete).expect("deleted");
        // Less the flush of 5 s, the margin of 5 s, its grace of 30 s and 3 s to be early.
        assert_eq!(deleted.after_seconds, 547, "{release:?}: {preview:#?}");
    }
}

#[test]
fn of_a_pod_that_is_still_there_for_no_reason_that_is_seen_only_that_is_told() {
    let record = Record::new(Cause::Operator, "web", "i-0123456789abcdef0", Release::Terminate, at(NOW - 10));
    let budgets = |of: &[&str]| of.iter().map(|name| budget(name, "web", 1)).collect();
    for (of, reason) in [(&[][..], "unknown"), (&["one"], "unknown"), (&["one", "two"], "refused")] {
        let mut facts = facts(vec![pod("web", 30)], budgets(of));
        let annotations = facts.node.metadata.annotations.get_or_insert_default();
        annotations.insert(names::RECORD.into(), crate::scale_in::record::write(&record));
        let [told] = &waiting(&facts, at(NOW))[..] else { panic!("one") };
        assert_eq!(told.reason, reason, "{told:?}");
    }
}

/// What a request on the Node comes to, in a group at its minimum or not.
fn of_request(text: &str, may_shrink: bool) -> Preview {
    let mut facts = facts(vec![pod("web", 30)], Vec::new());
    member(&mut facts).removable = if may_shrink { Ok(()) } else { Err(at_minimum()) };
    facts.node.metadata.annotations.get_or_insert_default().insert(names::RECORD.into(), text.into());
    played(&facts)
}

#[test]
fn a_request_that_waits_is_what_is_played_and_said_to_wait() {
    for (text, may_shrink, how) in [
        ("replace since 2023-11-14T22:00:00Z", true, "the group launches a replacement"),
        ("replace", false, "the group launches a replacement"),
        ("now", true, "the desired capacity goes down with it"),
    ] {
        let preview = of_request(text, may_shrink);
        assert_eq!((preview.cause, preview.under_way), (Cause::Operator, false), "{text}");
        let ends = preview.steps.iter().find(|step| step.what == What::Terminate).expect("it ends");
        assert_eq!(ends.text, how, "{text}");
        assert!(preview.notes[0].contains("once its turn has come"), "{:?}", preview.notes);
    }
    let End::Refused { why } = of_request("now", false).end else { panic!("refused") };
    assert!(why.contains("the request is not met") && !why.contains("DeleteNodes"), "{why}");
    assert!(played(&facts(Vec::new(), Vec::new())).notes.is_empty(), "nobody asked");
}
