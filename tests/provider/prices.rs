//! What nodes and pods cost.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ebbtide::groups::Group;
use ebbtide::prices::Prices;
use ebbtide::provider::proto::{
    ExternalGrpcNode, LegacyTime, PricingNodePriceRequest, PricingPodPriceRequest,
};
use ebbtide::template::{Market, Template};
use k8s_pb::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};
use k8s_pb::apimachinery::pkg::api::resource::Quantity;
use prost::Message as _;
use prost_types::Timestamp;
use tonic::{Code, Status};

use crate::world::{With as _, World, code, web};

const TAG: &str = "ebbtide/price-per-hour";

fn world(group: Group) -> World {
    let world = World::priced(Some(Arc::new(Prices::of("us-east-1", false))));
    world.publish([group]);
    world
}

/// The node that cluster-autoscaler makes up for the next of `web`.
fn next(labels: &[(&str, &str)]) -> ExternalGrpcNode {
    ExternalGrpcNode {
        name: "template-node-for-web-5577006791947779410".into(),
        labels: labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..ExternalGrpcNode::default()
    }
}

fn of_type(name: &str) -> ExternalGrpcNode {
    next(&[("node.kubernetes.io/instance-type", name), ("topology.kubernetes.io/region", "us-east-1")])
}

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds: 1_700_000_000 + seconds, nanos: 0 }
}

fn old(seconds: i64) -> LegacyTime {
    LegacyTime { seconds: Some(1_700_000_000 + seconds), nanos: Some(0) }
}

async fn price(world: &World, request: PricingNodePriceRequest) -> Result<f64, Status> {
    Ok(world.client().await.pricing_node_price(request).await?.into_inner().price)
}

/// For an hour.
async fn hourly(world: &World, node: ExternalGrpcNode) -> f64 {
    let (start_timestamp, end_timestamp) = (Some(at(0)), Some(at(3_600)));
    let node = Some(node);
    let request = PricingNodePriceRequest { node, start_timestamp, end_timestamp, ..Default::default() };
    price(world, request).await.expect("a price")
}

async fn pod_price(world: &World, request: PricingPodPriceRequest) -> Result<f64, Status> {
    Ok(world.client().await.pricing_pod_price(request).await?.into_inner().price)
}

fn pod(requests: &[(&str, &str)]) -> Bytes {
    let quantity =
        |&(name, text): &(&str, &str)| (name.to_owned(), Quantity { string: Some(text.to_owned()) });
    let requests: BTreeMap<_, _> = requests.iter().map(quantity).collect();
    let resources = Some(ResourceRequirements { requests, ..ResourceRequirements::default() });
    let container = Container { resources, ..Container::default() };
    let spec = PodSpec { containers: vec![container], ..PodSpec::default() };
    Pod { spec: Some(spec), ..Pod::default() }.encode_to_vec().into()
}

fn is_about(price: f64, expected: f64) -> bool {
    (price - expected).abs() < 1e-9
}

#[tokio::test(start_paused = true)]
async fn a_node_costs_its_types_price_for_the_period_in_either_dialect() {
    let world = world(web(1));
    let node = || Some(of_type("m5.large"));
    let new = |seconds| PricingNodePriceRequest {
        node: node(),
        start_timestamp: Some(at(0)),
        end_timestamp: Some(at(seconds)),
        // The new dialect counts.
        end_time: Some(old(1)),
        ..Default::default()
    };
    let before = |seconds| PricingNodePriceRequest {
        node: node(),
        start_time: Some(old(0)),
        end_time: Some(old(seconds)),
        ..Default::default()
    };
    for (seconds, expected) in [(3_600, 0.096), (1_800, 0.048), (86_400, 2.304), (0, 0.0), (-60, 0.0)] {
        assert!(is_about(price(&world, new(seconds)).await.expect("a price"), expected), "{seconds}");
        assert!(is_about(price(&world, before(seconds)).await.expect("a price"), expected), "{seconds}");
    }
    assert!(
        world.metrics().contains("ebbtide_node_prices_total{source=\"table\"} 10"),
        "{}",
        world.metrics()
    );
}

#[tokio::test(start_paused = true)]
async fn a_pod_costs_what_it_requests_in_either_dialect() {
    let world = world(web(1));
    let hour = |pod: Bytes, pod_bytes: Bytes| PricingPodPriceRequest {
        pod,
        pod_bytes,
        start_timestamp: Some(at(0)),
        end_timestamp: Some(at(3_600)),
        ..Default::default()
    };
    let like_m5_large = || pod(&[("cpu", "2"), ("memory", "8Gi")]);
    let new = pod_price(&world, hour(Bytes::new(), like_m5_large())).await.expect("a price");
    let old = pod_price(&world, hour(like_m5_large(), Bytes::new())).await.expect("a price");
    assert!(is_about(new, old));
    assert!((0.08..0.11).contains(&new), "about an m5.large: {new}");
    let twice = pod(&[("cpu", "4"), ("memory", "16Gi")]);
    assert!(is_about(pod_price(&world, hour(twice.clone(), twice)).await.expect("a price"), 2.0 * new));
    let gpu = pod(&[("nvidia.com/gpu", "1")]);
    assert!(pod_price(&world, hour(Bytes::new(), gpu)).await.expect("a price") > 0.2);
    let nothing = pod_price(&world, hour(Bytes::new(), Bytes::new())).await.expect("a price");
    assert!(is_about(nothing, 0.0), "an empty message is a pod without requests");
}

#[tokio::test(start_paused = true)]
async fn the_groups_tag_beats_every_list_and_a_bad_one_beats_none() {
    for (tag, expected) in
        [("0.01", 0.01), ("0", 0.0), ("-1", 0.096), ("free", 0.096), ("NaN", 0.096), ("1e9", 0.096)]
    {
        let mut group = web(1).in_service(&["i-1"]);
        Arc::make_mut(&mut group.asg).tags.insert(TAG.into(), tag.into());
        let world = world(group);
        assert!(is_about(hourly(&world, of_type("m5.large")).await, expected), "{tag}");
        let real = ExternalGrpcNode {
            name: "n-1".into(),
            provider_id: "aws:///z1/i-1".into(),
            ..of_type("m5.large")
        };
        assert!(is_about(hourly(&world, real).await, expected), "{tag}: a node that is there");
        let other = ExternalGrpcNode { name: "template-node-for-other-1".into(), ..of_type("m5.large") };
        assert!(is_about(hourly(&world, other).await, 0.096), "of another group");
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_found_for_whatever_is_known_of_a_node() {
    let template = Template { market: Some(Market::Spot), ..Template::default() };
    let world = world(Group { template: Some(Ok(Arc::new(template))), ..web(1) });
    assert!(
        is_about(hourly(&world, of_type("m5.large")).await, 0.096),
        "no spot price: the most that it can be"
    );
    let windows = [("node.kubernetes.io/instance-type", "m5.large"), ("kubernetes.io/os", "windows")];
    assert!(is_about(hourly(&world, next(&windows)).await, 0.188));
    let old = [
        ("beta.kubernetes.io/instance-type", "m5.large"),
        ("failure-domain.beta.kubernetes.io/region", "eu-central-1"),
    ];
    assert!(is_about(hourly(&world, next(&old)).await, 0.115));
    // However old the look at the groups is.
    tokio::time::advance(Duration::from_hours(5)).await;
    assert!(is_about(hourly(&world, of_type("m5.large")).await, 0.096));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_priced_is_the_callers_mistake() {
    let world = world(web(1));
    let (start_timestamp, end_timestamp) = (Some(at(0)), Some(at(3_600)));
    for (node, expected) in [
        (None, Code::NotFound),
        (Some(next(&[])), Code::NotFound),
        (Some(of_type("zz9.enormous")), Code::NotFound),
        (Some(of_type("m5.large")), Code::Ok),
    ] {
        let request = PricingNodePriceRequest { node, start_timestamp, end_timestamp, ..Default::default() };
        assert_eq!(code(&price(&world, request).await), expected);
    }
    let no_end =
        PricingNodePriceRequest { node: Some(of_type("m5.large")), start_timestamp, ..Default::default() };
    assert_eq!(code(&price(&world, no_end).await), Code::InvalidArgument);
    let no_pod = PricingPodPriceRequest {
        pod_bytes: Bytes::from_static(b"\x0a\xff"),
        start_timestamp,
        end_timestamp,
        ..Default::default()
    };
    assert_eq!(code(&pod_price(&world, no_pod).await), Code::InvalidArgument);
}
