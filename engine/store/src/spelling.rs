//! Index keys spelt out in one place on the stack, for look-ups that need several of the same dkey and akey.

use crate::journal::ObjectKey;
use crate::key::{self, BELOW, EVENT, EXTENT};
use weir_proto::{Key, ObjectId};

/// Bytes of the longest key that is spelt out: an object, dkey and akey of some 100 bytes together, and an extent.
const LENGTH_MAX: usize = 160;

/// Bytes of the longest of what stands behind a path: kind, class, index, count and epoch of an extent.
const TAIL_MAX: usize = 2 + 3 * size_of::<u64>();

/// Bytes of an object's path: kind, numbers of pool and container, id.
const OBJECT_LEN: usize = 1 + 2 * size_of::<u32>() + 16;

/// A [`key::Path`] of an object, later of a dkey and an akey below it, with room for what stands behind.
#[derive(Clone, Debug)]
pub(crate) struct Spelling {
    object: ObjectId,
    bytes: [u8; LENGTH_MAX],
    len: usize,
}

impl Spelling {
    /// The path of an object.
    pub(crate) fn object((pool, container, object): &ObjectKey) -> Self {
        let mut bytes = [0; LENGTH_MAX];
        bytes[0] = key::OBJECT;
        bytes[1..5].copy_from_slice(&pool.to_be_bytes());
        bytes[5..9].copy_from_slice(&container.to_be_bytes());
        bytes[9..OBJECT_LEN].copy_from_slice(&object.to_bytes());
        Self { object: *object, bytes, len: OBJECT_LEN }
    }

    /// Goes on to a dkey of the object. `None`: it is too long, or none of this object.
    pub(crate) fn dkey(&mut self, dkey: &Key) -> Option<()> {
        self.put_key(dkey, key::has_integer_dkeys(self.object))
    }

    /// Goes on to an akey of the dkey. `None`: it is too long, or none of this object.
    pub(crate) fn akey(&mut self, akey: &Key) -> Option<()> {
        self.put_key(akey, key::has_integer_akeys(self.object))
    }

    /// The path.
    pub(crate) fn path(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// As [`key::Path::event`].
    pub(crate) fn event(&mut self, epoch: u64) -> &[u8] {
        self.with([EVENT], [!epoch])
    }

    /// As [`key::Path::single`].
    pub(crate) fn single(&mut self, epoch: u64) -> &[u8] {
        self.with([BELOW], [!epoch])
    }

    /// As [`key::Path::extents_from`].
    pub(crate) fn extents_from(&mut self, class: u8, index: u64) -> &[u8] {
        self.with([EXTENT, class], [index])
    }

    /// The path with a kind and a number behind it. There is always room for them.
    fn with<const KIND: usize>(&mut self, kind: [u8; KIND], [number]: [u64; 1]) -> &[u8] {
        let (at, end) = (self.len + KIND, self.len + KIND + size_of::<u64>());
        self.bytes[self.len..at].copy_from_slice(&kind);
        self.bytes[at..end].copy_from_slice(&number.to_be_bytes());
        &self.bytes[..end]
    }

    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.len + bytes.len();
        self.bytes.get_mut(self.len..end)?.copy_from_slice(bytes);
        self.len = end;
        (end + TAIL_MAX <= LENGTH_MAX).then_some(())
    }

    /// As [`Spelling::put`], of a length that needs no loop.
    fn put_array<const LEN: usize>(&mut self, bytes: [u8; LEN]) -> Option<()> {
        *self.bytes.get_mut(self.len..)?.first_chunk_mut()? = bytes;
        self.len += LEN;
        (self.len + TAIL_MAX <= LENGTH_MAX).then_some(())
    }

    fn put_key(&mut self, key: &Key, integer: bool) -> Option<()> {
        self.put_array([BELOW])?;
        let text = key.as_bytes();
        if integer {
            return self.put_array::<8>(text.try_into().ok()?);
        }
        if !text.contains(&0) {
            self.put(text)?;
            return self.put_array([0, 0]);
        }
        let mut fits = Some(());
        key::put_escaped(|bytes| fits = fits.and_then(|()| self.put(bytes)), text);
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Path;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn keys_are_spelt_as_paths_have_them(
            kind in 0u8..14,
            dkey in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..60),
            akey in proptest::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1..60),
            (epoch, class, index) in (any::<u64>(), 0u8..32, any::<u64>()),
        ) {
            let object = ObjectId { hi: 3, lo: 4 }.with_class(kind, 1, 1);
            let key = |bytes: &[u8], integer: bool| {
                if integer { Key::from_u64(u64::from(bytes[0])) } else { Key::new(bytes).expect("a short key") }
            };
            let dkey = key(&dkey, key::has_integer_dkeys(object));
            let akey = key(&akey, key::has_integer_akeys(object));
            let path = Path::object(1, 2, object).dkey(&dkey);
            let below = path.akey(&akey);
            let mut spelt = Spelling::object(&(1, 2, object));
            let fits = spelt.dkey(&dkey).is_some();
            prop_assert_eq!(fits, path.as_bytes().len() + TAIL_MAX <= LENGTH_MAX);
            if !fits {
                return Ok(());
            }
            prop_assert_eq!(spelt.event(epoch).to_vec(), path.event(epoch).to_vec());
            let fits = spelt.akey(&akey).is_some();
            prop_assert_eq!(fits, below.as_bytes().len() + TAIL_MAX <= LENGTH_MAX);
            if fits {
                prop_assert_eq!(spelt.path(), below.as_bytes());
                prop_assert_eq!(spelt.event(epoch).to_vec(), below.event(epoch).to_vec());
                prop_assert_eq!(spelt.single(epoch).to_vec(), below.single(epoch).to_vec());
                prop_assert_eq!(spelt.extents_from(class, index).to_vec(), below.extents_from(class, index).to_vec());
            }
        }
    }
}
