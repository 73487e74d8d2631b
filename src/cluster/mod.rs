//! Thin adapter to the Kubernetes API: the few calls a scale-in makes, and the watches that feed it.
//!
//! Invariants: every call has a time-out; no pod is ever read but through a watch; pods are asked to go with their UID
//! as a precondition. What the API server answers to an eviction is told apart here, by the documented codes and
//! causes, and nowhere else.

mod answer;
mod budgets;
mod calls;
mod client;
mod election;
mod interner;
mod leadership;
mod node_view;
mod nodes;
mod pods;
pub mod record;
mod reflect;
mod requests;
mod rewind;
mod version;
mod watches;

pub use answer::{Answer, ApiError};
pub use budgets::{Attachment, Budget, Existing};
#[cfg(test)]
pub(crate) use calls::NOTE_LIMIT;
pub use client::{Cluster, ConnectError};
pub use election::{Candidate, Election};
pub use interner::TextMap;
pub use leadership::{Leadership, Standing};
pub use node_view::{NodeView, Ready};
pub use nodes::Nodes;
pub use pods::{DaemonOwner, PodName, PodView};
pub use reflect::{Project, Sink, Store, brings_news, deliver, patiently, reflect};
