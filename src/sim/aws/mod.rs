//! The simulated AWS: EC2 Auto Scaling, and what of EC2 and EKS goes with it, as an HTTP service behind the real SDK.
//!
//! [`State`] is all there is, pure and synchronous; [`Aws`] is a handle on it that tells it the time and is a
//! [`World`](crate::sim::http::World). Requests come in the AWS query protocol (`query`, `xml`), those to EKS as REST;
//! `autoscaling`, `ec2` and `eks` are the APIs; `launching`, `terminating`, `waiting`, `balance`, `warm`, `volumes` and
//! `deleting` are what groups do; `power` is the machines under them; `script`, `faults`, `troubles` and `breaking` are what a
//! test does to them; `requests`, `answering`, `past` and `bucket` are the way of a request; `journal` is what happened.
//!
//! The model keeps AWS's documented rules and its wording, each named where it is kept. What takes time takes what the
//! [`Timing`] says; what AWS leaves open is as [`Behaviour`] says, harsh or plain.

mod activity;
mod answering;
mod autoscaling;
mod balance;
mod behaviour;
mod breaking;
mod bucket;
mod deleting;
mod ec2;
mod eks;
mod error;
mod faults;
mod group;
mod handle;
mod instance_types;
mod journal;
mod launching;
mod lifecycle;
mod operation;
mod past;
mod power;
mod query;
mod replies;
mod requests;
mod requirements;
mod script;
mod spec;
mod state;
mod tags;
mod templates;
mod terminating;
#[cfg(test)]
mod tests;
mod timing;
mod troubles;
mod volumes;
mod waiting;
mod warm;
mod xml;

pub use behaviour::Behaviour;
pub use bucket::Bucket;
pub use eks::NodeGroupSpec;
pub use faults::{Lose, Refusal};
pub use group::{GroupSnapshot, InstanceSnapshot};
pub use handle::Aws;
pub use journal::{Entry, Event, Outcome, TerminationCause};
pub use lifecycle::{HookResult, HookSpec, LifecycleState, Transition};
pub use operation::Operation;
pub use power::{Death, Power};
pub use replies::Reply;
pub use requirements::Requirements;
pub use spec::{GroupSpec, LaunchConfigurationSpec, LaunchFailure, MixedSpec};
pub use state::State;
pub use templates::{TemplateData, TemplateSpec};
pub use timing::Timing;
pub use troubles::{Trouble, Which};
pub use warm::WarmPoolSpec;
