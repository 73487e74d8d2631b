//! Whether the desired capacity still counts an instance, or its group takes it out by itself by now or has launched its replacement, or
//! somebody has set it aside: asked before a termination that lowers the desired capacity.
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

use crate::aws::{AutoScalingGroup, Aws, AwsError, Instance};
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

#[derive(Debug)]
struct Look {
    at: Timestamp,
    /// The instances that it shows, and whether the desired capacity counts them.
    shown: Result<BTreeMap<InstanceId, bool>, Silence>,
}

impl Default for Look {
    /// Shows nothing, and is too old to serve anybody.
    fn default() -> Self {
        Self { at: Timestamp::default(), shown: Ok(BTreeMap::new()) }
    }
}

/// AWS does not describe the group.
#[derive(Debug)]
struct Silence {
    since: Timestamp,
    error: AwsError,
}

/// Whether the desired capacity counts an instance that nobody is replacing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Yes,
    No,
    /// The description leaves the instance out.
    NotShown,
}

impl From<bool> for Counted {
    fn from(is_counted: bool) -> Self {
        if is_counted { Self::Yes } else { Self::No }
    }
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

    /// Whether the desired capacity still counts the instance. Where AWS has not answered for [`PATIENCE`], yes; until then, its error.
    pub(super) async fn counts(
        &self,
        instance: &InstanceId,
        group: &GroupName,
        (groups, aws, clock): (&Groups, &Aws, &Clock),
    ) -> Result<Counted, AwsError> {
        let is_recent = |at| elapsed(at, clock.now()) <= RECENT;
        if let Some(view) = groups.latest().filter(|view| is_recent(view.taken_at))
            // A description may leave an instance out, and the replacement of an unhealthy one comes within moments.
            && let Some((_, instance)) = view.instance(instance)
            && !instance.unhealthy
        {
            return Ok(instance.lifecycle.is_live().into());
        }
        let asked_at = clock.now();
        let look = self.of(group, asked_at);
        let mut look = look.lock().await;
        // One that began while this one waited for it serves, however long it took.
        if elapsed(look.at, asked_at) > RECENT {
            let began = clock.now();
            *look = match aws.describe_groups(slice::from_ref(group)).await {
                Ok(described) => {
                    let mut shown = BTreeMap::new();
                    for group in &described {
                        shown.extend(
                            group.instances.iter().map(|one| (one.id.clone(), is_counted(group, one))),
                        );
                    }
                    Look { at: began, shown: Ok(shown) }
                }
                Err(error) => {
                    let refreshed = groups.latest().map(|view| view.taken_at);
                    let before = look.shown.as_ref().err().map(|silence| silence.since);
                    let before = before.filter(|since| refreshed.is_none_or(|at| at < *since));
                    // Dated at its end: calls that wait for this one need not try as well.
                    let shown = Err(Silence { since: before.unwrap_or(began), error });
                    Look { at: clock.now(), shown }
                }
            };
        }
        match &look.shown {
            Ok(shown) => Ok(shown.get(instance).map_or(Counted::NotShown, |counted| (*counted).into())),
            Err(silence) if elapsed(silence.since, clock.now()) >= PATIENCE => Ok(Counted::Yes),
            Err(silence) => Err(silence.error.clone()),
        }
    }
}

/// Whether this description says [`Counted::Yes`].
fn is_counted(group: &AutoScalingGroup, instance: &Instance) -> bool {
    instance.lifecycle.is_live() && !sizes::is_replaced_first(group, instance)
}
