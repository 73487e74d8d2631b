//! What nodes and pods cost, for cluster-autoscaler's `--expander=price`.
//!
//! - Prices are USD per hour, On-Demand or spot, without volumes, traffic and taxes.
//! - [`table`] is the built-in list of On-Demand prices; [`near`] prices what it does not have; [`fit`] says what a vCPU, a
//!   GiB and a GPU cost, which is what a pod is charged. All three are pure.

pub mod fit;
pub mod near;
pub mod table;
