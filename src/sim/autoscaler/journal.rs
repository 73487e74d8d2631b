//! What the autoscaler has done, for tests to look at.

use jiff::Timestamp;
use tokio::sync::watch;

/// Something that it did, or that happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A loop began.
    Loop,
    /// A loop ended with an error before its end: nothing more was done for any group.
    LoopFailed(String),
    /// A loop was ended in good order before its end, because something else had been done in it.
    LoopSkipped(&'static str),
    /// IncreaseSize worked.
    ScaledUp {
        /// The group.
        group: String,
        /// By how many nodes.
        by: i32,
    },
    /// IncreaseSize failed: the group is left alone for a while.
    ScaleUpFailed {
        /// The group.
        group: String,
        /// What the provider said.
        error: String,
    },
    /// Nodes that were asked for did not come in time: the group is left alone for a while.
    ScaleUpTimedOut {
        /// The group.
        group: String,
    },
    /// Instances that were asked for are listed with an error: the group is left alone for a while.
    ScaleUpRefused {
        /// The group.
        group: String,
        /// The error's code.
        code: String,
        /// How many were not seen with an error before.
        nodes: usize,
    },
    /// DeleteNodes was called.
    Deleted {
        /// The group.
        group: String,
        /// Names of the nodes; those that never registered have their provider id for a name.
        nodes: Vec<String>,
        /// Why.
        because: Because,
        /// What the provider said, if it refused.
        error: Option<String>,
    },
    /// DecreaseTargetSize was called.
    Decreased {
        /// The group.
        group: String,
        /// By how much, negative.
        delta: i32,
        /// What the provider said, if it refused.
        error: Option<String>,
    },
}

/// Why nodes are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Because {
    /// They are not needed.
    Unneeded,
    /// They did not register in time.
    Unregistered,
    /// They are listed with an error.
    CreateError,
}

/// What happened, and when.
#[derive(Debug)]
pub(super) struct Journal {
    entries: Vec<(Timestamp, Event)>,
    length: watch::Sender<usize>,
}

impl Default for Journal {
    fn default() -> Self {
        Self { entries: Vec::new(), length: watch::Sender::new(0) }
    }
}

impl Journal {
    pub(super) fn note(&mut self, at: Timestamp, event: Event) {
        self.entries.push((at, event));
        self.length.send_replace(self.entries.len());
    }

    pub(super) fn entries(&self) -> &[(Timestamp, Event)] {
        &self.entries
    }

    pub(super) fn changed(&self) -> watch::Receiver<usize> {
        self.length.subscribe()
    }
}
