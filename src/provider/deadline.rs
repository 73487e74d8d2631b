//! How long an RPC may take, and each thing it waits for.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RpcError;

/// Cluster-autoscaler gives up after 5 s by default (`grpc_timeout` in its cloud-config). An answer after 4 s leaves
/// the way back, so that it hears why rather than that its deadline has passed.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// No single call to AWS or the API server takes up the whole of it: one that has not been answered in 3 s is lost.
const CALL_WITHIN: Duration = Duration::from_secs(3);

/// The time an RPC has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// Counts from now.
    pub(super) fn start() -> Self {
        Self(Instant::now() + ANSWER_WITHIN)
    }

    /// Waits for a call that leaves the process, as long as one may take and the RPC has time for.
    pub(super) async fn call<T>(
        self,
        what: &'static str,
        call: impl Future<Output = T>,
    ) -> Result<T, RpcError> {
        let until = self.0.min(Instant::now() + CALL_WITHIN);
        timeout_at(until, call).await.map_err(|_| RpcError::TimedOut { what })
    }
}
