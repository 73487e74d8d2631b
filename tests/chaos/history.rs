//! What happened in a run: the journals of both worlds, what the driver did, and how things were at the end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ebbtide::sim::report::{self, Facts, Life, Run};
use ebbtide::sim::world::World;
use ebbtide::sim::{autoscaler, aws, cluster};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use parking_lot::{Mutex, MutexGuard};

use crate::scenario::{Cause, Damage, Deed, GroupCause, Scenario, What};

/// A node, its instance and its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Machine {
    pub(crate) node: String,
    pub(crate) instance: String,
    pub(crate) group: String,
}

/// Something that the driver did or saw.
#[derive(Clone, Debug)]
pub(crate) enum Note {
    /// Nodes and pods are there.
    Began,
    /// Nothing is broken any more.
    Mended,
    /// A replica of the program was started.
    Started(usize),
    /// A replica was killed or stopped.
    Gone(usize),
    /// A replica ended without having been told to.
    EndedByItself(usize),
    /// Something panicked.
    Panicked(String),
    Did(What),
    /// What was answered to TargetSize of a group.
    Told(String, Result<i32, String>),
    Asked(Cause, Machine),
    /// DeleteNodes was answered without an error.
    Accepted(Machine),
    AskedOfGroup(GroupCause, String),
    Damaged(Damage, Machine),
    Person(Deed, Machine),
    /// No call to AWS arrives.
    AwsAway,
    AwsBack,
}

/// What the driver noted, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Diary(Arc<Mutex<Vec<(Timestamp, Note)>>>);

impl Diary {
    pub(crate) fn note(&self, at: Timestamp, note: Note) {
        self.notes().push((at, note));
    }

    fn notes(&self) -> MutexGuard<'_, Vec<(Timestamp, Note)>> {
        self.0.lock()
    }
}

/// How things are when nothing is under way any more.
#[derive(Clone, Debug)]
pub(crate) struct End {
    pub(crate) at: Timestamp,
    pub(crate) nodes: Vec<Node>,
    pub(crate) groups: Vec<aws::GroupSnapshot>,
    /// TargetSize by group, or the error.
    pub(crate) targets: BTreeMap<String, Result<i32, String>>,
    /// When single calls to AWS, and requests to the API server, were hit: a fault waits for its call.
    pub(crate) hits: [Vec<Timestamp>; 2],
    /// When a description left something out.
    pub(crate) gaps: Vec<Timestamp>,
}

/// A whole run.
pub(crate) struct History {
    pub(crate) scenario: Scenario,
    pub(crate) aws: Vec<aws::Entry>,
    pub(crate) cluster: Vec<cluster::Entry>,
    pub(crate) autoscaler: Vec<(Timestamp, autoscaler::Event)>,
    pub(crate) diary: Vec<(Timestamp, Note)>,
    pub(crate) end: End,
    /// The name of each instance's Node.
    pub(crate) names: BTreeMap<String, String>,
    /// Stays of pods on nodes.
    pub(crate) runs: Vec<Run>,
    /// Instances.
    pub(crate) lives: BTreeMap<String, Life>,
}

impl History {
    pub(crate) fn of(
        scenario: Scenario,
        world: &World,
        autoscaler: Vec<(Timestamp, autoscaler::Event)>,
        diary: &Diary,
        end: End,
    ) -> Self {
        let aws = world.aws.journal();
        let instances: BTreeSet<&String> = aws.iter().filter_map(|entry| instance_of(&entry.what)).collect();
        let name = |id: &String| Some((id.clone(), world.aws.instance(id)?.private_dns_name()));
        let names = instances.into_iter().filter_map(name).collect();
        let diary = diary.notes().clone();
        Self::made(scenario, aws, world.cluster.journal(), autoscaler, diary, end, names)
    }

    /// A history from its parts.
    pub(crate) fn made(
        scenario: Scenario,
        aws: Vec<aws::Entry>,
        cluster: Vec<cluster::Entry>,
        autoscaler: Vec<(Timestamp, autoscaler::Event)>,
        diary: Vec<(Timestamp, Note)>,
        end: End,
        names: BTreeMap<String, String>,
    ) -> Self {
        let pods = cluster.iter().filter_map(|entry| match &entry.what {
            cluster::Event::PodScheduled { pod, .. } => Some(pod),
            _ => None,
        });
        let is_daemon = |pod: &&cluster::Name| is_daemon(&scenario, &pod.name);
        let facts = Facts { daemons: pods.filter(is_daemon).cloned().collect(), ..Facts::default() };
        let (runs, lives) = (report::runs(&cluster, &facts), report::machines(&aws));
        Self { scenario, aws, cluster, autoscaler, diary, end, names, runs, lives }
    }

    /// How long it was, in virtual time.
    pub(crate) fn lasted(&self) -> SignedDuration {
        let began = self.diary.first().map_or(self.end.at, |(at, _)| *at);
        self.end.at.duration_since(began)
    }

    /// When everything was mended.
    pub(crate) fn mended(&self) -> Timestamp {
        let mended = |(at, note): &(Timestamp, Note)| matches!(note, Note::Mended).then_some(*at);
        self.diary.iter().find_map(mended).unwrap_or(self.end.at)
    }

    /// Whether an instance is in its group's warm pool at this place of AWS's journal.
    pub(crate) fn is_warm(&self, instance: &str, n: usize) -> bool {
        let state = self.aws[..n].iter().rev().find_map(|entry| match &entry.what {
            aws::Event::Entered { instance: id, state, .. } if id == instance => Some(state.is_warm()),
            aws::Event::InService { instance: id, .. } if id == instance => Some(false),
            _ => None,
        });
        state.unwrap_or_default()
    }

    /// The instance that had this Node's name at a moment: the last one that was launched before.
    pub(crate) fn instance_at(&self, node: &str, at: Timestamp) -> Option<&str> {
        let bears = self.names.iter().filter(|(_, name)| name.as_str() == node).map(|(id, _)| id);
        let launched = |id: &&String| self.lives.get(*id).and_then(|life| life.launched);
        bears.filter(|id| launched(id) <= Some(at)).max_by_key(launched).map(String::as_str)
    }

    /// Since when the Node of this name is gone at a moment; `None` if it is there.
    pub(crate) fn node_gone_since(&self, node: &str, at: Timestamp) -> Option<Timestamp> {
        let before = self.cluster.iter().rev().skip_while(|entry| entry.at > at);
        let told = |entry: &cluster::Entry| match &entry.what {
            cluster::Event::NodeRemoved { node: of } if of == node => Some(Some(entry.at)),
            cluster::Event::NodeRegistered { node: of } if of == node => Some(None),
            _ => None,
        };
        before.into_iter().find_map(told).flatten()
    }
}

/// Whether a pod belongs to a DaemonSet of a scenario.
pub(crate) fn is_daemon(scenario: &Scenario, pod: &str) -> bool {
    pod.starts_with("shipper-") || scenario.workload_of(pod).is_some_and(crate::scenario::Workload::is_daemon)
}

fn instance_of(event: &aws::Event) -> Option<&String> {
    match event {
        aws::Event::InstanceLaunched { instance, .. }
        | aws::Event::InService { instance, .. }
        | aws::Event::Powered { instance, .. }
        | aws::Event::TerminationStarted { instance, .. } => Some(instance),
        _ => None,
    }
}
