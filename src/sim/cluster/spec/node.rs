//! Machines and their Nodes.

use std::collections::BTreeMap;

use super::{Fixture, Made};

/// A machine and the Node it will register.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct NodeSpec {
    /// Name of the Node.
    pub name: String,
    /// Provider id, such as `aws:///us-east-1a/i-0123`.
    pub provider_id: Option<String>,
    /// Its labels, in addition to those that every kubelet sets.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<Taint>,
    /// Cores.
    pub cpu: u32,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Most pods.
    pub pods: u32,
    /// Allocatable, by resource, if it differs from the capacity.
    pub allocatable: BTreeMap<String, String>,
    /// Seconds from now to its registration.
    pub boot_seconds: u64,
    /// Whether its Node is as large as those of EKS are.
    pub is_like_eks: bool,
}

/// A taint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taint {
    /// Its key.
    pub key: String,
    /// Its value, possibly empty.
    pub value: String,
    /// `NoSchedule`, `PreferNoSchedule` or `NoExecute`.
    pub effect: String,
}

/// A node with 4 cores, 16 GiB and room for 110 pods, registered at once.
pub fn node(name: &str) -> NodeSpec {
    NodeSpec {
        name: name.to_owned(),
        provider_id: None,
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        taints: Vec::new(),
        cpu: 4,
        memory_mib: 16 * 1024,
        pods: 110,
        allocatable: BTreeMap::new(),
        boot_seconds: 0,
        is_like_eks: false,
    }
}

impl NodeSpec {
    /// With this provider id.
    pub fn provider_id(mut self, id: &str) -> Self {
        self.provider_id = Some(id.to_owned());
        self
    }

    /// With a label.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With an annotation.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With a taint.
    pub fn taint(mut self, key: &str, value: &str, effect: &str) -> Self {
        self.taints.push(Taint { key: key.to_owned(), value: value.to_owned(), effect: effect.to_owned() });
        self
    }

    /// With this many cores.
    pub fn cpu(mut self, cores: u32) -> Self {
        self.cpu = cores;
        self
    }

    /// With this much memory.
    pub fn memory_mib(mut self, mib: u64) -> Self {
        self.memory_mib = mib;
        self
    }

    /// With room for this many pods.
    pub fn pods(mut self, pods: u32) -> Self {
        self.pods = pods;
        self
    }

    /// With this much of a resource allocatable.
    pub fn allocatable(mut self, resource: &str, quantity: &str) -> Self {
        self.allocatable.insert(resource.to_owned(), quantity.to_owned());
        self
    }

    /// As large as those of EKS are: 25 labels, the 50 images that a kubelet reports, and who manages which field.
    pub fn like_eks(mut self) -> Self {
        self.is_like_eks = true;
        self
    }

    /// Registers after this many seconds.
    pub fn boots_after(mut self, seconds: u64) -> Self {
        self.boot_seconds = seconds;
        self
    }
}

impl From<NodeSpec> for Fixture {
    fn from(spec: NodeSpec) -> Self {
        Self(Made::Machine(spec))
    }
}
