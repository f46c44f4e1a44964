//! Sorted entries of one node in compact form: one heap of bytes, a table of positions, a common prefix.

/// Bytes that an entry takes beyond its key suffix and value: two lengths in the heap and a position. On the device
/// it takes at most as much: three varints below 2^14.
const ENTRY_OVERHEAD: usize = 6;

/// Bytes before suffix and value in the heap: their two lengths.
const LENGTHS: usize = 4;

/// Sorted key-value entries.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    /// What all keys begin with; stored once.
    prefix: Vec<u8>,
    /// Position of each entry in the heap, in key order.
    positions: Vec<u32>,
    /// Entries: length of the suffix, length of the value (16 bits each), suffix, value.
    heap: Vec<u8>,
    /// Bytes of the heap that no entry uses.
    dead: usize,
}

fn common_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A length as the heap stores it. Keys and values are bounded far below 2^16 by `ENTRY_MAX`.
fn short(len: usize) -> [u8; 2] {
    debug_assert!(u16::try_from(len).is_ok(), "an entry of {len} bytes");
    u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes()
}

impl Packed {
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// Upper bound of the bytes that the entries take on the device.
    pub(crate) fn size(&self) -> usize {
        self.prefix.len() + self.heap.len() - self.dead + self.positions.len() * (ENTRY_OVERHEAD - LENGTHS)
    }

    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    fn parts(&self, index: usize) -> (usize, usize, usize) {
        let at = self.positions[index] as usize;
        let lengths: [u8; LENGTHS] = self.heap[at..at + LENGTHS].try_into().unwrap_or_default();
        let [suffix, value] = [[lengths[0], lengths[1]], [lengths[2], lengths[3]]];
        (at + LENGTHS, usize::from(u16::from_le_bytes(suffix)), usize::from(u16::from_le_bytes(value)))
    }

    /// The key of an entry without the prefix.
    pub(crate) fn suffix(&self, index: usize) -> &[u8] {
        let (at, suffix, _) = self.parts(index);
        &self.heap[at..at + suffix]
    }

    pub(crate) fn value(&self, index: usize) -> &[u8] {
        let (at, suffix, value) = self.parts(index);
        &self.heap[at + suffix..at + suffix + value]
    }

    /// Puts the whole key of an entry into `key`.
    pub(crate) fn copy_key(&self, index: usize, key: &mut Vec<u8>) {
        key.clear();
        key.extend_from_slice(&self.prefix);
        key.extend_from_slice(self.suffix(index));
    }

    pub(crate) fn key(&self, index: usize) -> Vec<u8> {
        let mut key = Vec::new();
        self.copy_key(index, &mut key);
        key
    }

    /// Where a key is (`Ok`) or would be inserted (`Err`).
    pub(crate) fn search(&self, key: &[u8]) -> Result<usize, usize> {
        match key.strip_prefix(self.prefix.as_slice()) {
            Some(suffix) => {
                let (mut low, mut high) = (0, self.positions.len());
                while low < high {
                    let middle = usize::midpoint(low, high);
                    match self.suffix(middle).cmp(suffix) {
                        core::cmp::Ordering::Equal => return Ok(middle),
                        core::cmp::Ordering::Less => low = middle + 1,
                        core::cmp::Ordering::Greater => high = middle,
                    }
                }
                Err(low)
            }
            None if key < self.prefix.as_slice() => Err(0),
            None => Err(self.positions.len()),
        }
    }

    fn append(&mut self, suffix: &[u8], value: &[u8]) -> u32 {
        let position = u32::try_from(self.heap.len()).unwrap_or(u32::MAX);
        let needed = LENGTHS + suffix.len() + value.len();
        if self.heap.capacity() - self.heap.len() < needed {
            // Grow by an eighth: nodes are many, and doubling would waste a third of the index memory.
            self.heap.reserve_exact(needed.max(self.heap.len() / 8));
        }
        self.heap.extend_from_slice(&short(suffix.len()));
        self.heap.extend_from_slice(&short(value.len()));
        self.heap.extend_from_slice(suffix);
        self.heap.extend_from_slice(value);
        position
    }

    /// Inserts an entry at the place that [`Packed::search`] gave.
    pub(crate) fn insert(&mut self, index: usize, key: &[u8], value: &[u8]) {
        if self.positions.is_empty() {
            *self = Self::default();
        }
        let shared = common_len(&self.prefix, key);
        if shared < self.prefix.len() {
            self.rebuild(shared);
        }
        let suffix = &key[self.prefix.len()..];
        let position = self.append(suffix, value);
        self.positions.insert(index, position);
    }

    /// Appends an entry behind all others.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        self.insert(self.positions.len(), key, value);
    }

    /// Replaces the value of an entry.
    pub(crate) fn replace(&mut self, index: usize, value: &[u8]) {
        let (at, suffix, old) = self.parts(index);
        if old == value.len() {
            self.heap[at + suffix..at + suffix + old].copy_from_slice(value);
            return;
        }
        let suffix = self.heap[at..at + suffix].to_vec();
        self.dead += LENGTHS + suffix.len() + old;
        self.positions[index] = self.append(&suffix, value);
        self.compact();
    }

    pub(crate) fn remove(&mut self, index: usize) {
        let (_, suffix, value) = self.parts(index);
        self.dead += LENGTHS + suffix + value;
        self.positions.remove(index);
        self.compact();
    }

    /// Drops dead bytes once they are the larger part.
    fn compact(&mut self) {
        if self.dead * 2 > self.heap.len() {
            self.rebuild(self.prefix.len());
        }
    }

    /// Lays the entries out anew with a prefix of this length, which must be shared by all keys.
    fn rebuild(&mut self, prefix_len: usize) {
        *self = self.copy_range(0..self.positions.len(), prefix_len);
    }

    fn copy_range(&self, range: core::ops::Range<usize>, prefix_len: usize) -> Self {
        let mut copy = Self::default();
        if range.is_empty() {
            return copy;
        }
        let mut key = Vec::new();
        self.copy_key(range.start, &mut key);
        key.truncate(prefix_len);
        copy.prefix.clone_from(&key);
        copy.positions.reserve_exact(range.len());
        for index in range {
            self.copy_key(index, &mut key);
            let position = copy.append(&key[prefix_len..], self.value(index));
            copy.positions.push(position);
        }
        copy
    }

    /// A copy of some entries, with the longest prefix they share.
    pub(crate) fn range(&self, range: core::ops::Range<usize>) -> Self {
        if range.is_empty() {
            return Self::default();
        }
        let (first, last) = (self.suffix(range.start), self.suffix(range.end - 1));
        let shared = self.prefix.len() + if range.len() > 1 { common_len(first, last) } else { 0 };
        self.copy_range(range, shared)
    }

    /// Where to split so that both halves take about the same bytes: at least one entry on each side.
    pub(crate) fn middle(&self) -> usize {
        let half = self.size() / 2;
        let mut sum = self.prefix.len();
        for index in 0..self.positions.len() {
            let (_, suffix, value) = self.parts(index);
            sum += ENTRY_OVERHEAD + suffix + value;
            if sum > half {
                return index.clamp(1, self.positions.len().saturating_sub(1).max(1));
            }
        }
        self.positions.len().saturating_sub(1)
    }

    /// Heap memory in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.prefix.capacity() + self.heap.capacity() + self.positions.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_common_prefix_is_stored_once_and_given_up_when_a_key_differs() {
        let mut packed = Packed::default();
        for key in [b"weir/a", b"weir/b", b"weir/c"] {
            packed.push(key, b"1");
        }
        let mut tight = packed.range(0..3);
        assert_eq!(tight.prefix(), b"weir/");
        assert!(tight.size() < packed.size());
        let at = tight.search(b"wax").expect_err("not there");
        assert_eq!(at, 0);
        tight.insert(at, b"wax", b"2");
        assert_eq!(tight.prefix(), b"w");
        assert_eq!(tight.search(b"weir/b"), Ok(2));
        assert_eq!(tight.search(b"x"), Err(4));
    }

    proptest! {
        #[test]
        fn behaves_like_a_sorted_map(steps in proptest::collection::vec(
            (proptest::collection::vec(0u8..3, 0..6), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..40))), 0..200)) {
            let mut packed = Packed::default();
            let mut model = BTreeMap::new();
            for (key, value) in steps {
                match (packed.search(&key), value) {
                    (Ok(at), Some(value)) => { packed.replace(at, &value); model.insert(key, value); }
                    (Err(at), Some(value)) => { packed.insert(at, &key, &value); model.insert(key, value); }
                    (Ok(at), None) => { packed.remove(at); model.remove(&key); }
                    (Err(_), None) => prop_assert!(!model.contains_key(&key)),
                }
                let entries: Vec<_> = (0..packed.len()).map(|at| (packed.key(at), packed.value(at).to_vec())).collect();
                prop_assert_eq!(entries, model.clone().into_iter().collect::<Vec<_>>());
            }
            if packed.len() > 1 {
                let middle = packed.middle();
                prop_assert!(middle > 0 && middle < packed.len());
                let (left, right) = (packed.range(0..middle), packed.range(middle..packed.len()));
                prop_assert_eq!(left.len() + right.len(), packed.len());
                prop_assert_eq!(left.key(0), packed.key(0));
                prop_assert_eq!(right.key(0), packed.key(middle));
            }
        }
    }
}
