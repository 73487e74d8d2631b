//! A node's operating system, as far as templates depend on it.
//!
//! In order: the label in the group's tags, EKS's image type of a managed node group, the label of real nodes, Linux.
//! Unknown label values (EKS has none) are kept but ignored. EKS's image type or the user data identifies Bottlerocket,
//! a Linux of its own kind.

use crate::aws::Volumes;

/// An operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Os {
    /// Linux.
    #[default]
    Linux,
    /// Bottlerocket: Linux with a separate volume for everything but the system.
    Bottlerocket,
    /// Windows Server.
    Windows,
}

impl Os {
    /// The label value.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux | Self::Bottlerocket => "linux",
            Self::Windows => "windows",
        }
    }

    /// The kubelet evicts below this much free memory, in MiB.
    ///
    /// Sources: [Node-pressure eviction, hard eviction
    /// thresholds](https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds); for Windows
    /// [defaults_windows.go](https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/eviction/defaults_windows.go), whose kubelets
    /// kept 100 MiB before.
    pub(super) fn eviction_mib(self) -> i64 {
        match self {
            Self::Linux | Self::Bottlerocket => 100,
            Self::Windows => 500,
        }
    }

    /// Size in GiB of the volume for pods' storage, if block device mappings give it.
    pub(super) fn volume(self, volumes: &Volumes) -> Option<i32> {
        match self {
            Self::Linux | Self::Windows => volumes.root_gib,
            Self::Bottlerocket => volumes.data_gib,
        }
    }

    /// Size in GiB of that volume in the EKS images, if nothing gives it.
    ///
    /// Sources: `diskSize` in
    /// [CreateNodegroup](https://docs.aws.amazon.com/eks/latest/APIReference/API_CreateNodegroup.html); [Bottlerocket,
    /// default volumes](https://github.com/bottlerocket-os/bottlerocket#default-volumes).
    pub(super) fn default_volume_gib(self) -> i32 {
        match self {
            Self::Linux | Self::Bottlerocket => 20,
            Self::Windows => 50,
        }
    }
}
