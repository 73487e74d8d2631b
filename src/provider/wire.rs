//! The two dialects of the protocol, and what both mean. Pure.
//!
//! Invariant: answers are written in both dialects with the same meaning; requests are read in the new one, and in the
//! old one where the new one is missing.

use std::time::Duration;

use bytes::Bytes;

use super::proto::{LegacyDuration, NodeGroupTemplateNodeInfoResponse};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// A time span as the protocol's client keeps it: Go's `time.Duration`, signed nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// Nanoseconds.
    pub nanos: i64,
}

impl Span {
    /// Reads a pair of fields; `None` if neither was sent.
    pub fn read(new: Option<&prost_types::Duration>, old: Option<&LegacyDuration>) -> Option<Self> {
        let nanos = match (new, old) {
            (Some(new), _) => {
                new.seconds.saturating_mul(NANOS_PER_SECOND).saturating_add(i64::from(new.nanos))
            }
            (None, Some(old)) => old.duration(),
            (None, None) => return None,
        };
        Some(Self { nanos })
    }

    /// For the field of the new dialect.
    pub fn new_dialect(self) -> prost_types::Duration {
        prost_types::Duration {
            seconds: self.nanos / NANOS_PER_SECOND,
            nanos: (self.nanos % NANOS_PER_SECOND) as i32,
        }
    }

    /// For the field of the old dialect. Zero is written out, as Kubernetes' own encoding has it; a missing message
    /// would make an old client dereference nil.
    pub fn old_dialect(self) -> LegacyDuration {
        LegacyDuration { duration: Some(self.nanos) }
    }
}

impl From<Duration> for Span {
    /// One longer than 292 years becomes that.
    fn from(duration: Duration) -> Self {
        Self { nanos: i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX) }
    }
}

/// The answer that carries this encoded `core/v1` Node, which is the same bytes in both dialects.
pub fn template(encoded: &Bytes) -> NodeGroupTemplateNodeInfoResponse {
    NodeGroupTemplateNodeInfoResponse { node_info: encoded.clone(), node_bytes: encoded.clone() }
}

/// The encoded `core/v1` Node of an answer, for a client.
pub fn template_node(answer: &NodeGroupTemplateNodeInfoResponse) -> Bytes {
    if answer.node_bytes.is_empty() { answer.node_info.clone() } else { answer.node_bytes.clone() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_new_dialect_is_read_before_the_old_one() {
        let new = prost_types::Duration { seconds: 2, nanos: 5 };
        let old = LegacyDuration { duration: Some(7) };
        let span = |nanos| Some(Span { nanos });
        assert_eq!(Span::read(Some(&new), Some(&old)), span(2_000_000_005));
        assert_eq!(Span::read(None, Some(&old)), span(7));
        assert_eq!(Span::read(None, Some(&LegacyDuration { duration: None })), span(0));
        assert_eq!(Span::read(None, None), None);
    }

    #[test]
    fn a_template_is_read_from_either_field() {
        let node = Bytes::from_static(b"node");
        let both = template(&node);
        assert_eq!((&both.node_info, &both.node_bytes), (&node, &node));
        let old = NodeGroupTemplateNodeInfoResponse { node_info: node.clone(), node_bytes: Bytes::new() };
        let new = NodeGroupTemplateNodeInfoResponse { node_info: Bytes::new(), node_bytes: node.clone() };
        assert_eq!((template_node(&old), template_node(&new)), (node.clone(), node));
    }

    proptest! {
        #[test]
        fn both_dialects_carry_every_span_whole(nanos: i64) {
            let span = Span { nanos };
            prop_assert_eq!(Span::read(Some(&span.new_dialect()), None), Some(span));
            prop_assert_eq!(Span::read(None, Some(&span.old_dialect())), Some(span));
        }

        #[test]
        fn no_duration_on_the_wire_makes_it_panic(seconds: i64, nanos: i32) {
            let _ = Span::read(Some(&prost_types::Duration { seconds, nanos }), None);
        }
    }
}
