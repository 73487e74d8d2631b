//! The steps of a loop that give up nodes that never came.
//!
//! Source: `removeOldUnregisteredNodes`, `deleteCreatedNodesWithErrors` and `fixNodeGroupSize` of
//! `core/static_autoscaler.go`.

use std::collections::BTreeMap;

use tonic::Status;

use super::journal::{Because, Event};
use super::options::Version;
use super::registry::Failure;
use super::{End, Scan, failed, made_up};

impl Scan<'_> {
    /// Journals a failed scale-up. The newer version then lowers the target size if nodes were late, and ignores a refusal.
    pub(super) async fn note_failure(&mut self, failure: Failure) {
        match failure {
            Failure::TimedOut { group, increase } => {
                self.shared.note(Event::ScaleUpTimedOut { group: group.clone() });
                if self.shared.options.version == Version::Core2026 {
                    let answer = self.provider.decrease_target_size(&group, -increase).await;
                    self.note_decrease(group, -increase, &answer);
                }
            }
            Failure::Refused { group, code, nodes } => {
                self.shared.note(Event::ScaleUpRefused { group, code, nodes });
            }
        }
    }

    /// Deletes no more than the minimum allows. A refusal is tried again in the next loop, and does not end this one.
    pub(super) async fn remove_old_unregistered(&mut self) {
        for (group, mut nodes) in self.memory.registry.old_unregistered() {
            let Ok(target) = self.provider.target_size(&group).await else { continue };
            let min = self.provider.groups().await.iter().find(|g| g.id == group).map_or(0, |g| g.min_size);
            let possible = usize::try_from(target - min).unwrap_or_default();
            nodes.truncate(possible);
            if nodes.is_empty() {
                continue;
            }
            let refused = self.delete_unborn(&group, nodes, Because::Unregistered).await;
            self.memory.instances.remove(&group);
            if refused.is_some_and(|answer| answer.is_err()) {
                return;
            }
        }
    }

    /// In the older version, any deletion ends the loop.
    pub(super) async fn delete_created_with_errors(&mut self) -> Result<(), End> {
        let mut deleted_any = false;
        for (group, nodes) in self.memory.registry.created_with_errors() {
            if self.shared.options.version == Version::V1_30 {
                for node in &nodes {
                    if let Ok(None) = self.provider.group_of(&made_up(node)).await {
                        return Err(End::Skipped("a node that was created with an error has no group"));
                    }
                }
            }
            let Some(answer) = self.delete_unborn(&group, nodes, Because::CreateError).await else {
                continue;
            };
            deleted_any |= answer.is_ok();
            if answer.is_ok() || self.shared.options.version == Version::V1_30 {
                self.memory.instances.remove(&group);
            }
        }
        match (deleted_any, self.shared.options.version) {
            (true, Version::V1_30) => Err(End::Skipped("nodes that were created with errors were removed")),
            (true, Version::Core2026) => {
                self.recalculate().await;
                Ok(())
            }
            (false, _) => Ok(()),
        }
    }

    /// Lowers target sizes that have been wrong for long. A refusal ends the loop.
    pub(super) async fn fix_sizes(&mut self) -> Result<(), End> {
        let wrong = self.memory.registry.sizes_to_fix();
        for (group, delta) in &wrong {
            let answer = self.provider.decrease_target_size(group, *delta).await;
            self.note_decrease(group.clone(), *delta, &answer);
            answer.map_err(failed("fixing sizes"))?;
        }
        if wrong.is_empty() { Ok(()) } else { Err(End::Skipped("a target size was fixed")) }
    }

    /// DeleteNodes for instances without a Node; for all of the group's if it is all-or-none. Does nothing if the group's
    /// options cannot be read.
    async fn delete_unborn(
        &mut self,
        group: &str,
        mut nodes: Vec<String>,
        because: Because,
    ) -> Option<Result<(), Status>> {
        if self.provider.options(group).await.ok()?.zero_or_max {
            nodes = self.provider.instances(group).await.ok()?.into_iter().map(|i| i.id).collect();
        }
        let made_up = nodes.iter().map(|id| made_up(id)).collect();
        let answer = self.provider.delete_nodes(group, made_up).await;
        let error = answer.as_ref().err().map(|status| status.message().to_owned());
        self.shared.note(Event::Deleted { group: group.to_owned(), nodes, because, error });
        Some(answer)
    }

    fn note_decrease(&self, group: String, delta: i32, answer: &Result<(), Status>) {
        let error = answer.as_ref().err().map(|status| status.message().to_owned());
        self.shared.note(Event::Decreased { group, delta, error });
    }

    /// Recomputes with the current target sizes.
    pub(super) async fn recalculate(&mut self) {
        let mut targets = BTreeMap::new();
        for group in self.provider.groups().await {
            if let Ok(target) = self.provider.target_size(&group.id).await {
                targets.insert(group.id, target);
            }
        }
        self.memory.registry.recalculate(&targets);
    }
}
