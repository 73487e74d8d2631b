//! Patches for what a Node carries while it is scaled in. Pure.
//!
//! One write puts on the record, the cordon, cluster-autoscaler's own taint with a fresh value, and the label that takes the
//! Node out of load balancers. They are restored if somebody removes them, and taken off if the scale-in is cancelled. The
//! annotation `ebbtide/marks` lists what we put on; the rest is left alone. It says as well that AWS was told to terminate the instance,
//! and which installation has put it on.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Taint;
use serde_json::{Value, json};

use super::record::{self, Record};
use crate::clock::later;
use crate::cluster::{Cordon, NodeView};
use crate::k8s::names;
use crate::words::words;

/// cluster-autoscaler takes a Node whose taint is older than 5 minutes for a failed deletion. We renew the taint well before
/// that, so that a slow write does not matter.
/// Source: [`MaxCloudProviderNodeDeletionTime`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/core/static_autoscaler.go).
const TAINT_LIFE: SignedDuration = SignedDuration::from_mins(3);

/// Effect of the taint during a scale-in. The cordon keeps workloads away; cluster-autoscaler, the service controller and
/// kube-proxy look for the key alone. With cluster-autoscaler's own `NoSchedule`, a DaemonSet's rolling update would delete
/// its pod and could not put a new one there: no log shipper for the rest of the drain.
/// Sources: [`HasToBeDeletedTaint`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/taints/taints.go),
/// [service controller](https://github.com/kubernetes/cloud-provider/blob/master/controllers/service/controller.go),
/// [DaemonSet controller](https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/daemon/daemon_controller.go).
const EFFECT: &str = "PreferNoSchedule";

/// Value of the label that takes a Node out of load balancers: whose it is.
const LABEL_VALUE: &str = "ebbtide";

words! {
    /// Something we changed on a Node.
    pub(super) Mark {
        Cordon = "cordon",
        Guard = "guard",
        LoadBalancer = "load-balancer",
        Taint = "taint",
        /// AWS was told to terminate the instance: that outlives the record.
        Told = "told",
    }
}

/// Our marks by the Node's list. Without a list, which somebody removed while no ebbtide ran, those that are certainly ours.
pub(super) fn marks(node: &NodeView) -> BTreeSet<Mark> {
    let Some(listed) = node.marks.as_deref() else { return evident_marks(node) };
    let words: Vec<&str> = listed.split(',').map(str::trim).collect();
    Mark::ALL.into_iter().filter(|mark| words.contains(&mark.as_str())).collect()
}

/// Which installation has put on what the Node lists. `None`: one without a Lease, or an old version.
pub(super) fn marked_by(node: &NodeView) -> Option<&str> {
    // No mark has a slash, and the name of every installation has one.
    node.marks.as_deref()?.split(',').map(str::trim).find(|word| word.contains('/'))
}

/// What nobody else puts on. The cordon may be anybody's.
fn evident_marks(node: &NodeView) -> BTreeSet<Mark> {
    let is_label = node.labels.get(names::EXCLUDE_FROM_LOAD_BALANCERS) == Some(LABEL_VALUE);
    let evident = [has_our_taint(node).then_some(Mark::Taint), is_label.then_some(Mark::LoadBalancer)];
    evident.into_iter().flatten().collect()
}

/// The list of these marks, and of what a newer version has put on the Node: that one takes it off again. `by`: this installation.
fn marks_value(node: &NodeView, marks: &BTreeSet<Mark>, by: Option<&str>) -> Value {
    let listed = node.marks.as_deref().unwrap_or_default();
    let is_newer = |word: &&str| {
        let is_word =
            (1..=WORD).contains(&word.len()) && word.bytes().all(|it| it.is_ascii_lowercase() || it == b'-');
        is_word && Mark::ALL.iter().all(|mark| mark.as_str() != *word)
    };
    let newer = listed.split(',').map(str::trim).filter(is_newer).take(NEWER);
    let mut words: Vec<&str> = marks.iter().map(|mark| mark.as_str()).chain(newer).collect();
    if words.is_empty() {
        return Value::Null;
    }
    words.extend(by);
    json!(words.join(","))
}

/// At most this many words of a newer version's are kept.
const NEWER: usize = 8;
/// A longer word, in bytes, is none of a newer version's.
const WORD: usize = 32;

/// The marks of a scale-in among these.
pub(super) fn of_scale_in(marks: &BTreeSet<Mark>) -> impl Iterator<Item = Mark> {
    marks.iter().copied().filter(|mark| *mark != Mark::Guard)
}

/// Whether the Node lists marks of a scale-in.
pub(super) fn has_scale_in_marks(node: &NodeView) -> bool {
    of_scale_in(&marks(node)).next().is_some()
}

/// Whether the Node has our taint, which goes with the rest that a scale-in has put on.
pub(super) fn has_our_taint(node: &NodeView) -> bool {
    node.taint(names::TO_BE_DELETED).is_some_and(|taint| taint.effect == EFFECT)
}

/// Whether cluster-autoscaler drains the node, judging by its taint. On a Node that we scale in, the taint is ours.
pub(super) fn is_drained_by_autoscaler(node: &NodeView) -> bool {
    node.taint(names::TO_BE_DELETED).is_some() && !has_scale_in_marks(node)
}

/// Whether DaemonSet pods of the Node may carry our guard.
pub(super) fn is_guarded(node: &NodeView) -> bool {
    marks(node).contains(&Mark::Guard)
}

/// When the taint must be renewed; `None`, meaning now, if it is missing or unreadable.
pub(super) fn taint_expires(node: &NodeView) -> Option<Timestamp> {
    Some(later(tainted_at(node)?, TAINT_LIFE))
}

/// When the taint was put on, by the clock of whoever did.
pub(super) fn tainted_at(node: &NodeView) -> Option<Timestamp> {
    let stamp = node.taint(names::TO_BE_DELETED)?.value.as_deref()?.parse().ok()?;
    Timestamp::from_second(stamp).ok()
}

/// The patch that writes `record` and puts on the marks that are missing.
pub(super) fn with_record(node: &NodeView, record: &Record, now: Timestamp) -> Value {
    with_record_over(node, marks(node), record, record.installation.as_deref(), now)
}

/// The same of a Node that has these marks, whatever it lists.
pub(super) fn with_record_over(
    node: &NodeView,
    mut ours: BTreeSet<Mark>,
    record: &Record,
    by: Option<&str>,
    now: Timestamp,
) -> Value {
    if record.terminate_at.is_some() {
        ours.insert(Mark::Told);
    }
    let mut patch = put_on(node, ours, by, now).unwrap_or_else(|| based_on(node));
    patch["metadata"]["annotations"][names::RECORD] = json!(record::write(record));
    patch
}

/// The patch that writes a request again.
pub(super) fn with_request(node: &NodeView, text: &str) -> Value {
    let mut patch = based_on(node);
    patch["metadata"]["annotations"][names::RECORD] = json!(text);
    patch
}

/// The record that a patch writes.
pub(super) fn record_in(patch: &Value) -> Option<&str> {
    patch["metadata"]["annotations"][names::RECORD].as_str()
}

/// The patch that restores missing or stale marks of a Node that has `ours`, whatever it lists; `None` if all is well.
pub(super) fn put_on(
    node: &NodeView,
    mut ours: BTreeSet<Mark>,
    by: Option<&str>,
    now: Timestamp,
) -> Option<Value> {
    let is_open = !node.unschedulable;
    let is_reached = !node.is_out_of_load_balancers();
    let needs_taint = !has_our_taint(node) || taint_expires(node).is_none_or(|expires| expires <= now);
    // The taint goes with the scale-in, whoever set it first, and so does a cordon of cluster-autoscaler's.
    let is_autoscalers = || !ours.contains(&Mark::Taint) && is_cordoned_by_autoscaler(node);
    if is_open || is_autoscalers() {
        ours.insert(Mark::Cordon);
    }
    if is_reached {
        ours.insert(Mark::LoadBalancer);
    }
    ours.insert(Mark::Taint);
    if !is_open && !is_reached && !needs_taint && ours == marks(node) {
        return None;
    }
    let mut patch = based_on(node);
    if is_open {
        patch["spec"]["unschedulable"] = json!(true);
    }
    if is_reached {
        patch["metadata"]["labels"][names::EXCLUDE_FROM_LOAD_BALANCERS] = json!(LABEL_VALUE);
    }
    if needs_taint {
        let fresh = Taint {
            key: names::TO_BE_DELETED.into(),
            value: Some(now.as_second().to_string()),
            effect: EFFECT.into(),
            time_added: None,
        };
        let others = node.taints.iter().filter(|taint| taint.key != names::TO_BE_DELETED);
        patch["spec"]["taints"] = json!(others.chain([&fresh]).collect::<Vec<_>>());
    }
    patch["metadata"]["annotations"][names::MARKS] = marks_value(node, &ours, by);
    Some(patch)
}

/// cluster-autoscaler cordons a Node in the write that taints it (`--cordon-node-before-terminating`); within seconds the
/// node lifecycle controller adds the cordon's own taint, with its time.
const CORDONED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// Whether cluster-autoscaler cordoned the Node, not a person: it would undo that together with its taint.
fn is_cordoned_by_autoscaler(node: &NodeView) -> bool {
    let cordoned = node.taint(names::UNSCHEDULABLE).and_then(|taint| taint.time_added.as_ref());
    tainted_at(node).zip(cordoned).is_some_and(|(tainted, cordoned)| {
        let after = cordoned.0.duration_since(tainted);
        (-SignedDuration::from_secs(1)..=CORDONED_WITHIN).contains(&after)
    })
}

/// The patch that takes off the record alone.
pub(super) fn without_record(node: &NodeView) -> Value {
    let mut patch = based_on(node);
    patch["metadata"]["annotations"][names::RECORD] = Value::Null;
    patch
}

/// The patch that takes off the record and what the scale-in put on, which is `ours`.
pub(super) fn take_off(node: &NodeView, mut ours: BTreeSet<Mark>, by: Option<&str>) -> Value {
    let mut patch = based_on(node);
    if ours.remove(&Mark::Cordon) {
        patch["spec"]["unschedulable"] = Value::Null;
    }
    if ours.remove(&Mark::LoadBalancer) {
        patch["metadata"]["labels"][names::EXCLUDE_FROM_LOAD_BALANCERS] = Value::Null;
    }
    if ours.remove(&Mark::Taint) {
        let others: Vec<_> = node.taints.iter().filter(|taint| taint.key != names::TO_BE_DELETED).collect();
        patch["spec"]["taints"] = if others.is_empty() { Value::Null } else { json!(others) };
    }
    ours.remove(&Mark::Told);
    patch["metadata"]["annotations"][names::RECORD] = Value::Null;
    patch["metadata"]["annotations"][names::MARKS] = marks_value(node, &ours, by);
    patch
}

/// The patch that cordons the Node because of a notice.
pub(super) fn cordon(node: &NodeView, cordon: &Cordon) -> Value {
    let mut patch = based_on(node);
    patch["spec"]["unschedulable"] = json!(true);
    patch["metadata"]["annotations"][names::CORDON] = json!(cordon.write());
    patch
}

/// The patch that takes off that cordon; `open`: and opens the Node.
pub(super) fn end_cordon(node: &NodeView, open: bool) -> Value {
    let mut patch = based_on(node);
    if open {
        patch["spec"]["unschedulable"] = Value::Null;
    }
    patch["metadata"]["annotations"][names::CORDON] = Value::Null;
    patch
}

/// The patch that notes on the Node whether its DaemonSet pods may carry our guard.
pub(super) fn guard(node: &NodeView, on: bool, by: Option<&str>) -> Value {
    let mut ours = marks(node);
    if on {
        ours.insert(Mark::Guard);
    } else {
        ours.remove(&Mark::Guard);
    }
    let mut patch = based_on(node);
    patch["metadata"]["annotations"][names::MARKS] = marks_value(node, &ours, by);
    patch
}

/// A merge patch that the API server refuses if the Node has changed since we looked.
fn based_on(node: &NodeView) -> Value {
    json!({ "metadata": { "resourceVersion": node.resource_version, "uid": node.uid } })
}
