//! What a test or a scenario breaks on purpose.
//!
//! Faults stand between the client and the server only: kubelets and controllers go on, as they do when it is our way
//! to the API server that is cut. A rule is used up by the requests that match it.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;

use super::route::{Call, Verb};

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answered 429 by flow control, in its own words (plain text, no `Status`) and with `Retry-After`.
    TooManyRequests {
        /// The value of `Retry-After`.
        retry_after_seconds: u64,
    },
    /// Answered 500, without effect.
    InternalError,
    /// Answered 410 Expired, without effect.
    Expired,
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

#[derive(Default)]
pub(super) struct Faults {
    rules: Vec<Rule>,
    down_until: Option<Timestamp>,
    forbidden: BTreeSet<(Verb, String)>,
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
    }

    pub(super) fn down_until(&mut self, moment: Option<Timestamp>) {
        self.down_until = moment;
    }

    pub(super) fn down(&self, now: Timestamp) -> bool {
        self.down_until.is_some_and(|until| now < until)
    }

    pub(super) fn forbid(&mut self, verb: Verb, resource: &str) {
        self.forbidden.insert((verb, resource.to_owned()));
    }

    pub(super) fn forbids(&self, verb: &str, resource: &str) -> bool {
        self.forbidden.iter().any(|(v, r)| v.to_string() == verb && r == resource)
    }
}
