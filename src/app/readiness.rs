//! When the program is ready, and when it is not any more.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use crate::admin::{Gate, Readiness};
use crate::scale_in::Shared;

/// How soon it is noticed that something has become too old to go by.
const FRESHNESS_EVERY: Duration = Duration::from_secs(5);

/// What readiness waits for.
pub(super) struct Gates {
    /// A whole look at AWS, no older than may be answered from.
    groups: Gate,
    /// The first list of Nodes.
    nodes: Gate,
    /// Who leads, whoever it is: without the Lease nothing is drained, and an update to a version that may not have it is to
    /// stop here.
    lease: Gate,
    /// Every watch, proved alive lately.
    watches: Gate,
}

impl Gates {
    pub(super) fn of(readiness: &Readiness) -> Self {
        let gate = |name| readiness.gate(name);
        Self { groups: gate("groups"), nodes: gate("nodes"), lease: gate("lease"), watches: gate("watches") }
    }

    /// Opens and closes them for ever, as what they stand for comes in and becomes too old.
    pub(super) async fn keep(self, readiness: Readiness, shared: Arc<Shared>) -> Infallible {
        let mut versions = shared.groups.versions();
        let mut standings = shared.leadership.changes();
        let mut was_ready = None;
        loop {
            self.groups.set(shared.groups.fresh(shared.clock.now()).is_ok());
            self.nodes.set(shared.nodes.is_synced());
            // Once: when it is not known any more, the API server is gone, and that shows in the watches.
            if shared.leadership.known().now_or_never().is_some() {
                self.lease.open();
            }
            self.watches.set(shared.cluster.is_watching());
            let missing = readiness.missing();
            match (missing.is_empty(), was_ready.replace(missing.is_empty())) {
                (true, None | Some(false)) => tracing::info!("ready"),
                (false, Some(true)) => {
                    let missing = missing.join(", ");
                    tracing::warn!(missing, "not ready any more: what is known of this is too old");
                }
                _ => {}
            }
            let first_list = async {
                if shared.nodes.is_synced() {
                    std::future::pending::<()>().await;
                }
                shared.nodes.synced().await;
            };
            tokio::select! {
                _ = versions.changed() => {}
                _ = standings.changed() => {}
                () = first_list => {}
                () = tokio::time::sleep(FRESHNESS_EVERY) => {}
            }
        }
    }
}
