//! What a format writes: an index of one empty leaf, all bitmaps and the first checkpoint. And what it has left on a device
//! where it was interrupted, which is ours to overwrite.

use crate::format::bitmap::Bits;
use crate::format::blocks::Run;
use crate::format::maps_checksum;
use crate::format::node::PageRef;
use crate::format::size::in_memory;
use crate::format::{Checkpoint, Layout, ScrubPosition, checkpoint_offset, encode_map, read_superblock};
use crate::index::stored::encode_node;
use crate::index::tree::{Body, Meter, Node, Packed};
use crate::space::map::{Purpose, Space};
use crate::state::core::reserve_blocks;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::{BLOCK, Device, DmaBuf, MediaError};

/// What a device writes as a whole, or not at all.
const SECTOR: usize = 512;

/// Bytes that are read at once of what a format may have left: large enough for full bandwidth.
const LOOK_BYTES: u64 = 1 << 20;

/// The blocks of an empty store, but for the superblock: those of any identity.
pub(crate) struct Empty<'a> {
    layout: &'a Layout,
    /// Where the root of the index is.
    root: Run,
    /// Groups of the space: fewer than there is room for bitmaps of where these take the last one's blocks.
    groups: usize,
    /// Bitmaps of the groups that aren't empty.
    used: Vec<(usize, Rc<Bits>)>,
}

impl<'a> Empty<'a> {
    pub(crate) fn new(layout: &'a Layout) -> Self {
        let mut space = Space::new(layout.data_blocks, reserve_blocks(layout.data_blocks));
        let root =
            space.allocate(1, Purpose::Index, 1).expect("invariant: an empty region has a free block")[0];
        space.set_live(root);
        Self { layout, root, groups: space.groups(), used: space.freeze() }
    }

    /// Writes all of them.
    pub(crate) async fn write(&self, device: &Rc<dyn Device>, id: Uuid) -> Result<(), MediaError> {
        let maps = (0..self.groups as u64).map(|group| self.layout.map(group, 0));
        let headers = (0..2).map(|copy| checkpoint_offset(0, copy));
        for offset in core::iter::once(self.layout.data(self.root.block)).chain(maps).chain(headers) {
            let block = self.block(offset, id).expect("invariant: these are the places that a format writes");
            device.write(offset, vec![DmaBuf::copy_of(&block).into()]).await?;
        }
        Ok(())
    }

    /// The block that a format writes at this offset; `None` where it writes none.
    fn block(&self, offset: u64, id: Uuid) -> Option<Vec<u8>> {
        let Layout { map_offset, log_offset, .. } = *self.layout;
        let map = offset.checked_sub(map_offset).filter(|_| offset < log_offset).map(|at| at / BLOCK as u64);
        match map {
            Some(map) if map % 2 == 0 => Some(self.map(map / 2, id)),
            Some(_) => None,
            None if offset == self.layout.data(self.root.block) => Some(self.root(id).0),
            None => {
                let is_header = (0..2).any(|copy| offset == checkpoint_offset(0, copy));
                is_header.then(|| self.header(id).encode(id))
            }
        }
    }

    fn root(&self, id: Uuid) -> (Vec<u8>, PageRef) {
        let node = Node::new(Body::Leaf(Packed::default()), &Meter::default());
        let mut page = vec![0; BLOCK];
        let place = encode_node(&node, self.root.block, 0, id, &mut page)
            .unwrap_or_else(|_| unreachable!("an empty node fits"));
        (page, place)
    }

    fn map(&self, group: u64, id: Uuid) -> Vec<u8> {
        let used = self.used.iter().find(|(index, _)| *index as u64 == group);
        let bits = used.map(|(_, bits)| Rc::clone(bits)).unwrap_or_default();
        encode_map(group, 0, &bits, id)
    }

    fn header(&self, id: Uuid) -> Checkpoint {
        let maps = vec![(0, 0); self.groups];
        Checkpoint {
            generation: 0,
            number: 0,
            incarnation: 0,
            root: self.root(id).1,
            entries: 0,
            log_position: 0,
            log_sequence: 1,
            log_previous: 0,
            maps: maps_checksum(&maps),
            newest: 0,
            known: 0,
            scrub: ScrubPosition::default(),
            stable: 0,
            size: self.layout.size,
            forgotten: 0,
        }
    }

    /// Whether there is nothing in a block, or what an interrupted format has left there.
    fn is_left(&self, offset: u64, block: &[u8]) -> bool {
        if block.iter().all(|byte| *byte == 0) {
            return true;
        }
        if offset == Layout::copy_offset(self.layout.size) {
            return read_superblock(block).is_ok_and(|superblock| superblock.layout == *self.layout);
        }
        if offset < self.layout.map_offset {
            // One of an earlier release doesn't say the size.
            let size = self.layout.size;
            return self.block(offset, Uuid::nil()).is_some()
                && Checkpoint::decode_any(block)
                    .is_ok_and(|(header, id)| Checkpoint { size, ..header } == self.header(id));
        }
        // That had an identity of its own, of which bitmaps and nodes have the first half.
        let mut id = [0; 16];
        id[..8].copy_from_slice(&block[8..16]);
        let is_written = |(found, written): (&[u8], &[u8])| found == written || found == [0; SECTOR];
        self.block(offset, Uuid::from_bytes(id))
            .is_some_and(|written| block.chunks(SECTOR).zip(written.chunks(SECTOR)).all(is_written))
    }

    /// Offset of a byte behind the first block that isn't zero and wasn't left by an interrupted format. It is looked for as on
    /// a device without the mark of one.
    pub(crate) async fn foreign_data(&self, device: &Rc<dyn Device>) -> Result<Option<u64>, MediaError> {
        let mut at = BLOCK as u64;
        while at < self.layout.log_offset {
            let len = (self.layout.log_offset - at).min(LOOK_BYTES);
            let read = device.read(at, DmaBuf::new(in_memory(len))).await?;
            let mut blocks = (at..).step_by(BLOCK).zip(read.chunks(BLOCK));
            if let Some((offset, block)) = blocks.find(|(offset, block)| !self.is_left(*offset, block)) {
                let within = block.iter().take_while(|byte| **byte == 0).count();
                return Ok(Some(offset + within as u64));
            }
            at += len;
        }
        while let Some(found) = device.first_data(at).await? {
            at = found - found % BLOCK as u64;
            if at >= self.layout.size || !self.is_left(at, &device.read(at, DmaBuf::new(BLOCK)).await?) {
                return Ok(Some(found));
            }
            at += BLOCK as u64;
        }
        Ok(None)
    }
}
