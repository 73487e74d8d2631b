//! Whether a group takes an instance out by itself by now or has launched its replacement, or somebody has set it aside: asked before a
//! termination that lowers the desired capacity.
//!
//! AWS lowers the capacity even for an instance that it no longer counts, and then ends a healthy one. The last refresh may be a minute
//! old. One description serves all terminations in a group that wait for it.

use std::collections::BTreeMap;
use std::slice;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Mutex as AsyncMutex;

use crate::aws::{AutoScalingGroup, Aws, Instance};
use crate::clock::{Clock, elapsed};
use crate::groups::{Groups, sizes};
use crate::k8s::{GroupName, InstanceId};

/// A description that is older may not show it. Refreshes that our own changes ask for are as far apart.
const RECENT: Duration = Duration::from_secs(5);

/// How long a group that AWS does not describe holds up terminations: reading may be throttled for an hour where writing is not, and
/// a drained node costs more with each minute.
const PATIENCE: Duration = Duration::from_mins(5);

/// The last description of each group that was asked for lately, as far as this is about.
#[derive(Debug, Default)]
pub struct TakenOut(Mutex<BTreeMap<GroupName, Arc<AsyncMutex<Look>>>>);

#[derive(Debug, Default)]
struct Look {
    at: Timestamp,
    /// The instances that it shows, and whether the desired capacity counts them. `None`: AWS did not say.
    shown: Option<BTreeMap<InstanceId, bool>>,
    /// Since when it has not said.
    silent_since: Option<Timestamp>,
}

impl TakenOut {
    fn of(&self, group: &GroupName, now: Timestamp) -> Arc<AsyncMutex<Look>> {
        let mut looks = self.0.lock();
        // Whoever waits for one holds it.
        looks.retain(|_, look| {
            Arc::strong_count(look) > 1 || look.try_lock().is_ok_and(|look| elapsed(look.at, now) <= PATIENCE)
        });
        Arc::clone(looks.entry(group.clone()).or_default())
    }

    /// Whether the desired capacity does not count the instance any more. `None`: AWS does not say, or leaves it out. Where it has not
    /// answered for [`PATIENCE`], no.
    pub(super) async fn shows(
        &self,
        instance: &InstanceId,
        group: &GroupName,
        (groups, aws, clock): (&Groups, &Aws, &Clock),
    ) -> Option<bool> {
        let is_recent = |at| elapsed(at, clock.now()) <= RECENT;
        if let Some(view) = groups.latest().filter(|view| is_recent(view.taken_at))
            // A description may leave an instance out, and the replacement of an unhealthy one comes within moments.
            && let Some((_, instance)) = view.instance(instance)
            && !instance.unhealthy
        {
            return Some(!instance.lifecycle.is_live());
        }
        let asked_at = clock.now();
        let look = self.of(group, asked_at);
        let mut look = look.lock().await;
        // One that began while this one waited for it serves, however long it took.
        if elapsed(look.at, asked_at) > RECENT {
            let began = clock.now();
            let described = aws.describe_groups(slice::from_ref(group)).await;
            *look = if let Ok(described) = described {
                let mut shown = BTreeMap::new();
                for group in &described {
                    shown.extend(group.instances.iter().map(|one| (one.id.clone(), is_counted(group, one))));
                }
                Look { at: began, shown: Some(shown), silent_since: None }
            } else {
                // Dated at its end: calls that wait for this one need not try as well.
                let refreshed = groups.latest().map(|view| view.taken_at);
                let before = look.silent_since.filter(|since| refreshed.is_none_or(|at| at < *since));
                Look { at: clock.now(), shown: None, silent_since: before.or(Some(began)) }
            };
        }
        match &look.shown {
            Some(shown) => shown.get(instance).map(|is_live| !is_live),
            None => look
                .silent_since
                .is_some_and(|since| elapsed(since, clock.now()) >= PATIENCE)
                .then_some(false),
        }
    }
}

/// Whether the desired capacity counts an instance that nobody is replacing.
fn is_counted(group: &AutoScalingGroup, instance: &Instance) -> bool {
    instance.lifecycle.is_live() && !sizes::is_replaced_first(group, instance)
}
