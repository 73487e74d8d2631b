//! The whole program as those meet it who run it.

mod readiness;
mod secrets;
