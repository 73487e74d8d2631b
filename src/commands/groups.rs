//! The groups as AWS has them now, read as `serve` reads them.

use std::sync::Arc;

use crate::aws::{Aws, AwsError};
use crate::clock::Clock;
use crate::cluster::{ApiError, Cluster, Nodes};
use crate::config::Config;
use crate::groups::discovery::{Discovery, Selection};
use crate::groups::hooks::Hooks;
use crate::groups::{self, Snapshot};

/// The groups, and a way to ask for their hooks.
pub(super) struct Groups {
    pub(super) snapshot: Snapshot,
    pub(super) selection: Selection,
    pub(super) hooks: Arc<Hooks>,
}

impl Groups {
    /// Looks once. `nodes`: those of the cluster, which name the groups of scale-ins under way.
    pub(super) async fn read(
        aws: &Aws,
        config: &Config,
        nodes: Arc<Nodes>,
        clock: &Clock,
    ) -> Result<Self, AwsError> {
        let groups = Arc::new(groups::Groups::new(config.snapshot_max_age));
        let hooks = Arc::new(Hooks::new(aws.clone(), &config.lifecycle_hook, clock.clone()));
        let (selectors, interval) = (config.selectors.clone(), config.refresh_interval);
        let (of_its_own, clock) = (Arc::clone(&hooks), clock.clone());
        let discovery = Discovery::new(aws.clone(), selectors, groups, of_its_own, nodes, clock, interval)
            .with_settings(config.templates);
        let snapshot = Box::pin(discovery.refresh()).await?;
        Ok(Self { snapshot, selection: discovery.selection().await, hooks })
    }
}

/// All Nodes of the cluster.
pub(super) async fn nodes(cluster: &Cluster) -> Result<Arc<Nodes>, ApiError> {
    let nodes = Nodes::default();
    for node in cluster.list_nodes().await? {
        nodes.apply(node);
    }
    Ok(Arc::new(nodes))
}
