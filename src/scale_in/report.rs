//! Telling others by conditions of the Node how far its drain is. Nothing waits for that. Pure.

use jiff::SignedDuration;

use super::action::{Action, Plan};
use super::record::{Phase, Record};
use super::situation::Situation;
use super::tries::Task;
use crate::clock::later;
use crate::cluster::DrainState;

/// What somebody else has undone is written again no sooner.
const AGAIN_AFTER: SignedDuration = SignedDuration::from_secs(30);

/// Plans the report of a scale-in, or that there is none any more.
pub(super) fn report(s: &Situation<'_>, record: Option<&Record>, plan: &mut Plan) {
    let wanted = match record {
        Some(record) if record.phase == Phase::Draining => DrainState::InProgress,
        Some(record) if record.empty_since.is_some() => DrainState::Drained,
        Some(_) => DrainState::TimeOver,
        None if s.node.drain_state.is_some() => DrainState::Cancelled,
        None => return,
    };
    // A write of the Node comes first, and this one would have its version outdated.
    let is_written = s.memory.tries(&Task::Node).in_flight;
    if s.node.drain_state == Some(wanted) || plan.writes_node() || is_written {
        return;
    }
    if let Some((_, told)) = s.memory.reported.filter(|(state, _)| *state == wanted)
        && !s.has_come(later(told, AGAIN_AFTER), plan)
    {
        return;
    }
    s.attempt(plan, s.memory.tries(&Task::Report), || Action::Report(wanted));
}
