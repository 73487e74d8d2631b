//! Thin adapter to the Kubernetes API: the few calls a scale-in makes, and the watches that feed it.
//!
//! Invariants: every call has a time-out; the program itself watches pods, and lists only those of a node before its release, while the
//! commands for people list them once (`lists`); evictions and deletions have the pod's UID as a precondition. The answers to an eviction
//! are told apart here and nowhere else, by the documented codes and causes.

mod answer;
mod calls;
mod client;
mod connect;
mod cordon;
mod drain_state;
mod election;
mod interner;
mod leadership;
mod lists;
mod node_view;
mod nodes;
mod partial;
mod places;
mod pods;
mod projections;
pub mod record;
mod reflect;
mod requests;
mod reviews;
mod rewind;
mod version;
mod watches;

pub(crate) use answer::CHANGED_WITHIN;
pub use answer::{Answer, ApiError};
pub use calls::About;
#[cfg(test)]
pub(crate) use calls::NOTE_LIMIT;
pub use client::{Cluster, ConnectError};
pub use cordon::{Cordon, Reason as CordonReason};
pub use drain_state::DrainState;
pub use election::{Candidate, Election, is_identity};
pub use interner::TextMap;
pub use leadership::{Leadership, Standing};
pub use node_view::{NodeView, Ready};
pub use nodes::Nodes;
pub use partial::Partial;
pub use places::keeping;
pub use pods::{Containers, DaemonOwner, PodName, PodView};
pub use projections::{Attachment, Budget, BudgetSeen, Existing, may_have_room};
pub use reflect::{Project, Sink, Store, has_expired, reflect};
pub use reviews::{DeployedContainer, LeaseHolder, Right};
