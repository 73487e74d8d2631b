//! Look-ups that can fail without failing a refresh.

use std::error::Error;
use std::time::Duration;

use crate::telemetry::{Outage, chain};

/// A refused look-up is repeated after five minutes: a shorter time without failures proves nothing.
const WORKS_AFTER: Duration = Duration::from_mins(6);

/// Notes an outcome of looking `what` up. What was known before stays in use.
pub(super) fn note(outage: &mut Outage, what: &'static str, error: Option<&impl Error>) {
    if let Some(error) = error {
        if let Some(outage_seconds) = outage.failed() {
            tracing::warn!(what, outage_seconds, error = %chain(error), "look-up failed: using what was known before");
        }
    } else if outage.recovered_after(WORKS_AFTER).is_some() {
        tracing::info!(what, "look-up works again");
    }
}
