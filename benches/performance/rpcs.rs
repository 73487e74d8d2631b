//! Latency and throughput of RPCs, beside a server that does nothing, in turns: the machine is the same for both.

use std::path::Path;
use std::time::Duration;

use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{
    ExternalGrpcNode, NodeGroupDeleteNodesRequest, NodeGroupForNodeResponse, NodeGroupNodesRequest,
    NodeGroupTargetSizeRequest, NodeGroupTemplateNodeInfoRequest,
};
use futures::StreamExt as _;
use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use crate::null::Null;
use crate::stage::{Program, Stage, group_name};

const FOR_NODE: &str = "/clusterautoscaler.cloudprovider.v1.externalgrpc.CloudProvider/NodeGroupForNode";

/// Turns of each server, and calls in a turn.
const TURNS: usize = 40;
const CALLS: usize = 250;
const CALLS_AT_ONCE: usize = 2_000;
const IN_FLIGHT: usize = 64;

#[derive(Clone, Copy)]
enum Rpc {
    ForNode,
    Nodes,
    TargetSize,
    Template,
}

pub(crate) fn target(id: &str) -> NodeGroupTargetSizeRequest {
    NodeGroupTargetSizeRequest { id: id.to_owned() }
}

pub(crate) fn nodes(id: &str) -> NodeGroupNodesRequest {
    NodeGroupNodesRequest { id: id.to_owned() }
}

pub(crate) fn template(id: &str) -> NodeGroupTemplateNodeInfoRequest {
    NodeGroupTemplateNodeInfoRequest { id: id.to_owned() }
}

/// NodeGroupForNode as cluster-autoscaler sends it, with the Node's labels and annotations, which the program's own message leaves out.
/// That of DeleteNodes begins with the same field.
pub(crate) async fn for_node(
    server: &Channel,
    node: ExternalGrpcNode,
) -> Result<NodeGroupForNodeResponse, Status> {
    let mut client = Grpc::new(server.clone());
    client.ready().await.map_err(|error| Status::unknown(error.to_string()))?;
    let request = Request::new(NodeGroupDeleteNodesRequest { nodes: vec![node], id: String::new() });
    let codec = ProstCodec::default();
    Ok(client.unary(request, PathAndQuery::from_static(FOR_NODE), codec).await?.into_inner())
}

/// The provider id of a node of the group.
pub(crate) async fn provider_id(server: &Channel, group: &str) -> String {
    let listed = CloudProviderClient::new(server.clone()).node_group_nodes(nodes(group)).await;
    listed.expect("answered").into_inner().instances[0].id.clone()
}

/// A node of the group, with all that cluster-autoscaler sends of it.
async fn node(stage: &Stage, server: &Channel, group: &str) -> ExternalGrpcNode {
    let provider_id = provider_id(server, group).await;
    let instance = provider_id.rsplit('/').next().expect("an id");
    let name = stage.world.node_of(instance).expect("it has joined");
    let metadata = stage.world.cluster.node(&name).expect("a Node").metadata;
    let pairs = |pairs: Option<std::collections::BTreeMap<String, String>>| {
        pairs.unwrap_or_default().into_iter().collect()
    };
    ExternalGrpcNode {
        provider_id,
        name,
        labels: pairs(metadata.labels),
        annotations: pairs(metadata.annotations),
    }
}

/// One call; how long it took.
async fn call(server: &Channel, rpc: Rpc, group: &str, node: &ExternalGrpcNode) -> Duration {
    let (mut client, node) = (CloudProviderClient::new(server.clone()), node.clone());
    let began = Instant::now();
    match rpc {
        Rpc::ForNode => drop(for_node(server, node).await.expect("answered")),
        Rpc::Nodes => drop(client.node_group_nodes(nodes(group)).await.expect("answered")),
        Rpc::TargetSize => drop(client.node_group_target_size(target(group)).await.expect("answered")),
        Rpc::Template => drop(client.node_group_template_node_info(template(group)).await.expect("answered")),
    }
    began.elapsed()
}

fn middle(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// Prints the rows of RPCs.
pub(crate) async fn print(stage: &Stage, program: &Program, this: &Path) {
    let group = group_name(0);
    let null = Null::start(this, program.address, &group).await;
    let node = node(stage, &program.channel, &group).await;
    for (name, rpc) in [
        ("NodeGroupForNode", Rpc::ForNode),
        ("NodeGroupNodes", Rpc::Nodes),
        ("NodeGroupTargetSize", Rpc::TargetSize),
        ("NodeGroupTemplateNodeInfo", Rpc::Template),
    ] {
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            for (server, times) in [(&program.channel, &mut ours), (&null.channel, &mut limit)] {
                for _ in 0..CALLS {
                    let took = call(server, rpc, &group, &node).await;
                    // The first turn warms up.
                    if turn > 0 {
                        times.push(took);
                    }
                }
            }
        }
        let (ours, limit) = (middle(&mut ours).as_secs_f64() * 1e3, middle(&mut limit).as_secs_f64() * 1e3);
        crate::row(
            &format!("{name}, one at a time"),
            &format!("{ours:.3} ms, null server {limit:.3} ms: {:.2} ×", ours / limit),
        );
    }
    at_once(program, &null, &group, &node).await;
    let memory = null.process().memory();
    crate::row("null server, resident", &format!("{:.0} MB", memory.resident));
}

async fn at_once(program: &Program, null: &Null, group: &str, node: &ExternalGrpcNode) {
    let mut rates = [Vec::new(), Vec::new()];
    let mut cpu = [Duration::ZERO; 2];
    for turn in 0..TURNS {
        let servers = [(&program.channel, program.process), (&null.channel, null.process())];
        for (n, (server, process)) in servers.into_iter().enumerate() {
            let (began, used) = (Instant::now(), process.cpu());
            let calls = futures::stream::iter(0..CALLS_AT_ONCE).for_each_concurrent(IN_FLIGHT, async |_| {
                call(server, Rpc::ForNode, group, node).await;
            });
            calls.await;
            if turn > 0 {
                rates[n].push(began.elapsed());
                cpu[n] += process.cpu().saturating_sub(used);
            }
        }
    }
    let [ours, limit] = rates.map(|mut times| CALLS_AT_ONCE as f64 / middle(&mut times).as_secs_f64() / 1e3);
    let each = cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / (CALLS_AT_ONCE * (TURNS - 1)) as f64);
    crate::row(
        "NodeGroupForNode, 64 in flight",
        &format!(
            "{ours:.1} k/s, null server {limit:.1} k/s: {:.0} %; {:.0} µs of a core each, null server {:.0} µs",
            100.0 * ours / limit,
            each[0],
            each[1]
        ),
    );
}
