//! Anchors of enumerations, in the caller's 120 bytes.
//!
//! Layout of `da_buf`: a form byte, a length byte, and the continuation. One that is longer than the room, because it names a
//! long key, stands in a table of this process; the buffer then has, beside the number there, the beginning of the key and its
//! hash, by which another process finds the key again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use weir_client::{Anchor, Page};
use weir_proto::{Der, codec};

use crate::boundary::ArgumentPtr;
use crate::types::daos_anchor_t;

const TYPE_ZERO: u16 = 0;
const TYPE_KEY: u16 = 2;
const TYPE_END: u16 = 3;

const FORM_INLINE: u8 = 1;
const FORM_LONG: u8 = 2;

/// Bytes of a continuation that fit the caller's structure.
const INLINE_MAX: usize = 102;

/// Where the parts of a long continuation stand, and how much of the key's beginning.
const SHARD: core::ops::Range<usize> = 2..6;
const HASH: core::ops::Range<usize> = 6..22;
const NUMBER: core::ops::Range<usize> = 22..30;
const BEGINNING: core::ops::Range<usize> = 30..104;

/// Continuations kept in the table: what has not been used for this many newer ones is forgotten.
const TABLE_MAX: usize = 4096;

#[derive(Default)]
struct Table {
    anchors: BTreeMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
    issued: u64,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Where an enumeration goes on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum From {
    /// Here.
    At(Anchor),
    /// Behind a key that has to be found first.
    Behind(LongKey),
}

/// A long key, by what another process has written of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LongKey {
    shard: u32,
    beginning: Vec<u8>,
    hash: u128,
}

impl LongKey {
    /// Where the search for it begins.
    pub fn search(&self) -> Result<Anchor, Der> {
        anchor_at(self.shard, &self.beginning)
    }

    /// Whether a key is it; `STALE` for one behind all that it can be.
    pub fn is(&self, key: &[u8]) -> Result<bool, Der> {
        if key.starts_with(&self.beginning) { Ok(hash(key) == self.hash) } else { Err(Der::STALE) }
    }

    /// Where the enumeration goes on, now that the key is known.
    pub fn behind(&self, key: &[u8]) -> Result<Anchor, Der> {
        anchor_at(self.shard, key)
    }
}

/// The fields of an anchor, as it is encoded.
type Fields = (u32, Vec<u8>, bool);

/// Marks an anchor of one part of an enumeration, in `da_flags`; `da_sub_anchors` is the shard behind the part then.
const IS_PART: u32 = 1 << 31;

/// The shard behind the part that an anchor enumerates; `None` for one of everything.
pub fn part(place: ArgumentPtr<daos_anchor_t>) -> Option<u32> {
    let anchor = place.get();
    if anchor.da_flags & IS_PART == 0 { None } else { u32::try_from(anchor.da_sub_anchors).ok() }
}

/// Writes the anchor of a shard's part.
pub fn write_part(place: ArgumentPtr<daos_anchor_t>, shard: u32) -> Result<(), Der> {
    place.set(daos_anchor_t::default());
    let fields: Fields = (shard, Vec::new(), false);
    write(place, &codec::decode(&codec::encode(&fields)).map_err(|_| Der::MISC)?)?;
    place.change(|anchor| {
        anchor.da_flags = IS_PART;
        anchor.da_sub_anchors = u64::from(shard) + 1;
    });
    Ok(())
}

/// What of a page belongs to a part: all entries of a page are of one shard.
pub fn within(part: Option<u32>, page: Page) -> Result<Page, Der> {
    let Some(end) = part else { return Ok(page) };
    let (shard, inner, ended): Fields = codec::decode(&codec::encode(&page.next)).map_err(|_| Der::MISC)?;
    let is_behind = inner.is_empty() && shard > 0;
    let of = if is_behind { shard - 1 } else { shard };
    let entries = if of < end { page.entries } else { Vec::new() };
    let next: Fields = (shard, inner, ended || shard >= end);
    let next = codec::decode(&codec::encode(&next)).map_err(|_| Der::MISC)?;
    Ok(Page { entries, next })
}

/// Behind a key of a shard.
pub fn behind(shard: u32, key: &[u8]) -> Result<Anchor, Der> {
    anchor_at(shard, key)
}

fn anchor_at(shard: u32, key: &[u8]) -> Result<Anchor, Der> {
    let fields: Fields = (shard, key.to_vec(), false);
    codec::decode(&codec::encode(&fields)).map_err(|_| Der::INVAL)
}

/// FNV-1a of 128 bits, which is the same in every process.
fn hash(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// Reads an anchor.
pub fn read(place: ArgumentPtr<daos_anchor_t>) -> Result<From, Der> {
    let anchor = place.get();
    let buffer = &anchor.da_buf;
    match (anchor.da_type, buffer[0]) {
        (TYPE_ZERO, _) => Ok(From::At(Anchor::START)),
        (TYPE_KEY, FORM_INLINE) => {
            let bytes = buffer.get(2..2 + usize::from(buffer[1])).ok_or(Der::INVAL)?;
            codec::decode(bytes).map(From::At).map_err(|_| Der::INVAL)
        }
        (TYPE_KEY, FORM_LONG) => {
            let number = |range: core::ops::Range<usize>| {
                buffer[range].iter().fold(0, |number, byte| (number << 8) | u128::from(*byte))
            };
            let beginning = buffer[BEGINNING].get(..usize::from(buffer[1])).ok_or(Der::INVAL)?;
            let shard = u32::try_from(number(SHARD)).map_err(|_| Der::INVAL)?;
            let key = LongKey { shard, beginning: beginning.to_vec(), hash: number(HASH) };
            Ok(match own(number(NUMBER), &key) {
                Some(anchor) => From::At(anchor),
                None => From::Behind(key),
            })
        }
        _ => Err(Der::INVAL),
    }
}

/// The continuation of a long key, if this process has written it and still has it.
fn own(number: u128, key: &LongKey) -> Option<Anchor> {
    let number = u64::try_from(number).ok()?;
    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = table.as_ref()?.anchors.get(&number)?;
    let (shard, found, _): Fields = codec::decode(bytes).ok()?;
    let is_it = shard == key.shard && hash(&found) == key.hash;
    if is_it { codec::decode(bytes).ok() } else { None }
}

/// Whether the enumeration is over.
pub fn is_end(place: ArgumentPtr<daos_anchor_t>) -> bool {
    place.get().da_type == TYPE_END
}

/// Writes an anchor.
pub fn write(place: ArgumentPtr<daos_anchor_t>, anchor: &Anchor) -> Result<(), Der> {
    let mut buffer = [0; 104];
    if !anchor.is_end() {
        let bytes = codec::encode(anchor);
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= INLINE_MAX => {
                (buffer[0], buffer[1]) = (FORM_INLINE, len);
                buffer[2..2 + bytes.len()].copy_from_slice(&bytes);
            }
            _ => write_long(&mut buffer, bytes)?,
        }
    }
    let da_type = if anchor.is_end() { TYPE_END } else { TYPE_KEY };
    place.change(|place| {
        place.da_type = da_type;
        place.da_buf = buffer;
    });
    Ok(())
}

fn write_long(buffer: &mut [u8; 104], bytes: Vec<u8>) -> Result<(), Der> {
    let (shard, key, _): Fields = codec::decode(&bytes).map_err(|_| Der::MISC)?;
    let beginning = &key[..key.len().min(BEGINNING.len())];
    buffer[0] = FORM_LONG;
    buffer[1] = u8::try_from(beginning.len()).map_err(|_| Der::MISC)?;
    buffer[SHARD].copy_from_slice(&shard.to_be_bytes());
    buffer[HASH].copy_from_slice(&hash(&key).to_be_bytes());
    buffer[NUMBER].copy_from_slice(&keep(bytes).to_be_bytes());
    buffer[BEGINNING][..beginning.len()].copy_from_slice(beginning);
    Ok(())
}

fn keep(bytes: Vec<u8>) -> u64 {
    let mut guard = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
    let table = guard.get_or_insert_default();
    table.issued += 1;
    table.anchors.insert(table.issued, bytes);
    table.order.push_back(table.issued);
    if table.order.len() > TABLE_MAX
        && let Some(oldest) = table.order.pop_front()
    {
        table.anchors.remove(&oldest);
    }
    table.issued
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::required;

    #[test]
    fn short_and_long_anchors_come_back_and_another_process_finds_the_key() {
        let mut memory =
            daos_anchor_t { da_type: 0, da_shard: 0, da_flags: 0, da_sub_anchors: 0, da_buf: [0; 104] };
        let place = required(&raw mut memory).expect("not null");
        assert_eq!(read(place), Ok(From::At(Anchor::START)));
        for inner in [vec![1; 3], vec![2; 90], vec![3; 1500]] {
            let anchor = anchor_at(7, &inner).expect("an anchor");
            write(place, &anchor).expect("written");
            assert_eq!(read(place), Ok(From::At(anchor)));
        }
        // Another process has another table: here, another key under the number.
        keep(codec::encode(&anchor_at(7, &[4; 1500]).expect("an anchor")));
        place.change(|anchor| anchor.da_buf[NUMBER.end - 1] += 1);
        let Ok(From::Behind(key)) = read(place) else { panic!("it has to be found") };
        assert_eq!(key.search(), anchor_at(7, &[3; 74]));
        assert_eq!((key.is(&[3; 1499]), key.is(&[3; 1500])), (Ok(false), Ok(true)));
        assert_eq!(key.is(&[4; 1500]), Err(Der::STALE));
        place.change(|anchor| anchor.da_buf[1] = 75);
        assert_eq!(read(place), Err(Der::INVAL));
        place.change(|anchor| anchor.da_buf[0] = 9);
        assert_eq!(read(place), Err(Der::INVAL));
    }
}
