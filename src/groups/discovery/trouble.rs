//! Look-ups that can fail without failing a refresh.

use std::error::Error;
use std::time::Duration;

use tokio::time::Instant;

use crate::telemetry::{Outage, chain};

/// A refused look-up is repeated after five minutes: a shorter time without failures proves nothing.
const WORKS_AFTER: Duration = Duration::from_mins(6);

/// Outage of one kind of look-up. What was known before stays in use.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    outage: Outage,
    /// When it failed last.
    failed: Option<Instant>,
}

impl Trouble {
    /// Notes an outcome of looking `what` up.
    pub(super) fn note(&mut self, what: &'static str, error: Option<&impl Error>) {
        if let Some(error) = error {
            self.failed = Some(Instant::now());
            if let Some(outage_seconds) = self.outage.failed() {
                tracing::warn!(what, outage_seconds, error = %chain(error), "look-up failed: using what was known before");
            }
        } else if self.failed.is_none_or(|failed| failed.elapsed() > WORKS_AFTER)
            && self.outage.recovered().is_some()
        {
            tracing::info!(what, "look-up works again");
        }
    }
}
