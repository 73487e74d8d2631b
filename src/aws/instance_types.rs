//! Instance types as plain data.

use aws_sdk_ec2::types as ec2;

/// An instance type, from DescribeInstanceTypes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TypeInfo {
    /// `m5.large`.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: i64,
    /// Total memory in MiB.
    pub memory_mib: i64,
    /// Network interfaces (ENIs) on the default network card.
    pub interfaces: i64,
    /// IPv4 addresses per interface.
    pub addresses: i64,
    /// Whether it is arm64; otherwise x86_64.
    pub arm: bool,
    /// Whether its interfaces take address prefixes: Nitro or bare metal.
    pub prefixes: bool,
    /// Total NVMe instance store, in GB.
    pub instance_store_gb: i64,
    /// Accelerators, by kind.
    pub accelerators: Vec<Accelerator>,
}

/// Accelerators of one kind in an instance type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accelerator {
    /// Manufacturer in AWS's spelling (`NVIDIA`, `AMD`, `Habana`, `AWS`).
    pub manufacturer: String,
    /// Model (`T4`, `Inferentia2`).
    pub name: String,
    /// Number the operating system sees; a fraction of a GPU counts as one.
    pub count: i64,
    /// Cores of each, where EC2 says: AWS's own chips.
    pub cores: i64,
}

impl TypeInfo {
    /// Converts the SDK's type; `None` if it has no name.
    pub fn from_sdk(from: &ec2::InstanceTypeInfo) -> Option<Self> {
        let network = from.network_info.as_ref();
        let count = |number: Option<i32>| i64::from(number.unwrap_or(0));
        // Pods get only the default card's interfaces: https://github.com/aws/amazon-vpc-cni-k8s
        let card = network.and_then(|n| n.default_network_card_index).unwrap_or(0);
        let interfaces = network
            .and_then(|n| n.network_cards().iter().find(|c| c.network_card_index == Some(card)))
            .and_then(|c| c.maximum_network_interfaces)
            .or_else(|| network.and_then(|n| n.maximum_network_interfaces));
        let architectures =
            from.processor_info.as_ref().map(ec2::ProcessorInfo::supported_architectures).unwrap_or_default();
        let info = Self {
            name: from.instance_type.as_ref()?.as_str().to_owned(),
            vcpus: count(from.v_cpu_info.as_ref().and_then(|cpu| cpu.default_v_cpus)),
            memory_mib: from.memory_info.as_ref().and_then(|memory| memory.size_in_mib).unwrap_or(0),
            interfaces: count(interfaces),
            addresses: count(network.and_then(|n| n.ipv4_addresses_per_interface)),
            arm: architectures.contains(&ec2::ArchitectureType::Arm64),
            // As `IsPrefixDelegationSupported` of https://github.com/aws/amazon-vpc-cni-k8s; EC2 gives no hypervisor
            // for bare metal.
            prefixes: from.hypervisor == Some(ec2::InstanceTypeHypervisor::Nitro)
                || from.bare_metal == Some(true),
            instance_store_gb: from.instance_storage_info.as_ref().map_or(0, instance_store_gb),
            accelerators: accelerators(from),
        };
        Some(info.bounded())
    }

    /// With figures that fit into every sum and product of a template's.
    pub(super) fn bounded(mut self) -> Self {
        for count in [&mut self.vcpus, &mut self.interfaces, &mut self.addresses] {
            *count = (*count).clamp(0, MOST);
        }
        for size in [&mut self.memory_mib, &mut self.instance_store_gb] {
            *size = (*size).clamp(0, LARGEST);
        }
        for kind in &mut self.accelerators {
            kind.count = kind.count.clamp(0, MOST);
            kind.cores = kind.cores.clamp(0, MOST);
        }
        self
    }
}

/// More of anything than a type has, and more MiB or GB: the largest have 2<sup>11</sup> CPUs and 2<sup>25</sup> MiB.
pub(super) const MOST: i64 = 1 << 16;
const LARGEST: i64 = 1 << 30;

/// Zero for disks of old types that are not NVMe: the EKS images ignore them.
///
/// Source: `disks` in
/// [setup-local-disks](https://github.com/awslabs/amazon-eks-ami/blob/main/templates/al2023/runtime/bin/setup-local-disks).
fn instance_store_gb(from: &ec2::InstanceStorageInfo) -> i64 {
    let is_nvme = from.nvme_support != Some(ec2::EphemeralNvmeSupport::Unsupported);
    from.total_size_in_gb.filter(|_| is_nvme).unwrap_or(0)
}

fn accelerators(from: &ec2::InstanceTypeInfo) -> Vec<Accelerator> {
    let one = |manufacturer: Option<&str>, name: Option<&str>, count: Option<i32>| Accelerator {
        manufacturer: manufacturer.unwrap_or("AWS").to_owned(),
        name: name.unwrap_or_default().to_owned(),
        count: i64::from(count.unwrap_or(0)),
        cores: 0,
    };
    let gpus = from.gpu_info.iter().flat_map(ec2::GpuInfo::gpus);
    let neurons = from.neuron_info.iter().flat_map(ec2::NeuronInfo::neuron_devices);
    let inference =
        from.inference_accelerator_info.iter().flat_map(ec2::InferenceAcceleratorInfo::accelerators);
    // For a fraction of a GPU EC2 counts no whole GPU and one logical GPU.
    let mut all: Vec<_> = gpus
        .map(|gpu| one(gpu.manufacturer(), gpu.name(), gpu.logical_gpu_count().or(gpu.count())))
        .collect();
    all.extend(neurons.map(|neuron| Accelerator {
        cores: i64::from(neuron.core_info().and_then(|core| core.count()).unwrap_or(0)),
        ..one(None, neuron.name(), neuron.count())
    }));
    // EC2 lists Inferentia chips in both fields; older answers have only this one.
    if from.neuron_info.is_none() {
        all.extend(inference.map(|chip| one(chip.manufacturer(), chip.name(), chip.count())));
    }
    all
}
