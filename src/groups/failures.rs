//! Why groups cannot launch what they should.
//!
//! A group is short while its desired capacity asks for more than lives. Only such groups' scaling activities are
//! looked at, a few groups a look, and only those since the present size was asked for: what failed before explains
//! nothing. Pure; discovery asks AWS.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::{Group, LaunchFailure, Snapshot};
use crate::aws::Activity;
use crate::clock::elapsed;

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
/// Groups whose activities one look asks for: an outage of a zone makes many groups short at once.
const A_LOOK: usize = 10;

/// The groups that are short, and what is known about it.
#[derive(Clone, Debug, Default)]
pub struct Shortages {
    looked_at: Option<Timestamp>,
    /// Groups of the last look.
    seen: BTreeSet<String>,
    short: BTreeMap<String, Shortage>,
}

#[derive(Clone, Debug)]
struct Shortage {
    /// When we first saw it.
    seen_at: Timestamp,
    /// Desired capacity then.
    desired: i32,
    /// No activity before this can be about it.
    since: Timestamp,
    asked_at: Option<Timestamp>,
    failure: Option<LaunchFailure>,
}

/// Whether the group should have more instances, and may launch them.
pub fn is_short(group: &Group) -> bool {
    let live: i32 = group.live().map(|instance| group.weight(&instance.id)).sum();
    !group.suspended.contains("Launch") && live < group.desired
}

impl Shortages {
    /// Takes note of a look at all groups.
    pub fn observe(&mut self, look: &Snapshot) {
        let now = look.taken_at;
        let mut before = std::mem::take(&mut self.short);
        for (name, group) in look.groups.iter().filter(|(_, group)| is_short(group)) {
            let shortage = match before.remove(name) {
                Some(known) if group.desired <= known.desired => Shortage { desired: group.desired, ..known },
                // New, or for more than before: asked for after the last look that did not show it.
                _ => Shortage {
                    seen_at: now,
                    desired: group.desired,
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
    pub fn due(&self, now: Timestamp) -> Vec<(String, Timestamp)> {
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
    pub fn learn(&mut self, group: &str, now: Timestamp, activities: &[Activity]) {
        if let Some(shortage) = self.short.get_mut(group) {
            shortage.asked_at = Some(now);
            shortage.failure = explain(activities, shortage.since);
        }
    }

    /// Why the group is short, if it is and that is known.
    pub fn failure(&self, group: &str) -> Option<LaunchFailure> {
        self.short.get(group)?.failure.clone()
    }
}

/// The newest failed launch among the activities (newest first) since `since`.
pub fn explain(activities: &[Activity], since: Timestamp) -> Option<LaunchFailure> {
    activities
        .iter()
        .take_while(|activity| activity.started >= since)
        .find(|activity| {
            matches!(activity.status.as_str(), "Failed" | "Cancelled")
                && activity.description.starts_with("Launching")
        })
        .map(|activity| read(&activity.message))
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
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::groups::{Instance, Lifecycle};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).expect("in range")
    }

    fn activity(second: i64, status: &str, description: &str, message: &str) -> Activity {
        Activity {
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
            id: format!("i-{n}"),
            zone: "z".into(),
            lifecycle: Lifecycle::InService,
            protected: false,
        });
        let group = Group { name: "g".into(), desired, instances: instances.collect(), ..Group::default() };
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
            let expected = LaunchFailure { code: code.into(), message: message.into(), out_of_resources };
            assert_eq!(read(message), expected);
        }
    }

    #[test]
    fn only_a_failed_launch_since_the_request_explains_a_shortage() {
        let launch = "Launching a new EC2 instance: i-1";
        let fine = activity(30, "Successful", launch, "");
        let under_way = activity(31, "InProgress", launch, "");
        let terminated = activity(29, "Failed", "Terminating EC2 instance: i-2", "X - y");
        assert_eq!(explain(&[under_way.clone(), fine.clone(), terminated.clone()], at(0)), None);
        let found = explain(&[under_way, fine, terminated, failed(20)], at(10));
        assert_eq!(found.map(|failure| failure.code).as_deref(), Some("VcpuLimitExceeded"));
        assert_eq!(explain(&[failed(20)], at(21)), None);
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
        assert_eq!(shortages.due(at(70)), [("g".to_owned(), since)]);
        shortages.learn("g", at(70), &[failed(61)]);
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
        shortages.learn("g", at(10), &[failed(1)]);
        assert!(shortages.failure("g").is_some());
        shortages.observe(&look(60, 5, 2));
        assert_eq!(shortages.failure("g"), None);
        assert_eq!(shortages.due(at(70)), [("g".to_owned(), at(0) - SKEW)]);
        // A smaller one is still the old request.
        shortages.learn("g", at(70), &[failed(65)]);
        shortages.observe(&look(120, 4, 2));
        assert!(shortages.failure("g").is_some());
    }

    #[test]
    fn a_group_that_may_not_launch_is_not_short() {
        let mut group = Group { desired: 1, ..Group::default() };
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
