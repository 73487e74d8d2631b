//! Leader election: the holder of a Lease (`coordination.k8s.io`) scales in, all other processes wait.
//!
//! The Lease is used as client-go uses it, so that `kubectl` and other tools can read it. A holder counts as gone when
//! its Lease has not changed for long enough on our own clock; the time written in it is not used, because clocks
//! differ. A take-over carries the resource version it is based on, so that one of two candidates wins.
//!
//! A holder that had better not lead (its own node is about to go, or AWS does not answer it) gives the Lease back and lets others take
//! it for [`LETS_OTHERS`].
//!
//! A holder leads for [`TRUST`] from the start of its last successful renewal; others wait for [`DURATION`]. A process
//! that was paused notices as soon as it goes on.
//!
//! Source: [leader
//! election](https://github.com/kubernetes/client-go/blob/master/tools/leaderelection/leaderelection.go). The existing
//! crates for `kube` use the written time, or take over without a precondition.

use std::convert::Infallible;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::ObjectMeta;

use super::answer::ApiError;
use super::client::Cluster;
use super::leadership::{Leadership, Standing};
use crate::clock::{Clock, elapsed, later};
use crate::telemetry::{Outage, chain};

/// How long others wait for a silent holder: with [`REFRESH`], another leads within 15 s of its end.
const DURATION: Duration = Duration::from_secs(13);

/// How long a holder leads after a renewal, as client-go's do. The rest of [`DURATION`] is for requests that it has sent by then.
const TRUST: SignedDuration = SignedDuration::from_secs(10);

/// From the beginning of one renewal to that of the next.
const RENEW: Duration = Duration::from_secs(3);

/// From one read of somebody else's Lease to the next: a Lease that was given back is taken within this time.
const REFRESH: Duration = Duration::from_secs(1);

/// How long a process that has handed over leaves a free Lease to others. They take it within [`REFRESH`], if there are any.
const LETS_OTHERS: SignedDuration = SignedDuration::from_secs(5);

/// Pause after a failed try.
const RETRY: Duration = Duration::from_secs(1);

/// Longest wait for an answer: half of [`TRUST`], as in client-go. Where an admission webhook hangs and is then ignored, every write takes
/// its whole time-out, and two in a row must fit: wherever Kubernetes' own controllers can lead, we can.
const ANSWER: Duration = Duration::from_secs(5);

/// Upper bound for the duration in another holder's Lease, which anybody with the right may write.
const LONGEST: Duration = Duration::from_mins(1);

/// Configuration of the election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Name of the Lease, in the program's own namespace.
    pub lease: String,
    /// Name of our pod, if known. A process that finds an earlier run of its own pod in the Lease takes over at once.
    pub pod: Option<String>,
}

/// Stands for election, and keeps the Lease once it holds it.
#[derive(Debug)]
pub struct Election {
    cluster: Cluster,
    clock: Clock,
    name: String,
    pod: Option<String>,
    /// Our name in the Lease: the pod's and a random suffix, so that no two processes have the same.
    identity: String,
    leadership: Leadership,
    /// The Lease as last written by us.
    lease: Option<Lease>,
    /// The Lease's last new content, and when we first saw it.
    seen: Option<(LeaseSpec, Timestamp)>,
    /// Whether a write has shown that we have the right.
    may_write: bool,
    /// While the Lease cannot be read or written.
    outage: Outage,
    /// Whether a write has met a conflict, and nothing has worked since.
    met_conflict: bool,
    /// Whether this process led when that was last looked at.
    led: bool,
    /// Until when a free Lease is left to others.
    lets_others_until: Option<Timestamp>,
}

/// Whether a Lease's holder is an ebbtide, whatever its pod's name: a pod's name, which has no `_`, and 16 hexadecimal digits.
pub fn is_identity(holder: &str) -> bool {
    let is_ours = |run: &str| run.len() == 16 && run.bytes().all(|byte| byte.is_ascii_hexdigit());
    holder.split_once('_').is_some_and(|(pod, run)| !pod.is_empty() && is_ours(run))
}

impl Election {
    /// An election that has not begun. `leadership` tells its outcome.
    pub fn new(cluster: Cluster, clock: Clock, candidate: Candidate, leadership: Leadership) -> Self {
        let Candidate { lease: name, pod } = candidate;
        let identity = format!("{}_{:016x}", pod.as_deref().unwrap_or("ebbtide"), fastrand::u64(..));
        Self {
            cluster,
            clock,
            name,
            pod,
            identity,
            leadership,
            lease: None,
            seen: None,
            may_write: false,
            outage: Outage::default(),
            met_conflict: false,
            led: false,
            lets_others_until: None,
        }
    }

    /// Stands for election, for ever.
    pub async fn run(&mut self) -> Infallible {
        loop {
            let pause = self.try_acquire_or_renew().await;
            tokio::select! {
                biased;
                () = self.leadership.hand_over_wanted() => self.hand_over(),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Has the next calls give the Lease back, until that works. If nobody takes it, or it cannot be given back, this one leads again
    /// after [`LETS_OTHERS`].
    fn hand_over(&mut self) {
        if self.leadership.leads() {
            self.leadership.set(Standing::Unknown);
            (self.lease, self.led) = (None, false);
            self.lets_others_until = Some(later(self.clock.now(), LETS_OTHERS));
        }
    }

    /// Gives the Lease back, so that another process need not wait. Nothing new is begun from then on; calls under way may be answered yet. One
    /// that does not lead may hold it all the same: its last write was cut off.
    pub async fn step_down(&mut self) {
        let led = self.leadership.leads();
        self.leadership.set(Standing::Unknown);
        match tokio::time::timeout(RETRY, self.give_back()).await {
            Ok(Ok(false)) => {}
            Ok(Ok(true)) => tracing::info!("gave the Lease back: another process may lead at once"),
            // It may well not be ours.
            Ok(Err(_)) | Err(_) if !led => {}
            Ok(Err(error)) => {
                tracing::warn!(error = %chain(&error), "could not give the Lease back: another process leads once the Lease has expired");
            }
            Err(_) => tracing::warn!(
                "could not give the Lease back in time: another process leads once the Lease has expired"
            ),
        }
    }

    /// Reads the Lease again first: a renewal may just have been cut off. Returns whether it was ours.
    async fn give_back(&self) -> Result<bool, ApiError> {
        let Some(lease) = self.cluster.lease(&self.name).await? else { return Ok(false) };
        let spec = lease.spec.clone().unwrap_or_default();
        if spec.holder_identity.as_deref() != Some(&self.identity) {
            return Ok(false);
        }
        let spec = given_back(spec, self.clock.wall());
        self.cluster.write_lease(&Lease { spec: Some(spec), ..lease }, false).await?;
        Ok(true)
    }

    /// Reads or writes the Lease once. Returns the pause until the next call.
    async fn try_acquire_or_renew(&mut self) -> Duration {
        let began = self.clock.now();
        let outcome =
            tokio::time::timeout(ANSWER, self.read_or_write()).await.unwrap_or(Err(ApiError::TimedOut));
        match outcome {
            Ok(standing) => {
                self.met_conflict = false;
                if self.outage.recovered().is_some() {
                    tracing::info!("the Lease can be read and written again");
                }
                let leads = matches!(standing, Standing::Leads { .. });
                self.led = leads;
                self.leadership.set(standing);
                if leads { RENEW.saturating_sub(elapsed(began, self.clock.now())) } else { REFRESH }
            }
            // Somebody else wrote it. Read it at once.
            Err(ApiError::Conflict) if !std::mem::replace(&mut self.met_conflict, true) => {
                self.lease = None;
                Duration::ZERO
            }
            Err(error) => {
                self.lease = None;
                let leads = self.leadership.leads();
                if self.outage.failed().is_some() {
                    let lease = &self.name;
                    let fix = match &error {
                        ApiError::Conflict => {
                            Some("see who else writes it, and which admission webhooks are asked about it")
                        }
                        error if error.is_forbidden() => {
                            Some("deploy/base/rbac.yaml grants the rights to it")
                        }
                        // The API server is at fault, or the token, not the installation.
                        _ => None,
                    };
                    let then =
                        if leads { "leads for ten seconds more at most" } else { "cannot lead meanwhile" };
                    tracing::warn!(lease, fix, error = %chain(&error), "the Lease cannot be read or written: this process {then}");
                }
                if std::mem::replace(&mut self.led, leads) && !leads {
                    tracing::warn!(
                        lease = self.name,
                        "this process has lost the lead, as it could not renew the Lease: it drains and releases no node until it can"
                    );
                }
                if !leads {
                    self.leadership.set(Standing::Unknown);
                }
                RETRY
            }
        }
    }

    async fn read_or_write(&mut self) -> Result<Standing, ApiError> {
        let began = self.clock.now();
        let lease = match &self.lease {
            Some(ours) => ours.clone(),
            None => match self.cluster.lease(&self.name).await? {
                Some(found) => found,
                // A deleted Lease counts as last seen: its holder may still lead.
                None => Lease {
                    metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                    spec: self.seen.as_ref().map(|(spec, _)| spec.clone()),
                },
            },
        };
        let spec = lease.spec.clone().unwrap_or_default();
        // A holder of our own pod is an earlier run, but only at our first read.
        let is_first = self.seen.is_none();
        // The request may have waited for long before it was answered: what it found may be from a moment ago.
        let since = match &self.seen {
            Some((before, since)) if *before == spec => *since,
            _ => self.seen.insert((spec.clone(), self.clock.now())).1,
        };
        let holder = spec.holder_identity.clone().unwrap_or_default();
        let is_ours = holder == self.identity || is_first && is_of(&holder, self.pod.as_deref());
        let is_left_to_others = self.lets_others_until.is_some_and(|until| began < until);
        if !is_ours && (is_left_to_others || !is_free(&spec, elapsed(since, began))) {
            if !self.may_write {
                // Rehearse a write: missing rights should show now, not when the leader has gone.
                self.cluster.write_lease(&lease, true).await?;
                self.may_write = true;
            }
            return Ok(if holder.is_empty() { Standing::Unknown } else { Standing::Follows { holder } });
        }
        let wall = self.clock.wall();
        if is_left_to_others {
            let spec = given_back(spec, wall);
            self.cluster.write_lease(&Lease { spec: Some(spec), ..lease }, false).await?;
            self.lets_others_until = Some(later(self.clock.now(), LETS_OTHERS));
            tracing::info!("gave the Lease back: another process may lead at once");
            return Ok(Standing::Unknown);
        }
        let spec = held(spec, &self.identity, wall);
        let written = self.cluster.write_lease(&Lease { spec: Some(spec), ..lease }, false).await?;
        self.may_write = true;
        self.lease = Some(written);
        Ok(Standing::Leads { until: later(began, TRUST), wall: later(wall, TRUST) })
    }
}

/// Whether a holder is a process of this pod.
fn is_of(holder: &str, pod: Option<&str>) -> bool {
    pod.is_some_and(|pod| holder.rsplit_once('_').is_some_and(|(of, _)| of == pod))
}

/// Whether anybody may take a Lease that has said the same for `unchanged`.
fn is_free(spec: &LeaseSpec, unchanged: Duration) -> bool {
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let silent_for = seconds.map_or(DURATION, Duration::from_secs).min(LONGEST);
    spec.holder_identity.as_deref().unwrap_or_default().is_empty() || unchanged >= silent_for
}

/// The Lease as nobody holds it from now on, as client-go gives it back: short, without a holder.
fn given_back(spec: LeaseSpec, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        renew_time: Some(MicroTime(now)),
        ..spec
    }
}

/// The Lease as `identity` holds it from now on.
fn held(spec: LeaseSpec, identity: &str, now: Timestamp) -> LeaseSpec {
    let is_ours = spec.holder_identity.as_deref() == Some(identity);
    let transitions = spec.lease_transitions.unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
        acquire_time: if is_ours { spec.acquire_time } else { Some(MicroTime(now)) },
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(if is_ours { transitions } else { transitions.saturating_add(1) }),
        ..spec
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, seconds: i32) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            lease_transitions: Some(3),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn a_lease_is_taken_when_its_holder_has_been_silent_for_as_long_as_it_says() {
        let table = [
            (LeaseSpec::default(), 0, true, "nobody's"),
            (lease("", 1), 0, true, "given back"),
            (lease("other", 12), 11, false, "renewed not long ago"),
            (lease("other", 12), 12, true, "silent"),
            (lease("other", 15), 12, false, "silent, and it asked for more"),
            (lease("other", i32::MAX), 59, false, "somebody asks for for ever"),
            (lease("other", i32::MAX), 60, true, "and gets a minute"),
            (lease("other", -5), 12, false, "no duration: ours"),
            (lease("other", -5), 13, true, "no duration: ours"),
        ];
        for (spec, unchanged, expected, what) in table {
            assert_eq!(is_free(&spec, Duration::from_secs(unchanged)), expected, "{what}");
        }
    }

    #[test]
    fn a_holder_is_of_the_pod_that_it_begins_with() {
        assert!(is_of("ebbtide-0_00ff", Some("ebbtide-0")));
        assert!(!is_of("ebbtide-01_00ff", Some("ebbtide-0")) && !is_of("ebbtide-0", Some("ebbtide-0")));
        assert!(!is_of("_00ff", None) && !is_of("ebbtide_00ff", None), "no pod is nobody's");
    }

    #[test]
    fn a_take_over_is_counted_and_a_renewal_is_not() {
        let now = Timestamp::UNIX_EPOCH;
        let taken = held(lease("other", 15), "me", now);
        assert_eq!((taken.lease_transitions, taken.acquire_time.is_some()), (Some(4), true));
        let renewed = held(LeaseSpec { acquire_time: None, ..taken }, "me", now);
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(4), None));
        assert_eq!(held(lease("other", 15), "me", now).lease_duration_seconds, Some(13));
        let most = LeaseSpec { lease_transitions: Some(i32::MAX), ..lease("other", 15) };
        assert_eq!(held(most, "me", now).lease_transitions, Some(i32::MAX));
    }
}
