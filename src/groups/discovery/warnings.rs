//! Warnings about groups. Each is logged once, and again if its reason was gone meanwhile.

use std::collections::BTreeSet;

use crate::aws::{AutoScalingGroup, Frozen};
use crate::groups::selector::Selectors;
use crate::k8s::GroupName;
use crate::telemetry::Outage;

/// What a look has made of the flags that select groups.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Groups named by `--nodes` that do not exist.
    pub absent: BTreeSet<GroupName>,
    /// Groups that a tag selects, and that belong to another cluster by their other tags: left out.
    pub of_others: BTreeSet<GroupName>,
    /// Groups that are not selected, of which instances already on their way out are finished.
    pub left_behind: BTreeSet<GroupName>,
}

/// Groups that were warned about, by reason.
#[derive(Debug, Default)]
pub(super) struct Warnings {
    selected: BTreeSet<GroupName>,
    /// How many looks in a row have shown none.
    without: u32,
    none: Outage,
    absent: BTreeSet<GroupName>,
    unselected: BTreeSet<GroupName>,
    of_others: BTreeSet<GroupName>,
    left_behind: BTreeSet<GroupName>,
    operated: BTreeSet<GroupName>,
    weighted: BTreeSet<GroupName>,
}

impl Warnings {
    /// What the last look has made of the flags.
    pub(super) fn selection(&self) -> Selection {
        Selection {
            absent: self.absent.clone(),
            of_others: self.of_others.clone(),
            left_behind: self.left_behind.clone(),
        }
    }

    /// Notes the selected groups. Without any, nothing fails and nothing is done, so a warning is repeated, once two looks in a row have
    /// shown none: one answer may be old.
    pub(super) fn note_selected<'a>(&mut self, groups: impl Iterator<Item = &'a GroupName>) {
        let before = self.selected.len();
        let new = newly(&mut self.selected, groups.cloned());
        for group in new {
            tracing::info!(group = group.as_str(), "the group is selected");
        }
        let now = self.selected.len();
        if now != before {
            tracing::info!(groups = now, before, "the number of selected groups has changed");
        }
        self.without = if now > 0 { 0 } else { self.without.saturating_add(1) };
        if now > 0 {
            self.none.recovered();
        } else if self.without > 1 && self.none.failed().is_some() {
            tracing::warn!(
                "no Auto Scaling group is selected: cluster-autoscaler gets no node group, and no node is drained. \
                 Check --node-group-auto-discovery (tags), --nodes (names) and --region"
            );
        }
    }

    /// Groups that were selected, exist, and are not any more.
    pub(super) fn note_unselected(&mut self, groups: impl Iterator<Item = GroupName>) {
        for group in newly(&mut self.unselected, groups) {
            tracing::warn!(
                group = group.as_str(),
                "the group's tags do not select it any more: cluster-autoscaler loses the node group, and instances that it ends from now \
                on are neither drained nor held"
            );
        }
    }

    /// Groups named by flag that do not exist.
    pub(super) fn note_absent(&mut self, names: impl Iterator<Item = GroupName>) {
        for group in newly(&mut self.absent, names) {
            tracing::warn!(group = group.as_str(), "a group named by --nodes does not exist");
        }
    }

    /// Groups that belong to another cluster by their tags, which are left out: without Nodes here, their instances would be ended as ones
    /// that never joined.
    pub(super) fn note_of_others<'a>(
        &mut self,
        groups: impl Iterator<Item = &'a AutoScalingGroup>,
        selectors: &Selectors,
    ) -> &BTreeSet<GroupName> {
        let of_others = groups.filter(|group| selectors.is_of_another_cluster(group));
        for group in newly(&mut self.of_others, of_others.map(|group| group.name.clone())) {
            tracing::warn!(
                group = group.as_str(),
                "the group is selected, but its tags name another cluster: it is left out. Is --cluster-name this cluster's name? \
                 A group named by --nodes is taken whatever its tags say"
            );
        }
        &self.of_others
    }

    /// Groups that are no longer selected and still have instances on their way out.
    pub(super) fn note_left_behind(&mut self, groups: impl Iterator<Item = GroupName>) {
        for group in newly(&mut self.left_behind, groups) {
            tracing::warn!(
                group = group.as_str(),
                "the group is no longer selected: instances already on their way out are finished, nothing else is done"
            );
        }
    }

    /// Groups that an AWS service operates.
    pub(super) fn note_operated<'a>(&mut self, groups: impl Iterator<Item = &'a AutoScalingGroup> + Clone) {
        let operator = |group: &'a AutoScalingGroup| match &group.frozen {
            Some(Frozen::OperatedBy(principal)) => Some((&group.name, principal)),
            _ => None,
        };
        let operated = groups.filter_map(operator);
        let new: BTreeSet<GroupName> =
            newly(&mut self.operated, operated.clone().map(|(name, _)| name.clone())).collect();
        for (group, operator) in operated.filter(|(name, _)| new.contains(*name)) {
            tracing::warn!(
                group = group.as_str(),
                operator,
                "the group is managed by an AWS service, which alone may change it: it is neither grown nor shrunk"
            );
        }
    }

    /// Groups that give their instances weights.
    pub(super) fn note_weighted(&mut self, groups: impl Iterator<Item = GroupName>) {
        for group in newly(&mut self.weighted, groups) {
            tracing::warn!(
                group = group.as_str(),
                "the group gives its instances weights: its sizes are units, so it is not grown; its nodes can be \
                 scaled in"
            );
        }
    }
}

/// Replaces `before` and returns what was not in it.
fn newly(
    before: &mut BTreeSet<GroupName>,
    now: impl Iterator<Item = GroupName>,
) -> impl Iterator<Item = GroupName> {
    let earlier = std::mem::replace(before, now.collect());
    before.difference(&earlier).cloned().collect::<Vec<_>>().into_iter()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;
    use crate::telemetry::captured::{self, warned_groups};

    #[test]
    fn a_weighted_group_is_warned_of_once_and_again_after_it_was_not() {
        let (log, _guard) = captured::log(Level::WARN);
        let mut warnings = Warnings::default();
        for groups in [&["g"][..], &["g", "h"], &["h"], &["g", "h"]] {
            warnings.note_weighted(groups.iter().map(|group| (*group).into()));
        }
        assert_eq!(warned_groups(&log), ["g", "h", "g"]);
    }

    #[test]
    fn a_group_that_a_service_operates_is_warned_of_once_and_again_after_it_was_not() {
        let frozen = |name: &str, frozen| AutoScalingGroup {
            name: name.into(),
            frozen: Some(frozen),
            ..AutoScalingGroup::default()
        };
        let operated = |name| frozen(name, Frozen::OperatedBy("ecs.amazonaws.com".into()));
        let deleted = frozen("d", Frozen::Deleting);
        let (log, _guard) = captured::log(Level::WARN);
        let mut warnings = Warnings::default();
        for groups in [&["g"][..], &["g", "h"], &["h"], &["g", "h"]] {
            let groups: Vec<_> = groups.iter().map(|name| operated(name)).chain([deleted.clone()]).collect();
            warnings.note_operated(groups.iter());
        }
        assert_eq!(warned_groups(&log), ["g", "h", "g"]);
        assert!(log.text().contains("ecs.amazonaws.com"));
    }
}
