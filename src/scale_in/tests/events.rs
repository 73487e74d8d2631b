//! What people read in `kubectl describe node`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::scene::at;
use crate::cluster::{Cordon, NOTE_LIMIT, PodName};
use crate::scale_in::events::{self, Reason, ScaleInEvent};
use crate::scale_in::record::{Cause, Phase};
use crate::scale_in::turn::Ahead;
use crate::scale_in::waiting::{WaitReason, Waiting};

/// One Event of each constructor, about a group, an instance, pods and budgets of these names, in which the API server, AWS
/// or a person says these words.
fn every_event(
    group: &str,
    instance: &str,
    pods: &[PodName],
    budget: &str,
    words: &str,
) -> Vec<ScaleInEvent> {
    let flush = Duration::from_secs(20);
    let pod = &pods[0];
    let waiting: Vec<_> = pods
        .iter()
        .map(|pod| {
            let why = WaitReason::Budget { names: vec![budget.into()], words: String::new() };
            Waiting { pod: pod.clone(), why }
        })
        .collect();
    let nodes = pods.iter().map(|pod| (&*pod.name).into()).collect();
    let ahead =
        Ahead { at_once: 2, under_way: 1, to_come: 1, nodes, before: 3, launches_fail: Some(words.into()) };
    let refused: Vec<_> = pods.iter().collect();
    vec![
        events::draining(Cause::Autoscaler, instance, Some(at(0)), true),
        events::draining_again(),
        events::flushing(flush),
        events::flushing_with_workloads_left(2, flush),
        events::flushing_dead(),
        events::releasing(instance, 2),
        events::releasing_dead(instance),
        events::released(instance, group),
        events::node_deleted(instance, Duration::from_mins(15)),
        events::node_kept(instance, &pods.iter().map(ToString::to_string).collect::<Vec<_>>()),
        events::blocked(pod, 1, budget, words),
        events::blocked_by_several(pod, 1, "shop/web, shop/all"),
        events::eviction_refused(words, pod, words),
        events::evictions_refused(words, &refused, words),
        events::waiting(&waiting),
        events::waiting_for_load_balancers(&["k8s-web", "k8s-db"], at(0)),
        events::waiting_for_its_hooks(instance),
        events::waiting_for_a_description(at(0)),
        events::waiting_for_anothers_hook(instance, group),
        events::termination_unshown(instance, at(0), at(120)),
        events::waiting_for_a_list(),
        events::over_time(&waiting),
        events::pods_given_up(pods),
        events::pods_returned(pods),
        events::patience_over(pods),
        events::patience_ends_with_the_machine(pods),
        events::wishes_ignored(pods.iter().map(ToString::to_string).collect()),
        events::queued(group, &ahead),
        events::release_refused(instance, words),
        events::state_unknown(instance),
        events::cordoned(&Cordon::read(
            r#"{"cause":"rebalance-recommendation","until":"2023-11-14T22:13:20Z"}"#,
        )),
        events::uncordoned(Cause::ScheduledEvent),
        events::opened_by_a_person(Cause::RebalanceRecommendation),
        events::hook_ending("ebbtide", group, instance, at(0)),
        events::hook_over(Some("ebbtide"), group, instance, Phase::Draining),
        events::node_lost(instance, Phase::Draining, Some(pods)),
        events::not_held(group, instance, 2),
        events::missed(group, instance, 1),
        events::held_by_another(group, instance),
        events::several_nodes(instance, pods.iter().map(|pod| pod.name.to_string())),
        events::goes_on(instance),
        events::goes_on_with_its_group(instance),
        events::goes_on_to_its_end(instance, at(0)),
        events::back_before_its_end(group, instance, at(0)),
        events::under_way_already(Cause::Autoscaler),
        events::closed_again(),
        events::cancelled_at_minimum(group, instance),
        events::cancelled_by_detaching(group, instance),
        events::cancelled_by_a_person(),
        events::cancelled_before(at(0)),
        events::cancelled_without_a_list(),
        events::back_in_service(group, instance),
        events::back_but_not_ready(group, instance),
        events::adopted(instance),
        events::not_ours(),
        events::cannot_shrink(group),
        events::terminates_nothing(group),
        events::not_understood(words),
        events::not_believed(Phase::Releasing),
        events::no_scale_in(),
        events::not_written(words),
        events::failed(words, flush),
        events::pod_evicted("n1", Cause::Autoscaler),
        events::daemon_pod_asked("n1", Cause::Operator),
        events::pod_deleted("n1", Cause::SpotInterruption),
        events::pod_deleted_with_its_machine("n1", Cause::LifecycleHook),
    ]
}

fn pods(names: &[&str]) -> Vec<PodName> {
    names.iter().map(|&name| PodName { namespace: "shop".into(), name: name.into() }).collect()
}

/// Type, reason and text.
const EXPECTED: &[(&str, &str, &str)] = &[
    (
        "Normal",
        "ScaleInDraining",
        "cause autoscaler: workloads are asked to leave i-1, until 2023-11-14T22:13:20Z",
    ),
    ("Normal", "ScaleInDraining", "a workload pod has come to the node: it leaves first"),
    ("Normal", "ScaleInFlushing", "no workload is left: DaemonSet pods have at least 20 s to finish"),
    (
        "Normal",
        "ScaleInFlushing",
        "time is up with 2 workload pods left: DaemonSet pods have at least 20 s to finish",
    ),
    (
        "Normal",
        "ScaleInFlushing",
        "no workload is left, and the node is dead: nothing runs there that could still flush",
    ),
    (
        "Normal",
        "ScaleInReleasing",
        "DaemonSet pods have had their time, 2 volumes still attached: instance i-1 is to be released",
    ),
    ("Normal", "ScaleInReleasing", "the node is dead: instance i-1 is to be released"),
    (
        "Normal",
        "ScaleInReleased",
        "instance i-1 has left group \"web\"; the cloud controller deletes the Node once EC2 ends the machine",
    ),
    (
        "Normal",
        "ScaleInNodeDeleted",
        "instance i-1 has been gone for 900 s and nobody else has deleted its Node: deleted",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "instance i-1 is gone and its Node is deleted, but stays until these finalizers are taken off, by hand if nobody does it any more: shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInBlocked",
        "pod shop/web-1 (and 1 more pod) may not be evicted yet: disruption budget shop/web: \"pods 'web-1' is forbidden\"",
    ),
    (
        "Warning",
        "ScaleInBlocked",
        "pod shop/web-1 (and 1 more pod) cannot be evicted while several disruption budgets cover it (leave one): shop/web, shop/all",
    ),
    (
        "Warning",
        "ScaleInBlocked",
        "pod shop/web-1 cannot be evicted or deleted yet (tried again); the API server says \"pods 'web-1' is forbidden\"",
    ),
    (
        "Warning",
        "ScaleInBlocked",
        "2 pods cannot be evicted or deleted yet (tried again): shop/web-1, shop/web-2; the API server says \"pods 'web-1' is forbidden\"",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "waiting for 2 pods: shop/web-1 (budget shop/web), shop/web-2 (budget shop/web)",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "waiting until 2023-11-14T22:13:20Z at most: load balancers still send connections to the instance, or drain it: target group k8s-web, k8s-db",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "the node is empty, and no lifecycle hook holds instance i-1 yet: AWS usually deregisters it from the group's load balancers first, which takes their deregistration delay",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "AWS has not described the Auto Scaling groups since 2023-11-14T22:13:20Z: until it does, it is not known where the node's instance is, and what depends on that waits. ebbtide's log has AWS's words",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "ebbtide has done its part; somebody else's lifecycle hook on group \"web\" holds instance i-1 until its owner completes it, or it times out",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "AWS was told at 2023-11-14T22:13:20Z to terminate instance i-1 and does not show that it does: the call may have been lost. It is told again after 2023-11-14T22:15:20Z: until then, a second call could take another instance from the group",
    ),
    (
        "Normal",
        "ScaleInWaiting",
        "the API server does not list the node's pods: until it does, no further pods are evicted, and the node is not released before its deadline",
    ),
    (
        "Warning",
        "ScaleInOverTime",
        "the drain has taken longer than --drain-timeout (or the group's tag ebbtide/drain-timeout) allows; nothing is deleted (--on-deadline=wait), and the drain keeps waiting for 2 pods: shop/web-1 (budget shop/web), shop/web-2 (budget shop/web)",
    ),
    (
        "Warning",
        "ScaleInPodsGivenUp",
        "no kubelet confirms their exit, and their grace ended a minute ago or the machine is off: these pods count as gone: shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInPodsReturned",
        "these pods tolerate the cordon, or are bound to the node by name, and have come back after an eviction; they are evicted a last time once all others have gone, and not waited for before that: shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInPatienceOver",
        "these pods asked not to be disturbed; the time to wait for them (--patience) is over, and they are evicted: shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInPatienceOver",
        "these pods asked not to be disturbed; nothing is heard of their machine any more, and they are evicted: shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInWishesIgnored",
        "these pods have annotations with invalid values, which are ignored: shop/web-1, shop/web-2",
    ),
    (
        "Normal",
        "ScaleInQueued",
        "waits for its turn: --max-operator-scale-ins allows 2 at once in group \"web\", for people, maintenance and recommendations, counting instances that are still to come. Scale-ins under way: 1; instances to come: 1; requests ahead of this one: 3. Under way: web-1, web-2. Launches of the group fail: \"pods 'web-1' is forbidden\"",
    ),
    (
        "Warning",
        "ScaleInRefused",
        "AWS does not release instance i-1, which is tried again; it says \"pods 'web-1' is forbidden\"",
    ),
    (
        "Warning",
        "ScaleInRefused",
        "AWS was told to terminate instance i-1 and shows it in a state that this version does not know: it is not told again. End it with `aws ec2 terminate-instances`, or update ebbtide",
    ),
    (
        "Normal",
        "ScaleInCordoned",
        "cause rebalance-recommendation: no new pods come to the node until 2023-11-14T22:13:20Z",
    ),
    ("Normal", "ScaleInUncordoned", "cause scheduled-event has lapsed: the node is open again"),
    (
        "Normal",
        "ScaleInUncordoned",
        "somebody has uncordoned the node, which was closed by cause rebalance-recommendation: it stays open",
    ),
    (
        "Warning",
        "ScaleInHookEnding",
        "AWS takes no heartbeats for instance i-1: lifecycle hook ebbtide of group \"web\" ends at 2023-11-14T22:13:20Z, unless it takes one before. Pods that are still on the node are deleted in time for that, whatever their budgets say. ebbtide's log has AWS's words",
    ),
    (
        "Warning",
        "ScaleInHookOver",
        "lifecycle hook ebbtide of group \"web\" is over for instance i-1 in phase Draining: somebody else has completed it, or it has timed out. The machine shuts down, and what runs on it is cut off",
    ),
    (
        "Warning",
        "ScaleInNodeLost",
        "the Node has gone in phase Draining, before instance i-1 was released: the machine has ended, or somebody has deleted the Node; on it: 2 workload pods, shop/web-1, shop/web-2",
    ),
    (
        "Warning",
        "ScaleInNotHeld",
        "group \"web\" ends instance i-1 and has no lifecycle hook: nothing holds it. ebbtide evicts its 2 workload pods at once, and AWS may end the machine before that is done. Put ebbtide's hook on the group to have the machine wait",
    ),
    (
        "Warning",
        "ScaleInNotHeld",
        "group \"web\" ends instance i-1, and its lifecycle hook had already ended when ebbtide saw that: somebody else has completed it, or it has timed out. Nobody drains its 1 workload pod",
    ),
    (
        "Normal",
        "ScaleInNotHeld",
        "group \"web\" ends instance i-1, which only another's lifecycle hook holds: its owner drains the node, ebbtide does not",
    ),
    (
        "Warning",
        "ScaleInSeveralNodes",
        "other Nodes name instance i-1 as well: web-1, web-2. Which one is the machine's is not known: pods on all of them leave before it goes. Delete those that are not the machine's",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "the record in annotation ebbtide/scale-in is gone, but AWS has been told to end instance i-1: the scale-in goes on",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "the record in annotation ebbtide/scale-in is gone, but its group ends instance i-1: the scale-in goes on; such a node cannot be kept",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "the record in annotation ebbtide/scale-in is gone, but AWS ends instance i-1 at 2023-11-14T22:13:20Z: the scale-in goes on",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "instance i-1 is in service again in group \"web\", but AWS ends its machine at 2023-11-14T22:13:20Z: the scale-in goes on, and the instance is terminated",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "a scale-in of the node is under way (cause autoscaler) and goes on unchanged: the new value of annotation ebbtide/scale-in does not start another",
    ),
    (
        "Warning",
        "ScaleInGoesOn",
        "somebody has opened the node (kubectl uncordon), which is being scaled in: it is cordoned again. To cancel the scale-in, take annotation ebbtide/scale-in off",
    ),
    (
        "Warning",
        "ScaleInCancelled",
        "group \"web\" is at its minimum size: AWS refuses to terminate i-1 with a decrement. The node is back in service; annotate it with ebbtide/scale-in=replace to have it replaced",
    ),
    (
        "Warning",
        "ScaleInCancelled",
        "instance i-1 is no longer in group \"web\", or the group is no longer selected: the node is back in service",
    ),
    (
        "Normal",
        "ScaleInCancelled",
        "the record in annotation ebbtide/scale-in is gone: the node is back in service",
    ),
    (
        "Warning",
        "ScaleInCancelled",
        "the record in annotation ebbtide/scale-in is gone: the node is back in service. But AWS ends the machine at 2023-11-14T22:13:20Z, and does not announce that again: annotate the node with ebbtide/scale-in=replace before then",
    ),
    (
        "Warning",
        "ScaleInCancelled",
        "the annotations ebbtide/scale-in and ebbtide/marks are gone: ebbtide takes its taint and label off. Who cordoned the node is not known: if nobody else wants it closed, open it (kubectl uncordon)",
    ),
    ("Normal", "ScaleInReturned", "instance i-1 is in service again in group \"web\", and so is its node"),
    (
        "Warning",
        "ScaleInReturned",
        "group \"web\" has instance i-1 in service again, but its Node is not Ready after a quarter of an hour: its scale-in is over, and cluster-autoscaler may remove it",
    ),
    (
        "Warning",
        "ScaleInReturned",
        "instance i-1 has left its group, and its Node has become Ready again: the kubelet of another machine has its name now, and has taken the Node over. The Node is back in service, still with the provider id of i-1: delete the Node and restart the other machine's kubelet, to register it anew",
    ),
    (
        "Warning",
        "ScaleInNotPossible",
        "the node's instance is in none of the node groups that this ebbtide runs",
    ),
    (
        "Warning",
        "ScaleInNotPossible",
        "group \"web\" is at its minimum size; annotate the node with ebbtide/scale-in=replace to have it replaced",
    ),
    (
        "Warning",
        "ScaleInNotPossible",
        "group \"web\" cannot terminate instances now: its process Terminate is suspended, or AWS refuses to change it. Until that is over, AWS is not told to terminate this one",
    ),
    (
        "Warning",
        "ScaleInNotUnderstood",
        "annotation ebbtide/scale-in has the invalid value \"pods 'web-1' is forbidden\". Write \"now\" to have the node drained and released, \"replace\" to have it replaced as well; take the annotation off to cancel",
    ),
    (
        "Warning",
        "ScaleInNotBelieved",
        "somebody other than ebbtide has written annotation ebbtide/scale-in, with phase Releasing: the scale-in starts from the beginning. Take the annotation off to cancel",
    ),
    (
        "Warning",
        "ScaleInNotBelieved",
        "somebody other than ebbtide has written a record into annotation ebbtide/scale-in that is taken off: its group has not taken the instance out, or the record has words that ebbtide does not know. Write \"now\" to have the node drained and released, \"replace\" to have it replaced as well",
    ),
    (
        "Warning",
        "ScaleInNotWritten",
        "the Node cannot be written: work on it waits until it can, and the write is tried again. The API server says: \"pods 'web-1' is forbidden\"",
    ),
    (
        "Warning",
        "ScaleInFailed",
        "a defect of ebbtide stopped its work on this node, which it takes up again in 20 s; please report it: \"pods 'web-1' is forbidden\"",
    ),
    ("Normal", "ScaleInEvicted", "node n1 is scaled in (cause autoscaler): the pod was evicted"),
    (
        "Normal",
        "ScaleInEvicted",
        "node n1 is scaled in (cause operator), and its last workload has exited: the pod was deleted as its annotation asks",
    ),
    (
        "Warning",
        "ScaleInDeleted",
        "node n1 is scaled in (cause spot-interruption), and time is up for the pod: it was deleted regardless of budgets",
    ),
    (
        "Warning",
        "ScaleInDeleted",
        "node n1 is scaled in (cause lifecycle-hook), and its machine is lost: the pod was deleted regardless of budgets",
    ),
];

#[test]
fn a_budget_that_nobody_can_name_is_told_in_the_words_of_the_refusal() {
    let wait = |names: &[&str]| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        WaitReason::Budget { names, words: "not now".into() }.in_words()
    };
    assert_eq!(wait(&["shop/web", "shop/all"]), "budget shop/web, shop/all");
    assert_eq!(wait(&[]), "a budget: \"not now\"");
}

#[test]
fn every_event_has_the_type_reason_and_note_of_the_table() {
    let all =
        every_event("web", "i-1", &pods(&["web-1", "web-2"]), "shop/web", "pods \"web-1\" is\nforbidden");
    let typed = |event: &ScaleInEvent| if event.warning { "Warning" } else { "Normal" };
    let read: Vec<_> =
        all.iter().map(|event| (typed(event), event.reason.as_str(), event.note.as_str())).collect();
    assert_eq!(read, EXPECTED);
}

#[test]
fn every_reason_has_the_types_that_the_table_names_and_every_constructor_is_tested() {
    let all = every_event("web", "i-1", &pods(&["web-1"]), "shop/web", "no");
    let mut types: BTreeMap<Reason, BTreeSet<&str>> = BTreeMap::new();
    for event in &all {
        types.entry(event.reason).or_default().insert(if event.warning { "Warning" } else { "Normal" });
    }
    let row = |(reason, types): (Reason, BTreeSet<&str>)| {
        let types: Vec<_> = types.into_iter().collect();
        format!("| `{reason}` | {} |", types.join(", "))
    };
    let types: Vec<_> = types.into_iter().map(row).collect();
    let rows = include_str!("../../../docs/events.md").lines().filter(|line| line.starts_with("| `"));
    for (row, types) in rows.zip(&types) {
        assert!(row.starts_with(types), "{types}: {row}");
    }
    assert_eq!(types.len(), Reason::ALL.len());
    let constructors = include_str!("../events.rs").matches("pub(super) fn ").count();
    assert_eq!(all.len(), constructors);
}

#[test]
fn no_event_is_cut_whatever_people_have_written() {
    let endless = "\u{10ffff}\"\n\u{85}".repeat(1_000);
    let long = PodName { namespace: "n".repeat(63).into(), name: "p".repeat(253).into() };
    let pods: Vec<_> = std::iter::repeat_n(long, 1_000).collect();
    let what_to_do = BTreeMap::from([
        (Reason::SeveralNodes, "Delete those that are not the machine's"),
        (Reason::NotUnderstood, "take the annotation off to cancel"),
        (Reason::NotPossible, "annotate the node with ebbtide/scale-in=replace to have it replaced"),
        (Reason::Returned, "to register it anew"),
    ]);
    let all = every_event(&endless, &endless, &pods, &endless, &endless);
    for event in &all {
        assert!(event.note.len() <= NOTE_LIMIT, "{} bytes: {}", event.note.len(), event.note);
    }
    for (reason, end) in what_to_do {
        assert!(all.iter().any(|event| event.reason == reason && event.note.ends_with(end)), "{end}");
    }
}

#[test]
fn what_people_write_stands_in_quotes_and_in_one_line() {
    let words = "say \"now\"\r\nor \u{1b}[31mnever";
    for event in every_event("a\nb", "i-1", &pods(&["web-1"]), "shop/web", words) {
        assert!(!event.note.contains(char::is_control), "{:?}", event.note);
        for written in ["a b", "say 'now'"] {
            assert_eq!(
                event.note.matches(written).count(),
                event.note.matches(&format!("\"{written}")).count(),
                "{}",
                event.note
            );
        }
    }
}
