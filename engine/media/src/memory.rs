//! Bytes in memory behind the device trait.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError, check_transfer};
use core::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Sparse content of a device: a block that was never written reads as zeros and takes no memory. Clones share the
/// blocks that neither has written since.
#[derive(Clone, Default)]
pub(crate) struct Content {
    blocks: BTreeMap<u64, Rc<[u8]>>,
}

impl Content {
    /// Calls `each` with the block number, the range within the block and the position within the transfer.
    fn for_parts(offset: u64, len: usize, mut each: impl FnMut(u64, core::ops::Range<usize>, usize)) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = usize::try_from(at % BLOCK as u64).unwrap_or(0);
            let part = (BLOCK - within).min(len - done);
            each(at / BLOCK as u64, within..within + part, done);
            done += part;
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        Self::for_parts(offset, into.len(), |block, range, at| {
            let target = &mut into[at..at + range.len()];
            match self.blocks.get(&block) {
                Some(bytes) => target.copy_from_slice(&bytes[range]),
                None => target.fill(0),
            }
        });
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        Self::for_parts(offset, data.len(), |block, range, at| {
            let bytes = self.blocks.entry(block).or_insert_with(|| vec![0; BLOCK].into());
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
        self.blocks.iter().find_map(|(block, bytes)| {
            let at = bytes.iter().position(|byte| *byte != 0)?;
            Some(block * BLOCK as u64 + at as u64)
        })
    }

    /// Forgets what lies behind `size`.
    pub(crate) fn truncate(&mut self, size: u64) {
        drop(self.blocks.split_off(&(size / BLOCK as u64)));
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
        Self { content: Rc::default(), size, stats: Rc::default() }
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
    fn content_keeps_unaligned_bytes_across_blocks() {
        let mut content = Content::default();
        assert_eq!(content.first_data(), None);
        content.write(BLOCK as u64 - 2, b"abcd");
        let mut bytes = [9; 6];
        content.read(BLOCK as u64 - 3, &mut bytes);
        assert_eq!(&bytes, b"\0abcd\0");
        assert_eq!(content.first_data(), Some(BLOCK as u64 - 2));
        content.truncate(BLOCK as u64);
        content.read(BLOCK as u64 - 3, &mut bytes);
        assert_eq!(&bytes, b"\0ab\0\0\0");
    }
}
