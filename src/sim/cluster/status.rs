//! `Status` bodies of refusals, worded as in Kubernetes' `api/errors` package.
//! <https://github.com/kubernetes/apimachinery/blob/master/pkg/api/errors/errors.go>

use serde_json::{Value, json};

use super::names::Name;
use super::resources::{Resource, Row};

/// A refusal; `Display` is its message.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(super) struct Failure {
    pub(super) code: u16,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) details: Value,
    pub(super) retry_after: Option<u64>,
}

impl Failure {
    pub(super) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: json!({}), retry_after: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    pub(super) fn not_found(resource: Resource, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} \"{name}\" not found", resource.qualified()))
            .about(resource, name)
    }

    pub(super) fn no_such_path() -> Self {
        Self::new(404, "NotFound", "the server could not find the requested resource")
    }

    pub(super) fn exists(resource: Resource, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} \"{name}\" already exists", resource.qualified()))
            .about(resource, name)
    }

    pub(super) fn conflict(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} \"{name}\": {why}", resource.qualified());
        Self::new(409, "Conflict", message).about(resource, name)
    }

    pub(super) fn modified(resource: Resource, name: &str) -> Self {
        Self::conflict(
            resource,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// A precondition that does not hold. Unlike other conflicts, the message names the kind, not the resource.
    pub(super) fn precondition(resource: Resource, name: &str, why: &str) -> Self {
        let Row { group, kind, .. } = resource.facts();
        let named = if group.is_empty() { (*kind).to_owned() } else { format!("{kind}.{group}") };
        let message = format!("Operation cannot be fulfilled on {named} \"{name}\": {why}");
        Self::new(409, "Conflict", message).about(resource, name).of_kind(kind)
    }

    /// A refusal by validation. The real one repeats a cause as often as it occurs; here it appears once.
    pub(super) fn invalid(resource: Resource, name: &str, field: &str, why: &str) -> Self {
        let kind = resource.facts().kind;
        let reasons = [
            ("Required", "FieldValueRequired"),
            ("Duplicate", "FieldValueDuplicate"),
            ("Forbidden", "FieldValueForbidden"),
            ("Too long", "FieldValueTooLong"),
        ];
        let reason = reasons.iter().find(|(beginning, _)| why.starts_with(beginning));
        Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {field}: {why}"))
            .about(resource, name)
            .of_kind(kind)
            .cause(reason.map_or("FieldValueInvalid", |(_, reason)| reason), why, Some(field))
    }

    /// A patch that does not apply.
    pub(super) fn inapplicable() -> Self {
        Self::new(422, "Invalid", "the server rejected our request due to an error in our request")
    }

    /// An unknown token.
    pub(super) fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// An admission webhook denies the request.
    pub(super) fn denied() -> Self {
        Self::new(
            403,
            "Forbidden",
            "admission webhook \"policy.example.com\" denied the request: not this one",
        )
    }

    /// An admission webhook has the request made again later.
    pub(super) fn postponed() -> Self {
        Self::new(
            429,
            "TooManyRequests",
            "admission webhook \"evictions.example.com\" denied the request: Eviction triggered evacuation",
        )
    }

    /// An admission webhook does not answer.
    pub(super) fn webhook_silent() -> Self {
        Self::internal(
            "failed calling webhook \"policy.example.com\": failed to call webhook: Post \
             \"https://policy.example.svc:443/validate?timeout=10s\": context deadline exceeded",
        )
    }

    /// A streaming list was asked of a server without them.
    pub(super) fn no_streaming_lists() -> Self {
        let why = "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
        let message = format!("ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: Forbidden: {why}");
        let mut failure = Self::new(422, "Invalid", message).cause(
            "FieldValueForbidden",
            &format!("Forbidden: {why}"),
            Some("sendInitialEvents"),
        );
        failure.details["group"] = json!("meta.k8s.io");
        failure.of_kind("ListOptions")
    }

    pub(super) fn forbidden(resource: Resource, name: &str, why: &str) -> Self {
        let message = format!("{} \"{name}\" is forbidden: {why}", resource.qualified());
        Self::new(403, "Forbidden", message).about(resource, name)
    }

    /// The namespace lifecycle admission plugin refuses a create in a terminating namespace.
    pub(super) fn namespace_terminating(resource: Resource, name: &Name) -> Self {
        let Name { namespace, name } = name;
        let why =
            format!("unable to create new content in namespace {namespace} because it is being terminated");
        Self::forbidden(resource, name, &why).cause(
            "NamespaceTerminating",
            &format!("namespace {namespace} is being terminated"),
            Some("metadata.namespace"),
        )
    }

    pub(super) fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    pub(super) fn unsupported(content_type: &str) -> Self {
        let message = format!(
            "the body of the request was in an unknown format ({content_type}) - accepted media types include: \
             application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json"
        );
        Self::new(415, "UnsupportedMediaType", message)
    }

    pub(super) fn internal(message: &str) -> Self {
        Self::new(500, "InternalError", format!("Internal error occurred: {message}"))
    }

    /// Refuses a resourceVersion that lies ahead.
    pub(super) fn too_new(asked: u64, current: u64) -> Self {
        let message = format!("Timeout: Too large resource version: {asked}, current: {current}");
        Self::new(504, "Timeout", message).retry_after(1).cause(
            "ResourceVersionTooLarge",
            "Too large resource version",
            None,
        )
    }

    pub(super) fn about(mut self, resource: Resource, name: &str) -> Self {
        let facts = resource.facts();
        self.details["name"] = json!(name);
        self.details["kind"] = json!(facts.plural);
        if !facts.group.is_empty() {
            self.details["group"] = json!(facts.group);
        }
        self
    }

    fn of_kind(mut self, kind: &str) -> Self {
        self.details["kind"] = json!(kind);
        self
    }

    pub(super) fn cause(mut self, reason: &str, message: &str, field: Option<&str>) -> Self {
        let mut cause = json!({ "reason": reason, "message": message });
        if let Some(field) = field {
            cause["field"] = json!(field);
        }
        match self.details["causes"].as_array_mut() {
            Some(causes) => causes.push(cause),
            None => self.details["causes"] = json!([cause]),
        }
        self
    }

    pub(super) fn retry_after(mut self, seconds: u64) -> Self {
        self.details["retryAfterSeconds"] = json!(seconds);
        self.retry_after = Some(seconds);
        self
    }

    pub(super) fn body(&self) -> Value {
        let mut body = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            body["reason"] = json!(self.reason);
        }
        if self.details != json!({}) {
            body["details"] = self.details.clone();
        }
        body
    }
}

/// The `Status` of a success.
pub(super) fn success(code: u16, details: Option<Value>) -> Value {
    let mut body =
        json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code });
    if let Some(details) = details {
        body["details"] = details;
    }
    body
}
