//! Annotation `ebbtide/cordon` of a Node: we keep new pods away because of a notice, and drain nothing.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::record::Cause;

/// A cordon because of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cordon {
    /// The notice.
    pub cause: Cause,
    /// When the notice has lapsed, by the wall clock: the Node is opened again if its instance lives.
    pub until: Timestamp,
}

impl Cordon {
    /// Reads the annotation. What cannot be read has lapsed.
    pub fn read(text: &str) -> Self {
        let lapsed = Self { cause: Cause::RebalanceRecommendation, until: Timestamp::UNIX_EPOCH };
        serde_json::from_str(text).unwrap_or(lapsed)
    }

    /// The annotation's value.
    pub fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_anything_else_has_lapsed() {
        let until = Timestamp::from_second(1_700_000_000).expect("in range");
        let cordon = Cordon { cause: Cause::ScheduledEvent, until };
        assert_eq!(cordon.write(), r#"{"cause":"scheduled-event","until":"2023-11-14T22:13:20Z"}"#);
        assert_eq!(Cordon::read(&cordon.write()), cordon);
        assert_eq!(Cordon::read("for ever").until, Timestamp::UNIX_EPOCH);
    }
}
