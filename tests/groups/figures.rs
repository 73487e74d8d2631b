//! Templates of many instance types against the figures that AWS publishes, once as EC2 tells the types and once as the
//! program's own table does.
//!
//! Everything here was typed from these pages, not from either of the two:
//! - vCPUs, memory, accelerators: <https://docs.aws.amazon.com/ec2/latest/instancetypes/instance-types.html> and the
//!   pages of its categories (`gp`, `co`, `mo`, `ac`, `pg`);
//! - pods: <https://github.com/aws/amazon-vpc-cni-k8s/blob/master/misc/eni-max-pods.txt>;
//! - kube-reserved CPU and memory: `getCPUMillicoresToReserve` and `getMemoryMebibytesToReserve` of
//!   <https://github.com/awslabs/amazon-eks-ami/blob/main/nodeadm/internal/kubelet/config.go>;
//! - devices: the device plugins' names; accelerator labels: cluster-autoscaler's AWS provider.

use std::collections::BTreeMap;

use ebbtide::config::Config;
use ebbtide::sim::aws::{NodeGroupSpec, Operation, TemplateData};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::template::Settings;
use k8s_pb::api::core::v1::Node;

use crate::node::{allocatable, capacity, label, template, try_template};
use crate::scene::{SOON, Scene, eventually, group};

const MIB: f64 = 1024.0;
/// Memory less what hypervisor and kernel keep by default, in MiB.
fn less_what_is_kept(mib: f64) -> f64 {
    let first = mib.min(32.0 * MIB);
    first * (1.0 - 0.075) + (mib - first) * (1.0 - 0.045)
}
/// Of memory on Graviton, in MiB, before the share: `memory` of
/// <https://github.com/aws/karpenter-provider-aws/blob/main/pkg/providers/instancetype/types.go>.
const CMA: f64 = 64.0;
/// Memory below which the kubelet evicts, in MiB.
const EVICTION: f64 = 100.0;

struct Published {
    name: &'static str,
    arch: &'static str,
    vcpus: u32,
    gib: f64,
    pods: u32,
    reserved_millis: u32,
    reserved_mib: f64,
    devices: &'static [(&'static str, u32)],
    accelerator: &'static str,
}

const fn published(
    (name, arch): (&'static str, &'static str),
    (vcpus, gib, pods): (u32, f64, u32),
    (reserved_millis, reserved_mib): (u32, f64),
) -> Published {
    Published { name, arch, vcpus, gib, pods, reserved_millis, reserved_mib, devices: &[], accelerator: "" }
}

const AMD: &str = "amd64";
const ARM: &str = "arm64";
const GPU: &str = "nvidia.com/gpu";
const NEURON: &str = "aws.amazon.com/neuron";
const CORE: &str = "aws.amazon.com/neuroncore";
const PRIVATE_IP: &str = "vpc.amazonaws.com/PrivateIPv4Address";

/// Architecture; vCPUs, memory, pods; reserved CPU and memory.
#[rustfmt::skip]
static TABLE: [Published; 20] = [
    published(("m5.large", AMD), (2, 8.0, 29), (70, 574.0)),
    published(("m5.xlarge", AMD), (4, 16.0, 58), (80, 893.0)),
    published(("m5.4xlarge", AMD), (16, 64.0, 234), (110, 2829.0)),
    published(("m5.metal", AMD), (96, 384.0, 737), (310, 8362.0)),
    published(("c5.large", AMD), (2, 4.0, 29), (70, 574.0)),
    published(("r5.large", AMD), (2, 16.0, 29), (70, 574.0)),
    // Burstable.
    published(("t3.medium", AMD), (2, 4.0, 17), (70, 442.0)),
    // The network takes next to nothing.
    published(("t3.micro", AMD), (2, 1.0, 4), (70, 299.0)),
    // Xen.
    published(("t2.medium", AMD), (2, 4.0, 17), (70, 442.0)),
    published(("m6g.large", ARM), (2, 8.0, 29), (70, 574.0)),
    published(("c6g.medium", ARM), (1, 2.0, 8), (60, 343.0)),
    published(("c7g.4xlarge", ARM), (16, 32.0, 234), (110, 2829.0)),
    Published {
        devices: &[(GPU, 1)], accelerator: "nvidia-tesla-v100",
        ..published(("p3.2xlarge", AMD), (8, 61.0, 58), (90, 893.0))
    },
    Published {
        devices: &[(GPU, 1)], accelerator: "nvidia-tesla-t4",
        ..published(("g4dn.xlarge", AMD), (4, 16.0, 29), (80, 574.0))
    },
    Published {
        devices: &[(GPU, 4)], accelerator: "nvidia-a10g",
        ..published(("g5.12xlarge", AMD), (48, 192.0, 737), (190, 8362.0))
    },
    // Four network cards, of which pods use one.
    Published {
        devices: &[(GPU, 8)], accelerator: "nvidia-tesla-a100",
        ..published(("p4d.24xlarge", AMD), (96, 1152.0, 737), (310, 8362.0))
    },
    // Thirty-two; cluster-autoscaler has no name for an H100.
    Published {
        devices: &[(GPU, 8)],
        ..published(("p5.48xlarge", AMD), (192, 2048.0, 100), (550, 1355.0))
    },
    Published {
        devices: &[(NEURON, 1), (CORE, 4)],
        ..published(("inf1.xlarge", AMD), (4, 8.0, 38), (80, 673.0))
    },
    Published {
        devices: &[(NEURON, 1), (CORE, 2)],
        ..published(("inf2.xlarge", AMD), (4, 16.0, 58), (80, 893.0))
    },
    Published {
        devices: &[(NEURON, 16), (CORE, 32)],
        ..published(("trn1.32xlarge", AMD), (128, 512.0, 247), (390, 2972.0))
    },
];

/// The figure in MiB is that of the quantity, up to what rounding to KiB costs.
fn is_mib(quantity: &str, expected: f64) -> bool {
    let kib: f64 = quantity.strip_suffix("Ki").and_then(|kib| kib.parse().ok()).expect("KiB");
    (kib - expected * MIB).abs() < 1.0
}

fn has_published_figures(node: &Node, of: &Published) {
    let name = of.name;
    assert_eq!(label(node, "node.kubernetes.io/instance-type"), name);
    assert_eq!(label(node, "kubernetes.io/arch"), of.arch, "{name}");
    assert_eq!(label(node, "k8s.amazonaws.com/accelerator"), of.accelerator, "{name}");
    assert_eq!(capacity(node, "cpu"), of.vcpus.to_string(), "{name}");
    assert_eq!(allocatable(node, "cpu"), format!("{}m", of.vcpus * 1000 - of.reserved_millis), "{name}");
    let pods = of.pods.to_string();
    assert_eq!((capacity(node, "pods"), allocatable(node, "pods")), (pods.clone(), pods), "{name}");
    let cma = if of.arch == ARM { CMA } else { 0.0 };
    let memory = less_what_is_kept(of.gib * MIB - cma);
    let (has, gives) = (capacity(node, "memory"), allocatable(node, "memory"));
    assert!(is_mib(&has, memory), "{name}: {has}");
    assert!(is_mib(&gives, memory - of.reserved_mib - EVICTION), "{name}: {gives}");
    let expected: BTreeMap<&str, String> =
        of.devices.iter().map(|&(device, count)| (device, count.to_string())).collect();
    let devices = [GPU, NEURON, CORE, PRIVATE_IP].map(|device| (device, allocatable(node, device)));
    let devices: BTreeMap<_, _> = devices.into_iter().filter(|(_, count)| !count.is_empty()).collect();
    assert_eq!(devices, expected, "{name}");
}

#[tokio::test(start_paused = true)]
async fn templates_of_types_that_ec2_tells_have_the_published_figures() {
    let groups = TABLE.iter().map(|of| group(of.name, 0).template(of.name));
    let scene = Scene::with(groups).await;
    for of in &TABLE {
        has_published_figures(&template(&scene, of.name).await, of);
    }
    assert_eq!(scene.world.aws.calls(Operation::DescribeInstanceTypes), 1);
}

#[tokio::test(start_paused = true)]
async fn templates_of_types_that_the_table_tells_have_the_published_figures_and_ec2_is_not_asked() {
    // Where the table is from there is no p3.2xlarge any more.
    let table: Vec<_> = TABLE.iter().filter(|of| of.name != "p3.2xlarge").collect();
    let groups = table.iter().map(|of| group(of.name, 0).template(of.name));
    let settings = Settings { static_types: true, ..Settings::default() };
    let config = Config { templates: settings, ..config() };
    let scene = Scene::configured(World::new(1), config, groups).await;
    for of in table {
        has_published_figures(&template(&scene, of.name).await, of);
    }
    assert_eq!(scene.world.aws.calls(Operation::DescribeInstanceTypes), 0);
}

/// In a managed node group whose images are EKS's, EKS tells the kubelet at most 110 pods, or 250 above 30 vCPUs:
/// <https://docs.aws.amazon.com/eks/latest/userguide/choosing-instance-type.html#max-pods-precedence>.
#[tokio::test(start_paused = true)]
async fn managed_node_groups_with_images_of_eks_have_no_more_pods_than_eks_allows() {
    const ANY: &str = "AL2023_x86_64_STANDARD";
    // What the node group's own part of the user data tells counts, the image's number does not.
    let told = TemplateData::of("m5.large").user_data("maxPods: 234\n--//\nmaxPods: 17\n");
    let table = [
        ("small", ANY, TemplateData::of("m5.large"), "29"),
        ("large", ANY, TemplateData::of("m5.4xlarge"), "110"),
        ("huge", ANY, TemplateData::of("m5.metal"), "250"),
        ("bottlerocket", "BOTTLEROCKET_x86_64", TemplateData::of("m5.4xlarge"), "110"),
        ("own-image", "CUSTOM", TemplateData::of("m5.4xlarge"), "234"),
        ("told", ANY, told, "17"),
    ];
    let world = World::new(1);
    for (name, ami_type, ..) in &table {
        world.aws.add_node_group(NodeGroupSpec::named(*name).ami_type(*ami_type));
    }
    let managed = table.iter().map(|(name, _, data, _)| {
        let group = group(name, 0).template_data(data.clone());
        group.tag("eks:cluster-name", "main").tag("eks:nodegroup-name", *name)
    });
    let scene = Scene::on(world, managed.chain([group("unmanaged", 0).template("m5.4xlarge")])).await;
    for (name, .., pods) in table {
        assert!(eventually(SOON, || async { try_template(&scene, name).await.is_ok() }).await, "{name}");
        let node = template(&scene, name).await;
        assert_eq!(
            (capacity(&node, "pods").as_str(), allocatable(&node, "pods").as_str()),
            (pods, pods),
            "{name}"
        );
    }
    let memory = async |name: &str| allocatable(&template(&scene, name).await, "memory");
    // Of 64 GiB less 255 MiB, 100 MiB and 11 MiB a pod: of 234 pods on Amazon Linux, of 110 on Bottlerocket.
    let has = less_what_is_kept(65_536.0);
    assert!(is_mib(&memory("large").await, has - 355.0 - 11.0 * 234.0));
    assert!(is_mib(&memory("bottlerocket").await, has - 355.0 - 11.0 * 110.0));
    assert_eq!(capacity(&template(&scene, "unmanaged").await, "pods"), "234");
}

/// Pods' storage: <https://github.com/bottlerocket-os/bottlerocket#default-volumes>, and
/// <https://github.com/awslabs/amazon-eks-ami/blob/main/templates/shared/runtime/bin/setup-local-disks>. Disks of a type:
/// <https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html>.
#[tokio::test(start_paused = true)]
async fn storage_is_that_of_the_volume_or_the_disks_that_pods_are_on() {
    const GIB: u64 = 1024 * 1024;
    let gb = |gb: u64| gb * 1_000_000_000 / 1024;
    let of = |instance_type: &str| TemplateData::of(instance_type).volume("/dev/xvda", 50);
    let settings = "[settings.kubernetes]\ncluster-name = \"main\"\n";
    let bind = "commands = [[\"apiclient\", \"ephemeral-storage\", \"bind\"]]\n";
    let raid0 = "spec:\n  instance:\n    localStorage:\n      strategy: RAID0\n";
    let table = [
        ("root", of("m5.large").volume("/dev/xvdb", 200), 50 * GIB),
        ("bottlerocket", of("m5.large").volume("/dev/xvdb", 200).user_data(settings), 200 * GIB),
        ("bottlerocket-as-it-comes", of("m5.large").user_data(settings), 20 * GIB),
        ("bottlerocket-disks", of("g4dn.xlarge").user_data(format!("{settings}{bind}")), gb(125)),
        ("disks", of("g4dn.xlarge").user_data(raid0), gb(125)),
        ("al2-disks", of("g4dn.xlarge").user_data("/etc/eks/bootstrap.sh main --local-disks raid0"), gb(125)),
        ("no-disks", of("m5.large").user_data(raid0), 50 * GIB),
        ("unused-disks", of("g4dn.xlarge"), 50 * GIB),
        ("bottlerocket-of-eks", of("m5.large").volume("/dev/xvdb", 70), 70 * GIB),
    ];
    let world = World::new(1);
    let by_eks = NodeGroupSpec::named("bottlerocket-of-eks").ami_type("BOTTLEROCKET_x86_64");
    world.aws.add_node_group(by_eks);
    let groups = table.clone().map(|(name, data, _)| match name {
        "bottlerocket-of-eks" => {
            group(name, 0).template_data(data).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", name)
        }
        _ => group(name, 0).template_data(data),
    });
    let scene = Scene::on(world, groups).await;
    for (name, _, kib) in table {
        assert!(eventually(SOON, || async { try_template(&scene, name).await.is_ok() }).await, "{name}");
        let node = template(&scene, name).await;
        assert_eq!(capacity(&node, "ephemeral-storage"), format!("{kib}Ki"), "{name}");
        // 1 GiB for the system, and the tenth below which the kubelet evicts.
        assert_eq!(allocatable(&node, "ephemeral-storage"), format!("{}Ki", kib - kib / 10 - GIB), "{name}");
    }
}
