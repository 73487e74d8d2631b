//! The command line and the environment, read once, here.
//!
//! Invariants: all problems are reported at once, each with its flag; nothing else in the program reads its flags or
//! environment variables; a [`Config`] that exists is valid.
//!
//! Every flag of `serve` is also an environment variable, `--drain-timeout` as `EBBTIDE_DRAIN_TIMEOUT`; the flag wins,
//! and an empty variable counts as unset. In a variable, values of a repeatable flag are separated by `;` or new lines.

mod flags;
mod problem;
mod read;
#[cfg(test)]
mod tests;
mod validate;
mod values;

use std::ffi::OsString;

pub use flags::flags_table;
pub use problem::{Problem, Problems};
pub use values::Config;
#[cfg(feature = "simulate")]
pub use values::Simulate;

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve cluster-autoscaler and scale in.
    Serve(Box<Config>),
    /// Run the program on simulated worlds.
    #[cfg(feature = "simulate")]
    Simulate(Simulate),
    /// Print this (help, version) and exit with success.
    Print(String),
}

impl Config {
    /// Reads the arguments (the program's name first), and the environment for `serve` flags not among them.
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        env: impl Fn(&str) -> Option<String>,
    ) -> Result<Command, Problems> {
        match flags::read(args.into_iter().collect(), &env) {
            flags::Read::Print(text) => Ok(Command::Print(text)),
            #[cfg(feature = "simulate")]
            flags::Read::Simulate(simulate, problems) => {
                if problems.is_empty() {
                    Ok(Command::Simulate(simulate))
                } else {
                    Err(Problems(problems))
                }
            }
            flags::Read::Unclear(problems) => Err(Problems(problems)),
            flags::Read::Serve(flags, mut problems) => {
                let proxy = validate::proxy(&env, &mut problems);
                let config = validate::config(*flags, proxy, &mut problems);
                match config {
                    Some(config) if problems.is_empty() => Ok(Command::Serve(Box::new(config))),
                    _ => Err(Problems(problems)),
                }
            }
        }
    }
}
