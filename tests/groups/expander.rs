//! Which group is to grow: the whole program, asked as cluster-autoscaler's gRPC expander asks.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use ebbtide::config::{Config, PriceSource};
use ebbtide::provider::expander::proto::{BestOptionsRequest, BestOptionsResponse, Option as Offered};
use ebbtide::provider::proto::{NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest};
use ebbtide::sim::aws::{GroupSpec, LaunchFailure, TemplateData};
use ebbtide::sim::cluster::{Fault, Verb};
use ebbtide::sim::program::config;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use http::uri::PathAndQuery;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta;
use k8s_pb::api::core::v1::{Container, Node, Pod, PodSpec};
use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;
use kube::api::{ListParams, PostParams};
use prost::Message;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tracing::Level;

use crate::scene::{SOON, Scene, group};

/// The question as cluster-autoscaler up to 1.34 encodes it: whole objects in it.
#[derive(Clone, PartialEq, Message)]
struct Embedded {
    #[prost(message, repeated, tag = "1")]
    options: Vec<EmbeddedOption>,
    #[prost(btree_map = "string, message", tag = "2")]
    node_map: BTreeMap<String, Node>,
}

#[derive(Clone, PartialEq, Message)]
struct EmbeddedOption {
    #[prost(string, tag = "1")]
    node_group_id: String,
    #[prost(int32, tag = "2")]
    node_count: i32,
    #[prost(string, tag = "3")]
    debug: String,
    #[prost(message, repeated, tag = "4")]
    pod: Vec<Pod>,
}

/// The same since: objects as bytes.
#[derive(Clone, PartialEq, Message)]
struct Encoded {
    #[prost(message, repeated, tag = "1")]
    options: Vec<EncodedOption>,
    #[prost(btree_map = "string, bytes", tag = "3")]
    node_bytes_map: BTreeMap<String, Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct EncodedOption {
    #[prost(string, tag = "1")]
    node_group_id: String,
    #[prost(int32, tag = "2")]
    node_count: i32,
    #[prost(string, tag = "3")]
    debug: String,
    #[prost(bytes = "vec", repeated, tag = "5")]
    pod_bytes: Vec<Vec<u8>>,
}

impl From<&Embedded> for Encoded {
    fn from(asked: &Embedded) -> Self {
        let option = |option: &EmbeddedOption| EncodedOption {
            node_group_id: option.node_group_id.clone(),
            node_count: option.node_count,
            debug: option.debug.clone(),
            pod_bytes: option.pod.iter().map(Message::encode_to_vec).collect(),
        };
        let encoded = |(group, node): (&String, &Node)| (group.clone(), node.encode_to_vec());
        Self {
            options: asked.options.iter().map(option).collect(),
            node_bytes_map: asked.node_map.iter().map(encoded).collect(),
        }
    }
}

fn pod(n: usize) -> Pod {
    let metadata = ObjectMeta { name: Some(format!("web-{n}")), ..ObjectMeta::default() };
    let container = Container { image: Some("web:1".to_owned()), ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    Pod { metadata: Some(metadata), spec: Some(spec), ..Pod::default() }
}

/// The question as cluster-autoscaler asks it, with a node of every group as its template has it.
async fn question(scene: &Scene, groups: &[&str], pods: usize) -> Embedded {
    let option = |group: &&str| EmbeddedOption {
        node_group_id: (*group).to_owned(),
        node_count: 1,
        debug: "AWSNodeGroup".to_owned(),
        pod: (0..pods).map(pod).collect(),
    };
    let mut question = Embedded { options: groups.iter().map(option).collect(), node_map: BTreeMap::new() };
    let all = scene.program.client().node_groups(NodeGroupsRequest {}).await.expect("listed");
    for group in all.into_inner().node_groups {
        let id = NodeGroupTemplateNodeInfoRequest { id: group.id.clone() };
        let node = scene.program.client().node_group_template_node_info(id).await.expect("a template");
        let node = Node::decode(node.into_inner().node_info).expect("a Node");
        question.node_map.insert(group.id, node);
    }
    question
}

/// The names in the answer.
async fn asked<T: Message + 'static>(scene: &Scene, question: T) -> Result<Vec<String>, Status> {
    let mut client = tonic::client::Grpc::new(scene.program.channel());
    client.ready().await.expect("connected");
    let path = PathAndQuery::from_static("/grpcplugin.Expander/BestOptions");
    let codec = ProstCodec::<T, BestOptionsResponse>::default();
    let answer = client.unary(Request::new(question), path, codec).await?.into_inner();
    assert!(answer.options.iter().all(|option| option.node_count == 1 && option.pod.is_empty()));
    Ok(answer.options.into_iter().map(|option| option.node_group_id).collect())
}

async fn best(scene: &Scene, groups: &[&str], pods: usize) -> Vec<String> {
    asked(scene, question(scene, groups, pods).await).await.expect("answered")
}

fn of_type(name: &str, kind: &str, size: u32) -> GroupSpec {
    group(name, size).template_data(TemplateData::of(kind))
}

#[tokio::test(start_paused = true)]
async fn pods_are_counted_in_both_dialects() {
    let (log, _guard) = captured::log(Level::INFO);
    let scene = Scene::with([group("web", 1), group("batch", 1)]).await;
    let mut question = question(&scene, &["web", "batch"], 3).await;
    question.options[1].pod.clear();
    assert_eq!(asked(&scene, Encoded::from(&question)).await.expect("answered"), ["web", "batch"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(&scene, question).await.expect("answered"), ["web", "batch"]);
    for part in ["web: 1 nodes for 3 pods", "batch: 1 nodes for 0 pods"] {
        assert_eq!(log.text().matches(part).count(), 2, "{part}: {}", log.text());
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_questions_is_a_line_a_second_that_counts_them() {
    let (log, _guard) = captured::log(Level::INFO);
    let scene = Scene::with([group("web", 1)]).await;
    let question = question(&scene, &["web"], 1).await;
    for _ in 0..50 {
        asked(&scene, question.clone()).await.expect("answered");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    asked(&scene, question).await.expect("answered");
    let text = log.text();
    let told: Vec<_> = text.lines().filter(|line| line.contains("which group is to grow")).collect();
    assert!(told.len() == 2 && told[1].contains("suppressed=49"), "{told:?}");
}

/// The notes of the Events about choices, the oldest first.
async fn published(scene: &Scene) -> Vec<String> {
    let events = Api::<Event>::default_namespaced(scene.world.cluster.client());
    let mut found = events.list(&ListParams::default()).await.expect("listed").items;
    found.retain(|event| event.reason.as_deref() == Some("ExpanderChose"));
    found.sort_by_key(|event| event.event_time.clone());
    found.into_iter().filter_map(|event| event.note).collect()
}

/// The program of a scene with these flags is asked fifty times at once, and once more a second later. What is published then.
async fn asked_for_a_second(config: Config) -> (Scene, Vec<String>) {
    let scene = Scene::configured(World::new(1), config, [group("web", 1), group("batch", 0)]).await;
    let map = ConfigMap { metadata: named("ebbtide-templates"), ..ConfigMap::default() };
    let maps = Api::default_namespaced(scene.world.cluster.client());
    // Unless the program has made it.
    drop(maps.create(&PostParams::default(), &map).await);
    let question = question(&scene, &["web", "batch"], 1).await;
    for _ in 0..50 {
        asked(&scene, question.clone()).await.expect("answered");
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    asked(&scene, Embedded { options: question.options[..1].to_vec(), ..question }).await.expect("answered");
    tokio::time::sleep(SOON).await;
    let notes = published(&scene).await;
    (scene, notes)
}

fn named(name: &str) -> meta::v1::ObjectMeta {
    meta::v1::ObjectMeta { name: Some(name.to_owned()), ..Default::default() }
}

#[tokio::test(start_paused = true)]
async fn a_choice_is_an_event_on_the_config_map_of_templates_at_most_one_a_second() {
    let (scene, notes) = asked_for_a_second(Config { expander_events: true, ..config() }).await;
    let [both, one] = &notes[..] else { panic!("{notes:?}") };
    assert!(
        both.starts_with("\"web,batch\" of 2 options, decided by nothing: web: 1 nodes for 1 pods, "),
        "{both}"
    );
    assert!(one.starts_with("\"web\" of 1 options, decided by nothing: web: "), "{one}");
    let maps = Api::<ConfigMap>::default_namespaced(scene.world.cluster.client());
    let map = maps.get("ebbtide-templates").await.expect("there");
    let events = Api::<Event>::default_namespaced(scene.world.cluster.client());
    let all = events.list(&ListParams::default()).await.expect("listed").items;
    let told =
        all.into_iter().find(|event| event.reason.as_deref() == Some("ExpanderChose")).expect("an Event");
    let about = told.regarding.expect("an object");
    let expected = (Some("ConfigMap"), Some("ebbtide-templates"), map.metadata.uid.as_deref());
    assert_eq!((about.kind.as_deref(), about.name.as_deref(), about.uid.as_deref()), expected);
    assert_eq!((told.type_.as_deref(), told.action.as_deref()), (Some("Normal"), Some("ChooseGroup")));
}

#[tokio::test(start_paused = true)]
async fn no_choice_is_an_event_unless_that_is_asked_for_nor_in_a_dry_run() {
    assert_eq!(asked_for_a_second(config()).await.1, [""; 0]);
    let dry = Config { expander_events: true, dry_run: true, ..config() };
    let (log, _guard) = captured::log(Level::WARN);
    assert_eq!(asked_for_a_second(dry).await.1, [""; 0]);
    assert!(!log.text().contains("cannot be published"), "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn choices_that_cannot_be_published_cost_no_answer_and_are_told_once() {
    let (log, _guard) = captured::log(Level::WARN);
    let config = Config { expander_events: true, ..config() };
    let scene = Scene::configured(World::new(1), config, [group("web", 1)]).await;
    scene.world.cluster.fail_next(100, Verb::Get, "configmaps", Fault::Slow(SOON));
    let question = question(&scene, &["web"], 1).await;
    let began = tokio::time::Instant::now();
    for _ in 0..20 {
        asked(&scene, question.clone()).await.expect("answered");
    }
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    tokio::time::sleep(SOON).await;
    assert_eq!(log.text().matches("cannot be published as Events").count(), 1, "{}", log.text());
}

#[tokio::test(start_paused = true)]
async fn names_that_would_fill_an_answer_are_refused() {
    let scene = Scene::with([group("web", 1)]).await;
    let named = |length: usize| Embedded {
        options: vec![
            EmbeddedOption {
                node_group_id: "n".repeat(length),
                node_count: 1,
                ..Default::default()
            };
            4
        ],
        ..Embedded::default()
    };
    assert_eq!(asked(&scene, named(64 << 10)).await.expect("answered").len(), 4);
    let refused = asked(&scene, named((64 << 10) + 1)).await.expect_err("too much");
    assert_eq!(refused.code(), Code::ResourceExhausted);
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
        tokio::time::sleep(Duration::from_secs(1)).await;
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
    tokio::time::sleep(Duration::from_mins(25)).await;
    assert_eq!(best(&scene, &all, 3).await, all);
}

#[tokio::test(start_paused = true)]
async fn whatever_is_wrong_an_option_comes_back_and_one_of_a_known_group_if_there_is_one() {
    let scene = Scene::with([group("web", 1)]).await;
    let names = async |offered: &[(&str, i32)]| {
        let option = |&(name, node_count): &(&str, i32)| Offered {
            node_group_id: name.to_owned(),
            node_count,
            ..Offered::default()
        };
        let request = BestOptionsRequest { options: offered.iter().map(option).collect() };
        let answer = scene.program.expander().best_options(request).await.expect("answered").into_inner();
        answer.options.into_iter().map(|option| option.node_group_id).collect::<Vec<_>>()
    };
    let wrong = [("nobody's", 0), ("web", -1)];
    assert_eq!(names(&wrong).await, ["web"]);
    assert_eq!(names(&[("nobody's", 0), ("another's", 0)]).await, ["nobody's", "another's"]);
    assert_eq!(names(&[]).await, [""; 0]);
    scene.world.aws.outage(true);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(names(&wrong).await, ["web"], "what is known is old, and advice");
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
