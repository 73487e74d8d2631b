//! Which cluster a group belongs to, by its tags: two clusters may share an account. Pure.
//!
//! The first kind of tag found decides: `kubernetes.io/cluster/NAME` (its nodes join by it), `eks:cluster-name` (set by
//! EKS), `k8s.io/cluster-autoscaler/NAME` (for discovery; may name anything). `Selectors::is_of_another_cluster` says when that does not
//! matter.
//!
//! Source: [tags of Amazon EKS](https://docs.aws.amazon.com/eks/latest/userguide/eks-using-tags.html), and
//! auto-discovery in [cluster-autoscaler's
//! README](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/README.md#auto-discovery-setup).

use std::collections::{BTreeMap, BTreeSet};

use crate::k8s::names;

const CLUSTER: &str = "kubernetes.io/cluster/";
const AUTOSCALER: &str = "k8s.io/cluster-autoscaler/";
/// Key endings that are not cluster names.
const WORDS: [&str; 2] = ["enabled", "disabled"];

/// The cluster named by an autoscaler tag's key.
fn of_autoscaler(key: &str) -> Option<&str> {
    key.strip_prefix(AUTOSCALER)
        .filter(|name| !name.is_empty() && !name.contains('/') && !WORDS.contains(name))
}

/// The cluster named by the key of a tag selector.
pub(super) fn in_selector(key: &str) -> Option<&str> {
    key.strip_prefix(CLUSTER).filter(|name| !name.is_empty()).or_else(|| of_autoscaler(key))
}

/// The clusters that a group's tags name; empty if none.
pub(super) fn of_group(tags: &BTreeMap<String, String>) -> BTreeSet<&str> {
    let by_node: BTreeSet<&str> = tags.keys().filter_map(|key| key.strip_prefix(CLUSTER)).collect();
    if !by_node.is_empty() {
        return by_node;
    }
    match tags.get(names::EKS_CLUSTER) {
        Some(name) => [name.as_str()].into(),
        None => tags.keys().filter_map(|key| of_autoscaler(key)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_that_nodes_join_by_comes_before_the_one_that_groups_are_found_by() {
        type Tags<'a> = &'a [(&'a str, &'a str)];
        let table: [(Tags<'_>, &[&str]); 6] = [
            (&[], &[]),
            (&[("k8s.io/cluster-autoscaler/enabled", "true"), ("kubernetes.io/clusters", "x")], &[]),
            (&[("k8s.io/cluster-autoscaler/node-template/label/a", "b")], &[]),
            (
                &[("k8s.io/cluster-autoscaler/enabled", ""), ("k8s.io/cluster-autoscaler/one", "owned")],
                &["one"],
            ),
            (&[("k8s.io/cluster-autoscaler/spot", ""), ("eks:cluster-name", "one")], &["one"]),
            (&[("eks:cluster-name", "two"), ("kubernetes.io/cluster/one", "owned")], &["one"]),
        ];
        for (tags, expected) in table {
            let tags = tags.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
            assert_eq!(of_group(&tags).into_iter().collect::<Vec<_>>(), expected, "{tags:?}");
        }
    }
}
