//! What a node of an instance type has, and what of it pods can use. Pure arithmetic.
//!
//! Formulas are those of the EKS images and the kubelet; each function names its source. What is left after all
//! reservations is never below zero.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Settings;
use crate::aws::{Accelerator, TypeInfo};

const KIB_PER_MIB: i64 = 1024;
const KIB_PER_GIB: i64 = 1024 * 1024;

/// Pods a node takes where the network does not say: the kubelet's default.
///
/// Source: [kubelet configuration, maxPods](https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
const DEFAULT_PODS: i64 = 110;
/// Memory below which the kubelet evicts, in KiB.
///
/// Source: [Node-pressure eviction, hard eviction
/// thresholds](https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds).
const EVICTION_MEMORY_KIB: i64 = 100 * KIB_PER_MIB;
/// Storage kept for the system, in KiB.
///
/// Source: [amazon-eks-ami, kubelet-config](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go).
const RESERVED_STORAGE_KIB: i64 = KIB_PER_GIB;
/// Size of the root volume where no block device mapping tells, in GiB: that of the EKS images.
///
/// Source: [Amazon EKS managed node groups, disk
/// size](https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateNodegroup.html).
pub(super) const DEFAULT_ROOT_GIB: i32 = 20;

/// Resources of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// CPU, in thousandths of a core.
    pub cpu_millis: i64,
    /// Memory, in KiB.
    pub memory_kib: i64,
    /// Pods.
    pub pods: i64,
    /// Ephemeral storage, in KiB.
    pub storage_kib: i64,
    /// Devices and whatever else there is, by name; devices are called as their plugin calls them.
    pub devices: BTreeMap<String, i64>,
}

/// What a node has and what pods can use of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// What the node has.
    pub capacity: Resources,
    /// What pods can use.
    pub allocatable: Resources,
}

impl Figures {
    /// The figures of a node of this type with a root volume of `root_gib`.
    pub fn of(info: &TypeInfo, root_gib: i32, settings: &Settings) -> Self {
        let capacity = Resources {
            cpu_millis: info.vcpus * 1000,
            memory_kib: usable_memory_kib(info.memory_mib, settings.memory_overhead),
            pods: pods(info.interfaces, info.addresses),
            storage_kib: i64::from(root_gib) * KIB_PER_GIB,
            devices: devices(&info.accelerators),
        };
        let reserved_kib = reserved_memory_mib(capacity.pods) * KIB_PER_MIB;
        let allocatable = Resources {
            cpu_millis: (capacity.cpu_millis - reserved_cpu_millis(info.vcpus)).max(0),
            memory_kib: (capacity.memory_kib - reserved_kib - EVICTION_MEMORY_KIB).max(0),
            storage_kib: allocatable_storage_kib(capacity.storage_kib),
            ..capacity.clone()
        };
        Self { capacity, allocatable }
    }

    /// What a node has at least that has one of these figures or another, resource by resource.
    #[must_use]
    pub fn minimum(self, other: &Self) -> Self {
        Self {
            capacity: self.capacity.minimum(&other.capacity),
            allocatable: self.allocatable.minimum(&other.allocatable),
        }
    }
}

impl Resources {
    fn minimum(mut self, other: &Self) -> Self {
        self.devices.retain(|name, count| match other.devices.get(name) {
            Some(theirs) => {
                *count = (*count).min(*theirs);
                true
            }
            None => false,
        });
        Self {
            cpu_millis: self.cpu_millis.min(other.cpu_millis),
            memory_kib: self.memory_kib.min(other.memory_kib),
            pods: self.pods.min(other.pods),
            storage_kib: self.storage_kib.min(other.storage_kib),
            devices: self.devices,
        }
    }
}

/// Memory that the operating system sees, in KiB: what EC2 tells less the share that the hypervisor and the kernel
/// keep.
///
/// Source: Karpenter's
/// [VM_MEMORY_OVERHEAD_PERCENT](https://karpenter.sh/docs/reference/settings/), 7.5 % by default.
fn usable_memory_kib(memory_mib: i64, overhead: f64) -> i64 {
    ((memory_mib * KIB_PER_MIB) as f64 * (1.0 - overhead)).floor() as i64
}

/// Pods that the VPC CNI has addresses for: each interface keeps one address for itself, and two pods (`aws-node` and
/// `kube-proxy`) use the host's.
///
/// Source: [Amazon EKS, choose an instance
/// type](https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html),
/// [eni-max-pods.txt](https://github.com/aws/amazon-vpc-cni-k8s/blob/master/misc/eni-max-pods.txt).
fn pods(interfaces: i64, addresses: i64) -> i64 {
    if interfaces > 0 && addresses > 0 { interfaces * (addresses - 1) + 2 } else { DEFAULT_PODS }
}

/// Memory kept for kubelet and container runtime, in MiB.
///
/// Source: [amazon-eks-ami, kube-reserved](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go):
/// 255 MiB + 11 MiB for each pod.
fn reserved_memory_mib(pods: i64) -> i64 {
    255 + 11 * pods
}

/// CPU kept for kubelet and container runtime, in thousandths of a core.
///
/// Source: same file: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the others.
fn reserved_cpu_millis(vcpus: i64) -> i64 {
    let upto = |most: i64, after: i64| (vcpus - after).clamp(0, most);
    // In hundredths of a thousandth, so that 0.25 % of a core is whole.
    let hundredths = upto(1, 0) * 6000 + upto(1, 1) * 1000 + upto(2, 2) * 500 + upto(i64::MAX, 4) * 250;
    hundredths / 100
}

/// Storage for pods, in KiB: less what is reserved, and less the tenth below which the kubelet evicts.
///
/// Source: [Node-pressure eviction, hard eviction
/// thresholds](https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds)
/// (`nodefs.available<10%`).
fn allocatable_storage_kib(capacity: i64) -> i64 {
    (capacity - RESERVED_STORAGE_KIB - capacity / 10).max(0)
}

/// Accelerators as their device plugins name them.
///
/// Sources: [NVIDIA](https://github.com/NVIDIA/k8s-device-plugin), [AMD](https://github.com/ROCm/k8s-device-plugin),
/// [Habana](https://docs.habana.ai/en/latest/Orchestration/Gaudi_Kubernetes/Device_Plugin_for_Kubernetes.html),
/// [AWS Neuron](https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/kubernetes-getting-started.html).
fn devices(accelerators: &[Accelerator]) -> BTreeMap<String, i64> {
    let mut devices = BTreeMap::new();
    for accelerator in accelerators {
        let name = match accelerator.manufacturer.to_ascii_uppercase().as_str() {
            "NVIDIA" => "nvidia.com/gpu",
            "AMD" => "amd.com/gpu",
            "HABANA" => "habana.ai/gaudi",
            "AWS" => "aws.amazon.com/neuron",
            _ => continue,
        };
        if accelerator.count > 0 {
            *devices.entry(name.to_owned()).or_default() += accelerator.count;
        }
    }
    devices
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn instance_type(
        name: &str,
        vcpus: i64,
        gib: i64,
        interfaces: i64,
        addresses: i64,
    ) -> TypeInfo {
        TypeInfo {
            name: name.to_owned(),
            vcpus,
            memory_mib: gib * 1024,
            interfaces,
            addresses,
            ..TypeInfo::default()
        }
    }

    /// Interfaces and addresses of each from
    /// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/AvailableIpPerENI.html>, pods from eni-max-pods.txt,
    /// reserved CPU from the EKS images' own tests.
    #[test]
    fn pods_and_reservations_are_the_published_ones() {
        let table = [
            ("m5.large", 2, 3, 10, 29, 70),
            ("m5.xlarge", 4, 4, 15, 58, 80),
            ("c5.large", 2, 3, 10, 29, 70),
            ("t3.medium", 2, 3, 6, 17, 70),
            ("t3.micro", 2, 2, 2, 4, 70),
            ("m5.2xlarge", 8, 4, 15, 58, 90),
            ("m5.4xlarge", 16, 8, 30, 234, 110),
            ("m6g.large", 2, 3, 10, 29, 70),
            ("c6g.medium", 1, 2, 4, 8, 60),
            ("m5.metal", 96, 15, 50, 737, 310),
            ("p4d.24xlarge", 96, 15, 50, 737, 310),
            ("inf1.xlarge", 4, 4, 10, 38, 80),
        ];
        for (name, vcpus, interfaces, addresses, expected_pods, expected_cpu) in table {
            assert_eq!(pods(interfaces, addresses), expected_pods, "{name}");
            assert_eq!(reserved_cpu_millis(vcpus), expected_cpu, "{name}");
        }
    }

    #[test]
    fn a_node_has_what_is_left_after_every_reservation() {
        let figures = Figures::of(&instance_type("m5.large", 2, 8, 3, 10), 20, &Settings::default());
        // 8 GiB less 7.5 %.
        assert_eq!(figures.capacity.memory_kib, 7_759_462);
        // Less 255 MiB, 29 times 11 MiB, and 100 MiB.
        assert_eq!(figures.allocatable.memory_kib, 7_759_462 - (255 + 29 * 11 + 100) * 1024);
        assert_eq!((figures.capacity.cpu_millis, figures.allocatable.cpu_millis), (2000, 1930));
        assert_eq!((figures.capacity.pods, figures.allocatable.pods), (29, 29));
        assert_eq!(figures.capacity.storage_kib, 20 * KIB_PER_GIB);
        assert_eq!(figures.allocatable.storage_kib, 17 * KIB_PER_GIB);
    }

    #[test]
    fn devices_are_named_as_their_plugins_name_them() {
        let one = |manufacturer: &str, count| Accelerator {
            manufacturer: manufacturer.to_owned(),
            name: String::new(),
            count,
            cores: 0,
        };
        let found =
            devices(&[one("NVIDIA", 4), one("AWS", 1), one("Habana", 8), one("AMD", 0), one("Xilinx", 2)]);
        assert_eq!(
            found,
            [("aws.amazon.com/neuron", 1), ("habana.ai/gaudi", 8), ("nvidia.com/gpu", 4)]
                .map(|(name, count)| (name.to_owned(), count))
                .into()
        );
    }

    proptest! {
        #[test]
        fn a_minimum_is_no_more_than_either(a in types(), b in types()) {
            let least = a.clone().minimum(&b);
            for other in [&a, &b] {
                prop_assert!(least.allocatable.cpu_millis <= other.allocatable.cpu_millis);
                prop_assert!(least.allocatable.memory_kib <= other.allocatable.memory_kib);
                prop_assert!(least.capacity.pods <= other.capacity.pods);
                for (device, count) in &least.capacity.devices {
                    prop_assert!(other.capacity.devices.get(device).is_some_and(|theirs| count <= theirs));
                }
            }
            prop_assert_eq!(least, b.minimum(&a));
        }

        #[test]
        fn nothing_is_allocatable_that_is_not_there(figures in types()) {
            let (has, gives) = (&figures.capacity, &figures.allocatable);
            prop_assert!(0 <= gives.cpu_millis && gives.cpu_millis <= has.cpu_millis);
            prop_assert!(0 <= gives.memory_kib && gives.memory_kib <= has.memory_kib);
            prop_assert!(0 <= gives.storage_kib && gives.storage_kib <= has.storage_kib);
        }
    }

    fn types() -> impl Strategy<Value = Figures> {
        (1..450i64, 0..6000i64, 0..20i64, 0..60i64, 1..500i32, 0..9i64).prop_map(
            |(vcpus, gib, interfaces, addresses, root, gpus)| {
                let mut info = instance_type("x", vcpus, gib, interfaces, addresses);
                info.accelerators = vec![Accelerator {
                    manufacturer: "NVIDIA".into(),
                    name: "T4".into(),
                    count: gpus,
                    cores: 0,
                }];
                Figures::of(&info, root, &Settings::default())
            },
        )
    }
}
