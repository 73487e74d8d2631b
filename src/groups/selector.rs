//! Which groups are ours: the two flags of cluster-autoscaler's own AWS provider, in its spelling. Pure.
//!
//! Source: [cluster-autoscaler on
//! AWS](https://github.com/kubernetes/autoscaler/tree/master/cluster-autoscaler/cloudprovider/aws#auto-discovery-setup).

use std::collections::BTreeMap;

use crate::aws::GroupSelector;

/// Which groups are ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selectors {
    /// Each set of tags selects the groups that have all of them.
    pub by_tags: Vec<Vec<(String, Option<String>)>>,
    /// Groups by name, with the bounds to keep them in.
    pub by_name: BTreeMap<String, (i32, i32)>,
}

/// A value of one of the flags that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// Not `asg:tag=…`.
    #[error("{0:?} is not like asg:tag=KEY[=VALUE],…")]
    Discovery(String),
    /// Not `min:max:name`.
    #[error("{0:?} is not like MIN:MAX:NAME")]
    Nodes(String),
    /// The bounds make no sense.
    #[error("{0:?} is not like MIN:MAX:NAME: MIN is larger than MAX")]
    Bounds(String),
}

/// Reads a value of `--node-group-auto-discovery`: `asg:tag=KEY[=VALUE],KEY[=VALUE],…`.
pub fn parse_discovery(text: &str) -> Result<Vec<(String, Option<String>)>, SelectorError> {
    let refuse = || SelectorError::Discovery(text.to_owned());
    let tags = text.strip_prefix("asg:tag=").ok_or_else(refuse)?;
    tags.split(',')
        .map(|tag| match tag.split_once('=') {
            Some(("", _)) => Err(refuse()),
            Some((key, "")) => Ok((key.to_owned(), None)),
            Some((key, value)) => Ok((key.to_owned(), Some(value.to_owned()))),
            None if tag.is_empty() => Err(refuse()),
            None => Ok((tag.to_owned(), None)),
        })
        .collect()
}

/// Reads a value of `--nodes`: `MIN:MAX:NAME`. A name may have colons.
pub fn parse_nodes(text: &str) -> Result<(String, (i32, i32)), SelectorError> {
    let refuse = || SelectorError::Nodes(text.to_owned());
    let mut parts = text.splitn(3, ':');
    let mut number = || parts.next().and_then(|part| part.parse::<i32>().ok()).ok_or_else(refuse);
    let (min, max) = (number()?, number()?);
    let name = parts.next().filter(|name| !name.is_empty()).ok_or_else(refuse)?;
    if min < 0 {
        return Err(refuse());
    }
    if max < min {
        return Err(SelectorError::Bounds(text.to_owned()));
    }
    Ok((name.to_owned(), (min, max)))
}

impl Selectors {
    /// The reads that find all groups.
    pub fn reads(&self) -> Vec<GroupSelector> {
        let by_tags = self.by_tags.iter().cloned().map(GroupSelector::Tags);
        let names: Vec<String> = self.by_name.keys().cloned().collect();
        by_tags.chain((!names.is_empty()).then_some(GroupSelector::Names(names))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_the_in_tree_provider_reads_them() {
        let tag = |key: &str, value: Option<&str>| (key.to_owned(), value.map(str::to_owned));
        assert_eq!(
            parse_discovery("asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/c1=owned"),
            Ok(vec![
                tag("k8s.io/cluster-autoscaler/enabled", None),
                tag("k8s.io/cluster-autoscaler/c1", Some("owned")),
            ])
        );
        assert_eq!(parse_discovery("asg:tag=a=b=c"), Ok(vec![tag("a", Some("b=c"))]));
        for wrong in ["", "asg:", "asg:tag=", "mig:tag=a", "asg:tag=a,,b", "asg:tag==b", "tag=a"] {
            assert!(parse_discovery(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bounds_and_name_are_read() {
        assert_eq!(parse_nodes("1:10:web"), Ok(("web".into(), (1, 10))));
        assert_eq!(parse_nodes("0:0:a:b"), Ok(("a:b".into(), (0, 0))));
        for wrong in ["", "1:10", "1:10:", "a:b:c", "1::c", "5:1:c", "-1:4:c", "1:99999999999:c"] {
            assert!(parse_nodes(wrong).is_err(), "{wrong}");
        }
    }
}
