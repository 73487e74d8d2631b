//! Scheduled tasks. Controllers are level-triggered: a [`Task`] says what to check, not what to do.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use super::names::Name;

/// Something to check at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Request(u64),
    Boot(String),
    Initialise(String),
    Joined(String),
    Revive(String),
    NodeStatus(String),
    Kubelet(Name),
    /// The containers of a pod: its name (for the order) and uid.
    Container(Name, String),
    Budget(Name),
    Volume(String),
    Schedule,
    Bind(Name, String),
    Taints(String),
    ReplicaSet(Name),
    DaemonSet(Name),
    StatefulSet(Name),
    Job(Name),
    Dependents(String),
    Unheard(String),
    Cloud(String),
    PodGc,
    Bookmarks,
    WatchTimeouts,
    Compact,
}

impl Task {
    /// Whether kube-controller-manager does it, not a kubelet, the scheduler or the cloud's controllers.
    pub(super) fn is_of_the_controller_manager(&self) -> bool {
        match self {
            Self::Budget(_)
            | Self::Volume(_)
            | Self::Taints(_)
            | Self::ReplicaSet(_)
            | Self::DaemonSet(_)
            | Self::StatefulSet(_)
            | Self::Job(_)
            | Self::Dependents(_)
            | Self::Unheard(_)
            | Self::PodGc => true,
            Self::Request(_)
            | Self::Boot(_)
            | Self::Initialise(_)
            | Self::Joined(_)
            | Self::Revive(_)
            | Self::NodeStatus(_)
            | Self::Kubelet(_)
            | Self::Container(..)
            | Self::Schedule
            | Self::Bind(..)
            | Self::Cloud(_)
            | Self::Bookmarks
            | Self::WatchTimeouts
            | Self::Compact => false,
        }
    }
}

/// Scheduled tasks, each once, at its earliest moment.
#[derive(Default)]
pub(super) struct Queue {
    order: BTreeSet<(Timestamp, Task)>,
    moments: BTreeMap<Task, Timestamp>,
}

impl Queue {
    pub(super) fn add(&mut self, task: Task, at: Timestamp) {
        match self.moments.get(&task) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => drop(self.order.remove(&(*later, task.clone()))),
            None => {}
        }
        self.moments.insert(task.clone(), at);
        self.order.insert((at, task));
    }

    pub(super) fn next(&self) -> Option<Timestamp> {
        self.order.first().map(|(at, _)| *at)
    }

    pub(super) fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Task)> {
        if self.next()? > now {
            return None;
        }
        let (at, task) = self.order.pop_first()?;
        self.moments.remove(&task);
        Some((at, task))
    }
}
