//! The operating system of a node, as far as templates differ by it.
//!
//! A label that the group's tags give beats everything, then what EKS says of a managed node group's images, then the
//! label of real nodes; else it is Linux. A label with another word (there is none on EKS) changes nothing but itself.

use super::Facts;
use crate::aws::NodeGroup;

/// The label that tells it.
///
/// Source: [Well-known labels](https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-os).
const LABEL: &str = "kubernetes.io/os";

/// An operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Os {
    /// Linux.
    #[default]
    Linux,
    /// Windows Server.
    Windows,
}

impl Os {
    pub(super) fn of(facts: &Facts<'_>) -> Self {
        let of_eks = facts.described().is_some_and(NodeGroup::is_windows).then_some(Self::Windows.name());
        let shown = || facts.learned.and_then(|learned| learned.labels.get(LABEL)).map(String::as_str);
        let told = facts.tags.labels.get(LABEL).map(String::as_str);
        match told.or(of_eks).or_else(shown) {
            Some("windows") => Self::Windows,
            _ => Self::Linux,
        }
    }

    /// As labels spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux => "linux",
            Self::Windows => "windows",
        }
    }

    /// Size of the root volume in GiB where no block device mapping tells: that of the EKS images.
    ///
    /// Source: `diskSize` in
    /// [CreateNodegroup](https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateNodegroup.html).
    pub(super) fn default_root_gib(self) -> i32 {
        match self {
            Self::Linux => 20,
            Self::Windows => 50,
        }
    }
}
