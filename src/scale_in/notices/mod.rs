//! What AWS tells of instances that are about to go, from queues (`--queue-url`). Messages make the program look sooner
//! and set deadlines; without them, everything happens all the same, later.
//!
//! ```text
//! queue ──▶ inbox ── refreshes the groups of lifecycle actions ──▶ groups::Groups ──┐
//!             │ keeps what else is told ──▶ Notices ──▶ Situation::expected ──▶ plan ──▶ record on the Node
//!             ◀────────────────────── a message is deleted once its record is on the Node (meaning) ─────────┘
//! ```

mod inbox;
mod meaning;
mod outages;
mod queues;

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

pub(super) use self::inbox::run;
pub use self::queues::name_of as name_of_queue;
use self::queues::{Queues, Reading};
use super::record::{Cause, End};
use super::settings::Treatment;
use crate::clock::{Clock, later};
use crate::k8s::InstanceId;

/// What AWS has told of an instance's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Why it may have to go.
    pub cause: Cause,
    /// When AWS ends the machine, if it does.
    pub ends_at: Option<Timestamp>,
    /// What to do; nothing: it is called off.
    pub treatment: Treatment,
    /// Whether it is advice alone: neither AWS nor the group is known to end the machine.
    pub is_advice: bool,
    /// When AWS wrote it.
    pub told_at: Timestamp,
    /// When the notice has lapsed.
    pub until: Timestamp,
}

/// A machine that ends later than this, or need not end, may wait for its turn among people's requests: a day is left for the scale-ins
/// before it.
const FAR: SignedDuration = SignedDuration::from_hours(24);

/// Whether, as of `moment`, the end of a machine is so far away that it may wait for its turn.
pub(super) fn is_far(ends_at: Option<Timestamp>, moment: Timestamp) -> bool {
    ends_at.is_some_and(|at| at > later(moment, FAR))
}

impl Expected {
    /// Whether it asks for a drain that may wait for its turn.
    fn may_wait(&self, now: Timestamp) -> bool {
        self.treatment == Treatment::Drain && (self.is_advice || is_far(self.ends_at, now))
    }

    /// What two notices together say: the stricter treatment with its cause, the earlier end.
    fn and(self, other: Self) -> Self {
        let urgency = |expected: &Self| {
            (expected.treatment, std::cmp::Reverse(expected.ends_at.unwrap_or(Timestamp::MAX)))
        };
        let leads = if urgency(&other) > urgency(&self) { other } else { self };
        Self {
            ends_at: self.ends_at.into_iter().chain(other.ends_at).min(),
            until: self.until.max(other.until),
            told_at: self.told_at.max(other.told_at),
            ..leads
        }
    }
}

/// Moments this close are of one scheduled event: clocks are set by seconds meanwhile, and no machine has two events within a minute.
const SAME_EVENT_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// What a notice says, and of which scheduled event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// What is to be done.
    pub expected: Expected,
    /// ARN of the event, where AWS names one.
    pub event: Option<String>,
    /// When AWS would have ended the machine, if that is called off.
    pub called_off: Option<Timestamp>,
    /// A drain that may wait begins no sooner: AWS may have called it off in a message that is still hidden.
    pub not_before: Option<Timestamp>,
}

/// What these notices about an instance say together; `None` of none.
pub(super) fn together(notices: &[Noticed]) -> Option<Expected> {
    notices.iter().map(|notice| notice.expected).reduce(Expected::and)
}

/// Until when a drain that may wait is not to begin by these notices about an instance.
pub(super) fn not_before(notices: &[Noticed], now: Timestamp) -> Option<Timestamp> {
    let drains = notices.iter().filter(|notice| notice.expected.treatment == Treatment::Drain);
    drains.map(|notice| notice.not_before).min().flatten().filter(|at| *at > now)
}

/// When AWS ends the machine by these notices about an instance.
pub(super) fn end(notices: &[Noticed]) -> Option<End> {
    let ends = notices
        .iter()
        .filter_map(|notice| notice.expected.ends_at.map(|at| End { at, event: notice.event.clone() }));
    ends.min_by_key(|end| end.at)
}

/// Whether these notices about an instance ask for a drain, and each that does lets it wait for its turn.
pub(super) fn may_wait(notices: &[Noticed], now: Timestamp) -> bool {
    let expected = notices.iter().map(|notice| notice.expected);
    let mut drains = expected.filter(|expected| expected.treatment == Treatment::Drain).peekable();
    drains.peek().is_some() && drains.all(|expected| expected.may_wait(now))
}

impl Noticed {
    /// Whether this notice calls off what another notice, or a cordon, is for: the same event, or any where one of them does not name it.
    pub(super) fn calls_off(&self, cause: Cause, event: Option<&str>) -> bool {
        let is_the_event = match (self.event.as_deref(), event) {
            (Some(called_off), Some(event)) => called_off == event,
            _ => true,
        };
        self.is_call_off() && self.expected.cause == cause && is_the_event
    }

    /// Whether it calls off what another one has announced.
    fn is_call_off(&self) -> bool {
        self.expected.treatment == Treatment::Nothing
    }

    /// Whether what the other notice says counts no more: this one calls it off, or says something later of the same event, as when AWS
    /// moves its start.
    fn replaces(&self, other: &Self) -> bool {
        let (now, before) = (&self.expected, &other.expected);
        let is_same_event = self.event.is_some() && self.event == other.event && now.cause == before.cause;
        is_same_event && before.told_at < now.told_at
            || !other.is_call_off()
                && self.calls_off(before.cause, other.event.as_deref())
                && before.told_at <= now.told_at
    }

    /// Whether the machine does not end then: AWS has called that off, or moved the event. Where the event is not known, it is told by the
    /// moment, which may differ: both were converted to our clock, and somebody may have set a clock since the first one was announced.
    pub(super) fn takes_back(&self, end: &End) -> bool {
        let is_close = |moment: Timestamp| moment.duration_since(end.at).abs() <= SAME_EVENT_WITHIN;
        match (&self.event, &end.event) {
            (Some(event), Some(of)) => {
                let is_moved = self.expected.ends_at.is_some_and(|at| !is_close(at));
                event == of && (self.is_call_off() || is_moved)
            }
            _ => self.called_off.is_some_and(is_close),
        }
    }
}

/// Notices whose records are still to be written, by instance and message.
#[derive(Debug, Default)]
pub struct Notices {
    by_instance: Mutex<BTreeMap<InstanceId, BTreeMap<String, Noticed>>>,
    versions: watch::Sender<()>,
    queues: Arc<Queues>,
}

impl Notices {
    /// Registers how the queues are read.
    pub fn register(&self, registry: &mut Registry, clock: Clock) {
        queues::register(Arc::clone(&self.queues), registry, clock);
    }

    /// Whether what the message says of the instance still counts: AWS may have called it off.
    fn counts(&self, instance: &InstanceId, message: &str) -> bool {
        self.by_instance.lock().get(instance).is_some_and(|messages| messages.contains_key(message))
    }

    /// The notices about the instance.
    pub(super) fn about(&self, instance: &InstanceId) -> Vec<Noticed> {
        let all = self.by_instance.lock();
        all.get(instance).map(|notices| notices.values().cloned().collect()).unwrap_or_default()
    }

    /// Instances of which something is expected.
    pub(super) fn instances(&self) -> Vec<InstanceId> {
        self.by_instance.lock().keys().cloned().collect()
    }

    /// Changes when something new is expected, and when something is no more.
    pub(super) fn versions(&self) -> watch::Receiver<()> {
        self.versions.subscribe()
    }

    /// How the reading of the queue goes; `None` if another process reads it.
    pub(super) fn reading(&self, queue: &str) -> Option<Reading> {
        self.queues.reading(queue)
    }

    /// Notes what a message says. What AWS has since called off, or moved, no longer counts, in whatever order the messages come. Returns
    /// whether the notice is new.
    fn expect(&self, instance: &InstanceId, message: &str, notice: Noticed) -> bool {
        let mut all = self.by_instance.lock();
        let messages = all.entry(instance.clone()).or_default();
        if messages.values().any(|other| other.replaces(&notice)) {
            return false;
        }
        messages.retain(|id, other| id == message || !notice.replaces(other));
        let before = messages.insert(message.to_owned(), notice);
        drop(all);
        self.versions.send_replace(());
        before.is_none()
    }

    fn forget(&self, instance: &InstanceId, message: &str) {
        let mut all = self.by_instance.lock();
        let Some(messages) = all.get_mut(instance) else { return };
        let was_there = messages.remove(message).is_some();
        if messages.is_empty() {
            all.remove(instance);
        }
        drop(all);
        if was_there {
            self.versions.send_replace(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(cause: Cause, ends_at: Option<i64>, treatment: Treatment) -> Expected {
        let at = |second| Timestamp::from_second(second).expect("in range");
        let is_advice = cause == Cause::RebalanceRecommendation;
        Expected { cause, ends_at: ends_at.map(at), treatment, is_advice, told_at: at(0), until: at(1_000) }
    }

    #[test]
    fn of_several_notices_the_strictest_gives_the_cause_and_the_earliest_the_end() {
        use Treatment::{Cordon, Drain, Nothing};
        let spot = expected(Cause::SpotInterruption, Some(120), Drain);
        let advice = expected(Cause::RebalanceRecommendation, None, Cordon);
        let event = expected(Cause::ScheduledEvent, Some(60), Drain);
        let off = expected(Cause::ScheduledEvent, None, Nothing);
        let table = [
            (advice, spot, Cause::SpotInterruption, Some(120), Drain),
            (spot, event, Cause::ScheduledEvent, Some(60), Drain),
            (advice, off, Cause::RebalanceRecommendation, None, Cordon),
        ];
        for (one, other, cause, ends_at, treatment) in table {
            assert_eq!(one.and(other), expected(cause, ends_at, treatment));
            assert_eq!(other.and(one), expected(cause, ends_at, treatment), "in any order");
        }
    }

    #[test]
    fn what_is_called_off_counts_no_more_whichever_is_told_first() {
        let instance = InstanceId::from("i-1");
        let of = |treatment, event: &str| Noticed {
            expected: expected(Cause::ScheduledEvent, None, treatment),
            event: Some(event.to_owned()),
            called_off: None,
            not_before: None,
        };
        let (drain, off) = (of(Treatment::Drain, "one"), of(Treatment::Nothing, "one"));
        let (before, after) = (Notices::default(), Notices::default());
        assert!(before.expect(&instance, "off", off.clone()));
        assert!(!before.expect(&instance, "drain", drain.clone()));
        assert!(after.expect(&instance, "drain", drain));
        assert!(after.expect(&instance, "another", of(Treatment::Drain, "two")));
        assert!(after.expect(&instance, "off", off));
        for notices in [before, after] {
            assert!(notices.counts(&instance, "off") && !notices.counts(&instance, "drain"));
            let mut again = of(Treatment::Drain, "one");
            again.expected.told_at = Timestamp::from_second(1).expect("in range");
            assert!(notices.expect(&instance, "again", again), "what is announced later counts");
            assert!(notices.counts(&instance, "again"));
        }
    }

    #[test]
    fn of_an_event_that_is_moved_what_aws_told_last_counts_whichever_comes_first() {
        let instance = InstanceId::from("i-1");
        let of = |event: &str, told_at: i64, ends_at: i64| Noticed {
            expected: Expected {
                told_at: Timestamp::from_second(told_at).expect("in range"),
                ..expected(Cause::ScheduledEvent, Some(ends_at), Treatment::Drain)
            },
            event: Some(event.to_owned()),
            called_off: None,
            not_before: None,
        };
        let (first, moved, another) = (of("one", 0, 100), of("one", 10, 900), of("two", 5, 500));
        for order in [[&first, &moved, &another], [&moved, &first, &another], [&another, &moved, &first]] {
            let notices = Notices::default();
            for notice in order {
                notices.expect(&instance, &format!("{notice:?}"), notice.clone());
            }
            let ends: Vec<_> = notices.about(&instance).iter().map(|told| told.expected.ends_at).collect();
            let told = |notice: &Noticed| ends.contains(&notice.expected.ends_at);
            assert!(ends.len() == 2 && told(&moved) && told(&another), "{ends:?}");
            assert_eq!(end(&notices.about(&instance)).and_then(|end| end.event), another.event);
        }
        let unnamed = |told_at, ends_at| Noticed { event: None, ..of("", told_at, ends_at) };
        let notices = Notices::default();
        notices.expect(&instance, "first", unnamed(0, 100));
        notices.expect(&instance, "second", unnamed(10, 900));
        assert_eq!(notices.about(&instance).len(), 2, "they may be two");
    }

    #[test]
    fn only_a_drain_on_advice_or_whose_end_is_more_than_a_day_away_may_wait_however_long_that_is_known() {
        const DAY: i64 = 86_400;
        let now = |second| Timestamp::from_second(second).expect("in range");
        for (ends_at, treatment, second, may_wait) in [
            (Some(DAY + 1), Treatment::Drain, 0, true),
            (Some(DAY), Treatment::Drain, 0, false),
            (None, Treatment::Drain, 0, false),
            (Some(DAY + 1), Treatment::Cordon, 0, false),
            (Some(14 * DAY), Treatment::Drain, 13 * DAY - 1, true),
            (Some(14 * DAY), Treatment::Drain, 13 * DAY, false),
        ] {
            let notice = |expected| Noticed { expected, event: None, called_off: None, not_before: None };
            let far = notice(expected(Cause::ScheduledEvent, ends_at, treatment));
            assert_eq!(
                super::may_wait(std::slice::from_ref(&far), now(second)),
                may_wait,
                "{ends_at:?} {treatment:?} {second}"
            );
            let advice = |treatment| notice(expected(Cause::RebalanceRecommendation, None, treatment));
            assert_eq!(super::may_wait(&[far.clone(), advice(Treatment::Cordon)], now(second)), may_wait);
            assert!(super::may_wait(&[advice(Treatment::Drain)], now(second)));
            let together = [far.clone(), advice(Treatment::Drain)];
            assert_eq!(super::may_wait(&together, now(second)), may_wait || treatment == Treatment::Cordon);
            let stops = notice(expected(Cause::StateChange, None, Treatment::Drain));
            assert!(!super::may_wait(&[far, stops], now(second)), "it goes now, whatever else is far away");
        }
    }

    #[test]
    fn what_is_expected_is_forgotten_with_its_last_message_and_that_is_heard() {
        let (notices, instance) = (Notices::default(), InstanceId::from("i-1"));
        let spot = expected(Cause::SpotInterruption, Some(120), Treatment::Drain);
        let notice = Noticed { expected: spot, event: None, called_off: None, not_before: None };
        notices.expect(&instance, "m-1", notice.clone());
        notices.expect(&instance, "m-2", notice);
        let mut versions = notices.versions();
        let mut is_heard = || {
            let is_new = versions.has_changed().expect("there");
            versions.mark_unchanged();
            is_new
        };
        notices.forget(&instance, "m-1");
        assert_eq!((together(&notices.about(&instance)), is_heard()), (Some(spot), true));
        notices.forget(&instance, "m-2");
        assert_eq!((notices.about(&instance), notices.instances()), (Vec::new(), Vec::new()));
        assert!(is_heard());
        notices.forget(&instance, "m-2");
        assert!(!is_heard(), "it was forgotten before");
    }
}
