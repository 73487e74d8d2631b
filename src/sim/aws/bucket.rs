//! The account's rate limit: one token bucket for all callers.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/Welcome.html>; heartbeats that used it up were observed:
//! <https://github.com/aws/aws-node-termination-handler/issues/1174>.

use jiff::Timestamp;

use crate::clock::elapsed;

/// The rate limit of an account's calls to Auto Scaling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Calls at once.
    pub size: u32,
    /// Calls a second after that.
    pub per_second: f64,
}

/// How full a bucket is.
#[derive(Debug, Default)]
pub(super) struct Level {
    used: f64,
    /// Tokens a second that others use.
    pub(super) others: f64,
    as_of: Option<Timestamp>,
}

impl Level {
    /// Takes a token; false if there is none.
    pub(super) fn take(&mut self, bucket: Bucket, now: Timestamp) -> bool {
        let passed = self.as_of.map_or(0.0, |at| elapsed(at, now).as_secs_f64());
        self.as_of = Some(now);
        let size = f64::from(bucket.size);
        self.used = (self.used + (self.others - bucket.per_second) * passed).clamp(0.0, size);
        let is_there = self.used + 1.0 <= size;
        if is_there {
            self.used += 1.0;
        }
        is_there
    }
}
