//! The plan, line by line of the rules it follows.

mod claims;
mod clocks;
mod drain;
mod events;
mod flush;
mod guard;
mod memory;
mod node_patch;
mod notices;
mod order;
mod people;
mod release;
mod report;
mod scene;
mod small_worlds;
mod states;
mod twins;
mod unheld;

pub(super) use scene::{settings, spot};
