//! The cluster as a client sees it: everything here goes through the real `kube` client and the builders.

mod controllers;
mod deletions;
mod evictions;
mod failures;
mod kubelets;
mod machines;
mod objects;
mod policies;
mod printing;
mod requests;
mod scale;
mod scheduling;
mod watches;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use kube::core::Status;
use tokio::task::JoinSet;

use super::*;

/// More than anything here takes; virtual time costs nothing.
const LONG: Duration = Duration::from_mins(10);

/// A cluster that runs as long as the test.
struct Sim {
    cluster: Cluster,
    client: kube::Client,
    _alive: JoinSet<()>,
}

fn sim() -> Sim {
    let cluster = Cluster::new(Clock::starting_at("2026-03-01T00:00:00Z".parse().unwrap()), 7);
    cluster.set_timing(Timing::brisk());
    let mut alive = JoinSet::new();
    let living = cluster.clone();
    alive.spawn(async move { living.run().await });
    Sim { client: cluster.client(), cluster, _alive: alive }
}

impl Sim {
    fn now(&self) -> Timestamp {
        self.cluster.0.clock.now()
    }

    fn pods(&self) -> Api<Pod> {
        Api::default_namespaced(self.client.clone())
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    /// Waits for a condition; panics if it never holds.
    async fn until(&self, what: &str, condition: impl FnMut(&Cluster) -> bool) {
        assert!(self.cluster.until(LONG, condition).await, "never happened: {what}");
    }

    /// Waits until this many pods of this label run.
    async fn running(&self, app: &str, pods: usize) {
        self.until(&format!("{pods} pods of {app} run"), |cluster| running(cluster, app).len() == pods).await;
    }

    async fn cordon(&self, node: &str) {
        self.nodes().cordon(node).await.unwrap();
    }
}

/// The pods of this label that are Ready and not being deleted, with their nodes.
fn running(cluster: &Cluster, app: &str) -> Vec<(String, String)> {
    let ready = |pod: &Pod| {
        let conditions = pod.status.as_ref().and_then(|status| status.conditions.clone()).unwrap_or_default();
        conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let pods = cluster.list::<Pod>().into_iter().filter(|pod| {
        let labelled = pod.metadata.labels.as_ref().is_some_and(|labels| labels["app"] == app);
        labelled && ready(pod) && pod.metadata.deletion_timestamp.is_none()
    });
    pods.map(|pod| {
        let node = pod.spec.and_then(|spec| spec.node_name).unwrap_or_default();
        (pod.metadata.name.unwrap_or_default(), node)
    })
    .collect()
}

/// The `Status` that a request was refused with.
fn refused<T: fmt::Debug>(result: kube::Result<T>) -> Status {
    match result {
        Err(kube::Error::Api(status)) => *status,
        other => panic!("not refused: {other:?}"),
    }
}

/// The moment of the first matching journal entry.
fn moment(cluster: &Cluster, such: impl Fn(&Event) -> bool) -> Timestamp {
    let entries = cluster.journal();
    entries.iter().find(|entry| such(&entry.what)).map(|entry| entry.at).expect("no such entry")
}
