//! Scale-in: how a node leaves, whatever the reason. Workloads first, under their disruption budgets and with their whole
//! grace; DaemonSet pods until the last workload has exited, and a while to flush; then the instance.
//!
//! ```text
//! DeleteNodes, Terminating:Wait, a person ──▶ record on the Node ──▶ controller ──▶ worker ──▶ plan (pure)
//!                                             (intents, record)      (one a node)     ▲            │ actions
//!                                                                                     └─ memory ◀──┘
//! ```
//! [`plan`] decides, from a [`plan::Situation`] to a list of [`plan::Action`]s; the files it calls each hold one
//! stage: [`drain`], [`flush`], [`release`], and [`guard`] before any of them. Everything that must survive is in the
//! [`record`], an annotation.

mod class;
mod controller;
mod deadline;
mod drain;
mod flush;
mod guard;
mod hold;
mod intents;
mod marks;
mod memory;
mod metrics;
pub mod names;
pub mod plan;
pub mod record;
mod release;
mod surroundings;
#[cfg(test)]
mod tests;
mod worker;

pub use controller::{ControllerError, Shared, run};
pub use intents::{Accepted, IntentError, Intents};
pub use metrics::{Board, Metrics};
pub use plan::Settings;
