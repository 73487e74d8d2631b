//! The command line and the environment, read once, here.
//!
//! Invariants: all problems are reported at once, each with its flag; nothing else in the program reads its flags or
//! environment variables; a [`Config`] that exists is valid.
//!
//! Every flag of `serve` is also an environment variable, `--drain-timeout` as `EBBTIDE_DRAIN_TIMEOUT`; the flag wins,
//! and an empty variable counts as unset. In a variable, values of a repeatable flag are separated by `;` or new lines.
//! `plan`, `check` and `prices` take what no flag gives from the `serve` whose container they are run in, and only then from variables.

mod commands;
mod container;
mod flags;
mod problem;
mod read;
#[cfg(test)]
mod tests;
mod validate;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsString;

use self::flags::{LookFlags, PricesFlags, Read, Sub};
pub use commands::{LookOptions, Output, PlanOptions, PricesOptions, StatusOptions};
pub use container::FIRST_PROCESS;
pub use flags::flags_table;
pub use problem::{Problem, Problems};
#[cfg(feature = "simulate")]
pub use values::Simulate;
pub use values::{Config, PriceSource};

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Serve cluster-autoscaler and scale in.
    Serve(Box<Config>),
    /// Show the scale-ins under way.
    Status(StatusOptions),
    /// Show what a scale-in would do.
    Plan(Box<PlanOptions>),
    /// Look for what is missing or wrong around the program.
    Check(Box<LookOptions>),
    /// Show what nodes cost.
    Prices(Box<PricesOptions>),
    /// Run the program on simulated worlds.
    #[cfg(feature = "simulate")]
    Simulate(Simulate),
    /// Print this (help, version) and exit with success.
    Print(String),
}

impl Config {
    /// Reads the arguments (the program's name first), and the environment for `serve` flags not among them. `first`: the
    /// command line of the container's first process, for `plan`, `check` and `prices`.
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        env: impl Fn(&str) -> Option<String>,
        first: impl FnOnce() -> Vec<u8>,
    ) -> Result<Command, Problems> {
        let args: Vec<OsString> = args.into_iter().collect();
        let looks = args.get(1).is_some_and(|command| flags::LOOKS.iter().any(|asks| command == asks));
        let beside = if looks { container::flags_of_serve(&first()) } else { BTreeMap::new() };
        // Its flags won over its variables there, and the variables are the same here.
        let env = |name: &str| {
            let value = beside.get(name).cloned().or_else(|| env(name));
            value.filter(|value| !value.trim().is_empty())
        };
        let called = flags::called(&args);
        let problems = |all| Problems { all, command: called };
        match flags::read(args, &env) {
            Read::Print(text) => Ok(Command::Print(text)),
            Read::Unclear(all) => Err(problems(all)),
            Read::Command(command, mut all) => {
                let command = checked(*command, &env, &mut all);
                command.filter(|_| all.is_empty()).ok_or_else(|| problems(all))
            }
        }
    }
}

/// The command with its values checked; `None` if a problem leaves one missing.
fn checked(
    command: Sub,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Option<Command> {
    Some(match command {
        Sub::Serve(flags) => {
            let proxy = validate::proxy(env, problems);
            validate::needs_groups(&flags, problems);
            Command::Serve(Box::new(validate::config(*flags, proxy, problems)?))
        }
        Sub::Plan(plan) => {
            let (node, cause) = (plan.node, plan.cause.into());
            Command::Plan(Box::new(PlanOptions { node, cause, look: looking(plan.look, env, problems)? }))
        }
        Sub::Check(look) => {
            validate::needs_groups(&look.flags, problems);
            Command::Check(Box::new(looking(look, env, problems)?))
        }
        Sub::Prices(PricesFlags { explain, look }) => {
            validate::needs_groups(&look.flags, problems);
            Command::Prices(Box::new(PricesOptions { explain, look: looking(look, env, problems)? }))
        }
        Sub::Status(options) => Command::Status(options),
        #[cfg(feature = "simulate")]
        Sub::Simulate(simulate) => Command::Simulate(simulate),
        // Answered where they are read.
        Sub::Completions { .. } | Sub::Man { .. } => return None,
    })
}

fn looking(
    look: LookFlags,
    env: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Option<LookOptions> {
    let proxy = validate::proxy(env, problems);
    let config = validate::config(*look.flags, proxy, problems)?;
    Some(LookOptions { output: look.output, context: look.context, namespace: look.namespace, config })
}
