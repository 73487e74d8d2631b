//! Answers that end early.
//!
//! The SDK accepts a truncated document: a list then has fewer members, and a missing element counts as empty or 0. A group would seem to
//! be gone, or to have size 0.

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::AfterDeserializationInterceptorContextRef;
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::ConfigBag;

/// Fails answers to calls that only read, if their XML ends early. For calls that change something, the status says that they were done.
#[derive(Debug)]
pub(super) struct Whole;

/// An answer is not there to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it ends early, after {bytes} bytes")]
pub(super) struct EndsEarly {
    bytes: usize,
}

#[dyn_dispatch_hint]
impl Intercept for Whole {
    fn name(&self) -> &'static str {
        "Whole"
    }

    fn read_after_deserialization(
        &self,
        context: &AfterDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        // What is an error anyway stays the one that it is.
        let body = context.response().body().bytes().filter(|_| context.output_or_error().is_ok());
        match body {
            Some(body) if ends_early(body) => Err(EndsEarly { bytes: body.len() }.into()),
            _ => Ok(()),
        }
    }
}

/// Whether a document is the beginning of an answer to a call that only reads: its last tag does not close its first one.
fn ends_early(body: &[u8]) -> bool {
    let body = body.trim_ascii_end();
    // After the declaration.
    let mut tags =
        body.split(|byte| *byte == b'<').filter(|tag| tag.first().is_some_and(u8::is_ascii_alphabetic));
    let root = tags.next().unwrap_or_default();
    let name = root.split(|byte| b" \t\r\n/>".contains(byte)).next().unwrap_or_default();
    let closes = |end: &[u8]| end.strip_suffix(b">").is_some_and(|end| end.trim_ascii_end() == name);
    let last = body.rsplit(|byte| *byte == b'<').next().unwrap_or_default();
    let is_closed = last.strip_prefix(b"/").is_some_and(closes) || last == root && root.ends_with(b"/>");
    let reads = name.starts_with(b"Describe") || name.starts_with(b"Get");
    reads && !is_closed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::answers::answering;
    use crate::aws::{AutoScalingGroup, Aws, AwsError};

    /// AWS with one answer to everything.
    fn aws(body: &str) -> Aws {
        let body = body.to_owned();
        answering(move |_| (200, body.clone()))
    }

    async fn described(body: &str) -> Result<Vec<AutoScalingGroup>, AwsError> {
        aws(body).describe_groups_now(&["web".into()]).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_description_that_ends_early_cannot_be_read_wherever_that_is() {
        let instance = |id: &str| {
            format!(
                "<member><AvailabilityZone>us-east-1c</AvailabilityZone><InstanceId>{id}</InstanceId>\
                 <HealthStatus>Healthy</HealthStatus><LifecycleState>InService</LifecycleState></member>"
            )
        };
        let group = format!(
            "<member><Instances>{}{}</Instances><Tags/><AutoScalingGroupName>web</AutoScalingGroupName>\
             <MinSize>1</MinSize><MaxSize>9</MaxSize><DesiredCapacity>2</DesiredCapacity></member>",
            instance("i-1"),
            instance("i-2")
        );
        let answer = format!(
            "<?xml version=\"1.0\"?>\n\
             <DescribeAutoScalingGroupsResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\">\
             <DescribeAutoScalingGroupsResult><AutoScalingGroups>{group}</AutoScalingGroups>\
             </DescribeAutoScalingGroupsResult><ResponseMetadata><RequestId>7c6e177f</RequestId></ResponseMetadata>\
             </DescribeAutoScalingGroupsResponse>"
        );
        for end in 0..answer.len() {
            let error = described(&answer[..end]).await.expect_err("cut off");
            assert!(matches!(error, AwsError::Unreadable { .. }) && error.is_transient(), "{end}: {error:?}");
        }
        for end in ["", "\n"] {
            let whole = described(&(answer.clone() + end)).await.expect("read");
            assert_eq!((whole[0].desired, whole[0].instances.len()), (2, 2));
        }
    }

    /// Whoever repeated it could undo what was set since.
    #[tokio::test(start_paused = true)]
    async fn a_change_whose_answer_ends_early_was_made() {
        let answer =
            "<SetDesiredCapacityResponse xmlns=\"http://autoscaling.amazonaws.com/doc/2011-01-01/\"><Resp";
        aws(answer).set_desired(&"web".into(), 3).await.expect("set");
    }

    #[test]
    fn a_document_is_there_to_its_end_once_its_root_is_closed() {
        for (body, early) in [
            ("<DescribeTagsResponse><tagSet/></DescribeTagsResponse>", false),
            ("<DescribeTagsResponse xmlns=\"x\"/>", false),
            ("<DescribeTagsResponse></DescribeTagsResponse >\r\n", false),
            ("<DescribeTagsResponse><tagSet/>", true),
            ("<DescribeTagsResponse><tagSet></tagSet>", true),
            ("<DescribeTagsResponse><tagSet/></DescribeTagsResponse", true),
            ("<DescribeTagsResponse xmlns=\"x\"", true),
            ("<GetInstanceTypesFromInstanceRequirementsResponse><instanceTypeSet>", true),
            ("<GetInstanceTypesFromInstanceRequirementsResponse><instanceTypeSet/></Get", true),
            (
                "<GetInstanceTypesFromInstanceRequirementsResponse></GetInstanceTypesFromInstanceRequirementsResponse>",
                false,
            ),
            ("<SetDesiredCapacityResponse>", false),
            ("{\"Messages\":[", false),
            ("", false),
        ] {
            assert_eq!(ends_early(body.as_bytes()), early, "{body}");
        }
    }
}
