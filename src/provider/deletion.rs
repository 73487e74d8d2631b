//! What a DeleteNodes call asks for, and whether it may. Pure.
//!
//! Invariants: a batch's nodes are accepted or refused as a whole; an instance that leaves already is no error and no work, however often
//! it is named; no instance that may have a Node is terminated without a drain. Nodes that cluster-autoscaler drains itself go before what
//! never came or never registered: else the last such node would be refused once it is empty. Of the rest, as much goes as this and
//! the minimum allow; cluster-autoscaler, which counts with the minimum alone, asks again for what is left.

use std::collections::BTreeSet;

use super::RpcError;
use super::error::excerpt;
use super::proto::ExternalGrpcNode;
use crate::aws::{AutoScalingGroup, Instance};
use crate::groups::sizes::{self, SizeError};
use crate::groups::{Group, Snapshot};
use crate::k8s::{GroupName, InstanceId, NodeName, ProviderId};
use crate::scale_in::ScaleIns;

/// The part of a batch that is still to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deletion {
    /// Placeholders to give up.
    pub placeholders: Vec<usize>,
    /// Instances without a Node: terminated without a drain.
    pub unregistered: Vec<InstanceId>,
    /// Instances whose Node was deleted while its pods have their grace: they stay for now.
    pub outliving: Vec<InstanceId>,
    /// Nodes to drain and release.
    pub nodes: Vec<NodeToDrain>,
    /// Why other instances of the batch without a Node stay.
    pub refused: Option<SizeError>,
}

/// A Node to drain and release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeToDrain {
    /// Its name.
    pub node: NodeName,
    /// EC2 instance id.
    pub instance: InstanceId,
}

impl Deletion {
    /// Keeps as much of what has no Node as the minimum needs once the nodes have left; instances go before placeholders. An error if
    /// the nodes may not all leave.
    fn fit_to_minimum(&mut self, asg: &AutoScalingGroup, losses: &Losses<'_>) -> Result<(), SizeError> {
        let nodes: Vec<&InstanceId> = self.nodes.iter().map(|node| &node.instance).collect();
        if !nodes.is_empty() {
            let all = losses.uncounted(nodes.iter().copied().chain(&self.unregistered));
            sizes::removable(asg, all, |instance| losses.are_certain_of(&instance.id))?;
        }
        let before =
            |instance: &Instance| losses.are_to_come_of(&asg.name, instance) || nodes.contains(&&instance.id);
        let new = losses.uncounted(&self.unregistered);
        if let Err(refused) = sizes::removable(asg, new.iter().copied(), before) {
            let stay: BTreeSet<InstanceId> =
                sizes::to_keep(asg, new, before).into_iter().map(InstanceId::from).collect();
            self.unregistered.retain(|id| !stay.contains(id));
            self.refused = Some(refused);
        }
        let with_these = |instance: &Instance| before(instance) || self.unregistered.contains(&instance.id);
        self.placeholders.truncate(sizes::spare_missing(asg, with_these));
        Ok(())
    }

    /// Reads a batch for `group` of `view`, whose placeholders are `missing`. Instances without a Node that are `being_terminated` lower
    /// the desired capacity, though no description shows it yet. Of several errors, a node of another group is reported first.
    pub fn read(
        view: &Snapshot,
        group: &Group,
        missing: &[usize],
        batch: &[ExternalGrpcNode],
        scale_ins: &dyn ScaleIns,
        being_terminated: &dyn Fn(&InstanceId) -> bool,
    ) -> Result<Self, RpcError> {
        let mut units_named = false;
        let mut placeholders = BTreeSet::new();
        let mut seen = BTreeSet::new();
        let mut new = Vec::new();
        for node in batch {
            match Named::read(view, group, node, scale_ins) {
                // Listed before the group had weights: its missing capacity is in units, not instances.
                Named::Placeholder(_) if group.asg.is_weighted() => units_named = true,
                // Any other placeholder was given up, or its instance has come.
                Named::Placeholder(number) if missing.contains(&number) => {
                    placeholders.insert(number);
                }
                Named::Placeholder(_) | Named::Leaving => {}
                Named::Instance(instance) => {
                    if seen.insert(instance.clone()) {
                        new.push((node, instance));
                    }
                }
                Named::Foreign => return Err(foreign(group, node, batch.len())),
            }
        }
        if units_named {
            sizes::in_instances(&group.asg)?;
        }
        let placeholders = placeholders.into_iter().collect();
        let mut deletion = Self { placeholders, ..Self::default() };
        for (node, instance) in new {
            match scale_ins.node_of(&instance) {
                Some(node) => deletion.nodes.push(NodeToDrain { node, instance }),
                None if !scale_ins.is_ready() => return Err(RpcError::NodesUnknown),
                None if !scale_ins.is_up_to_date() => return Err(RpcError::NodesOutdated(instance)),
                None if has_registered(node) => {
                    return Err(RpcError::NodeUnseen {
                        node: node.name.clone(),
                        instance: instance.to_string(),
                    });
                }
                None if scale_ins.outlives_its_node(&group.asg.name, &instance) => {
                    deletion.outliving.push(instance);
                }
                None => match scale_ins.unidentified_node(&group.asg) {
                    Some(node) => return Err(RpcError::Unidentified { node, instance }),
                    None => deletion.unregistered.push(instance),
                },
            }
        }
        deletion.fit_to_minimum(&group.asg, &Losses { scale_ins, being_terminated })?;
        Ok(deletion)
    }

    /// Whether AWS has nothing to do with it: only nodes are to be drained.
    pub fn is_of_nodes_alone(&self) -> bool {
        self.placeholders.is_empty() && self.unregistered.is_empty()
    }

    /// Brings the deletion up to date with a `fresh` description: drops instances that leave already, and placeholders
    /// whose instances have come (the oldest of the `missing`). Returns the desired capacity to set if placeholders are
    /// left.
    pub fn settle(
        &mut self,
        fresh: &Group,
        missing: &[usize],
        scale_ins: &dyn ScaleIns,
        being_terminated: &dyn Fn(&InstanceId) -> bool,
    ) -> Result<Option<i32>, RpcError> {
        self.unregistered.retain(|id| {
            fresh
                .asg
                .instances
                .iter()
                .any(|i| i.id == *id && i.lifecycle.is_node() && !i.lifecycle.is_leaving())
        });
        if !self.placeholders.is_empty() {
            sizes::in_instances(&fresh.asg)?;
        }
        let have_come = &missing[..missing.len().saturating_sub(fresh.asg.missing())];
        self.placeholders.retain(|number| !have_come.contains(number));
        self.fit_to_minimum(&fresh.asg, &Losses { scale_ins, being_terminated })?;
        let given_up = self.placeholders.len() as i32;
        Ok((given_up > 0).then(|| fresh.asg.desired - given_up))
    }
}

/// What lowers the desired capacity besides a batch.
struct Losses<'a> {
    scale_ins: &'a dyn ScaleIns,
    being_terminated: &'a dyn Fn(&InstanceId) -> bool,
}

impl Losses<'_> {
    /// Whether this instance does: its scale-in is accepted, or another call is terminating it.
    fn are_certain_of(&self, id: &InstanceId) -> bool {
        self.scale_ins.will_decrement(id) || (self.being_terminated)(id)
    }

    /// The same, with nodes that cluster-autoscaler drains itself.
    fn are_to_come_of(&self, group: &GroupName, instance: &Instance) -> bool {
        self.are_certain_of(&instance.id) || self.scale_ins.is_to_decrement(group, instance)
    }

    /// Those of these that do not count already.
    fn uncounted<'i>(&self, ids: impl IntoIterator<Item = &'i InstanceId>) -> Vec<&'i str> {
        ids.into_iter().filter(|id| !self.are_certain_of(id)).map(InstanceId::as_str).collect()
    }
}

/// What a node of a batch is to the group.
enum Named {
    Placeholder(usize),
    Instance(InstanceId),
    Leaving,
    Foreign,
}

impl Named {
    fn read(view: &Snapshot, group: &Group, node: &ExternalGrpcNode, scale_ins: &dyn ScaleIns) -> Self {
        let instance = match node.provider_id.parse() {
            Ok(ProviderId::Placeholder { group: name, index, .. }) if name == group.asg.name => {
                return Self::Placeholder(index);
            }
            Ok(ProviderId::Instance { instance, .. }) => instance,
            Ok(ProviderId::Placeholder { .. }) | Err(_) => return Self::Foreign,
        };
        let leaving = || scale_ins.is_leaving(&group.asg.name, &instance);
        match view.instance(&instance) {
            Some((owner, _)) if owner.asg.name != group.asg.name => Self::Foreign,
            Some((_, found)) if found.lifecycle.is_leaving() => Self::Leaving,
            // A scale-in with a replacement becomes one without: cluster-autoscaler wants a smaller group.
            Some((_, found)) if leaving() => {
                if found.lifecycle.is_live() && !scale_ins.will_decrement(&instance) {
                    Self::Instance(instance)
                } else {
                    Self::Leaving
                }
            }
            Some((_, found)) if found.lifecycle.is_node() => Self::Instance(instance),
            // The instance has gone and its Node has not yet.
            None if leaving() => Self::Leaving,
            Some(_) | None => Self::Foreign,
        }
    }
}

fn foreign(group: &Group, node: &ExternalGrpcNode, batch: usize) -> RpcError {
    let text = if node.provider_id.is_empty() { &node.name } else { &node.provider_id };
    let node = excerpt(text);
    let group = group.asg.name.clone();
    if batch > 1 {
        RpcError::BatchNotOfGroup { node, group: group.to_string() }
    } else {
        RpcError::NotOfGroup { node, group: group.to_string() }
    }
}

/// Whether the caller knows a real Node. For an instance that never registered, cluster-autoscaler makes one up without
/// labels and with an empty name or the provider id as its name.
fn has_registered(node: &ExternalGrpcNode) -> bool {
    !node.labels.is_empty() || !(node.name.is_empty() || node.name == node.provider_id)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures::future::BoxFuture;

    use super::*;
    use crate::aws::{Lifecycle, Weights};
    use crate::groups::sizes::Leaves;
    use crate::scale_in::{Accepted, IntentError};

    /// `i-1` and `i-2` have the Nodes `n-1` and `n-2`; `i-out` is leaving, and so was `i-gone`.
    struct Nodes {
        are_synced: bool,
        are_up_to_date: bool,
        /// There is one of an unknown machine.
        one_is_unidentified: bool,
        /// The instance that runs on after its Node was deleted.
        outlived: Option<&'static str>,
    }

    const NODES: Nodes =
        Nodes { are_synced: true, are_up_to_date: true, one_is_unidentified: false, outlived: None };

    impl ScaleIns for Nodes {
        fn is_ready(&self) -> bool {
            self.are_synced
        }

        fn changes(&self) -> u64 {
            0
        }

        fn node_of(&self, instance: &InstanceId) -> Option<NodeName> {
            matches!(instance.as_str(), "i-1" | "i-2").then(|| instance.replace("i-", "n-").into())
        }

        fn is_leaving(&self, group: &GroupName, instance: &InstanceId) -> bool {
            group == "web" && matches!(instance.as_str(), "i-out" | "i-gone")
        }

        fn is_up_to_date(&self) -> bool {
            self.are_up_to_date
        }

        fn unidentified_node(&self, _: &AutoScalingGroup) -> Option<NodeName> {
            self.one_is_unidentified.then(|| "n-any".into())
        }

        fn outlives_its_node(&self, _: &GroupName, instance: &InstanceId) -> bool {
            self.outlived.is_some_and(|outlived| instance == outlived)
        }

        fn is_secondary(&self, _: &NodeName, _: &InstanceId) -> bool {
            false
        }

        fn provider_id(&self, _: &InstanceId, _: &str) -> Option<String> {
            None
        }

        fn lacks_its_gpu(&self, _: &InstanceId) -> bool {
            false
        }

        fn leaves(&self, _: &GroupName, instance: &Instance) -> Leaves {
            if instance.id == "i-out" { Leaves::WithDecrement } else { Leaves::No }
        }

        fn will_decrement(&self, instance: &InstanceId) -> bool {
            instance == "i-out"
        }

        fn accept(
            &self,
            _: &NodeName,
            _: &GroupName,
            _: &InstanceId,
        ) -> BoxFuture<'static, Result<Accepted, IntentError>> {
            unreachable!("reading a batch changes nothing")
        }
    }

    /// `web` has five live instances, one of them leaving, two that end, and misses two; its minimum is 3.
    fn view() -> Snapshot {
        let group = |name: &str, desired, instances: &[(&str, Lifecycle)]| {
            let instances = instances.iter().map(|(id, lifecycle)| Instance {
                id: (*id).into(),
                lifecycle: *lifecycle,
                ..Instance::default()
            });
            let name = name.to_owned();
            Arc::new(Group {
                asg: Arc::new(AutoScalingGroup {
                    name: name.into(),
                    min: 3,
                    max: 9,
                    desired,
                    instances: instances.collect(),
                    ..AutoScalingGroup::default()
                }),
                ..Group::default()
            })
        };
        let web = [
            ("i-1", Lifecycle::InService),
            ("i-2", Lifecycle::InService),
            ("i-new", Lifecycle::Pending),
            ("i-bare", Lifecycle::InService),
            ("i-out", Lifecycle::InService),
            ("i-held", Lifecycle::TerminatingWait),
            ("i-ends", Lifecycle::TerminatingProceed),
            ("i-warm", Lifecycle::Warmed),
        ];
        let other = [("i-other", Lifecycle::InService)];
        Snapshot::new(jiff::Timestamp::UNIX_EPOCH, [group("web", 7, &web), group("other", 9, &other)])
    }

    fn none(_: &InstanceId) -> bool {
        false
    }

    fn read(batch: &[&str]) -> Result<Deletion, RpcError> {
        read_with(&NODES, batch)
    }

    fn read_with(nodes: &Nodes, batch: &[&str]) -> Result<Deletion, RpcError> {
        let view = view();
        Deletion::read(&view, &view.groups["web"], &[5, 6], &named(batch), nodes, &none)
    }

    fn named(batch: &[&str]) -> Vec<ExternalGrpcNode> {
        let node =
            |id: &&str| ExternalGrpcNode { provider_id: format!("aws:///z/{id}"), ..Default::default() };
        batch.iter().map(node).collect()
    }

    fn deletion(placeholders: &[usize], unregistered: &[&str], nodes: &[&str]) -> Deletion {
        let drain = |id: &&str| NodeToDrain { node: id.replace("i-", "n-").into(), instance: (*id).into() };
        Deletion {
            placeholders: placeholders.to_vec(),
            unregistered: unregistered.iter().map(|id| (*id).into()).collect(),
            nodes: nodes.iter().map(drain).collect(),
            outliving: Vec::new(),
            refused: None,
        }
    }

    #[test]
    fn a_batch_comes_to_what_is_new_in_it() {
        let nothing = deletion(&[], &[], &[]);
        let table: &[(&[&str], Deletion)] = &[
            (&[], nothing.clone()),
            (&["i-1"], deletion(&[], &[], &["i-1"])),
            (&["i-1", "i-2", "i-1"], deletion(&[], &[], &["i-1", "i-2"])),
            (&["i-bare", "i-new"], deletion(&[], &["i-bare", "i-new"], &[])),
            (&["i-out"], nothing.clone()),
            (&["i-gone"], nothing.clone()),
            (&["i-held", "i-ends", "i-out"], nothing.clone()),
            (&["i-placeholder-web-5", "i-placeholder-web-6"], deletion(&[5, 6], &[], &[])),
            (&["i-placeholder-web-6", "i-placeholder-web-6"], deletion(&[6], &[], &[])),
            (&["i-placeholder-web-7"], nothing),
            (&["i-placeholder-web-5", "i-bare", "i-1"], deletion(&[5], &["i-bare"], &["i-1"])),
        ];
        for (batch, expected) in table {
            assert_eq!(&read(batch).expect("fine"), expected, "{batch:?}");
        }
    }

    #[test]
    fn aws_has_nothing_to_do_with_a_batch_of_nodes_alone() {
        let table: &[(&[&str], bool)] = &[
            (&["i-1", "i-2"], true),
            (&["i-out"], true),
            (&["i-1", "i-bare"], false),
            (&["i-1", "i-placeholder-web-5"], false),
            (&["i-bare", "i-placeholder-web-5"], false),
        ];
        for (batch, expected) in table {
            assert_eq!(read(batch).expect("fine").is_of_nodes_alone(), *expected, "{batch:?}");
        }
    }

    #[test]
    fn a_batch_with_a_node_of_no_or_another_group_is_refused_as_a_whole() {
        for stranger in ["i-other", "i-none", "i-warm", "i-placeholder-other-0", "fargate-1"] {
            assert!(matches!(read(&[stranger]), Err(RpcError::NotOfGroup { .. })), "{stranger}");
            for batch in [[stranger, "i-1"], ["i-out", stranger]] {
                assert!(matches!(read(&batch), Err(RpcError::BatchNotOfGroup { .. })), "{batch:?}");
            }
        }
    }

    #[test]
    fn until_the_nodes_are_listed_no_instance_counts_as_one_without_a_node() {
        let nodes = Nodes { are_synced: false, ..NODES };
        for batch in [&["i-bare"][..], &["i-1", "i-bare"], &["i-placeholder-web-5", "i-new"]] {
            assert!(matches!(read_with(&nodes, batch), Err(RpcError::NodesUnknown)), "{batch:?}");
        }
        for batch in [&["i-1"][..], &["i-out", "i-held"], &["i-placeholder-web-5"]] {
            assert!(read_with(&nodes, batch).is_ok(), "{batch:?}");
        }
    }

    #[test]
    fn while_the_watch_of_nodes_is_broken_no_instance_counts_as_one_without_a_node() {
        let nodes = Nodes { are_up_to_date: false, ..NODES };
        for batch in [&["i-bare"][..], &["i-1", "i-new"]] {
            let refused = read_with(&nodes, batch);
            assert!(matches!(refused, Err(RpcError::NodesOutdated(_))), "{refused:?}");
        }
        for batch in [&["i-1"][..], &["i-out", "i-held"], &["i-placeholder-web-5"]] {
            assert!(read_with(&nodes, batch).is_ok(), "{batch:?}");
        }
    }

    #[test]
    fn an_instance_whose_node_was_deleted_stays_and_its_batch_goes_on_without_it() {
        let nodes = Nodes { outlived: Some("i-bare"), ..NODES };
        let expected = Deletion { outliving: vec!["i-bare".into()], ..deletion(&[], &["i-new"], &["i-1"]) };
        assert_eq!(read_with(&nodes, &["i-bare", "i-new", "i-1"]).expect("fine"), expected);
    }

    #[test]
    fn an_instance_without_a_node_stays_while_a_node_may_be_of_any_machine_of_its_group() {
        let nodes = Nodes { one_is_unidentified: true, ..NODES };
        for batch in [&["i-bare"][..], &["i-1", "i-new"]] {
            let refused = read_with(&nodes, batch);
            assert!(
                matches!(&refused, Err(RpcError::Unidentified { node, .. }) if node == "n-any"),
                "{refused:?}"
            );
        }
        for batch in [&["i-1"][..], &["i-out", "i-held"], &["i-placeholder-web-5"]] {
            assert!(read_with(&nodes, batch).is_ok(), "{batch:?}");
        }
    }

    #[test]
    fn the_minimum_counts_all_that_is_new_and_nothing_that_is_not() {
        // The target size is 6: seven desired, one leaving.
        let three = ["i-placeholder-web-5", "i-bare", "i-1"];
        assert!(read(&three).is_ok());
        assert!(read(&[&three[..], &["i-out", "i-held", "i-1"]].concat()).is_ok());
        let four = read(&[&three[..], &["i-2"]].concat()).expect("instances come first");
        assert_eq!(four, deletion(&[], &["i-bare"], &["i-1", "i-2"]));
        assert!(matches!(read(&["i-bare", "i-1", "i-2", "i-new"]), Err(RpcError::Size(_))));
    }

    #[test]
    fn what_is_being_terminated_for_another_call_counts_once() {
        let view = view();
        let read = |batch: &[&str]| {
            let ends = |id: &InstanceId| id == "i-bare" || id == "i-new";
            Deletion::read(&view, &view.groups["web"], &[5, 6], &named(batch), &NODES, &ends)
        };
        // The target size is 4 with them: seven desired, three leaving.
        assert!(matches!(read(&["i-1", "i-2"]), Err(RpcError::Size(SizeError::BelowMin { .. }))));
        for batch in [&["i-1"][..], &["i-1", "i-bare"], &["i-bare", "i-new"]] {
            assert!(read(batch).is_ok(), "{batch:?}");
        }
        let both = ["i-placeholder-web-5", "i-placeholder-web-6"];
        assert_eq!(read(&both).expect("fine").placeholders, [5]);
    }

    #[test]
    fn as_many_placeholders_are_given_up_as_the_minimum_allows() {
        let both = ["i-placeholder-web-5", "i-placeholder-web-6"];
        assert_eq!(read(&both).expect("fine").placeholders, [5, 6]);
        assert_eq!(read(&[&both[..], &["i-1", "i-2"]].concat()).expect("fine").placeholders, [5]);
    }

    #[test]
    fn as_many_instances_without_a_node_go_as_the_minimum_allows() {
        let mut group = Group::clone(&view().groups["web"]);
        let mut read = |min, batch: &[&str]| {
            Arc::make_mut(&mut group.asg).min = min;
            Deletion::read(&view(), &group, &[5, 6], &named(batch), &NODES, &none)
        };
        let both = ["i-bare", "i-placeholder-web-5", "i-new"];
        let refused = SizeError::BelowMin { group: "web".into(), size: 4, min: 5 };
        let one = Deletion { refused: Some(refused), ..deletion(&[], &["i-bare"], &[]) };
        // Seven desired, one leaving.
        assert_eq!(read(4, &both).expect("fine"), deletion(&[], &["i-bare", "i-new"], &[]));
        assert_eq!(read(5, &both).expect("one of them"), one);
        let refused = SizeError::BelowMin { group: "web".into(), size: 4, min: 6 };
        let none_goes = Deletion { refused: Some(refused), ..Deletion::default() };
        assert_eq!(read(6, &both).expect("none of them"), none_goes);
        let with_a_node = read(5, &["i-1", "i-bare"]);
        assert!(matches!(with_a_node, Err(RpcError::Size(SizeError::BelowMin { .. }))), "{with_a_node:?}");
        // The minimum is raised meanwhile.
        let mut deletion = read(4, &both).expect("fine");
        Arc::make_mut(&mut group.asg).min = 5;
        assert_eq!(deletion.settle(&group, &[5, 6], &NODES, &none).expect("one of them"), None);
        assert_eq!(deletion, one);
    }

    #[test]
    fn what_has_happened_since_is_left_out() {
        let mut deletion = read(&["i-placeholder-web-5", "i-placeholder-web-6", "i-bare"]).expect("fine");
        let mut fresh = Group::clone(&view().groups["web"]);
        Arc::make_mut(&mut fresh.asg).instances[3].lifecycle = Lifecycle::Terminating;
        Arc::make_mut(&mut fresh.asg).desired = 5;
        assert_eq!(deletion.settle(&fresh, &[5, 6], &NODES, &none).expect("fine"), Some(4));
        assert_eq!(deletion, Deletion { placeholders: vec![6], ..Deletion::default() });
        Arc::make_mut(&mut fresh.asg).desired = 4;
        assert_eq!(deletion.settle(&fresh, &[5, 6], &NODES, &none).expect("fine"), None);
    }

    #[test]
    fn what_would_go_below_the_minimum_by_now_is_refused() {
        let mut deletion = read(&["i-bare", "i-1"]).expect("fine");
        let mut fresh = Group::clone(&view().groups["web"]);
        Arc::make_mut(&mut fresh.asg).min = 5;
        let refused = deletion.settle(&fresh, &[5, 6], &NODES, &none);
        assert!(matches!(refused, Err(RpcError::Size(SizeError::BelowMin { .. }))), "{refused:?}");
        Arc::make_mut(&mut fresh.asg).min = 4;
        deletion.settle(&fresh, &[5, 6], &NODES, &none).expect("allowed");
    }

    #[test]
    fn what_turns_out_to_be_units_is_not_given_up() {
        let mut deletion = read(&["i-placeholder-web-5", "i-bare"]).expect("fine");
        let mut fresh = Group::clone(&view().groups["web"]);
        Arc::make_mut(&mut fresh.asg).weights = Some(Weights::default());
        let refused = deletion.settle(&fresh, &[5, 6], &NODES, &none);
        assert!(matches!(refused, Err(RpcError::Size(SizeError::Weighted { .. }))), "{refused:?}");
    }

    #[test]
    fn a_node_that_only_the_caller_knows_is_not_taken_for_an_instance_that_never_registered() {
        let view = view();
        let provider_id = "aws:///z/i-bare";
        // Its name, whether it has labels, whether it counts as registered.
        let table = [
            ("", false, false),
            (provider_id, false, false),
            ("ip-10-0-0-1", false, true),
            ("", true, true),
            (provider_id, true, true),
        ];
        for (name, labelled, registered) in table {
            let labels = labelled.then(|| ("team".to_owned(), "blue".to_owned()));
            let node = ExternalGrpcNode {
                provider_id: provider_id.to_owned(),
                name: name.to_owned(),
                labels: labels.into_iter().collect(),
                ..ExternalGrpcNode::default()
            };
            let read = Deletion::read(&view, &view.groups["web"], &[], &[node], &NODES, &none);
            let unseen = matches!(read, Err(RpcError::NodeUnseen { .. }));
            assert_eq!((unseen, read.is_ok()), (registered, !registered), "{name:?}, labels: {labelled}");
        }
    }

    #[test]
    fn a_placeholder_listed_before_the_group_had_weights_is_not_given_up() {
        let mut group = Group::clone(&view().groups["web"]);
        Arc::make_mut(&mut group.asg).weights = Some(Weights::default());
        let node = ExternalGrpcNode {
            provider_id: "aws:///z/i-placeholder-web-9".to_owned(),
            ..ExternalGrpcNode::default()
        };
        let refused = Deletion::read(&view(), &group, &[5, 6], &[node], &NODES, &none);
        assert!(matches!(refused, Err(RpcError::Size(SizeError::Weighted { .. }))), "{refused:?}");
    }
}
