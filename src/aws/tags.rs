//! EC2 tags of instances.

use aws_sdk_ec2::types::{Filter, Tag};

use super::retry::{LOOK_UP, WRITE};
use super::{Aws, AwsError, Operation};
use crate::k8s::InstanceId;

/// Instances in a call of CreateTags or DeleteTags. AWS takes 1,000 and recommends fewer.
///
/// Source: [CreateTags](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html).
const RESOURCES_A_CALL: usize = 500;
/// Tags in an answer of DescribeTags.
///
/// Source: [DescribeTags](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html).
const TAGS_A_CALL: i32 = 1000;

impl Aws {
    /// Tags instances. After an error, those of later calls are unchanged.
    pub async fn tag_instances(
        &self,
        instances: &[InstanceId],
        key: &str,
        value: &str,
    ) -> Result<(), AwsError> {
        for batch in instances.chunks(RESOURCES_A_CALL) {
            let tag = Tag::builder().key(key).value(value).build();
            let call = self
                .ec2
                .create_tags()
                .set_resources(Some(batch.iter().map(String::from).collect()))
                .tags(tag);
            self.call(Operation::CreateTags, WRITE, || call.clone().send()).await?;
        }
        Ok(())
    }

    /// Whether IAM lets this tag be put on the instance: asked by a dry run, which changes nothing.
    ///
    /// Source: `DryRun` of [CreateTags](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html).
    pub async fn may_tag_instance(&self, instance: &InstanceId, key: &str) -> Result<bool, AwsError> {
        let tag = Tag::builder().key(key).value("check").build();
        let call = self.ec2.create_tags().resources(instance).tags(tag).dry_run(true);
        match self.call(Operation::CreateTags, LOOK_UP, || call.clone().send()).await {
            Err(AwsError::Denied { .. }) => Ok(false),
            Err(AwsError::Other { code, .. }) if code == "DryRunOperation" => Ok(true),
            Err(error) => Err(error),
            Ok(_) => Ok(true),
        }
    }

    /// Removes the tag from instances, where it has this value; another value, or no tag, is no error.
    ///
    /// Source: [DeleteTags](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteTags.html).
    pub async fn untag_instances(
        &self,
        instances: &[InstanceId],
        key: &str,
        value: &str,
    ) -> Result<(), AwsError> {
        for batch in instances.chunks(RESOURCES_A_CALL) {
            let tag = Tag::builder().key(key).value(value).build();
            let call = self
                .ec2
                .delete_tags()
                .set_resources(Some(batch.iter().map(String::from).collect()))
                .tags(tag);
            self.call(Operation::DeleteTags, WRITE, || call.clone().send()).await?;
        }
        Ok(())
    }

    /// The account's instances that have this tag, with its value.
    pub async fn tagged_instances(&self, key: &str) -> Result<Vec<(InstanceId, String)>, AwsError> {
        let filter = |name: &str, value: &str| Filter::builder().name(name).values(value).build();
        let call = self
            .ec2
            .describe_tags()
            .filters(filter("key", key))
            .filters(filter("resource-type", "instance"))
            .max_results(TAGS_A_CALL);
        let send = |token| call.clone().set_next_token(token).send();
        let mut found = Vec::new();
        self.pages(Operation::DescribeTags, LOOK_UP, send, |page| {
            // Filtered once more: what another tag says would take somebody's protection off.
            let tags = page.tags.unwrap_or_default().into_iter().filter(|tag| tag.key() == Some(key));
            found.extend(
                tags.filter_map(|tag| Some((tag.resource_id?.into(), tag.value.unwrap_or_default()))),
            );
            page.next_token
        })
        .await?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use crate::aws::answers::answering;

    #[tokio::test(start_paused = true)]
    async fn instances_with_another_tag_are_left_out() {
        let tag = |instance: &str, key: &str| {
            format!(
                "<item><resourceId>{instance}</resourceId><resourceType>instance</resourceType><key>{key}</key><value>v</value></item>"
            )
        };
        let tags = [tag("i-1", "ours"), tag("i-2", "another")].concat();
        let aws = answering(move |_| {
            (200, format!("<DescribeTagsResponse><tagSet>{tags}</tagSet></DescribeTagsResponse>"))
        });
        let found = aws.tagged_instances("ours").await.expect("read");
        assert_eq!(found, [("i-1".into(), "v".to_owned())]);
    }
}
