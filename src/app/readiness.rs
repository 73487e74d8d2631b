//! When the program is ready, and when it ceases to be.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;

use crate::admin::Readiness;
use crate::scale_in::Shared;

/// How often data is checked for its age.
const FRESHNESS_EVERY: Duration = Duration::from_secs(5);

/// How often missing parts that send no notification are checked.
const MISSING_EVERY: Duration = Duration::from_millis(500);

/// If the program is not ready this long after its start, the log says once what is missing. A start takes seconds.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// What must be there before the program is ready:
/// - a complete refresh of the groups, no older than `--snapshot-max-age`;
/// - the Lease: the leader is known. Without it nothing is drained, so a rollout of a version without rights to it stops here;
/// - the first list of Nodes, and life in their watch lately;
/// - every watch has been alive at once. A rollout of a version without the right to one of them stops here.
pub(super) const PARTS: [&str; 4] = ["groups", "lease", "nodes", "watches"];

/// Tells what is missing, or too old. Never completes.
pub(super) async fn keep(readiness: Readiness, shared: Arc<Shared>) -> Infallible {
    let mut versions = shared.groups.versions();
    let mut standings = shared.leadership.changes();
    let (mut is_leader_known, mut has_watched) = (false, false);
    let mut was_ready = None;
    let mut is_told = false;
    let mut start = pin!(tokio::time::sleep(WARN_AFTER));
    loop {
        // Once is enough: without a leader cluster-autoscaler is answered all the same. That nobody leads is told by the log and by
        // `ebbtide_leader`.
        is_leader_known |= shared.leadership.known().now_or_never().is_some();
        // So it is here: no answer needs a watch other than that of Nodes, and a right that is lost is lost for all replicas, of which none
        // would answer. That a watch is silent is told by the log and by `ebbtide_watch_age_seconds`.
        has_watched |= shared.cluster.is_watching();
        let is_there = [
            shared.groups.fresh(shared.clock.now()).is_ok(),
            is_leader_known,
            shared.nodes.is_synced() && shared.cluster.sees_nodes(),
            has_watched,
        ];
        let missing: Vec<_> =
            PARTS.into_iter().zip(is_there).filter(|(_, is_there)| !is_there).map(|(part, _)| part).collect();
        readiness.set_missing(missing.clone());
        let pause = if missing.is_empty() { FRESHNESS_EVERY } else { MISSING_EVERY };
        match (missing.is_empty(), was_ready.replace(missing.is_empty())) {
            (true, None | Some(false)) => {
                is_told = true;
                tracing::info!("ready");
            }
            (false, Some(true)) => {
                let missing = missing.join(", ");
                tracing::warn!(missing, "not ready any more: the `missing` data is too old");
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
