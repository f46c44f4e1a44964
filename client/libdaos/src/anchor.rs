//! Anchors of enumerations, in the caller's 120 bytes.
//!
//! Layout of `da_buf`: a form byte, a length byte, and the continuation; one that is longer than the room stands in a
//! table of this library under the number that is in the buffer instead.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use weir_client::Anchor;
use weir_proto::{Der, codec};

use crate::boundary::Place;
use crate::types::daos_anchor_t;

const TYPE_ZERO: u16 = 0;
const TYPE_KEY: u16 = 2;
const TYPE_END: u16 = 3;

const FORM_INLINE: u8 = 1;
const FORM_TABLE: u8 = 2;

/// Bytes of a continuation that fit the caller's structure.
const INLINE_MAX: usize = 102;

/// Continuations kept in the table: what has not been used for this many newer ones is forgotten.
const TABLE_MAX: usize = 4096;

#[derive(Default)]
struct Table {
    anchors: BTreeMap<u64, Vec<u8>>,
    order: VecDeque<u64>,
    issued: u64,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Reads an anchor.
pub fn read(place: Place<daos_anchor_t>) -> Result<Anchor, Der> {
    let anchor = place.get();
    match anchor.da_type {
        TYPE_ZERO => Ok(Anchor::START),
        TYPE_KEY => {
            let buffer = &anchor.da_buf;
            let bytes = match buffer[0] {
                FORM_INLINE => {
                    buffer.get(2..2 + usize::from(buffer[1])).map(<[u8]>::to_vec).ok_or(Der::INVAL)?
                }
                FORM_TABLE => {
                    let number =
                        buffer[2..10].iter().fold(0, |number, byte| (number << 8) | u64::from(*byte));
                    let table = TABLE.lock().unwrap_or_else(PoisonError::into_inner);
                    let found = table.as_ref().and_then(|table| table.anchors.get(&number).cloned());
                    found.ok_or(Der::STALE)?
                }
                _ => return Err(Der::INVAL),
            };
            codec::decode(&bytes).map_err(|_| Der::INVAL)
        }
        _ => Err(Der::INVAL),
    }
}

/// Whether the enumeration is over.
pub fn is_end(place: Place<daos_anchor_t>) -> bool {
    place.get().da_type == TYPE_END
}

/// Writes an anchor.
pub fn write(place: Place<daos_anchor_t>, anchor: &Anchor) {
    let mut buffer = [0; 104];
    if !anchor.is_end() {
        let bytes = codec::encode(anchor);
        match u8::try_from(bytes.len()) {
            Ok(len) if bytes.len() <= INLINE_MAX => {
                (buffer[0], buffer[1]) = (FORM_INLINE, len);
                buffer[2..2 + bytes.len()].copy_from_slice(&bytes);
            }
            _ => {
                buffer[0] = FORM_TABLE;
                buffer[2..10].copy_from_slice(&keep(bytes).to_be_bytes());
            }
        }
    }
    let da_type = if anchor.is_end() { TYPE_END } else { TYPE_KEY };
    place.change(|place| {
        place.da_type = da_type;
        place.da_buf = buffer;
    });
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

    fn anchor_of(shard: u32, inner: &[u8]) -> Anchor {
        codec::decode(&codec::encode(&(shard, inner.to_vec(), false))).expect("the fields of an anchor")
    }

    #[test]
    fn short_and_long_anchors_come_back() {
        let mut memory =
            daos_anchor_t { da_type: 0, da_shard: 0, da_flags: 0, da_sub_anchors: 0, da_buf: [0; 104] };
        let place = required(&raw mut memory).expect("not null");
        assert_eq!(read(place), Ok(Anchor::START));
        for inner in [vec![1; 3], vec![2; 90], vec![3; 1500]] {
            let anchor = anchor_of(7, &inner);
            write(place, &anchor);
            assert_eq!(read(place), Ok(anchor));
        }
        place.change(|anchor| anchor.da_buf[0] = 9);
        assert_eq!(read(place), Err(Der::INVAL));
    }
}
