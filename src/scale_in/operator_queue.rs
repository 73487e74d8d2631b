//! Limits how many scale-ins by annotation go on at once in a group. The others wait, oldest wish first.
//!
//! Survives a restart: those under way are counted by their records, and a wish's annotation says since when it waits.

use std::sync::PoisonError;

use jiff::{SignedDuration, Timestamp};

use super::action::Plan;
use super::context::{Shared, may_shrink, speaker};
use super::record::{Annotation, Cause, Release, Wish, Written};
use super::situation::{Situation, Turn};
use super::{events, node_patch};
use crate::clock::later;
use crate::cluster::NodeView;
use crate::k8s::{GroupName, NodeName};

/// A wish that waits is looked at again after this time.
const LOOK_AGAIN: SignedDuration = SignedDuration::from_secs(10);

/// Whether the wish on this Node may be carried out now. Once it may, that stands until there is a record, or the wish is
/// taken back.
pub(super) fn turn(shared: &Shared, node: &NodeView) -> Turn {
    let mut given = shared.turns_given.lock().unwrap_or_else(PoisonError::into_inner);
    let never = Turn::Waits { under_way: 0, before: 0 };
    let (Some(snapshot), Some(id)) = (shared.groups.latest(), node.instance.as_deref()) else {
        return never;
    };
    let Some((group, _)) = snapshot.instance(id) else { return never };
    if !shared.leadership.leads() {
        return never;
    }
    let now = shared.clock.wall();
    let mut under_way = 0;
    let mut queue: Vec<(Timestamp, NodeName)> = Vec::new();
    for instance in &group.asg.instances {
        let Some(other) = speaker(&shared.nodes, &instance.id) else { continue };
        let is_mine = instance.id == id;
        match other.record.as_deref().map(Annotation::written) {
            Some(Written::Record(record)) if record.cause == Cause::Operator && !is_mine => {
                given.remove(&instance.id);
                under_way += 1;
            }
            Some(Written::Record(_) | Written::Wish(_)) if given.contains(&instance.id) => under_way += 1,
            Some(Written::Wish(wish))
                if instance.lifecycle.is_live()
                    && (wish.release == Release::Terminate || may_shrink(shared, &other)) =>
            {
                queue.push((wish.since.unwrap_or(now).min(now), other.name.clone()));
            }
            Some(Written::Record(_) | Written::Wish(_)) => {}
            Some(Written::Unreadable(_)) | None => {
                given.remove(&instance.id);
            }
        }
    }
    if given.contains(id) {
        return Turn::Now;
    }
    let mine = queue.iter().find(|(_, name)| *name == node.name).map_or(now, |(since, _)| *since);
    let before = queue.iter().filter(|(since, name)| (*since, name) < (mine, &node.name)).count();
    let size = group.asg.instances.iter().filter(|instance| instance.lifecycle.is_node()).count();
    if under_way + before < shared.settings.operator_at_once.of(size) {
        given.insert(id.into());
        return Turn::Now;
    }
    Turn::Waits { under_way, before }
}

/// Makes a wish wait: the annotation says since when, an Event says for whom.
pub(super) fn wait(
    s: &Situation<'_>,
    wish: Wish,
    group: &GroupName,
    under_way: usize,
    before: usize,
    plan: &mut Plan,
) {
    s.announce(plan, events::queued(group, under_way, before));
    if wish.since.is_none() {
        s.patch(plan, node_patch::with_wish(s.node, &wish.waiting(s.theirs(s.now))), Vec::new());
    }
    plan.wake(later(s.now, LOOK_AGAIN));
}
