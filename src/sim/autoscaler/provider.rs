//! The provider as one loop of cluster-autoscaler sees it: every call has a deadline, and some answers are cached until the
//! next Refresh.
//!
//! Source: `cloudprovider/externalgrpc/externalgrpc_{cloud_provider,node_group}.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use jiff::Timestamp;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use super::options::{Options, Version};
use crate::provider::proto::cloud_provider_client::CloudProviderClient;
use crate::provider::proto::{
    ExternalGrpcNode, Instance, LegacyTime, NamedNode, NodeGroup, NodeGroupAutoscalingOptions,
    NodeGroupAutoscalingOptionsRequest, NodeGroupDecreaseTargetSizeRequest, NodeGroupDeleteNodesRequest,
    NodeGroupForNodeRequest, NodeGroupIncreaseSizeRequest, NodeGroupNodesRequest, NodeGroupTargetSizeRequest,
    NodeGroupTemplateNodeInfoRequest, NodeGroupTemplateNodeInfoResponse, NodeGroupsRequest,
    PricingNodePriceRequest, PricingPodPriceRequest, RefreshRequest,
};
use crate::provider::wire::Span;

/// A gRPC client of the program.
pub type Client = CloudProviderClient<Channel>;

impl From<ExternalGrpcNode> for NamedNode {
    fn from(ExternalGrpcNode { provider_id, name, .. }: ExternalGrpcNode) -> Self {
        Self { provider_id, name }
    }
}

/// A group's options: its own, or the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GroupOptions {
    pub(super) provision_time: Duration,
    pub(super) startup_time: Duration,
    pub(super) zero_or_max: bool,
}

pub(super) struct Provider<'a> {
    client: Client,
    options: &'a Options,
    groups: Option<Vec<NodeGroup>>,
    group_of: BTreeMap<(String, String), NodeGroup>,
}

impl<'a> Provider<'a> {
    pub(super) fn new(client: Client, options: &'a Options) -> Self {
        Self { client, options, groups: None, group_of: BTreeMap::new() }
    }

    pub(super) async fn refresh(&mut self) -> Result<(), Status> {
        (self.groups, self.group_of) = (None, BTreeMap::new());
        let call = self.client.refresh(RefreshRequest {});
        within(self.options.grpc_timeout, call).await.map(drop)
    }

    /// The groups; none after an error.
    pub(super) async fn groups(&mut self) -> Vec<NodeGroup> {
        if let Some(groups) = &self.groups {
            return groups.clone();
        }
        let call = self.client.node_groups(NodeGroupsRequest {});
        match within(self.options.grpc_timeout, call).await {
            Ok(answer) => self.groups.insert(answer.node_groups).clone(),
            Err(_) => Vec::new(),
        }
    }

    /// The group of a Node; `None` if the autoscaler should leave it alone, which is not cached.
    pub(super) async fn group_of(&mut self, node: &ExternalGrpcNode) -> Result<Option<String>, Status> {
        Ok(self.node_group_of(node).await?.map(|group| group.id))
    }

    /// The same, with the limits that were told with this Node: scale-downs go by those.
    pub(super) async fn node_group_of(
        &mut self,
        node: &ExternalGrpcNode,
    ) -> Result<Option<NodeGroup>, Status> {
        let key = (node.name.clone(), node.provider_id.clone());
        if let Some(group) = self.group_of.get(&key) {
            return Ok(Some(group.clone()));
        }
        let call =
            self.client.node_group_for_node(NodeGroupForNodeRequest { node: Some(node.clone().into()) });
        let group = within(self.options.grpc_timeout, call).await?.node_group.unwrap_or_default();
        if group.id.is_empty() {
            return Ok(None);
        }
        self.group_of.insert(key, group.clone());
        Ok(Some(group))
    }

    pub(super) async fn target_size(&mut self, group: &str) -> Result<i32, Status> {
        let call = self.client.node_group_target_size(NodeGroupTargetSizeRequest { id: group.to_owned() });
        Ok(within(self.options.grpc_timeout, call).await?.target_size)
    }

    pub(super) async fn instances(&mut self, group: &str) -> Result<Vec<Instance>, Status> {
        let call = self.client.node_group_nodes(NodeGroupNodesRequest { id: group.to_owned() });
        Ok(within(self.options.grpc_timeout, call).await?.instances)
    }

    /// The encoded template; `None` if the provider has none.
    pub(super) async fn template(&mut self, group: &str) -> Result<Option<Bytes>, Status> {
        let request = NodeGroupTemplateNodeInfoRequest { id: group.to_owned() };
        let call = self.client.node_group_template_node_info(request);
        match within(self.options.grpc_timeout, call).await {
            Ok(answer) => Ok(Some(template_node(&answer))),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// GetOptions, with the fields that this version sends and reads.
    pub(super) async fn options(&mut self, group: &str) -> Result<GroupOptions, Status> {
        let defaults = defaults(self.options);
        let request = NodeGroupAutoscalingOptionsRequest { id: group.to_owned(), defaults: Some(defaults) };
        let call = self.client.node_group_get_options(request);
        let own = match within(self.options.grpc_timeout, call).await {
            Ok(answer) => answer.node_group_autoscaling_options,
            Err(status) if status.code() == Code::Unimplemented => None,
            Err(status) => return Err(status),
        };
        Ok(own.map_or_else(
            || GroupOptions::defaults(self.options),
            |own| GroupOptions::read(&own, self.options),
        ))
    }

    /// What a node costs in the next hour.
    pub(super) async fn node_price(
        &mut self,
        node: &ExternalGrpcNode,
        now: Timestamp,
    ) -> Result<f64, Status> {
        let node = Some(node.clone());
        let request = match self.options.version {
            Version::V1_30 => {
                let (start_time, end_time) = (Some(old_time(now, 0)), Some(old_time(now, HOUR)));
                PricingNodePriceRequest { node, start_time, end_time, ..PricingNodePriceRequest::default() }
            }
            Version::Core2026 => {
                let (start_timestamp, end_timestamp) = (Some(new_time(now, 0)), Some(new_time(now, HOUR)));
                PricingNodePriceRequest {
                    node,
                    start_timestamp,
                    end_timestamp,
                    ..PricingNodePriceRequest::default()
                }
            }
        };
        Ok(within(self.options.grpc_timeout, self.client.pricing_node_price(request)).await?.price)
    }

    /// What an encoded pod costs in the next hour.
    pub(super) async fn pod_price(&mut self, pod: &[u8], now: Timestamp) -> Result<f64, Status> {
        let pod = Bytes::copy_from_slice(pod);
        let request = match self.options.version {
            Version::V1_30 => {
                let (start_time, end_time) = (Some(old_time(now, 0)), Some(old_time(now, HOUR)));
                PricingPodPriceRequest { pod, start_time, end_time, ..PricingPodPriceRequest::default() }
            }
            Version::Core2026 => {
                let (start_timestamp, end_timestamp) = (Some(new_time(now, 0)), Some(new_time(now, HOUR)));
                PricingPodPriceRequest {
                    pod_bytes: pod,
                    start_timestamp,
                    end_timestamp,
                    ..PricingPodPriceRequest::default()
                }
            }
        };
        Ok(within(self.options.grpc_timeout, self.client.pricing_pod_price(request)).await?.price)
    }

    pub(super) async fn increase_size(&mut self, group: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupIncreaseSizeRequest { delta, id: group.to_owned() };
        within(self.options.grpc_timeout, self.client.node_group_increase_size(request)).await.map(drop)
    }

    pub(super) async fn decrease_target_size(&mut self, group: &str, delta: i32) -> Result<(), Status> {
        let request = NodeGroupDecreaseTargetSizeRequest { delta, id: group.to_owned() };
        within(self.options.grpc_timeout, self.client.node_group_decrease_target_size(request))
            .await
            .map(drop)
    }

    pub(super) async fn delete_nodes(
        &mut self,
        group: &str,
        nodes: Vec<ExternalGrpcNode>,
    ) -> Result<(), Status> {
        let request = NodeGroupDeleteNodesRequest { nodes, id: group.to_owned() };
        within(self.options.grpc_timeout, self.client.node_group_delete_nodes(request)).await.map(drop)
    }
}

impl GroupOptions {
    fn defaults(options: &Options) -> Self {
        Self {
            provision_time: options.max_node_provision_time,
            startup_time: options.max_node_startup_time,
            zero_or_max: false,
        }
    }

    /// Options from an answer; fields that it lacks, or that this version does not read, are zero.
    fn read(own: &NodeGroupAutoscalingOptions, options: &Options) -> Self {
        let span = |nanos: i64| Duration::from_nanos(u64::try_from(nanos).unwrap_or_default());
        let (new, old) = (own.max_node_provision_duration.as_ref(), own.max_node_provision_time.as_ref());
        match options.version {
            Version::V1_30 => Self {
                provision_time: span(Span::read(None, old).unwrap_or_default().nanos),
                startup_time: options.max_node_startup_time,
                zero_or_max: false,
            },
            Version::Core2026 => Self {
                provision_time: span(Span::read(new, None).unwrap_or_default().nanos),
                startup_time: Duration::ZERO,
                zero_or_max: own.zero_or_max_node_scaling,
            },
        }
    }
}

/// The defaults sent in a request for a group's options.
fn defaults(options: &Options) -> NodeGroupAutoscalingOptions {
    let spans = [10, 20].map(Duration::from_mins).map(Span::from);
    let provision_time = Span::from(options.max_node_provision_time);
    let thresholds = NodeGroupAutoscalingOptions {
        scale_down_utilization_threshold: 0.5,
        scale_down_gpu_utilization_threshold: 0.5,
        ..NodeGroupAutoscalingOptions::default()
    };
    match options.version {
        Version::V1_30 => NodeGroupAutoscalingOptions {
            scale_down_unneeded_time: Some(spans[0].old_dialect()),
            scale_down_unready_time: Some(spans[1].old_dialect()),
            max_node_provision_time: Some(provision_time.old_dialect()),
            ..thresholds
        },
        Version::Core2026 => NodeGroupAutoscalingOptions {
            scale_down_unneeded_duration: Some(spans[0].new_dialect()),
            scale_down_unready_duration: Some(spans[1].new_dialect()),
            max_node_provision_duration: Some(provision_time.new_dialect()),
            ..thresholds
        },
    }
}

/// The encoded `core/v1` Node of an answer, in whichever dialect it is.
fn template_node(answer: &NodeGroupTemplateNodeInfoResponse) -> Bytes {
    if answer.node_bytes.is_empty() { answer.node_info.clone() } else { answer.node_bytes.clone() }
}

const HOUR: i64 = 3_600;

fn old_time(now: Timestamp, more: i64) -> LegacyTime {
    LegacyTime { seconds: Some(now.as_second() + more), nanos: Some(0) }
}

fn new_time(now: Timestamp, more: i64) -> prost_types::Timestamp {
    prost_types::Timestamp { seconds: now.as_second() + more, nanos: now.subsec_nanosecond() }
}

async fn within<T>(
    limit: Duration,
    call: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_read_from_either_field() {
        let node = Bytes::from_static(b"node");
        let old = NodeGroupTemplateNodeInfoResponse { node_info: node.clone(), node_bytes: Bytes::new() };
        let new = NodeGroupTemplateNodeInfoResponse { node_info: Bytes::new(), node_bytes: node.clone() };
        assert_eq!((template_node(&old), template_node(&new)), (node.clone(), node));
    }
}
