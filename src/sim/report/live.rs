//! Progress: one line for each journal entry that matters to people, as it comes.
//!
//! Sees only the entry; folding and counting are left to the timeline.

use jiff::Timestamp;

use super::scale_ins::{cause_words, reason_of};
use super::seconds::Seconds;
use super::short;
use super::text::WIDTH;
use crate::k8s::names;
use crate::scale_in::events::Reason;
use crate::scale_in::record::{Cause, Phase, Record, Release, Written, read};
use crate::sim::aws::{self, LifecycleState, TerminationCause, Transition};
use crate::sim::cluster::{self, By, NodeChange};

/// An entry of either journal.
#[derive(Clone, Copy, Debug)]
pub enum Happening<'a> {
    /// AWS's.
    Aws(&'a aws::Entry),
    /// The cluster's.
    Cluster(&'a cluster::Entry),
}

impl<'a> From<&'a aws::Entry> for Happening<'a> {
    fn from(entry: &'a aws::Entry) -> Self {
        Self::Aws(entry)
    }
}

impl<'a> From<&'a cluster::Entry> for Happening<'a> {
    fn from(entry: &'a cluster::Entry) -> Self {
        Self::Cluster(entry)
    }
}

/// The line for an entry, with the seconds since `start`; `None` for entries of no interest.
pub fn live<'a>(entry: impl Into<Happening<'a>>, start: Timestamp) -> Option<String> {
    let (at, words) = match entry.into() {
        Happening::Aws(entry) => (entry.at, of_aws(&entry.what)?),
        Happening::Cluster(entry) => (entry.at, of_cluster(&entry.what)?),
    };
    Some(short::fit(&format!("{:>7}  {words}", Seconds::between(start, at)), WIDTH))
}

fn of_aws(event: &aws::Event) -> Option<String> {
    use aws::Event;
    Some(match event {
        Event::InstanceLaunched { group, instance, zone, instance_type } => {
            format!("{group}: {} launched ({instance_type}, {zone})", short::instance(instance))
        }
        Event::LaunchFailed { group, code, .. } => format!("{group}: launch failed, {code}"),
        Event::TerminationStarted { group, instance, cause, decrement } => {
            let how = match cause {
                TerminationCause::Request if *decrement => {
                    "terminated on request, desired capacity goes down"
                }
                TerminationCause::Request => "terminated on request, a replacement comes",
                other => cause_words(*other),
            };
            format!("{group}: {} goes: {how}", short::instance(instance))
        }
        Event::EnteredWait { group, instance, hook, transition: Transition::Terminating, .. } => {
            format!("{group}: {} held by hook {hook}", short::instance(instance))
        }
        Event::HookCompleted { group, instance, hook, result } => {
            format!("{group}: {} let go, hook {hook} completed, {}", short::instance(instance), result.name())
        }
        Event::HookTimedOut { group, instance, hook, result } => {
            format!("{group}: {} HOOK {hook} TIMED OUT, {}", short::instance(instance), result.name())
        }
        Event::Entered { group, instance, state: LifecycleState::TerminatingRetained } => {
            format!("{group}: {} kept by its group, workloads running", short::instance(instance))
        }
        Event::Terminated { group, instance } => format!("{group}: {} gone", short::instance(instance)),
        _ => return None,
    })
}

fn of_cluster(event: &cluster::Event) -> Option<String> {
    use cluster::Event;
    Some(match event {
        Event::NodeRegistered { node } => format!("{node} registered"),
        Event::NodeRemoved { node } => format!("{node} removed"),
        Event::NodeChanged { node, changes } => {
            let words = changes.iter().find_map(|change| match change {
                NodeChange::Annotated(key, value) if key == names::RECORD => record_words(value),
                NodeChange::AnnotationRemoved(key) if key == names::RECORD => {
                    Some("scale-in called off".to_owned())
                }
                _ => None,
            });
            format!("{node} {}", words?)
        }
        Event::PodAsked { pod, by: By::Eviction, grace, .. } => {
            format!("{} asked to go (grace {grace} s)", short::pod(pod))
        }
        Event::PodAsked { pod, by: By::Delete, grace, .. } => {
            format!("{} deleted (grace {grace} s)", short::pod(pod))
        }
        Event::PodExited { pod, node } => format!("{} exited on {node}", short::pod(pod)),
        Event::CutShort { pod, node, .. } => format!("{} CUT SHORT on {node}", short::pod(pod)),
        Event::LinesLost { node, count } => format!("{node} LOST {}", short::count(*count, "log line")),
        Event::KubernetesEvent { regarding, reason, note } => {
            let node = regarding.strip_prefix("Node/")?;
            match reason_of(reason)? {
                Reason::Blocked
                | Reason::Waiting
                | Reason::OverTime
                | Reason::NotPossible
                | Reason::NotUnderstood => {
                    format!("{node} {note}")
                }
                // Phases are told from the record; the timeline has the rest.
                _ => return None,
            }
        }
        _ => return None,
    })
}

fn record_words(value: &str) -> Option<String> {
    match read(value) {
        Written::Record(record) => phase_words(&record),
        Written::Request(_) => Some("shall go: a person annotated it".to_owned()),
        Written::Unreadable(_) => None,
    }
}

fn phase_words(record: &Record) -> Option<String> {
    Some(match record.phase {
        // The record written once the hook holds the instance: AWS's journal tells that.
        Phase::Draining if record.cause != Cause::LifecycleHook && record.release == Release::LeftToGroup => {
            return None;
        }
        Phase::Draining => format!("draining (cause {})", record.cause),
        Phase::Flushing => "flushing: the workloads have left, DaemonSet pods have their time".to_owned(),
        Phase::Releasing => "releasing the instance".to_owned(),
    })
}
