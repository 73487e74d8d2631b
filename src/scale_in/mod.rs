//! Scale-in: how a node leaves, whatever the reason. Workloads go first, under their disruption budgets and with full
//! grace; DaemonSet pods stay until the last workload has exited, and get time to flush; then the instance is released.
//!
//! ```text
//! DeleteNodes, Terminating:Wait, notices, a person ──▶ record on the Node ──▶ controller ──▶ worker ──▶ plan (pure)
//!                                             (intents, record)     (workers: one a node)        │ actions
//!                                                                                  memory ◀── perform, remember
//! ```
//! - [`plan`] turns a [`situation::Situation`] into a list of [`action::Action`]s. Its stages are [`guard`], [`drain`] (with [`deletion`]),
//!   [`flush`] and [`release`]. [`deadline`] and [`limit`] set the time limits; [`class`] and [`returns`] decide which pods leave,
//!   [`going`] when their grace ends, [`absences`] which DaemonSet pods are away for a while; [`twins`] is for several Nodes that name
//!   one instance.
//! - [`pod_watches`] brings a worker the pods; [`perform`] makes the calls; [`remember`] keeps what the next plan must know of their
//!   outcome: in [`memory`], and for each pod in [`asked`]. [`tries`] decides when a failed try is repeated.
//! - [`heartbeat`] keeps the lifecycle hooks waiting, whatever becomes of the rest.
//! - [`record`] is everything that must survive: an annotation, parsed once when the Node comes in. [`claims`] decides how much
//!   of it is believed.
//! - [`load_balancers`] asks AWS, while nodes flush, which instances load balancers still reach.
//! - [`notices`] reads AWS's notices of interruptions and lifecycle actions; [`cordon`] keeps new pods off nodes that may have to go.
//! - [`operator_queue`] decides whose request is next. [`events`] has the text of every Event.
//! - [`status`] is all of it as data, for people; [`history`] keeps the scale-ins that ended; [`preview`] plays a plan through.

mod absences;
pub mod action;
mod asked;
mod claims;
mod class;
mod concern;
mod context;
mod controller;
mod cordon;
mod deadline;
mod deletion;
mod drain;
pub mod events;
mod eviction_rate;
mod flush;
mod going;
mod guard;
mod heartbeat;
mod history;
mod holds;
mod intents;
mod joined;
mod limit;
mod load_balancers;
mod membership;
mod memory;
mod metrics;
mod node_patch;
mod nodeless;
mod notices;
mod operator_queue;
mod order;
mod outcome;
mod perform;
pub mod plan;
mod pod_events;
mod pod_watches;
pub mod preview;
mod release;
mod remember;
mod report;
mod returns;
mod same_writes;
mod settings;
pub mod situation;
pub mod status;
mod taken_out;
mod terminate;
#[cfg(test)]
mod tests;
mod told;
mod trace;
mod tries;
mod turn;
mod twins;
mod unseen_nodes;
mod waiting;
mod worker;
mod workers;

pub use crate::cluster::record;
pub use class::{Flush, is_patient, unreadable_wishes};
pub use context::Shared;
pub use controller::{readers, run, watches};
pub(crate) use deadline::{MARGIN, drain_timeout};
pub use eviction_rate::EvictionRate;
pub use history::History;
pub use holds::{Hold, Holds};
pub use intents::{Accepted, IntentError, Intents, ScaleIns};
pub use load_balancers::{LoadBalancers, Reached, Targets};
pub use metrics::Metrics;
pub use notices::{Notices, name_of_queue};
pub use pod_events::PodEvents;
pub use settings::{AtOnce, OnDeadline, Settings, Treatment};
pub use taken_out::TakenOut;
pub use unseen_nodes::UnseenNodes;
pub use waiting::Board;
