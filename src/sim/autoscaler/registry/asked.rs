//! The registry's results for one loop.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::{AcceptableRange, GroupFacts, Readiness, Registry, has_create_error};
use crate::sim::autoscaler::options::Version;

impl Registry {
    pub(super) fn are_there_upcoming_nodes(&self, group: &str) -> bool {
        let Some(range) = self.ranges.get(group) else { return false };
        let readiness = self.readiness_of(group);
        match self.options.version {
            Version::V1_30 => range.target > (readiness.registered - readiness.not_started) as i32,
            Version::Core2026 => upcoming_nodes(&readiness, *range) > 0,
        }
    }

    /// IsNodeGroupScalingUp.
    pub fn is_scaling_up(&self, group: &str) -> bool {
        self.are_there_upcoming_nodes(group) && self.requests.contains_key(group)
    }

    /// GetUpcomingNodes: for each group, the nodes that are counted on although not ready.
    pub fn upcoming(&self) -> BTreeMap<String, i32> {
        let of = |(group, range): (&String, &AcceptableRange)| {
            let counts = match self.options.version {
                Version::V1_30 => true,
                Version::Core2026 => {
                    self.requests.contains_key(group) && !self.backoff.is_backed_off(group, self.now)
                }
            };
            let upcoming = upcoming_nodes(&self.readiness_of(group), *range);
            (counts && upcoming > 0).then(|| (group.clone(), upcoming))
        };
        self.ranges.iter().filter_map(of).collect()
    }

    /// IsClusterHealthy.
    pub fn is_cluster_healthy(&self) -> bool {
        let unready = self.total.unready;
        unready <= self.options.ok_total_unready
            || unready * 100 <= self.options.max_unready_percentage * self.look.nodes.len()
    }

    /// NodeGroupScaleUpSafety: healthy and not backed off.
    pub fn is_safe_to_scale_up(&self, group: &str, now: Timestamp) -> bool {
        self.is_healthy(group) && !self.backoff.is_backed_off(group, now)
    }

    /// Whether the group is backed off after a failed scale-up.
    pub fn is_backed_off(&self, group: &str, now: Timestamp) -> bool {
        self.backoff.is_backed_off(group, now)
    }

    fn is_healthy(&self, group: &str) -> bool {
        let Some(range) = self.ranges.get(group) else { return false };
        let Some(readiness) = self.readiness.get(group) else {
            return range.target == 0 || range.min == 0 && range.target > 0;
        };
        let missing = (range.min - readiness.ready as i32).max(0) as usize;
        let there = readiness.ready + readiness.unready + readiness.not_started;
        missing <= self.options.ok_total_unready
            || missing * 100 <= self.options.max_unready_percentage * there
    }

    /// The instances of each group that have been unregistered for too long.
    pub fn old_unregistered(&self) -> BTreeMap<String, Vec<String>> {
        let mut old: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (id, group) in &self.look.unregistered {
            if let Some(group) = group.as_ref().filter(|group| self.is_old(id, group)) {
                old.entry(group.clone()).or_default().push(id.clone());
            }
        }
        old
    }

    /// The instances of each group that are listed with an error.
    pub fn created_with_errors(&self) -> BTreeMap<String, Vec<String>> {
        let of = |group: &GroupFacts| {
            let failed = group.instances.iter().filter(|i| has_create_error(i));
            (group.id.clone(), failed.map(|i| i.id.clone()).collect::<Vec<_>>())
        };
        self.look.groups.iter().map(of).filter(|(_, failed)| !failed.is_empty()).collect()
    }

    /// fixNodeGroupSize: the groups whose target size must go down, in the provider's order, and by how much.
    pub fn sizes_to_fix(&self) -> Vec<(String, i32)> {
        let of = |group: &GroupFacts| {
            let wrong = self.incorrect.get(&group.id)?;
            let delta = wrong.current - wrong.expected;
            (wrong.since + group.provision_time < self.now && delta < 0).then(|| (group.id.clone(), delta))
        };
        self.look.groups.iter().filter_map(of).collect()
    }

    /// The readiness of a group's nodes.
    pub fn readiness_of(&self, group: &str) -> Readiness {
        self.readiness.get(group).cloned().unwrap_or_default()
    }

    /// The groups as the provider described them.
    pub fn groups(&self) -> &[GroupFacts] {
        &self.look.groups
    }
}

fn upcoming_nodes(readiness: &Readiness, range: AcceptableRange) -> i32 {
    range.target - (readiness.ready + readiness.unready + readiness.long_unregistered) as i32
}
