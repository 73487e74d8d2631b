//! A configuration: every value read and checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::aws::Proxy;
use crate::cluster::Candidate;
use crate::groups::managed_hooks::Managed;
use crate::groups::selector::Selectors;
use crate::provider::{Listen, TlsOptions};
use crate::telemetry::LogOptions;
use crate::{scale_in, template};

/// Configuration of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where gRPC is served.
    pub listen: Listen,
    /// Where health and metrics are served.
    pub admin_listen: SocketAddr,
    /// Certificates; without them, plaintext on a loopback address or a Unix socket.
    pub tls: Option<TlsOptions>,
    /// Where the expander is served to clients without a certificate, and with which.
    pub expander_listen: Option<(SocketAddr, TlsOptions)>,
    /// File with the criteria of the expander; `None`: the default ones.
    pub expander_policy: Option<PathBuf>,
    /// Whether its choices are published as Events.
    pub expander_events: bool,
    /// AWS region; `None`: the SDK's.
    pub region: Option<String>,
    /// URL of the AWS APIs; `None`: the SDK's.
    pub endpoint_url: Option<String>,
    /// The proxy for AWS. `kube` finds its own.
    pub proxy: Option<Proxy>,
    /// Kubeconfig file; `None`: the usual places.
    pub kubeconfig: Option<PathBuf>,
    /// Which groups are managed.
    pub selectors: Selectors,
    /// How often AWS is polled.
    pub refresh_interval: Duration,
    /// Oldest snapshot to answer from.
    pub snapshot_max_age: Duration,
    /// How templates are computed.
    pub templates: template::Settings,
    /// Whether groups' own options are answered even if cluster-autoscaler then takes MaxNodeStartupTime for 0.
    pub zero_node_startup_time: bool,
    /// Where prices are from; `None`: none are told.
    pub prices: Option<PriceSource>,
    /// Settings of scale-ins, without the installation.
    pub scale_in: scale_in::Settings,
    /// Time between two evictions, over all nodes; `None`: no limit.
    pub eviction_pause: Option<Duration>,
    /// Name of the lifecycle hooks that are ours.
    pub lifecycle_hook: String,
    /// What the groups' lifecycle hooks are to be like; `None`: they are left as they are.
    pub managed_hooks: Option<Managed>,
    /// URLs of the SQS queues of notices.
    pub queue_urls: Vec<String>,
    /// Name of the ConfigMap of learned templates.
    pub templates_config_map: String,
    /// Leader election; `None`: this is the only process.
    pub election: Option<Candidate>,
    /// Whether nothing is changed.
    pub dry_run: bool,
    /// URL of the collector that traces are told; `None`: none are.
    pub otlp_endpoint: Option<String>,
    /// How logs are written.
    pub log: LogOptions,
}

/// Where prices are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PriceSource {
    /// The built-in table.
    Table,
    /// AWS, and the table for what it does not tell.
    Aws,
}

/// Configuration of `simulate`.
#[cfg(feature = "simulate")]
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct Simulate {
    /// Seed of all random choices; the same seed gives the same output.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Print the result as JSON.
    #[arg(long)]
    pub json: bool,
    /// Write the timelines as a picture (SVG) to this file; or, if it is a folder, each as a picture of its own into it.
    #[arg(long, value_name = "PATH")]
    pub svg: Option<PathBuf>,
    /// Keep both worlds up instead, in real time, for kubectl, the aws CLI and a browser. What these need to know is written
    /// into this folder (a kubeconfig, and variables for a shell), and removed at the end.
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, default_missing_value = ".ebbtide", conflicts_with_all = ["json", "svg"])]
    pub listen: Option<PathBuf>,
}
