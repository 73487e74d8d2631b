//! What the controller and its workers share, and what they read off the watches and the last refresh.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::deadline::OurLimit;
use super::eviction_rate::EvictionRate;
use super::history::History;
use super::holds::Holds;
use super::load_balancers::{LoadBalancers, Targets};
use super::membership::Membership;
use super::metrics::Metrics;
use super::node_patch;
use super::notices::Notices;
use super::pod_events::PodEvents;
use super::record::{Annotation, Cause, Phase, Record, Release, Written};
use super::settings::Settings;
use super::taken_out::TakenOut;
use super::unseen_nodes::UnseenNodes;
use super::waiting::Board;
use crate::aws::{AutoScalingGroup, Aws, Instance, Lifecycle};
use crate::clock::Clock;
use crate::cluster::{
    Attachment, Budget, Cluster, DrainState, Existing, Leadership, NodeView, Nodes, PodName, Store,
};
use crate::dry_run::DryRun;
use crate::groups::hooks::Hooks;
use crate::groups::protection::Protection;
use crate::groups::selector::Selectors;
use crate::groups::sizes::{self, Leaves, SizeError};
use crate::groups::{Groups, Snapshot};
use crate::k8s::{GroupName, InstanceId, NodeName, names};
use crate::telemetry::Outage;
use crate::telemetry::traces::Traces;
use crate::template::{self, LearnedStore};

/// Instances whose request may be carried out, by group, and since when it may.
pub(super) type TurnsGiven = Mutex<BTreeMap<GroupName, BTreeMap<InstanceId, Timestamp>>>;

/// What the controller and its workers share.
#[derive(Debug)]
pub struct Shared {
    /// The Kubernetes API.
    pub cluster: Cluster,
    /// AWS.
    pub aws: Aws,
    /// Nodes, from the controller's watch.
    pub nodes: Arc<Nodes>,
    /// Disruption budgets.
    pub budgets: Store<Budget>,
    /// DaemonSets.
    pub daemon_sets: Store<Existing>,
    /// Volume attachments.
    pub attachments: Store<Attachment>,
    /// Node groups.
    pub groups: Arc<Groups>,
    /// Which groups are selected.
    pub selectors: Selectors,
    /// Templates learned from the groups' nodes.
    pub learned: Arc<LearnedStore>,
    /// Lifecycle hooks.
    pub hooks: Arc<Hooks>,
    /// Since when instances are held, and until when their pods need them.
    pub holds: Arc<Holds>,
    /// Whom groups take out by themselves, as looked up last.
    pub taken_out: TakenOut,
    /// Whether instances have Nodes that the watch does not show.
    pub unseen_nodes: UnseenNodes,
    /// Which instances load balancers reach.
    pub load_balancers: Arc<LoadBalancers>,
    /// What queues have told of instances' ends.
    pub notices: Notices,
    /// URLs of the queues.
    pub queues: Vec<String>,
    /// Lowers sizes without naming an instance to end.
    pub protection: Arc<Protection>,
    /// Our own pod, if known.
    pub own_pod: Option<PodName>,
    /// Whether this process may write.
    pub leadership: Leadership,
    /// The clock.
    pub clock: Clock,
    /// Settings of scale-ins.
    pub settings: Settings,
    /// How many Events on pods go out, and whether they work.
    pub pod_events: Mutex<PodEvents>,
    /// Whether conditions of Nodes can be written.
    pub reports: Mutex<Outage>,
    /// Whether guards can be written.
    pub guards: Mutex<Outage>,
    /// What would have been done, in a dry run.
    pub dry_run: Option<DryRun>,
    /// How many evictions go out a second.
    pub eviction_rate: EvictionRate,
    /// Instances whose request may be carried out but had no record yet, and since when it may.
    pub turns_given: TurnsGiven,
    /// How far scale-ins are.
    pub progress: Arc<Board>,
    /// The last scale-ins that ended.
    pub history: History,
    /// Where scale-ins that ended are told as traces.
    pub traces: Traces,
    /// Counters.
    pub metrics: Metrics,
    /// Stops everything: answers still out are awaited, nothing new is sent.
    pub stop: CancellationToken,
}

impl Shared {
    /// Drops the Node's progress report and its places in queues, as no work on it is under way.
    pub(super) fn leave_all_queues(&self, node: &NodeName) {
        self.progress.forget(node);
        self.eviction_rate.leave(node);
        self.load_balancers.leave(node);
    }
}

/// The primary Node of an instance.
pub(super) fn primary(nodes: &Nodes, instance: &InstanceId) -> Option<Arc<NodeView>> {
    primary_of(&nodes.of_instance(instance), instance).cloned()
}

/// The same if any Node of the instance is marked to go; of most, none is.
fn marked_primary(nodes: &Nodes, instance: &InstanceId) -> Option<Arc<NodeView>> {
    nodes.is_marked(instance).then(|| primary(nodes, instance))?
}

/// Which of the Nodes of an instance is the primary one: the one with its record, else one with a request, else the one most likely
/// the machine's own.
pub(super) fn primary_of<'a>(all: &'a [Arc<NodeView>], instance: &InstanceId) -> Option<&'a Arc<NodeView>> {
    let rank = |node: &NodeView| match node.record.as_deref().map(Annotation::written) {
        Some(Written::Record(record)) if record.instance == *instance => 0,
        Some(Written::Request(_)) => 1,
        _ => 2,
    };
    match all {
        [one] => Some(one),
        all => all.iter().min_by_key(|node| rank(node)),
    }
}

/// A Node and its twins: all that name its instance.
pub(super) fn with_twins(shared: &Shared, node: &NodeView) -> Vec<Arc<NodeView>> {
    node.instance.as_ref().map(|instance| shared.nodes.of_instance(instance)).unwrap_or_default()
}

/// How many volumes are attached to these nodes; 1 until they are listed, as there may be one.
pub(super) fn attachments_on<'a>(shared: &Shared, nodes: impl IntoIterator<Item = &'a NodeName>) -> usize {
    if !shared.attachments.is_synced() {
        return 1;
    }
    nodes.into_iter().map(|node| shared.attachments.count_on(node)).sum()
}

/// The limit of ours on the scale-ins of a group; unknown of one that no refresh has shown, or the last one has left out.
pub(super) fn our_limit(snapshot: Option<&Snapshot>, settings: &Settings, group: &GroupName) -> OurLimit {
    let Some(snapshot) = snapshot else { return OurLimit::Unknown };
    snapshot.last_seen(group).map_or(OurLimit::Unknown, |group| {
        OurLimit::of(template::tags::drain_timeout(&group.asg.tags), settings)
    })
}

/// Through which target groups load balancers reach the instance of a Node that flushes; the leader has AWS asked.
pub(super) fn targets(shared: &Shared, snapshot: Option<&Snapshot>, node: &NodeView, leads: bool) -> Targets {
    if !shared.settings.wait_for_load_balancers {
        return Targets::NotAsked;
    }
    let flushes = node.scale_in().filter(|record| leads && record.phase == Phase::Flushing);
    let Some(record) = flushes else {
        shared.load_balancers.leave(&node.name);
        return Targets::NotAsked;
    };
    shared.load_balancers.want(&node.name);
    let group = snapshot.and_then(|snapshot| snapshot.groups.get(&record.group));
    let of_its_group = group.map(|group| group.asg.target_groups.clone()).unwrap_or_default();
    shared.load_balancers.of(&record.instance, &of_its_group)
}

/// Whether the group of a Node's instance ends none on request at present.
pub(super) fn keeps_its_nodes(snapshot: Option<&Snapshot>, node: &NodeView) -> bool {
    let found = snapshot.and_then(|snapshot| snapshot.place_of(node));
    found.is_some_and(|(group, _)| sizes::keeps_its_nodes(&group.asg))
}

/// Whether the group of a Node's instance may shrink by one.
pub(super) fn may_shrink(nodes: &Nodes, snapshot: Option<&Snapshot>, node: &NodeView) -> bool {
    let found = snapshot.and_then(|snapshot| snapshot.place_of(node));
    found.is_some_and(|(group, instance)| may_lose(nodes, &group.asg, &instance.id))
}

/// Whether the group of a Node's instance has launched the replacement before it ends the instance.
pub(super) fn is_replaced_first(snapshot: Option<&Snapshot>, node: &NodeView) -> bool {
    let found = snapshot.and_then(|snapshot| snapshot.place_of(node));
    found.is_some_and(|(group, instance)| sizes::is_replaced_first(&group.asg, instance))
}

/// Whether a group may shrink by this instance. Looks at all instances of the group.
pub(super) fn may_lose(nodes: &Nodes, group: &AutoScalingGroup, instance: &InstanceId) -> bool {
    removable(nodes, group, instance).is_ok()
}

/// The same, with what is against it.
pub(super) fn removable(
    nodes: &Nodes,
    group: &AutoScalingGroup,
    instance: &InstanceId,
) -> Result<(), SizeError> {
    let decrements = |other: &Instance| other.id != *instance && will_decrement(nodes, &other.id);
    sizes::removable(group, [instance.as_str()], decrements)
}

/// Whether a scale-in of the instance is accepted that will lower the desired capacity.
pub(super) fn will_decrement(nodes: &Nodes, instance: &InstanceId) -> bool {
    marked_primary(nodes, instance).is_some_and(|node| {
        node.scale_in().is_some_and(|record| record.release == Release::TerminateAndDecrement)
    })
}

/// Whether an instance certainly has no Node.
pub(super) async fn is_without_node(shared: &Shared, instance: &InstanceId) -> bool {
    let seen_by = (&shared.cluster, &*shared.nodes, &shared.clock);
    shared.unseen_nodes.are_none_of(instance, seen_by).await
}

/// A Node that may be of any of these instances of a group: its provider id does not say of which machine it is, and no Node of theirs
/// is known, as where kubelets are started without a provider id.
pub(super) fn unidentified_node(nodes: &Nodes, instances: &[Instance]) -> Option<NodeName> {
    let is_known = |instance: &Instance| !nodes.of_instance(&instance.id).is_empty();
    if instances.iter().any(is_known) { None } else { nodes.unidentified() }
}

/// Whether a scale-in of this instance of the group is under way.
pub(super) fn is_leaving(nodes: &Nodes, group: &GroupName, instance: &InstanceId) -> bool {
    marked_primary(nodes, instance)
        .is_some_and(|node| node.scale_in().is_some_and(|record| record.group == *group))
}

/// Whether cluster-autoscaler counts the instance's node as deleted (its scale-in is under way or, by the ToBeDeleted taint, about to be
/// requested), and what happens to the desired capacity then. An instance on its way back from the warm pool is a node to come.
/// `described`: when the description that shows the instance was asked for, by the API server's clock.
pub(super) fn leaves(
    nodes: &Nodes,
    group: &GroupName,
    instance: &Instance,
    described: impl FnOnce() -> Option<Timestamp>,
) -> Leaves {
    let Some(node) = marked_primary(nodes, &instance.id) else { return Leaves::No };
    match node.scale_in().filter(|record| record.group == *group) {
        Some(record) if is_on_its_way_in(record, instance.lifecycle, described) => Leaves::No,
        Some(record) if record.release == Release::TerminateAndDecrement => Leaves::WithDecrement,
        Some(_) => Leaves::Replaced,
        None if node.taint(names::TO_BE_DELETED).is_some() => Leaves::BeingDrained,
        None => Leaves::No,
    }
}

/// Whether the instance is back in its group, or about to be, although its record is still there (the record comes off when a second
/// description shows the instance in service). In service does not mean back if the machine only stops, until its group finds out, or
/// if the description is from before the release.
pub(super) fn is_on_its_way_in(
    record: &Record,
    lifecycle: Lifecycle,
    described: impl FnOnce() -> Option<Timestamp>,
) -> bool {
    let was_given_back = record.phase == Phase::Releasing && record.cause != Cause::StateChange;
    let is_back = || {
        let in_service = was_given_back && lifecycle == Lifecycle::InService;
        in_service && described().is_some_and(|at| at > record.phase_since)
    };
    record.release == Release::LeftToGroup && (lifecycle == Lifecycle::Pending || is_back())
}

/// Where a Node's instance is, by the last refresh.
pub(super) fn membership(snapshot: Option<&Snapshot>, node: &NodeView) -> Membership {
    let Some(snapshot) = snapshot else { return Membership::Unknown };
    let seen = snapshot.taken_at;
    match snapshot.place_of(node) {
        Some((group, instance)) => {
            Membership::In { group: group.asg.name.clone(), lifecycle: instance.lifecycle, seen }
        }
        None => Membership::Elsewhere { seen },
    }
}

/// Whether a Node is another installation's than `ours`: its instance is in no group of ours, and another's name is in its record or beside
/// what was put on it. Whoever wrote neither has no name, and may be an earlier run of ours.
pub(super) fn is_of_another(node: &NodeView, instance: &Membership, ours: Option<&str>) -> bool {
    let record = node.record.as_deref().and_then(Annotation::record);
    let recorded = record.and_then(|record| record.installation.as_deref());
    let by = recorded.or_else(|| node_patch::marked_by(node));
    by.is_some() && by != ours && !matches!(instance, Membership::In { .. })
}

/// Whether a Node needs a worker, now or when something changes. `twins`: its twins, with or without itself.
pub(super) fn needs_worker(
    shared: &Shared,
    node: &NodeView,
    twins: &[Arc<NodeView>],
    instance: &Membership,
) -> bool {
    if is_of_another(node, instance, shared.settings.installation.as_deref()) {
        return false;
    }
    let is_noticed = node.instance.as_ref().is_some_and(|it| !shared.notices.about(it).is_empty());
    let is_reported = node.drain_state.is_some_and(|state| state != DrainState::Cancelled);
    if is_noticed || is_reported || node.cordon.is_some() {
        return true;
    }
    // A word that only a newer version knows is nothing to be done here.
    let is_marked = node.marks.is_some() && !node_patch::marks(node).is_empty();
    if is_marked || node.record.is_some() || twins.iter().any(|node| node.record.is_some()) {
        return true;
    }
    let guard = shared.settings.guard;
    let Membership::In { lifecycle, .. } = instance else { return false };
    lifecycle.is_held()
        || matches!(lifecycle, Lifecycle::Terminating | Lifecycle::Retained)
        // cluster-autoscaler drains it: somebody must see the last exit, from which the flush counts.
        || node.taint(names::TO_BE_DELETED).is_some()
        || (guard && node.taint(names::DELETION_CANDIDATE).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::Sink as _;
    use crate::scale_in::record::{self, Annotation};

    #[test]
    fn what_is_released_has_left_unless_a_description_from_after_that_shows_it_in_service() {
        let at = |second: i64| Timestamp::from_second(1_700_000_000 + second).expect("in range");
        let requested = Record::new(Cause::Operator, "g", "i-1", Release::LeftToGroup, at(100));
        let record = requested.entering(Phase::Releasing, at(160));
        let nodes = Nodes::default();
        let (name, instance) = ("n".into(), Some("i-1".into()));
        let record = Some(Box::new(Annotation::from(record::write(&record).as_str())));
        nodes.reset(vec![NodeView { name, instance, record, ..NodeView::default() }]);
        let shown = |lifecycle, described: i64| {
            let instance = Instance { id: "i-1".into(), lifecycle, ..Instance::default() };
            leaves(&nodes, &"g".into(), &instance, || Some(at(described)))
        };
        assert_eq!(shown(Lifecycle::InService, 90), Leaves::Replaced, "from before the scale-in");
        assert_eq!(shown(Lifecycle::InService, 160), Leaves::Replaced);
        assert_eq!(shown(Lifecycle::InService, 161), Leaves::No, "back out of the warm pool");
        assert_eq!(shown(Lifecycle::Pending, 90), Leaves::No, "on its way out of it");
    }

    #[test]
    fn a_group_may_lose_an_instance_that_is_leaving_if_the_minimum_allows_that_one() {
        let at = Timestamp::from_second(1_700_000_000).expect("in range");
        let record = Record::new(Cause::Autoscaler, "g", "i-1", Release::TerminateAndDecrement, at);
        let nodes = Nodes::default();
        let (name, instance) = ("n".into(), Some("i-1".into()));
        let record = Some(Box::new(Annotation::from(record::write(&record).as_str())));
        nodes.reset(vec![NodeView { name, instance, record, ..NodeView::default() }]);
        let instance =
            |id: &str| Instance { id: id.into(), lifecycle: Lifecycle::InService, ..Instance::default() };
        let instances = vec![instance("i-1"), instance("i-2")];
        let group = AutoScalingGroup {
            name: "g".into(),
            min: 1,
            desired: 2,
            instances,
            ..AutoScalingGroup::default()
        };
        assert_eq!(["i-1", "i-2"].map(|id| may_lose(&nodes, &group, &id.into())), [true, false]);
    }
}
