//! Selects Auto Scaling groups as node groups, by `--nodes` and `--node-group-auto-discovery` in cluster-autoscaler's
//! spelling.
//!
//! A group is selected by name or by all tags of one tag selector. If by both, the bounds of `--nodes` apply. Bounds
//! never widen the group's own.
//!
//! Source: cluster-autoscaler's
//! [node_group_spec.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/config/dynamic/node_group_spec.go)
//! and
//! [aws_manager.go](https://github.com/kubernetes/autoscaler/blob/cluster-autoscaler-1.35.2/cluster-autoscaler/cloudprovider/aws/aws_manager.go).
//! One difference, on purpose: several tag selectors are alternatives here; there, a group needs the tags of all of
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

use super::clusters;
use crate::aws::{AutoScalingGroup, TagSelector};
use crate::k8s::GroupName;

const NODES: &str = "--nodes";
const DISCOVERY: &str = "--node-group-auto-discovery";

/// What is wrong with a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SelectorError {
    /// The flag that the error is about.
    pub flag: &'static str,
    message: String,
}

impl SelectorError {
    fn of(flag: &'static str, spec: &str, problem: &str) -> Self {
        Self { flag, message: format!("{spec:?}: {problem}") }
    }
}

/// `MIN:MAX:NAME`: a group by name, with bounds for its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodesSpec {
    /// Name of the group.
    pub name: GroupName,
    /// Bounds for its size.
    pub bounds: Bounds,
}

/// Bounds for the size of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest size.
    pub min: i32,
    /// Largest size.
    pub max: i32,
}

impl FromStr for NodesSpec {
    type Err = SelectorError;

    fn from_str(spec: &str) -> Result<Self, SelectorError> {
        let wrong = |problem: &str| SelectorError::of(NODES, spec, problem);
        let mut parts = spec.splitn(3, ':');
        let (Some(min), Some(max), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(wrong("expected MIN:MAX:NAME"));
        };
        let size = |which: &str, text: &str| match text.parse::<i32>() {
            Ok(size) if size >= 0 => Ok(size),
            _ => Err(wrong(&format!("{which} size {text:?} is not a whole number from 0 on"))),
        };
        let bounds = Bounds { min: size("minimum", min)?, max: size("maximum", max)? };
        if bounds.max < bounds.min {
            Err(wrong("the maximum is below the minimum"))
        } else if name.is_empty() {
            Err(wrong("the name of the group is empty"))
        } else {
            Ok(Self { name: name.into(), bounds })
        }
    }
}

impl FromStr for TagSelector {
    type Err = SelectorError;

    fn from_str(spec: &str) -> Result<Self, SelectorError> {
        let wrong = |problem: &str| SelectorError::of(DISCOVERY, spec, problem);
        let malformed = || wrong("expected asg:tag=KEY[=VALUE],KEY[=VALUE],…");
        let (discoverer, rest) = spec.split_once(':').ok_or_else(malformed)?;
        if discoverer != "asg" {
            return Err(wrong(&format!("discoverer {discoverer:?} is not supported, only \"asg\" is")));
        }
        let (parameter, list) = rest.split_once('=').ok_or_else(malformed)?;
        if parameter != "tag" {
            return Err(wrong(&format!("parameter {parameter:?} is not supported, only \"tag\" is")));
        }
        let mut tags = BTreeMap::new();
        for tag in list.split(',') {
            // As in cluster-autoscaler, `KEY=` is the same as `KEY`.
            let (key, value) = tag.split_once('=').map_or((tag, None), |(key, value)| (key, Some(value)));
            let value = value.filter(|value| !value.is_empty()).map(ToOwned::to_owned);
            if key.is_empty() {
                return Err(wrong("a tag key is empty"));
            }
            match tags.insert(key.to_owned(), value.clone()) {
                Some(before) if before != value => {
                    return Err(wrong(&format!("tag {key} is asked for with two values")));
                }
                _ => {}
            }
        }
        Ok(Self { tags })
    }
}

/// All selectors of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Groups by name, with their bounds.
    named: BTreeMap<GroupName, Bounds>,
    /// Tag selectors; a group must match one.
    tagged: Vec<TagSelector>,
    /// Our cluster's name, if configured.
    cluster: Option<String>,
}

impl Selectors {
    /// Parses all `--nodes` and `--node-group-auto-discovery` values; reports every problem.
    pub fn parse(
        nodes: impl IntoIterator<Item = impl AsRef<str>>,
        discovery: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Result<Self, Vec<SelectorError>> {
        let (mut selectors, mut problems) = (Self::default(), Vec::new());
        for spec in nodes {
            match spec.as_ref().parse::<NodesSpec>() {
                Ok(NodesSpec { name, bounds }) => {
                    if selectors.named.insert(name.clone(), bounds).is_some() {
                        let message = format!("group {name} is named more than once");
                        problems.push(SelectorError { flag: NODES, message });
                    }
                }
                Err(problem) => problems.push(problem),
            }
        }
        for spec in discovery {
            match spec.as_ref().parse() {
                Ok(selector) if selectors.tagged.contains(&selector) => {}
                Ok(selector) => selectors.tagged.push(selector),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() { Ok(selectors) } else { Err(problems) }
    }

    /// Whether no group is selected.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.tagged.is_empty()
    }

    /// Names of the groups in `--nodes`.
    pub fn names(&self) -> Vec<GroupName> {
        self.named.keys().cloned().collect()
    }

    /// Sets our cluster's name.
    #[must_use]
    pub fn of_cluster(self, cluster: Option<String>) -> Self {
        Self { cluster, ..self }
    }

    /// Names of our cluster: the configured one, or else those in the keys of the tag selectors.
    fn clusters(&self) -> BTreeSet<&str> {
        if let Some(name) = &self.cluster {
            return [name.as_str()].into();
        }
        let keys = self.tagged.iter().flat_map(|selector| selector.tags.keys());
        keys.filter_map(|key| clusters::in_selector(key)).collect()
    }

    /// Whether a group's tags name our cluster; `None` if they name none, or ours is unknown.
    pub fn is_of_our_cluster(&self, tags: &BTreeMap<String, String>) -> Option<bool> {
        let (ours, named) = (self.clusters(), clusters::of_group(tags));
        (!ours.is_empty() && !named.is_empty()).then(|| named.iter().any(|name| ours.contains(name)))
    }

    /// Whether a group's tags name another cluster and not ours, and no flag names the group: `--nodes`, or, without `--cluster-name`, a
    /// cluster's name in a tag that selects it.
    pub fn is_of_another_cluster(&self, group: &AutoScalingGroup) -> bool {
        let names_a_cluster =
            |tag: &TagSelector| tag.tags.keys().any(|key| clusters::in_selector(key).is_some());
        let is_named = || {
            self.named.contains_key(&group.name)
                || self.cluster.is_none()
                    && self.tagged.iter().any(|tag| names_a_cluster(tag) && tag.matches(&group.tags))
        };
        self.is_of_our_cluster(&group.tags) == Some(false) && !is_named()
    }

    /// The tag selectors.
    pub fn tagged(&self) -> &[TagSelector] {
        &self.tagged
    }

    /// Whether the group is selected, by its name or its tags.
    pub fn selects(&self, group: &AutoScalingGroup) -> bool {
        self.named.contains_key(&group.name) || self.tagged.iter().any(|tags| tags.matches(&group.tags))
    }

    /// Tightens the group's bounds to those of `--nodes`. If the two do not overlap, the group's own win: AWS would
    /// refuse any other size.
    pub fn tighten(&self, group: &mut AutoScalingGroup) {
        if let Some(bounds) = self.named.get(&group.name) {
            let (min, max) = (group.min, group.max.max(group.min));
            group.min = bounds.min.clamp(min, max);
            group.max = bounds.max.clamp(min, max);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tags(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn nodes_is_read_as_cluster_autoscaler_reads_it() {
        let spec: NodesSpec = "1:10:k8s-worker-asg-1".parse().expect("well-formed");
        assert_eq!((spec.name.as_str(), spec.bounds), ("k8s-worker-asg-1", Bounds { min: 1, max: 10 }));
        let with_colons: NodesSpec = "0:5:a:b".parse().expect("well-formed");
        assert_eq!(with_colons.name, "a:b");
    }

    #[test]
    fn a_problem_names_its_flag_and_its_value() {
        let table = [
            ("5", "\"5\": expected MIN:MAX:NAME"),
            ("1:2", "\"1:2\": expected MIN:MAX:NAME"),
            ("-1:2:a", "\"-1:2:a\": minimum size \"-1\" is not a whole number from 0 on"),
            ("1:x:a", "\"1:x:a\": maximum size \"x\" is not a whole number from 0 on"),
            ("3:2:a", "\"3:2:a\": the maximum is below the minimum"),
            ("1:2:", "\"1:2:\": the name of the group is empty"),
        ];
        for (spec, expected) in table {
            let problem = spec.parse::<NodesSpec>().expect_err(spec);
            assert_eq!((problem.flag, problem.to_string().as_str()), ("--nodes", expected));
        }
        let table = [
            ("asg", "expected asg:tag=KEY[=VALUE],KEY[=VALUE],…"),
            ("asg:tag", "expected asg:tag=KEY[=VALUE],KEY[=VALUE],…"),
            ("mig:tag=a", "discoverer \"mig\" is not supported, only \"asg\" is"),
            ("asg:name=a", "parameter \"name\" is not supported, only \"tag\" is"),
            ("asg:tag=", "a tag key is empty"),
            ("asg:tag=a,,b", "a tag key is empty"),
            ("asg:tag==v", "a tag key is empty"),
            ("asg:tag=a=1,a=2", "tag a is asked for with two values"),
        ];
        for (spec, expected) in table {
            let expected = format!("{spec:?}: {expected}");
            assert_eq!(spec.parse::<TagSelector>().map_err(|e| e.to_string()), Err(expected));
        }
    }

    #[test]
    fn a_group_must_have_every_tag_of_a_selector() {
        let selector: TagSelector = "asg:tag=enabled,cluster=a=b".parse().expect("well-formed");
        let table: [(&[(&str, &str)], bool); 5] = [
            (&[("enabled", ""), ("cluster", "a=b")], true),
            (&[("enabled", "no"), ("cluster", "a=b"), ("other", "x")], true),
            (&[("enabled", "")], false),
            (&[("enabled", ""), ("cluster", "a")], false),
            (&[], false),
        ];
        for (has, expected) in table {
            assert_eq!(selector.matches(&tags(has)), expected, "{has:?}");
        }
    }

    #[test]
    fn every_problem_of_a_command_line_is_reported() {
        let found = Selectors::parse(["x", "1:2:a", "0:3:a"], ["asg:tag=", "asg:tag=k"]).expect_err("bad");
        let found: Vec<_> = found.iter().map(|problem| (problem.flag, problem.message.as_str())).collect();
        let expected = [
            (NODES, "\"x\": expected MIN:MAX:NAME"),
            (NODES, "group a is named more than once"),
            (DISCOVERY, "\"asg:tag=\": a tag key is empty"),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn bounds_of_a_flag_stay_within_the_groups_own() {
        let table = [
            ("2:8:web", (0, 10), (2, 8)),
            ("0:99:web", (1, 10), (1, 10)),
            ("20:30:web", (0, 10), (10, 10)),
            ("2:8:other", (0, 10), (0, 10)),
        ];
        for (flag, (min, max), expected) in table {
            let selectors = Selectors::parse([flag], Vec::<&str>::new()).expect("well-formed");
            let mut group = AutoScalingGroup { name: "web".into(), min, max, ..AutoScalingGroup::default() };
            selectors.tighten(&mut group);
            assert_eq!((group.min, group.max), expected, "{flag}");
        }
    }

    #[test]
    fn a_group_of_another_cluster_is_left_out_unless_it_is_named() {
        type Case<'a> = (&'a [&'a str], &'a [&'a str], Option<&'a str>, &'a [(&'a str, &'a str)], bool);
        const ENABLED: &str = "k8s.io/cluster-autoscaler/enabled";
        let by_enabled = format!("asg:tag={ENABLED}");
        let by_ours = format!("asg:tag={ENABLED},k8s.io/cluster-autoscaler/ours");
        let both = [by_enabled.as_str(), by_ours.as_str()];
        let (theirs, eks) = (("kubernetes.io/cluster/theirs", "owned"), ("eks:cluster-name", "theirs"));
        let (found, enabled) = (("k8s.io/cluster-autoscaler/ours", ""), (ENABLED, "true"));
        let table: [Case<'_>; 9] = [
            // Two clusters share a tag.
            (&[], &both, None, &[enabled, theirs], true),
            (&[], &both, None, &[enabled, eks], true),
            (&[], &both[..1], Some("ours"), &[enabled, theirs], true),
            (&[], &both, Some("ours"), &[enabled, found, theirs], true),
            (&[], &both[..1], None, &[enabled, theirs], false),
            // It has the tag by which ours are found.
            (&[], &both, None, &[enabled, found, theirs], false),
            (&[], &both[1..], None, &[enabled, found, eks], false),
            // It is named.
            (&["0:9:web"], &both, None, &[enabled, theirs], false),
            (&["0:9:web"], &[], Some("ours"), &[enabled, theirs], false),
        ];
        for (nodes, discovery, cluster, has, expected) in table {
            let selectors = Selectors::parse(nodes, discovery).expect("well-formed");
            let selectors = selectors.of_cluster(cluster.map(str::to_owned));
            let group =
                AutoScalingGroup { name: "web".into(), tags: tags(has), ..AutoScalingGroup::default() };
            assert_eq!(
                selectors.is_of_another_cluster(&group),
                expected,
                "{nodes:?} {discovery:?} {cluster:?} {has:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn parsing_any_text_as_a_selector_does_not_panic(text in ".*") {
            let _ = text.parse::<NodesSpec>();
            let _ = text.parse::<TagSelector>();
        }

        #[test]
        fn what_is_tightened_is_within_the_groups_own(min in 0..50, more in 0..50, a in 0..100i32, b in 0..100i32) {
            let selectors = Selectors::parse([format!("{}:{}:g", a.min(b), a.max(b))], Vec::<&str>::new())
                .expect("well-formed");
            let mut group = AutoScalingGroup { name: "g".into(), min, max: min + more, ..AutoScalingGroup::default() };
            selectors.tighten(&mut group);
            prop_assert!(min <= group.min && group.min <= group.max && group.max <= min + more);
        }
    }
}
