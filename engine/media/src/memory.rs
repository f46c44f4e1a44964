//! Bytes in memory behind the device trait.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError, check_transfer};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Bytes of a piece of a device in memory: few look-ups for a large transfer, little waste for a small one.
const PIECE: usize = 64 * 1024;

/// Sparse content of a device: a piece that was never written reads as zeros and takes no memory. Clones share the
/// pieces that neither has written since.
#[derive(Clone)]
pub(crate) struct Content {
    pieces: BTreeMap<u64, Rc<[u8]>>,
    /// Bytes of a piece, whole blocks.
    piece: usize,
}

impl Default for Content {
    /// In pieces of a block: what is cloned often and changes little is best shared in small ones.
    fn default() -> Self {
        Self { pieces: BTreeMap::new(), piece: BLOCK }
    }
}

impl Content {
    /// Calls `each` with the number of the piece, the range within it and the position within the transfer.
    fn for_parts(
        piece: usize,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, core::ops::Range<usize>, usize),
    ) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = usize::try_from(at % piece as u64).unwrap_or(0);
            let part = (piece - within).min(len - done);
            each(at / piece as u64, within..within + part, done);
            done += part;
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        Self::for_parts(self.piece, offset, into.len(), |piece, range, at| {
            let target = &mut into[at..at + range.len()];
            match self.pieces.get(&piece) {
                Some(bytes) => target.copy_from_slice(&bytes[range]),
                None => target.fill(0),
            }
        });
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let len = self.piece;
        Self::for_parts(len, offset, data.len(), |piece, range, at| {
            let bytes = self.pieces.entry(piece).or_insert_with(|| vec![0; len].into());
            Rc::make_mut(bytes)[range.clone()].copy_from_slice(&data[at..at + range.len()]);
        });
    }

    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0] ^= 1 << (bit & 7);
        self.write(offset, &byte);
    }

    pub(crate) fn first_data(&self) -> Option<u64> {
        self.pieces.iter().find_map(|(piece, bytes)| {
            let at = bytes.iter().position(|byte| *byte != 0)?;
            Some(piece * self.piece as u64 + at as u64)
        })
    }

    /// Forgets what lies behind `size`.
    pub(crate) fn truncate(&mut self, size: u64) {
        let last = size / self.piece as u64;
        drop(self.pieces.split_off(&(last + 1)));
        let within = usize::try_from(size % self.piece as u64).unwrap_or(0);
        if within == 0 {
            self.pieces.remove(&last);
        } else if let Some(bytes) = self.pieces.get_mut(&last) {
            Rc::make_mut(bytes)[within..].fill(0);
        }
    }
}

/// A device in memory: every write is stable at once, nothing ever fails. Clones share the content, so that a store
/// can be opened again on it.
#[derive(Clone)]
pub struct MemoryDevice {
    content: Rc<RefCell<Content>>,
    size: u64,
    stats: Rc<Cell<DeviceStats>>,
}

impl MemoryDevice {
    /// An empty device of `size` bytes, rounded down to whole blocks.
    #[must_use]
    pub fn new(size: u64) -> Self {
        let size = size - size % BLOCK as u64;
        let content = Content { piece: PIECE, ..Content::default() };
        Self { content: Rc::new(RefCell::new(content)), size, stats: Rc::default() }
    }

    /// Flips a bit, as rot does.
    pub fn flip_bit(&self, offset: u64, bit: u8) {
        self.content.borrow_mut().flip_bit(offset, bit);
    }

    /// Overwrites bytes at any offset, as a stray writer does.
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        self.content.borrow_mut().write(offset, bytes);
    }

    /// The bytes at any offset.
    #[must_use]
    pub fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.content.borrow().read(offset, &mut bytes);
        bytes
    }

    /// A device with a copy of the content, cut or grown to `size`.
    #[must_use]
    pub fn copy(&self, size: u64) -> Self {
        let copy = Self::new(size);
        *copy.content.borrow_mut() = self.content.borrow().clone();
        copy.content.borrow_mut().truncate(copy.size);
        copy
    }

    fn count(&self, change: impl FnOnce(&mut DeviceStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    fn check(&self, offset: u64, len: usize) -> Result<(), MediaError> {
        check_transfer(self.name(), self.size, offset, len as u64)
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, mut buffer: DmaBuf) -> IoFuture<DmaBuf> {
        let checked = self.check(offset, buffer.len());
        if checked.is_ok() {
            self.content.borrow().read(offset, &mut buffer);
            self.count(|stats| {
                stats.reads += 1;
                stats.read_bytes += buffer.len() as u64;
            });
        }
        Box::pin(core::future::ready(checked.map(|()| buffer)))
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        let len: usize = data.iter().map(|slice| slice.len()).sum();
        let checked = self.check(offset, len);
        if checked.is_ok() {
            let mut at = offset;
            for slice in &data {
                self.content.borrow_mut().write(at, slice);
                at += slice.len() as u64;
            }
            self.count(|stats| {
                stats.writes += 1;
                stats.write_bytes += len as u64;
            });
        }
        Box::pin(core::future::ready(checked))
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.write(offset, data)
    }

    fn prepare(&self, _: u64, _: u64) -> IoFuture<()> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<()> {
        self.count(|stats| stats.flushes += 1);
        Box::pin(core::future::ready(Ok(())))
    }

    fn first_data(&self) -> IoFuture<Option<u64>> {
        Box::pin(core::future::ready(Ok(self.content.borrow().first_data())))
    }

    fn stats(&self) -> DeviceStats {
        self.stats.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_keeps_unaligned_bytes_across_pieces_whatever_their_size() {
        for piece in [BLOCK, PIECE] {
            let mut content = Content { piece, ..Content::default() };
            let edge = piece as u64;
            assert_eq!(content.first_data(), None);
            content.write(edge - 2, b"abcd");
            let mut bytes = [9; 6];
            content.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0abcd\0");
            assert_eq!(content.first_data(), Some(edge - 2));
            let before = content.clone();
            content.write(3 * edge - 1, b"ef");
            content.truncate(edge - 1);
            assert_eq!(content.pieces.len(), 1);
            content.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0a\0\0\0\0");
            before.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0abcd\0");
        }
    }
}
