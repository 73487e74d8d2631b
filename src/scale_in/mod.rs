//! Scale-in: how a node leaves, whatever the reason. Workloads first, under their disruption budgets and with their whole
//! grace; DaemonSet pods until the last workload has exited, and a while to flush; then the instance.
//!
//! ```text
//! DeleteNodes, Terminating:Wait, a person ──▶ record on the Node ──▶ controller ──▶ worker ──▶ plan (pure)
//!                                             (intents, record)     (workers: one a node)        │ actions
//!                                                                                  memory ◀── perform, remember
//! ```
//! [`plan`] decides, from a [`situation::Situation`] to a list of [`action::Action`]s; the files it calls each hold one
//! stage: [`drain`], [`flush`], [`release`], and [`guard`] before any of them; [`twins`] where several Nodes name one instance; [`class`] and [`returns`] tell which pods
//! leave. [`perform`] makes the calls, [`remember`] what the next plan is to know of their outcome. [`heartbeat`] keeps the
//! lifecycle hooks waiting, whatever becomes of the rest. Everything that must survive is in the [`record`], an annotation that is read once, when the Node comes in;
//! [`claims`] is what of it is believed. [`operator_queue`] is whose turn it is of those that people annotate. [`events`] are all that is told on Nodes.

pub mod action;
mod claims;
mod class;
mod context;
mod controller;
mod deadline;
mod drain;
pub mod events;
mod flush;
mod guard;
mod heartbeat;
mod held_since;
mod intents;
mod joined;
mod membership;
mod memory;
mod metrics;
mod node_patch;
mod nodeless;
mod operator_queue;
mod perform;
pub mod plan;
mod release;
mod remember;
mod returns;
mod settings;
pub mod situation;
#[cfg(test)]
mod tests;
mod twins;
mod waiting;
mod worker;
mod workers;

pub use crate::cluster::record;
pub use class::Flush;
pub use context::Shared;
pub use controller::{ControllerError, run};
pub use held_since::Holds;
pub use intents::{Accepted, IntentError, Intents};
pub use metrics::{Board, Metrics};
pub use settings::{AtOnce, Settings};
