//! The gRPC expander: of the groups that cluster-autoscaler could grow, those that it should (`--expander=grpc`).
//!
//! cluster-autoscaler knows what fits; AWS knows what a node costs, which capacity has just been refused, which machines it takes
//! back, and where the others are. [`standing`] reads that off memory, [`policy`] decides, pure, and [`service`] answers: one call a
//! scale-up, and none to AWS. It is advice: whatever goes wrong, all options come back, and cluster-autoscaler's next expander
//! decides.

pub mod policy;
pub mod proto;
pub mod service;
pub mod standing;
