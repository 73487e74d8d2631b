//! The step of a loop that buys nodes for unschedulable pods.
//!
//! Source: `core/scaleup/orchestrator/{orchestrator,executor}.go`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::journal::Event;
use super::options::{Expander, Version};
use super::templates::{Template, nodes};
use super::{End, Scan, failed};
use crate::clock::elapsed;
use crate::provider::proto::NodeGroup;

/// While all pods are younger than this, it waits for more.
const YOUNG: Duration = Duration::from_secs(2);

/// Most nodes bought by one scale-up.
const MOST: i32 = 1_000;

/// A possible purchase of nodes in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Purchase {
    pub(super) nodes: i32,
    pods_helped: usize,
}

/// A group that may grow.
pub(super) struct Candidate {
    pub(super) group: String,
    room: i32,
    pub(super) purchase: Purchase,
}

impl Scan<'_> {
    pub(super) async fn scale_up(&mut self, templates: &BTreeMap<String, Template>) -> Result<(), End> {
        let upcoming = self.memory.registry.upcoming();
        let coming: Vec<Value> = upcoming
            .iter()
            .filter_map(|(group, count)| {
                Some(nodes(templates.get(group)?, &format!("upcoming-{group}"), *count))
            })
            .flatten()
            .collect();
        let unplaced = self.shared.cluster.without_a_place(&coming);
        let age = |name| {
            let created = self.shared.cluster.pod(name)?.metadata.creation_timestamp?;
            Some(elapsed(created.0, self.now))
        };
        let oldest = unplaced.iter().cloned().filter_map(age).max();
        if oldest.is_none_or(|oldest| oldest < YOUNG) {
            return self.enforce_minimum(templates).await;
        }
        if let Some(group) = upcoming.keys().find(|group| !templates.contains_key(*group)) {
            let error = format!("scale-up: failed to find template node for node group {group}");
            return self.refused(error, templates).await;
        }
        if let Some(error) = self.unknown_resources(templates).await {
            return self.refused(error, templates).await;
        }
        let Some((group, delta)) = self.choose(templates, &coming, unplaced.len()).await else {
            return self.enforce_minimum(templates).await;
        };
        match self.increase(&group, delta).await {
            Ok(()) => Ok(()),
            Err(End::Failed(error)) => self.refused(error, templates).await,
            Err(skipped) => Err(skipped),
        }
    }

    /// Why the cluster's cores and memory cannot be added up, which 1.34 and older do for their limits: all groups count, also those
    /// of size 0.
    ///
    /// Source: `coresMemoryTotal` in `core/scaleup/resource/manager.go`.
    async fn unknown_resources(&mut self, templates: &BTreeMap<String, Template>) -> Option<String> {
        if self.shared.options.version == Version::Core2026 {
            return None;
        }
        let groups = self.provider.groups().await;
        let unknown = groups.into_iter().find(|group| !templates.contains_key(&group.id))?;
        Some(format!("scale-up: could not compute total resources: No node info for: {}", unknown.id))
    }

    /// A failed scale-up ends the loop in the older version; the newer goes on.
    async fn refused(&mut self, error: String, templates: &BTreeMap<String, Template>) -> Result<(), End> {
        match self.shared.options.version {
            Version::V1_30 => Err(End::Failed(error)),
            Version::Core2026 => {
                self.shared.note(Event::LoopFailed(error));
                self.enforce_minimum(templates).await
            }
        }
    }

    /// The group to grow, and by how many nodes.
    async fn choose(
        &mut self,
        templates: &BTreeMap<String, Template>,
        coming: &[Value],
        unplaced: usize,
    ) -> Option<(String, i32)> {
        let mut options: Vec<Candidate> = Vec::new();
        for group in self.provider.groups().await {
            let Some(room) = self.room(&group).await else { continue };
            let Some(template) = templates.get(&group.id) else { continue };
            let purchase = estimate(unplaced, |new| {
                let new = nodes(template, &format!("new-{}", group.id), new);
                self.shared.cluster.without_a_place(&[coming, &new].concat()).len()
            });
            options.extend(purchase.map(|purchase| Candidate { group: group.id, room, purchase }));
        }
        let best = match self.shared.options.expander {
            Expander::MostPods => (0..options.len()).reduce(|best, other| {
                if is_better(options[other].purchase, options[best].purchase) { other } else { best }
            }),
            Expander::Price => self.best_by_price(templates, coming, &options).await,
        };
        let Candidate { group, room, purchase } = options.swap_remove(best?);
        Some((group, purchase.nodes.min(room)))
    }

    /// By how many nodes the group may grow now, if at all.
    async fn room(&mut self, group: &NodeGroup) -> Option<i32> {
        let safe = self.memory.registry.is_safe_to_scale_up(&group.id, self.now);
        let target = self.provider.target_size(&group.id).await.ok()?;
        (safe && target < group.max_size).then_some(group.max_size - target)
    }

    async fn increase(&mut self, group: &str, delta: i32) -> Result<(), End> {
        if let Err(status) = self.provider.increase_size(group, delta).await {
            let error = status.message().to_owned();
            self.shared.note(Event::ScaleUpFailed { group: group.to_owned(), error });
            self.memory.registry.register_failed_scale_up(group, self.now);
            return Err(failed("scale-up")(status));
        }
        self.shared.note(Event::ScaledUp { group: group.to_owned(), by: delta });
        self.memory.registry.register_scale_up(group, delta, self.now);
        self.recalculate().await;
        Ok(())
    }

    /// ScaleUpToNodeGroupMinSize.
    async fn enforce_minimum(&mut self, templates: &BTreeMap<String, Template>) -> Result<(), End> {
        if !self.shared.options.enforce_node_group_min_size {
            return Ok(());
        }
        if let Some(error) = self.unknown_resources(templates).await {
            return Err(End::Failed(error));
        }
        for group in self.provider.groups().await {
            let Ok(target) = self.provider.target_size(&group.id).await else { continue };
            let safe = self.memory.registry.is_safe_to_scale_up(&group.id, self.now);
            if target < group.min_size && safe && templates.contains_key(&group.id) {
                self.increase(&group.id, group.min_size - target).await?;
            }
        }
        Ok(())
    }
}

/// The smallest number of nodes that places as many pods as any number would. `unplaced`: pods without a place with this
/// many new nodes; `before`: without any.
fn estimate(before: usize, unplaced: impl Fn(i32) -> usize) -> Option<Purchase> {
    let (mut nodes, mut left) = (0, before);
    while nodes < MOST && left > 0 {
        let next = unplaced(nodes + 1);
        if next >= left {
            break;
        }
        (nodes, left) = (nodes + 1, next);
    }
    (nodes > 0).then_some(Purchase { nodes, pods_helped: before - left })
}

fn is_better(one: Purchase, other: Purchase) -> bool {
    (other.pods_helped, one.nodes) < (one.pods_helped, other.nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_nodes_are_bought_as_help_and_no_more() {
        // Two pods per node; one pod fits nowhere.
        let of_two =
            |before: usize| estimate(before, |nodes| (before - 1).saturating_sub(2 * nodes as usize) + 1);
        assert_eq!(of_two(6), Some(Purchase { nodes: 3, pods_helped: 5 }));
        assert_eq!(of_two(1), None);
        assert_eq!(estimate(0, |_| 0), None);
    }

    #[test]
    fn more_pods_helped_come_first_and_then_fewer_nodes() {
        let of = |pods_helped, nodes| Purchase { nodes, pods_helped };
        assert!(is_better(of(3, 9), of(2, 1)));
        assert!(is_better(of(2, 1), of(2, 2)));
        assert!(!is_better(of(2, 2), of(2, 2)), "the first stays");
        assert!(!is_better(of(1, 1), of(2, 2)));
    }
}
