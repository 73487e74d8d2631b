//! Why the program ended without being told to.

use std::io;

use tokio::task::JoinError;

use crate::provider::ServeError;
use crate::scale_in::ControllerError;

/// Why the program ended without being told to.
#[derive(Debug, thiserror::Error)]
pub enum AppError {
    /// The gRPC server failed.
    #[error("the gRPC server ended")]
    Grpc(#[from] ServeError),
    /// The admin server failed.
    #[error("the admin server ended")]
    Admin(#[source] io::Error),
    /// The scale-in controller failed.
    #[error("the scale-in controller ended")]
    Controller(#[from] ControllerError),
    /// A task ended that never should.
    #[error("the {0} ended")]
    Ended(&'static str),
    /// A task panicked.
    #[error("the {task} panicked")]
    Panicked {
        /// Which.
        task: &'static str,
        /// Its panic.
        source: JoinError,
    },
}
