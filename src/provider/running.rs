//! What goes on though its RPC has been answered, or its caller has given up.

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Tasks that run to their end even if nobody waits for them; they are aborted only when the program ends. Clones share
/// them.
#[derive(Clone, Debug, Default)]
pub struct Running {
    tasks: TaskTracker,
    gone: CancellationToken,
}

impl Running {
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.gone.clone().run_until_cancelled_owned(task));
    }

    /// Starts a task, and hands out what it comes to: an error if the program ends first, or the task panics. Nobody needs to wait for it.
    pub(super) fn start<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, result) = oneshot::channel();
        self.spawn(async move {
            // Nobody listens if the caller has given up.
            let _ = answer.send(task.await);
        });
        result
    }

    /// Waits for all tasks. Call it when no more are started.
    pub async fn finish(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Aborts all tasks when the guard is dropped.
    pub fn guard(&self) -> DropGuard {
        self.gone.clone().drop_guard()
    }
}
