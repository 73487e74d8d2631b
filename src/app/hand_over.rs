//! Gives up the Lease when this replica cannot do the leader's work: AWS has not described the groups for a minute (its zone is cut off, its
//! credentials have expired), or a watch of the API server is dead. Small calls that still work would otherwise renew the Lease for ever.
//!
//! Whether another replica is better off is unknown. If none takes the Lease, this one leads again, and keeps it for [`PAUSE`].

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::elapsed;
use crate::scale_in::Shared;

/// How often this is checked.
const EVERY: Duration = Duration::from_secs(5);

/// How long refreshes may fail before a hand-over. Less than the two minutes of a spot notice, more than most throttling.
const PATIENCE: Duration = Duration::from_mins(1);

/// Least time between two hand-overs, and between the receipt of the Lease and its hand-over for a watch that was silent before: nobody else
/// may be better off, and what only a leader reports (since when a queue has not been read) has to be seen.
const PAUSE: Duration = Duration::from_mins(15);

/// A watch that lives has shown it within this time: each is renewed every minute.
const RENEWED_WITHIN: Duration = Duration::from_secs(90);

/// Hands the lead over when AWS has not described the groups for [`PATIENCE`] while this process led, or watches are silent. Never completes.
pub(super) async fn run(shared: Arc<Shared>) -> Infallible {
    let mut handed_over_at: Option<Timestamp> = None;
    loop {
        tokio::time::sleep(EVERY).await;
        let now = shared.clock.now();
        if !shared.leadership.leads() {
            continue;
        }
        let leads_since = shared.leadership.leads_since();
        let failing = shared.groups.undescribed_since().map(|since| since.max(leads_since));
        let (why, received_at) = if failing.is_some_and(|since| elapsed(since, now) >= PATIENCE) {
            ("AWS has not described the groups for a minute", None)
        } else if shared.cluster.is_silent() {
            // Whoever led before may have handed over for the same: a right that is lost is lost for all.
            let silent_before = shared.cluster.silence().saturating_sub(elapsed(leads_since, now));
            let was_silent = silent_before > RENEWED_WITHIN && shared.cluster.sees_nodes();
            (
                "a watch of the API server has shown no life for three minutes",
                was_silent.then_some(leads_since),
            )
        } else {
            continue;
        };
        if handed_over_at.max(received_at).is_none_or(|at| elapsed(at, now) >= PAUSE) {
            handed_over_at = Some(now);
            tracing::warn!(why, "giving up the Lease so that another replica can lead");
            shared.leadership.hand_over();
        }
    }
}
