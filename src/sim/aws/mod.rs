//! The simulated AWS: EC2 Auto Scaling, with the parts of EC2, EKS, EventBridge, SQS and Elastic Load Balancing that
//! belong to it, as an HTTP service for the real SDK.
//!
//! [`State`] is all of it, pure and synchronous. [`Aws`] is a handle that gives it the time and implements
//! [`World`](crate::sim::http::World).
//!
//! * Protocols: `query`, `xml`; EKS is REST, SQS is JSON.
//! * APIs: `autoscaling`, `ec2`, `eks`, `sqs`, `load_balancing`; queues: `queues`; what is sent to them: `events`.
//! * What groups do: `launching`, `terminating`, `waiting`, `balance`, `warm`, `volumes`, `deleting`. Machines: `power`.
//! * What a test does: `script`, `faults`, `troubles`, `breaking`. What its caller may do: `permissions`.
//! * A request's way: `requests`, `answering`, `past`, `bucket`.
//! * What happened: `journal`.
//!
//! The model follows AWS's documented rules and wording, with the source beside each. [`Timing`] says how long things take;
//! [`Behaviour`] decides what AWS leaves open, harsh or plain.

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
mod events;
mod faults;
mod group;
mod handle;
mod instance_types;
mod journal;
mod json;
mod launching;
mod lifecycle;
mod load_balancing;
mod operation;
mod past;
mod permissions;
mod power;
mod prices;
mod query;
mod queues;
mod replies;
mod requests;
mod requirements;
mod script;
mod spec;
mod sqs;
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
pub use events::{Delivery, ScheduledChange};
pub use faults::{Lose, Refusal};
pub use group::{GroupSnapshot, InstanceSnapshot};
pub use handle::Aws;
pub use journal::{Entry, Event, Outcome, TerminationCause};
pub use lifecycle::{HookResult, HookSpec, LifecycleState, Transition};
pub use load_balancing::TargetGroupSpec;
pub use operation::Operation;
pub use power::{Death, Power};
pub use queues::{MessageSnapshot, QueueSnapshot, QueueSpec};
pub use replies::Reply;
pub use requirements::Requirements;
pub use spec::{GroupSpec, LaunchConfigurationSpec, LaunchFailure, MixedSpec};
pub use state::State;
pub use templates::{TemplateData, TemplateSpec};
pub use timing::Timing;
pub use troubles::{Trouble, Which};
pub use warm::WarmPoolSpec;
