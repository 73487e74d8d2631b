//! The two dialects of the protocol, and what both mean. Pure.
//!
//! Invariant: answers are written in both dialects with the same meaning; requests are read in the new one, and in the
//! old one where the new one is missing.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, message, skip_field};
use prost::{DecodeError, Message};

use super::proto::{Instance, LegacyDuration, LegacyTime, NodeGroupTemplateNodeInfoResponse};

/// The field of NodeGroupNodesResponse.
const INSTANCES: u32 = 1;

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

/// A moment of a request, in nanoseconds since the Unix epoch; `None` if neither field was sent.
pub fn moment(new: Option<&prost_types::Timestamp>, old: Option<&LegacyTime>) -> Option<i128> {
    let nanos =
        |seconds: i64, nanos: i32| i128::from(seconds) * i128::from(NANOS_PER_SECOND) + i128::from(nanos);
    match (new, old) {
        (Some(new), _) => Some(nanos(new.seconds, new.nanos)),
        (None, Some(old)) => Some(nanos(old.seconds(), old.nanos())),
        (None, None) => None,
    }
}

/// Hours from one moment to another: 0 if the other is earlier, `None` if one is missing.
pub fn hours(start: Option<i128>, end: Option<i128>) -> Option<f64> {
    let nanos_per_hour = 3_600.0 * NANOS_PER_SECOND as f64;
    Some((end? - start?).max(0) as f64 / nanos_per_hour)
}

/// The answer that carries this encoded `core/v1` Node, which is the same bytes in both dialects.
pub fn template(encoded: &Bytes) -> NodeGroupTemplateNodeInfoResponse {
    NodeGroupTemplateNodeInfoResponse { node_info: encoded.clone(), node_bytes: encoded.clone() }
}

/// The answer of NodeGroupNodes. Instances may be in it as they were encoded for earlier answers.
///
/// Source: [messages one after another are their fields one after another](https://protobuf.dev/programming-guides/encoding/#last-one-wins).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeGroupNodesResponse {
    /// An encoded answer, whose instances come first. Empty in one that was received.
    pub encoded: Bytes,
    /// All other instances.
    pub instances: Vec<Instance>,
}

impl Message for NodeGroupNodesResponse {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        buf.put_slice(&self.encoded);
        message::encode_repeated(INSTANCES, &self.instances, buf);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        ctx: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            INSTANCES => message::merge_repeated(wire_type, &mut self.instances, buf, ctx),
            _ => skip_field(wire_type, tag, buf, ctx),
        }
    }

    fn encoded_len(&self) -> usize {
        self.encoded.len() + message::encoded_len_repeated(INSTANCES, &self.instances)
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn instances_that_are_encoded_already_come_before_the_others() {
        let instances = |ids: &[&str]| {
            let instance = |id: &&str| Instance { id: (*id).to_owned(), status: None };
            NodeGroupNodesResponse { instances: ids.iter().map(instance).collect(), ..Default::default() }
        };
        let encoded = instances(&["a", "b"]).encode_to_vec().into();
        let answer = NodeGroupNodesResponse { encoded, ..instances(&["c"]) };
        // A field of a later version of the protocol.
        let unknown = [0x12, 0x01, b'x'];
        let sent = [&answer.encode_to_vec()[..], &unknown[..]].concat();
        assert_eq!(sent.len(), answer.encoded_len() + unknown.len());
        assert_eq!(NodeGroupNodesResponse::decode(&sent[..]), Ok(instances(&["a", "b", "c"])));
    }

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
    fn a_template_is_written_into_both_fields() {
        let node = Bytes::from_static(b"node");
        let both = template(&node);
        assert_eq!((&both.node_info, &both.node_bytes), (&node, &node));
    }

    #[test]
    fn a_period_is_read_from_either_dialect_in_hours() {
        let new = |seconds, nanos| prost_types::Timestamp { seconds, nanos };
        let old = |seconds| LegacyTime { seconds: Some(seconds), nanos: Some(0) };
        let span = |start, end| hours(start, end).expect("a period");
        let (start, end) =
            (moment(Some(&new(100, 500)), Some(&old(7))), moment(Some(&new(3_700, 500)), None));
        assert!((span(start, end) - 1.0).abs() < 1e-12);
        assert!((span(moment(None, Some(&old(0))), moment(None, Some(&old(1_800)))) - 0.5).abs() < 1e-12);
        assert!(span(end, start).abs() < 1e-12, "backwards");
        assert_eq!(hours(start, None), None);
        assert_eq!(moment(None, None), None);
    }

    proptest! {
        #[test]
        fn a_period_is_the_sum_of_its_parts_and_never_shrinks_as_it_grows(
            start: i64, first in 0..1_000_000_000_000_i64, second in 0..1_000_000_000_000_i64,
        ) {
            let at = |more: i64| Some(i128::from(start) + i128::from(more));
            let span = |from, to| hours(from, to).expect("a period");
            let (whole, parts) = (span(at(0), at(first + second)), span(at(0), at(first)) + span(at(first), at(first + second)));
            prop_assert!((whole - parts).abs() <= whole * 1e-9);
            prop_assert!(whole >= span(at(0), at(first)));
        }

        #[test]
        fn no_moment_on_the_wire_makes_it_panic(a: i64, b: i32, c: i64, d: i32) {
            let new = prost_types::Timestamp { seconds: a, nanos: b };
            let old = LegacyTime { seconds: Some(c), nanos: Some(d) };
            let span = hours(moment(Some(&new), None), moment(None, Some(&old))).expect("a period");
            prop_assert!(span.is_finite() && span >= 0.0);
        }

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
