//! Names of the annotations, labels and taints that a scale-in reads and writes, and of what several rooms know of a Node and its group.

/// Annotation on a Node: the durable record of its scale-in, or a person's request for one (`now`, `replace`).
pub const RECORD: &str = "ebbtide/scale-in";
/// Annotation on a Node: which of the things we change on it were not there before, so that they can be taken back.
pub const MARKS: &str = "ebbtide/marks";
/// Annotation on a Node: it is cordoned because of a notice, and until when.
pub const CORDON: &str = "ebbtide/cordon";
/// Label on a Node that takes it out of external load balancers.
/// Source: [well-known labels](https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-from-external-load-balancers).
pub const EXCLUDE_FROM_LOAD_BALANCERS: &str = "node.kubernetes.io/exclude-from-external-load-balancers";
/// cluster-autoscaler's taint on a Node that it is deleting; the value is Unix seconds.
/// Source: [cluster-autoscaler `deletetaint`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/taints/taints.go).
pub const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";
/// cluster-autoscaler's taint on a Node that it does not need any more.
pub const DELETION_CANDIDATE: &str = "DeletionCandidateOfClusterAutoscaler";

/// cluster-autoscaler's annotation on a pod that is to count as a DaemonSet's (`"true"`).
pub const DAEMON_SET_POD: &str = "cluster-autoscaler.kubernetes.io/daemonset-pod";
/// The taint of a cordoned Node.
/// Source: [well-known taints](https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-unschedulable).
pub const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// Taint of the cloud controller on a Node whose instance is stopped.
///
/// Source: [Well-known labels, annotations and taints](https://kubernetes.io/docs/reference/labels-annotations-taints/#node-cloudprovider-kubernetes-io-shutdown).
pub const SHUT_DOWN: &str = "node.cloudprovider.kubernetes.io/shutdown";
/// Label of a Node: its EC2 instance type.
///
/// Source of this and the following: [well-known labels](https://kubernetes.io/docs/reference/labels-annotations-taints/). The twins that are
/// called beta are deprecated; real nodes still have them, and selectors still use them.
pub const INSTANCE_TYPE: &str = "node.kubernetes.io/instance-type";
/// Twin of [`INSTANCE_TYPE`].
pub const BETA_INSTANCE_TYPE: &str = "beta.kubernetes.io/instance-type";
/// Label of a Node: its region.
pub const REGION: &str = "topology.kubernetes.io/region";
/// Twin of [`REGION`].
pub const BETA_REGION: &str = "failure-domain.beta.kubernetes.io/region";
/// Label of a Node: its availability zone.
pub const ZONE: &str = "topology.kubernetes.io/zone";
/// Twin of [`ZONE`].
pub const BETA_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
/// Label of a Node: its zone, by the EBS driver.
///
/// Source: [aws-ebs-csi-driver](https://github.com/kubernetes-sigs/aws-ebs-csi-driver).
pub const EBS_ZONE: &str = "topology.ebs.csi.aws.com/zone";
/// Label of a Node: the id of its zone, the same in all accounts.
///
/// Source: [cloud-provider-aws](https://github.com/kubernetes/cloud-provider-aws/pull/855).
pub const ZONE_ID: &str = "topology.k8s.aws/zone-id";
/// Label of a Node: its host name.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// Label of a Node: its operating system, `linux` or `windows`.
pub const OS: &str = "kubernetes.io/os";
/// Twin of [`OS`].
pub const BETA_OS: &str = "beta.kubernetes.io/os";
/// Label of a Node: its processors' architecture, `amd64` or `arm64`.
pub const ARCH: &str = "kubernetes.io/arch";
/// Resource of a Node: NVIDIA's GPUs.
pub const NVIDIA_GPU: &str = "nvidia.com/gpu";
/// Tag that EKS gives a group that it makes: the cluster's name.
pub const EKS_CLUSTER: &str = "eks:cluster-name";

/// Annotation of a static pod's mirror.
pub const MIRROR_POD: &str = "kubernetes.io/config.mirror";
/// Annotation on a pod: `wait` makes it patient.
pub const DRAIN: &str = "ebbtide/drain";
/// Annotation on a pod: its place among those that a drain asks to go, a whole number; lower goes first.
pub const DRAIN_ORDER: &str = "ebbtide/drain-order";
/// Annotation on a pod: `"false"` makes it patient.
pub const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Annotation on a pod: `"true"` makes it patient.
pub const DO_NOT_DISRUPT: &str = "karpenter.sh/do-not-disrupt";
/// Annotation on a DaemonSet pod: `keep` or `evict`.
pub const DAEMON_SET: &str = "ebbtide/daemonset";
/// Annotation on a DaemonSet pod: seconds it wants after the last workload has exited.
pub const FLUSH_SECONDS: &str = "ebbtide/flush-seconds";
/// Annotation on a DaemonSet pod that tells cluster-autoscaler whether to evict it.
pub const ENABLE_DS_EVICTION: &str = "cluster-autoscaler.kubernetes.io/enable-ds-eviction";
/// Annotation on a DaemonSet pod: the value of [`ENABLE_DS_EVICTION`] on it is ours.
pub const GUARDED: &str = "ebbtide/guarded";

/// The annotations of a pod that a drain looks at.
pub const POD_ANNOTATIONS: [&str; 8] = [
    DRAIN,
    DRAIN_ORDER,
    SAFE_TO_EVICT,
    DO_NOT_DISRUPT,
    DAEMON_SET,
    FLUSH_SECONDS,
    ENABLE_DS_EVICTION,
    GUARDED,
];
