//! Provider ids, as the AWS cloud provider writes them into `Node.spec.providerID`.

use std::fmt;
use std::str::FromStr;

use super::ids::{GroupName, InstanceId};

const SCHEME: &str = "aws:///";
/// What the cloud controller reads: the zone may be in the place of a host, or missing.
const ANY_SCHEME: &str = "aws://";
const PLACEHOLDER: &str = "i-placeholder-";

/// What a provider id names: an EC2 instance, or a place in a group that no instance has taken yet.
///
/// Spelling as in [cloud-provider-aws](https://github.com/kubernetes/cloud-provider-aws):
/// `aws:///ZONE/INSTANCE`, and all else that its `MapToAWSInstanceID` reads: the instance is the last part, and may stand alone. Placeholders
/// are `aws:///ZONE/i-placeholder-GROUP-N`, as cluster-autoscaler's own AWS provider has them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProviderId {
    /// A real instance.
    Instance {
        /// Availability zone.
        zone: String,
        /// EC2 instance id, `i-…`.
        instance: InstanceId,
    },
    /// An instance that the group's desired capacity asks for and that is not there.
    Placeholder {
        /// Availability zone it is listed in (a group's first: AWS decides later).
        zone: String,
        /// Name of the group.
        group: GroupName,
        /// Counted from 0.
        index: usize,
    },
}

impl ProviderId {
    /// The provider id of an instance.
    pub fn instance(zone: impl Into<String>, instance: impl Into<InstanceId>) -> Self {
        Self::Instance { zone: zone.into(), instance: instance.into() }
    }

    /// How the provider id of an instance is written: one is, for each instance in each answer.
    pub fn text_of_instance(zone: &str, instance: &str) -> String {
        [SCHEME, zone, "/", instance].concat()
    }
}

/// The text is not a provider id of AWS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an AWS provider id (aws:///ZONE/INSTANCE): \"{0}\"")]
pub struct NotAws(String);

impl FromStr for ProviderId {
    type Err = NotAws;

    fn from_str(text: &str) -> Result<Self, NotAws> {
        let refuse = || NotAws(text.escape_debug().take(200).collect());
        if let Some((zone, name)) = text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/'))
            && let Some((group, index)) =
                name.strip_prefix(PLACEHOLDER).and_then(|rest| rest.rsplit_once('-'))
            && let Ok(index) = index.parse()
            && !group.is_empty()
        {
            return Ok(Self::Placeholder { zone: zone.to_owned(), group: group.into(), index });
        }
        let path = match text.strip_prefix(ANY_SCHEME) {
            Some(path) => path.trim_matches('/'),
            None if text.contains('/') => return Err(refuse()),
            None => text,
        };
        // Outposts and Local Zones have been seen with further parts before the instance.
        let (before, instance) = path.rsplit_once('/').unwrap_or(("", path));
        let zone = before.split('/').next().unwrap_or(before);
        // What is printed is to be read as the same.
        if instance.starts_with("i-") && instance.len() > 2 && !instance.starts_with(PLACEHOLDER) {
            Ok(Self::instance(zone, instance))
        } else {
            Err(refuse())
        }
    }
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance { zone, instance } => write!(f, "{SCHEME}{zone}/{instance}"),
            Self::Placeholder { zone, group, index } => {
                write!(f, "{SCHEME}{zone}/{PLACEHOLDER}{group}-{index}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_an_aws_provider_id_is_read_as_one() {
        for text in [
            "",
            "i-",
            "gce:///zone/i-1",
            "azure://i-1",
            "mi-1",
            "us-east-1a/i-1",
            "aws:///us-east-1a/",
            "aws:///us-east-1a/fargate-ip-1",
            "aws:///us-east-1a/outpost/i-placeholder-web-1",
        ] {
            assert!(text.parse::<ProviderId>().is_err(), "{text}");
        }
    }

    /// Source: `MapToAWSInstanceID` and its tests in cloud-provider-aws, `pkg/providers/v1/instances.go`.
    #[test]
    fn an_instance_is_read_in_every_spelling_that_the_cloud_controller_reads() {
        for (text, zone) in [
            ("aws:///us-east-1a/i-0abc", "us-east-1a"),
            ("aws:///us-east-1a/i-0abc/", "us-east-1a"),
            ("aws:///us-east-1a/op-1/i-0abc", "us-east-1a"),
            ("aws://us-east-1a/i-0abc", "us-east-1a"),
            ("aws:////i-0abc", ""),
            ("aws:///i-0abc", ""),
            ("aws://i-0abc", ""),
            ("i-0abc", ""),
        ] {
            assert_eq!(text.parse(), Ok(ProviderId::instance(zone, "i-0abc")), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(zone in "[a-z0-9-]{1,20}", group in "[a-zA-Z0-9/_. -]{1,40}", index in 0..10_000usize) {
            let placeholder = ProviderId::Placeholder { zone: zone.clone(), group: group.into(), index };
            prop_assert_eq!(placeholder.to_string().parse(), Ok(placeholder));
            let instance = ProviderId::instance(zone, format!("i-{index:017x}"));
            prop_assert_eq!(instance.to_string().parse(), Ok(instance));
        }

        #[test]
        fn parsing_any_text_as_a_provider_id_does_not_panic(text in ".*") {
            let _ = text.parse::<ProviderId>();
        }
    }
}
