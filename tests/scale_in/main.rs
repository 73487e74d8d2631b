//! The whole program on the simulated worlds, in virtual time: how nodes leave.

mod absurd;
mod aws;
mod budgets;
mod claims;
mod clocks;
mod clusters;
mod dead;
mod deadlines;
mod hooks;
mod incidents;
mod kills;
mod order;
mod people;
mod pods;
mod release;
mod replicas;
mod rights;
mod scale;
mod scene;
mod sizes;
mod states;
mod story;
mod throttling;
mod turns;
mod twins;
mod wishes;
