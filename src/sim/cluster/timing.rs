//! How long things take in a cluster; the seed draws each between published bounds.
//!
//! [`Timing::real`] is for tests of the whole program. [`Timing::brisk`] is for tests of one rule and for scenarios that
//! people follow: times that do not matter are zero, the others the same in every run.

use std::time::Duration;

use crate::sim::span::Span;

/// How long things take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// From a client to the effect of its request, and back. Kubernetes promises an answer within a second to 99 % of
    /// requests for single objects; most take milliseconds.
    /// <https://github.com/kubernetes/community/blob/master/sig-scalability/slos/api_call_latency.md>
    pub request: Span,
    /// From the effect of a request to its answer.
    pub answer: Span,
    /// From a write to its line in a watch. Each watch has its own lag, so they are not ordered among each other.
    /// <https://kubernetes.io/docs/reference/using-api/api-concepts/#the-resourceversion-parameter>
    pub watch_lag: Span,
    /// Between an eviction's read of a budget (or of a pod without one) and its write: two round trips to etcd. A write in
    /// between makes the eviction start again half a second later.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go>
    pub eviction: Span,
    /// Least time that the API server remembers old versions; up to twice as long (`--etcd-compaction-interval`).
    /// [`Span::NONE`]: for ever.
    pub history: Span,
    /// From the scheduler's choice of a node to the binding, which checks nothing again: the node may be cordoned by then.
    /// <https://kubernetes.io/docs/concepts/scheduling-eviction/scheduling-framework/#scheduling-cycle-and-binding-cycle>
    pub binding: Span,
    /// The same for a pod whose volume must be created first (`BindTimeoutSeconds` is 600).
    pub volume_binding: Span,
    /// From a Node's registration to Ready, when the network plugin runs (`NetworkReady=false` before). Until then it has
    /// the taints `node.kubernetes.io/not-ready` and `node.cloudprovider.kubernetes.io/uninitialized`.
    /// <https://kubernetes.io/docs/reference/labels-annotations-taints/#node-cloudprovider-kubernetes-io-uninitialized>
    pub joining: Span,
    /// Between two reports of a Node's unchanged status (`nodeStatusReportFrequency`: five minutes). [`Span::NONE`]: no
    /// reports. <https://kubernetes.io/docs/reference/node/node-status/#heartbeats>
    pub status_report: Span,
    /// From a change on a node (its images, its volumes) to its report (`nodeStatusUpdateFrequency`: 10 s).
    /// [`Span::NONE`]: never.
    pub status_change: Span,
    /// Duration of a kubelet's restart.
    pub kubelet_restart: Span,
    /// How long no controller works when another controller manager takes over: the lease lasts 15 s, then caches fill.
    /// <https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/>
    pub leader_change: Span,
    /// From a container's exit until the kubelet notices: it checks its containers once a second.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/pleg/generic.go>
    pub exit_noticed: Span,
    /// From there to the pod object's deletion: volumes are unmounted, the sandbox torn down, the status sent.
    pub unmount: Span,
    /// From a kubelet's last sign of life to Ready `Unknown`: `--node-monitor-grace-period` is 50 s, the lease is
    /// renewed every 10 s and checked every 5 s.
    /// <https://kubernetes.io/docs/reference/command-line-tools-reference/kube-controller-manager/>
    pub unheard: Span,
    /// From when a kubelet can be heard again, and tells of its pods, to its report that the Node is Ready: each has a loop of 10 s of
    /// its own.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/status/status_manager.go>
    pub reported: Span,
    /// Whether the cloud controller checks only instances whose Node is not Ready, as the real one does. Otherwise a Node
    /// goes soon after its instance.
    /// <https://github.com/kubernetes/cloud-provider/blob/master/controllers/nodelifecycle/node_lifecycle_controller.go>
    pub cloud_waits_for_not_ready: bool,
    /// From when the cloud controller could notice to the Node's deletion: it checks every 5 s.
    pub cloud_controller: Span,
    /// From the deletion of a Node to that of its pods: the collector runs every 20 s, and waits 40 s for a missing Node.
    /// <https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/podgc/gc_controller.go>
    pub pod_collection: Span,
}

impl Timing {
    /// As in real clusters.
    pub const fn real() -> Self {
        Self {
            request: Span::millis(1, 10).rarely(Duration::from_millis(500)),
            answer: Span::millis(1, 10).rarely(Duration::from_millis(500)),
            watch_lag: Span::millis(1, 50).rarely(Duration::from_secs(1)),
            eviction: Span::millis(2, 20),
            history: Span::seconds(300, 300),
            binding: Span::millis(5, 50).rarely(Duration::from_secs(1)),
            volume_binding: Span::seconds(1, 10).rarely(Duration::from_mins(3)),
            joining: Span::seconds(5, 30),
            status_report: Span::seconds(290, 310),
            status_change: Span::seconds(0, 10),
            kubelet_restart: Span::seconds(1, 10),
            leader_change: Span::seconds(15, 40),
            exit_noticed: Span::seconds(0, 1),
            unmount: Span::millis(100, 2_000),
            unheard: Span::seconds(40, 60),
            reported: Span::seconds(0, 10),
            cloud_waits_for_not_ready: true,
            cloud_controller: Span::seconds(0, 5),
            pod_collection: Span::seconds(40, 60),
        }
    }

    /// Quick, and the same in every run.
    pub const fn brisk() -> Self {
        Self {
            request: Span::NONE,
            answer: Span::NONE,
            watch_lag: Span::NONE,
            eviction: Span::NONE,
            history: Span::NONE,
            binding: Span::NONE,
            volume_binding: Span::NONE,
            joining: Span::NONE,
            status_report: Span::NONE,
            status_change: Span::NONE,
            kubelet_restart: Span::seconds(5, 5),
            leader_change: Span::seconds(20, 20),
            exit_noticed: Span::NONE,
            unmount: Span::millis(100, 100),
            unheard: Span::seconds(50, 50),
            reported: Span::NONE,
            cloud_waits_for_not_ready: false,
            cloud_controller: Span::seconds(5, 5),
            pod_collection: Span::seconds(2, 2),
        }
    }
}
