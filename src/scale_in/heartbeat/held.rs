//! The held instances, and what is due for each. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::aws::{AwsError, Hook, Lifecycle};
use crate::clock::{elapsed, later, signed};
use crate::groups::Snapshot;
use crate::k8s::{GroupName, InstanceId};
use crate::telemetry::chain;

/// First heartbeats of instances held at the same moment are spread over this time. The shortest time-out is 30 s, and
/// three refreshes are due in it.
const FIRST_BEATS: SignedDuration = SignedDuration::from_secs(2);

/// A refresh that showed the instance not yet held gives the start of the hold only if it is no older than this. After an
/// outage of hours, a deadline that has only begun would seem to have passed.
const CLOSE_ENOUGH: Duration = Duration::from_mins(5);

/// An instance missing from refreshes is kept this long: two refreshes at the usual pace.
const MISSED_FOR: Duration = Duration::from_mins(2);

/// Pause before asking again since when an instance is held. Deadlines are minutes at least.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// A held instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) group: GroupName,
    /// State in which it is held.
    pub(super) lifecycle: Lifecycle,
    /// First and last time seen in that state.
    pub(super) seen: Timestamp,
    last_seen: Timestamp,
    /// When AWS began to hold it, if known ...
    pub(super) since: Option<Timestamp>,
    /// ... and when to ask if not; `None` while a question is under way.
    ask_at: Option<Timestamp>,
    pub(super) next: Timestamp,
    in_flight: bool,
    /// Whether this run saw the instance join its group.
    pub(super) is_new: bool,
    /// When to complete the hook for lack of a Node; `None` while it has one, or that is unknown.
    let_go_at: Option<Timestamp>,
    /// Completion was sent; it is repeated at the usual pace.
    is_let_go: bool,
}

/// What to send for a held instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Heartbeat,
    Complete,
}

/// What becomes of a held instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// Heartbeats hold it: it has a Node, or may have one, or the leader lets it go later.
    Held,
    /// Heartbeats hold it until this moment. Then its hook is completed.
    HeldUntil(Timestamp),
    /// Neither: another's hook holds it, or a launching hook, or the leader lets it go.
    LeftAlone,
}

impl Fate {
    /// When its hook is to be completed by us.
    pub(super) fn ends_at(self) -> Option<Timestamp> {
        match self {
            Self::HeldUntil(at) => Some(at),
            Self::Held | Self::LeftAlone => None,
        }
    }
}

/// Result of a call for a held instance.
pub(super) enum Done {
    /// A step was sent; the next is due after this time.
    Step(InstanceId, SignedDuration),
    /// AWS's answer since when it is held.
    Asked(InstanceId, Result<Timestamp, AwsError>),
}

impl Held {
    /// What is due.
    fn step(&self, now: Timestamp) -> Step {
        if self.let_go_at.is_some_and(|at| at <= now) { Step::Complete } else { Step::Heartbeat }
    }

    /// Whether to ask now since when it is held; the question is then under way.
    pub(super) fn takes_question(&mut self, now: Timestamp) -> bool {
        self.ask_at.take_if(|at| *at <= now).is_some()
    }

    /// Whether the next step is due.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        self.next <= now && !self.in_flight
    }

    /// Begins the step that is due.
    pub(super) fn begin(&mut self, now: Timestamp) -> Step {
        let step = self.step(now);
        (self.in_flight, self.is_let_go) = (true, step == Step::Complete);
        step
    }

    /// When something is due for it.
    pub(super) fn wakes_at(&self) -> impl Iterator<Item = Timestamp> + use<> {
        (!self.in_flight).then_some(self.next).into_iter().chain(self.ask_at)
    }

    /// Sets when to let it go; `None`: keep it.
    pub(super) fn plan_to_let_go(&mut self, at: Option<Timestamp>) {
        self.let_go_at = at;
        match at {
            Some(at) if !self.is_let_go => self.next = self.next.min(at),
            Some(_) => {}
            None => self.is_let_go = false,
        }
    }
}

/// Instances that this run saw join their groups.
#[derive(Debug, Default)]
pub(super) struct Newcomers(BTreeSet<InstanceId>);

impl Newcomers {
    /// Adds instances that the refresh before did not show, though it showed their group.
    pub(super) fn observe(&mut self, before: Option<&Snapshot>, snapshot: &Snapshot) {
        self.0.retain(|instance| snapshot.by_instance.contains_key(instance));
        let come = snapshot.by_instance.iter().filter(|(instance, group)| {
            let is_missing = |before: &Snapshot| {
                before.groups.contains_key(*group) && !before.by_instance.contains_key(*instance)
            };
            before.is_some_and(is_missing)
        });
        self.0.extend(come.map(|(instance, _)| instance.clone()));
    }
}

/// Updates `held` from the last refresh. If the refresh before showed an instance not held, it has been held since then
/// at most.
pub(super) fn observe(
    held: &mut BTreeMap<InstanceId, Held>,
    before: Option<&Snapshot>,
    snapshot: &Snapshot,
    newcomers: &Newcomers,
    now: Timestamp,
) {
    let waiting: BTreeMap<&InstanceId, (&GroupName, Lifecycle)> = snapshot
        .groups
        .values()
        .flat_map(|group| group.asg.instances.iter().map(move |instance| (group, instance)))
        .filter(|(_, instance)| instance.lifecycle.is_held())
        .map(|(group, instance)| (&instance.id, (&group.asg.name, instance.lifecycle)))
        .collect();
    held.retain(|instance, held| match waiting.get(instance) {
        Some((_, lifecycle)) => *lifecycle == held.lifecycle,
        // A refresh may leave an instance out, or be an old answer.
        None => snapshot.instance(instance).is_none() && elapsed(held.last_seen, now) <= MISSED_FOR,
    });
    for (instance, (group, lifecycle)) in waiting {
        let entry = held.entry(instance.into()).and_modify(|held| held.last_seen = now);
        entry.or_insert_with(|| {
            let at_large = before.and_then(|before| Some((before.taken_at, before.instance(instance)?.1)));
            let since = at_large
                .filter(|(_, instance)| !instance.lifecycle.is_held())
                .map(|(taken_at, _)| taken_at)
                .filter(|taken_at| elapsed(*taken_at, snapshot.taken_at) <= CLOSE_ENOUGH);
            let ask_at = since.is_none().then_some(now);
            // Held only since the last refresh: there is time to spread the first heartbeats.
            let next = if since.is_some() { later(now, portion(FIRST_BEATS, instance)) } else { now };
            Held {
                group: group.into(),
                lifecycle,
                seen: now,
                last_seen: now,
                since,
                ask_at,
                next,
                in_flight: false,
                is_new: newcomers.0.contains(instance),
                let_go_at: None,
                is_let_go: false,
            }
        });
    }
}

/// Notes the result of a call.
pub(super) fn hear(held: &mut BTreeMap<InstanceId, Held>, done: Done, now: Timestamp) {
    match done {
        Done::Step(instance, pause) => {
            if let Some(held) = held.get_mut(&instance) {
                held.in_flight = false;
                held.next = later(now, pause);
            }
        }
        Done::Asked(instance, since) => {
            if let Some(held) = held.get_mut(&instance) {
                match since {
                    Ok(since) => held.since = Some(since),
                    Err(error) => {
                        tracing::warn!(group = held.group.as_str(), instance = instance.as_str(), error = %chain(&error), "AWS does not say since when the instance is held: asked again in 10 s");
                        held.ask_at = Some(now + ASK_AGAIN);
                    }
                }
            }
        }
    }
}

/// A fraction of `of`: always the same for an instance, mostly different between instances.
fn portion(of: SignedDuration, instance: &InstanceId) -> SignedDuration {
    let mut hasher = DefaultHasher::new();
    instance.hash(&mut hasher);
    let thousandths = i32::try_from(hasher.finish() % 1_000).unwrap_or_default();
    of / 1_000 * thousandths
}

/// Pause between heartbeats: two fifths to half of the hook's time-out, so that instances held at the same moment spread
/// out.
pub(super) fn interval(hook: &Hook, instance: &InstanceId) -> SignedDuration {
    let half = signed(hook.heartbeat_timeout / 2);
    half - portion(half / 5, instance)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::aws::{AutoScalingGroup, Instance};
    use crate::groups::Group;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn snapshot(states: &[(&str, Lifecycle)]) -> Snapshot {
        let instances = states
            .iter()
            .map(|&(id, lifecycle)| Instance {
                id: id.into(),
                zone: "z".into(),
                lifecycle,
                protected: false,
                launched_from: None,
            })
            .collect();
        Snapshot::new(
            at(0),
            [Arc::new(Group {
                asg: AutoScalingGroup { name: "g".into(), instances, ..AutoScalingGroup::default() },
                ..Group::default()
            })],
        )
    }

    fn show(held: &mut BTreeMap<InstanceId, Held>, states: &[(&str, Lifecycle)], now: i64) {
        observe(held, None, &snapshot(states), &Newcomers::default(), at(now));
    }

    #[test]
    fn what_waits_is_held_at_once_and_what_does_not_is_let_go() {
        let mut held = BTreeMap::new();
        show(&mut held, &[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::InService)], 10);
        assert_eq!(held.keys().collect::<Vec<_>>(), ["i-1"]);
        assert_eq!(held["i-1"].next, at(10));
        show(&mut held, &[("i-1", Lifecycle::TerminatingWait)], 20);
        assert_eq!(held["i-1"].seen, at(10), "seen first, not last");
        show(&mut held, &[("i-1", Lifecycle::TerminatingProceed)], 30);
        assert!(held.is_empty());
    }

    fn held() -> Held {
        Held {
            group: "g".into(),
            lifecycle: Lifecycle::TerminatingWait,
            seen: at(0),
            last_seen: at(0),
            since: None,
            ask_at: None,
            next: at(30),
            in_flight: false,
            is_new: true,
            let_go_at: None,
            is_let_go: false,
        }
    }

    #[test]
    fn one_without_a_node_is_let_go_in_time_and_not_told_so_again_at_once() {
        let mut held = held();
        held.plan_to_let_go(Some(at(20)));
        assert_eq!(
            (held.next, held.step(at(19)), held.step(at(20))),
            (at(20), Step::Heartbeat, Step::Complete)
        );
        (held.is_let_go, held.next) = (true, at(50));
        held.plan_to_let_go(Some(at(20)));
        assert_eq!(held.next, at(50));
        held.plan_to_let_go(None);
        assert_eq!(
            (held.step(at(60)), held.is_let_go),
            (Step::Heartbeat, false),
            "its Node has come after all"
        );
    }

    #[test]
    fn one_refresh_that_leaves_an_instance_out_ends_no_hold_and_another_state_begins_a_new_one() {
        let mut held = BTreeMap::new();
        show(&mut held, &[("i-1", Lifecycle::TerminatingWait)], 10);
        show(&mut held, &[], 70);
        show(&mut held, &[], 130);
        assert_eq!(held["i-1"].seen, at(10));
        show(&mut held, &[("i-1", Lifecycle::ReplacingVolumeWait)], 131);
        assert_eq!((held["i-1"].lifecycle, held["i-1"].seen), (Lifecycle::ReplacingVolumeWait, at(131)));
        show(&mut held, &[], 252);
        assert!(held.is_empty());
    }

    #[test]
    fn since_when_an_instance_is_held_is_asked_again_when_aws_did_not_say() {
        let mut held = BTreeMap::from([("i-1".into(), Held { ask_at: None, ..held() })]);
        let operation = crate::aws::Operation::DescribeScalingActivities;
        let error = AwsError::Unreachable { operation, source: "timed out".into() };
        hear(&mut held, Done::Asked("i-1".into(), Err(error)), at(100));
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (None, Some(at(110))));
        hear(&mut held, Done::Asked("i-1".into(), Ok(at(3))), at(112));
        assert_eq!(held["i-1"].since, Some(at(3)));
    }

    #[test]
    fn what_a_refresh_shows_anew_in_a_known_group_has_come_since() {
        let mut newcomers = Newcomers::default();
        let one = snapshot(&[("i-1", Lifecycle::InService)]);
        newcomers.observe(None, &one);
        assert!(newcomers.0.is_empty(), "it may be old");
        let two = snapshot(&[("i-1", Lifecycle::InService), ("i-2", Lifecycle::Pending)]);
        newcomers.observe(Some(&one), &two);
        newcomers.observe(Some(&two), &two);
        assert_eq!(newcomers.0.iter().collect::<Vec<_>>(), ["i-2"]);
        newcomers.observe(Some(&two), &one);
        assert!(newcomers.0.is_empty());
    }

    #[test]
    fn instances_that_are_held_at_once_beat_apart_and_in_time() {
        let hook = Hook::new("ebbtide", "g", Duration::from_mins(1));
        let beats: BTreeSet<_> = (0..100).map(|n| interval(&hook, &format!("i-{n}").into())).collect();
        assert!(beats.len() > 80, "{} of 100", beats.len());
        let in_time = SignedDuration::from_secs(24)..=SignedDuration::from_secs(30);
        assert!(beats.iter().all(|beat| in_time.contains(beat)), "{beats:?}");

        let ids: Vec<String> = (0..100).map(|n| format!("i-{n}")).collect();
        let all = |lifecycle| snapshot(&ids.iter().map(|id| (id.as_str(), lifecycle)).collect::<Vec<_>>());
        let (before, after) = (all(Lifecycle::Terminating), all(Lifecycle::TerminatingWait));
        let mut held = BTreeMap::new();
        observe(&mut held, Some(&before), &after, &Newcomers::default(), at(10));
        let first: BTreeSet<_> = held.values().map(|held| held.next).collect();
        assert!((held.len(), first.len() > 80) == (100, true), "{} of {}", first.len(), held.len());
        assert!(first.iter().all(|next| (at(10)..=at(12)).contains(next)), "{first:?}");
    }

    #[test]
    fn a_call_that_ends_is_of_one_instance_and_no_other() {
        let in_flight = Held { in_flight: true, ..held() };
        let mut held = BTreeMap::from(["i-1", "i-2"].map(|id| (id.into(), in_flight.clone())));
        hear(&mut held, Done::Step("i-2".into(), SignedDuration::from_secs(24)), at(100));
        assert_eq!((held["i-1"].in_flight, held["i-1"].next), (true, at(30)));
        assert_eq!((held["i-2"].in_flight, held["i-2"].next), (false, at(124)));
    }

    #[test]
    fn a_hold_begins_after_the_refresh_that_did_not_show_it_or_is_asked_for() {
        let large = snapshot(&[("i-1", Lifecycle::Terminating)]);
        let mut held = BTreeMap::new();
        let both = snapshot(&[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::TerminatingWait)]);
        observe(&mut held, Some(&large), &both, &Newcomers::default(), at(10));
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (Some(at(0)), None));
        assert_eq!((held["i-2"].since, held["i-2"].ask_at), (None, Some(at(10))));
    }

    #[test]
    fn after_a_long_time_without_a_refresh_it_is_asked_since_when_an_instance_is_held() {
        let mut held = BTreeMap::new();
        let large = snapshot(&[("i-1", Lifecycle::InService)]);
        let mut now = snapshot(&[("i-1", Lifecycle::TerminatingWait)]);
        now.taken_at = at(7_200);
        observe(&mut held, Some(&large), &now, &Newcomers::default(), at(7_200));
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (None, Some(at(7_200))));
    }
}
