//! The calls to EC2, one function each.

use aws_sdk_ec2::types as ec2;
use aws_sdk_ec2::types::{ArchitectureType, ArchitectureValues, Filter, VirtualizationType};

use super::pages::next_page;
use super::retry::LOOK_UP;
use super::{Aws, AwsError, Operation, Requirements, TemplateId, TemplateRef, TemplateVersion, TypeInfo};
use crate::k8s::InstanceId;

/// Versions in an answer of DescribeLaunchTemplateVersions.
///
/// Source: [DescribeLaunchTemplateVersions](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeLaunchTemplateVersions.html).
const VERSIONS_A_CALL: i32 = 200;
/// Types in a call of DescribeInstanceTypes.
///
/// Source: [DescribeInstanceTypes](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html).
pub(crate) const TYPES_A_CALL: usize = 100;
/// Types in an answer of GetInstanceTypesFromInstanceRequirements.
///
/// Source: [GetInstanceTypesFromInstanceRequirements](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetInstanceTypesFromInstanceRequirements.html).
const MATCHES_A_CALL: i32 = 1000;
/// Instances in an answer of DescribeInstances.
///
/// Source: [DescribeInstances](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstances.html).
const INSTANCES_A_CALL: i32 = 1000;
/// Images in a call of DescribeImages: half of what a filter takes.
///
/// Source: [List and filter using the CLI and
/// API](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html#Filtering_Resources_CLI): 200 values.
pub(crate) const IMAGES_A_CALL: usize = 100;

/// Which launch template versions to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateAliases {
    /// `$Latest`.
    Latest,
    /// `$Default`.
    Default,
    /// Both; a version that is both appears once.
    Both,
}

impl TemplateAliases {
    fn names(self) -> Vec<String> {
        let names: &[&str] = match self {
            Self::Latest => &["$Latest"],
            Self::Default => &["$Default"],
            Self::Both => &["$Latest", "$Default"],
        };
        names.iter().map(|&name| name.to_owned()).collect()
    }
}

/// A page of the latest and default versions of all launch templates.
#[derive(Clone, Debug)]
pub struct TemplatePage {
    /// The versions.
    pub versions: Vec<TemplateVersion>,
    /// Token of the next page; `None` on the last.
    pub next: Option<String>,
}

impl Aws {
    /// A page of the latest or default versions, or both, of all launch templates of the account. The two versions of a
    /// template may be on different pages.
    pub async fn launch_template_page(
        &self,
        aliases: TemplateAliases,
        next: Option<String>,
    ) -> Result<TemplatePage, AwsError> {
        let operation = Operation::DescribeLaunchTemplateVersions;
        let call = self
            .ec2
            .describe_launch_template_versions()
            .set_versions(Some(aliases.names()))
            .max_results(VERSIONS_A_CALL)
            .set_next_token(next.clone());
        let page = self.call(operation, LOOK_UP, || call.clone().send()).await?;
        Ok(TemplatePage {
            versions: page.launch_template_versions().iter().filter_map(TemplateVersion::from_sdk).collect(),
            next: next_page(operation, next.as_deref(), page.next_token)?,
        })
    }

    /// A launch template version; `None` if it does not exist.
    pub async fn launch_template_version(
        &self,
        of: &TemplateRef,
    ) -> Result<Option<TemplateVersion>, AwsError> {
        let call = self.ec2.describe_launch_template_versions().versions(&of.version);
        let call = match &of.template {
            TemplateId::Id(id) => call.launch_template_id(id),
            TemplateId::Name(name) => call.launch_template_name(name),
        };
        match self.call(Operation::DescribeLaunchTemplateVersions, LOOK_UP, || call.clone().send()).await {
            Ok(found) => Ok(asked_for(&of.version, found.launch_template_versions())),
            Err(AwsError::Other { code, .. }) if code.starts_with("InvalidLaunchTemplate") => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether each of these images is arm64; missing or inaccessible ones are left out. 100 images a call.
    ///
    /// Uses a filter: in a list of ids, one missing image fails the call.
    pub async fn arm_images(&self, ids: &[String]) -> Result<Vec<(String, bool)>, AwsError> {
        let mut found = Vec::new();
        for batch in ids.chunks(IMAGES_A_CALL) {
            let filter = Filter::builder().name("image-id").set_values(Some(batch.to_vec())).build();
            // Groups keep launching images that their owner has deprecated.
            let call = self.ec2.describe_images().filters(filter).include_deprecated(true);
            let page = self.call(Operation::DescribeImages, LOOK_UP, || call.clone().send()).await?;
            found.extend(
                page.images
                    .unwrap_or_default()
                    .into_iter()
                    .filter_map(|i| Some((i.image_id?, i.architecture? == ArchitectureValues::Arm64)))
                    .filter(|(id, _)| batch.contains(id)),
            );
        }
        Ok(found)
    }

    /// The instances that were launched into this Capacity Reservation, and have not been gone for long.
    pub async fn instances_of_reservation(&self, id: &str) -> Result<Vec<InstanceId>, AwsError> {
        let filter = Filter::builder().name("capacity-reservation-id").values(id).build();
        let call = self.ec2.describe_instances().filters(filter).max_results(INSTANCES_A_CALL);
        let send = |token| call.clone().set_next_token(token).send();
        let mut found = Vec::new();
        self.pages(Operation::DescribeInstances, LOOK_UP, send, |page| {
            let instances = page.reservations.unwrap_or_default().into_iter().filter_map(|r| r.instances);
            // All of them will be drained: an endpoint that ignores filters would have the whole cluster go.
            let launched_into_it = instances
                .flatten()
                .filter(|instance| instance.capacity_reservation_id.as_deref() == Some(id));
            found.extend(launched_into_it.filter_map(|instance| Some(instance.instance_id?.into())));
            page.next_token
        })
        .await?;
        Ok(found)
    }

    /// Whether EC2 has the instance in any state but terminated, as the cloud controller asks before it deletes a Node.
    ///
    /// Source: [`InstanceExistsByProviderID`](https://github.com/kubernetes/cloud-provider-aws/blob/master/pkg/providers/v1/aws.go).
    pub async fn instance_exists(&self, instance: &InstanceId) -> Result<bool, AwsError> {
        let states = ["pending", "running", "shutting-down", "stopping", "stopped"].map(str::to_owned);
        // A filter: EC2 refuses an id that it has forgotten.
        let call = self
            .ec2
            .describe_instances()
            .filters(Filter::builder().name("instance-id").values(instance.as_str()).build())
            .filters(Filter::builder().name("instance-state-name").set_values(Some(states.into())).build());
        let operation = Operation::DescribeInstances;
        let page = self.call(operation, LOOK_UP, || call.clone().send()).await?;
        // Pages of a filtered list may be empty.
        let is_last = next_page(operation, None, page.next_token.clone())?.is_none();
        let mut found = page.reservations().iter().flat_map(|reservation| reservation.instances());
        Ok(!is_last || found.any(|found| found.instance_id() == Some(instance.as_str())))
    }

    /// The instance types of these names; those not in the region are left out. 100 names a call.
    ///
    /// Uses a filter: in a list of names, one missing type fails the call.
    pub async fn instance_types(&self, names: &[String]) -> Result<Vec<TypeInfo>, AwsError> {
        let mut found = Vec::new();
        for batch in names.chunks(TYPES_A_CALL) {
            let filter = Filter::builder().name("instance-type").set_values(Some(batch.to_vec())).build();
            let call = self.ec2.describe_instance_types().filters(filter).max_results(TYPES_A_CALL as i32);
            let send = |token| call.clone().set_next_token(token).send();
            self.pages(Operation::DescribeInstanceTypes, LOOK_UP, send, |page| {
                let types = page.instance_types().iter().filter_map(TypeInfo::from_sdk);
                found.extend(types.filter(|info| batch.contains(&info.name)));
                page.next_token
            })
            .await?;
        }
        Ok(found)
    }

    /// Names of the instance types with these attributes, for images of arm64 or else x86_64.
    pub async fn instance_types_from_requirements(
        &self,
        requirements: &Requirements,
        arm: bool,
    ) -> Result<Vec<String>, AwsError> {
        let architecture = if arm { ArchitectureType::Arm64 } else { ArchitectureType::X8664 };
        let call = self
            .ec2
            .get_instance_types_from_instance_requirements()
            .architecture_types(architecture)
            .virtualization_types(VirtualizationType::Hvm)
            .instance_requirements(requirements.request())
            .max_results(MATCHES_A_CALL);
        let send = |token| call.clone().set_next_token(token).send();
        let mut found = Vec::new();
        self.pages(Operation::GetInstanceTypesFromInstanceRequirements, LOOK_UP, send, |page| {
            found.extend(page.instance_types.unwrap_or_default().into_iter().filter_map(|t| t.instance_type));
            page.next_token
        })
        .await?;
        Ok(found)
    }
}

/// Of the versions of a launch template in an answer, the one that was asked for; others come from an endpoint that always lists all.
fn asked_for(version: &str, listed: &[ec2::LaunchTemplateVersion]) -> Option<TemplateVersion> {
    let mut versions: Vec<_> = listed.iter().filter_map(TemplateVersion::from_sdk).collect();
    match version {
        "$Latest" => versions.into_iter().max_by_key(|found| found.number),
        "$Default" => {
            versions.sort_by_key(|found| !found.default);
            versions.into_iter().next()
        }
        number => versions.into_iter().find(|found| found.number.to_string() == number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::answers::answering;

    fn response(operation: &str, result: &str) -> String {
        format!(
            "<{operation}Response xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\">{result}</{operation}Response>"
        )
    }

    fn answer(operation: &'static str, result: &'static str) -> Aws {
        answering(move |_| (200, response(operation, result)))
    }

    #[tokio::test(start_paused = true)]
    async fn of_instances_those_of_the_reservation_count_and_of_one_asked_for_none_other() {
        let aws = answer(
            "DescribeInstances",
            "<reservationSet>\
             <item><instancesSet><item><instanceId>i-1</instanceId><capacityReservationId>cr-1</capacityReservationId></item></instancesSet></item>\
             <item><instancesSet><item><instanceId>i-2</instanceId><capacityReservationId>cr-2</capacityReservationId></item></instancesSet></item>\
             <item><instancesSet><item><instanceId>i-3</instanceId></item></instancesSet></item>\
             </reservationSet>",
        );
        assert_eq!(aws.instances_of_reservation("cr-1").await.expect("read"), ["i-1"]);
        assert!(aws.instance_exists(&"i-3".into()).await.expect("read"));
        assert!(!aws.instance_exists(&"i-4".into()).await.expect("read"));
    }

    #[tokio::test(start_paused = true)]
    async fn of_a_launch_templates_versions_the_one_that_was_asked_for_counts() {
        let aws = answer(
            "DescribeLaunchTemplateVersions",
            "<launchTemplateVersionSet>\
             <item><launchTemplateId>lt-1</launchTemplateId><versionNumber>1</versionNumber></item>\
             <item><launchTemplateId>lt-1</launchTemplateId><versionNumber>2</versionNumber><defaultVersion>true</defaultVersion></item>\
             <item><launchTemplateId>lt-1</launchTemplateId><versionNumber>3</versionNumber></item>\
             </launchTemplateVersionSet>",
        );
        for (version, number) in [("1", Some(1)), ("$Default", Some(2)), ("$Latest", Some(3)), ("4", None)] {
            let of = TemplateRef { template: TemplateId::Id("lt-1".into()), version: version.into() };
            let found = aws.launch_template_version(&of).await.expect("read");
            assert_eq!(found.map(|found| found.number), number, "{version}");
        }
    }
}
