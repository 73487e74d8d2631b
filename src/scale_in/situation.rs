//! What a plan is made from, and what it is made of: data only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::class::{Circumstances, Class, Flush, classify};
use super::marks;
use super::memory::{Memory, Task};
use super::record::{Cause, Phase, Record, Written};
use super::wishes::{AtOnce, Turn};
use crate::aws::{Hook, Lifecycle};
use crate::clock::{later, signed};
use crate::cluster::{Budget, NodeView, PodName, PodView, Ready};
use crate::groups::hooks::TerminatingHooks;

/// How scale-ins are done here.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long flushes take.
    pub flush: Flush,
    /// How long a drain that cluster-autoscaler has not asked for waits for pods that asked not to be disturbed; none: as
    /// long as it takes.
    pub patience: Option<Duration>,
    /// Longest time from request to release, for every cause.
    pub drain_timeout: Option<Duration>,
    /// Whether DaemonSet pods are kept from cluster-autoscaler's own drain.
    pub guard: bool,
    /// How many scale-ins that people wish for go on at once in a group.
    pub operator_at_once: AtOnce,
}

/// Where the node's instance is, by the last look at AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// There was no look yet.
    Unknown,
    /// In none of our groups.
    Elsewhere {
        /// When the look began.
        seen: Timestamp,
    },
    /// In a group of ours.
    In {
        /// Name of the group.
        group: String,
        /// State of the instance.
        lifecycle: Lifecycle,
        /// When the look began.
        seen: Timestamp,
    },
}

/// The group's lifecycle hook, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HookKnowledge {
    /// AWS has not been asked.
    Unknown,
    /// AWS does not answer: if the group has a hook of ours, it is like this at the least. Enough to drain what is held, not to
    /// have an instance held.
    Presumed(Hook),
    /// The group has no hook of ours.
    None,
    /// This one.
    Ours(Hook),
    /// This one, beside one of somebody else's, who may drain the node by rules of their own as soon as it is held.
    Beside(Hook),
}

impl HookKnowledge {
    /// Our hook.
    pub fn ours(&self) -> Option<&Hook> {
        match self {
            Self::Unknown | Self::None => None,
            Self::Presumed(hook) | Self::Ours(hook) | Self::Beside(hook) => Some(hook),
        }
    }

    /// Whether AWS has said that there is one of ours.
    pub fn is_certain(&self) -> bool {
        matches!(self, Self::Ours(_) | Self::Beside(_))
    }
}

impl From<TerminatingHooks> for HookKnowledge {
    fn from(hooks: TerminatingHooks) -> Self {
        match hooks.ours {
            None => Self::None,
            Some(ours) if hooks.others => Self::Beside(ours),
            Some(ours) => Self::Ours(ours),
        }
    }
}

/// Everything a plan is made from.
pub struct Situation<'a> {
    /// The present moment, on our clock that never steps.
    pub now: Timestamp,
    /// What the wall clock reads: for what others read at once.
    pub wall: Timestamp,
    /// By how much the clock of the record and of the API server is ahead of ours.
    pub ahead: SignedDuration,
    /// When this run first saw a record on the Node.
    pub record_seen: Timestamp,
    /// How scale-ins are done here.
    pub settings: &'a Settings,
    /// The Node.
    pub node: &'a NodeView,
    /// Other Nodes that name the same instance.
    pub beside: &'a [Arc<NodeView>],
    /// Whether this Node speaks for the instance, and not one of those.
    pub speaks: bool,
    /// Pods on the node, and on those beside it, by UID; none until they have been listed.
    pub pods: Option<&'a BTreeMap<String, PodView>>,
    /// Whether the watch shows a DaemonSet of this UID.
    pub daemon_set_is_seen: &'a dyn Fn(&str) -> bool,
    /// The budgets that cover a pod.
    pub budgets: &'a dyn Fn(&PodView) -> Vec<Arc<Budget>>,
    /// Volumes attached to the node.
    pub attachments: usize,
    /// Whether the group may lose one more instance for good.
    pub may_shrink: &'a dyn Fn() -> bool,
    /// Whether a person's wish is to be carried out now.
    pub turn: &'a dyn Fn() -> Turn,
    /// Where its instance is.
    pub instance: Whereabouts,
    /// The group's lifecycle hook.
    pub hook: &'a HookKnowledge,
    /// When AWS began to hold the instance, or a moment before that; none while that is not known.
    pub held_since: Option<Timestamp>,
    /// What was tried before.
    pub memory: &'a Memory,
}

/// Something to be done, once.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Write to the Node, and say so when it is written.
    PatchNode {
        /// A merge patch with the Node's resource version as a precondition.
        patch: Value,
        /// To be done once the patch is in, and only then.
        then: Vec<Action>,
    },
    /// Ask the API server to evict a pod; a grace only where the pod's own does not fit.
    Evict {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Grace in seconds.
        grace: Option<i64>,
        /// The budgets that cover it, `namespace/name` and resource version, for the record of a refusal.
        budgets: Vec<(String, String)>,
        /// Whose it is.
        owner: String,
        /// Whether it has come back to the cordoned node.
        returned: bool,
    },
    /// Delete a pod, whatever its budgets say.
    Delete {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Grace in seconds.
        grace: Option<i64>,
        /// Whether it is a disruption, which its owner is told of by the pod's condition DisruptionTarget.
        disruption: bool,
    },
    /// Ask the API server whether a DaemonSet exists.
    LookUpDaemonSet {
        /// The DaemonSet.
        name: PodName,
        /// Its UID.
        uid: String,
    },
    /// Set or take off the guard on a DaemonSet pod.
    Guard {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Set it.
        on: bool,
    },
    /// Ask AWS for the hook of a group.
    LookUpHook {
        /// Name of the group.
        group: String,
    },
    /// Terminate an instance.
    Terminate {
        /// Name of the group.
        group: String,
        /// EC2 instance id.
        instance: String,
        /// Whether the desired capacity goes down with it.
        decrement: bool,
        /// Whether it must not be done unless the group has our hook, and no other, which then holds the instance.
        under_hook: bool,
        /// What the record on the Node says of it.
        noted_at: Timestamp,
    },
    /// Lower the desired capacity by one, unless that would cost an instance that lives: the group has taken one out by
    /// itself that cluster-autoscaler had given up.
    GiveUpReplacement {
        /// Name of the group.
        group: String,
    },
    /// Have AWS looked at again: only that shows what became of a call.
    LookAtAws,
    /// Complete our lifecycle hook.
    CompleteHook {
        /// The hook.
        hook: Hook,
        /// EC2 instance id.
        instance: String,
    },
    /// Publish an Event on the Node.
    Announce(Announcement),
}

/// An Event on the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// What it is about: not repeated within [`REPEAT_AFTER`].
    pub topic: String,
    /// The Event's reason.
    pub reason: &'static str,
    /// The Event's text.
    pub note: String,
    /// Whether somebody should look.
    pub warning: bool,
}

/// What blocks longer than this is announced again.
pub const REPEAT_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Whom a drain waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The pod.
    pub pod: PodName,
    /// What for.
    pub why: Why,
}

/// Why a pod is still there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// It has been asked to go and has time until then.
    Exiting(Timestamp),
    /// It had time until then, and its kubelet has not said that it has ended.
    Overdue(Timestamp),
    /// A budget has no room: which, and the API server's words.
    Budget(String, String),
    /// It asked not to be disturbed.
    Patient,
    /// The API server refused for another reason.
    Refused(String),
    /// Its turn has not come.
    Queued,
}

/// What is to be done, and when to look again if nothing happens.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// To be done now, in this order.
    pub actions: Vec<Action>,
    /// When time alone changes the plan.
    pub wake_at: Option<Timestamp>,
    /// Whom the drain waits for.
    pub waiting: Vec<Waiting>,
    /// Whether workloads are on the node, or may come; none until its pods have been listed.
    pub occupied: Option<bool>,
}

impl Plan {
    /// Whether the plan has a write to the Node.
    pub(super) fn writes_node(&self) -> bool {
        self.actions.iter().any(|action| matches!(action, Action::PatchNode { .. }))
    }

    /// Looks again at `moment` at the latest.
    pub(super) fn wake(&mut self, moment: Timestamp) {
        self.wake_at = Some(self.wake_at.map_or(moment, |at| at.min(moment)));
    }
}

impl Situation<'_> {
    /// What the annotation of the Node says, as far as it is believed.
    pub(super) fn written(&self) -> Option<Written> {
        self.memory.claims.believed().cloned()
    }

    /// A moment that the record or the API server names, on our clock.
    pub(super) fn ours(&self, moment: Timestamp) -> Timestamp {
        later(moment, -self.ahead)
    }

    /// A moment of ours as the record and people have it.
    pub(super) fn theirs(&self, moment: Timestamp) -> Timestamp {
        later(moment, self.ahead)
    }

    /// The patch that writes the record, with everything that a scale-in puts on the Node.
    pub(super) fn with_record(&self, record: &Record) -> Value {
        marks::with_record(self.node, &record.moved(self.ahead), self.wall)
    }

    /// Asks for an action if its task may be tried now, else for being woken when it may.
    pub(super) fn attempt(&self, plan: &mut Plan, task: &Task, action: impl FnOnce() -> Action) {
        match self.memory.may_try_at(task) {
            Some(at) if at <= self.now => plan.actions.push(action()),
            Some(at) => plan.wake(at),
            None => {}
        }
    }

    /// Asks for a write to the Node. One at a time: a second one waits for the Node as the first has left it.
    pub(super) fn patch(&self, plan: &mut Plan, patch: Value, then: Vec<Action>) {
        if !plan.writes_node() {
            self.attempt(plan, &Task::Node, || Action::PatchNode { patch, then });
        }
    }

    /// Announces something, unless it was announced a short while ago.
    pub(super) fn announce(&self, plan: &mut Plan, announcement: Announcement) {
        match self.memory.announced.get(&announcement.topic) {
            Some(at) if *at + REPEAT_AFTER > self.now => plan.wake(*at + REPEAT_AFTER),
            _ => plan.actions.push(Action::Announce(announcement)),
        }
    }

    /// Pods on the node with their classes. Which have come back to it depends on the record.
    pub(super) fn classified(&self, record: Option<&Record>) -> impl Iterator<Item = (&PodView, Class)> {
        let requested_at = record.map(|record| self.theirs(record.requested_at));
        let patience_ends = record.and_then(|record| self.patience_ends(record));
        let circumstances = move |pod: &PodView| Circumstances {
            deleted_daemon_sets: &self.memory.deleted_daemon_sets,
            returns: &self.memory.returns,
            requested_at,
            patience_is_over: patience_ends.is_some_and(|end| end <= self.now),
            ended_before: self.ended_before(pod),
        };
        self.pods
            .into_iter()
            .flat_map(|pods| pods.values())
            .map(move |pod| (pod, classify(pod, &circumstances(pod))))
    }

    /// When the patience of this drain ends, if it does. cluster-autoscaler has looked for such pods by itself.
    pub(super) fn patience_ends(&self, record: &Record) -> Option<Timestamp> {
        let patience = self.settings.patience.filter(|_| record.cause != Cause::Autoscaler)?;
        Some(later(record.requested_at, signed(patience)))
    }

    /// Before which moment a pod's grace has to have ended for it to count as gone although nobody says so.
    fn ended_before(&self, pod: &PodView) -> Option<Timestamp> {
        let within = if self.is_silent(self.node_of(pod)) {
            CONFIRMED_WITHIN
        } else if self.beside.is_empty() {
            return None;
        } else {
            SPOKEN_FOR_WITHIN
        };
        Some(later(self.theirs(self.now), -within))
    }

    /// The Node that a pod is on.
    fn node_of(&self, pod: &PodView) -> &NodeView {
        self.beside.iter().find(|node| node.name == pod.node).map_or(self.node, Arc::as_ref)
    }

    /// Pods that have to leave before the node flushes.
    pub(super) fn workloads(&self, record: Option<&Record>) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified(record).filter(|(_, class)| class.is_workload())
    }

    /// DaemonSet pods.
    pub(super) fn daemons(&self) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified(None).filter(|(_, class)| matches!(class, Class::Daemon(_)))
    }

    /// Whether nobody on the node says what has become of its pods: its kubelet is not heard of, or has been unable to work
    /// for long.
    fn is_silent(&self, node: &NodeView) -> bool {
        match node.ready {
            Ready::Yes => false,
            Ready::Unknown => true,
            Ready::No => {
                node.unready_since.is_some_and(|since| later(self.ours(since), UNABLE_FOR) <= self.now)
            }
        }
    }

    /// Whether nothing on the node runs any more, as far as anybody can tell: its kubelet is silent, or it has not said
    /// of a pod that it ended long after it had to.
    pub(super) fn is_dead(&self, record: &Record) -> bool {
        let given_up_on = |node: &NodeView| {
            let mut all = self.classified(Some(record));
            all.any(|(pod, class)| class == Class::GivenUp && self.node_of(pod).name == node.name)
        };
        let mut nodes = self.beside.iter().map(Arc::as_ref).chain([self.node]);
        nodes.all(|node| node.ready == Ready::Unknown || given_up_on(node))
    }

    /// The node's flush time: what its DaemonSet pods ask for, but no more than half of a limited scale-in. The other
    /// half is for workloads.
    pub(super) fn flush_time(&self, record: &Record) -> Duration {
        let asked = super::class::flush_time(self.daemons().map(|(pod, _)| pod), &self.settings.flush);
        let half = record.release_by.map(|by| by.duration_since(record.requested_at) / 2);
        half.map_or(asked, |half| asked.min(Duration::try_from(half).unwrap_or_default()))
    }

    /// Writes the record in its next phase, with an Event.
    pub(super) fn enter(&self, plan: &mut Plan, record: &Record, phase: Phase, note: String) {
        self.enter_and(plan, &record.entering(phase, self.now), note, None);
    }

    /// Writes the record, whose phase is new, with an Event, and does something more.
    pub(super) fn enter_and(&self, plan: &mut Plan, record: &Record, note: String, more: Option<Action>) {
        let reason = match record.phase {
            Phase::Draining => "ScaleInDraining",
            Phase::Flushing => "ScaleInFlushing",
            Phase::Releasing => "ScaleInReleasing",
        };
        let entered = Announcement { topic: reason.into(), reason, note, warning: false };
        let then = more.into_iter().chain([Action::Announce(entered)]).collect();
        self.patch(plan, self.with_record(record), then);
    }
}

/// A kubelet that says that it is not Ready (its container runtime or its network is down) lives, and mostly recovers: it
/// confirms exits then. After this time it is taken for one that does not, as Kubernetes itself does by default
/// (`tolerationSeconds` of `node.kubernetes.io/not-ready`).
/// Source: [Taint based
/// evictions](https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions).
const UNABLE_FOR: SignedDuration = SignedDuration::from_mins(5);

/// On a Node that says nothing a pod counts as ended when its deletion timestamp, which is when its grace ends, is so long
/// ago: nobody will confirm it. The kubelet's own last word comes within seconds after the grace.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Where several Nodes name one instance, at most one of them has a kubelet: the others may be Ready because somebody says
/// so. There a pod counts as ended so long after its grace, at whose end a kubelet kills what is left.
pub(super) const SPOKEN_FOR_WITHIN: SignedDuration = SignedDuration::from_mins(5);
