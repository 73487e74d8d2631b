//! EKS managed node groups as cluster-autoscaler meets them, whatever EKS answers.

use std::time::Duration;

use ebbtide::sim::aws::{GroupSpec, NodeGroupSpec, Operation, TemplateData, TemplateSpec};
use ebbtide::sim::world::World;
use k8s_pb::api::core::v1::Node;

use crate::node::{NODE_TEMPLATE, capacity, label, try_template};
use crate::scene::{GROUP, Scene, eventually, group};

/// A refresh, and the one that follows it at once while node groups are not known.
const FIRST_LOOKS: Duration = Duration::from_secs(3);

/// How often an answer is asked for again, and a refresh more.
const REFRESH: Duration = Duration::from_mins(6);

/// A group of a managed node group of the same name, at zero.
fn managed(name: &str) -> GroupSpec {
    group(name, 0).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", name)
}

/// A world with this node group, and the program on its group.
async fn scene(node_group: NodeGroupSpec, group: GroupSpec) -> Scene {
    let world = World::new(1);
    world.aws.add_node_group(node_group);
    Scene::on(world, [group]).await
}

/// The template of the group, as soon as it has one.
async fn template(scene: &Scene) -> Node {
    let is_there = || async { try_template(scene, GROUP).await.is_ok() };
    assert!(eventually(FIRST_LOOKS, is_there).await, "a template comes within seconds");
    try_template(scene, GROUP).await.expect("a template")
}

fn taints(node: &Node) -> Vec<String> {
    let text = |part: &Option<String>| part.clone().unwrap_or_default();
    let taints = node.spec.as_ref().expect("a spec").taints.iter();
    taints.map(|t| format!("{}={}:{}", text(&t.key), text(&t.value), text(&t.effect))).collect()
}

async fn has_label(scene: &Scene, key: &str, value: &str) -> bool {
    try_template(scene, GROUP).await.is_ok_and(|node| label(&node, key) == value)
}

fn asked(scene: &Scene) -> usize {
    scene.world.aws.calls(Operation::DescribeNodegroup)
}

#[tokio::test(start_paused = true)]
async fn a_managed_node_group_at_zero_says_what_eks_knows_of_it() {
    let spec = NodeGroupSpec::named(GROUP).label("team", "ml").taint("gpu", "yes", "NO_SCHEDULE").spot();
    let spec = spec.taint("slow", "", "PREFER_NO_SCHEDULE").ami_type("AL2023_ARM_64_STANDARD").disk(80);
    let scene = scene(spec, managed(GROUP).template("m6g.large")).await;
    let node = template(&scene).await;
    for (key, value) in [
        ("team", "ml"),
        ("eks.amazonaws.com/nodegroup", GROUP),
        // Its launch template says nothing of Spot.
        ("eks.amazonaws.com/capacityType", "SPOT"),
        ("kubernetes.io/arch", "arm64"),
        ("kubernetes.io/os", "linux"),
    ] {
        assert_eq!(label(&node, key), value, "{key}");
    }
    assert_eq!(taints(&node), ["gpu=yes:NoSchedule", "slow=:PreferNoSchedule"]);
    assert_eq!(capacity(&node, "ephemeral-storage"), format!("{}Ki", 80 * 1024 * 1024));
    let info = node.status.and_then(|status| status.node_info).expect("is told");
    assert_eq!(info.kubelet_version.as_deref(), Some("v1.35.0"));
}

#[tokio::test(start_paused = true)]
async fn the_launch_template_and_the_tags_of_the_group_win_over_eks_but_for_its_labels() {
    let tag = |name: &str| format!("{NODE_TEMPLATE}/{name}");
    let spec = NodeGroupSpec::named(GROUP).label("team", "ml").label("tier", "batch").disk(80);
    let spec = spec.taint("gpu", "yes", "NO_SCHEDULE").taint("slow", "", "NO_EXECUTE");
    let spec = spec.tag(tag("resources/example.com/fpga"), "2").tag(tag("resources/pods"), "9");
    let web = managed(GROUP)
        .template_data(TemplateData::of("m5.large").volume("/dev/xvda", 50))
        .tag(tag("label/team"), "web")
        .tag(tag("label/zone"), "a")
        .tag(tag("taint/gpu"), "no:NoSchedule")
        .tag(tag("resources/pods"), "12");
    let scene = scene(spec, web).await;
    let node = template(&scene).await;
    let labels = ["team", "tier", "zone"].map(|key| label(&node, key));
    assert_eq!(labels, ["ml", "batch", "a"], "nodes have no label from a tag");
    assert_eq!(taints(&node), ["gpu=no:NoSchedule", "slow=:NoExecute"]);
    assert_eq!(capacity(&node, "ephemeral-storage"), format!("{}Ki", 50 * 1024 * 1024));
    assert_eq!(capacity(&node, "example.com/fpga"), "2", "the node group's own tags tell of resources");
    assert_eq!(capacity(&node, "pods"), "12");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_the_node_group_shows_within_minutes() {
    let scene = scene(NodeGroupSpec::named(GROUP).label("team", "ml"), managed(GROUP)).await;
    assert_eq!(label(&template(&scene).await, "team"), "ml");
    scene.world.aws.add_node_group(NodeGroupSpec::named(GROUP).label("team", "web"));
    assert!(eventually(REFRESH, || has_label(&scene, "team", "web")).await);
    assert!(asked(&scene) <= 3, "it was asked for {} times", asked(&scene));
}

#[tokio::test(start_paused = true)]
async fn a_node_group_that_eks_does_not_know_has_a_template_all_the_same() {
    let scene = scene(NodeGroupSpec::named("another"), managed(GROUP)).await;
    let node = template(&scene).await;
    assert_eq!(label(&node, "eks.amazonaws.com/nodegroup"), GROUP);
    assert_eq!(label(&node, "eks.amazonaws.com/capacityType"), "ON_DEMAND", "as its launch template says");
    scene.world.aws.add_node_group(NodeGroupSpec::named(GROUP).label("team", "ml"));
    assert!(eventually(REFRESH, || has_label(&scene, "team", "ml")).await);
}

#[tokio::test(start_paused = true)]
async fn without_permission_every_node_group_is_asked_for_once_an_hour() {
    let world = World::new(1);
    world.aws.deny(Operation::DescribeNodegroup, true);
    let names: Vec<_> = (0..15).map(|n| format!("group-{n}")).chain([GROUP.to_owned()]).collect();
    for name in &names {
        world.aws.add_node_group(NodeGroupSpec::named(name).label("team", "ml"));
    }
    let scene = Scene::on(world, names.iter().map(|name| managed(name))).await;
    let node = template(&scene).await;
    assert_eq!((label(&node, "team"), taints(&node)), (String::new(), vec![]));
    for _ in 0..55 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert_eq!(scene.groups().await.expect("groups").len(), names.len());
        for name in &names {
            assert!(try_template(&scene, name).await.is_ok(), "{name}");
        }
    }
    assert_eq!(asked(&scene), names.len());
    scene.world.aws.deny(Operation::DescribeNodegroup, false);
    assert!(eventually(Duration::from_hours(1), || has_label(&scene, "team", "ml")).await);
}

#[tokio::test(start_paused = true)]
async fn throttling_costs_labels_for_a_while_and_nothing_else() {
    let world = World::new(1);
    world.aws.throttle_for(&[Operation::DescribeNodegroup], Duration::from_mins(30));
    let names: Vec<_> = (0..15).map(|n| format!("group-{n}")).chain([GROUP.to_owned()]).collect();
    for name in &names {
        world.aws.add_node_group(NodeGroupSpec::named(name).label("team", "ml"));
    }
    let scene = Scene::on(world, names.iter().map(|name| managed(name))).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..25 {
        tokio::time::sleep(Duration::from_mins(1)).await;
        for name in &names {
            assert!(try_template(&scene, name).await.is_ok(), "{name}");
        }
    }
    // Ten every other minute, a few attempts each.
    assert!(asked(&scene) <= 14 * 10 * 6, "it was asked for {} times", asked(&scene));
    let all_known = || async {
        let mut known = true;
        for name in &names {
            known &= try_template(&scene, name).await.is_ok_and(|node| label(&node, "team") == "ml");
        }
        known
    };
    assert!(eventually(Duration::from_mins(15), all_known).await, "they are learned when EKS answers again");
    scene.world.aws.throttle_for(&[Operation::DescribeNodegroup], Duration::from_hours(2));
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(all_known().await, "what EKS said stands");
}

#[tokio::test(start_paused = true)]
async fn what_eks_said_of_a_group_that_never_had_a_node_is_known_to_a_start_without_eks() {
    let world = World::new(1);
    world.aws.add_template(TemplateSpec::named("web").version(TemplateData::of("m5.large")));
    let spec = NodeGroupSpec::named(GROUP).label("team", "ml").taint("gpu", "yes", "NO_SCHEDULE");
    world.aws.add_node_group(spec);
    let web = managed(GROUP).launch_template("web", "$Latest");
    let mut scene = Scene::on(world, [web]).await;
    assert_eq!(label(&template(&scene).await, "team"), "ml");
    // It is written down within a minute.
    tokio::time::sleep(Duration::from_mins(1)).await;
    scene.world.aws.throttle_for(&[Operation::DescribeNodegroup], Duration::from_hours(2));
    for instance_type in ["m5.large", "m5.xlarge"] {
        if instance_type != "m5.large" {
            scene.world.aws.add_template_version("web", TemplateData::of(instance_type));
            let is_new = || has_label(&scene, "node.kubernetes.io/instance-type", instance_type);
            assert!(eventually(Duration::from_mins(15), is_new).await);
            tokio::time::sleep(Duration::from_mins(1)).await;
        }
        scene = scene.restarted().await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        let node = try_template(&scene, GROUP).await.expect("a template");
        assert_eq!((label(&node, "team"), taints(&node)), ("ml".into(), vec!["gpu=yes:NoSchedule".into()]));
    }
}
