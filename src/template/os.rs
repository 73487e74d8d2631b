//! The operating system of a node, as far as templates differ by it.
//!
//! A label that the group's tags give beats everything, then what EKS says of a managed node group's images, then the
//! label of real nodes; else it is Linux. A label with another word (there is none on EKS) changes nothing but itself.
//! Bottlerocket is a Linux of its own kind: EKS says so of its images, or the user data is of its making.

use crate::aws::Volumes;

/// The label that tells it.
///
/// Source: [Well-known labels](https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-os).
pub(super) const LABEL: &str = "kubernetes.io/os";

/// An operating system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Os {
    /// Linux.
    #[default]
    Linux,
    /// Bottlerocket, a Linux with a volume of its own for all that is not the system.
    Bottlerocket,
    /// Windows Server.
    Windows,
}

impl Os {
    /// As labels spell it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Linux | Self::Bottlerocket => "linux",
            Self::Windows => "windows",
        }
    }

    /// Size in GiB of the volume that pods' storage is on, as far as the block device mappings tell.
    pub(super) fn volume(self, volumes: &Volumes) -> Option<i32> {
        match self {
            Self::Linux | Self::Windows => volumes.root_gib,
            Self::Bottlerocket => volumes.data_gib,
        }
    }

    /// The same where nobody tells: that of the EKS images.
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
