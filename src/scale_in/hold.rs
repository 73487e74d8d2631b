//! Keeping instances that our lifecycle hook holds from being let go: a heartbeat at half the hook's time-out for each,
//! for as long as it is in Terminating:Wait.
//!
//! This looks at AWS alone: it goes on while the API server is down and before a restarted program has seen a Node.
//! An instance whose Node never registered has nothing to drain and is completed after a grace period.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use jiff::{SignedDuration, Timestamp};

use super::controller::Shared;
use crate::aws::AwsError;
use crate::groups::{Lifecycle, Snapshot};
use crate::telemetry::chain;

/// How long a Node may take to register before its instance counts as one without: an instance that is taken out
/// while it boots may still join. An EKS node joins within about a minute.
const NEVER_REGISTERED: SignedDuration = SignedDuration::from_secs(60);

/// A failed heartbeat is repeated after this time; the shortest time-out AWS allows is 30 s.
const RETRY: SignedDuration = SignedDuration::from_secs(3);

/// Somebody else's hook holds it: look again after this time whether ours has come.
const FOREIGN: SignedDuration = SignedDuration::from_secs(60);

/// An instance that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    group: String,
    seen: Timestamp,
    next: Timestamp,
    in_flight: bool,
}

/// What to do for a held instance that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Heartbeat,
    Complete,
}

/// Decides what is due. `has_node` is none while the Nodes are not known.
fn step(held: &Held, has_node: Option<bool>, now: Timestamp) -> Step {
    if has_node == Some(false) && held.seen + NEVER_REGISTERED <= now {
        Step::Complete
    } else {
        Step::Heartbeat
    }
}

/// Brings `held` in step with the last look at AWS.
fn observe(held: &mut BTreeMap<String, Held>, snapshot: &Snapshot, now: Timestamp) {
    let waiting: BTreeMap<&str, &str> = snapshot
        .groups
        .values()
        .flat_map(|group| group.instances.iter().map(move |instance| (group, instance)))
        .filter(|(_, instance)| instance.lifecycle == Lifecycle::TerminatingWait)
        .map(|(group, instance)| (instance.id.as_str(), group.name.as_str()))
        .collect();
    held.retain(|instance, _| waiting.contains_key(instance.as_str()));
    for (instance, group) in waiting {
        held.entry(instance.to_owned()).or_insert_with(|| Held {
            group: group.to_owned(),
            seen: now,
            next: now,
            in_flight: false,
        });
    }
}

/// Holds instances, for ever.
pub(super) async fn hold(shared: Arc<Shared>) {
    let mut held: BTreeMap<String, Held> = BTreeMap::new();
    let mut running: FuturesUnordered<BoxFuture<'static, (String, SignedDuration)>> = FuturesUnordered::new();
    let mut groups = shared.groups.versions();
    loop {
        let now = shared.clock.now();
        if let Some(snapshot) = shared.groups.latest() {
            observe(&mut held, &snapshot, now);
        }
        for (instance, held) in held.iter_mut().filter(|(_, held)| held.next <= now && !held.in_flight) {
            held.in_flight = true;
            let has_node = shared.nodes.is_synced().then(|| shared.nodes.of_instance(instance).is_some());
            let step = step(held, has_node, now);
            let (shared, group, instance) = (Arc::clone(&shared), held.group.clone(), instance.clone());
            running.push(Box::pin(async move {
                let pause = act(&shared, &group, &instance, step).await;
                (instance, pause)
            }));
        }
        let next = held.values().filter(|held| !held.in_flight).map(|held| held.next).min();
        let wake = async {
            match next {
                Some(at) => shared.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            Some((instance, pause)) = running.next() => {
                let now = shared.clock.now();
                if let Some(held) = held.get_mut(&instance) {
                    held.in_flight = false;
                    held.next = now + pause;
                    let registered_by = held.seen + NEVER_REGISTERED;
                    if registered_by > now {
                        held.next = held.next.min(registered_by);
                    }
                }
            }
            Ok(()) = groups.changed() => {}
            () = wake => {}
        }
    }
}

/// Does a step. Returns how long until the next one.
async fn act(shared: &Shared, group: &str, instance: &str, step: Step) -> SignedDuration {
    // No heartbeat waits for a read that may be throttled: discovery keeps what is known of the hooks fresh.
    let hook = match shared.hooks.last_seen(group) {
        Some(hook) => hook,
        None => match shared.hooks.of(group, shared.clock.now()).await {
            Ok(Some(hook)) => hook,
            Ok(None) => return FOREIGN,
            // Better a heartbeat that nobody waits for than a hook that times out.
            Err(error) => {
                tracing::warn!(group, instance, error = %chain(&error), "could not look up the group's lifecycle hooks");
                shared.hooks.presumed(group)
            }
        },
    };
    // The Node watch may be behind: nothing is let go on its word alone.
    let step = match step {
        Step::Complete if !matches!(shared.cluster.has_node_of(instance).await, Ok(false)) => Step::Heartbeat,
        step => step,
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
            &snapshot(&[("i-1", Lifecycle::TerminatingWait), ("i-2", Lifecycle::InService)]),
            at(10),
        );
        assert_eq!(held.keys().collect::<Vec<_>>(), ["i-1"]);
        assert_eq!(held["i-1"].next, at(10));
        observe(&mut held, &snapshot(&[("i-1", Lifecycle::TerminatingWait)]), at(20));
        assert_eq!(held["i-1"].seen, at(10), "seen first, not last");
        observe(&mut held, &snapshot(&[("i-1", Lifecycle::TerminatingProceed)]), at(30));
        assert!(held.is_empty());
    }

    #[test]
    fn only_a_node_known_to_be_missing_for_long_is_given_up() {
        let held = Held { group: "g".into(), seen: at(0), next: at(0), in_flight: false };
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
}
