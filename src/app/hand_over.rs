//! When another process had better lead: AWS answers this one no more, be it for its zone's way out or its credentials, or its watches are
//! dead, as behind an API server that takes up none.
//!
//! It would be told of nothing that AWS takes out or that others write on Nodes, and would keep the Lease by small calls that still work.
//! Whether anybody else is better off is not known to it; if not, the lead comes back, and stays for a while.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::elapsed;
use crate::scale_in::Shared;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(5);

/// How long no look at the groups may have worked. Less than the two minutes before a spot instance is interrupted, more than throttling
/// mostly lasts.
const PATIENCE: Duration = Duration::from_mins(1);

/// How long a process that gave the lead away keeps it when it comes back: nobody else may be better off, and what is told only of a
/// leader (how long a queue has not been read) is to show that.
const PAUSE: Duration = Duration::from_mins(15);

/// Gives the lead away when AWS has not described the groups for so long while this process led, or watches are silent. Never completes.
pub(super) async fn keep(shared: Arc<Shared>) -> Infallible {
    let mut gave_away: Option<Timestamp> = None;
    loop {
        tokio::time::sleep(EVERY).await;
        let now = shared.clock.now();
        if !shared.leadership.leads() {
            continue;
        }
        let leads_since = shared.leadership.leads_since();
        let failing = shared.groups.undescribed_since().map(|since| since.max(leads_since));
        let why = if failing.is_some_and(|since| elapsed(since, now) >= PATIENCE) {
            "AWS has not described the groups for a minute"
        } else if shared.cluster.is_silent() {
            "a watch of the API server has shown no life for three minutes"
        } else {
            continue;
        };
        if gave_away.is_none_or(|at| elapsed(at, now) >= PAUSE) {
            gave_away = Some(now);
            tracing::warn!(why, "giving up the Lease so that another replica can lead");
            shared.leadership.hand_over();
        }
    }
}
