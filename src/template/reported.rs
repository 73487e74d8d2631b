//! Figures reported by kubelets: read, compared, and laid over computed ones.

use super::capacity::{Figures, Resources};
use super::devices::WINDOWS_ADDRESSES;
use crate::cluster::{NodeView, TextMap};
use crate::k8s::quantity;

/// Smaller relative differences are ignored: memory differs by some KiB between hosts of one type, and each would cause
/// a write. Half a percent is far below any pod's request.
const NOISE: f64 = 0.005;

impl Figures {
    /// The figures this node reports.
    pub(super) fn reported(node: &NodeView) -> Self {
        Self {
            capacity: Resources::reported(&node.capacity),
            allocatable: Resources::reported(&node.allocatable),
        }
    }

    /// Replaces these figures by those in `shown`, where it has some.
    #[must_use]
    pub(super) fn overlaid(self, shown: &Self) -> Self {
        let capacity = self.capacity.overlaid(&shown.capacity);
        let mut allocatable = self.allocatable.clone().overlaid(&shown.allocatable);
        // The kubelet leaves a device that has failed in the capacity: the next node has one that has not. Windows' addresses are no
        // devices: where the subnet has fewer, so has the next node.
        for (name, computed) in self.allocatable.devices.iter().filter(|(name, _)| *name != WINDOWS_ADDRESSES)
        {
            let there = capacity.devices.get(name).copied().unwrap_or_default().min(*computed);
            let gives = allocatable.devices.entry(name.clone()).or_default();
            *gives = there.max(*gives);
        }
        Self { capacity, allocatable }
    }

    /// Whether they differ by noise only.
    pub(super) fn is_near(&self, other: &Self) -> bool {
        self.capacity.is_near(&other.capacity) && self.allocatable.is_near(&other.allocatable)
    }
}

impl Resources {
    fn reported(from: &TextMap) -> Self {
        let mut resources = Self::default();
        for (name, text) in from.iter() {
            let Some(value) = quantity::parse(text) else { continue };
            let kib = || (value / 1024.0) as i64;
            match name {
                "cpu" => resources.cpu_millis = (value * 1000.0).round() as i64,
                "memory" => resources.memory_kib = kib(),
                "ephemeral-storage" => resources.storage_kib = kib(),
                "pods" => resources.pods = value as i64,
                _ => {
                    resources.devices.insert(name.to_owned(), value as i64);
                }
            }
        }
        // Zeros are dropped: a device whose plugin has found none yet. Huge pages that are not set up stay: cluster-autoscaler finds
        // no two nodes similar (--balance-similar-node-groups) that do not name the same resources.
        resources.devices.retain(|name, count| *count > 0 || name.starts_with("hugepages-"));
        resources
    }

    /// Keeps devices that only `self` has: a plugin that is down must not remove them from a template for good.
    fn overlaid(self, shown: &Self) -> Self {
        let or = |shown: i64, computed: i64| if shown > 0 { shown } else { computed };
        let mut devices = self.devices;
        devices.extend(shown.devices.clone());
        Self {
            cpu_millis: or(shown.cpu_millis, self.cpu_millis),
            memory_kib: or(shown.memory_kib, self.memory_kib),
            pods: or(shown.pods, self.pods),
            storage_kib: or(shown.storage_kib, self.storage_kib),
            devices,
        }
    }

    fn is_near(&self, other: &Self) -> bool {
        let near = |a: i64, b: i64| (a - b).abs() as f64 <= NOISE * a.max(b) as f64;
        self.devices == other.devices
            && self.cpu_millis == other.cpu_millis
            && self.pods == other.pods
            && near(self.memory_kib, other.memory_kib)
            && near(self.storage_kib, other.storage_kib)
    }
}
