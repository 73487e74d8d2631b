//! The plan, line by line of the rules it follows. A [`Scene`] is a node in a moment; what the plan asks of the Node is
//! done to it, everything else is up to the test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};

use super::marks;
use super::memory::{Memory, Refusal, Task};
use super::names;
use super::plan::{Action, HookKnowledge, Plan, Settings, Situation, Whereabouts, Why, plan};
use super::record::{Cause, Phase, Record, Release, Written, read};
use crate::aws::Hook;
use crate::cluster::{Budget, NodeView, PodName, PodView, Project};
use crate::groups::Lifecycle;

const START: i64 = 1_700_000_000;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).expect("in range")
}

fn pod(name: &str) -> PodView {
    PodView {
        name: PodName { namespace: "default".into(), name: name.into() },
        uid: format!("uid-{name}"),
        grace_seconds: 30,
        created: Some(at(-1_000)),
        ..PodView::default()
    }
}

trait Fixture {
    fn daemon(self) -> Self;
    fn wishing(self, key: &str, value: &str) -> Self;
    fn grace(self, seconds: i64) -> Self;
    fn priority(self, priority: i32) -> Self;
    fn going(self, until: i64) -> Self;
    fn labelled(self, app: &str) -> Self;
}

impl Fixture for PodView {
    fn daemon(mut self) -> Self {
        self.daemon_set = Some("ds".into());
        self
    }
    fn wishing(mut self, key: &str, value: &str) -> Self {
        self.wishes.insert(key.into(), value.into());
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
        self.going_until = Some(at(until));
        self
    }
    fn labelled(mut self, app: &str) -> Self {
        self.labels.insert("app".into(), app.into());
        self
    }
}

struct Scene {
    now: Timestamp,
    node: Value,
    version: u64,
    pods: Option<BTreeMap<String, PodView>>,
    budgets: Vec<Arc<Budget>>,
    attachments: usize,
    instance: Whereabouts,
    hook: HookKnowledge,
    memory: Memory,
    settings: Settings,
}

fn hook(heartbeat: u64) -> Hook {
    Hook {
        group: "g".into(),
        name: "ebbtide".into(),
        heartbeat_timeout: Duration::from_secs(heartbeat),
        global_timeout: Duration::from_secs(heartbeat * 100).min(Duration::from_hours(48)),
    }
}

fn in_group(lifecycle: Lifecycle) -> Whereabouts {
    Whereabouts::In { group: "g".into(), lifecycle, seen: at(0) }
}

/// A node in service, of a group without a hook, with nothing on it.
fn node() -> Scene {
    Scene {
        now: at(0),
        node: json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": { "name": "n1", "uid": "node-uid", "resourceVersion": "1" },
            "spec": { "providerID": "aws:///us-east-1a/i-1" },
        }),
        version: 1,
        pods: Some(BTreeMap::new()),
        budgets: Vec::new(),
        attachments: 0,
        instance: in_group(Lifecycle::InService),
        hook: HookKnowledge::None,
        memory: Memory::default(),
        settings: Settings { flush: Duration::from_secs(5), drain_timeout: None, guard: true },
    }
}

impl Scene {
    fn with(mut self, pod: PodView) -> Self {
        self.put(pod);
        self
    }

    fn put(&mut self, pod: PodView) {
        self.pods.get_or_insert_default().insert(pod.uid.clone(), pod);
    }

    fn remove(&mut self, name: &str) {
        self.pods.get_or_insert_default().remove(&format!("uid-{name}"));
    }

    fn hooked(mut self, heartbeat: u64) -> Self {
        self.hook = HookKnowledge::Ours(hook(heartbeat));
        self
    }

    fn asked_by(mut self, cause: Cause, release: Release) -> Self {
        let record = Record::new(cause, "g", "i-1", release, self.now);
        self.patch(&marks::with_record(&self.view(), &record, self.now));
        self
    }

    fn by_autoscaler(self) -> Self {
        self.asked_by(Cause::Autoscaler, Release::TerminateAndDecrement)
    }

    fn in_phase(mut self, phase: Phase) -> Self {
        let record = self.record().entering(phase, self.now);
        self.patch(&marks::with_record(&self.view(), &record, self.now));
        self
    }

    fn until(mut self, second: i64) -> Self {
        let record = Record { release_by: Some(at(second)), ..self.record() };
        self.patch(&marks::with_record(&self.view(), &record, self.now));
        self
    }

    fn annotated(mut self, value: &str) -> Self {
        self.patch(&json!({ "metadata": { "annotations": { names::RECORD: value } } }));
        self
    }

    fn tainted(mut self, key: &str) -> Self {
        let mut taints = self.node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        taints.push(json!({ "key": key, "value": at(0).as_second().to_string(), "effect": "NoSchedule" }));
        self.patch(&json!({ "spec": { "taints": taints } }));
        self
    }

    fn patch(&mut self, patch: &Value) {
        json_patch::merge(&mut self.node, patch);
        self.version += 1;
        self.node["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn view(&self) -> NodeView {
        let node: Node = serde_json::from_value(self.node.clone()).expect("a Node");
        NodeView::from(&node)
    }

    fn record(&self) -> Record {
        match self.view().record.as_deref().map(read) {
            Some(Written::Record(record)) => record,
            other => panic!("no record: {other:?}"),
        }
    }

    fn budget(mut self, app: &str, room: i32, version: &str) -> Self {
        self.set_budget(app, room, version);
        self
    }

    fn set_budget(&mut self, app: &str, room: i32, version: &str) {
        let object: PodDisruptionBudget = serde_json::from_value(json!({
            "metadata": { "namespace": "default", "name": app, "resourceVersion": version },
            "spec": { "selector": { "matchLabels": { "app": app } } },
            "status": { "disruptionsAllowed": room, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1 },
        }))
        .expect("a budget");
        self.budgets = vec![Arc::new(Budget::project(&object).expect("kept"))];
    }

    /// One plan. What it asks of the Node is done; every action counts as begun.
    fn look(&mut self) -> Plan {
        let view = self.view();
        let budgets = self.budgets.clone();
        let plan = plan(&Situation {
            now: self.now,
            settings: self.settings,
            node: &view,
            pods: self.pods.as_ref(),
            daemon_set_exists: &|uid| uid == "ds",
            budgets: &|pod| budgets.iter().filter(|budget| budget.covers(pod)).cloned().collect(),
            attachments: self.attachments,
            instance: self.instance.clone(),
            hook: &self.hook,
            memory: &self.memory,
        });
        for action in &plan.actions {
            match action {
                Action::PatchNode { patch, .. } => self.patch(patch),
                Action::Evict { uid, .. } | Action::Delete { uid, .. } => {
                    self.memory.begin(Task::Pod(uid.clone()));
                }
                Action::Guard { uid, .. } => self.memory.begin(Task::Guard(uid.clone())),
                Action::LookUpHook { .. } => self.memory.begin(Task::Hook),
                Action::Terminate { .. } => self.memory.begin(Task::Terminate),
                Action::CompleteHook { .. } => self.memory.begin(Task::Complete),
                Action::Announce(what) => {
                    self.memory.announced.insert(what.topic.clone(), self.now);
                }
            }
        }
        plan
    }

    /// The API server evicted the pod, and the kubelet has begun.
    fn evicted(&mut self, name: &str) {
        let uid = format!("uid-{name}");
        self.memory.worked(Task::Pod(uid.clone()), self.now);
        self.memory.asked.insert(uid.clone(), self.now);
        let pods = self.pods.get_or_insert_default();
        let pod = pods.get_mut(&uid).expect("there");
        pod.going_until = Some(self.now + SignedDuration::from_secs(pod.grace_seconds));
    }

    fn blocked(&mut self, name: &str) {
        let uid = format!("uid-{name}");
        let pods = self.pods.as_ref().expect("listed");
        let budgets = self.budgets.iter().filter(|budget| budget.covers(&pods[&uid]));
        let refusal = Refusal {
            budgets: budgets
                .map(|budget| {
                    (format!("{}/{}", budget.namespace, budget.name), budget.resource_version.clone())
                })
                .collect(),
            text: "needs 2 healthy pods and has 2 currently".into(),
            by_budget: true,
        };
        self.memory.refusals.insert(uid.clone(), refusal);
        self.memory.failed(&Task::Pod(uid), self.now, Some(SignedDuration::from_secs(5)));
    }

    fn later(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }
}

fn evictions(plan: &Plan) -> Vec<(String, Option<i64>)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Evict { pod, grace, .. } => Some((pod.name.clone(), *grace)),
            _ => None,
        })
        .collect()
}

fn deletions(plan: &Plan) -> Vec<(String, Option<i64>)> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Delete { pod, grace, .. } => Some((pod.name.clone(), *grace)),
            _ => None,
        })
        .collect()
}

fn touches_aws(plan: &Plan) -> bool {
    plan.actions.iter().any(|a| matches!(a, Action::Terminate { .. } | Action::CompleteHook { .. }))
}

fn reasons(plan: &Plan) -> Vec<&'static str> {
    plan.actions
        .iter()
        .filter_map(|action| match action {
            Action::Announce(what) | Action::PatchNode { then: Some(what), .. } => Some(what.reason),
            _ => None,
        })
        .collect()
}

fn spec(scene: &Scene) -> (bool, Vec<String>, bool) {
    let view = scene.view();
    let taints = view.taints.iter().map(|taint| taint.key.clone()).collect();
    (view.unschedulable, taints, view.load_balancer_excluded)
}

#[test]
fn workloads_are_evicted_and_daemonset_mirror_finished_and_patient_pods_are_not() {
    let mut scene = node().by_autoscaler();
    scene.put(pod("web"));
    scene.put(pod("logs").daemon());
    scene.put(PodView { mirror: true, ..pod("static") });
    scene.put(PodView { finished: true, ..pod("job") });
    scene.put(pod("db").wishing(names::SAFE_TO_EVICT, "false"));
    let plan = scene.look();
    assert_eq!(evictions(&plan), [("web".into(), None)]);
    assert_eq!(deletions(&plan), []);
    assert!(!touches_aws(&plan));
    let waiting: Vec<_> = plan.waiting.iter().map(|w| (w.pod.name.as_str(), &w.why)).collect();
    assert_eq!(waiting, [("db", &Why::Patient), ("web", &Why::Queued)]);
}

#[test]
fn an_eviction_is_asked_for_once_and_again_only_if_nothing_comes_of_it() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    assert_eq!(evictions(&scene.look()).len(), 1);
    assert_eq!(evictions(&scene.look()), [], "in flight");
    scene.memory.worked(Task::Pod("uid-web".into()), scene.now);
    scene.memory.asked.insert("uid-web".into(), scene.now);
    assert_eq!(evictions(&scene.look()), [], "answered");
    scene.later(31);
    assert_eq!(evictions(&scene.look()).len(), 1, "no sign of it going");
    scene.evicted("web");
    scene.later(1_000);
    assert_eq!(evictions(&scene.look()), [], "going, however long it takes");
}

#[test]
fn lower_priorities_are_asked_before_higher_ones() {
    let mut scene = node().by_autoscaler();
    scene.put(pod("batch-1").priority(-10));
    scene.put(pod("batch-2").priority(-10));
    scene.put(pod("web"));
    scene.put(pod("dns").priority(2_000_000_000));
    let names = |plan: &Plan| evictions(plan).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(&scene.look()), ["batch-1", "batch-2"]);
    scene.evicted("batch-1");
    assert!(names(&scene.look()).is_empty(), "one of the level has had no answer");
    scene.evicted("batch-2");
    assert_eq!(names(&scene.look()), ["web"], "asked, not gone, is enough");
    scene.blocked("web");
    assert_eq!(names(&scene.look()), ["dns"], "a blocked level does not hold the next one");
}

#[test]
fn a_blocking_budget_is_named_on_the_node_and_asked_again_after_a_while() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.look();
    scene.blocked("web");
    let plan = scene.look();
    assert_eq!(evictions(&plan), []);
    assert_eq!(reasons(&plan), ["ScaleInBlocked"]);
    let Some(Action::Announce(what)) = plan.actions.first() else { panic!("{plan:?}") };
    assert!(what.note.contains("default/web"), "{}", what.note);
    assert!(what.note.contains("needs 2 healthy pods"), "{}", what.note);
    assert_eq!(reasons(&scene.look()), Vec::<&str>::new(), "said once");
    scene.later(7);
    assert_eq!(evictions(&scene.look()).len(), 1, "about every five seconds");
    scene.blocked("web");
    scene.later(300);
    assert!(reasons(&scene.look()).contains(&"ScaleInBlocked"), "repeated while it lasts");
}

#[test]
fn a_budget_that_gets_room_is_asked_at_once() {
    let mut scene = node().by_autoscaler().with(pod("web").labelled("web")).budget("web", 0, "7");
    scene.look();
    scene.blocked("web");
    assert_eq!(evictions(&scene.look()), []);
    scene.set_budget("web", 0, "8");
    assert_eq!(evictions(&scene.look()), [], "changed, but without room");
    scene.set_budget("web", 1, "9");
    assert_eq!(evictions(&scene.look()).len(), 1);
    assert_eq!(evictions(&scene.look()), [], "in flight");
}

#[test]
fn the_last_exit_starts_the_flush_and_the_flush_comes_before_the_release() {
    let mut scene = node().by_autoscaler().with(pod("web")).with(pod("logs").daemon());
    scene.look();
    scene.evicted("web");
    scene.look();
    assert_eq!(scene.record().phase, Phase::Draining);
    scene.later(12);
    scene.remove("web");
    assert_eq!(reasons(&scene.look()), ["ScaleInFlushing"]);
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(4);
    assert!(!touches_aws(&scene.look()));
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    assert_eq!(reasons(&scene.look()), ["ScaleInReleasing"]);
    let plan = scene.look();
    let terminate = Action::Terminate { group: "g".into(), instance: "i-1".into(), decrement: true };
    assert_eq!(plan.actions, [terminate]);
    assert_eq!(scene.look().actions, [], "once");
}

#[test]
fn a_pod_in_a_final_phase_has_gone() {
    let mut scene = node().by_autoscaler().with(PodView { finished: true, ..pod("web").going(30) });
    assert_eq!(reasons(&scene.look()), ["ScaleInFlushing"]);
}

#[test]
fn an_empty_node_flushes_too() {
    let mut scene = node().by_autoscaler();
    assert_eq!(reasons(&scene.look()), ["ScaleInFlushing"]);
    scene.later(4);
    assert!(scene.look().actions.is_empty());
}

#[test]
fn nothing_is_decided_before_the_pods_are_known() {
    let mut scene = node().by_autoscaler();
    scene.pods = None;
    assert_eq!(scene.look().actions, []);
}

#[test]
fn the_longest_flush_any_daemonset_pod_asks_for_is_given() {
    let mut scene = node().by_autoscaler().with(pod("logs").daemon().wishing(names::FLUSH_SECONDS, "20"));
    scene.look();
    scene.later(19);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.later(1);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn daemonset_pods_of_class_evict_get_their_grace_while_the_node_flushes_and_replacements_are_let_be() {
    let mut scene =
        node().by_autoscaler().with(pod("csi").daemon().grace(20).wishing(names::DAEMON_SET, "evict"));
    scene.put(pod("web").going(30));
    assert_eq!(deletions(&scene.look()), [], "not while a workload is there");
    scene.remove("web");
    scene.look();
    assert_eq!(deletions(&scene.look()), [("csi".into(), None)]);
    scene.evicted("csi");
    scene.later(15);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Flushing, "it has 20 s");
    scene.remove("csi");
    scene.put(PodView {
        created: Some(scene.now),
        ..pod("csi-2").daemon().grace(20).wishing(names::DAEMON_SET, "evict")
    });
    let plan = scene.look();
    assert_eq!(deletions(&plan), [], "the replacement is let be");
    assert_eq!(scene.record().phase, Phase::Releasing, "and does not hold the node");
}

#[test]
fn attached_volumes_hold_the_release_but_not_for_ever() {
    let mut scene = node().by_autoscaler();
    scene.attachments = 1;
    scene.look();
    scene.later(30);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Flushing);
    scene.attachments = 0;
    scene.look();
    assert_eq!(scene.record().phase, Phase::Releasing);
    let mut scene = node().by_autoscaler();
    scene.attachments = 1;
    scene.look();
    scene.later(66);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Releasing);
}

#[test]
fn a_workload_that_comes_while_the_node_flushes_leaves_first() {
    let mut scene = node().by_autoscaler();
    scene.look();
    scene.put(pod("late"));
    scene.look();
    assert_eq!(scene.record().phase, Phase::Draining);
    assert_eq!(evictions(&scene.look()).len(), 1);
}

#[test]
fn without_a_limit_it_waits_for_ever() {
    let mut scene = node().by_autoscaler().with(pod("db").wishing(names::DRAIN, "wait"));
    for _ in 0..1_000 {
        scene.later(3_600);
        let plan = scene.look();
        assert!(evictions(&plan).is_empty() && deletions(&plan).is_empty() && !touches_aws(&plan));
    }
    assert!(reasons(&scene.look()).is_empty());
    scene.later(301);
    assert_eq!(reasons(&scene.look()), ["ScaleInWaiting"], "and says for whom");
}

#[test]
fn at_its_last_call_a_blocked_or_patient_pod_is_deleted_with_its_whole_grace() {
    // Released by 1000: gone by 990 (5 s flush, 5 s margin), last call for 30 s of grace at 959.
    let mut scene =
        node().by_autoscaler().until(1_000).with(pod("web").labelled("web")).budget("web", 0, "1");
    scene.put(pod("db").wishing(names::DRAIN, "wait"));
    scene.look();
    scene.blocked("web");
    scene.later(958);
    assert_eq!(deletions(&scene.look()), []);
    scene.blocked("web");
    scene.later(1);
    assert_eq!(deletions(&scene.look()), [("db".into(), None)], "its try is not due yet");
    scene.later(5);
    assert_eq!(deletions(&scene.look()), [("web".into(), Some(25))]);
}

#[test]
fn a_hard_deadline_is_hard() {
    let mut scene = node().by_autoscaler().until(1_000).with(pod("stuck").going(5_000));
    scene.later(900);
    assert_eq!(deletions(&scene.look()), [], "it may still go by itself");
    scene.later(88);
    assert_eq!(deletions(&scene.look()), [("stuck".into(), Some(1))], "cut at the end, not before");
    scene.later(2);
    assert_eq!(reasons(&scene.look()), ["ScaleInFlushing"], "gone or not");
    scene.later(5);
    scene.look();
    assert_eq!(scene.record().phase, Phase::Releasing);
    assert!(touches_aws(&scene.look()));
}

#[test]
fn under_a_short_deadline_evictions_carry_a_grace_that_fits() {
    let mut scene = node().by_autoscaler().until(120).with(pod("slow").grace(600)).with(pod("web").grace(30));
    assert_eq!(evictions(&scene.look()), [("slow".into(), Some(109)), ("web".into(), None)]);
}

#[test]
fn the_drain_timeout_limits_every_scale_in() {
    let mut scene = node().annotated("now");
    scene.settings.drain_timeout = Some(Duration::from_mins(30));
    scene.look();
    assert_eq!(scene.record().release_by, Some(at(1_800)));
}

#[test]
fn where_the_group_has_our_hook_the_instance_is_terminated_first_and_drained_under_it() {
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    scene.hook = HookKnowledge::Unknown;
    let plan = scene.look();
    assert!(plan.actions.contains(&Action::LookUpHook { group: "g".into() }));
    assert_eq!(evictions(&plan).len(), 1, "the drain does not wait for AWS");
    let mut scene = node().by_autoscaler().hooked(60).with(pod("web"));
    let plan = scene.look();
    assert!(plan.actions.contains(&Action::Terminate {
        group: "g".into(),
        instance: "i-1".into(),
        decrement: true
    }));
    scene.memory.worked(Task::Terminate, scene.now);
    scene.instance = in_group(Lifecycle::Terminating);
    scene.look();
    assert_eq!(scene.record().release, Release::CompleteHook);
    assert_eq!(scene.record().release_by, Some(at(6_000)), "100 times the heartbeat time-out");
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.remove("web");
    scene.look();
    scene.later(5);
    scene.look();
    let plan = scene.look();
    assert_eq!(plan.actions, [Action::CompleteHook { hook: hook(60), instance: "i-1".into() }]);
}

#[test]
fn an_instance_in_terminating_wait_is_drained_if_the_hook_is_ours() {
    let mut scene = node().hooked(3_600).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert_eq!(reasons(&scene.look()), ["ScaleInDraining"]);
    let record = scene.record();
    assert_eq!((record.cause, record.release), (Cause::LifecycleHook, Release::CompleteHook));
    assert_eq!(record.release_by, Some(at(172_800)), "48 hours at most");
    assert_eq!(evictions(&scene.look()).len(), 1);
    let mut scene = node().with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    let plan = scene.look();
    assert!(
        evictions(&plan).is_empty() && !touches_aws(&plan) && !plan.writes_node(),
        "somebody else's hook"
    );
}

#[test]
fn a_hook_of_somebody_else_is_never_completed() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.instance = in_group(Lifecycle::TerminatingWait);
    assert!(!touches_aws(&scene.look()));
}

#[test]
fn a_termination_whose_answer_was_lost_is_repeated_only_after_a_newer_look() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    assert!(touches_aws(&scene.look()));
    scene.later(1);
    scene.memory.failed(&Task::Terminate, scene.now, None);
    scene.later(60);
    assert!(!touches_aws(&scene.look()), "the look is older than the try");
    scene.instance = Whereabouts::In { group: "g".into(), lifecycle: Lifecycle::InService, seen: scene.now };
    assert!(touches_aws(&scene.look()), "it lives: the try had no effect");
    scene.memory.failed(&Task::Terminate, scene.now, None);
    scene.later(60);
    scene.instance =
        Whereabouts::In { group: "g".into(), lifecycle: Lifecycle::Terminating, seen: scene.now };
    assert!(!touches_aws(&scene.look()), "it had");
}

#[test]
fn a_person_drains_with_now_and_replaces_with_replace() {
    for (word, release) in [("now", Release::TerminateAndDecrement), ("replace", Release::Terminate)] {
        let mut scene = node().annotated(word);
        scene.look();
        assert_eq!((scene.record().cause, scene.record().release), (Cause::Operator, release));
    }
    let mut scene = node().annotated("later");
    assert_eq!(reasons(&scene.look()), ["ScaleInNotUnderstood"]);
    let mut scene = node().annotated("now");
    scene.instance = Whereabouts::Elsewhere;
    assert_eq!(reasons(&scene.look()), ["ScaleInNotPossible"]);
}

#[test]
fn removing_the_annotation_gives_the_node_back_as_it_was() {
    let mut scene = node().tainted("dedicated").by_autoscaler();
    let taints = vec!["dedicated".to_owned(), names::TO_BE_DELETED.to_owned()];
    assert_eq!(spec(&scene), (true, taints, true));
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    assert_eq!(reasons(&scene.look()), ["ScaleInCancelled"]);
    assert_eq!(spec(&scene), (false, vec!["dedicated".into()], false));
    assert_eq!(scene.view().marks, None);
    assert_eq!(scene.look().actions, []);
}

#[test]
fn a_cordon_that_was_there_before_stays_when_the_scale_in_is_cancelled() {
    let mut scene = node();
    scene.patch(&json!({ "spec": { "unschedulable": true } }));
    let mut scene = scene.by_autoscaler();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.look();
    assert_eq!(spec(&scene), (true, vec![], false));
}

#[test]
fn a_scale_in_that_the_group_has_begun_cannot_be_cancelled() {
    let mut scene = node().hooked(60).with(pod("web"));
    scene.instance = in_group(Lifecycle::TerminatingWait);
    scene.look();
    scene.patch(&json!({ "metadata": { "annotations": { names::RECORD: null } } }));
    scene.look();
    assert_eq!(scene.record().cause, Cause::LifecycleHook);
}

#[test]
fn cordon_and_taint_are_put_back_when_the_autoscaler_takes_them_off_and_kept_fresh() {
    let mut scene = node().by_autoscaler().with(pod("web").going(3_000));
    assert_eq!(scene.look().actions, []);
    scene.patch(&json!({ "spec": { "unschedulable": null, "taints": null } }));
    scene.look();
    assert_eq!(spec(&scene), (true, vec![names::TO_BE_DELETED.into()], true));
    let stamp = |scene: &Scene| {
        scene
            .view()
            .taint(names::TO_BE_DELETED)
            .and_then(|t| t.value.as_deref()?.parse().ok())
            .unwrap_or(0i64)
    };
    for _ in 0..100 {
        scene.later(60);
        scene.look();
        assert!(scene.now.as_second() - stamp(&scene) < 5 * 60);
    }
    assert_eq!(scene.view().taints.len(), 1);
}

#[test]
fn a_refused_decrement_gives_the_node_back() {
    let mut scene = node().by_autoscaler().in_phase(Phase::Releasing);
    scene.look();
    scene.memory.at_minimum = true;
    assert_eq!(reasons(&scene.look()), ["ScaleInCancelled"]);
    assert_eq!(spec(&scene), (false, vec![], false));
    assert_eq!(scene.view().record, None);
}

#[test]
fn a_record_of_another_instance_is_void() {
    let mut scene = node().by_autoscaler().with(pod("web"));
    scene.patch(&json!({ "spec": { "providerID": "aws:///us-east-1a/i-2" } }));
    let plan = scene.look();
    assert!(evictions(&plan).is_empty() && !touches_aws(&plan));
    assert_eq!(spec(&scene), (false, vec![], false));
}

#[test]
fn daemonset_pods_of_a_candidate_are_guarded_and_let_go_again() {
    let owned = |value: &str| pod(value).daemon().wishing(names::ENABLE_DS_EVICTION, value);
    let mut scene = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon()).with(owned("true"));
    scene.put(pod("web"));
    let guards = |plan: &Plan| {
        plan.actions
            .iter()
            .filter_map(|a| match a {
                Action::Guard { pod, on, .. } => Some((pod.name.clone(), *on)),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert!(guards(&scene.look()).is_empty(), "the mark on the Node comes first");
    assert_eq!(guards(&scene.look()), [("logs".into(), true)]);
    scene.memory.worked(Task::Guard("uid-logs".into()), scene.now);
    scene.put(owned("false").wishing(names::GUARDED, "true"));
    scene.remove("logs");
    assert!(scene.look().actions.is_empty());
    scene.patch(&json!({ "spec": { "taints": null } }));
    assert_eq!(guards(&scene.look()), [("false".into(), false)]);
    scene.remove("false");
    scene.look();
    assert_eq!(scene.view().marks, None);
    let mut off = node().tainted(names::DELETION_CANDIDATE).with(pod("logs").daemon());
    off.settings.guard = false;
    assert!(off.look().actions.is_empty());
}

#[test]
fn a_plan_made_twice_asks_for_nothing_twice() {
    let mut scene = node().by_autoscaler().hooked(60);
    for n in 0..20 {
        scene.put(pod(&format!("web-{n}")).priority(n % 3));
    }
    let mut asked = BTreeSet::new();
    for _ in 0..10 {
        for (name, _) in evictions(&scene.look()) {
            assert!(asked.insert(name.clone()), "{name} twice");
            scene.evicted(&name);
        }
    }
    assert_eq!(asked.len(), 20);
}
