//! The copy of the world that a preview is played through on.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::Value;

use super::data::{BudgetPreview, End, Facts, Member, PodPreview, PodTreatment, Step, What};
use crate::aws::Lifecycle;
use crate::clock::{elapsed, later};
use crate::cluster::{Answer, NodeView, PodView, Ready};
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::{GroupName, names};
use crate::scale_in::action::{Action, Ask, Plan};
use crate::scale_in::deadline::OurLimit;
use crate::scale_in::drain::{OVERDUE_AFTER, SEVERAL_BUDGETS};
use crate::scale_in::eviction_rate::Permit;
use crate::scale_in::holds::{Heartbeats, Hold};
use crate::scale_in::load_balancers::Targets;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::order;
use crate::scale_in::plan::plan;
use crate::scale_in::record::{self, Phase, Record, Release};
use crate::scale_in::settings::Settings;
use crate::scale_in::situation::Situation;
use crate::scale_in::status::Wait;
use crate::scale_in::tries::Task;
use crate::scale_in::turn::Turn;
use crate::scale_in::waiting::{WaitReason, Waiting};

/// Plans of one preview. Two days of waiting, told every five minutes, with the taint renewed every three, take three thousand.
const MOST_PLANS: usize = 5_000;

/// No plan follows another sooner, unless something was done.
const SHORTEST: SignedDuration = SignedDuration::from_millis(20);

/// A refused eviction is not tried again in a preview: nothing would have changed.
const NEVER: SignedDuration = SignedDuration::from_hours(24 * 365);

pub(super) struct Model<'a> {
    facts: &'a Facts,
    settings: Settings,
    start: Timestamp,
    now: Timestamp,
    node: Value,
    /// What the plan sees of it.
    view: NodeView,
    pods: BTreeMap<String, PodView>,
    /// UIDs of those that a kubelet that reports should have confirmed long ago: nothing tells when they exit.
    overdue: BTreeSet<String>,
    /// How many disruptions each budget still allows, by name.
    room: BTreeMap<String, i32>,
    group: GroupName,
    lifecycle: Lifecycle,
    hook: HookState,
    our_limit: OurLimit,
    held_since: Option<Timestamp>,
    memory: Memory,
    phase: Option<Phase>,
    steps: Vec<Step>,
    released: bool,
}

impl<'a> Model<'a> {
    pub(super) fn new(facts: &'a Facts, record: Record, now: Timestamp) -> Self {
        let member = facts.member();
        let (our_limit, ends_at) = match (member, record.release_by) {
            (Some(member), _) => (OurLimit::of(member.drain_timeout, &facts.settings), None),
            // Nobody here knows the tag, the options or the hook that limit it: whoever wrote the record did.
            (None, Some(by)) => (OurLimit::Never, Some(by)),
            (None, None) => (OurLimit::of(None, &facts.settings), None),
        };
        let record = Record { ends_at: ends_at.or(record.ends_at), ..record };
        let node = with_record(facts.node.clone(), &record);
        let view = NodeView::from(&node);
        // Where AWS is not asked, the record says whether the group has taken the instance out.
        let by_record = match record.release {
            Release::LeftToGroup => Lifecycle::TerminatingWait,
            _ => Lifecycle::InService,
        };
        let lifecycle = member.map_or(by_record, |member| member.lifecycle);
        // An instance that AWS has in another state is on its way already; what is asked of it counts from the request.
        let held_since = lifecycle.is_terminating().then_some(record.requested_at);
        let hook = match member.map(|member| &member.hook) {
            Some(HookState::Known(hooks)) => HookState::Known(hooks.clone()),
            // A preview claims no hold that AWS has not promised.
            _ => HookState::Known(TerminatingHooks::default()),
        };
        Self {
            // Who guards DaemonSet pods from cluster-autoscaler does not change the drain.
            settings: Settings { guard: false, ..facts.settings.clone() },
            start: now,
            now,
            overdue: overdue(&view, &facts.pods, now),
            view,
            node: serde_json::to_value(node).unwrap_or_default(),
            pods: facts.pods.iter().map(|pod| (pod.uid.clone(), pod.clone())).collect(),
            room: facts.budgets.matching("", |_| true).iter().map(|b| (b.full_name(), b.room)).collect(),
            group: record.group,
            lifecycle,
            hook,
            our_limit,
            held_since,
            memory: Memory::default(),
            phase: None,
            steps: Vec::new(),
            released: false,
            facts,
        }
    }

    /// Plays it through.
    pub(super) fn play(mut self) -> (Vec<Step>, End) {
        let mut waiting = Vec::new();
        for _ in 0..MOST_PLANS {
            let plan = self.plan();
            let (actions, wake_at) = (plan.actions, plan.wake_at);
            let is_limited = plan.phase_until.is_some();
            waiting = plan.waiting;
            let did = !actions.is_empty();
            for action in actions {
                self.perform(action);
            }
            if self.released {
                return (self.steps, End::Released { after_seconds: seconds(self.start, self.now) });
            }
            if self.view.record.is_none() {
                return (self.steps, End::Refused { why: "the scale-in would be called off".to_owned() });
            }
            if did {
                // As the worker does: what was done may change the plan.
                continue;
            }
            let exits = self.pods.values().filter_map(|pod| self.exits_by(pod)).min();
            // Only time goes on, and nothing that it brings ends the wait.
            let ends_nothing = match self.phase {
                // What is kept on a machine of which nothing is heard is deleted in time.
                Some(Phase::Draining) => self.view.ready != Ready::Unknown,
                Some(Phase::Releasing) => self.facts.member().is_some_and(Member::is_kept),
                _ => false,
            };
            if exits.is_none() && !is_limited && ends_nothing {
                break;
            }
            let Some(next) = wake_at.into_iter().chain(exits).min() else { break };
            self.pass_to(next.max(later(self.now, SHORTEST)));
        }
        let waiting = self.waits(&waiting);
        (self.steps, End::Waits { waiting })
    }

    /// The pods that the scale-in waits for now. One that seems unasked may long have been asked: only the leader knows.
    pub(super) fn waiting(mut self) -> Vec<Wait> {
        let plan = self.plan();
        let waits = self.waits(&plan.waiting).into_iter();
        waits.map(|wait| if wait.reason == "queued" { wait.unexplained() } else { wait }).collect()
    }

    /// The pods on the node, in the order in which they are asked.
    pub(super) fn pods(&mut self) -> Vec<PodPreview> {
        let mut told = self.situation(|s| {
            let record = s.node.scale_in();
            let pods = s.classified(record).map(|(pod, class)| PodPreview {
                treatment: PodTreatment::of(class),
                order: order::of(pod, &s.settings.order_namespaces),
                priority: pod.priority,
                pod: pod.name.to_string(),
                grace_seconds: pod.grace_seconds,
                budgets: (s.budgets)(pod)
                    .iter()
                    .map(|budget| BudgetPreview { name: budget.full_name(), room: budget.room })
                    .collect(),
            });
            pods.collect::<Vec<_>>()
        });
        told.sort();
        told
    }

    /// In the words of Events. A pod that was never asked is told by the budgets that would have it refused.
    fn waits(&self, waiting: &[Waiting]) -> Vec<Wait> {
        let patience_ends = self.view.scale_in().and_then(|record| self.settings.patience_ends(record));
        let waits = waiting.iter().map(|one| {
            let pod = self.pods.values().find(|pod| pod.name == one.pod);
            let refusal = pod.filter(|_| one.why == WaitReason::Queued).and_then(|pod| {
                let covering = self.facts.budgets.covering(pod);
                self.refusal(&covering.iter().map(|budget| budget.full_name()).collect::<Vec<_>>())
            });
            let why = refusal.unwrap_or_else(|| one.why.clone());
            Wait::of(&Waiting { pod: one.pod.clone(), why }, patience_ends)
        });
        waits.collect()
    }

    /// Why the API server would not evict a pod with these budgets.
    fn refusal(&self, budgets: &[String]) -> Option<WaitReason> {
        let is_full = budgets.iter().any(|name| self.room_of(name) <= 0);
        match budgets {
            [_, _, ..] => Some(WaitReason::Budgets(budgets.to_vec())),
            _ => is_full.then(|| WaitReason::Budget { names: budgets.to_vec(), words: String::new() }),
        }
    }

    fn room_of(&self, budget: &str) -> i32 {
        self.room.get(budget).copied().unwrap_or_default()
    }

    fn situation<T>(&mut self, ask: impl FnOnce(&Situation<'_>) -> T) -> T {
        self.memory.claims.see(&self.view, true, self.now);
        self.memory.note_pods(&self.pods, self.now);
        let member = self.facts.member();
        ask(&Situation {
            now: self.now,
            taint_now: self.now,
            ahead: SignedDuration::ZERO,
            cluster_ahead: SignedDuration::ZERO,
            record_seen: self.start,
            // Whoever drains the node has led from the beginning.
            leads_since: Timestamp::MIN,
            settings: &self.settings,
            node: &self.view,
            twins: &[],
            is_primary: true,
            pods: Some(&self.pods),
            is_relisting: false,
            listed_at: Some(self.now),
            are_kubelets_cut_off: false,
            undescribed_since: None,
            daemon_set_is_seen: &|uid| self.facts.daemon_sets.as_ref().is_none_or(|all| all.contains(uid)),
            have_room: &|_| false,
            budgets: &|pod| self.facts.budgets.covering(pod),
            our_limit: self.our_limit,
            own_pod: None,
            attachments: &|| self.facts.attachments,
            targets: Targets::NotAsked,
            group_keeps_its_nodes: &|| member.is_some_and(Member::is_kept),
            may_shrink: &|| member.is_none_or(|member| member.removable.is_ok()),
            is_replaced_first: &|| false,
            turn: &|| Turn::Now,
            permit: &|| Permit::Granted,
            instance: Membership::In { group: self.group.clone(), lifecycle: self.lifecycle, seen: self.now },
            hook: self.hook.clone(),
            heartbeats: Heartbeats::Taken,
            held: self.held_since.map(Hold::since),
            notices: &[],
            memory: &self.memory,
        })
    }

    fn plan(&mut self) -> Plan {
        let plan = self.situation(plan);
        self.memory.note_planned(&plan, self.now);
        let phase = self.view.scale_in().map(|record| record.phase);
        if phase != self.phase
            && let Some(phase) = phase
        {
            self.phase = Some(phase);
            self.tell(What::Phase, None, phase.to_string());
        }
        plan
    }

    fn pass_to(&mut self, moment: Timestamp) {
        self.now = moment;
        let has_exited = |pod: &&PodView| self.exits_by(pod).is_some_and(|until| until <= moment);
        let gone: Vec<PodView> = self.pods.values().filter(has_exited).cloned().collect();
        for pod in gone {
            self.pods.remove(&pod.uid);
            self.tell(What::Exit, Some(&pod), "has exited by then, if it takes its whole grace".to_owned());
        }
    }

    /// When a pod that is going has exited, at the latest; `None`: it stays, or nothing tells.
    fn exits_by(&self, pod: &PodView) -> Option<Timestamp> {
        pod.deletion_timestamp.filter(|_| !self.overdue.contains(&pod.uid))
    }

    fn tell(&mut self, what: What, pod: Option<&PodView>, text: String) {
        let pod = pod.map(|pod| pod.name.to_string());
        self.steps.push(Step { after_seconds: seconds(self.start, self.now), what, pod, text });
    }

    /// Performs an action as the world would on its best day, and as slow as it may.
    fn perform(&mut self, action: Action) {
        let now = self.now;
        self.memory.note_begun(&action, now);
        match action {
            Action::PatchNode { patch, then } => {
                json_patch::merge(&mut self.node, &patch);
                let node: Node = serde_json::from_value(self.node.clone()).unwrap_or_default();
                self.view = NodeView::from(&node);
                self.memory.note_written(&self.view, now);
                for action in then {
                    self.perform(action);
                }
            }
            Action::Evict(ask) => self.evict(ask),
            Action::Delete(ask) => self.delete(ask),
            Action::LookUpDaemonSet { uid, .. } => {
                self.memory.worked(&Task::DaemonSet(uid.clone()), now);
                self.memory.deleted_daemon_sets.insert(uid);
            }
            Action::Terminate { decrement, noted_at, .. } => {
                let how = if decrement {
                    "the desired capacity goes down with it"
                } else {
                    "the group launches a replacement"
                };
                self.tell(What::Terminate, None, how.to_owned());
                self.memory.note_termination(noted_at, &Ok(()), now);
                self.held_since = Some(now);
                self.lifecycle = Lifecycle::TerminatingWait;
                self.released = self.hook.ours().is_none() || self.phase == Some(Phase::Releasing);
            }
            Action::CompleteHook { hook, .. } => {
                self.tell(What::CompleteHook, None, format!("{} with CONTINUE", hook.name));
                self.released = true;
            }
            Action::DeleteNode { .. } => self.released = true,
            Action::Refresh => self.memory.failed(&Task::Refresh, now, None),
            Action::HandOver => self.memory.worked(&Task::HandOver, now),
            Action::Report(_) => self.memory.failed(&Task::Report, now, Some(NEVER)),
            Action::Guard { uid, .. } => self.memory.failed(&Task::Guard(uid), now, Some(NEVER)),
            Action::ListPods { .. }
            | Action::Heartbeat { .. }
            | Action::GiveUpReplacement { .. }
            | Action::Announce(_) => {}
        }
    }

    fn evict(&mut self, Ask { uid, grace, owner, budgets, .. }: Ask) {
        let Some(pod) = self.pods.get(&uid).cloned() else { return };
        let names: Vec<String> = budgets.iter().map(|budget| budget.name.clone()).collect();
        let refusal = self.refusal(&names).map(|why| match why {
            WaitReason::Budgets(_) => {
                Answer::Unclear(format!("{SEVERAL_BUDGETS}, refused for good: {}", names.join(", ")))
            }
            _ => Answer::Blocked(format!("disruption budget {} has no room", names.join(", "))),
        });
        if let Some(answer) = refusal {
            let (Answer::Blocked(words) | Answer::Unclear(words)) = &answer else { return };
            let last =
                self.steps.iter().rev().find(|step| step.pod.as_deref() == Some(&*pod.name.to_string()));
            // Near its last call it is asked every five seconds.
            if last.is_none_or(|step| (step.what, &step.text) != (What::Blocked, words)) {
                self.tell(What::Blocked, Some(&pod), words.clone());
            }
            self.memory.note_eviction(uid.clone(), answer, budgets, self.now);
            return self.memory.failed(&Task::Evict(uid), self.now, Some(NEVER));
        }
        for budget in &budgets {
            *self.room.entry(budget.name.clone()).or_default() -= 1;
        }
        if let Some((owner, returned)) = owner {
            self.memory.of_scale_in.returns.asked(owner, returned);
        }
        let grace = self.goes(&uid, grace);
        self.tell(What::Evict, Some(&pod), format!("has {grace} s"));
        self.memory.note_eviction(uid, Answer::Going, budgets, self.now);
    }

    fn delete(&mut self, Ask { uid, grace, .. }: Ask) {
        let Some(pod) = self.pods.get(&uid).cloned() else { return };
        let grace = self.goes(&uid, grace);
        self.tell(What::Delete, Some(&pod), format!("whatever its budgets say; has {grace} s"));
        self.memory.note_deletion(uid, Answer::Going, self.now);
    }

    /// A pod goes, with its own grace or a shorter one, which it is told.
    fn goes(&mut self, uid: &str, grace: Option<i64>) -> i64 {
        let Some(pod) = self.pods.get_mut(uid) else { return 0 };
        let grace = grace.unwrap_or(pod.grace_seconds).max(1);
        let until = later(self.now, SignedDuration::from_secs(grace));
        pod.deletion_timestamp = Some(pod.deletion_timestamp.map_or(until, |before| before.min(until)));
        pod.deletion_grace_seconds =
            Some(pod.deletion_grace_seconds.map_or(grace, |before| before.min(grace)));
        grace
    }
}

/// UIDs of pods that hold up a Node that is Ready: their grace is over for so long that a drain tells them as overdue. (A kubelet that is
/// silent confirms nothing, and the plan gives its pods up.)
fn overdue(node: &NodeView, pods: &[PodView], now: Timestamp) -> BTreeSet<String> {
    let is_over = |until: Timestamp| node.ready == Ready::Yes && later(until, OVERDUE_AFTER) <= now;
    let overdue = pods.iter().filter(|pod| pod.deletion_timestamp.is_some_and(is_over));
    overdue.map(|pod| pod.uid.clone()).collect()
}

/// A Node with this record.
fn with_record(mut node: Node, record: &Record) -> Node {
    let annotations = node.metadata.annotations.get_or_insert_default();
    annotations.insert(names::RECORD.to_owned(), record::write(record));
    node
}

/// How long after `start` a moment is.
fn seconds(start: Timestamp, at: Timestamp) -> u64 {
    elapsed(start, at).as_secs()
}
