//! What people ask of the program beside serving: `status`, `plan`, `check` and `prices`. They read, and change nothing.
//!
//! Each gathers facts by the adapters, has the pure code of the rooms below decide, and writes the outcome down. What is told of a
//! drain is the Status and the Preview of [`crate::scale_in`]: there is no second opinion here.

pub mod check;
mod groups;
mod output;
pub mod plan;
pub mod prices;
pub mod status;

pub use output::Style;

use std::error::Error;
use std::path::PathBuf;

use crate::cluster::ApiError;

/// Why a command could not answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The API server did not answer, or refused.
    #[error("{what} could not be read from the API server")]
    Cluster {
        /// What was asked for.
        what: &'static str,
        /// Its answer.
        source: ApiError,
    },
    /// The Node is not there.
    #[error("there is no Node {0}")]
    NoNode(String),
    /// AWS did not answer, or refused.
    #[error("the groups could not be read from AWS")]
    Aws(#[from] crate::aws::AwsError),
    /// The expander's policy is not there any more, or is not valid.
    #[error("the expander's policy {} could not be read", file.display())]
    Policy {
        /// The file of `--expander-policy`.
        file: PathBuf,
        /// What is wrong with it.
        source: Box<dyn Error + Send + Sync>,
    },
}

/// Names what was asked for.
fn reading(what: &'static str) -> impl FnOnce(ApiError) -> CommandError {
    move |source| CommandError::Cluster { what, source }
}
