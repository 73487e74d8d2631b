//! What is told of a group again and again, reckoned once for each look at the groups and change of a Node: that takes a look at every instance
//! of the group, and cluster-autoscaler asks for the group of every node, several times a loop.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;

use super::answers;
use super::proto::{NodeGroup, NodeGroupNodesResponse};
use crate::groups::{Group, Snapshot, sizes};
use crate::k8s::GroupName;
use crate::scale_in::ScaleIns;

/// The figures of all groups that somebody has asked for.
#[derive(Debug, Default)]
pub(super) struct Figures(Mutex<Reckoned>);

#[derive(Debug, Default)]
struct Reckoned {
    /// What they were reckoned from.
    view: Weak<Snapshot>,
    changes: u64,
    of_groups: BTreeMap<GroupName, Arc<Figure>>,
}

/// What is told of a group.
#[derive(Debug)]
pub(super) struct Figure {
    have_failed: bool,
    pub(super) node_group: NodeGroup,
    pub(super) target_size: i32,
    /// The instances as NodeGroupNodes lists them, encoded, once somebody has asked for them.
    instances: OnceLock<Bytes>,
}

impl Figure {
    fn reckoned(group: &Group, have_failed: bool, scale_ins: &dyn ScaleIns) -> Self {
        let leaves = |instance: &_| scale_ins.leaves(&group.asg.name, instance);
        Self {
            have_failed,
            node_group: answers::node_group(group, have_failed, scale_ins),
            target_size: sizes::target_size(&group.asg, leaves),
            instances: OnceLock::new(),
        }
    }

    /// The encoded answer of NodeGroupNodes with the instances of the group that this is of.
    pub(super) fn instances(&self, group: &Group, scale_ins: &dyn ScaleIns) -> Bytes {
        let encoded = || {
            let instances = answers::instances(group, scale_ins).collect();
            NodeGroupNodesResponse { instances, ..Default::default() }.encode_to_vec().into()
        };
        self.instances.get_or_init(encoded).clone()
    }
}

impl Figures {
    /// Those of a group of this view. `have_failed`: whether its launches have lately.
    pub(super) fn of(
        &self,
        view: &Arc<Snapshot>,
        group: &Group,
        have_failed: bool,
        scale_ins: &dyn ScaleIns,
    ) -> Arc<Figure> {
        let mut reckoned = self.0.lock();
        // What changes meanwhile counts from the next question on.
        let changes = scale_ins.changes();
        if reckoned.changes != changes || !std::ptr::eq(reckoned.view.as_ptr(), Arc::as_ptr(view)) {
            *reckoned = Reckoned { view: Arc::downgrade(view), changes, of_groups: BTreeMap::new() };
        }
        if let Some(figure) = reckoned.of_groups.get(&group.asg.name)
            && figure.have_failed == have_failed
        {
            return Arc::clone(figure);
        }
        let figure = Arc::new(Figure::reckoned(group, have_failed, scale_ins));
        reckoned.of_groups.insert(group.asg.name.clone(), Arc::clone(&figure));
        figure
    }
}
