//! What shapes a template beside the instance type: EC2's silence, tags of the group, and flags.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::sim::aws::{
    GroupSpec, MixedSpec, NodeGroupSpec, Operation, Requirements, TemplateData, TemplateSpec,
};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use ebbtide::template::{MixedInstances, Settings};
use tracing::Level;

use crate::node::{NODE_TEMPLATE, allocatable, capacity, label, template, try_template};
use crate::scene::{GROUP, SOON, Scene, eventually, group};

const TYPE: &str = "node.kubernetes.io/instance-type";
const PRIVATE_IP: &str = "vpc.amazonaws.com/PrivateIPv4Address";
const ACCELERATOR: &str = "k8s.amazonaws.com/accelerator";
const HOUR: Duration = Duration::from_hours(1);

async fn with_settings(settings: Settings, groups: impl IntoIterator<Item = GroupSpec>) -> Scene {
    Scene::configured(World::new(1), Config { templates: settings, ..config() }, groups).await
}

#[tokio::test(start_paused = true)]
async fn types_that_ec2_does_not_tell_are_the_tables_until_it_does() {
    let (log, _guard) = captured::log(Level::WARN);
    let world = World::new(1);
    world.aws.throttle_for(&[Operation::DescribeInstanceTypes], HOUR);
    let groups = [
        group(GROUP, 0).template("m5.large"),
        // No line of the table: it was made where there is none any more.
        group("old", 0).template("p3.2xlarge"),
        // The world's EC2 has none of it.
        group("new", 0).template("m7i.large"),
        group("mixed", 0).mixed(MixedSpec::of(["m5.xlarge", "p3.2xlarge", "m7i.large"])),
    ];
    let scene = Scene::on(world, groups).await;
    assert_eq!(capacity(&template(&scene, GROUP).await, "cpu"), "2");
    assert_eq!(capacity(&template(&scene, "new").await, "pods"), "29");
    assert_eq!(label(&template(&scene, "mixed").await, TYPE), "m5.xlarge");
    for _ in 0..3 {
        assert!(try_template(&scene, "old").await.is_err(), "neither tells it");
    }
    let words = "the group has no template";
    let told: Vec<_> = log.text().lines().filter(|line| line.contains(words)).map(str::to_owned).collect();
    assert!(told.len() == 1 && told[0].contains("p3.2xlarge"), "{told:?}");

    let told = || async { try_template(&scene, "old").await.is_ok() };
    assert!(eventually(2 * HOUR, told).await, "EC2 is asked again");
    assert_eq!(capacity(&template(&scene, "old").await, "nvidia.com/gpu"), "1");
    assert_eq!(capacity(&template(&scene, "new").await, "pods"), "29", "EC2 has answered, without it");
}

#[tokio::test(start_paused = true)]
async fn attributes_are_asked_for_though_types_are_not() {
    let wanted = TemplateData::meeting(Requirements::at_least(4, 8192).at_most(4, 8192).accelerators(1, 1));
    let settings = Settings { static_types: true, ..Settings::default() };
    let scene = with_settings(settings, [group(GROUP, 0).template_data(wanted)]).await;
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, TYPE), capacity(&node, "pods")), ("inf1.xlarge".into(), "38".into()));
    let calls = |operation| scene.world.aws.calls(operation);
    assert_eq!(calls(Operation::GetInstanceTypesFromInstanceRequirements), 1);
    assert_eq!(calls(Operation::DescribeInstanceTypes), 0);
}

#[tokio::test(start_paused = true)]
async fn an_override_with_a_launch_template_of_its_own_has_that_ones_disk_and_pods() {
    let world = World::new(1);
    let own = TemplateData::untyped().volume("/dev/xvda", 30).user_data("maxPods: 20\n");
    for (name, data) in [("base", TemplateData::untyped().volume("/dev/xvda", 100)), ("own", own)] {
        world.aws.add_template(TemplateSpec::named(name).version(data));
    }
    let both = MixedSpec::of(["m5.large"]).with_template("m5.xlarge", "own", "1");
    let groups = [
        group(GROUP, 0).launch_template("base", "1").mixed(both),
        group("base-only", 0).launch_template("base", "1").mixed(MixedSpec::of(["m5.large", "m5.xlarge"])),
    ];
    let scene = Scene::on(world, groups).await;
    for (name, gib, pods) in [(GROUP, 30, "20"), ("base-only", 100, "29")] {
        let node = template(&scene, name).await;
        let storage = format!("{}Ki", gib * 1024 * 1024);
        assert_eq!(capacity(&node, "ephemeral-storage"), storage, "{name}");
        assert_eq!(capacity(&node, "pods"), pods, "{name}");
    }
}

/// Multithreading is off: <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-optimize-cpu.html>.
#[tokio::test(start_paused = true)]
async fn a_launch_template_that_gives_cores_and_threads_says_how_many_cpus_a_node_has() {
    let one_thread = TemplateData::of("m5.24xlarge").cpu_options(48, 1);
    let scene = Scene::with([group(GROUP, 0).template_data(one_thread)]).await;
    let node = template(&scene, GROUP).await;
    // The reserve of 48: 60 + 10 + 2 * 5 + 44 * 2.5.
    assert_eq!((capacity(&node, "cpu").as_str(), allocatable(&node, "cpu").as_str()), ("48", "47810m"));
    assert_eq!(capacity(&node, "pods"), "737", "the type's");
}

/// Pods of max-pods-calculator.sh with `--cni-prefix-delegation-enabled`.
#[tokio::test(start_paused = true)]
async fn prefix_delegation_and_max_pods_are_told_by_tags() {
    let prefixes = |name: &str, instance_type: &str| {
        group(name, 0).template(instance_type).tag("ebbtide/prefix-delegation", "true")
    };
    let table = [
        ("m5.large", "110"),
        ("c6g.medium", "98"),
        ("t3.micro", "34"),
        ("m5.metal", "250"),
        ("p5.48xlarge", "250"),
        // Xen has no prefixes.
        ("t2.medium", "17"),
    ];
    let groups = table.map(|(instance_type, _)| prefixes(instance_type, instance_type));
    let told = prefixes("told", "m5.large").tag("ebbtide/max-pods", "64");
    let resource = format!("{NODE_TEMPLATE}/resources/pods");
    let beaten = group("beaten", 0).tag("ebbtide/max-pods", "64").tag(resource, "7");
    let wrong = group("wrong", 0).tag("ebbtide/max-pods", "lots").tag("ebbtide/prefix-delegation", "on");
    let scene = Scene::with(groups.into_iter().chain([told, beaten, wrong])).await;
    for (name, pods) in table.into_iter().chain([("told", "64"), ("beaten", "7"), ("wrong", "29")]) {
        let node = template(&scene, name).await;
        assert_eq!(
            (capacity(&node, "pods"), allocatable(&node, "pods")),
            (pods.into(), pods.into()),
            "{name}"
        );
    }
    // The images keep memory for the 29 pods of secondary addresses, whatever the kubelet is told.
    let plain = allocatable(&template(&scene, "wrong").await, "memory");
    for name in ["m5.large", "told"] {
        assert_eq!(allocatable(&template(&scene, name).await, "memory"), plain, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_labelled_windows_has_the_figures_of_windows() {
    let windows = |name: &str| {
        let tag = format!("{NODE_TEMPLATE}/label/kubernetes.io/os");
        group(name, 0).template("m5.xlarge").tag(tag, "windows")
    };
    let prefixes = windows("prefixes").tag("ebbtide/prefix-delegation", "true");
    let scene = Scene::with([windows(GROUP), prefixes, group("linux", 0)]).await;
    let node = template(&scene, GROUP).await;
    for key in ["kubernetes.io/os", "beta.kubernetes.io/os"] {
        assert_eq!(label(&node, key), "windows");
    }
    // 15 addresses an interface, less its own.
    assert_eq!((capacity(&node, "pods"), allocatable(&node, PRIVATE_IP)), ("14".into(), "14".into()));
    assert_eq!(capacity(&node, "ephemeral-storage"), format!("{}Ki", 50 * 1024 * 1024));
    let node = template(&scene, "prefixes").await;
    assert_eq!((capacity(&node, "pods"), allocatable(&node, PRIVATE_IP)), ("110".into(), "224".into()));
    let node = template(&scene, "linux").await;
    assert_eq!(
        (label(&node, "kubernetes.io/os"), capacity(&node, PRIVATE_IP)),
        ("linux".into(), String::new())
    );
    assert_eq!(capacity(&node, "ephemeral-storage"), format!("{}Ki", 20 * 1024 * 1024));
}

#[tokio::test(start_paused = true)]
async fn a_managed_node_group_of_windows_images_has_the_figures_of_windows() {
    let world = World::new(1);
    world.aws.add_node_group(NodeGroupSpec::named(GROUP).ami_type("WINDOWS_CORE_2022_x86_64"));
    let managed = group(GROUP, 0).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", GROUP);
    let scene = Scene::on(world, [managed]).await;
    assert!(eventually(SOON, || async { try_template(&scene, GROUP).await.is_ok() }).await);
    let node = template(&scene, GROUP).await;
    assert_eq!((capacity(&node, "pods"), allocatable(&node, PRIVATE_IP)), ("9".into(), "9".into()));
    assert_eq!(label(&node, "beta.kubernetes.io/os"), "windows");
}

#[tokio::test(start_paused = true)]
async fn a_gpus_model_is_a_label_where_the_template_has_a_gpu_unless_a_tag_says_otherwise() {
    let own =
        group("own", 0).template("g4dn.xlarge").tag(format!("{NODE_TEMPLATE}/label/{ACCELERATOR}"), "mine");
    // The least of both has no GPU.
    let mixed = group("mixed", 0).mixed(MixedSpec::of(["g4dn.xlarge", "m5.xlarge"]));
    let scene = Scene::with([group(GROUP, 0).template("g4dn.xlarge"), own, mixed]).await;
    for (name, expected) in [(GROUP, "nvidia-tesla-t4"), ("own", "mine"), ("mixed", "")] {
        assert_eq!(label(&template(&scene, name).await, ACCELERATOR), expected, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn real_nodes_are_believed_about_the_models_label_and_a_tag_about_pods() {
    let gpu = group(GROUP, 1).template("g4dn.xlarge").tag("ebbtide/max-pods", "40");
    let scene = Scene::with([gpu]).await;
    // The world's kubelets put no such label on their Nodes, and say that they take 29 pods.
    let shown = || async { label(&template(&scene, GROUP).await, ACCELERATOR).is_empty() };
    assert!(eventually(SOON, shown).await);
    let node = template(&scene, GROUP).await;
    assert_eq!((capacity(&node, "pods").as_str(), allocatable(&node, "pods").as_str()), ("40", "40"));
}

#[tokio::test(start_paused = true)]
async fn figures_of_several_types_are_the_least_the_firsts_or_the_most() {
    let types = ["m5.xlarge", "c5.large", "g4dn.xlarge", "m5.4xlarge"];
    for (mixed, cpu, memory_gib, pods, gpus) in [
        (MixedInstances::Min, "2", 4, "29", ""),
        (MixedInstances::First, "4", 16, "58", ""),
        (MixedInstances::Max, "16", 64, "234", "1"),
    ] {
        let settings = Settings { mixed, memory_overhead: Some(0), ..Settings::default() };
        let scene = with_settings(settings, [group(GROUP, 0).mixed(MixedSpec::of(types))]).await;
        let node = template(&scene, GROUP).await;
        let memory = format!("{}Ki", memory_gib * 1024 * 1024);
        assert_eq!(label(&node, TYPE), "m5.xlarge", "{mixed:?}");
        assert_eq!((capacity(&node, "cpu").as_str(), capacity(&node, "memory")), (cpu, memory), "{mixed:?}");
        assert_eq!(capacity(&node, "pods"), pods, "{mixed:?}");
        assert_eq!(capacity(&node, "nvidia.com/gpu"), gpus, "{mixed:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn types_that_meet_attributes_have_no_first_one() {
    // EC2's list begins with g4dn.xlarge.
    let any = || Requirements::at_least(2, 8192).at_most(4, 16_384);
    for (mixed, memory_gib) in
        [(MixedInstances::Min, 8), (MixedInstances::First, 8), (MixedInstances::Max, 16)]
    {
        let settings = Settings { mixed, memory_overhead: Some(0), ..Settings::default() };
        let of_template = group(GROUP, 0).template_data(TemplateData::meeting(any()));
        let of_override = group("override", 0).mixed(MixedSpec::meeting(any()));
        let scene = with_settings(settings, [of_template, of_override]).await;
        for group in [GROUP, "override"] {
            let memory = capacity(&template(&scene, group).await, "memory");
            assert_eq!(memory, format!("{}Ki", memory_gib * 1024 * 1024), "{group} {mixed:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_share_of_memory_that_is_kept_is_a_flag() {
    for (memory_overhead, mib) in [(None, 7577), (Some(0), 8192), (Some(5000), 4096)] {
        let settings = Settings { memory_overhead, ..Settings::default() };
        let scene = with_settings(settings, [group(GROUP, 0)]).await;
        let memory = capacity(&template(&scene, GROUP).await, "memory");
        let kib: i64 = memory.trim_end_matches("Ki").parse().expect("KiB");
        assert_eq!(kib / 1024, mib, "{memory_overhead:?}");
    }
}

/// With an overlay (Calico, Cilium) pods need no address of the VPC.
#[tokio::test(start_paused = true)]
async fn the_number_of_pods_where_the_network_is_an_overlay_is_a_flag() {
    let settings = Settings { max_pods: Some(110), ..Settings::default() };
    let prefixes = group("prefixes", 0).template("t3.medium").tag("ebbtide/prefix-delegation", "true");
    let scene = with_settings(
        settings,
        [
            group("small", 0).template("t3.medium"),
            group("large", 0).template("m5.4xlarge"),
            group("tag", 0).tag("ebbtide/max-pods", "17"),
            group("user-data", 0).template_data(TemplateData::of("m5.large").user_data("maxPods: 58")),
            prefixes,
            group("real", 1),
        ],
    )
    .await;
    let pods = [("small", "110"), ("large", "110"), ("tag", "17"), ("user-data", "58"), ("prefixes", "110")];
    for (name, expected) in pods {
        assert_eq!(capacity(&template(&scene, name).await, "pods"), expected, "{name}");
    }
    let shown = || async { capacity(&template(&scene, "real").await, "pods") == "29" };
    assert!(eventually(SOON, shown).await, "the kubelet says what it takes");
}

#[tokio::test(start_paused = true)]
async fn the_zones_id_is_a_label_as_soon_as_it_is_known_which_it_is() {
    const ZONE_ID: &str = "topology.k8s.aws/zone-id";
    let several = |name: &str, size: u32| group(name, size).zones(["us-east-1b", "us-east-1c"]);
    let scene = Scene::with([group(GROUP, 0), several("several", 0)]).await;
    assert_eq!(label(&template(&scene, GROUP).await, ZONE_ID), "use1-az4");
    assert_eq!(label(&template(&scene, "several").await, ZONE_ID), "", "of two ids either may be it");
    scene.world.aws.add_group(several("other", 2));
    let told = || async { label(&template(&scene, "several").await, ZONE_ID) == "use1-az5" };
    assert!(eventually(SOON, told).await, "an instance there tells its zone's name and id");
}
