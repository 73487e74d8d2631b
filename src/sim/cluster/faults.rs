//! What a test or a scenario breaks on purpose.
//!
//! Faults stand between the client and the server only: kubelets and controllers go on, as they do when it is our way
//! to the API server that is cut. A rule is used up by the requests that match it; webhooks and RBAC stay.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::names::Name;
use super::policies::User;
use super::route::{Call, Verb};

/// How long the API server waits for a webhook that says nothing (`timeoutSeconds`).
/// <https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#timeouts>
pub(super) const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered 429 by flow control, in its own words (plain text, no `Status`) and with `Retry-After`.
    TooManyRequests {
        /// The value of `Retry-After`.
        retry_after_seconds: u64,
    },
    /// Answered 500 as etcd did not answer in time: with or without effect, as the seed has it.
    InternalError,
    /// The same, and it is said whether the request has had its effect.
    EtcdTimedOut {
        /// Whether it has.
        took_effect: bool,
    },
    /// Answered 410 Expired, without effect.
    Expired,
    /// Answered 401: the token has expired, or is not believed yet.
    Unauthorized,
    /// Somebody else writes the object at the same moment, first: what carries its version is refused.
    Overtaken,
    /// The connection breaks before the request has had its effect.
    RequestLost,
    /// The connection breaks after the request has had its effect.
    AnswerLost,
    /// The request has its effect at once; its answer takes this long.
    Slow(Duration),
}

struct Rule {
    verb: Verb,
    resource: String,
    left: u32,
    fault: Fault,
}

/// What an admission webhook does to a request that it is asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Denies,
    SaysNothing,
}

struct Webhook {
    verb: Verb,
    resource: String,
    /// The only object that it is about, if it is about one.
    name: Option<Name>,
    verdict: Verdict,
}

#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
    webhooks: Vec<Webhook>,
    down_until: Option<Timestamp>,
    unauthorized_until: Option<Timestamp>,
    forbidden: BTreeSet<(Verb, String)>,
    /// Who is who, by bearer token.
    users: BTreeMap<String, User>,
    policies: bool,
}

impl Faults {
    pub(super) fn add(&mut self, left: u32, verb: Verb, resource: &str, fault: Fault) {
        self.rules.push(Rule { verb, resource: resource.to_owned(), left, fault });
    }

    /// The fault for a request, counted off.
    pub(super) fn take(&mut self, call: &Call<'_>) -> Option<Fault> {
        let path = call.resource_path();
        let rule = self.rules.iter_mut().find(|rule| rule.verb == call.verb && rule.resource == path)?;
        rule.left = rule.left.saturating_sub(1);
        let fault = rule.fault;
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

    /// Whose a bearer token is.
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

    /// What a webhook makes of a request.
    pub(super) fn admission(&self, call: &Call<'_>) -> Option<Verdict> {
        let path = call.resource_path();
        let concerned = |webhook: &&Webhook| {
            webhook.verb == call.verb
                && webhook.resource == path
                && webhook.name.as_ref().is_none_or(|name| *name == call.target())
        };
        self.webhooks.iter().find(concerned).map(|webhook| webhook.verdict)
    }
}
