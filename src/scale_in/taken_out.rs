//! Whether a group takes an instance out by itself by now: asked before a termination that lowers the desired capacity.
//!
//! AWS lowers it for an instance that is on its way out all the same, and a healthy one goes for that. The last refresh may be a minute
//! old. One description serves all terminations in a group that wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::Mutex as AsyncMutex;

use crate::aws::{Aws, AwsError};
use crate::clock::{Clock, elapsed};
use crate::groups::Groups;
use crate::k8s::{GroupName, InstanceId};

/// A description that is older may not show it. Refreshes that our own changes ask for are as far apart.
const RECENT: Duration = Duration::from_secs(5);

/// The last description of each group, as far as this is about.
#[derive(Debug, Default)]
pub struct TakenOut(Mutex<BTreeMap<GroupName, Arc<AsyncMutex<Look>>>>);

#[derive(Debug, Default)]
struct Look {
    at: Timestamp,
    leaving: BTreeSet<InstanceId>,
}

impl TakenOut {
    fn of(&self, group: &GroupName) -> Arc<AsyncMutex<Look>> {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(looks.entry(group.clone()).or_default())
    }

    /// Whether the group is taking the instance out. Errors: AWS did not say.
    pub(super) async fn shows(
        &self,
        instance: &InstanceId,
        group: &GroupName,
        (groups, aws, clock): (&Groups, &Aws, &Clock),
    ) -> Result<bool, AwsError> {
        let is_recent = |at| elapsed(at, clock.now()) <= RECENT;
        if let Some(view) = groups.latest().filter(|view| is_recent(view.taken_at)) {
            return Ok(view.instance(instance).is_some_and(|(_, instance)| instance.lifecycle.is_leaving()));
        }
        let look = self.of(group);
        let mut look = look.lock().await;
        if !is_recent(look.at) {
            let at = clock.now();
            let described = aws.describe_groups_now(slice::from_ref(group)).await?;
            let instances = described.into_iter().flat_map(|group| group.instances);
            let leaving = instances.filter(|instance| instance.lifecycle.is_leaving());
            *look = Look { at, leaving: leaving.map(|instance| instance.id).collect() };
        }
        Ok(look.leaving.contains(instance))
    }
}
