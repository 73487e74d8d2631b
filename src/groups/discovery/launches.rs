//! What is told of launches that fail: in the log, when those of a group begin to and when that is over, and how many, as a metric.

use std::collections::{BTreeMap, BTreeSet};

use crate::aws::Activity;
use crate::groups::failures::{LaunchMetrics, failed_launches, is_short};
use crate::groups::{Group, LaunchFailure};
use crate::k8s::GroupName;
use crate::telemetry::Outage;

/// What was told.
#[derive(Debug, Default)]
pub(super) struct Launches {
    failing: BTreeMap<GroupName, Failing>,
    /// Failed launches that were counted, by their ids, as far as AWS tells of them still.
    counted: BTreeMap<GroupName, BTreeSet<String>>,
}

/// A group whose launches fail.
#[derive(Debug, Default)]
struct Failing {
    outage: Outage,
    /// The desired capacity when they failed last.
    desired: i32,
}

impl Launches {
    /// Counts the failed launches among a group's activities that were not there when they were read last.
    pub(super) fn count(&mut self, group: &GroupName, activities: &[Activity], metrics: &LaunchMetrics) {
        let before = self.counted.remove(group).unwrap_or_default();
        for (id, out_of_resources) in failed_launches(activities) {
            if !before.contains(id) {
                metrics.failed(group, out_of_resources);
            }
        }
        let ids = failed_launches(activities).map(|(id, _)| id.to_owned()).collect();
        self.counted.insert(group.clone(), ids);
    }

    /// Notes what a refresh has shown.
    pub(super) fn note(&mut self, groups: &[Group], metrics: &LaunchMetrics) {
        let names: BTreeSet<&GroupName> = groups.iter().map(|group| &group.asg.name).collect();
        for (name, _) in self.counted.extract_if(.., |name, _| !names.contains(name)) {
            metrics.forget(&name);
        }
        let mut before = std::mem::take(&mut self.failing);
        for group in groups {
            let name = &group.asg.name;
            let known = before.remove(name);
            match (&group.failure, known) {
                (Some(failure), known) => {
                    let mut failing = known.unwrap_or_default();
                    failing.tell(group, failure);
                    self.failing.insert(name.clone(), failing);
                }
                // Another try may be under way.
                (None, Some(known)) if is_short(&group.asg) => _ = self.failing.insert(name.clone(), known),
                (None, Some(known)) => known.tell_end(group),
                (None, None) => {}
            }
        }
    }
}

impl Failing {
    fn tell(&mut self, group: &Group, failure: &LaunchFailure) {
        self.desired = group.asg.desired;
        let Some(outage_seconds) = self.outage.failed() else { return };
        let LaunchFailure { code, message, out_of_resources, launches } = failure;
        let group = group.asg.name.as_str();
        tracing::warn!(
            group,
            code,
            out_of_resources,
            instances = launches,
            outage_seconds,
            error = message,
            "launches of the group fail"
        );
    }

    fn tell_end(mut self, group: &Group) {
        let outage_seconds = self.outage.recovered();
        let (group, desired, before) = (group.asg.name.as_str(), group.asg.desired, self.desired);
        if desired < before {
            tracing::info!(
                group,
                desired,
                before,
                outage_seconds,
                "launches of the group that failed were given up: the desired capacity is lower"
            );
        } else {
            tracing::info!(group, desired, outage_seconds, "launches of the group fail no more");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use tracing::Level;

    use super::*;
    use crate::aws::{AutoScalingGroup, Instance, Lifecycle};
    use crate::clock::Clock;
    use crate::telemetry::captured::{self, warned_groups};

    /// A group of which one instance lives.
    fn group(desired: i32, fails: bool) -> Group {
        let instance = Instance { id: "i-1".into(), lifecycle: Lifecycle::InService, ..Instance::default() };
        let failure = LaunchFailure {
            code: "VcpuLimitExceeded".into(),
            message: "no more".into(),
            out_of_resources: true,
            launches: 1,
        };
        let asg = AutoScalingGroup {
            name: "g".into(),
            desired,
            instances: vec![instance],
            ..AutoScalingGroup::default()
        };
        Group { asg: Arc::new(asg), failure: fails.then_some(failure), ..Group::default() }
    }

    #[test]
    fn a_group_that_tries_again_is_no_other_trouble_and_one_that_is_gone_is_forgotten() {
        let (log, _guard) = captured::log(Level::INFO);
        let (mut launches, metrics) = (Launches::default(), LaunchMetrics::new(Clock::system()));
        for fails in [true, false, true] {
            launches.note(&[group(2, fails)], &metrics);
        }
        assert_eq!(warned_groups(&log), ["g"]);
        launches.note(&[group(1, false)], &metrics);
        assert!(log.text().contains("given up"), "{}", log.text());
        launches.note(&[group(2, true)], &metrics);
        assert_eq!(warned_groups(&log), ["g", "g"]);
        let failed = Activity {
            id: "a".into(),
            started: Timestamp::UNIX_EPOCH,
            status: "Failed".into(),
            description: "Launching a new EC2 instance".into(),
            cause: String::new(),
            message: String::new(),
        };
        launches.count(&"g".into(), &[failed], &metrics);
        let is_shown = || captured::page(|registry| metrics.register(registry)).contains("group=\"g\"");
        assert!(is_shown());
        launches.note(&[], &metrics);
        assert!(!is_shown());
        launches.note(&[group(2, false)], &metrics);
        assert!(launches.failing.is_empty());
        assert!(!log.text().contains("fail no more"), "{}", log.text());
    }
}
