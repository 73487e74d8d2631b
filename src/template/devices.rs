//! Extended resources of a node, such as accelerators, and the GPU model label.

use std::collections::BTreeMap;

use super::os::Os;
use super::pods::Network;
use crate::aws::{Accelerator, TypeInfo};
use crate::cluster::NodeView;
use crate::k8s::{names, quantity};

/// The label by which cluster-autoscaler's AWS provider recognises GPU nodes (`GPULabel`).
pub const LABEL: &str = "k8s.amazonaws.com/accelerator";

/// EC2's model names and their values of [`LABEL`]. Other models have no agreed value.
///
/// Source: `availableGPUTypes` in [cluster-autoscaler's AWS
/// provider](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_cloud_provider.go).
pub const MODELS: [(&str, &str); 8] = [
    ("K80", "nvidia-tesla-k80"),
    ("P100", "nvidia-tesla-p100"),
    ("V100", "nvidia-tesla-v100"),
    ("T4", "nvidia-tesla-t4"),
    ("A100", "nvidia-tesla-a100"),
    ("A10G", "nvidia-a10g"),
    ("L4", "nvidia-l4"),
    ("L40S", "nvidia-l40s"),
];

/// AWS chips with a fixed number of cores. From Trainium2 on, the node's configuration groups cores, which EC2 does not
/// tell.
///
/// Source: [Logical NeuronCore
/// configuration](https://awsdocs-neuron.readthedocs-hosted.com/en/latest/general/arch/neuron-features/logical-neuroncore-config.html).
const FIXED_CORES: [&str; 3] = ["Inferentia", "Inferentia2", "Trainium"];

const NEURON_CORES: &str = "aws.amazon.com/neuroncore";
/// Pods' addresses of a Windows node: its controller advertises them, its webhook makes each pod request one.
///
/// Source: [amazon-vpc-resource-controller-k8s, secondary IPv4 address
/// mode](https://github.com/aws/amazon-vpc-resource-controller-k8s/blob/master/docs/windows/secondary_ip_mode_workflow.md).
pub(super) const WINDOWS_ADDRESSES: &str = "vpc.amazonaws.com/PrivateIPv4Address";

const GAUDI: &str = "habana.ai/gaudi";
const AMD_GPU: &str = "amd.com/gpu";

/// What cluster-autoscaler takes for GPUs, from 1.35 on.
///
/// Source: `GPUVendorResourceNames` in
/// [`gpu.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/utils/gpu/gpu.go).
const GPUS: [&str; 5] = [names::NVIDIA_GPU, GAUDI, "gpu.intel.com/xe", AMD_GPU, "microsoft.com/directx"];

/// Whether a Node has the GPU label and offers no GPU, as cluster-autoscaler reckons it.
///
/// Source: `GetNodeGpuTarget` in
/// [`gpu_processor.go`](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/processors/customresources/gpu_processor.go).
pub fn lacks_its_gpu(node: &NodeView) -> bool {
    let offers = |gpu: &&str| node.allocatable.get(gpu).is_some_and(is_some);
    node.labels.get(LABEL).is_some() && !GPUS.iter().any(offers)
}

/// Whether a quantity is more than none.
pub(super) fn is_some(quantity: &str) -> bool {
    quantity::parse(quantity).is_some_and(|number| number > 0.0)
}

/// Extended resources of a node.
pub(super) fn resources(info: &TypeInfo, network: Network) -> BTreeMap<String, i64> {
    let mut resources = devices(&info.accelerators);
    if let (Os::Windows, Some(addresses)) = (network.os, network.addresses(info)) {
        resources.insert(WINDOWS_ADDRESSES.to_owned(), addresses);
    }
    resources
}

/// The value of [`LABEL`] for this type, if any.
pub(super) fn model(info: &TypeInfo) -> Option<&'static str> {
    let gpu =
        info.accelerators.iter().find(|accelerator| resource(accelerator) == Some(names::NVIDIA_GPU))?;
    MODELS.iter().find(|(ec2, _)| *ec2 == gpu.name).map(|&(_, value)| value)
}

/// Accelerators, named as by their device plugins.
pub(super) fn devices(accelerators: &[Accelerator]) -> BTreeMap<String, i64> {
    let mut devices = BTreeMap::new();
    for accelerator in accelerators {
        let Some(name) = resource(accelerator) else { continue };
        if accelerator.count > 0 {
            *devices.entry(name.to_owned()).or_default() += accelerator.count;
        }
        let cores = accelerator.count * accelerator.cores;
        if cores > 0 && FIXED_CORES.contains(&accelerator.name.as_str()) {
            *devices.entry(NEURON_CORES.to_owned()).or_default() += cores;
        }
    }
    devices
}

/// Sources: [NVIDIA](https://github.com/NVIDIA/k8s-device-plugin), [AMD](https://github.com/ROCm/k8s-device-plugin),
/// [Habana](https://docs.habana.ai/en/latest/Orchestration/Gaudi_Kubernetes/Device_Plugin_for_Kubernetes.html), [AWS
/// Neuron](https://awsdocs-neuron.readthedocs-hosted.com/en/latest/containers/tutorials/k8s-neuron-device-plugin.html),
/// which advertises cores too.
fn resource(accelerator: &Accelerator) -> Option<&'static str> {
    match accelerator.manufacturer.to_ascii_uppercase().as_str() {
        "NVIDIA" => Some(names::NVIDIA_GPU),
        "AMD" => Some(AMD_GPU),
        "HABANA" => Some(GAUDI),
        "AWS" => Some("aws.amazon.com/neuron"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Node;

    use super::*;

    fn some(manufacturer: &str, name: &str, count: i64, cores: i64) -> Accelerator {
        Accelerator { manufacturer: manufacturer.to_owned(), name: name.to_owned(), count, cores }
    }

    #[test]
    fn a_node_lacks_its_gpu_that_has_the_label_and_offers_none() {
        let node = |labelled: bool, offered: &[(&str, &str)]| {
            let labels: BTreeMap<_, _> = labelled.then_some((LABEL, "nvidia-l4")).into_iter().collect();
            let allocatable: BTreeMap<_, _> = offered.iter().copied().collect();
            let node = serde_json::json!({ "metadata": { "name": "n", "labels": labels }, "status": { "allocatable": allocatable } });
            NodeView::from(&serde_json::from_value::<Node>(node).expect("a Node"))
        };
        let nvidia = names::NVIDIA_GPU;
        for (labelled, offered, lacks) in [
            (true, &[][..], true),
            (true, &[(nvidia, "0"), ("amd.com/gpu", "0"), ("cpu", "4")], true),
            (true, &[(nvidia, "8")], false),
            (false, &[], false),
        ] {
            assert_eq!(lacks_its_gpu(&node(labelled, offered)), lacks, "{labelled} {offered:?}");
        }
        for gpu in ["amd.com/gpu", "habana.ai/gaudi", "gpu.intel.com/xe", "microsoft.com/directx"] {
            assert!(!lacks_its_gpu(&node(true, &[(nvidia, "0"), (gpu, "1")])), "{gpu}");
        }
    }

    #[test]
    fn devices_are_named_as_their_plugins_name_them() {
        let found = devices(&[
            some("NVIDIA", "T4", 4, 0),
            some("AWS", "Inferentia2", 6, 2),
            some("Habana", "Gaudi HL-205", 8, 0),
            some("AMD", "Radeon Pro V520", 0, 0),
            some("Xilinx", "U30", 2, 0),
        ]);
        let expected = [
            (NEURON_CORES, 12),
            ("aws.amazon.com/neuron", 6),
            ("habana.ai/gaudi", 8),
            (names::NVIDIA_GPU, 4),
        ];
        assert_eq!(found, expected.map(|(name, count)| (name.to_owned(), count)).into());
    }

    #[test]
    fn cores_that_the_node_may_group_are_not_told() {
        let found = devices(&[some("AWS", "Trainium2", 16, 8)]);
        assert_eq!(found, [("aws.amazon.com/neuron".to_owned(), 16)].into());
    }

    #[test]
    fn only_nvidias_known_models_have_a_value() {
        let of = |manufacturer: &str, name: &str| {
            let accelerators = vec![some(manufacturer, name, 1, 0)];
            model(&TypeInfo { accelerators, ..TypeInfo::default() })
        };
        assert_eq!(of("NVIDIA", "T4"), Some("nvidia-tesla-t4"));
        assert_eq!(of("NVIDIA", "L40S"), Some("nvidia-l40s"));
        for (manufacturer, name) in [("NVIDIA", "T4g"), ("NVIDIA", "H100"), ("AWS", "T4")] {
            assert_eq!(of(manufacturer, name), None, "{name}");
        }
        assert_eq!(model(&TypeInfo::default()), None);
    }
}
