//! The DaemonSet controller: one pod on every eligible node, and rolling updates.
//!
//! A pod is replaced when it is gone, or has ended and is being deleted: a node can have two objects, one of which runs.
//! Pods tolerate the cordon and the conditions of a node, but not cluster-autoscaler's taints: a rolling update deletes the
//! pod of a tainted node, and no new one comes.
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/daemon/daemon_controller.go>,
//! <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/daemon/update.go>

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::fit::{pinned, selects, tolerates};
use super::names::Name;
use super::object::{Object, integer, list, text};
use super::resources::Resource;
use super::state::State;

/// Label with the hash of the pod's template.
const REVISION: &str = "controller-revision-hash";

/// The pods of a set by node.
type ByNode = BTreeMap<String, Vec<Arc<Object>>>;

/// What every DaemonSet pod tolerates.
/// <https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/#taints-and-tolerations>
pub(super) fn daemon_tolerations() -> [Value; 6] {
    let tolerates = |key: &str, effect: &str| json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect });
    [
        tolerates("not-ready", "NoExecute"),
        tolerates("unreachable", "NoExecute"),
        tolerates("disk-pressure", "NoSchedule"),
        tolerates("memory-pressure", "NoSchedule"),
        tolerates("pid-pressure", "NoSchedule"),
        tolerates("unschedulable", "NoSchedule"),
    ]
}

impl State {
    /// Brings a DaemonSet to one pod of the current template on every eligible node.
    pub(super) fn sync_daemon_set(&mut self, name: &Name) {
        let Some(set) = self.store.get(Resource::DaemonSets, name).cloned() else { return };
        if set.deleting() {
            return;
        }
        let by_node = self.daemons_by_node(&set);
        let revision = revision(&set);
        let spec = set.value["spec"]["template"]["spec"].clone();
        let extra = daemon_tolerations();
        let nodes: Vec<Arc<Object>> = self.store.all(Resource::Nodes).cloned().collect();
        let (mut wanted, mut current, mut ready, mut settled) = (0, 0, 0, true);
        for node in nodes {
            let none = Vec::new();
            let pods = by_node.get(&node.name.name).unwrap_or(&none);
            let may_stay = selects(&spec, &node) && tolerates(&spec, &extra, &node, &["NoExecute"]);
            let may_come = may_stay && tolerates(&spec, &extra, &node, &["NoSchedule", "NoExecute"]);
            wanted += i64::from(may_come);
            current += i64::from(may_come && !pods.is_empty());
            ready += i64::from(may_come && pods.iter().any(|pod| pod.pod().ready && !pod.deleting()));
            if may_come && pods.is_empty() {
                self.new_daemon(&set, &node.name.name, &revision);
                settled = false;
            }
            for pod in pods.iter().filter(|pod| !pod.deleting() && (!may_stay || pod.pod().finished())) {
                self.delete_by_controller(pod);
                settled = false;
            }
        }
        if settled {
            self.roll_on(&set, &by_node, &revision);
        }
        self.edit(Resource::DaemonSets, name, |value| {
            value["status"] = json!({
                "desiredNumberScheduled": wanted,
                "currentNumberScheduled": current,
                "numberMisscheduled": 0,
                "numberReady": ready,
                "numberAvailable": ready,
                "observedGeneration": set.generation(),
            });
        });
    }

    /// The pods of a set by node, without those that have ended and are being deleted.
    fn daemons_by_node(&self, set: &Object) -> ByNode {
        let mut by_node = ByNode::new();
        for pod in self.owned_pods(set) {
            if pod.deleting() && pod.pod().finished() {
                continue;
            }
            let node = pod.pod().node.clone().or_else(|| pinned(&pod.value["spec"]).map(str::to_owned));
            by_node.entry(node.unwrap_or_default()).or_default().push(pod);
        }
        by_node
    }

    /// Deletes pods of an older template: unready ones at once, ready ones up to `maxUnavailable`, whether or not the node
    /// would take a new one.
    fn roll_on(&mut self, set: &Object, by_node: &ByNode, revision: &str) {
        if text(&set.value, &["spec", "updateStrategy", "type"]) == Some("OnDelete") {
            return;
        }
        let path = ["spec", "updateStrategy", "rollingUpdate", "maxUnavailable"];
        let most = integer(&set.value, &path).unwrap_or(1);
        let (mut missing, mut candidates) = (0, Vec::new());
        for pods in by_node.values() {
            match pods.iter().filter(|pod| !pod.deleting()).collect::<Vec<_>>().as_slice() {
                [pod] if pod.label(REVISION) == Some(revision) => missing += i64::from(!pod.pod().ready),
                [old] if old.pod().ready => candidates.push(Arc::clone(old)),
                [old] if !old.pod().finished() => self.delete_by_controller(old),
                _ => missing += 1,
            }
        }
        for old in candidates.into_iter().take((most - missing).max(0) as usize) {
            self.delete_by_controller(&old);
        }
    }

    fn new_daemon(&mut self, set: &Object, node: &str, revision: &str) {
        self.new_pod(set, |pod| {
            pod["metadata"]["labels"][REVISION] = json!(revision);
            let spec = &mut pod["spec"];
            let mut tolerations = list(spec, &["tolerations"]).to_vec();
            tolerations.extend(daemon_tolerations());
            spec["tolerations"] = Value::Array(tolerations);
            let field = json!({ "key": "metadata.name", "operator": "In", "values": [node] });
            let terms = json!({ "nodeSelectorTerms": [{ "matchFields": [field] }] });
            spec["affinity"]["nodeAffinity"] =
                json!({ "requiredDuringSchedulingIgnoredDuringExecution": terms });
        });
    }
}

/// Hash of the template (FNV-1a of its JSON).
fn revision(set: &Object) -> String {
    let template = set.value["spec"]["template"].to_string();
    let hash = template
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    format!("{hash:08x}")
}
