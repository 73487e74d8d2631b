//! The commands beside `serve` and `simulate`: what can be asked of them.

use std::path::PathBuf;

use super::values::Config;
use crate::cluster::record::Cause;

/// How an answer is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For people, with more in it.
    Wide,
    /// One JSON document.
    Json,
    /// The same as YAML.
    Yaml,
}

/// What is asked of `status`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct StatusOptions {
    /// How the answer is written.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    pub output: Output,
    /// Look again every 2 s, until interrupted.
    #[arg(short, long)]
    pub watch: bool,
    /// Kubeconfig file. If not given, `KUBECONFIG`, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig. If not given, its current one.
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
}

/// On whose account a node would go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Asker {
    /// cluster-autoscaler calls DeleteNodes.
    #[default]
    Autoscaler,
    /// A person annotates the Node.
    Operator,
}

impl From<Asker> for Cause {
    fn from(asker: Asker) -> Self {
        match asker {
            Asker::Autoscaler => Self::Autoscaler,
            Asker::Operator => Self::Operator,
        }
    }
}

/// What is asked of `plan`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Name of the Node.
    pub node: String,
    /// On whose account it would go.
    pub cause: Cause,
    /// What is asked of all of them.
    pub look: LookOptions,
}

/// What is asked of `prices`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PricesOptions {
    /// Whether to say which group the expander would choose.
    pub explain: bool,
    /// What is asked of all of them.
    pub look: LookOptions,
}

/// What is asked of `check`, `prices` and `plan`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LookOptions {
    /// How the answer is written.
    pub output: Output,
    /// Context of the kubeconfig; `None`: its current one.
    pub context: Option<String>,
    /// Namespace of ebbtide's Lease and ConfigMaps; `None`: the context's, in a pod the pod's.
    pub namespace: Option<String>,
    /// What `serve` would run with.
    pub config: Config,
}
