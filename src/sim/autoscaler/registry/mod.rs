//! What cluster-autoscaler concludes from Nodes and the provider's answers: upcoming and failed nodes, and groups with a
//! wrong size. Pure.
//!
//! Sources: `clusterstate/clusterstate.go` of 1.30 and of the core of 2026; functions have their names from there, in our
//! spelling. Not modelled: suspended nodes, asynchronously created node groups, the status ConfigMap.

mod asked;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::backoff::Backoff;
use super::options::Options;
use crate::provider::proto::Instance;
use crate::provider::proto::instance_status::InstanceState;

/// The facts of a Node that count here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// Its provider id.
    pub provider_id: String,
    /// Whether it is Ready.
    pub ready: bool,
    /// Its creation time.
    pub created: Timestamp,
    /// Whether it has the ToBeDeleted taint. The protocol has no HasInstance, so only the taint makes it deleted.
    pub to_be_deleted: bool,
}

/// The provider's answers about a group in one loop.
#[derive(Clone, Debug)]
pub struct GroupFacts {
    /// Its id.
    pub id: String,
    /// MinSize.
    pub min: i32,
    /// MaxSize.
    pub max: i32,
    /// TargetSize.
    pub target: i32,
    /// Nodes, possibly from the cache.
    pub instances: Vec<Instance>,
    /// MaxNodeProvisionTime.
    pub provision_time: Duration,
    /// MaxNodeStartupTime.
    pub startup_time: Duration,
}

/// The input of one loop.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// The groups, in the provider's order.
    pub groups: Vec<GroupFacts>,
    /// Every Node, with the group that NodeGroupForNode names.
    pub nodes: Vec<(NodeFacts, Option<String>)>,
    /// The result of [`not_registered`], by provider id, with the group that NodeGroupForNode names.
    pub unregistered: BTreeMap<String, Option<String>>,
}

/// Numbers of a group's nodes by readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// Registered, in whatever state.
    pub registered: usize,
    /// Ready.
    pub ready: usize,
    /// Not ready after having started.
    pub unready: usize,
    /// Being deleted; cluster-autoscaler assumes that the target size no longer counts them.
    pub deleted: usize,
    /// Not ready yet.
    pub not_started: usize,
    /// Listed and not registered.
    pub unregistered: usize,
    /// The same, for longer than a node may take to register.
    pub long_unregistered: usize,
}

/// A scale-up under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    increase: i32,
    expected_by: Timestamp,
}

/// A size that does not match the existing nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IncorrectSize {
    expected: i32,
    current: i32,
    since: Timestamp,
}

#[derive(Clone, Copy, Debug, Default)]
struct AcceptableRange {
    min: i32,
    target: i32,
}

/// A failed scale-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// Nodes did not come in time. The newer version then lowers the target size by `increase`.
    TimedOut {
        /// The group.
        group: String,
        /// Nodes requested.
        increase: i32,
    },
    /// Requested instances are listed with an error.
    Refused {
        /// The group.
        group: String,
        /// The error's code.
        code: String,
        /// Those not listed with an error before.
        nodes: usize,
    },
}

/// ClusterStateRegistry.
#[derive(Clone, Debug)]
pub struct Registry {
    options: Options,
    look: Look,
    now: Timestamp,
    requests: BTreeMap<String, Request>,
    backoff: Backoff,
    unregistered_since: BTreeMap<String, Timestamp>,
    errors_before: BTreeSet<String>,
    readiness: BTreeMap<String, Readiness>,
    total: Readiness,
    ranges: BTreeMap<String, AcceptableRange>,
    incorrect: BTreeMap<String, IncorrectSize>,
}

/// Listed instances that should register but have no Node, by provider id. The group of a Node does not matter here.
pub fn not_registered<'a>(
    nodes: impl IntoIterator<Item = &'a NodeFacts>,
    listed: impl IntoIterator<Item = &'a Instance>,
) -> BTreeSet<String> {
    let registered: BTreeSet<&str> = nodes.into_iter().map(|node| node.provider_id.as_str()).collect();
    let missing = listed.into_iter().filter(|i| !registered.contains(i.id.as_str()) && is_expected(i));
    missing.map(|instance| instance.id.clone()).collect()
}

fn is_expected(instance: &Instance) -> bool {
    state(instance) != Some(InstanceState::InstanceDeleting) && error_code(instance).is_none()
}

fn state(instance: &Instance) -> Option<InstanceState> {
    instance
        .status
        .as_ref()
        .map(|status| status.instance_state())
        .filter(|s| *s != InstanceState::Unspecified)
}

/// The code of the instance's error; an error without a code does not count.
fn error_code(instance: &Instance) -> Option<&str> {
    let error = instance.status.as_ref()?.error_info.as_ref()?;
    (!error.error_code.is_empty()).then_some(error.error_code.as_str())
}

fn has_create_error(instance: &Instance) -> bool {
    state(instance) == Some(InstanceState::InstanceCreating) && error_code(instance).is_some()
}

impl Registry {
    /// An empty registry.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            look: Look::default(),
            now: Timestamp::UNIX_EPOCH,
            requests: BTreeMap::new(),
            backoff: Backoff::default(),
            unregistered_since: BTreeMap::new(),
            errors_before: BTreeSet::new(),
            readiness: BTreeMap::new(),
            total: Readiness::default(),
            ranges: BTreeMap::new(),
            incorrect: BTreeMap::new(),
        }
    }

    /// UpdateNodes: recomputes everything and returns the failed scale-ups.
    pub fn update(&mut self, look: Look, now: Timestamp) -> Vec<Failure> {
        let with_error = |group: &GroupFacts| {
            let of_group = group.instances.iter().filter(|i| has_create_error(i));
            of_group.map(|instance| instance.id.clone()).collect::<Vec<_>>()
        };
        self.errors_before = self.look.groups.iter().flat_map(with_error).collect();
        (self.look, self.now) = (look, now);
        let known = std::mem::take(&mut self.unregistered_since);
        let since = |id: &String| (id.clone(), known.get(id).copied().unwrap_or(now));
        self.unregistered_since = self.look.unregistered.keys().map(since).collect();
        self.update_readiness();
        self.update_acceptable_ranges();
        let mut failures = self.update_scale_requests();
        failures.extend(self.handle_instance_creation_errors());
        self.update_acceptable_ranges();
        self.update_incorrect_sizes();
        failures
    }

    fn update_readiness(&mut self) {
        let (mut groups, mut total) = (BTreeMap::<String, Readiness>::new(), Readiness::default());
        let mut startup_time = self.options.max_node_startup_time;
        for (node, group) in &self.look.nodes {
            // Nodes of no group get the last group's time, as the newer version is written.
            if let Some(facts) = group.as_ref().and_then(|group| self.facts(group)) {
                startup_time = facts.startup_time;
            }
            let kind = |readiness: &mut Readiness| {
                readiness.registered += 1;
                if node.to_be_deleted {
                    readiness.deleted += 1;
                } else if node.ready {
                    readiness.ready += 1;
                } else if node.created + startup_time > self.now {
                    readiness.not_started += 1;
                } else {
                    readiness.unready += 1;
                }
            };
            kind(&mut total);
            if let Some(group) = group {
                kind(groups.entry(group.clone()).or_default());
            }
        }
        for (id, group) in &self.look.unregistered {
            let Some(group) = group else { continue };
            let readiness = groups.entry(group.clone()).or_default();
            if self.is_old(id, group) {
                readiness.long_unregistered += 1;
            } else {
                readiness.unregistered += 1;
            }
        }
        (self.readiness, self.total) = (groups, total);
    }

    fn is_old(&self, unregistered: &str, group: &str) -> bool {
        let provision_time =
            self.facts(group).map_or(self.options.max_node_provision_time, |facts| facts.provision_time);
        self.unregistered_since.get(unregistered).is_some_and(|since| *since + provision_time < self.now)
    }

    fn update_acceptable_ranges(&mut self) {
        let range = |group: &GroupFacts| {
            let long = self.readiness_of(&group.id).long_unregistered as i32;
            let increase = self.requests.get(&group.id).map_or(0, |request| request.increase);
            let range = AcceptableRange { min: group.target - long - increase, target: group.target };
            (group.id.clone(), range)
        };
        self.ranges = self.look.groups.iter().map(range).collect();
    }

    fn update_scale_requests(&mut self) -> Vec<Failure> {
        let (options, now) = (self.options.clone(), self.now);
        self.backoff.forget(&options, now);
        let upcoming: BTreeSet<String> =
            self.requests.keys().filter(|group| self.are_there_upcoming_nodes(group)).cloned().collect();
        // Requests whose nodes have all come are done.
        self.requests.retain(|group, _| upcoming.contains(group));
        let late: Vec<(String, i32)> = self
            .requests
            .iter()
            .filter(|(_, request)| request.expected_by < now)
            .map(|(group, request)| (group.clone(), request.increase))
            .collect();
        for (group, _) in &late {
            self.backoff.fail(group, &options, now);
            self.requests.remove(group);
        }
        late.into_iter().map(|(group, increase)| Failure::TimedOut { group, increase }).collect()
    }

    fn handle_instance_creation_errors(&mut self) -> Vec<Failure> {
        let mut unseen: BTreeMap<(String, String), usize> = BTreeMap::new();
        for group in &self.look.groups {
            for instance in group.instances.iter().filter(|i| has_create_error(i)) {
                let code = error_code(instance).unwrap_or_default().to_owned();
                let new = !self.errors_before.contains(&instance.id);
                *unseen.entry((group.id.clone(), code)).or_default() += usize::from(new);
            }
        }
        let mut failures = Vec::new();
        for ((group, code), nodes) in unseen {
            if nodes > 0 && self.is_scaling_up(&group) {
                self.register_scale_up(&group, -(nodes as i32), self.now);
                self.backoff.fail(&group, &self.options, self.now);
                failures.push(Failure::Refused { group, code, nodes });
            }
        }
        failures
    }

    fn update_incorrect_sizes(&mut self) {
        let before = std::mem::take(&mut self.incorrect);
        for (group, range) in &self.ranges {
            let Some(readiness) = self.readiness.get(group) else { continue };
            let unregistered = (readiness.unregistered + readiness.long_unregistered) as i32;
            let (expected, current) = (range.target, readiness.registered as i32);
            if current > expected || current < expected - unregistered {
                let known = before.get(group).filter(|b| (b.expected, b.current) == (expected, current));
                let since = known.map_or(self.now, |known| known.since);
                self.incorrect.insert(group.clone(), IncorrectSize { expected, current, since });
            }
        }
    }

    /// RegisterScaleUp; a negative `delta` takes off what failed.
    pub fn register_scale_up(&mut self, group: &str, delta: i32, now: Timestamp) {
        let provision_time =
            self.facts(group).map_or(self.options.max_node_provision_time, |facts| facts.provision_time);
        let expected_by = now + provision_time;
        match self.requests.get_mut(group) {
            None if delta > 0 => {
                self.requests.insert(group.to_owned(), Request { increase: delta, expected_by });
            }
            None => {}
            Some(request) if request.increase + delta <= 0 => {
                self.requests.remove(group);
            }
            Some(request) => {
                request.increase += delta;
                if delta > 0 {
                    request.expected_by = expected_by;
                }
            }
        }
    }

    /// RegisterFailedScaleUp.
    pub fn register_failed_scale_up(&mut self, group: &str, now: Timestamp) {
        self.backoff.fail(group, &self.options, now);
    }

    /// Recalculate: replaces the target sizes read at the beginning of the loop.
    pub fn recalculate(&mut self, targets: &BTreeMap<String, i32>) {
        for group in &mut self.look.groups {
            group.target = targets.get(&group.id).copied().unwrap_or(group.target);
        }
        self.update_acceptable_ranges();
    }

    fn facts(&self, group: &str) -> Option<&GroupFacts> {
        self.look.groups.iter().find(|facts| facts.id == group)
    }
}
