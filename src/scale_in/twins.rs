//! Several Nodes that name one instance: a kubelet came back under another name, or somebody made a Node up. Pure.
//!
//! Nobody can tell for certain which of them the machine is, so the pods on all of them count before anything is
//! terminated, completed or flushed, and all of them are closed. One of them speaks for the instance: its record is the
//! scale-in, and its worker does everything. What nobody confirms on the others holds nothing up for ever
//! ([`Situation::ended_before`]).

use std::sync::Arc;

use super::intents::record_on;
use super::marks;
use super::plan::keep_marked;
use super::record::{self, Written};
use super::situation::{Announcement, Plan, Situation};
use crate::cluster::{NodeView, Nodes};

/// The Node that speaks for an instance: the one with the record of its scale-in, or with a person's wish for one, or else
/// the one that is most likely the machine's own.
pub(super) fn speaker(nodes: &Nodes, instance: &str) -> Option<Arc<NodeView>> {
    let all = nodes.of_instance(instance);
    if all.len() < 2 {
        return all.into_iter().next();
    }
    let rank = |node: &NodeView| match node.record.as_deref().map(record::read) {
        Some(Written::Record(record)) if record.instance == instance => 0,
        Some(Written::Wish(_)) => 1,
        _ => 2,
    };
    all.into_iter().min_by_key(|node| rank(node))
}

/// What is to be done for a Node that another one speaks for: it is closed while the scale-in goes on, and no longer.
pub(super) fn beside(s: &Situation<'_>, plan: &mut Plan) {
    let going = s.beside.iter().any(|node| record_on(node).is_some());
    if going {
        announce(s, plan);
        if record_on(s.node).is_some() {
            // Two would be carried out one after the other.
            return s.patch(plan, marks::without_record(s.node), Vec::new());
        }
        keep_marked(s, plan);
    } else if marks::has_scale_in_marks(s.node) {
        s.patch(plan, marks::take_off(s.node), Vec::new());
    }
}

/// Tells people that there are several, if there are.
pub(super) fn announce(s: &Situation<'_>, plan: &mut Plan) {
    let Some(instance) = s.node.instance.as_deref().filter(|_| !s.beside.is_empty()) else { return };
    let others: Vec<&str> = s.beside.iter().take(5).map(|node| node.name.as_str()).collect();
    let note = format!(
        "other Nodes name instance {instance} as well: {}. Which of them it is cannot be told: pods on all of them leave \
         before it goes. Delete those that are not the machine's",
        others.join(", ")
    );
    let topic = "several nodes".into();
    s.announce(plan, Announcement { topic, reason: "ScaleInSeveralNodes", note, warning: true });
}
