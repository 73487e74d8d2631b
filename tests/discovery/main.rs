//! Discovery on the simulated AWS, through the real SDK, on virtual time.

mod budget;
mod looks;
mod node_groups;
mod pace;
mod templates;
mod trouble;
mod world;
