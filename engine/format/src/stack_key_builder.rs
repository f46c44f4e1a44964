//! Index keys built in one place on the stack, for look-ups that need several of the same dkey and akey.

use crate::key::ObjectKey;
use crate::key::{self, BELOW, OBJECT_LEN};
use weir_proto::{Key, ObjectId};

/// Bytes of the longest key that is built: an object, dkey and akey of some 100 bytes together, and an extent.
const LENGTH_MAX: usize = 160;

/// Bytes of the longest of what stands behind a path: kind, class, index, count and epoch of an extent.
const TAIL_MAX: usize = 2 + 3 * size_of::<u64>();

/// Bytes of the longest path.
const PATH_MAX: usize = LENGTH_MAX - TAIL_MAX;

/// A [`key::Path`] of an object, later of a dkey and an akey below it, with room for what stands behind.
#[derive(Clone, Debug)]
pub struct StackKeyBuilder {
    object: ObjectId,
    bytes: [u8; LENGTH_MAX],
    /// Bytes of the path, at most [`PATH_MAX`].
    len: usize,
}

impl StackKeyBuilder {
    /// The path of an object.
    #[must_use]
    pub fn object(place: &ObjectKey) -> Self {
        let mut bytes = [0; LENGTH_MAX];
        bytes[..OBJECT_LEN].copy_from_slice(&key::object_path(place));
        Self { object: place.2, bytes, len: OBJECT_LEN }
    }

    /// Goes on to a dkey of the object. `None`: it is too long, or none of this object.
    pub fn dkey(&mut self, dkey: &Key) -> Option<()> {
        self.descend(dkey, key::has_integer_dkeys(self.object))
    }

    /// Goes on to an akey of the dkey. `None`: it is too long, or none of this object.
    pub fn akey(&mut self, akey: &Key) -> Option<()> {
        self.descend(akey, key::has_integer_akeys(self.object))
    }

    /// Goes back up to where the path had this length.
    pub fn back_to(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// As [`key::put_key`].
    fn descend(&mut self, key: &Key, integer: bool) -> Option<()> {
        let (text, room) = (key.as_bytes(), self.bytes.get_mut(self.len..PATH_MAX)?);
        let (below, room) = room.split_first_mut()?;
        *below = BELOW;
        let len = if integer {
            *room.first_chunk_mut::<8>()? = text.try_into().ok()?;
            text.len()
        } else {
            escape(text, room)?
        };
        self.len += 1 + len;
        Some(())
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// As [`key::Path::event`].
    pub fn event(&mut self, epoch: u64) -> &[u8] {
        self.with(key::event_tail(epoch))
    }

    /// As [`key::Path::single`].
    pub fn single(&mut self, epoch: u64) -> &[u8] {
        self.with(key::single_tail(epoch))
    }

    /// As [`key::Path::extents_from`].
    pub fn extents_from(&mut self, class: u8, index: u64) -> &[u8] {
        self.with(key::extents_tail(class, index))
    }

    /// The path with a tail, for which there is always room.
    fn with<const LEN: usize>(&mut self, tail: [u8; LEN]) -> &[u8] {
        let end = self.len + LEN;
        self.bytes[self.len..end].copy_from_slice(&tail);
        &self.bytes[..end]
    }
}

/// Whether any byte of a word is zero: only there a one is borrowed from a highest bit that isn't set.
const fn has_zero_byte(word: u64) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    word.wrapping_sub(ONES) & !word & (ONES << 7) != 0
}

/// Puts an escaped text to the start of `room` and returns how long it is there; `None` when it doesn't fit.
fn escape(text: &[u8], room: &mut [u8]) -> Option<usize> {
    let (start, end) = room.split_at_mut_checked(text.len())?;
    let ((words, rest), mut has_zero) = (text.as_chunks(), false);
    let (word_places, places) = start.as_chunks_mut();
    for (to, word) in word_places.iter_mut().zip(words) {
        *to = *word;
        has_zero |= has_zero_byte(u64::from_ne_bytes(*word));
    }
    for (to, byte) in places.iter_mut().zip(rest) {
        *to = *byte;
        has_zero |= *byte == 0;
    }
    if !has_zero {
        *end.first_chunk_mut()? = [0, 0];
        return Some(text.len() + 2);
    }
    let mut len = Some(0);
    key::put_escaped(
        |piece| {
            len = len.and_then(|at: usize| {
                let end = at + piece.len();
                room.get_mut(at..end)?.copy_from_slice(piece);
                Some(end)
            });
        },
        text,
    );
    len
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Path;
    use crate::key::tests::any_key;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_those_of_paths(
            kind in 0u8..14,
            dkey in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..60),
            akey in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..60),
            (epoch, class, index) in (any::<u64>(), 0u8..32, any::<u64>()),
        ) {
            let object = ObjectId { hi: 3, lo: 4 }.with_class(kind, 1, 1);
            let dkey = any_key(&dkey, key::has_integer_dkeys(object));
            let akey = any_key(&akey, key::has_integer_akeys(object));
            let path = Path::object(1, 2, object).dkey(&dkey);
            let below = path.akey(&akey);
            let mut built = StackKeyBuilder::object(&(1, 2, object));
            let fits = built.dkey(&dkey).is_some();
            prop_assert_eq!(fits, path.as_bytes().len() + TAIL_MAX <= LENGTH_MAX);
            if !fits {
                return Ok(());
            }
            prop_assert_eq!(built.event(epoch).to_vec(), path.event(epoch).to_vec());
            let fits = built.akey(&akey).is_some();
            prop_assert_eq!(fits, below.as_bytes().len() + TAIL_MAX <= LENGTH_MAX);
            if fits {
                prop_assert_eq!(built.path(), below.as_bytes());
                prop_assert_eq!(built.event(epoch).to_vec(), below.event(epoch).to_vec());
                prop_assert_eq!(built.single(epoch).to_vec(), below.single(epoch).to_vec());
                prop_assert_eq!(built.extents_from(class, index).to_vec(), below.extents_from(class, index).to_vec());
            }
        }
    }
}
