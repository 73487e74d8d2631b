//! The gRPC provider: what cluster-autoscaler calls.
//!
//! Reads are answered from the view in [`crate::groups`]. Only a changed size waits for AWS, through [`Sizing`], and
//! only a scale-in waits for the API server, through [`ScaleIns`]; both are bounded well below the 5 s after which
//! cluster-autoscaler gives up. Nothing here drains a node. What is decided is decided by pure functions of the view
//! and the request ([`answers`], [`deletion`], [`options`], [`wire`]); [`service`] and `changes` carry it out.
//!
//! Invariants: an RPC that answers with an error of the caller's has changed nothing; a change that AWS has accepted
//! shows in the target size before the RPC returns; both dialects of the protocol are read and written, always.

pub mod answers;
mod aws_sizing;
mod changes;
mod connection;
mod deadline;
pub mod deletion;
pub mod error;
mod handshakes;
pub mod listen;
pub mod metrics;
pub mod options;
pub mod placeholders;
pub mod proto;
mod refusals;
pub mod scale_ins;
pub mod serve;
pub mod service;
pub mod sizing;
pub mod tls;
pub mod wire;

pub use aws_sizing::{AwsSizing, Running};
pub use error::RpcError;
pub use listen::{Incoming, Io, Listen};
pub use metrics::RpcMetrics;
pub use scale_ins::ScaleIns;
pub use serve::{ServeError, serve};
pub use service::Provider;
pub use sizing::{Sizing, SizingError};
pub use tls::{Tls, TlsOptions};
