//! The kubelets: what they learn from the API server, and what they report.
//!
//! A dead or cut-off kubelet does neither; what runs on its machine is in [`super::containers`].

use std::sync::Arc;

use serde_json::{Value, json};

use super::containers::{Container, STARTS_AFTER, Stage};
use super::deletion::DeleteOptions;
use super::journal::By;
use super::names::Name;
use super::object::{Object, list, set_condition, stamp, text};
use super::resources::Resource;
use super::state::State;

impl State {
    /// A kubelet learns of a pod's change.
    pub(super) fn sync_pod(&mut self, name: &Name) {
        let Some(pod) = self.store.get(Resource::Pods, name).cloned() else { return };
        let facts = pod.pod();
        let Some(node) = facts.node.clone().filter(|node| self.kubelet_hears(node)) else { return };
        if let Some(container) = self.containers.get_mut(&facts.uid) {
            container.pod = Arc::clone(&pod);
        } else if facts.deleting {
            // Also if it had finished: its containers were lost before it was removed (`filterTerminalPodsToDelete`).
            self.confirm_end(&pod);
            return;
        } else if facts.finished() {
            return;
        } else {
            let at = self.now + pod.seconds("sim/start-seconds").unwrap_or(STARTS_AFTER);
            let (pod, stage) = (Arc::clone(&pod), Stage::Starting { at });
            self.containers
                .insert(facts.uid.clone(), Container { pod, node, removed: false, crashes: 0, stage });
        }
        self.advance(&facts.uid);
    }

    /// Reports that a pod runs, unless that is known.
    pub(super) fn report_running(&mut self, pod: &Object) {
        let Some(known) = self.known_to_server(pod) else { return };
        let (now, ready) = (self.now, pod.annotation("sim/ready") != Some("false"));
        let starts = known.pod().phase != super::object::Phase::Running;
        let is_down = || statuses(&known.value).any(|status| status["state"]["running"].is_null());
        if !starts && known.pod().ready == ready && !is_down() {
            return;
        }
        let address =
            starts.then(|| format!("10.{}.{}.{}", self.rng.u8(..), self.rng.u8(..), self.rng.u8(1..)));
        self.node_changed_by(pod);
        self.edit(Resource::Pods, &pod.name, |value| {
            if let Some(address) = address {
                set_running(value, now, ready, &address);
            } else {
                set_statuses(value, ready, true, &json!({ "running": { "startedAt": stamp(now) } }));
            }
            set_ready_conditions(value, now, ready);
        });
    }

    /// Reports that a pod's containers have crashed and will be started again, unless that is known.
    pub(super) fn report_crashed(&mut self, pod: &Object) {
        let Some(known) = self.known_to_server(pod) else { return };
        if statuses(&known.value).all(|status| status["state"]["running"].is_null()) {
            return;
        }
        let now = self.now;
        self.edit(Resource::Pods, &pod.name, |value| {
            set_ready_conditions(value, now, false);
            set_statuses(value, false, false, &json!({ "waiting": { "reason": "CrashLoopBackOff" } }));
            for status in statuses_mut(value) {
                status["restartCount"] = json!(status["restartCount"].as_u64().unwrap_or(0) + 1);
            }
        });
    }

    /// Reports that a pod's containers have ended.
    pub(super) fn report_ended(&mut self, pod: &Object, by_itself: bool) {
        if self.known_to_server(pod).is_none() {
            return;
        }
        self.node_changed_by(pod);
        let now = self.now;
        let (phase, reason, code) =
            if by_itself { ("Succeeded", "Completed", 0) } else { ("Failed", "Error", 137) };
        self.edit(Resource::Pods, &pod.name, |value| {
            value["status"]["phase"] = json!(phase);
            set_ready_conditions(value, now, false);
            let terminated =
                json!({ "terminated": { "exitCode": code, "reason": reason, "finishedAt": stamp(now) } });
            set_statuses(value, false, false, &terminated);
        });
    }

    /// Nothing of a pod is left on the machine: its kubelet has the object removed.
    pub(super) fn confirm_end(&mut self, pod: &Object) {
        if self.known_to_server(pod).is_none() {
            return;
        }
        let options = DeleteOptions { grace: Some(0), ..DeleteOptions::default() };
        // Cannot fail: the object exists and no precondition is set.
        let _ = self.delete(Resource::Pods, &pod.name, &options, By::Controller);
    }

    /// Schedules the kubelet's report of a change on its node.
    fn node_changed_by(&mut self, pod: &Object) {
        if let Some(node) = &pod.pod().node {
            self.report_node_later(node, self.timing.status_change);
        }
    }

    /// The pod in the API server, if it is the same one and its kubelet can report.
    fn known_to_server(&self, pod: &Object) -> Option<Arc<Object>> {
        let known = self.store.get(Resource::Pods, &pod.name).filter(|known| known.uid() == pod.uid())?;
        known.pod().node.as_deref().filter(|node| self.kubelet_hears(node))?;
        Some(Arc::clone(known))
    }
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    list(pod, &["status", "containerStatuses"]).iter()
}

fn statuses_mut(pod: &mut Value) -> impl Iterator<Item = &mut Value> {
    pod["status"]["containerStatuses"].as_array_mut().into_iter().flatten()
}

fn set_statuses(pod: &mut Value, ready: bool, started: bool, state: &Value) {
    for status in statuses_mut(pod) {
        status["ready"] = json!(ready);
        status["started"] = json!(started);
        status["state"] = state.clone();
    }
}

fn set_running(value: &mut Value, now: jiff::Timestamp, ready: bool, address: &str) {
    let started = stamp(now);
    let names = list(value, &["spec", "containers"]).iter();
    let names: Vec<String> =
        names.filter_map(|container| text(container, &["name"])).map(str::to_owned).collect();
    let statuses: Value = names
        .into_iter()
        .map(|name| json!({ "name": name, "restartCount": 0, "image": "sim", "imageID": "sim" }))
        .collect();
    let status = &mut value["status"];
    status["phase"] = json!("Running");
    status["startTime"] = started.clone();
    status["podIP"] = json!(address);
    status["containerStatuses"] = statuses;
    set_statuses(value, ready, true, &json!({ "running": { "startedAt": started } }));
    set_condition(value, now, json!({ "type": "PodScheduled", "status": "True" }));
    set_condition(value, now, json!({ "type": "Initialized", "status": "True" }));
}

pub(super) fn set_ready_conditions(value: &mut Value, now: jiff::Timestamp, ready: bool) {
    let status = if ready { "True" } else { "False" };
    for kind in ["ContainersReady", "Ready"] {
        set_condition(value, now, json!({ "type": kind, "status": status }));
    }
}
