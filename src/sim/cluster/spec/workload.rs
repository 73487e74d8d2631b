//! Pods and their controllers: one builder, because all have a pod template.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Fixture, Made};
use crate::sim::cluster::names::Name;
use crate::sim::cluster::resources::Resource;

/// Pods and their controller; see [`pod`], [`replica_set`] and [`daemon_set`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Workload<K> {
    name: Name,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    spec: Value,
    kind: K,
}

/// A pod that nobody replaces.
#[derive(Clone, Debug, Default)]
pub struct Bare {
    owner: Option<Value>,
    finalizers: Vec<String>,
}

/// A number of replicas.
#[derive(Clone, Debug)]
pub struct Replicas(u32);

/// A number of replicas, each with its own name.
#[derive(Clone, Debug)]
pub struct Ordinals(u32);

/// A number of completions.
#[derive(Clone, Debug)]
pub struct Completions {
    pods: u32,
    waits_for_the_end: bool,
}

/// One on every node.
#[derive(Clone, Debug)]
pub struct Everywhere;

/// A pod of its own.
pub type PodSpec = Workload<Bare>;
/// A ReplicaSet.
pub type ReplicaSetSpec = Workload<Replicas>;
/// A DaemonSet.
pub type DaemonSetSpec = Workload<Everywhere>;

/// A StatefulSet.
pub type StatefulSetSpec = Workload<Ordinals>;
/// A Job.
pub type JobSpec = Workload<Completions>;

/// A pod labelled `app: NAME`, with 100m of CPU, 64 MiB and a grace of 30 s.
pub fn pod(name: impl Into<Name>) -> PodSpec {
    Workload::new(name.into(), Bare::default())
}

/// A ReplicaSet of this many such pods.
pub fn replica_set(name: impl Into<Name>, replicas: u32) -> ReplicaSetSpec {
    Workload::new(name.into(), Replicas(replicas))
}

/// A StatefulSet of this many such pods. Each pod has its own volume.
pub fn stateful_set(name: impl Into<Name>, replicas: u32) -> StatefulSetSpec {
    Workload::new(name.into(), Ordinals(replicas))
}

/// A Job of this many such pods.
pub fn job(name: impl Into<Name>, completions: u32) -> JobSpec {
    let mut job = Workload::new(name.into(), Completions { pods: completions, waits_for_the_end: false });
    job.spec["restartPolicy"] = json!("Never");
    job
}

/// A DaemonSet of such pods.
pub fn daemon_set(name: impl Into<Name>) -> DaemonSetSpec {
    Workload::new(name.into(), Everywhere)
}

impl<K> Workload<K> {
    fn new(name: Name, kind: K) -> Self {
        let labels = BTreeMap::from([("app".to_owned(), name.name.clone())]);
        let container = json!({
            "name": "main",
            "image": "sim",
            "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
        });
        let spec = json!({ "containers": [container], "terminationGracePeriodSeconds": 30, "restartPolicy": "Always" });
        Self { name, labels, annotations: BTreeMap::new(), spec, kind }
    }

    /// With a label, on the pods and their controller.
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// With an annotation on the pods.
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        self.annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// `terminationGracePeriodSeconds`, unchecked.
    pub fn grace(mut self, seconds: impl Into<i64>) -> Self {
        self.spec["terminationGracePeriodSeconds"] = json!(seconds.into());
        self
    }

    /// Takes this many seconds from SIGTERM to its exit.
    pub fn exits_after(self, seconds: u32) -> Self {
        self.annotation("sim/exit-seconds", &seconds.to_string())
    }

    /// Its kubelet notices its exit after this many seconds: the runtime hangs, say while it tears down the sandbox.
    pub fn exit_is_noticed_after(self, seconds: u32) -> Self {
        self.annotation("sim/noticed-seconds", &seconds.to_string())
    }

    /// Takes this many seconds from its binding to running.
    pub fn starts_after(self, seconds: u32) -> Self {
        self.annotation("sim/start-seconds", &seconds.to_string())
    }

    /// Completes after this many seconds.
    pub fn runs_for(self, seconds: u32) -> Self {
        self.annotation("sim/runs-seconds", &seconds.to_string())
    }

    /// Runs, but is never Ready.
    pub fn never_ready(self) -> Self {
        self.annotation("sim/ready", "false")
    }

    /// `spec.priority`.
    pub fn priority(mut self, priority: i32) -> Self {
        self.spec["priority"] = json!(priority);
        self
    }

    /// Requests this much CPU.
    pub fn cpu_millis(mut self, millis: u32) -> Self {
        self.spec["containers"][0]["resources"]["requests"]["cpu"] = json!(format!("{millis}m"));
        self
    }

    /// Requests this much memory.
    pub fn memory_mib(mut self, mib: u32) -> Self {
        self.spec["containers"][0]["resources"]["requests"]["memory"] = json!(format!("{mib}Mi"));
        self
    }

    /// Tolerates the taint `key` of this effect, whatever its value.
    pub fn tolerates(mut self, key: &str, effect: &str) -> Self {
        let toleration = json!({ "key": key, "operator": "Exists", "effect": effect });
        match self.spec["tolerations"].as_array_mut() {
            Some(tolerations) => tolerations.push(toleration),
            None => self.spec["tolerations"] = json!([toleration]),
        }
        self
    }

    /// Tolerates every taint, as pods of cilium-operator and typha do.
    pub fn tolerates_everything(self) -> Self {
        self.tolerates("", "")
    }

    /// Only on nodes with this label.
    pub fn node_selector(mut self, key: &str, value: &str) -> Self {
        self.spec["nodeSelector"][key] = json!(value);
        self
    }

    /// Uses a volume, attached to one node at a time.
    pub fn volume(self, name: &str) -> Self {
        self.annotation("sim/volume", name)
    }

    /// Its volume takes this many seconds to detach.
    pub fn detaches_after(self, seconds: u32) -> Self {
        self.annotation("sim/detach-seconds", &seconds.to_string())
    }

    /// Writes this many log lines a second.
    pub fn lines_per_second(self, lines: u32) -> Self {
        self.annotation("sim/lines-per-second", &lines.to_string())
    }

    /// Writes this many log lines when it exits.
    pub fn last_lines(self, lines: u32) -> Self {
        self.annotation("sim/last-lines", &lines.to_string())
    }

    /// Mounts and unmounts volumes on its node.
    pub fn csi_driver(self) -> Self {
        self.annotation("sim/csi-driver", "true")
    }

    /// Has a preStop hook of this many seconds.
    pub fn pre_stop(self, seconds: u32) -> Self {
        self.annotation("sim/prestop-seconds", &seconds.to_string())
    }

    /// Has sidecars that take this many seconds to exit after the rest.
    pub fn sidecars_exit_after(self, seconds: u32) -> Self {
        self.annotation("sim/sidecar-seconds", &seconds.to_string())
    }

    /// Ships the log lines of its node.
    pub fn log_shipper(self) -> Self {
        self.annotation("sim/log-shipper", "true")
    }

    /// Ships a line this many seconds after it was written.
    pub fn ship_lag(self, seconds: u32) -> Self {
        self.annotation("sim/ship-lag-seconds", &seconds.to_string())
    }

    fn template(&self) -> Value {
        let mut metadata = json!({ "labels": self.labels });
        if !self.annotations.is_empty() {
            metadata["annotations"] = json!(self.annotations);
        }
        json!({ "metadata": metadata, "spec": self.spec })
    }

    fn set(&self) -> Value {
        json!({
            "metadata": { "labels": self.labels, "generation": 1 },
            "spec": { "selector": { "matchLabels": { "app": self.labels["app"] } }, "template": self.template() },
            "status": {},
        })
    }
}

impl PodSpec {
    /// Already bound to this node.
    pub fn on(mut self, node: &str) -> Self {
        self.spec["nodeName"] = json!(node);
        self
    }

    /// Controlled by this object, in the API group of its kind. The UID is the object's, or made up if it does not exist.
    pub fn owned_by(self, kind: &str, name: &str) -> Self {
        let version = if matches!(kind, "Node" | "ReplicationController") { "v1" } else { "apps/v1" };
        self.owned_by_api(version, kind, name)
    }

    /// Controlled by an object of another API, such as a DaemonSet of `apps.kruise.io/v1beta1`.
    pub fn owned_by_api(mut self, version: &str, kind: &str, name: &str) -> Self {
        self.kind.owner =
            Some(json!({ "apiVersion": version, "kind": kind, "name": name, "controller": true }));
        self
    }

    /// A static pod's mirror.
    pub fn mirror(self) -> Self {
        self.annotation("kubernetes.io/config.mirror", "mirror")
    }

    /// Held by a finalizer.
    pub fn finalizer(mut self, name: &str) -> Self {
        self.kind.finalizers.push(name.to_owned());
        self
    }
}

impl ReplicaSetSpec {
    /// With a template that names the node: no scheduler is asked.
    pub fn bound_to(mut self, node: &str) -> Self {
        self.spec["nodeName"] = json!(node);
        self
    }
}

impl From<PodSpec> for Fixture {
    fn from(spec: PodSpec) -> Self {
        let mut pod = spec.template();
        pod["metadata"]["generation"] = json!(1);
        pod["status"] = json!({ "phase": "Pending" });
        if let Some(owner) = spec.kind.owner {
            pod["metadata"]["ownerReferences"] = json!([owner]);
        }
        if !spec.kind.finalizers.is_empty() {
            pod["metadata"]["finalizers"] = json!(spec.kind.finalizers);
        }
        Self(Made::Object(Resource::Pods, spec.name, pod))
    }
}

impl JobSpec {
    /// With a `podFailurePolicy` that ignores disruptions: a pod is kept, and not replaced, until it has ended.
    pub fn ignores_disruptions(mut self) -> Self {
        self.kind.waits_for_the_end = true;
        self
    }
}

impl From<JobSpec> for Fixture {
    fn from(spec: JobSpec) -> Self {
        let mut job = spec.set();
        job["spec"]["completions"] = json!(spec.kind.pods);
        job["spec"]["parallelism"] = json!(spec.kind.pods);
        if spec.kind.waits_for_the_end {
            let disrupted = json!([{ "type": "DisruptionTarget", "status": "True" }]);
            let rules = json!([{ "action": "Ignore", "onPodConditions": disrupted }]);
            job["spec"]["podFailurePolicy"] = json!({ "rules": rules });
        }
        Self(Made::Object(Resource::Jobs, spec.name, job))
    }
}

impl From<StatefulSetSpec> for Fixture {
    fn from(spec: StatefulSetSpec) -> Self {
        let mut set = spec.set();
        set["spec"]["replicas"] = json!(spec.kind.0);
        set["spec"]["serviceName"] = json!(spec.name.name);
        Self(Made::Object(Resource::StatefulSets, spec.name, set))
    }
}

impl From<ReplicaSetSpec> for Fixture {
    fn from(spec: ReplicaSetSpec) -> Self {
        let mut set = spec.set();
        set["spec"]["replicas"] = json!(spec.kind.0);
        Self(Made::Object(Resource::ReplicaSets, spec.name, set))
    }
}

impl From<DaemonSetSpec> for Fixture {
    fn from(spec: DaemonSetSpec) -> Self {
        let set = spec.set();
        Self(Made::Object(Resource::DaemonSets, spec.name, set))
    }
}
