//! What the tests run on: a world with groups, the program on it, and a client.

use std::time::Duration;

use ebbtide::config::Config;
use ebbtide::provider::proto::{ExternalGrpcNode, NodeGroupDeleteNodesRequest, NodeGroupTargetSizeRequest};
use ebbtide::sim::aws::GroupSpec;
use ebbtide::sim::program::{Program, TAG, config};
use ebbtide::sim::world::World;
use tonic::Status;

/// A group of `m5.large`, tagged for the program, with this many instances in service.
pub(crate) fn group(name: &str, size: u32) -> GroupSpec {
    GroupSpec::named(name)
        .size(0, 10, size)
        .zones(["us-east-1a"])
        .template("m5.large")
        .tag(TAG, "true")
        .already_running()
}

/// A world, and the program on it.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) program: Program,
}

impl Scene {
    /// One group, its nodes joined, the program ready.
    pub(crate) async fn with(group: GroupSpec) -> Self {
        Self::configured(group, config()).await
    }

    pub(crate) async fn configured(group: GroupSpec, config: Config) -> Self {
        let world = World::new(1);
        world.aws.add_group(group);
        let program = Program::start(&world, config);
        let scene = Self { world, program };
        assert!(scene.world.until(Duration::from_mins(2), |w| { !w.cluster.node_names().is_empty() }).await);
        tokio::time::sleep(Duration::from_secs(30)).await;
        scene
    }

    pub(crate) fn nodes(&self) -> Vec<String> {
        self.world.cluster.node_names()
    }

    pub(crate) async fn delete(&self, nodes: &[&str]) -> Result<(), Status> {
        let nodes = nodes.iter().map(|name| {
            let node = self.world.cluster.node(name).expect("a Node");
            ExternalGrpcNode {
                provider_id: node.spec.and_then(|spec| spec.provider_id).unwrap_or_default(),
                name: (*name).to_owned(),
                labels: node.metadata.labels.unwrap_or_default().into_iter().collect(),
                annotations: node.metadata.annotations.unwrap_or_default().into_iter().collect(),
            }
        });
        let request = NodeGroupDeleteNodesRequest { id: "web".into(), nodes: nodes.collect() };
        self.program.client().node_group_delete_nodes(request).await.map(drop)
    }

    pub(crate) async fn target(&self) -> i32 {
        let request = NodeGroupTargetSizeRequest { id: "web".into() };
        self.program
            .client()
            .node_group_target_size(request)
            .await
            .expect("answered")
            .into_inner()
            .target_size
    }

    pub(crate) async fn until_gone(&self, node: &str, limit: Duration) -> bool {
        self.world.until(limit, |w| w.cluster.node(node).is_none()).await
    }
}
