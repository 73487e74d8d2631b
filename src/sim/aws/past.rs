//! What groups were a while ago: an answer may be from before what was written last.
//!
//! A copy is kept from before each change, at most one for each [`GRAIN`], and only while somebody may be answered from it.
//!
//! <https://docs.aws.amazon.com/ec2/latest/devguide/eventual-consistency.html> and
//! <https://github.com/hashicorp/terraform-provider-aws/issues/7819>

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;

use super::group::{Group, after};
use super::operation::Operation;

/// Changes this close to each other are shown as one.
const GRAIN: Duration = Duration::from_millis(250);

/// The groups of one moment, by name.
pub(super) type Groups = BTreeMap<String, Group>;

/// What groups were.
#[derive(Default)]
pub(super) struct Past {
    /// Until when groups were like this, the oldest first.
    kept: VecDeque<(Timestamp, Groups)>,
    /// How far back anybody may be answered.
    longest: Duration,
}

impl Past {
    /// From now on somebody may be answered as of so long ago.
    pub(super) fn reach(&mut self, back: Duration) {
        self.longest = self.longest.max(back);
    }

    /// Something is about to change.
    pub(super) fn keep(&mut self, groups: &Groups, at: Timestamp) {
        if self.longest.is_zero() || self.kept.back().is_some_and(|(until, _)| at < after(*until, GRAIN)) {
            return;
        }
        self.kept.retain(|(until, _)| after(*until, self.longest) >= at);
        self.kept.push_back((at, groups.clone()));
    }

    /// Swaps the groups with those of `moment`, if they have changed since; said again, swaps them back.
    pub(super) fn swap(&mut self, groups: &mut Groups, moment: Timestamp) {
        if let Some((_, then)) = self.kept.iter_mut().find(|(until, _)| *until > moment) {
            std::mem::swap(then, groups);
        }
    }
}

/// Whether answers to it may be stale.
pub(super) fn is_read(operation: Operation) -> bool {
    operation.name().starts_with("Describe")
}
