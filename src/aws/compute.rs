//! EC2: what instance types have, what launch templates say.

use std::collections::BTreeMap;

use aws_sdk_autoscaling::types::InstanceRequirements as GroupRequirements;
use aws_sdk_ec2::types::{InstanceTypeInfo, LaunchTemplateVersion as RawVersion};

use super::error::from_sdk;
use super::{Aws, AwsError, Operation};

/// Instance types asked for at a time, the most AWS allows.
/// Source: [DescribeInstanceTypes](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceTypes.html).
const TYPES_AT_ONCE: usize = 100;

/// Launch template versions a page, the most AWS allows.
/// Source: [DescribeLaunchTemplateVersions](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeLaunchTemplateVersions.html).
const VERSIONS_PAGE: i32 = 200;

/// What a node can use of an instance type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceType {
    /// Its name, `m5.large`.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: i64,
    /// Memory in MiB, as EC2 states it: more than the operating system sees.
    pub memory_mib: i64,
    /// Network interfaces.
    pub interfaces: i64,
    /// IPv4 addresses of each of them.
    pub addresses_per_interface: i64,
    /// `amd64` or `arm64`.
    pub architecture: String,
    /// Whether a hypervisor is under it.
    pub bare_metal: bool,
    /// Accelerators, by the resource name that their device plugin gives them.
    pub accelerators: BTreeMap<String, i64>,
    /// Name of the first accelerator, as the accelerator label has it, `nvidia-tesla-t4`.
    pub accelerator_name: Option<String>,
}

/// One version of a launch template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LaunchTemplateVersion {
    /// Id of the launch template.
    pub id: String,
    /// Name of the launch template.
    pub name: String,
    /// Number of the version.
    pub version: i64,
    /// Whether it is the default version.
    pub is_default: bool,
    /// Instance type, if it says.
    pub instance_type: Option<String>,
    /// Size of the first volume in GiB, if it says.
    pub volume_gib: Option<i64>,
    /// Whether its instances are spot instances.
    pub spot: bool,
}

impl Aws {
    /// The `$Latest` and `$Default` versions of every launch template there is.
    pub async fn current_launch_template_versions(&self) -> Result<Vec<LaunchTemplateVersion>, AwsError> {
        let operation = Operation::DescribeLaunchTemplateVersions;
        let mut versions = Vec::new();
        let mut next = None;
        loop {
            let page = self
                .compute
                .describe_launch_template_versions()
                .versions("$Latest")
                .versions("$Default")
                .max_results(VERSIONS_PAGE)
                .set_next_token(next.take())
                .send()
                .await
                .map_err(|error| from_sdk(operation.as_str(), error));
            let page = self.calls.counted(operation, page)?;
            versions.extend(page.launch_template_versions().iter().map(version));
            next = page.next_token.filter(|token| !token.is_empty());
            if next.is_none() {
                return Ok(versions);
            }
        }
    }

    /// One version of one launch template, by the template's id.
    pub async fn launch_template_version(
        &self,
        id: &str,
        version_number: &str,
    ) -> Result<Option<LaunchTemplateVersion>, AwsError> {
        let operation = Operation::DescribeLaunchTemplateVersions;
        let result = self
            .compute
            .describe_launch_template_versions()
            .launch_template_id(id)
            .versions(version_number)
            .send()
            .await
            .map_err(|error| from_sdk(operation.as_str(), error));
        Ok(self.calls.counted(operation, result)?.launch_template_versions().first().map(version))
    }

    /// What these instance types have. One that EC2 does not know is missing from the answer.
    pub async fn instance_types(&self, names: &[String]) -> Result<Vec<InstanceType>, AwsError> {
        let mut types = Vec::new();
        for names in names.chunks(TYPES_AT_ONCE) {
            match self.instance_types_at_once(names).await {
                Ok(found) => types.extend(found),
                // One wrong name fails the whole request: find the others one by one.
                Err(AwsError::Other { code, .. }) if code == "InvalidInstanceType" && names.len() > 1 => {
                    for name in names {
                        types.extend(
                            self.instance_types_at_once(std::slice::from_ref(name)).await.unwrap_or_default(),
                        );
                    }
                }
                Err(AwsError::Other { code, .. }) if code == "InvalidInstanceType" => {}
                Err(error) => return Err(error),
            }
        }
        Ok(types)
    }

    async fn instance_types_at_once(&self, names: &[String]) -> Result<Vec<InstanceType>, AwsError> {
        let operation = Operation::DescribeInstanceTypes;
        let names = names.iter().map(|name| name.as_str().into()).collect();
        let result = self
            .compute
            .describe_instance_types()
            .set_instance_types(Some(names))
            .send()
            .await
            .map_err(|error| from_sdk(operation.as_str(), error));
        Ok(self.calls.counted(operation, result)?.instance_types().iter().map(instance_type).collect())
    }
}

/// What a group that is defined by requirements wants of an instance type.
pub type InstanceRequirements = GroupRequirements;

fn version(raw: &RawVersion) -> LaunchTemplateVersion {
    let data = raw.launch_template_data();
    let volumes = data.map(|data| data.block_device_mappings()).unwrap_or_default();
    LaunchTemplateVersion {
        id: raw.launch_template_id().unwrap_or_default().to_owned(),
        name: raw.launch_template_name().unwrap_or_default().to_owned(),
        version: raw.version_number().unwrap_or_default(),
        is_default: raw.default_version().unwrap_or_default(),
        instance_type: data.and_then(|data| data.instance_type()).map(|name| name.as_str().to_owned()),
        volume_gib: volumes.iter().find_map(|volume| volume.ebs()?.volume_size()).map(i64::from),
        spot: data
            .and_then(|data| data.instance_market_options()?.market_type())
            .is_some_and(|market| market.as_str() == "spot"),
    }
}

fn instance_type(raw: &InstanceTypeInfo) -> InstanceType {
    let network = raw.network_info();
    let architectures = raw.processor_info().map(|info| info.supported_architectures()).unwrap_or_default();
    let arm = architectures.iter().any(|architecture| architecture.as_str() == "arm64");
    let mut accelerators = BTreeMap::new();
    let mut accelerator_name = None;
    for gpu in raw.gpu_info().map(|info| info.gpus()).unwrap_or_default() {
        let resource = match gpu.manufacturer().unwrap_or_default().to_ascii_lowercase().as_str() {
            "amd" => "amd.com/gpu",
            _ => "nvidia.com/gpu",
        };
        *accelerators.entry(resource.to_owned()).or_default() += i64::from(gpu.count().unwrap_or_default());
        accelerator_name = accelerator_name.or_else(|| Some(label_of_gpu(gpu.manufacturer()?, gpu.name()?)));
    }
    let neuron = raw.neuron_info().map(|info| info.neuron_devices()).unwrap_or_default();
    let devices: i64 = neuron.iter().filter_map(|device| device.count()).map(i64::from).sum();
    let inferentia = raw.inference_accelerator_info().map(|info| info.accelerators()).unwrap_or_default();
    let devices = devices.max(inferentia.iter().filter_map(|device| device.count()).map(i64::from).sum());
    if devices > 0 {
        accelerators.insert("aws.amazon.com/neuron".to_owned(), devices);
    }
    InstanceType {
        name: raw.instance_type().map(|name| name.as_str().to_owned()).unwrap_or_default(),
        vcpus: raw.v_cpu_info().and_then(|info| info.default_v_cpus()).map(i64::from).unwrap_or_default(),
        memory_mib: raw.memory_info().and_then(|info| info.size_in_mib()).unwrap_or_default(),
        interfaces: network.and_then(|n| n.maximum_network_interfaces()).map(i64::from).unwrap_or_default(),
        addresses_per_interface: network
            .and_then(|n| n.ipv4_addresses_per_interface())
            .map(i64::from)
            .unwrap_or_default(),
        architecture: if arm { "arm64" } else { "amd64" }.to_owned(),
        bare_metal: raw.bare_metal().unwrap_or_default(),
        accelerators,
        accelerator_name,
    }
}

/// The accelerator label's value, as cluster-autoscaler's users on AWS write it: `nvidia-tesla-t4`, `nvidia-a10g`.
fn label_of_gpu(manufacturer: &str, name: &str) -> String {
    let tesla = matches!(name, "K80" | "P100" | "V100" | "T4" | "M60");
    let name = name.to_ascii_lowercase().replace(' ', "-");
    let maker = manufacturer.to_ascii_lowercase();
    if tesla && maker == "nvidia" { format!("{maker}-tesla-{name}") } else { format!("{maker}-{name}") }
}
