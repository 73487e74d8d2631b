//! Look-ups that can fail without failing a refresh.

use std::error::Error;

use crate::telemetry::{Outage, chain};

/// Outage of one kind of look-up. What was known before stays in use.
#[derive(Debug, Default)]
pub(super) struct Trouble(Outage);

impl Trouble {
    /// Notes an outcome of looking `what` up.
    pub(super) fn note(&mut self, what: &'static str, error: Option<&impl Error>) {
        if let Some(error) = error {
            if let Some(lasted) = self.0.lasts() {
                let lasts_seconds = lasted.as_secs();
                tracing::warn!(what, lasts_seconds, error = %chain(error), "look-up failed: using what was known before");
            }
        } else if self.0.ends().is_some() {
            tracing::info!(what, "look-up works again");
        }
    }
}
