//! Sizes that AWS was told and has not answered: each may still take effect, and would undo what was set since.

use std::collections::BTreeMap;

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::aws::DELIVERED_WITHIN;
use crate::clock::later;
use crate::k8s::GroupName;

/// The last one of each group, and until when it may come.
#[derive(Debug, Default)]
pub(super) struct LateSizes(Mutex<BTreeMap<GroupName, (i32, Timestamp)>>);

impl LateSizes {
    /// Notes that nothing was heard of a size at `now`.
    pub(super) fn note(&self, group: &GroupName, to: i32, now: Timestamp) {
        self.0.lock().insert(group.clone(), (to, later(now, DELIVERED_WITHIN)));
    }

    /// The size that may still come to a group, unless `seen`, the size that a description shows, is that one.
    pub(super) fn of(&self, group: &GroupName, seen: i32, now: Timestamp) -> Option<i32> {
        let mut all = self.0.lock();
        all.retain(|name, (to, until)| *until > now && (name != group || *to != seen));
        all.get(group).map(|(to, _)| *to)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[test]
    fn a_size_without_an_answer_may_come_until_it_shows_or_two_minutes_are_over() {
        let (late, at) =
            (LateSizes::default(), |second| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(second));
        let (group, other) = (GroupName::from("g"), GroupName::from("h"));
        late.note(&group, 4, at(0));
        assert_eq!([late.of(&group, 3, at(1)), late.of(&other, 3, at(1))], [Some(4), None]);
        assert_eq!([late.of(&group, 3, at(119)), late.of(&group, 3, at(120))], [Some(4), None]);
        late.note(&group, 4, at(0));
        assert_eq!([late.of(&group, 4, at(1)), late.of(&group, 3, at(2))], [None, None], "it has come");
    }
}
