//! Counting calls.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::AwsError;

macro_rules! operations {
    ($($name:ident),* $(,)?) => {
        /// The operations this program calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "AWS's own names")]
        pub enum Operation { $($name),* }

        impl Operation {
            /// AWS's name of it.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),* }
            }
        }
    };
}

operations!(
    CompleteLifecycleAction,
    DescribeAutoScalingGroups,
    DescribeInstanceTypes,
    DescribeLaunchConfigurations,
    DescribeLaunchTemplateVersions,
    DescribeLifecycleHooks,
    DescribeScalingActivities,
    GetInstanceTypesFromInstanceRequirements,
    RecordLifecycleActionHeartbeat,
    SetDesiredCapacity,
    SetInstanceProtection,
    TerminateInstanceInAutoScalingGroup,
);

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.as_str().encode(encoder)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types, reason = "label values are spelled as Prometheus has them")]
enum Outcome {
    ok,
    throttled,
    denied,
    refused,
    unreachable,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    operation: Operation,
    outcome: Outcome,
}

/// Counts calls by operation and outcome.
#[derive(Clone, Debug, Default)]
pub struct Calls(Family<Call, Counter>);

impl Calls {
    /// Registers the counter.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("ebbtide_aws_calls", "Calls to AWS, by operation and outcome", self.0.clone());
    }

    /// Calls of an operation so far, whatever came of them.
    pub fn count(&self, operation: Operation) -> u64 {
        use Outcome::{denied, ok, refused, throttled, unreachable};
        [ok, throttled, denied, refused, unreachable]
            .into_iter()
            .map(|outcome| self.0.get_or_create(&Call { operation, outcome }).get())
            .sum()
    }

    pub(super) fn counted<T>(
        &self,
        operation: Operation,
        result: Result<T, AwsError>,
    ) -> Result<T, AwsError> {
        let outcome = match &result {
            Ok(_) => Outcome::ok,
            Err(AwsError::Throttled { .. }) => Outcome::throttled,
            Err(AwsError::Denied { .. }) => Outcome::denied,
            Err(AwsError::Unreachable { .. }) => Outcome::unreachable,
            Err(_) => Outcome::refused,
        };
        self.0.get_or_create(&Call { operation, outcome }).inc();
        result
    }
}
