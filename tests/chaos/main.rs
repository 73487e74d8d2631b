//! Chaos: whole programs on the simulated worlds, each run from a seed, and what must hold whatever happens.
//!
//! ```text
//! seed ─▶ generate ─▶ Scenario (data) ─▶ play ─▶ History (journals) ─▶ invariants ─▶ violations
//!                          ▲                                                │
//!                          └───────────────────── shrink ◀──────────────────┘
//! ```
//!
//! `cargo test --test chaos` plays a range of seeds. `-- --seed N` plays one and prints its timeline, `-- --seeds A..B` a range. A
//! failing seed is shrunk: fewer nodes, causes and faults, while the same invariant fails.
#![expect(clippy::print_stdout, reason = "this is a program, and its output is what it is for")]

#[path = "../harness/args.rs"]
mod args;
mod coverage;
mod generate;
mod history;
mod invariants;
mod play;
mod run;
mod scenario;
mod shrink;
mod timeline;

use std::process::ExitCode;

fn main() -> ExitCode {
    run::main(std::env::args().skip(1))
}
