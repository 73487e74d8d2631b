//! The operations that the simulated AWS knows, by service.
//!
//! A request names its operation, and its service by version. An unknown one is answered with `InvalidAction` and journalled
//! as [`Operation::Unknown`].

use std::fmt;

/// The service with a given version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    AutoScaling,
    Ec2,
    Eks,
    LoadBalancing,
    Pricing,
    Sqs,
}

impl Service {
    pub(super) fn of_version(version: &str) -> Option<Self> {
        match version {
            "2011-01-01" => Some(Self::AutoScaling),
            "2016-11-15" => Some(Self::Ec2),
            "2015-12-01" => Some(Self::LoadBalancing),
            super::eks::VERSION => Some(Self::Eks),
            super::prices::VERSION => Some(Self::Pricing),
            super::sqs::VERSION => Some(Self::Sqs),
            _ => None,
        }
    }
}

macro_rules! operations {
    ($($service:ident { $($name:ident),* $(,)? })*) => {
        /// An operation of the Auto Scaling, EC2, EKS, Elastic Load Balancing or SQS API, under AWS's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "AWS documents them under these names")]
        pub enum Operation {
            $($($name,)*)*
            /// A name that the simulation does not know.
            Unknown,
        }

        impl Operation {
            /// All operations that the simulation knows.
            pub const ALL: &[Self] = &[$($(Self::$name,)*)*];

            /// AWS's name.
            pub fn name(self) -> &'static str {
                match self {
                    $($(Self::$name => stringify!($name),)*)*
                    Self::Unknown => "Unknown",
                }
            }

            /// The IAM action that allows it: a batch of SQS has that of a single one.
            pub(super) fn action(self, service: Service) -> String {
                let prefix = match service {
                    Service::AutoScaling => "autoscaling",
                    Service::Ec2 => "ec2",
                    Service::Eks => "eks",
                    Service::LoadBalancing => "elasticloadbalancing",
                    Service::Pricing => "pricing",
                    Service::Sqs => "sqs",
                };
                format!("{prefix}:{}", self.name().trim_end_matches("Batch"))
            }

            pub(super) fn of(service: Service, name: &str) -> Self {
                match (service, name) {
                    $($((Service::$service, stringify!($name)) => Self::$name,)*)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}

operations! {
    AutoScaling {
        CompleteLifecycleAction,
        CreateOrUpdateTags,
        DeleteLifecycleHook,
        DescribeAutoScalingGroups,
        DescribeAutoScalingInstances,
        DescribeLaunchConfigurations,
        DescribeLifecycleHooks,
        DescribeScalingActivities,
        DescribeWarmPool,
        DetachInstances,
        EnterStandby,
        ExitStandby,
        PutLifecycleHook,
        RecordLifecycleActionHeartbeat,
        ResumeProcesses,
        SetDesiredCapacity,
        SetInstanceProtection,
        SuspendProcesses,
        TerminateInstanceInAutoScalingGroup,
        UpdateAutoScalingGroup,
    }
    Ec2 {
        CreateTags,
        DeleteTags,
        DescribeImages,
        DescribeInstances,
        DescribeInstanceTypes,
        DescribeLaunchTemplateVersions,
        DescribeSpotPriceHistory,
        DescribeTags,
        GetInstanceTypesFromInstanceRequirements,
    }
    Eks {
        DescribeNodegroup,
    }
    LoadBalancing {
        DescribeTargetGroupAttributes,
        DescribeTargetGroups,
        DescribeTargetHealth,
    }
    Pricing {
        GetProducts,
    }
    Sqs {
        ChangeMessageVisibilityBatch,
        DeleteMessageBatch,
        GetQueueAttributes,
        GetQueueUrl,
        ListQueues,
        ReceiveMessage,
        SendMessage,
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
