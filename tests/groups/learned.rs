//! What real nodes teach of the next one: over RPC, over restarts, until the launch template changes.

use std::collections::BTreeMap;
use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::sim::aws::{MixedSpec, NodeGroupSpec, Operation, TemplateData, TemplateSpec};
use ebbtide::sim::cluster::Verb;
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_pb::api::core::v1::Node as Template;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::node::{allocatable, label, template, try_template};
use crate::scene::{GONE, GROUP, SOON, Scene, eventually, group};

/// Longer than a node needs to be believed, and a refresh after that.
const SETTLED: Duration = Duration::from_mins(3);

fn taints(node: &Template) -> Vec<String> {
    let taints = node.spec.as_ref().map(|spec| spec.taints.clone()).unwrap_or_default();
    taints.into_iter().filter_map(|taint| taint.key).collect()
}

/// A world in which kubelets and agents make the group's nodes look like this.
fn dressed(world: World, memory: &str) -> World {
    let memory = memory.to_owned();
    world.kubelets(GROUP, move |node| {
        node.label("team", "blue")
            .taint("dedicated", "web", "NoSchedule")
            .taint("node.cilium.io/agent-not-ready", "", "NoSchedule")
            .allocatable("memory", &memory)
            .allocatable("example.com/fpga", "2")
            .allocatable("vpc.amazonaws.com/pod-eni", "9")
    });
    world
}

/// The group's only instance goes, and its node.
async fn emptied(scene: Scene) -> Scene {
    let node = scene.node_of(&scene.in_service(GROUP)[0]);
    scene.delete(GROUP, vec![node]).await.expect("accepted");
    assert!(scene.world.until(GONE, |world| world.cluster.node_names().is_empty()).await);
    scene
}

/// A group of one, whose node has shown what it is like, and which is at zero by now.
async fn at_zero(world: World) -> Scene {
    world.aws.add_template(TemplateSpec::named("web").version(TemplateData::of("m5.large")));
    let web = group(GROUP, 1).launch_template("web", "$Latest");
    let scene = Scene::on(dressed(world, "6000000Ki"), [web]).await;
    tokio::time::sleep(SETTLED).await;
    emptied(scene).await
}

async fn assert_learned(scene: &Scene) {
    let node = template(scene, GROUP).await;
    assert_eq!(allocatable(&node, "memory"), "6000000Ki");
    assert_eq!(allocatable(&node, "example.com/fpga"), "2");
    assert_eq!(allocatable(&node, "vpc.amazonaws.com/pod-eni"), "9", "where pods have security groups");
    assert_eq!(label(&node, "team"), "blue");
    assert_eq!(taints(&node), ["dedicated"], "what passes with the start is left out");
    assert_eq!(label(&node, "kubernetes.io/hostname"), "web-template-m5.large");
}

/// Stops the program and starts it again.
async fn restarted(scene: Scene) -> Scene {
    let Scene { world, program } = scene;
    program.kill().await;
    let program = Program::start(&world, config());
    let scene = Scene { world, program };
    scene.answers().await;
    scene
}

#[tokio::test(start_paused = true)]
async fn the_next_node_will_be_like_the_last_one_even_after_a_restart() {
    let scene = at_zero(World::new(1)).await;
    assert_learned(&scene).await;
    let scene = restarted(scene).await;
    assert_learned(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn another_version_of_the_launch_template_makes_it_forget() {
    let scene = at_zero(World::new(1)).await;
    scene.world.aws.add_template_version("web", TemplateData::of("m5.large"));
    let forgotten = || async { label(&template(&scene, GROUP).await, "team").is_empty() };
    assert!(eventually(Duration::from_mins(15), forgotten).await);
    let node = template(&scene, GROUP).await;
    assert_ne!(allocatable(&node, "memory"), "6000000Ki");
    assert_eq!(taints(&node), [""; 0]);
    // It is not remembered by a later start either.
    let scene = restarted(scene).await;
    assert_eq!(label(&template(&scene, GROUP).await, "team"), "");
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_tag_is_off_for_a_while_has_its_template_back_with_the_tag() {
    let scene = at_zero(World::new(1)).await;
    scene.world.aws.untag_group(GROUP, TAG);
    assert!(eventually(SOON, || async { scene.groups().await.is_ok_and(|groups| groups.is_empty()) }).await);
    // Long enough for that to be written.
    let scene = restarted(scene).await;
    tokio::time::sleep(SOON).await;
    scene.world.aws.add_group(group("other", 0));
    tokio::time::sleep(SOON).await;
    scene.world.aws.tag_group(GROUP, TAG, "true");
    assert!(eventually(SOON, || async { try_template(&scene, GROUP).await.is_ok() }).await);
    assert_learned(&scene).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_of_an_older_version_teaches_nothing() {
    let world = World::new(1);
    world.aws.add_template(TemplateSpec::named("web").version(TemplateData::of("m5.large")));
    let web = group(GROUP, 1).launch_template("web", "$Latest");
    let scene = Scene::on(dressed(world, "6000000Ki"), [web]).await;
    scene.world.aws.add_template_version("web", TemplateData::of("m5.xlarge"));
    let is_new =
        || async { label(&template(&scene, GROUP).await, "node.kubernetes.io/instance-type") == "m5.xlarge" };
    assert!(eventually(Duration::from_mins(15), is_new).await);
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, "team"), taints(&node).len()), (String::new(), 0));
}

#[tokio::test(start_paused = true)]
async fn tags_stay_on_top_of_what_is_learned() {
    let tag = |name: &str| format!("k8s.io/cluster-autoscaler/node-template/{name}");
    let tagged = group(GROUP, 1)
        .tag(tag("label/team"), "red")
        .tag(tag("resources/memory"), "5Gi")
        .tag(tag("taint/dedicated"), "other:NoSchedule");
    let scene = Scene::on(dressed(World::new(1), "6000000Ki"), [tagged]).await;
    let is_learned = || async { allocatable(&template(&scene, GROUP).await, "example.com/fpga") == "2" };
    assert!(eventually(SETTLED, is_learned).await);
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, "team"), allocatable(&node, "memory")), ("red".into(), "5Gi".into()));
    let values: Vec<_> = node.spec.into_iter().flat_map(|spec| spec.taints).filter_map(|t| t.value).collect();
    assert_eq!(values, ["other"]);
}

#[tokio::test(start_paused = true)]
async fn a_tag_keeps_the_template_as_computed() {
    let tagged = group(GROUP, 1).tag("ebbtide/learned-template", "false");
    let scene = Scene::on(dressed(World::new(1), "6000000Ki"), [tagged]).await;
    tokio::time::sleep(SETTLED).await;
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, "team"), taints(&node).len()), (String::new(), 0));
    assert_ne!(allocatable(&node, "memory"), "6000000Ki");
}

#[tokio::test(start_paused = true)]
async fn a_node_of_one_type_does_not_speak_for_the_others() {
    let world = World::new(1);
    world.aws.add_template(TemplateSpec::named("any").version(TemplateData::untyped()));
    let types = MixedSpec::of(["m5.large", "m5.xlarge"]);
    let any = group(GROUP, 1).launch_template("any", "1").mixed(types);
    let scene = Scene::on(dressed(world, "100Gi"), [any]).await;
    let is_learned = || async { taints(&template(&scene, GROUP).await) == ["dedicated"] };
    assert!(eventually(SETTLED, is_learned).await);
    let node = template(&scene, GROUP).await;
    assert_eq!(label(&node, "team"), "", "the other type's nodes may not have it");
    let memory = allocatable(&node, "memory");
    let gib = memory.trim_end_matches("Ki").parse::<u64>().expect("KiB") >> 20;
    assert!((12..16).contains(&gib), "that of m5.xlarge, as computed: {memory}");
}

#[tokio::test(start_paused = true)]
async fn a_taint_put_on_by_hand_does_not_become_the_groups() {
    let scene = Scene::on(dressed(World::new(1), "6000000Ki"), [group(GROUP, 1)]).await;
    tokio::time::sleep(SETTLED).await;
    let node = scene.world.node_of(&scene.in_service(GROUP)[0]).expect("a Node");
    let api: Api<Node> = Api::all(scene.world.cluster.client());
    let taint = |key: &str| json!({ "key": key, "value": "web", "effect": "NoSchedule" });
    let by_hand = json!({
        "metadata": { "labels": { "looked-at-by": "ann" } },
        "spec": { "taints": [taint("dedicated"), taint("debug")] },
    });
    api.patch(&node, &PatchParams::default(), &Patch::Merge(&by_hand)).await.expect("patched");
    tokio::time::sleep(SETTLED).await;
    let scene = restarted(emptied(scene).await).await;
    let node = template(&scene, GROUP).await;
    assert_eq!(taints(&node), ["dedicated"]);
    assert_eq!(label(&node, "looked-at-by"), "ann", "of labels it cannot be known: agents set them late too");
}

#[tokio::test(start_paused = true)]
async fn what_eks_gave_is_remembered_while_it_does_not_answer() {
    let world = World::new(1);
    let gives =
        |label: &str| NodeGroupSpec::named(GROUP).label(label, "ml").taint("gpu", "yes", "NO_SCHEDULE");
    world.aws.add_node_group(gives("tier"));
    world.kubelets(GROUP, |node| node.label("tier", "ml").taint("gpu", "yes", "NoSchedule"));
    let web = group(GROUP, 1).tag("eks:cluster-name", "main").tag("eks:nodegroup-name", GROUP);
    let scene = Scene::on(world, [web]).await;
    tokio::time::sleep(SETTLED).await;
    let scene = emptied(scene).await;
    tokio::time::sleep(SOON).await;
    // One label has taken the other's place, but nobody can be told.
    scene.world.aws.add_node_group(gives("rank"));
    scene.world.aws.throttle_for(&[Operation::DescribeNodegroup], Duration::from_mins(10));
    let scene = restarted(scene).await;
    assert!(eventually(SOON, || async { try_template(&scene, GROUP).await.is_ok() }).await);
    let node = template(&scene, GROUP).await;
    assert_eq!((label(&node, "tier"), taints(&node)), ("ml".to_owned(), vec!["gpu".to_owned()]));
    let told = || async { label(&template(&scene, GROUP).await, "rank") == "ml" };
    assert!(eventually(Duration::from_mins(20), told).await);
    assert_eq!(label(&template(&scene, GROUP).await, "tier"), "");
}

#[tokio::test(start_paused = true)]
async fn a_config_map_that_cannot_be_used_costs_nothing_but_the_memory() {
    let world = World::new(1);
    world.cluster.forbid(Verb::Get, "configmaps");
    world.cluster.forbid(Verb::Create, "configmaps");
    let scene = at_zero(world).await;
    assert_learned(&scene).await;
    assert!(scene.world.cluster.list::<ConfigMap>().is_empty());
    let asked = scene.world.cluster.requests(Verb::Get, "configmaps");
    assert!(asked <= 12, "it is not asked for all the time: {asked}");
    let scene = restarted(scene).await;
    assert_eq!(label(&template(&scene, GROUP).await, "team"), "");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_config_map_is_written_anew() {
    let world = World::new(1);
    let api: Api<ConfigMap> = Api::default_namespaced(world.cluster.client());
    let damaged: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": "ebbtide-templates" },
        "data": { "templates.json": "{\"web\": 7", "of somebody else": "stays" },
    }))
    .expect("a ConfigMap");
    api.create(&kube::api::PostParams::default(), &damaged).await.expect("made");
    let scene = restarted(at_zero(world).await).await;
    assert_learned(&scene).await;
    let kept = api.get("ebbtide-templates").await.expect("is there").data.unwrap_or_default();
    assert_eq!(kept["of somebody else"], "stays");
}

#[tokio::test(start_paused = true)]
async fn what_nodes_show_is_written_once_and_not_at_every_refresh() {
    let scene = Scene::with([group(GROUP, 3)]).await;
    let writes = || {
        let cluster = &scene.world.cluster;
        cluster.requests(Verb::Patch, "configmaps") + cluster.requests(Verb::Create, "configmaps")
    };
    assert!(scene.world.until(SETTLED, |_| writes() > 0).await);
    let before = writes();
    assert!((1..=3).contains(&before), "{before}");
    tokio::time::sleep(Duration::from_hours(2)).await;
    assert!(writes() <= before + 12, "every ten minutes, should somebody have deleted it");
    let api: Api<ConfigMap> = Api::default_namespaced(scene.world.cluster.client());
    api.delete("ebbtide-templates", &kube::api::DeleteParams::default()).await.expect("deleted");
    let is_back = |world: &World| !world.cluster.list::<ConfigMap>().is_empty();
    assert!(scene.world.until(Duration::from_mins(11), is_back).await);
}

#[tokio::test(start_paused = true)]
async fn the_first_news_is_written_at_once_and_later_ones_twice_a_minute() {
    let refresh_interval = Duration::from_secs(5);
    let config = Config { refresh_interval, ..config() };
    let scene = Scene::configured(dressed(World::new(1), "6000000Ki"), config, [group(GROUP, 1)]).await;
    let kept = || {
        let config_map = scene.world.cluster.list::<ConfigMap>().into_iter().next();
        let text = config_map.and_then(|map| map.data?.remove("templates.json")).unwrap_or_default();
        serde_json::from_str::<BTreeMap<String, Value>>(&text).unwrap_or_default().len()
    };
    let shown = || async { label(&template(&scene, GROUP).await, "team") == "blue" };
    assert!(eventually(SETTLED, shown).await);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(kept(), 1);
    // The cluster grows by a group in every refresh.
    let grow = async |from: u32| {
        for n in from..from + 24 {
            scene.world.aws.add_group(group(&format!("{GROUP}-{n}"), 1));
            tokio::time::sleep(refresh_interval).await;
        }
    };
    let writes = || {
        let cluster = &scene.world.cluster;
        cluster.requests(Verb::Patch, "configmaps") + cluster.requests(Verb::Create, "configmaps")
    };
    grow(0).await;
    let (before, known) = (writes(), kept());
    grow(24).await;
    assert!(kept() > known + 15, "{known}, then {}", kept());
    assert!((before + 3..=before + 5).contains(&writes()), "{before}, then {}", writes());
}
