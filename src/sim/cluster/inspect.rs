//! Reads a cluster without its API server: typed objects, counters, log lines.

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::de::DeserializeOwned;

use super::journal::Event;
use super::logs::Lines;
use super::names::Name;
use super::object::Object;
use super::resources::{Resource, Shape};
use super::route::Verb;
use super::{Cluster, Entry};

/// A kind of object that the cluster can show.
pub trait Kind: k8s_openapi::Resource + DeserializeOwned {}
impl<K: k8s_openapi::Resource + DeserializeOwned> Kind for K {}

pub(super) fn resource<K: Kind>() -> Option<(Resource, Shape)> {
    Resource::at(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT)
}

fn typed<K: Kind>(object: &Object, shape: Shape) -> Option<K> {
    serde_json::from_str(&object.render(shape)).ok()
}

impl Cluster {
    /// An object of a namespace, such as `get::<PodDisruptionBudget>("web")`.
    pub fn get<K: Kind<Scope = NamespaceResourceScope>>(&self, name: impl Into<Name>) -> Option<K> {
        let (resource, shape) = resource::<K>()?;
        let name = name.into();
        self.read(|state| typed(state.store.get(resource, &name)?, shape))
    }

    /// All objects of a kind.
    pub fn list<K: Kind>(&self) -> Vec<K> {
        let Some((resource, shape)) = resource::<K>() else { return Vec::new() };
        self.read(|state| state.store.all(resource).filter_map(|object| typed(object, shape)).collect())
    }

    /// A pod.
    pub fn pod(&self, name: impl Into<Name>) -> Option<Pod> {
        self.get(name)
    }

    /// The pods bound to a node, whatever their phase.
    pub fn pods_on(&self, node: &str) -> Vec<Pod> {
        self.read(|state| state.store.pods_on(node).filter_map(|pod| typed(pod, Shape::Full)).collect())
    }

    /// A node.
    pub fn node(&self, name: &str) -> Option<Node> {
        self.read(|state| typed(state.store.get(Resource::Nodes, &Name::cluster(name))?, Shape::Full))
    }

    /// Whether a Node exists.
    pub fn has_node(&self, name: &str) -> bool {
        self.read(|state| state.store.get(Resource::Nodes, &Name::cluster(name)).is_some())
    }

    /// Whether a Node exists and is Ready.
    pub fn is_ready(&self, node: &str) -> bool {
        let ready = |node: &std::sync::Arc<Object>| node.condition("Ready");
        self.read(|state| state.store.get(Resource::Nodes, &Name::cluster(node)).is_some_and(ready))
    }

    /// The names of the nodes.
    pub fn node_names(&self) -> Vec<String> {
        self.read(|state| state.store.all(Resource::Nodes).map(|node| node.name.name.clone()).collect())
    }

    /// How many Nodes there are.
    pub fn node_count(&self) -> usize {
        self.read(|state| state.store.count(Resource::Nodes))
    }

    /// How many unfinished pods, neither being deleted nor of a DaemonSet, are bound to a node.
    pub fn workloads_on(&self, node: &str) -> usize {
        self.read(|state| {
            let pods = state.store.pods_on(node);
            pods.filter(|pod| pod.pod().active() && !pod.pod().daemon).count()
        })
    }

    /// The log lines of a node, present or past.
    pub fn lines(&self, node: &str) -> Lines {
        self.read(|state| {
            let now = state.now;
            state.logs.get_mut(node).map(|logs| logs.lines(now)).unwrap_or_default()
        })
    }

    /// The log lines of all nodes, present and past.
    pub fn all_lines(&self) -> Lines {
        self.read(|state| {
            let now = state.now;
            state.logs.values_mut().map(|logs| logs.lines(now)).fold(Lines::default(), |sum, one| Lines {
                written: sum.written + one.written,
                shipped: sum.shipped + one.shipped,
                lost: sum.lost + one.lost,
            })
        })
    }

    /// How many requests for `resource` (`"pods"`, `"pods/eviction"`) the API server has answered.
    pub fn requests(&self, verb: Verb, resource: &str) -> usize {
        self.count(|entry| match &entry.what {
            Event::Request { verb: v, resource: r, subresource, .. } => {
                *v == verb
                    && match subresource {
                        None => *r == resource,
                        Some(sub) => {
                            resource.strip_prefix(r).and_then(|rest| rest.strip_prefix('/')) == Some(sub)
                        }
                    }
            }
            _ => false,
        })
    }

    /// How many journal entries match.
    pub fn count(&self, mut such: impl FnMut(&Entry) -> bool) -> usize {
        self.read(|state| state.journal.entries().iter().filter(|entry| such(entry)).count())
    }

    /// Whether a journal entry matches.
    pub fn happened(&self, mut such: impl FnMut(&Event) -> bool) -> bool {
        self.read(|state| state.journal.entries().iter().any(|entry| such(&entry.what)))
    }

    /// The latest revision.
    pub fn revision(&self) -> u64 {
        self.read(|state| state.store.revision)
    }
}
