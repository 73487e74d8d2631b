//! The one source of "now".
//!
//! Decisions take `now` as an argument; loops and adapters ask the [`Clock`]. It is driven by tokio's timer, so a
//! paused runtime (tests, `ebbtide simulate`) moves wall time and timers together.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Tells wall time, either the system's or one that starts at a given moment and follows tokio's timer.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Following { origin: Timestamp, since: Instant },
}

impl Clock {
    /// The machine's wall clock.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that reads `origin` now and from here on moves with tokio's timer, paused or not.
    pub fn starting_at(origin: Timestamp) -> Self {
        Self(Source::Following { origin, since: Instant::now() })
    }

    /// The present moment.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that reads the wall clock")]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => Timestamp::now(),
            Source::Following { origin, since } => *origin + signed(since.elapsed()),
        }
    }

    /// Completes at `moment`, at once if that has passed.
    pub async fn sleep_until(&self, moment: Timestamp) {
        tokio::time::sleep(elapsed(self.now(), moment)).await;
    }
}

/// How long ago `since` was at `now`; nothing if it lies ahead, as it may where clocks differ or are set back.
pub fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn signed(duration: Duration) -> SignedDuration {
    SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_ahead_is_no_time_ago() {
        let at = |second| Timestamp::from_second(second).expect("in range");
        assert_eq!(elapsed(at(10), at(13)), Duration::from_secs(3));
        assert_eq!(elapsed(at(13), at(10)), Duration::ZERO);
    }
}
