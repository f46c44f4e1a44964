//! Values of the index: incarnations and what a version of an akey's value consists of.

use crate::codec::{Decoder, Encode, Malformed};
use crate::space::{RUNS_MAX, Run};
use weir_media::BLOCK;
use weir_proto::limits::PAYLOAD_MAX;

/// Smallest piece of stored data with a checksum of its own: one block, because nothing smaller is read.
const CHUNK_SHIFT_MIN: u8 = 12;

/// Largest such piece: what a small read of a large value has to read and check.
const CHUNK_SHIFT_MAX: u8 = 15;

/// Values up to this many bytes have the smallest pieces; larger ones the largest, so that their index entries stay
/// small.
const SMALL_CHUNKS_MAX: u64 = 64 * 1024;

/// Tag of a version whose data follows.
const INLINE: u8 = 1;

/// Bytes of a version before data or blocks, at most: record size and tag.
const VERSION_HEAD: usize = 6;

/// Bytes of a run, or of the lengths before the runs, in nearly all cases.
const RUN_BYTES: usize = 8;

/// Data in blocks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Blocks {
    /// Bytes of data; the last block may be filled in part.
    pub(crate) len: u64,
    /// Bytes under one checksum, as a power of two.
    pub(crate) chunk_shift: u8,
    pub(crate) runs: Vec<Run>,
    /// One for each piece.
    pub(crate) checksums: Vec<u32>,
}

impl Blocks {
    /// The size of pieces for data of this many bytes.
    pub(crate) fn chunk_shift_for(len: u64) -> u8 {
        if len <= SMALL_CHUNKS_MAX { CHUNK_SHIFT_MIN } else { CHUNK_SHIFT_MAX }
    }

    pub(crate) fn chunk_len(&self) -> u64 {
        1 << self.chunk_shift
    }

    fn chunks(&self) -> u64 {
        self.len.div_ceil(self.chunk_len())
    }
}

/// Tag of a version whose bytes are in blocks.
const BLOCKS: u8 = 2;

/// What a version holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Nothing: the value or the records were punched.
    Hole,
    /// Bytes in the index.
    Inline(Vec<u8>),
    /// Bytes in blocks.
    Blocks(Blocks),
}

impl Payload {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Blocks(blocks) => blocks.len,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hole => out.put_u8(0),
            Self::Inline(bytes) => {
                out.put_u8(INLINE);
                out.extend_from_slice(bytes);
            }
            Self::Blocks(blocks) => {
                out.put_u8(BLOCKS);
                out.put_varint(blocks.len);
                out.put_u8(blocks.chunk_shift);
                out.put_varint(blocks.runs.len() as u64);
                for run in &blocks.runs {
                    out.put_varint(run.block);
                    out.put_varint(run.count);
                }
                blocks.checksums.iter().for_each(|checksum| out.put_u32(*checksum));
            }
        }
    }

    fn decode(mut decoder: Decoder<'_>) -> Result<Self, Malformed> {
        match decoder.u8()? {
            0 if decoder.is_empty() => Ok(Self::Hole),
            INLINE => Ok(Self::Inline(decoder.rest().to_vec())),
            BLOCKS => decode_blocks(decoder).map(Self::Blocks),
            _ => Err(Malformed("a value is of unknown kind")),
        }
    }
}

fn decode_blocks(mut decoder: Decoder<'_>) -> Result<Blocks, Malformed> {
    let len = decoder.varint()?;
    let chunk_shift = decoder.u8()?;
    if len == 0 || len > PAYLOAD_MAX || !(CHUNK_SHIFT_MIN..=CHUNK_SHIFT_MAX).contains(&chunk_shift) {
        return Err(Malformed("a value has an impossible length"));
    }
    let mut runs = Vec::new();
    let mut bytes = 0u64;
    for _ in 0..decoder.count(RUNS_MAX)? {
        let run = Run { block: decoder.varint()?, count: decoder.varint()? };
        if run.count == 0 || run.count > PAYLOAD_MAX / BLOCK as u64 || run.block > u64::MAX / BLOCK as u64 / 2
        {
            return Err(Malformed("a run of blocks has an impossible length"));
        }
        bytes += run.bytes();
        runs.push(run);
    }
    let mut blocks = Blocks { len, chunk_shift, runs, checksums: Vec::new() };
    if bytes != len.next_multiple_of(BLOCK as u64) {
        return Err(Malformed("the blocks of a value don't add up to its length"));
    }
    blocks
        .checksums
        .reserve_exact(usize::try_from(blocks.chunks()).unwrap_or(0).min(decoder.rest().len() / 4));
    for _ in 0..blocks.chunks() {
        blocks.checksums.push(decoder.u32()?);
    }
    if decoder.is_empty() { Ok(blocks) } else { Err(Malformed("a value has bytes behind its end")) }
}

/// A version of an akey's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// Bytes of a record of an array; 0 for single values and holes.
    pub(crate) record_size: u32,
    pub(crate) payload: Payload,
}

impl Version {
    /// Appends a version of these parts.
    pub(crate) fn append(record_size: u32, payload: &Payload, out: &mut Vec<u8>) {
        out.put_varint(u64::from(record_size));
        payload.encode(out);
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let len = match &self.payload {
            Payload::Hole => 0,
            Payload::Inline(bytes) => bytes.len(),
            Payload::Blocks(blocks) => RUN_BYTES * (1 + blocks.runs.len()) + 4 * blocks.checksums.len(),
        };
        let mut out = Vec::with_capacity(len + VERSION_HEAD);
        Self::append(self.record_size, &self.payload, &mut out);
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let record_size =
            u32::try_from(decoder.varint()?).map_err(|_| Malformed("a record size is too large"))?;
        Ok(Self { record_size, payload: Payload::decode(decoder)? })
    }

    /// Whether a stored version refers to blocks, without decoding it.
    pub(crate) fn has_blocks(bytes: &[u8]) -> bool {
        let mut decoder = Decoder::new(bytes);
        decoder.varint().is_ok() && decoder.u8() == Ok(BLOCKS)
    }

    /// The payload of a stored version, in the memory that the version had where that is possible.
    pub(crate) fn into_payload(mut bytes: Vec<u8>) -> Result<Payload, Malformed> {
        let mut decoder = Decoder::new(&bytes);
        u32::try_from(decoder.varint()?).map_err(|_| Malformed("a record size is too large"))?;
        if decoder.u8()? != INLINE {
            return Ok(Self::decode(&bytes)?.payload);
        }
        let head = bytes.len() - decoder.rest().len();
        bytes.drain(..head);
        Ok(Payload::Inline(bytes))
    }

    /// The runs of blocks a stored version refers to.
    pub(crate) fn runs(bytes: &[u8]) -> Result<Vec<Run>, Malformed> {
        let mut decoder = Decoder::new(bytes);
        decoder.varint()?;
        if decoder.u8()? == INLINE {
            return Ok(Vec::new());
        }
        match Self::decode(bytes)?.payload {
            Payload::Blocks(blocks) => Ok(blocks.runs),
            Payload::Hole | Payload::Inline(_) => Ok(Vec::new()),
        }
    }
}

/// What an akey holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Single,
    Array,
}

impl Kind {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Single => "a single value",
            Self::Array => "an array",
        }
    }
}

/// The begin or end of an incarnation of an object, dkey or akey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// It was punched.
    Punch,
    /// An object began to exist; its newest epoch so far.
    Object {
        /// Newest update at or below the object in this incarnation.
        newest: u64,
    },
    /// A dkey began to exist.
    Dkey,
    /// An akey began to exist.
    Akey {
        /// What it holds.
        kind: Kind,
        /// Bytes of a record; 0 until records were stored.
        record_size: u32,
        /// Length classes of the extents it ever had, one bit each.
        classes: u32,
    },
}

impl Event {
    pub(crate) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        self.append(&mut out);
        out
    }

    /// Appends the encoded event.
    pub(crate) fn append(self, out: &mut Vec<u8>) {
        match self {
            Self::Punch => out.put_u8(0),
            Self::Object { newest } => {
                out.put_u8(1);
                out.put_u64(newest);
            }
            Self::Dkey => out.put_u8(2),
            Self::Akey { kind, record_size, classes } => {
                out.put_u8(if kind == Kind::Single { 3 } else { 4 });
                out.put_varint(u64::from(record_size));
                out.put_varint(u64::from(classes));
            }
        }
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let event = match decoder.u8()? {
            0 => Self::Punch,
            1 => Self::Object { newest: decoder.u64()? },
            2 => Self::Dkey,
            tag @ (3 | 4) => {
                let mut small = || {
                    u32::try_from(decoder.varint()?)
                        .map_err(|_| Malformed("an incarnation has a number too large"))
                };
                let kind = if tag == 3 { Kind::Single } else { Kind::Array };
                Self::Akey { kind, record_size: small()?, classes: small()? }
            }
            _ => return Err(Malformed("an incarnation is of unknown kind")),
        };
        if decoder.is_empty() { Ok(event) } else { Err(Malformed("an incarnation has bytes behind its end")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn versions_survive_encoding() {
        let runs = vec![Run { block: 70_000, count: 2 }, Run { block: 9, count: 1 }];
        let blocks = Blocks { len: 9000, chunk_shift: 12, runs: runs.clone(), checksums: vec![1, 2, 3] };
        for payload in [Payload::Hole, Payload::Inline(b"weir".to_vec()), Payload::Blocks(blocks)] {
            let version = Version { record_size: 4, payload };
            assert_eq!(Version::decode(&version.encode()), Ok(version));
        }
        let cut = Blocks { len: 9000, chunk_shift: 12, runs: runs[..1].to_vec(), checksums: vec![1, 2, 3] };
        assert!(
            Version::decode(&Version { record_size: 1, payload: Payload::Blocks(cut) }.encode()).is_err()
        );
    }

    #[test]
    fn incarnations_survive_encoding() {
        let akey = Event::Akey { kind: Kind::Array, record_size: 300, classes: 1 << 31 };
        for event in [Event::Punch, Event::Object { newest: u64::MAX }, Event::Dkey, akey] {
            assert_eq!(Event::decode(&event.encode()), Ok(event));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = Version::decode(&bytes);
            let _ = Event::decode(&bytes);
        }
    }
}
