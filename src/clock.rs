//! The one source of "now".
//!
//! [`Clock::now`] never steps: it reads the wall clock once, when it is made, and from then on follows tokio's timer, so
//! that a wall clock that is set back or forward neither stops a heartbeat nor ends a grace period. Decisions take it as
//! an argument; loops and adapters ask for it. A paused runtime (tests, `ebbtide simulate`) moves it with the timers.
//!
//! [`Clock::wall`] is what others read: it goes into what is written down for them (records, Events, taints). Moments that
//! others wrote are brought onto our clock with the difference of the two, see [`Clock::ahead`].

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells the time of this process, and the wall's.
#[derive(Clone, Debug)]
pub struct Clock {
    origin: Timestamp,
    since: Instant,
    wall: Wall,
}

#[derive(Clone, Debug)]
enum Wall {
    /// The machine's.
    System,
    /// The same clock, set forward by so many milliseconds.
    Stepped(Arc<AtomicI64>),
}

impl Clock {
    /// The machine's clock.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    pub fn system() -> Self {
        Self { origin: Timestamp::now(), since: Instant::now(), wall: Wall::System }
    }

    /// A clock that reads `origin` now, and whose wall clock is set by [`step`](Self::step) alone.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self { origin, since: Instant::now(), wall: Wall::Stepped(Arc::default()) }
    }

    /// The clock of somebody else who reads the same now: its wall clock is set apart from this one's.
    #[must_use]
    pub fn of_its_own(&self) -> Self {
        Self::starting_at(self.now())
    }

    /// The present moment. Never steps, never goes back.
    pub fn now(&self) -> Timestamp {
        later(self.origin, signed(self.since.elapsed()))
    }

    /// What the wall clock reads. Steps when somebody sets it.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    pub fn wall(&self) -> Timestamp {
        match &self.wall {
            Wall::System => Timestamp::now(),
            Wall::Stepped(by) => later(self.now(), SignedDuration::from_millis(by.load(Ordering::Relaxed))),
        }
    }

    /// By how much the wall clock is ahead of ours at present.
    pub fn ahead(&self) -> SignedDuration {
        self.wall().duration_since(self.now())
    }

    /// Sets a simulated wall clock forward or back. The machine's is not ours to set.
    pub fn step(&self, by: SignedDuration) {
        if let Wall::Stepped(steps) = &self.wall {
            steps.fetch_add(i64::try_from(by.as_millis()).unwrap_or_default(), Ordering::Relaxed);
        }
    }

    /// Completes at `moment`, at once if that has passed.
    pub async fn sleep_until(&self, moment: Timestamp) {
        tokio::time::sleep(elapsed(self.now(), moment)).await;
    }
}

/// How long ago `since` was at `now`; nothing if it lies ahead, as it may where clocks differ.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

/// `moment` and `by` after it, or as late as can be written. Neither is trusted: both may come from outside.
pub fn later(moment: Timestamp, by: SignedDuration) -> Timestamp {
    let end = if by.is_negative() { Timestamp::MIN } else { Timestamp::MAX };
    moment.checked_add(by).unwrap_or(end)
}

/// The pause after so many failures in a row: `first` after the first one, twice as long after each more, up to `longest`.
pub fn backoff(failures: u32, first: Duration, longest: Duration) -> Duration {
    first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(longest)
}

/// `duration` as one that may be negative; the longest there is for one that is longer.
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

    #[test]
    fn the_systems_clock_begins_at_the_walls() {
        assert!(Clock::system().ahead().abs() < SignedDuration::from_secs(1));
    }
}
