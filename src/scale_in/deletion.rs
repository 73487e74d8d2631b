//! Deletions of workloads: their last call, and the end of their time. Pure.

use jiff::Timestamp;

use super::action::{Action, Ask, Plan};
use super::record::Record;
use super::situation::Situation;
use crate::cluster::PodView;

/// Deletes a pod whose time ended at `end`, unless that has been done. An earlier refusal does not delay this.
pub(super) fn cut_off(s: &Situation<'_>, record: &Record, pod: &PodView, end: Timestamp, plan: &mut Plan) {
    let asked = s.memory.of(&pod.uid);
    if asked.to_go.is_some_and(|at| at >= end) {
        return;
    }
    if asked.deletion.ended_before(end) {
        plan.actions.push(cut_short(s, record, pod));
    } else {
        s.attempt(plan, &asked.deletion, || cut_short(s, record, pod));
    }
}

/// Deletes a pod that can have no more time: 1 s grace, so that it gets SIGTERM.
pub(super) fn cut_short(s: &Situation<'_>, record: &Record, pod: &PodView) -> Action {
    delete(s, record, pod, Some(1))
}

/// Deletes a workload's pod.
pub(super) fn delete(s: &Situation<'_>, record: &Record, pod: &PodView, grace: Option<i64>) -> Action {
    Action::Delete(ask_workload(s, record, pod, grace))
}

/// Who a workload's pod is, to ask it to go.
pub(super) fn ask_workload(s: &Situation<'_>, record: &Record, pod: &PodView, grace: Option<i64>) -> Ask {
    let has_returned = s.memory.of_scale_in.returns.is_back(pod, Some(s.theirs(record.requested_at)));
    Ask::new(pod, grace, Some((pod.owner(), has_returned)))
}
