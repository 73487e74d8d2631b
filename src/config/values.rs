//! A configuration: every value read, checked and complete.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::aws::Proxy;
use crate::cluster::Candidate;
use crate::groups::selector::Selectors;
use crate::provider::{Listen, TlsOptions};
use crate::scale_in::AtOnce;
use crate::telemetry::LogOptions;
use crate::template;
/// Configuration of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where gRPC is served.
    pub listen: Listen,
    /// Where health and metrics are served.
    pub admin_listen: SocketAddr,
    /// Certificates; without them, plaintext on a loopback address or a Unix socket.
    pub tls: Option<TlsOptions>,
    /// AWS region; none: the SDK finds it.
    pub region: Option<String>,
    /// Where AWS is; none: the SDK knows.
    pub endpoint_url: Option<String>,
    /// The proxy on the way to AWS. `kube` finds that to the API server by itself.
    pub proxy: Option<Proxy>,
    /// How to reach the API server; none: the usual inference.
    pub kubeconfig: Option<PathBuf>,
    /// Which groups are ours.
    pub selectors: Selectors,
    /// How often AWS is looked at.
    pub refresh_interval: Duration,
    /// How old a look at AWS may be that is answered from.
    pub snapshot_max_age: Duration,
    /// What is told of nodes that are not there yet.
    pub templates: template::Settings,
    /// Whether groups' own options are told even where cluster-autoscaler then takes MaxNodeStartupTime for 0.
    pub zero_node_startup_time: bool,
    /// What DaemonSet pods get to flush after the last workload.
    pub daemonset_flush: Duration,
    /// How much longer a DaemonSet pod can ask for.
    pub daemonset_flush_beyond: Duration,
    /// In which namespaces it can; none: in all.
    pub daemonset_flush_namespaces: Vec<String>,
    /// Whether DaemonSet pods are kept from cluster-autoscaler's own drain.
    pub daemonset_guard: bool,
    /// How long pods that asked not to be disturbed are waited for where cluster-autoscaler has not asked; none: as long as
    /// it takes.
    pub patience: Option<Duration>,
    /// How long workloads may take to leave; none: as long as it takes.
    pub drain_timeout: Option<Duration>,
    /// How many scale-ins that people wish for go on at once in a group.
    pub max_operator_scale_ins: AtOnce,
    /// Name of the lifecycle hooks that are ours.
    pub lifecycle_hook: String,
    /// Name of the ConfigMap that keeps what is learned of nodes.
    pub templates_config_map: String,
    /// How the one writer is elected; none: it is known that there is only one.
    pub election: Option<Candidate>,
    /// How logs are written.
    pub log: LogOptions,
}

/// Configuration of `simulate`.
#[cfg(feature = "simulate")]
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Simulate {
    /// Seed of everything that is left to chance; the same seed shows the same.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the timeline as a picture to this file.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
