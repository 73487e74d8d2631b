//! Kubernetes' own terms, as far as they are the same everywhere in the program: names of annotations, labels and taints,
//! provider ids, quantities.

mod ids;
pub mod names;
pub mod provider_id;
pub mod quantity;
mod taint;

pub use ids::{GroupName, InstanceId, NodeName};
pub use provider_id::ProviderId;
pub use taint::Taint;
