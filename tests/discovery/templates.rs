//! The templates that discovery makes, from every source that a group can launch from.

use std::sync::Arc;
use std::time::Duration;

use ebbtide::groups::Snapshot;
use ebbtide::sim::aws::{LaunchConfigurationSpec, MixedSpec, Requirements, TemplateData, TemplateSpec};
use k8s_pb::api::core::v1::Node;
use prost::Message;

use crate::world::{by_tag, ours, world};

pub(crate) fn node(snapshot: &Snapshot, group: &str) -> Node {
    let template = snapshot.groups[group].template.clone().expect("was tried").expect("is there");
    Node::decode(template.encoded.clone()).expect("is a Node")
}

pub(crate) fn label(node: &Node, key: &str) -> Option<String> {
    node.metadata.as_ref()?.labels.get(key).cloned()
}

fn capacity(node: &Node, resource: &str) -> Option<String> {
    node.status.as_ref()?.capacity.get(resource)?.string.clone()
}

pub(crate) const TYPE: &str = "node.kubernetes.io/instance-type";

#[tokio::test(start_paused = true)]
async fn every_source_of_instances_gives_a_template() {
    let world = world([]).await;
    world.sim.add_template(
        TemplateSpec::named("shared")
            .version(TemplateData::of("m5.large").volume("/dev/xvda", 80))
            .version(TemplateData::of("m5.xlarge"))
            .version(TemplateData::of("m6g.large"))
            .default_version(2),
    );
    world.sim.add_template(TemplateSpec::named("any").version(TemplateData::untyped()));
    world.sim.add_template(
        TemplateSpec::named("attributes").version(TemplateData::meeting(Requirements::at_least(4, 8192))),
    );
    world
        .sim
        .add_launch_configuration(LaunchConfigurationSpec::named("old", "c5.large").volume("/dev/xvda", 30));
    for group in [
        ours("pinned").launch_template("shared", "1"),
        ours("default").launch_template("shared", "$Default"),
        ours("latest").launch_template("shared", "$Latest"),
        ours("configuration").launch_configuration("old"),
        ours("mixed").launch_template("any", "1").mixed(MixedSpec::of([
            "m5.xlarge",
            "c5.large",
            "t3.medium",
        ])),
        ours("attributes").launch_template("attributes", "$Latest"),
        ours("override")
            .launch_template("any", "$Latest")
            .mixed(MixedSpec::meeting(Requirements::at_least(2, 16384).at_most(2, 16384))),
        ours("spot")
            .template_data(TemplateData::of("g4dn.xlarge").spot())
            .tag("eks:cluster-name", "main")
            .tag("eks:nodegroup-name", "gpu-workers"),
        ours("copied").template("m5.large").tag("eks:nodegroup-name", "gpu-workers"),
        ours("neuron").template("inf1.xlarge"),
        ours("unknown").template("x99.huge"),
    ] {
        world.sim.add_group(group);
    }
    let discovery = world.discovery(by_tag());
    // The first refresh asks EKS for nothing.
    discovery.refresh().await.expect("sees");
    let snapshot = discovery.refresh().await.expect("sees");
    for (group, instance_type, cpu, pods) in [
        ("pinned", "m5.large", "2", "29"),
        ("default", "m5.xlarge", "4", "58"),
        ("latest", "m6g.large", "2", "29"),
        ("configuration", "c5.large", "2", "29"),
        ("mixed", "m5.xlarge", "2", "17"),
        ("attributes", "g4dn.xlarge", "4", "29"),
        ("override", "r5.large", "2", "29"),
        ("spot", "g4dn.xlarge", "4", "29"),
        ("neuron", "inf1.xlarge", "4", "38"),
    ] {
        let node = node(&snapshot, group);
        assert_eq!(label(&node, TYPE).as_deref(), Some(instance_type), "{group}");
        assert_eq!(capacity(&node, "cpu").as_deref(), Some(cpu), "{group}");
        assert_eq!(capacity(&node, "pods").as_deref(), Some(pods), "{group}");
        assert_eq!(label(&node, "topology.kubernetes.io/region").as_deref(), Some("us-east-1"));
    }
    assert_eq!(capacity(&node(&snapshot, "pinned"), "ephemeral-storage").as_deref(), Some("83886080Ki"));
    assert_eq!(label(&node(&snapshot, "latest"), "kubernetes.io/arch").as_deref(), Some("arm64"));
    assert_eq!(capacity(&node(&snapshot, "spot"), "nvidia.com/gpu").as_deref(), Some("1"));
    assert_eq!(capacity(&node(&snapshot, "neuron"), "aws.amazon.com/neuron").as_deref(), Some("1"));
    let spot = node(&snapshot, "spot");
    assert_eq!(label(&spot, "eks.amazonaws.com/capacityType").as_deref(), Some("SPOT"));
    assert_eq!(label(&spot, "eks.amazonaws.com/nodegroup").as_deref(), Some("gpu-workers"));
    assert_eq!(label(&node(&snapshot, "pinned"), "eks.amazonaws.com/capacityType"), None);
    let copied = label(&node(&snapshot, "copied"), "eks.amazonaws.com/nodegroup");
    assert_eq!(copied, None, "EKS sets both tags");
    let unknown = snapshot.groups["unknown"].template.clone().expect("was tried").expect_err("is unknown");
    assert_eq!(unknown.to_string(), "instance type x99.huge is not known");
}

#[tokio::test(start_paused = true)]
async fn a_new_version_of_a_launch_template_is_seen_within_minutes() {
    let mut world = world([]).await;
    world.sim.add_template(TemplateSpec::named("shared").version(TemplateData::of("m5.large")));
    world.sim.add_group(ours("latest").launch_template("shared", "$Latest"));
    world.sim.add_group(ours("pinned").launch_template("shared", "1"));
    world.run();
    let is_of = |snapshot: &Snapshot, group: &str, name: &str| {
        label(&node(snapshot, group), TYPE).as_deref() == Some(name)
    };
    world.until(|snapshot| is_of(snapshot, "latest", "m5.large")).await;
    world.sim.add_template_version("shared", TemplateData::of("r5.large"));
    let changed_at = world.clock.now();
    let snapshot = world.until(|snapshot| is_of(snapshot, "latest", "r5.large")).await;
    assert!(is_of(&snapshot, "pinned", "m5.large"), "a version never changes");
    let took = Duration::try_from(world.clock.now().duration_since(changed_at)).expect("is positive");
    assert!(took <= Duration::from_mins(7), "it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_template_survives_that_ec2_answers_no_more() {
    let world = world([ours("web").template("m5.large")]).await;
    let discovery = world.discovery(by_tag());
    discovery.refresh().await.expect("sees");
    let ec2 = [
        ebbtide::sim::aws::Operation::DescribeLaunchTemplateVersions,
        ebbtide::sim::aws::Operation::DescribeInstanceTypes,
    ];
    world.sim.throttle_for(&ec2, Duration::from_hours(2));
    tokio::time::sleep(Duration::from_hours(1)).await;
    let snapshot = discovery.refresh().await.expect("the groups are seen");
    assert_eq!(label(&node(&snapshot, "web"), TYPE).as_deref(), Some("m5.large"));
}

#[tokio::test(start_paused = true)]
async fn what_is_said_again_is_kept_and_what_is_said_otherwise_makes_another_template() {
    let world = world([]).await;
    for name in ["tagged", "same"] {
        world.sim.add_group(ours(name).template("m5.large").size(0, 5, 2));
    }
    let discovery = world.discovery(by_tag());
    discovery.refresh().await.expect("sees");
    let before = discovery.refresh().await.expect("sees");
    let again = discovery.refresh().await.expect("sees");
    let template = |snapshot: &Snapshot, group: &str| {
        snapshot.groups[group].template.clone().expect("was tried").expect("is there")
    };
    let is_kept =
        |group: &str, after: &Snapshot| Arc::ptr_eq(&template(&before, group), &template(after, group));
    assert!(again.has_places_of(&before));
    assert!(["tagged", "same"].iter().all(|group| is_kept(group, &again)));

    world.sim.tag_group("tagged", "k8s.io/cluster-autoscaler/node-template/label/tier", "web");
    let after = discovery.refresh().await.expect("sees");
    assert!(!after.has_places_of(&before));
    assert_eq!(["tagged", "same"].map(|group| is_kept(group, &after)), [false, true]);
    assert_eq!(label(&node(&after, "tagged"), "tier").as_deref(), Some("web"));
}
