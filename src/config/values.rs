//! A configuration: every value read and checked.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use crate::aws::Proxy;
use crate::cluster::Candidate;
use crate::groups::managed_hooks::Managed;
use crate::groups::selector::Selectors;
use crate::provider::{Listen, TlsOptions};
use crate::scale_in::{AtOnce, Flush, OnDeadline, Settings, Treatment};
use crate::telemetry::LogOptions;
use crate::template;

/// Configuration of `serve`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
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
    /// How long DaemonSet pods get to flush after the last workload.
    pub daemonset_flush: Duration,
    /// How much longer a DaemonSet pod can ask for.
    pub daemonset_flush_beyond: Duration,
    /// The namespaces where it can; empty: all.
    pub daemonset_flush_namespaces: Vec<String>,
    /// The namespaces whose pods can ask for a place in the order of a drain; empty: all.
    pub drain_order_namespaces: Vec<String>,
    /// Whether DaemonSet pods are kept from cluster-autoscaler's own drain.
    pub daemonset_guard: bool,
    /// How long a drain that cluster-autoscaler did not request waits for pods that asked not to be disturbed; `None`: no
    /// limit.
    pub patience: Option<Duration>,
    /// Longest time from a scale-in's request to its release; `None`: no limit but the hook's.
    pub drain_timeout: Option<Duration>,
    /// What becomes of pods that are left then.
    pub on_deadline: OnDeadline,
    /// Time between two evictions, over all nodes; `None`: no limit.
    pub eviction_pause: Option<Duration>,
    /// How long an instance must be gone before its Node is deleted; `None`: never.
    pub delete_node_after: Option<Duration>,
    /// Whether an instance is released only when no load balancer reaches it any more.
    pub wait_for_load_balancers: bool,
    /// How many scale-ins that people request run at once in a group.
    pub max_operator_scale_ins: AtOnce,
    /// Name of the lifecycle hooks that are ours.
    pub lifecycle_hook: String,
    /// What the groups' lifecycle hooks are to be like; `None`: they are left as they are.
    pub managed_hooks: Option<Managed>,
    /// URLs of the SQS queues of notices.
    pub queue_urls: Vec<String>,
    /// What to do on a rebalance recommendation.
    pub on_rebalance: Treatment,
    /// What to do when AWS Health announces an event.
    pub on_scheduled_event: Treatment,
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

impl Config {
    /// Settings of scale-ins.
    pub fn scale_in_settings(&self) -> Settings {
        Settings {
            // The namespace is the cluster's.
            installation: None,
            flush: Flush {
                default: self.daemonset_flush,
                longest: self.daemonset_flush + self.daemonset_flush_beyond,
                namespaces: self.daemonset_flush_namespaces.iter().cloned().collect(),
            },
            patience: self.patience,
            drain_timeout: self.drain_timeout,
            on_deadline: self.on_deadline,
            order_namespaces: self.drain_order_namespaces.iter().cloned().collect(),
            delete_node_after: self.delete_node_after,
            wait_for_load_balancers: self.wait_for_load_balancers,
            on_rebalance: self.on_rebalance,
            on_scheduled_event: self.on_scheduled_event,
            guard: self.daemonset_guard,
            operator_at_once: self.max_operator_scale_ins,
        }
    }
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
