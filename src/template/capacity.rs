//! What of an instance a node can use, and what of that pods can. Pure.

/// The share of its memory that an instance under a hypervisor does not see: what cluster-autoscaler's own AWS provider
/// and karpenter's default (`vmMemoryOverheadPercent`) reckon with.
/// Source: [karpenter settings](https://karpenter.sh/docs/reference/settings/).
const HYPERVISOR_SHARE: f64 = 0.075;

/// Memory that the kubelet keeps from pods before it evicts them, in MiB.
/// Source: [EKS AMI](https://github.com/awslabs/amazon-eks-ami) `evictionHard: memory.available: 100Mi`.
const EVICTION_MEMORY_MIB: i64 = 100;

/// Ephemeral storage reserved for the kubelet and the system, in MiB: 1 GiB.
/// Source: [EKS AMI](https://github.com/awslabs/amazon-eks-ami) `kubeReserved: ephemeral-storage: 1Gi`.
const RESERVED_STORAGE_MIB: i64 = 1_024;

/// Pods on a node without knowledge of its network: the kubelet's default.
/// Source: [KubeletConfiguration `maxPods`](https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
const DEFAULT_PODS: i64 = 110;

/// What a node has, and what of it pods can use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// CPU in thousandths.
    pub cpu_millis: i64,
    /// Memory in MiB.
    pub memory_mib: i64,
    /// Ephemeral storage in MiB.
    pub storage_mib: i64,
    /// Pods.
    pub pods: i64,
}

/// Pods that the VPC CNI has addresses for: `interfaces × (addresses − 1) + 2`.
/// Source: [eni-max-pods](https://github.com/awslabs/amazon-eks-ami/blob/main/templates/shared/runtime/eni-max-pods.txt).
pub fn pods(interfaces: i64, addresses_per_interface: i64) -> i64 {
    if interfaces <= 0 || addresses_per_interface <= 1 {
        return DEFAULT_PODS;
    }
    interfaces * (addresses_per_interface - 1) + 2
}

/// Memory in MiB that the operating system sees.
pub fn memory_seen(memory_mib: i64, bare_metal: bool) -> i64 {
    if bare_metal { memory_mib } else { memory_mib - (memory_mib as f64 * HYPERVISOR_SHARE).ceil() as i64 }
}

/// CPU in thousandths kept for the kubelet: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of
/// the rest.
/// Source: [EKS AMI](https://github.com/awslabs/amazon-eks-ami) `bootstrap.sh`, `get_cpu_millicores_to_reserve`.
pub fn reserved_cpu_millis(vcpus: i64) -> i64 {
    let share = |from: i64, to: i64, per_mille_tenths: i64| (vcpus.min(to) - from).max(0) * per_mille_tenths;
    // In tenths of a thousandth of a core, so that 0.25 % stays whole.
    let tenths = share(0, 1, 600) + share(1, 2, 100) + share(2, 4, 50) + share(4, i64::MAX, 25);
    tenths / 10
}

/// Memory in MiB kept for the kubelet: 255 MiB and 11 MiB for each pod.
/// Source: [EKS AMI](https://github.com/awslabs/amazon-eks-ami) `bootstrap.sh`, `get_memory_mebibytes_to_reserve`.
pub fn reserved_memory_mib(pods: i64) -> i64 {
    255 + 11 * pods
}

/// What pods can use of `capacity`.
pub fn allocatable(capacity: Amounts) -> Amounts {
    let vcpus = capacity.cpu_millis / 1_000;
    Amounts {
        cpu_millis: (capacity.cpu_millis - reserved_cpu_millis(vcpus)).max(0),
        memory_mib: (capacity.memory_mib - reserved_memory_mib(capacity.pods) - EVICTION_MEMORY_MIB).max(0),
        // The kubelet evicts pods when a tenth of the storage is left.
        storage_mib: (capacity.storage_mib - RESERVED_STORAGE_MIB - capacity.storage_mib / 10).max(0),
        pods: capacity.pods,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn pods_are_what_the_published_list_says() {
        let table = [
            ("t3.medium", 3, 6, 17),
            ("m5.large", 3, 10, 29),
            ("m5.xlarge", 4, 15, 58),
            ("c5.large", 3, 10, 29),
            ("m5.24xlarge", 15, 50, 737),
            ("unknown", 0, 0, 110),
        ];
        for (name, interfaces, addresses, expected) in table {
            assert_eq!(pods(interfaces, addresses), expected, "{name}");
        }
    }

    #[test]
    fn cpu_is_reserved_by_the_published_shares() {
        for (vcpus, millis) in [(1, 60), (2, 70), (4, 80), (8, 90), (16, 110), (96, 310)] {
            assert_eq!(reserved_cpu_millis(vcpus), millis, "{vcpus}");
        }
    }

    #[test]
    fn an_m5_large_leaves_what_a_real_one_leaves() {
        let capacity = Amounts {
            cpu_millis: 2_000,
            memory_mib: memory_seen(8_192, false),
            storage_mib: 20 * 1_024,
            pods: pods(3, 10),
        };
        let allocatable = allocatable(capacity);
        assert_eq!(allocatable.cpu_millis, 1_930);
        assert_eq!(allocatable.pods, 29);
        // A real one shows 7,244,720 KiB or thereabouts; the hypervisor's share is reckoned on the safe side.
        assert!((6_900..=7_100).contains(&allocatable.memory_mib), "{}", allocatable.memory_mib);
    }

    proptest! {
        #[test]
        fn pods_never_get_more_than_there_is(cpu in 0..200i64, memory in 0..4_000_000i64, storage in 0..4_000_000i64, pods in 0..800i64) {
            let capacity = Amounts { cpu_millis: cpu * 1_000, memory_mib: memory, storage_mib: storage, pods };
            let left = allocatable(capacity);
            prop_assert!(left.cpu_millis <= capacity.cpu_millis && left.cpu_millis >= 0);
            prop_assert!(left.memory_mib <= capacity.memory_mib && left.memory_mib >= 0);
            prop_assert!(left.storage_mib <= capacity.storage_mib && left.storage_mib >= 0);
        }
    }
}
