//! How long an RPC may take, and each thing it waits for.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::RpcError;

/// cluster-autoscaler gives up after 5 s by default (`grpc_timeout` in its cloud-config). Answering after 4 s tells it
/// why, not just that its deadline has passed.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);

/// Longest wait for one call to AWS or the API server, so that no single call uses up the RPC's time.
pub(super) const CALL_WITHIN: Duration = Duration::from_secs(3);

/// The time an RPC has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

impl Deadline {
    /// Counts from now.
    pub(super) fn start() -> Self {
        Self(Instant::now() + ANSWER_WITHIN)
    }

    /// Whether the time is up.
    pub(super) fn has_passed(self) -> bool {
        Instant::now() >= self.0
    }

    /// Waits for something within the process, for as long as the RPC has.
    pub(super) async fn all_of<T>(
        self,
        what: &'static str,
        wait: impl Future<Output = T>,
    ) -> Result<T, RpcError> {
        timeout_at(self.0, wait).await.map_err(|_| RpcError::TimedOut { what })
    }

    /// Waits for a call that leaves the process, within its own limit and the RPC's. Begins none once the time is up.
    pub(super) async fn call<T>(
        self,
        what: &'static str,
        call: impl Future<Output = T>,
    ) -> Result<T, RpcError> {
        if self.has_passed() {
            return Err(RpcError::TimedOut { what });
        }
        timeout_at(self.0.min(Instant::now() + CALL_WITHIN), call)
            .await
            .map_err(|_| RpcError::TimedOut { what })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn nothing_is_begun_once_the_time_is_up() {
        let deadline = Deadline::start();
        let mut begun = Vec::new();
        for second in 0..6 {
            let answer = deadline.call("all", async { begun.push(second) }).await;
            assert_eq!(answer.is_ok(), second < 4);
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(begun, [0, 1, 2, 3]);
    }
}
