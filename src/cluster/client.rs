//! The client of the API server: how it connects, and its time-outs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use prometheus_client::registry::Registry;

use super::connect;
use super::places::Places;
use super::requests::Requests;
use super::rewind::Rewinds;
use crate::clock::Clock;
use crate::dry_run::DryRun;

/// A watch that has shown no life for this long counts as broken. A healthy one is renewed every minute, and two
/// renewals may fail.
const SILENCE: Duration = Duration::from_mins(3);

/// Longest silence on a connection: a watch lasts 60 s, and `kube` allows 5 s more.
const READ_TIMEOUT: Duration = Duration::from_secs(75);

/// Upper limit of lists of nodes' pods under way. When an API server restarts, the watches of all nodes that leave break at once, and each
/// begins anew with a list, of up to a megabyte or two: the Lease's renewals are to come through, and memory is to do.
const LISTS_AT_ONCE: usize = 20;

/// Upper limit of deletions of pods under way, and of annotations of pods. Thousands of pods may meet one deadline, or be on nodes that
/// leave at once, and each call takes a connection of its own (`kube` speaks HTTP/1.1).
const PODS_AT_ONCE: usize = 50;

/// Upper limit of conditions DisruptionTarget under way. They have a second before their pods are deleted, hundreds at a time.
const NOTES_AT_ONCE: usize = 100;

/// Upper limit of evictions under way. Paced ones are half of these at most; the rest is for pods near their last call, thousands where a
/// spot notice leaves all pods of a hundred nodes less than their grace.
const EVICTIONS_AT_ONCE: usize = 100;

/// Upper limit, each, of Events of pods under way, of other Events, and of conditions of Nodes. Each evicted pod has an Event, thousands
/// within seconds, and clusters keep Events in a separate storage, which may be in trouble.
const TOLD_AT_ONCE: usize = 20;

/// Upper limit of changes of Nodes under way, and of what is read one by one. A thousand nodes may leave at once, and a webhook hang for each.
const NODES_AT_ONCE: usize = 100;

/// The cluster.
#[derive(Clone)]
pub struct Cluster {
    pub(super) client: kube::Client,
    pub(super) evictions: Places,
    pub(super) deletions: Places,
    /// What is noted on pods before they are deleted: apart, since those whose deletion is under way need all of its places.
    pub(super) notes: Places,
    /// Apart, since a deadline waits for no annotation.
    pub(super) annotations: Places,
    /// Also for reads of single DaemonSets.
    pub(super) nodes: Places,
    pub(super) lists: Places,
    pub(super) pod_events: Places,
    /// Those that are not of pods: few, and they tell more.
    pub(super) events: Places,
    pub(super) conditions: Places,
    pub(super) requests: Requests,
    pub(super) rewinds: Arc<Rewinds>,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Cluster")
    }
}

impl Cluster {
    /// A cluster behind this client.
    pub fn new(client: kube::Client) -> Self {
        let requests = Requests::default();
        Self {
            client: requests.seen(client),
            evictions: Places::new(EVICTIONS_AT_ONCE),
            deletions: Places::new(PODS_AT_ONCE),
            notes: Places::new(NOTES_AT_ONCE),
            annotations: Places::new(PODS_AT_ONCE),
            nodes: Places::new(NODES_AT_ONCE),
            lists: Places::new(LISTS_AT_ONCE),
            pod_events: Places::new(TOLD_AT_ONCE),
            events: Places::new(TOLD_AT_ONCE),
            conditions: Places::new(TOLD_AT_ONCE),
            requests,
            rewinds: Arc::default(),
        }
    }

    /// The same cluster, to which nothing is sent that changes something.
    #[must_use]
    pub fn in_dry_run(self, dry_run: &DryRun) -> Self {
        self.requests.dry_run(dry_run);
        self
    }

    /// The same cluster, which tells this clock what the API server's reads.
    #[must_use]
    pub fn telling(self, clock: &Clock) -> Self {
        self.requests.tell(clock);
        self
    }

    /// The namespace of this program.
    pub fn own_namespace(&self) -> &str {
        self.client.default_namespace()
    }

    /// Registers the metrics of requests and watches.
    pub fn register(&self, registry: &mut Registry) {
        self.requests.register(registry);
    }

    /// How long the API server wants no more requests.
    pub fn busy_for(&self) -> Duration {
        self.requests.busy_for()
    }

    /// How long the quietest long-lived watch has shown no life.
    pub fn silence(&self) -> Duration {
        self.requests.longest_silence()
    }

    /// Whether every long-lived watch has been taken up, and has shown life lately.
    pub fn is_watching(&self) -> bool {
        self.requests.are_all_heard() && !self.is_silent()
    }

    /// Whether the watch of Nodes has shown life lately.
    pub fn sees_nodes(&self) -> bool {
        self.requests.silence_of_nodes() <= SILENCE
    }

    /// Whether a long-lived watch has shown no life for too long, since the start if it never did.
    pub fn is_silent(&self) -> bool {
        self.silence() > SILENCE
    }

    /// Connects as the kubeconfig says, or as a pod of the cluster does.
    pub async fn connect(kubeconfig: Option<&Path>) -> Result<Self, ConnectError> {
        Self::connect_to(kubeconfig, None, None).await
    }

    /// The same with a context of the kubeconfig, and a namespace other than the context's for what is the program's own.
    pub async fn connect_to(
        kubeconfig: Option<&Path>,
        context: Option<&str>,
        namespace: Option<&str>,
    ) -> Result<Self, ConnectError> {
        let options =
            KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
        let mut config = match kubeconfig {
            Some(path) => {
                kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &options).await?
            }
            None if context.is_some() => kube::Config::from_kubeconfig(&options).await?,
            None => kube::Config::infer().await?,
        };
        if let Some(namespace) = namespace {
            namespace.clone_into(&mut config.default_namespace);
        }
        // `kube` would retry a 429 by itself, which for an eviction is a budget's answer that we must see.
        config.default_retry = false;
        // Ends a list or a watch whose connection died silently. Longer than a watch lasts.
        config.read_timeout = Some(READ_TIMEOUT);
        config.reset_reader_on_write = true;
        Ok(Self::new(connect::client(config)?))
    }
}

/// The cluster cannot be reached as configured.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig is missing or wrong.
    #[error("the kubeconfig cannot be used")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// Neither a kubeconfig nor a service account was found.
    #[error(
        "no way to the cluster was found (in a pod: its ServiceAccount; elsewhere: KUBECONFIG or ~/.kube/config)"
    )]
    Infer(#[from] kube::config::InferConfigError),
    /// The client cannot be built.
    #[error("the client of the API server cannot be built")]
    Client(#[from] kube::Error),
}
