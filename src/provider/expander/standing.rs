//! What is known of the groups that could grow. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::proto::Option as Offered;
use crate::groups::{Group, Snapshot};
use crate::k8s::GroupName;
use crate::prices::node::{PricedNode, labels, template};

/// An option of cluster-autoscaler's, with what is known of its group.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// The group.
    pub group: GroupName,
    /// How many nodes would be added.
    pub nodes: i32,
    /// How many pods would find room.
    pub pods: usize,
    /// What a node costs, USD an hour.
    pub price: Option<f64>,
    /// Whether all that it could launch has lately been refused for want of capacity.
    pub is_refused: bool,
    /// How many instances AWS took back in the last day, for each that the group has.
    pub interruptions: f64,
    /// How many nodes there are in the group's zones, for each zone.
    pub nodes_a_zone: Option<f64>,
}

/// What is known besides the request.
pub struct Known<'a> {
    /// The groups.
    pub snapshot: &'a Snapshot,
    /// Those whose launches were lately refused.
    pub refused: BTreeSet<GroupName>,
    /// How many instances of each AWS took back in the last day.
    pub interruptions: BTreeMap<GroupName, usize>,
    /// What a group's next node costs, USD an hour. Asked once for each group.
    pub price: &'a dyn Fn(&PricedNode<'_>) -> Option<f64>,
}

/// The options of a question, with what is known of each.
pub fn standings(options: &[Offered], known: &Known<'_>) -> Vec<Standing> {
    let names: Vec<GroupName> = options.iter().map(|option| option.node_group_id.as_str().into()).collect();
    let asked: BTreeSet<&GroupName> = names.iter().collect();
    // Each group once, however many options name it: its template has to be decoded.
    let groups: BTreeMap<&GroupName, &Group> = asked
        .iter()
        .copied()
        .chain(&known.refused)
        .filter_map(|name| Some((name, known.snapshot.groups.get(name)?.as_ref())))
        .collect();
    let labels: Vec<_> = groups.values().map(|group| labels(group)).collect();
    let next = |((name, group), labels)| {
        let node = PricedNode::of(labels, Some(group), true);
        let offers = offers(group, &node);
        (name, (group, node, offers))
    };
    let next: BTreeMap<_, _> = groups.into_iter().zip(&labels).map(next).collect();
    let refused: BTreeSet<_> =
        known.refused.iter().filter_map(|name| next.get(name)).flat_map(|(.., offers)| offers).collect();
    let in_zones = nodes_by_zone(known.snapshot);
    let of_group = |name: &GroupName| {
        let (group, node, offers) = next.get(name)?;
        let live = group.asg.live().count().max(1) as f64;
        let zones = &group.asg.zones;
        let nodes: usize = zones.iter().filter_map(|zone| in_zones.get(zone.as_str())).sum();
        Some(Standing {
            price: (known.price)(node),
            is_refused: known.refused.contains(name)
                || !offers.is_empty() && offers.iter().all(|offer| refused.contains(offer)),
            interruptions: known.interruptions.get(name).copied().unwrap_or(0) as f64 / live,
            nodes_a_zone: (!zones.is_empty()).then(|| nodes as f64 / zones.len() as f64),
            ..Standing::default()
        })
    };
    let of_groups: BTreeMap<_, _> = asked.iter().filter_map(|name| Some((*name, of_group(name)?))).collect();
    let standing = |(option, name): (&Offered, &GroupName)| Standing {
        group: name.clone(),
        nodes: option.node_count,
        pods: option.pod.len().max(option.pod_bytes.len()),
        ..of_groups.get(name).cloned().unwrap_or_default()
    };
    options.iter().zip(&names).map(standing).collect()
}

/// All that a group can launch: instance type, zone, and whether as a spot instance. Empty unless all of it is known: the types that match
/// a group's attributes change, and an override's own launch template may name another type.
fn offers(group: &Group, next: &PricedNode<'_>) -> BTreeSet<(String, String, bool)> {
    let overrides = &group.asg.launch.overrides;
    let types: Option<BTreeSet<&str>> = if overrides.is_empty() {
        template(group).filter(|template| template.types == 1).map(|_| [next.instance_type].into())
    } else {
        overrides.iter().map(|line| line.instance_type.as_deref()).collect()
    };
    if next.spot_share > 0.0 && next.spot_share < 1.0 {
        // Which of the two was refused is not known.
        return BTreeSet::new();
    }
    let is_spot = next.spot_share > 0.0;
    let offer = |(kind, zone): (&str, &str)| (kind.to_owned(), zone.to_owned(), is_spot);
    let types = types.unwrap_or_default();
    types.iter().flat_map(|kind| next.zones.iter().map(|zone| (*kind, *zone))).map(offer).collect()
}

fn nodes_by_zone(snapshot: &Snapshot) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for instance in snapshot.groups.values().flat_map(|group| group.asg.live()) {
        *counts.entry(instance.zone.as_str()).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use jiff::Timestamp;
    use k8s_pb::api::core::v1::Node;
    use k8s_pb::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use prost::Message as _;

    use super::super::proto::Pod;
    use super::*;
    use crate::aws::{AutoScalingGroup, Instance, Launch, Mix, Override};
    use crate::template::Template;

    const TYPE: &str = "node.kubernetes.io/instance-type";

    fn group(name: &str, zones: &[&str], types: &[&str], live: &[&str]) -> Group {
        let of_type =
            |kind: &&str| Override { instance_type: Some((*kind).to_owned()), ..Override::default() };
        let instances = live.iter().enumerate().map(|(n, zone)| Instance {
            id: format!("i-{name}{n}").as_str().into(),
            zone: (*zone).to_owned(),
            ..Instance::default()
        });
        Group {
            asg: Arc::new(AutoScalingGroup {
                name: name.into(),
                zones: zones.iter().map(|&zone| zone.to_owned()).collect(),
                instances: instances.collect(),
                launch: Launch { overrides: types.iter().map(of_type).collect(), ..Launch::default() },
                ..AutoScalingGroup::default()
            }),
            ..Group::default()
        }
    }

    /// The same with a template: that many types, of which this is the first.
    fn labelled(group: Group, kind: &str, types: usize) -> Group {
        let labels = [(TYPE.to_owned(), kind.to_owned())].into();
        let metadata = Some(ObjectMeta { labels, ..ObjectMeta::default() });
        let encoded = Node { metadata, ..Node::default() }.encode_to_vec().into();
        Group { template: Some(Ok(Arc::new(Template { encoded, types, ..Template::default() }))), ..group }
    }

    fn asked(groups: &[&str]) -> Vec<Offered> {
        let option =
            |name: &&str| Offered { node_group_id: (*name).to_owned(), node_count: 2, ..Offered::default() };
        groups.iter().map(option).collect()
    }

    fn of(options: &[Offered], snapshot: &Snapshot, refused: &[&str]) -> Vec<Standing> {
        priced(options, snapshot, refused, &|node| {
            Some(if node.instance_type == "m5.large" { 0.096 } else { 1.0 })
        })
    }

    fn priced(
        options: &[Offered],
        snapshot: &Snapshot,
        refused: &[&str],
        price: &dyn Fn(&PricedNode<'_>) -> Option<f64>,
    ) -> Vec<Standing> {
        let refused = refused.iter().map(|&name| name.into()).collect();
        standings(options, &Known { snapshot, refused, interruptions: [("web".into(), 1)].into(), price })
    }

    fn snapshot(groups: Vec<Group>) -> Snapshot {
        Snapshot::new(Timestamp::UNIX_EPOCH, groups.into_iter().map(Arc::new))
    }

    #[test]
    fn a_group_has_the_figures_of_its_template_its_instances_and_its_zones() {
        let snapshot = snapshot(vec![
            labelled(group("web", &["a"], &[], &["a", "a"]), "m5.large", 1),
            labelled(group("batch", &["a", "b"], &[], &["b"]), "c5.large", 1),
        ]);
        let mut options = asked(&["web", "batch", "gone"]);
        options[0].pod = vec![Pod {}; 3];
        options[1].pod_bytes = vec![Pod {}; 2];
        let told = of(&options, &snapshot, &[]);
        let figures: Vec<_> =
            told.iter().map(|s| (s.nodes, s.pods, s.price, s.interruptions, s.nodes_a_zone)).collect();
        assert_eq!(
            figures,
            [(2, 3, Some(0.096), 0.5, Some(2.0)), (2, 2, Some(1.0), 0.0, Some(1.5)), (2, 0, None, 0.0, None),]
        );
    }

    #[test]
    fn a_group_is_priced_once_however_many_options_name_it() {
        let snapshot = snapshot(vec![
            labelled(group("web", &["a"], &[], &[]), "m5.large", 1),
            labelled(group("not asked", &["a"], &[], &[]), "m5.large", 1),
        ]);
        let prices = Cell::new(0);
        let price = |_: &PricedNode<'_>| {
            prices.set(prices.get() + 1);
            Some(0.096)
        };
        let told = priced(&asked(&["web"; 3]), &snapshot, &["not asked"], &price);
        assert_eq!(
            told.iter().map(|s| (s.group.as_str(), s.price)).collect::<Vec<_>>(),
            [("web", Some(0.096)); 3]
        );
        assert_eq!(prices.get(), 1);
    }

    #[test]
    fn what_was_refused_to_one_group_is_refused_to_all_that_could_launch_nothing_else() {
        let spot = |mut group: Group| {
            Arc::make_mut(&mut group.asg).launch.mix =
                Some(Mix { on_demand_base: 0, on_demand_percentage: 0 });
            group
        };
        let snapshot = snapshot(vec![
            group("refused", &["a", "b"], &["m5.large", "m5a.large"], &[]),
            group("same", &["b"], &["m5.large"], &[]),
            labelled(group("by template", &["a"], &[], &[]), "m5a.large", 1),
            group("other zone", &["b", "c"], &["m5.large"], &[]),
            group("other type", &["a"], &["m5.large", "m6i.large"], &[]),
            spot(group("spot", &["a"], &["m5.large"], &[])),
            group("unknown", &[], &[], &[]),
        ]);
        let refused = |refused: &[&str]| refused_of(&snapshot, refused);
        assert_eq!(refused(&["refused"]), ["by template", "refused", "same"]);
        assert_eq!(refused(&["unknown"]), ["unknown"]);
        assert_eq!(refused(&[]), [""; 0]);
    }

    #[test]
    fn what_was_refused_to_a_group_of_both_markets_is_refused_to_no_other() {
        let mut both = group("both", &["a"], &["m5.large"], &[]);
        Arc::make_mut(&mut both.asg).launch.mix = Some(Mix { on_demand_base: 0, on_demand_percentage: 20 });
        let snapshot = snapshot(vec![both, group("on demand", &["a"], &["m5.large"], &[])]);
        assert_eq!(refused_of(&snapshot, &["both"]), ["both"]);
        assert_eq!(refused_of(&snapshot, &["on demand"]), ["on demand"]);
    }

    fn refused_of(snapshot: &Snapshot, refused: &[&str]) -> Vec<String> {
        let names: Vec<_> = snapshot.groups.keys().map(|name| name.as_str()).collect();
        let told = of(&asked(&names), snapshot, refused);
        told.into_iter().filter(|s| s.is_refused).map(|s| s.group.to_string()).collect()
    }

    #[test]
    fn a_group_whose_types_are_chosen_by_attributes_is_not_refused_with_those_of_others() {
        let by_attributes = |name: &str, named: &[&str]| {
            let mut group = labelled(group(name, &["a"], named, &[]), "m5.large", 3);
            // By which, is no matter.
            let line = Override::default();
            Arc::make_mut(&mut group.asg).launch.overrides.push(line);
            group
        };
        let snapshot = snapshot(vec![
            group("refused", &["a"], &["m5.large"], &[]),
            by_attributes("by attributes", &[]),
            by_attributes("by both", &["m5.large"]),
            labelled(group("by its launch template's attributes", &["a"], &[], &[]), "m5.large", 3),
        ]);
        assert_eq!(refused_of(&snapshot, &["refused"]), ["refused"]);
        assert_eq!(refused_of(&snapshot, &["by attributes"]), ["by attributes"], "of itself alone");
    }
}
