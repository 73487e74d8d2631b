//! What must hold in every run, from what the worlds saw.
//!
//! A check reads the whole history, in which every entry has its moment: that finds what a check at every step would find. Each
//! exception stands beside its reason, which docs/scale-in.md has at length.

mod calls;
mod ends;
mod examples;
mod limits;
mod pods;
mod provider;
mod requests;
mod sizes;
mod told;

use jiff::Timestamp;

pub(crate) use self::requests::calm_minutes;

use crate::history::History;

/// Something that must not be.
#[derive(Clone, Debug)]
pub(crate) struct Violation {
    pub(crate) at: Timestamp,
    pub(crate) what: String,
}

/// Something that must hold.
#[derive(Clone, Copy)]
pub(crate) struct Invariant {
    pub(crate) name: &'static str,
    pub(crate) check: fn(&History) -> Vec<Violation>,
    /// Histories that violate it, and nothing else does but what they name.
    broken: &'static [fn() -> History],
}

macro_rules! invariants {
    ($($name:literal: $check:path, broken by $($broken:path),+;)*) => {
        /// All of them.
        pub(crate) const ALL: &[Invariant] =
            &[$(Invariant { name: $name, check: $check, broken: &[$($broken),+] }),*];
    };
}

invariants! {
    "no instance is released with a live workload": pods::released, broken by examples::released;
    "DaemonSet pods have their time after the last exit": pods::flush, broken by examples::not_flushed;
    "what is empty is let go": pods::prompt, broken by examples::dawdled;
    "no DaemonSet pod is asked before the last workload has left": pods::daemons, broken by examples::daemon_asked;
    "no budget is overridden before the deadline": pods::budgets, broken by examples::deleted, examples::deleted_at_once;
    "no grace is shortened before the deadline": pods::graces, broken by examples::hurried;
    "a pod whose whole grace fits before the deadline has it": pods::late, broken by examples::late;
    "no last line is lost": pods::lines, broken by examples::line_lost;
    "an instance lowers the desired capacity once": sizes::decrements, broken by examples::lowered_twice;
    "no size goes below the minimum": sizes::minimum, broken by examples::too_small;
    "no healthy instance is ended unasked": sizes::unasked, broken by examples::unasked;
    "the target size is right at the end": sizes::target, broken by examples::wrong_target;
    "the target size is right at every answer": told::target_sizes, broken by examples::told_wrong;
    "every accepted scale-in ends": ends::scale_ins, broken by examples::endless;
    "our hooks are completed, others' are left alone": ends::hooks, broken by examples::timed_out;
    "a node that stays carries nothing of ours": ends::leftovers, broken by examples::cordoned, examples::tainted, examples::draining;
    "nothing stays protected from scale-in": ends::protection, broken by examples::protected;
    "no loop of cluster-autoscaler ends with an error of ours": provider::loops, broken by examples::loop_failed;
    "a termination is repeated half a minute later at the soonest": calls::terminations, broken by examples::terminated_twice;
    "no minute has more calls to AWS than documented": calls::of_a_minute, broken by examples::many_calls;
    "no minute has more requests to the API server than documented": requests::of_a_minute, broken by examples::many_requests, examples::strange_request;
    "the program neither panics nor ends by itself": provider::ended, broken by examples::panicked;
}

/// Whether each of them finds the history that violates it: one that does not is worth nothing.
pub(crate) fn all_can_fail() -> bool {
    let mut all = true;
    for Invariant { name, check, broken } in ALL {
        if broken.iter().any(|broken| check(&broken()).is_empty()) {
            println!("an invariant that cannot fail: {name}");
            all = false;
        }
        let found: Vec<Violation> = examples::GOOD.iter().flat_map(|good| check(&good())).collect();
        if !found.is_empty() {
            println!("an invariant that fails for nothing: {name}: {found:?}");
            all = false;
        }
    }
    all
}

/// A violation, and the name of its invariant.
pub(crate) fn violations(history: &History) -> Vec<(&'static str, Violation)> {
    let mut all = Vec::new();
    for Invariant { name, check, .. } in ALL {
        all.extend(check(history).into_iter().map(|found| (*name, found)));
    }
    all.sort_by_key(|(_, violation)| violation.at);
    all
}
