//! The command line and the environment, read once, here.
//!
//! Invariants: what is wrong is reported all at once, each problem with its flag; nothing else in the program reads
//! flags or environment variables of its own; a [`Config`] that exists can be started from.
//!
//! Every flag of `serve` is also an environment variable, `--drain-timeout` as `EBBTIDE_DRAIN_TIMEOUT`; the flag wins,
//! and an empty variable is none. Values of a repeatable flag are separated by `;` or new lines in its variable.

mod flags;
#[cfg(test)]
mod tests;
mod validate;

use std::ffi::OsString;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

pub use flags::flags_table;

use crate::aws::Proxy;
use crate::cluster::Candidate;
use crate::groups::selector::Selectors;
use crate::provider::{Listen, TlsOptions};
use crate::scale_in::AtOnce;
use crate::telemetry::LogOptions;
use crate::template;

/// What the program is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve cluster-autoscaler and scale in.
    Serve(Box<Config>),
    /// Run the program on simulated worlds.
    #[cfg(feature = "simulate")]
    Simulate(Simulate),
    /// Print this (help, version) and end well.
    Print(String),
}

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

/// Something wrong with the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The flag it is about, `--listen`; empty if about none.
    pub flag: String,
    /// What is wrong.
    pub text: String,
}

impl Problem {
    fn new(flag: impl Into<String>, text: impl Into<String>) -> Self {
        Self { flag: flag.into(), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flag.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.flag, self.text) }
    }
}

/// Everything that is wrong with the command line: the program ends with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}")?;
        }
        f.write_str("see ebbtide --help")
    }
}

impl Config {
    /// Reads the arguments (the program's name first) and, for `serve` flags that are not among them, the
    /// environment.
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Command, Problems> {
        match flags::read(args.into_iter().collect(), &env) {
            flags::Read::Print(text) => Ok(Command::Print(text)),
            #[cfg(feature = "simulate")]
            flags::Read::Simulate(simulate, problems) => {
                if problems.is_empty() {
                    Ok(Command::Simulate(simulate))
                } else {
                    Err(Problems(problems))
                }
            }
            flags::Read::Unclear(problems) => Err(Problems(problems)),
            flags::Read::Serve(flags, mut problems) => {
                let proxy = validate::proxy(&env, &mut problems);
                let config = validate::config(*flags, proxy, &mut problems);
                match config {
                    Some(config) if problems.is_empty() => Ok(Command::Serve(Box::new(config))),
                    _ => Err(Problems(problems)),
                }
            }
        }
    }
}
