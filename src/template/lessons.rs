//! What is learned of the groups' nodes, shared: discovery adds to it at each look, the keeper carries it over a restart.
//!
//! What was learned since the start is newer than what is loaded, and stays.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::watch;

use super::learned::Learned;
use crate::aws::{NodeGroup, Revision};
use crate::cluster::Nodes;
use crate::groups::{Group, Lifecycle};

/// All that is learned, by group.
#[derive(Debug)]
pub struct Lessons {
    nodes: Arc<Nodes>,
    by_group: Mutex<BTreeMap<String, Lesson>>,
    version: watch::Sender<u64>,
    loaded: watch::Sender<bool>,
}

#[derive(Debug)]
struct Lesson {
    learned: Arc<Learned>,
    /// Whether the group has nodes that teach the same again.
    has_nodes: bool,
}

impl Lessons {
    /// Nothing yet; these nodes teach.
    pub fn new(nodes: Arc<Nodes>) -> Self {
        let by_group = Mutex::default();
        Self { nodes, by_group, version: watch::Sender::new(0), loaded: watch::Sender::new(false) }
    }

    /// Looks at the nodes of a group that launches `revisions`. Its instances were launched from `launched_from`; one
    /// that is not in there is taken for one of today's. `given` is what EKS says of its node group.
    pub fn learn(
        &self,
        group: &Group,
        launched_from: &BTreeMap<String, Revision>,
        revisions: &BTreeSet<Revision>,
        given: Option<&NodeGroup>,
        now: Timestamp,
    ) -> Option<Arc<Learned>> {
        let is_current = |id: &str| launched_from.get(id).is_none_or(|from| revisions.contains(from));
        let nodes: Vec<_> = group
            .instances
            .iter()
            .filter(|instance| instance.lifecycle == Lifecycle::InService && is_current(&instance.id))
            .filter_map(|instance| self.nodes.of_instance(&instance.id))
            .collect();
        let mut by_group = self.lock();
        let known = by_group.get(&group.name).map(|lesson| Arc::clone(&lesson.learned));
        let Some(learned) = Learned::from(known.as_deref(), revisions, given, &nodes, now) else {
            if by_group.remove(&group.name).is_some() {
                tracing::info!(
                    group = group.name,
                    "what was learned of its nodes is of another launch template: forgotten"
                );
                self.touch();
            }
            return None;
        };
        let has_nodes = !nodes.is_empty();
        if let Some(known) = known.filter(|known| **known == learned) {
            by_group.entry(group.name.clone()).and_modify(|lesson| lesson.has_nodes = has_nodes);
            return Some(known);
        }
        let learned = Arc::new(learned);
        tracing::info!(
            group = group.name,
            instance_type = learned.last,
            labels = learned.labels.len(),
            taints = ?learned.taints.iter().map(|taint| taint.key.as_str()).collect::<Vec<_>>(),
            "its nodes have shown what a new one will be like"
        );
        by_group.insert(group.name.clone(), Lesson { learned: Arc::clone(&learned), has_nodes });
        self.touch();
        Some(learned)
    }

    /// Forgets all groups but these.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let mut by_group = self.lock();
        let before = by_group.len();
        by_group.retain(|group, _| is_there(group));
        if by_group.len() < before {
            self.touch();
        }
    }

    /// Takes in what an earlier run had learned.
    pub fn load(&self, kept: BTreeMap<String, Learned>) {
        let mut by_group = self.lock();
        for (group, learned) in kept {
            by_group.entry(group).or_insert(Lesson { learned: Arc::new(learned), has_nodes: false });
        }
        self.loaded.send_replace(true);
    }

    /// Completes when what an earlier run had learned is in.
    pub async fn loaded(&self) {
        // The sender lives as long as this, so the wait can only end well.
        let _ = self.loaded.subscribe().wait_for(|loaded| *loaded).await;
    }

    /// All that is learned; groups without nodes, which nothing would teach again, come first.
    pub fn all(&self) -> Vec<(String, Arc<Learned>)> {
        let by_group = self.lock();
        let with = |has_nodes: bool| by_group.iter().filter(move |(_, lesson)| lesson.has_nodes == has_nodes);
        with(false)
            .chain(with(true))
            .map(|(group, lesson)| (group.clone(), Arc::clone(&lesson.learned)))
            .collect()
    }

    /// Changes whenever something was learned or forgotten.
    pub fn versions(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    fn touch(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Lesson>> {
        self.by_group.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
