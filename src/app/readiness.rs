//! When the program is ready, and when it ceases to be.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use crate::admin::{Gate, Readiness};
use crate::scale_in::Shared;

/// How often data is checked for its age.
const FRESHNESS_EVERY: Duration = Duration::from_secs(5);

/// How often is looked for what nobody tells of while something is missing.
const MISSING_EVERY: Duration = Duration::from_millis(500);

/// If the program is not ready this long after its start, the log says once what is missing. A start takes seconds.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// The gates of readiness.
pub(super) struct Gates {
    /// A complete refresh, no older than `--snapshot-max-age`.
    groups: Gate,
    /// The first list of Nodes.
    nodes: Gate,
    /// The leader is known. Without the Lease nothing is drained, so a rollout of a version without rights to it stops here.
    lease: Gate,
    /// Every watch has recently proved to be alive. A rollout of a version without the right to one of them stops here.
    watches: Gate,
}

impl Gates {
    pub(super) fn of(readiness: &Readiness) -> Self {
        let gate = |name| readiness.gate(name);
        Self { groups: gate("groups"), nodes: gate("nodes"), lease: gate("lease"), watches: gate("watches") }
    }

    /// Opens each gate when its data is there, and closes it when the data is too old. Never completes.
    pub(super) async fn keep(self, readiness: Readiness, shared: Arc<Shared>) -> Infallible {
        let mut versions = shared.groups.versions();
        let mut standings = shared.leadership.changes();
        let mut was_ready = None;
        let mut is_told = false;
        let mut start = pin!(tokio::time::sleep(WARN_AFTER));
        loop {
            self.groups.set(shared.groups.fresh(shared.clock.now()).is_ok());
            self.nodes.set(shared.nodes.is_synced());
            // Never closed again: without a leader cluster-autoscaler is answered all the same. That nobody leads is told by the
            // log and by `ebbtide_leader`.
            if shared.leadership.known().now_or_never().is_some() {
                self.lease.open();
            }
            self.watches.set(shared.cluster.is_watching());
            let missing = readiness.missing();
            let pause = if missing.is_empty() { FRESHNESS_EVERY } else { MISSING_EVERY };
            match (missing.is_empty(), was_ready.replace(missing.is_empty())) {
                (true, None | Some(false)) => {
                    is_told = true;
                    tracing::info!("ready");
                }
                (false, Some(true)) => {
                    let missing = missing.join(", ");
                    tracing::warn!(missing, "not ready any more: what is known of these is too old");
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
                () = tokio::time::sleep(pause) => {}
                () = &mut start, if !is_told => {
                    is_told = true;
                    let missing = readiness.missing();
                    if !missing.is_empty() {
                        let missing = missing.join(", ");
                        tracing::warn!(missing, "still not ready 30 s after the start: waiting for these");
                    }
                }
            }
        }
    }
}
