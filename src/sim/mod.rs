//! The simulated worlds: an AWS and a Kubernetes cluster that the real SDK and the real `kube` client cannot tell from real
//! ones.

pub mod autoscaler;
pub mod aws;
pub mod ca_drain;
pub mod cluster;
pub mod http;
pub mod paused;
pub mod program;
pub mod report;
pub mod simulate;
pub mod span;
pub mod world;
