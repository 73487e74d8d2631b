//! The durable record of a scale-in: an annotation on the Node.
//!
//! Any run that finds it carries on from it. Each write has the Node's resource version as a precondition: of two writers,
//! one loses and looks again.
//!
//! A newer version may say more. While two versions run side by side, or after a rollback, a word that this version does not know must not
//! end the scale-in, and fields that it does not know stay in the record.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::clock::{is_plausible, later};
use crate::k8s::{GroupName, InstanceId};
use crate::words::words;

words! {
    /// Why a node leaves.
    pub Cause {
        /// cluster-autoscaler called DeleteNodes.
        Autoscaler = "autoscaler",
        /// The group put the instance into Terminating:Wait.
        LifecycleHook = "lifecycle-hook",
        /// AWS takes the spot instance back, two minutes after its notice.
        SpotInterruption = "spot-interruption",
        /// AWS advises to leave the spot instance.
        RebalanceRecommendation = "rebalance-recommendation",
        /// AWS Health: maintenance, retirement or reboot of the instance.
        ScheduledEvent = "scheduled-event",
        /// The Capacity Block or interruptible reservation of the instance ends.
        CapacityEnd = "capacity-end",
        /// The instance stops or ends, and its group decides what becomes of it: EC2 has said so, or the group ends it and has no hook.
        StateChange = "state-change",
        /// A person annotated the Node.
        Operator = "operator",
    }
}

words! {
    /// How far a scale-in has come.
    pub Phase {
        /// Workloads are leaving.
        Draining = "Draining",
        /// Only DaemonSet pods are left, and have time to finish.
        Flushing = "Flushing",
        /// The instance is being given back.
        Releasing = "Releasing",
    }
}

words! {
    /// How the instance is given back.
    pub Release {
        /// Terminated, and the desired capacity goes down with it.
        TerminateAndDecrement = "terminate-and-decrement",
        /// Terminated; the group launches a replacement.
        Terminate = "terminate",
        /// It is left to its group, which mostly takes it out already: our lifecycle hook, if it holds the instance, is completed.
        LeftToGroup = "complete-hook",
    }
}

/// A scale-in under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    /// Why the node goes.
    pub cause: Cause,
    /// Name of its group.
    pub group: GroupName,
    /// EC2 instance id. If it is not the Node's, the record is void.
    pub instance: InstanceId,
    /// How far it is.
    pub phase: Phase,
    /// When it was asked for.
    pub requested_at: Timestamp,
    /// When the phase began.
    pub phase_since: Timestamp,
    /// When the instance must be released; `None`: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_by: Option<Timestamp>,
    /// When AWS ends the machine, whatever anybody does; `None`: no notice says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_at: Option<Timestamp>,
    /// ARN of the scheduled event whose start that is, if it is one's and AWS names it: AWS may move it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// When its limit was moved closer, if that was after the request: workloads and DaemonSet pods share what is left from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limited_since: Option<Timestamp>,
    /// How it is given back.
    pub release: Release,
    /// Which installation of ebbtide has begun it: its Lease, `namespace/name`. `None`: one without a Lease, or an old version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub installation: Option<String>,
    /// Heartbeat time-out of our hook when it began to hold the instance, in seconds: AWS goes by that, however the hook is changed
    /// later. `None`: it does not hold it, or AWS has not told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout_seconds: Option<u64>,
    /// When the last workload was seen to have exited, set once flushing: the flush counts from then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub empty_since: Option<Timestamp>,
    /// When AWS was told to terminate the instance. Written first: a call may take effect late, and a second decrement would
    /// end a healthy node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate_at: Option<Timestamp>,
    /// The same moment as `terminate_at` if AWS has certainly not carried that call out: whoever takes over need not wait for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void_termination: Option<Timestamp>,
    /// What a newer version has added: kept as it is.
    #[serde(flatten)]
    pub more: BTreeMap<String, Value>,
}

/// When AWS ends a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The moment.
    pub at: Timestamp,
    /// ARN of the scheduled event that starts then, if that is why and AWS names it.
    pub event: Option<String>,
}

/// A longer record loses its unknown fields: without what somebody else has added, none is longer.
const LENGTH: usize = 4096;

impl Record {
    /// When AWS ends the machine.
    pub fn end(&self) -> Option<End> {
        self.ends_at.map(|at| End { at, event: self.event.clone() })
    }

    /// The record with another end, or none.
    #[must_use]
    pub fn ending(self, end: Option<End>) -> Self {
        let (ends_at, event) = end.map(|end| (end.at, end.event)).unzip();
        Self { ends_at, event: event.flatten(), ..self }
    }

    /// A scale-in that begins now.
    pub fn new(
        cause: Cause,
        group: impl Into<GroupName>,
        instance: impl Into<InstanceId>,
        release: Release,
        now: Timestamp,
    ) -> Self {
        Self {
            cause,
            group: group.into(),
            instance: instance.into(),
            phase: Phase::Draining,
            requested_at: now,
            phase_since: now,
            release_by: None,
            ends_at: None,
            event: None,
            limited_since: None,
            release,
            installation: None,
            heartbeat_timeout_seconds: None,
            empty_since: None,
            terminate_at: None,
            void_termination: None,
            more: BTreeMap::new(),
        }
    }

    /// Heartbeat time-out of our hook when it began to hold the instance, if noted.
    pub fn heartbeat_timeout(&self) -> Option<Duration> {
        self.heartbeat_timeout_seconds.map(Duration::from_secs)
    }

    /// Whether another installation than `ours` has begun it, as far as the record says. One without a Lease has no name.
    pub fn is_of_another(&self, ours: Option<&str>) -> bool {
        self.installation.is_some() && self.installation.as_deref() != ours
    }

    /// When AWS was told to terminate the instance, unless that certainly had no effect.
    pub fn told_at(&self) -> Option<Timestamp> {
        self.terminate_at.filter(|at| self.void_termination != Some(*at))
    }

    /// Since when its time is limited as it is now.
    pub fn shared_from(&self) -> Timestamp {
        self.limited_since.map_or(self.requested_at, |since| since.max(self.requested_at))
    }

    /// The same scale-in in its next phase.
    #[must_use]
    pub fn entering(&self, phase: Phase, now: Timestamp) -> Self {
        let empty_since = self.empty_since.filter(|_| phase != Phase::Draining);
        Self { phase, phase_since: now, empty_since, ..self.clone() }
    }

    /// The record with its moments moved to a clock that is `by` ahead.
    #[must_use]
    pub fn moved(&self, by: SignedDuration) -> Self {
        let moved = |moment| later(moment, by);
        let (release_by, ends_at) = (self.release_by.map(moved), self.ends_at.map(moved));
        Self { release_by, ends_at, ..self.with_past(moved) }
    }

    /// The record with moments after `now` set to when it was `seen`: the clock that it was written by may have been set back since it was
    /// written.
    #[must_use]
    pub fn not_ahead_of(&self, now: Timestamp, seen: Timestamp) -> Self {
        self.with_past(|at| if at > now { seen.min(now) } else { at })
    }

    /// The record with the moments of what has happened changed so.
    fn with_past(&self, change: impl Fn(Timestamp) -> Timestamp) -> Self {
        Self {
            requested_at: change(self.requested_at),
            phase_since: change(self.phase_since),
            limited_since: self.limited_since.map(&change),
            empty_since: self.empty_since.map(&change),
            terminate_at: self.terminate_at.map(&change),
            // Of an earlier note it says nothing, and the two may become one moment.
            void_termination: self.void_termination.filter(|at| self.terminate_at == Some(*at)).map(&change),
            ..self.clone()
        }
    }

    /// Whether some clock may have shown its moments.
    fn is_plausible(&self) -> bool {
        let [terminate_at, void] = [self.terminate_at, self.void_termination];
        let others =
            [self.release_by, self.ends_at, self.limited_since, self.empty_since, terminate_at, void];
        let moments = [self.requested_at, self.phase_since].into_iter().chain(others.into_iter().flatten());
        moments.into_iter().all(is_plausible)
    }
}

/// What the annotation says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are records, and only Nodes that leave have one")]
pub enum Written {
    /// A scale-in is under way.
    Record(Record),
    /// A person wants one.
    Request(Request),
    /// Neither; the text, shortened.
    Unreadable(String),
}

impl Written {
    /// The record, if it is one.
    pub fn record(&self) -> Option<&Record> {
        match self {
            Self::Record(record) => Some(record),
            Self::Request(_) | Self::Unreadable(_) => None,
        }
    }
}

/// Annotation `ebbtide/scale-in` of a Node, read once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    text: String,
    written: Written,
}

impl Annotation {
    /// As it stands on the Node.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it says.
    pub fn written(&self) -> &Written {
        &self.written
    }

    /// Whether it is a record with words that only a newer version knows, or with a typing error.
    pub fn has_unknown_words(&self) -> bool {
        self.record().is_some() && serde_json::from_str::<Record>(&self.text).is_err()
    }

    /// The record, if it is one.
    pub fn record(&self) -> Option<&Record> {
        self.written.record()
    }
}

impl From<&str> for Annotation {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), written: read(text) }
    }
}

/// A person's request for a scale-in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// With or without a decrement.
    pub release: Release,
    /// Since when it waits, if it does.
    pub since: Option<Timestamp>,
}

/// Stands between a request's word and the moment since which it waits.
const SINCE: &str = " since ";

impl Request {
    fn read(text: &str) -> Option<Self> {
        let (word, since) = text.split_once(SINCE).map_or((text, None), |(word, since)| (word, Some(since)));
        let release = match word.trim() {
            "now" => Release::TerminateAndDecrement,
            "replace" => Release::Terminate,
            _ => return None,
        };
        let since = since.map(|since| since.trim().parse::<Timestamp>()).transpose().ok()?;
        let is_plausible = since.is_none_or(is_plausible);
        is_plausible.then_some(Self { release, since })
    }

    /// The annotation's value for it.
    pub fn text(self) -> String {
        let word = if self.release == Release::TerminateAndDecrement { "now" } else { "replace" };
        self.since.map_or_else(|| word.to_owned(), |since| format!("{word}{SINCE}{since:.0}"))
    }

    /// The annotation's value for a request that waits since then.
    pub fn waiting(self, since: Timestamp) -> String {
        Self { since: Some(since), ..self }.text()
    }
}

/// Reads the annotation's value.
pub fn read(value: &str) -> Written {
    let text = value.trim();
    if let Some(request) = Request::read(text) {
        return Written::Request(request);
    }
    let record = serde_json::from_str(text).ok().or_else(|| newer(text)).filter(Record::is_plausible);
    match record {
        Some(record) if text.len() > LENGTH => Written::Record(Record { more: BTreeMap::new(), ..record }),
        Some(record) => Written::Record(record),
        None => unreadable(text),
    }
}

/// A newer version's record, with known words for unknown ones: an unknown cause limits no more than a person's, an unknown phase looks
/// at the pods anew, and whatever the release, the node leaves.
fn newer(text: &str) -> Option<Record> {
    let mut record = serde_json::from_str(text).ok()?;
    known::<Cause>(&mut record, "cause", Cause::Operator.as_str());
    known::<Phase>(&mut record, "phase", Phase::Draining.as_str());
    known::<Release>(&mut record, "release", Release::Terminate.as_str());
    serde_json::from_value(record).ok()
}

/// Puts `instead` in the place of a word that is none of `T`.
pub(super) fn known<T: DeserializeOwned>(object: &mut Value, key: &str, instead: &str) {
    if let Some(word) = object.get_mut(key)
        && word.is_string()
        && T::deserialize(&*word).is_err()
    {
        *word = json!(instead);
    }
}

/// A value that cannot be read.
pub fn unreadable(text: &str) -> Written {
    Written::Unreadable(text.chars().take(100).collect())
}

/// The annotation's value.
pub fn write(record: &Record) -> String {
    serde_json::to_string(record).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::clock::PLAUSIBLE;

    #[test]
    fn a_word_is_spelled_in_the_record_as_everywhere_else() {
        let at = Timestamp::from_second(1_700_000_000).expect("in range");
        let record = Record::new(Cause::LifecycleHook, "g", "i-1", Release::TerminateAndDecrement, at);
        let written = serde_json::to_value(&record).expect("an object");
        assert_eq!(written["cause"], "lifecycle-hook");
        assert_eq!(written["phase"], "Draining");
        assert_eq!(written["release"], "terminate-and-decrement");
        for cause in Cause::ALL {
            assert_eq!(serde_json::to_value(cause).expect("text"), cause.as_str());
        }
    }

    prop_compose! {
        fn any_record()(
            cause in proptest::sample::select(&Cause::ALL[..]),
            phase in proptest::sample::select(&Phase::ALL[..]),
            release in proptest::sample::select(&Release::ALL[..]),
            group in ".{1,40}",
            seconds in PLAUSIBLE,
            limit in proptest::option::of(PLAUSIBLE),
            ends in proptest::option::of(PLAUSIBLE),
            limited in proptest::option::of(PLAUSIBLE),
            heartbeat_timeout_seconds in proptest::option::of(any::<u64>()),
        ) -> Record {
            let at = |s| Timestamp::from_second(s).expect("in range");
            Record {
                phase,
                release_by: limit.map(at),
                ends_at: ends.map(at),
                limited_since: limited.map(at),
                heartbeat_timeout_seconds,
                ..Record::new(cause, &group, "i-1", release, at(seconds))
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(record in any_record()) {
            prop_assert_eq!(read(&write(&record)), Written::Record(record));
        }

        #[test]
        fn reading_any_annotation_as_a_record_does_not_panic(text in ".*") {
            let _ = read(&text);
        }
    }

    #[test]
    fn a_record_of_a_newer_version_is_read_as_far_as_it_is_understood_and_the_rest_of_it_stays() {
        let at = Timestamp::from_second(1_700_000_000).expect("in range");
        let known = Record::new(Cause::SpotInterruption, "g", "i-1", Release::TerminateAndDecrement, at);
        let with = |key: &str, value: Value| {
            let mut newer = serde_json::to_value(&known).expect("an object");
            newer[key] = value;
            read(&newer.to_string())
        };
        for (key, understood) in [
            ("cause", Record { cause: Cause::Operator, ..known.clone() }),
            ("phase", Record { phase: Phase::Draining, ..known.clone() }),
            ("release", Record { release: Release::Terminate, ..known.clone() }),
        ] {
            assert_eq!(with(key, json!("new-word")), Written::Record(understood), "{key}");
            assert!(matches!(with(key, json!(1)), Written::Unreadable(_)), "{key}");
        }
        assert!(matches!(with("requestedAt", json!("later")), Written::Unreadable(_)));
        let Written::Record(more) = with("heldFor", json!({ "seconds": 5 })) else { panic!("no record") };
        assert!(write(&more.entering(Phase::Flushing, at)).contains(r#""heldFor":{"seconds":5}"#));
        assert_eq!(with("heldFor", json!("x".repeat(LENGTH))), Written::Record(known.clone()));
    }

    #[test]
    fn a_call_is_not_void_because_an_earlier_one_was_though_both_lie_ahead() {
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        let record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at(0));
        let record = Record { terminate_at: Some(at(100)), void_termination: Some(at(90)), ..record };
        assert_eq!(record.not_ahead_of(at(10), at(10)).told_at(), Some(at(10)));
        let void = Record { void_termination: record.terminate_at, ..record };
        assert_eq!(void.not_ahead_of(at(10), at(10)).told_at(), None);
    }

    #[test]
    fn a_moment_that_no_clock_shows_makes_a_record_unreadable() {
        for extreme in ["-009999-01-02T01:59:59Z", "1999-12-31T23:59:59Z", "9999-12-30T22:00:00Z"] {
            let at = Timestamp::from_second(1_700_000_000).expect("in range");
            let record = Record::new(Cause::Operator, "g", "i-1", Release::Terminate, at);
            let at: Timestamp = extreme.parse().expect("a timestamp");
            for bad in [
                Record { requested_at: at, ..record.clone() },
                Record { phase_since: at, ..record.clone() },
                Record { release_by: Some(at), ..record.clone() },
                Record { ends_at: Some(at), ..record.clone() },
                Record { limited_since: Some(at), ..record.clone() },
                Record { empty_since: Some(at), ..record.clone() },
                Record { terminate_at: Some(at), ..record.clone() },
            ] {
                assert!(matches!(read(&write(&bad)), Written::Unreadable(_)), "{extreme}");
            }
        }
    }

    #[test]
    fn a_person_writes_a_word() {
        let request = |release, since| Written::Request(Request { release, since });
        assert_eq!(read("now"), request(Release::TerminateAndDecrement, None));
        assert_eq!(read(" replace\n"), request(Release::Terminate, None));
        for text in
            ["yes please", "now since ever", "now since 9999-12-30T22:00:00Z", "since 2026-01-01T00:00:00Z"]
        {
            assert_eq!(read(text), Written::Unreadable(text.into()));
        }
        let since = Timestamp::from_second(1_700_000_000).expect("in range");
        let waits = Request { release: Release::Terminate, since: None }.waiting(since);
        assert_eq!(read(&waits), request(Release::Terminate, Some(since)), "{waits}");
    }
}
