//! From a request to a reply: who asks, what for, which fault hits, and what goes back.
//!
//! Invariants: every answered request is in the journal; a fault that loses the answer loses nothing else.

use std::time::Duration;

use serde_json::Value;

use super::discovery;
use super::faults::{Fault, Verdict, WEBHOOK_TIMEOUT};
use super::journal::Event;
use super::policies::{Rights, User};
use super::requests::Attempt;
use super::route::{Call, Route, route};
use super::state::State;
use super::status::Failure;
use super::verbs::Answer;
use super::watch::Lines;
use crate::sim::http::Request;

/// A reply, and when it is sent.
pub(super) struct Reply {
    pub(super) delay: Duration,
    pub(super) what: What,
}

/// The content of a reply.
pub(super) enum What {
    /// Nothing: the connection breaks.
    Lost,
    Whole {
        code: u16,
        content_type: &'static str,
        retry_after: Option<u64>,
        body: String,
    },
    Stream(Lines),
}

impl From<What> for Reply {
    fn from(what: What) -> Self {
        Self { delay: Duration::ZERO, what }
    }
}

fn json(code: u16, body: String) -> What {
    What::Whole { code, content_type: "application/json", retry_after: None, body }
}

fn refusal(failure: &Failure) -> What {
    What::Whole {
        code: failure.code,
        content_type: "application/json",
        retry_after: failure.retry_after,
        body: failure.body().to_string(),
    }
}

/// The documents in which an API server describes itself.
fn self_portrait(path: &str) -> What {
    match discovery::document(path) {
        Some(discovery::Document::Json(body)) => json(200, body.to_string()),
        Some(discovery::Document::Ok) => {
            What::Whole { code: 200, content_type: "text/plain", retry_after: None, body: "ok".to_owned() }
        }
        None => refusal(&Failure::no_such_path()),
    }
}

/// A refusal by priority and fairness, which writes no `Status`.
fn flow_control(retry_after_seconds: u64) -> What {
    What::Whole {
        code: 429,
        content_type: "text/plain; charset=utf-8",
        retry_after: Some(retry_after_seconds),
        body: "Too many requests, please try again later.\n".to_owned(),
    }
}

impl State {
    /// Answers one request; `None` if `attempt` goes on later.
    pub(super) fn handle(&mut self, request: &Request, attempt: &mut Attempt) -> Option<Reply> {
        if self.faults.down(self.now) {
            return Some(What::Lost.into());
        }
        let user = match self.user(request) {
            Ok(user) => user,
            Err(failure) => return Some(refusal(&failure).into()),
        };
        let call = match route(request) {
            Some(Route::Resource(call)) => call,
            Some(Route::Document(path)) => return Some(self_portrait(path).into()),
            Some(Route::AccessReview(body)) => {
                let review = discovery::access_review(&self.faults, body);
                return Some(match review {
                    Ok(review) => json(201, review.to_string()).into(),
                    Err(failure) => refusal(&failure).into(),
                });
            }
            None => return Some(refusal(&Failure::no_such_path()).into()),
        };
        self.asking = user;
        if let Some(User { name, .. }) = self.asking.clone().filter(|user| user.rights == Rights::None) {
            self.journal_request(&call, 403);
            return Some(refusal(&discovery::forbidden(&call, &name)).into());
        }
        if !std::mem::replace(&mut attempt.arrived, true) {
            attempt.fault = self.faults.take(&call, self.now);
        }
        self.answer(&call, attempt)
    }

    /// Who asks; `None` for an administrator, who has no token.
    fn user(&self, request: &Request) -> Result<Option<User>, Failure> {
        let header = request.headers().get(http::header::AUTHORIZATION);
        let token = header.and_then(|value| value.to_str().ok()?.strip_prefix("Bearer ").map(str::to_owned));
        match token.map(|token| self.faults.user(&token).cloned()) {
            _ if self.faults.unauthorized(self.now) => Err(Failure::unauthorized()),
            Some(None) => Err(Failure::unauthorized()),
            Some(user) => Ok(user),
            None => Ok(None),
        }
    }

    fn answer(&mut self, call: &Call<'_>, attempt: &mut Attempt) -> Option<Reply> {
        let fault = attempt.fault;
        let timed_out = || Err(Failure::internal("etcdserver: request timed out"));
        let mut delay = Duration::ZERO;
        let result = match fault {
            Some(Fault::RequestLost) => return Some(What::Lost.into()),
            Some(Fault::TooManyRequests { retry_after_seconds }) => {
                self.journal_request(call, 429);
                return Some(flow_control(retry_after_seconds).into());
            }
            Some(Fault::Unauthorized) => Err(Failure::unauthorized()),
            Some(Fault::Expired) => {
                Err(Failure::expired("The resourceVersion for the provided list is too old."))
            }
            Some(Fault::EtcdTimedOut { took_effect: false }) => timed_out(),
            Some(Fault::EtcdTimedOut { took_effect: true }) => {
                let _ = self.dispatch(call, attempt)?;
                timed_out()
            }
            Some(Fault::InternalError) => {
                if *attempt.coin.get_or_insert_with(|| self.dice.bool()) {
                    let _ = self.dispatch(call, attempt)?;
                }
                timed_out()
            }
            Some(Fault::Overtaken) => {
                self.overtake(call);
                self.dispatch(call, attempt)?
            }
            Some(Fault::Slow(for_how_long)) => {
                delay = for_how_long;
                self.dispatch(call, attempt)?
            }
            Some(Fault::AnswerLost) | None => match self.faults.admission(call) {
                Some(Verdict::Denies) => Err(Failure::denied()),
                Some(Verdict::Postpones) => Err(Failure::postponed()),
                Some(Verdict::SaysNothing) => {
                    delay = WEBHOOK_TIMEOUT;
                    Err(Failure::webhook_silent())
                }
                None => self.dispatch(call, attempt)?,
            },
        };
        let code = match &result {
            Ok(Answer::Json(code, _)) => *code,
            Ok(Answer::Stream(_)) => 200,
            Err(failure) => failure.code,
        };
        self.journal_request(call, code);
        let what = match result {
            _ if fault == Some(Fault::AnswerLost) => What::Lost,
            Ok(Answer::Json(code, body)) => json(code, body),
            Ok(Answer::Stream(lines)) => What::Stream(lines),
            Err(failure) => refusal(&failure),
        };
        Some(Reply { delay, what })
    }

    /// Writes the request's object before the request does, in an annotation that nobody reads.
    fn overtake(&mut self, call: &Call<'_>) {
        let now = self.now;
        self.edit(call.resource, &call.target(), |value| {
            value["metadata"]["annotations"]["sim/overtaken-at"] = Value::String(now.to_string());
        });
    }

    fn journal_request(&mut self, call: &Call<'_>, code: u16) {
        self.note(Event::Request {
            verb: call.verb,
            resource: call.resource.facts().plural,
            subresource: call.subresource.clone(),
            name: call.target(),
            code,
            by: self.asking.as_ref().map(|user| user.name.clone()),
        });
    }
}
