//! Parses an HTTP request: verb, resource, name, subresource, query.
//!
//! <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-uris>

use std::collections::BTreeMap;
use std::fmt;

use super::names::Name;
use super::resources::{Resource, Shape};
use super::scale::scales;
use super::table::Include;
use crate::sim::http::Request;

/// What a request does, in the terms of Kubernetes' authorization.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Read one object.
    Get,
    /// Read many.
    List,
    /// Follow changes.
    Watch,
    /// Create one, including evictions.
    Create,
    /// Replace one.
    Update,
    /// Change part of one.
    Patch,
    /// Delete one.
    Delete,
    /// Delete many.
    DeleteCollection,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        })
    }
}

/// A request about a resource.
pub(super) struct Call<'a> {
    pub(super) verb: Verb,
    pub(super) resource: Resource,
    /// The form of objects at this address.
    pub(super) address: Shape,
    /// The form that the client wants.
    pub(super) shape: Shape,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
    pub(super) query: BTreeMap<String, String>,
    pub(super) content_type: &'a str,
    pub(super) body: &'a [u8],
}

/// Where a request goes.
pub(super) enum Route<'a> {
    Resource(Call<'a>),
    /// `/version`, discovery, health: answered from the path.
    Document(&'a str),
    /// A SelfSubjectAccessReview.
    AccessReview(&'a [u8]),
}

impl Call<'_> {
    pub(super) fn param(&self, key: &str) -> Option<&str> {
        self.query.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn flag(&self, key: &str) -> bool {
        matches!(self.param(key), Some("true" | "1"))
    }

    pub(super) fn dry_run(&self) -> bool {
        self.param("dryRun") == Some("All")
    }

    /// The object it names.
    pub(super) fn target(&self) -> Name {
        Name::new(self.namespace.as_deref().unwrap_or_default(), self.name.as_deref().unwrap_or_default())
    }

    /// `pods`, `pods/eviction`: the resource as RBAC rules and faults name it.
    pub(super) fn resource_path(&self) -> String {
        let plural = self.resource.facts().plural;
        match &self.subresource {
            Some(subresource) => format!("{plural}/{subresource}"),
            None => plural.to_owned(),
        }
    }
}

/// Parses a request's address; `None` if it does not exist.
pub(super) fn route(request: &Request) -> Option<Route<'_>> {
    let path = request.uri().path();
    let segments: Vec<&str> = path.split('/').filter(|segment| !segment.is_empty()).collect();
    let (group, version, rest) = match segments.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Some(Route::Document(path)),
    };
    if group == "authorization.k8s.io" && rest == ["selfsubjectaccessreviews"] {
        return Some(Route::AccessReview(request.body()));
    }
    let at = |plural: &str| Resource::at(group, version, plural);
    let (found, namespace, rest) = match rest {
        ["namespaces", namespace, plural, rest @ ..] if at(plural).is_some() => {
            (at(plural)?, Some((*namespace).to_owned()), rest)
        }
        [plural, rest @ ..] => (at(plural)?, None, rest),
        [] => return None,
    };
    let (resource, address) = found;
    if namespace.is_some() && !resource.facts().namespaced {
        return None;
    }
    let (name, subresource) = match rest {
        [] => (None, None),
        [name] => (Some((*name).to_owned()), None),
        [name, subresource] => (Some((*name).to_owned()), Some((*subresource).to_owned())),
        _ => return None,
    };
    let known = match subresource.as_deref() {
        None => true,
        Some("status") => resource.facts().status,
        Some("eviction") => resource == Resource::Pods,
        Some("scale") => scales(resource),
        Some(_) => false,
    };
    if !known {
        return None;
    }
    let header = |name| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let accepted = header(http::header::ACCEPT);
    let query = parse_query(request.uri().query().unwrap_or_default());
    // Of a write, the real server shows a table too; kubectl asks for none.
    let shape = if accepted.contains("as=PartialObjectMetadata") {
        Shape::Metadata
    } else if accepted.contains("as=Table") && *request.method() == http::Method::GET {
        Shape::Table(Include::of(query.get("includeObject").map(String::as_str)))
    } else {
        address
    };
    let mut call = Call {
        verb: Verb::Get,
        resource,
        address,
        shape,
        namespace,
        name,
        subresource,
        query,
        content_type: header(http::header::CONTENT_TYPE),
        body: request.body(),
    };
    call.verb = verb(request.method(), &call)?;
    Some(Route::Resource(call))
}

fn verb(method: &http::Method, call: &Call<'_>) -> Option<Verb> {
    let named = call.name.is_some();
    Some(match *method {
        http::Method::GET if call.flag("watch") => Verb::Watch,
        http::Method::GET if named => Verb::Get,
        http::Method::GET => Verb::List,
        http::Method::POST if !named || call.subresource.is_some() => Verb::Create,
        http::Method::PUT if named => Verb::Update,
        http::Method::PATCH if named => Verb::Patch,
        http::Method::DELETE if named => Verb::Delete,
        http::Method::DELETE => Verb::DeleteCollection,
        _ => return None,
    })
}

fn parse_query(query: &str) -> BTreeMap<String, String> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(key), decode(value))
        })
        .collect()
}

/// Decodes `application/x-www-form-urlencoded`.
fn decode(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let escaped = || {
            let mut ahead = bytes.clone();
            let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
            Some((digit(ahead.next())? * 16 + digit(ahead.next())?) as u8)
        };
        match (byte, if byte == b'%' { escaped() } else { None }) {
            (b'%', Some(value)) => {
                out.push(value);
                bytes.nth(1);
            }
            (b'+', _) => out.push(b' '),
            (byte, _) => out.push(byte),
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn request(method: &str, uri: &str) -> Request {
        http::Request::builder().method(method).uri(uri).body(Bytes::new()).unwrap()
    }

    #[test]
    fn an_address_tells_verb_resource_namespace_name_and_subresource() {
        let eviction = request("POST", "/api/v1/namespaces/shop/pods/web-1/eviction?dryRun=All");
        let Some(Route::Resource(call)) = route(&eviction) else { panic!("no resource") };
        assert_eq!((call.verb, call.resource_path()), (Verb::Create, "pods/eviction".to_owned()));
        assert_eq!(call.target(), Name::new("shop", "web-1"));
        assert!(call.dry_run());

        let namespace = request("GET", "/api/v1/namespaces/shop/status");
        let Some(Route::Resource(call)) = route(&namespace) else { panic!("no resource") };
        assert_eq!((call.resource, call.name.as_deref()), (Resource::Namespaces, Some("shop")));
    }

    #[test]
    fn a_query_is_decoded() {
        let list = request("GET", "/api/v1/pods?watch=true&labelSelector=app+in%20%28a%2Cb%29");
        let Some(Route::Resource(call)) = route(&list) else { panic!("no resource") };
        assert_eq!((call.verb, call.param("labelSelector")), (Verb::Watch, Some("app in (a,b)")));
    }

    #[test]
    fn what_is_not_served_has_no_route() {
        assert!(route(&request("GET", "/api/v1/secrets")).is_none());
        assert!(route(&request("GET", "/apis/policy/v1beta1/poddisruptionbudgets")).is_none());
        assert!(route(&request("GET", "/api/v1/nodes/n1/eviction")).is_none());
    }
}
