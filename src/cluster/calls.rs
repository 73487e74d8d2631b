//! The calls of a scale-in, one function each.

use std::collections::BTreeMap;

use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, ObjectReference, Pod};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Status;
use serde_json::{Value, json};

use super::answer::{self, Answer, ApiError, CHANGED_WITHIN, changed, listed, timely};
use super::client::Cluster;
use super::drain_state::DrainState;
use super::node_view::NodeView;
use super::partial::Partial;
use super::pods::{PodName, PodView};
use crate::telemetry::{chain, cut};

/// Longest note that the API server takes in an Event, in bytes.
///
/// Source: [validation of Events](https://github.com/kubernetes/kubernetes/blob/master/pkg/apis/core/validation/events.go).
pub(crate) const NOTE_LIMIT: usize = 1_024;

/// What an Event is about.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// A Node.
    Node(&'a NodeView),
    /// A pod, by name and UID.
    Pod(&'a PodName, &'a str),
    /// A ConfigMap, by name and UID: for what is about no node yet.
    ConfigMap(&'a PodName, &'a str),
}

impl About<'_> {
    fn reference(self) -> ObjectReference {
        let named = |PodName { namespace, name }: &PodName| (Some(namespace.to_string()), name.to_string());
        let (kind, (namespace, name), uid) = match self {
            Self::Node(node) => ("Node", (None, node.name.to_string()), node.uid.clone()),
            Self::Pod(pod, uid) => ("Pod", named(pod), uid.to_owned()),
            Self::ConfigMap(map, uid) => ("ConfigMap", named(map), uid.to_owned()),
        };
        ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(kind.into()),
            namespace,
            name: Some(name),
            uid: Some(uid),
            ..ObjectReference::default()
        }
    }

    /// What is done, for machines.
    fn action(self) -> &'static str {
        match self {
            Self::Node(_) | Self::Pod(..) => "ScaleIn",
            Self::ConfigMap(..) => "ChooseGroup",
        }
    }
}

/// Largest answer to an eviction that is read.
const ANSWER_LIMIT: usize = 64 * 1024;

impl Cluster {
    /// Patches a Node, once fewer than a hundred others are being changed or read, which may take minutes: `is_wanted` is asked then. The
    /// patch has the resource version it is based on, so that it fails if the Node has changed.
    pub async fn patch_node(
        &self,
        name: &str,
        patch: &Value,
        is_wanted: impl FnOnce() -> bool,
    ) -> Result<NodeView, ApiError> {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let params = PatchParams { field_manager: Some("ebbtide".into()), ..PatchParams::default() };
        let patch = Patch::Merge(patch);
        let call = changed(api.patch(name, &params, &patch));
        let node = self.nodes.call_if(is_wanted, call).await.ok_or(ApiError::Unwanted)??;
        Ok(NodeView::from(&node))
    }

    /// Tells others by conditions of the Node how far its drain is, once fewer than twenty other Nodes' are being written; not if the wait
    /// takes too long. Returns the Node as written.
    pub async fn report_drain(
        &self,
        node: &NodeView,
        state: DrainState,
        now: Timestamp,
    ) -> Result<NodeView, ApiError> {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let patch = Patch::Strategic(state.patch(&node.uid, node.drain_state, now));
        let params = PatchParams { field_manager: Some("ebbtide".into()), ..PatchParams::default() };
        let node = changed(self.conditions.call(api.patch_status(&node.name, &params, &patch))).await?;
        Ok(NodeView::from(&node))
    }

    /// Deletes a Node as it was seen: fails if it has changed since. One that is gone already is fine. Returns the finalizers that keep it:
    /// none if it is gone.
    pub async fn delete_node(&self, node: &NodeView) -> Result<Vec<String>, ApiError> {
        let api: Api<Node> = Api::all(self.client.clone());
        let seen = Preconditions {
            uid: Some(node.uid.clone()),
            resource_version: Some(node.resource_version.clone()),
        };
        let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
        match self.nodes.call(changed(api.delete(&node.name, &params))).await {
            // The Node as long as it stays, a Status once it is gone.
            Ok(answer) => Ok(answer.left().and_then(|kept| kept.metadata.finalizers).unwrap_or_default()),
            Err(ApiError::NotFound) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// A Node as the API server has it now, as far as the program looks at it.
    pub async fn get_node(&self, name: &str) -> Result<NodeView, ApiError> {
        let api: Api<Partial<Node>> = Api::all(self.client.clone());
        let node = self.nodes.call(timely(api.get(name))).await?;
        Ok(NodeView::from(&node))
    }

    /// Evicts the pod with this UID, once fewer than a hundred others are being evicted. `grace` in seconds replaces the pod's own. `is_wanted`
    /// is asked then: that may take minutes.
    pub async fn evict(
        &self,
        pod: &PodName,
        uid: &str,
        grace: Option<i64>,
        is_wanted: impl FnOnce() -> bool,
    ) -> Answer {
        // `kube`'s own request writes `delete_options`, which the API server ignores, preconditions and all.
        let body = json!({
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": { "name": *pod.name, "namespace": *pod.namespace },
            "deleteOptions": { "gracePeriodSeconds": grace, "preconditions": { "uid": uid } },
        });
        let path = format!("/api/v1/namespaces/{}/pods/{}/eviction", pod.namespace, pod.name);
        let request = http::Request::post(path)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(kube::client::Body::from(body.to_string().into_bytes()));
        let request = match request {
            Ok(request) => request,
            Err(error) => return Answer::Unclear(chain(&error)),
        };
        // Its time counts from when it has a place.
        let call = async { tokio::time::timeout(CHANGED_WITHIN, self.answer(request)).await };
        match self.evictions.call_if(is_wanted, call).await {
            Some(Ok(answer)) => answer,
            Some(Err(_)) => Answer::Unclear(ApiError::TimedOut.to_string()),
            None => Answer::Unsent,
        }
    }

    async fn answer(&self, request: http::Request<kube::client::Body>) -> Answer {
        let response = match self.client.send(request).await {
            Ok(response) => response,
            Err(error) => return Answer::Unclear(chain(&error)),
        };
        let code = response.status().as_u16();
        let retry_after = answer::retry_after(response.headers());
        let body = Limited::new(response.into_body(), ANSWER_LIMIT).collect().await;
        let status: Option<Status> = body.ok().and_then(|body| serde_json::from_slice(&body.to_bytes()).ok());
        answer::read(code, retry_after, status.as_ref())
    }

    /// Deletes the pod with this UID, whatever budgets say, once fewer than fifty others are being deleted. `grace` in seconds replaces
    /// the pod's own. `is_wanted` is asked then: that may take minutes.
    pub async fn delete_pod(
        &self,
        pod: &PodName,
        uid: &str,
        grace: Option<i64>,
        is_wanted: impl FnOnce() -> bool,
    ) -> Answer {
        let api: Api<Partial<Pod>> = Api::namespaced(self.client.clone(), &pod.namespace);
        let params = DeleteParams {
            grace_period_seconds: grace.and_then(|seconds| u32::try_from(seconds).ok()),
            preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
            ..DeleteParams::default()
        };
        let call = changed(async {
            match api.delete(&pod.name, &params).await {
                Ok(_) => Ok(Answer::Going),
                Err(kube::Error::Api(status)) => Ok(answer::read(status.code, None, Some(&status))),
                Err(error) => Err(error),
            }
        });
        match self.deletions.call_if(is_wanted, call).await {
            Some(answer) => answer.unwrap_or_else(|error| Answer::Unclear(chain(&error))),
            None => Answer::Unsent,
        }
    }

    /// Sets the condition DisruptionTarget, as the eviction API does, so that the pod's owner knows why it goes.
    /// Source: [Pod disruption
    /// conditions](https://kubernetes.io/docs/concepts/workloads/pods/disruptions/#pod-disruption-conditions).
    pub async fn note_disruption(
        &self,
        pod: &PodName,
        uid: &str,
        why: &str,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let api: Api<Partial<Pod>> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({
            "metadata": { "uid": uid },
            "status": { "conditions": [{
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "DeletionByEbbtide",
                "message": format!("The node is scaled in, and {why}"),
                "lastTransitionTime": Time(now),
            }] },
        });
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        self.notes.call(changed(api.patch_status(&pod.name, &params, &patch))).await?;
        Ok(())
    }

    /// The pods on a Node, as of now, once fewer than twenty other lists are under way.
    pub async fn list_pods_now(&self, node: &str) -> Result<Vec<PodView>, ApiError> {
        let api: Api<Partial<Pod>> = Api::all(self.client.clone());
        // In one page, as the watch lists them.
        let on_node = ListParams::default().fields(&format!("spec.nodeName={node}"));
        let pods = self.lists.call(listed(api.list(&on_node))).await?;
        Ok(pods.items.iter().map(PodView::from).collect())
    }

    /// Whether the DaemonSet of this name has this UID now.
    pub async fn has_daemon_set(&self, name: &PodName, uid: &str) -> Result<bool, ApiError> {
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &name.namespace);
        match self.nodes.call(timely(api.get_metadata(&name.name))).await {
            Ok(found) => Ok(found.metadata.uid.as_deref() == Some(uid)),
            Err(ApiError::NotFound) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets annotations of the pod with this UID, once fewer than fifty others are being annotated; null removes one.
    pub async fn annotate_pod(&self, pod: &PodName, uid: &str, annotations: &Value) -> Result<(), ApiError> {
        let api: Api<Partial<Pod>> = Api::namespaced(self.client.clone(), &pod.namespace);
        let patch = json!({ "metadata": { "uid": uid, "annotations": annotations } });
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        self.annotations.call(changed(api.patch_metadata(&pod.name, &params, &patch))).await?;
        Ok(())
    }

    /// The data of a ConfigMap in our namespace; `None` if there is no such ConfigMap.
    pub async fn config_map(&self, name: &str) -> Result<Option<BTreeMap<String, String>>, ApiError> {
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        match timely(api.get(name)).await {
            Ok(found) => Ok(Some(found.data.unwrap_or_default())),
            Err(ApiError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The UID of a ConfigMap in our namespace.
    pub async fn config_map_uid(&self, name: &str) -> Result<String, ApiError> {
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        Ok(timely(api.get_metadata(name)).await?.metadata.uid.unwrap_or_default())
    }

    /// Sets these keys of a ConfigMap in our namespace, and creates it if it is missing.
    pub async fn write_config_map(&self, name: &str, data: &BTreeMap<&str, String>) -> Result<(), ApiError> {
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        let patch = json!({ "data": data });
        match timely(api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))).await {
            Err(ApiError::NotFound) => {}
            outcome => return outcome.map(drop),
        }
        let made = ConfigMap {
            metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
            data: Some(data.iter().map(|(key, text)| ((*key).to_owned(), text.clone())).collect()),
            ..ConfigMap::default()
        };
        timely(api.create(&PostParams::default(), &made)).await?;
        Ok(())
    }

    /// A Lease in our namespace; `None` if there is no such Lease.
    pub(super) async fn lease(&self, name: &str) -> Result<Option<Lease>, ApiError> {
        let api: Api<Lease> = Api::default_namespaced(self.client.clone());
        match timely(api.get(name)).await {
            Ok(found) => Ok(Some(found)),
            Err(ApiError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes a Lease, or creates it; fails if somebody else has written it since it was read. A rehearsal (dry run)
    /// changes nothing.
    pub(super) async fn write_lease(&self, lease: &Lease, rehearsal: bool) -> Result<Lease, ApiError> {
        let api: Api<Lease> = Api::default_namespaced(self.client.clone());
        let params = PostParams { dry_run: rehearsal, ..PostParams::default() };
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        if lease.metadata.resource_version.is_some() {
            timely(api.replace(name, &params, lease)).await
        } else {
            timely(api.create(&params, lease)).await
        }
    }

    /// Publishes an Event, once fewer than twenty others of its kind (of pods, or of anything else) are being published; not if the wait
    /// takes too long. `kube`'s recorder would keep only the first text of each reason, and the text says which budget blocks.
    pub async fn announce(
        &self,
        about: About<'_>,
        reason: &str,
        text: &str,
        warning: bool,
        now: Timestamp,
    ) -> Result<(), ApiError> {
        let regarding = about.reference();
        let name = regarding.name.clone().unwrap_or_default();
        // Events about objects without a namespace live in this one.
        let namespace = regarding.namespace.clone().unwrap_or_else(|| "default".into());
        let event = Event {
            metadata: ObjectMeta { generate_name: Some(format!("{name}-")), ..ObjectMeta::default() },
            event_time: Some(MicroTime(now)),
            reporting_controller: Some("ebbtide".into()),
            reporting_instance: Some("ebbtide".into()),
            action: Some(about.action().into()),
            reason: Some(reason.to_owned()),
            note: Some(cut(text, NOTE_LIMIT)),
            type_: Some(if warning { "Warning" } else { "Normal" }.into()),
            regarding: Some(regarding),
            ..Event::default()
        };
        let api: Api<Event> = Api::namespaced(self.client.clone(), &namespace);
        let places = if matches!(about, About::Pod(..)) { &self.pod_events } else { &self.events };
        timely(places.call(api.create(&PostParams::default(), &event))).await?;
        Ok(())
    }
}
