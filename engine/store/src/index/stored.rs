//! Pages of the data region and of the space map: index nodes and bitmaps.

use crate::format::codec::{Decoder, Encode, Malformed, crc32c_without};
use crate::format::node::{BRANCH, CHILD_BYTES, ENTRY_MAX, LEAF, NODE_BYTES, NODE_HEADER, NODE_MAX, PageRef};
use crate::format::page::CRC_AT;
use crate::format::page::seal;
use crate::format::page::store_mark;
use crate::index::tree::{Body, Node, Packed};
use uuid::Uuid;

const NODE_MAGIC: u32 = u32::from_le_bytes(*b"WNOD");

/// Writes a node for its place into `page`, whose length is that of the place, and returns where it is. `children`
/// have their places.
pub(crate) fn encode_node(
    node: &Node,
    block: u64,
    generation: u64,
    store: Uuid,
    page: &mut [u8],
) -> Result<PageRef, Malformed> {
    let (kind, entries) = match &node.body {
        Body::Leaf(entries) => (LEAF, entries),
        Body::Branch(keys, _) => (BRANCH, keys),
    };
    if page.len() > NODE_BYTES {
        // A store with such a node couldn't be opened. Without this checkpoint it opens from the one before.
        return Err(Malformed("a node is larger than nodes may be"));
    }
    let mut out = Vec::with_capacity(page.len());
    out.put_u32(NODE_MAGIC);
    out.put_u32(0);
    out.put_u64(store_mark(store));
    out.put_u64(generation);
    out.put_u64(block);
    out.put_u8(kind);
    out.extend_from_slice(&[0; 3]);
    out.put_u32(u32::try_from(entries.len()).expect("a node has at most NODE_MAX bytes"));
    out.resize(NODE_HEADER, 0);
    let (mut previous, mut key) = (Vec::new(), Vec::new());
    for at in 0..entries.len() {
        entries.copy_key(at, &mut key);
        let shared = previous.iter().zip(&key).take_while(|(a, b)| a == b).count();
        out.put_varint(shared as u64);
        out.put_varint((key.len() - shared) as u64);
        out.extend_from_slice(&key[shared..]);
        match &node.body {
            Body::Leaf(_) => {
                out.put_varint(entries.value(at).len() as u64);
                out.extend_from_slice(entries.value(at));
            }
            Body::Branch(_, children) => {
                let child = children[at].page().ok_or(Malformed("a child has no place"))?;
                out.put_u64(child.block);
                out.put_u32(child.len);
                out.put_u32(child.crc);
            }
        }
        core::mem::swap(&mut previous, &mut key);
    }
    if out.len() > page.len() {
        return Err(Malformed("a node is larger than its place"));
    }
    page[..out.len()].copy_from_slice(&out);
    page[out.len()..].fill(0);
    let crc = seal(page);
    Ok(PageRef { block, len: u32::try_from(page.len()).expect("at most NODE_BYTES"), crc })
}

/// A node as it was stored.
#[derive(Debug)]
pub enum StoredNode {
    /// Entries.
    Leaf(Packed),
    /// The lowest key of each child, without values, and the places of the children.
    Branch(Packed, Vec<PageRef>),
}

/// Reads a node from the page at its place. Nothing of a page is used before its checksum is right, and entries are
/// checked all the same: a bug elsewhere must not become a panic here.
///
/// # Errors
/// When the page does not follow the format, or is not the node that its parent refers to.
pub fn decode_node(page: &[u8], place: PageRef, store: Uuid) -> Result<StoredNode, Malformed> {
    let mut decoder = Decoder::new(page);
    if decoder.u32()? != NODE_MAGIC {
        return Err(Malformed("it does not begin as an index node"));
    }
    let crc = decoder.u32()?;
    if crc != crc32c_without(page, CRC_AT) {
        return Err(Malformed("it does not match its checksum"));
    }
    if crc != place.crc {
        return Err(Malformed("it is not the node that its parent refers to: a write was lost"));
    }
    if decoder.u64()? != store_mark(store) {
        return Err(Malformed("it belongs to another store"));
    }
    let _generation = decoder.u64()?;
    if decoder.u64()? != place.block {
        return Err(Malformed("it belongs to another place: a write was misdirected"));
    }
    let kind = decoder.u8()?;
    decoder.bytes(3)?;
    let count = decoder.u32()? as usize;
    let mut decoder =
        Decoder::new(page.get(NODE_HEADER..).ok_or(Malformed("it is shorter than its header"))?);
    if count > NODE_BYTES {
        return Err(Malformed("it has too many entries"));
    }
    let (mut entries, mut children, mut key) = (Packed::default(), Vec::new(), Vec::new());
    for at in 0..count {
        let shared = decoder.count(key.len())?;
        let suffix_len = decoder.count(NODE_BYTES)?;
        let suffix = decoder.bytes(suffix_len)?;
        if at > 0 && suffix <= &key[shared..] {
            return Err(Malformed("its keys are out of order"));
        }
        key.truncate(shared);
        key.extend_from_slice(suffix);
        let value = if kind == BRANCH {
            children.push(PageRef { block: decoder.u64()?, len: decoder.u32()?, crc: decoder.u32()? });
            &[]
        } else {
            let len = decoder.count(NODE_BYTES)?;
            decoder.bytes(len)?
        };
        if key.len() + value.len() > ENTRY_MAX {
            return Err(Malformed("it has an entry that is larger than any may be"));
        }
        entries.push(&key, value);
    }
    let entries = entries.range(0..entries.len());
    // Memory stores only the prefix of all keys once. Keys that share more among each other could take a thousand times the page.
    if entries.size() + children.len() * CHILD_BYTES > NODE_MAX {
        return Err(Malformed("it has more than any node may"));
    }
    match kind {
        LEAF => Ok(StoredNode::Leaf(entries)),
        BRANCH if count > 0 && entries.key(0).is_empty() => Ok(StoredNode::Branch(entries, children)),
        BRANCH => Err(Malformed("it has no first child")),
        _ => Err(Malformed("it is of unknown kind")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::tree::Meter;
    use proptest::prelude::*;
    use weir_media::BLOCK;

    const STORE: Uuid = Uuid::from_u128(5 << 100);

    #[test]
    fn nodes_survive_encoding_and_are_bound_to_their_place() {
        let mut entries = Packed::default();
        for number in 0..100u32 {
            entries.push(&[b"prefix", number.to_be_bytes().as_slice()].concat(), &number.to_le_bytes());
        }
        let node = Node::new(Body::Leaf(entries.range(0..100)), &Meter::default());
        let mut page = vec![0; BLOCK];
        let place = encode_node(&node, 9, 1, STORE, &mut page).expect("it fits");
        let Ok(StoredNode::Leaf(found)) = decode_node(&page, place, STORE) else { panic!("not a leaf") };
        assert_eq!(found.len(), 100);
        assert!((0..100).all(|at| found.key(at) == entries.key(at) && found.value(at) == entries.value(at)));
        assert!(decode_node(&page, PageRef { block: 8, ..place }, STORE).is_err());
        assert!(decode_node(&page, PageRef { crc: 0, ..place }, STORE).is_err());
        assert!(decode_node(&page, place, Uuid::from_u128(6 << 100)).is_err());
        assert!(encode_node(&node, 9, 1, STORE, &mut [0; 100]).is_err());
        page[200] ^= 4;
        assert!(decode_node(&page, place, STORE).is_err());
    }

    /// A page of so many bytes at least, with so many entries, which begin behind its header.
    fn page(kind: u8, count: u32, entries: &[u8], len: usize) -> (Vec<u8>, PageRef) {
        let mut page = Vec::new();
        page.put_u32(NODE_MAGIC);
        page.put_u32(0);
        page.put_u64(store_mark(STORE));
        page.put_u64(0);
        page.put_u64(1);
        page.put_u8(kind);
        page.extend_from_slice(&[0; 3]);
        page.put_u32(count);
        page.resize(NODE_HEADER, 0);
        page.extend_from_slice(entries);
        page.resize(page.len().max(len), 0);
        let crc = seal(&mut page);
        let len = u32::try_from(page.len()).expect("small");
        (page, PageRef { block: 1, len, crc })
    }

    /// A page of a leaf with these entries, each the bytes shared with the key before, those of its own, and the value.
    fn leaf(entries: &[(usize, Vec<u8>, Vec<u8>)]) -> (Vec<u8>, PageRef) {
        let mut bytes = Vec::new();
        for (shared, suffix, value) in entries {
            bytes.put_varint(*shared as u64);
            bytes.put_varint(suffix.len() as u64);
            bytes.extend_from_slice(suffix);
            bytes.put_varint(value.len() as u64);
            bytes.extend_from_slice(value);
        }
        let (page, place) = page(LEAF, u32::try_from(entries.len()).expect("a few"), &bytes, NODE_BYTES);
        assert_eq!(page.len(), NODE_BYTES);
        (page, place)
    }

    #[test]
    fn a_node_takes_no_more_memory_than_one_that_was_written() {
        // Many long keys that have nearly all in common, behind one that has nothing of it.
        let mut entries = vec![(0, vec![1], Vec::new()), (0, vec![2; 4000], Vec::new())];
        entries.extend(
            (0..1500u16).map(|number| (3998, [&[3], &number.to_be_bytes()[..]].concat(), Vec::new())),
        );
        let (page, place) = leaf(&entries);
        assert_eq!(decode_node(&page, place, STORE).err(), Some(Malformed("it has more than any node may")));
        // Without that one they are stored together in memory, too.
        let (page, place) = leaf(&[&[(0, vec![2; 4000], Vec::new())], &entries[2..1000]].concat());
        assert!(decode_node(&page, place, STORE).is_ok());
        for (value, fits) in [(ENTRY_MAX - 7, true), (ENTRY_MAX - 6, false)] {
            let (page, place) = leaf(&[(0, vec![1; 7], vec![0; value])]);
            assert_eq!(decode_node(&page, place, STORE).is_ok(), fits);
        }
    }

    proptest! {
        #[test]
        fn any_entries_with_a_right_checksum_decode_or_fail(body in proptest::collection::vec(any::<u8>(), 0..300), kind in 0u8..3, count in 0u32..40) {
            let (page, place) = page(kind, count, &body, 0);
            let _ = decode_node(&page, place, STORE);
        }
    }
}
