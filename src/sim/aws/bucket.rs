//! The calls that an account may make: one bucket of tokens for all who call, whoever they are.
//!
//! <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/Welcome.html>; heartbeats that used it up were seen:
//! <https://github.com/aws/aws-node-termination-handler/issues/1174>.

use jiff::Timestamp;

use crate::clock::elapsed;

/// How many calls to Auto Scaling an account may make.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// At once.
    pub size: u32,
    /// And then every second.
    pub per_second: f64,
}

/// How full a bucket is.
#[derive(Debug, Default)]
pub(super) struct Level {
    used: f64,
    /// What others use up every second.
    pub(super) others: f64,
    as_of: Option<Timestamp>,
}

impl Level {
    /// Takes a token, if there is one.
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
