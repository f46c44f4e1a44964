//! From stored versions to the pieces of an akey's data.

use super::pieces::{ReadPiece, ReadPieces};
use crate::format::codec::Malformed;
use crate::format::size::in_memory;
use crate::format::value::{Payload, Version};
use crate::index::extents::{Stored, is_hole, paint};
use smallvec::SmallVec;
use std::rc::Rc;
use weir_proto::object::Extent;

/// How the records of a window of what is requested become data.
pub(super) struct Placing {
    pub(super) requested: Extent,
    pub(super) window: Extent,
    /// Bytes of a record.
    pub(super) size: u64,
    /// Position of the window's data.
    pub(super) at: u64,
}

impl Placing {
    /// Adds what a window shows of stored versions to what is present, and to the pieces of data.
    pub(super) fn take(
        &self,
        stored: &mut [Stored],
        mut present: Option<&mut Vec<Extent>>,
        mut pieces: Option<&mut ReadPieces>,
    ) -> Result<(), Malformed> {
        let Self { requested, window, size, at } = *self;
        let mut payloads: SmallVec<[Option<Rc<Payload>>; 1]> = SmallVec::from_elem(None, stored.len());
        for part in paint(stored, window) {
            let found = &mut stored[part.stored];
            if is_hole(&found.value) {
                continue;
            }
            if let Some(present) = &mut present {
                let joins = |last: &Extent| {
                    last.end() == part.extent.index
                        && last.index >= requested.index
                        && part.extent.index > requested.index
                };
                match present.last_mut().filter(|last| joins(last)) {
                    Some(last) => last.count += part.extent.count,
                    None => present.push(part.extent),
                }
            }
            let Some(pieces) = &mut pieces else { continue };
            let payload = match &payloads[part.stored] {
                Some(payload) => Rc::clone(payload),
                None => Rc::new(Version::into_payload(core::mem::take(&mut found.value))?),
            };
            payloads[part.stored] = Some(Rc::clone(&payload));
            pieces.push(ReadPiece {
                at: in_memory(at + (part.extent.index - window.index) * size),
                len: in_memory(part.extent.count * size),
                payload,
                from: within(part.extent, found.extent, size)?,
                extent: Some(part.extent),
            });
        }
        Ok(())
    }
}

/// Where in a version's data that of a part of it begins.
fn within(part: Extent, version: Extent, size: u64) -> Result<u64, Malformed> {
    let from = (part.index - version.index).checked_mul(size);
    from.ok_or(Malformed("an extent has more bytes than there are"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_that_no_memory_could_hold_is_malformed() {
        let version = Extent { index: 5, count: u64::MAX - 5 };
        assert_eq!(within(Extent { index: 7, count: 1 }, version, 8), Ok(16));
        assert!(within(Extent { index: u64::MAX - 1, count: 1 }, version, 8).is_err());
    }
}
