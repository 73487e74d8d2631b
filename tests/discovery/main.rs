//! Discovery on the simulated AWS, through the real SDK, on virtual time.

mod budget;
mod looks;
mod pace;
mod templates;
mod world;
