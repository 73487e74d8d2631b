//! Scale-in: how a node leaves, whatever the reason.

use jiff::Timestamp;

/// Accepts scale-ins and knows those accepted. The record of each is an annotation on the Node; this is what the
/// Node watch and our own writes say of them.
#[derive(Debug)]
pub struct Intents;

/// What became of the wish to scale a node in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Written down now.
    New,
    /// It was under way before.
    Already,
}

/// Why a scale-in was not written down.
#[derive(Debug, thiserror::Error)]
pub enum IntentError {
    /// The API server did not take it; nothing has changed.
    #[error("the scale-in of node {node} could not be recorded")]
    NotRecorded {
        /// Name of the Node.
        node: String,
        /// What the API server, or the way to it, said.
        source: kube::Error,
    },
}

impl Intents {
    /// Name of the Node of this instance, if one has registered.
    pub fn node_of(&self, _instance: &str) -> Option<String> {
        None
    }

    /// Whether a scale-in of this instance is under way.
    pub fn is_leaving(&self, _instance: &str) -> bool {
        false
    }

    /// Whether a scale-in of this instance is under way that lowers the desired capacity when it is released.
    pub fn will_decrement(&self, _instance: &str) -> bool {
        false
    }

    /// Writes down, durably, that cluster-autoscaler wants this node gone.
    pub async fn accept(
        &self,
        _node: &str,
        _group: &str,
        _instance: &str,
        _now: Timestamp,
    ) -> Result<Accepted, IntentError> {
        Ok(Accepted::Already)
    }
}
