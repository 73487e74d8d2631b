//! Fuzz: whatever comes from outside and is read, with input that nobody would send.
//!
//! ```text
//! corpus (kept inputs) ─▶ mutate (seeded) ─▶ a target: production's reader, and on into what it feeds ─▶ properties
//!        ▲                                                              │
//!        └──────── in memory: inputs with an outcome not seen yet ◀─────┘
//! ```
//!
//! What must hold of every input: no panic; no more memory than [`run::MOST_MEMORY`] for one; whoever is told what is wrong with it is
//! told in a short line; what is written by us is read back as it was.
//!
//! `cargo test --test fuzz` reads the corpus and a few thousand changed inputs a target. `-- --cases N` more, `-- --target NAME` one.
#![expect(clippy::print_stdout, reason = "this is a program, and its output is what it is for")]

#[path = "../harness/args.rs"]
mod args;
mod json;
mod mutate;
mod rpc;
mod run;
mod targets;
mod words;

use std::process::ExitCode;

use peak_alloc::PeakAlloc;

/// Counts what each case has at most.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

fn main() -> ExitCode {
    run::main(std::env::args().skip(1))
}
