//! Latency and throughput of RPCs, beside a server that does nothing, in turns: the machine is the same for both.

use std::path::Path;
use std::time::Duration;

use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::{
    NamedNode, NodeGroupForNodeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest,
    NodeGroupTemplateNodeInfoRequest,
};
use futures::StreamExt as _;
use tokio::time::Instant;
use tonic::transport::Channel;

use crate::null::Null;
use crate::stage::{Program, group_name};

type Client = CloudProviderClient<Channel>;

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

pub(crate) fn for_node(node: NamedNode) -> NodeGroupForNodeRequest {
    NodeGroupForNodeRequest { node: Some(node) }
}

/// A node of the group. Its labels and annotations are not sent: the client has what the server reads.
pub(crate) async fn node(group: &str, client: &mut Client) -> NamedNode {
    let listed = client.node_group_nodes(nodes(group)).await.expect("answered").into_inner().instances;
    NamedNode { provider_id: listed[0].id.clone(), name: "ip-10-0-12-34.ec2.internal".to_owned() }
}

/// One call; how long it took.
async fn call(client: &mut Client, rpc: Rpc, group: &str, node: &NamedNode) -> Duration {
    let began = Instant::now();
    match rpc {
        Rpc::ForNode => drop(client.node_group_for_node(for_node(node.clone())).await.expect("answered")),
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
pub(crate) async fn print(program: &mut Program, this: &Path) {
    let group = group_name(0);
    let mut null = Null::start(this, program.address, &group).await;
    let node = node(&group, &mut program.client).await;
    for (name, rpc) in [
        ("NodeGroupForNode", Rpc::ForNode),
        ("NodeGroupNodes", Rpc::Nodes),
        ("NodeGroupTargetSize", Rpc::TargetSize),
        ("NodeGroupTemplateNodeInfo", Rpc::Template),
    ] {
        let (mut ours, mut limit) = (Vec::new(), Vec::new());
        for turn in 0..TURNS {
            for (client, times) in [(&mut program.client, &mut ours), (&mut null.client, &mut limit)] {
                for _ in 0..CALLS {
                    let took = call(client, rpc, &group, &node).await;
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
    at_once(program, &mut null, &group, &node).await;
    let memory = null.process().memory();
    crate::row("null server, resident", &format!("{:.0} MB", memory.resident));
}

async fn at_once(program: &Program, null: &mut Null, group: &str, node: &NamedNode) {
    let mut rates = [Vec::new(), Vec::new()];
    let mut cpu = [Duration::ZERO; 2];
    for turn in 0..TURNS {
        let servers = [(&program.client, program.process), (&null.client, null.process())];
        for (n, (client, process)) in servers.into_iter().enumerate() {
            let (began, used) = (Instant::now(), process.cpu());
            let calls = futures::stream::iter(0..CALLS_AT_ONCE).for_each_concurrent(IN_FLIGHT, |_| {
                let mut client = client.clone();
                async move {
                    call(&mut client, Rpc::ForNode, group, node).await;
                }
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
