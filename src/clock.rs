//! The one source of "now".
//!
//! [`Clock::now`] never jumps: it reads the wall clock once, at its creation, and then follows tokio's timer, so that
//! setting the wall clock neither stops a heartbeat nor ends a grace period. Decisions take `now` as an argument; loops
//! and adapters ask for it. In a paused runtime (tests, `ebbtide simulate`) it moves with the timers.
//!
//! [`Clock::cluster`] is the API server's, which dates each of its answers: for what others date or read in the cluster, whatever this
//! machine's clock says. [`Clock::aws`] is AWS's, for what AWS dates: activities, notices. Each stands in for the other until that has
//! answered. [`Clock::cluster_ahead`] and [`Clock::aws_ahead`] convert their moments to our clock.
//! [`Clock::wall`] is the machine's, for what stays on it, and for the Lease.

use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::fmt::rfc2822::DateTimeParser;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Dates of answers are of whole seconds: their clock read up to this much more.
const DATED_WITHIN: SignedDuration = SignedDuration::from_secs(1);

/// A clock that is off by no more than this is right. So small differences, as between API servers, move nothing, and what was read twice is
/// the same.
const AS_GOOD: SignedDuration = SignedDuration::from_secs(2);

/// The time of this process, the wall clock's, and the API server's.
#[derive(Clone, Debug)]
pub struct Clock {
    origin: Timestamp,
    since: Instant,
    wall: Wall,
    /// By how much others' clocks are ahead of ours.
    others: Arc<Mutex<Others>>,
}

/// By how much these clocks are ahead of ours; `None` until they have told.
#[derive(Debug, Default)]
struct Others {
    cluster: Option<SignedDuration>,
    aws: Option<SignedDuration>,
}

#[derive(Clone, Debug)]
enum Wall {
    /// The machine's.
    System,
    /// Our clock, set forward by so many milliseconds.
    Stepped(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    pub fn system() -> Self {
        Self::new(Timestamp::now(), Wall::System)
    }

    /// A clock that reads `origin` now. Only [`step`](Self::step) sets its wall clock.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self::new(origin, Wall::Stepped(Arc::default()))
    }

    fn new(origin: Timestamp, wall: Wall) -> Self {
        Self { origin, since: Instant::now(), wall, others: Arc::default() }
    }

    /// A clock that reads the same now, with a wall clock of its own.
    #[must_use]
    pub fn of_its_own(&self) -> Self {
        Self::starting_at(self.now())
    }

    /// The present moment. Never jumps, never goes back.
    pub fn now(&self) -> Timestamp {
        later(self.origin, signed(self.since.elapsed()))
    }

    /// What the wall clock reads. Jumps when somebody sets it.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    pub fn wall(&self) -> Timestamp {
        match &self.wall {
            Wall::System => Timestamp::now(),
            Wall::Stepped(by) => later(self.now(), SignedDuration::from_millis(by.load(Ordering::Relaxed))),
        }
    }

    /// By how much the wall clock is ahead of ours now.
    fn ahead(&self) -> SignedDuration {
        self.wall().duration_since(self.now())
    }

    /// What the API server's clock reads, within three seconds; until it has told, what AWS's does, or before that the wall clock.
    pub fn cluster(&self) -> Timestamp {
        later(self.now(), self.cluster_ahead())
    }

    /// By how much the API server's clock is ahead of ours.
    pub fn cluster_ahead(&self) -> SignedDuration {
        let others = self.others.lock();
        others.cluster.or(others.aws).unwrap_or_else(|| self.ahead())
    }

    /// What AWS's clock reads, within three seconds; until it has told, what the API server's does, or before that the wall clock.
    pub fn aws(&self) -> Timestamp {
        later(self.now(), self.aws_ahead())
    }

    /// By how much AWS's clock is ahead of ours.
    pub fn aws_ahead(&self) -> SignedDuration {
        let others = self.others.lock();
        others.aws.or(others.cluster).unwrap_or_else(|| self.ahead())
    }

    /// The later of what the API server's clock reads and what this machine's does.
    pub fn latest(&self) -> Timestamp {
        self.cluster().max(self.wall())
    }

    /// The API server has dated an answer that was sent for at `sent`, by our clock, and has just come. It did so at some moment since: an
    /// answer that comes late tells little, and moves nothing that may be right.
    pub fn note_dated(&self, date: Timestamp, sent: Timestamp) {
        let mut others = self.others.lock();
        let known = others.cluster.or(others.aws).unwrap_or_else(|| self.ahead());
        others.cluster = self.dated(date, sent, known).or(others.cluster);
    }

    /// The same of AWS.
    pub fn note_dated_by_aws(&self, date: Timestamp, sent: Timestamp) {
        let mut others = self.others.lock();
        let known = others.aws.unwrap_or_else(|| self.ahead());
        others.aws = self.dated(date, sent, known).or(others.aws);
    }

    /// By how much a clock is ahead of ours that has dated an answer so, if it is one; `known`: what was known of it before.
    fn dated(&self, date: Timestamp, sent: Timestamp, known: SignedDuration) -> Option<SignedDuration> {
        let least = date.duration_since(self.now());
        let most = later(date, DATED_WITHIN).duration_since(sent);
        let is_right = (least - AS_GOOD..=most + AS_GOOD).contains(&known);
        let ahead = if is_right { known } else { least + (most - least) / 2 };
        is_plausible(date).then_some(ahead)
    }

    /// Sets a simulated wall clock forward or back. Does nothing to the machine's.
    pub fn step(&self, by: SignedDuration) {
        if let Wall::Stepped(steps) = &self.wall {
            steps.fetch_add(i64::try_from(by.as_millis()).unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// Completes at `moment`, at once if that has passed.
    pub async fn sleep_until(&self, moment: Timestamp) {
        tokio::time::sleep(elapsed(self.now(), moment)).await;
    }

    /// Completes at `moment`; never if there is none.
    pub async fn sleep_until_some(&self, moment: Option<Timestamp>) {
        match moment {
            Some(moment) => self.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }
}

/// The years 2000 to 2200, in seconds. No clock shows anything else, and sums with it might overflow.
pub(crate) const PLAUSIBLE: std::ops::Range<i64> = 946_684_800..7_258_118_400;

/// Whether a clock may show this moment: it may come from outside.
pub fn is_plausible(moment: Timestamp) -> bool {
    PLAUSIBLE.contains(&moment.as_second())
}

/// When an answer was given, by the clock of who gave it and its header `Date`.
///
/// Source: [RFC 9110, Date](https://www.rfc-editor.org/rfc/rfc9110#field.date).
pub fn http_date(header: impl AsRef<[u8]>) -> Option<Timestamp> {
    DateTimeParser::new().parse_timestamp(header.as_ref()).ok()
}

/// How long ago `since` was at `now`; zero if it lies ahead.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// `moment` plus `by`, saturating: both may come from outside.
pub fn later(moment: Timestamp, by: SignedDuration) -> Timestamp {
    let end = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    moment.checked_add(by).unwrap_or(end)
}

/// The pause after so many failures in a row: `first` after the first one, twice as long after each more, up to `longest`.
pub fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

/// A number by which pauses are spread: mostly different between keys, and always the same for one. In one build, that is: `std` does not
/// promise how it hashes.
pub fn spread(key: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// `duration` as a signed one, saturating.
pub fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn pauses_double_from_the_first_to_the_longest() {
        let pause = |failures| backoff(failures, Duration::from_secs(1), Duration::from_secs(10)).as_secs();
        assert_eq!([1, 2, 3, 4, 5, u32::MAX].map(pause), [1, 2, 4, 8, 10, 10]);
    }

    #[test]
    fn what_lies_ahead_is_no_time_ago() {
        assert_eq!(elapsed(at(10), at(13)), Duration::from_secs(3));
        assert_eq!(elapsed(at(13), at(10)), Duration::ZERO);
    }

    #[test]
    fn a_moment_beyond_all_moments_is_the_last_one() {
        assert_eq!(later(at(10), SignedDuration::MAX), Timestamp::MAX);
        assert_eq!(later(at(10), SignedDuration::MIN), Timestamp::MIN);
        assert_eq!(later(at(10), -SignedDuration::from_secs(3)), at(7));
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_of_the_wall_clock_does_not_move_ours() {
        let clock = Clock::starting_at(at(1_000));
        let other = clock.of_its_own();
        clock.step(SignedDuration::from_hours(-1));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((clock.now(), clock.wall()), (at(1_005), at(1_005 - 3_600)));
        assert_eq!(clock.ahead(), SignedDuration::from_hours(-1));
        assert_eq!(other.wall(), at(1_005));
    }

    #[tokio::test(start_paused = true)]
    async fn the_api_servers_clock_is_known_within_seconds_and_an_answer_that_comes_late_moves_nothing() {
        let at = |second: i64| at(1_700_000_000 + second);
        let clock = Clock::starting_at(at(0));
        clock.step(SignedDuration::from_hours(1));
        assert_eq!(clock.cluster(), at(3_600), "until it tells, the wall clock is believed");
        // The middle of the second that the date leaves open; what is as good stays.
        let millis = |millis| later(at(0), SignedDuration::from_millis(millis));
        for (theirs, known) in
            [(-50, -49_500), (-52, -49_500), (-53, -52_500), (0, 500), (2, 500), (-3, -2_500)]
        {
            clock.note_dated(at(theirs), at(0));
            assert_eq!(clock.cluster(), millis(known), "{theirs}");
        }
        clock.step(SignedDuration::from_hours(1));
        assert_eq!(clock.cluster(), millis(-2_500), "the wall clock matters no more");
        // Sent at 0, and answered at once, or later; taken in a minute later.
        tokio::time::advance(Duration::from_mins(1)).await;
        for theirs in [-5, 30, 59] {
            clock.note_dated(at(theirs), at(0));
            assert_eq!(clock.cluster(), millis(57_500), "{theirs}");
        }
        clock.note_dated(Timestamp::UNIX_EPOCH, at(60));
        assert_eq!(clock.cluster(), millis(57_500), "no clock reads that");
    }

    #[tokio::test(start_paused = true)]
    async fn until_the_api_server_answers_aws_tells_what_time_it_is_and_the_other_way_round() {
        let at = |second: i64| at(1_700_000_000 + second);
        let clock = Clock::starting_at(at(7_200));
        clock.note_dated(at(0), at(7_200));
        assert_eq!(elapsed(at(0), clock.aws()), Duration::from_millis(500));
        let clock = Clock::starting_at(at(7_200));
        clock.note_dated_by_aws(Timestamp::UNIX_EPOCH, at(7_200));
        assert_eq!(clock.cluster(), at(7_200));
        clock.note_dated_by_aws(at(0), at(7_200));
        assert_eq!(elapsed(at(0), clock.cluster()), Duration::from_millis(500));
        clock.note_dated(at(60), at(7_200));
        clock.note_dated_by_aws(at(0), at(7_200));
        assert_eq!(elapsed(at(60), clock.cluster()), Duration::from_millis(500));
        assert_eq!(elapsed(at(0), clock.aws()), Duration::from_millis(500), "each dates what it tells");
    }

    #[test]
    fn an_answer_is_dated_as_http_says_or_not_at_all() {
        let expected = "2026-11-28T17:43:47Z".parse().expect("a moment");
        assert_eq!(http_date("Sat, 28 Nov 2026 17:43:47 GMT"), Some(expected));
        for text in ["", "yesterday", "Sat, 28 Nov 2026"] {
            assert_eq!(http_date(text), None, "{text}");
        }
    }

    #[test]
    fn the_systems_clock_begins_at_the_walls() {
        assert!(Clock::system().ahead().abs() < SignedDuration::from_secs(1));
    }
}
