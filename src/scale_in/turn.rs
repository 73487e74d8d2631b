//! Whether a request has its turn, and what is ahead of it.

use crate::k8s::NodeName;

/// Whether a request may be carried out now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Yes.
    Now,
    /// Not yet.
    Waits(Ahead),
}

/// What is ahead of a request that waits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ahead {
    /// How many scale-ins for people, maintenance and recommendations go on at once in the group.
    pub at_once: usize,
    /// How many are under way.
    pub under_way: usize,
    /// How many instances of the group have not come, if this one waits for them: 0 if nobody comes in its place.
    pub to_come: usize,
    /// The nodes whose scale-ins are under way.
    pub nodes: Vec<NodeName>,
    /// Requests ahead of this one.
    pub before: usize,
    /// Why launches of the group fail, as a code.
    pub launches_fail: Option<String>,
}

#[cfg(test)]
impl Turn {
    /// Not yet: so many are under way, and so many come before.
    pub(crate) const fn waits(under_way: usize, before: usize) -> Self {
        let nodes = Vec::new();
        Self::Waits(Ahead { at_once: 1, under_way, to_come: 0, nodes, before, launches_fail: None })
    }
}
