//! The EKS API, version 2017-11-01: managed node groups. Read-only.
//!
//! EKS speaks REST: operation and parameters are in the path, the answer is JSON. [`form`] turns a request into the shape of
//! the query protocol's, so that faults and journal treat all services alike.
//!
//! <https://docs.aws.amazon.com/eks/latest/APIReference/API_Operations.html>

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::error::ApiError;
use super::operation::Operation;
use super::query::Form;
use super::state::{ACCOUNT, REGION, State};
use crate::sim::http::Request;

/// The version of the API; requests do not carry it.
pub(super) const VERSION: &str = "2017-11-01";

/// The cluster if none is named.
const DEFAULT_CLUSTER: &str = "main";

/// A managed node group to add. A record only: its Auto Scaling group is added separately, with the tags `eks:cluster-name`
/// and `eks:nodegroup-name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeGroupSpec {
    name: String,
    cluster: String,
    labels: BTreeMap<String, String>,
    taints: Vec<(String, String, String)>,
    tags: BTreeMap<String, String>,
    spot: bool,
    ami_type: String,
    disk_gib: Option<u32>,
}

impl NodeGroupSpec {
    /// An On-Demand, Amazon Linux, x86_64 node group in the cluster `main`, as from a launch template of the user's.
    pub fn named(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            cluster: DEFAULT_CLUSTER.to_owned(),
            labels: BTreeMap::new(),
            taints: Vec::new(),
            tags: BTreeMap::new(),
            spot: false,
            ami_type: "AL2023_x86_64_STANDARD".to_owned(),
            disk_gib: None,
        }
    }

    /// In this cluster.
    #[must_use]
    pub fn cluster(mut self, name: impl Into<String>) -> Self {
        self.cluster = name.into();
        self
    }

    /// With a label on its nodes.
    #[must_use]
    pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.insert(key.into(), value.into());
        self
    }

    /// With a taint on its nodes; the effect is in EKS's spelling (`NO_SCHEDULE`).
    #[must_use]
    pub fn taint(
        mut self,
        key: impl Into<String>,
        value: impl Into<String>,
        effect: impl Into<String>,
    ) -> Self {
        self.taints.push((key.into(), value.into(), effect.into()));
        self
    }

    /// With a tag of the node group itself.
    #[must_use]
    pub fn tag(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.insert(key.into(), value.into());
        self
    }

    /// Of Spot instances.
    #[must_use]
    pub fn spot(mut self) -> Self {
        self.spot = true;
        self
    }

    /// With images of this kind.
    #[must_use]
    pub fn ami_type(mut self, kind: impl Into<String>) -> Self {
        self.ami_type = kind.into();
        self
    }

    /// Without a launch template of the user's, with a root volume of this size.
    #[must_use]
    pub fn disk(mut self, gib: u32) -> Self {
        self.disk_gib = Some(gib);
        self
    }

    /// <https://docs.aws.amazon.com/eks/latest/APIReference/API_Nodegroup.html>
    fn json(&self) -> Value {
        let taints: Vec<_> = self
            .taints
            .iter()
            .map(|(key, value, effect)| json!({ "key": key, "value": value, "effect": effect }))
            .collect();
        let (cluster, name) = (&self.cluster, &self.name);
        json!({
            "nodegroupName": name,
            "nodegroupArn": format!("arn:aws:eks:{REGION}:{ACCOUNT}:nodegroup/{cluster}/{name}/0"),
            "clusterName": cluster,
            "version": "1.35",
            "status": "ACTIVE",
            "capacityType": if self.spot { "SPOT" } else { "ON_DEMAND" },
            "amiType": self.ami_type,
            "labels": self.labels,
            "taints": taints,
            "diskSize": self.disk_gib,
            "tags": self.tags,
        })
    }
}

/// The request as a form; `None` if it is not for EKS.
pub(super) fn form(request: &Request) -> Option<Form> {
    let path = request.uri().path();
    let segments: Vec<_> = path.strip_prefix("/clusters/")?.split('/').collect();
    // <https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeNodegroup.html>
    Some(match (request.method(), &segments[..]) {
        (&http::Method::GET, [cluster, "node-groups", name]) => Form::from_iter([
            ("Version", VERSION),
            ("Action", Operation::DescribeNodegroup.name()),
            ("name", cluster),
            ("nodegroupName", name),
        ]),
        _ => Form::from_iter([("Version", VERSION), ("Action", path)]),
    })
}

pub(super) fn dispatch(state: &State, operation: Operation, form: &Form) -> Result<Value, ApiError> {
    match operation {
        Operation::DescribeNodegroup => describe(state, form),
        _ => Err(ApiError::unknown_path(form.get("Action").unwrap_or_default())),
    }
}

/// <https://docs.aws.amazon.com/eks/latest/APIReference/API_DescribeNodegroup.html>
fn describe(state: &State, form: &Form) -> Result<Value, ApiError> {
    let key = (form.required("name")?.to_owned(), form.required("nodegroupName")?.to_owned());
    let found = state.node_groups.get(&key).ok_or_else(|| ApiError::no_such_node_group(&key.1))?;
    Ok(json!({ "nodegroup": found.json() }))
}

impl State {
    /// Adds a managed node group, or replaces one of the same name.
    pub fn add_node_group(&mut self, spec: NodeGroupSpec) {
        self.node_groups.insert((spec.cluster.clone(), spec.name.clone()), spec);
    }
}
