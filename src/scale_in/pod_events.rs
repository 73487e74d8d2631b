//! How many Events go out about pods: an API server that hundreds of nodes drain at once has enough to do with evictions.
//! Events on Nodes are few, and have no such limit.

use std::time::Duration;

use jiff::Timestamp;

use crate::clock::elapsed;
use crate::telemetry::{Outage, RateLimit};

/// Events about pods in a minute, over all nodes; as many again of those that are warnings.
const A_MINUTE: u32 = 300;

const MINUTE: Duration = Duration::from_mins(1);

/// What is known of Events about pods.
#[derive(Debug, Default)]
pub struct PodEvents {
    normal: Allowance,
    warnings: Allowance,
    left_out: RateLimit,
    /// Whether they can be published.
    pub(super) outage: Outage,
}

#[derive(Debug, Default)]
struct Allowance {
    since: Option<Timestamp>,
    given: u32,
}

impl PodEvents {
    /// Whether one more may go out now.
    pub(super) fn allow(&mut self, warning: bool, now: Timestamp) -> bool {
        let allowance = if warning { &mut self.warnings } else { &mut self.normal };
        let is_allowed = allowance.take(now);
        if !is_allowed && let Some(suppressed) = self.left_out.allow(MINUTE) {
            let left_out = suppressed + 1;
            tracing::info!(left_out, "more pods are asked to go than Events are published about in a minute");
        }
        is_allowed
    }
}

impl Allowance {
    fn take(&mut self, now: Timestamp) -> bool {
        if self.since.is_none_or(|since| elapsed(since, now) >= MINUTE) {
            *self = Self { since: Some(now), given: 0 };
        }
        let is_left = self.given < A_MINUTE;
        self.given += u32::from(is_left);
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_go_out_in_a_minute_and_warnings_have_a_share_of_their_own() {
        let mut events = PodEvents::default();
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        let mut sent = |warning, second| (0..1_000).filter(|_| events.allow(warning, at(second))).count();
        assert_eq!((sent(false, 0), sent(true, 0)), (300, 300));
        assert_eq!((sent(false, 59), sent(true, 59)), (0, 0));
        assert_eq!((sent(false, 60), sent(true, 200)), (300, 300));
    }
}
