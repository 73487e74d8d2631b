//! What the autoscaler did, for tests.

use jiff::Timestamp;
use tokio::sync::watch;

/// Something that it did, or that happened to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A loop began.
    Loop,
    /// A loop failed: nothing more was done for any group.
    LoopFailed(String),
    /// A loop ended early, without an error, because it had changed something.
    LoopSkipped(&'static str),
    /// IncreaseSize succeeded.
    ScaledUp {
        /// The group.
        group: String,
        /// Number of nodes.
        by: i32,
    },
    /// IncreaseSize failed: the group is backed off.
    ScaleUpFailed {
        /// The group.
        group: String,
        /// The provider's message.
        error: String,
    },
    /// Requested nodes did not come in time: the group is backed off.
    ScaleUpTimedOut {
        /// The group.
        group: String,
    },
    /// Requested instances are listed with an error: the group is backed off.
    ScaleUpRefused {
        /// The group.
        group: String,
        /// The error's code.
        code: String,
        /// Those not listed with an error before.
        nodes: usize,
    },
    /// DeleteNodes was called.
    Deleted {
        /// The group.
        group: String,
        /// Names of the nodes, or provider ids of those that never registered.
        nodes: Vec<String>,
        /// Why.
        because: Because,
        /// The provider's message, if it refused.
        error: Option<String>,
    },
    /// DecreaseTargetSize was called.
    Decreased {
        /// The group.
        group: String,
        /// By how much; negative.
        delta: i32,
        /// The provider's message, if it refused.
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
