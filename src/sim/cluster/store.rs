//! The simulated etcd: the objects, a revision that counts every write, and the history of writes.
//!
//! Invariants: the revision only grows; a write that changes nothing does not count; history holds every write after
//! `compacted`, so that the state at any revision since can be returned; a pod is indexed under its node (or none) and each of its labels, and what
//! the garbage collector looks after under its owners, for as long as it exists.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::names::Name;
use super::object::{Object, list, map, text};
use super::resources::Resource;
use super::selectors::Selector;

/// Writes kept, of the last minutes that a real API server keeps. Its watch caches grow to 100 Ki of each resource; what is more
/// than this bounds memory.
const HISTORY: usize = 65_536;

/// One write.
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) resource: Resource,
    pub(super) before: Option<Arc<Object>>,
    pub(super) after: Option<Arc<Object>>,
    tombstone: OnceLock<Arc<Object>>,
}

impl Change {
    /// The object as a DELETED event shows it: its last state, with the revision of the write that ended it (or removed it
    /// from a selection).
    pub(super) fn tombstone(&self) -> Option<&Arc<Object>> {
        let before = self.before.as_ref()?;
        Some(self.tombstone.get_or_init(|| Arc::new(before.at(self.revision))))
    }
}

#[derive(Default)]
pub(super) struct Store {
    pub(super) revision: u64,
    /// The history up to this revision is forgotten.
    pub(super) compacted: u64,
    objects: BTreeMap<Resource, BTreeMap<Name, Arc<Object>>>,
    /// Pods by the node they are bound to; "": to none.
    by_node: BTreeMap<String, BTreeSet<Name>>,
    /// Pods by key and value of a label.
    labelled: BTreeMap<(String, String), BTreeSet<Name>>,
    /// By the UID of an owner.
    owned: BTreeMap<String, BTreeSet<(Resource, Name)>>,
    /// How many Nodes are Ready.
    pub(super) ready_nodes: usize,
    history: VecDeque<Arc<Change>>,
}

impl Store {
    pub(super) fn get(&self, resource: Resource, name: &Name) -> Option<&Arc<Object>> {
        self.objects.get(&resource)?.get(name)
    }

    /// All objects of a resource, by namespace and name.
    pub(super) fn all(&self, resource: Resource) -> impl Iterator<Item = &Arc<Object>> {
        self.objects.get(&resource).into_iter().flat_map(BTreeMap::values)
    }

    /// How many objects of a resource there are.
    pub(super) fn count(&self, resource: Resource) -> usize {
        self.objects.get(&resource).map_or(0, BTreeMap::len)
    }

    /// The pods bound to a node.
    pub(super) fn pods_on(&self, node: &str) -> impl Iterator<Item = &Arc<Object>> {
        let names = self.by_node.get(node).into_iter().flatten();
        names.filter_map(|name| self.get(Resource::Pods, name))
    }

    /// The pods that are bound to no node.
    pub(super) fn unbound_pods(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.pods_on("")
    }

    /// The pods of a namespace that a selector chooses, by name.
    pub(super) fn pods_of(&self, namespace: &str, selector: &Selector) -> impl Iterator<Item = &Arc<Object>> {
        let label = selector.label().map(|(key, value)| (key.to_owned(), value.to_owned()));
        let names = label.map(|label| self.labelled.get(&label));
        let all = names.is_none().then(|| self.all(Resource::Pods));
        let names = names.flatten().into_iter().flatten();
        let pods = names.filter_map(|name| self.get(Resource::Pods, name)).chain(all.into_iter().flatten());
        pods.filter(move |pod| pod.name.namespace == namespace && selector.matches(pod))
    }

    /// What the object with this UID owns.
    pub(super) fn owned_by(&self, uid: &str) -> impl Iterator<Item = &(Resource, Name)> {
        self.owned.get(uid).into_iter().flatten()
    }

    /// The objects of a resource at `revision` whose names come after `after`, in order; `None` if that is forgotten.
    pub(super) fn as_of(
        &self,
        resource: Resource,
        revision: u64,
        after: Option<&Name>,
    ) -> Option<impl Iterator<Item = &Arc<Object>>> {
        if revision < self.compacted {
            return None;
        }
        // What has been written since, as it was.
        let mut then: BTreeMap<&Name, Option<&Arc<Object>>> = BTreeMap::new();
        let undone = self.history.iter().rev().take_while(|change| change.revision > revision);
        for change in undone.filter(|change| change.resource == resource) {
            if let Some(object) = change.before.as_ref().or(change.after.as_ref()) {
                then.insert(&object.name, change.before.as_ref());
            }
        }
        let names = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let changed: Vec<_> = then.range::<Name, _>(names).filter_map(|(_, object)| *object).collect();
        let mut changed = changed.into_iter().peekable();
        let objects = self.objects.get(&resource).into_iter().flat_map(move |all| all.range(names));
        let unchanged = objects.filter(move |(name, _)| !then.contains_key(name)).map(|(_, object)| object);
        let mut unchanged = unchanged.peekable();
        Some(std::iter::from_fn(move || match (changed.peek(), unchanged.peek()) {
            (Some(a), Some(b)) if b.name < a.name => unchanged.next(),
            (Some(_), _) => changed.next(),
            (None, _) => unchanged.next(),
        }))
    }

    /// The writes of a resource after `revision`; `None` if they are forgotten.
    pub(super) fn since(
        &self,
        resource: Resource,
        revision: u64,
    ) -> Option<impl Iterator<Item = &Arc<Change>>> {
        if revision < self.compacted {
            return None;
        }
        let from = self.history.partition_point(|change| change.revision <= revision);
        Some(self.history.range(from..).filter(move |change| change.resource == resource))
    }

    /// Writes an object (the name is in its metadata). `None` if it changes nothing.
    pub(super) fn put(&mut self, resource: Resource, mut value: Value) -> Option<Arc<Change>> {
        let part = |key| text(&value, &["metadata", key]).unwrap_or_default();
        let name = Name::new(part("namespace"), part("name"));
        let before = self.get(resource, &name).cloned();
        if let Some(before) = &before {
            value["metadata"]["resourceVersion"] = before.value["metadata"]["resourceVersion"].clone();
            if before.value == value {
                return None;
            }
        }
        let after = Arc::new(Object::new(resource, self.revision + 1, value));
        self.objects.entry(resource).or_default().insert(name, Arc::clone(&after));
        Some(self.commit(resource, before, Some(after)))
    }

    /// Removes an object.
    pub(super) fn remove(&mut self, resource: Resource, name: &Name) -> Option<Arc<Change>> {
        let before = self.objects.get_mut(&resource)?.remove(name)?;
        Some(self.commit(resource, Some(before), None))
    }

    /// Forgets the history up to a revision.
    pub(super) fn compact_to(&mut self, revision: u64) {
        self.compacted = self.compacted.max(revision);
        while self.history.front().is_some_and(|oldest| oldest.revision <= revision) {
            self.history.pop_front();
        }
    }

    /// The same objects without history.
    pub(super) fn backup(&self) -> Self {
        Self {
            revision: self.revision,
            compacted: self.revision,
            objects: self.objects.clone(),
            by_node: self.by_node.clone(),
            labelled: self.labelled.clone(),
            owned: self.owned.clone(),
            ready_nodes: self.ready_nodes,
            history: VecDeque::new(),
        }
    }

    /// Forgets all history. The revision grows too, so that even a client that has seen everything is too old.
    pub(super) fn compact(&mut self) {
        self.revision += 1;
        self.compacted = self.revision;
        self.history.clear();
    }

    fn commit(
        &mut self,
        resource: Resource,
        before: Option<Arc<Object>>,
        after: Option<Arc<Object>>,
    ) -> Arc<Change> {
        self.revision += 1;
        let is_ready = |node: &Option<Arc<Object>>| {
            usize::from(node.as_ref().is_some_and(|node| node.condition("Ready")))
        };
        if matches!(resource, Resource::ReplicaSets | Resource::Pods) {
            self.index_owners(resource, before.as_deref(), after.as_deref());
        }
        match resource {
            Resource::Pods => {
                self.index_node(before.as_deref(), after.as_deref());
                self.index_labels(before.as_deref(), after.as_deref());
            }
            Resource::Nodes => self.ready_nodes = self.ready_nodes + is_ready(&after) - is_ready(&before),
            _ => {}
        }
        let tombstone = OnceLock::new();
        let change = Arc::new(Change { revision: self.revision, resource, before, after, tombstone });
        self.history.push_back(Arc::clone(&change));
        if self.history.len() > HISTORY
            && let Some(oldest) = self.history.pop_front()
        {
            self.compacted = oldest.revision;
        }
        change
    }

    fn index_owners(&mut self, resource: Resource, before: Option<&Object>, after: Option<&Object>) {
        if owners(before).eq(owners(after)) {
            return;
        }
        for (uid, object) in owners(before).zip(before.into_iter().cycle()) {
            if let Some(owned) = self.owned.get_mut(uid) {
                owned.remove(&(resource, object.name.clone()));
                if owned.is_empty() {
                    self.owned.remove(uid);
                }
            }
        }
        for (uid, object) in owners(after).zip(after.into_iter().cycle()) {
            self.owned.entry(uid.to_owned()).or_default().insert((resource, object.name.clone()));
        }
    }

    fn index_labels(&mut self, before: Option<&Object>, after: Option<&Object>) {
        let all = [before, after].map(|pod| pod.map(|pod| &pod.value["metadata"]["labels"]));
        if all[0] == all[1] {
            return;
        }
        for (label, pod) in labels(before).zip(before.into_iter().cycle()) {
            if let Some(names) = self.labelled.get_mut(&label) {
                names.remove(&pod.name);
                if names.is_empty() {
                    self.labelled.remove(&label);
                }
            }
        }
        for (label, pod) in labels(after).zip(after.into_iter().cycle()) {
            self.labelled.entry(label).or_default().insert(pod.name.clone());
        }
    }

    fn index_node(&mut self, before: Option<&Object>, after: Option<&Object>) {
        let node = |pod: Option<&Object>| pod.map(|pod| pod.pod().node.clone().unwrap_or_default());
        let (was, is) = (node(before), node(after));
        if was == is {
            return;
        }
        if let (Some(was), Some(pod)) = (was, before)
            && let Some(names) = self.by_node.get_mut(&was)
        {
            names.remove(&pod.name);
            if names.is_empty() {
                self.by_node.remove(&was);
            }
        }
        if let (Some(is), Some(pod)) = (is, after) {
            self.by_node.entry(is).or_default().insert(pod.name.clone());
        }
    }
}

/// An object's labels.
fn labels(object: Option<&Object>) -> impl Iterator<Item = (String, String)> {
    let labels = object.and_then(|object| map(&object.value, &["metadata", "labels"]));
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    labels.into_iter().flatten().map(move |(key, value)| (key.clone(), text(value)))
}

/// The UIDs of an object's owners.
fn owners(object: Option<&Object>) -> impl Iterator<Item = &str> {
    let owners = object.map_or(&[][..], |object| list(&object.value, &["metadata", "ownerReferences"]));
    owners.iter().filter_map(|owner| text(owner, &["uid"]))
}
