//! Keeping new pods away from a node that may have to go, and opening it again once the notice has lapsed. Pure.

use jiff::SignedDuration;

use super::action::{Action, Plan};
use super::notices::Expected;
use super::settings::Treatment;
use super::situation::Situation;
use super::{events, node_patch};
use crate::clock::later;
use crate::cluster::Cordon;

/// A cordon that ends within this time of another ends with it.
const AS_GOOD: SignedDuration = SignedDuration::from_secs(1);

/// Plans the cordon of a node that is not scaled in.
pub(super) fn cordon(s: &Situation<'_>, plan: &mut Plan) {
    let wanted = s.expected.filter(|expected| expected.until > s.now);
    match (&s.node.cordon, wanted) {
        (None, Some(expected)) if expected.treatment == Treatment::Cordon && !s.node.unschedulable => {
            put_on(s, expected, plan);
        }
        (Some(cordon), _) if !s.node.unschedulable => {
            // A person has opened the node.
            let event = events::opened_by_a_person(cordon.cause);
            s.patch(plan, node_patch::end_cordon(s.node, false), vec![Action::Announce(event)]);
        }
        (Some(cordon), Some(expected)) if extends(s, &expected, cordon) => put_on(s, expected, plan),
        (Some(cordon), wanted) => {
            let is_called_off = wanted.is_some_and(|expected| calls_off(&expected, cordon));
            let until = s.ours(cordon.until);
            if is_called_off || until <= s.now {
                let event = events::uncordoned(cordon.cause);
                s.patch(plan, node_patch::end_cordon(s.node, true), vec![Action::Announce(event)]);
            } else {
                plan.wake(until);
            }
        }
        _ => {}
    }
}

fn put_on(s: &Situation<'_>, expected: Expected, plan: &mut Plan) {
    let cordon = Cordon { cause: expected.cause, until: s.theirs(expected.until) };
    let event = events::cordoned(&cordon);
    s.patch(plan, node_patch::cordon(s.node, cordon), vec![Action::Announce(event)]);
}

/// Whether a notice keeps the node closed for longer than it is.
fn extends(s: &Situation<'_>, expected: &Expected, cordon: &Cordon) -> bool {
    expected.treatment == Treatment::Cordon && s.theirs(expected.until) > later(cordon.until, AS_GOOD)
}

/// Whether AWS has called off what the cordon is for.
pub(super) fn calls_off(expected: &Expected, cordon: &Cordon) -> bool {
    expected.treatment == Treatment::Nothing && expected.cause == cordon.cause
}
