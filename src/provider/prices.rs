//! The two RPCs of prices. They read memory, and have an answer for every node that tells its type or its group.

use k8s_pb::api::core::v1::Pod;
use prost::Message as _;

use super::proto::{ExternalGrpcNode, PricingNodePriceRequest, PricingPodPriceRequest};
use super::{Provider, RpcError, wire};
use crate::prices::{PricedNode, Prices, node};

impl Provider {
    fn prices(&self) -> Result<&Prices, RpcError> {
        self.prices.as_deref().ok_or(RpcError::PricesOff)
    }

    /// What a node costs in a period.
    pub(super) fn node_price(&self, request: &PricingNodePriceRequest) -> Result<f64, RpcError> {
        let prices = self.prices()?;
        let PricingNodePriceRequest { node, start_time, end_time, start_timestamp, end_timestamp } = request;
        let start = wire::moment(start_timestamp.as_ref(), start_time.as_ref());
        let hours = wire::hours(start, wire::moment(end_timestamp.as_ref(), end_time.as_ref()));
        let unnamed = ExternalGrpcNode::default();
        let node = node.as_ref().unwrap_or(&unnamed);
        // However old: what a group launches is seldom changed, and an error would have the group passed over.
        let view = self.groups.latest().unwrap_or_default();
        let (group, is_next) = node::group_of(&view, &node.provider_id, &node.name);
        let asked = PricedNode::of(&node.labels, group, is_next);
        let price = prices.of_node(&asked, self.clock.now()).ok_or(RpcError::NoPrice(node.name.clone()))?;
        Ok(price.per_hour * hours.ok_or(RpcError::NoPeriod)?)
    }

    /// What a pod costs in a period.
    pub(super) fn pod_price(&self, request: &PricingPodPriceRequest) -> Result<f64, RpcError> {
        let prices = self.prices()?;
        let PricingPodPriceRequest { pod, start_time, end_time, pod_bytes, start_timestamp, end_timestamp } =
            request;
        let start = wire::moment(start_timestamp.as_ref(), start_time.as_ref());
        let hours = wire::hours(start, wire::moment(end_timestamp.as_ref(), end_time.as_ref()));
        let encoded = if pod_bytes.is_empty() { pod } else { pod_bytes };
        let pod = Pod::decode(encoded.as_ref())?;
        Ok(prices.of_pod(&pod) * hours.ok_or(RpcError::NoPeriod)?)
    }
}
