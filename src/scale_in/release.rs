//! Giving the instance back, through the group's lifecycle hook where it has ours. Pure.
//!
//! Invariants: an instance is terminated only on the word of a look at AWS that began after the last try ended, so
//! that a try whose answer was lost is never repeated blindly; a hook of somebody else is never completed; ABANDON is
//! never said.

use jiff::Timestamp;

use super::memory::Task;
use super::plan::{Action, Announcement, HookKnowledge, Plan, Settings, Situation, Whereabouts};
use super::record::{Record, Release};
use crate::aws::Hook;
use crate::groups::Lifecycle;

/// When an instance must have been given back: the hook holds it for so long, and people may allow less. The hook
/// began to hold it before we saw that, but no longer ago than its heartbeat time-out: else it would be gone.
pub(super) fn limit(
    settings: Settings,
    requested: Timestamp,
    hook: Option<&Hook>,
    held_since: Timestamp,
) -> Option<Timestamp> {
    let by_hook = hook.map(|hook| held_since + hook.global_timeout.saturating_sub(hook.heartbeat_timeout));
    let by_option = settings.drain_timeout.map(|timeout| requested + timeout);
    [by_hook, by_option].into_iter().flatten().min()
}

/// While a node drains: where the group has our hook, the instance is terminated at once, and the record says from
/// then on that completing the hook releases it. Returns the record as it stands.
pub(super) fn take_out_of_the_group(s: &Situation<'_>, record: &Record, plan: &mut Plan) -> Record {
    let Whereabouts::In { group, lifecycle, seen } = &s.instance else { return record.clone() };
    let hook = match s.hook {
        HookKnowledge::None if *lifecycle != Lifecycle::TerminatingWait => return record.clone(),
        HookKnowledge::Unknown | HookKnowledge::None => {
            s.attempt(plan, &Task::Hook, || Action::LookUpHook { group: group.clone() });
            return record.clone();
        }
        HookKnowledge::Ours(hook) => hook,
    };
    if lifecycle.is_terminating() {
        if record.release == Release::CompleteHook {
            return record.clone();
        }
        let held = Record {
            release: Release::CompleteHook,
            release_by: limit(s.settings, record.requested_at, Some(hook), s.now),
            ..record.clone()
        };
        s.patch(plan, s.with_record(&held), None);
        return held;
    }
    terminate(s, record, group, *seen, plan);
    record.clone()
}

/// Plans the release of the instance.
pub(super) fn release(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let Whereabouts::In { group, lifecycle, seen } = &s.instance else {
        if s.instance == Whereabouts::Elsewhere {
            let note = format!(
                "instance {} has left group {}; the Node goes when the cloud controller has seen it terminated",
                record.instance, record.group
            );
            s.announce(
                plan,
                Announcement { topic: "released".into(), reason: "ScaleInReleased", note, warning: false },
            );
        }
        return;
    };
    match (lifecycle, s.hook) {
        (Lifecycle::Terminating | Lifecycle::TerminatingProceed, _) => {}
        (Lifecycle::TerminatingWait, HookKnowledge::Unknown | HookKnowledge::None) => {
            s.attempt(plan, &Task::Hook, || Action::LookUpHook { group: group.clone() });
        }
        (Lifecycle::TerminatingWait, HookKnowledge::Ours(hook)) => {
            if !s.memory.is_done(&Task::Complete) {
                let instance = record.instance.clone();
                s.attempt(plan, &Task::Complete, || Action::CompleteHook { hook: hook.clone(), instance });
            }
        }
        _ => terminate(s, record, group, *seen, plan),
    }
}

fn terminate(s: &Situation<'_>, record: &Record, group: &str, seen: Timestamp, plan: &mut Plan) {
    let last = s.memory.tries(&Task::Terminate).and_then(|tries| tries.ended);
    if last.is_some_and(|ended| seen <= ended) {
        // The worker asked for a new look when the try ended; it wakes us.
        return;
    }
    s.attempt(plan, &Task::Terminate, || Action::Terminate {
        group: group.to_owned(),
        instance: record.instance.clone(),
        decrement: record.release == Release::TerminateAndDecrement,
    });
}
