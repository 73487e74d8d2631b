//! Carries out one node's scale-in: watches its pods, asks [`plan`](super::plan) what to do, does it
//! ([`perform`](super::perform)), keeps the outcome ([`remember`](super::remember)).
//!
//! A worker holds no state that must survive and may be dropped at any moment: the next one finds out by looking.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tracing::Span;

use super::action::{Action, Ask, Plan};
use super::class::flush_time;
use super::concern::PlannedWith;
use super::context::{
    Shared, attachments_on, is_replaced_first, keeps_its_nodes, may_shrink, membership, needs_worker,
    our_limit, primary_of, targets, with_twins,
};
use super::deadline::{OurLimit, grace_to_ask};
use super::events::{Reason, ScaleInEvent};
use super::eviction_rate::Permit;
use super::history::{Ended, Ending, Past};
use super::holds::Heartbeats;
use super::membership::Membership;
use super::memory::Memory;
use super::nodeless::{self, needed_until};
use super::outcome::Outcome;
use super::perform::perform;
use super::plan::plan;
use super::pod_watches::Pods;
use super::record::{Cause, Phase, Record};
use super::situation::{CUT_OFF_FOR, Situation};
use super::told::Told;
use super::trace;
use super::waiting::Progress;
use super::{events, operator_queue};
use crate::aws::Lifecycle;
use crate::clock::later;
use crate::cluster::{CHANGED_WITHIN, NodeView, PodName, PodView, may_have_room};
use crate::dry_run::DryRun;
use crate::groups::Snapshot;
use crate::groups::hooks::{HoldStart, HookState};
use crate::k8s::{GroupName, InstanceId, NodeName};

/// Shortest pause before the next plan, even if the last one asks for it at once.
const SHORTEST_WAIT: SignedDuration = SignedDuration::from_millis(20);

/// This long after this process began to lead, it has seen everything that the previous leader wrote: the last write may take as long as
/// the API server lets it ([`CHANGED_WITHIN`]), and a watch that broke is back after five seconds.
const SEEN_AFTER: SignedDuration = SignedDuration::from_secs(CHANGED_WITHIN.as_secs() as i64 + 5);

/// When a Node's record was first seen, and how far the API server's clock was ahead of ours then; `None` without a record.
/// Outlives a worker that panics.
pub(super) type RecordSeen = Arc<Mutex<Option<(Timestamp, SignedDuration)>>>;

/// Works on one node until nothing is left to do or the Node is gone. `at_start`: an earlier run wrote its annotation.
pub(super) async fn work(shared: Arc<Shared>, name: NodeName, record_seen: RecordSeen, at_start: bool) {
    let follow = shared.nodes.follow(&name);
    Worker::new(Arc::clone(&shared), name.clone(), record_seen, at_start).run(&follow).await;
    shared.nodes.forget(&name);
    shared.leave_all_queues(&name);
    shared.history.forget(&name);
}

/// How a worker goes on.
enum Next {
    /// Nothing is left to do.
    Stop,
    /// Until something changes, or this moment.
    Wait(Option<Timestamp>),
}

/// What is known of a node at one moment.
struct Observed {
    now: Timestamp,
    /// How far the API server's clock is ahead of ours.
    cluster_ahead: SignedDuration,
    /// How far that was when the record came.
    ahead: SignedDuration,
    /// When the record came.
    record_seen: Timestamp,
    leads: bool,
    /// The groups, as this plan sees them.
    snapshot: Option<Arc<Snapshot>>,
    instance: Membership,
    our_limit: OurLimit,
    hook: HookState,
    heartbeats: Heartbeats,
    /// The other Nodes that name the instance.
    twins: Vec<Arc<NodeView>>,
    is_primary: bool,
    are_kubelets_cut_off: bool,
}

/// Permission to evict pods, for one plan.
struct Permits<'a> {
    worker: &'a Worker,
    leads: bool,
    now: Timestamp,
    were_asked_for: Cell<bool>,
    granted: Cell<usize>,
    refused_until: Cell<Option<Timestamp>>,
}

impl<'a> Permits<'a> {
    fn new(worker: &'a Worker, leads: bool, now: Timestamp) -> Self {
        let (granted, refused_until) = (Cell::default(), Cell::default());
        Self { worker, leads, now, were_asked_for: Cell::default(), granted, refused_until }
    }

    /// Whether one more pod may be evicted now.
    fn ask(&self) -> Permit {
        if !self.leads {
            // A process that does not lead evicts nobody.
            return Permit::Granted;
        }
        self.were_asked_for.set(true);
        // A node that has to wait for one pod has to wait for all.
        if let Some(until) = self.refused_until.get() {
            return Permit::Wait(until);
        }
        let Worker { shared, name, eviction_slot_free, .. } = self.worker;
        let permit = shared.eviction_rate.ask(name, eviction_slot_free, self.granted.get(), self.now);
        match permit {
            Permit::Granted => self.granted.update(|granted| granted + 1),
            Permit::Wait(until) => self.refused_until.set(Some(until)),
        }
        permit
    }
}

pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    pub(super) name: NodeName,
    /// This Node, and its twins whose pods count.
    pub(super) nodes: BTreeSet<NodeName>,
    pub(super) pods: Pods,
    pub(super) memory: Memory,
    pub(super) told: Told,
    /// The record's moments are read by the API server's clock as it was when the record came: later steps do not matter.
    record_seen: RecordSeen,
    /// The Node's instance.
    instance: Option<InstanceId>,
    /// The Node as it was last.
    last: Option<Arc<NodeView>>,
    /// Since when the Node has been gone.
    gone: Option<Timestamp>,
    /// Notified when it is this node's turn to evict a pod.
    eviction_slot_free: Arc<Notify>,
    /// What the last plan was made of, of what all workers hear.
    planned_with: PlannedWith,
    /// No plan has been made yet.
    at_start: bool,
    pub(super) running: FuturesUnordered<BoxFuture<'static, Outcome>>,
}

impl Worker {
    fn new(shared: Arc<Shared>, name: NodeName, record_seen: RecordSeen, at_start: bool) -> Self {
        Self {
            record_seen,
            instance: shared.nodes.get(&name).and_then(|node| node.instance.clone()),
            eviction_slot_free: Arc::default(),
            planned_with: PlannedWith::default(),
            at_start,
            last: None,
            gone: None,
            shared,
            nodes: [name.clone()].into(),
            pods: Pods::default(),
            memory: Memory::of_node(&name),
            name,
            told: Told::default(),
            running: FuturesUnordered::new(),
        }
    }

    async fn run(&mut self, follow: &Notify) {
        let shared = Arc::clone(&self.shared);
        if let Some(instance) = &self.instance {
            shared.holds.note_node(instance);
        }
        let mut groups = shared.groups.versions();
        let mut budgets = shared.budgets.versions();
        let mut daemon_sets = shared.daemon_sets.versions();
        let mut attachments = shared.attachments.versions();
        let mut holds = shared.holds.versions();
        let mut hooks = shared.hooks.versions();
        let mut notices = shared.notices.versions();
        let mut load_balancers = shared.load_balancers.versions();
        let mut leadership = shared.leadership.changes();
        let eviction_slot_free = Arc::clone(&self.eviction_slot_free);
        while let Next::Wait(wake_at) = self.step() {
            self.pods.watch(&shared, &self.nodes);
            tokio::select! {
                biased;
                () = shared.stop.cancelled() => break,
                Some(outcome) = self.running.next() => self.remember(outcome),
                news = self.pods.news(&shared.clock) => if news.is_none() { break },
                () = follow.notified() => {}
                () = eviction_slot_free.notified() => {}
                Ok(()) = groups.changed() => {}
                // When many nodes drain, budgets change thousands of times a minute: with each eviction that they cover.
                Ok(()) = budgets.changed(), if self.memory.is_blocked_by_a_budget() => {}
                Ok(()) = daemon_sets.changed() => {}
                // Attachments of all nodes of the cluster.
                Ok(()) = attachments.changed(), if self.is_in(Phase::Flushing) => {}
                // Of each of hundreds that are held at once there is something new every few seconds.
                () = self.planned_with.hold_changes(&shared, self.instance.as_ref(), &mut holds) => {}
                Ok(()) = hooks.changed() => {}
                () = self.planned_with.notices_change(&shared, self.instance.as_ref(), &mut notices) => {}
                Ok(()) = load_balancers.changed() => {}
                Ok(()) = leadership.changed() => {}
                () = shared.clock.sleep_until_some(wake_at) => {}
            }
            self.take_in_pending_events();
            let _ = (follow.notified().now_or_never(), eviction_slot_free.notified().now_or_never());
        }
        // Lists under way are of no use any more, and take places that calls still to be answered may be waiting for.
        self.pods.end_watches();
        self.await_pending_answers().await;
    }

    /// Whether the node's scale-in is in this phase.
    fn is_in(&self, phase: Phase) -> bool {
        let record = self.instance.as_ref().and_then(|instance| self.memory.claims.record_of(instance));
        record.is_some_and(|record| record.phase == phase)
    }

    /// Takes in every outcome and every event that is there: one plan is made of all.
    fn take_in_pending_events(&mut self) {
        while let Some(Some(outcome)) = self.running.next().now_or_never() {
            self.remember(outcome);
        }
        while self.pods.next().now_or_never().flatten().is_some() {}
    }

    /// Whether pods are being listed anew, since a watch of theirs broke.
    pub(super) fn is_relisting(&self) -> bool {
        self.nodes.iter().any(|node| self.pods.relisting.contains(node))
    }

    /// Plans, and starts the actions.
    fn step(&mut self) -> Next {
        let node = self.shared.nodes.get(&self.name);
        let Some(node) = node else { return self.step_without_node() };
        if self.gone.is_some() {
            // Its kubelet has registered again: the next worker begins with this Node as it is.
            return Next::Stop;
        }
        self.last = Some(Arc::clone(&node));
        let look = self.look(&node);
        let (now, leads) = (look.now, look.leads);
        let is_listed = self.nodes.is_subset(&self.pods.listed);
        let is_relisting = self.is_relisting();
        let pods = &self.pods.by_uid;
        if self.memory.is_news(self.pods.version) {
            self.memory.note_pods(pods, now);
            self.told.note_pods(pods);
        }
        self.memory.note_listed(is_listed && !is_relisting, now);
        if is_listed && !is_relisting {
            self.memory.note_daemons(pods, &self.shared.settings.flush, (now, look.cluster_ahead));
        }
        let permits = Permits::new(self, leads, now);
        let mut known = PlannedWith::now(&self.shared, self.instance.as_ref());
        let asks_for_its_turn = Cell::new(false);
        let snapshot = look.snapshot.as_deref();
        let situation = Situation {
            now,
            taint_now: self.shared.clock.latest(),
            ahead: look.ahead,
            cluster_ahead: look.cluster_ahead,
            record_seen: look.record_seen,
            leads_since: self.shared.leadership.leads_since(),
            settings: &self.shared.settings,
            node: &node,
            twins: &look.twins,
            is_primary: look.is_primary,
            pods: is_listed.then_some(pods),
            is_relisting,
            listed_at: self.pods.confirmed_at,
            are_kubelets_cut_off: look.are_kubelets_cut_off,
            undescribed_since: self.shared.groups.undescribed_since(),
            daemon_set_is_seen: &|uid| {
                // Until DaemonSets are listed, a pod that says it belongs to one is believed.
                !self.shared.daemon_sets.is_synced() || self.shared.daemon_sets.contains(uid)
            },
            have_room: &|seen| may_have_room(seen, |name| self.shared.budgets.get(name)),
            budgets: &|pod| self.shared.budgets.covering(pod),
            our_limit: look.our_limit,
            own_pod: self.shared.own_pod.as_ref(),
            attachments: &|| attachments_on(&self.shared, &self.nodes),
            targets: targets(&self.shared, snapshot, &node, leads),
            group_keeps_its_nodes: &|| keeps_its_nodes(snapshot, &node),
            may_shrink: &|| may_shrink(&self.shared.nodes, snapshot, &node),
            is_replaced_first: &|| is_replaced_first(snapshot, &node),
            turn: &|| {
                asks_for_its_turn.set(true);
                operator_queue::turn(&self.shared, snapshot, &node)
            },
            permit: &|| permits.ask(),
            held: known.hold,
            notices: &known.notices,
            instance: look.instance,
            hook: look.hook,
            heartbeats: look.heartbeats,
            memory: &self.memory,
        };
        let plan = plan(&situation);
        if let Some(instance) = node.instance.as_ref().filter(|_| look.is_primary) {
            // A workload that has come meanwhile, or may have, leaves first.
            let is_known = !is_relisting && !self.memory.is_listing_failing();
            let is_releasing = self.is_in(Phase::Releasing) && plan.occupied == Some(false) && is_known;
            self.shared.holds.note_releasing(instance, is_releasing, now);
        }
        let wanted = needs_worker(&self.shared, &node, &look.twins, &situation.instance);
        if !permits.were_asked_for.get() {
            self.shared.eviction_rate.leave(&self.name);
        }
        known.turn = asks_for_its_turn.get();
        self.planned_with = known;
        let wake_at = plan.wake_at;
        self.pods.exits_to_come = plan.exits_to_come();
        self.memory.note_planned(&plan, now);
        self.carry_out(&node, plan, leads, look.cluster_ahead);
        if !wanted && self.running.is_empty() {
            return Next::Stop;
        }
        // A wake time that has passed must not cause a busy loop.
        Next::Wait(wake_at.map(|at| if at > now { at } else { now + SHORTEST_WAIT }))
    }

    /// The Node is gone. If the scale-in's machine lives, workloads not yet asked to go are asked before they are garbage-collected.
    fn step_without_node(&mut self) -> Next {
        let now = self.shared.clock.now();
        let gone = self.gone.unwrap_or_else(|| self.note_gone(now));
        let is_ours = |node: &Arc<NodeView>| {
            let instance = node.instance.as_ref();
            let is_believed = instance.and_then(|id| self.memory.claims.record_of(id)).is_some();
            let snapshot = self.shared.groups.latest();
            is_believed && matches!(membership(snapshot.as_deref(), node), Membership::In { .. })
        };
        let Some(node) = self.last.clone().filter(is_ours) else { return Next::Stop };
        let pods = &self.pods.by_uid;
        // Pods of a twin that still exists are not collected.
        let left_behind = pods.values().filter(|pod| pod.node == self.name);
        let unasked: Vec<PodView> =
            left_behind.filter(|pod| nodeless::is_unasked(pod, &self.memory)).cloned().collect();
        let (asked_at, mut wake_at) = (nodeless::asked_at(gone), nodeless::collected_by(gone));
        if unasked.is_empty() || wake_at <= now {
            return Next::Stop;
        }
        if asked_at > now {
            return Next::Wait(Some(asked_at));
        }
        if !self.shared.leadership.leads() {
            return Next::Wait(Some(wake_at));
        }
        for pod in unasked {
            match self.memory.of(&pod.uid).deletion.may_begin_at() {
                Some(at) if at <= now => {
                    if self.memory.of(&pod.uid).deletion.failures == 0 {
                        tracing::warn!(node = self.name.as_str(), pod = %pod.name, "the Node was deleted in mid-drain: the pod is to be deleted with its whole grace, before the pod garbage collector deletes it without any");
                    }
                    let grace = grace_to_ask(None, pod.grace_seconds, now);
                    let owner = Some((pod.owner(), false));
                    let ask = Ask { is_lost: true, ..Ask::new(&pod, grace, owner) };
                    self.start(&node, Action::Delete(ask));
                }
                Some(at) => wake_at = wake_at.min(at),
                None => {}
            }
        }
        Next::Wait(Some(wake_at))
    }

    /// Notes that the Node is gone, and what of that others must know. Returns when that was.
    fn note_gone(&mut self, now: Timestamp) -> Timestamp {
        self.note_what_runs_on();
        let is_lost = self.note_course(None, None) == Some(Ending::Lost);
        let last = self.shared.history.last(&self.name).filter(|_| is_lost);
        if let (Some(node), Some(last)) = (self.last.clone(), last) {
            let is_listed = self.pods.listed.contains(&self.name);
            let left = is_listed.then(|| self.workloads_left());
            let record = &last.course.record;
            let event = events::node_lost(&record.instance, record.phase, left.as_deref());
            self.start(&node, Action::Announce(event));
        }
        if let Some((node, deleted)) = self.last.clone().zip(self.memory.once_gone.take()) {
            self.start(&node, Action::Announce(deleted));
        }
        self.shared.leave_all_queues(&self.name);
        *self.gone.insert(now)
    }

    /// The workloads on the Node itself, and on no twin of it.
    fn workloads_left(&self) -> Vec<PodName> {
        let pods = &self.pods.by_uid;
        let is_left = |pod: &&PodView| pod.node == self.name && pod.is_workload() && !pod.finished;
        pods.values().filter(is_left).map(|pod| pod.name.clone()).collect()
    }

    /// Notes for people and metrics what the plan says of the scale-in, and starts its actions.
    fn carry_out(&mut self, node: &Arc<NodeView>, plan: Plan, leads: bool, ahead: SignedDuration) {
        self.note_course(Some(node), plan.calls_off());
        let progress = (leads && node.scale_in().is_some()).then(|| Progress {
            waiting: plan.waiting,
            phase_until: plan.phase_until.map(|until| later(until, ahead)),
            last_call: plan.last_call.map(|call| later(call, ahead)),
            load_balancers: plan.held_by_load_balancers,
            held_by_another: plan.held_by_another,
            refused: self.memory.refused_by_aws().map(str::to_owned),
        });
        self.shared.progress.set(&self.name, progress);
        // A plan made before this process began to lead was made for a follower. The next one comes at once.
        for action in plan.actions.into_iter().filter(|_| leads) {
            self.start(node, action);
        }
    }

    /// Looks at what else is known of the node, and notes what the next plans must know of it.
    fn look(&mut self, node: &NodeView) -> Observed {
        if self.instance != node.instance {
            if self.instance.is_some() {
                // Another machine has the Node's name: nothing that was found out counts for it.
                self.memory = Memory::of_node(&self.name);
                self.told = Told::default();
            }
            self.instance.clone_from(&node.instance);
            Span::current().record("instance", self.instance.as_deref());
        }
        let (record_seen, ahead) = self.record_seen(node.record.is_some());
        let cluster_ahead = self.shared.clock.cluster_ahead();
        let now = self.shared.clock.now();
        let leads = self.shared.leadership.leads();
        // Another leader's writes may still come into sight after it has ceased to lead.
        let is_others = !leads || now < later(self.shared.leadership.leads_since(), SEEN_AFTER);
        let from_another_run =
            std::mem::take(&mut self.at_start) || is_others || self.shared.dry_run.is_some();
        let record_of = |instance| self.memory.claims.record_of(instance);
        let before = node.instance.as_ref().and_then(record_of).cloned();
        self.memory.claims.see(node, from_another_run, later(now, ahead));
        if before.is_some() && self.memory.claims.believed().is_none() {
            // Another process may have taken it off.
            self.memory.forget_the_scale_in();
        }
        let snapshot = self.shared.groups.latest();
        let instance = membership(snapshot.as_deref(), node);
        self.memory.note_membership(&instance);
        self.memory.note_before(before, node, &instance);
        self.memory.of_scale_in.returns.see_node(node.unschedulable, later(now, cluster_ahead));
        let (twins, is_primary) = self.twins(node);
        for node in twins.iter().map(Arc::as_ref).chain([node]) {
            self.memory.note_ready(node, now);
        }
        let group = group_of(node, &instance);
        let our_limit = group
            .map_or(OurLimit::Unknown, |group| our_limit(snapshot.as_deref(), &self.shared.settings, group));
        let hook = self.hook(node, &instance, leads);
        let heartbeats = group.map(|group| self.shared.holds.heartbeats(group)).unwrap_or_default();
        let found = snapshot.as_ref().and_then(|snapshot| snapshot.place_of(node));
        let instances =
            || found.iter().flat_map(|(group, _)| &group.asg.instances).map(|instance| &instance.id);
        let silent_by = later(now, cluster_ahead - CUT_OFF_FOR);
        let are_kubelets_cut_off = twins
            .iter()
            .map(Arc::as_ref)
            .chain([node])
            .any(|node| self.shared.nodes.is_cut_off(node, instances(), silent_by));
        Observed {
            now,
            cluster_ahead,
            ahead,
            record_seen,
            leads,
            snapshot,
            instance,
            our_limit,
            hook,
            heartbeats,
            twins,
            is_primary,
            are_kubelets_cut_off,
        }
    }

    /// Its twins, and whether this Node is the primary one. If so, their pods count too.
    fn twins(&mut self, node: &NodeView) -> (Vec<Arc<NodeView>>, bool) {
        let mut twins = with_twins(&self.shared, node);
        let primary = node.instance.as_ref().and_then(|instance| primary_of(&twins, instance));
        let is_primary = primary.is_none_or(|primary| primary.name == self.name);
        twins.retain(|twin| twin.name != self.name);
        // Pods outlive a deleted Node.
        let is_gone = |name: &NodeName| self.shared.nodes.get(name).is_none();
        self.nodes.retain(|name| *name == self.name || is_gone(name));
        if is_primary {
            self.nodes.extend(twins.iter().map(|twin| twin.name.clone()));
        }
        (twins, is_primary)
    }

    /// What is known of the group's hooks, on the terms on which they hold the instance, if they do. The leader keeps that fresh.
    fn hook(&self, node: &NodeView, instance: &Membership, leads: bool) -> HookState {
        let Some(group) = group_of(node, instance) else { return HookState::Unknown };
        if leads && matches!(instance, Membership::In { .. }) {
            self.shared.hooks.want(group, self.shared.clock.now());
        }
        let hold = node.instance.as_ref().and_then(|instance| {
            let timeout = self.memory.claims.record_of(instance).and_then(Record::heartbeat_timeout);
            Some(HoldStart { since: self.shared.holds.of(instance)?.since, timeout })
        });
        match instance {
            Membership::In { lifecycle: Lifecycle::TerminatingWait, .. } => {
                self.shared.hooks.state_of_held(group, hold)
            }
            _ => self.shared.hooks.state_since(group, hold),
        }
    }

    /// When the record was first seen, and how far its clock and the API server's is ahead of ours.
    pub(super) fn record_seen(&self, has_record: bool) -> (Timestamp, SignedDuration) {
        let clock = &self.shared.clock;
        let mut seen = self.record_seen.lock();
        if !has_record {
            *seen = None;
        }
        let first = seen.unwrap_or_else(|| (clock.now(), clock.cluster_ahead()));
        *seen = has_record.then_some(first);
        first
    }

    /// The Node is gone, but its machine may live: notes until when its pods need the machine.
    fn note_what_runs_on(&self) {
        let Some(instance) = &self.instance else { return };
        let pods = &self.pods.by_uid;
        let running = || pods.values().filter(|pod| !pod.finished && !pod.mirror);
        // Whoever asked a pod to go may have given it more than it has.
        let given = |pod: &PodView| pod.deletion_grace_seconds.unwrap_or_default().max(pod.grace_seconds);
        let grace = running().map(given).max().unwrap_or_default();
        let flush = flush_time(running().filter(|pod| pod.daemon.is_some()), &self.shared.settings.flush);
        let now = self.shared.clock.now();
        let is_listed = self.nodes.is_subset(&self.pods.listed);
        let until = needed_until(now, is_listed.then_some(grace), flush);
        self.shared.holds.note_needed(instance, until, now);
    }

    /// The record of a scale-in that goes on though it is not there.
    fn goes_on(&self, node: &NodeView) -> Option<&Record> {
        let in_vain = || self.memory.overruled_in_vain(node.instance.as_ref()?, self.shared.clock.cluster());
        self.memory.lost.as_ref().or_else(in_vain)
    }

    /// Notes the scale-in's progress. Only the leader counts and logs what has ended, as all replicas see the same. Returns how it ended.
    fn note_course(&self, node: Option<&NodeView>, why: Option<&ScaleInEvent>) -> Option<Ending> {
        let now = self.shared.clock.cluster();
        let ended = match node {
            Some(node) => {
                let record = node.scale_in().or_else(|| self.goes_on(node));
                self.shared.history.see(&self.name, record, why, now)
            }
            None => self.shared.history.gone(&self.name, now),
        };
        let mut how = None;
        for ended in ended.into_iter().filter(|_| self.shared.leadership.leads()) {
            self.shared.metrics.ended(ended);
            if let Ended::ScaleIn(cause, ending) = ended {
                self.tell_end(cause, ending);
                how = Some(ending);
            }
        }
        how
    }

    /// Logs how a scale-in ended: by now the Node and its annotations may be gone.
    fn tell_end(&self, cause: Cause, ending: Ending) {
        let last = self.shared.history.last(&self.name);
        let group = last.as_ref().map(|last| last.course.record.group.as_str());
        let why = last.as_ref().and_then(Past::why);
        let (cause, outcome, trace_id) = (cause.as_str(), ending.as_str(), self.tell_trace());
        if matches!(ending, Ending::Lost | Ending::CutShort) {
            tracing::warn!(group, cause, outcome, why, trace_id, "scale-in ended");
        } else {
            tracing::info!(group, cause, outcome, why, trace_id, "scale-in ended");
        }
    }

    /// Exports the trace of the scale-in that has just ended, and returns its id; `None` if nobody listens.
    fn tell_trace(&self) -> Option<String> {
        let wanted = self.shared.traces.are_wanted();
        let told = trace::of(&wanted.then(|| self.shared.history.last(&self.name))??);
        let id = told.id.to_string();
        self.shared.traces.tell(told);
        Some(id)
    }

    /// Awaits answers still out. Starts nothing new, except what was to follow a write that has now succeeded.
    async fn await_pending_answers(&mut self) {
        while let Some(outcome) = self.running.next().await {
            self.remember(outcome);
        }
    }

    /// Starts an action, unless this process has ceased to lead: the plan may be seconds old.
    pub(super) fn start(&mut self, node: &Arc<NodeView>, action: Action) {
        if !self.shared.leadership.leads() {
            // Noted, and certainly not sent.
            if let Action::Terminate { noted_at, .. } = action {
                self.memory.note_void(noted_at);
            }
            return;
        }
        if let Some(dry_run) = &self.shared.dry_run {
            tell_in_words(dry_run, &self.name, &action);
        }
        if let Action::Announce(ScaleInEvent { reason: Reason::NotHeld, warning: true, .. }) = &action {
            self.shared.metrics.undrained();
        }
        self.memory.note_begun(&action, self.shared.clock.now());
        self.running.push(perform(Arc::clone(&self.shared), Arc::clone(node), action));
    }
}

/// Notes what an action would do, in the words of its Events. The calls themselves are noted where they are refused.
fn tell_in_words(dry_run: &DryRun, node: &NodeName, action: &Action) {
    match action {
        Action::PatchNode { then, .. } => then.iter().for_each(|then| tell_in_words(dry_run, node, then)),
        Action::Announce(event) => dry_run.would(format!("{} {node}: {}", event.reason.as_str(), event.note)),
        _ => {}
    }
}

/// The group of a Node's instance, or the one that its record names.
fn group_of<'a>(node: &'a NodeView, instance: &'a Membership) -> Option<&'a GroupName> {
    match instance {
        Membership::In { group, .. } => Some(group),
        Membership::Unknown | Membership::Elsewhere { .. } => node.scale_in().map(|record| &record.group),
    }
}
