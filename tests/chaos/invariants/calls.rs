//! How many calls to AWS a minute may have, as docs/testing.md reckons it.
//!
//! All callers of an account share AWS's limits, so what counts is the rate. Minutes with trouble have retries on top, and are left out.

use std::collections::BTreeMap;

use ebbtide::sim::autoscaler::Event as AutoscalerEvent;
use ebbtide::sim::aws::{Event, Operation, Outcome};
use jiff::{SignedDuration, Timestamp};

use super::Violation;
use crate::history::History;

pub(super) const MINUTE: SignedDuration = SignedDuration::from_mins(1);

/// Trouble so long ago counts no more: longer than any pause between two tries.
pub(super) const CALM: SignedDuration = SignedDuration::from_mins(3);

/// Refreshes a minute of a replica, at most: every 5 s, while changes of its own follow each other.
const REFRESHES: usize = 12;

/// Calls of a refresh: a page of groups, and three more at the most.
const OF_A_REFRESH: usize = 4;

/// For each instance on its way out: heartbeats twice in a time-out of 30 s, tries to complete a hook, a termination every 30 s with a
/// look at the hooks and one at the group before it.
const OF_AN_INSTANCE: usize = 12;

/// For each call of cluster-autoscaler that changes a size: a fresh description, protection on and off, a tag, and the size itself.
const OF_A_CHANGE: usize = 8;

/// Polls of a queue: one every 20 s.
const OF_A_QUEUE: usize = 3;

/// For each message: it is received with others or alone, kept for longer, and deleted.
const OF_A_MESSAGE: usize = 3;

/// A minute with more calls than that.
pub(super) fn of_a_minute(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let Some(first) = history.aws.first().map(|entry| entry.at) else { return found };
    let mut from = first + MINUTE;
    while from < history.end.at {
        let to = from + MINUTE;
        let calm = from - CALM;
        let is_troubled = history.aws_had_trouble(calm, to)
            || history.was_disturbed(calm.max(first), to)
            || history.has_started_within(CALM + MINUTE, to);
        if !is_troubled {
            let (calls, most) = (calls(history, from, to), most(history, from, to));
            if calls > most {
                found.push(Violation { at: from, what: format!("{calls} calls to AWS, the most is {most}") });
            }
        }
        from = to;
    }
    found
}

fn calls(history: &History, from: Timestamp, to: Timestamp) -> usize {
    history.aws_between(from, to).filter(|event| matches!(event, Event::Called { .. })).count()
}

/// The most that this minute may have.
fn most(history: &History, from: Timestamp, to: Timestamp) -> usize {
    let replicas = history.scenario.program.replicas as usize;
    let instances = leaving(history, from, to);
    let of_autoscaler = |(at, event): &&(Timestamp, AutoscalerEvent)| {
        (from - CALM..to).contains(at)
            && !matches!(event, AutoscalerEvent::Loop | AutoscalerEvent::LoopSkipped(_))
    };
    // What protects instances while a size goes down is renewed every ten seconds for two minutes.
    let changes = history.autoscaler.iter().filter(of_autoscaler).count();
    let messages = |event: &&Event| matches!(event, Event::MessageSent { .. } | Event::MessageDeleted { .. });
    let messages = history.aws_between(from - MINUTE, to).filter(messages).count();
    let queues = if history.scenario.program.has_queue { OF_A_QUEUE } else { 0 };
    replicas * (REFRESHES * OF_A_REFRESH + OF_AN_INSTANCE * instances + queues)
        + OF_A_CHANGE * changes
        + OF_A_MESSAGE * messages
}

/// How many instances are on their way out.
pub(super) fn leaving(history: &History, from: Timestamp, to: Timestamp) -> usize {
    let is_leaving = |instance: &&String| {
        let gone = history.lives[*instance].gone;
        history.requested(instance).is_some_and(|since| since < to) && gone.is_none_or(|gone| gone >= from)
    };
    history.lives.keys().filter(is_leaving).count()
}

/// An instance is terminated by call twice within half a minute, or with a decrement that AWS has acknowledged within five.
pub(super) fn terminations(history: &History) -> Vec<Violation> {
    let mut found = Vec::new();
    let mut last: BTreeMap<&str, Timestamp> = BTreeMap::new();
    let longest_delay = history.scenario.longest_delay(Operation::TerminateInstanceInAutoScalingGroup);
    for entry in &history.aws {
        let Event::Called {
            operation: Operation::TerminateInstanceInAutoScalingGroup,
            arguments,
            outcome: Outcome::Answered,
        } = &entry.what
        else {
            continue;
        };
        let Some(instance) = arguments.get("InstanceId") else { continue };
        if let Some(before) = last.insert(instance, entry.at)
            && entry.at.duration_since(before) < apart(arguments, longest_delay)
        {
            found.push(Violation {
                at: entry.at,
                what: format!("{instance} was terminated at {before} already"),
            });
        }
    }
    found
}

/// How long after a termination that has reached AWS there is another one of the instance at the soonest. Without a decrement, that counts
/// from when it was sent, which may be `longest_delay` earlier.
fn apart(arguments: &BTreeMap<String, String>, longest_delay: SignedDuration) -> SignedDuration {
    let decrements = arguments.get("ShouldDecrementDesiredCapacity").is_some_and(|it| it == "true");
    if decrements { SignedDuration::from_mins(5) } else { SignedDuration::from_secs(30) - longest_delay }
}

impl History {
    fn aws_between(&self, from: Timestamp, to: Timestamp) -> impl Iterator<Item = &Event> {
        let first = self.aws.partition_point(|entry| entry.at < from);
        self.aws[first..].iter().take_while(move |entry| entry.at < to).map(|entry| &entry.what)
    }
}
