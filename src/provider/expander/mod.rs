//! The gRPC expander: of the groups that cluster-autoscaler could grow, those that it should (`--expander=grpc`).
//!
//! cluster-autoscaler knows what fits; AWS knows what a node costs, which capacity has just been refused, which machines it takes
//! back, and where the others are. [`standing`] reads that from memory, [`policy`] (pure) decides, and [`service`] answers: one call a
//! scale-up, and none to AWS. [`events`] publishes the choice afterwards. It is advice: whatever goes wrong, all options come back, and
//! cluster-autoscaler's next expander decides.
//!
//! Whoever reaches its address may ask, so what a question costs is bounded: [`questions`] takes few at once, and [`codec`] refuses one
//! that is many times as large in memory as on the wire.

pub mod codec;
pub mod events;
pub mod policy;
pub mod proto;
pub(super) mod questions;
pub mod service;
pub mod standing;
