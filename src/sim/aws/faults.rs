//! Scripted faults between a caller and the simulated AWS.
//!
//! A fault decides before the call is carried out: a throttled, denied or failed call has no effect. Counted faults ("the
//! next three") are used up by the calls they hit and no others. Order: `troubles` for single calls, outage, hanging, loss,
//! refusal, throttle, denial, failure, expired tokens, the bucket.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::operation::Operation;
use super::state::State;
use super::troubles::Troubles;

/// On which side of its effect a call is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lose {
    /// The request never arrives.
    BeforeEffect,
    /// The request is carried out; the answer never arrives.
    AfterEffect,
}

/// An error as AWS answers it: any code, any status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The machine-readable code. Empty: a server before the service answers, with the text as the whole body.
    pub code: &'static str,
    /// The HTTP status.
    pub status: u16,
    /// The text for people.
    pub message: &'static str,
}

/// Delays of the calls that take much longer than others.
#[derive(Clone, Copy, Debug)]
struct Tail {
    share: f64,
    least: Duration,
    most: Duration,
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Proceed,
    /// Refused, before or after its effect.
    Refuse(Refusal, Lose),
    Throttle,
    Deny,
    Fail,
    /// The token for the next page has expired.
    Expire,
    Lose(Lose),
    /// The caller never hears of it.
    Silence(Lose),
}

/// A scripted change right before or after the next call of an operation.
pub(super) type Effect = Box<dyn FnOnce(&mut State, Timestamp) + Send>;

/// The faults in force.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) outage: bool,
    throttled: BTreeMap<Operation, u32>,
    throttled_any: u32,
    throttled_share: f64,
    throttled_until: BTreeMap<Operation, Timestamp>,
    denied: BTreeSet<Operation>,
    failing: BTreeMap<Operation, u32>,
    hanging: BTreeSet<Operation>,
    expired: BTreeMap<Operation, u32>,
    losing: BTreeMap<Operation, Vec<Lose>>,
    refused: BTreeMap<Operation, (Verdict, u32)>,
    /// Entries of batches.
    refused_entries: BTreeMap<Operation, (Refusal, usize)>,
    tails: BTreeMap<Operation, Tail>,
    latency: Duration,
    jitter: Duration,
    pub(super) troubles: Troubles,
    before: BTreeMap<Operation, Vec<Effect>>,
    after: BTreeMap<Operation, Vec<Effect>>,
}

impl Faults {
    pub(super) fn throttle_any(&mut self, calls: u32) {
        self.throttled_any = calls;
    }

    pub(super) fn throttle(&mut self, operation: Operation, calls: u32) {
        self.throttled.insert(operation, calls);
    }

    pub(super) fn throttle_share(&mut self, share: f64) {
        self.throttled_share = share;
    }

    pub(super) fn throttle_until(&mut self, operations: &[Operation], until: Timestamp) {
        self.throttled_until.extend(operations.iter().map(|operation| (*operation, until)));
    }

    pub(super) fn deny(&mut self, operation: Operation, on: bool) {
        if on {
            self.denied.insert(operation);
        } else {
            self.denied.remove(&operation);
        }
    }

    pub(super) fn fail(&mut self, operation: Operation, calls: u32) {
        self.failing.insert(operation, calls);
    }

    pub(super) fn hang(&mut self, operations: &[Operation], on: bool) {
        for operation in operations {
            if on {
                self.hanging.insert(*operation);
            } else {
                self.hanging.remove(operation);
            }
        }
    }

    pub(super) fn expire_tokens(&mut self, operation: Operation, calls: u32) {
        self.expired.insert(operation, calls);
    }

    pub(super) fn lose(&mut self, operation: Operation, lose: Lose) {
        self.losing.entry(operation).or_default().push(lose);
    }

    pub(super) fn refuse(&mut self, operation: Operation, refusal: Refusal, side: Lose, calls: u32) {
        self.refused.insert(operation, (Verdict::Refuse(refusal, side), calls));
    }

    pub(super) fn delay_some(
        &mut self,
        operations: &[Operation],
        share: f64,
        least: Duration,
        most: Duration,
    ) {
        self.tails.extend(operations.iter().map(|operation| (*operation, Tail { share, least, most })));
    }

    pub(super) fn refuse_entries(&mut self, operation: Operation, refusal: Refusal, entries: usize) {
        self.refused_entries.insert(operation, (refusal, entries));
    }

    /// Refusals for the first entries of a batch of `operation`.
    pub(super) fn refused_entries(&mut self, operation: Operation, entries: usize) -> Vec<Refusal> {
        let Some((refusal, left)) = self.refused_entries.get_mut(&operation) else { return Vec::new() };
        let refused = entries.min(*left);
        *left -= refused;
        vec![*refusal; refused]
    }

    pub(super) fn delay(&mut self, latency: Duration, jitter: Duration) {
        (self.latency, self.jitter) = (latency, jitter);
    }

    pub(super) fn before_next(&mut self, operation: Operation, effect: Effect) {
        self.before.entry(operation).or_default().push(effect);
    }

    pub(super) fn after_next(&mut self, operation: Operation, effect: Effect) {
        self.after.entry(operation).or_default().push(effect);
    }

    pub(super) fn take_before(&mut self, operation: Operation) -> Vec<Effect> {
        self.before.remove(&operation).unwrap_or_default()
    }

    pub(super) fn take_after(&mut self, operation: Operation) -> Vec<Effect> {
        self.after.remove(&operation).unwrap_or_default()
    }

    /// How long the next call of `operation` travels there, and back.
    pub(super) fn draw_latency(&self, operation: Operation, rng: &mut fastrand::Rng) -> Duration {
        let usual = self.latency + self.jitter.mul_f64(if self.jitter.is_zero() { 0.0 } else { rng.f64() });
        match self.tails.get(&operation) {
            Some(tail) if rng.f64() < tail.share => usual + tail.draw(rng),
            _ => usual,
        }
    }

    /// What happens to this call; `goes_on`: it asks for a further page.
    pub(super) fn judge(
        &mut self,
        operation: Operation,
        goes_on: bool,
        now: Timestamp,
        rng: &mut fastrand::Rng,
    ) -> Verdict {
        if self.outage {
            return Verdict::Lose(Lose::BeforeEffect);
        }
        if self.hanging.contains(&operation) {
            return Verdict::Silence(Lose::BeforeEffect);
        }
        if let Some(losses) = self.losing.get_mut(&operation)
            && !losses.is_empty()
        {
            return Verdict::Lose(losses.remove(0));
        }
        if let Some((refusal, left)) = self.refused.get_mut(&operation)
            && use_one(left)
        {
            return *refusal;
        }
        let by_chance = self.throttled_share > 0.0 && rng.f64() < self.throttled_share;
        let timed = self.throttled_until.get(&operation).is_some_and(|until| now < *until);
        if by_chance
            || timed
            || use_one(&mut self.throttled_any)
            || use_one_of(&mut self.throttled, operation)
        {
            return Verdict::Throttle;
        }
        if self.denied.contains(&operation) {
            return Verdict::Deny;
        }
        if use_one_of(&mut self.failing, operation) {
            return Verdict::Fail;
        }
        if goes_on && use_one_of(&mut self.expired, operation) { Verdict::Expire } else { Verdict::Proceed }
    }
}

impl Tail {
    /// A delay between the bounds: each doubling is half as likely.
    fn draw(self, rng: &mut fastrand::Rng) -> Duration {
        let stretch = 1.0 / (1.0 - rng.f64()).max(f64::EPSILON);
        Duration::try_from_secs_f64(self.least.as_secs_f64() * stretch).unwrap_or(self.most).min(self.most)
    }
}

fn use_one_of(left: &mut BTreeMap<Operation, u32>, operation: Operation) -> bool {
    left.get_mut(&operation).is_some_and(use_one)
}

fn use_one(left: &mut u32) -> bool {
    let hit = *left > 0;
    *left = left.saturating_sub(1);
    hit
}
