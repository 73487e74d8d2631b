//! A pod, as far as a drain needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::clock::PLAUSIBLE;
use crate::k8s::{NodeName, names};

/// Grace period of a pod that names none.
/// Source: [Pod v1 `terminationGracePeriodSeconds`](https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#lifecycle).
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// Longest grace that is distinguished. The API server takes any number of seconds; a year fits into every sum.
const LONGEST_GRACE_SECONDS: i64 = 365 * 24 * 60 * 60;

/// Latest deletion time that is distinguished from never. The API server adds the grace to the present moment, and the
/// sum may wrap around, as far as the years 1735 and 2318.
const LATEST: Timestamp = Timestamp::constant(PLAUSIBLE.end, 0);

/// Namespace and name of a pod, `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What makes a pod a daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DaemonOwner {
    /// A DaemonSet of `apps/v1`, which can be looked up.
    DaemonSet {
        /// `metadata.uid`.
        uid: String,
        /// `metadata.name`; it is in the pod's namespace.
        name: String,
    },
    /// A DaemonSet of another API group (OpenKruise has one), or cluster-autoscaler's annotation on the pod. Both count
    /// for cluster-autoscaler too. Source:
    /// [`IsDaemonSetPod`](https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/utils/pod/pod.go).
    Other,
}

/// What a drain needs to know of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct PodView {
    /// Namespace and name.
    pub name: PodName,
    /// `metadata.uid`, the precondition of every eviction.
    pub uid: String,
    /// `spec.nodeName`.
    pub node: NodeName,
    /// `spec.priority`.
    pub priority: i32,
    /// Whether the phase is Succeeded or Failed.
    pub finished: bool,
    /// Whether its containers run.
    pub containers: Containers,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_seconds: i64,
    /// When its grace ends, for a pod that is being deleted (`metadata.deletionTimestamp`).
    pub deletion_timestamp: Option<Timestamp>,
    /// The grace that it was given, if it is being deleted (`metadata.deletionGracePeriodSeconds`).
    pub deletion_grace_seconds: Option<i64>,
    /// Whether finalizers keep its object, whatever its kubelet does.
    pub has_finalizers: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// When the kubelet acknowledged it (`status.startTime`).
    pub started: Option<Timestamp>,
    /// Whether it mirrors a static pod.
    pub mirror: bool,
    /// What makes it a daemon; `None` if it is none.
    pub daemon: Option<DaemonOwner>,
    /// UID of its controller.
    pub controller: Option<String>,
    /// Whether it only serves other pods of its node, such as one that mounts their volumes.
    pub serves_node: bool,
    /// Whether it may be scheduled onto a cordoned Node.
    pub tolerates_cordon: bool,
    /// Labels, for matching budgets.
    pub labels: BTreeMap<String, String>,
    /// The annotations that say how it wants to leave.
    pub annotations: BTreeMap<String, String>,
}

impl PodView {
    /// Whether its containers have exited and its kubelet is still about to unmount its volumes and remove its directories: the object goes
    /// after that, and a pod of its name or its claims can start elsewhere.
    ///
    /// Source: [`SyncTerminatedPod`](https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/kubelet.go).
    pub fn is_being_torn_down(&self) -> bool {
        self.finished && self.deletion_timestamp.is_some() && !self.has_finalizers
    }
}

/// When the grace of a pod that is being deleted ends. A grace that fits into no sum has no end that the timestamp could tell.
fn grace_ends(meta: &ObjectMeta) -> Option<Timestamp> {
    let told = meta.deletion_timestamp.as_ref()?.0;
    let is_endless = meta.deletion_grace_period_seconds.is_some_and(|grace| grace > LONGEST_GRACE_SECONDS);
    Some(if is_endless { LATEST } else { told.clamp(Timestamp::UNIX_EPOCH, LATEST) })
}

impl From<&Pod> for PodView {
    fn from(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref();
        let annotations = meta.annotations.iter().flatten();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let controller = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        Self {
            name: PodName {
                namespace: meta.namespace.as_deref().unwrap_or_default().into(),
                name: meta.name.as_deref().unwrap_or_default().into(),
            },
            uid: meta.uid.clone().unwrap_or_default(),
            node: spec.and_then(|spec| spec.node_name.clone()).unwrap_or_default().into(),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            finished: matches!(phase, Some("Succeeded" | "Failed")),
            containers: Containers::of(pod),
            grace_seconds: spec
                .and_then(|spec| spec.termination_grace_period_seconds)
                .unwrap_or(DEFAULT_GRACE_SECONDS)
                .clamp(0, LONGEST_GRACE_SECONDS),
            deletion_timestamp: grace_ends(meta),
            deletion_grace_seconds: meta
                .deletion_grace_period_seconds
                .map(|grace| grace.clamp(0, LONGEST_GRACE_SECONDS)),
            has_finalizers: meta.finalizers.iter().flatten().next().is_some(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            started: pod.status.as_ref().and_then(|status| Some(status.start_time.as_ref()?.0)),
            mirror: meta.annotations.as_ref().is_some_and(|all| all.contains_key(names::MIRROR_POD)),
            daemon: controller.and_then(daemon_of).or_else(|| {
                let says_so = meta.annotations.as_ref()?.get(names::DAEMON_SET_POD)? == "true";
                says_so.then_some(DaemonOwner::Other)
            }),
            controller: controller.map(|owner| owner.uid.clone()),
            serves_node: serves_node(pod),
            tolerates_cordon: spec
                .iter()
                .flat_map(|spec| spec.tolerations.iter().flatten())
                .any(tolerates_cordon),
            labels: meta.labels.clone().unwrap_or_default(),
            annotations: annotations
                .filter(|(key, _)| names::POD_ANNOTATIONS.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

/// Whether the containers of a pod run, native sidecars included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containers {
    /// A container of it has ended and is to be started again.
    Down,
    /// The pod has not started: its image may have to be pulled first. None of its init containers has failed.
    Starting,
    /// All run.
    Running {
        /// How often one was started again: a restart may be over before a status shows it.
        restarts: i32,
    },
}

impl Default for Containers {
    fn default() -> Self {
        Self::Running { restarts: 0 }
    }
}

impl Containers {
    fn of(pod: &Pod) -> Self {
        let Some(status) = &pod.status else { return Self::Starting };
        let restarts = || status.init_container_statuses.iter().flatten().map(|it| it.restart_count).max();
        if status.phase.as_deref() == Some("Pending") {
            return if restarts() > Some(0) { Self::Down } else { Self::Starting };
        }
        let init_containers = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
        let sidecars: BTreeSet<&str> = init_containers
            .filter(|container| container.restart_policy.as_deref() == Some("Always"))
            .map(|container| container.name.as_str())
            .collect();
        let of_sidecars = status.init_container_statuses.iter().flatten();
        let of_sidecars = of_sidecars.filter(|container| sidecars.contains(container.name.as_str()));
        let mut restarts = 0_i32;
        for container in status.container_statuses.iter().flatten().chain(of_sidecars) {
            if container.state.as_ref().is_none_or(|state| state.running.is_none()) {
                return Self::Down;
            }
            restarts = restarts.saturating_add(container.restart_count);
        }
        Self::Running { restarts }
    }
}

/// Labels of the mount pods of CSI drivers that run one process a volume on the node, and no DaemonSet for it.
///
/// Sources: [Mountpoint for S3](https://github.com/awslabs/mountpoint-s3-csi-driver/blob/main/pkg/podmounter/mppod/creator.go),
/// [JuiceFS](https://github.com/juicedata/juicefs-csi-driver/blob/master/pkg/common/common.go).
const MOUNT_PODS: [(&str, Option<&str>); 2] =
    [("s3.csi.aws.com/mountpoint-version", None), ("app.kubernetes.io/name", Some("juicefs-mount"))];

/// Whether a pod only serves other pods of its node: the Node owns it; or no controller would make it anew elsewhere, and it
/// tolerates every taint, as what is put on one node does; or a known CSI driver has labelled it as a mount pod. A wrong guess
/// makes a pod go last, with all its grace.
fn serves_node(pod: &Pod) -> bool {
    let owners = || pod.metadata.owner_references.iter().flatten();
    let tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    let has_no_controller = owners().all(|owner| owner.controller != Some(true));
    let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).map(String::as_str);
    owners().any(|owner| owner.kind == "Node" && owner.api_version == "v1")
        || has_no_controller && tolerations.into_iter().any(tolerates_everything)
        || MOUNT_PODS
            .iter()
            .any(|(key, value)| label(key).is_some_and(|found| value.is_none_or(|value| value == found)))
}

/// Whether a toleration covers every taint.
fn tolerates_everything(toleration: &Toleration) -> bool {
    let is_empty = |field: &Option<String>| field.as_deref().unwrap_or_default().is_empty();
    toleration.operator.as_deref() == Some("Exists")
        && is_empty(&toleration.key)
        && is_empty(&toleration.effect)
        && toleration.toleration_seconds.is_none()
}

fn daemon_of(controller: &OwnerReference) -> Option<DaemonOwner> {
    match (controller.kind.as_str(), controller.api_version.split('/').next()) {
        ("DaemonSet", Some("apps")) => {
            Some(DaemonOwner::DaemonSet { uid: controller.uid.clone(), name: controller.name.clone() })
        }
        ("DaemonSet", _) => Some(DaemonOwner::Other),
        _ => None,
    }
}

/// Whether a toleration covers the taint of a cordoned Node, `node.kubernetes.io/unschedulable:NoSchedule`.
/// Source: [Taints and tolerations](https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).
fn tolerates_cordon(toleration: &Toleration) -> bool {
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let exists = toleration.operator.as_deref() == Some("Exists");
    matches!(text(&toleration.effect).as_str(), "" | "NoSchedule")
        && match text(&toleration.key).as_str() {
            "" => exists,
            names::UNSCHEDULABLE => exists || text(&toleration.value).is_empty(),
            _ => false,
        }
}

impl PodView {
    /// Whether it is neither a daemon nor the mirror of a static pod.
    pub fn is_workload(&self) -> bool {
        self.daemon.is_none() && !self.mirror
    }

    /// UID of its controller, or its own name if it has none.
    pub fn owner(&self) -> String {
        self.controller.clone().unwrap_or_else(|| self.name.to_string())
    }

    /// The value of an annotation. Only those that say how it wants to leave are kept.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations.get(key).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn view(pod: Value) -> PodView {
        PodView::from(&serde_json::from_value::<Pod>(pod).expect("a Pod"))
    }

    #[test]
    fn daemons_are_told_by_their_controller_or_by_what_they_say() {
        let of = |kind: &str, group: &str, controller: bool| {
            let owner = json!({ "kind": kind, "apiVersion": group, "name": "x", "uid": "u", "controller": controller });
            view(json!({ "metadata": { "ownerReferences": [owner] } })).daemon
        };
        let apps = DaemonOwner::DaemonSet { uid: "u".into(), name: "x".into() };
        assert_eq!(of("DaemonSet", "apps/v1", true), Some(apps));
        assert_eq!(of("DaemonSet", "apps.kruise.io/v1alpha1", true), Some(DaemonOwner::Other));
        assert_eq!(of("DaemonSet", "apps/v1", false), None);
        assert_eq!(of("ReplicaSet", "apps/v1", true), None);
        let says = |value: &str| {
            view(json!({ "metadata": { "annotations": { names::DAEMON_SET_POD: value } } })).daemon
        };
        assert_eq!((says("true"), says("false")), (Some(DaemonOwner::Other), None));
    }

    #[test]
    fn what_only_serves_its_node_is_told_by_its_owner_its_tolerations_or_its_drivers_label() {
        let everything = json!([{ "operator": "Exists" }]);
        let owned = |kind: &str, controller: bool| json!([{ "kind": kind, "apiVersion": "v1", "name": "x", "uid": "u", "controller": controller }]);
        for (what, owners, tolerations, labels, expected) in [
            ("a bare pod", json!([]), json!([]), json!({}), false),
            ("the Node's", owned("Node", false), json!([]), json!({}), true),
            ("a ReplicaSet's", owned("ReplicaSet", true), everything.clone(), json!({}), false),
            ("tolerates everything", json!([]), everything, json!({}), true),
            (
                "tolerates all that evicts",
                json!([]),
                json!([{ "operator": "Exists", "effect": "NoExecute" }]),
                json!({}),
                false,
            ),
            (
                "for a while",
                json!([]),
                json!([{ "operator": "Exists", "tolerationSeconds": 300 }]),
                json!({}),
                false,
            ),
            ("S3", json!([]), json!([]), json!({ "s3.csi.aws.com/mountpoint-version": "1.20.0" }), true),
            ("JuiceFS", json!([]), json!([]), json!({ "app.kubernetes.io/name": "juicefs-mount" }), true),
            (
                "its driver",
                json!([]),
                json!([]),
                json!({ "app.kubernetes.io/name": "juicefs-csi-driver" }),
                false,
            ),
        ] {
            let pod = view(json!({
                "metadata": { "ownerReferences": owners, "labels": labels },
                "spec": { "tolerations": tolerations, "containers": [] },
            }));
            assert_eq!(pod.serves_node, expected, "{what}");
        }
    }

    #[test]
    fn a_toleration_of_everything_or_of_the_cordon_brings_a_pod_back() {
        let back =
            |toleration: Value| view(json!({ "spec": { "tolerations": [toleration], "containers": [] } }));
        for (toleration, expected) in [
            (json!({ "operator": "Exists" }), true),
            (json!({ "operator": "Exists", "effect": "NoSchedule" }), true),
            (json!({ "operator": "Exists", "effect": "NoExecute" }), false),
            (json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists" }), true),
            (json!({ "key": "node.kubernetes.io/unschedulable" }), true),
            (json!({ "key": "node.kubernetes.io/unschedulable", "value": "x" }), false),
            (json!({ "key": "other", "operator": "Exists" }), false),
        ] {
            assert_eq!(back(toleration.clone()).tolerates_cordon, expected, "{toleration}");
        }
    }

    #[test]
    fn a_pod_is_down_until_it_starts_and_while_a_container_or_a_native_sidecar_of_it_does_not_run() {
        use Containers::{Down, Running, Starting};
        let (running, waiting, ended) = (
            json!({ "running": {} }),
            json!({ "waiting": { "reason": "CrashLoopBackOff" } }),
            json!({ "terminated": { "exitCode": 0 } }),
        );
        let spec = json!({ "containers": [], "initContainers": [
            { "name": "before" }, { "name": "sidecar", "restartPolicy": "Always" },
        ] });
        for (phase, states, before, failed, sidecar, expected) in [
            ("Pending", vec![], &running, 0, &waiting, Starting),
            ("Pending", vec![], &waiting, 1, &waiting, Down),
            ("Running", vec![&running, &running], &ended, 9, &running, Running { restarts: 7 }),
            ("Running", vec![&running, &waiting], &ended, 9, &running, Down),
            ("Running", vec![&running], &ended, 9, &ended, Down),
            ("Running", vec![], &ended, 9, &running, Running { restarts: 3 }),
        ] {
            let status = |name: &str, restarts, state| json!({ "name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": restarts, "state": state });
            let statuses: Vec<Value> = states.into_iter().map(|state| status("c", 2, state)).collect();
            let of_sidecar = if phase == "Pending" { 0 } else { 3 };
            let init = [status("before", failed, before), status("sidecar", of_sidecar, sidecar)];
            let pod = view(json!({ "spec": spec, "status": {
                "phase": phase, "containerStatuses": statuses, "initContainerStatuses": init,
            } }));
            assert_eq!(pod.containers, expected, "{phase}, {statuses:?}, {sidecar}");
        }
    }

    #[test]
    fn figures_that_fit_into_no_sum_are_cut_to_ones_that_do() {
        for (grace, expected) in [(i64::MAX, LONGEST_GRACE_SECONDS), (i64::MIN, 0), (30, 30)] {
            let pod = view(json!({ "spec": { "terminationGracePeriodSeconds": grace, "containers": [] } }));
            assert_eq!(pod.grace_seconds, expected);
        }
        let going = |at: &str| view(json!({ "metadata": { "deletionTimestamp": at } })).deletion_timestamp;
        assert_eq!(going("1803-06-20T00:00:00Z"), Some(Timestamp::UNIX_EPOCH));
        assert_eq!(going("2310-01-01T00:00:00Z"), Some(LATEST));
        let given = |seconds: i64| {
            let meta =
                json!({ "deletionTimestamp": "1803-06-20T00:00:00Z", "deletionGracePeriodSeconds": seconds });
            view(json!({ "metadata": meta })).deletion_timestamp
        };
        assert_eq!(given(i64::MAX), Some(LATEST), "it has wrapped around");
        assert_eq!(given(30), Some(Timestamp::UNIX_EPOCH), "a clock was set");
    }
}
