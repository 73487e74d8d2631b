//! The API server's answers, told apart by what we do about them, and how long we wait for one.

use std::fmt;
use std::time::Duration;

use http::HeaderMap;
use http::header::RETRY_AFTER;
use jiff::SignedDuration;
use kube::core::Status;

use crate::dry_run;
use crate::telemetry::cut;

/// Longest wait for the list of a node's pods.
const LISTED_WITHIN: Duration = Duration::from_secs(30);

/// Longest wait for the answer to a read, an Event, the Lease, a ConfigMap or an access review. A healthy API server takes milliseconds,
/// one that is starting a few seconds.
const READ_WITHIN: Duration = Duration::from_secs(10);

/// Longest wait for the answer to a change of a Node or a pod: longer than the API server's own, 34 s. It asks admission webhooks, which have
/// 10 s each by default and up to 30 s, and goes on without one that hangs (`failurePolicy: Ignore`), but only for a client that is
/// still there.
///
/// Source: [`requestTimeoutUpperBound`](https://github.com/kubernetes/apiserver/blob/master/pkg/endpoints/handlers/rest.go).
pub(crate) const CHANGED_WITHIN: Duration = Duration::from_secs(35);

/// How many bytes of an answer's text are kept. It is for people, and a webhook or a proxy may send any amount, for each of thousands of
/// pods.
const WORDS: usize = 1_000;

/// Reason of an answer that is our own. No API server gives it.
pub(super) const DRY_RUN: &str = "EbbtideDryRun";

/// A call to the API server that did not work.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The object has changed since we read it.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// The object is not there.
    #[error("there is no such object")]
    NotFound,
    /// The API server refused.
    #[error("the API server refused: {}", .0.message)]
    Refused(Box<Status>),
    /// It was not sent: this is a dry run.
    #[error("{}", dry_run::WHY)]
    DryRun,
    /// It was not sent: nobody wanted it any more when its turn came.
    #[error("it was not sent: nobody wants it any more")]
    Unwanted,
    /// No answer in time.
    #[error("the API server did not answer in time")]
    TimedOut,
    /// The connection failed, or the answer cannot be read.
    #[error("the call to the API server failed")]
    Failed(#[source] Box<kube::Error>),
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code == 409 || is_another(&status) => Self::Conflict,
            kube::Error::Api(status) if status.code == 404 && status.reason == "NotFound" => Self::NotFound,
            kube::Error::Api(status) if status.reason == DRY_RUN => Self::DryRun,
            kube::Error::Api(mut status) => {
                (status.message, status.details) = (cut(&status.message, WORDS), None);
                Self::Refused(status)
            }
            other => Self::Failed(Box::new(other)),
        }
    }
}

impl ApiError {
    /// Whether a right is missing, or somebody's policy or webhook is against it.
    ///
    /// Source: 400 is the code of a webhook's refusal that tells none
    /// ([`ToStatusErr`](https://github.com/kubernetes/apiserver/blob/master/pkg/admission/plugin/webhook/errors/statuserror.go)).
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused(status) if matches!(status.code, 400 | 403 | 422))
    }

    /// Whether the API server, or the way to it, may be better in a moment. The call may have taken effect.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::TimedOut | Self::Failed(_) => true,
            // A 404 without the API server's words comes from something before it.
            Self::Refused(status) => matches!(status.code, 404 | 429) || status.code >= 500,
            Self::Conflict | Self::NotFound | Self::DryRun | Self::Unwanted => false,
        }
    }
}

/// A patch with another UID than the object's is refused as an attempt to change the UID.
fn is_another(status: &Status) -> bool {
    status.code == 422 && status.message.contains("metadata.uid")
}

/// The answer to asking a pod to go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It goes.
    Going,
    /// It has gone, or another pod has its name by now.
    Gone,
    /// Its namespace is being deleted, and the pod with it.
    GoingAnyway,
    /// A disruption budget does not allow it now.
    Blocked(String),
    /// The API server is busy, or a webhook wants to be asked again: after this time. With its words.
    Busy(SignedDuration, String),
    /// Something else.
    Unclear(String),
    /// It was not asked: nobody wanted it any more when its turn came.
    Unsent,
}

/// For logs, as a quoted value: whoever answers chooses the words. The first word is the metric's label.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Going => f.write_str("going"),
            Self::Gone => f.write_str("gone"),
            Self::GoingAnyway => f.write_str("going: its namespace is being deleted"),
            Self::Blocked(words) => write!(f, "blocked: {words}"),
            Self::Busy(pause, words) => write!(f, "busy, to be asked again in {pause:#}: {words}"),
            Self::Unclear(words) => write!(f, "unclear: {words}"),
            Self::Unsent => f.write_str("unsent"),
        }
    }
}

/// Pause when the API server is busy and names none: its flow control's own value. Source: [API Priority and
/// Fairness](https://kubernetes.io/docs/concepts/cluster-administration/flow-control/).
const BUSY: SignedDuration = SignedDuration::from_secs(1);

/// Bounds of that pause: a proxy may answer any number of seconds. Never at once, and no longer than other retries.
const BUSY_AT_MOST: SignedDuration = SignedDuration::from_secs(30);

/// Reads the answer to an eviction or a deletion.
///
/// Source: [API-initiated eviction](https://kubernetes.io/docs/concepts/scheduling-eviction/api-eviction/) and the
/// [registry's code](https://github.com/kubernetes/kubernetes/blob/master/pkg/registry/core/pod/storage/eviction.go):
/// a 429 is a budget's only if a cause says so, all others are flow control's or a webhook's.
pub(super) fn read(code: u16, retry_after: Option<SignedDuration>, status: Option<&Status>) -> Answer {
    let details = status.and_then(|status| status.details.as_ref());
    let cause = |reason: &str| {
        details
            .and_then(|details| details.causes.iter().find(|cause| cause.reason == reason))
            .map(|c| &c.message)
    };
    let text = || {
        status
            .map(|status| cut(&status.message, WORDS))
            .filter(|text| !text.is_empty())
            .unwrap_or(format!("HTTP {code}"))
    };
    match code {
        200..=299 => Answer::Going,
        // A budget that is deleted while it is asked is not the pod.
        404 if details.is_some_and(|details| !details.kind.is_empty() && details.kind != "pods") => {
            Answer::Unclear(text())
        }
        404 if status.is_some_and(|status| status.reason == "NotFound") => Answer::Gone,
        409 if names_another_uid(&text()) => Answer::Gone,
        403 if cause("NamespaceTerminating").is_some() => Answer::GoingAnyway,
        429 => match cause("DisruptionBudget") {
            Some(message) if message.is_empty() => Answer::Blocked(text()),
            Some(message) => Answer::Blocked(cut(message, WORDS)),
            // API servers before 1.22 name no cause; only a budget's refusal has this text.
            None if text().contains("disruption budget") => Answer::Blocked(text()),
            None => {
                let in_body =
                    details.map(|details| details.retry_after_seconds).filter(|seconds| *seconds > 0);
                let asked_for = in_body.map(|seconds| SignedDuration::from_secs(seconds.into()));
                let pause = asked_for.or(retry_after).unwrap_or(BUSY).clamp(BUSY, BUSY_AT_MOST);
                Answer::Busy(pause, text())
            }
        },
        _ => Answer::Unclear(text()),
    }
}

/// How long an answer asks us to wait before the next try. No API server names a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<SignedDuration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(SignedDuration::from_secs(seconds).clamp(BUSY, BUSY_AT_MOST))
}

/// Whether a conflict is about our UID precondition: another object has the name by now. There is no code for it.
fn names_another_uid(text: &str) -> bool {
    text.contains("UID in precondition") || text.contains("UID in the precondition")
}

/// Waits for the answer to a call, at most [`READ_WITHIN`].
pub(super) async fn timely<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    answered_within(READ_WITHIN, call).await
}

/// The same for a list that an API server may read from etcd, pods of the whole cluster and all, at most [`LISTED_WITHIN`].
pub(super) async fn listed<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    answered_within(LISTED_WITHIN, call).await
}

/// The same for a change of a Node or a pod, at most [`CHANGED_WITHIN`].
pub(super) async fn changed<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiError> {
    answered_within(CHANGED_WITHIN, call).await
}

async fn answered_within<T>(
    time: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, ApiError> {
    match tokio::time::timeout(time, call).await {
        Ok(result) => result.map_err(ApiError::from),
        Err(_) => Err(ApiError::TimedOut),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(json: &str) -> Status {
        serde_json::from_str(json).expect("a Status")
    }

    #[test]
    fn what_is_forbidden_is_told_from_what_fails() {
        let refused = |code: u16| ApiError::Refused(Box::new(status(&format!(r#"{{"code":{code}}}"#))));
        for (code, is_forbidden) in [(400, true), (403, true), (422, true), (429, false), (500, false)] {
            assert_eq!(refused(code).is_forbidden(), is_forbidden, "{code}");
            assert_eq!(refused(code).is_transient(), !is_forbidden, "{code}");
        }
        assert!(!ApiError::TimedOut.is_forbidden() && ApiError::TimedOut.is_transient());
        assert!(![ApiError::Conflict, ApiError::NotFound].iter().any(ApiError::is_transient));
    }

    #[test]
    fn only_the_api_server_itself_says_that_something_is_not_there() {
        let answered = |json: &str| ApiError::from(kube::Error::Api(Box::new(status(json))));
        let not_found = r#"{"kind":"Status","status":"Failure","reason":"NotFound","code":404}"#;
        assert!(matches!(answered(not_found), ApiError::NotFound));
        // As kube has an answer that it cannot read.
        let unreadable = answered(r#"{"status":"Failure","reason":"Failed to parse error data","code":404}"#);
        assert!(matches!(&unreadable, ApiError::Refused(_)) && unreadable.is_transient());
    }

    #[test]
    fn of_words_without_end_a_kilobyte_is_kept() {
        let long = format!("{}é", "no".repeat(40_000));
        let said = |code: u16| {
            let text = serde_json::json!({ "message": long, "code": code, "details": { "causes": [{ "message": long }] } });
            status(&text.to_string())
        };
        let budget = serde_json::json!({
            "code": 429, "details": { "causes": [{ "reason": "DisruptionBudget", "message": long }] }
        });
        for answer in [
            read(429, None, Some(&status(&budget.to_string()))),
            read(429, None, Some(&said(429))),
            read(500, None, Some(&said(500))),
        ] {
            let length = answer.to_string().len();
            assert!((WORDS..WORDS + 60).contains(&length), "{length}");
        }
        let refused = ApiError::from(kube::Error::Api(Box::new(said(403))));
        assert!(refused.is_forbidden() && format!("{refused:?}").len() < WORDS + 300, "{refused:?}");
        assert_eq!(cut(&"é".repeat(501), WORDS).len(), WORDS - 1);
        assert_eq!(cut(&"é".repeat(500), WORDS).len(), WORDS);
    }

    #[test]
    fn an_answer_reads_in_the_log_as_the_metric_has_it_with_what_was_said() {
        let busy = Answer::Busy(SignedDuration::from_secs(90), "later".into());
        let table = [
            (Answer::Going, "going"),
            (Answer::Gone, "gone"),
            (Answer::GoingAnyway, "going: its namespace is being deleted"),
            (Answer::Blocked("no room".into()), "blocked: no room"),
            (busy, "busy, to be asked again in 1m 30s: later"),
            (Answer::Unclear("HTTP 502".into()), "unclear: HTTP 502"),
        ];
        for (answer, text) in table {
            assert_eq!(answer.to_string(), text);
        }
    }

    #[test]
    fn every_documented_answer_is_told_apart() {
        let budget = status(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Cannot evict pod as it would violate the pod's disruption budget.","reason":"TooManyRequests","details":{"causes":[{"reason":"DisruptionBudget","message":"The disruption budget web needs 2 healthy pods and has 2 currently"}]},"code":429}"#,
        );
        let other_uid = status(
            r#"{"kind":"Status","status":"Failure","message":"Operation cannot be fulfilled on pods \"web-1\": the UID in the precondition (a) does not match the UID in record (b). The object might have been deleted and then recreated","reason":"Conflict","code":409}"#,
        );
        let other_uid_delete = status(
            r#"{"kind":"Status","status":"Failure","message":"Precondition failed: UID in precondition: a, UID in object meta: b","reason":"Conflict","code":409}"#,
        );
        let conflict = status(
            r#"{"kind":"Status","status":"Failure","message":"the object has been modified","code":409}"#,
        );
        let terminating = status(
            r#"{"kind":"Status","status":"Failure","message":"forbidden","code":403,"details":{"causes":[{"reason":"NamespaceTerminating","message":"namespace x is being terminated"}]}}"#,
        );
        let denied = status(r#"{"kind":"Status","status":"Failure","message":"may not","code":403}"#);
        let not_there = status(
            r#"{"kind":"Status","status":"Failure","message":"pods \"web-1\" not found","reason":"NotFound","details":{"name":"web-1","kind":"pods"},"code":404}"#,
        );
        let two = status(
            r#"{"kind":"Status","status":"Failure","message":"This pod has more than one PodDisruptionBudget","code":500}"#,
        );
        let busy = status(
            r#"{"kind":"Status","status":"Failure","message":"later","code":429,"details":{"retryAfterSeconds":7}}"#,
        );
        let seconds = SignedDuration::from_secs;
        let busy_for = |pause| Answer::Busy(pause, "HTTP 429".into());
        let table = [
            (201, None, None, Answer::Going),
            (404, None, Some(&not_there), Answer::Gone),
            (404, None, None, Answer::Unclear("HTTP 404".into())),
            (409, None, Some(&other_uid), Answer::Gone),
            (409, None, Some(&other_uid_delete), Answer::Gone),
            (409, None, Some(&conflict), Answer::Unclear("the object has been modified".into())),
            (403, None, Some(&terminating), Answer::GoingAnyway),
            (403, None, Some(&denied), Answer::Unclear("may not".into())),
            (
                429,
                None,
                Some(&budget),
                Answer::Blocked("The disruption budget web needs 2 healthy pods and has 2 currently".into()),
            ),
            (429, Some(seconds(3)), None, busy_for(seconds(3))),
            (429, Some(SignedDuration::MAX), None, busy_for(seconds(30))),
            (429, Some(seconds(0)), None, busy_for(seconds(1))),
            (429, Some(SignedDuration::MIN), None, busy_for(seconds(1))),
            (429, None, Some(&busy), Answer::Busy(seconds(7), "later".into())),
            (429, None, None, busy_for(seconds(1))),
            (500, None, Some(&two), Answer::Unclear("This pod has more than one PodDisruptionBudget".into())),
            (502, None, None, Answer::Unclear("HTTP 502".into())),
        ];
        for (code, retry_after, status, answer) in table {
            assert_eq!(read(code, retry_after, status), answer, "{code} {status:?}");
        }
    }
}
