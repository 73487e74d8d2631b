//! What a vCPU, a GiB of memory and a GPU cost in a region: the prices of machines, taken apart. Pure.
//!
//! Machines that are vCPUs and memory and little besides (families like `m5`, `c7g`, `r6a`, `m7i-flex`: no disks, no faster network,
//! no share of a core) are taken for just that. Two prices are sought with which the sums come closest to the machines' real
//! prices: least squares of the *relative* errors, so that a machine of 30 USD an hour has no more to say than one of 3 cents.
//! What NVIDIA machines cost beyond that is the price of their GPUs, fitted the same way.
//!
//! cluster-autoscaler divides what nodes cost by what their pods cost "on a perfectly matching machine": both in USD here.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use super::table;
use crate::aws::{Accelerator, TypeInfo, type_table};

/// MiB in a GiB.
const MIB_PER_GIB: f64 = 1024.0;
/// Stands in for a region that the table does not have: the one with the most types.
pub const BASE_REGION: &str = "us-east-1";

/// Prices of parts of a machine, in USD per hour.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Of a vCPU.
    pub vcpu: f64,
    /// Of a GiB of memory.
    pub gib: f64,
    /// Of a GPU.
    pub gpu: f64,
}

/// How well the parts add up to the machines' prices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Residuals {
    /// Number of machines that are vCPUs and memory.
    pub machines: usize,
    /// Half of them are off by no more than this share of their price.
    pub median: f64,
    /// Nine of ten are off by no more than this.
    pub ninth_decile: f64,
}

/// A machine: its size and its price.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Machine {
    vcpus: f64,
    gib: f64,
    gpus: f64,
    price: f64,
}

impl Parts {
    /// The prices of parts in a region of the table, or else in [`BASE_REGION`]. Reckoned once for each.
    pub fn of(region: &str) -> Self {
        static KNOWN: Mutex<BTreeMap<&str, Parts>> = Mutex::new(BTreeMap::new());
        // Whoever asks names the region: only the table's are kept.
        let region = table::regions().find(|known| *known == region).unwrap_or(BASE_REGION);
        let mut known = KNOWN.lock();
        *known.entry(region).or_insert_with(|| Self::fitted(region))
    }

    fn fitted(region: &str) -> Self {
        let found = fit(&machines(region));
        // A region without GPUs tells nothing of their price.
        if found.gpu > 0.0 { found } else { Self { gpu: fit(&machines(BASE_REGION)).gpu, ..found } }
    }

    /// What so much of everything costs.
    pub fn price(&self, vcpus: f64, gib: f64, gpus: f64) -> f64 {
        self.vcpu * vcpus + self.gib * gib + self.gpu * gpus
    }

    /// What a machine of this size would cost.
    pub fn price_of(&self, info: &TypeInfo) -> f64 {
        self.price(info.vcpus as f64, info.memory_mib as f64 / MIB_PER_GIB, gpus(info))
    }
}

impl Residuals {
    /// How well the parts add up in a region.
    pub fn of(region: &str) -> Self {
        let machines = machines(region);
        let parts = fit(&machines);
        let plain = machines.iter().filter(|machine| machine.gpus == 0.0);
        let mut off: Vec<f64> = plain
            .map(|machine| (parts.price(machine.vcpus, machine.gib, 0.0) / machine.price - 1.0).abs())
            .collect();
        off.sort_by(f64::total_cmp);
        let at = |share: usize| off.get(off.len() * share / 10).copied().unwrap_or_default();
        Self { machines: off.len(), median: at(5), ninth_decile: at(9) }
    }
}

/// The GPUs of a type: what pods ask for as `nvidia.com/gpu`.
fn gpus(info: &TypeInfo) -> f64 {
    let nvidia = info.accelerators.iter().filter(|one| one.manufacturer == "NVIDIA");
    nvidia.map(|one| one.count as f64).sum()
}

fn machines(region: &str) -> Vec<Machine> {
    let of = |region| table::in_region(region).filter_map(|(name, price)| machine(name, price)).collect();
    let found: Vec<_> = of(region);
    if found.is_empty() { of(BASE_REGION) } else { found }
}

/// A machine that is vCPUs and memory, or has GPUs of NVIDIA besides.
fn machine(name: &str, price: f64) -> Option<Machine> {
    let is_nvidia = |one: &Accelerator| one.manufacturer == "NVIDIA";
    let info = type_table::find(name)?;
    let (gpus, gib) = (gpus(&info), info.memory_mib as f64 / MIB_PER_GIB);
    let counts = if gpus > 0.0 { info.accelerators.iter().all(is_nvidia) } else { is_plain(name) };
    counts.then_some(Machine { vcpus: info.vcpus as f64, gib, gpus, price })
}

/// Whether a type is of a family of vCPUs and memory: compute, general or memory optimised, of the fifth generation or later, of
/// any processor, and without a letter for anything more.
///
/// Source: [Instance type naming](https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-type-names.html).
fn is_plain(name: &str) -> bool {
    let family = name.split('.').next().unwrap_or_default();
    let family = family.strip_suffix("-flex").unwrap_or(family);
    let Some(rest) = family.strip_prefix(['c', 'm', 'r']) else { return false };
    let generation = rest.strip_suffix(['a', 'g', 'i']).unwrap_or(rest);
    generation.parse::<u8>().is_ok_and(|generation| generation >= 5)
}

/// Least squares of relative errors: every machine weighs as much as any other.
fn fit(machines: &[Machine]) -> Parts {
    let (mut cc, mut cm, mut mm, mut c, mut m) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for one in machines.iter().filter(|machine| machine.gpus == 0.0) {
        let (vcpus, gib) = (one.vcpus / one.price, one.gib / one.price);
        cc += vcpus * vcpus;
        cm += vcpus * gib;
        mm += gib * gib;
        c += vcpus;
        m += gib;
    }
    let determinant = cc * mm - cm * cm;
    let (vcpu, gib) = if determinant.abs() > f64::EPSILON {
        ((c * mm - m * cm) / determinant, (m * cc - c * cm) / determinant)
    } else {
        (0.0, 0.0)
    };
    // Neither is for nothing, whatever the table says.
    let (vcpu, gib) = (vcpu.max(0.0), gib.max(0.0));
    let (mut gg, mut g) = (0.0, 0.0);
    for one in machines.iter().filter(|machine| machine.gpus > 0.0) {
        let beyond = 1.0 - (vcpu * one.vcpus + gib * one.gib) / one.price;
        let gpus = one.gpus / one.price;
        gg += gpus * gpus;
        g += gpus * beyond;
    }
    Parts { vcpu, gib, gpu: if gg > 0.0 { (g / gg).max(0.0) } else { 0.0 } }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn machines_come_apart_in_every_region_half_of_them_to_within_an_eighth_of_their_price() {
        for region in table::regions() {
            let (parts, residuals) = (Parts::of(region), Residuals::of(region));
            assert!(residuals.machines > 30, "{region} {residuals:?}");
            // In India machines with processors of Intel's cost nearly twice as much as all others.
            let (median, ninth_decile) =
                if region.starts_with("ap-south-") { (0.3, 0.4) } else { (0.125, 0.25) };
            assert!(residuals.median < median, "{region} {parts:?} {residuals:?}");
            assert!(residuals.ninth_decile < ninth_decile, "{region} {parts:?} {residuals:?}");
            assert!((0.02..0.06).contains(&parts.vcpu), "{region} {parts:?}");
            assert!((0.001..0.01).contains(&parts.gib), "{region} {parts:?}");
            assert!((0.3..3.0).contains(&parts.gpu), "{region} {parts:?}");
        }
    }

    #[test]
    fn a_family_of_vcpus_and_memory_is_known_by_its_name() {
        for name in ["m5.large", "c7g.xlarge", "r6a.48xlarge", "m7i-flex.large", "m5.metal", "m10g.large"] {
            assert!(is_plain(name), "{name}");
        }
        for name in [
            "t3.large",
            "m5d.large",
            "c5n.large",
            "m4.large",
            "r5b.large",
            "x2gd.large",
            "g5.xlarge",
            "mac2.metal",
            "m",
            "",
        ] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn a_region_that_the_table_does_not_have_costs_what_the_base_region_does() {
        assert_eq!(Parts::of("mars-1"), Parts::of(BASE_REGION));
        assert!(Parts::of(BASE_REGION).gpu > 0.0);
    }

    #[test]
    fn too_few_machines_give_no_prices_of_parts() {
        assert_eq!(fit(&[]), Parts::default());
        let one = Machine { vcpus: 2.0, gib: 8.0, gpus: 0.0, price: 0.1 };
        assert_eq!(fit(&[one]), Parts::default(), "one machine does not come apart");
    }

    proptest! {
        #[test]
        fn parts_that_add_up_are_found(
            vcpu in 0.01..0.1_f64, gib in 0.001..0.02_f64, gpu in 0.1..3.0_f64,
            sizes in prop::collection::btree_set((1..64_u8, 1..64_u8, 0..4_u8), 8..40),
        ) {
            let parts = Parts { vcpu, gib, gpu };
            let machine = |(vcpus, gib, gpus)| {
                let (vcpus, gib, gpus) = (f64::from(vcpus), f64::from(gib), f64::from(gpus));
                Machine { vcpus, gib, gpus, price: parts.price(vcpus, gib, gpus) }
            };
            let machines: Vec<_> = sizes.into_iter().map(machine).collect();
            let ratios: Vec<f64> = machines.iter().filter(|one| one.gpus == 0.0).map(|one| one.gib / one.vcpus).collect();
            prop_assume!(ratios.iter().any(|ratio| (ratio / ratios[0] - 1.0).abs() > 0.2));
            prop_assume!(machines.iter().any(|one| one.gpus > 0.0));
            let found = fit(&machines);
            prop_assert!((found.vcpu / vcpu - 1.0).abs() < 1e-4, "{:?}", found);
            prop_assert!((found.gib / gib - 1.0).abs() < 1e-4, "{:?}", found);
            prop_assert!((found.gpu / gpu - 1.0).abs() < 1e-4, "{:?}", found);
        }
    }
}
