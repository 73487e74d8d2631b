//! What templates say, from facts to the encoded Node.

use std::collections::BTreeMap;

use k8s_pb::api::core::v1::Node;

use super::capacity::tests::instance_type;
use super::learned::{Given, Learned};
use super::tags::NodeTags;
use super::*;
use crate::aws::{Accelerator, Launch, LaunchSpec, Mix, TypeInfo, UserData, Volumes};
use crate::k8s::Taint;

fn template(types: &[&TypeInfo], group_tags: &[(&str, &str)]) -> Node {
    template_of(types, group_tags, &root_of(50), None, None)
}

fn root_of(gib: i32) -> LaunchSpec {
    let volumes = Volumes { root_gib: Some(gib), data_gib: None };
    LaunchSpec { volumes, ..LaunchSpec::default() }
}

fn template_of(
    types: &[&TypeInfo],
    group_tags: &[(&str, &str)],
    spec: &LaunchSpec,
    described: Option<&ManagedNodeGroup>,
    learned: Option<&Learned>,
) -> Node {
    let read = group_tags
        .iter()
        .map(|&(key, value)| (format!("k8s.io/cluster-autoscaler/node-template/{key}"), value.to_owned()));
    let (tags, bad) = tags::read(&read.collect());
    assert_eq!(bad, []);
    let zones = ["eu-west-1b".to_owned(), "eu-west-1a".to_owned()];
    let specs = [Arc::new(spec.clone())];
    let types: Vec<_> = types.iter().map(|info| Candidate { info, specs: &specs }).collect();
    let facts = Facts {
        zone_id: Some("euw1-az2"),
        market: Some(Market::Spot),
        eks: Some(Managed { name: "workers", described }),
        learned,
        ..bare(&types, &zones, &tags)
    };
    let template = Template::of(&facts, &Settings::default()).expect("has a type and a zone");
    Node::decode(template.encoded).expect("is a Node")
}

fn labels(node: &Node) -> &BTreeMap<String, String> {
    &node.metadata.as_ref().expect("has metadata").labels
}

fn allocatable(node: &Node, resource: &str) -> Option<String> {
    node.status.as_ref()?.allocatable.get(resource)?.string.clone()
}

fn capacity_of(node: &Node, resource: &str) -> Option<String> {
    node.status.as_ref()?.capacity.get(resource)?.string.clone()
}

/// Facts about a group of which nothing else is known.
fn bare<'a>(types: &'a [Candidate<'a>], zones: &'a [String], tags: &'a NodeTags) -> Facts<'a> {
    Facts {
        group: "web",
        region: "eu-west-1",
        zones,
        zone_id: None,
        types,
        market: None,
        eks: None,
        learned: None,
        tags,
    }
}

#[test]
fn a_template_looks_like_a_node_of_the_group() {
    let node = template(&[&instance_type("m5.large", 2, 8, 3, 10)], &[]);
    for (key, value) in [
        ("kubernetes.io/arch", "amd64"),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/hostname", "web-template-m5.large"),
        ("node.kubernetes.io/instance-type", "m5.large"),
        ("beta.kubernetes.io/instance-type", "m5.large"),
        ("topology.kubernetes.io/region", "eu-west-1"),
        ("topology.kubernetes.io/zone", "eu-west-1b"),
        ("topology.ebs.csi.aws.com/zone", "eu-west-1b"),
        ("topology.k8s.aws/zone-id", "euw1-az2"),
        ("eks.amazonaws.com/nodegroup", "workers"),
        ("eks.amazonaws.com/capacityType", "SPOT"),
    ] {
        assert_eq!(labels(&node).get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(capacity_of(&node, "cpu").as_deref(), Some("2"));
    assert_eq!(allocatable(&node, "cpu").as_deref(), Some("1930m"));
    assert_eq!(allocatable(&node, "pods").as_deref(), Some("29"));
    assert_eq!(capacity_of(&node, "ephemeral-storage").as_deref(), Some("52428800Ki"));
    let status = node.status.as_ref().expect("has a status");
    assert_eq!(status.conditions[0].r#type.as_deref(), Some("Ready"));
    assert_eq!(status.conditions[0].status.as_deref(), Some("True"));
    assert_eq!(node.spec.expect("has a spec").provider_id, None);
}

#[test]
fn a_tag_beats_what_is_computed() {
    let node = template(
        &[&instance_type("m5.large", 2, 8, 3, 10)],
        &[
            ("label/kubernetes.io/os", "windows"),
            ("taint/dedicated", "web:NoSchedule"),
            ("resources/memory", "7Gi"),
            ("resources/example.com/fpga", "1"),
        ],
    );
    assert_eq!(labels(&node)["kubernetes.io/os"], "windows");
    assert_eq!(capacity_of(&node, "memory").as_deref(), Some("7Gi"));
    assert_eq!(allocatable(&node, "memory").as_deref(), Some("7Gi"));
    assert_eq!(allocatable(&node, "example.com/fpga").as_deref(), Some("1"));
    let taint = &node.spec.expect("has a spec").taints[0];
    assert_eq!((taint.key.as_deref(), taint.effect.as_deref()), (Some("dedicated"), Some("NoSchedule")));
}

fn taints(node: &Node) -> Vec<(&str, &str, &str)> {
    let taints = node.spec.as_ref().expect("has a spec").taints.iter();
    let parts = taints.map(|taint| [&taint.key, &taint.value, &taint.effect].map(Option::as_deref));
    parts.map(|parts| parts.map(Option::unwrap_or_default).into()).collect()
}

fn described() -> ManagedNodeGroup {
    let taint = |key: &str, value: &str, effect: &str| Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect: effect.to_owned(),
    };
    ManagedNodeGroup {
        labels: [("team", "ml"), ("tier", "batch")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        taints: vec![taint("gpu", "", "NoSchedule"), taint("team", "ml", "NoExecute")],
        capacity_type: Some("CAPACITY_BLOCK".to_owned()),
        ami_type: Some("AL2023_ARM_64_STANDARD".to_owned()),
        disk_gib: Some(80),
        ..ManagedNodeGroup::default()
    }
}

#[test]
fn what_eks_says_beats_what_is_computed() {
    let described = described();
    let node = template_of(
        &[&instance_type("x1.any", 2, 8, 3, 10)],
        &[],
        &LaunchSpec::default(),
        Some(&described),
        None,
    );
    for (key, value) in [
        ("team", "ml"),
        ("tier", "batch"),
        ("eks.amazonaws.com/nodegroup", "workers"),
        ("eks.amazonaws.com/capacityType", "CAPACITY_BLOCK"),
        ("kubernetes.io/arch", "arm64"),
        ("kubernetes.io/os", "linux"),
    ] {
        assert_eq!(labels(&node).get(key).map(String::as_str), Some(value), "{key}");
    }
    assert_eq!(taints(&node), [("gpu", "", "NoSchedule"), ("team", "ml", "NoExecute")]);
    assert_eq!(capacity_of(&node, "ephemeral-storage").as_deref(), Some("83886080Ki"));
    let own_volume =
        template_of(&[&instance_type("x1.any", 2, 8, 3, 10)], &[], &root_of(50), Some(&described), None);
    assert_eq!(capacity_of(&own_volume, "ephemeral-storage").as_deref(), Some("52428800Ki"));
}

#[test]
fn what_eks_says_beats_what_older_nodes_have_shown() {
    let taint =
        |key: &str| Taint { key: key.to_owned(), value: "old".to_owned(), effect: "NoSchedule".to_owned() };
    let learned = Learned {
        labels: [("team", "web"), ("agent", "up")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        taints: vec![taint("gpu"), taint("agent")],
        ..Learned::default()
    };
    let m5 = instance_type("m5.large", 2, 8, 3, 10);
    let node = template_of(&[&m5], &[], &LaunchSpec::default(), Some(&described()), Some(&learned));
    assert_eq!((labels(&node)["team"].as_str(), labels(&node)["agent"].as_str()), ("ml", "up"));
    let expected = [("agent", "old", "NoSchedule"), ("gpu", "", "NoSchedule"), ("team", "ml", "NoExecute")];
    assert_eq!(taints(&node), expected);
}

#[test]
fn a_device_that_no_settled_node_of_the_type_has_shown_is_named_unless_a_tag_says_how_many_there_are() {
    let mut inf1 = instance_type("inf1.xlarge", 4, 8, 4, 10);
    inf1.accelerators = vec![Accelerator {
        manufacturer: "AWS".to_owned(),
        name: "Inferentia".to_owned(),
        count: 1,
        cores: 4,
    }];
    let shown = |devices: &[&str]| {
        let devices = devices.iter().map(|&name| (name.to_owned(), 1)).collect();
        let capacity = Resources { devices, ..Resources::default() };
        [("inf1.xlarge".to_owned(), Figures { capacity, ..Figures::default() })].into()
    };
    let (zones, specs) = (["a".to_owned()], [Arc::new(LaunchSpec::default())]);
    let types = [Candidate { info: &inf1, specs: &specs }];
    let (device, cores) = ("aws.amazon.com/neuron", "aws.amazon.com/neuroncore");
    for (settled, shows, tagged, expected) in [
        (true, &[][..], None, &[device, cores][..]),
        (true, &[device], None, &[cores]),
        (true, &[], Some(device), &[cores]),
        (true, &[device, cores], None, &[]),
        (false, &[], None, &[]),
    ] {
        let learned = Learned {
            types: shown(shows),
            settled: settled.then(|| inf1.name.clone()).into_iter().collect(),
            ..Learned::default()
        };
        let tags = tagged.map(|name| {
            (format!("k8s.io/cluster-autoscaler/node-template/resources/{name}"), "0".to_owned())
        });
        let (tags, _) = tags::read(&tags.into_iter().collect());
        let facts = Facts { learned: Some(&learned), ..bare(&types, &zones, &tags) };
        let template = Template::of(&facts, &Settings::default()).expect("has a type and a zone");
        assert_eq!(template.unshown.iter().map(String::as_str).collect::<Vec<_>>(), expected, "{shows:?}");
    }
}

#[test]
fn a_difference_to_real_nodes_is_that_of_what_tags_say() {
    let m5 = instance_type("m5.large", 2, 8, 3, 10);
    let (zones, specs) = (["a".to_owned()], [Arc::new(LaunchSpec::default())]);
    let types = [Candidate { info: &m5, specs: &specs }];
    let allocatable =
        Resources { cpu_millis: 1_500, memory_kib: 4_194_304, pods: 58, ..Resources::default() };
    let learned = Learned {
        types: [(m5.name.clone(), Figures { allocatable, ..Figures::default() })].into(),
        last: m5.name.clone(),
        ..Learned::default()
    };
    let difference = |said: &[(&str, &str)]| {
        let tags = said.iter().map(|(name, value)| {
            (format!("k8s.io/cluster-autoscaler/node-template/resources/{name}"), (*value).to_owned())
        });
        let (tags, _) = tags::read(&tags.collect());
        let facts = Facts { learned: Some(&learned), ..bare(&types, &zones, &tags) };
        let template = Template::of(&facts, &Settings::default()).expect("has a type and a zone");
        template.difference.expect("a node was seen")
    };
    let untold = difference(&[]);
    assert!(untold.cpu > 0.2 && untold.memory > 0.5 && untold.pods < -0.4, "{untold:?}");
    let told = difference(&[("cpu", "1500m"), ("memory", "4Gi"), ("pods", "58")]);
    assert_eq!(told, Difference { storage: untold.storage, ..Difference::default() });
    assert!((difference(&[("memory", "8Gi")]).memory - 1.0).abs() < 1e-9, "what is said may be wrong");
}

#[test]
fn a_tag_beats_what_eks_says_but_for_its_labels() {
    let (described, m5) = (described(), instance_type("m5.large", 2, 8, 3, 10));
    let tags = [
        ("label/team", "web"),
        ("label/agent", "off"),
        ("taint/team", "web:NoExecute"),
        ("taint/gpu", "yes:PreferNoSchedule"),
    ];
    // What it said last stands while it does not answer.
    let learned = Learned {
        labels: [("team", "ml"), ("agent", "up")].map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        given: Given { labels: ["team".to_owned()].into(), ..Given::default() },
        ..Learned::default()
    };
    let spec = LaunchSpec::default();
    let silent = template_of(&[&m5], &tags, &spec, None, Some(&learned));
    let node = template_of(&[&m5], &tags, &spec, Some(&described), None);
    for node in [&silent, &node] {
        assert_eq!((labels(node)["team"].as_str(), labels(node)["agent"].as_str()), ("ml", "off"));
    }
    // Of the same key and effect the tag's only; another effect is another taint.
    let expected =
        [("gpu", "", "NoSchedule"), ("gpu", "yes", "PreferNoSchedule"), ("team", "web", "NoExecute")];
    assert_eq!(taints(&node), expected);
}

#[test]
fn a_node_group_with_images_of_windows_has_nodes_of_windows() {
    let ami_type = Some("WINDOWS_CORE_2022_x86_64".to_owned());
    let described = ManagedNodeGroup { ami_type, ..ManagedNodeGroup::default() };
    let node = template_of(
        &[&instance_type("m5.large", 2, 8, 3, 10)],
        &[],
        &LaunchSpec::default(),
        Some(&described),
        None,
    );
    assert_eq!(labels(&node)["kubernetes.io/os"], "windows");
    assert_eq!(labels(&node)["kubernetes.io/arch"], "amd64");
}

#[test]
fn pods_of_bottlerocket_have_the_second_volume() {
    let of_eks =
        ManagedNodeGroup { ami_type: Some("BOTTLEROCKET_x86_64".to_owned()), ..ManagedNodeGroup::default() };
    let custom = ManagedNodeGroup { ami_type: Some("CUSTOM".to_owned()), ..ManagedNodeGroup::default() };
    let both = Volumes { root_gib: Some(4), data_gib: Some(100) };
    let root_only = Volumes { data_gib: None, ..both };
    let settings = UserData { bottlerocket: true, ..UserData::default() };
    for (described, volumes, user_data, gib) in [
        (&of_eks, both, UserData::default(), 100),
        (&of_eks, root_only, UserData::default(), 20),
        (&custom, both, settings, 100),
        (&custom, both, UserData::default(), 4),
    ] {
        let spec = LaunchSpec { volumes, user_data, ..LaunchSpec::default() };
        let m5 = instance_type("m5.large", 2, 8, 3, 10);
        let node = template_of(&[&m5], &[], &spec, Some(described), None);
        let expected = format!("{}Ki", gib * 1024 * 1024);
        assert_eq!(capacity_of(&node, "ephemeral-storage"), Some(expected), "{described:?} {spec:?}");
        assert_eq!(labels(&node)["kubernetes.io/os"], "linux");
    }
}

#[test]
fn the_instance_store_is_pods_storage_where_it_is_set_up_for_it_and_the_type_has_one() {
    let user_data = UserData { local_raid0: true, ..UserData::default() };
    let raid0 = LaunchSpec { user_data, ..root_of(50) };
    let plain = instance_type("m5.large", 2, 8, 3, 10);
    let with_disks = TypeInfo { instance_store_gb: 75, ..instance_type("m5d.large", 2, 8, 3, 10) };
    for (spec, types, kib) in [
        (&raid0, &[&with_disks][..], 75_000_000_000_i64 / 1024),
        (&raid0, &[&plain], 50 * 1024 * 1024),
        (&raid0, &[&with_disks, &plain], 50 * 1024 * 1024),
        (&root_of(50), &[&with_disks], 50 * 1024 * 1024),
    ] {
        let node = template_of(types, &[], spec, None, None);
        assert_eq!(capacity_of(&node, "ephemeral-storage"), Some(format!("{kib}Ki")), "{types:?}");
    }
}

#[test]
fn a_type_with_a_launch_template_of_its_own_has_that_ones_disk_and_pods() {
    let user_data = UserData { max_pods: Some(20), ..UserData::default() };
    let (base, own) = (root_of(100), LaunchSpec { user_data, ..root_of(30) });
    let (large, xlarge) = (instance_type("m5.large", 2, 8, 3, 10), instance_type("m5.xlarge", 4, 16, 4, 15));
    let [base, own] = [base, own].map(Arc::new);
    let (only_base, only_own, both) = ([Arc::clone(&base)], [Arc::clone(&own)], [base, own]);
    let (zones, tags) = (["eu-west-1a".to_owned()], NodeTags::default());
    for (specs, mixed, expected) in [
        ([&only_base[..], &only_own], MixedInstances::Min, (30, "20")),
        ([&only_base, &only_own], MixedInstances::First, (100, "29")),
        ([&only_base, &only_own], MixedInstances::Max, (100, "29")),
        ([&both, &only_base], MixedInstances::First, (30, "20")),
        ([&both, &both], MixedInstances::Max, (30, "20")),
    ] {
        let types =
            [Candidate { info: &large, specs: specs[0] }, Candidate { info: &xlarge, specs: specs[1] }];
        let facts = bare(&types, &zones, &tags);
        let template = Template::of(&facts, &Settings { mixed, ..Settings::default() }).expect("has types");
        let node = Node::decode(template.encoded).expect("is a Node");
        let (gib, pods) = expected;
        let storage = format!("{}Ki", gib * 1024 * 1024);
        assert_eq!(capacity_of(&node, "ephemeral-storage"), Some(storage), "{mixed:?}");
        assert_eq!(capacity_of(&node, "pods").as_deref(), Some(pods), "{mixed:?}");
    }
}

#[test]
fn several_types_give_the_least_of_each_resource_and_the_labels_of_the_first() {
    let mut gpu = instance_type("g4dn.xlarge", 4, 16, 3, 10);
    gpu.accelerators =
        vec![Accelerator { manufacturer: "NVIDIA".into(), name: "T4".into(), count: 1, cores: 0 }];
    let large_memory = instance_type("r5.large", 2, 16, 3, 10);
    let compute = instance_type("c5.xlarge", 4, 8, 4, 15);
    let node = template(&[&compute, &large_memory, &gpu], &[]);
    assert_eq!(labels(&node)["node.kubernetes.io/instance-type"], "c5.xlarge");
    assert_eq!(capacity_of(&node, "cpu").as_deref(), Some("2"));
    assert_eq!(capacity_of(&node, "memory").as_deref(), Some("7759462Ki"));
    assert_eq!(capacity_of(&node, "pods").as_deref(), Some("29"));
    assert_eq!(capacity_of(&node, "nvidia.com/gpu"), None);
    let only_gpu = template(&[&gpu], &[]);
    assert_eq!(allocatable(&only_gpu, "nvidia.com/gpu").as_deref(), Some("1"));
}

/// cluster-autoscaler from 1.35 on looks for the GPUs of such a node, and while one is to come grows no group at all.
#[test]
fn a_gpus_model_is_no_label_where_the_tags_leave_no_gpu() {
    let mut gpu = instance_type("g4dn.xlarge", 4, 16, 3, 10);
    gpu.accelerators =
        vec![Accelerator { manufacturer: "NVIDIA".into(), name: "T4".into(), count: 1, cores: 0 }];
    let label = |tags: &[(&str, &str)], types: &[&TypeInfo]| {
        labels(&template(types, tags)).get(devices::LABEL).cloned().unwrap_or_default()
    };
    assert_eq!(label(&[], &[&gpu]), "nvidia-tesla-t4");
    for none in ["0", "0k"] {
        assert_eq!(label(&[("resources/nvidia.com/gpu", none)], &[&gpu]), "", "{none}");
    }
    let without = instance_type("m5.xlarge", 4, 16, 4, 15);
    assert_eq!(label(&[], &[&gpu, &without]), "", "the least of both has no GPU");
    assert_eq!(label(&[("resources/nvidia.com/gpu", "1")], &[&gpu, &without]), "nvidia-tesla-t4");
}

#[test]
fn where_only_memory_is_known_the_rest_is_as_if_no_node_had_been_seen() {
    let mut gpu = instance_type("g4dn.xlarge", 4, 16, 3, 10);
    gpu.accelerators =
        vec![Accelerator { manufacturer: "NVIDIA".into(), name: "T4".into(), count: 1, cores: 0 }];
    let learned = Learned { memory: [("g4dn.xlarge".to_owned(), 16_000_000)].into(), ..Learned::default() };
    let node = template_of(&[&gpu], &[], &LaunchSpec::default(), None, Some(&learned));
    assert_eq!(labels(&node)["k8s.amazonaws.com/accelerator"], "nvidia-tesla-t4");
    assert_eq!(capacity_of(&node, "memory").as_deref(), Some("16000000Ki"));
    let expected = format!("{}Ki", 16_000_000 - (255 + 29 * 11 + 100) * 1024);
    assert_eq!(allocatable(&node, "memory"), Some(expected));
    let unknown = template_of(&[&gpu], &[], &LaunchSpec::default(), None, None);
    assert_eq!(labels(&node), labels(&unknown));
    // What somebody wrote into the ConfigMap.
    let learned = Learned { memory: [("g4dn.xlarge".to_owned(), i64::MIN)].into(), ..learned };
    let damaged = template_of(&[&gpu], &[], &LaunchSpec::default(), None, Some(&learned));
    assert_eq!(capacity_of(&damaged, "memory"), capacity_of(&unknown, "memory"));
}

#[test]
fn the_market_is_told_only_where_it_is_one() {
    let mixed = |on_demand_base, on_demand_percentage| Launch {
        mix: Some(Mix { on_demand_base, on_demand_percentage }),
        ..Launch::default()
    };
    let (plain, spot) = (LaunchSpec::default(), LaunchSpec { spot: true, ..LaunchSpec::default() });
    assert_eq!(Market::of(&Launch::default(), &plain), Some(Market::OnDemand));
    assert_eq!(Market::of(&Launch::default(), &spot), Some(Market::Spot));
    assert_eq!(Market::of(&mixed(0, 0), &plain), Some(Market::Spot));
    assert_eq!(Market::of(&mixed(1, 0), &plain), None);
    assert_eq!(Market::of(&mixed(0, 50), &plain), None);
    assert_eq!(Market::of(&mixed(0, 100), &plain), Some(Market::OnDemand));
}

#[test]
fn without_a_known_type_there_is_no_template() {
    let tags = NodeTags::default();
    let zones = ["eu-west-1a".to_owned()];
    let facts = bare(&[], &zones, &tags);
    let error = Template::of(&facts, &Settings::default()).expect_err("has no type");
    assert_eq!(error.to_string(), "no instance type of the group is known");
}
