//! What is to be done for a node now: a pure function of what is known of it.
//!
//! [`plan`] is called whenever anything about the node changes and when the moment it named has come. It returns data;
//! the worker carries it out and remembers the outcome in [`Memory`]. Calling it again without a change asks for
//! nothing new. The order of things (workloads, then DaemonSet pods, then the instance) is decided here and in the
//! files beside it: [`super::drain`], [`super::flush`], [`super::release`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::class::{Class, classify};
use super::memory::{Memory, Task};
use super::record::{self, Cause, Phase, Record, Release, Written};
use super::{drain, flush, guard, marks, release};
use crate::aws::Hook;
use crate::clock::later;
use crate::cluster::{Budget, NodeView, PodName, PodView};
use crate::groups::Lifecycle;

/// How scale-ins are done here.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Flush time of a node whose DaemonSet pods ask for less.
    pub flush: Duration,
    /// Longest time from request to release, for every cause.
    pub drain_timeout: Option<Duration>,
    /// Whether DaemonSet pods are kept from cluster-autoscaler's own drain.
    pub guard: bool,
}

/// Where the node's instance is, by the last look at AWS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// There was no look yet.
    Unknown,
    /// In none of our groups.
    Elsewhere,
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
    /// The group has no hook of ours.
    None,
    /// This one.
    Ours(Hook),
}

/// Everything a plan is made from.
pub struct Situation<'a> {
    /// The present moment, on our clock that never steps.
    pub now: Timestamp,
    /// What the wall clock reads: for what others read at once.
    pub wall: Timestamp,
    /// By how much the clock of the record and of the API server is ahead of ours.
    pub ahead: SignedDuration,
    /// How scale-ins are done here.
    pub settings: Settings,
    /// The Node.
    pub node: &'a NodeView,
    /// Pods on the node by UID; none until they have been listed.
    pub pods: Option<&'a BTreeMap<String, PodView>>,
    /// Whether a DaemonSet of this UID exists.
    pub daemon_set_exists: &'a dyn Fn(&str) -> bool,
    /// The budgets that cover a pod.
    pub budgets: &'a dyn Fn(&PodView) -> Vec<Arc<Budget>>,
    /// Volumes attached to the node.
    pub attachments: usize,
    /// Whether the group may lose one more instance for good.
    pub may_shrink: &'a dyn Fn() -> bool,
    /// Where its instance is.
    pub instance: Whereabouts,
    /// The group's lifecycle hook.
    pub hook: &'a HookKnowledge,
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
        /// Published once the patch is in.
        then: Option<Announcement>,
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
    },
    /// Delete a pod, whatever its budgets say.
    Delete {
        /// The pod.
        pod: PodName,
        /// Its UID, a precondition.
        uid: String,
        /// Grace in seconds.
        grace: Option<i64>,
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
    },
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
    pub(super) fn patch(&self, plan: &mut Plan, patch: Value, then: Option<Announcement>) {
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

    /// Pods on the node with their classes.
    pub(super) fn classified(&self) -> impl Iterator<Item = (&PodView, Class)> {
        self.pods
            .into_iter()
            .flat_map(|pods| pods.values())
            .map(|pod| (pod, classify(pod, self.daemon_set_exists)))
    }

    /// Pods that have to leave before the node flushes.
    pub(super) fn workloads(&self) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified().filter(|(_, class)| matches!(class, Class::Workload | Class::Patient))
    }

    /// DaemonSet pods.
    pub(super) fn daemons(&self) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified().filter(|(_, class)| matches!(class, Class::Daemon(_)))
    }

    /// The node's flush time: what its DaemonSet pods ask for, but no more than half of a limited scale-in. The other
    /// half is for workloads.
    pub(super) fn flush_time(&self, record: &Record) -> Duration {
        let asked = super::class::flush_time(self.daemons().map(|(pod, _)| pod), self.settings.flush);
        let half = record.release_by.map(|by| by.duration_since(record.requested_at) / 2);
        half.map_or(asked, |half| asked.min(Duration::try_from(half).unwrap_or_default()))
    }

    /// Writes the record in its next phase, with an Event.
    pub(super) fn enter(&self, plan: &mut Plan, record: &Record, phase: Phase, note: String) {
        let reason = match phase {
            Phase::Draining => "ScaleInDraining",
            Phase::Flushing => "ScaleInFlushing",
            Phase::Releasing => "ScaleInReleasing",
        };
        let patch = self.with_record(&record.entering(phase, self.now));
        self.patch(plan, patch, Some(Announcement { topic: reason.into(), reason, note, warning: false }));
    }
}

/// What is to be done for the node now.
pub fn plan(s: &Situation<'_>) -> Plan {
    let mut plan = Plan::default();
    let written = s.node.record.as_deref().map(record::read);
    match written {
        Some(Written::Record(record)) if s.node.instance.as_deref() == Some(&record.instance) => {
            under_way(s, &record.moved(-s.ahead), &mut plan);
        }
        Some(Written::Record(_)) => {
            // The Node has been taken over by another instance: the record is about one that is gone.
            s.patch(&mut plan, marks::take_off(s.node), None);
        }
        Some(Written::Wish(wish)) => begin_for_operator(s, wish, &mut plan),
        Some(Written::Unreadable(text)) => s.announce(
            &mut plan,
            Announcement {
                topic: format!("unreadable {text}"),
                reason: "ScaleInNotUnderstood",
                note: format!("annotation ebbtide/scale-in is neither \"now\" nor \"replace\": {text:?}"),
                warning: true,
            },
        ),
        None => without_record(s, &mut plan),
    }
    guard::guard(s, &mut plan);
    plan
}

fn under_way(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    if s.memory.at_minimum && record.release == Release::TerminateAndDecrement {
        return cancel_at_minimum(s, record, plan);
    }
    match record.phase {
        Phase::Draining => drain::drain(s, record, plan),
        Phase::Flushing => flush::flush(s, record, plan),
        Phase::Releasing => release::release(s, record, plan),
    }
    if s.instance != Whereabouts::Elsewhere {
        match marks::put_on(s.node, s.wall) {
            Some(patch) => s.patch(plan, patch, None),
            None => {
                let expires = marks::taint_expires(s.node).unwrap_or(s.wall);
                plan.wake(later(s.now, expires.duration_since(s.wall)));
            }
        }
    }
}

/// AWS refuses to shrink the group: better a node back in service than one that is held empty for ever.
fn cancel_at_minimum(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let note = format!(
        "group {} is at its minimum size: AWS refuses to terminate {} with a decrement. The node is back in service; \
         annotate it with ebbtide/scale-in=replace to have it replaced",
        record.group, record.instance
    );
    s.patch(plan, marks::take_off(s.node), Some(cancelled(note, true)));
}

fn cancelled(note: String, warning: bool) -> Announcement {
    Announcement { topic: "cancelled".into(), reason: "ScaleInCancelled", note, warning }
}

fn without_record(s: &Situation<'_>, plan: &mut Plan) {
    let Whereabouts::In { group, lifecycle, .. } = &s.instance else {
        if marks::has_scale_in_marks(s.node) && s.instance == Whereabouts::Elsewhere {
            s.patch(plan, marks::take_off(s.node), None);
        }
        return;
    };
    if *lifecycle == Lifecycle::TerminatingWait {
        return begin_for_hook(s, group, plan);
    }
    // On an instance that is going anyway the marks of a cancelled scale-in may as well stay.
    if !lifecycle.is_terminating() && marks::has_scale_in_marks(s.node) {
        let note = "the annotation ebbtide/scale-in was removed: the node is back in service".to_owned();
        s.patch(plan, marks::take_off(s.node), Some(cancelled(note, false)));
    }
}

fn begin_for_hook(s: &Situation<'_>, group: &str, plan: &mut Plan) {
    match s.hook {
        // While somebody else's hook holds it, somebody else drains it.
        HookKnowledge::Unknown | HookKnowledge::None => {
            s.attempt(plan, &Task::Hook, || Action::LookUpHook { group: group.to_owned() });
        }
        HookKnowledge::Ours(hook) => {
            let Some(instance) = &s.node.instance else { return };
            let mut record = Record::new(Cause::LifecycleHook, group, instance, Release::CompleteHook, s.now);
            record.release_by = release::limit(s.settings, s.now, Some(hook), s.now);
            begin(s, &record, plan);
        }
    }
}

fn begin_for_operator(s: &Situation<'_>, wish: Release, plan: &mut Plan) {
    let (Whereabouts::In { group, lifecycle, .. }, Some(instance)) = (&s.instance, &s.node.instance) else {
        if s.instance == Whereabouts::Elsewhere {
            s.announce(
                plan,
                Announcement {
                    topic: "foreign".into(),
                    reason: "ScaleInNotPossible",
                    note: "the node's instance is in none of the node groups that ebbtide runs".into(),
                    warning: true,
                },
            );
        }
        return;
    };
    if *lifecycle == Lifecycle::TerminatingWait {
        return begin_for_hook(s, group, plan);
    }
    if wish == Release::TerminateAndDecrement && !(s.may_shrink)() {
        let note = format!(
            "group {group} is at its minimum size or does not terminate instances at present; annotate the node with \
             ebbtide/scale-in=replace to have it replaced"
        );
        let topic = "at minimum".into();
        return s.announce(plan, Announcement { topic, reason: "ScaleInNotPossible", note, warning: true });
    }
    let mut record = Record::new(Cause::Operator, group, instance, wish, s.now);
    record.release_by = release::limit(s.settings, s.now, None, s.now);
    begin(s, &record, plan);
}

fn begin(s: &Situation<'_>, record: &Record, plan: &mut Plan) {
    let note = started(s, record);
    s.enter(plan, record, Phase::Draining, note);
}

/// The text of the Event that opens a scale-in.
fn started(s: &Situation<'_>, record: &Record) -> String {
    let limit = record
        .release_by
        .map_or("without a time limit".to_owned(), |by| format!("until {:.0}", s.theirs(by)));
    format!("cause {}: workloads are asked to leave {}, {limit}", record.cause, record.instance)
}
