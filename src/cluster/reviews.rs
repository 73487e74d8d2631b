//! What `ebbtide check` asks the API server: rights, pods, autoscalers, Leases.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::coordination::v1::Lease;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PostParams};

use super::answer::{ApiError, timely};
use super::client::Cluster;
use super::partial::Partial;

/// A right that a caller may have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right<'a> {
    /// The verb.
    pub verb: &'a str,
    /// The API group.
    pub group: &'a str,
    /// The resource.
    pub resource: &'a str,
    /// The subresource; empty: none.
    pub subresource: &'a str,
    /// The namespace; empty: all, or none.
    pub namespace: &'a str,
    /// The object's name; empty: any.
    pub name: &'a str,
}

/// Somebody who holds a Lease, or has given it back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseHolder {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Who holds it; empty: nobody.
    pub holder: String,
}

/// A container of a Deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeployedContainer {
    /// `namespace/name` of the Deployment.
    pub deployment: String,
    /// Its image.
    pub image: String,
    /// Its command line.
    pub args: Vec<String>,
}

impl Cluster {
    /// Whether the caller has a right, by a SelfSubjectAccessReview.
    ///
    /// Source: [Checking API access](https://kubernetes.io/docs/reference/access-authn-authz/authorization/#checking-api-access).
    pub async fn may(&self, right: &Right<'_>) -> Result<bool, ApiError> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let attributes = ResourceAttributes {
            verb: given(right.verb),
            group: given(right.group),
            resource: given(right.resource),
            subresource: given(right.subresource),
            namespace: given(right.namespace),
            name: given(right.name),
            ..ResourceAttributes::default()
        };
        let spec =
            SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let api: Api<SelfSubjectAccessReview> = Api::all(self.client.clone());
        let answer = timely(api.create(&PostParams::default(), &review)).await?;
        Ok(answer.status.is_some_and(|status| status.allowed))
    }

    /// The containers of all Deployments that are to have pods.
    pub async fn list_deployed(&self) -> Result<Vec<DeployedContainer>, ApiError> {
        let api: Api<Partial<Deployment>> = Api::all(self.client.clone());
        let all = timely(api.list(&ListParams::default().match_any())).await?.items;
        let running = all.into_iter().filter(|Partial(deployment)| deployment.spec.replicas != Some(0));
        let containers = running.flat_map(|Partial(deployment)| {
            let name = format!("{}/{}", deployment.namespace().unwrap_or_default(), deployment.name_any());
            let pod = deployment.spec.template.spec;
            pod.into_iter().flat_map(|pod| pod.containers).map(move |container| DeployedContainer {
                deployment: name.clone(),
                image: container.image.unwrap_or_default(),
                args: container
                    .command
                    .into_iter()
                    .flatten()
                    .chain(container.args.into_iter().flatten())
                    .collect(),
            })
        });
        Ok(containers.collect())
    }

    /// A Lease of our own namespace. One that is not there is held by nobody.
    pub async fn read_lease(&self, name: &str) -> Result<LeaseHolder, ApiError> {
        Ok(self.lease(name).await?.as_ref().map(holder).unwrap_or_default())
    }

    /// All Leases of the cluster.
    pub async fn list_leases(&self) -> Result<Vec<LeaseHolder>, ApiError> {
        let api: Api<Lease> = Api::all(self.client.clone());
        let all = timely(api.list(&ListParams::default().match_any())).await?.items;
        Ok(all.iter().map(holder).collect())
    }
}

fn holder(lease: &Lease) -> LeaseHolder {
    LeaseHolder {
        namespace: lease.namespace().unwrap_or_default(),
        name: lease.name_any(),
        holder: lease.spec.as_ref().and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
    }
}
