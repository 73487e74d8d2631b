//! What a new node of a group will look like, so that cluster-autoscaler can scale it from zero.
//!
//! [`node`] makes the `core/v1` Node from facts about the group and its instance type; [`capacity`] has the
//! formulas. Both are pure. Where the facts come from is [`crate::groups::discovery`]'s business.

pub mod capacity;
pub mod node;

use std::sync::Arc;

use bytes::Bytes;

/// A template Node.
#[derive(Clone, Debug, PartialEq)]
pub struct Template {
    /// The `core/v1` Node, encoded: what goes on the wire in either dialect.
    pub encoded: Bytes,
}

/// Why a group has no template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(pub Arc<str>);
