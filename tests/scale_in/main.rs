//! The whole program on the simulated worlds, in virtual time: how nodes leave.

mod budgets;
mod clocks;
mod deadlines;
mod hooks;
mod kills;
mod order;
mod people;
mod pods;
mod scale;
mod scene;
mod sizes;
mod story;
mod throttling;
