//! Retries of calls to AWS, in production and in simulated worlds.
//!
//! - The SDK's retries are off: its adaptive mode delays calls because others were throttled, and its standard mode
//!   shares a bucket of retries. A heartbeat must not pay for a poll.
//! - Pauses have full jitter, from zero to a doubling bound, so that callers refused together do not return together.
//!   Source: [Exponential backoff and
//!   jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
//! - Idempotent calls are retried after every transient error. Setting a size is retried only if the call was answered, with whatever
//!   code: an unanswered one may come late, and undo what was set since. What somebody else sets between two tries is lost, as it is
//!   between the description and the first one; so all tries begin within two seconds. A termination is retried only if AWS has certainly
//!   refused it: after a lost answer or a 500 it may have taken effect.

use std::pin::pin;
use std::time::Duration;

use futures::future::{Either, select};
use jiff::SignedDuration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::AwsError;
use crate::clock::backoff;
use crate::telemetry::chain;

/// How long a request may still arrive after its caller has given it up: where the network is cut, the kernel repeats what was written to the
/// connection.
///
/// Source: `tcp_orphan_retries` in [IP Sysctl](https://docs.kernel.org/networking/ip-sysctl.html).
pub const DELIVERED_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Upper bound of the first pause.
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Retry policy of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// Time-out of an attempt.
    pub(super) attempt: Duration,
    /// All attempts begin within this time from the first; with none, there is one.
    pub(super) within: Duration,
    /// Longest pause between attempts.
    pub(super) longest_pause: Duration,
    /// After which errors that pass by themselves.
    pub(super) repeats: Repeats,
    /// An attempt that has no answer by then gets another one beside it: one call in thousands takes seconds, or meets a connection that
    /// is dead. Only for reads.
    pub(super) doubled_after: Option<Duration>,
}

/// After which errors a call may be made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// All.
    Always,
    /// Those that answer it.
    Answered,
    /// Those with which it certainly had no effect.
    Refused,
}

/// A poll of the groups: a page of a hundred large ones takes AWS a few seconds, and much longer on a bad day, on which an old view would
/// help nobody.
pub(super) const REFRESH: Patience =
    Patience { doubled_after: Some(Duration::from_secs(10)), ..Patience::new(30_000, 15_000, 1_000) };
/// A read whose caller can use the previous answer: templates, hooks, activities. A poll waits for it, so it must be
/// short where a private network has no route to a service.
///
/// Source: [Deploy private clusters](https://docs.aws.amazon.com/eks/latest/userguide/private-clusters.html): the EKS
/// API has its own endpoint.
pub(super) const LOOK_UP: Patience = Patience::new(5_000, 2_000, 1_000);
/// A receive from a queue: SQS holds it for 20 s while there is no message. Its caller asks again anyway.
pub(super) const RECEIVE: Patience = Patience::new(30_000, 2_000, 1_000);
/// A read that an RPC waits for; cluster-autoscaler gives up after 5 s, see [`crate::provider`].
pub(super) const READ_NOW: Patience =
    Patience { doubled_after: Some(Duration::from_secs(1)), ..Patience::new(3_000, 3_000, 250) };
/// An idempotent write: protection, tag.
pub(super) const WRITE: Patience = Patience::new(5_000, 10_000, 1_000);
/// What its caller sends again, if it still is to be sent: the completion of a hook, by what has come to the node meanwhile and who leads; a
/// heartbeat, by what is left of the hold and how many others are due. The shortest hook lasts 30 s and gets its heartbeat after 15: one
/// that hangs leaves time for another.
pub(super) const ONCE: Patience = Patience::new(5_000, 0, 0);
/// Setting a size. cluster-autoscaler and other changes of the group wait for it. A try that a server in front of AWS has answered may
/// arrive after the next one, which sets the same; that it arrives after another size is not provided for.
pub(super) const SET_SIZE: Patience =
    Patience { repeats: Repeats::Answered, ..Patience::new(5_000, 2_000, 250) };
/// A write that must take effect only once. The same wait for it.
pub(super) const TERMINATE: Patience = Patience { repeats: Repeats::Refused, ..SET_SIZE };

impl Patience {
    const fn new(attempt: u64, within: u64, pause: u64) -> Self {
        Self {
            attempt: Duration::from_millis(attempt),
            within: Duration::from_millis(within),
            longest_pause: Duration::from_millis(pause),
            repeats: Repeats::Always,
            doubled_after: None,
        }
    }

    fn allows(self, error: &AwsError) -> bool {
        let may_be_repeated = match self.repeats {
            Repeats::Always => true,
            Repeats::Answered => error.is_answered(),
            Repeats::Refused => error.is_refusal(),
        };
        error.is_transient() && may_be_repeated
    }

    /// A random pause after `failures` in a row.
    fn pause(self, failures: u32) -> Duration {
        backoff(failures, FIRST_PAUSE, self.longest_pause).mul_f64(fastrand::f64())
    }
}

/// Tries until success, a permanent failure or the end of `patience`. Returns the last result; for a size, the failure that leaves most
/// open: it may still come, or else may have been set.
pub(super) async fn tried<T, F>(patience: Patience, mut attempt: impl FnMut() -> F) -> Result<T, AwsError>
where
    F: Future<Output = Result<T, AwsError>>,
{
    let began = Instant::now();
    let leaves_open = |error: &AwsError| (error.may_come(), !error.is_refusal());
    let (mut failures, mut before) = (0, None);
    loop {
        let error = match attempted(patience, &mut attempt).await {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        failures += 1;
        let pause = patience.pause(failures);
        let is_last = !patience.allows(&error) || began.elapsed() + pause >= patience.within;
        if !is_last {
            tracing::debug!(failures, error = %chain(&error), "retrying a call to AWS");
        }
        let told = before
            .take()
            .filter(|before| {
                patience.repeats == Repeats::Answered && leaves_open(before) > leaves_open(&error)
            })
            .unwrap_or(error);
        if is_last {
            return Err(told);
        }
        sleep(pause).await;
        // The process may have been stopped meanwhile: what it knew then is too old to act on.
        if began.elapsed() > patience.within {
            return Err(told);
        }
        before = Some(told);
    }
}

/// An attempt, and another beside it where the first is slow; both together take no longer than one may. The first success counts.
async fn attempted<T, F>(patience: Patience, attempt: &mut impl FnMut() -> F) -> Result<T, AwsError>
where
    F: Future<Output = Result<T, AwsError>>,
{
    let ends = Instant::now() + patience.attempt;
    let mut first = pin!(attempt());
    let Some(after) = patience.doubled_after else { return first.await };
    if let Ok(answer) = timeout(after, &mut first).await {
        return answer;
    }
    let second = pin!(attempt());
    match select(first, second).await {
        Either::Left((Err(error), second)) => timeout_at(ends, second).await.unwrap_or(Err(error)),
        Either::Right((Err(_), first)) => first.await,
        Either::Left((answer, _)) | Either::Right((answer, _)) => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::Operation;

    const ALL: [Patience; 6] = [REFRESH, LOOK_UP, READ_NOW, WRITE, SET_SIZE, TERMINATE];

    /// `NoCode`: a page for people.
    fn error(code: &str) -> AwsError {
        let status = if code == "NoCode" { 503 } else { 400 };
        AwsError::of_service(Operation::SetDesiredCapacity, status, code, "")
    }

    /// Runs attempts that fail with these codes in turn. Returns the number of attempts and the last result.
    async fn fails(patience: Patience, codes: &[&str]) -> (usize, Result<(), AwsError>) {
        let mut tries = 0;
        let outcome = tried(patience, || {
            let answer = codes.get(tries).map_or(Ok(()), |code| Err(error(code)));
            tries += 1;
            async move { answer }
        })
        .await;
        (tries, outcome)
    }

    /// Also where no time passes until the answer.
    #[tokio::test(start_paused = true)]
    async fn a_heartbeat_or_a_completion_is_tried_once() {
        for code in ["Throttling", "InternalFailure"] {
            let (tries, outcome) = fails(ONCE, &[code]).await;
            assert_eq!((tries, outcome.is_ok()), (1, false), "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_may_be_repeated_is_tried_again_whatever_passes_by_itself() {
        for code in [
            "Throttling",
            "InternalFailure",
            "ResourceContention",
            "ExpiredToken",
            "ScalingActivityInProgress",
        ] {
            for patience in [REFRESH, LOOK_UP, READ_NOW, WRITE] {
                let (tries, outcome) = fails(patience, &[code, code]).await;
                assert_eq!((tries, outcome.is_ok()), (3, true), "{code} {patience:?}");
            }
        }
        for code in ["AccessDenied", "ValidationError"] {
            assert_eq!(fails(REFRESH, &[code]).await.0, 1, "{code}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_size_is_set_again_if_it_was_answered_and_a_termination_only_if_it_had_no_effect() {
        for (code, sets, terminations) in [
            ("Throttling", 2, 2),
            ("ScalingActivityInProgress", 2, 2),
            ("RequestExpired", 2, 2),
            ("InternalFailure", 2, 1),
            ("ResourceContention", 2, 1),
            ("NoCode", 2, 1),
            ("AccessDenied", 1, 1),
        ] {
            assert_eq!(fails(SET_SIZE, &[code]).await.0, sets, "{code}");
            assert_eq!(fails(TERMINATE, &[code]).await.0, terminations, "{code}");
        }
        let (_, outcome) = fails(SET_SIZE, &["InternalFailure", "Throttling", "AccessDenied"]).await;
        assert!(outcome.is_err_and(|error| !error.is_refusal()), "the first may have had its effect");
        for codes in
            [["NoCode", "InternalFailure", "AccessDenied"], ["InternalFailure", "NoCode", "AccessDenied"]]
        {
            let (_, outcome) = fails(SET_SIZE, &codes).await;
            assert!(outcome.is_err_and(|error| error.may_come()), "{codes:?}: one of them may still come");
        }
        for patience in [SET_SIZE, TERMINATE] {
            let mut tries = 0;
            let lost = tried(patience, || {
                tries += 1;
                async { Err::<(), _>(AwsError::unreachable(Operation::SetDesiredCapacity, "reset")) }
            });
            assert!(lost.await.is_err());
            assert_eq!(tries, 1, "{patience:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_retry_comes_within_a_second_and_the_last_within_the_patience() {
        for patience in ALL {
            let began = Instant::now();
            let mut at = Vec::new();
            let outcome: Result<(), _> = tried(patience, || {
                at.push(began.elapsed());
                async { Err(error("Throttling")) }
            })
            .await;
            assert!(outcome.is_err());
            assert!(at[1] <= Duration::from_secs(1), "{patience:?}: {at:?}");
            assert!(at.len() >= 4, "{patience:?}: {at:?}");
            assert!(at.iter().all(|at| *at <= patience.within), "{patience:?}: {at:?}");
            assert!(began.elapsed() <= patience.within, "{patience:?}");
        }
    }

    /// Whether it is slow, dead, or one of the two fails.
    #[tokio::test(start_paused = true)]
    async fn a_read_that_an_rpc_waits_for_is_asked_for_again_when_it_takes_longer_than_a_second() {
        let millis = Duration::from_millis;
        let refused = error("AccessDenied").to_string();
        for (first, second, expected) in [
            ((900, Ok(1)), (0, Ok(2)), (Ok(1), 1, 900)),
            ((60_000, Ok(1)), (100, Ok(2)), (Ok(2), 2, 1_100)),
            ((1_500, Ok(1)), (60_000, Ok(2)), (Ok(1), 2, 1_500)),
            ((1_500, Err("Throttling")), (700, Ok(2)), (Ok(2), 2, 1_700)),
            ((1_500, Ok(1)), (100, Err("Throttling")), (Ok(1), 2, 1_500)),
            ((2_900, Err("AccessDenied")), (60_000, Ok(2)), (Err(refused), 2, 3_000)),
        ] {
            let (began, mut answers) = (Instant::now(), vec![second, first]);
            let answer = tried(READ_NOW, || {
                let (after, answer) = answers.pop().expect("two at most");
                async move {
                    sleep(millis(after)).await;
                    answer.map_err(error)
                }
            });
            let answer = answer.await.map_err(|error| error.to_string());
            assert_eq!(
                (answer, 2 - answers.len(), began.elapsed()),
                (expected.0, expected.1, millis(expected.2))
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_is_stopped_between_two_attempts_makes_no_other_when_it_goes_on() {
        for patience in ALL {
            let stopped = tokio::time::advance(Duration::from_mins(1));
            let ((tries, outcome), ()) = futures::join!(fails(patience, &["Throttling"]), stopped);
            assert_eq!((tries, outcome.is_err()), (1, true), "{patience:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_were_refused_together_do_not_come_back_together() {
        let second_tries = (0..100).map(|_| async {
            let began = Instant::now();
            fails(WRITE, &["Throttling"]).await.1.expect("the second try");
            began.elapsed()
        });
        let mut at = futures::future::join_all(second_tries).await;
        at.sort();
        let (first, last) = (at[0], at[99]);
        assert!(first < FIRST_PAUSE / 4 && last > FIRST_PAUSE * 3 / 4, "{first:?} to {last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_what_others_were_refused() {
        let hopeless = (0..200).map(|_| fails(REFRESH, &["Throttling"; 1_000]));
        let (_, took) = futures::join!(futures::future::join_all(hopeless), async {
            sleep(Duration::from_secs(5)).await;
            let began = Instant::now();
            fails(WRITE, &["Throttling"]).await.1.expect("the second try");
            began.elapsed()
        });
        assert!(took <= FIRST_PAUSE, "{took:?}");
    }
}
