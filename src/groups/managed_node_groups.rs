//! Cache of the EKS managed node groups behind the groups, filled a few at a time.
//!
//! - A group belongs to a managed node group if it has the tags that EKS sets ([`Key::of`]).
//! - The refresh that first sees a node group does not ask for it: that refresh waits for nothing it can do without.
//! - No failure is fatal: the last answer stays. Without one, templates are made without it once the look-up has failed.
//! - [`ManagedNodeGroups::due`] decides what to ask for, [`ManagedNodeGroups::learn`] what an answer changes: both pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use jiff::Timestamp;

use crate::aws::{AutoScalingGroup, Aws, AwsError, ManagedNodeGroup};
use crate::clock::elapsed;
use crate::k8s::names;

/// How long an answer is used: people seldom change labels and taints of a node group.
const FRESH: Duration = Duration::from_mins(5);
/// Pause after a transient failure: a node group that always fails leaves every other refresh to the rest.
const RETRY: Duration = Duration::from_mins(2);
/// Pause after a refusal: somebody has to change a policy first.
const REFUSED: Duration = Duration::from_hours(1);
/// Unknown node groups asked for in one refresh: 100 are known after ten refreshes, and EKS is not flooded.
const LEARNING: usize = 10;

/// Names a managed node group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    cluster: String,
    name: String,
}

impl Key {
    /// Name of the managed node group.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// As EKS tags the groups it makes: with `eks:cluster-name` and `eks:nodegroup-name`.
    ///
    /// Sources: the conditions of
    /// [AWSServiceRoleForAmazonEKSNodegroup](https://docs.aws.amazon.com/aws-managed-policy/latest/reference/AWSServiceRoleForAmazonEKSNodegroup.html),
    /// and cluster-autoscaler's
    /// [aws_manager.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_manager.go).
    pub(super) fn of(group: &AutoScalingGroup) -> Option<Self> {
        let tag = |key: &str| group.tags.get(key).filter(|value| !value.is_empty()).cloned();
        Some(Self { cluster: tag(names::EKS_CLUSTER)?, name: tag("eks:nodegroup-name")? })
    }
}

/// What is known of the managed node groups.
#[derive(Debug, Default)]
pub(super) struct ManagedNodeGroups(BTreeMap<Key, Known>);

#[derive(Debug, Default)]
struct Known {
    /// Whether a group of it has no instances, so that only the template describes its nodes.
    is_empty: bool,
    asked_at: Option<Timestamp>,
    /// Whether EKS has ever answered ...
    answered: bool,
    /// ... and its last answer. `None` if there is no such node group.
    node_group: Option<Arc<ManagedNodeGroup>>,
    /// Why the last look-up failed.
    failure: Option<Arc<AwsError>>,
}

impl ManagedNodeGroups {
    /// Looks up `due` ones. Then notes the node groups of `groups` and forgets the others.
    pub(super) async fn refresh(
        &mut self,
        aws: &Aws,
        groups: impl Iterator<Item = &AutoScalingGroup>,
        due: Vec<Key>,
        now: Timestamp,
    ) {
        let asked = due.iter().map(|key| aws.node_group(&key.cluster, &key.name));
        let answers = join_all(asked).await;
        self.learn(due.into_iter().zip(answers), now);
        self.note(groups);
    }

    /// EKS's last answer. `None` if there is no such node group or the look-up failed, `Err` before the first look-up.
    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<ManagedNodeGroup>>, NotAskedYet> {
        let known = self.0.get(key).filter(|known| known.asked_at.is_some()).ok_or(NotAskedYet)?;
        Ok(known.node_group.clone())
    }

    /// Why the last look-up of some node group failed, if one did.
    pub(super) fn trouble(&self) -> Option<Arc<AwsError>> {
        self.0.values().find_map(|known| known.failure.clone())
    }

    /// Notes the groups of a refresh.
    fn note<'a>(&mut self, groups: impl Iterator<Item = &'a AutoScalingGroup>) {
        let mut seen: BTreeMap<Key, bool> = BTreeMap::new();
        for group in groups {
            if let Some(key) = Key::of(group) {
                *seen.entry(key).or_default() |= group.instances.is_empty();
            }
        }
        self.0.retain(|key, _| seen.contains_key(key));
        for (key, is_empty) in seen {
            self.0.entry(key).or_default().is_empty = is_empty;
        }
    }

    /// What to ask for: up to [`LEARNING`] that EKS has never answered for, or else up to `most` others. Those without instances
    /// come first, then those asked for longest ago.
    pub(super) fn due(&self, most: usize, now: Timestamp) -> Vec<Key> {
        let due = self.0.iter().filter(|(_, known)| known.is_due(now));
        let (mut unknown, mut others): (Vec<_>, Vec<_>) = due.partition(|(_, known)| known.is_unknown());
        let (chosen, most) = if unknown.is_empty() { (&mut others, most) } else { (&mut unknown, LEARNING) };
        chosen.sort_by_key(|(key, known)| (!known.is_empty, known.asked_at, *key));
        chosen.iter().take(most).map(|&(key, _)| key.clone()).collect()
    }

    /// Notes the answers. If EKS answered nothing, everything else that is due waits for the next try too: refreshes must not wait for an
    /// unreachable EKS more often.
    fn learn(
        &mut self,
        answers: impl Iterator<Item = (Key, Result<Option<ManagedNodeGroup>, AwsError>)>,
        now: Timestamp,
    ) {
        let (mut lost, mut answered) = (None, false);
        for (key, answer) in answers {
            let Some(known) = self.0.get_mut(&key) else { continue };
            known.asked_at = Some(now);
            known.failure = None;
            match answer {
                Ok(found) => {
                    known.answered = true;
                    known.node_group = found.map(Arc::new);
                }
                Err(error) => known.failure = Some(Arc::new(error)),
            }
            match &known.failure {
                Some(error) if error.is_transient() => lost = Some(Arc::clone(error)),
                _ => answered = true,
            }
        }
        if let (Some(error), false) = (lost, answered) {
            for known in self.0.values_mut().filter(|known| known.is_due(now)) {
                known.asked_at = Some(now);
                known.failure = Some(Arc::clone(&error));
            }
        }
    }
}

/// EKS has not been asked for the node group yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NotAskedYet;

impl Known {
    fn is_due(&self, now: Timestamp) -> bool {
        let pause = match &self.failure {
            None => FRESH,
            Some(error) if error.is_transient() => RETRY,
            Some(_) => REFUSED,
        };
        self.asked_at.is_none_or(|asked_at| elapsed(asked_at, now) >= pause)
    }

    /// Whether EKS has never answered for it, and has not refused to either.
    fn is_unknown(&self) -> bool {
        !self.answered && self.failure.as_ref().is_none_or(|error| error.is_transient())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::{Instance, Lifecycle, Operation};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_second(seconds as i64).expect("in range")
    }

    /// A managed group, with an instance if its name says so.
    fn group(name: &str) -> AutoScalingGroup {
        let instance = Instance { id: name.into(), lifecycle: Lifecycle::InService, ..Instance::default() };
        AutoScalingGroup {
            name: name.into(),
            instances: if name.starts_with("busy") { vec![instance] } else { Vec::new() },
            tags: [("eks:cluster-name", "main"), ("eks:nodegroup-name", name)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..AutoScalingGroup::default()
        }
    }

    fn key(name: &str) -> Key {
        Key { cluster: "main".to_owned(), name: name.to_owned() }
    }

    fn noted(names: &[&str]) -> ManagedNodeGroups {
        let mut node_groups = ManagedNodeGroups::default();
        let groups: Vec<_> = names.iter().map(|name| group(name)).collect();
        node_groups.note(groups.iter());
        node_groups
    }

    fn error(code: &str) -> AwsError {
        AwsError::of_service(Operation::DescribeNodegroup, 400, code, "")
    }

    impl ManagedNodeGroups {
        fn due_names(&self, most: usize, now: u64) -> Vec<String> {
            self.due(most, at(now)).into_iter().map(|key| key.name).collect()
        }

        fn answer(&mut self, name: &str, answer: Result<Option<ManagedNodeGroup>, AwsError>, now: u64) {
            self.learn([(key(name), answer)].into_iter(), at(now));
        }
    }

    #[test]
    fn a_group_is_managed_if_it_has_both_tags() {
        assert_eq!(Key::of(&group("web")), Some(key("web")));
        for missing in ["eks:cluster-name", "eks:nodegroup-name"] {
            let mut other = group("web");
            other.tags.remove(missing);
            assert_eq!(Key::of(&other), None, "without {missing}");
        }
    }

    #[test]
    fn unknown_ones_come_first_and_among_them_those_without_instances() {
        let mut node_groups = noted(&["busy-1", "busy-2", "empty-1", "empty-2"]);
        assert_eq!(node_groups.due_names(1, 0), ["empty-1", "empty-2", "busy-1", "busy-2"]);
        for (name, now) in [("empty-2", 1), ("busy-2", 2), ("empty-1", 3)] {
            node_groups.answer(name, Ok(None), now);
        }
        assert_eq!(node_groups.due_names(1, 1000), ["busy-1"]);
        node_groups.answer("busy-1", Ok(None), 4);
        assert_eq!(node_groups.due_names(9, 1000), ["empty-2", "empty-1", "busy-2", "busy-1"]);
        assert_eq!(node_groups.due_names(1, 1000), ["empty-2"]);
        assert_eq!(node_groups.due_names(9, 300), Vec::<String>::new(), "all are fresh");
    }

    #[test]
    fn many_unknown_ones_are_learned_ten_at_a_time() {
        let names: Vec<_> = (0..25).map(|n| format!("group-{n:02}")).collect();
        let node_groups = noted(&names.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(node_groups.due_names(1, 0), names[..10]);
    }

    #[test]
    fn the_last_answer_stands_while_eks_does_not_answer() {
        let mut node_groups = noted(&["web"]);
        assert_eq!(node_groups.get(&key("web")), Err(NotAskedYet));
        let known = ManagedNodeGroup { disk_gib: Some(80), ..ManagedNodeGroup::default() };
        node_groups.answer("web", Ok(Some(known.clone())), 0);
        node_groups.answer("web", Err(error("ServerException")), 300);
        assert_eq!(node_groups.get(&key("web")), Ok(Some(Arc::new(known))));
        assert!(node_groups.trouble().is_some());
        assert_eq!(node_groups.due_names(1, 419), Vec::<String>::new());
        assert_eq!(node_groups.due_names(1, 420), ["web"]);
        node_groups.answer("web", Ok(None), 420);
        assert_eq!(node_groups.get(&key("web")), Ok(None));
        assert!(node_groups.trouble().is_none());
    }

    #[test]
    fn a_refusal_is_an_answer_for_an_hour() {
        let mut node_groups = noted(&["web", "api"]);
        node_groups.answer("web", Err(error("AccessDeniedException")), 0);
        assert_eq!(node_groups.get(&key("web")), Ok(None));
        assert_eq!(node_groups.get(&key("api")), Err(NotAskedYet), "a policy may allow some and not others");
        node_groups.answer("api", Ok(None), 1);
        assert_eq!(node_groups.due_names(9, 3599), ["api"]);
        assert_eq!(node_groups.due_names(9, 3600), ["web", "api"]);
    }

    #[test]
    fn where_nothing_is_answered_nobody_else_waits() {
        let mut node_groups = noted(&["a", "b", "c"]);
        let lost = [(key("a"), Err(error("ServerException"))), (key("b"), Err(error("ThrottlingException")))];
        node_groups.learn(lost.into_iter(), at(0));
        assert_eq!(node_groups.get(&key("c")), Ok(None));
        assert_eq!(node_groups.due_names(1, 119), Vec::<String>::new());
        assert_eq!(node_groups.due_names(1, 120), ["a", "b", "c"], "still to be learned");
        let mixed = [(key("a"), Err(error("ThrottlingException"))), (key("b"), Ok(None))];
        let mut node_groups = noted(&["a", "b", "c"]);
        node_groups.learn(mixed.into_iter(), at(0));
        assert_eq!(node_groups.get(&key("c")), Err(NotAskedYet));
    }

    #[test]
    fn a_node_group_whose_groups_are_gone_is_forgotten() {
        let mut node_groups = noted(&["web"]);
        node_groups.answer("web", Ok(None), 0);
        node_groups.note([group("api")].iter());
        assert_eq!(node_groups.get(&key("web")), Err(NotAskedYet));
        assert_eq!(node_groups.due_names(9, 0), ["api"]);
    }
}
