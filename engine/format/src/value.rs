//! Values of the index: incarnations and what a version of an akey's value consists of.

use crate::Layout;
use crate::blocks::{RUNS_MAX, Run, Runs};
use crate::checksum::Checksums;
use crate::codec::{Decoder, Encode, Malformed};
use crate::size::in_memory;
use weir_media::BLOCK;
use weir_proto::chunk::{CHUNK_BYTES_MAX, CHUNK_BYTES_MIN, Chunks};
use weir_proto::limits::PAYLOAD_MAX;

/// Tag of a version whose data follows.
const INLINE: u8 = 1;

/// Tag of a version whose bytes are in blocks, in chunks of a power of two from its start.
const BLOCKS: u8 = 2;

/// Tag of a version whose data follows behind its checksum.
const INLINE_SUMMED: u8 = 3;

/// Tag of a version whose bytes are in blocks, in chunks that are described.
const BLOCKS_CUT: u8 = 4;

/// What the begin of an object begins with.
const OBJECT: u8 = 1;

/// All that there is of the begin of a dkey.
const DKEY: u8 = 2;

/// Smallest and largest chunk, as powers of two, that [`BLOCKS`] can describe.
const SHIFT_MIN: u8 = 12;
const SHIFT_MAX: u8 = 15;
const _: () = assert!(CHUNK_BYTES_MIN == 1 << SHIFT_MIN && CHUNK_BYTES_MAX == 1 << SHIFT_MAX);

/// Smallest step of chunks: a record doesn't go twice into a chunk if it is larger than half of it.
const STEP_MIN: u64 = CHUNK_BYTES_MIN / 2;

/// Last block that there can be: its end on the device is a number with room to spare.
const BLOCK_MAX: u64 = u64::MAX / BLOCK as u64 / 2;

/// Bytes of a version before data or blocks, at most: record size, tag and checksum.
const VERSION_HEAD: usize = 10;

/// Bytes of a run, or of the lengths before the runs, in nearly all cases.
const RUN_BYTES: usize = 8;

/// Data in blocks of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// What has a checksum each. The last block may be filled in part.
    pub chunks: Chunks,
    /// Where the data is, in its order.
    pub runs: Runs,
    /// One for each chunk.
    pub checksums: Checksums,
}

impl Blocks {
    /// Bytes of data.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "what is in blocks is never empty")]
    pub const fn len(&self) -> u64 {
        self.chunks.len()
    }

    /// The same, if it is all in one block.
    #[must_use]
    pub fn lone(&self) -> Option<Lone> {
        match (self.runs.as_slice(), self.checksums.as_slice()) {
            ([run], [checksum]) if run.count == 1 => {
                Some(Lone { len: self.len(), block: run.block, checksum: *checksum })
            }
            _ => None,
        }
    }

    /// Chunks of all the data with their bytes and checksums.
    pub fn pieces<'a>(&'a self, data: &'a [u8]) -> impl Iterator<Item = (u64, &'a [u8], Option<u32>)> {
        let small = |at: u64| in_memory(at).min(data.len());
        self.chunks.ranges().enumerate().map(move |(number, range)| {
            let bytes = &data[small(range.start)..small(range.end)];
            (range.start, bytes, self.checksums.get(number).copied())
        })
    }

    /// Where on the device a byte of the data is.
    #[must_use]
    pub fn offset_of(&self, byte: u64, layout: &Layout) -> Option<u64> {
        let mut left = byte;
        for run in &self.runs {
            if left < run.bytes() {
                return Some(layout.data(run.block) + left);
            }
            left -= run.bytes();
        }
        None
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let shift = shift_of(self.chunks);
        out.put_u8(if shift.is_some() { BLOCKS } else { BLOCKS_CUT });
        out.put_varint(self.chunks.len());
        if let Some(shift) = shift {
            out.put_u8(shift);
        } else {
            out.put_varint(self.chunks.first());
            out.put_varint(self.chunks.step());
        }
        out.put_varint(self.runs.len() as u64);
        for run in &self.runs {
            out.put_varint(run.block);
            out.put_varint(run.count);
        }
        self.checksums.iter().for_each(|checksum| out.put_u32(*checksum));
    }
}

/// Data of one chunk in one block: what the cache keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lone {
    /// Bytes of data.
    pub len: u64,
    /// The block.
    pub block: u64,
    /// Checksum of the data.
    pub checksum: u32,
}

impl Lone {
    /// What follows [`BLOCKS`], in as few steps as it takes; `None` where it is anything else.
    fn decode(mut decoder: Decoder<'_>) -> Option<Self> {
        let (len, shift, runs) = (decoder.varint().ok()?, decoder.u8().ok()?, decoder.varint().ok()?);
        let (block, count) = (decoder.varint().ok()?, decoder.varint().ok()?);
        let is_small = (1..=BLOCK as u64).contains(&len) && (SHIFT_MIN..=SHIFT_MAX).contains(&shift);
        let is_lone = is_small && (runs, count) == (1, 1) && block <= BLOCK_MAX;
        let checksum = decoder.u32().ok()?;
        (is_lone && decoder.is_empty()).then_some(Self { len, block, checksum })
    }
}

impl From<Lone> for Blocks {
    fn from(Lone { len, block, checksum }: Lone) -> Self {
        let chunks = Chunks::new(len, len, len);
        let (mut runs, mut checksums) = (Runs::new(), Checksums::new());
        runs.push(Run { block, count: 1 });
        checksums.push(checksum);
        Self { chunks, runs, checksums }
    }
}

/// Whether chunks are such as the first version of the format can describe: of one power of two from the start.
#[must_use]
pub fn is_regular(chunks: Chunks) -> bool {
    shift_of(chunks).is_some()
}

/// The size of chunks as a power of two, if they can be described so.
fn shift_of(chunks: Chunks) -> Option<u8> {
    if chunks.first() == chunks.len() {
        return match chunks.len() {
            len if len <= CHUNK_BYTES_MIN => Some(SHIFT_MIN),
            len if len <= CHUNK_BYTES_MAX => Some(SHIFT_MAX),
            _ => None,
        };
    }
    let fits = chunks.first() == chunks.step()
        && chunks.step().is_power_of_two()
        && (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunks.step());
    fits.then(|| u8::try_from(chunks.step().trailing_zeros()).ok()).flatten()
}

/// Data in the index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inline {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// What the client computed, if it did. One chunk has always room for it: it is shorter than a block.
    pub checksum: Option<u32>,
}

impl Inline {
    /// The same by reference.
    #[must_use]
    pub fn summed(&self) -> Summed<'_> {
        Summed { bytes: &self.bytes, checksum: self.checksum }
    }
}

/// Data in the index, as [`Inline`], where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summed<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// What the client computed, if it did.
    pub checksum: Option<u32>,
}

impl From<Summed<'_>> for Inline {
    fn from(summed: Summed<'_>) -> Self {
        Self { bytes: summed.bytes.to_vec(), checksum: summed.checksum }
    }
}

/// What a version holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: the value or the records were punched.
    Hole,
    /// Bytes in the index.
    Inline(Inline),
    /// Bytes in blocks.
    Blocks(Blocks),
}

impl Payload {
    /// Bytes of data.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a hole is told from data without bytes by its kind")]
    pub fn len(&self) -> u64 {
        match self {
            Self::Hole => 0,
            Self::Inline(inline) => inline.bytes.len() as u64,
            Self::Blocks(blocks) => blocks.len(),
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hole => out.put_u8(0),
            Self::Inline(Inline { bytes, checksum }) => encode_inline(bytes, *checksum, out),
            Self::Blocks(blocks) => blocks.encode(out),
        }
    }

    /// What follows its tag.
    fn decode(tag: u8, mut decoder: Decoder<'_>) -> Result<Self, Malformed> {
        match tag {
            0 if decoder.is_empty() => Ok(Self::Hole),
            tag @ (INLINE | INLINE_SUMMED) => Ok(Self::Inline(inline(tag, decoder)?.into())),
            BLOCKS => {
                let (len, shift) = (decoder.varint()?, decoder.u8()?);
                if !(SHIFT_MIN..=SHIFT_MAX).contains(&shift) {
                    return Err(Malformed("a value has an impossible length"));
                }
                decode_blocks(Chunks::new(len, 1 << shift, 1 << shift), decoder).map(Self::Blocks)
            }
            BLOCKS_CUT => {
                let (len, first, step) = (decoder.varint()?, decoder.varint()?, decoder.varint()?);
                let is_lone = first == len && step == len && len <= CHUNK_BYTES_MAX;
                let is_cut = first > 0 && first <= step && (STEP_MIN..=CHUNK_BYTES_MAX).contains(&step);
                if !is_lone && !is_cut {
                    return Err(Malformed("a value has impossible chunks"));
                }
                decode_blocks(Chunks::new(len, first, step), decoder).map(Self::Blocks)
            }
            _ => Err(Malformed("a value is of unknown kind")),
        }
    }
}

fn encode_inline(bytes: &[u8], checksum: Option<u32>, out: &mut Vec<u8>) {
    if let Some(checksum) = checksum {
        out.put_u8(INLINE_SUMMED);
        out.put_u32(checksum);
    } else {
        out.put_u8(INLINE);
    }
    out.extend_from_slice(bytes);
}

/// What follows this tag of data in the index.
fn inline(tag: u8, mut decoder: Decoder<'_>) -> Result<Summed<'_>, Malformed> {
    let checksum = if tag == INLINE_SUMMED { Some(decoder.u32()?) } else { None };
    Ok(Summed { bytes: decoder.rest(), checksum })
}

/// Record size and tag that a version begins with.
fn head(decoder: &mut Decoder<'_>) -> Result<(u32, u8), Malformed> {
    let record_size = decoder.varint()?;
    let record_size = u32::try_from(record_size).map_err(|_| Malformed("a record size is too large"))?;
    Ok((record_size, decoder.u8()?))
}

fn decode_blocks(chunks: Chunks, mut decoder: Decoder<'_>) -> Result<Blocks, Malformed> {
    if chunks.is_empty() || chunks.len() > PAYLOAD_MAX {
        return Err(Malformed("a value has an impossible length"));
    }
    let mut runs = Runs::new();
    let mut bytes = 0u64;
    for _ in 0..decoder.count(RUNS_MAX)? {
        let run = Run { block: decoder.varint()?, count: decoder.varint()? };
        if run.count == 0 || run.count > PAYLOAD_MAX / BLOCK as u64 || run.block > BLOCK_MAX {
            return Err(Malformed("a run of blocks has an impossible length"));
        }
        bytes += run.bytes();
        runs.push(run);
    }
    if bytes != chunks.len().next_multiple_of(BLOCK as u64) {
        return Err(Malformed("the blocks of a value don't add up to its length"));
    }
    let mut blocks = Blocks { chunks, runs, checksums: Checksums::new() };
    blocks.checksums.reserve_exact(in_memory(chunks.count()).min(decoder.rest().len() / 4));
    for _ in 0..chunks.count() {
        blocks.checksums.push(decoder.u32()?);
    }
    if decoder.is_empty() { Ok(blocks) } else { Err(Malformed("a value has bytes behind its end")) }
}

/// What can be said of a version without its data.
pub struct Shape {
    /// Bytes of a record of an array; 0 for single values and holes.
    pub record_size: u32,
    /// Bytes of data; `None`: it is a hole.
    pub len: Option<u64>,
    /// The blocks that it is in.
    pub runs: Runs,
}

/// A version of an akey's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Bytes of a record of an array; 0 for single values and holes.
    pub record_size: u32,
    /// What it holds.
    pub payload: Payload,
}

impl Version {
    /// Appends a version of these parts.
    pub fn append(record_size: u32, payload: &Payload, out: &mut Vec<u8>) {
        out.put_varint(u64::from(record_size));
        payload.encode(out);
    }

    /// Appends a version with these bytes in the index.
    pub fn append_inline(record_size: u32, bytes: &[u8], checksum: Option<u32>, out: &mut Vec<u8>) {
        out.put_varint(u64::from(record_size));
        encode_inline(bytes, checksum, out);
    }

    /// The stored version.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let len = match &self.payload {
            Payload::Hole => 0,
            Payload::Inline(inline) => inline.bytes.len(),
            Payload::Blocks(blocks) => RUN_BYTES * (1 + blocks.runs.len()) + 4 * blocks.checksums.len(),
        };
        let mut out = Vec::with_capacity(len + VERSION_HEAD);
        Self::append(self.record_size, &self.payload, &mut out);
        out
    }

    /// Reads a stored version.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let (record_size, tag) = head(&mut decoder)?;
        Ok(Self { record_size, payload: Payload::decode(tag, decoder)? })
    }

    /// Record size and data of a stored version, if its data is in the index, where it is.
    ///
    /// # Errors
    /// When its head does not follow the format.
    pub fn inline(bytes: &[u8]) -> Result<Option<(u32, Summed<'_>)>, Malformed> {
        let mut decoder = Decoder::new(bytes);
        match head(&mut decoder)? {
            (record_size, tag @ (INLINE | INLINE_SUMMED)) => Ok(Some((record_size, inline(tag, decoder)?))),
            _ => Ok(None),
        }
    }

    /// What can be said of a stored version without its data; it is checked on the way.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn shape(bytes: &[u8]) -> Result<Shape, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let (record_size, tag) = head(&mut decoder)?;
        if let tag @ (INLINE | INLINE_SUMMED) = tag {
            let len = inline(tag, decoder)?.bytes.len() as u64;
            return Ok(Shape { record_size, len: Some(len), runs: Runs::new() });
        }
        if let Some(Lone { len, block, .. }) = Self::lone(bytes) {
            return Ok(Shape { record_size, len: Some(len), runs: Runs::from([Run { block, count: 1 }]) });
        }
        Ok(match Payload::decode(tag, decoder)? {
            Payload::Blocks(blocks) => Shape { record_size, len: Some(blocks.len()), runs: blocks.runs },
            Payload::Hole | Payload::Inline(_) => Shape { record_size, len: None, runs: Runs::new() },
        })
    }

    /// The data of a stored version, if it is all in one block and said to be so in the usual way.
    #[must_use]
    pub fn lone(bytes: &[u8]) -> Option<Lone> {
        let mut decoder = Decoder::new(bytes);
        let (_, tag) = head(&mut decoder).ok()?;
        if tag == BLOCKS { Lone::decode(decoder) } else { None }
    }

    /// Whether a stored version refers to blocks, without decoding it.
    #[inline]
    #[must_use]
    pub fn has_blocks(bytes: &[u8]) -> bool {
        // Most record sizes take a byte.
        if let [0..0x80, tag, ..] = bytes {
            return matches!(*tag, BLOCKS | BLOCKS_CUT);
        }
        let mut decoder = Decoder::new(bytes);
        decoder.varint().is_ok() && matches!(decoder.u8(), Ok(BLOCKS | BLOCKS_CUT))
    }

    /// The payload of a stored version, in the memory that the version had where that is possible.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn into_payload(mut bytes: Vec<u8>) -> Result<Payload, Malformed> {
        let Some((_, Summed { bytes: data, checksum })) = Self::inline(&bytes)? else {
            return Ok(Self::decode(&bytes)?.payload);
        };
        let head = bytes.len() - data.len();
        bytes.drain(..head);
        Ok(Payload::Inline(Inline { bytes, checksum }))
    }

    /// The runs of blocks a stored version refers to.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn runs(bytes: &[u8]) -> Result<Runs, Malformed> {
        let mut decoder = Decoder::new(bytes);
        decoder.varint()?;
        if matches!(decoder.u8()?, INLINE | INLINE_SUMMED) {
            return Ok(Runs::new());
        }
        if let Some(Lone { block, .. }) = Self::lone(bytes) {
            return Ok(Runs::from([Run { block, count: 1 }]));
        }
        match Self::decode(bytes)?.payload {
            Payload::Blocks(blocks) => Ok(blocks.runs),
            Payload::Hole | Payload::Inline(_) => Ok(Runs::new()),
        }
    }
}

/// What an akey holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Single values.
    Single,
    /// An array of records.
    Array,
}

impl Kind {
    /// What it is, in words.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "a single value",
            Self::Array => "an array",
        }
    }
}

/// The begin or end of an incarnation of an object, dkey or akey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
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

/// Appends an [`Event::Akey`], encoded.
#[inline]
pub fn append_akey(kind: Kind, record_size: u32, classes: u32, out: &mut Vec<u8>) {
    let tag = if kind == Kind::Single { 3 } else { 4 };
    // Both are small nearly always.
    if let (Ok(size @ ..0x80), Ok(some @ ..0x80)) = (u8::try_from(record_size), u8::try_from(classes)) {
        out.extend_from_slice(&[tag, size, some]);
    } else {
        append_numbers(tag, [record_size, classes], out);
    }
}

#[inline(never)]
fn append_numbers(tag: u8, numbers: [u32; 2], out: &mut Vec<u8>) {
    out.put_u8(tag);
    for number in numbers {
        out.put_varint(u64::from(number));
    }
}

impl Event {
    /// The stored event.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        self.append(&mut out);
        out
    }

    /// Appends the encoded event.
    #[inline]
    pub fn append(self, out: &mut Vec<u8>) {
        match self {
            Self::Punch => out.put_u8(0),
            Self::Object { newest } => out.extend_from_slice(&Self::of_object(newest)),
            Self::Dkey => out.extend_from_slice(&Self::OF_DKEY),
            Self::Akey { kind, record_size, classes } => append_akey(kind, record_size, classes, out),
        }
    }

    /// [`Event::Dkey`], encoded.
    pub const OF_DKEY: [u8; 1] = [DKEY];

    /// [`Event::Object`], encoded.
    #[must_use]
    pub fn of_object(newest: u64) -> [u8; 1 + size_of::<u64>()] {
        let mut bytes = [OBJECT; 1 + size_of::<u64>()];
        bytes[1..].copy_from_slice(&newest.to_le_bytes());
        bytes
    }

    /// Whether these bytes are [`Event::Dkey`].
    #[must_use]
    pub fn is_dkey(bytes: &[u8]) -> bool {
        bytes == Self::OF_DKEY
    }

    /// Reads a stored event.
    ///
    /// # Errors
    /// When it does not follow the format.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut decoder = Decoder::new(bytes);
        let event = match decoder.u8()? {
            0 => Self::Punch,
            OBJECT => Self::Object { newest: decoder.u64()? },
            DKEY => Self::Dkey,
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

    fn blocks(chunks: Chunks, runs: &[Run]) -> Payload {
        let checksums = (0..chunks.count()).map(|number| u32::try_from(number).expect("few")).collect();
        Payload::Blocks(Blocks { chunks, runs: runs.into(), checksums })
    }

    #[test]
    fn versions_survive_encoding() {
        let runs = [Run { block: 70_000, count: 2 }, Run { block: 9, count: 1 }];
        let cut = Chunks::new(9000, 100, 4000);
        let lone = Chunks::new(9000, 9000, 9000);
        let payloads = [
            (0, Payload::Hole),
            (1, Payload::Inline(Inline { bytes: b"weir".to_vec(), checksum: None })),
            (3, Payload::Inline(Inline { bytes: b"weir".to_vec(), checksum: Some(77) })),
            (2, blocks(Chunks::new(9000, 4096, 4096), &runs)),
            (2, blocks(lone, &runs)),
            (4, blocks(cut, &runs)),
        ];
        for (tag, payload) in payloads {
            let version = Version { record_size: 4, payload };
            let bytes = version.encode();
            assert_eq!(bytes[1], tag);
            assert_eq!(Version::decode(&bytes).as_ref(), Ok(&version));
            assert_eq!(Version::has_blocks(&bytes), tag == 2 || tag == 4);
            assert_eq!(
                Version::runs(&bytes).map(|runs| runs.len()),
                Ok(if tag % 2 == 0 && tag > 0 { 2 } else { 0 })
            );
            let inline = Version::inline(&bytes).expect("sound").map(|(_, summed)| summed.into());
            assert_eq!(Version::lone(&bytes), None);
            let is_same = inline.map(Payload::Inline).is_none_or(|payload| payload == version.payload);
            assert!(is_same && (tag % 2 == 1) == matches!(version.payload, Payload::Inline(_)));
            assert_eq!(Version::into_payload(bytes), Ok(version.payload));
        }
        for payload in [
            blocks(cut, &runs[..1]),
            blocks(Chunks::new(9000, 100, 64), &runs),
            blocks(Chunks::new(9000, 5000, 4096), &runs),
        ] {
            assert!(Version::decode(&Version { record_size: 1, payload }.encode()).is_err());
        }
    }

    #[test]
    fn what_is_in_one_block_is_known_without_decoding_all() {
        for (len, count) in [(1, 1), (4000, 1), (4096, 1), (4097, 2), (40_000, 10)] {
            let chunks = Chunks::of_single(len, weir_proto::chunk::Grain::Fine);
            let payload = blocks(chunks, &[Run { block: 70_000, count }]);
            let Payload::Blocks(blocks) = &payload else { panic!("they are blocks") };
            let (lone, own) = (
                Version::lone(&Version { record_size: 300, payload: payload.clone() }.encode()),
                blocks.lone(),
            );
            assert_eq!((lone, lone.is_some()), (own, count == 1), "{len} bytes");
            assert!(lone.is_none_or(|lone| Blocks::from(lone) == *blocks));
        }
    }

    #[test]
    fn chunks_of_any_records_can_be_stored() {
        use weir_proto::chunk::Grain;
        use weir_proto::object::Extent;
        for size in [1, 3, 333, 2049, 4095, 4096, 4097, 16_385, 32_768, 40_000] {
            for (index, count) in [(0, 1), (7, 30), (123_457, 25)] {
                let part = Extent { index, count };
                let chunks = Chunks::of_part(part, size, Grain::Fine);
                let runs = [Run { block: 5, count: chunks.len().div_ceil(BLOCK as u64) }];
                let version = Version { record_size: size, payload: blocks(chunks, &runs) };
                assert_eq!(Version::decode(&version.encode()), Ok(version), "{part:?} of {size} bytes");
            }
        }
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

        #[test]
        fn what_looks_like_one_block_is_one(
            len in 0u64..5000, shift in 11u8..17, runs in 0u64..3, block in prop_oneof![0u64..9, any::<u64>()],
            count in 0u64..3, rest in proptest::collection::vec(any::<u8>(), 3..6),
        ) {
            let mut bytes = vec![0, BLOCKS];
            bytes.put_varint(len);
            bytes.put_u8(shift);
            for number in [runs, block, count] {
                bytes.put_varint(number);
            }
            bytes.extend(rest);
            let decoded = Version::decode(&bytes).map(|version| version.payload);
            let is_lone = |blocks: &Blocks| blocks.lone().is_some();
            match Version::lone(&bytes) {
                Some(lone) => prop_assert_eq!(decoded, Ok(Payload::Blocks(lone.into()))),
                None => prop_assert!(!matches!(decoded, Ok(Payload::Blocks(blocks)) if is_lone(&blocks))),
            }
        }
    }
}
