//! Which controllers react to a write.

use std::sync::Arc;

use super::journal::{Event, node_changes};
use super::names::Name;
use super::object::{Object, text};
use super::queue::Task;
use super::resources::Resource;
use super::state::State;
use super::store::Change;

/// How soon a controller reacts to a change. Real ones take tens of milliseconds; these differ so that the order is the same
/// in every run.
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

impl State {
    /// Informs everybody concerned by a write: watches, journal, controllers.
    pub(super) fn noticed(&mut self, change: &Arc<Change>) {
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
        let ready = |node: &Option<Arc<Object>>| {
            usize::from(node.as_ref().is_some_and(|node| node.condition("Ready")))
        };
        let are_ready = self.store.ready_nodes;
        let were_ready = are_ready + ready(&change.before) - ready(&change.after);
        if (were_ready > 0) != (are_ready > 0) {
            // Whether taints of other nodes evict pods depends on whether any node is ready.
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

    /// Schedules every controller for every object, after a restore of etcd.
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
