//! The whole cluster as one value: `handle(request, now)`, `step(now)`, `next_due()`.
//!
//! Invariants: nothing here waits, reads a clock or depends on anything but its arguments and its seed; `now` is the
//! moment being simulated and never goes back; every write goes through [`State::put`] or [`State::remove`], which tell
//! the watches, the journal and the controllers. Controllers are level-triggered: a [`Task`] says what to look at, not
//! what to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::containers::Container;
use super::faults::Faults;
use super::journal::{Event, Journal, node_changes};
use super::logs::NodeLogs;
use super::names::Name;
use super::nodes::Machine;
use super::object::{Object, text};
use super::policies::User;
use super::requests::Requests;
use super::resources::Resource;
use super::store::{Change, Store};
use super::timing::Timing;
use super::volumes::Attachment;
use super::watch::Watcher;
use crate::sim::span::Span;

/// How soon a controller looks after something it follows has changed. The real ones react within tens of
/// milliseconds; they differ here so that the order of what happens is the same in every run.
mod soon {
    use std::time::Duration;

    pub(super) const KUBELET: Duration = Duration::from_millis(5);
    pub(super) const BUDGET: Duration = Duration::from_millis(10);
    pub(super) const VOLUMES: Duration = Duration::from_millis(15);
    pub(super) const SCHEDULER: Duration = Duration::from_millis(20);
    pub(super) const TAINTS: Duration = Duration::from_millis(30);
    pub(super) const WORKLOADS: Duration = Duration::from_millis(50);
    pub(super) const COLLECTOR: Duration = Duration::from_millis(100);
}

/// Something to look at, at a moment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Task {
    Request(u64),
    Boot(String),
    Initialise(String),
    Joined(String),
    Revive(String),
    NodeStatus(String),
    Kubelet(Name),
    /// The containers of a pod: its name, for the order of things, and its uid.
    Container(Name, String),
    Budget(Name),
    Volume(String),
    Schedule,
    Bind(Name, String),
    Taints(String),
    ReplicaSet(Name),
    DaemonSet(Name),
    StatefulSet(Name),
    Job(Name),
    Dependents(String),
    Unheard(String),
    CloudGone(String),
    PodGc,
    Bookmarks,
    WatchTimeouts,
    Compact,
}

impl Task {
    /// Whether kube-controller-manager does it: neither a kubelet nor the scheduler nor the cloud's own controllers.
    fn is_of_the_controller_manager(&self) -> bool {
        match self {
            Self::Budget(_)
            | Self::Volume(_)
            | Self::Taints(_)
            | Self::ReplicaSet(_)
            | Self::DaemonSet(_)
            | Self::StatefulSet(_)
            | Self::Job(_)
            | Self::Dependents(_)
            | Self::Unheard(_)
            | Self::PodGc => true,
            Self::Request(_)
            | Self::Boot(_)
            | Self::Initialise(_)
            | Self::Joined(_)
            | Self::Revive(_)
            | Self::NodeStatus(_)
            | Self::Kubelet(_)
            | Self::Container(..)
            | Self::Schedule
            | Self::Bind(..)
            | Self::CloudGone(_)
            | Self::Bookmarks
            | Self::WatchTimeouts
            | Self::Compact => false,
        }
    }
}

/// The tasks to come; each is in it once, at its earliest moment.
#[derive(Default)]
pub(super) struct Queue {
    order: BTreeSet<(Timestamp, Task)>,
    moments: BTreeMap<Task, Timestamp>,
}

impl Queue {
    pub(super) fn add(&mut self, task: Task, at: Timestamp) {
        match self.moments.get(&task) {
            Some(earlier) if *earlier <= at => return,
            Some(later) => drop(self.order.remove(&(*later, task.clone()))),
            None => {}
        }
        self.moments.insert(task.clone(), at);
        self.order.insert((at, task));
    }

    fn next(&self) -> Option<Timestamp> {
        self.order.first().map(|(at, _)| *at)
    }

    fn pop(&mut self, now: Timestamp) -> Option<(Timestamp, Task)> {
        if self.next()? > now {
            return None;
        }
        let (at, task) = self.order.pop_first()?;
        self.moments.remove(&task);
        Some((at, task))
    }
}

pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) store: Store,
    pub(super) queue: Queue,
    pub(super) journal: Journal,
    pub(super) requests: Requests,
    /// Who asks what is answered now; none: an administrator.
    pub(super) asking: Option<User>,
    pub(super) watchers: Vec<Watcher>,
    /// Watches that nothing comes on any more, and that do not end.
    pub(super) silent: Vec<Watcher>,
    pub(super) faults: Faults,
    pub(super) timing: Timing,
    /// Draws what others can see: names, ids, addresses.
    pub(super) rng: fastrand::Rng,
    /// Draws how long things take.
    pub(super) dice: fastrand::Rng,
    pub(super) machines: BTreeMap<String, Machine>,
    pub(super) containers: BTreeMap<String, Container>,
    pub(super) attachments: BTreeMap<String, Attachment>,
    pub(super) logs: BTreeMap<String, NodeLogs>,
    /// The nodes that the scheduler has chosen for pods that are not bound yet, by uid.
    pub(super) chosen: BTreeMap<String, (Name, String)>,
    /// Whether the feature gate WatchList is on.
    pub(super) streaming_lists: bool,
    /// The version that is the first to be forgotten the next time.
    pub(super) remembered_from: u64,
    /// No controller works until then.
    pub(super) leaderless_until: Timestamp,
    /// Since when pods have been on a node whose taint they tolerate for a time, by uid.
    pub(super) tolerating: BTreeMap<String, Timestamp>,
}

impl State {
    pub(super) fn new(now: Timestamp, seed: u64) -> Self {
        let mut state = Self {
            now,
            store: Store::default(),
            queue: Queue::default(),
            journal: Journal::new(),
            requests: Requests::default(),
            asking: None,
            watchers: Vec::new(),
            silent: Vec::new(),
            faults: Faults::default(),
            timing: Timing::real(),
            rng: fastrand::Rng::with_seed(seed),
            dice: fastrand::Rng::with_seed(!seed),
            machines: BTreeMap::new(),
            containers: BTreeMap::new(),
            attachments: BTreeMap::new(),
            logs: BTreeMap::new(),
            chosen: BTreeMap::new(),
            streaming_lists: false,
            remembered_from: 0,
            leaderless_until: now,
            tolerating: BTreeMap::new(),
        };
        for namespace in ["default", "kube-node-lease", "kube-public", "kube-system"] {
            state.ensure_namespace(namespace);
        }
        state.compact_later();
        state
    }

    /// Does everything that is due by `now`, each thing at its own moment.
    pub(super) fn step(&mut self, now: Timestamp) {
        while let Some((at, task)) = self.queue.pop(now) {
            self.now = self.now.max(at);
            self.run(task);
        }
        self.now = self.now.max(now);
    }

    /// When there is something to do next.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.queue.next()
    }

    fn run(&mut self, task: Task) {
        if self.now < self.leaderless_until && task.is_of_the_controller_manager() {
            self.queue.add(task, self.leaderless_until);
            return;
        }
        match task {
            Task::Request(id) => self.receive(id),
            Task::Boot(node) => self.boot(&node),
            Task::Initialise(node) => self.initialise(&node),
            Task::Joined(node) => self.joined(&node),
            Task::Revive(node) => self.revive(&node),
            Task::NodeStatus(node) => self.report_node(&node),
            Task::Kubelet(pod) => self.sync_pod(&pod),
            Task::Container(_, uid) => self.advance(&uid),
            Task::Budget(budget) => self.sync_budget(&budget),
            Task::Volume(volume) => self.sync_volume(&volume),
            Task::Schedule => self.schedule(),
            Task::Bind(pod, uid) => self.bind(&pod, &uid),
            Task::Taints(node) => self.sync_taints(&node),
            Task::ReplicaSet(name) => self.sync_replica_set(&name),
            Task::DaemonSet(name) => self.sync_daemon_set(&name),
            Task::StatefulSet(name) => self.sync_stateful_set(&name),
            Task::Job(name) => self.sync_job(&name),
            Task::Dependents(uid) => self.collect_dependents(&uid),
            Task::Unheard(node) => self.mark_unheard(&node),
            Task::CloudGone(node) => self.remove_gone_node(&node),
            Task::PodGc => self.collect_pods(),
            Task::Bookmarks => self.send_bookmarks(),
            Task::WatchTimeouts => self.end_watches(),
            Task::Compact => self.compact(),
        }
    }

    pub(super) fn after(&mut self, delay: Duration, task: Task) {
        self.queue.add(task, self.now + delay);
    }

    pub(super) fn note(&mut self, what: Event) {
        self.journal.note(self.now, what);
    }

    /// Writes an object; gives what is stored then.
    pub(super) fn put(&mut self, resource: Resource, value: Value) -> Option<Arc<Object>> {
        let part = |key| text(&value, &["metadata", key]).unwrap_or_default();
        let name = Name::new(part("namespace"), part("name"));
        if let Some(change) = self.store.put(resource, value) {
            self.noticed(&change);
        }
        self.store.get(resource, &name).cloned()
    }

    /// Changes an object in place, if it exists.
    pub(super) fn edit(&mut self, resource: Resource, name: &Name, change: impl FnOnce(&mut Value)) {
        let Some(object) = self.store.get(resource, name) else { return };
        let mut value = object.value.clone();
        change(&mut value);
        self.put(resource, value);
    }

    /// Removes an object for good.
    pub(super) fn remove(&mut self, resource: Resource, name: &Name) {
        if let Some(change) = self.store.remove(resource, name) {
            self.noticed(&change);
        }
    }

    /// Metadata of something new.
    pub(super) fn new_metadata(&mut self, name: &Name) -> Value {
        let mut metadata = json!({
            "name": name.name,
            "uid": self.new_uid(),
            "creationTimestamp": super::object::stamp(self.now),
        });
        if !name.namespace.is_empty() {
            metadata["namespace"] = json!(name.namespace);
        }
        metadata
    }

    pub(super) fn new_uid(&mut self) -> String {
        let (a, b) = (self.rng.u64(..), self.rng.u64(..));
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            0x8000 | (b >> 50),
            b & 0xffff_ffff_ffff
        )
    }

    /// A random ending of a name, from the letters Kubernetes uses (no vowels: no words).
    pub(super) fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.rng.usize(..LETTERS.len())])).collect()
    }

    /// Makes a namespace unless it is there.
    pub(super) fn ensure_namespace(&mut self, name: &str) {
        let key = Name::cluster(name);
        if self.store.get(Resource::Namespaces, &key).is_some() {
            return;
        }
        let mut metadata = self.new_metadata(&key);
        metadata["labels"] = json!({ "kubernetes.io/metadata.name": name });
        let namespace = json!({
            "metadata": metadata,
            "spec": { "finalizers": ["kubernetes"] },
            "status": { "phase": "Active" },
        });
        self.put(Resource::Namespaces, namespace);
    }

    pub(super) fn namespace_terminating(&self, name: &str) -> bool {
        let namespace = self.store.get(Resource::Namespaces, &Name::cluster(name));
        namespace.is_some_and(|namespace| text(&namespace.value, &["status", "phase"]) == Some("Terminating"))
    }

    /// Tells everybody whom a write concerns.
    fn noticed(&mut self, change: &Arc<Change>) {
        self.deliver(change);
        self.journal.touch();
        let Some(object) = change.after.as_ref().or(change.before.as_ref()) else { return };
        let name = object.name.clone();
        if change.after.is_none() {
            self.after(soon::COLLECTOR, Task::Dependents(object.uid().to_owned()));
        }
        match change.resource {
            Resource::Pods => self.pod_changed(change, object),
            Resource::Nodes => self.node_changed(change, name.name),
            Resource::ReplicaSets => self.after(soon::WORKLOADS, Task::ReplicaSet(name)),
            Resource::DaemonSets => self.after(soon::WORKLOADS, Task::DaemonSet(name)),
            Resource::StatefulSets => self.after(soon::WORKLOADS, Task::StatefulSet(name)),
            Resource::Jobs => self.after(soon::WORKLOADS, Task::Job(name)),
            Resource::Budgets => self.after(soon::BUDGET, Task::Budget(name)),
            Resource::Events => self.event_written(object),
            _ => {}
        }
    }

    fn pod_changed(&mut self, change: &Change, pod: &Arc<Object>) {
        let facts = pod.pod();
        let name = &pod.name;
        if change.after.is_none() {
            self.object_removed(&facts.uid);
            self.tolerating.remove(&facts.uid);
        }
        if let Some(node) = &facts.node {
            self.after(soon::KUBELET, Task::Kubelet(name.clone()));
            if change.before.as_ref().is_none_or(|before| before.pod().node.is_none()) {
                self.after(soon::TAINTS, Task::Taints(node.clone()));
                if self.store.get(Resource::Nodes, &Name::cluster(node)).is_none() {
                    self.collect_pods_later();
                }
            }
        }
        if facts.node.is_none() || change.after.is_none() || facts.finished() {
            self.after(soon::SCHEDULER, Task::Schedule);
        }
        if let Some(volume) = pod.annotation(super::volumes::ANNOTATION) {
            self.after(soon::VOLUMES, Task::Volume(volume.to_owned()));
        }
        if let Some(owner) = &facts.owner {
            let owner_name = Name::new(&name.namespace, &owner.name);
            match owner.kind.as_str() {
                "ReplicaSet" => self.after(soon::WORKLOADS, Task::ReplicaSet(owner_name)),
                "DaemonSet" => self.after(soon::WORKLOADS, Task::DaemonSet(owner_name)),
                "StatefulSet" => self.after(soon::WORKLOADS, Task::StatefulSet(owner_name)),
                "Job" => self.after(soon::WORKLOADS, Task::Job(owner_name)),
                _ => {}
            }
        }
        let budgets = self.store.all(Resource::Budgets);
        let concerned: Vec<Name> = budgets
            .filter(|budget| budget.name.namespace == name.namespace)
            .filter(|budget| {
                let selector = super::disruption::selector(budget);
                [&change.before, &change.after].into_iter().flatten().any(|pod| selector.matches(pod))
            })
            .map(|budget| budget.name.clone())
            .collect();
        for budget in concerned {
            self.after(soon::BUDGET, Task::Budget(budget));
        }
    }

    fn node_changed(&mut self, change: &Change, node: String) {
        match (&change.before, &change.after) {
            (None, _) => self.note(Event::NodeRegistered { node: node.clone() }),
            (_, None) => self.note(Event::NodeRemoved { node: node.clone() }),
            (Some(before), Some(after)) => {
                let changes = node_changes(before, after);
                if !changes.is_empty() {
                    self.note(Event::NodeChanged { node: node.clone(), changes });
                }
            }
        }
        self.after(soon::SCHEDULER, Task::Schedule);
        self.after(soon::TAINTS, Task::Taints(node));
        let ready = |node: &Option<Arc<Object>>| node.as_ref().is_some_and(|node| node.condition("Ready"));
        if ready(&change.before) != ready(&change.after) {
            // Whether the others drive anybody out depends on whether any node is ready.
            let nodes = self.store.all(Resource::Nodes).filter(|node| !node.condition("Ready"));
            let nodes: Vec<String> = nodes.map(|node| node.name.name.clone()).collect();
            for node in nodes {
                self.after(soon::TAINTS, Task::Taints(node));
            }
        }
        let daemon_sets: Vec<Name> =
            self.store.all(Resource::DaemonSets).map(|daemon_set| daemon_set.name.clone()).collect();
        for daemon_set in daemon_sets {
            self.after(soon::WORKLOADS, Task::DaemonSet(daemon_set));
        }
        if change.after.is_none() {
            self.collect_pods_later();
        }
    }

    /// Forgets the versions before the last time this was done; those since then the next time.
    fn compact(&mut self) {
        let forgotten = std::mem::replace(&mut self.remembered_from, self.store.revision);
        self.store.compact_to(forgotten);
        self.compact_later();
    }

    /// Has old versions forgotten, if they are.
    pub(super) fn compact_later(&mut self) {
        if self.timing.history != Span::NONE {
            let after = self.timing.history.draw(&mut self.dice);
            self.after(after, Task::Compact);
        }
    }

    /// Everybody looks at everything: the objects are other ones now.
    pub(super) fn look_at_everything(&mut self) {
        let now = self.now;
        let of =
            |resource| -> Vec<Name> { self.store.all(resource).map(|object| object.name.clone()).collect() };
        let mut tasks: Vec<Task> = vec![Task::Schedule, Task::PodGc];
        tasks.extend(of(Resource::Budgets).into_iter().map(Task::Budget));
        tasks.extend(of(Resource::ReplicaSets).into_iter().map(Task::ReplicaSet));
        tasks.extend(of(Resource::DaemonSets).into_iter().map(Task::DaemonSet));
        tasks.extend(of(Resource::StatefulSets).into_iter().map(Task::StatefulSet));
        tasks.extend(of(Resource::Jobs).into_iter().map(Task::Job));
        tasks.extend(of(Resource::Nodes).into_iter().map(|node| Task::Taints(node.name)));
        tasks.extend(self.attachments.keys().cloned().map(Task::Volume));
        for task in tasks {
            self.queue.add(task, now);
        }
        let nodes: Vec<String> = self.machines.keys().cloned().collect();
        for node in nodes.iter().filter(|node| self.kubelet_hears(node)).cloned().collect::<Vec<_>>() {
            self.hear_anew(&node);
        }
    }

    fn collect_pods_later(&mut self) {
        let after = self.timing.pod_collection.draw(&mut self.dice);
        self.after(after, Task::PodGc);
    }

    fn event_written(&mut self, event: &Object) {
        let part = |path: &[&str]| text(&event.value, path).unwrap_or_default().to_owned();
        let regarding = format!("{}/{}", part(&["regarding", "kind"]), part(&["regarding", "name"]));
        let (reason, note) = (part(&["reason"]), part(&["note"]));
        self.note(Event::KubernetesEvent { regarding, reason, note });
    }
}
