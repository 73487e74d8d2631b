//! What is kept of disruption budgets, DaemonSets and volume attachments: what a drain needs.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::ResourceExt;
use kube::core::{PartialObjectMeta, Selector, SelectorExt};

use super::partial::Partial;
use super::pods::PodView;
use super::reflect::{Project, Store};
use crate::k8s::NodeName;

/// A PodDisruptionBudget and how many disruptions it allows now.
#[derive(Clone, Debug, PartialEq)]
pub struct Budget {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.resourceVersion`: shows whether the budget has changed.
    pub resource_version: String,
    /// `status.disruptionsAllowed`.
    pub room: i32,
    selector: Option<Selector>,
}

/// A disruption budget as it was when a pod that it covers was to be evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetSeen {
    /// `namespace/name`.
    pub name: String,
    /// `metadata.resourceVersion`: shows whether the budget has changed since.
    pub resource_version: String,
}

impl From<&Budget> for BudgetSeen {
    fn from(budget: &Budget) -> Self {
        Self { name: budget.full_name(), resource_version: budget.resource_version.clone() }
    }
}

/// Whether these budgets, now `known` by name, may have room again: one has changed since it was seen so, and none is without room. A
/// deleted one has room.
pub fn may_have_room(seen: &[BudgetSeen], known: impl Fn(&str) -> Option<Arc<Budget>>) -> bool {
    let known: Vec<_> = seen.iter().map(|seen| (seen, known(&seen.name))).collect();
    let has_changed = known
        .iter()
        .any(|(seen, now)| now.as_ref().is_none_or(|now| now.resource_version != seen.resource_version));
    has_changed && known.iter().all(|(_, now)| now.as_ref().is_none_or(|now| now.room > 0))
}

impl Budget {
    /// `namespace/name`.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Whether the budget covers this pod. One without a selector covers none, an empty selector all of the
    /// namespace ([PodDisruptionBudget policy/v1](https://kubernetes.io/docs/reference/kubernetes-api/policy-resources/pod-disruption-budget-v1/)).
    pub fn covers(&self, pod: &PodView) -> bool {
        *self.namespace == *pod.name.namespace
            && self.selector.as_ref().is_some_and(|s| s.matches(&pod.labels))
    }
}

impl Project<PodDisruptionBudget> for Budget {
    fn project(budget: &PodDisruptionBudget) -> Self {
        let selector = budget.spec.as_ref().and_then(|spec| spec.selector.clone());
        Self {
            namespace: budget.namespace().unwrap_or_default(),
            name: budget.name_any(),
            resource_version: budget.resource_version().unwrap_or_default(),
            room: budget.status.as_ref().and_then(|status| status.disruptions_allowed).unwrap_or_default(),
            selector: selector.and_then(|selector| Selector::try_from(selector).ok()),
        }
    }

    fn key(budget: &PodDisruptionBudget) -> String {
        format!("{}/{}", budget.namespace().unwrap_or_default(), budget.name_any())
    }
}

/// A DaemonSet that exists, kept under its UID.
#[derive(Clone, Debug, PartialEq)]
pub struct Existing;

impl Project<PartialObjectMeta<DaemonSet>> for Existing {
    fn project(_: &PartialObjectMeta<DaemonSet>) -> Self {
        Self
    }

    fn key(object: &PartialObjectMeta<DaemonSet>) -> String {
        object.uid().unwrap_or_default()
    }
}

/// A volume attached to a node.
#[derive(Clone, Debug, PartialEq)]
pub struct Attachment {
    /// `spec.nodeName`.
    pub node: NodeName,
}

impl Project<Partial<VolumeAttachment>> for Attachment {
    fn project(object: &Partial<VolumeAttachment>) -> Self {
        Self { node: object.0.spec.node_name.as_str().into() }
    }

    fn key(object: &Partial<VolumeAttachment>) -> String {
        object.name_any()
    }
}

impl Store<Attachment> {
    /// How many volumes are attached to a node.
    pub fn count_on(&self, node: &str) -> usize {
        self.count(|attachment| attachment.node == node)
    }
}

impl Store<Budget> {
    /// The budgets that cover a pod, by name.
    pub fn covering(&self, pod: &PodView) -> Vec<Arc<Budget>> {
        self.matching(&format!("{}/", pod.name.namespace), |budget| budget.covers(pod))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::policy::v1::PodDisruptionBudgetSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

    use super::*;
    use crate::cluster::{PodName, Sink};

    #[test]
    fn the_status_of_a_daemon_set_wakes_nobody() {
        let store = Store::<Existing>::default();
        let versions = store.versions();
        let of_version = |version: &str| {
            let metadata = ObjectMeta {
                uid: Some("uid".into()),
                resource_version: Some(version.into()),
                ..ObjectMeta::default()
            };
            let object = PartialObjectMeta::<DaemonSet> { metadata, ..PartialObjectMeta::default() };
            store.apply(store.reduce(object));
            *versions.borrow()
        };
        assert_eq!([of_version("1"), of_version("2")], [1, 1]);
    }

    #[test]
    fn a_pod_is_covered_by_the_budgets_of_its_own_namespace() {
        let store = Store::<Budget>::default();
        for (namespace, name) in [("web", "b"), ("web", "a"), ("web-2", "a"), ("we", "a"), ("web0", "a")] {
            store.apply(store.reduce(PodDisruptionBudget {
                metadata: ObjectMeta {
                    namespace: Some(namespace.into()),
                    name: Some(name.into()),
                    ..ObjectMeta::default()
                },
                spec: Some(PodDisruptionBudgetSpec {
                    selector: Some(LabelSelector::default()),
                    ..PodDisruptionBudgetSpec::default()
                }),
                status: None,
            }));
        }
        let pod =
            PodView { name: PodName { namespace: "web".into(), name: "p".into() }, ..PodView::default() };
        let names: Vec<_> = store
            .covering(&pod)
            .iter()
            .map(|budget| (budget.namespace.clone(), budget.name.clone()))
            .collect();
        assert_eq!(names, [("web".into(), "a".into()), ("web".into(), "b".into())]);
    }
}
