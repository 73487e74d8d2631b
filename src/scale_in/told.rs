//! What the log was told of a node's scale-in, where the same fails again and again. Nothing is decided by it.

/// What was told of a node.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Whether it was told that the hook, which AWS does not let be completed, is left to its time-out.
    pub(super) of_timeout: bool,
}
