//! The rights that the program needs in the cluster, as `deploy/base/rbac.yaml` gives them. A test holds the two together.

use crate::cluster::Right;
use crate::config::Config;

/// What becomes of the program without a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Something that it is there for does not work.
    Always,
    /// The same, where a flag asks for it.
    For(&'static str),
    /// It works, and somebody misses something.
    Optional(&'static str),
}

/// A right with how much it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needed<'a> {
    /// The right.
    pub right: Right<'a>,
    /// How much it is needed.
    pub need: Need,
}

/// The rights that do not depend on flags: group, resource, subresource, verbs.
const ALWAYS: [(&str, &str, &str, &[&str]); 8] = [
    ("", "nodes", "", &["get", "list", "watch", "patch"]),
    // Not a verb of the API server's: deploy/base/admission.yaml asks for it.
    ("", "nodes", "", &["scale-in"]),
    ("", "pods", "", &["list", "watch", "delete"]),
    ("", "pods", "eviction", &["create"]),
    ("", "pods", "status", &["patch"]),
    ("apps", "daemonsets", "", &["get", "list", "watch"]),
    ("policy", "poddisruptionbudgets", "", &["list", "watch"]),
    ("storage.k8s.io", "volumeattachments", "", &["list", "watch"]),
];

/// The rights that this configuration needs, in the namespace of the program.
pub fn needed<'a>(config: &'a Config, namespace: &'a str) -> Vec<Needed<'a>> {
    let mut all = Vec::new();
    for (group, resource, subresource, verbs) in ALWAYS {
        for &verb in verbs {
            let right = Right { verb, group, resource, subresource, ..Right::default() };
            all.push(Needed { right, need: Need::Always });
        }
    }
    let mut also = |right, need| all.push(Needed { right, need });
    let guards = if config.scale_in.guard {
        Need::For("--daemonset-guard")
    } else {
        Need::Optional("the guard of DaemonSet pods, which is off")
    };
    also(Right { verb: "patch", resource: "pods", ..Right::default() }, guards);
    also(
        Right { verb: "patch", resource: "nodes", subresource: "status", ..Right::default() },
        Need::Optional("conditions of Nodes do not tell others of drains"),
    );
    let events = Right { verb: "create", group: "events.k8s.io", resource: "events", ..Right::default() };
    also(Right { namespace: "default", ..events }, Need::Always);
    also(events, Need::Optional("no Event tells pods why they go"));
    if config.expander_events {
        also(Right { namespace, ..events }, Need::For("--expander-events"));
    }
    if config.scale_in.delete_node_after.is_some() {
        let delete = Right { verb: "delete", resource: "nodes", ..Right::default() };
        also(delete, Need::For("--delete-node-after"));
    }
    for verb in ["get", "patch"] {
        let name = config.templates_config_map.as_str();
        let map = Right { verb, resource: "configmaps", namespace, name, ..Right::default() };
        also(map, Need::Optional("what nodes have shown for templates is lost at a restart"));
    }
    if let Some(candidate) = &config.election {
        let lease = Right { group: "coordination.k8s.io", resource: "leases", namespace, ..Right::default() };
        also(Right { verb: "create", ..lease }, Need::Optional("a Lease that is not there is not made"));
        for verb in ["get", "update"] {
            also(Right { verb, name: candidate.lease.as_str(), ..lease }, Need::Always);
        }
    }
    all
}
