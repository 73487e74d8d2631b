//! Several Nodes that name one instance: a kubelet came back under another name, or somebody made up a Node. Pure.
//!
//! Nobody can tell which is the machine's, so pods on all of them count before anything is terminated, completed or flushed,
//! and all are cordoned. One is the primary one: its record is the scale-in, and its worker does everything. Unconfirmed
//! exits on the others hold nothing up for ever ([`Situation::is_over`]).

use super::action::Plan;
use super::situation::Situation;
use super::{events, node_patch};

/// For a Node that is not the primary one: marked while the scale-in goes on, and no longer.
pub(super) fn secondary(s: &Situation<'_>, plan: &mut Plan) {
    let going = s.twins.iter().any(|node| node.scale_in().is_some());
    if going {
        announce(s, plan);
        if s.node.scale_in().is_some() {
            // Two records would be carried out one after the other.
            return s.patch(plan, node_patch::without_record(s.node), Vec::new());
        }
        s.keep_marked(plan);
    } else if s.has_scale_in_marks() {
        s.patch(plan, s.take_off(), Vec::new());
    }
}

/// Announces that several Nodes name the instance, if so.
pub(super) fn announce(s: &Situation<'_>, plan: &mut Plan) {
    let Some(instance) = s.node.instance.as_deref().filter(|_| !s.twins.is_empty()) else { return };
    let others = s.twins.iter().map(|node| node.name.to_string());
    s.announce(plan, events::several_nodes(instance, others));
}
