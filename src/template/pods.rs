//! How many pods a node takes: as many as the VPC CNI has addresses for, unless a number is configured.
//!
//! Linux nodes use all interfaces (ENIs) of the default network card, Windows nodes one. Each interface keeps one
//! address; each other address serves a pod or, with prefix delegation, is a prefix.

use super::os::Os;
use crate::aws::TypeInfo;

/// The kubelet's default, for a type whose network is unknown.
///
/// Source: [kubelet configuration, maxPods](https://kubernetes.io/docs/reference/config-api/kubelet-config.v1beta1/).
const DEFAULT: i64 = 110;
/// Pods of a Linux node on the host network: `aws-node` and `kube-proxy`.
///
/// Source: [eni-max-pods.txt](https://github.com/aws/amazon-vpc-cni-k8s/blob/master/misc/eni-max-pods.txt). A Windows
/// node runs both as services: [Deploy Windows
/// nodes](https://docs.aws.amazon.com/eks/latest/userguide/windows-support.html).
const ON_THE_HOST: i64 = 2;
/// Addresses in a prefix, a /28.
///
/// Source: [Assign more IP addresses to Amazon EKS nodes with
/// prefixes](https://docs.aws.amazon.com/eks/latest/userguide/cni-increase-ip-addresses.html).
const IN_A_PREFIX: i64 = 16;
/// With prefixes, addresses do not limit pods. The EKS images then have a ceiling, as EKS has for managed node groups,
/// prefixes or not: this many pods ...
///
/// Sources: [How maxPods is
/// determined](https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html#max-pods-precedence),
/// [max-pods-calculator.sh](https://github.com/awslabs/amazon-eks-ami/blob/a92d9fdeadcc26a22e8ab719bb486dea7d66ccc7/templates/al2023/runtime/max-pods-calculator.sh).
const CEILING: i64 = 110;
/// ... and this many with more than [`MANY_VCPUS`] (same source).
const HIGH_CEILING: i64 = 250;
/// See [`HIGH_CEILING`].
const MANY_VCPUS: i64 = 30;

/// Network settings of a group's nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Network {
    pub(super) os: Os,
    /// Whether prefix delegation is on.
    pub(super) prefixes: bool,
    /// Whether EKS sets the kubelet's number of pods: in managed node groups with EKS's own images.
    pub(super) by_eks: bool,
    /// Number of pods in the user data.
    pub(super) user_data: Option<i64>,
    /// Number of pods if the cluster does not use the VPC CNI. EKS does not know of it.
    pub(super) overlay: Option<i64>,
    /// Number of pods that beats all others.
    pub(super) max_pods: Option<i64>,
}

impl Network {
    /// How many pods a node takes.
    pub(super) fn pods(self, info: &TypeInfo) -> i64 {
        if let Some(told) = self.max_pods.or(self.user_data) {
            return told;
        }
        let overlay = self.overlay.filter(|_| !self.by_eks);
        let ceiling = match self.by_eks || self.has_prefixes(info) && overlay.is_none() {
            false => i64::MAX,
            true if info.vcpus > MANY_VCPUS => HIGH_CEILING,
            true => CEILING,
        };
        let on_the_host = match self.os {
            Os::Linux | Os::Bottlerocket => ON_THE_HOST,
            Os::Windows => 0,
        };
        let formula = || self.addresses(info).map_or(DEFAULT, |addresses| addresses + on_the_host);
        overlay.unwrap_or_else(formula).min(ceiling)
    }

    /// The number of pods that the kubelet reserve of memory is for.
    ///
    /// The EKS images for Amazon Linux reserve for the number that secondary addresses allow, whatever number the
    /// kubelet is then given: `withDefaultReservedResources` in
    /// [nodeadm](https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go), and
    /// Karpenter's
    /// [UsesENILimitedMemoryOverhead](https://github.com/aws/karpenter-provider-aws/blob/main/pkg/providers/amifamily/resolver.go),
    /// which is off for Bottlerocket and Windows.
    pub(super) fn pods_reserved_for(self, info: &TypeInfo) -> i64 {
        match self.os {
            Os::Linux => Self::default().pods(info),
            Os::Bottlerocket | Os::Windows => self.pods(info),
        }
    }

    /// Addresses for a node's pods, if the type's network is known.
    ///
    /// Sources: [Amazon EKS, choose an instance
    /// type](https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html); for Windows `getCapacity`
    /// of [amazon-vpc-resource-controller-k8s](https://github.com/aws/amazon-vpc-resource-controller-k8s/blob/master/pkg/provider/prefix/provider.go).
    pub(super) fn addresses(self, info: &TypeInfo) -> Option<i64> {
        let interfaces = match self.os {
            Os::Linux | Os::Bottlerocket => info.interfaces,
            Os::Windows => info.interfaces.min(1),
        };
        let for_each = if self.has_prefixes(info) { IN_A_PREFIX } else { 1 };
        (interfaces > 0 && info.addresses > 0).then(|| interfaces * (info.addresses - 1) * for_each)
    }

    fn has_prefixes(self, info: &TypeInfo) -> bool {
        self.prefixes && info.prefixes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::capacity::tests::instance_type;

    fn nitro(vcpus: i64, interfaces: i64, addresses: i64) -> TypeInfo {
        TypeInfo { prefixes: true, ..instance_type("x", vcpus, 8, interfaces, addresses) }
    }

    /// Interfaces and their addresses are from
    /// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/AvailableIpPerENI.html>, pods from eni-max-pods.txt.
    #[test]
    fn pods_are_the_published_ones() {
        let table = [
            ("m5.large", 3, 10, 29),
            ("m5.xlarge", 4, 15, 58),
            ("t3.medium", 3, 6, 17),
            ("t3.micro", 2, 2, 4),
            ("m5.4xlarge", 8, 30, 234),
            ("c6g.medium", 2, 4, 8),
            ("m5.metal", 15, 50, 737),
            ("inf1.xlarge", 4, 10, 38),
        ];
        for (name, interfaces, addresses, expected) in table {
            assert_eq!(Network::default().pods(&nitro(2, interfaces, addresses)), expected, "{name}");
        }
        assert_eq!(Network::default().pods(&nitro(2, 0, 0)), 110, "nothing is known");
    }

    /// The last two columns are with prefix delegation: c5.large has 9 × 16 addresses on Windows in
    /// <https://docs.aws.amazon.com/eks/latest/best-practices/prefix-mode-win.html>.
    #[test]
    fn prefixes_raise_pods_up_to_a_ceiling_that_depends_on_the_vcpus() {
        let table = [
            // vCPUs, interfaces, addresses; Linux; Windows; Linux and Windows with prefixes
            ("c5.large", 2, 3, 10, 29, 9, 110, 110),
            ("c6g.medium", 1, 2, 4, 8, 3, 98, 48),
            ("t3.micro", 2, 2, 2, 4, 1, 34, 16),
            ("g4dn.8xlarge", 32, 4, 15, 58, 14, 250, 224),
            ("m5.metal", 96, 15, 50, 737, 49, 250, 250),
        ];
        for (name, vcpus, interfaces, addresses, linux, windows, linux_prefixes, windows_prefixes) in table {
            let info = nitro(vcpus, interfaces, addresses);
            let pods = |os, prefixes| Network { os, prefixes, ..Network::default() }.pods(&info);
            assert_eq!((pods(Os::Linux, false), pods(Os::Windows, false)), (linux, windows), "{name}");
            let expected = (linux_prefixes, windows_prefixes);
            assert_eq!((pods(Os::Linux, true), pods(Os::Windows, true)), expected, "{name}");
            let old = TypeInfo { prefixes: false, ..info.clone() };
            assert_eq!(Network { prefixes: true, ..Network::default() }.pods(&old), linux, "{name} on Xen");
        }
    }

    #[test]
    fn eks_caps_what_it_computes_and_nobody_caps_what_the_user_data_tells() {
        let (large, huge) = (nitro(16, 8, 30), nitro(96, 15, 50));
        let by_eks = Network { by_eks: true, ..Network::default() };
        assert_eq!((by_eks.pods(&large), by_eks.pods(&huge)), (110, 250));
        assert_eq!(by_eks.pods(&nitro(2, 3, 10)), 29, "it is a most, not the number");
        assert_eq!((Network::default().pods(&large), Network::default().pods(&huge)), (234, 737));
        assert_eq!((by_eks.pods_reserved_for(&large), by_eks.pods_reserved_for(&huge)), (234, 737));
        let told = Network { user_data: Some(500), ..by_eks };
        assert_eq!(told.pods(&large), 500);
        assert_eq!(Network { max_pods: Some(20), ..told }.pods(&large), 20);
    }

    #[test]
    fn an_overlay_takes_the_place_of_the_formula_only() {
        let small = nitro(2, 3, 6);
        let overlay = Network { overlay: Some(200), prefixes: true, ..Network::default() };
        assert_eq!(overlay.pods(&small), 200, "prefixes are the VPC CNI's");
        let by_eks = Network { by_eks: true, prefixes: false, ..overlay };
        assert_eq!(by_eks.pods(&small), 17, "EKS does not know of it");
        assert_eq!((by_eks.pods(&nitro(16, 8, 30)), by_eks.pods(&nitro(96, 15, 50))), (110, 250));
        assert_eq!(Network { user_data: Some(58), ..by_eks }.pods(&small), 58);
        assert_eq!(Network { user_data: Some(58), ..overlay }.pods(&small), 58);
        assert_eq!(Network { max_pods: Some(30), ..overlay }.pods(&small), 30);
    }

    #[test]
    fn bottlerocket_keeps_memory_for_the_pods_it_is_told() {
        let info = nitro(2, 3, 10);
        let plain = Network { os: Os::Bottlerocket, ..Network::default() };
        assert_eq!((plain.pods(&info), plain.pods_reserved_for(&info)), (29, 29));
        let prefixes = Network { prefixes: true, ..plain };
        assert_eq!((prefixes.pods(&info), prefixes.pods_reserved_for(&info)), (110, 110));
    }

    #[test]
    fn a_number_that_is_told_beats_every_formula_and_memory_is_kept_as_the_images_keep_it() {
        let info = nitro(2, 3, 10);
        let told = Network { prefixes: true, max_pods: Some(60), ..Network::default() };
        assert_eq!((told.pods(&info), told.pods_reserved_for(&info)), (60, 29));
        let windows = Network { os: Os::Windows, ..told };
        assert_eq!((windows.pods(&info), windows.pods_reserved_for(&info)), (60, 60));
        assert_eq!(
            windows.addresses(&info),
            Some(144),
            "what the controller advertises is not changed by it"
        );
    }
}
