//! Builders for what a test or a scenario puts into a cluster.
//!
//! Each builds an ordinary object (or a machine). Properties that only a simulation has, such as how long a pod needs to
//! exit, are annotations `sim/…` on the pod.

use serde_json::Value;

use super::names::Name;
use super::resources::Resource;

mod budget;
mod node;
mod workload;

pub use self::budget::{BudgetSpec, budget};
pub use self::node::{NodeSpec, Taint, node};
pub use self::workload::{
    Bare, Completions, DaemonSetSpec, Everywhere, JobSpec, Ordinals, PodSpec, ReplicaSetSpec, Replicas,
    StatefulSetSpec, Workload, daemon_set, job, pod, replica_set, stateful_set,
};

/// Something that can be added to a cluster.
pub struct Fixture(pub(in crate::sim::cluster) Made);

pub(in crate::sim::cluster) enum Made {
    Machine(NodeSpec),
    Object(Resource, Name, Value),
}
