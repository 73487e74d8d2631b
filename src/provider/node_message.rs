//! A Node as cluster-autoscaler tells of it. Written whole, by the worlds and tests; read without its labels and annotations, which are
//! some sixty texts in each NodeGroupForNode, and which nothing here asks for.

use std::collections::BTreeMap;

use prost::bytes::{Buf, BufMut};
use prost::encoding::{DecodeContext, WireType, btree_map, skip_field, string};
use prost::{DecodeError, Message};

/// The message `ExternalGrpcNode` of the protocol.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExternalGrpcNode {
    /// `spec.providerID`.
    pub provider_id: String,
    /// `metadata.name`.
    pub name: String,
    /// `metadata.labels`; empty in what was read.
    pub labels: BTreeMap<String, String>,
    /// `metadata.annotations`; empty in what was read.
    pub annotations: BTreeMap<String, String>,
}

const PROVIDER_ID: u32 = 1;
const NAME: u32 = 2;
const LABELS: u32 = 3;
const ANNOTATIONS: u32 = 4;

impl ExternalGrpcNode {
    /// The texts that are not empty; others are not on the wire.
    fn texts(&self) -> impl Iterator<Item = (u32, &String)> {
        [(PROVIDER_ID, &self.provider_id), (NAME, &self.name)]
            .into_iter()
            .filter(|(_, text)| !text.is_empty())
    }

    fn maps(&self) -> [(u32, &BTreeMap<String, String>); 2] {
        [(LABELS, &self.labels), (ANNOTATIONS, &self.annotations)]
    }
}

impl Message for ExternalGrpcNode {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        for (tag, text) in self.texts() {
            string::encode(tag, text, buf);
        }
        for (tag, map) in self.maps() {
            btree_map::encode(
                string::encode,
                string::encoded_len,
                string::encode,
                string::encoded_len,
                tag,
                map,
                buf,
            );
        }
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            PROVIDER_ID => string::merge(wire_type, &mut self.provider_id, buf, context),
            NAME => string::merge(wire_type, &mut self.name, buf, context),
            _ => skip_field(wire_type, tag, buf, context),
        }
    }

    fn encoded_len(&self) -> usize {
        let texts: usize = self.texts().map(|(tag, text)| string::encoded_len(tag, text)).sum();
        let of_map = |(tag, map)| btree_map::encoded_len(string::encoded_len, string::encoded_len, tag, map);
        texts + self.maps().into_iter().map(of_map).sum::<usize>()
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_written_whole_and_read_without_what_nobody_asks_for() {
        let pair = |key: &str| [(key.to_owned(), "value".to_owned())].into();
        let node = ExternalGrpcNode {
            provider_id: "aws:///z/i-1".into(),
            name: "n1".into(),
            labels: pair("label"),
            annotations: pair("annotation"),
        };
        let written = node.encode_to_vec();
        assert_eq!(written.len(), node.encoded_len());
        for text in ["aws:///z/i-1", "n1", "label", "annotation", "value"] {
            assert!(written.windows(text.len()).any(|part| part == text.as_bytes()), "{text}");
        }
        let read = ExternalGrpcNode::decode(&written[..]).expect("a message");
        assert_eq!(read, ExternalGrpcNode { labels: BTreeMap::new(), annotations: BTreeMap::new(), ..node });
        assert_eq!(ExternalGrpcNode::default().encode_to_vec(), [0_u8; 0]);
        assert!(ExternalGrpcNode::decode(&written[..written.len() - 1]).is_err(), "cut off");
    }
}
