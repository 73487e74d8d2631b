//! The registry, compared with the sources of both versions.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use super::options::{Options, Version};
use super::registry::{Failure, GroupFacts, Look, NodeFacts, Registry, not_registered};
use crate::provider::proto::instance_status::InstanceState;
use crate::provider::proto::{Instance, InstanceErrorInfo, InstanceStatus};

const BOTH: [Version; 2] = [Version::V1_30, Version::Core2026];

fn at(minute: u64) -> Timestamp {
    Timestamp::UNIX_EPOCH + Duration::from_hours(1) + Duration::from_mins(minute)
}

fn node(name: &str) -> NodeFacts {
    NodeFacts {
        name: name.to_owned(),
        provider_id: id(name),
        ready: true,
        created: at(0) - Duration::from_mins(30),
        to_be_deleted: false,
    }
}

fn id(name: &str) -> String {
    format!("aws:///z/{name}")
}

fn instance(name: &str, state: InstanceState, error: Option<&str>) -> Instance {
    let error_info = error.map(|code| InstanceErrorInfo {
        error_code: code.to_owned(),
        error_message: String::new(),
        instance_error_class: 1,
    });
    Instance { id: id(name), status: Some(InstanceStatus { instance_state: state.into(), error_info }) }
}

/// A group `g` of 0 to 10, and its nodes.
struct Group {
    registry: Registry,
    target: i32,
    nodes: Vec<NodeFacts>,
    /// Nodes for which NodeGroupForNode names no group.
    nobodys: Vec<NodeFacts>,
    listed: Vec<Instance>,
    startup_time: Duration,
}

impl Group {
    fn of(version: Version, ready: usize) -> Self {
        let nodes: Vec<_> = (0..ready).map(|n| node(&format!("n{n}"))).collect();
        Self {
            registry: Registry::new(Options::of(version)),
            target: ready as i32,
            listed: nodes.iter().map(|n| instance(&n.name, InstanceState::InstanceRunning, None)).collect(),
            nodes,
            nobodys: Vec::new(),
            startup_time: Duration::from_mins(15),
        }
    }

    fn look(&mut self, now: Timestamp) -> Vec<Failure> {
        let named = self.nodes.iter().map(|node| (node.clone(), Some("g".to_owned())));
        let nodes: Vec<_> = named.chain(self.nobodys.iter().map(|node| (node.clone(), None))).collect();
        let unregistered = not_registered(nodes.iter().map(|(node, _)| node), &self.listed);
        let group = GroupFacts {
            id: "g".to_owned(),
            min: 0,
            max: 10,
            target: self.target,
            instances: self.listed.clone(),
            provision_time: Duration::from_mins(15),
            startup_time: self.startup_time,
        };
        let unregistered = unregistered.into_iter().map(|id| (id, Some("g".to_owned()))).collect();
        self.registry.update(Look { groups: vec![group], nodes, unregistered }, now)
    }

    /// IncreaseSize succeeds.
    fn scale_up(&mut self, delta: i32, now: Timestamp) {
        self.registry.register_scale_up("g", delta, now);
        self.target += delta;
        self.registry.recalculate(&BTreeMap::from([("g".to_owned(), self.target)]));
    }

    fn upcoming(&self) -> i32 {
        self.registry.upcoming().get("g").copied().unwrap_or_default()
    }
}

#[test]
fn a_tainted_node_that_is_still_in_the_target_size_makes_the_older_one_wait_for_another() {
    for (version, upcoming) in [(Version::V1_30, 1), (Version::Core2026, 0)] {
        let mut group = Group::of(version, 3);
        group.nodes[0].to_be_deleted = true;
        group.look(at(0));
        assert_eq!(group.upcoming(), upcoming, "{version:?}");
        assert_eq!(group.registry.readiness_of("g").deleted, 1);
        group.target = 2;
        group.look(at(1));
        assert_eq!(group.upcoming(), 0, "{version:?}");
    }
}

#[test]
fn a_scale_up_beside_nodes_that_leave_and_are_named_is_done_at_once_to_the_older_one() {
    for (version, under_way) in [(Version::V1_30, false), (Version::Core2026, true)] {
        let mut group = Group::of(version, 4);
        for leaving in &mut group.nodes[..2] {
            leaving.to_be_deleted = true;
        }
        group.target = 2;
        group.look(at(0));
        group.scale_up(1, at(0));
        group.listed.push(instance("i-placeholder-g-4", InstanceState::InstanceCreating, None));
        group.look(at(1));
        assert_eq!(group.registry.is_scaling_up("g"), under_way, "{version:?}");
        let failures = group.look(at(16));
        let timed_out = Failure::TimedOut { group: "g".to_owned(), increase: 1 };
        assert_eq!(failures, if under_way { vec![timed_out] } else { vec![] }, "{version:?}");
    }
}

#[test]
fn a_scale_up_beside_nodes_of_no_group_times_out_and_the_group_is_left_alone() {
    for version in BOTH {
        let mut group = Group::of(version, 4);
        group.nobodys = group.nodes.drain(..2).collect();
        for leaving in &mut group.nobodys {
            leaving.to_be_deleted = true;
        }
        group.target = 2;
        group.look(at(0));
        group.scale_up(1, at(0));
        let placeholder = instance("i-placeholder-g-4", InstanceState::InstanceCreating, None);
        group.listed.push(placeholder.clone());
        assert_eq!(group.look(at(1)), []);
        assert_eq!((group.upcoming(), group.registry.is_scaling_up("g")), (1, true), "{version:?}");
        let timed_out = Failure::TimedOut { group: "g".to_owned(), increase: 1 };
        assert_eq!(group.look(at(16)), [timed_out], "{version:?}");
        assert!(!group.registry.is_safe_to_scale_up("g", at(20)));
        assert!(group.registry.is_safe_to_scale_up("g", at(22)));
        // A leaving instance is still listed: it has a Node, of whatever group.
        assert_eq!(group.registry.sizes_to_fix(), []);
        assert_eq!(group.look(at(17)), []);
        let old = BTreeMap::from([("g".to_owned(), vec![placeholder.id])]);
        assert_eq!(group.registry.old_unregistered(), old, "{version:?}");
    }
}

#[test]
fn a_placeholder_with_an_error_that_stays_makes_a_size_wrong_and_one_without_does_not() {
    for version in BOTH {
        for (error, to_fix) in [(Some("VcpuLimitExceeded"), vec![("g".to_owned(), -1)]), (None, vec![])] {
            let mut group = Group::of(version, 2);
            group.target = 3;
            group.listed.push(instance("i-placeholder-g-2", InstanceState::InstanceCreating, error));
            for minute in 0..=15 {
                assert_eq!(group.look(at(minute)), []);
                assert_eq!(group.registry.sizes_to_fix(), []);
            }
            group.look(at(16));
            assert_eq!(group.registry.sizes_to_fix(), to_fix, "{version:?}");
            assert_eq!(group.registry.created_with_errors().len(), usize::from(error.is_some()));
            assert_eq!(group.registry.old_unregistered().len(), usize::from(error.is_none()));
            assert!(group.registry.is_safe_to_scale_up("g", at(16)));
        }
    }
}

#[test]
fn an_error_that_was_not_seen_before_takes_the_scale_up_back_and_leaves_the_group_alone() {
    for version in BOTH {
        let mut group = Group::of(version, 1);
        group.look(at(0));
        group.scale_up(2, at(0));
        let failed = |n: u32| {
            let name = format!("i-placeholder-g-{n}");
            instance(&name, InstanceState::InstanceCreating, Some("VcpuLimitExceeded"))
        };
        group.listed.push(failed(1));
        group.listed.push(instance("i-placeholder-g-2", InstanceState::InstanceCreating, None));
        let refused =
            Failure::Refused { group: "g".to_owned(), code: "VcpuLimitExceeded".to_owned(), nodes: 1 };
        assert_eq!(group.look(at(1)), [refused], "{version:?}");
        assert_eq!(group.look(at(2)), [], "it has been seen: {version:?}");
        assert!(!group.registry.is_safe_to_scale_up("g", at(5)));
    }
}

#[test]
fn nodes_of_a_group_without_a_startup_time_are_broken_while_they_boot() {
    let mut group = Group::of(Version::Core2026, 0);
    group.look(at(0));
    group.target = 4;
    group.registry.register_scale_up("g", 4, at(0));
    group.startup_time = Duration::ZERO;
    group.nodes =
        (0..4).map(|n| NodeFacts { ready: false, created: at(0), ..node(&format!("b{n}")) }).collect();
    group.look(at(0) + Duration::from_secs(10));
    assert_eq!((group.registry.readiness_of("g").unready, group.upcoming()), (4, 0), "bought again");
    assert!(!group.registry.is_cluster_healthy());
    group.startup_time = Duration::from_mins(15);
    group.look(at(0) + Duration::from_secs(20));
    assert!(group.registry.is_cluster_healthy());
}

#[test]
fn what_is_being_deleted_or_has_failed_is_not_expected_to_register() {
    let listed = [
        instance("n0", InstanceState::InstanceRunning, None),
        instance("new", InstanceState::InstanceCreating, None),
        instance("failed", InstanceState::InstanceCreating, Some("x")),
        instance("going", InstanceState::InstanceDeleting, None),
        Instance { id: id("untold"), status: None },
    ];
    assert_eq!(not_registered(&[node("n0")], &listed), [id("new"), id("untold")].into());
}
