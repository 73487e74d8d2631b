//! Faults of AWS that a test can cause.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::faults::{Lose, Refusal};
use super::group::after;
use super::handle::Aws;
use super::operation::Operation;
use super::permissions::Permissions;
use super::troubles::{Trouble, Which};

/// AWS's text for credentials that have expired.
///
/// <https://docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot.html>
const EXPIRED: Refusal = Refusal {
    code: "ExpiredToken",
    status: 403,
    message: "The security token included in the request is expired",
};

/// Faults. A call that is throttled, denied, failed or lost before its effect changes nothing.
impl Aws {
    /// Throttles the next calls of `operation`.
    pub fn throttle_next(&self, operation: Operation, calls: u32) {
        self.script(|state, _| state.faults.throttle(operation, calls));
    }

    /// Throttles the next calls of any operation.
    pub fn throttle_any(&self, calls: u32) {
        self.script(|state, _| state.faults.throttle_any(calls));
    }

    /// Throttles this share of all calls from now on, drawn by the seed; 0 ends it.
    pub fn throttle_share(&self, share: f64) {
        self.script(|state, _| state.faults.throttle_share(share));
    }

    /// Throttles every call of `operations` for a while.
    pub fn throttle_for(&self, operations: &[Operation], duration: Duration) {
        self.script(|state, now| state.faults.throttle_until(operations, after(now, duration)));
    }

    /// Denies `operation` to the caller, or allows it again.
    pub fn deny(&self, operation: Operation, on: bool) {
        self.script(|state, _| state.faults.deny(operation, on));
    }

    /// Allows the caller what these IAM policies allow, and nothing else.
    ///
    /// # Panics
    ///
    /// If they have something that the simulation does not know.
    pub fn permit<'a>(&self, policies: impl IntoIterator<Item = &'a str>) {
        let permissions = Permissions::read(policies).unwrap_or_else(|error| panic!("{error}"));
        self.script(|state, _| state.permissions = Some(permissions));
    }

    /// Refuses (or allows again) to describe all launch templates at once, as some EC2 stand-ins do.
    pub fn hide_templates(&self, on: bool) {
        self.script(|state, _| state.shared.hides_templates = on);
    }

    /// Leaves an element out of each description of groups, though AWS's API has it as required.
    pub fn leave_out(&self, element: Option<&'static str>) {
        self.script(|state, _| state.shared.left_out = element);
    }

    /// Answers the next calls of `operation` with status 500.
    pub fn fail_next(&self, operation: Operation, calls: u32) {
        self.script(|state, _| state.faults.fail(operation, calls));
    }

    /// Answers the next calls of `operation` with an error, before or after their effect.
    pub fn refuse_next(&self, operation: Operation, refusal: Refusal, side: Lose, calls: u32) {
        self.script(|state, _| state.faults.refuse(operation, refusal, side, calls));
    }

    /// Refuses the next entries of batches of `operation`; the batch itself is answered.
    pub fn refuse_entries(&self, operation: Operation, refusal: Refusal, entries: usize) {
        self.script(|state, _| state.faults.refuse_entries(operation, refusal, entries));
    }

    /// Loses the next call of `operation`; called twice, the next two.
    pub fn lose_next(&self, operation: Operation, lose: Lose) {
        self.script(|state, _| state.faults.lose(operation, lose));
    }

    /// Lets calls of `operations` hang without an effect, or stops that. Calls that hang already go on hanging.
    pub fn hang(&self, operations: &[Operation], on: bool) {
        self.script(|state, _| state.faults.hang(operations, on));
    }

    /// Refuses the page tokens of the next calls of `operation`, as if they had expired.
    pub fn expire_tokens(&self, operation: Operation, calls: u32) {
        self.script(|state, _| state.faults.expire_tokens(operation, calls));
    }

    /// Starts or ends an outage, in which no request arrives. Groups go on working.
    pub fn outage(&self, on: bool) {
        self.script(|state, _| state.faults.outage = on);
    }

    /// Delays each call by `latency` and up to `jitter` more, half before its effect and half after.
    pub fn delay(&self, latency: Duration, jitter: Duration) {
        self.script(|state, _| state.faults.delay(latency, jitter));
    }

    /// Delays a share of the calls of `operations` by `least` to `most`; each doubling of the delay is half as likely. A
    /// share of 0 ends it.
    pub fn delay_some(&self, operations: &[Operation], share: f64, least: Duration, most: Duration) {
        self.script(|state, _| state.faults.delay_some(operations, share, least, most));
    }

    /// Sets what happens to the next calls of an operation.
    pub fn trouble(&self, which: Which, trouble: Trouble) {
        self.script(|state, now| {
            if let Trouble::Stale(by) = trouble {
                state.past.reach(by);
            }
            state.faults.troubles.add(which, trouble, now);
        });
    }

    /// Ends all of [`Aws::trouble`]. Requests that are on their way arrive when they do.
    pub fn no_more_trouble(&self) {
        self.script(|state, _| state.faults.troubles.clear());
    }

    /// When calls were hit by [`Aws::trouble`], which may wait for its call for long.
    pub fn hits(&self) -> Vec<Timestamp> {
        self.script(|state, _| state.faults.troubles.hits.clone())
    }

    /// When an answer left out a group or an instance by chance.
    pub fn gaps(&self) -> Vec<Timestamp> {
        self.script(|state, _| state.faults.troubles.gaps.clone())
    }

    /// Refuses everybody's credentials for `duration`.
    pub fn expire_credentials(&self, duration: Duration) {
        let trouble = Trouble::Refused(EXPIRED, Lose::BeforeEffect);
        self.trouble(Which::any().lasting(duration), trouble);
    }

    /// Lets others in the account make this many calls to Auto Scaling a second, under the same rate limit.
    pub fn others_call(&self, per_second: f64) {
        self.script(|state, _| state.bucket.others = per_second);
    }

    /// Sets how far AWS's clock, which dates its answers, is ahead.
    pub fn set_clock_ahead(&self, by: SignedDuration) {
        self.script(|state, _| state.shared.ahead = by);
    }
}
