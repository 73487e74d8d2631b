//! Which group is to grow: the whole program, asked as cluster-autoscaler's gRPC expander asks.

use std::fs;
use std::path::PathBuf;

use ebbtide::config::{Config, PriceSource};
use ebbtide::provider::expander::proto::{BestOptionsRequest, Option as Offered};
use ebbtide::provider::proto::{NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest};
use ebbtide::sim::aws::{GroupSpec, LaunchFailure, TemplateData};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use prost::bytes::Bytes;
use tracing::Level;

use crate::scene::{SOON, Scene, group};

/// A pod as it comes, which nobody reads.
const POD: &[u8] = b"\n\x03\n\x01p";

/// The question, with a node of every group as its template has it, and the names in the answer.
async fn best(scene: &Scene, groups: &[&str], pods: usize) -> Vec<String> {
    let mut request = BestOptionsRequest::default();
    for &group in groups {
        let pod = vec![Bytes::from_static(POD); pods];
        let option = Offered { node_group_id: group.to_owned(), node_count: 1, pod, ..Offered::default() };
        request.options.push(option);
    }
    let all = scene.program.client().node_groups(NodeGroupsRequest {}).await.expect("listed");
    for group in all.into_inner().node_groups {
        let id = NodeGroupTemplateNodeInfoRequest { id: group.id.clone() };
        let node = scene.program.client().node_group_template_node_info(id).await.expect("a template");
        request.node_map.insert(group.id, node.into_inner().node_info);
    }
    let answer = scene.program.expander().best_options(request).await.expect("answered").into_inner();
    assert!(answer.options.iter().all(|option| option.node_count == 1 && option.pod.is_empty()));
    answer.options.into_iter().map(|option| option.node_group_id).collect()
}

fn of_type(name: &str, kind: &str, size: u32) -> GroupSpec {
    group(name, size).template_data(TemplateData::of(kind))
}

#[tokio::test(start_paused = true)]
async fn capacity_that_was_refused_to_one_group_is_not_asked_for_by_the_next() {
    let (log, _guard) = captured::log(Level::INFO);
    let groups =
        [of_type("web", "m5.large", 1), of_type("twin", "m5.large", 0), of_type("other", "c5.large", 0)];
    let scene = Scene::with(groups).await;
    let all = ["twin", "other"];
    assert_eq!(best(&scene, &all, 3).await, all, "nothing is known against any");
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.world.aws.set_desired("web", 2);
    let is_told = async || best(&scene, &all, 3).await == ["other"];
    for _ in 0..SOON.as_secs() {
        if is_told().await {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    assert_eq!(best(&scene, &all, 3).await, ["other"]);
    assert_eq!(best(&scene, &["twin"], 3).await, ["twin"], "what is alone is taken");
    let told = log.text();
    let refused = "twin: 1 nodes for 3 pods, lately refused for want of capacity";
    for part in ["which group is to grow", "decided_by=\"capacity\"", refused] {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Given up, it may be asked for again after a while.
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, 0);
    scene.world.aws.set_desired("web", 1);
    tokio::time::sleep(std::time::Duration::from_mins(25)).await;
    assert_eq!(best(&scene, &all, 3).await, all);
}

#[tokio::test(start_paused = true)]
async fn whatever_is_wrong_all_options_come_back() {
    let scene = Scene::with([group("web", 1)]).await;
    let unknown = Offered { node_group_id: "nobody's".to_owned(), ..Offered::default() };
    let garbage = Bytes::from_static(b"\xff\xff\xff");
    let request = BestOptionsRequest {
        options: vec![
            unknown.clone(),
            Offered { node_group_id: "web".to_owned(), node_count: -1, ..unknown },
        ],
        node_map: [("web".to_owned(), garbage)].into(),
        ..BestOptionsRequest::default()
    };
    let names = async |request: BestOptionsRequest| {
        let answer = scene.program.expander().best_options(request).await.expect("answered").into_inner();
        answer.options.into_iter().map(|option| option.node_group_id).collect::<Vec<_>>()
    };
    assert!(!names(request.clone()).await.is_empty());
    assert_eq!(names(BestOptionsRequest::default()).await, [""; 0]);
    scene.world.aws.outage(true);
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    assert!(!names(request).await.is_empty(), "what is known is old, and advice");
}

#[tokio::test(start_paused = true)]
async fn the_policy_is_read_at_each_question_and_a_broken_one_leaves_the_last() {
    let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("expander-policy");
    fs::write(&file, "fewest-nodes\n").expect("written");
    let config = Config { expander_policy: Some(file.clone()), ..config() };
    let zones = |spec: GroupSpec, zone: &'static str| spec.zones([zone]);
    let groups = [zones(group("full", 3), "us-east-1a"), zones(group("empty", 1), "us-east-1b")];
    let scene = Scene::configured(World::new(1), config, groups).await;
    let all = ["full", "empty"];
    assert_eq!(best(&scene, &all, 1).await, all);
    fs::write(&file, "zone-balance\n").expect("written");
    assert_eq!(best(&scene, &all, 1).await, ["empty"]);
    fs::write(&file, "nonsense\n").expect("written");
    let (log, _guard) = captured::log(Level::WARN);
    assert_eq!(best(&scene, &all, 1).await, ["empty"]);
    assert_eq!(best(&scene, &all, 1).await, ["empty"]);
    assert_eq!(log.text().matches("policy cannot be read").count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn the_cheaper_group_grows_and_one_that_is_paid_for_before_all() {
    let config = Config { prices: Some(PriceSource::Table), ..config() };
    let paid_for = of_type("paid-for", "m5.4xlarge", 0).tag("ebbtide/price-per-hour", "0");
    let groups = [of_type("dear", "m5.2xlarge", 0), of_type("cheap", "m6a.2xlarge", 0), paid_for];
    let scene = Scene::configured(World::new(1), config, groups).await;
    assert_eq!(best(&scene, &["dear", "cheap"], 3).await, ["cheap"]);
    assert_eq!(best(&scene, &["dear", "cheap", "paid-for"], 3).await, ["paid-for"]);
}
