//! Discovery on the simulated AWS, through the real SDK, on virtual time.

mod budget;
mod launches;
mod node_groups;
mod poll_interval;
mod refreshes;
mod templates;
mod trouble;
mod world;
