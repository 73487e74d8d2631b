//! Pods, as far as a drain needs them.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use crate::scale_in::names;

/// Grace period of a pod that names none.
/// Source: [Pod v1 `terminationGracePeriodSeconds`](https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/#lifecycle).
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The API server takes any number of seconds; what is longer than a year is for ever, and fits into every sum.
const LONGEST_GRACE_SECONDS: i64 = 365 * 24 * 60 * 60;

/// The latest deletion that is told from never, likewise: the API server adds a grace to the present moment, and the sum
/// wraps around, as far as the year 1735 or 2318.
const LATEST: Timestamp = Timestamp::constant(7_258_118_400, 0);

/// Namespace and name of a pod, `namespace/name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// What a drain needs to know of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodView {
    /// Namespace and name.
    pub name: PodName,
    /// `metadata.uid`, the precondition of every eviction.
    pub uid: String,
    /// `spec.priority`.
    pub priority: i32,
    /// Whether the phase is Succeeded or Failed.
    pub finished: bool,
    /// `spec.terminationGracePeriodSeconds`.
    pub grace_seconds: i64,
    /// When its grace ends, for a pod that has been asked to go (`metadata.deletionTimestamp`).
    pub going_until: Option<Timestamp>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it mirrors a static pod.
    pub mirror: bool,
    /// UID of the DaemonSet that controls it.
    pub daemon_set: Option<String>,
    /// Labels, for matching budgets.
    pub labels: BTreeMap<String, String>,
    /// The annotations that tell how it wants to leave.
    pub wishes: BTreeMap<String, String>,
}

impl From<&Pod> for PodView {
    fn from(pod: &Pod) -> Self {
        let meta = &pod.metadata;
        let spec = pod.spec.as_ref();
        let annotations = meta.annotations.iter().flatten();
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let owners = meta.owner_references.iter().flatten();
        Self {
            name: PodName {
                namespace: meta.namespace.clone().unwrap_or_default(),
                name: meta.name.clone().unwrap_or_default(),
            },
            uid: meta.uid.clone().unwrap_or_default(),
            priority: spec.and_then(|spec| spec.priority).unwrap_or_default(),
            finished: matches!(phase, Some("Succeeded" | "Failed")),
            grace_seconds: spec
                .and_then(|spec| spec.termination_grace_period_seconds)
                .unwrap_or(DEFAULT_GRACE_SECONDS)
                .clamp(0, LONGEST_GRACE_SECONDS),
            going_until: meta
                .deletion_timestamp
                .as_ref()
                .map(|time| time.0.clamp(Timestamp::UNIX_EPOCH, LATEST)),
            created: meta.creation_timestamp.as_ref().map(|time| time.0),
            mirror: meta.annotations.as_ref().is_some_and(|all| all.contains_key(names::MIRROR_POD)),
            daemon_set: owners
                .filter(|owner| owner.controller == Some(true) && owner.kind == "DaemonSet")
                .map(|owner| owner.uid.clone())
                .next(),
            labels: meta.labels.clone().unwrap_or_default(),
            wishes: annotations
                .filter(|(key, _)| names::POD_WISHES.contains(&key.as_str()))
                .map(|(key, value)| (key.clone(), value.clone()))
                .collect(),
        }
    }
}

impl PodView {
    /// The value of an annotation that tells how the pod wants to leave.
    pub fn wish(&self, key: &str) -> Option<&str> {
        self.wishes.get(key).map(String::as_str)
    }
}
