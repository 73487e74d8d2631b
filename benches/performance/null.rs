//! The limit: a gRPC server that does nothing but answer, with what the program has answered before.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command};

use ebbtide::provider::proto::cloud_provider_client::CloudProviderClient;
use ebbtide::provider::proto::cloud_provider_server::{CloudProvider, CloudProviderServer};
#[allow(clippy::wildcard_imports, reason = "a request and a response of every RPC")]
use ebbtide::provider::proto::*;
use prost::Message as _;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use crate::rpcs;
use crate::stage::{Process, connect};

/// Answers made ready.
struct Ready {
    group: NodeGroupForNodeResponse,
    size: NodeGroupTargetSizeResponse,
    nodes: NodeGroupNodesResponse,
    template: NodeGroupTemplateNodeInfoResponse,
}

/// The null server as a process of its own: `performance --null-server OWN-ADDRESS PROGRAM'S GROUP`.
pub(crate) fn run(own: &str, program: &str, group: &str) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let program = connect(program.parse().expect("an address")).await;
        let provider_id = rpcs::provider_id(&program, group).await;
        let node = ExternalGrpcNode { provider_id, ..ExternalGrpcNode::default() };
        let mut client = CloudProviderClient::new(program.clone());
        let ready = Ready {
            group: rpcs::for_node(&program, node).await.expect("answered"),
            size: client.node_group_target_size(rpcs::target(group)).await.expect("answered").into_inner(),
            nodes: NodeGroupNodesResponse {
                encoded: client
                    .node_group_nodes(rpcs::nodes(group))
                    .await
                    .expect("answered")
                    .into_inner()
                    .encode_to_vec()
                    .into(),
                ..NodeGroupNodesResponse::default()
            },
            template: client
                .node_group_template_node_info(rpcs::template(group))
                .await
                .expect("answered")
                .into_inner(),
        };
        let listener = tokio::net::TcpListener::bind(own).await.expect("a port");
        let accepted = tokio_stream::StreamExt::map(TcpListenerStream::new(listener), |stream| {
            stream.inspect(|stream| drop(stream.set_nodelay(true)))
        });
        let served =
            Server::builder().add_service(CloudProviderServer::new(ready)).serve_with_incoming(accepted);
        served.await.expect("served");
    });
}

/// The null server, running. Killed when dropped.
pub(crate) struct Null {
    child: Child,
    pub(crate) channel: Channel,
}

impl Drop for Null {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Null {
    pub(crate) async fn start(this: &Path, program: SocketAddr, group: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("bound");
        drop(listener);
        let arguments = ["--null-server".to_owned(), own.to_string(), program.to_string(), group.to_owned()];
        let child = Command::new(this).args(arguments).spawn().expect("it starts");
        Self { child, channel: connect(own).await }
    }

    pub(crate) fn process(&self) -> Process {
        Process(self.child.id())
    }
}

fn not_asked<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("not asked for"))
}

#[tonic::async_trait]
impl CloudProvider for Ready {
    async fn node_group_for_node(
        &self,
        _: Request<NodeGroupForNodeRequest>,
    ) -> Result<Response<NodeGroupForNodeResponse>, Status> {
        Ok(Response::new(self.group.clone()))
    }
    async fn node_group_target_size(
        &self,
        _: Request<NodeGroupTargetSizeRequest>,
    ) -> Result<Response<NodeGroupTargetSizeResponse>, Status> {
        Ok(Response::new(self.size))
    }
    async fn node_group_nodes(
        &self,
        _: Request<NodeGroupNodesRequest>,
    ) -> Result<Response<NodeGroupNodesResponse>, Status> {
        Ok(Response::new(self.nodes.clone()))
    }
    async fn node_group_template_node_info(
        &self,
        _: Request<NodeGroupTemplateNodeInfoRequest>,
    ) -> Result<Response<NodeGroupTemplateNodeInfoResponse>, Status> {
        Ok(Response::new(self.template.clone()))
    }
    async fn node_groups(
        &self,
        _: Request<NodeGroupsRequest>,
    ) -> Result<Response<NodeGroupsResponse>, Status> {
        not_asked()
    }
    async fn pricing_node_price(
        &self,
        _: Request<PricingNodePriceRequest>,
    ) -> Result<Response<PricingNodePriceResponse>, Status> {
        not_asked()
    }
    async fn pricing_pod_price(
        &self,
        _: Request<PricingPodPriceRequest>,
    ) -> Result<Response<PricingPodPriceResponse>, Status> {
        not_asked()
    }
    async fn gpu_label(&self, _: Request<GpuLabelRequest>) -> Result<Response<GpuLabelResponse>, Status> {
        not_asked()
    }
    async fn get_available_gpu_types(
        &self,
        _: Request<GetAvailableGpuTypesRequest>,
    ) -> Result<Response<GetAvailableGpuTypesResponse>, Status> {
        not_asked()
    }
    async fn cleanup(&self, _: Request<CleanupRequest>) -> Result<Response<CleanupResponse>, Status> {
        not_asked()
    }
    async fn refresh(&self, _: Request<RefreshRequest>) -> Result<Response<RefreshResponse>, Status> {
        not_asked()
    }
    async fn node_group_increase_size(
        &self,
        _: Request<NodeGroupIncreaseSizeRequest>,
    ) -> Result<Response<NodeGroupIncreaseSizeResponse>, Status> {
        not_asked()
    }
    async fn node_group_delete_nodes(
        &self,
        _: Request<NodeGroupDeleteNodesRequest>,
    ) -> Result<Response<NodeGroupDeleteNodesResponse>, Status> {
        not_asked()
    }
    async fn node_group_decrease_target_size(
        &self,
        _: Request<NodeGroupDecreaseTargetSizeRequest>,
    ) -> Result<Response<NodeGroupDecreaseTargetSizeResponse>, Status> {
        not_asked()
    }
    async fn node_group_get_options(
        &self,
        _: Request<NodeGroupAutoscalingOptionsRequest>,
    ) -> Result<Response<NodeGroupAutoscalingOptionsResponse>, Status> {
        not_asked()
    }
}
