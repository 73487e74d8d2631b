//! When workloads must be gone, and how much grace still fits. Pure.
//!
//! ```text
//! requested ── drain ──▶ last call ── the pod's grace ──▶ gone-by ── margin, flush ──▶ release-by
//! ```
//! A pod that has not gone by itself is deleted at its last call: late enough to use every chance under its budget,
//! early enough for its whole grace period.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::record::Record;
use super::settings::{OnDeadline, Settings};
use crate::aws::Hook;
use crate::clock::{later, signed};

/// Kept back from a deadline on top of the flush time, for the writes between phases and the releasing call.
pub(super) const MARGIN: Duration = Duration::from_secs(5);

/// Kept back from a shortened grace period, for the kubelet to kill what is left and report it.
const KILL_TIME: SignedDuration = SignedDuration::from_secs(1);

/// Last calls come this much early: a timer that wakes a millisecond late, or one failed try, must not cost the pod a
/// second of its grace.
const LATE: SignedDuration = SignedDuration::from_secs(2);

/// When every workload must be gone.
pub(super) fn gone_by(release_by: Timestamp, flush: Duration) -> Timestamp {
    release_by - (flush + MARGIN)
}

/// The latest moment to delete a pod with this grace and leave its grace whole.
pub(super) fn last_call(gone_by: Timestamp, grace_seconds: i64) -> Timestamp {
    gone_by - KILL_TIME - LATE - SignedDuration::from_secs(grace_seconds)
}

/// When a pod that is going, with more grace than there is time, is cut short.
pub(super) fn cut(gone_by: Timestamp) -> Timestamp {
    gone_by - KILL_TIME - SignedDuration::from_secs(1)
}

/// The grace to ask for now: `None` if the pod's own fits, else what fits. Never 0, which would remove the pod's object
/// while its containers run.
pub(super) fn shortened_grace(gone_by: Timestamp, grace_seconds: i64, now: Timestamp) -> Option<i64> {
    let left = gone_by.duration_since(now) - KILL_TIME;
    (left < SignedDuration::from_secs(grace_seconds)).then(|| left.as_secs().max(1))
}

/// When an instance must be released: one heartbeat time-out before the hook's longest hold ends, when AWS ends the
/// machine, or at a limit of ours at which pods are deleted, whichever is earliest; `None`: no limit.
pub(super) fn limit(
    settings: &Settings,
    record: &Record,
    hook: Option<&Hook>,
    held_since: Timestamp,
) -> Option<Timestamp> {
    let by_rules = hold_limit(settings, record.requested_at, hook, held_since);
    [by_rules, record.ends_at].into_iter().flatten().min()
}

/// The same of an instance without a record.
pub(super) fn hold_limit(
    settings: &Settings,
    requested: Timestamp,
    hook: Option<&Hook>,
    held_since: Timestamp,
) -> Option<Timestamp> {
    let by_hook = hook
        .map(|hook| later(held_since, signed(hook.global_timeout.saturating_sub(hook.heartbeat_timeout))));
    let by_option = ours(settings, requested).filter(|_| settings.on_deadline == OnDeadline::Delete);
    [by_hook, by_option].into_iter().flatten().min()
}

/// The limit of ours at which nothing is deleted, if it comes before the record's; `None`: there is none.
pub(super) fn soft_limit(settings: &Settings, record: &Record) -> Option<Timestamp> {
    let ours = ours(settings, record.requested_at).filter(|_| settings.on_deadline == OnDeadline::Wait)?;
    record.release_by.is_none_or(|by| ours < by).then_some(ours)
}

/// The limit that is ours.
fn ours(settings: &Settings, requested: Timestamp) -> Option<Timestamp> {
    settings.drain_timeout.map(|timeout| later(requested, signed(timeout)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::scale_in::record::{Cause, Release};
    use crate::scale_in::tests::settings;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn a_limit_that_is_only_ours_deletes_nothing_where_it_is_to_wait() {
        let hook = Hook {
            group: "g".into(),
            name: "ebbtide".into(),
            heartbeat_timeout: Duration::from_secs(60),
            global_timeout: Duration::from_secs(6_000),
        };
        // Our limit, the hook, AWS's end of the machine, what is to be done: when pods are deleted, when an Event names them.
        let table = [
            (None, false, None, OnDeadline::Wait, None, None),
            (Some(600), false, None, OnDeadline::Delete, Some(600), None),
            (Some(600), false, None, OnDeadline::Wait, None, Some(600)),
            (Some(600), true, None, OnDeadline::Delete, Some(600), None),
            (Some(600), true, None, OnDeadline::Wait, Some(5_940), Some(600)),
            (Some(9_000), true, None, OnDeadline::Wait, Some(5_940), None),
            (Some(600), true, Some(120), OnDeadline::Wait, Some(120), None),
            (Some(60), false, Some(120), OnDeadline::Wait, Some(120), Some(60)),
            (Some(60), false, Some(120), OnDeadline::Delete, Some(60), None),
        ];
        for (ours, is_held, ends_at, on_deadline, deletes, warns) in table {
            let settings =
                Settings { drain_timeout: ours.map(Duration::from_secs), on_deadline, ..settings() };
            let mut record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
            record.ends_at = ends_at.map(at);
            record.release_by = limit(&settings, &record, is_held.then_some(&hook), at(0));
            let limits = (record.release_by, soft_limit(&settings, &record));
            assert_eq!(
                limits,
                (deletes.map(at), warns.map(at)),
                "{ours:?} {is_held} {ends_at:?} {on_deadline:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn a_pod_deleted_at_its_last_call_keeps_its_whole_grace(gone in 100_000..200_000i64, grace in 1..90_000i64) {
            let call = last_call(at(gone), grace);
            let late = call + SignedDuration::from_millis(1_500);
            prop_assert_eq!(shortened_grace(at(gone), grace, late), None);
            prop_assert!(call + SignedDuration::from_secs(grace) <= at(gone));
        }

        #[test]
        fn a_shortened_grace_ends_before_the_workloads_must_have_gone(
            gone in 100_000..200_000i64, grace in 1..90_000i64, now in 0..199_990i64,
        ) {
            if let Some(short) = shortened_grace(at(gone), grace, at(now)) {
                prop_assert!(short >= 1);
                prop_assert!(short < grace.max(2));
                prop_assert!(short == 1 || now + short <= gone);
            }
        }
    }
}
