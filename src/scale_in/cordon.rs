//! Keeping new pods away from a node that may have to go, and opening it again once the notices have lapsed. Pure.

use jiff::SignedDuration;

use super::action::{Action, Plan};
use super::deadline::SAME_WITHIN;
use super::notices::Noticed;
use super::settings::Treatment;
use super::situation::Situation;
use super::{events, node_patch};
use crate::clock::later;
use crate::cluster::{Cordon, CordonReason};

/// Plans the cordon of a node that is not scaled in.
pub(super) fn cordon(s: &Situation<'_>, plan: &mut Plan) {
    let Some(cordon) = &s.node.cordon else {
        if let Some(cordon) = wanted(s, None).filter(|_| !s.node.unschedulable) {
            put_on(s, &cordon, plan);
        }
        return;
    };
    if !s.node.unschedulable {
        // A person has opened the node.
        let event = events::opened_by_a_person(cordon.cause());
        return s.patch(plan, node_patch::end_cordon(s.node, false), vec![Action::Announce(event)]);
    }
    match wanted(s, Some(cordon)) {
        Some(wanted) if s.ours(wanted.until()) > s.now => {
            if wanted == *cordon {
                plan.wake(s.ours(wanted.until()));
            } else {
                put_on(s, &wanted, plan);
            }
        }
        _ => {
            let event = events::uncordoned(cordon.cause());
            s.patch(plan, node_patch::end_cordon(s.node, true), vec![Action::Announce(event)]);
        }
    }
}

/// Plans the end of the cordon of a node whose instance is in none of our groups: no notice prolongs it.
pub(super) fn end(s: &Situation<'_>, plan: &mut Plan) {
    let Some(cordon) = &s.node.cordon else { return };
    if !s.has_come(s.ours(cordon.until()), plan) {
        return;
    }
    let event = events::uncordoned(cordon.cause());
    let patch = node_patch::end_cordon(s.node, s.node.unschedulable);
    s.patch(plan, patch, vec![Action::Announce(event)]);
}

fn put_on(s: &Situation<'_>, cordon: &Cordon, plan: &mut Plan) {
    let event = events::cordoned(cordon);
    s.patch(plan, node_patch::cordon(s.node, cordon), vec![Action::Announce(event)]);
}

/// The cordon that notices ask for. Notices in the present cordon count until they lapse or are called off.
fn wanted(s: &Situation<'_>, cordon: Option<&Cordon>) -> Option<Cordon> {
    let mut reasons = cordon.map(|cordon| cordon.reasons().to_vec()).unwrap_or_default();
    reasons.retain(|reason| {
        !s.notices.iter().any(|notice| notice.calls_off(reason.cause, reason.event.as_deref()))
    });
    let counts =
        |notice: &&Noticed| notice.expected.treatment == Treatment::Cordon && notice.expected.until > s.now;
    for notice in s.notices.iter().filter(counts) {
        let until = s.theirs(notice.expected.until);
        match reasons.iter_mut().find(|reason| is_about(notice, reason)) {
            Some(reason) if until <= later(reason.until, SAME_WITHIN) => {}
            Some(reason) => reason.until = until,
            None => {
                let (cause, event) = (notice.expected.cause, notice.event.clone());
                reasons.push(CordonReason { cause, until, event });
            }
        }
    }
    Cordon::of(reasons)
}

/// Whether the notice is another one about what the cordon is for.
fn is_about(notice: &Noticed, reason: &CordonReason) -> bool {
    notice.expected.cause == reason.cause && notice.event == reason.event
}

/// Whether the notice keeps the node closed no longer than the cordon does, whose clock is `ahead` of ours.
pub(super) fn covers(cordon: &Cordon, notice: &Noticed, ahead: SignedDuration) -> bool {
    let until = later(notice.expected.until, ahead);
    let lasts = |reason: &CordonReason| until <= later(reason.until, SAME_WITHIN);
    cordon.reasons().iter().any(|reason| is_about(notice, reason) && lasts(reason))
}
