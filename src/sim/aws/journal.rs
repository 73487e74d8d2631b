//! The journal: every call received and every change of state, in order.
//!
//! Entries never change. A call precedes the changes it caused, although its outcome is known only after them. Followers
//! ([`Journal::subscribe`]) get each entry once, in order.

use std::collections::BTreeMap;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

use super::lifecycle::{HookResult, LifecycleState, Transition};
use super::operation::Operation;
use super::power::Power;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub at: Timestamp,
    /// What.
    pub what: Event,
}

/// The kinds of thing that happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request arrived.
    Called {
        /// What was asked for.
        operation: Operation,
        /// The parameters, by AWS's names for them (`AutoScalingGroupName`, `InstanceIds.member.1`).
        arguments: BTreeMap<String, String>,
        /// How it ended.
        outcome: Outcome,
    },
    /// An instance exists, in `Pending`.
    InstanceLaunched {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
        /// Its availability zone.
        zone: String,
        /// Its instance type.
        instance_type: String,
    },
    /// An instance is in service.
    InService {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
    },
    /// A launch attempt failed.
    LaunchFailed {
        /// The group that wanted an instance.
        group: String,
        /// The zone it was tried in.
        zone: String,
        /// EC2's code, such as `InsufficientInstanceCapacity`.
        code: String,
        /// EC2's text.
        message: String,
    },
    /// An instance is on its way out.
    TerminationStarted {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
        /// Why.
        cause: TerminationCause,
        /// Whether the desired capacity went down with it, so that no replacement comes.
        decrement: bool,
    },
    /// A hook holds an instance; one entry per hook.
    EnteredWait {
        /// The group.
        group: String,
        /// The instance.
        instance: String,
        /// The hook's name.
        hook: String,
        /// The lifecycle action's token.
        token: String,
        /// Launching or terminating.
        transition: Transition,
    },
    /// A hook's time-out starts again.
    Heartbeat {
        /// The group.
        group: String,
        /// The instance.
        instance: String,
        /// The hook's name.
        hook: String,
        /// When it times out now.
        until: Timestamp,
    },
    /// Somebody completed a hook.
    HookCompleted {
        /// The group.
        group: String,
        /// The instance.
        instance: String,
        /// The hook's name.
        hook: String,
        /// What it was completed with.
        result: HookResult,
    },
    /// Nobody completed a hook in time.
    HookTimedOut {
        /// The group.
        group: String,
        /// The instance.
        instance: String,
        /// The hook's name.
        hook: String,
        /// The hook's default result, which applies now.
        result: HookResult,
    },
    /// An instance is gone.
    Terminated {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
    },
    /// An instance is in this state, where no other entry says so.
    Entered {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
        /// The state.
        state: LifecycleState,
    },
    /// An instance's machine is switched on or off.
    Powered {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
        /// EC2's state of it.
        power: Power,
    },
    /// An instance's machine reboots by itself: nothing that ran on it goes on.
    Rebooted {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
    },
    /// An instance's machine is dead, while EC2 calls it running.
    Impaired {
        /// Its group.
        group: String,
        /// Its id.
        instance: String,
    },
    /// An instance runs on outside its group.
    Detached {
        /// The group it was in.
        group: String,
        /// Its id.
        instance: String,
    },
    /// A message is in a queue from now on.
    MessageSent {
        /// The queue's URL.
        queue: String,
        /// The message's id.
        message: String,
    },
    /// A message is deleted.
    MessageDeleted {
        /// The queue's URL.
        queue: String,
        /// The message's id.
        message: String,
    },
    /// A group is gone.
    GroupDeleted {
        /// The group.
        group: String,
    },
    /// The desired capacity changed.
    DesiredChanged {
        /// The group.
        group: String,
        /// Before.
        from: u32,
        /// After.
        to: u32,
        /// The call that did it.
        by: Operation,
    },
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Done and answered.
    Answered,
    /// Refused with this code; nothing changed.
    Refused(&'static str),
    /// The connection broke before the call had its effect.
    LostBefore,
    /// The call had its effect, but the caller does not know: the connection broke, or the answer was an error.
    LostAfter,
}

/// Why an instance is terminated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TerminationCause {
    /// `TerminateInstanceInAutoScalingGroup`.
    Request,
    /// The group had too many, and chose this one.
    ScaleIn,
    /// Zones were unbalanced.
    Rebalance,
    /// An instance refresh.
    Refresh,
    /// It was unhealthy.
    HealthCheck,
    /// A launching hook was abandoned.
    LaunchAbandoned,
    /// It never became healthy after its launch.
    LaunchFailed,
    /// Its group is being deleted.
    GroupDeletion,
}

#[derive(Debug)]
pub(super) struct Journal {
    entries: Vec<Entry>,
    subscribers: Vec<mpsc::UnboundedSender<Entry>>,
    calls: BTreeMap<Operation, usize>,
    /// Effects of the call under way, held back until its outcome is known.
    held: Option<Vec<Entry>>,
    length: watch::Sender<usize>,
}

impl Journal {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            subscribers: Vec::new(),
            calls: BTreeMap::new(),
            held: None,
            length: watch::Sender::new(0),
        }
    }

    pub(super) fn record(&mut self, at: Timestamp, what: Event) {
        let entry = Entry { at, what };
        match &mut self.held {
            Some(held) => held.push(entry),
            None => self.publish(entry),
        }
    }

    /// Begins a call: until [`Self::record_call`], entries are its effects.
    pub(super) fn begin_call(&mut self) {
        self.held = Some(Vec::new());
    }

    /// Records the call and then its effects.
    pub(super) fn record_call(
        &mut self,
        at: Timestamp,
        operation: Operation,
        arguments: BTreeMap<String, String>,
        outcome: Outcome,
    ) {
        *self.calls.entry(operation).or_default() += 1;
        let effects = self.held.take().unwrap_or_default();
        self.publish(Entry { at, what: Event::Called { operation, arguments, outcome } });
        for entry in effects {
            self.publish(entry);
        }
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub(super) fn calls(&self, operation: Operation) -> usize {
        self.calls.get(&operation).copied().unwrap_or_default()
    }

    pub(super) fn subscribe(&mut self) -> mpsc::UnboundedReceiver<Entry> {
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.push(sender);
        receiver
    }

    /// The number of entries, as a channel.
    pub(super) fn changed(&self) -> watch::Receiver<usize> {
        self.length.subscribe()
    }

    fn publish(&mut self, entry: Entry) {
        self.subscribers.retain(|subscriber| subscriber.send(entry.clone()).is_ok());
        self.entries.push(entry);
        self.length.send_replace(self.entries.len());
    }
}
