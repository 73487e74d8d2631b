//! When another process had better lead: AWS answers this one no more, be it for its zone's way out or its credentials.
//!
//! It would be told of nothing that AWS takes out, could release nothing, and would keep the Lease by an API server that it still
//! reaches. Whether AWS answers anybody else is not known to it; if not, the lead comes back.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::elapsed;
use crate::scale_in::Shared;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(5);

/// How much later than usual a look at the groups may be: calls that are throttled take a while.
const LATE: Duration = Duration::from_secs(30);

/// How long a process that gave the lead away keeps it when it comes back: where AWS answers nobody, it goes round no faster.
const PAUSE: Duration = Duration::from_mins(5);

/// Gives the lead away when the groups have not been seen for longer than they should, while this process led. Never completes.
pub(super) async fn keep(shared: Arc<Shared>, refresh_interval: Duration) -> Infallible {
    let mut leads_since = None;
    let mut gave_away: Option<Timestamp> = None;
    loop {
        tokio::time::sleep(EVERY).await;
        let now = shared.clock.now();
        if !shared.leadership.leads() {
            leads_since = None;
            continue;
        }
        let since = *leads_since.get_or_insert(now);
        let seen = shared.groups.latest().map_or(since, |snapshot| snapshot.taken_at.max(since));
        let is_again = gave_away.is_some_and(|at| elapsed(at, now) < PAUSE);
        if elapsed(seen, now) > refresh_interval + LATE && !is_again {
            gave_away = Some(now);
            shared.leadership.hand_over("AWS has not described the groups for too long");
        }
    }
}
