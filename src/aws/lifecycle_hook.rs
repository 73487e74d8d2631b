//! Lifecycle hooks that hold terminating instances.

use std::time::Duration;

use aws_sdk_autoscaling::types as asg;

use crate::k8s::GroupName;

/// A lifecycle hook that holds terminating instances (`autoscaling:EC2_INSTANCE_TERMINATING`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// Its name.
    pub name: String,
    /// The group it belongs to.
    pub group: GroupName,
    /// How long it holds an instance without a heartbeat.
    pub heartbeat_timeout: Duration,
    /// How long it holds an instance at most: 100 times the heartbeat time-out, up to 48 h, or less if AWS says so.
    ///
    /// Sources: [Amazon EC2 Auto Scaling lifecycle
    /// hooks](https://docs.aws.amazon.com/autoscaling/ec2/userguide/lifecycle-hooks.html);
    /// [LifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_LifecycleHook.html), `GlobalTimeout`.
    pub global_timeout: Duration,
    /// Whether its time-out counts as ABANDON, as AWS has it by default, and not as CONTINUE. For a terminating instance,
    /// ABANDON skips all other hooks, and a group whose lifecycle policy says so keeps the instance.
    pub abandons: bool,
}

/// The transition whose instances it holds.
pub(super) const TERMINATING: &str = "autoscaling:EC2_INSTANCE_TERMINATING";
/// The default result that is not AWS's own.
const CONTINUE: &str = "CONTINUE";

/// Heartbeat time-out of a hook that sets none.
///
/// Source: [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
const DEFAULT_HEARTBEAT: Duration = Duration::from_hours(1);
/// The shortest and the longest heartbeat time-out that AWS allows (same source).
pub(crate) const SHORTEST_HEARTBEAT: Duration = Duration::from_secs(30);
const LONGEST_HEARTBEAT: Duration = Duration::from_hours(2);
/// Endpoints other than AWS's may have hooks that are shorter. No heartbeat comes in time for less than this.
const SHORTEST_SERVED: Duration = Duration::from_secs(3);
/// Longest hold by any hook (same source).
pub(crate) const LONGEST_HOLD: Duration = Duration::from_hours(48);

impl Hook {
    /// A hook of `group`, with the global time-out by AWS's rule and AWS's default result.
    pub fn new(name: impl Into<String>, group: impl Into<GroupName>, heartbeat_timeout: Duration) -> Self {
        let global_timeout = heartbeat_timeout.saturating_mul(100).min(LONGEST_HOLD);
        Self { name: name.into(), group: group.into(), heartbeat_timeout, global_timeout, abandons: true }
    }

    /// The same with another time-out.
    #[must_use]
    pub fn with_timeout(self, heartbeat_timeout: Duration) -> Self {
        if heartbeat_timeout == self.heartbeat_timeout {
            return self;
        }
        Self { abandons: self.abandons, ..Self::new(self.name, self.group, heartbeat_timeout) }
    }

    /// How long a drain may take under it: its longest hold, less a heartbeat time-out.
    pub fn drain_limit(&self) -> Duration {
        self.global_timeout.saturating_sub(self.heartbeat_timeout)
    }

    /// Whether AWS lets it hold for less than by its rule.
    pub fn is_shorter_than_by_rule(&self) -> bool {
        self.global_timeout < Self::new("", "", self.heartbeat_timeout).global_timeout
    }

    /// AWS's word for what its time-out counts as.
    pub fn default_result(&self) -> &'static str {
        if self.abandons { "ABANDON" } else { CONTINUE }
    }

    /// `None` if it is for another transition, or of another group, which AWS was not asked for.
    pub(super) fn from_sdk(group: &GroupName, from: asg::LifecycleHook) -> Option<Self> {
        let is_of_it = from.auto_scaling_group_name.as_deref().is_none_or(|of| of.is_empty() || group == of);
        if !is_of_it || from.lifecycle_transition.as_deref() != Some(TERMINATING) {
            return None;
        }
        let seconds = |from: Option<i32>| from.and_then(|s| u64::try_from(s).ok()).map(Duration::from_secs);
        let heartbeat = match seconds(from.heartbeat_timeout) {
            Some(Duration::ZERO) => SHORTEST_HEARTBEAT,
            Some(told) => told.clamp(SHORTEST_SERVED, LONGEST_HEARTBEAT),
            None => DEFAULT_HEARTBEAT,
        };
        let by_rule = Self::new(from.lifecycle_hook_name?, group.clone(), heartbeat);
        // One that is over before a heartbeat is due says nothing.
        let told = seconds(from.global_timeout).filter(|told| *told > heartbeat);
        let global_timeout = told.map_or(by_rule.global_timeout, |told| told.min(by_rule.global_timeout));
        let abandons = from.default_result.as_deref() != Some(CONTINUE);
        Some(Self { global_timeout, abandons, ..by_rule })
    }
}

/// A time-out that is noted on a Node, which anybody may write, as AWS allows one.
pub(crate) fn possible(told: Duration) -> Duration {
    told.clamp(SHORTEST_HEARTBEAT, LONGEST_HEARTBEAT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_holds_for_a_hundred_heartbeats_or_two_days() {
        assert_eq!(Hook::new("h", "g", Duration::from_mins(1)).global_timeout, Duration::from_mins(100));
        assert_eq!(Hook::new("h", "g", Duration::from_hours(2)).global_timeout, Duration::from_hours(48));
    }

    #[test]
    fn a_hook_of_another_group_is_none_of_this_one() {
        let of = |group: Option<&str>| {
            let described = asg::LifecycleHook::builder()
                .lifecycle_hook_name("h")
                .lifecycle_transition(TERMINATING)
                .set_auto_scaling_group_name(group.map(str::to_owned));
            Hook::from_sdk(&"g".into(), described.build()).is_some()
        };
        assert_eq!([of(Some("g")), of(None), of(Some("")), of(Some("another"))], [true, true, true, false]);
    }

    #[test]
    fn what_aws_says_of_a_hooks_longest_hold_counts_where_it_is_shorter() {
        let table = [
            (None, 6_000),
            (Some(300), 300),
            (Some(9_000), 6_000),
            (Some(60), 6_000),
            (Some(0), 6_000),
            (Some(-1), 6_000),
        ];
        for (told, expected) in table {
            let described = asg::LifecycleHook::builder()
                .lifecycle_hook_name("h")
                .lifecycle_transition(TERMINATING)
                .heartbeat_timeout(60)
                .set_global_timeout(told)
                .build();
            let hook = Hook::from_sdk(&"g".into(), described).expect("of terminating instances");
            assert_eq!(hook.global_timeout, Duration::from_secs(expected), "{told:?}");
            assert_eq!(hook.is_shorter_than_by_rule(), expected < 6_000, "{told:?}");
            assert_eq!(hook.clone().with_timeout(hook.heartbeat_timeout), hook);
            let other = hook.with_timeout(Duration::from_mins(2));
            assert_eq!(other.global_timeout, Duration::from_mins(200), "another time-out, another hold");
        }
    }

    #[test]
    fn a_time_out_that_is_told_counts_if_it_can_be_one() {
        let table = [
            (None, 3_600),
            (Some(0), 30),
            (Some(-1), 3_600),
            (Some(1), 3),
            (Some(10), 10),
            (Some(90), 90),
            (Some(i32::MAX), 7_200),
        ];
        for (told, expected) in table {
            let described = asg::LifecycleHook::builder()
                .lifecycle_hook_name("h")
                .lifecycle_transition(TERMINATING)
                .set_heartbeat_timeout(told)
                .build();
            let hook = Hook::from_sdk(&"g".into(), described).expect("of terminating instances");
            assert_eq!(hook, Hook::new("h", "g", Duration::from_secs(expected)), "{told:?}");
        }
    }
}
