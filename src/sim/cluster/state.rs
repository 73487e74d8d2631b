//! The whole cluster as one value: `handle(request, now)`, `step(now)`, `next_due()`.
//!
//! Invariants: nothing here waits, reads a clock or depends on anything but its arguments and its seed; `now` is the
//! simulated moment and never goes back; every write goes through [`State::put`] or [`State::remove`], which inform watches,
//! journal and controllers (`reactions`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::containers::Container;
use super::faults::Faults;
use super::journal::{Event, Journal};
use super::logs::NodeLogs;
use super::names::Name;
use super::nodes::Machine;
use super::object::{Object, text};
use super::policies::User;
use super::queue::{Queue, Task};
use super::requests::Requests;
use super::resources::Resource;
use super::store::Store;
use super::timing::Timing;
use super::volumes::Attachment;
use super::watch::Watcher;
use crate::sim::span::Span;

pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) store: Store,
    pub(super) queue: Queue,
    pub(super) journal: Journal,
    pub(super) requests: Requests,
    /// The user whose request is being answered; `None`: an administrator.
    pub(super) asking: Option<User>,
    pub(super) watchers: Vec<Watcher>,
    /// Watches that get nothing more and do not end.
    pub(super) silent: Vec<Watcher>,
    /// Resources whose watch cache has fallen behind, and the last version that it has.
    pub(super) stalled: BTreeMap<Resource, u64>,
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
    /// Nodes that the scheduler chose for pods not bound yet, by pod UID.
    pub(super) chosen: BTreeMap<String, (Name, String)>,
    /// Versions before this are forgotten at the next compaction.
    pub(super) remembered_from: u64,
    /// No controller works before this.
    pub(super) leaderless_until: Timestamp,
    /// Since when each pod has been on a node whose taint it tolerates for a limited time, by UID.
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
            stalled: BTreeMap::new(),
            faults: Faults::default(),
            timing: Timing::real(),
            rng: fastrand::Rng::with_seed(seed),
            dice: fastrand::Rng::with_seed(!seed),
            machines: BTreeMap::new(),
            containers: BTreeMap::new(),
            attachments: BTreeMap::new(),
            logs: BTreeMap::new(),
            chosen: BTreeMap::new(),
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

    /// Performs everything due by `now`, each at its own moment.
    pub(super) fn step(&mut self, now: Timestamp) {
        while let Some((at, task)) = self.queue.pop(now) {
            self.now = self.now.max(at);
            self.run(task);
        }
        self.now = self.now.max(now);
    }

    /// When something is due next.
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
            Task::Cloud(node) => self.sync_with_the_cloud(&node),
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

    /// Writes an object and returns what is stored.
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

    /// The metadata of a new object.
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

    /// A random suffix, of Kubernetes' letters (no vowels, so no words).
    pub(super) fn suffix(&mut self) -> String {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        (0..5).map(|_| char::from(LETTERS[self.rng.usize(..LETTERS.len())])).collect()
    }

    /// Creates a namespace if it is missing.
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

    /// Forgets the versions before the last compaction.
    fn compact(&mut self) {
        let forgotten = std::mem::replace(&mut self.remembered_from, self.store.revision);
        self.store.compact_to(forgotten);
        self.compact_later();
    }

    /// Schedules the next compaction, if compactions are on.
    pub(super) fn compact_later(&mut self) {
        if self.timing.history != Span::NONE {
            let after = self.timing.history.draw(&mut self.dice);
            self.after(after, Task::Compact);
        }
    }
}
