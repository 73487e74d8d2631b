//! What a test does to a cluster behind its API: machine failures, and faults.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::Cluster;
use super::faults::{Fault, Verdict};
use super::inspect::{Kind, resource};
use super::journal::Event;
use super::names::Name;
use super::nodes::Kubelet;
use super::object::{stamp, text};
use super::policies::{Rights, User};
use super::resources::{ROWS, Resource};
use super::route::Verb;
use super::rules::default;
use super::state::State;
use super::store::Store;
use super::timing::Timing;

/// A backup of etcd.
pub struct Backup(Store);

impl std::fmt::Debug for Backup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backup")
    }
}

impl Cluster {
    /// A node's instance is gone at once: its containers die, and unshipped log lines are lost. The Node goes later, and its
    /// pods after it.
    pub fn power_off(&self, node: &str) {
        self.change(|state| state.power_off(node));
    }

    /// Sets how long things take from now on. A new cluster has [`Timing::real`].
    pub fn set_timing(&self, timing: Timing) {
        self.change(|state| {
            state.timing = timing;
            state.compact_later();
        });
    }

    /// A node's kubelet dies: its containers run on; nobody ends or reports them.
    pub fn kill_kubelet(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::Dead));
    }

    /// A node is cut off from the API server: its kubelet goes on with what it knows.
    pub fn partition(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::CutOff));
    }

    /// A node's kubelet restarts within seconds: it sends SIGTERM again, with the whole grace, to pods being deleted, and
    /// registers its Node again if that was deleted.
    pub fn restart_kubelet(&self, node: &str) {
        self.change(|state| state.restart_kubelet(node));
    }

    /// Another controller manager takes over: no controller works for tens of seconds; kubelets and the scheduler do.
    pub fn change_leader(&self) {
        self.change(|state| {
            let pause = state.timing.leader_change.draw(&mut state.dice);
            state.leaderless_until = state.now + pause;
        });
    }

    /// A node's machine hangs (a kernel panic): its containers end at once. To AWS the instance still runs.
    pub fn crash(&self, node: &str) {
        self.change(|state| state.break_kubelet(node, Kubelet::Crashed));
    }

    /// A pod's containers are killed for their memory, and started again by their kubelet: at once the first time, later and later then.
    pub fn crash_pod(&self, pod: impl Into<Name>) {
        let pod = pod.into();
        self.change(|state| {
            let uid = state.store.get(Resource::Pods, &pod).map(|pod| pod.uid().to_owned());
            if let Some(uid) = uid {
                state.crash_container(&uid);
            }
        });
    }

    /// AWS has stopped a node's instance, whose machine has [crashed](Self::crash): the cloud controller taints its Node until it is back.
    pub fn stopped(&self, node: &str) {
        self.change(|state| state.stop_machine(node));
    }

    /// Undoes a dead kubelet, a partition or a crash: the kubelet works again.
    pub fn revive(&self, node: &str) {
        self.change(|state| state.revive(node));
    }

    /// Somebody restarts a DaemonSet (`kubectl rollout restart`): its pods are replaced one by one.
    pub fn roll(&self, daemon_set: impl Into<Name>) {
        let daemon_set = daemon_set.into();
        self.change(|state| {
            let now = state.now;
            state.edit(Resource::DaemonSets, &daemon_set, |value| {
                let annotations = &mut value["spec"]["template"]["metadata"]["annotations"];
                annotations["kubectl.kubernetes.io/restartedAt"] = stamp(now);
                value["metadata"]["generation"] =
                    json!(value["metadata"]["generation"].as_i64().unwrap_or(0) + 1);
            });
        });
    }

    /// Puts a namespace into the phase Terminating; its content stays.
    pub fn terminate_namespace(&self, name: &str) {
        self.change(|state| {
            state.ensure_namespace(name);
            let now = state.now;
            state.edit(Resource::Namespaces, &Name::cluster(name), |value| {
                value["metadata"]["deletionTimestamp"] = stamp(now);
                value["status"]["phase"] = json!("Terminating");
            });
        });
    }

    /// The next `requests` requests for `resource` (`"pods"`, `"pods/eviction"`) have this fault.
    pub fn fail_next(&self, requests: u32, verb: Verb, resource: &str, fault: Fault) {
        self.change(|state| state.faults.add(requests, verb, resource, fault));
    }

    /// An admission webhook denies this verb for one object, or those of a set, from now on.
    pub fn deny(&self, verb: Verb, resource: &str, name: impl Into<Name>) {
        let name = Some(name.into());
        self.change(|state| state.faults.add_webhook(verb, resource, name, Verdict::Denies));
    }

    /// An admission webhook answers this verb for one object, or those of a set, with 429 from now on.
    ///
    /// Source: KubeVirt's [pod eviction
    /// admitter](https://github.com/kubevirt/kubevirt/blob/main/pkg/virt-api/webhooks/validating-webhook/admitters/pod-eviction-admitter.go).
    pub fn postpone(&self, verb: Verb, resource: &str, name: impl Into<Name>) {
        let name = Some(name.into());
        self.change(|state| state.faults.add_webhook(verb, resource, name, Verdict::Postpones));
    }

    /// An admission webhook for these requests stops answering: they fail after ten seconds, without effect.
    pub fn hang_webhook(&self, verb: Verb, resource: &str) {
        self.change(|state| state.faults.add_webhook(verb, resource, None, Verdict::SaysNothing));
    }

    /// Refuses every token for this long.
    pub fn expire_tokens_for(&self, how_long: Duration) {
        self.change(|state| state.faults.unauthorized_until(state.now + how_long));
    }

    /// Gives this token to a user. Unknown tokens are refused.
    pub fn add_user(&self, token: &str, name: &str, rights: Rights) {
        let user = User { name: name.to_owned(), rights };
        self.change(|state| state.faults.add_user(token, user));
    }

    /// Puts the admission policies of `deploy/base/admission.yaml` in force.
    pub fn enforce_policies(&self) {
        self.change(|state| state.faults.enforce_policies());
    }

    /// When requests were hit by [`Cluster::fail_next`], which may wait for its request for long.
    pub fn hits(&self) -> Vec<Timestamp> {
        self.change(|state| state.faults.hits.clone())
    }

    /// Ends all faults of [`Cluster::fail_next`] and all webhooks.
    pub fn no_more_faults(&self) {
        self.change(|state| state.faults.clear());
    }

    /// The API server is down for this long: connections break, watches at once.
    pub fn api_down_for(&self, how_long: Duration) {
        self.change(|state| {
            state.faults.down_until(Some(state.now + how_long));
            state.watchers.clear();
        });
    }

    /// The API server is down until [`Cluster::api_up`].
    pub fn api_down(&self) {
        self.change(|state| {
            state.faults.down_until(Some(Timestamp::MAX));
            state.watchers.clear();
        });
    }

    /// The API server is up again.
    pub fn api_up(&self) {
        self.change(|state| state.faults.down_until(None));
    }

    /// Ends every open watch, as a restart of the API server does.
    pub fn close_watches(&self) {
        self.change(|state| state.watchers.clear());
    }

    /// Open watches get nothing more and do not end, as when the server behind a load balancer disappears.
    pub fn silence_watches(&self) {
        self.change(|state| {
            let open = std::mem::take(&mut state.watchers);
            state.silent.extend(open);
        });
    }

    /// The watch cache of a kind falls behind etcd: watches are renewed and told of nothing, and lists without a version are up to date all
    /// the same. <https://github.com/etcd-io/etcd/issues/15402>
    pub fn stall_watch_cache<K: Kind>(&self) {
        let Some((resource, _)) = resource::<K>() else { return };
        self.change(|state| {
            state.stalled.entry(resource).or_insert(state.store.revision);
        });
    }

    /// A backup of etcd as of now.
    pub fn backup(&self) -> Backup {
        self.read(|state| Backup(state.store.backup()))
    }

    /// Restores a backup: everything is as it was, and versions count on from there.
    /// <https://kubernetes.io/docs/tasks/administer-cluster/configure-upgrade-etcd/#restoring-an-etcd-cluster>
    pub fn restore(&self, backup: &Backup) {
        self.change(|state| {
            state.watchers.clear();
            state.store = backup.0.backup();
            state.look_at_everything();
        });
    }

    /// Forgets history: a watch from any revision so far is answered with 410 Expired. Open watches go on.
    pub fn compact_history(&self) {
        self.change(|state| state.store.compact());
    }

    /// RBAC refuses this from now on, and access reviews say so.
    pub fn forbid(&self, verb: Verb, resource: &str) {
        self.change(|state| state.faults.forbid(verb, resource));
    }
}

impl State {
    /// Adds an object from outside the API.
    pub(super) fn install(&mut self, resource: Resource, name: &Name, mut value: Value) {
        self.ensure_namespace(&name.namespace);
        self.remove(resource, name);
        let mut metadata = self.new_metadata(name);
        if let (Some(owned), Some(given)) = (metadata.as_object_mut(), value["metadata"].as_object_mut()) {
            owned.append(given);
        }
        value["metadata"] = metadata;
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array().cloned() {
            for (index, owner) in owners.iter().enumerate() {
                let uid = self.uid_of_owner(&name.namespace, owner);
                value["metadata"]["ownerReferences"][index]["uid"] = json!(uid);
            }
        } else if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("ownerReferences");
        }
        let node = text(&value, &["spec", "nodeName"]).map(str::to_owned);
        default(resource, &mut value);
        self.put(resource, value);
        if let Some(node) = node {
            self.note(Event::PodScheduled { pod: name.clone(), node });
        }
    }

    fn uid_of_owner(&mut self, namespace: &str, owner: &Value) -> String {
        let part = |key| text(owner, &[key]).unwrap_or_default();
        let group = part("apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
        let resource = ROWS.iter().find(|kind| kind.kind == part("kind") && kind.group == group);
        let found = resource.and_then(|kind| {
            let namespace = if kind.namespaced { namespace } else { "" };
            self.store.get(kind.resource, &Name::new(namespace, part("name")))
        });
        match found {
            Some(owner) => owner.uid().to_owned(),
            None => self.new_uid(),
        }
    }
}
