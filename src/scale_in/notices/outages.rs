//! Calls of a queue's reader that fail: told when that begins, every five minutes while it lasts, and when it ends.

use crate::aws::AwsError;
use crate::telemetry::{Outage, chain};

/// What fails, by kind of call.
#[derive(Default)]
pub(super) struct Outages {
    receives: Outage,
    changes: Outage,
    reservations: Outage,
    groups: Outage,
}

impl Outages {
    /// Notes a read, or its failure. Returns how many failed in a row.
    pub(super) fn received(&mut self, queue: &str, failed: Option<&AwsError>) -> u32 {
        tell(
            &mut self.receives,
            queue,
            failed,
            "the queue of notices cannot be read: interruptions are not announced, everything else is seen by refreshes",
            "the queue of notices can be read again",
        );
        self.receives.failures()
    }

    /// Messages were deleted, or hidden for longer, or not.
    pub(super) fn changed(&mut self, queue: &str, failed: Option<&AwsError>) {
        tell(
            &mut self.changes,
            queue,
            failed,
            "messages could not be deleted or kept hidden: they will be delivered again",
            "messages can be deleted and kept again",
        );
    }

    /// AWS has said which instances are in a Capacity Reservation, or not.
    pub(super) fn resolved(&mut self, queue: &str, failed: Option<&AwsError>) {
        tell(
            &mut self.reservations,
            queue,
            failed,
            "AWS does not say which instances are in a Capacity Reservation that ends: asked again when the message comes again",
            "AWS says again which instances are in a Capacity Reservation",
        );
    }

    /// Groups were read because of a lifecycle action, or not.
    pub(super) fn read(&mut self, queue: &str, failed: Option<&AwsError>) {
        tell(
            &mut self.groups,
            queue,
            failed,
            "groups named in lifecycle actions could not be read: retrying; the next refresh reads them too",
            "groups named in lifecycle actions can be read again",
        );
    }
}

fn tell(outage: &mut Outage, queue: &str, failed: Option<&AwsError>, fails: &str, works: &str) {
    match failed {
        Some(error) => {
            if let Some(outage_seconds) = outage.failed() {
                tracing::warn!(queue, outage_seconds, error = %chain(error), "{fails}");
            }
        }
        None => {
            if let Some(outage_seconds) = outage.recovered() {
                tracing::info!(queue, outage_seconds, "{works}");
            }
        }
    }
}
