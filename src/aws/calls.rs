//! Metrics of calls to AWS: `ebbtide_aws_calls_total` by operation and outcome, and
//! `ebbtide_aws_call_duration_seconds`.
//!
//! Every attempt counts, so the share of `throttled` shows throttling even where a retry succeeded.
//!
//! Labels come from closed enums: no answer of AWS can add a time series.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use tokio::time::Instant;

use super::error::AwsError;
use super::operation::Operation;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Outcome {
    ok,
    throttled,
    expired,
    denied,
    no_credentials,
    unreachable,
    refused,
    dry_run,
    given_up,
    other,
}

impl Outcome {
    fn of<T>(result: &Result<T, AwsError>) -> Self {
        match result {
            Ok(_) => Self::ok,
            Err(AwsError::Throttled { .. }) => Self::throttled,
            Err(AwsError::Expired { .. }) => Self::expired,
            Err(AwsError::Denied { .. }) => Self::denied,
            Err(AwsError::NoCredentials { .. }) => Self::no_credentials,
            Err(
                AwsError::ServerError { .. } | AwsError::Unconnected { .. } | AwsError::Unreachable { .. },
            ) => Self::unreachable,
            Err(AwsError::DryRun { .. }) => Self::dry_run,
            Err(AwsError::Other { .. } | AwsError::Unreadable { .. }) => Self::other,
            Err(
                AwsError::NoSuchInstance { .. }
                | AwsError::NoSuchGroup { .. }
                | AwsError::NoSuchQueue { .. }
                | AwsError::NoActiveHook { .. }
                | AwsError::AtMinimum { .. }
                | AwsError::AtMaximum { .. }
                | AwsError::ScalingActivityInProgress { .. },
            ) => Self::refused,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    operation: Operation,
    outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Called {
    operation: Operation,
}

/// AWS answers most calls within some tenths of a second; attempts time out after 3 to 5 s, and those of a refresh after 30 s.
/// A receive from a queue waits for 20 s while there is no message.
const BUCKETS: [f64; 9] = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Counters and timers of AWS calls. Clones share them.
#[derive(Clone, Debug)]
pub struct Calls {
    counts: Family<Labels, Counter>,
    durations: Family<Called, Histogram, fn() -> Histogram>,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            counts: Family::default(),
            durations: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
        }
    }
}

impl Calls {
    /// Registers `ebbtide_aws_calls_total` and `ebbtide_aws_call_duration_seconds`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_aws_calls",
            "Requests to AWS by operation and outcome: each page and each attempt is one",
            self.counts.clone(),
        );
        registry.register_with_unit(
            "ebbtide_aws_call_duration",
            "How long requests to AWS took, by operation: each page and each attempt is one",
            Unit::Seconds,
            self.durations.clone(),
        );
    }

    /// The operations that IAM has denied.
    pub fn denied(&self) -> Vec<Operation> {
        let is_denied = |operation: &Operation| {
            let labels = Labels { operation: *operation, outcome: Outcome::denied };
            self.counts.get(&labels).is_some_and(|count| count.get() > 0)
        };
        Operation::ALL.iter().copied().filter(is_denied).collect()
    }

    /// An attempt begins. It counts when it ends, also if its caller gives it up before.
    pub(super) fn begin(&self, operation: Operation) -> Attempt<'_> {
        Attempt { calls: self, operation, began: Instant::now(), outcome: Outcome::given_up }
    }
}

/// An attempt under way.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    calls: &'a Calls,
    operation: Operation,
    began: Instant,
    outcome: Outcome,
}

impl Attempt<'_> {
    /// How it ended.
    pub(super) fn end<T>(mut self, result: &Result<T, AwsError>) {
        self.outcome = Outcome::of(result);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let (operation, outcome) = (self.operation, self.outcome);
        self.calls.counts.get_or_create(&Labels { operation, outcome }).inc();
        self.calls.durations.get_or_create(&Called { operation }).observe(self.began.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::telemetry::captured;

    #[tokio::test(start_paused = true)]
    async fn a_call_is_counted_by_operation_and_outcome_and_timed_by_operation() {
        let calls = Calls::default();
        let set = calls.begin(Operation::SetDesiredCapacity);
        tokio::time::advance(Duration::from_millis(200)).await;
        set.end(&Ok(()));
        let throttled =
            AwsError::of_service(Operation::DescribeInstanceTypes, 503, "RequestLimitExceeded", "slow down");
        calls.begin(Operation::DescribeInstanceTypes).end(&Err::<(), _>(throttled));
        drop(calls.begin(Operation::CreateTags));
        let text = captured::page(|registry| calls.register(registry));
        for line in [
            r#"ebbtide_aws_calls_total{operation="SetDesiredCapacity",outcome="ok"} 1"#,
            r#"ebbtide_aws_calls_total{operation="DescribeInstanceTypes",outcome="throttled"} 1"#,
            r#"ebbtide_aws_calls_total{operation="CreateTags",outcome="given_up"} 1"#,
            r#"ebbtide_aws_call_duration_seconds_bucket{le="0.1",operation="SetDesiredCapacity"} 0"#,
            r#"ebbtide_aws_call_duration_seconds_bucket{le="0.25",operation="SetDesiredCapacity"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn an_action_is_named_as_iam_names_it() {
        assert_eq!(Operation::DescribeInstanceTypes.action(), "ec2:DescribeInstanceTypes");
        assert_eq!(Operation::SetDesiredCapacity.action(), "autoscaling:SetDesiredCapacity");
        assert_eq!(
            Operation::DeleteMessageBatch.action(),
            "sqs:DeleteMessage",
            "batches have none of their own"
        );
    }
}
