//! When time is up for an instance, as early as the documents allow.

use jiff::{SignedDuration, Timestamp};

use ebbtide::sim::aws::{self, Operation, Outcome, Transition};
use ebbtide::sim::cluster::{Event, NodeChange};

use crate::history::{History, Note};
use crate::play::{MANAGED, OURS, RECORD};
use crate::scenario::{Cause, GroupCause, Kind, Workload};

/// A hook holds an instance for a hundred heartbeat time-outs; one less, as the program leaves the last to others.
const HEARTBEATS: u32 = 99;

/// The shortest heartbeat time-out. The program assumes it where AWS does not say more.
const SHORTEST_HEARTBEAT: u32 = 30;

/// Kept back because AWS's clock may be off, and as a hold is taken to begin at the refresh before.
const HELD_EARLIER: SignedDuration = SignedDuration::from_mins(4);

/// How old what is known of a hook may be: a refresh a minute, which may ask about another group's first.
const LOOKED_UP: SignedDuration = SignedDuration::from_mins(3);

/// Of time-outs that a hook had so shortly before or after a hold began, the shortest counts.
const HELD_BY_THEN: SignedDuration = SignedDuration::from_mins(6);

/// How long an answer takes.
const HEARD: SignedDuration = SignedDuration::from_secs(1);

const SPOT: SignedDuration = SignedDuration::from_mins(2);
const RETIREMENT: SignedDuration = SignedDuration::from_mins(20);
const FAR_AHEAD: SignedDuration = SignedDuration::from_hours(10 * 24);

/// Kept back on top of grace and flush: margin, time to kill, a late timer, a write.
const MARGIN: SignedDuration = SignedDuration::from_secs(20);

impl History {
    /// When the instance must have been released, at the earliest.
    pub(super) fn deadline(&self, instance: &str) -> Option<Timestamp> {
        let notices = self.diary.iter().filter_map(|(at, note)| match note {
            Note::Asked(Cause::Spot, machine) if machine.instance == instance => Some(*at + SPOT),
            Note::Asked(Cause::Scheduled, machine) if machine.instance == instance => Some(*at + RETIREMENT),
            Note::Asked(Cause::FarAhead, machine) if machine.instance == instance => Some(*at + FAR_AHEAD),
            _ => None,
        });
        let ours = self.scenario.program.drain_timeout.filter(|_| !self.scenario.program.waits_at_deadline);
        let ours = ours.and_then(|seconds| {
            Some(self.requested(instance)? + SignedDuration::from_secs(i64::from(seconds)))
        });
        let group = self.lives.get(instance).map_or("", |life| life.group.as_str());
        let is_held = self.heartbeats(group, Timestamp::MIN, Timestamp::MAX).next().is_some();
        let held = self.requested(instance).filter(|_| is_held);
        let hook = held.map(|since| since + self.hold(group, instance, since) - HELD_EARLIER);
        notices.chain(ours).chain(hook).min()
    }

    /// For how long our hook holds an instance of a group at the least, if its end was wished then.
    fn hold(&self, group: &str, instance: &str, since: Timestamp) -> SignedDuration {
        let holds = |entry: &aws::Entry| match &entry.what {
            aws::Event::EnteredWait { instance: id, hook, .. } if id == instance && hook == OURS => {
                Some(entry.at)
            }
            _ => None,
        };
        let began = self.aws.iter().find_map(holds).unwrap_or(self.end.at);
        // What it had before is lost with whoever saw it.
        let starts = |(at, note): &(Timestamp, Note)| matches!(note, Note::Started(_)) && *at >= began;
        let to = if self.diary.iter().any(starts) { self.end.at } else { began + HELD_BY_THEN };
        let known = self.heartbeats(group, since - HELD_BY_THEN, to).min();
        let is_known = !self.aws_had_trouble(since - LOOKED_UP, since + LOOKED_UP);
        let heartbeat = known.filter(|_| is_known).unwrap_or(SHORTEST_HEARTBEAT);
        SignedDuration::from_secs(i64::from(HEARTBEATS * heartbeat))
    }

    /// The heartbeat time-outs that our hook of a group had between two moments, in seconds.
    pub(super) fn heartbeats(
        &self,
        group: &str,
        from: Timestamp,
        to: Timestamp,
    ) -> impl Iterator<Item = u32> {
        let spec = self.scenario.groups.iter().find(|spec| spec.name == group);
        let managed = self.scenario.program.manages_hooks.then_some(MANAGED);
        let changed = self.diary.iter().filter_map(|(at, note)| match note {
            Note::AskedOfGroup(GroupCause::Hook(heartbeat), name) if name == group => Some((*at, *heartbeat)),
            _ => None,
        });
        let own = spec.and_then(|spec| spec.hook).map(|heartbeat| (Timestamp::MIN, heartbeat));
        let all: Vec<_> = own.into_iter().chain(changed).collect();
        let ends = all.iter().skip(1).map(|(at, _)| *at).chain([Timestamp::MAX]).collect::<Vec<_>>();
        let had = all.into_iter().zip(ends).filter(move |((begins, _), ends)| *begins <= to && from <= *ends);
        managed.into_iter().chain(had.map(|((_, heartbeat), _)| heartbeat))
    }

    /// When somebody first wished the end of the instance.
    pub(super) fn requested(&self, instance: &str) -> Option<Timestamp> {
        let node = self.names.get(instance)?;
        // The name may have been another's before, and be one's after.
        let life = self.lives.get(instance)?;
        let its =
            |at| life.launched.is_none_or(|since| since <= at) && life.gone.is_none_or(|gone| at <= gone);
        let recorded = self.cluster.iter().find_map(|entry| match &entry.what {
            Event::NodeChanged { node: name, changes } if name == node && its(entry.at) => changes
                .iter()
                .any(|change| matches!(change, NodeChange::Annotated(key, _) if key == RECORD))
                .then_some(entry.at),
            _ => None,
        });
        let ending = self.aws.iter().find_map(|entry| match &entry.what {
            aws::Event::TerminationStarted { instance: id, .. }
            | aws::Event::EnteredWait { instance: id, transition: Transition::Terminating, .. }
                if id == instance =>
            {
                Some(entry.at)
            }
            _ => None,
        });
        recorded.into_iter().chain(ending).min()
    }

    /// Since when all that limits the stay of an instance has been there, of what there was at a moment.
    pub(super) fn limited_since(&self, instance: &str, at: Timestamp) -> Option<Timestamp> {
        let group = self.lives.get(instance).map_or("", |life| life.group.as_str());
        let notices = self.diary.iter().filter_map(|(at, note)| match note {
            Note::Asked(Cause::Spot | Cause::Scheduled | Cause::FarAhead, machine)
                if machine.instance == instance =>
            {
                Some(*at)
            }
            Note::AskedOfGroup(GroupCause::Hook(_), name) if name == group => Some(*at),
            _ => None,
        });
        let held = self.aws.iter().filter_map(|entry| match &entry.what {
            aws::Event::TerminationStarted { instance: id, .. } if id == instance => Some(entry.at),
            _ => None,
        });
        let limits = self.requested(instance).into_iter().chain(self.begun(instance));
        limits.chain(notices).chain(held).filter(|moment| *moment <= at).max()
    }

    /// When a scale-in of the instance's node began: a person's request may wait for its turn before.
    fn begun(&self, instance: &str) -> Option<Timestamp> {
        let node = self.names.get(instance)?;
        let is_record = |change: &NodeChange| matches!(change, NodeChange::Annotated(key, value) if key == RECORD && value.contains(instance));
        self.cluster.iter().find_map(|entry| match &entry.what {
            Event::NodeChanged { node: name, changes } if name == node => {
                changes.iter().any(is_record).then_some(entry.at)
            }
            _ => None,
        })
    }

    /// Until when our hook holds an instance by what every replica can know at a moment, and how many heartbeats have failed since. One of
    /// two does not hear of the other's heartbeats.
    pub(super) fn hold_by_heartbeats(&self, instance: &str, at: Timestamp) -> (Option<Timestamp>, usize) {
        let (mut until, mut last, mut failed) = (None, None, 0);
        // What was on its way while the process was stopped is carried out first, and heard of later.
        let goes_on =
            |(when, note): &&_| matches!(note, Note::Started(_)) && (at - HEARD..=at).contains(when);
        let unheard_since = self.diary.iter().find(goes_on).map(|(when, _)| *when);
        for entry in self.aws.iter().take_while(|entry| entry.at <= at) {
            match &entry.what {
                aws::Event::EnteredWait { group, instance: id, hook, .. }
                    if id == instance && hook == OURS =>
                {
                    let shortest = self.heartbeats(group, Timestamp::MIN, Timestamp::MAX).min();
                    let seconds = shortest.unwrap_or(SHORTEST_HEARTBEAT);
                    last = Some(entry.at + SignedDuration::from_secs(i64::from(seconds)));
                    (until, failed) = (last, 0);
                }
                aws::Event::Heartbeat { instance: id, .. }
                    if id == instance && unheard_since.is_some_and(|since| since <= entry.at) =>
                {
                    failed += 1;
                }
                aws::Event::Heartbeat { instance: id, until: renewed, .. } if id == instance => {
                    until = if self.scenario.program.replicas > 1 { last } else { Some(*renewed) };
                    (last, failed) = (Some(*renewed), 0);
                }
                aws::Event::Called {
                    operation: Operation::RecordLifecycleActionHeartbeat,
                    arguments,
                    outcome,
                } if *outcome != Outcome::Answered
                    && arguments.get("InstanceId").is_some_and(|id| id == instance) =>
                {
                    failed += 1;
                }
                _ => {}
            }
        }
        (until, failed)
    }

    /// Whether pods on the instance with this grace may be cut into at a moment.
    pub(super) fn time_is_up(&self, instance: &str, grace: i64, at: Timestamp) -> bool {
        let requested = self.requested(instance).unwrap_or(at);
        // Who tolerates everything of its own, and serves the node, is asked last.
        let has_order = |w: &Workload| w.order.is_some() || w.tolerates_all && w.kind == Kind::Bare;
        let has_orders = self.scenario.workloads.iter().any(has_order);
        // DaemonSet pods that are asked have their grace after the flush.
        let flush = i64::from(self.scenario.program.flush) + 30;
        // Some graces fit into no time, and into no sum.
        let grace = SignedDuration::from_secs(grace.max(0)).min(FAR_AHEAD + FAR_AHEAD);
        let is_up = |deadline: Timestamp| {
            // A deadline is shared out among orders: earlier ones lose up to half of the time.
            let share =
                if has_orders { deadline.duration_since(requested) / 2 } else { SignedDuration::ZERO };
            at + grace + SignedDuration::from_secs(flush) + MARGIN + share >= deadline
        };
        let is_not_renewed = || {
            let (until, failed) = self.hold_by_heartbeats(instance, at);
            failed > 0 && until.is_some_and(is_up)
        };
        self.deadline(instance).is_some_and(is_up) || is_not_renewed()
    }
}
