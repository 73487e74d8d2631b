//! Which calls we make, and how often and with what outcome: `ebbtide_aws_calls_total`.
//!
//! Every attempt counts. Where AWS throttles, the share of `throttled` says how much, whether or not the next attempt
//! was answered.
//!
//! Both labels come from closed enums, so that no answer of AWS's can add a time series.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::AwsError;

macro_rules! operations {
    ($($service:literal { $($name:ident),* $(,)? })*) => {
        /// An operation of AWS's that ebbtide calls. The names are AWS's own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "AWS documents them under these names")]
        pub enum Operation {
            $($($name,)*)*
        }

        impl Operation {
            /// Every one.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// AWS's name for it.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)*)*
                }
            }

            /// The IAM action that allows it, `service:Operation`.
            ///
            /// Source: [Service Authorization
            /// Reference](https://docs.aws.amazon.com/service-authorization/latest/reference/reference_policies_actions-resources-contextkeys.html).
            pub fn action(self) -> &'static str {
                match self {
                    $($(Self::$name => concat!($service, ":", stringify!($name)),)*)*
                }
            }
        }
    };
}

operations! {
    "autoscaling" {
        CompleteLifecycleAction,
        DescribeAutoScalingGroups,
        DescribeLaunchConfigurations,
        DescribeLifecycleHooks,
        DescribeScalingActivities,
        DescribeWarmPool,
        RecordLifecycleActionHeartbeat,
        SetDesiredCapacity,
        SetInstanceProtection,
        TerminateInstanceInAutoScalingGroup,
    }
    "ec2" {
        CreateTags,
        DeleteTags,
        DescribeImages,
        DescribeInstanceTypes,
        DescribeLaunchTemplateVersions,
        DescribeTags,
        GetInstanceTypesFromInstanceRequirements,
    }
    "eks" {
        DescribeNodegroup,
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl EncodeLabelValue for Operation {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> fmt::Result {
        self.name().encode(encoder)
    }
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the label values as Prometheus shows them")]
enum Outcome {
    ok,
    throttled,
    expired,
    denied,
    unreachable,
    refused,
    other,
}

impl Outcome {
    fn of<T>(result: &Result<T, AwsError>) -> Self {
        match result {
            Ok(_) => Self::ok,
            Err(AwsError::Throttled { .. }) => Self::throttled,
            Err(AwsError::Expired { .. }) => Self::expired,
            Err(AwsError::Denied { .. }) => Self::denied,
            Err(AwsError::Unreachable { .. }) => Self::unreachable,
            Err(AwsError::Other { .. }) => Self::other,
            Err(
                AwsError::NoSuchInstance { .. }
                | AwsError::NoSuchGroup { .. }
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

/// The counter of requests to AWS, by operation and outcome. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Calls(Family<Labels, Counter>);

impl Calls {
    /// Registers the counter as `ebbtide_aws_calls_total`.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ebbtide_aws_calls",
            "Requests to AWS by operation and outcome: each page and each attempt is one",
            self.0.clone(),
        );
    }

    /// Counts an attempt that has ended.
    pub(super) fn count<T>(&self, operation: Operation, result: &Result<T, AwsError>) {
        self.0.get_or_create(&Labels { operation, outcome: Outcome::of(result) }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_by_operation_and_outcome() {
        let calls = Calls::default();
        let mut registry = Registry::default();
        calls.register(&mut registry);
        calls.count(Operation::SetDesiredCapacity, &Ok(()));
        let throttled =
            AwsError::of_service(Operation::DescribeInstanceTypes, 503, "RequestLimitExceeded", "slow down");
        calls.count(Operation::DescribeInstanceTypes, &Err::<(), _>(throttled));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        for line in [
            r#"ebbtide_aws_calls_total{operation="SetDesiredCapacity",outcome="ok"} 1"#,
            r#"ebbtide_aws_calls_total{operation="DescribeInstanceTypes",outcome="throttled"} 1"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn an_action_is_named_as_iam_names_it() {
        assert_eq!(Operation::DescribeInstanceTypes.action(), "ec2:DescribeInstanceTypes");
        assert_eq!(Operation::SetDesiredCapacity.action(), "autoscaling:SetDesiredCapacity");
    }
}
