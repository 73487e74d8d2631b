//! Past states of groups, for answers that are stale.
//!
//! A copy is kept from before each change, at most one per [`GRAIN`], and only while an answer may need it.
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

/// Past states of groups.
#[derive(Default)]
pub(super) struct Past {
    /// Groups as they were until a moment, oldest first.
    kept: VecDeque<(Timestamp, Groups)>,
    /// The oldest state an answer may need.
    longest: Duration,
}

impl Past {
    /// Keeps states at least this old from now on.
    pub(super) fn reach(&mut self, back: Duration) {
        self.longest = self.longest.max(back);
    }

    /// Keeps the state from before a change.
    pub(super) fn keep(&mut self, groups: &Groups, at: Timestamp) {
        if self.longest.is_zero() || self.kept.back().is_some_and(|(until, _)| at < after(*until, GRAIN)) {
            return;
        }
        self.kept.retain(|(until, _)| after(*until, self.longest) >= at);
        self.kept.push_back((at, groups.clone()));
    }

    /// Swaps the groups with those of `moment`, if they changed since; a second call swaps them back.
    pub(super) fn swap(&mut self, groups: &mut Groups, moment: Timestamp) {
        if let Some((_, then)) = self.kept.iter_mut().find(|(until, _)| *until > moment) {
            std::mem::swap(then, groups);
        }
    }
}

/// Whether an operation only reads, so that its answer may be stale.
pub(super) fn is_read(operation: Operation) -> bool {
    operation.name().starts_with("Describe")
}
