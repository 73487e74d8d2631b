//! What single rules take, those that every loop of cluster-autoscaler and every heartbeat goes through:
//!
//! ```text
//! cargo bench --bench rules
//! ```
//!
//! The whole program is measured by `cargo bench --bench performance`; what does not depend on the machine, by `tests/costs`.

#[path = "../tests/costs/fixture.rs"]
mod fixture;

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use ebbtide::aws::{LaunchSpec, type_table};
use ebbtide::cluster::{NodeView, PodName, PodView, Sink as _, Store};
use ebbtide::groups::Group;
use ebbtide::groups::hooks::{HookState, TerminatingHooks};
use ebbtide::provider::proto::cloud_provider_server::CloudProvider as _;
use ebbtide::provider::proto::{NodeGroupForNodeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest};
use ebbtide::scale_in::Settings;
use ebbtide::scale_in::preview::{End, Facts, Member, Place, preview};
use ebbtide::scale_in::record::Cause;
use ebbtide::template::{self, Template};
use fixture::{NODES, for_node_request, group, listed, provider, seen, text};
use futures::FutureExt as _;
use jiff::Timestamp;
use prost::Message as _;
use tokio::runtime::Builder;
use tonic::Request;

/// Workload pods of the node that is drained.
const PODS: usize = 30;

fn nodes(criterion: &mut Criterion) {
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let nodes = listed(&texts);
    let mut versions = 2_u64..;
    criterion.bench_function("a heartbeat of a Node of EKS, read and kept", |bench| {
        bench.iter(|| {
            let resource_version = versions.next().expect("endless").to_string();
            let view = nodes.reduce(seen(black_box(&texts[3])));
            nodes.apply(NodeView { resource_version, ..view });
        });
    });
}

fn rpcs(criterion: &mut Criterion) {
    let runtime = Builder::new_current_thread().enable_time().build().expect("a runtime");
    let _inside = runtime.enter();
    let texts: Vec<String> = (0..NODES).map(text).collect();
    let provider = provider(Arc::new(listed(&texts)));
    let request = for_node_request();
    criterion.bench_function("NodeGroupForNode, decoding included", |bench| {
        bench.iter(|| {
            let request = NodeGroupForNodeRequest::decode(&request[..]).expect("a request");
            provider.node_group_for_node(Request::new(request)).now_or_never().expect("at once")
        });
    });
    criterion.bench_function("NodeGroupTargetSize", |bench| {
        bench.iter(|| {
            let request = NodeGroupTargetSizeRequest { id: "web".into() };
            provider.node_group_target_size(Request::new(request)).now_or_never().expect("at once")
        });
    });
    criterion.bench_function("NodeGroupNodes of 25 nodes", |bench| {
        bench.iter(|| {
            let request = NodeGroupNodesRequest { id: "web".into() };
            provider.node_group_nodes(Request::new(request)).now_or_never().expect("at once")
        });
    });
}

fn pod(n: usize) -> PodView {
    PodView {
        name: PodName { namespace: "default".into(), name: format!("web-{n}").into() },
        uid: format!("uid-{n}"),
        grace_seconds: 30,
        created: Some(Timestamp::UNIX_EPOCH),
        ..PodView::default()
    }
}

fn scale_in(criterion: &mut Criterion) {
    let group = Group { asg: Arc::new(group()), ..Group::default() };
    let hooks = HookState::Known(TerminatingHooks::default());
    let facts = Facts {
        node: serde_json::from_str(&text(3)).expect("a Node"),
        pods: (0..PODS).map(pod).collect(),
        budgets: Arc::new(Store::default()),
        daemon_sets: None,
        attachments: 0,
        place: Place::In(Member::of(&group, &group.asg.instances[3], &listed(&[text(3)]), hooks)),
        settings: Settings::default(),
    };
    let now = Timestamp::from_second(1_700_000_000).expect("in range");
    let whole = || preview(black_box(&facts), Cause::Autoscaler, now);
    assert!(matches!(whole().end, End::Released { .. }), "{:?}", whole().end);
    criterion.bench_function("all plans of a scale-in with 30 pods", |bench| bench.iter(whole));
}

fn templates(criterion: &mut Criterion) {
    let info = type_table::find("m5.large").expect("in the table");
    let (specs, tags) = ([Arc::new(LaunchSpec::default())], template::tags::NodeTags::default());
    let zones = ["us-east-1a".to_owned()];
    let types = [template::Candidate { info: &info, specs: &specs }];
    let facts = template::Facts {
        group: "web",
        region: "us-east-1",
        zones: &zones,
        zone_id: None,
        types: &types,
        market: None,
        eks: None,
        learned: None,
        tags: &tags,
    };
    criterion.bench_function("a template, encoded", |bench| {
        bench.iter(|| Template::of(black_box(&facts), &template::Settings::default()).expect("a template"));
    });
}

criterion_group!(rules, nodes, rpcs, scale_in, templates);
criterion_main!(rules);
