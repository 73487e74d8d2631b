//! Back-off of groups after failed scale-ups.
//!
//! Source: `utils/backoff/exponential_backoff.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::options::Options;
use crate::clock::elapsed;

#[derive(Clone, Copy, Debug)]
struct Info {
    lasts: Duration,
    until: Timestamp,
    failed_at: Timestamp,
}

/// Each group's back-off.
#[derive(Clone, Debug, Default)]
pub(super) struct Backoff(BTreeMap<String, Info>);

impl Backoff {
    /// Notes a failed scale-up. A failure after the last back-off has ended doubles it.
    pub(super) fn fail(&mut self, group: &str, options: &Options, now: Timestamp) {
        let lasts = match self.0.get(group) {
            // A failure during a back-off starts it again, as long as it was.
            Some(info) if info.until >= now => info.lasts,
            Some(info) => (2 * info.lasts).min(options.max_backoff),
            None => options.initial_backoff,
        };
        self.0.insert(group.to_owned(), Info { lasts, until: now + lasts, failed_at: now });
    }

    pub(super) fn is_backed_off(&self, group: &str, now: Timestamp) -> bool {
        self.0.get(group).is_some_and(|info| info.until >= now)
    }

    /// Forgets old failures.
    pub(super) fn forget(&mut self, options: &Options, now: Timestamp) {
        self.0.retain(|_, info| elapsed(info.failed_at, now) <= options.backoff_reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::autoscaler::options::Version;

    #[test]
    fn a_group_that_fails_again_is_left_alone_for_twice_as_long_up_to_the_most() {
        let options = Options::of(Version::V1_30);
        let (mut backoff, mut now) = (Backoff::default(), Timestamp::UNIX_EPOCH);
        let mut waits = Vec::new();
        for _ in 0..5 {
            backoff.fail("g", &options, now);
            // A second failure at the same moment adds nothing.
            backoff.fail("g", &options, now + Duration::from_secs(0));
            let mut waited = 0;
            while backoff.is_backed_off("g", now) {
                now += Duration::from_mins(1);
                waited += 1;
            }
            waits.push(waited - 1);
        }
        assert_eq!(waits, [5, 10, 20, 30, 30]);
        backoff.forget(&options, now + Duration::from_hours(4));
        backoff.fail("g", &options, now);
        assert!(!backoff.is_backed_off("g", now + Duration::from_mins(6)));
    }
}
