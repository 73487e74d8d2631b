//! Lifecycle hooks of the groups, as far as they are ours.
//!
//! AWS tells hooks for one group at a time only. They are asked for when a scale-in needs one, and besides that a few a
//! look, those asked for longest ago first, so that the pace of looks can follow them: an instance that the group puts
//! into Terminating:Wait has to be seen well before its heartbeat time-out has passed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Snapshot;
use crate::aws::{Aws, AwsError};

/// How long a scale-in believes what was said of a group's hooks.
const FRESH: SignedDuration = SignedDuration::from_secs(60);

/// The longest AWS lets any hook hold an instance, whatever its heartbeats.
/// Source: [RecordLifecycleActionHeartbeat](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_RecordLifecycleActionHeartbeat.html).
const LONGEST_HOLD: Duration = Duration::from_hours(48);

/// ... and the number of heartbeat time-outs after which it ends at the latest.
const MOST_HEARTBEATS: u32 = 100;

/// A heartbeat time-out that is not told: AWS's default.
const DEFAULT_HEARTBEAT: Duration = Duration::from_hours(1);

/// The lifecycle transition of a hook that holds instances on their way out.
const TERMINATING: &str = "autoscaling:EC2_INSTANCE_TERMINATING";

/// A lifecycle hook of ours, on a group's way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Name of the group.
    pub group: String,
    /// Name of the hook.
    pub name: String,
    /// How long it waits for a heartbeat.
    pub heartbeat_timeout: Duration,
    /// How long it waits at the most, whatever the heartbeats: min(48 h, 100 × the heartbeat time-out).
    pub global_timeout: Duration,
}

/// What is known of the groups' hooks.
#[derive(Debug)]
pub struct Hooks {
    aws: Aws,
    name: String,
    known: Mutex<BTreeMap<String, (Timestamp, Option<Hook>)>>,
    /// One question at a time for a group: forty nodes of it that drain ask once.
    asking: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl Hooks {
    /// Hooks of this name are ours.
    pub fn new(aws: Aws, name: impl Into<String>) -> Self {
        Self { aws, name: name.into(), known: Mutex::default(), asking: Mutex::default() }
    }

    /// Our terminating hook on a group, if it has one.
    pub async fn of(&self, group: &str, now: Timestamp) -> Result<Option<Hook>, AwsError> {
        let turn = {
            let mut asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(asking.entry(group.to_owned()).or_default())
        };
        let _turn = turn.lock().await;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).get(group).cloned();
        match known {
            Some((asked, hook)) if asked + FRESH > now => Ok(hook),
            _ => self.ask(group, now).await,
        }
    }

    /// Asks AWS, whatever is known.
    pub async fn ask(&self, group: &str, now: Timestamp) -> Result<Option<Hook>, AwsError> {
        let hook = self.aws.lifecycle_hooks(group).await?.iter().find_map(|hook| {
            let ours = hook.lifecycle_hook_name() == Some(&self.name)
                && hook.lifecycle_transition() == Some(TERMINATING);
            ours.then(|| {
                let seconds = |n: Option<i32>| n.and_then(|n| u64::try_from(n).ok()).map(Duration::from_secs);
                let heartbeat_timeout = seconds(hook.heartbeat_timeout()).unwrap_or(DEFAULT_HEARTBEAT);
                let global_timeout = seconds(hook.global_timeout())
                    .unwrap_or(heartbeat_timeout * MOST_HEARTBEATS)
                    .min(LONGEST_HOLD);
                Hook { group: group.to_owned(), name: self.name.clone(), heartbeat_timeout, global_timeout }
            })
        });
        self.known
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(group.to_owned(), (now, hook.clone()));
        Ok(hook)
    }

    /// The groups whose hooks are unknown or were asked for longest ago, at most `most`.
    pub fn stalest(&self, snapshot: &Snapshot, most: usize) -> Vec<String> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let mut groups: Vec<_> = snapshot
            .groups
            .keys()
            .map(|name| (known.get(name).map(|(asked, _)| *asked), name.clone()))
            .collect();
        groups.sort();
        groups.into_iter().take(most).map(|(_, name)| name).collect()
    }

    /// How long the next look at AWS may wait.
    pub fn pace(&self, snapshot: &Snapshot, interval: Duration) -> Duration {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let heartbeats = snapshot.groups.keys().map(|name| match known.get(name) {
            // It may be the shortest that AWS allows.
            None => Some(SHORTEST_HEARTBEAT),
            Some((_, hook)) => hook.as_ref().map(|hook| hook.heartbeat_timeout),
        });
        pace(heartbeats.flatten().min(), interval)
    }
}

/// The shortest heartbeat time-out AWS allows.
/// Source: [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(30);

/// A third of the shortest heartbeat time-out: if one look fails, the next one is still in time.
fn pace(shortest_heartbeat: Option<Duration>, interval: Duration) -> Duration {
    shortest_heartbeat.map_or(interval, |heartbeat| (heartbeat.max(SHORTEST_HEARTBEAT) / 3).min(interval))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_come_three_times_in_the_shortest_heartbeat_time_out() {
        let seconds = Duration::from_secs;
        assert_eq!(pace(None, seconds(60)), seconds(60));
        assert_eq!(pace(Some(seconds(30)), seconds(60)), seconds(10));
        assert_eq!(pace(Some(seconds(60)), seconds(60)), seconds(20));
        assert_eq!(pace(Some(seconds(3_600)), seconds(60)), seconds(60));
        assert_eq!(pace(Some(seconds(3_600)), seconds(5)), seconds(5));
    }
}
