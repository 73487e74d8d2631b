//! The whole program as those meet it who run it.

mod expander;
mod files;
mod pictures;
mod readiness;
mod secrets;
mod stop;
