//! The resources of this API server, in one table.
//!
//! All other code is generic over [`Resource`]: what differs between kinds is a column here. An event has two addresses
//! (core/v1 and events.k8s.io/v1) and one stored form, as in the real server; see [`Shape`].

use k8s_openapi::api::{
    apps::v1 as apps, batch::v1 as batch, coordination::v1 as coordination, core::v1 as core,
};
use k8s_openapi::api::{events::v1 as events, policy::v1 as policy, storage::v1 as storage};
use serde_json::Value;

use super::table::Include;

/// A kind of object that the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    Namespaces,
    Nodes,
    Pods,
    ConfigMaps,
    Events,
    ReplicaSets,
    DaemonSets,
    Deployments,
    StatefulSets,
    Budgets,
    VolumeAttachments,
    Leases,
    Jobs,
}

/// The form in which an object enters or leaves the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    /// As stored.
    Full,
    /// `PartialObjectMetadata`.
    Metadata,
    /// A core/v1 Event; the stored form is events.k8s.io/v1.
    CoreEvent,
    /// A row of a `Table`.
    Table(Include),
}

/// What distinguishes a resource.
#[expect(clippy::struct_excessive_bools, reason = "they are columns of a table, each on its own")]
pub(super) struct Row {
    pub(super) resource: Resource,
    pub(super) group: &'static str,
    pub(super) plural: &'static str,
    pub(super) kind: &'static str,
    /// What kubectl calls it for short.
    pub(super) short: &'static str,
    pub(super) namespaced: bool,
    /// Has a status subresource: writes of the object itself leave the status alone.
    pub(super) status: bool,
    /// `AllowUnconditionalUpdate` of its registry strategy: a PUT may leave the resourceVersion out.
    pub(super) unconditional: bool,
    /// Whether `metadata.generation` counts changes of its spec.
    pub(super) generation: bool,
    /// Checks a value against the kind's schema.
    pub(super) decodes: fn(&Value) -> Result<(), serde_json::Error>,
}

fn decodes<K: serde::de::DeserializeOwned>(value: &Value) -> Result<(), serde_json::Error> {
    K::deserialize(value).map(drop)
}

const fn kind(
    resource: Resource,
    group: &'static str,
    plural: &'static str,
    kind: &'static str,
    decodes: fn(&Value) -> Result<(), serde_json::Error>,
) -> Row {
    Row {
        resource,
        group,
        plural,
        kind,
        short: "",
        namespaced: true,
        status: true,
        unconditional: true,
        generation: true,
        decodes,
    }
}

/// In the order of [`Resource`].
pub(super) static ROWS: [Row; 13] = [
    Row {
        short: "ns",
        namespaced: false,
        generation: false,
        ..kind(Resource::Namespaces, "", "namespaces", "Namespace", decodes::<core::Namespace>)
    },
    Row {
        short: "no",
        namespaced: false,
        generation: false,
        ..kind(Resource::Nodes, "", "nodes", "Node", decodes::<core::Node>)
    },
    Row { short: "po", ..kind(Resource::Pods, "", "pods", "Pod", decodes::<core::Pod>) },
    Row {
        short: "cm",
        status: false,
        generation: false,
        ..kind(Resource::ConfigMaps, "", "configmaps", "ConfigMap", decodes::<core::ConfigMap>)
    },
    Row {
        short: "ev",
        status: false,
        generation: false,
        ..kind(Resource::Events, "events.k8s.io", "events", "Event", decodes::<events::Event>)
    },
    Row {
        short: "rs",
        ..kind(Resource::ReplicaSets, "apps", "replicasets", "ReplicaSet", decodes::<apps::ReplicaSet>)
    },
    Row {
        short: "ds",
        ..kind(Resource::DaemonSets, "apps", "daemonsets", "DaemonSet", decodes::<apps::DaemonSet>)
    },
    Row {
        short: "deploy",
        ..kind(Resource::Deployments, "apps", "deployments", "Deployment", decodes::<apps::Deployment>)
    },
    Row {
        short: "sts",
        ..kind(Resource::StatefulSets, "apps", "statefulsets", "StatefulSet", decodes::<apps::StatefulSet>)
    },
    Row {
        short: "pdb",
        unconditional: false,
        ..kind(
            Resource::Budgets,
            "policy",
            "poddisruptionbudgets",
            "PodDisruptionBudget",
            decodes::<policy::PodDisruptionBudget>,
        )
    },
    Row {
        namespaced: false,
        unconditional: false,
        generation: false,
        ..kind(
            Resource::VolumeAttachments,
            "storage.k8s.io",
            "volumeattachments",
            "VolumeAttachment",
            decodes::<storage::VolumeAttachment>,
        )
    },
    Row {
        status: false,
        unconditional: false,
        generation: false,
        ..kind(Resource::Leases, "coordination.k8s.io", "leases", "Lease", decodes::<coordination::Lease>)
    },
    kind(Resource::Jobs, "batch", "jobs", "Job", decodes::<batch::Job>),
];

impl Resource {
    pub(super) fn facts(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The resource at `/apis/GROUP/VERSION/PLURAL`, and its form there.
    pub(super) fn at(group: &str, version: &str, plural: &str) -> Option<(Self, Shape)> {
        if version != "v1" {
            return None;
        }
        if group.is_empty() && plural == "events" {
            return Some((Self::Events, Shape::CoreEvent));
        }
        let kind = ROWS.iter().find(|kind| kind.group == group && kind.plural == plural)?;
        Some((kind.resource, Shape::Full))
    }

    /// `pods`, or `poddisruptionbudgets.policy`, as in Kubernetes' messages.
    pub(super) fn qualified(self) -> String {
        let Row { group, plural, .. } = self.facts();
        if group.is_empty() { (*plural).to_owned() } else { format!("{plural}.{group}") }
    }

    /// The `apiVersion` and `kind` of an object in this shape.
    pub(super) fn type_meta(self, shape: Shape) -> (String, &'static str) {
        let Row { group, kind, .. } = self.facts();
        match shape {
            Shape::Metadata => ("meta.k8s.io/v1".to_owned(), "PartialObjectMetadata"),
            Shape::Table(_) => ("meta.k8s.io/v1".to_owned(), "Table"),
            Shape::CoreEvent => ("v1".to_owned(), "Event"),
            Shape::Full if group.is_empty() => ("v1".to_owned(), kind),
            Shape::Full => (format!("{group}/v1"), kind),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_finds_its_own_row() {
        for kind in &ROWS {
            assert_eq!(kind.resource.facts().plural, kind.plural);
        }
    }
}
