//! What goes wrong between a caller and the simulated AWS, by script.
//!
//! A fault decides about a call before the call is looked at: a throttled, denied or failed call has no effect. Counted faults
//! ("the next three") are used up by the calls they hit and by no others. In order: outage, hanging, loss, throttle, denial,
//! failure, tokens that have expired.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::Timestamp;

use super::operation::Operation;
use super::state::State;

/// On which side of its effect a call is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lose {
    /// The request never arrives.
    BeforeEffect,
    /// The request is carried out, the answer never arrives.
    AfterEffect,
}

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Proceed,
    Throttle,
    Deny,
    Fail,
    /// The token for the next page is valid no more.
    Expire,
    Lose(Lose),
}

/// Something that happens right before or after the next call of an operation.
pub(super) type Effect = Box<dyn FnOnce(&mut State, Timestamp) + Send>;

/// The faults in force.
#[derive(Default)]
pub(super) struct Faults {
    pub(super) outage: bool,
    throttled: BTreeMap<Operation, u32>,
    throttled_any: u32,
    throttled_until: BTreeMap<Operation, Timestamp>,
    denied: BTreeSet<Operation>,
    failing: BTreeMap<Operation, u32>,
    hanging: BTreeSet<Operation>,
    expired: BTreeMap<Operation, u32>,
    losing: BTreeMap<Operation, Vec<Lose>>,
    latency: Duration,
    jitter: Duration,
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

    pub(super) fn hangs(&self, operation: Operation) -> bool {
        self.hanging.contains(&operation)
    }

    pub(super) fn expire_tokens(&mut self, operation: Operation, calls: u32) {
        self.expired.insert(operation, calls);
    }

    pub(super) fn lose(&mut self, operation: Operation, lose: Lose) {
        self.losing.entry(operation).or_default().push(lose);
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

    /// How long the next call travels, there and back.
    pub(super) fn draw_latency(&self, rng: &mut fastrand::Rng) -> Duration {
        self.latency + self.jitter.mul_f64(if self.jitter.is_zero() { 0.0 } else { rng.f64() })
    }

    /// What happens to this call, which asks for the next page or does not.
    pub(super) fn judge(&mut self, operation: Operation, goes_on: bool, now: Timestamp) -> Verdict {
        if self.outage || self.hangs(operation) {
            return Verdict::Lose(Lose::BeforeEffect);
        }
        if let Some(losses) = self.losing.get_mut(&operation)
            && !losses.is_empty()
        {
            return Verdict::Lose(losses.remove(0));
        }
        let timed = self.throttled_until.get(&operation).is_some_and(|until| now < *until);
        if timed || use_one(&mut self.throttled_any) || use_one_of(&mut self.throttled, operation) {
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

fn use_one_of(left: &mut BTreeMap<Operation, u32>, operation: Operation) -> bool {
    left.get_mut(&operation).is_some_and(use_one)
}

fn use_one(left: &mut u32) -> bool {
    let hit = *left > 0;
    *left = left.saturating_sub(1);
    hit
}
