//! What a group at zero says of its next node, and its options, over RPC.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::provider::proto::{
    LegacyDuration, NodeGroupAutoscalingOptions, NodeGroupAutoscalingOptionsRequest,
};
use ebbtide::sim::aws::{
    LaunchConfigurationSpec, MixedSpec, Operation, Requirements, TemplateData, TemplateSpec,
};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;

use crate::node::{NODE_TEMPLATE, capacity, label, template, try_template};
use crate::scene::{GROUP, Scene, ZONE, eventually, group};

const TYPE: &str = "node.kubernetes.io/instance-type";

#[tokio::test(start_paused = true)]
async fn a_group_at_zero_says_what_its_next_node_will_be() {
    let world = World::new(1);
    let versions = ["m5.large", "m5.xlarge", "c5.large"].map(TemplateData::of);
    let shared = versions.into_iter().fold(TemplateSpec::named("shared"), TemplateSpec::version);
    world.aws.add_template(shared.default_version(2));
    world.aws.add_launch_configuration(LaunchConfigurationSpec::named("old", "t3.medium"));
    let scene = Scene::on(
        world,
        [
            group("pinned", 0).launch_template("shared", "1"),
            group("default", 0).launch_template("shared", "$Default"),
            group("latest", 0).launch_template("shared", "$Latest"),
            group("configuration", 0).launch_configuration("old"),
            group("mixed", 0).launch_template("shared", "1").mixed(MixedSpec::of([
                "m5.xlarge",
                "c5.large",
                "t3.medium",
            ])),
        ],
    )
    .await;
    let table = [
        ("pinned", "m5.large", "2", "29"),
        ("default", "m5.xlarge", "4", "58"),
        ("latest", "c5.large", "2", "29"),
        ("configuration", "t3.medium", "2", "17"),
        ("mixed", "m5.xlarge", "2", "17"),
    ];
    for (group, instance_type, cpu, pods) in table {
        let node = template(&scene, group).await;
        assert_eq!(label(&node, TYPE), instance_type, "{group}");
        assert_eq!(label(&node, "topology.kubernetes.io/zone"), ZONE, "{group}");
        assert_eq!(
            (capacity(&node, "cpu").as_str(), capacity(&node, "pods").as_str()),
            (cpu, pods),
            "{group}"
        );
        assert!(!capacity(&node, "memory").is_empty(), "{group}");
    }
}

#[tokio::test(start_paused = true)]
async fn attributes_are_met_by_types_of_the_images_architecture_unless_a_tag_tells_another() {
    let world = World::new(1);
    world.aws.add_image("ami-arm", "arm64");
    let any = || Requirements::at_least(2, 8192).at_most(2, 8192);
    let from = |image: &str| TemplateData::meeting(any()).image(image);
    let untyped = TemplateSpec::named("arm").version(TemplateData::untyped().image("ami-arm"));
    world.aws.add_template(untyped);
    let groups = [
        group("template", 0).template_data(from("ami-arm")),
        group("override", 0).launch_template("arm", "1").mixed(MixedSpec::meeting(any())),
        group("own-image", 0)
            .template_data(TemplateData::untyped())
            .mixed(MixedSpec::meeting(any()).image("ami-arm")),
        group("tagged", 0)
            .template_data(from("ami-arm"))
            .tag(format!("{NODE_TEMPLATE}/label/kubernetes.io/arch"), "amd64"),
        group("intel", 0).template_data(from("ami-0abcdef1234567890")),
        group("gone", 0).template_data(from("ami-gone")),
        group("parameter", 0).template_data(from("resolve:ssm:/images/arm")),
        group("named", 0).template_data(TemplateData::of("c5.large").image("ami-named")),
    ];
    let scene = Scene::on(world, groups).await;
    for (group, expected) in [
        ("template", "m6g.large"),
        ("override", "m6g.large"),
        ("own-image", "m6g.large"),
        ("tagged", "m5.large"),
        ("intel", "m5.large"),
        ("gone", "m5.large"),
        ("parameter", "m5.large"),
        ("named", "c5.large"),
    ] {
        assert_eq!(label(&template(&scene, group).await, TYPE), expected, "{group}");
    }
    // One for all, which the one that does not exist does not spoil; nobody asks where types are named.
    let asked = scene.world.aws.calls(Operation::DescribeImages);
    assert_eq!(asked, 1);
    tokio::time::sleep(Duration::from_hours(1)).await;
    let again = scene.world.aws.calls(Operation::DescribeImages) - asked;
    assert!(again <= 12, "{again}: only for the one that does not exist, every five minutes");
}

/// A group of any type of 2 vCPUs that an image of arm64 runs on, one that a tag says that of, and one that names a type.
async fn of_an_arm_image(world: World) -> Scene {
    world.aws.add_image("ami-arm", "arm64");
    let attributes = TemplateData::meeting(Requirements::at_least(2, 8192).at_most(2, 8192));
    let of_image = |name: &str| group(name, 0).template_data(attributes.clone().image("ami-arm"));
    let tagged = of_image("tagged").tag(format!("{NODE_TEMPLATE}/label/kubernetes.io/arch"), "arm64");
    Scene::on(world, [of_image(GROUP), tagged, group("plain", 1)]).await
}

#[tokio::test(start_paused = true)]
async fn images_that_ec2_will_not_tell_of_cost_nothing_but_the_architecture() {
    let world = World::new(1);
    world.aws.deny(Operation::DescribeImages, true);
    let scene = of_an_arm_image(world).await;
    for (group, expected) in [(GROUP, "m5.large"), ("tagged", "m6g.large"), ("plain", "m5.large")] {
        assert_eq!(label(&template(&scene, group).await, TYPE), expected, "{group}");
    }
    tokio::time::sleep(Duration::from_mins(30)).await;
    let asked = scene.world.aws.calls(Operation::DescribeImages);
    assert!(asked <= 7, "{asked}: every five minutes");
    scene.world.aws.deny(Operation::DescribeImages, false);
    let right = || async { label(&template(&scene, GROUP).await, TYPE) == "m6g.large" };
    assert!(eventually(Duration::from_mins(7), right).await);
}

#[tokio::test(start_paused = true)]
async fn an_image_is_not_guessed_at_while_ec2_is_busy() {
    let world = World::new(1);
    world.aws.throttle_for(&[Operation::DescribeImages], Duration::from_mins(30));
    let scene = of_an_arm_image(world).await;
    for (group, expected) in [("tagged", "m6g.large"), ("plain", "m5.large")] {
        assert_eq!(label(&template(&scene, group).await, TYPE), expected, "{group}");
    }
    let began = tokio::time::Instant::now();
    while began.elapsed() < Duration::from_mins(28) {
        assert!(try_template(&scene, GROUP).await.is_err(), "it might be of either architecture");
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let known = || async { try_template(&scene, GROUP).await.is_ok() };
    assert!(eventually(Duration::from_mins(4), known).await);
    assert_eq!(label(&template(&scene, GROUP).await, TYPE), "m6g.large");
}

#[tokio::test(start_paused = true)]
async fn tags_shape_the_node_and_a_bad_one_costs_only_itself() {
    let tag = |name: &str| format!("{NODE_TEMPLATE}/{name}");
    let web = group(GROUP, 0)
        .tag(tag("label/team"), "shop")
        .tag(tag("label/broken"), "no label value!")
        .tag(tag("taint/dedicated"), "shop:NoSchedule")
        .tag(tag("taint/broken"), "NoEffect")
        .tag(tag("resources/example.com/license"), "3")
        .tag(tag("resources/cpu"), "plenty");
    let scene = Scene::with([web]).await;
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, "team"), label(&node, "broken")), ("shop".into(), String::new()));
    let taints = node.spec.as_ref().expect("a spec").taints.iter();
    let taints: Vec<_> =
        taints.map(|t| (t.key.as_deref(), t.value.as_deref(), t.effect.as_deref())).collect();
    assert_eq!(taints, [(Some("dedicated"), Some("shop"), Some("NoSchedule"))]);
    assert_eq!(capacity(&node, "example.com/license"), "3");
    assert_eq!(capacity(&node, "cpu"), "2", "as computed");
}

const MINUTE: i64 = 60_000_000_000;

fn old(minutes: i64) -> LegacyDuration {
    LegacyDuration { duration: Some(minutes * MINUTE) }
}

fn new(minutes: i64) -> prost_types::Duration {
    prost_types::Duration { seconds: minutes * 60, nanos: 0 }
}

async fn options(
    scene: &Scene,
    group: &str,
    defaults: NodeGroupAutoscalingOptions,
) -> Option<NodeGroupAutoscalingOptions> {
    let request = NodeGroupAutoscalingOptionsRequest { id: group.into(), defaults: Some(defaults) };
    let answer = scene.program.client().node_group_get_options(request).await.expect("options");
    answer.into_inner().node_group_autoscaling_options
}

#[tokio::test(start_paused = true)]
async fn options_of_a_groups_tags_win_over_the_defaults_in_both_dialects() {
    let tag = |name: &str| format!("{NODE_TEMPLATE}/autoscaling-options/{name}");
    let own = group(GROUP, 0)
        .tag(tag("scaledownutilizationthreshold"), "0.7")
        .tag(tag("scaledownunneededtime"), "3m")
        .tag(tag("scaledownunreadytime"), "soon");
    let accepted = Config { zero_node_startup_time: true, ..config() };
    let scene = Scene::configured(World::new(1), accepted, [own, group("plain", 0)]).await;
    let common = NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: 0.5,
        scale_down_gpu_utilization_threshold: 0.6,
        ..NodeGroupAutoscalingOptions::default()
    };
    let old_defaults = NodeGroupAutoscalingOptions {
        scale_down_unneeded_time: Some(old(10)),
        scale_down_unready_time: Some(old(20)),
        max_node_provision_time: Some(old(15)),
        ..common
    };
    let new_defaults = NodeGroupAutoscalingOptions {
        scale_down_unneeded_duration: Some(new(10)),
        scale_down_unready_duration: Some(new(20)),
        max_node_provision_duration: Some(new(15)),
        ..common
    };
    let expected = NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: 0.7,
        scale_down_unneeded_time: Some(old(3)),
        scale_down_unneeded_duration: Some(new(3)),
        scale_down_unready_time: Some(old(20)),
        max_node_provision_time: Some(old(15)),
        ..new_defaults
    };
    for defaults in [old_defaults, new_defaults] {
        assert_eq!(options(&scene, GROUP, defaults).await, Some(expected));
        assert_eq!(options(&scene, "plain", defaults).await, None, "the defaults hold");
    }
}

#[tokio::test(start_paused = true)]
async fn every_option_of_cluster_autoscalers_can_be_a_groups_own_and_the_others_stay() {
    let names = [
        ("scaledownutilizationthreshold", "0.7"),
        ("scaledowngpuutilizationthreshold", "0.8"),
        ("scaledownunneededtime", "3m"),
        ("scaledownunreadytime", "4m"),
        ("maxnodeprovisiontime", "5m"),
        ("zeroormaxnodescaling", "true"),
        ("ignoredaemonsetsutilization", "true"),
    ];
    let tag = |name: &str| format!("{NODE_TEMPLATE}/autoscaling-options/{name}");
    let one = names.map(|(name, value)| group(name, 0).tag(tag(name), value));
    let all = names.iter().fold(group(GROUP, 0), |all, (name, value)| all.tag(tag(name), *value));
    let accepted = Config { zero_node_startup_time: true, ..config() };
    let scene = Scene::configured(World::new(1), accepted, one.into_iter().chain([all])).await;
    let defaults = NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: 0.5,
        scale_down_gpu_utilization_threshold: 0.6,
        scale_down_unneeded_duration: Some(new(10)),
        scale_down_unready_duration: Some(new(20)),
        max_node_provision_duration: Some(new(15)),
        ..NodeGroupAutoscalingOptions::default()
    };
    let told = |o: &NodeGroupAutoscalingOptions| {
        let minutes = |d: Option<prost_types::Duration>| format!("{}m", d.expect("is told").seconds / 60);
        [
            o.scale_down_utilization_threshold.to_string(),
            o.scale_down_gpu_utilization_threshold.to_string(),
            minutes(o.scale_down_unneeded_duration),
            minutes(o.scale_down_unready_duration),
            minutes(o.max_node_provision_duration),
            o.zero_or_max_node_scaling.to_string(),
            o.ignore_daemon_sets_utilization.to_string(),
        ]
    };
    let before = told(&defaults);
    for (index, (name, value)) in names.into_iter().enumerate() {
        let mut expected = before.clone();
        expected[index] = value.to_owned();
        assert_eq!(told(&options(&scene, name, defaults).await.expect("its own")), expected, "{name}");
    }
    assert_eq!(
        told(&options(&scene, GROUP, defaults).await.expect("its own")),
        names.map(|(_, v)| v.to_owned())
    );
}
