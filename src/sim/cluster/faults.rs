//! Faults that a test or a scenario causes.
//!
//! Faults hit only requests between client and server; kubelets and controllers go on. A rule is used up by the requests
//! that match it; webhooks and RBAC stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::names::Name;
use super::policies::User;
use super::route::{Call, Verb};

/// How long the API server waits for a webhook (`timeoutSeconds`).
/// <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts>
pub(super) const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered 429 by flow control, in plain text (no `Status`) and with `Retry-After`.
    TooManyRequests {
        /// The value of `Retry-After`.
        retry_after_seconds: u64,
    },
    /// Answered 500 because etcd timed out; the seed decides whether it took effect.
    InternalError,
    /// The same, with or without effect as given.
    EtcdTimedOut {
        /// Whether it took effect.
        took_effect: bool,
    },
    /// Answered 410 Expired, without effect.
    Expired,
    /// Answered 401: the token has expired, or is not valid yet.
    Unauthorized,
    /// Somebody else writes the object just before: a write with its old version is refused.
    Overtaken,
    /// The connection breaks before the request takes effect.
    RequestLost,
    /// The connection breaks after the request took effect.
    AnswerLost,
    /// The request takes effect at once; its answer takes this long.
    Slow(Duration),
}

struct Rule {
    verb: Verb,
    resource: String,
    left: u32,
    fault: Fault,
}

/// An admission webhook's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Denies,
    /// With 429, like one that does the request in its own way.
    Postpones,
    SaysNothing,
}

struct Webhook {
    verb: Verb,
    resource: String,
    /// The only objects concerned, if not all are: this one, and those of a set of this name.
    name: Option<Name>,
    verdict: Verdict,
}

#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
    /// When each request was hit.
    pub(super) hits: Vec<Timestamp>,
    webhooks: Vec<Webhook>,
    down_until: Option<Timestamp>,
    unauthorized_until: Option<Timestamp>,
    forbidden: BTreeSet<(Verb, String)>,
    /// Users by bearer token.
    users: BTreeMap<String, User>,
    policies: bool,
}

impl Faults {
    pub(super) fn add(&mut self, left: u32, verb: Verb, resource: &str, fault: Fault) {
        self.rules.push(Rule { verb, resource: resource.to_owned(), left, fault });
    }

    /// The fault for a request; counts it off.
    pub(super) fn take(&mut self, call: &Call<'_>, now: Timestamp) -> Option<Fault> {
        let path = call.resource_path();
        let rule = self.rules.iter_mut().find(|rule| rule.verb == call.verb && rule.resource == path)?;
        rule.left = rule.left.saturating_sub(1);
        let fault = rule.fault;
        self.hits.push(now);
        self.rules.retain(|rule| rule.left > 0);
        Some(fault)
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
        self.webhooks.clear();
    }

    pub(super) fn down_until(&mut self, moment: Option<Timestamp>) {
        self.down_until = moment;
    }

    pub(super) fn down(&self, now: Timestamp) -> bool {
        self.down_until.is_some_and(|until| now < until)
    }

    pub(super) fn unauthorized_until(&mut self, moment: Timestamp) {
        self.unauthorized_until = Some(moment);
    }

    pub(super) fn unauthorized(&self, now: Timestamp) -> bool {
        self.unauthorized_until.is_some_and(|until| now < until)
    }

    pub(super) fn forbid(&mut self, verb: Verb, resource: &str) {
        self.forbidden.insert((verb, resource.to_owned()));
    }

    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        self.forbidden.iter().any(|(v, r)| v.to_string() == verb && r == resource)
    }

    pub(super) fn add_user(&mut self, token: &str, user: User) {
        self.users.insert(token.to_owned(), user);
    }

    /// The user of a bearer token.
    pub(super) fn user(&self, token: &str) -> Option<&User> {
        self.users.get(token)
    }

    pub(super) fn enforce_policies(&mut self) {
        self.policies = true;
    }

    pub(super) fn enforces_policies(&self) -> bool {
        self.policies
    }

    pub(super) fn add_webhook(&mut self, verb: Verb, resource: &str, name: Option<Name>, verdict: Verdict) {
        self.webhooks.push(Webhook { verb, resource: resource.to_owned(), name, verdict });
    }

    /// The webhook's response to a request.
    pub(super) fn admission(&self, call: &Call<'_>) -> Option<Verdict> {
        let path = call.resource_path();
        let concerned = |webhook: &&Webhook| {
            webhook.verb == call.verb
                && webhook.resource == path
                && webhook.name.as_ref().is_none_or(|name| is_of(name, &call.target()))
        };
        self.webhooks.iter().find(concerned).map(|webhook| webhook.verdict)
    }
}

/// Whether an object has this name, or is one of the set that has it.
fn is_of(name: &Name, object: &Name) -> bool {
    let rest = object.name.strip_prefix(&name.name);
    object.namespace == name.namespace && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}
