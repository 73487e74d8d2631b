//! A small stand-in for cluster-autoscaler: asks the program over gRPC every ten seconds, as the real one does, and buys
//! nodes for pods that find no place. What is to be scaled in is said by whoever plays the scenario.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use prost::Message;
use tonic::Status;
use tonic::transport::Channel;

use super::cluster::Cluster;
use super::world::POOL;
use crate::provider::proto::cloud_provider_client::CloudProviderClient;
use crate::provider::proto::{
    ExternalGrpcNode, NodeGroupDeleteNodesRequest, NodeGroupIncreaseSizeRequest, NodeGroupTargetSizeRequest,
    NodeGroupTemplateNodeInfoRequest, NodeGroupsRequest, RefreshRequest,
};

/// cluster-autoscaler's `--scan-interval`.
const SCAN: Duration = Duration::from_secs(10);

type Client = CloudProviderClient<Channel>;

/// Looks and buys, for ever. `client` is where the program can be reached at the moment.
pub async fn run(cluster: &Cluster, client: impl Fn() -> Client) {
    loop {
        // The program may be down, as in a real life: the next look will do.
        if let Err(status) = scan(cluster, &mut client()).await {
            tracing::debug!(status = %status, "the program did not answer");
        }
        tokio::time::sleep(SCAN).await;
    }
}

async fn scan(cluster: &Cluster, client: &mut Client) -> Result<(), Status> {
    client.refresh(RefreshRequest {}).await?;
    let groups = client.node_groups(NodeGroupsRequest {}).await?.into_inner().node_groups;
    let wanted = wanted(&cluster.list::<Pod>());
    for group in groups {
        let Some(millis) = wanted.get(&group.id) else { continue };
        let request = NodeGroupTargetSizeRequest { id: group.id.clone() };
        let target = client.node_group_target_size(request).await?.into_inner().target_size;
        let there = cluster.list::<Node>().iter().filter(|node| is_usable(node, &group.id)).count();
        let request = NodeGroupTemplateNodeInfoRequest { id: group.id.clone() };
        let template = client.node_group_template_node_info(request).await?.into_inner();
        let of_one = allocatable_millis(&template.node_bytes);
        let upcoming = i64::from(target) - there as i64;
        let delta =
            (millis.div_ceil(of_one.max(1)) as i64 - upcoming).min(i64::from(group.max_size - target));
        if delta > 0 {
            let request = NodeGroupIncreaseSizeRequest { delta: delta as i32, id: group.id };
            client.node_group_increase_size(request).await?;
        }
    }
    Ok(())
}

/// CPU that pods without a place ask for, by the group they choose.
fn wanted(pods: &[Pod]) -> BTreeMap<String, u64> {
    let mut wanted = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let pending = spec.node_name.is_none() && pod.metadata.deletion_timestamp.is_none();
        let pool = spec.node_selector.as_ref().and_then(|selector| selector.get(POOL));
        if let (true, Some(pool)) = (pending, pool) {
            let requests =
                spec.containers.iter().filter_map(|c| c.resources.as_ref()?.requests.as_ref()?.get("cpu"));
            *wanted.entry(pool.clone()).or_default() +=
                requests.map(|quantity| millis(&quantity.0)).sum::<u64>();
        }
    }
    wanted
}

/// A node that is being deleted is no capacity: cluster-autoscaler knows its own taint.
fn is_usable(node: &Node, group: &str) -> bool {
    let of_group =
        node.metadata.labels.as_ref().is_some_and(|labels| labels.get(POOL).is_some_and(|g| g == group));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    of_group && !taints.iter().any(|taint| taint.key == crate::scale_in::names::TO_BE_DELETED)
}

fn allocatable_millis(template: &[u8]) -> u64 {
    let node = k8s_pb::api::core::v1::Node::decode(template).unwrap_or_default();
    let cpu = node.status.and_then(|status| status.allocatable.get("cpu")?.string.clone());
    cpu.map_or(0, |text| millis(&text))
}

/// Thousandths of a core.
fn millis(quantity: &str) -> u64 {
    match quantity.strip_suffix('m') {
        Some(millis) => millis.parse().unwrap_or_default(),
        None => quantity.parse::<u64>().unwrap_or_default() * 1_000,
    }
}

/// Asks for a node's deletion, as cluster-autoscaler does once it has decided.
pub async fn delete_node(client: &mut Client, group: &str, node: &Node) -> Result<(), Status> {
    let node = ExternalGrpcNode {
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
        annotations: node.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
    };
    let request = NodeGroupDeleteNodesRequest { nodes: vec![node], id: group.to_owned() };
    client.node_group_delete_nodes(request).await.map(drop)
}
