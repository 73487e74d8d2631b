//! How cluster-autoscaler removes an occupied node: taint, drain, DeleteNodes.
//!
//! Follows `core/scaledown/actuation` and `utils/taints` of 1.30
//! (<https://github.com/kubernetes/autoscaler/tree/cluster-autoscaler-release-1.30/cluster-autoscaler>). A failure ends it:
//! pods stay evicted, its taint and cordon are removed. Whether it would have chosen this node is not modelled, but that it has a group.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;
use tokio::time::Instant;
use tonic::Status;
use tonic::transport::Channel;

use super::autoscaler;
use super::cluster::Cluster;
use super::world::World;
use crate::clock::Clock;
use crate::k8s::names::{ENABLE_DS_EVICTION, MIRROR_POD, TO_BE_DELETED};
use crate::provider::proto::cloud_provider_client::CloudProviderClient;

/// `maxRetryDeadline` and `conflictRetryInterval` of writes to Nodes.
const TAINT_WITHIN: Duration = Duration::from_secs(5);
const AFTER_CONFLICT: Duration = Duration::from_millis(750);

/// `DefaultEvictionRetryTime`.
const EVICT_AGAIN: Duration = Duration::from_secs(10);
/// `DefaultPodEvictionHeadroom`.
const HEADROOM: Duration = Duration::from_secs(30);
/// Pause between two checks of the pods it waits for.
const LOOK: Duration = Duration::from_secs(5);
/// `grpc_timeout` of its provider.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Its flags, at their defaults.
#[derive(Clone, Debug)]
pub struct Flags {
    /// `--node-delete-delay-after-taint`.
    pub delete_delay_after_taint: Duration,
    /// `--max-graceful-termination-sec`.
    pub max_graceful_termination_seconds: i64,
    /// `--max-pod-eviction-time`.
    pub max_pod_eviction_time: Duration,
    /// `--cordon-node-before-terminating`.
    pub cordon: bool,
    /// `--daemonset-eviction-for-occupied-nodes`.
    pub evicts_daemon_sets: bool,
}

impl Default for Flags {
    fn default() -> Self {
        Self {
            delete_delay_after_taint: Duration::from_secs(5),
            max_graceful_termination_seconds: 600,
            max_pod_eviction_time: Duration::from_mins(2),
            cordon: false,
            evicts_daemon_sets: true,
        }
    }
}

/// Why it gave up. Its taint is removed if that was possible.
#[derive(Debug, thiserror::Error)]
pub enum GaveUp {
    /// The API server refused.
    #[error("the API server did not do it")]
    Api(#[from] kube::Error),
    /// Evictions were refused for too long.
    #[error("not evicted: {0:?}")]
    NotEvicted(Vec<String>),
    /// Pods stayed beyond the longest grace.
    #[error("still there: {0:?}")]
    StillThere(Vec<String>),
    /// The provider names no group for the node.
    #[error("picked node that doesn't belong to a node group")]
    NoGroup,
    /// The node's group is at its minimum: nothing was done.
    #[error("the minimum size of node group {0} is reached")]
    AtMinimum(String),
    /// The provider refused, or did not answer in time.
    #[error("the provider did not delete the node: {0}")]
    NotDeleted(Status),
}

/// Drains a node and requests its deletion.
pub async fn drain_and_delete(
    world: &World,
    provider: &mut CloudProviderClient<Channel>,
    group: &str,
    node: &str,
    flags: &Flags,
) -> Result<(), GaveUp> {
    // Of one without a group it never gets as far as the taint: `group` in `core/scaledown/budgets/budgets.go`. Where it has no answer now, it
    // may have that of its loop's beginning.
    let asked = world.cluster.node(node).ok_or(GaveUp::NoGroup)?;
    if let Ok(Ok(None)) = tokio::time::timeout(ANSWER_WITHIN, autoscaler::group_of(provider, &asked)).await {
        return Err(GaveUp::NoGroup);
    }
    let actuator = Actuator::new(&world.cluster, &world.clock, flags);
    let delete = async |told: &Node| {
        let deletion = autoscaler::delete_node(provider, group, told);
        match tokio::time::timeout(ANSWER_WITHIN, deletion).await {
            Ok(answer) => answer.map_err(GaveUp::NotDeleted),
            Err(_) => Err(GaveUp::NotDeleted(Status::deadline_exceeded("context deadline exceeded"))),
        }
    };
    actuator.take_out(node, delete).await
}

/// Its first act after a start: removes its taints and cordons (`cleanUpIfRequired`).
pub async fn clean_up(world: &World, flags: &Flags) {
    let actuator = Actuator::new(&world.cluster, &world.clock, flags);
    for node in world.cluster.node_names() {
        if world.cluster.node(&node).is_some_and(|node| is_tainted(&node)) {
            // Tried once in a process's life.
            let _ = actuator.write_taint(&node, false).await;
        }
    }
}

pub(super) struct Actuator<'a> {
    clock: &'a Clock,
    flags: &'a Flags,
    client: kube::Client,
}

impl<'a> Actuator<'a> {
    pub(super) fn new(cluster: &Cluster, clock: &'a Clock, flags: &'a Flags) -> Self {
        Self { clock, flags, client: cluster.client() }
    }
}

impl Actuator<'_> {
    /// Taints a node, drains it, and requests its deletion.
    pub(super) async fn take_out(
        &self,
        node: &str,
        delete: impl AsyncFnOnce(&Node) -> Result<(), GaveUp>,
    ) -> Result<(), GaveUp> {
        // As its loop has seen it, whoever has the name at the end (`createSnapshot` in `core/scaledown/actuation/actuator.go`).
        let told = Api::<Node>::all(self.client.clone()).get(node).await?;
        let outcome = async {
            self.write_taint(node, true).await?;
            tokio::time::sleep(self.flags.delete_delay_after_taint).await;
            self.drain(node).await?;
            delete(&told).await
        };
        let outcome = outcome.await;
        if outcome.is_err() {
            // A failed clean-up is left to cluster-autoscaler's next start.
            let _ = self.write_taint(node, false).await;
        }
        outcome
    }

    /// Adds or removes its taint: reads the whole Node and writes it back (`AddTaints`, `CleanTaints`).
    pub(super) async fn write_taint(&self, name: &str, on: bool) -> Result<(), GaveUp> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let began = Instant::now();
        loop {
            let mut node = nodes.get(name).await?;
            if is_tainted(&node) == on {
                return Ok(());
            }
            let spec = node.spec.get_or_insert_default();
            let mut taints = spec.taints.take().unwrap_or_default();
            if on {
                let since = self.clock.now().as_second().to_string();
                let (key, effect) = (TO_BE_DELETED.to_owned(), "NoSchedule".to_owned());
                taints.push(Taint { key, effect, value: Some(since), ..Taint::default() });
            } else {
                taints.retain(|taint| taint.key != TO_BE_DELETED);
            }
            spec.taints = Some(taints);
            if self.flags.cordon {
                spec.unschedulable = Some(on);
            }
            match nodes.replace(name, &PostParams::default(), &node).await {
                Err(kube::Error::Api(status)) if status.is_conflict() && began.elapsed() < TAINT_WITHIN => {
                    tokio::time::sleep(AFTER_CONFLICT).await;
                }
                outcome => return outcome.map(drop).map_err(GaveUp::Api),
            }
        }
    }

    /// Evicts workloads and DaemonSet pods together; waits only for the workloads.
    async fn drain(&self, node: &str) -> Result<(), GaveUp> {
        let all: Api<Pod> = Api::all(self.client.clone());
        let here = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = all.list(&here).await?.items.into_iter();
        let mine = pods.filter(|pod| !is_mirror(pod) && !is_finished(pod));
        let (daemons, workloads): (Vec<Pod>, Vec<Pod>) = mine.partition(is_daemon);
        let daemons = daemons.iter().filter(|pod| !workloads.is_empty() && self.evicts_daemon(pod));
        let began = Instant::now();
        let evictions = workloads.iter().map(|pod| self.evict(pod, began));
        let (answers, _) =
            tokio::join!(join_all(evictions), join_all(daemons.map(|pod| self.evict(pod, began))));
        let refused: Vec<String> = answers.into_iter().filter_map(Result::err).collect();
        if !refused.is_empty() {
            return Err(GaveUp::NotEvicted(refused));
        }
        self.wait_for(node, &workloads).await
    }

    fn evicts_daemon(&self, pod: &Pod) -> bool {
        annotation(pod, ENABLE_DS_EVICTION).map_or(self.flags.evicts_daemon_sets, |wish| wish == "true")
    }

    /// One eviction, retried after any error. `Err`: the pod's name, if all tries failed.
    async fn evict(&self, pod: &Pod, began: Instant) -> Result<(), String> {
        let name = pod.metadata.name.clone().unwrap_or_default();
        let namespace = pod.metadata.namespace.clone().unwrap_or_default();
        let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds).unwrap_or(30);
        let grace = own.min(self.flags.max_graceful_termination_seconds);
        loop {
            // `kube`'s own request writes `delete_options`, which the API server does not know.
            let eviction = json!({
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": { "name": name, "namespace": namespace },
                "deleteOptions": { "gracePeriodSeconds": grace },
            });
            let request = http::Request::post(format!("/api/v1/namespaces/{namespace}/pods/{name}/eviction"))
                .header(http::header::CONTENT_TYPE, "application/json")
                .body(eviction.to_string().into_bytes());
            let Ok(request) = request else { return Err(name) };
            let answer = self.client.request::<kube::core::Status>(request).await;
            match answer {
                Ok(status) if !status.is_failure() => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
                _ => tokio::time::sleep(EVICT_AGAIN).await,
            }
            if began.elapsed() >= self.flags.max_pod_eviction_time {
                return Err(name);
            }
        }
    }

    async fn wait_for(&self, node: &str, pods: &[Pod]) -> Result<(), GaveUp> {
        let longest = self.flags.max_graceful_termination_seconds.max(0).unsigned_abs();
        let (began, limit) = (Instant::now(), Duration::from_secs(longest) + HEADROOM);
        loop {
            let left = self.left(node, pods).await;
            if left.is_empty() {
                return Ok(());
            }
            if began.elapsed() >= limit {
                return Err(GaveUp::StillThere(left));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// The pods that still exist, or that the API server did not answer for.
    async fn left(&self, node: &str, pods: &[Pod]) -> Vec<String> {
        let mut left = Vec::new();
        for pod in pods {
            let name = pod.metadata.name.clone().unwrap_or_default();
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            match Api::<Pod>::namespaced(self.client.clone(), namespace).get(&name).await {
                Ok(pod) if pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) != Some(node) => {}
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                _ => left.push(name),
            }
        }
        left
    }
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().any(|taint| taint.key == TO_BE_DELETED)
}

fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn is_mirror(pod: &Pod) -> bool {
    annotation(pod, MIRROR_POD).is_some()
}

fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

fn is_daemon(pod: &Pod) -> bool {
    let owners = pod.metadata.owner_references.iter().flatten();
    let mut controllers = owners.filter(|owner| owner.controller == Some(true));
    controllers.any(|owner| owner.kind == "DaemonSet")
        || annotation(pod, "cluster-autoscaler.kubernetes.io/daemonset-pod") == Some("true")
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};

    use super::*;
    use crate::sim::cluster::{By, Event, NodeChange, Timing, daemon_set, node, pod};

    /// A node with a workload that exits in time and a DaemonSet pod, without a provider.
    async fn occupied() -> World {
        let world = World::new(1);
        world.cluster.set_timing(Timing::brisk());
        world
            .cluster
            .add(node("n1"))
            .add(daemon_set("agent"))
            .add(pod("web").on("n1").grace(3_000).exits_after(22));
        assert!(
            world.until(Duration::from_mins(1), |world| runs(world, "web") && runs(world, "agent-")).await
        );
        world
    }

    fn runs(world: &World, prefix: &str) -> bool {
        world.cluster.happened(|e| matches!(e, Event::PodRunning { pod, .. } if pod.name.starts_with(prefix)))
    }

    fn nobody() -> CloudProviderClient<Channel> {
        CloudProviderClient::new(tonic::transport::Endpoint::from_static("http://127.0.0.1:1").connect_lazy())
    }

    fn asked(world: &World, prefix: &str) -> Option<(Timestamp, By, i64)> {
        world.cluster.journal().into_iter().find_map(|entry| match entry.what {
            Event::PodAsked { pod, by, grace, .. } if pod.name.starts_with(prefix) => {
                Some((entry.at, by, grace))
            }
            _ => None,
        })
    }

    #[tokio::test(start_paused = true)]
    async fn it_taints_waits_evicts_everybody_at_once_and_cuts_grace_to_its_own() {
        let world = occupied().await;
        let began = world.clock.now();
        let outcome = drain_and_delete(&world, &mut nobody(), "web", "n1", &Flags::default()).await;
        assert!(matches!(outcome, Err(GaveUp::NotDeleted(_))), "{outcome:?}");
        let (web, agent) = (asked(&world, "web").expect("asked"), asked(&world, "agent").expect("asked"));
        assert_eq!(web.0.duration_since(began), SignedDuration::from_secs(5));
        assert_eq!(web.0, agent.0);
        assert_eq!((web.1, web.2, agent.2), (By::Eviction, 600, 30));
        let stamp = began.as_second().to_string();
        let set =
            |change: &NodeChange| matches!(change, NodeChange::Tainted { value, .. } if *value == stamp);
        assert!(
            world
                .cluster
                .happened(|e| matches!(e, Event::NodeChanged { changes, .. } if changes.iter().any(set)))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_failed_deletion_its_taint_and_its_cordon_come_off() {
        let world = occupied().await;
        let flags = Flags { cordon: true, evicts_daemon_sets: false, ..Flags::default() };
        assert!(drain_and_delete(&world, &mut nobody(), "web", "n1", &flags).await.is_err());
        let changes = |wanted: &NodeChange| {
            world
                .cluster
                .happened(|e| matches!(e, Event::NodeChanged { changes, .. } if changes.contains(wanted)))
        };
        assert!(changes(&NodeChange::Unschedulable(true)));
        let node = world.cluster.node("n1").expect("a Node");
        assert!(!is_tainted(&node) && node.spec.expect("a spec").unschedulable.is_none());
        assert_eq!(asked(&world, "agent"), None, "DaemonSet pods stay");
    }

    #[tokio::test(start_paused = true)]
    async fn at_its_start_it_takes_its_taints_off() {
        let world = occupied().await;
        world.cluster.add(node("n2").taint(TO_BE_DELETED, "1", "NoSchedule").taint("mine", "", "NoSchedule"));
        clean_up(&world, &Flags::default()).await;
        let taints = world.cluster.node("n2").and_then(|node| node.spec?.taints).expect("taints");
        assert_eq!(taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(), ["mine"]);
    }
}
