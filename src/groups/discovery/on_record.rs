//! Which instances' scale-ins are on record, by group: after a restart only the records on Nodes name groups that are no longer
//! selected.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster::Nodes;
use crate::cluster::record::Record;
use crate::k8s::{GroupName, InstanceId};

/// Instances whose scale-in is on record on a Node, by group, without those of other installations than `ours`.
pub(super) fn on_record(nodes: &Nodes, ours: Option<&str>) -> BTreeMap<GroupName, BTreeSet<InstanceId>> {
    let mut by_group: BTreeMap<GroupName, BTreeSet<InstanceId>> = BTreeMap::new();
    for node in nodes.all() {
        let counts = |record: &&Record| is_group_name(&record.group) && !record.is_of_another(ours);
        if let Some(record) = node.scale_in().filter(counts) {
            by_group.entry(record.group.clone()).or_default().insert(record.instance.clone());
        }
    }
    by_group
}

/// Whether this is a valid group name: AWS refuses a whole request for one that is not.
///
/// Source: [DescribeAutoScalingGroups](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_DescribeAutoScalingGroups.html).
fn is_group_name(name: &str) -> bool {
    let is_refused = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    (1..=255).contains(&name.encode_utf16().count()) && !name.chars().any(is_refused)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::cluster::NodeView;
    use crate::cluster::record::{self, Cause, Release};

    #[test]
    fn what_no_group_can_be_called_is_not_asked_for_nor_what_is_of_another_installation() {
        let nodes = Nodes::default();
        let requested_at = Timestamp::from_second(1_700_000_000).expect("in range");
        let (long, beyond) = ("x".repeat(256), "\u{1f30a}".repeat(200));
        let refused = ["", &long, &beyond, "web\n", "web\u{ffff}"];
        let records = refused.into_iter().chain(["web"]).map(|group| (group, "kube-system/ebbtide"));
        for (n, (group, of)) in records.chain([("other", "web/ebbtide")]).enumerate() {
            let record = Record::new(Cause::Autoscaler, group, "i-1", Release::Terminate, requested_at);
            let record = Record { installation: Some(of.into()), ..record };
            nodes.apply(NodeView {
                name: format!("n-{n}").as_str().into(),
                instance: Some("i-1".into()),
                record: Some(Box::new(record::write(&record).as_str().into())),
                ..NodeView::default()
            });
        }
        let known = on_record(&nodes, Some("kube-system/ebbtide"));
        assert_eq!(known, [("web".into(), ["i-1".into()].into())].into());
        assert_eq!(on_record(&nodes, None), BTreeMap::new(), "who has no Lease has begun none of these");
    }
}
