//! Why the program ended before it was stopped.

use tokio::task::JoinError;

use crate::provider::ServeError;

/// Why the program ended before it was stopped.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The gRPC server failed.
    #[error("the gRPC server ended")]
    Grpc(#[from] ServeError),
    /// A worker of the scale-in controller failed.
    #[error("the scale-in controller ended")]
    Controller(#[from] JoinError),
    /// A task ended that should run until the stop.
    #[error("the {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("the {task} panicked")]
    Panicked {
        /// Its name.
        task: &'static str,
        /// Its panic.
        source: JoinError,
    },
}
