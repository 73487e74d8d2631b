//! Since when AWS has held an instance, and until when what ran on it needs it: what is known of the instances that
//! our lifecycle hooks hold, beside the record on the Node.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use crate::aws::{ACTIVITIES_AT_MOST, Activity, Aws, AwsError, Lifecycle};
use crate::clock::{Clock, later};
use crate::k8s::{GroupName, InstanceId};

/// No hook holds an instance for longer.
///
/// Source: [Amazon EC2 Auto Scaling lifecycle
/// hooks](https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html).
const LONGEST_HOLD: SignedDuration = SignedDuration::from_hours(48);

/// What is known of the instances that are held, by instance.
#[derive(Debug, Default)]
pub struct Holds {
    since: watch::Sender<BTreeMap<InstanceId, Timestamp>>,
    /// Until when what ran on an instance whose Node is gone needs it.
    needed: Mutex<BTreeMap<InstanceId, Timestamp>>,
}

impl Holds {
    /// When AWS began to hold the instance, or a moment not long before that.
    pub fn since(&self, instance: &InstanceId) -> Option<Timestamp> {
        self.since.borrow().get(instance).copied()
    }

    /// Changes when more is known.
    pub fn versions(&self) -> watch::Receiver<BTreeMap<InstanceId, Timestamp>> {
        self.since.subscribe()
    }

    /// The Node of an instance is gone; what ran on it needs the instance until then.
    pub(super) fn note_needed(&self, instance: &InstanceId, until: Timestamp, now: Timestamp) {
        let mut needed = self.needed.lock().unwrap_or_else(PoisonError::into_inner);
        needed.retain(|_, until| later(*until, LONGEST_HOLD) > now);
        needed.insert(instance.clone(), until);
    }

    pub(super) fn needed(&self, instance: &InstanceId) -> Option<Timestamp> {
        self.needed.lock().unwrap_or_else(PoisonError::into_inner).get(instance).copied()
    }

    /// Brings it in step with what is held.
    pub(super) fn publish(&self, known: BTreeMap<InstanceId, Timestamp>) {
        self.since.send_if_modified(|before| {
            let changed = *before != known;
            *before = known;
            changed
        });
    }
}

/// By how much AWS's clock may be ahead of the wall's here: what it dates may have been so much earlier.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(1);

/// Asks AWS since when an instance is held, which dates it by the wall's clock.
pub(super) async fn ask(
    aws: &Aws,
    clock: &Clock,
    instance: &InstanceId,
    group: &GroupName,
    lifecycle: Lifecycle,
    seen: Timestamp,
) -> Result<Timestamp, AwsError> {
    let ahead = clock.ahead();
    let seen = later(seen, ahead);
    let activities = aws.scaling_activities(group, later(seen, -LONGEST_HOLD)).await?;
    Ok(later(began(&activities, instance, lifecycle, seen), -ahead - CLOCKS_DIFFER))
}

/// Since when an instance first seen held at `seen` is held, by its group's activities, newest first. The activity begins
/// a while before the hook does. Where a termination is older than all that AWS told, so is the hold. Where AWS tells of
/// all activities and not of this one, its list lags, or says nothing of such holds: nothing is known.
fn began(activities: &[Activity], instance: &InstanceId, lifecycle: Lifecycle, seen: Timestamp) -> Timestamp {
    let its_own = |activity: &&Activity| {
        !activity.description.starts_with("Launching") && activity.description.ends_with(instance.as_str())
    };
    let has_older = activities.len() >= ACTIVITIES_AT_MOST && lifecycle == Lifecycle::TerminatingWait;
    let oldest = activities.last().filter(|_| has_older);
    let known = activities.iter().find(its_own).or(oldest);
    known.map_or(seen, |activity| activity.started.clamp(later(seen, -LONGEST_HOLD), seen))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn the_activity_of_an_instance_tells_since_when_it_is_held() {
        let activity = |second: i64, description: &str| Activity {
            id: String::new(),
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
        assert_eq!(began(&all, &"i-1".into(), held, at(100)), at(70));
        assert_eq!(began(&all, &"i-1".into(), held, at(65)), at(65), "by clocks that differ");
        assert_eq!(began(&all, &"i-3".into(), held, at(100)), at(100), "AWS does not tell of this one yet");
        let many: Vec<_> = (0..ACTIVITIES_AT_MOST as i64).map(|n| activity(900 - n, "Launching")).collect();
        assert_eq!(began(&many, &"i-3".into(), held, at(1_000)), at(401), "longer ago than AWS tells");
        assert_eq!(began(&[], &"i-1".into(), held, at(100)), at(100));
        assert_eq!(
            began(&all[3..], &"i-1".into(), Lifecycle::ReplacingVolumeWait, at(100)),
            at(100),
            "no launch"
        );
    }
}
