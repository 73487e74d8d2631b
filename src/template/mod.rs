//! What a new node of a group will look like, so that cluster-autoscaler can scale the group from zero.
//!
//! - Pure: facts about the group and its instance types in, an encoded Node out. Discovery gathers the facts.
//! - With several types, each resource is the least of them: a pod that fits the template fits any of them
//!   ([`MixedInstances`] has other choices). Labels of a type are the first one's, as in cluster-autoscaler's own AWS
//!   provider.
//! - [`capacity`], [`devices`], `pods` and `os` have the formulas and their sources. Figures of real nodes beat them
//!   ([`learned`]), and the group's tags beat both.

pub mod capacity;
pub mod devices;
mod facts;
pub mod learned;
mod node;
mod os;
mod pods;
mod reported;
pub mod tags;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use capacity::{Figures, Resources};
use prost::Message;

use crate::aws::{LaunchSpec, ManagedNodeGroup};
pub use facts::{Candidate, Facts, Managed, Market};
pub use learned::store::LearnedStore;
use pods::Network;

/// A template Node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Template {
    /// The encoded `core/v1` Node, the same in both dialects.
    pub encoded: Bytes,
    /// Computed figures compared with the last real node's, if one has been seen.
    pub difference: Option<Difference>,
    /// How the group pays for its instances, if one way only.
    pub market: Option<Market>,
    /// How many instance types the group may launch, as far as they are known: its labels name the first.
    pub types: usize,
    /// Devices that EC2 lists for a type, and a settled node of it has not shown: the template promises them all the same.
    pub unshown: BTreeSet<String>,
}

/// (computed − real) / real, for each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Difference {
    /// CPU.
    pub cpu: f64,
    /// Memory.
    pub memory: f64,
    /// Pods.
    pub pods: f64,
    /// Ephemeral storage.
    pub storage: f64,
}

impl Difference {
    fn of(computed: &Resources, real: &Resources) -> Self {
        let share = |computed: i64, real: i64| {
            if real > 0 { (computed - real) as f64 / real as f64 } else { 0.0 }
        };
        Self {
            cpu: share(computed.cpu_millis, real.cpu_millis),
            memory: share(computed.memory_kib, real.memory_kib),
            pods: share(computed.pods, real.pods),
            storage: share(computed.storage_kib, real.storage_kib),
        }
    }

    /// Each resource's, by the name that people read.
    pub fn shares(self) -> [(&'static str, f64); 4] {
        let Self { cpu, memory, pods, storage } = self;
        [("cpu", cpu), ("memory", memory), ("pods", pods), ("ephemeral-storage", storage)]
    }
}

/// Why a group has no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub Arc<str>);

impl TemplateError {
    /// An error with this text.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }
}

/// User settings for templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Share of memory that hypervisor and kernel keep, in hundredths of a percent. If none, one that falls with size.
    pub memory_overhead: Option<i64>,
    /// Pods a node takes, if the cluster does not use the VPC CNI.
    pub max_pods: Option<i64>,
    /// Figures of a group with several types.
    pub mixed: MixedInstances,
    /// Whether instance types come from the built-in table instead of EC2.
    pub static_types: bool,
}

impl Settings {
    /// Those for a group whose types meet attributes: EC2 lists them in no order. cluster-autoscaler's own provider tells the attributes'
    /// minimum there.
    ///
    /// Source: `updateCapacityWithRequirementsOverrides` in
    /// [aws_manager.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_manager.go).
    #[must_use]
    pub fn of_attributes(self) -> Self {
        let mixed = if self.mixed == MixedInstances::First { MixedInstances::Min } else { self.mixed };
        Self { mixed, ..self }
    }
}

/// How to choose the figures of a group with several types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MixedInstances {
    /// The least of each resource.
    #[default]
    Min,
    /// Those of the preferred type; of types that meet attributes the least, as none is preferred.
    First,
    /// The most of each resource.
    Max,
}

impl MixedInstances {
    fn of(self, mut figures: impl Iterator<Item = Figures>) -> Option<Figures> {
        match self {
            Self::Min => figures.reduce(|least, other| least.minimum(&other)),
            Self::First => figures.next(),
            Self::Max => figures.reduce(|most, other| most.maximum(&other)),
        }
    }
}

/// The encoded Node that is told of a group without a template: nothing fits on it.
pub fn without_room(group: &str) -> Bytes {
    node::without_room(group).encode_to_vec().into()
}

impl Template {
    /// The instance type that its labels name, and what it gives to pods.
    pub fn figures(&self) -> (Option<String>, BTreeMap<String, String>) {
        node::figures(&self.encoded)
    }

    /// Makes the template.
    pub fn of(facts: &Facts<'_>, settings: &Settings) -> Result<Self, TemplateError> {
        let zone =
            facts.zones.first().ok_or_else(|| TemplateError::new("the group has no availability zone"))?;
        let figures = settings
            .mixed
            .of(facts.types.iter().filter_map(|candidate| figures_of(facts, settings, candidate)));
        let (Some(first), Some(figures)) = (facts.types.first(), figures) else {
            return Err(TemplateError::new("no instance type of the group is known"));
        };
        let difference = facts.learned.and_then(|learned| {
            let last = facts.types.iter().find(|candidate| candidate.info.name == learned.last)?;
            let real = learned.types.get(&learned.last)?;
            let computed = computed(facts, settings, last, None)?.allocatable;
            Some(Difference::of(&computed.with_said(&facts.tags.resources), &real.allocatable))
        });
        let encoded = node::build(facts, zone, first.info, &figures).encode_to_vec().into();
        let unshown = facts.types.iter().flat_map(|candidate| unshown(facts, candidate)).collect();
        Ok(Self { encoded, difference, market: facts.market, types: facts.types.len(), unshown })
    }
}

/// Devices of a type that its last settled node has not shown, unless a tag says how many there are.
fn unshown(facts: &Facts<'_>, candidate: &Candidate<'_>) -> Vec<String> {
    let name = &candidate.info.name;
    let settled = facts.learned.filter(|learned| learned.settled.contains(name));
    let Some(shown) = settled.and_then(|learned| learned.types.get(name)) else { return Vec::new() };
    let is_said = |device: &String| {
        shown.capacity.devices.contains_key(device) || facts.tags.resources.contains_key(device)
    };
    let listed = devices::devices(&candidate.info.accelerators).into_keys();
    listed.filter(|device| !is_said(device)).collect()
}

/// What a node of this type is computed to be, from the memory that it has shown, if any, in KiB. Of several launch
/// templates the least of each resource.
fn computed(
    facts: &Facts<'_>,
    settings: &Settings,
    candidate: &Candidate<'_>,
    memory_kib: Option<i64>,
) -> Option<Figures> {
    let figures = candidate.specs.iter().map(|spec| {
        let kind = kind(facts, settings, spec);
        kind.figures(candidate.info, memory_kib)
    });
    figures.reduce(|least, other| least.minimum(&other))
}

/// What a node of this type will be: as computed, corrected by what real nodes have shown and what the user says.
fn figures_of(facts: &Facts<'_>, settings: &Settings, candidate: &Candidate<'_>) -> Option<Figures> {
    let Some(learned) = facts.learned else { return computed(facts, settings, candidate, None) };
    let name = &candidate.info.name;
    let computed = computed(facts, settings, candidate, learned.memory_kib(name))?;
    Some(learned.correct(name, computed).with_pods(facts.tags.max_pods))
}

fn kind(facts: &Facts<'_>, settings: &Settings, spec: &LaunchSpec) -> capacity::Kind {
    let os = facts.os(spec);
    let of_eks = || facts.described().and_then(|described| described.disk_gib);
    capacity::Kind {
        network: Network {
            os,
            prefixes: facts.tags.prefix_delegation,
            by_eks: facts.described().is_some_and(ManagedNodeGroup::has_image_of_eks),
            user_data: spec.user_data.max_pods,
            overlay: settings.max_pods,
            max_pods: facts.tags.max_pods,
        },
        vcpus: spec.vcpus,
        volume_gib: os.volume(&spec.volumes).or_else(of_eks).unwrap_or(os.default_volume_gib()),
        local_raid0: spec.user_data.local_raid0,
        memory_overhead: settings.memory_overhead,
    }
}
