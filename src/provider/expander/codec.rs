//! The expander's codec: Protocol Buffers, but for messages that take far more memory than they have bytes.

use std::marker::PhantomData;

use prost::Message;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic_prost::{ProstCodec, ProstDecoder, ProstEncoder};

/// Most fields at the top of a message: options, and the nodes that are skipped. An option of two bytes takes some eighty in memory.
pub const ENTRIES: usize = 4_096;

/// The codec of Protocol Buffers, for messages of at most [`ENTRIES`] entries.
#[derive(Clone, Debug)]
pub struct BoundedCodec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for BoundedCodec<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T, U> Codec for BoundedCodec<T, U>
where
    T: Message + Send + 'static,
    U: Message + Default + Send + 'static,
{
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = BoundedDecoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<T, U>::default().encoder()
    }

    fn decoder(&mut self) -> Self::Decoder {
        BoundedDecoder(ProstCodec::<T, U>::default().decoder())
    }
}

/// The decoder of [`BoundedCodec`].
#[derive(Clone, Debug)]
pub struct BoundedDecoder<U>(ProstDecoder<U>);

impl<U: Message + Default> Decoder for BoundedDecoder<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // All of it: what has come of a message is in one piece.
        if has_more_entries(message.chunk()) {
            let text = format!(
                "more than {ENTRIES} options and nodes: cluster-autoscaler's next expander is to choose"
            );
            return Err(Status::resource_exhausted(text));
        }
        self.0.decode(message)
    }
}

/// Whether a message has more than [`ENTRIES`] fields at its top. What cannot be read, decoding stops at too.
fn has_more_entries(mut message: &[u8]) -> bool {
    for _ in 0..ENTRIES {
        let Ok((tag, wire_type)) = decode_key(&mut message) else { return false };
        if skip_field(wire_type, tag, &mut message, DecodeContext::default()).is_err() {
            return false;
        }
    }
    message.has_remaining()
}

#[cfg(test)]
mod tests {
    use super::super::proto::{BestOptionsRequest, Option as Offered, Pod};
    use super::*;

    #[test]
    fn options_are_counted_and_pods_are_not() {
        let option = Offered { pod: vec![Pod {}; 10], ..Offered::default() };
        let question =
            |options| BestOptionsRequest { options: vec![option.clone(); options] }.encode_to_vec();
        assert!(!has_more_entries(&question(ENTRIES)));
        assert!(has_more_entries(&question(ENTRIES + 1)));
        assert!(!has_more_entries(&[]));
    }

    #[test]
    fn what_is_cut_or_garbled_is_left_to_the_decoder() {
        let mut flood = [0x0a, 0].repeat(ENTRIES);
        assert!(!has_more_entries(&flood));
        // An entry of which only the key has come.
        flood.push(0x0a);
        assert!(has_more_entries(&flood));
        assert!(!has_more_entries(&flood[2..]));
        assert!(!has_more_entries(&[0xff; 64]));
    }
}
