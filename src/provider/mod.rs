//! The gRPC provider: what cluster-autoscaler calls.
//!
//! Reads are answered from the snapshot in [`crate::groups`]. Only size changes ([`sizing`]) and a cluster-autoscaler that comes from
//! another process (`visits`) wait for AWS, only scale-ins ([`ScaleIns`](crate::scale_in::ScaleIns)) for the API server. All end well
//! before the 5 s after which cluster-autoscaler gives up. Nothing here drains a node. Pure functions of the snapshot and the
//! request decide ([`answers`], [`deletion`], [`options`], [`wire`]); [`service`] and `changes` carry it out.
//!
//! Invariants: an RPC that reports a caller's mistake has changed nothing; a change that AWS has accepted shows in the
//! target size before the RPC returns; both dialects of the protocol are always read and written.

pub mod answers;
mod changes;
mod deadline;
pub mod deletion;
pub mod error;
pub mod expander;
mod failed_calls;
mod figures;
mod handshakes;
pub mod listen;
pub mod metrics;
pub mod options;
pub mod placeholders;
mod prices;
pub mod proto;
mod refusals;
mod running;
pub mod serve;
pub mod service;
pub mod sizing;
mod terminations;
pub mod tls;
mod visits;
pub mod wire;

pub use error::RpcError;
pub use expander::service::Expander;
pub use listen::{Incoming, Io, Listen};
pub use metrics::RpcMetrics;
pub use refusals::RefusedClients;
pub use running::Running;
pub use serve::{ServeError, serve, serve_expander};
pub use service::Provider;
pub use sizing::{Sizing, SizingError};
pub use tls::{Tls, TlsOptions, TlsProblem};
