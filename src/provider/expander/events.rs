//! Choices as Events, where that is asked for (`--expander-events`): for people who look into the cluster before they look into a log.

use std::convert::Infallible;
use std::sync::Arc;

use tokio::sync::watch;

use crate::cluster::{About, ApiError, PodName};
use crate::scale_in::Shared;
use crate::telemetry::{Outage, chain};

/// The Event's reason.
pub const REASON: &str = "ExpanderChose";

/// The Event's text. The names are whatever was asked: they stay in one line, and end no quotation.
pub(super) fn note(best: &str, decided_by: &str, options: usize, why: &str) -> String {
    let plain = |text: &str| text.replace(char::is_control, " ").replace('"', "'");
    format!("\"{}\" of {options} options, decided by {decided_by}: {}", plain(best), plain(why))
}

/// Publishes choices on a ConfigMap of our namespace, as cluster-autoscaler does with what it decides; one that comes before the last is
/// published takes the place of what waits. Never completes.
pub async fn publish(
    mut choices: watch::Receiver<String>,
    shared: Arc<Shared>,
    config_map: String,
) -> Infallible {
    let mut outage = Outage::default();
    let about = PodName { namespace: shared.cluster.own_namespace().into(), name: config_map.into() };
    while choices.changed().await.is_ok() {
        let note = choices.borrow_and_update().clone();
        match announce(&shared, &about, &note).await {
            Ok(()) if outage.recovered().is_some() => {
                tracing::info!("choices of the expander are published as Events again");
            }
            Ok(()) | Err(ApiError::DryRun) => {}
            Err(error) => {
                if let Some(outage_seconds) = outage.failed() {
                    tracing::warn!(outage_seconds, error = %chain(&error), "choices of the expander cannot be published as Events: the log has them all the same");
                }
            }
        }
    }
    std::future::pending().await
}

async fn announce(shared: &Shared, about: &PodName, note: &str) -> Result<(), ApiError> {
    let uid = shared.cluster.config_map_uid(&about.name).await?;
    let now = shared.clock.cluster();
    shared.cluster.announce(About::ConfigMap(about, &uid), REASON, note, false, now).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_was_chosen_by_what_in_one_line() {
        assert_eq!(
            note("\"web\n", "price", 2, "\"web\n: 1 nodes for 3 pods; batch: \u{7}…"),
            "\"'web \" of 2 options, decided by price: 'web : 1 nodes for 3 pods; batch:  …"
        );
    }
}
