//! When workloads must be gone, and how much grace still fits. Pure.
//!
//! ```text
//! requested ── drain ──▶ last call ── the pod's grace ──▶ gone-by ── margin, flush ──▶ release-by
//! ```
//! A pod that has not gone by itself is deleted at its last call: late enough to use every chance under its budget,
//! early enough for its whole grace period.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::holds::Hold;
use super::record::Record;
use super::settings::{OnDeadline, Settings};
use crate::aws::Hook;
use crate::clock::{later, signed};
use crate::template::tags::DrainTimeout;

/// Moments no further apart than this count as one: what differs by less is not written again.
pub(super) const SAME_WITHIN: SignedDuration = SignedDuration::from_secs(1);

/// The limit of ours on the scale-ins of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OurLimit {
    /// The group has not been read: its tags may say anything.
    Unknown,
    /// There is none.
    Never,
    /// From request to release, and what becomes of pods that are left then.
    After(Duration, OnDeadline),
}

impl OurLimit {
    /// By the group's tag and the options.
    pub(super) fn of(tag: Option<DrainTimeout>, settings: &Settings) -> Self {
        let time = drain_timeout(tag, settings.drain_timeout);
        time.map_or(Self::Never, |time| Self::After(time, settings.on_deadline))
    }

    /// When it comes, and what becomes of pods then.
    fn at(self, requested: Timestamp) -> Option<(Timestamp, OnDeadline)> {
        match self {
            Self::Unknown | Self::Never => None,
            Self::After(time, on_deadline) => Some((later(requested, signed(time)), on_deadline)),
        }
    }
}

/// How long a drain may take by a group's tag and the option `--drain-timeout`; `None`: there is no limit of ours. The tag beats the option.
pub(crate) fn drain_timeout(tag: Option<DrainTimeout>, option: Option<Duration>) -> Option<Duration> {
    match tag {
        Some(DrainTimeout::Never) => None,
        Some(DrainTimeout::After(time)) => Some(time),
        None => option,
    }
}

/// Kept back from a deadline on top of the flush time, for the writes between phases and the releasing call.
pub(crate) const MARGIN: Duration = Duration::from_secs(5);

/// Kept back from a shortened grace period, for the kubelet to kill what is left and report it.
const KILL_TIME: SignedDuration = SignedDuration::from_secs(1);

/// Last calls come this much early: a timer that wakes a millisecond late, or one failed try, must not cost the pod a
/// second of its grace.
const LATE: SignedDuration = SignedDuration::from_secs(2);

/// When every workload must be gone.
pub(super) fn gone_by(release_by: Timestamp, flush: Duration) -> Timestamp {
    release_by - (flush + MARGIN)
}

/// When an instance is released whatever is on it or not known of it; `None`: no limit.
pub(super) fn released_anyway(record: &Record) -> Option<Timestamp> {
    record.release_by.map(|by| by - MARGIN)
}

/// The latest moment to delete a pod with this grace and leave its grace whole.
pub(super) fn last_call(gone_by: Timestamp, grace_seconds: i64) -> Timestamp {
    gone_by - KILL_TIME - LATE - SignedDuration::from_secs(grace_seconds)
}

/// When a pod that is going with more grace than there is time is cut short, as the API server sees it: a kubelet that has asked its
/// containers to stop waits for the first grace ([kubernetes#83916](https://github.com/kubernetes/kubernetes/issues/83916)).
pub(super) fn cut(gone_by: Timestamp) -> Timestamp {
    gone_by - KILL_TIME - SignedDuration::from_secs(1)
}

/// The grace to give a pod now so that it is gone by `gone_by`; `None`: its own. Never 0, even if that is the pod's own: it removes the
/// object while containers run.
///
/// Source: [`CheckGracefulDelete`](https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/strategy.go).
pub(super) fn grace_to_ask(gone_by: Option<Timestamp>, grace_seconds: i64, now: Timestamp) -> Option<i64> {
    let shortened = gone_by.and_then(|gone_by| shortened_grace(gone_by, grace_seconds, now));
    shortened.or((grace_seconds < 1).then_some(1))
}

/// `None` if the pod's own grace fits, else what fits, a second at least.
fn shortened_grace(gone_by: Timestamp, grace_seconds: i64, now: Timestamp) -> Option<i64> {
    let left = gone_by.duration_since(now) - KILL_TIME;
    (left < SignedDuration::from_secs(grace_seconds)).then(|| left.as_secs().max(1))
}

/// When an instance can be released at the soonest, if workloads take until `gone` and DaemonSet pods get their whole flush, which must fit
/// into half of the time from `now`: it is cut to that.
pub(super) fn released_after(gone: Timestamp, flush: Duration, now: Timestamp) -> Timestamp {
    let flush = signed(flush);
    later(gone, KILL_TIME + LATE + signed(MARGIN) + flush).max(later(now, flush + flush))
}

/// The limit, if our own `closer` one must not cut pods short: it moves back to `soonest`, when the node could be released (unknown
/// until its pods are listed), or to the limit that the record `had`, whichever is first. AWS's limit (`aws`) is not moved.
pub(super) fn spared(
    closer: Timestamp,
    had: Option<Timestamp>,
    soonest: Option<Timestamp>,
    aws: Option<Timestamp>,
) -> Option<Timestamp> {
    let not_before = [had, soonest].into_iter().flatten().min();
    [not_before.map(|at| at.max(closer)), aws].into_iter().flatten().min()
}

/// The record with this limit. If that is closer than before, as with a notice in mid-drain, the time is shared out anew from now.
pub(super) fn limited(record: &Record, release_by: Option<Timestamp>, now: Timestamp) -> Record {
    let is_closer =
        release_by.is_some_and(|by| record.release_by.is_none_or(|was| later(by, SAME_WITHIN) < was));
    let limited_since = if is_closer { Some(now) } else { record.limited_since };
    Record { release_by, limited_since, ..record.clone() }
}

/// An instance that our lifecycle hook holds.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeldBy<'a> {
    pub(super) hook: &'a Hook,
    pub(super) hold: Hold,
}

impl HeldBy<'_> {
    fn limit(self) -> Timestamp {
        let longest = later(self.hold.since, signed(self.hook.drain_limit()));
        self.hold.ends.map_or(longest, |ends| ends.min(longest))
    }
}

/// When an instance must be released, the earliest of: one heartbeat time-out before the hook's longest hold ends; the end of a hold
/// without heartbeats; AWS's end of the machine; our limit, if it deletes pods. `None`: no limit.
pub(super) fn limit(ours: OurLimit, record: &Record, held: Option<HeldBy<'_>>) -> Option<Timestamp> {
    let by_rules = hold_limit(ours, record.requested_at, held);
    [by_rules, record.ends_at].into_iter().flatten().min()
}

/// The same of an instance without a record.
pub(super) fn hold_limit(
    ours: OurLimit,
    requested: Timestamp,
    held: Option<HeldBy<'_>>,
) -> Option<Timestamp> {
    let deletes = |(at, what)| (what == OnDeadline::Delete).then_some(at);
    [held.map(HeldBy::limit), ours.at(requested).and_then(deletes)].into_iter().flatten().min()
}

/// The limit of ours at which nothing is deleted, if it comes before the record's; `None`: there is none.
pub(super) fn soft_limit(ours: OurLimit, record: &Record) -> Option<Timestamp> {
    let (at, what) = ours.at(record.requested_at)?;
    (what == OnDeadline::Wait && record.release_by.is_none_or(|by| at < by)).then_some(at)
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

    fn held_by(hook: &Hook) -> HeldBy<'_> {
        HeldBy { hook, hold: Hold::since(at(0)) }
    }

    #[test]
    fn a_limit_that_is_only_ours_deletes_nothing_where_it_is_to_wait() {
        let hook = Hook::new("ebbtide", "g", Duration::from_mins(1));
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
            (Some(120), false, Some(120), OnDeadline::Wait, Some(120), None),
        ];
        for (ours, is_held, ends_at, on_deadline, deletes, warns) in table {
            let limit_of_ours =
                ours.map_or(OurLimit::Never, |time| OurLimit::After(Duration::from_secs(time), on_deadline));
            let mut record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
            record.ends_at = ends_at.map(at);
            record.release_by = limit(limit_of_ours, &record, is_held.then_some(held_by(&hook)));
            let limits = (record.release_by, soft_limit(limit_of_ours, &record));
            assert_eq!(
                limits,
                (deletes.map(at), warns.map(at)),
                "{ours:?} {is_held} {ends_at:?} {on_deadline:?}"
            );
        }
    }

    #[test]
    fn a_groups_tag_beats_the_option_and_an_unread_group_has_no_limit_of_ours() {
        let after = |minutes| OurLimit::After(Duration::from_mins(minutes), OnDeadline::Delete);
        let with = |minutes| Settings { drain_timeout: Some(Duration::from_mins(minutes)), ..settings() };
        let tagged = |minutes| Some(DrainTimeout::After(Duration::from_mins(minutes)));
        assert_eq!(OurLimit::of(None, &settings()), OurLimit::Never);
        assert_eq!(OurLimit::of(None, &with(5)), after(5));
        assert_eq!(OurLimit::of(tagged(9), &with(5)), after(9));
        assert_eq!(OurLimit::of(tagged(9), &settings()), after(9));
        assert_eq!(OurLimit::of(Some(DrainTimeout::Never), &with(5)), OurLimit::Never);
        let record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
        assert_eq!(limit(OurLimit::Unknown, &record, None), None);
    }

    /// Hours, minutes and seconds since the beginning.
    fn clock(moment: Timestamp) -> String {
        let seconds = moment.as_second();
        format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
    }

    #[test]
    fn the_figures_in_the_documents_are_what_is_reckoned() {
        let document = include_str!("../../docs/deadlines.md");
        let table = document.split("<!-- reckoned -->").nth(1).expect("between two marks");
        let rows: Vec<_> = table.lines().filter(|line| line.contains(" of ")).collect();
        let rows: Vec<_> = rows.into_iter().filter(|row| !row.contains("grace of a pod")).collect();
        assert!(rows.len() > 5, "{rows:?}");
        for row in rows {
            let cells: Vec<_> = row.split('|').map(str::trim).collect();
            let seconds = |cell: usize| -> u64 {
                let figure = cells[cell].trim_end_matches(" s").rsplit(' ').next().expect("a word");
                figure.parse().expect("seconds")
            };
            let hook = Hook::new("ebbtide", "g", Duration::from_secs(seconds(1)));
            let held = cells[1].starts_with("hook").then_some(held_by(&hook));
            let mut record = Record::new(Cause::Autoscaler, "g", "i-1", Release::Terminate, at(0));
            record.ends_at = held.is_none().then(|| at(seconds(1).cast_signed()));
            let release_by = limit(OurLimit::Never, &record, held).expect("a limit");
            let (gone_by, grace) =
                (gone_by(release_by, Duration::from_secs(seconds(2))), seconds(3).cast_signed());
            let call = match shortened_grace(gone_by, grace, at(0)) {
                Some(shortened) => format!("grace {shortened} s"),
                None => clock(last_call(gone_by, grace)),
            };
            assert_eq!(cells[4..7], [clock(gone_by), call, clock(release_by)], "{row}");
        }
    }

    #[test]
    fn a_pod_without_a_grace_is_given_a_second_so_that_its_object_stays_until_it_has_exited() {
        for limit in [None, Some(at(1_000)), Some(at(10))] {
            assert_eq!(grace_to_ask(limit, 0, at(100)), Some(1));
        }
        assert_eq!(grace_to_ask(None, 1, at(100)), None);
        assert_eq!(grace_to_ask(Some(at(131)), 30, at(100)), None, "it just fits");
        assert_eq!(grace_to_ask(Some(at(130)), 30, at(100)), Some(29));
    }

    #[test]
    fn only_a_limit_that_comes_closer_by_more_than_a_second_is_shared_out_anew() {
        let table = [
            (Some(600), Some(598), true),
            (Some(600), Some(599), false),
            (Some(600), Some(600), false),
            (Some(600), Some(700), false),
            (Some(600), None, false),
            (None, Some(600), true),
        ];
        for (was, by, anew) in table {
            let mut record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
            record.release_by = was.map(at);
            record.limited_since = Some(at(10));
            let since = limited(&record, by.map(at), at(50)).limited_since;
            assert_eq!(since, Some(at(if anew { 50 } else { 10 })), "{was:?} {by:?}");
        }
    }

    #[test]
    fn a_limit_of_ours_that_comes_closer_leaves_what_is_on_the_node_its_time_and_one_of_aws_comes_as_it_does()
    {
        // The closer limit, the one before it, when the instance could be released, AWS's limit, whether pods are listed: which holds.
        let table = [
            (900, None, None, true, Some(900), "it leaves more than that"),
            (100, None, None, true, Some(500), "it has passed"),
            (100, Some(450), None, true, Some(450), "what was said before stands"),
            (100, Some(9_000), None, true, Some(500), "it comes as close as it can"),
            (100, None, Some(300), true, Some(300), "AWS does not wait"),
            (100, Some(450), Some(9_000), true, Some(450), "AWS would have waited"),
            (100, Some(450), None, false, Some(450), "pods are not listed"),
            (100, None, Some(300), false, Some(300), "pods are not listed, and AWS does not wait"),
            (100, None, None, false, None, "pods are not listed, and there was none"),
        ];
        for (closer, had, aws, is_listed, expected, what) in table {
            let soonest = is_listed.then(|| at(500));
            let found = spared(at(closer), had.map(at), soonest, aws.map(at));
            assert_eq!(found, expected.map(at), "{what}");
        }
        let flush = Duration::from_mins(1);
        let released = released_after(at(200), flush, at(100));
        assert!(last_call(gone_by(released, flush), 100) >= at(100), "a grace of 100 s fits whole");
        let short = released_after(at(101), flush, at(100));
        assert!(short.duration_since(at(100)) / 2 >= signed(flush), "half of the time is for the flush");
    }

    proptest! {
        #[test]
        fn a_pod_deleted_at_its_last_call_keeps_its_whole_grace(gone in 100_000..200_000i64, grace in 1..90_000i64) {
            let call = last_call(at(gone), grace);
            let late = call + SignedDuration::from_millis(1_500);
            prop_assert_eq!(grace_to_ask(Some(at(gone)), grace, late), None);
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
