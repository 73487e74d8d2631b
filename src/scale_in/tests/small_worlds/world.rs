//! The API server, AWS and the replicas of a small world, and what must hold of each thing that happens.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::aws::Lifecycle;
use crate::cluster::{NodeView, PodView};
use crate::groups::hooks::{HookState, TerminatingHooks};
use crate::k8s::names;
use crate::scale_in::action::Action;
use crate::scale_in::deadline::OurLimit;
use crate::scale_in::eviction_rate::Permit;
use crate::scale_in::holds::{Heartbeats, Hold};
use crate::scale_in::load_balancers::Targets;
use crate::scale_in::membership::Membership;
use crate::scale_in::memory::Memory;
use crate::scale_in::node_patch;
use crate::scale_in::plan::plan;
use crate::scale_in::record::{Cause, Record, Release};
use crate::scale_in::situation::Situation;
use crate::scale_in::tests::scene::{Fixture as _, at, hook, pod, settings};
use crate::scale_in::tries::Task;
use crate::scale_in::turn::Turn;

/// A call is answered or given up, and a refresh shows what was before it, for less than this.
const WHILE: SignedDuration = SignedDuration::from_secs(35);
/// AWS takes a request of a process that was stopped for so long.
const SIGNATURE: SignedDuration = SignedDuration::from_mins(5);
const NEVER: SignedDuration = SignedDuration::from_hours(10_000);

/// An instance, as AWS has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    InService,
    Held,
    Gone,
}

/// A rule of the program that is broken, to see that it is found out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Nothing,
    /// AWS is told beside the write that notes it, not after.
    ActsBeforeItRecords,
    /// What AWS was told is noted neither in the record nor among the marks, either of which would do.
    NotesNoTermination,
    /// Pods that are not listed yet count as gone.
    TakesUnlistedPodsForGone,
}

/// A request that was sent.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) by: usize,
    pub(super) life: u32,
    pub(super) node: usize,
    sent: Timestamp,
    pub(super) what: Action,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Answered,
    /// It has its effect, and nobody hears of that.
    Unheard,
    /// It is lost.
    Lost,
    /// AWS throttles it.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sight {
    Node(usize),
    Pods,
    Aws,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The oldest request of its sender, or another.
    Call(usize, Fate),
    Sees(usize, Sight),
    Exits(String),
    NodeDeleted(usize),
    Crashes(usize),
    Leads(usize),
    Passes(SignedDuration),
}

/// A process: what it has seen, and what it remembers.
#[derive(Clone, Debug, Default)]
pub(super) struct Replica {
    pub(super) life: u32,
    pub(super) nodes: [Option<NodeView>; 2],
    pods: Option<BTreeMap<String, PodView>>,
    aws: Option<([Place; 2], Timestamp)>,
    pub(super) memory: [Memory; 2],
    has_looked: [bool; 2],
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Timestamp,
    pub(super) nodes: [Option<Value>; 2],
    pub(super) pods: BTreeMap<String, PodView>,
    pub(super) places: [Place; 2],
    pub(super) decrements: [u8; 2],
    pub(super) completed: u8,
    calls: Vec<Call>,
    leader: Option<usize>,
    pub(super) replicas: [Replica; 2],
    broken: Broken,
}

pub(super) const NAMES: [&str; 2] = ["n0", "n1"];
pub(super) const INSTANCES: [&str; 2] = ["i-0", "i-1"];

fn view(node: &Value) -> NodeView {
    let node: Node = serde_json::from_value(node.clone()).expect("a Node");
    NodeView::from(&node)
}

impl World {
    /// cluster-autoscaler wants `n0` gone, whose group has our hook, and a person `n1`, whose group has none. A workload is on
    /// each, and a DaemonSet pod that wants to be asked on `n0`.
    pub(super) fn new(broken: Broken) -> Self {
        let wants =
            [(Cause::Autoscaler, Release::TerminateAndDecrement), (Cause::Operator, Release::Terminate)];
        let nodes = [0, 1].map(|n| {
            let mut node = json!({
                "metadata": { "name": NAMES[n], "uid": NAMES[n], "resourceVersion": "1" },
                "spec": { "providerID": format!("aws:///z1/{}", INSTANCES[n]) },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            });
            let record = Record::new(wants[n].0, "g", INSTANCES[n], wants[n].1, at(0));
            let patch = node_patch::with_record(&view(&node), &record, at(0));
            json_patch::merge(&mut node, &patch);
            Some(node)
        });
        let on = |node: usize, pod: PodView| PodView { node: NAMES[node].into(), ..pod };
        let pods = [
            on(0, pod("web")),
            on(0, pod("shipper").daemon().wishing(names::DAEMON_SET, "evict").grace(5)),
            on(1, pod("job")),
        ];
        Self {
            now: at(0),
            nodes,
            pods: pods.into_iter().map(|pod| (pod.uid.clone(), pod)).collect(),
            places: [Place::InService; 2],
            decrements: [0; 2],
            completed: 0,
            calls: Vec::new(),
            leader: Some(0),
            replicas: Default::default(),
            broken,
        }
    }

    /// All that can happen now; the first of it is the undisturbed course.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = (0..self.calls.len()).map(|n| Event::Call(n, Fate::Answered)).collect();
        let order = if self.leader == Some(1) { [1, 0] } else { [0, 1] };
        for r in order {
            let replica = &self.replicas[r];
            for n in [0, 1] {
                let seen = replica.nodes[n].as_ref().map(|node| node.resource_version.as_str());
                let there =
                    self.nodes[n].as_ref().and_then(|node| node["metadata"]["resourceVersion"].as_str());
                if seen != there {
                    events.push(Event::Sees(r, Sight::Node(n)));
                }
            }
            if replica.pods.as_ref() != Some(&self.pods) {
                events.push(Event::Sees(r, Sight::Pods));
            }
            if replica.aws != Some((self.places, self.clock(r))) {
                events.push(Event::Sees(r, Sight::Aws));
            }
        }
        if self.leader.is_none() {
            events.insert(0, Event::Leads(0));
        }
        let going = self.pods.values().filter(|pod| pod.deletion_timestamp.is_some());
        events.extend(going.map(|pod| Event::Exits(pod.uid.clone())));
        let gone = |n: &usize| self.places[*n] == Place::Gone && self.nodes[*n].is_some();
        events.extend([0, 1].into_iter().filter(gone).map(Event::NodeDeleted));
        for by in [WHILE, SIGNATURE + WHILE] {
            if self.may_pass(by) {
                events.push(Event::Passes(by));
            }
        }
        for n in 0..self.calls.len() {
            events.extend([Event::Call(n, Fate::Unheard), Event::Call(n, Fate::Lost)]);
            if matches!(self.calls[n].what, Action::Terminate { .. }) {
                events.push(Event::Call(n, Fate::Refused));
            }
        }
        events.extend([Event::Crashes(0), Event::Crashes(1)]);
        events.extend([0, 1].into_iter().filter(|r| self.leader != Some(*r)).map(Event::Leads));
        events
    }

    /// Whoever lives hears, or gives up, before a while has passed. What a dead process has sent may arrive later.
    fn may_pass(&self, by: SignedDuration) -> bool {
        self.calls.iter().all(|call| {
            let is_orphan = self.replicas[call.by].life != call.life;
            is_orphan && self.now.duration_since(call.sent) + by <= SIGNATURE
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.nodes.iter().all(Option::is_none) && self.calls.is_empty()
    }

    /// The clock of a replica. No two of them read the same to the nanosecond.
    pub(super) fn clock(&self, r: usize) -> Timestamp {
        self.now + SignedDuration::from_millis(i64::from(r == 1))
    }

    /// What happens. An error is an invariant that does not hold.
    pub(super) fn happen(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Call(n, fate) => {
                let call = self.calls.remove(*n);
                self.answer(&call, *fate)?;
                self.look(call.by, call.node);
            }
            Event::Sees(r, sight) => {
                self.see(*r, *sight);
                match sight {
                    Sight::Node(n) => self.look(*r, *n),
                    Sight::Pods | Sight::Aws => self.look_all(*r),
                }
            }
            Event::Exits(uid) => drop(self.pods.remove(uid)),
            Event::NodeDeleted(n) => {
                self.nodes[*n] = None;
                self.pods.retain(|_, pod| pod.node != NAMES[*n]);
            }
            Event::Crashes(r) => {
                let life = self.replicas[*r].life + 1;
                self.replicas[*r] = Replica { life, ..Replica::default() };
                self.leader = self.leader.filter(|leader| leader != r);
            }
            Event::Leads(r) => {
                self.leader = Some(*r);
                self.look_all(*r);
            }
            Event::Passes(by) => {
                self.now += *by;
                for r in [0, 1] {
                    self.look_all(r);
                }
            }
        }
        Ok(())
    }

    pub(super) fn see(&mut self, r: usize, sight: Sight) {
        let seen = self.clock(r);
        let replica = &mut self.replicas[r];
        match sight {
            Sight::Node(n) => replica.nodes[n] = self.nodes[n].as_ref().map(view),
            Sight::Pods => replica.pods = Some(self.pods.clone()),
            Sight::Aws => replica.aws = Some((self.places, seen)),
        }
    }

    fn look_all(&mut self, r: usize) {
        for n in [0, 1] {
            self.look(r, n);
        }
    }

    /// A replica plans for a node on what it has seen, as its worker does on every change.
    fn look(&mut self, r: usize, n: usize) {
        let (now, leads) = (self.clock(r), self.leader == Some(r));
        let replica = &mut self.replicas[r];
        let Some(node) = replica.nodes[n].clone() else { return };
        let of_node = |pods: &BTreeMap<String, PodView>| -> BTreeMap<String, PodView> {
            pods.iter()
                .filter(|(_, pod)| pod.node == NAMES[n])
                .map(|(uid, pod)| (uid.clone(), pod.clone()))
                .collect()
        };
        let mut pods = replica.pods.as_ref().map(of_node);
        if self.broken == Broken::TakesUnlistedPodsForGone {
            pods.get_or_insert_default();
        }
        let from_another_run = !std::mem::replace(&mut replica.has_looked[n], true) || !leads;
        let instance = match replica.aws {
            None => Membership::Unknown,
            Some((places, seen)) => match places[n] {
                Place::Gone => Membership::Elsewhere { seen },
                Place::InService => {
                    Membership::In { group: "g".into(), lifecycle: Lifecycle::InService, seen }
                }
                Place::Held => {
                    Membership::In { group: "g".into(), lifecycle: Lifecycle::TerminatingWait, seen }
                }
            },
        };
        let memory = &mut replica.memory[n];
        memory.claims.see(&node, from_another_run, now);
        memory.note_membership(&instance);
        memory.note_pods(pods.as_ref().unwrap_or(&BTreeMap::new()), now);
        let ours = (n == 0).then(|| hook(3_600));
        let settings = settings();
        let plan = plan(&Situation {
            now,
            taint_now: now,
            ahead: SignedDuration::ZERO,
            cluster_ahead: SignedDuration::ZERO,
            record_seen: at(0),
            leads_since: at(0),
            settings: &settings,
            node: &node,
            twins: &[],
            is_primary: true,
            pods: pods.as_ref(),
            is_relisting: false,
            listed_at: Some(now),
            are_kubelets_cut_off: false,
            undescribed_since: None,
            daemon_set_is_seen: &|_| true,
            have_room: &|_| false,
            budgets: &|_| Vec::new(),
            our_limit: OurLimit::of(None, &settings),
            own_pod: None,
            attachments: &|| 0,
            targets: Targets::NotAsked,
            group_keeps_its_nodes: &|| false,
            may_shrink: &|| true,
            is_replaced_first: &|| false,
            turn: &|| Turn::Now,
            permit: &|| Permit::Granted,
            instance,
            hook: HookState::Known(TerminatingHooks { ours, ..TerminatingHooks::default() }),
            heartbeats: Heartbeats::Taken,
            held: Some(Hold::since(at(0))),
            notices: &[],
            memory,
        });
        memory.note_planned(&plan, now);
        for action in plan.actions {
            self.start(r, n, action);
        }
    }

    /// Starts an action, as a worker does.
    pub(super) fn start(&mut self, r: usize, n: usize, action: Action) {
        if self.leader != Some(r) {
            return;
        }
        let (now, broken) = (self.clock(r), self.broken);
        let memory = &mut self.replicas[r].memory[n];
        memory.note_begun(&action, now);
        match action {
            Action::Announce(_) => {}
            Action::Report(_) | Action::Guard { .. } => {
                memory.failed(&Task::of(&action).expect("a task"), now, Some(NEVER));
            }
            Action::Refresh => memory.failed(&Task::Refresh, now, Some(SignedDuration::from_secs(5))),
            Action::PatchNode { patch, then } if broken == Broken::ActsBeforeItRecords => {
                self.send(r, n, Action::PatchNode { patch, then: Vec::new() });
                for action in then {
                    self.start(r, n, action);
                }
            }
            Action::PatchNode { mut patch, then } => {
                if broken == Broken::NotesNoTermination
                    && let Some(text) = node_patch::record_in(&patch)
                {
                    let mut record: Record = serde_json::from_str(text).expect("a record");
                    record.terminate_at = None;
                    let annotations = &mut patch["metadata"]["annotations"];
                    annotations[names::RECORD] = json!(serde_json::to_string(&record).expect("JSON"));
                    if let Some(marks) = annotations[names::MARKS].as_str() {
                        annotations[names::MARKS] = json!(marks.replace(",told", ""));
                    }
                }
                self.send(r, n, Action::PatchNode { patch, then });
            }
            other => self.send(r, n, other),
        }
    }

    fn send(&mut self, by: usize, node: usize, what: Action) {
        let call = Call { by, life: self.replicas[by].life, node, sent: self.now, what };
        self.calls.push(call);
    }

    /// Tells states apart by what can differ.
    pub(super) fn key(&self) -> u64 {
        fn pods(of: &BTreeMap<String, PodView>, hasher: &mut DefaultHasher) {
            for (uid, pod) in of {
                (uid, pod.deletion_timestamp).hash(hasher);
            }
        }
        let mut hasher = DefaultHasher::new();
        let World { now, nodes, pods: there, places, decrements, completed, calls, leader, replicas, .. } =
            self;
        (now, decrements, completed, leader, format!("{places:?}{calls:?}")).hash(&mut hasher);
        pods(there, &mut hasher);
        nodes.each_ref().map(|node| node.as_ref().map(Value::to_string)).hash(&mut hasher);
        for replica in replicas {
            let of_node = |node: &NodeView| {
                let record = node.record.as_ref().map(|record| record.text().to_owned());
                (node.resource_version.clone(), record)
            };
            replica.nodes.each_ref().map(|node| node.as_ref().map(of_node)).hash(&mut hasher);
            replica.pods.is_some().hash(&mut hasher);
            pods(replica.pods.as_ref().unwrap_or(&BTreeMap::new()), &mut hasher);
            let Replica { life, aws, memory, has_looked, .. } = replica;
            (life, has_looked, format!("{aws:?}{memory:?}")).hash(&mut hasher);
        }
        hasher.finish()
    }
}
