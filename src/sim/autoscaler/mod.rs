//! A stand-in for cluster-autoscaler, which computes as two of its versions do ([`Version`]).
//!
//! ```text
//!  Nodes, pods ─┐                     ┌─▶ removes what never came ─▶ fixes sizes ─▶ buys nodes for pods
//!  provider ────┴─▶ registry (pure) ──┴─▶ upcoming nodes, failures, back-off      (scale_up: pure)
//! ```
//!
//! - A loop ([`Autoscaler::scan`]) takes the steps of `core/static_autoscaler.go` in order. An error that ends the real loop
//!   for all groups ends it here too, and is journalled.
//! - The test chooses the unneeded nodes: [`Autoscaler::scale_in`] removes them with the taint, the drain of
//!   [`ca_drain`](super::ca_drain) and DeleteNodes, as far as the minimum allows that NodeGroupForNode tells.
//! - Of several suitable groups the one that fits the most pods on the fewest nodes grows, the first among equals (the real
//!   default is random); or the one that the price expander finds best ([`Expander::Price`]).
//!
//! Not modelled: limits on cores, memory and the number of nodes, balancing of similar groups, its own scale-downs,
//! auto-provisioned groups.
//!
//! Source of 1.30: <https://github.com/kubernetes/autoscaler/tree/cluster-autoscaler-release-1.30/cluster-autoscaler>; of
//! the core of 2026: <https://github.com/kubernetes-sigs/cluster-autoscaler>.

mod backoff;
mod journal;
mod options;
mod price;
mod provider;
pub mod registry;
mod repair;
mod scale_in;
mod scale_up;
mod templates;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Mutex as Turn;

pub use self::journal::{Because, Event};
pub use self::options::{Expander, Options, Version};
pub use self::provider::Client;

use self::journal::Journal;
use self::provider::Provider;
use self::registry::{GroupFacts, Look, NodeFacts, Registry};
use self::templates::Template;
use super::cluster::Cluster;
use super::world::World;
use crate::clock::{Clock, elapsed};
use crate::k8s::names::TO_BE_DELETED;
use crate::provider::proto::{ExternalGrpcNode, Instance};

/// How often the instances of all groups are read.
const INSTANCES: Duration = Duration::from_mins(2);

/// Clones are the same autoscaler.
#[derive(Clone)]
pub struct Autoscaler(Arc<Shared>);

impl fmt::Debug for Autoscaler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Autoscaler").field("options", &self.0.options).finish_non_exhaustive()
    }
}

struct Shared {
    cluster: Cluster,
    clock: Clock,
    options: Options,
    memory: Turn<Memory>,
    journal: Mutex<Journal>,
    /// Deletions in progress, by group.
    deletions: Mutex<BTreeMap<String, i32>>,
}

/// State from one loop to the next.
struct Memory {
    has_cleaned_up: bool,
    registry: Registry,
    instances: BTreeMap<String, Vec<Instance>>,
    instances_read_at: Option<Timestamp>,
    /// Templates from real nodes, by group, and when such a node was seen last.
    examples: BTreeMap<String, (Template, Timestamp)>,
}

/// Why a loop ends early.
enum End {
    Failed(String),
    Skipped(&'static str),
}

/// One loop.
struct Scan<'a> {
    shared: &'a Shared,
    provider: Provider<'a>,
    memory: &'a mut Memory,
    nodes: Vec<Node>,
    now: Timestamp,
}

/// Runs 1.30's loop for ever. `connect` returns a client of the running program.
pub async fn run(world: &World, connect: impl Fn() -> Client) {
    Autoscaler::new(world, Options::of(Version::V1_30)).run(connect).await;
}

/// Requests a node's deletion, as cluster-autoscaler does once it has decided.
pub async fn delete_node(client: &mut Client, group: &str, node: &Node) -> Result<(), tonic::Status> {
    let options = Options::of(Version::V1_30);
    Provider::new(client.clone(), &options).delete_nodes(group, vec![as_sent(node)]).await
}

/// The group that NodeGroupForNode names for a node. cluster-autoscaler leaves one alone that has none.
pub async fn group_of(client: &mut Client, node: &Node) -> Result<Option<String>, tonic::Status> {
    let options = Options::of(Version::V1_30);
    Provider::new(client.clone(), &options).group_of(&as_sent(node)).await
}

impl Autoscaler {
    /// A newly started autoscaler.
    pub fn new(world: &World, options: Options) -> Self {
        let memory = Memory {
            has_cleaned_up: false,
            registry: Registry::new(options.clone()),
            instances: BTreeMap::new(),
            instances_read_at: None,
            examples: BTreeMap::new(),
        };
        Self(Arc::new(Shared {
            cluster: world.cluster.clone(),
            clock: world.clock.clone(),
            options,
            memory: Turn::new(memory),
            journal: Mutex::default(),
            deletions: Mutex::default(),
        }))
    }

    /// Runs the loop for ever.
    pub async fn run(&self, connect: impl Fn() -> Client) {
        loop {
            self.scan(connect()).await;
            tokio::time::sleep(self.0.options.scan_interval).await;
        }
    }

    /// One loop.
    pub async fn scan(&self, client: Client) {
        let mut memory = self.0.memory.lock().await;
        self.0.note(Event::Loop);
        let mut scan = Scan {
            shared: &self.0,
            provider: Provider::new(client, &self.0.options),
            memory: &mut memory,
            nodes: self.0.cluster.list(),
            now: self.0.clock.now(),
        };
        match scan.run_once().await {
            Ok(()) => {}
            Err(End::Failed(error)) => self.0.note(Event::LoopFailed(error)),
            Err(End::Skipped(why)) => self.0.note(Event::LoopSkipped(why)),
        }
    }

    /// The journal.
    pub fn journal(&self) -> Vec<(Timestamp, Event)> {
        self.0.journal().entries().to_vec()
    }

    /// Waits for a matching journal entry, at most `limit`. Returns whether it came.
    pub async fn until(&self, limit: Duration, mut such: impl FnMut(&Event) -> bool) -> bool {
        let mut changed = self.0.journal().changed();
        let happened = async {
            while !self.0.journal().entries().iter().any(|(_, event)| such(event)) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::time::timeout(limit, happened).await.is_ok()
    }

    /// The registry as of now.
    pub async fn registry(&self) -> Registry {
        self.0.memory.lock().await.registry.clone()
    }
}

impl Shared {
    fn note(&self, event: Event) {
        let now = self.clock.now();
        tracing::debug!(?event, "autoscaler");
        self.journal().note(now, event);
    }

    fn deletions(&self) -> MutexGuard<'_, BTreeMap<String, i32>> {
        self.deletions.lock()
    }

    fn journal(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock()
    }
}

impl Scan<'_> {
    async fn run_once(&mut self) -> Result<(), End> {
        self.clean_up_once().await;
        self.provider.refresh().await.map_err(failed("refresh"))?;
        let templates = self.templates().await?;
        self.update_registry().await?;
        self.remove_old_unregistered().await;
        if !self.memory.registry.is_cluster_healthy() {
            return Err(End::Skipped("cluster is not ready for autoscaling"));
        }
        self.delete_created_with_errors().await?;
        self.fix_sizes().await?;
        self.scale_up(&templates).await
    }

    /// Removes taints that an earlier run left on nodes of known groups.
    async fn clean_up_once(&mut self) {
        if std::mem::replace(&mut self.memory.has_cleaned_up, true) {
            return;
        }
        for node in self.nodes.clone() {
            if templates::has_taint(&node, TO_BE_DELETED)
                && let Ok(Some(_)) = self.provider.group_of(&as_sent(&node)).await
            {
                scale_in::untaint(self.shared, &node).await;
            }
        }
        self.nodes = self.shared.cluster.list();
    }

    /// TemplateNodeInfoProvider: the template of each group that has one. An error ends 1.30's loop; the core of 2026 goes on without
    /// the node, or the template.
    async fn templates(&mut self) -> Result<BTreeMap<String, Template>, End> {
        let ends = self.shared.options.version == Version::V1_30;
        let mut templates = BTreeMap::new();
        let mut others = Vec::new();
        for node in self.nodes.clone() {
            let group = match self.provider.group_of(&as_sent(&node)).await {
                Err(status) if ends => return Err(failed("node infos")(status)),
                group => group.unwrap_or_default(),
            };
            let Some(group) = group else { continue };
            if templates::is_example(&node, self.shared.options.version, self.now) {
                templates.entry(group).or_insert_with(|| templates::like(&node));
            } else {
                others.push((group, node));
            }
        }
        let seen = templates.iter().map(|(group, template)| (group.clone(), (template.clone(), self.now)));
        self.memory.examples.extend(seen);
        let expires = self.shared.options.node_info_cache;
        self.memory.examples.retain(|_, (_, seen)| elapsed(*seen, self.now) <= expires);
        let groups = self.provider.groups().await;
        self.memory.examples.retain(|name, _| groups.iter().any(|group| group.id == *name));
        for group in groups {
            if templates.contains_key(&group.id) {
                continue;
            }
            let template = match self.memory.examples.get(&group.id) {
                Some((example, _)) => Some(example.clone()),
                None => match self.provider.template(&group.id).await {
                    Err(status) if ends => return Err(failed("node infos")(status)),
                    template => template.ok().flatten().and_then(|encoded| templates::decode(&encoded)),
                },
            };
            templates.extend(template.map(|template| (group.id, template)));
        }
        // Broken and upcoming nodes last.
        for (group, node) in others {
            templates.entry(group).or_insert_with(|| templates::like(&node));
        }
        Ok(templates)
    }

    /// UpdateNodes: one group's error fails it for all.
    async fn update_registry(&mut self) -> Result<(), End> {
        let mut look = Look::default();
        for group in self.provider.groups().await {
            let target = self.provider.target_size(&group.id).await.map_err(failed("target size"))?;
            let own = self.provider.options(&group.id).await.ok();
            let defaults = &self.shared.options;
            look.groups.push(GroupFacts {
                target,
                instances: Vec::new(),
                provision_time: own.map_or(defaults.max_node_provision_time, |own| own.provision_time),
                startup_time: own.map_or(defaults.max_node_startup_time, |own| own.startup_time),
                id: group.id,
                min: group.min_size,
                max: group.max_size,
            });
        }
        self.read_instances(&look).await?;
        for group in &mut look.groups {
            group.instances = self.memory.instances.get(&group.id).cloned().unwrap_or_default();
        }
        for node in &self.nodes {
            // A Node whose lookup fails belongs to no group.
            let group = self.provider.group_of(&as_sent(node)).await.unwrap_or_default();
            look.nodes.push((facts(node), group));
        }
        let listed = look.groups.iter().flat_map(|group| &group.instances);
        for id in registry::not_registered(look.nodes.iter().map(|(node, _)| node), listed) {
            let group = self.provider.group_of(&made_up(&id)).await.unwrap_or_default();
            look.unregistered.insert(id, group);
        }
        for failure in self.memory.registry.update(look, self.now) {
            self.note_failure(failure).await;
        }
        Ok(())
    }

    /// The cache of instances. Every two minutes all are read, by a reader that takes an error for an empty list; in every loop, those of
    /// a group that scales up or has none, where an error ends the loop.
    ///
    /// Source: `Refresh` and `GetCloudProviderNodeInstancesForNodeGroup` in `clusterstate/utils/node_instances_cache.go`.
    async fn read_instances(&mut self, look: &Look) -> Result<(), End> {
        if self.memory.instances_read_at.is_none_or(|at| elapsed(at, self.now) >= INSTANCES) {
            self.memory.instances_read_at = Some(self.now);
            self.memory.instances.clear();
            for GroupFacts { id, .. } in &look.groups {
                let instances = self.provider.instances(id).await.unwrap_or_default();
                self.memory.instances.insert(id.clone(), instances);
            }
        }
        for GroupFacts { id, .. } in &look.groups {
            if self.memory.registry.is_scaling_up(id) || !self.memory.instances.contains_key(id) {
                let instances = self.provider.instances(id).await.map_err(failed("nodes"))?;
                self.memory.instances.insert(id.clone(), instances);
            }
        }
        Ok(())
    }
}

fn failed(what: &'static str) -> impl Fn(tonic::Status) -> End {
    move |status| End::Failed(format!("{what}: {}: {}", status.code(), status.message()))
}

/// Taints of a node that counts as not ready, whatever its condition says: the condition comes first, and the taint goes after it.
///
/// Source: `GetNodeReadiness` in `utils/kubernetes/ready.go`.
const NOT_READY: [&str; 3] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/network-unavailable",
];

fn facts(node: &Node) -> NodeFacts {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let is_ready =
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    NodeFacts {
        name: node.metadata.name.clone().unwrap_or_default(),
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        ready: is_ready && !NOT_READY.iter().any(|key| templates::has_taint(node, key)),
        created: node.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        to_be_deleted: templates::has_taint(node, TO_BE_DELETED),
    }
}

/// A Node as it is sent to the provider.
fn as_sent(node: &Node) -> ExternalGrpcNode {
    ExternalGrpcNode {
        provider_id: node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default(),
        name: node.metadata.name.clone().unwrap_or_default(),
        labels: node.metadata.labels.clone().unwrap_or_default().into_iter().collect(),
        annotations: node.metadata.annotations.clone().unwrap_or_default().into_iter().collect(),
    }
}

/// The Node that cluster-autoscaler makes up for an instance without one.
fn made_up(id: &str) -> ExternalGrpcNode {
    let reason = ("k8s.io/cluster-autoscaler/fake-node-reason".to_owned(), "unregistered".to_owned());
    ExternalGrpcNode {
        provider_id: id.to_owned(),
        name: id.to_owned(),
        annotations: [reason].into(),
        ..ExternalGrpcNode::default()
    }
}
