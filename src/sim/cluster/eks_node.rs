//! What makes a Node of EKS as large as it is: some 19 kB of JSON, most of it images that nobody here asks for.

use serde_json::{Value, json};

/// How many images a kubelet reports (`--node-status-max-images`).
///
/// Source: [kubelet](https://kubernetes.io/docs/reference/command-line-tools-reference/kubelet/).
const IMAGES: usize = 50;

/// Labels as those of EKS managed nodes, beside what every kubelet sets.
const LABELS: [(&str, &str); 20] = [
    ("alpha.eksctl.io/cluster-name", "production"),
    ("alpha.eksctl.io/nodegroup-name", "general-purpose"),
    ("beta.kubernetes.io/arch", "amd64"),
    ("beta.kubernetes.io/instance-type", "m5.large"),
    ("beta.kubernetes.io/os", "linux"),
    ("eks.amazonaws.com/capacityType", "ON_DEMAND"),
    ("eks.amazonaws.com/nodegroup", "general-purpose"),
    ("eks.amazonaws.com/nodegroup-image", "ami-0123456789abcdef0"),
    ("eks.amazonaws.com/sourceLaunchTemplateId", "lt-0123456789abcdef0"),
    ("eks.amazonaws.com/sourceLaunchTemplateVersion", "3"),
    ("failure-domain.beta.kubernetes.io/region", "us-east-1"),
    ("failure-domain.beta.kubernetes.io/zone", "us-east-1a"),
    ("k8s.io/cloud-provider-aws", "0123456789abcdef0123456789abcdef"),
    ("node-lifecycle", "on-demand"),
    ("team", "platform"),
    ("topology.ebs.csi.aws.com/zone", "us-east-1a"),
    ("topology.k8s.aws/zone-id", "use1-az1"),
    ("topology.kubernetes.io/region", "us-east-1"),
    ("topology.kubernetes.io/zone", "us-east-1a"),
    ("vpc.amazonaws.com/eniConfig", "us-east-1a"),
];

/// Fills a Node up.
pub(super) fn fill(node: &mut Value, name: &str) {
    for (key, value) in LABELS {
        node["metadata"]["labels"][key] = json!(value);
    }
    node["metadata"]["annotations"] = json!({
        "alpha.kubernetes.io/provided-node-ip": "10.0.12.34",
        "csi.volume.kubernetes.io/nodeid": format!("{{\"ebs.csi.aws.com\":\"{name}\",\"efs.csi.aws.com\":\"{name}\"}}"),
        "networking.k8s.aws/trunk-eni": "eni-0123456789abcdef0",
        "node.alpha.kubernetes.io/ttl": "0",
        "volumes.kubernetes.io/controller-managed-attach-detach": "true",
    });
    let labels: Vec<&str> = LABELS.iter().map(|(key, _)| *key).collect();
    let managed = |manager: &str, subresource: &str| {
        let fields: serde_json::Map<String, Value> =
            labels.iter().map(|label| (format!("f:{label}"), json!({}))).collect();
        json!({
            "manager": manager, "operation": "Update", "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
            "fieldsType": "FieldsV1", "fieldsV1": { "f:metadata": { "f:labels": fields } }, "subresource": subresource,
        })
    };
    node["metadata"]["managedFields"] = json!([
        managed("aws-cloud-controller-manager", ""),
        managed("kubelet", ""),
        managed("kubelet", "status"),
    ]);
    let more = [
        ("attachable-volumes-aws-ebs", "25"),
        ("ephemeral-storage", "83873772Ki"),
        ("hugepages-1Gi", "0"),
        ("hugepages-2Mi", "0"),
        ("vpc.amazonaws.com/pod-eni", "9"),
    ];
    for (resource, quantity) in more {
        node["status"]["capacity"][resource] = json!(quantity);
        node["status"]["allocatable"][resource] = json!(quantity);
    }
    let image = |n: usize| {
        let repository = format!("123456789012.dkr.ecr.us-east-1.amazonaws.com/platform/service-{n:02}");
        json!({
            "names": [format!("{repository}@sha256:{n:064x}"), format!("{repository}:v1.{n}.0-eksbuild.1")],
            "sizeBytes": 123_456_789 + n,
        })
    };
    node["status"]["images"] = (0..IMAGES).map(image).collect();
}
