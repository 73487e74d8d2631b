//! The tag of instances that ebbtide protects from scale-in, so that the next run can release them.

use jiff::{SignedDuration, Timestamp};

/// Tag of an instance that ebbtide protects from scale-in; its value is the time of tagging. `deploy/aws/iam/size.json`
/// allows no other.
pub const PROTECTION_TAG: &str = "ebbtide/protected-from-scale-in";

/// Older tags are ignored: no restart takes this long, and whoever may tag instances could otherwise have anybody's protection
/// taken off.
const COUNTS_FOR: SignedDuration = SignedDuration::from_hours(24);

/// Allowed difference between the clocks that two processes go by.
const CLOCKS_DIFFER: SignedDuration = SignedDuration::from_mins(5);

/// Age of a tag with this value. `None` if it is not a time, too old, or in the future.
pub(super) fn age(value: &str, now: Timestamp) -> Option<SignedDuration> {
    let made: Timestamp = value.parse().ok()?;
    Some(now.duration_since(made)).filter(|age| (-CLOCKS_DIFFER..=COUNTS_FOR).contains(age))
}
