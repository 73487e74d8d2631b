//! What a node of an instance type has (capacity) and what pods can use of it (allocatable). Pure arithmetic.
//!
//! Formulas are those of the EKS images and the kubelet; each function names its source. Nothing goes below zero.
//! `pods` counts pods, `devices` accelerators.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::devices;
use super::pods::Network;
use crate::aws::TypeInfo;
use crate::k8s::quantity;

const KIB_PER_MIB: i64 = 1024;
const KIB_PER_GIB: i64 = 1024 * 1024;

/// Storage reserved for the system, in KiB.
///
/// Source: [amazon-eks-ami, kubelet-config](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go).
const RESERVED_STORAGE_KIB: i64 = KIB_PER_GIB;
/// Memory that Graviton kernels set aside for contiguous allocation (CMA), in MiB.
const GRAVITON_CMA_MIB: i64 = 64;
/// EC2 gives disk sizes in GB.
const BYTES_PER_GB: i64 = 1_000_000_000;
/// 100 % in the unit of [`Kind::memory_overhead`].
const WHOLE: i64 = 10_000;
/// Share of memory that hypervisor and kernel keep of the first [`FIRST_KIB`], in hundredths of a percent: Karpenter's
/// default for all memory.
///
/// Source: [VM_MEMORY_OVERHEAD_PERCENT](https://karpenter.sh/docs/reference/settings/).
const OVERHEAD: i64 = 750;
/// The share that they keep of all memory beyond. Of the types that Karpenter's authors measured, with the image that keeps
/// most (Bottlerocket), `vt1.24xlarge` keeps the largest, 4.2 %.
///
/// Source: Karpenter's measured [memory
/// overhead](https://github.com/aws/karpenter-provider-aws/blob/33450d8f82ded870ce65fbde3cec14dbb2c04f50/pkg/providers/instancetype/zz_generated.memory_overhead.go).
const OVERHEAD_BEYOND: i64 = 450;
/// See [`OVERHEAD`].
const FIRST_KIB: i64 = 32 * KIB_PER_GIB;

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
    /// Extended resources (devices, addresses of Windows nodes) and any others, by name.
    pub devices: BTreeMap<String, i64>,
}

impl Resources {
    /// The same with the quantities that somebody gives for resources of these names; devices are left as they are.
    pub(super) fn with_said(self, said: &BTreeMap<String, String>) -> Self {
        let said = |resource: &str, unit: f64, computed: i64| {
            let quantity = said.get(resource).and_then(|text| quantity::parse(text));
            quantity.map_or(computed, |quantity| (quantity / unit) as i64)
        };
        Self {
            cpu_millis: said("cpu", 0.001, self.cpu_millis),
            memory_kib: said("memory", 1024.0, self.memory_kib),
            pods: said("pods", 1.0, self.pods),
            storage_kib: said("ephemeral-storage", 1024.0, self.storage_kib),
            ..self
        }
    }
}

/// Capacity and allocatable of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// What the node has.
    pub capacity: Resources,
    /// What pods can use.
    pub allocatable: Resources,
}

/// What all nodes that a group launches from one launch template share, whatever their type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// Operating system and network.
    pub(super) network: Network,
    /// Virtual CPUs, if the launch template gives them.
    pub(super) vcpus: Option<i64>,
    /// Size in GiB of the volume for pods' storage.
    pub(super) volume_gib: i32,
    /// Whether pods' storage is on the instance store instead, if the type has one.
    pub(super) local_raid0: bool,
    /// Share of memory that hypervisor and kernel keep, in hundredths of a percent, if the user says it.
    pub(super) memory_overhead: Option<i64>,
}

impl Kind {
    /// Figures of a node of this type, which has shown this much memory, if any, in KiB.
    pub(super) fn figures(&self, info: &TypeInfo, memory_kib: Option<i64>) -> Figures {
        let vcpus = self.vcpus.unwrap_or(info.vcpus);
        let capacity = Resources {
            cpu_millis: vcpus * 1000,
            memory_kib: memory_kib.unwrap_or_else(|| usable_memory_kib(info, self.memory_overhead)),
            pods: self.network.pods(info),
            storage_kib: self.storage_kib(info),
            devices: devices::resources(info, self.network),
        };
        let reserved_mib = reserved_memory_mib(self.network.pods_reserved_for(info));
        let kept_kib = (reserved_mib + self.network.os.eviction_mib()) * KIB_PER_MIB;
        let allocatable = Resources {
            cpu_millis: (capacity.cpu_millis - reserved_cpu_millis(vcpus)).max(0),
            memory_kib: (capacity.memory_kib - kept_kib).max(0),
            storage_kib: allocatable_storage_kib(capacity.storage_kib),
            ..capacity.clone()
        };
        Figures { capacity, allocatable }
    }

    fn storage_kib(&self, info: &TypeInfo) -> i64 {
        if self.local_raid0 && info.instance_store_gb > 0 {
            info.instance_store_gb.saturating_mul(BYTES_PER_GB) / 1024
        } else {
            i64::from(self.volume_gib) * KIB_PER_GIB
        }
    }
}

impl Figures {
    /// With this number of pods, if the user says one.
    #[must_use]
    pub(super) fn with_pods(mut self, pods: Option<i64>) -> Self {
        if let Some(pods) = pods {
            self.capacity.pods = pods;
            self.allocatable.pods = pods;
        }
        self
    }

    /// The smaller of both figures, resource by resource.
    #[must_use]
    pub fn minimum(self, other: &Self) -> Self {
        Self {
            capacity: self.capacity.minimum(&other.capacity),
            allocatable: self.allocatable.minimum(&other.allocatable),
        }
    }

    /// The larger of both figures, resource by resource.
    #[must_use]
    pub fn maximum(self, other: &Self) -> Self {
        Self {
            capacity: self.capacity.maximum(&other.capacity),
            allocatable: self.allocatable.maximum(&other.allocatable),
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
        self.each(other, i64::min)
    }

    fn maximum(mut self, other: &Self) -> Self {
        for (name, theirs) in &other.devices {
            let count = self.devices.entry(name.clone()).or_default();
            *count = (*count).max(*theirs);
        }
        self.each(other, i64::max)
    }

    /// Chooses between each pair of figures; devices are kept.
    fn each(self, other: &Self, choose: fn(i64, i64) -> i64) -> Self {
        Self {
            cpu_millis: choose(self.cpu_millis, other.cpu_millis),
            memory_kib: choose(self.memory_kib, other.memory_kib),
            pods: choose(self.pods, other.pods),
            storage_kib: choose(self.storage_kib, other.storage_kib),
            devices: self.devices,
        }
    }
}

/// Memory the operating system sees, in KiB: EC2's figure less CMA on Graviton, less what hypervisor and kernel keep.
///
/// Source: `memory` in [Karpenter's instance
/// types](https://github.com/aws/karpenter-provider-aws/blob/main/pkg/providers/instancetype/types.go).
fn usable_memory_kib(info: &TypeInfo, overhead: Option<i64>) -> i64 {
    let set_apart = if info.arm { GRAVITON_CMA_MIB } else { 0 };
    let kib = (info.memory_mib - set_apart).max(0) * KIB_PER_MIB;
    let left = |kib: i64, overhead: i64| kib * (WHOLE - overhead);
    let parts = match overhead {
        Some(overhead) => left(kib, overhead),
        None => left(kib.min(FIRST_KIB), OVERHEAD) + left((kib - FIRST_KIB).max(0), OVERHEAD_BEYOND),
    };
    parts / WHOLE
}

/// Kubelet reserve of memory, in MiB.
///
/// Source: [amazon-eks-ami, kube-reserved](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go):
/// 255 MiB + 11 MiB for each pod.
fn reserved_memory_mib(pods: i64) -> i64 {
    255 + 11 * pods
}

/// Kubelet reserve of CPU, in thousandths of a core.
///
/// Source: same file: 6 % of the first core, 1 % of the second, 0.5 % of the next two, 0.25 % of the others.
fn reserved_cpu_millis(vcpus: i64) -> i64 {
    let upto = |most: i64, after: i64| (vcpus - after).clamp(0, most);
    // Computed in hundredths of a thousandth, so that 0.25 % of a core is whole.
    let hundredths = upto(1, 0) * 6000 + upto(1, 1) * 1000 + upto(2, 2) * 500 + upto(i64::MAX, 4) * 250;
    hundredths / 100
}

/// Allocatable storage, in KiB: capacity less the reserve, less the tenth below which the kubelet evicts.
///
/// Source: [Node-pressure eviction, hard eviction
/// thresholds](https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds)
/// (`nodefs.available<10%`).
fn allocatable_storage_kib(capacity: i64) -> i64 {
    (capacity - RESERVED_STORAGE_KIB - capacity / 10).max(0)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::aws::Accelerator;

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

    fn kind() -> Kind {
        Kind {
            network: Network::default(),
            vcpus: None,
            volume_gib: 20,
            local_raid0: false,
            memory_overhead: None,
        }
    }

    /// The values of the EKS images' own tests.
    #[test]
    fn reserved_cpu_is_the_published_one() {
        for (vcpus, expected) in [(1, 60), (2, 70), (4, 80), (8, 90), (16, 110), (96, 310), (192, 550)] {
            assert_eq!(reserved_cpu_millis(vcpus), expected, "{vcpus}");
        }
    }

    #[test]
    fn a_node_has_what_is_left_after_every_reservation() {
        let figures = kind().figures(&instance_type("m5.large", 2, 8, 3, 10), None);
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
    fn the_share_of_memory_that_is_kept_is_a_choice() {
        let of = |gib, memory_overhead| {
            let kind = Kind { memory_overhead: Some(memory_overhead), ..kind() };
            kind.figures(&instance_type("m5.large", 2, gib, 3, 10), None).capacity.memory_kib
        };
        assert_eq!((of(8, 0), of(8, 5000)), (8 * KIB_PER_GIB, 4 * KIB_PER_GIB));
        assert_eq!(of(1024, 750), 1024 * KIB_PER_GIB * 925 / 1000, "it is one of all memory");
    }

    /// MiB that nodes keep are those of Karpenter's measured memory overhead, with Bottlerocket (see
    /// [`OVERHEAD_BEYOND`]).
    #[test]
    fn a_node_has_no_less_memory_than_is_computed_and_a_large_one_not_much_more() {
        let table = [
            // GiB, whether it is arm64, MiB that hypervisor and kernel keep
            ("m5.large", 8, false, 559),
            ("m5.xlarge", 16, false, 868),
            ("c5.4xlarge", 32, false, 1710),
            ("vt1.6xlarge", 48, false, 3008),
            ("m6a.4xlarge", 64, false, 2608),
            ("c5.9xlarge", 72, false, 3521),
            ("c5.18xlarge", 144, false, 6728),
            ("vt1.24xlarge", 192, false, 9265),
            ("m5.12xlarge", 192, false, 7556),
            ("m6g.16xlarge", 256, true, 9976),
            ("m6a.24xlarge", 384, false, 14_385),
            ("m6i.32xlarge", 512, false, 16_441),
            ("g5.48xlarge", 768, false, 20_552),
            ("i4i.32xlarge", 1024, false, 32_697),
            ("r6a.48xlarge", 1536, false, 57_072),
            ("p5.48xlarge", 2048, false, 49_192),
        ];
        for (name, gib, arm, kept_mib) in table {
            let info = TypeInfo { arm, ..instance_type(name, 2, gib, 3, 10) };
            let computed = kind().figures(&info, None).capacity.memory_kib;
            let real = (gib * 1024 - kept_mib) * KIB_PER_MIB;
            assert!(computed <= real, "{name}: {computed}");
            assert!(gib < 128 || computed >= real / 100 * 97, "{name}: {computed}");
        }
    }

    /// Sources: [i4i.32xlarge](https://github.com/aws/karpenter-provider-aws/issues/6611), where four pods of 240,954 MiB fit,
    /// and [trn1.32xlarge](https://github.com/aws/karpenter-provider-aws/issues/6509), whose node gives 22 GiB more
    /// than 481,894 MiB.
    #[test]
    fn a_pod_that_has_a_large_node_to_itself_fits_its_template() {
        let table = [
            // GiB, interfaces, what pods request in MiB, what the node gives in MiB
            ("i4i.32xlarge", 1024, 15, 4 * 240_954, 1_007_423),
            ("trn1.32xlarge", 512, 5, 498_431_899 / 1024 + 1, 481_894 + 22 * 1024),
        ];
        for (name, gib, interfaces, requested, real) in table {
            let computed = kind().figures(&instance_type(name, 128, gib, interfaces, 50), None);
            let gives = computed.allocatable.memory_kib / KIB_PER_MIB;
            assert!((requested..real).contains(&gives) && gives >= real / 100 * 98, "{name}: {gives}");
        }
    }

    #[test]
    fn memory_that_was_shown_takes_the_place_of_what_is_computed_and_pods_get_it_less_the_reserves() {
        let figures = kind().figures(&instance_type("m5.large", 2, 8, 3, 10), Some(7_900_000));
        let expected = (7_900_000, 7_900_000 - (255 + 29 * 11 + 100) * 1024);
        assert_eq!((figures.capacity.memory_kib, figures.allocatable.memory_kib), expected);
    }

    #[test]
    fn graviton_sets_memory_apart_before_the_share_is_taken() {
        let info = TypeInfo { arm: true, ..instance_type("m6g.large", 2, 8, 3, 10) };
        assert_eq!(kind().figures(&info, None).capacity.memory_kib, (8192 - 64) * 1024 * 925 / 1000);
        let tiny = TypeInfo { memory_mib: 32, ..info };
        assert_eq!(kind().figures(&tiny, None).capacity.memory_kib, 0);
    }

    #[test]
    fn how_many_pods_a_group_is_told_to_have_beats_what_its_nodes_show_and_nothing_else_does() {
        let shown = kind().figures(&instance_type("m5.large", 2, 8, 3, 10), None);
        assert_eq!(shown.clone().with_pods(None), shown);
        let (capacity, allocatable) = (shown.capacity.clone(), shown.allocatable.clone());
        let expected = Figures {
            capacity: Resources { pods: 20, ..capacity },
            allocatable: Resources { pods: 20, ..allocatable },
        };
        assert_eq!(shown.with_pods(Some(20)), expected);
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
        fn a_maximum_is_no_less_than_either(a in types(), b in types()) {
            let most = a.clone().maximum(&b);
            for other in [&a, &b] {
                prop_assert_eq!(&most.clone().minimum(other), other);
                for (device, count) in &other.capacity.devices {
                    prop_assert!(most.capacity.devices.get(device).is_some_and(|ours| count <= ours));
                }
            }
            prop_assert_eq!(most, b.maximum(&a));
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
                Kind { volume_gib: root, ..kind() }.figures(&info, None)
            },
        )
    }
}
