//! Looks at the targets of target groups while nodes flush.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::sleep;

use super::{Known, Seen};
use crate::aws::AwsError;
use crate::clock::{backoff, elapsed};
use crate::scale_in::context::Shared;
use crate::telemetry::{Outage, chain};

/// Time between two looks at the targets.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How long a list of target groups is used, and how long one without Nodes is not asked again.
const LIST_EVERY: Duration = Duration::from_mins(5);

/// Pause after a denial: somebody may grant the permission.
const DENIED_PAUSE: Duration = Duration::from_mins(5);

/// Pause after another failed look; it doubles up to the longest. Each has already retried for seconds.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Looks at the targets while nodes flush, for ever.
pub(in crate::scale_in) async fn run(shared: Arc<Shared>) -> Infallible {
    let mut wanted = shared.load_balancers.wanted.subscribe();
    let mut look = Look::default();
    let mut outage = Outage::default();
    loop {
        // The sender lives in `shared`.
        let _ = wanted.wait_for(|wanted| !wanted.is_empty()).await;
        let pause = match look.again(&shared).await {
            Ok(seen) => {
                if let Some(outage_seconds) = outage.recovered() {
                    tracing::info!(outage_seconds, "AWS says again which instances load balancers reach");
                }
                shared.load_balancers.publish(seen);
                LOOK_EVERY
            }
            Err(error) => failed(&shared, &error, &mut outage),
        };
        sleep(pause).await;
    }
}

/// Notes a failed look. Returns how long to wait before another.
fn failed(shared: &Shared, error: &AwsError, outage: &mut Outage) -> Duration {
    let is_denied = matches!(error, AwsError::Denied { .. });
    if let Some(outage_seconds) = outage.failed() {
        if is_denied {
            tracing::warn!(outage_seconds, error = %chain(error), "AWS denies reading which instances load balancers reach (deploy/aws/iam/load-balancers.json): no instance waits for them");
        } else {
            tracing::warn!(
                outage_seconds,
                error = %chain(error),
                "AWS does not say which instances load balancers reach: retrying; releases wait for the deregistration delay"
            );
        }
    }
    if is_denied {
        shared.load_balancers.publish(Seen::Denied);
        return DENIED_PAUSE;
    }
    backoff(outage.failures(), FIRST_PAUSE, LONGEST_PAUSE)
}

/// What the looks have found so far.
#[derive(Default)]
struct Look {
    listed_at: Option<Timestamp>,
    known: Vec<Known>,
}

impl Look {
    async fn again(&mut self, shared: &Shared) -> Result<Seen, AwsError> {
        let began = shared.clock.now();
        if self.listed_at.is_none_or(|at| elapsed(at, began) >= LIST_EVERY) {
            self.list(shared).await?;
            self.listed_at = Some(began);
        }
        for known in self.known.iter_mut().filter(|known| known.has_nodes) {
            known.targets = shared.aws.targets(&known.group).await?;
            known.has_nodes =
                known.targets.iter().any(|instance| !shared.nodes.of_instance(instance).is_empty());
            if known.has_nodes && !known.has_said_delay {
                known.ask_delay(shared).await;
            }
        }
        Ok(Seen::Look(began, self.known.iter().filter(|known| known.has_nodes).cloned().collect()))
    }

    async fn list(&mut self, shared: &Shared) -> Result<(), AwsError> {
        let groups = shared.aws.instance_target_groups().await?;
        let mut delays: BTreeMap<String, Option<Duration>> =
            self.known.drain(..).map(|known| (known.group.arn, known.delay)).collect();
        self.known.extend(groups.into_iter().map(|group| Known {
            delay: delays.remove(&group.arn).flatten(),
            group,
            targets: BTreeSet::new(),
            has_nodes: true,
            has_said_delay: false,
        }));
        Ok(())
    }
}

impl Known {
    async fn ask_delay(&mut self, shared: &Shared) {
        let answer = shared.aws.deregistration_delay(&self.group).await;
        self.has_said_delay = matches!(answer, Ok(_) | Err(AwsError::Denied { .. }));
        match answer {
            Ok(delay) => self.delay = delay,
            Err(error) => {
                tracing::debug!(target_group = self.group.name, error = %chain(&error), "deregistration delay not known: taken for AWS's default");
            }
        }
    }
}
