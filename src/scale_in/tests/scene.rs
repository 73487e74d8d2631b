//! A [`Scene`] is a node in a moment; what the plan asks of the Node is
//! done to it, everything else is up to the test.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use crate::aws::{AwsError, Hook, Lifecycle};
use crate::clock::{elapsed, later};
use crate::cluster::{
    Answer, Budget, BudgetSeen, DaemonOwner, DrainState, NodeView, PodName, PodView, Project, may_have_room,
};
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::names;
use crate::scale_in::action::{Action, Plan};
use crate::scale_in::deadline::OurLimit;
use crate::scale_in::eviction_rate::Permit;
use crate::scale_in::holds::{Heartbeats, Hold};
use crate::scale_in::load_balancers::Targets;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::node_patch;
use crate::scale_in::notices::{Expected, Noticed};
use crate::scale_in::plan::plan;
use crate::scale_in::record::{Cause, Phase, Record, Release};
use crate::scale_in::settings::{AtOnce, Settings, Treatment};
use crate::scale_in::situation::Situation;
use crate::scale_in::turn::Turn;

pub(super) const START: i64 = 1_700_000_000;

pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).expect("in range")
}

pub(super) fn pod(name: &str) -> PodView {
    PodView {
        name: PodName { namespace: "default".into(), name: name.into() },
        uid: format!("uid-{name}"),
        grace_seconds: 30,
        created: Some(at(-1_000)),
        ..PodView::default()
    }
}

pub(super) trait Fixture {
    fn daemon(self) -> Self;
    fn wishing(self, key: &str, value: &str) -> Self;
    fn grace(self, seconds: i64) -> Self;
    fn priority(self, priority: i32) -> Self;
    fn going(self, until: i64) -> Self;
    fn labelled(self, app: &str) -> Self;
}

impl Fixture for PodView {
    fn daemon(mut self) -> Self {
        self.daemon = Some(DaemonOwner::DaemonSet { uid: "ds".into(), name: "ds".into() });
        self
    }
    fn wishing(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.into(), value.into());
        self
    }
    fn grace(mut self, seconds: i64) -> Self {
        self.grace_seconds = seconds;
        self
    }
    fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }
    fn going(mut self, until: i64) -> Self {
        self.deletion_timestamp = Some(at(until));
        // It ends when the API server says.
        self.deletion_grace_seconds = Some(until.max(0) + 3_600);
        self
    }
    fn labelled(mut self, app: &str) -> Self {
        self.labels.insert("app".into(), app.into());
        self
    }
}

#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Scene {
    pub(super) now: Timestamp,
    /// How far the clock of the record and of the API server is ahead.
    pub(super) ahead: SignedDuration,
    /// How far that of the API server is by now, if that has changed since the record came.
    pub(super) cluster_ahead: Option<SignedDuration>,
    /// Since when this process leads.
    pub(super) leads_since: Timestamp,
    /// Whether an earlier run wrote what the Node carries, or somebody else while this one runs.
    pub(super) from_another_run: bool,
    pub(super) node: Value,
    /// Other Nodes that name the same instance.
    pub(super) twins: Vec<Arc<NodeView>>,
    /// Whether this Node is the primary one, not one of those.
    pub(super) is_primary: bool,
    pub(super) version: u64,
    pub(super) pods: Option<BTreeMap<String, PodView>>,
    pub(super) budgets: Vec<Arc<Budget>>,
    /// How often it was asked which of them cover a pod.
    pub(super) budgets_asked: Cell<usize>,
    pub(super) own_pod: Option<PodName>,
    pub(super) attachments: usize,
    /// How often it was asked how many they are.
    pub(super) attachments_asked: Cell<usize>,
    pub(super) is_relisting: bool,
    /// Pods are listed for what asks for that, and no answer comes.
    pub(super) is_silent: bool,
    pub(super) are_kubelets_cut_off: bool,
    pub(super) undescribed_since: Option<Timestamp>,
    pub(super) targets: Targets,
    pub(super) may_shrink: bool,
    pub(super) is_replaced_first: bool,
    pub(super) keeps_its_nodes: bool,
    pub(super) turn: Turn,
    pub(super) instance: Membership,
    pub(super) hook: HookState,
    pub(super) held_since: Option<Timestamp>,
    pub(super) held_at_the_latest: bool,
    pub(super) hold_ends: Option<Timestamp>,
    pub(super) hold_is_renewed: bool,
    pub(super) heartbeats: Heartbeats,
    pub(super) notices: Vec<Noticed>,
    pub(super) memory: Memory,
    /// The budgets of the pods that are being evicted, by UID.
    covered_by: BTreeMap<String, Vec<BudgetSeen>>,
    being_deleted: BTreeSet<String>,
    /// How many evictions the rate allows in a plan; `None`: no limit.
    pub(super) permits: Option<u32>,
    /// What was told of the drain by conditions.
    pub(super) reports: Vec<DrainState>,
    pub(super) settings: Settings,
}

pub(super) fn hook(heartbeat: u64) -> Hook {
    Hook::new("ebbtide", "g", Duration::from_secs(heartbeat))
}

/// AWS has told of this hook of ours, beside one of somebody else's or not.
pub(super) fn ours(hook: Hook, others: bool) -> HookState {
    HookState::Known(TerminatingHooks { ours: Some(hook), others, ..TerminatingHooks::default() })
}

pub(super) fn in_group(lifecycle: Lifecycle) -> Membership {
    Membership::In { group: "g".into(), lifecycle, seen: at(0) }
}

/// Gives up the replacement of what the scene's group took out by itself.
pub(super) fn gives_up(scene: &Scene) -> Action {
    Action::GiveUpReplacement { group: "g".into(), requested_at: scene.record().requested_at }
}

/// A description made now shows the instance in this state.
pub(super) fn shown(scene: &mut Scene, lifecycle: Lifecycle) {
    scene.instance = Membership::In { group: "g".into(), lifecycle, seen: scene.now };
}

pub(super) fn expected(cause: Cause, treatment: Treatment, ends_at: Option<Timestamp>) -> Expected {
    let is_advice = cause == Cause::RebalanceRecommendation;
    Expected { cause, treatment, ends_at, is_advice, told_at: at(0), until: at(3_600) }
}

pub(in crate::scale_in) fn spot(second: i64) -> Expected {
    expected(Cause::SpotInterruption, Treatment::Drain, Some(at(second)))
}

pub(super) fn told(scene: Scene, what: Expected) -> Scene {
    told_of(scene, &[(what, None)])
}

/// These notices have come, each of this event.
pub(super) fn told_of(mut scene: Scene, notices: &[(Expected, Option<&str>)]) -> Scene {
    let read = |(expected, event): &(Expected, Option<&str>)| Noticed {
        expected: *expected,
        event: event.map(str::to_owned),
        called_off: None,
        not_before: None,
    };
    scene.notices = notices.iter().map(read).collect();
    scene
}

/// The defaults, and one scale-in by annotation at once.
pub(in crate::scale_in) fn settings() -> Settings {
    Settings { operator_at_once: AtOnce::Number(1), ..Settings::default() }
}

/// A node in service, of a group without a hook, with nothing on it.
pub(super) fn node() -> Scene {
    Scene {
        now: at(0),
        ahead: SignedDuration::ZERO,
        cluster_ahead: None,
        leads_since: at(-10_000),
        from_another_run: true,
        node: json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n1", "uid": "node-uid", "resourceVersion": "1" },
            "spec": { "providerID": "aws:///us-east-1a/i-1" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
        twins: Vec::new(),
        is_primary: true,
        version: 1,
        pods: Some(BTreeMap::new()),
        budgets: Vec::new(),
        budgets_asked: Cell::new(0),
        own_pod: None,
        attachments: 0,
        attachments_asked: Cell::new(0),
        is_relisting: false,
        is_silent: false,
        are_kubelets_cut_off: false,
        undescribed_since: None,
        targets: Targets::NotAsked,
        may_shrink: true,
        is_replaced_first: false,
        keeps_its_nodes: false,
        turn: Turn::Now,
        instance: in_group(Lifecycle::InService),
        hook: HookState::Known(TerminatingHooks::default()),
        held_since: None,
        held_at_the_latest: false,
        hold_ends: None,
        hold_is_renewed: false,
        heartbeats: Heartbeats::Taken,
        notices: Vec::new(),
        memory: Memory::default(),
        covered_by: BTreeMap::new(),
        being_deleted: BTreeSet::new(),
        permits: None,
        reports: Vec::new(),
        settings: settings(),
    }
}

impl Scene {
    pub(super) fn with(mut self, pod: PodView) -> Self {
        self.put(pod);
        self
    }

    pub(super) fn put(&mut self, pod: PodView) {
        self.pods.get_or_insert_default().insert(pod.uid.clone(), pod);
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.pods.get_or_insert_default().remove(&format!("uid-{name}"));
    }

    pub(super) fn hooked(mut self, heartbeat: u64) -> Self {
        self.hook = ours(hook(heartbeat), false);
        self
    }

    pub(super) fn asked_by(mut self, cause: Cause, release: Release) -> Self {
        let record = Record::new(cause, "g", "i-1", release, self.now);
        self.patch(&node_patch::with_record(&self.view(), &record, self.now));
        self
    }

    /// That it begins has been announced.
    pub(super) fn by_autoscaler(mut self) -> Self {
        self.memory.note_announced("draining".into(), self.now);
        self.asked_by(Cause::Autoscaler, Release::TerminateAndDecrement)
    }

    pub(super) fn in_phase(mut self, phase: Phase) -> Self {
        let record = self.record().entering(phase, self.now);
        self.patch(&node_patch::with_record(&self.view(), &record, self.now));
        self
    }

    pub(super) fn until(mut self, second: i64) -> Self {
        let requested = self.record().requested_at;
        self.settings.drain_timeout = Some(elapsed(requested, at(second)));
        let record = Record { release_by: Some(at(second)), ..self.record() };
        self.patch(&node_patch::with_record(&self.view(), &record, self.now));
        self
    }

    pub(super) fn annotated(mut self, value: &str) -> Self {
        self.patch(&json!({ "metadata": { "annotations": { names::RECORD: value } } }));
        self
    }

    pub(super) fn tainted(mut self, key: &str) -> Self {
        let mut taints = self.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.push(json!({ "key": key, "value": at(0).as_second().to_string(), "effect": "NoSchedule" }));
        self.patch(&json!({ "spec": { "taints": taints } }));
        self
    }

    pub(super) fn patch(&mut self, patch: &Value) {
        json_patch::merge(&mut self.node, patch);
        self.version += 1;
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    pub(super) fn view(&self) -> NodeView {
        let node: Node = serde_json::from_value(self.node.clone()).expect("a Node");
        NodeView::from(&node)
    }

    pub(super) fn record(&self) -> Record {
        match self.view().record {
            Some(written) => written.record().expect("a record").clone(),
            None => panic!("no record"),
        }
    }

    pub(super) fn budget(mut self, app: &str, room: i32, version: &str) -> Self {
        self.set_budget(app, room, version);
        self
    }

    pub(super) fn set_budget(&mut self, app: &str, room: i32, version: &str) {
        let object: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": app, "resourceVersion": version },
            "spec": { "selector": { "matchLabels": { "app": app } } },
            "status": { "disruptionsAllowed": room, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
        }))
        .expect("a budget");
        self.budgets = vec![Arc::new(Budget::project(&object))];
    }

    /// One plan. What it asks of the Node is done; every other action is begun, as the worker begins it, and waits for its
    /// answer.
    pub(super) fn plan(&mut self) -> Plan {
        let view = self.view();
        let budgets = self.budgets.clone();
        let left = Cell::new(self.permits);
        self.memory.claims.see(&view, self.from_another_run, later(self.now, self.ahead));
        self.memory.note_membership(&self.instance);
        let cluster_ahead = self.cluster_ahead.unwrap_or(self.ahead);
        self.memory.of_scale_in.returns.see_node(view.unschedulable, later(self.now, cluster_ahead));
        self.memory.note_ready(&view, self.now);
        self.memory.note_listed(self.pods.is_some() && !self.is_relisting, self.now);
        self.memory.note_pods(self.pods.as_ref().unwrap_or(&BTreeMap::new()), self.now);
        if let Some(pods) = &self.pods {
            self.memory.note_daemons(pods, &self.settings.flush, (self.now, cluster_ahead));
        }
        let mut plan = plan(&Situation {
            now: self.now,
            taint_now: self.now,
            ahead: self.ahead,
            cluster_ahead,
            record_seen: at(0),
            leads_since: self.leads_since,
            settings: &self.settings,
            twins: &self.twins,
            is_primary: self.is_primary,
            node: &view,
            pods: self.pods.as_ref(),
            is_relisting: self.is_relisting,
            listed_at: if self.is_silent { None } else { Some(self.now) },
            are_kubelets_cut_off: self.are_kubelets_cut_off,
            undescribed_since: self.undescribed_since,
            daemon_set_is_seen: &|uid| uid == "ds",
            have_room: &|seen| {
                may_have_room(seen, |name| budgets.iter().find(|budget| budget.full_name() == name).cloned())
            },
            budgets: &|pod| {
                self.budgets_asked.set(self.budgets_asked.get() + 1);
                budgets.iter().filter(|budget| budget.covers(pod)).cloned().collect()
            },
            our_limit: OurLimit::of(None, &self.settings),
            own_pod: self.own_pod.as_ref(),
            attachments: &|| {
                self.attachments_asked.set(self.attachments_asked.get() + 1);
                self.attachments
            },
            targets: self.targets.clone(),
            group_keeps_its_nodes: &|| self.keeps_its_nodes,
            may_shrink: &|| self.may_shrink,
            is_replaced_first: &|| self.is_replaced_first,
            turn: &|| self.turn.clone(),
            permit: &|| match left.get() {
                None => Permit::Granted,
                Some(0) => Permit::Wait(later(self.now, SignedDuration::from_secs(1))),
                Some(n) => {
                    left.set(Some(n - 1));
                    Permit::Granted
                }
            },
            instance: self.instance.clone(),
            hook: self.hook.clone(),
            heartbeats: self.heartbeats,
            held: self.held_since.map(|since| Hold {
                since,
                at_the_latest: self.held_at_the_latest,
                ends: self.hold_ends,
                is_renewed: self.hold_is_renewed,
            }),
            notices: &self.notices,
            memory: &self.memory,
        });
        assert!(plan.wake_at.is_none_or(|at| at > self.now), "it would be made again at once");
        self.memory.note_planned(&plan, self.now);
        // Told beside everything else: at once, and no test of anything else sees it.
        plan.actions.retain(|action| match action {
            Action::Report(state) => {
                self.reports.push(*state);
                false
            }
            _ => true,
        });
        if let Some(state) = self.reports.last() {
            self.tell(state.patch("node-uid", None, self.now));
        }
        for action in &plan.actions {
            self.begin(action);
        }
        plan
    }

    /// Writes the conditions of a status patch into the Node.
    fn tell(&mut self, mut patch: Value) {
        let told = patch["status"]["conditions"].take();
        let told = told.as_array().expect("conditions");
        let conditions = self.node["status"]["conditions"].as_array_mut().expect("conditions");
        conditions.retain(|old| told.iter().all(|new| new["type"] != old["type"]));
        conditions.extend(told.iter().cloned());
    }

    fn begin(&mut self, action: &Action) {
        self.memory.note_begun(action, self.now);
        match action {
            Action::PatchNode { patch, then } => {
                self.patch(patch);
                self.memory.note_written(&self.view(), self.now);
                for action in then {
                    self.begin(action);
                }
            }
            Action::Evict(ask) => {
                self.covered_by.insert(ask.uid.clone(), ask.budgets.clone());
            }
            Action::Delete(ask) => {
                self.being_deleted.insert(ask.uid.clone());
            }
            _ => {}
        }
    }

    /// The API server answers to the deletion of a pod, or to its eviction if it is not being deleted.
    pub(super) fn answered(&mut self, name: &str, answer: Answer) {
        let uid = format!("uid-{name}");
        if self.being_deleted.remove(&uid) {
            return self.memory.note_deletion(uid, answer, self.now);
        }
        let budgets = self.covered_by.remove(&uid).unwrap_or_default();
        self.memory.note_eviction(uid, answer, budgets, self.now);
    }

    /// The API server says that the pod goes; no watch shows that yet.
    pub(super) fn granted(&mut self, name: &str) {
        self.answered(name, Answer::Going);
    }

    /// The API server evicted the pod, and the kubelet has begun.
    pub(super) fn evicted(&mut self, name: &str) {
        self.granted(name);
        let pods = self.pods.get_or_insert_default();
        let pod = pods.get_mut(&format!("uid-{name}")).expect("there");
        pod.deletion_timestamp = Some(self.now + SignedDuration::from_secs(pod.grace_seconds));
    }

    pub(super) fn blocked(&mut self, name: &str) {
        self.answered(name, Answer::Blocked("needs 2 healthy pods and has 2 currently".into()));
    }

    /// AWS answers, or does not, to the termination that the record notes.
    pub(super) fn terminated(&mut self, result: &Result<(), AwsError>) {
        let noted_at = self.record().terminate_at.expect("noted");
        self.memory.note_termination(noted_at, result, self.now);
    }

    pub(super) fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }
}

/// The Node says that its kubelet is Ready, or not.
pub(super) fn ready(scene: &mut Scene, status: &str) {
    scene.patch(&json!({ "status": { "conditions": [{ "type": "Ready", "status": status }] } }));
}

pub(super) fn evictions(plan: &Plan) -> Vec<(String, Option<i64>)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Evict(ask) => Some((ask.pod.name.to_string(), ask.grace)),
            _ => None,
        })
        .collect()
}

pub(super) fn deletions(plan: &Plan) -> Vec<(String, Option<i64>)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Delete(ask) => Some((ask.pod.name.to_string(), ask.grace)),
            _ => None,
        })
        .collect()
}

/// The termination that a plan asks for now.
pub(super) fn terminate(scene: &Scene, under_hook: bool) -> Action {
    let (group, instance) = ("g".into(), "i-1".into());
    Action::Terminate { group, instance, decrement: true, under_hook, noted_at: scene.now }
}

/// Everything a plan asks for, also what is to be done once the Node is written.
pub(super) fn all(plan: &Plan) -> Vec<Action> {
    let then = |action: &Action| match action {
        Action::PatchNode { then, .. } => then.clone(),
        _ => Vec::new(),
    };
    plan.actions.iter().flat_map(|action| [vec![action.clone()], then(action)].concat()).collect()
}

pub(super) fn touches_aws(plan: &Plan) -> bool {
    all(plan).iter().any(|a| matches!(a, Action::Terminate { .. } | Action::CompleteHook { .. }))
}

pub(super) fn reasons(plan: &Plan) -> Vec<&'static str> {
    let announced = |action: Action| match action {
        Action::Announce(what) => Some(what.reason.as_str()),
        _ => None,
    };
    all(plan).into_iter().filter_map(announced).collect()
}

pub(super) fn spec(scene: &Scene) -> (bool, Vec<String>, bool) {
    let view = scene.view();
    let taints = view.taints.iter().map(|taint| taint.key.clone()).collect();
    (view.unschedulable, taints, view.is_out_of_load_balancers())
}
