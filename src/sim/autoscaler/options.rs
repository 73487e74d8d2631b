//! Version and flags of the simulated cluster-autoscaler.

use std::time::Duration;

/// The versions whose computations differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// 1.30, of 2024. It speaks the old dialect of the protocol.
    V1_30,
    /// The core of August 2026, on the protocol as 1.35 and later speak it: the new dialect.
    Core2026,
}

/// Which of several suitable groups grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expander {
    /// The one that fits the most pods on the fewest nodes.
    MostPods,
    /// `--expander=price`.
    Price,
}

/// Flags of cluster-autoscaler, with their defaults.
#[derive(Clone, Debug)]
pub struct Options {
    /// Version.
    pub version: Version,
    /// `--scan-interval`.
    pub scan_interval: Duration,
    /// `--max-node-provision-time`.
    pub max_node_provision_time: Duration,
    /// `--max-node-startup-time` of the newer version; a constant in the older.
    pub max_node_startup_time: Duration,
    /// `--enforce-node-group-min-size`.
    pub enforce_node_group_min_size: bool,
    /// `--initial-node-group-backoff-duration`.
    pub initial_backoff: Duration,
    /// `--max-node-group-backoff-duration`.
    pub max_backoff: Duration,
    /// `--node-group-backoff-reset-timeout`.
    pub backoff_reset: Duration,
    /// `--node-info-cache-expire-time`.
    pub node_info_cache: Duration,
    /// `--ok-total-unready-count`.
    pub ok_total_unready: usize,
    /// `--max-total-unready-percentage`.
    pub max_unready_percentage: usize,
    /// `--expander`.
    pub expander: Expander,
    /// `grpc_timeout` of the cloud-config.
    pub grpc_timeout: Duration,
}

impl Options {
    /// The defaults of this version.
    pub fn of(version: Version) -> Self {
        Self {
            version,
            scan_interval: Duration::from_secs(10),
            max_node_provision_time: Duration::from_mins(15),
            max_node_startup_time: Duration::from_mins(15),
            enforce_node_group_min_size: false,
            initial_backoff: Duration::from_mins(5),
            max_backoff: Duration::from_mins(30),
            backoff_reset: Duration::from_hours(3),
            node_info_cache: Duration::from_hours(87_600),
            ok_total_unready: 3,
            max_unready_percentage: 45,
            expander: Expander::MostPods,
            grpc_timeout: Duration::from_secs(5),
        }
    }
}
