//! The AWS operations that ebbtide calls.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelValue, LabelValueEncoder};

macro_rules! operations {
    ($($service:literal { $($name:ident $(as $permission:ident)?),* $(,)? })*) => {
        /// An AWS operation that ebbtide calls, by AWS's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "AWS documents them under these names")]
        pub enum Operation {
            $($($name,)*)*
        }

        impl Operation {
            /// All operations.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// AWS's name of the operation.
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
                    $($(Self::$name => concat!($service, ":", operations!(@action $name $($permission)?)),)*)*
                }
            }
        }
    };
    (@action $name:ident) => { stringify!($name) };
    (@action $name:ident $permission:ident) => { stringify!($permission) };
}

operations! {
    "autoscaling" {
        CompleteLifecycleAction,
        DescribeAutoScalingGroups,
        DescribeLaunchConfigurations,
        DescribeLifecycleHooks,
        DescribeScalingActivities,
        DescribeWarmPool,
        PutLifecycleHook,
        RecordLifecycleActionHeartbeat,
        SetDesiredCapacity,
        SetInstanceProtection,
        TerminateInstanceInAutoScalingGroup,
        UpdateAutoScalingGroup,
    }
    "ec2" {
        CreateTags,
        DeleteTags,
        DescribeImages,
        DescribeInstanceTypes,
        DescribeInstances,
        DescribeLaunchTemplateVersions,
        DescribeSpotPriceHistory,
        DescribeTags,
        GetInstanceTypesFromInstanceRequirements,
    }
    "eks" {
        DescribeNodegroup,
    }
    "elasticloadbalancing" {
        DescribeTargetGroupAttributes,
        DescribeTargetGroups,
        DescribeTargetHealth,
    }
    "pricing" {
        GetProducts,
    }
    "sqs" {
        ChangeMessageVisibilityBatch as ChangeMessageVisibility,
        DeleteMessageBatch as DeleteMessage,
        GetQueueAttributes,
        ReceiveMessage,
    }
    "sts" {
        GetCallerIdentity,
    }
}

impl Operation {
    /// Whether it changes anything. A message that is received is hidden from other readers, and counted.
    pub fn changes(self) -> bool {
        !["Describe", "Get"].iter().any(|read| self.name().starts_with(read))
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
