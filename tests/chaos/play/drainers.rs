//! Others who drain nodes.

use std::sync::Arc;
use std::time::Duration;

use ebbtide::sim::aws::TerminationCause;
use ebbtide::sim::world::World;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{EvictParams, Patch, PatchParams};
use serde_json::json;

use crate::history::{Diary, Machine, Note};
use crate::scenario::Cause;

/// How often kubectl tries an eviction again (<https://kubernetes.io/docs/tasks/administer-cluster/safely-drain-node/>).
const AGAIN: Duration = Duration::from_secs(5);

/// For how long EKS tries to drain a node
/// (<https://docs.aws.amazon.com/eks/latest/userguide/managed-node-update-behavior.html>); here kubectl tries no longer either.
const TRIES: Duration = Duration::from_mins(15);

/// `kubectl drain --ignore-daemonsets --force`: cordons a node and evicts its workloads until there are none.
pub(super) async fn drain(world: Arc<World>, node: String) {
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(world.cluster.client());
    let cordoned = Patch::Merge(json!({ "spec": { "unschedulable": true } }));
    // Who is refused tries to evict all the same.
    let _ = nodes.patch(&node, &PatchParams::default(), &cordoned).await;
    let pods: Api<Pod> = Api::namespaced(world.cluster.client(), "default");
    let empty = async {
        loop {
            let workloads = workloads(&world, &node);
            if workloads.is_empty() {
                return;
            }
            for pod in workloads.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
                let name = pod.metadata.name.as_deref().unwrap_or_default();
                // A budget may refuse it.
                let _ = pods.evict(name, &EvictParams::default()).await;
            }
            tokio::time::sleep(AGAIN).await;
        }
    };
    let _ = tokio::time::timeout(TRIES, empty).await;
}

/// An EKS managed node group replaces a node: it is drained, and its instance terminated, as with a forced update if pods are left.
pub(super) async fn update(world: Arc<World>, diary: Diary, machine: Machine) {
    drain(Arc::clone(&world), machine.node.clone()).await;
    diary.note(world.clock.now(), Note::Asked(Cause::ByHand, machine.clone()));
    world.aws.terminate(&machine.instance, TerminationCause::Request);
}

fn workloads(world: &World, node: &str) -> Vec<Pod> {
    let is_here = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node));
    let is_daemon =
        |pod: &Pod| pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet");
    world.cluster.list::<Pod>().into_iter().filter(|pod| is_here(pod) && !is_daemon(pod)).collect()
}
