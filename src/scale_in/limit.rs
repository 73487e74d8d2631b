//! The limit of a scale-in under way, by what is now known of its record, the options, the hook and AWS's notices. Pure.
//!
//! [`super::deadline`] has the arithmetic. This module decides what applies after one of these has changed, or nobody has led for a while.

use std::cell::LazyCell;

use jiff::{SignedDuration, Timestamp};

use super::deadline::{self, HeldBy, OurLimit};
use super::membership::Membership;
use super::record::{End, Record, Release};
use super::situation::Situation;
use crate::aws::Lifecycle;
use crate::clock::later;
use crate::cluster::Ready;
use crate::groups::hooks::{HookState, TerminatingHooks};

/// The Node of a machine that has ended stays Ready for this long at most: its kubelet counts as silent after 50 s.
pub(super) const OUTLIVED_AFTER: SignedDuration = SignedDuration::from_mins(2);

/// The record with the time-out by which our hook holds the instance, for a later run that knows the hook only after a change. While nobody
/// knows since when the hook holds, that is its present time-out.
pub(super) fn with_timeout(s: &Situation<'_>, record: Record) -> Record {
    match &s.hook {
        HookState::Known(TerminatingHooks { ours: Some(hook), .. })
            if record.release == Release::LeftToGroup =>
        {
            Record { heartbeat_timeout_seconds: Some(hook.heartbeat_timeout.as_secs()), ..record }
        }
        _ => record,
    }
}

/// Whether the machine still runs well after the end that AWS announced, which was postponed or came to nothing.
pub(super) fn has_outlived(s: &Situation<'_>, end: Timestamp) -> bool {
    s.node.ready == Ready::Yes && later(end, OUTLIVED_AFTER) < s.now
}

/// Whether AWS ends the machine then, as far as is known: it may have called that off, or moved it.
pub(super) fn still_ends(s: &Situation<'_>, end: &End) -> bool {
    !has_outlived(s, end.at) && !s.notices.iter().any(|notice| notice.takes_back(end))
}

/// Whether everything the deadline depends on is known. Until then, the written one is neither applied nor replaced.
pub(super) fn is_deadline_known(s: &Situation<'_>, record: &Record) -> bool {
    if s.our_limit == OurLimit::Unknown {
        return false;
    }
    !is_bound_by_the_hook(s, record) || (s.hook.ours().is_some() && s.held.is_some())
}

/// Whether the instance leaves by our hook, or is held by it for its root volume: when that hold is over, the machine starts anew, whatever
/// is on it.
pub(super) fn is_bound_by_the_hook(s: &Situation<'_>, record: &Record) -> bool {
    record.release == Release::LeftToGroup
        || matches!(s.instance, Membership::In { lifecycle: Lifecycle::ReplacingVolumeWait, .. })
}

/// The deadline by what is known now. The record's own may have been written after the hook began to hold the instance,
/// or by hand.
pub(super) fn deadline_of(s: &Situation<'_>, record: &Record) -> Option<Timestamp> {
    let held = s.held_by().filter(|_| s.held.is_some() && is_bound_by_the_hook(s, record));
    effective_limit(s, record, held)
}

/// The limit of a scale-in under way. A limit of ours that passed while nobody led counts anew from when this process began to lead. One that
/// somebody has moved closer, or that came soon after this process began to lead, shortens no pod's grace and no flush.
pub(super) fn effective_limit(
    s: &Situation<'_>,
    record: &Record,
    held: Option<HeldBy<'_>>,
) -> Option<Timestamp> {
    let by_rules = deadline::limit(s.our_limit, record, held)?;
    // Somebody's record moves no limit. One over a record of ours has the limit of that.
    if s.memory.claims.is_limit_claimed() {
        return Some(by_rules);
    }
    let had = record.release_by;
    // The run before knew since when AWS holds the instance.
    let inherited = s.memory.claims.inherited().map(|at| s.noted(at)).filter(|at| *at > s.leads_since);
    let inherited = inherited.filter(|_| held.is_some_and(|held| held.hold.at_the_latest));
    let inherited_limit = inherited.map_or(by_rules, |inherited| inherited.min(by_rules));
    let limit = if record.requested_at < s.leads_since && inherited_limit <= s.leads_since {
        let anew = Record { requested_at: s.leads_since, ..record.clone() };
        let anew = deadline::limit(s.our_limit, &anew, held)?;
        // Leaders may follow each other: the first one's stands.
        had.filter(|had| *had > s.leads_since).map_or(anew, |had| had.min(anew))
    } else {
        inherited_limit
    };
    // That takes a look at all pods, and mostly the limit is the one that the record has.
    let soonest = LazyCell::new(|| s.released_at_the_soonest(record));
    let aws = deadline::limit(OurLimit::Never, record, held);
    let due = had.map_or(limit, |had| had.max(limit));
    if record.requested_at < s.leads_since
        && (*soonest).is_some_and(|soonest| was_too_close(s, record, due, soonest))
    {
        return deadline::spared(limit, None, *soonest, aws);
    }
    if had.is_some_and(|had| had <= limit) {
        return Some(limit);
    }
    deadline::spared(limit, had, *soonest, aws)
}

/// Whether `due` left too little time when this process began to lead, although it left enough when the scale-in was requested, before that.
/// `soonest`: when the node could be released without cutting anything short.
fn was_too_close(s: &Situation<'_>, record: &Record, due: Timestamp, soonest: Timestamp) -> bool {
    let takes = soonest.duration_since(s.now);
    due < later(s.leads_since, takes) && later(record.requested_at, takes) <= due
}
