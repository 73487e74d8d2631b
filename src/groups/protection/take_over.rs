//! Finds instances that another run has left protected.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::sleep;

use super::calls::tagged_instances;
use super::pending::{CHECK_EVERY, LONGEST_PAUSE, PendingReleases};
use super::tag::{self, PROTECTION_TAG};
use crate::aws::Aws;
use crate::clock::{Clock, backoff};
use crate::cluster::Leadership;
use crate::groups::{Groups, Place, Snapshot};
use crate::k8s::InstanceId;
use crate::telemetry::{Outage, chain};

/// How often the leader looks for what others have left, at one call for a thousand instances. Protection that is left in place
/// keeps the group's own scale-in from these instances, not ebbtide's.
const SEARCH_EVERY: Duration = Duration::from_mins(15);
/// An instance tagged longer ago has been left: a process at work releases it sooner, even if a second size goes down meanwhile or
/// clocks differ.
const AT_WORK: SignedDuration = SignedDuration::from_mins(15);

/// While this process leads, takes over tagged instances of our groups, for ever: at first all of them, so that a restart finishes
/// what the last run began; later those that a killed replica which did not lead has left.
pub(super) async fn take_over(
    aws: &Aws,
    groups: &Groups,
    clock: &Clock,
    leadership: &Leadership,
    pending: &PendingReleases,
) -> Infallible {
    let (mut outage, mut warned) = (Outage::default(), BTreeSet::new());
    let mut at_work = SignedDuration::MIN;
    loop {
        leadership.begun().await;
        // An error only if the sender is gone, which lives in `groups`.
        let _ = groups.versions().wait_for(Option::is_some).await;
        // Calls that somebody waits for at the start come first.
        sleep(CHECK_EVERY).await;
        let pause = match tagged_instances(aws).await {
            Ok(tagged) => {
                if outage.recovered().is_some() {
                    tracing::info!(tag = PROTECTION_TAG, "tags of protected instances can be read again");
                }
                if let Some(view) = groups.latest() {
                    add_left(&view, tagged, at_work, clock.cluster(), &mut warned, pending);
                    at_work = AT_WORK;
                }
                SEARCH_EVERY
            }
            Err(error) => {
                if let Some(outage_seconds) = outage.failed() {
                    tracing::warn!(
                        tag = PROTECTION_TAG,
                        outage_seconds,
                        error = %chain(&error),
                        "cannot read tags: instances that an earlier run protected from scale-in stay protected"
                    );
                }
                backoff(outage.failures(), CHECK_EVERY, LONGEST_PAUSE)
            }
        };
        sleep(pause).await;
    }
}

/// Takes over instances whose tag is older than `at_work`. Warns of an invalid value once.
fn add_left(
    view: &Snapshot,
    tagged: Vec<(InstanceId, String)>,
    at_work: SignedDuration,
    now: Timestamp,
    warned: &mut BTreeSet<(InstanceId, String)>,
    pending: &PendingReleases,
) {
    warned.retain(|warned| tagged.contains(warned));
    for (instance, value) in tagged {
        let Some(Place { group, .. }) = view.by_instance.get(&instance) else { continue };
        match tag::age(&value, now) {
            Some(age) if age > at_work => pending.take_over(group, instance, &value),
            Some(_) => {}
            None => {
                if warned.insert((instance.clone(), value.clone())) {
                    tracing::warn!(
                        group = group.as_str(),
                        instance = instance.as_str(),
                        tag = PROTECTION_TAG,
                        value,
                        "instance stays protected from scale-in: its tag has no time of the last 24 h"
                    );
                }
            }
        }
    }
    pending.notify();
}
