//! What a plan depends on: data, and callbacks that answer questions. Two of these, `turn` and `permit`, count what they grant.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::action::{Action, Plan};
use super::class::{Circumstances, Class, classify};
use super::deadline::{self, HeldBy, OurLimit};
use super::events::{self, ANNOUNCE_AGAIN_AFTER, ScaleInEvent};
use super::eviction_rate::Permit;
use super::holds::{Heartbeats, Hold};
use super::load_balancers::Targets;
use super::membership::Membership;
use super::memory::Memory;
use super::node_patch::{self, Mark};
use super::notices::{self, Expected, Noticed};
use super::record::{End, Phase, Record, Written};
use super::settings::Settings;
use super::tries::{Task, Tries};
use super::turn::Turn;
use crate::aws::Lifecycle;
use crate::clock::later;
use crate::cluster::{Budget, BudgetSeen, DaemonOwner, NodeView, PodName, PodView, Ready};
use crate::groups::hooks::HookState;

/// After this many failed look-ups in a row (15 s, by the pauses between them) a DaemonSet that the watch does not show counts as there.
const UNTOLD_AFTER: u32 = 5;

/// Everything a plan depends on.
pub struct Situation<'a> {
    /// Now, by our clock that never steps.
    pub now: Timestamp,
    /// Now, by the later of this machine's clock and the API server's: cluster-autoscaler, which often runs next to us, judges the age of
    /// its taint by its own clock.
    pub taint_now: Timestamp,
    /// How far the clock by which the record was written is ahead of ours.
    pub ahead: SignedDuration,
    /// How far the API server's clock is ahead of ours.
    pub cluster_ahead: SignedDuration,
    /// When this run first saw a record on the Node.
    pub record_seen: Timestamp,
    /// Since when this process has led, by our clock.
    pub leads_since: Timestamp,
    /// Settings of scale-ins.
    pub settings: &'a Settings,
    /// The Node.
    pub node: &'a NodeView,
    /// Its twins: other Nodes that name the same instance.
    pub twins: &'a [Arc<NodeView>],
    /// Whether this Node is the primary one, rather than one of those.
    pub is_primary: bool,
    /// Pods on the node and, if it is the primary one, on its twins, by UID; `None` until listed.
    pub pods: Option<&'a BTreeMap<String, PodView>>,
    /// Whether the pods are being listed again because their watch broke or lost its place: some may have come or gone unseen.
    pub is_relisting: bool,
    /// When a list last confirmed the watch: it had no pod that the watch had not shown.
    pub listed_at: Option<Timestamp>,
    /// Whether a Node of the machine is silent, and most of its zone, of its group or of the cluster are.
    pub are_kubelets_cut_off: bool,
    /// Since when AWS has not described the groups; `None`: it did when it was last asked.
    pub undescribed_since: Option<Timestamp>,
    /// Whether the watch shows a DaemonSet of this UID.
    pub daemon_set_is_seen: &'a dyn Fn(&str) -> bool,
    /// Whether these budgets, one of which had no room when seen, may all have room by now.
    pub have_room: &'a dyn Fn(&[BudgetSeen]) -> bool,
    /// The budgets that cover a pod. Costly: matches every budget of the namespace.
    pub budgets: &'a dyn Fn(&PodView) -> Vec<Arc<Budget>>,
    /// The group's limit on scale-ins.
    pub our_limit: OurLimit,
    /// Our own pod, if known.
    pub own_pod: Option<&'a PodName>,
    /// How many volumes are attached to the node. Costly: looks at every attachment of the cluster.
    pub attachments: &'a dyn Fn() -> usize,
    /// Through which target groups load balancers reach the instance.
    pub targets: Targets,
    /// Whether the group ends none of its instances on request at present.
    pub group_keeps_its_nodes: &'a dyn Fn() -> bool,
    /// Whether the group may shrink by one.
    pub may_shrink: &'a dyn Fn() -> bool,
    /// Whether the group has launched the instance's replacement before it ends it.
    pub is_replaced_first: &'a dyn Fn() -> bool,
    /// Whether a person's request may be carried out now.
    pub turn: &'a dyn Fn() -> Turn,
    /// Asks for one eviction under the rate that all nodes share.
    pub permit: &'a dyn Fn() -> Permit,
    /// Where the instance is.
    pub instance: Membership,
    /// The group's lifecycle hooks.
    pub hook: HookState,
    /// What AWS makes of heartbeats for instances of the group.
    pub heartbeats: Heartbeats,
    /// How long AWS holds the instance; `None` while unknown.
    pub held: Option<Hold>,
    /// AWS's notices about the instance.
    pub notices: &'a [Noticed],
    /// What was tried before.
    pub memory: &'a Memory,
}

impl Situation<'_> {
    /// What is believed of the Node's annotation.
    pub(super) fn written(&self) -> Option<&Written> {
        self.memory.claims.believed()
    }

    /// What AWS's notices together say of the instance's end, unless the machine has started since.
    pub(super) fn expected(&self) -> Option<Expected> {
        let expected = notices::together(self.notices)?;
        (!expected.is_refuted_by(self.node, self.cluster_ahead)).then_some(expected)
    }

    /// When AWS ends the machine by its notices.
    pub(super) fn told_end(&self) -> Option<End> {
        self.expected().and_then(|_| notices::end(self.notices))
    }

    /// A moment of the API server, on our clock.
    pub(super) fn ours(&self, moment: Timestamp) -> Timestamp {
        later(moment, -self.cluster_ahead)
    }

    /// A moment of ours, on the clock of the API server.
    pub(super) fn theirs(&self, moment: Timestamp) -> Timestamp {
        later(moment, self.cluster_ahead)
    }

    /// A moment of the record, on our clock.
    pub(super) fn noted(&self, moment: Timestamp) -> Timestamp {
        later(moment, -self.ahead)
    }

    /// The patch that writes the record and all marks of a scale-in.
    pub(super) fn with_record(&self, record: &Record) -> Value {
        self.with_noted(&record.moved(self.ahead))
    }

    /// The same for a record that is by its own clock already.
    pub(super) fn with_noted(&self, record: &Record) -> Value {
        let mut marks = self.marks();
        if self.settings.guard && self.is_drained_by_autoscaler() {
            // Our taint replaces the one that shows this drain, from which DaemonSet pods are to be guarded.
            marks.insert(Mark::Guard);
        }
        node_patch::with_record_over(self.node, marks, record, self.installation(), self.taint_now)
    }

    /// This installation.
    pub(super) fn installation(&self) -> Option<&str> {
        self.settings.installation.as_deref()
    }

    /// Whether cluster-autoscaler drains the node.
    pub(super) fn is_drained_by_autoscaler(&self) -> bool {
        node_patch::is_drained_by_autoscaler(self.node)
    }

    /// The patch that takes off the record and what the scale-in put on.
    pub(super) fn take_off(&self) -> Value {
        node_patch::take_off(self.node, self.marks(), self.installation())
    }

    /// What we have put on the Node, even if somebody has removed it from the Node's own list.
    fn marks(&self) -> BTreeSet<Mark> {
        node_patch::marks(self.node).union(self.memory.claims.marks()).copied().collect()
    }

    /// Whether something is on the Node that a scale-in has put on.
    pub(super) fn has_scale_in_marks(&self) -> bool {
        node_patch::of_scale_in(&self.marks()).next().is_some()
    }

    /// Whether the Node is cordoned, and not by a scale-in as far as is known.
    pub(super) fn is_closed_by_somebody(&self) -> bool {
        self.node.unschedulable && !self.marks().contains(&Mark::Cordon)
    }

    /// Whether AWS was told to terminate the instance, by a record that need not be there any more.
    pub(super) fn is_marked_told(&self) -> bool {
        self.marks().contains(&Mark::Told)
    }

    /// Restores missing marks of the scale-in and keeps the taint fresh.
    pub(super) fn keep_marked(&self, plan: &mut Plan) {
        if self.is_away() {
            return;
        }
        if let Some(patch) = node_patch::put_on(self.node, self.marks(), self.installation(), self.taint_now)
        {
            let is_opened = !self.node.unschedulable && node_patch::has_our_taint(self.node);
            let told = if is_opened { self.unless_told(events::closed_again()) } else { Vec::new() };
            self.patch(plan, patch, told);
        } else {
            let expires = node_patch::taint_expires(self.node).unwrap_or(self.taint_now);
            plan.wake(later(self.now, expires.duration_since(self.taint_now)));
        }
    }

    /// Whether the instance is no node any more: gone, or in the warm pool, perhaps for days.
    pub(super) fn is_away(&self) -> bool {
        matches!(
            self.instance,
            Membership::Elsewhere { .. } | Membership::In { lifecycle: Lifecycle::Warmed, .. }
        )
    }

    /// Whether the moment has come; if not, wakes then.
    pub(super) fn has_come(&self, moment: Timestamp, plan: &mut Plan) -> bool {
        let has_come = moment <= self.now;
        if !has_come {
            plan.wake(moment);
        }
        has_come
    }

    /// Plans an action if it may be tried now, after these tries, else wakes when it may.
    pub(super) fn attempt(&self, plan: &mut Plan, tries: &Tries, action: impl FnOnce() -> Action) {
        if tries.may_begin_at().is_some_and(|at| self.has_come(at, plan)) {
            plan.actions.push(action());
        }
    }

    /// Plans a write to the Node. One at a time: a second must start from the Node as the first leaves it.
    pub(super) fn patch(&self, plan: &mut Plan, patch: Value, then: Vec<Action>) {
        if plan.writes_node() {
            return;
        }
        if self.memory.same_write_waits_until(&patch).is_none_or(|at| self.has_come(at, plan)) {
            self.attempt(plan, self.memory.tries(&Task::Node), || Action::PatchNode { patch, then });
        }
    }

    /// When AWS refused to shrink the group. Its words for that are documented nowhere: any that say nothing to us are, where the group has no
    /// more than its minimum.
    pub(super) fn refused_at_minimum(&self) -> Option<Timestamp> {
        let is_at_minimum = || !(self.group_keeps_its_nodes)() && !(self.may_shrink)();
        let unclearly = || self.memory.of_scale_in.refused_unclearly_at.filter(|_| is_at_minimum());
        self.memory.of_scale_in.at_minimum_since.or_else(unclearly)
    }

    /// Plans an Event unless it was published a short while ago.
    pub(super) fn announce(&self, plan: &mut Plan, event: ScaleInEvent) {
        match self.told_until(&event.topic) {
            Some(until) => plan.wake(until),
            None => plan.actions.push(Action::Announce(event)),
        }
    }

    /// An Event that is to follow a write, unless it was published a short while ago.
    pub(super) fn unless_told(&self, event: ScaleInEvent) -> Vec<Action> {
        if self.told_until(&event.topic).is_some() { Vec::new() } else { vec![Action::Announce(event)] }
    }

    /// Until when this topic is not announced again; `None`: it was not announced lately.
    pub(super) fn told_until(&self, topic: &str) -> Option<Timestamp> {
        let until = *self.memory.announced.get(topic)? + ANNOUNCE_AGAIN_AFTER;
        (until > self.now).then_some(until)
    }

    /// Pods on the node with their classes. Whether patience is over depends on the record.
    pub(super) fn classified(&self, record: Option<&Record>) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified_of(|_| true, record, false)
    }

    /// The same if those that come back are asked a last time from now on.
    pub(super) fn last_round(&self, record: &Record) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified_of(|_| true, Some(record), true)
    }

    /// The same of some of them.
    fn classified_of(
        &self,
        is_wanted: impl Fn(&PodView) -> bool,
        record: Option<&Record>,
        begins_last_round: bool,
    ) -> impl Iterator<Item = (&PodView, Class)> {
        let patience_ends = record.and_then(|record| self.settings.patience_ends(record));
        let now = self.theirs(self.now);
        let returns = &self.memory.of_scale_in.returns;
        let asks_last = begins_last_round || returns.asked_last_until().is_some_and(|until| self.now < until);
        let circumstances = move |pod: &PodView| Circumstances {
            now,
            deleted_daemon_sets: &self.memory.deleted_daemon_sets,
            returns,
            asks_last,
            is_asked: pod.deletion_timestamp.is_none() && self.memory.of(&pod.uid).to_go.is_some(),
            // On a lost machine it cannot finish, and is to start elsewhere.
            patience_is_over: patience_ends.is_some_and(|end| end <= self.now)
                || self.lost_at(self.node_of(pod)).is_some_and(|at| at <= self.now),
            is_over: self.is_over(pod),
        };
        self.pods
            .into_iter()
            .flat_map(|pods| pods.values())
            .filter(move |pod| is_wanted(pod))
            .map(move |pod| (pod, classify(pod, &circumstances(pod))))
    }

    /// Whether a pod that is being deleted counts as gone unconfirmed: its grace ended so long ago, and nobody confirms its exit, or its
    /// machine is off.
    fn is_over(&self, pod: &PodView) -> bool {
        let node = self.node_of(pod);
        if node.is_off() {
            return self.grace_ends(pod).is_some();
        }
        let within = if self.is_silent(node) {
            CONFIRMED_WITHIN
        } else if self.twins.is_empty() {
            return false;
        } else {
            TWINS_CONFIRM_WITHIN
        };
        self.grace_ends(pod).is_some_and(|ended| later(ended, within) <= self.now)
    }

    /// When the grace of a pod that is being deleted ends, by our clock.
    pub(super) fn grace_ends(&self, pod: &PodView) -> Option<Timestamp> {
        pod.deletion_timestamp.map(|told| self.memory.going.ends(&pod.uid, self.ours(told)))
    }

    /// The Nodes of the machine: its twins, then itself.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.twins.iter().map(Arc::as_ref).chain([self.node])
    }

    /// The Node that a pod is on.
    pub(super) fn node_of(&self, pod: &PodView) -> &NodeView {
        self.twins.iter().find(|node| node.name == pod.node).map_or(self.node, Arc::as_ref)
    }

    /// Pods that must leave before the flush.
    pub(super) fn workloads(&self, record: Option<&Record>) -> impl Iterator<Item = (&PodView, Class)> {
        self.classified(record).filter(|(_, class)| class.is_workload())
    }

    /// DaemonSet pods.
    pub(super) fn daemons(&self) -> impl Iterator<Item = (&PodView, Class)> {
        let all = self.classified_of(|pod| pod.daemon.is_some(), None, false);
        all.filter(|(_, class)| matches!(class, Class::Daemon(_)))
    }

    /// UIDs and names of DaemonSets that pods here belong to and the watch does not show: they may have been deleted, or the watch of pods
    /// may be ahead.
    pub(super) fn unseen_daemon_sets(&self) -> impl Iterator<Item = (&str, PodName)> {
        let is_unseen =
            |uid: &str| !(self.daemon_set_is_seen)(uid) && !self.memory.deleted_daemon_sets.contains(uid);
        let pods = self.pods.into_iter().flat_map(|pods| pods.values()).filter(|pod| !pod.finished);
        pods.filter_map(move |pod| match &pod.daemon {
            Some(DaemonOwner::DaemonSet { uid, name }) if is_unseen(uid) => {
                let namespace = Arc::clone(&pod.name.namespace);
                Some((uid.as_str(), PodName { namespace, name: name.as_str().into() }))
            }
            _ => None,
        })
    }

    /// Whether a pod here may be a workload because its DaemonSet was deleted: the API server has yet to tell.
    pub(super) fn awaits_daemon_sets(&self) -> bool {
        self.unseen_daemon_sets().any(|(uid, _)| {
            let tries = self.memory.tries(&Task::DaemonSet(uid.to_owned()));
            tries.failures < UNTOLD_AFTER && (tries.failures > 0 || tries.ended.is_none())
        })
    }

    /// Whether no kubelet reports on the node's pods: it is silent for itself, or has been not Ready for [`UNABLE_FOR`].
    fn is_silent(&self, node: &NodeView) -> bool {
        match node.ready {
            Ready::Yes => false,
            Ready::Unknown => self.is_for_itself(node),
            Ready::No => self.unable_at(node).is_some_and(|at| at <= self.now),
        }
    }

    /// When a node that says it is not Ready has been so for [`UNABLE_FOR`].
    pub(super) fn unable_at(&self, node: &NodeView) -> Option<Timestamp> {
        let told = node.unready_since.filter(|_| node.ready == Ready::No)?;
        let seen = self.memory.not_ready_since(&node.name).unwrap_or(Timestamp::MIN);
        Some(later(self.ours(told).max(seen), UNABLE_FOR))
    }

    /// When a node counts as lost; `None` while its kubelet reports.
    pub(super) fn lost_at(&self, node: &NodeView) -> Option<Timestamp> {
        let since = node.unready_since.filter(|_| node.ready == Ready::Unknown)?;
        let lost = if node.is_off() {
            SignedDuration::ZERO
        } else if self.are_kubelets_cut_off {
            CUT_OFF_FOR
        } else {
            UNABLE_FOR
        };
        Some(later(self.ours(since), lost))
    }

    /// Whether only this node is silent. If most nodes around it are, they are just unreachable, and the machines run on.
    fn is_for_itself(&self, node: &NodeView) -> bool {
        !self.are_kubelets_cut_off || self.lost_at(node).is_some_and(|at| at <= self.now)
    }

    /// Looks again while kubelets are cut off: when they no longer are, nothing on this Node need change.
    pub(super) fn look_again_while_cut_off(&self, plan: &mut Plan) {
        if self.are_kubelets_cut_off {
            plan.wake(later(self.now, LOOK_AGAIN));
        }
    }

    /// From when on the node counts as dead (nothing runs on it), if its last workload left at `emptied`: its machine is off, or its kubelet
    /// has not confirmed a long overdue exit, or has been silent since. (A kubelet that is back may report exits before it reports the Node
    /// Ready.) `None`: a kubelet reports.
    pub(super) fn is_dead_from(&self, record: &Record, emptied: Timestamp) -> Option<Timestamp> {
        let given_up_on = |node: &NodeView| {
            let mut all = self.classified(Some(record));
            all.any(|(pod, class)| class == Class::GivenUp && self.node_of(pod).name == node.name)
        };
        let dead_from = |node: &NodeView| {
            // A kubelet that says it is not Ready lives, and so may whatever is to flush there.
            if node.is_off() || node.ready != Ready::No && given_up_on(node) {
                let confirmed = self.memory.going.confirmed_at().filter(|_| !node.is_off());
                return Some(confirmed.map_or(self.now, |at| later(at, CONFIRMED_WITHIN)));
            }
            let since = node.unready_since.map_or(emptied, |since| self.ours(since).max(emptied));
            let is_dead = node.ready == Ready::Unknown && self.is_for_itself(node);
            is_dead.then(|| later(since, CONFIRMED_WITHIN))
        };
        self.nodes().try_fold(Timestamp::MIN, |latest, node| Some(dead_from(node)?.max(latest)))
    }

    /// Whether our own pod runs on the node, so that another process should lead.
    pub(super) fn is_our_own_node(&self) -> bool {
        let mut pods = self.pods.into_iter().flat_map(|pods| pods.values());
        pods.any(|pod| self.is_own(pod) && !pod.finished)
    }

    /// While our own pod is on the node: until when to hold back what would get in another leader's way; `None`: no other leads.
    pub(super) fn others_may_lead_until(&self) -> Option<Timestamp> {
        let handed_over = self.memory.tries(&Task::HandOver).ended.unwrap_or(self.now);
        Some(later(handed_over, OTHERS_LEAD_WITHIN)).filter(|until| *until > self.now)
    }

    /// Whether this is our own pod.
    pub(super) fn is_own(&self, pod: &PodView) -> bool {
        self.own_pod.is_some_and(|own| *own == pod.name)
    }

    /// How our hook holds the instance, or is about to.
    pub(super) fn held_by(&self) -> Option<HeldBy<'_>> {
        let hold = self.held.unwrap_or_else(|| Hold::since(self.now));
        self.hook.ours().map(|hook| HeldBy { hook, hold })
    }

    /// The node's flush time: what its DaemonSet pods ask for, but at most half of the time between setting the limit and the limit. The
    /// other half is for workloads.
    pub(super) fn flush_time(&self, record: &Record) -> Duration {
        within_half(record, self.asked_flush())
    }

    /// The time before the limit kept for DaemonSet pods: the flush time or, if longer, what a pod evicted then needs.
    pub(super) fn time_for_daemons(&self, record: &Record) -> Duration {
        within_half(record, self.asked_by_daemons())
    }

    fn asked_by_daemons(&self) -> Duration {
        let to_go = super::class::time_to_go(self.daemons().map(|(pod, _)| pod), &self.settings.flush);
        self.asked_flush().max(to_go)
    }

    /// What DaemonSet pods of the node ask for, or have asked for.
    fn asked_flush(&self) -> Duration {
        let now = super::class::flush_time(self.daemons().map(|(pod, _)| pod), &self.settings.flush);
        now.max(self.memory.of_scale_in.absences.flush())
    }

    /// When the instance can be released at the soonest, if no pod's grace and no flush is cut; `None` until its pods are listed.
    pub(super) fn released_at_the_soonest(&self, record: &Record) -> Option<Timestamp> {
        self.pods?;
        let gone = |pod: &PodView| {
            let own = || later(self.now, SignedDuration::from_secs(pod.grace_seconds));
            self.grace_ends(pod).unwrap_or_else(own)
        };
        let last = self.workloads(Some(record)).map(|(pod, _)| gone(pod)).max().unwrap_or(self.now);
        Some(deadline::released_after(last, self.asked_by_daemons(), self.now))
    }

    /// Writes the record with its next phase, and an Event.
    pub(super) fn enter(&self, plan: &mut Plan, record: &Record, phase: Phase, event: ScaleInEvent) {
        self.enter_and(plan, &record.entering(phase, self.now), event, None);
    }

    /// Writes a record whose phase is new, with an Event and `more`.
    pub(super) fn enter_and(
        &self,
        plan: &mut Plan,
        record: &Record,
        event: ScaleInEvent,
        more: Option<Action>,
    ) {
        let then = more.into_iter().chain([Action::Announce(event)]).collect();
        self.patch(plan, self.with_record(record), then);
    }
}

/// How long our own pod, and a termination, wait for another process to lead, counted from when this one handed over. If none does, this
/// one leads again.
const OTHERS_LEAD_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// A kubelet that is not Ready (runtime or network down) mostly recovers and then confirms exits. After this time it
/// counts as silent, as is Kubernetes' own default (`tolerationSeconds` of `node.kubernetes.io/not-ready`).
/// Source: [Taint based
/// evictions](https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/#taint-based-evictions).
pub(super) const UNABLE_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Where most around it are silent, a silent node counts as lost after this time: by then what cut them off is mended, or the machines are
/// gone.
pub(super) const CUT_OFF_FOR: SignedDuration = SignedDuration::from_hours(1);

/// How often to check whether most are still silent.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// On a silent Node, a pod counts as ended this long after its deletion timestamp (the end of its grace), and no flush is waited for this
/// long after the last workload. A live kubelet confirms exits, and its own presence, within seconds.
const CONFIRMED_WITHIN: SignedDuration = SignedDuration::from_mins(1);

/// Of several Nodes that name one instance, at most one has a kubelet; the others may be Ready because somebody says so.
/// There, a pod counts as ended this long after its grace, when a kubelet would have killed it.
pub(super) const TWINS_CONFIRM_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// What is kept for DaemonSet pods that ask for this: at most half of the time between setting the limit and the limit.
fn within_half(record: &Record, asked: Duration) -> Duration {
    let half = record.release_by.map(|by| by.duration_since(record.shared_from()) / 2);
    half.map_or(asked, |half| asked.min(Duration::try_from(half).unwrap_or_default()))
}
