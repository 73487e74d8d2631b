//! Keeping instances that our lifecycle hook holds from being let go: a heartbeat at half the hook's time-out for each,
//! for as long as it is in Terminating:Wait, or in the :Wait of another state in which a terminating hook holds it.
//!
//! This looks at AWS alone: it goes on while the API server is down and before a restarted program has seen a Node.
//! An instance whose Node never registered has nothing to drain and is completed after a grace period. Since when each is
//! held is found out here as well ([`Holds`]): a deadline counts from then, whatever has become of the record.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;
use tokio::time::timeout;

use super::controller::Shared;
use super::joined::Joined;
use crate::aws::{ACTIVITIES_AT_MOST, Activity, AwsError};
use crate::clock::{elapsed, later};
use crate::groups::hooks::TerminatingHooks;
use crate::groups::{Lifecycle, Snapshot};
use crate::telemetry::chain;

/// How long a Node may take to register before its instance counts as one without: an instance that is taken out
/// while it boots may still join. An EKS node joins within about a minute.
const NEVER_REGISTERED: SignedDuration = SignedDuration::from_secs(60);

/// A heartbeat that has failed for some seconds (see [`crate::aws`]) is tried again after this time; the shortest
/// time-out AWS allows is 30 s.
const RETRY: SignedDuration = SignedDuration::from_secs(1);

/// How long a first heartbeat waits for a look at what the hook is like.
const LOOK_UP: Duration = Duration::from_secs(1);

/// Somebody else's hook holds it: look again after this time whether ours has come.
const FOREIGN: SignedDuration = SignedDuration::from_secs(60);

/// No hook holds an instance for longer.
///
/// Source: [Amazon EC2 Auto Scaling lifecycle
/// hooks](https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html).
const LONGEST_HOLD: SignedDuration = SignedDuration::from_hours(48);

/// A look so long before tells well enough since when an instance is held. After an outage of hours it would have a
/// deadline pass that has only begun.
const CLOSE_ENOUGH: Duration = Duration::from_mins(5);

/// A failed question since when an instance is held is asked again after this time. Deadlines are minutes at least.
const ASK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Since when AWS has held instances, by instance, as far as that is known.
#[derive(Debug, Default)]
pub struct Holds(watch::Sender<BTreeMap<String, Timestamp>>);

impl Holds {
    /// When AWS began to hold the instance, or a moment not long before that.
    pub fn since(&self, instance: &str) -> Option<Timestamp> {
        self.0.borrow().get(instance).copied()
    }

    /// Changes when more is known.
    pub fn versions(&self) -> watch::Receiver<BTreeMap<String, Timestamp>> {
        self.0.subscribe()
    }

    /// Brings it in step with what is held.
    fn publish(&self, held: &BTreeMap<String, Held>) {
        let known: BTreeMap<_, _> =
            held.iter().filter_map(|(instance, held)| Some((instance.clone(), held.since?))).collect();
        self.0.send_if_modified(|before| {
            let changed = *before != known;
            *before = known;
            changed
        });
    }
}

/// An instance that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    group: String,
    /// In which state.
    lifecycle: Lifecycle,
    seen: Timestamp,
    /// When AWS began to hold it, if that is known ...
    since: Option<Timestamp>,
    /// ... and when to ask, if it is not; none while the answer is on its way.
    ask_at: Option<Timestamp>,
    next: Timestamp,
    in_flight: bool,
}

/// What to do for a held instance that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Heartbeat,
    Complete,
}

/// What has been done for a held instance.
enum Done {
    /// A step; the next one after this time.
    Step(String, SignedDuration),
    /// AWS was asked since when it is held.
    Asked(String, Result<Timestamp, AwsError>),
}

/// Decides what is due. `has_node` is none while the Nodes are not known.
fn step(held: &Held, has_node: Option<bool>, now: Timestamp) -> Step {
    if has_node == Some(false) && held.seen + NEVER_REGISTERED <= now {
        Step::Complete
    } else {
        Step::Heartbeat
    }
}

/// Brings `held` in step with the last look at AWS. One that the look before showed at large is held since then at most.
fn observe(
    held: &mut BTreeMap<String, Held>,
    before: Option<&Snapshot>,
    snapshot: &Snapshot,
    now: Timestamp,
) {
    let waiting: BTreeMap<&str, (&str, Lifecycle)> = snapshot
        .groups
        .values()
        .flat_map(|group| group.instances.iter().map(move |instance| (group, instance)))
        .filter(|(_, instance)| instance.lifecycle.is_held())
        .map(|(group, instance)| (instance.id.as_str(), (group.name.as_str(), instance.lifecycle)))
        .collect();
    held.retain(|instance, held| waiting.get(instance.as_str()).is_some_and(|now| now.1 == held.lifecycle));
    for (instance, (group, lifecycle)) in waiting {
        held.entry(instance.to_owned()).or_insert_with(|| {
            let at_large = before.and_then(|before| Some((before.taken_at, before.instance(instance)?.1)));
            let since = at_large
                .filter(|(_, instance)| !instance.lifecycle.is_held())
                .map(|(taken_at, _)| taken_at)
                .filter(|taken_at| elapsed(*taken_at, snapshot.taken_at) <= CLOSE_ENOUGH);
            let ask_at = since.is_none().then_some(now);
            Held { group: group.to_owned(), lifecycle, seen: now, since, ask_at, next: now, in_flight: false }
        });
    }
}

/// Since when an instance first seen held at `seen` is held, by its group's activities, newest first. The activity begins
/// a while before the hook does. Where a termination is older than all that AWS told, so is the hold. Where AWS tells of
/// all activities and not of this one, its list lags, or says nothing of such holds: nothing is known.
fn began(activities: &[Activity], instance: &str, lifecycle: Lifecycle, seen: Timestamp) -> Timestamp {
    let its_own = |activity: &&Activity| {
        !activity.description.starts_with("Launching") && activity.description.ends_with(instance)
    };
    let has_older = activities.len() >= ACTIVITIES_AT_MOST && lifecycle == Lifecycle::TerminatingWait;
    let oldest = activities.last().filter(|_| has_older);
    let known = activities.iter().find(its_own).or(oldest);
    known.map_or(seen, |activity| activity.started.clamp(later(seen, -LONGEST_HOLD), seen))
}

/// Holds instances, for ever.
pub(super) async fn hold(shared: Arc<Shared>) {
    let mut held: BTreeMap<String, Held> = BTreeMap::new();
    let mut running: FuturesUnordered<BoxFuture<'static, Done>> = FuturesUnordered::new();
    let mut groups = shared.groups.versions();
    let mut leadership = shared.leadership.changes();
    let mut before: Option<Arc<Snapshot>> = None;
    let mut joined = Joined::default();
    loop {
        let now = shared.clock.now();
        if let Some(snapshot) = shared.groups.latest() {
            joined.look(&shared, &snapshot);
            observe(&mut held, before.as_deref(), &snapshot, now);
            before = Some(snapshot);
        }
        shared.holds.publish(&held);
        // Two that beat would do no harm, but for the calls.
        let rests = shared.leadership.follows();
        if !rests {
            start_what_is_due(&shared, &mut held, &mut joined, &running, now);
        }
        let next = held
            .values()
            .flat_map(|held| (!held.in_flight).then_some(held.next).into_iter().chain(held.ask_at));
        let next = next.min().filter(|_| !rests);
        let wake = async {
            match next {
                Some(at) => shared.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            Some(done) = running.next() => hear(&mut held, done, shared.clock.now()),
            Ok(()) = groups.changed() => {}
            Ok(()) = leadership.changed() => {}
            () = wake => {}
        }
    }
}

fn start_what_is_due(
    shared: &Arc<Shared>,
    held: &mut BTreeMap<String, Held>,
    joined: &mut Joined,
    running: &FuturesUnordered<BoxFuture<'static, Done>>,
    now: Timestamp,
) {
    for (instance, held) in held {
        if held.next <= now && !held.in_flight {
            let has_node = shared.nodes.is_current().then(|| !shared.nodes.of_instance(instance).is_empty());
            if held.lifecycle.is_warm() && has_node == Some(false) {
                // It goes into the warm pool for the first time, held by a launching hook: not ours.
                held.next = now + FOREIGN;
                continue;
            }
            if step(held, has_node, now) == Step::Complete && !joined.is_ours(shared, &held.group, instance) {
                held.next = now + FOREIGN;
                continue;
            }
            held.in_flight = true;
            // A hook is completed by the one who writes; a heartbeat gives it up to nobody.
            let has_node = if shared.leadership.leads() { has_node } else { None };
            let step = step(held, has_node, now);
            let (shared, group, instance) = (Arc::clone(shared), held.group.clone(), instance.clone());
            running.push(Box::pin(async move {
                let pause = act(&shared, &group, &instance, step).await;
                Done::Step(instance, pause)
            }));
        }
        if held.ask_at.is_some_and(|at| at <= now) {
            held.ask_at = None;
            let (shared, held, instance) = (Arc::clone(shared), held.clone(), instance.clone());
            running.push(Box::pin(async move {
                let since = ask(&shared, &instance, &held).await;
                Done::Asked(instance, since)
            }));
        }
    }
}

fn hear(held: &mut BTreeMap<String, Held>, done: Done, now: Timestamp) {
    match done {
        Done::Step(instance, pause) => {
            if let Some(held) = held.get_mut(&instance) {
                held.in_flight = false;
                held.next = now + pause;
                let registered_by = held.seen + NEVER_REGISTERED;
                if registered_by > now {
                    held.next = held.next.min(registered_by);
                }
            }
        }
        Done::Asked(instance, since) => {
            if let Some(held) = held.get_mut(&instance) {
                match since {
                    Ok(since) => held.since = Some(since),
                    Err(error) => {
                        tracing::warn!(group = held.group, instance, error = %chain(&error), "could not find out since when the instance is held");
                        held.ask_at = Some(now + ASK_AGAIN);
                    }
                }
            }
        }
    }
}

/// Asks AWS since when an instance is held, which dates it by the wall's clock.
async fn ask(shared: &Shared, instance: &str, held: &Held) -> Result<Timestamp, AwsError> {
    let ahead = shared.clock.ahead();
    let seen = later(held.seen, ahead);
    let activities = shared.aws.scaling_activities(&held.group, later(seen, -LONGEST_HOLD)).await?;
    Ok(later(began(&activities, instance, held.lifecycle, seen), -ahead))
}

/// Does a step. Returns how long until the next one.
async fn act(shared: &Shared, group: &str, instance: &str, step: Step) -> SignedDuration {
    // No heartbeat waits for a read that may be throttled: discovery keeps what is known of the hooks fresh.
    let hook = match shared.hooks.last_seen(group) {
        Some(hook) => hook,
        None => match timeout(LOOK_UP, shared.hooks.of(group, shared.clock.now())).await {
            Ok(Ok(TerminatingHooks { ours: Some(hook), .. })) => hook,
            Ok(Ok(_)) => return FOREIGN,
            // Better a heartbeat that nobody waits for than a hook that times out.
            Ok(Err(error)) => {
                tracing::warn!(group, instance, error = %chain(&error), "could not look up the group's lifecycle hooks");
                shared.hooks.presumed(group)
            }
            Err(_) => shared.hooks.presumed(group),
        },
    };
    let half = SignedDuration::try_from(hook.heartbeat_timeout / 2).unwrap_or(RETRY);
    let result = match step {
        Step::Heartbeat => shared.aws.heartbeat(group, &hook.name, instance).await,
        Step::Complete => shared.aws.complete(group, &hook.name, instance).await,
    };
    if step == Step::Heartbeat {
        shared.metrics.beat(result.is_ok());
    }
    match result {
        Ok(()) if step == Step::Complete => {
            tracing::info!(group, instance, "no Node ever registered: the lifecycle hook is completed");
            shared.groups.refresh_soon();
            half
        }
        // Not held by ours any more: the next look at AWS says what became of it.
        Ok(()) | Err(AwsError::NoActiveHook { .. }) => half,
        Err(error) => {
            tracing::warn!(group, instance, error = %chain(&error), "could not keep the lifecycle hook waiting");
            RETRY
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::{Group, Instance};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    fn snapshot(states: &[(&str, Lifecycle)]) -> Snapshot {
        let instances = states
            .iter()
            .map(|&(id, lifecycle)| Instance { id: id.into(), zone: "z".into(), lifecycle, protected: false })
            .collect();
        Snapshot::new(at(0), [Arc::new(Group { name: "g".into(), instances, ..Group::default() })])
    }

    #[test]
    fn what_waits_is_held_at_once_and_what_does_not_is_let_go() {
        let mut held = BTreeMap::new();
        observe(
            &mut held,
            None,
            &snapshot(&[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::InService)]),
            at(10),
        );
        assert_eq!(held.keys().collect::<Vec<_>>(), ["i-1"]);
        assert_eq!(held["i-1"].next, at(10));
        observe(&mut held, None, &snapshot(&[("i-1", Lifecycle::TerminatingWait)]), at(20));
        assert_eq!(held["i-1"].seen, at(10), "seen first, not last");
        observe(&mut held, None, &snapshot(&[("i-1", Lifecycle::TerminatingProceed)]), at(30));
        assert!(held.is_empty());
    }

    #[test]
    fn only_a_node_known_to_be_missing_for_long_is_given_up() {
        let (since, ask_at) = (None, None);
        let lifecycle = Lifecycle::TerminatingWait;
        let held =
            Held { group: "g".into(), lifecycle, seen: at(0), since, ask_at, next: at(0), in_flight: false };
        let table = [
            (Some(true), 1_000, Step::Heartbeat),
            (None, 1_000, Step::Heartbeat),
            (Some(false), 59, Step::Heartbeat),
            (Some(false), 60, Step::Complete),
        ];
        for (has_node, now, expected) in table {
            assert_eq!(step(&held, has_node, at(now)), expected, "{has_node:?} at {now}");
        }
    }

    #[test]
    fn a_hold_begins_after_the_look_that_did_not_show_it_or_is_asked_for() {
        let large = snapshot(&[("i-1", Lifecycle::Terminating)]);
        let mut held = BTreeMap::new();
        let both = snapshot(&[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::TerminatingWait)]);
        observe(&mut held, Some(&large), &both, at(10));
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (Some(at(0)), None));
        assert_eq!((held["i-2"].since, held["i-2"].ask_at), (None, Some(at(10))));
    }

    #[test]
    fn after_a_long_time_without_a_look_it_is_asked_since_when_an_instance_is_held() {
        let mut held = BTreeMap::new();
        let large = snapshot(&[("i-1", Lifecycle::InService)]);
        let mut now = snapshot(&[("i-1", Lifecycle::TerminatingWait)]);
        now.taken_at = at(7_200);
        observe(&mut held, Some(&large), &now, at(7_200));
        assert_eq!((held["i-1"].since, held["i-1"].ask_at), (None, Some(at(7_200))));
    }

    #[test]
    fn the_activity_of_an_instance_tells_since_when_it_is_held() {
        let activity = |second: i64, description: &str| Activity {
            started: at(second),
            status: "InProgress".into(),
            description: description.into(),
            message: String::new(),
        };
        let all = [
            activity(90, "Launching a new EC2 instance: i-1"),
            activity(80, "Terminating EC2 instance: i-2"),
            activity(70, "Terminating EC2 instance: i-1"),
            activity(60, "Launching a new EC2 instance: i-1"),
        ];
        let held = Lifecycle::TerminatingWait;
        assert_eq!(began(&all, "i-1", held, at(100)), at(70));
        assert_eq!(began(&all, "i-1", held, at(65)), at(65), "by clocks that differ");
        assert_eq!(began(&all, "i-3", held, at(100)), at(100), "AWS does not tell of this one yet");
        let many: Vec<_> = (0..ACTIVITIES_AT_MOST as i64).map(|n| activity(900 - n, "Launching")).collect();
        assert_eq!(began(&many, "i-3", held, at(1_000)), at(401), "longer ago than AWS tells");
        assert_eq!(began(&[], "i-1", held, at(100)), at(100));
        assert_eq!(began(&all[3..], "i-1", Lifecycle::ReplacingVolumeWait, at(100)), at(100), "no launch");
    }
}
