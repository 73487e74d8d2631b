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
    /// Scale-ins by annotation under way in the group, or instances that have not come, whichever are more.
    pub under_way: usize,
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
        Self::Waits(Ahead { under_way, nodes: Vec::new(), before, launches_fail: None })
    }
}
