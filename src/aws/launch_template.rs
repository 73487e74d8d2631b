//! Launch templates and launch configurations as plain data: optional fields resolved, no SDK types.

use aws_sdk_autoscaling::types as asg;
use aws_sdk_ec2::types as ec2;

use super::instance_types::MOST;
use super::requirements::Requirements;
use super::user_data::UserData;

/// What a launch template version or launch configuration says of an instance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LaunchSpec {
    /// Which version this is.
    pub revision: Revision,
    /// Instance type, if given.
    pub instance_type: Option<String>,
    /// Image, if given: `ami-…`, or a Systems Manager parameter that holds the id.
    pub image: Option<String>,
    /// Attributes to select types by, if no type is given.
    pub requirements: Option<Requirements>,
    /// Virtual CPUs, if it gives cores and threads of each; else the type has its own number.
    pub vcpus: Option<i64>,
    /// Volume sizes.
    pub volumes: Volumes,
    /// What its user data says of the Node.
    pub user_data: UserData,
    /// Whether it asks for Spot instances.
    pub spot: bool,
}

/// Volume sizes in GiB, as far as block device mappings give them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volumes {
    /// The root volume.
    pub root_gib: Option<i32>,
    /// Bottlerocket's second volume, which holds everything but the system.
    pub data_gib: Option<i32>,
}

/// A launch template version (`lt-0abc:7`) or launch configuration (its name). Two instances of the same revision are
/// alike.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Revision(pub String);

impl Revision {
    pub(super) fn of_template(id: &str, number: &str) -> Self {
        Self(format!("{id}:{number}"))
    }
}

/// A version of a launch template.
#[derive(Clone, Debug, PartialEq)]
pub struct TemplateVersion {
    /// `lt-…`.
    pub id: String,
    /// The template's name.
    pub name: String,
    /// Version number, from 1.
    pub number: i64,
    /// Whether it is the template's default version.
    pub default: bool,
    /// What it says.
    pub spec: LaunchSpec,
}

impl LaunchSpec {
    pub(super) fn of_configuration(from: &asg::LaunchConfiguration) -> Self {
        let volumes = from
            .block_device_mappings()
            .iter()
            .filter_map(|mapping| Some((mapping.device_name()?, mapping.ebs()?.volume_size()?)));
        Self {
            revision: Revision(from.launch_configuration_name.clone().unwrap_or_default()),
            instance_type: from.instance_type.clone(),
            image: from.image_id.clone(),
            requirements: None,
            vcpus: None,
            volumes: Volumes::of(volumes),
            user_data: UserData::read(from.user_data()),
            spot: from.spot_price.is_some(),
        }
    }

    fn of_template(revision: Revision, from: &ec2::ResponseLaunchTemplateData) -> Self {
        let volumes = from
            .block_device_mappings()
            .iter()
            .filter_map(|mapping| Some((mapping.device_name()?, mapping.ebs()?.volume_size()?)));
        let market = from.instance_market_options.as_ref().and_then(|options| options.market_type.as_ref());
        Self {
            revision,
            instance_type: from.instance_type.as_ref().map(|name| name.as_str().to_owned()),
            image: from.image_id.clone(),
            requirements: from.instance_requirements.as_ref().map(Requirements::of_template),
            vcpus: from.cpu_options.as_ref().and_then(vcpus),
            volumes: Volumes::of(volumes),
            user_data: UserData::read(from.user_data()),
            spot: market == Some(&ec2::MarketType::Spot),
        }
    }
}

/// Source: [CPU options for Amazon EC2
/// instances](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-optimize-cpu.html).
fn vcpus(from: &ec2::LaunchTemplateCpuOptions) -> Option<i64> {
    let vcpus = i64::from(from.core_count?) * i64::from(from.threads_per_core?);
    (1..=MOST).contains(&vcpus).then_some(vcpus)
}

impl Volumes {
    /// The root volume is the device that AMIs have as root; Bottlerocket's second is `/dev/xvdb`. A template may map others alone:
    /// the AMI has the root volume's size then.
    ///
    /// Sources: [Device names for volumes on EC2
    /// instances](https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/device_naming.html) (which two are reserved for the root
    /// volume), [Bottlerocket, default
    /// volumes](https://github.com/bottlerocket-os/bottlerocket#default-volumes).
    fn of<'a>(volumes: impl Iterator<Item = (&'a str, i32)>) -> Self {
        let volumes: Vec<_> = volumes.collect();
        let size =
            |names: &[&str]| volumes.iter().find(|(device, _)| names.contains(device)).map(|&(_, gib)| gib);
        Self { root_gib: size(&["/dev/xvda", "/dev/sda1"]), data_gib: size(&["/dev/xvdb"]) }
    }
}

impl TemplateVersion {
    pub(super) fn from_sdk(from: &ec2::LaunchTemplateVersion) -> Option<Self> {
        let (id, number) = (from.launch_template_id.clone()?, from.version_number?);
        let revision = Revision::of_template(&id, &number.to_string());
        Some(Self {
            id,
            name: from.launch_template_name.clone().unwrap_or_default(),
            number,
            default: from.default_version.unwrap_or(false),
            spec: match &from.launch_template_data {
                Some(data) => LaunchSpec::of_template(revision, data),
                None => LaunchSpec { revision, ..LaunchSpec::default() },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_cpus_are_cores_times_threads_where_both_are_given_and_can_be_meant() {
        let of = |cores: Option<i32>, threads: Option<i32>| {
            let options = ec2::LaunchTemplateCpuOptions::builder();
            vcpus(&options.set_core_count(cores).set_threads_per_core(threads).build())
        };
        assert_eq!((of(Some(48), Some(1)), of(Some(4), Some(2))), (Some(48), Some(8)));
        assert_eq!((of(Some(4), None), of(None, Some(1))), (None, None));
        assert_eq!((of(Some(0), Some(2)), of(Some(i32::MAX), Some(i32::MAX))), (None, None));
    }

    #[test]
    fn the_root_volume_is_the_one_that_amis_call_root() {
        let root = |volumes: &[(&str, i32)]| Volumes::of(volumes.iter().copied()).root_gib;
        assert_eq!(root(&[("/dev/sdb", 500), ("/dev/xvda", 80)]), Some(80));
        assert_eq!(root(&[("/dev/sda1", 30)]), Some(30));
        assert_eq!(root(&[("/dev/sdf", 40), ("/dev/sdg", 50)]), None, "volumes for data");
        assert_eq!(root(&[]), None);
    }
}
