//! Tells writes of a Node that want the same again and again, and slows them down: somebody else writes it as well. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::clock::{backoff, later, signed};

/// From this many identical writes of a Node in a row, there is a pause after each. A few conflicts are normal, as others write the Node
/// too.
const PAUSE_FROM: u32 = 3;

/// A warning follows after more than this: conflicts at a busy API server, and a limit that moves by a second, reach this number by
/// coincidence.
const WARN_ABOVE: u32 = 2 * PAUSE_FROM;

/// Two writes that want the same count as one after the other if they end no further apart than this, plus the pause between them.
const REPEATED_WITHIN: SignedDuration = SignedDuration::from_secs(10);

/// Writes of a Node that want the same, one after the other: somebody undoes them, or they always come too late.
#[derive(Clone, Debug, Default)]
pub(super) struct SameWrites {
    /// What they want, without figures: each has other moments and another version in it.
    wanted: String,
    /// What the one that is under way wants.
    under_way: String,
    many: u32,
    last: Timestamp,
}

impl SameWrites {
    /// The pause after the last of them.
    fn pause(&self) -> SignedDuration {
        match self.many.checked_sub(PAUSE_FROM) {
            None => SignedDuration::ZERO,
            Some(more) => signed(backoff(more + 1, Duration::from_secs(1), Duration::from_secs(30))),
        }
    }

    /// Until when a write waits if it wants the same as they did. One that wants anything else, as for the next phase, does not.
    pub(super) fn wait_until(&self, patch: &Value) -> Option<Timestamp> {
        let pause = self.pause();
        (!pause.is_zero() && without_figures(patch) == self.wanted).then(|| later(self.last, pause))
    }

    pub(super) fn begin(&mut self, patch: &Value) {
        self.under_way = without_figures(patch);
    }

    /// Takes in that the write under way was done, or came too late. One that was not answered, or refused, is no sign of anybody.
    pub(super) fn end(&mut self, now: Timestamp) {
        let wanted = std::mem::take(&mut self.under_way);
        let is_same = wanted == self.wanted && now < later(self.last, REPEATED_WITHIN + self.pause());
        self.many = if is_same { self.many.saturating_add(1) } else { 1 };
        (self.wanted, self.last) = (wanted, now);
    }

    /// Whether there are too many for a coincidence.
    pub(super) fn are_telling(&self) -> bool {
        self.many > WARN_ABOVE
    }
}

fn without_figures(patch: &Value) -> String {
    patch.to_string().chars().filter(|letter| !letter.is_ascii_digit()).collect()
}
