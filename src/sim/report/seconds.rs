//! A span of time as people read it.

use std::fmt;

use jiff::Timestamp;
use serde::{Serialize, Serializer};

/// Seconds, to the millisecond; negative for earlier moments. Shown with one decimal, serialized as a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Seconds(i64);

impl Seconds {
    /// From one moment to another.
    pub fn between(from: Timestamp, to: Timestamp) -> Self {
        Self(to.as_millisecond() - from.as_millisecond())
    }

    /// This many milliseconds.
    pub const fn milliseconds(count: i64) -> Self {
        Self(count)
    }

    /// As a number.
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1000.0
    }

    /// The span from `other` to this.
    #[must_use]
    pub fn since(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Whole tenths, half away from zero, so that "-0.0" is never shown.
        let tenths = (self.0 + 50 * self.0.signum()) / 100;
        let sign = if tenths < 0 { "-" } else { "" };
        f.pad(&format!("{sign}{}.{}", tenths.abs() / 10, tenths.abs() % 10))
    }
}

impl Serialize for Seconds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}
