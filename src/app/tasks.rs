//! The program's tasks: none may end before the stop, and none ends unnoticed.

use std::collections::HashMap;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::error::AppError;
use crate::telemetry::chain;

/// Tasks by name. Dropping this aborts them.
pub(super) struct Tasks {
    stop: CancellationToken,
    set: JoinSet<Result<(), AppError>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// No tasks yet. Cancelling `stop` ends them.
    pub(super) fn new(stop: CancellationToken) -> Self {
        Self { stop, set: JoinSet::new(), names: HashMap::new() }
    }

    /// Starts a task that ends by itself after the stop.
    pub(super) fn until_done<E>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        AppError: From<E>,
    {
        let id = self.set.spawn(async { Ok(task.await?) }).id();
        self.names.insert(id, name);
    }

    /// Starts a task that the stop drops, at any await.
    pub(super) fn until_stop(
        &mut self,
        name: &'static str,
        task: impl Future<Output: Send> + Send + 'static,
    ) {
        let stopped = self.stop.clone().run_until_cancelled_owned(Box::pin(task));
        self.until_done(name, async {
            stopped.await;
            Ok::<_, AppError>(())
        });
    }

    /// Waits for a task to end before the stop, and returns why.
    pub(super) async fn first_to_end(&mut self) -> AppError {
        match self.next().await {
            Some((_, Err(error))) => error,
            Some((name, Ok(()))) => AppError::Ended(name),
            None => std::future::pending().await,
        }
    }

    /// Waits for all tasks after the stop. Keeps the first error in `outcome` and logs the others.
    pub(super) async fn finish(&mut self, outcome: &mut Result<(), AppError>) {
        while let Some((task, ended)) = self.next().await {
            match (ended, &outcome) {
                (Err(error), Ok(())) => *outcome = Err(error),
                (Err(error), Err(_)) => {
                    tracing::error!(task, error = %chain(&error), "a task failed while the program was stopping");
                }
                (Ok(()), _) => {}
            }
        }
    }

    async fn next(&mut self) -> Option<(&'static str, Result<(), AppError>)> {
        let joined = self.set.join_next_with_id().await?;
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.remove(&id).unwrap_or("unnamed task");
        let ended = joined.map_err(|source| AppError::Panicked { task, source }).and_then(|(_, ended)| ended);
        Some((task, ended))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_ends_too_early_is_told_by_its_name_and_by_how_it_ended() {
        let told = async |task: fn() -> Result<(), AppError>| {
            let mut tasks = Tasks::new(CancellationToken::new());
            tasks.until_stop("other task", std::future::pending::<()>());
            tasks.until_done("task", async move { task() });
            tasks.first_to_end().await.to_string()
        };
        assert_eq!(told(|| Ok(())).await, "the task ended");
        assert_eq!(told(|| Err(AppError::Ended("watch"))).await, "the watch ended");
        assert_eq!(told(|| panic!("a defect")).await, "the task panicked");
    }

    #[tokio::test]
    async fn a_panic_while_stopping_is_the_outcome_unless_there_was_an_error_before() {
        for (before, after) in
            [(Ok(()), "the task panicked"), (Err(AppError::Ended("watch")), "the watch ended")]
        {
            let stop = CancellationToken::new();
            let mut tasks = Tasks::new(stop.clone());
            tasks.until_stop("other task", std::future::pending::<()>());
            let until = stop.clone();
            tasks.until_done::<AppError>("task", async move {
                until.cancelled().await;
                panic!("a defect");
            });
            stop.cancel();
            let mut outcome = before;
            tasks.finish(&mut outcome).await;
            assert_eq!(outcome.expect_err("the panic").to_string(), after);
        }
    }
}
