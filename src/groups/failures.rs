//! Why groups cannot launch what they should.
//!
//! A group is short while its desired capacity asks for more than lives. Only such groups' scaling activities are
//! looked at, a few groups a look, and only those since the present size was asked for: what failed before explains
//! nothing. Nor does what failed before a launch that is under way: that is the next try. AWS has one activity for each
//! instance, so that no more are taken for failed than there are failed launches; and what has been given up for one of
//! those is not given up for it once more. Pure; discovery asks AWS.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::{LaunchFailure, Snapshot};
use crate::aws::{Activity, AutoScalingGroup};
use crate::clock::elapsed;
use crate::k8s::GroupName;

/// How long a group must have been short before its activities are looked at: a launch that works shows an instance
/// within seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long after a look without a failure the next one comes.
const AGAIN_UNKNOWN: Duration = Duration::from_secs(10);
/// How long a known failure stands before it is looked at again: groups retry every few minutes.
const AGAIN_KNOWN: Duration = Duration::from_mins(1);
/// How far back the activities of a group count that was short when first seen: longer than a group waits between
/// two tries.
const BEFORE_US: Duration = Duration::from_mins(15);
/// By how much AWS's clock and ours may differ.
const SKEW: Duration = Duration::from_secs(5);
/// How far apart the launches of one try may begin.
const ONE_TRY: Duration = Duration::from_secs(5);
/// Groups whose activities one look asks for: an outage of a zone makes many groups short at once.
const A_LOOK: usize = 10;

/// The groups that are short, and what is known about it.
#[derive(Clone, Debug, Default)]
pub struct Shortages {
    looked_at: Option<Timestamp>,
    /// Groups of the last look.
    seen: BTreeSet<GroupName>,
    short: BTreeMap<GroupName, Shortage>,
}

#[derive(Clone, Debug)]
struct Shortage {
    /// When we first saw it.
    seen_at: Timestamp,
    /// Desired capacity at the last look.
    desired: i32,
    /// What lived then.
    live: i32,
    /// The activities of failed launches that explained something at the last look at them, newest first.
    failed: Vec<String>,
    /// Those for which somebody has lowered the desired capacity since.
    spent: BTreeSet<String>,
    /// No activity before this can be about it.
    since: Timestamp,
    asked_at: Option<Timestamp>,
    failure: Option<LaunchFailure>,
}

/// Whether the group should have more instances, and may launch them.
pub fn is_short(group: &AutoScalingGroup) -> bool {
    !group.suspended.contains("Launch") && live(group) < group.desired
}

fn live(group: &AutoScalingGroup) -> i32 {
    group.live().map(|instance| group.weight(&instance.id)).fold(0, i32::saturating_add)
}

impl Shortage {
    /// The same at a later look at the group, which asks for no more.
    fn still(mut self, group: &AutoScalingGroup) -> Self {
        let live = live(group);
        // An instance that is scaled in takes its part of the desired capacity along, and no missing one.
        let scaled_in = self.live.saturating_sub(live).max(0);
        let given_up = self.desired.saturating_sub(group.desired).saturating_sub(scaled_in);
        let given_up = usize::try_from(given_up).unwrap_or(0);
        if let Some(failure) = self.failure.take_if(|_| given_up > 0) {
            self.failure = failure.without(given_up);
            let left = self.failure.as_ref().map_or(0, |rest| rest.launches);
            self.spent.extend(self.failed.drain(left.min(self.failed.len())..));
        }
        Self { desired: group.desired, live, ..self }
    }

    /// Takes note of the group's activities, newest first. Those are told apart by their ids: a launch that began before
    /// another was given up may fail after that.
    fn learn(&mut self, group: &AutoScalingGroup, activities: &[Activity]) {
        self.spent.retain(|id| activities.iter().any(|activity| activity.id == *id));
        let launches = activities.iter().filter(|activity| is_launch(activity));
        let relevant: Vec<_> = launches.filter(|launch| !self.spent.contains(&launch.id)).cloned().collect();
        self.failed =
            relevant.iter().filter(|launch| is_failed(launch)).map(|launch| launch.id.clone()).collect();
        self.failure = explain(group, &relevant, self.since);
    }
}

fn is_launch(activity: &Activity) -> bool {
    activity.description.starts_with("Launching")
}

fn is_failed(activity: &Activity) -> bool {
    matches!(activity.status.as_str(), "Failed" | "Cancelled")
}

impl Shortages {
    /// Takes note of a look at all groups.
    pub fn observe(&mut self, look: &Snapshot) {
        let now = look.taken_at;
        let mut before = std::mem::take(&mut self.short);
        for (name, group) in look.groups.iter().filter(|(_, group)| is_short(&group.asg)) {
            let shortage = match before.remove(name) {
                Some(known) if group.asg.desired <= known.desired => known.still(&group.asg),
                // New, or for more than before: asked for after the last look that did not show it.
                _ => Shortage {
                    seen_at: now,
                    desired: group.asg.desired,
                    live: live(&group.asg),
                    failed: Vec::new(),
                    spent: BTreeSet::new(),
                    since: match self.looked_at {
                        Some(at) if self.seen.contains(name) => at - SKEW,
                        _ => now - BEFORE_US,
                    },
                    asked_at: None,
                    failure: None,
                },
            };
            self.short.insert(name.clone(), shortage);
        }
        self.seen = look.groups.keys().cloned().collect();
        self.looked_at = Some(now);
    }

    /// The groups whose activities should be looked at now, each with the moment back to which they count. Those
    /// asked for longest ago come first.
    pub fn due(&self, now: Timestamp) -> Vec<(GroupName, Timestamp)> {
        let mut due: Vec<_> = self
            .short
            .iter()
            .filter(|(_, shortage)| match shortage.asked_at {
                None => elapsed(shortage.seen_at, now) >= PATIENCE,
                Some(at) if shortage.failure.is_some() => elapsed(at, now) >= AGAIN_KNOWN,
                Some(at) => elapsed(at, now) >= AGAIN_UNKNOWN,
            })
            .collect();
        due.sort_by_key(|(_, shortage)| shortage.asked_at);
        due.into_iter().take(A_LOOK).map(|(name, shortage)| (name.clone(), shortage.since)).collect()
    }

    /// Takes note of a group's activities, newest first.
    pub fn learn(&mut self, group: &AutoScalingGroup, now: Timestamp, activities: &[Activity]) {
        if let Some(shortage) = self.short.get_mut(&group.name) {
            shortage.asked_at = Some(now);
            shortage.learn(group, activities);
        }
    }

    /// Why the group is short, if it is and that is known.
    pub fn failure(&self, group: &str) -> Option<LaunchFailure> {
        self.short.get(group)?.failure.clone()
    }
}

/// The newest failed launch among the activities (newest first) since `since`, and how many of what the group misses failed
/// launches explain.
pub fn explain(group: &AutoScalingGroup, activities: &[Activity], since: Timestamp) -> Option<LaunchFailure> {
    let launches = activities.iter().filter(|activity| is_launch(activity) && activity.started >= since);
    let (failed, others): (Vec<_>, Vec<_>) = launches.partition(|activity| is_failed(activity));
    let under_way: Vec<_> = others.into_iter().filter(|activity| activity.status != "Successful").collect();
    let last_try = under_way.iter().map(|activity| activity.started).max();
    let failed: Vec<_> = failed
        .into_iter()
        .filter(|failed| last_try.is_none_or(|last_try| elapsed(failed.started, last_try) <= ONE_TRY))
        .collect();
    let to_come = under_way.iter().filter(|activity| !is_of_an_instance(group, activity)).count();
    // Of a group that reckons in units it is only told that launches fail.
    let missing = if group.is_weighted() { usize::MAX } else { group.missing() };
    let explained = failed.len().min(missing.saturating_sub(to_come));
    let newest = failed.first().filter(|_| explained > 0)?;
    Some(LaunchFailure { launches: explained, ..read(&newest.message) })
}

/// Whether the launch has brought an instance that the group has.
fn is_of_an_instance(group: &AutoScalingGroup, launch: &Activity) -> bool {
    let mut words = launch.description.split_whitespace();
    words.any(|word| group.instances.iter().any(|instance| instance.id == word))
}

/// Codes for want of capacity or quota: another group may well get what this one cannot.
///
/// Sources: [EC2 error codes](https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html),
/// [Troubleshoot Auto Scaling: instance launch
/// failure](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-instancelaunchfailure.html).
const OUT_OF_RESOURCES: &[&str] = &[
    "InsufficientInstanceCapacity",
    "InsufficientHostCapacity",
    "InsufficientReservedInstanceCapacity",
    "InsufficientCapacity",
    "InsufficientCapacityOnHost",
    "InsufficientFreeAddressesInSubnet",
    "InsufficientAddressCapacity",
    "InsufficientVolumeCapacity",
    "ReservationCapacityExceeded",
    "UnfulfillableCapacity",
    "InstanceLimitExceeded",
    "VcpuLimitExceeded",
    "MaxSpotInstanceCountExceeded",
    "MaxSpotFleetRequestCountExceeded",
    "MaxFleetCountExceeded",
    "MaxIOPSLimitExceeded",
    "VolumeLimitExceeded",
    "NetworkInterfaceLimitExceeded",
    "PrivateIpAddressLimitExceeded",
    "AddressLimitExceeded",
    "SpotMaxPriceTooLow",
];

/// Texts that come without a code, and the code they mean (same sources, and
/// [Insufficient capacity](https://docs.aws.amazon.com/autoscaling/ec2/userguide/ts-as-capacity.html)). In lower case.
const TEXTS: &[(&str, &str)] = &[
    ("do not have sufficient", "InsufficientInstanceCapacity"),
    ("don't have sufficient", "InsufficientInstanceCapacity"),
    ("there is no spot capacity available", "UnfulfillableCapacity"),
    ("unable to fulfill capacity", "UnfulfillableCapacity"),
    ("insufficient capacity", "InsufficientInstanceCapacity"),
    ("insufficient instance capacity", "InsufficientInstanceCapacity"),
    ("more vcpu capacity than your current vcpu limit", "VcpuLimitExceeded"),
    ("max spot instance count exceeded", "MaxSpotInstanceCountExceeded"),
    ("requested more instances", "InstanceLimitExceeded"),
    ("your quota allows for", "InstanceLimitExceeded"),
    ("not enough free addresses in subnet", "InsufficientFreeAddressesInSubnet"),
    ("is lower than the minimum required spot request fulfillment price", "SpotMaxPriceTooLow"),
];

/// The code of a failure whose text tells none.
const NO_CODE: &str = "LaunchFailed";

/// Reads the status message of a failed launch. AWS writes `[Could not launch … Instances. ]CODE - TEXT Launching EC2
/// instance failed.`, or only a text.
fn read(message: &str) -> LaunchFailure {
    let is_code = |word: &&str| {
        word.len() > 4
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '.')
            && word.chars().filter(char::is_ascii_uppercase).count() > 1
    };
    let stated = message.split(" - ").find_map(|part| part.split_whitespace().next_back().filter(is_code));
    let known = || OUT_OF_RESOURCES.iter().copied().find(|code| message.contains(code));
    let implied = || {
        let text = message.to_ascii_lowercase();
        TEXTS.iter().find(|(part, _)| text.contains(part)).map(|&(_, code)| code)
    };
    // A text without " - " has no code in front of it, and its last word must not be taken for one.
    let stated = stated.filter(|_| message.contains(" - "));
    let code = stated.or_else(known).or_else(implied).unwrap_or(NO_CODE);
    LaunchFailure {
        code: code.to_owned(),
        message: message.to_owned(),
        out_of_resources: OUT_OF_RESOURCES.contains(&code),
        launches: 1,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::super::Group;
    use super::*;
    use crate::aws::{Instance, Lifecycle};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn activity(second: i64, status: &str, description: &str, message: &str) -> Activity {
        Activity {
            id: format!("launch at {second}"),
            started: at(second),
            status: status.into(),
            description: description.into(),
            message: message.into(),
        }
    }

    fn failed(second: i64) -> Activity {
        activity(second, "Failed", "Launching a new EC2 instance.  Status Reason: x", "VcpuLimitExceeded - x")
    }

    fn look(second: i64, desired: i32, live: usize) -> Snapshot {
        let instances = (0..live).map(|n| Instance {
            id: format!("i-{n}").into(),
            zone: "z".into(),
            lifecycle: Lifecycle::InService,
            protected: false,
            launched_from: None,
        });
        let group = Group {
            asg: AutoScalingGroup {
                name: "g".into(),
                desired,
                instances: instances.collect(),
                ..AutoScalingGroup::default()
            },
            ..Group::default()
        };
        Snapshot::new(at(second), [Arc::new(group)])
    }

    #[test]
    fn a_status_message_gives_a_code_and_a_class() {
        let table = [
            (
                "We currently do not have sufficient p3.2xlarge capacity in the Availability Zone you requested \
                 (us-east-1a). Our system will be working on provisioning additional capacity. You can currently \
                 get p3.2xlarge capacity by not specifying an Availability Zone in your request or choosing \
                 us-east-1b. Launching EC2 instance failed.",
                "InsufficientInstanceCapacity",
                true,
            ),
            (
                "Could not launch Spot Instances. UnfulfillableCapacity - Unable to fulfill capacity due to your \
                 request configuration. Please adjust your request and try again. Launching EC2 instance failed.",
                "UnfulfillableCapacity",
                true,
            ),
            (
                "Could not launch On-Demand Instances. VcpuLimitExceeded - You have requested more vCPU capacity \
                 than your current vCPU limit of 32 allows for the instance bucket that the specified instance \
                 type belongs to. Launching EC2 instance failed.",
                "VcpuLimitExceeded",
                true,
            ),
            (
                "You have requested more vCPU capacity than your current vCPU limit of 0 allows. Launching EC2 \
                 instance failed.",
                "VcpuLimitExceeded",
                true,
            ),
            (
                "Could not launch Spot Instances. MaxSpotInstanceCountExceeded - Max spot instance count \
                 exceeded. Launching EC2 instance failed.",
                "MaxSpotInstanceCountExceeded",
                true,
            ),
            (
                "There are not enough free addresses in subnet 'subnet-1' to satisfy the requested number of \
                 instances. Launching EC2 instance failed.",
                "InsufficientFreeAddressesInSubnet",
                true,
            ),
            ("InsufficientFreeAddressesInSubnet - no more", "InsufficientFreeAddressesInSubnet", true),
            (
                "Your quota allows for 0 more running instance(s). You requested at least 1. Launching EC2 \
                 instance failed.",
                "InstanceLimitExceeded",
                true,
            ),
            (
                "There is no Spot capacity available that matches your request. Launching EC2 instance failed.",
                "UnfulfillableCapacity",
                true,
            ),
            (
                "Your Spot request price of 0.001 is lower than the minimum required Spot request fulfillment \
                 price of 0.02. Launching EC2 instance failed.",
                "SpotMaxPriceTooLow",
                true,
            ),
            (
                "Unsupported - Your requested instance type (m5.large) is not supported in your requested \
                 Availability Zone (us-east-1e). Launching EC2 instance failed.",
                "LaunchFailed",
                false,
            ),
            (
                "InvalidAMIID.NotFound - The image id '[ami-1]' does not exist. Launching EC2 instance failed.",
                "InvalidAMIID.NotFound",
                false,
            ),
            ("Client.InternalError: Client error on launch", "LaunchFailed", false),
            ("", "LaunchFailed", false),
        ];
        for (message, code, out_of_resources) in table {
            let expected =
                LaunchFailure { code: code.into(), message: message.into(), out_of_resources, launches: 1 };
            assert_eq!(read(message), expected);
        }
    }

    /// A group that has `i-0` to `i-1`, and misses as many more.
    fn short_of(missing: i32) -> AutoScalingGroup {
        look(0, 2 + missing, 2).groups["g"].asg.clone()
    }

    fn launch(second: i64, status: &str, instance: &str) -> Activity {
        activity(second, status, &format!("Launching a new EC2 instance: {instance}"), "")
    }

    #[test]
    fn only_a_failed_launch_since_the_request_explains_a_shortage() {
        let fine = launch(30, "Successful", "i-1");
        let terminated = activity(29, "Failed", "Terminating EC2 instance: i-2", "X - y");
        assert_eq!(explain(&short_of(1), &[fine.clone(), terminated.clone()], at(0)), None);
        let found = explain(&short_of(1), &[fine, terminated, failed(20)], at(10)).expect("explained");
        assert_eq!((found.code.as_str(), found.launches), ("VcpuLimitExceeded", 1));
        assert_eq!(explain(&short_of(1), &[failed(20)], at(21)), None);
    }

    #[test]
    fn what_failed_before_a_launch_that_is_under_way_explains_nothing() {
        let activities = [launch(60, "InProgress", "i-9"), failed(20), failed(19)];
        assert_eq!(explain(&short_of(2), &activities, at(0)), None);
        // Of one try, some fail and some do not.
        let activities = [failed(61), launch(60, "InProgress", "i-9"), failed(59), failed(20)];
        assert_eq!(explain(&short_of(3), &activities, at(0)).map(|f| f.launches), Some(2));
        // What has an instance is not missing any more.
        let activities = [failed(60), launch(60, "PreInService", "i-1")];
        assert_eq!(explain(&short_of(1), &activities, at(0)).map(|f| f.launches), Some(1));
    }

    #[test]
    fn no_more_is_explained_than_has_failed_or_is_missing() {
        let launches = |missing, failures: usize| {
            let activities: Vec<_> = std::iter::repeat_n(failed(20), failures).collect();
            explain(&short_of(missing), &activities, at(0)).map_or(0, |failure| failure.launches)
        };
        assert_eq!([launches(3, 1), launches(3, 3), launches(1, 3), launches(0, 2)], [1, 3, 1, 0]);
        let activities = [failed(20), failed(20), launch(20, "InProgress", "i-9")];
        assert_eq!(explain(&short_of(2), &activities, at(0)).map(|f| f.launches), Some(1));
    }

    #[test]
    fn a_group_is_asked_about_only_while_it_is_short() {
        let mut shortages = Shortages::default();
        shortages.observe(&look(0, 2, 2));
        assert_eq!(shortages.due(at(0)), []);
        shortages.observe(&look(60, 3, 2));
        assert_eq!(shortages.due(at(60)), [], "a launch takes a moment");
        shortages.observe(&look(70, 3, 2));
        let since = at(0) - SKEW;
        assert_eq!(shortages.due(at(70)), [("g".into(), since)]);
        shortages.learn(&look(70, 3, 2).groups["g"].asg, at(70), &[failed(61)]);
        assert!(shortages.failure("g").is_some_and(|failure| failure.out_of_resources));
        assert_eq!(shortages.due(at(80)), [], "what is known stands for a while");
        assert_eq!(shortages.due(at(130)).len(), 1);
        shortages.observe(&look(140, 3, 3));
        assert_eq!(shortages.failure("g"), None);
        assert_eq!(shortages.due(at(300)), []);
    }

    #[test]
    fn an_old_failure_does_not_explain_a_larger_request() {
        let mut shortages = Shortages::default();
        shortages.observe(&look(0, 3, 2));
        shortages.learn(&look(0, 3, 2).groups["g"].asg, at(10), &[failed(1)]);
        assert!(shortages.failure("g").is_some());
        shortages.observe(&look(60, 5, 2));
        assert_eq!(shortages.failure("g"), None);
        assert_eq!(shortages.due(at(70)), [("g".into(), at(0) - SKEW)]);
        // A smaller one is still the old request.
        shortages.learn(&look(60, 5, 2).groups["g"].asg, at(70), &[failed(66), failed(65)]);
        shortages.observe(&look(120, 4, 2));
        assert!(shortages.failure("g").is_some());
    }

    #[test]
    fn what_was_given_up_for_a_failed_launch_is_not_given_up_for_it_again() {
        let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
        let short = |second, desired, live| look(second, desired, live).groups["g"].clone();
        let mut shortages = Shortages::default();
        shortages.observe(&look(0, 6, 2));
        let three = [failed(3), failed(2), failed(1)];
        shortages.learn(&short(0, 6, 2).asg, at(10), &three);
        assert_eq!(explained(&shortages), 3);
        // A node that is scaled in takes its part along, and a launch that works is no failure's.
        shortages.observe(&look(20, 5, 1));
        shortages.observe(&look(21, 5, 2));
        assert_eq!(explained(&shortages), 3);
        shortages.observe(&look(30, 3, 1));
        assert_eq!(explained(&shortages), 2, "of two one was scaled in");
        shortages.learn(&short(30, 4, 1).asg, at(90), &three);
        assert_eq!(explained(&shortages), 2);
        shortages.observe(&look(100, 2, 1));
        shortages.learn(&short(100, 4, 1).asg, at(110), &three);
        assert_eq!(explained(&shortages), 1);
        // The next try is a failure of its own.
        let four = [&[failed(120)][..], &three].concat();
        shortages.learn(&short(110, 4, 1).asg, at(130), &four);
        assert_eq!(explained(&shortages), 2);
    }

    #[test]
    fn a_launch_that_fails_after_another_was_given_up_is_explained_though_it_began_before() {
        let explained = |shortages: &Shortages| shortages.failure("g").map_or(0, |failure| failure.launches);
        let short = |second, desired| look(second, desired, 2).groups["g"].clone();
        let under_way = |second| launch(second, "InProgress", "i-9");
        // The others fail after the size was lowered, or between the last look at activities and that.
        for learned_between in [true, false] {
            let mut shortages = Shortages::default();
            shortages.observe(&look(0, 5, 2));
            shortages.learn(&short(0, 5).asg, at(10), &[under_way(3), under_way(2), failed(1)]);
            assert_eq!(explained(&shortages), 1);
            shortages.observe(&look(16, 4, 2));
            assert_eq!(explained(&shortages), 0);
            if learned_between {
                shortages.learn(&short(16, 4).asg, at(20), &[under_way(3), under_way(2), failed(1)]);
                assert_eq!(explained(&shortages), 0);
            }
            shortages.learn(&short(16, 4).asg, at(40), &[failed(3), failed(2), failed(1)]);
            assert_eq!(explained(&shortages), 2);
        }
    }

    #[test]
    fn of_many_groups_that_are_short_a_few_are_due_at_once_and_those_asked_for_longest_ago_first() {
        let groups = (0..15).map(|n| {
            let asg = AutoScalingGroup {
                name: format!("g{n:02}").into(),
                desired: 1,
                ..AutoScalingGroup::default()
            };
            Arc::new(Group { asg, ..Group::default() })
        });
        let look = Snapshot::new(at(0), groups);
        let mut shortages = Shortages::default();
        shortages.observe(&look);
        let due = |shortages: &Shortages, second| -> Vec<GroupName> {
            shortages.due(at(second)).into_iter().map(|(name, _)| name).collect()
        };
        let first = due(&shortages, 10);
        assert_eq!(first.len(), A_LOOK);
        for (n, name) in (0..).zip(&first) {
            shortages.learn(&look.groups[name].asg, at(20 - n), &[]);
        }
        let then = due(&shortages, 60);
        assert_eq!(then.len(), A_LOOK);
        assert!(then[..5].iter().all(|name| !first.contains(name)), "{then:?}");
        let longest_ago: Vec<_> = first.iter().rev().take(5).cloned().collect();
        assert_eq!(then[5..], longest_ago);
    }

    #[test]
    fn a_group_that_may_not_launch_is_not_short() {
        let mut group = AutoScalingGroup { desired: 1, ..AutoScalingGroup::default() };
        assert!(is_short(&group));
        group.suspended.insert("Launch".into());
        assert!(!is_short(&group));
    }

    proptest! {
        #[test]
        fn no_message_makes_it_panic(message in ".*") {
            let _ = read(&message);
        }
    }
}
