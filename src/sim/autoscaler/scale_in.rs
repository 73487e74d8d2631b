//! How the autoscaler takes a node out that it does not need.
//!
//! Source: `core/scaledown/actuation/{actuator,group_deletion_scheduler,drain,delete_in_batch}.go`, `utils/taints/taints.go`.

use std::time::Duration;

use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::Api;
use kube::api::{EvictParams, PostParams};

use super::journal::{Because, Event};
use super::provider::{Client, Provider};
use super::{Autoscaler, Shared, templates, told};
use crate::scale_in::names::TO_BE_DELETED;

/// From one look at the pods of a node that is drained to the next.
const LOOK: Duration = Duration::from_secs(5);

/// From one try to evict a pod to the next.
const AGAIN: Duration = Duration::from_secs(10);

/// Why a node was not taken out. Its taint has been taken off again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aborted(pub String);

impl Autoscaler {
    /// Taints a node, drains it of everything but DaemonSet pods (`--daemonset-eviction-for-occupied-nodes=false`), and asks
    /// for its deletion.
    pub async fn scale_in(&self, client: Client, name: &str) -> Result<(), Aborted> {
        let gone = || Aborted(format!("there is no node {name}"));
        let node = self.0.cluster.node(name).ok_or_else(gone)?;
        taint(&self.0, &node).await;
        tokio::time::sleep(self.0.options.delete_delay_after_taint).await;
        self.drain(name).await;
        let node = self.0.cluster.node(name).ok_or_else(gone)?;
        let deleted = self.delete(client, &node).await;
        if deleted.is_err() {
            untaint(&self.0, &node).await;
        }
        deleted
    }

    async fn delete(&self, client: Client, node: &Node) -> Result<(), Aborted> {
        let mut provider = Provider::new(client, &self.0.options);
        let told = told(node);
        let group = provider.group_of(&told).await.map_err(|status| Aborted(status.message().to_owned()))?;
        let group =
            group.ok_or_else(|| Aborted("picked node that doesn't belong to a node group".to_owned()))?;
        let (nodes, because) = (vec![told.name.clone()], Because::Unneeded);
        let answer = provider.delete_nodes(&group, vec![told]).await;
        let error = answer.as_ref().err().map(|status| status.message().to_owned());
        self.0.note(Event::Deleted { group, nodes, because, error });
        answer.map_err(|status| Aborted(status.message().to_owned()))
    }

    async fn drain(&self, node: &str) {
        let left = || -> Vec<Pod> {
            let pods = self.0.cluster.pods_on(node).into_iter();
            pods.filter(|pod| !is_daemon(pod) && !has_finished(pod)).collect()
        };
        join_all(left().into_iter().map(|pod| self.evict(pod))).await;
        while !left().is_empty() {
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn evict(&self, pod: Pod) {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
        let pods: Api<Pod> = Api::namespaced(self.0.cluster.client(), namespace);
        let name = pod.metadata.name.unwrap_or_default();
        while pods.evict(&name, &EvictParams::default()).await.is_err_and(|error| is_refusal(&error)) {
            tokio::time::sleep(AGAIN).await;
        }
    }
}

fn is_daemon(pod: &Pod) -> bool {
    pod.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "DaemonSet")
}

fn has_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether it is worth another try: the pod is still there.
fn is_refusal(error: &kube::Error) -> bool {
    !matches!(error, kube::Error::Api(status) if status.code == 404)
}

async fn taint(shared: &Shared, node: &Node) {
    let value = shared.clock.now().as_second().to_string();
    rewrite(shared, node, |taints| {
        taints.push(Taint {
            key: TO_BE_DELETED.to_owned(),
            value: Some(value.clone()),
            effect: "NoSchedule".to_owned(),
            ..Taint::default()
        });
    })
    .await;
}

/// CleanToBeDeleted.
pub(super) async fn untaint(shared: &Shared, node: &Node) {
    rewrite(shared, node, |taints| taints.retain(|taint| taint.key != TO_BE_DELETED)).await;
}

/// By GET and PUT, as long as somebody else is faster.
async fn rewrite(shared: &Shared, node: &Node, change: impl Fn(&mut Vec<Taint>)) {
    let nodes: Api<Node> = Api::all(shared.cluster.client());
    let name = node.metadata.name.as_deref().unwrap_or_default();
    let had = templates::has_taint(node, TO_BE_DELETED);
    loop {
        let Ok(mut fresh) = nodes.get(name).await else { return };
        if templates::has_taint(&fresh, TO_BE_DELETED) != had {
            return;
        }
        change(fresh.spec.get_or_insert_default().taints.get_or_insert_default());
        match nodes.replace(name, &PostParams::default(), &fresh).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            _ => return,
        }
    }
}
