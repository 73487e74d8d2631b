//! How often discovery polls AWS. Pure.
//!
//! Sooner than the interval while only a poll can show progress: a hook may be about to time out, a group may lack a
//! template. A burst of our own changes makes one poll, which is not urgent: the view has them already.
//! cluster-autoscaler's Refresh, every ten seconds, makes none.

use std::time::Duration;

use tokio::time::Instant;

use super::failures::is_short;
use super::hooks::Knowledge;
use super::{Group, Snapshot};
use crate::clock::backoff;

/// The interval while something is changing at AWS: that of cluster-autoscaler's own loop.
const BUSY: Duration = Duration::from_secs(10);
/// The interval while a group lacks a template because something is still to be read: its EKS node group, or a launch
/// template version that is read singly.
const LEARNING: Duration = Duration::from_secs(1);
/// Least time between two polls.
pub(super) const BREATH: Duration = Duration::from_millis(250);
/// Pause between a change of ours and the poll for it: more changes usually follow at once.
const SETTLED: Duration = Duration::from_secs(1);
/// Least time between two polls for our changes: a drain of many nodes makes one a second for minutes.
const APART: Duration = Duration::from_secs(5);
/// Pause after the first failure; it doubles ...
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// ... up to this: a failed poll has already taken seconds, and hooks keep running.
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// Polls in a heartbeat time-out: an instance in Terminating:Wait is seen after a third of it, which leaves two more
/// tries.
const POLLS_PER_HEARTBEAT: u32 = 3;

/// Time to the next poll, unless one is requested sooner.
///
/// Shorter than the interval while a template is missing, an instance is changing state, a group is short for an
/// unknown reason, or hooks are unknown; at most a third of the shortest heartbeat time-out.
pub(super) fn next_refresh(snapshot: &Snapshot, hooks: Knowledge, interval: Duration) -> Duration {
    let is_busy = |group: &Group| {
        group.asg.instances.iter().any(|instance| instance.lifecycle.is_in_transition())
            || is_short(&group.asg) && group.failure.is_none()
    };
    let mut pause = interval;
    if hooks.incomplete || snapshot.groups.values().any(|group| is_busy(group)) {
        pause = pause.min(BUSY);
    }
    if snapshot.groups.values().any(|group| group.template.is_none()) {
        pause = pause.min(LEARNING);
    }
    if let Some(heartbeat) = hooks.shortest {
        pause = pause.min(heartbeat / POLLS_PER_HEARTBEAT);
    }
    pause.max(BREATH)
}

/// When to poll if that was requested at `requested_at` and the last poll began at `began`.
pub(super) fn requested_refresh(began: Instant, requested_at: Instant) -> Instant {
    (requested_at + SETTLED).max(began + APART)
}

/// Pause after `failures` in a row, at most `longest`.
pub(super) fn retry_after(failures: u32, longest: Duration) -> Duration {
    backoff(failures, FIRST_RETRY, longest.clamp(FIRST_RETRY, LONGEST_RETRY))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::aws::{AutoScalingGroup, Instance, Lifecycle};
    use crate::groups::LaunchFailure;
    use crate::template::TemplateError;

    const INTERVAL: Duration = Duration::from_mins(1);

    fn snapshot(desired: i32, states: &[Lifecycle], failure: Option<LaunchFailure>) -> Snapshot {
        let instances = states.iter().enumerate().map(|(n, &lifecycle)| Instance {
            id: format!("i-{n}").into(),
            lifecycle,
            ..Instance::default()
        });
        let group = Group {
            asg: Arc::new(AutoScalingGroup {
                name: "g".into(),
                desired,
                instances: instances.collect(),
                ..AutoScalingGroup::default()
            }),
            failure,
            template: Some(Err(TemplateError::new("of no account here"))),
            ..Group::default()
        };
        Snapshot::new(Timestamp::UNIX_EPOCH, [Arc::new(group)])
    }

    fn hooks(shortest: Option<u64>) -> Knowledge {
        Knowledge { incomplete: false, shortest: shortest.map(Duration::from_secs) }
    }

    #[test]
    fn refreshes_come_more_often_while_something_is_under_way() {
        use Lifecycle::{InService, TerminatingWait};
        let known =
            LaunchFailure { code: "x".into(), message: String::new(), out_of_resources: true, launches: 1 };
        let calm = snapshot(1, &[InService], None);
        let learning = Snapshot::new(Timestamp::UNIX_EPOCH, [Arc::new(Group::default())]);
        for (what, snapshot, hooks, seconds) in [
            ("nothing", &calm, hooks(None), 60),
            ("terminating", &snapshot(1, &[InService, TerminatingWait], None), hooks(None), 10),
            ("short", &snapshot(2, &[InService], None), hooks(None), 10),
            ("short and known why", &snapshot(2, &[InService], Some(known)), hooks(None), 60),
            ("a node group unknown", &learning, hooks(None), 1),
            ("hooks unknown", &calm, Knowledge { incomplete: true, shortest: None }, 10),
            ("a long heartbeat", &calm, hooks(Some(3600)), 60),
            ("a short heartbeat", &calm, hooks(Some(90)), 30),
            ("the shortest heartbeat", &calm, hooks(Some(30)), 10),
        ] {
            assert_eq!(next_refresh(snapshot, hooks, INTERVAL), Duration::from_secs(seconds), "{what}");
        }
    }

    #[test]
    fn a_requested_refresh_comes_soon_and_several_requests_share_one() {
        let began = Instant::now();
        let comes_after = |requested| {
            let requested_at = began + Duration::from_millis(requested);
            requested_refresh(began, requested_at).duration_since(began).as_millis()
        };
        assert_eq!([0, 100, 3_900, 4_100, 60_000].map(comes_after), [5_000, 5_000, 5_000, 5_100, 61_000]);
    }

    #[test]
    fn waits_after_failures_double_up_to_ten_seconds_and_never_last_longer_than_the_pause_between_refreshes()
    {
        let waits =
            |longest| [1, 2, 3, 4, 5, u32::MAX].map(|failures| retry_after(failures, longest).as_secs());
        assert_eq!(waits(INTERVAL), [1, 2, 4, 8, 10, 10]);
        assert_eq!(waits(Duration::from_secs(3)), [1, 2, 3, 3, 3, 3]);
        assert_eq!(waits(Duration::ZERO), [1; 6]);
    }

    proptest! {
        #[test]
        fn a_refresh_is_never_later_than_a_third_of_a_heartbeat(heartbeat in 30..7200u64, interval in 1..600u64) {
            let pause = next_refresh(&snapshot(0, &[], None), hooks(Some(heartbeat)), Duration::from_secs(interval));
            prop_assert!(pause <= Duration::from_secs(heartbeat) / 3);
            prop_assert!(pause <= Duration::from_secs(interval));
        }
    }
}
