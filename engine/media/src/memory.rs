//! Bytes in memory behind the device trait.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError, check_transfer};
use crate::external_buffer::ExternalBuffer;
use core::cell::{Cell, RefCell};
use core::ops::Deref;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_memory::Mapping;

/// Bytes of a segment of a device in memory: few look-ups for a large transfer, little to copy for a copy of the device that
/// changes.
const SEGMENT: usize = 64 * 1024;

/// Bytes of a segment of a device that is large: one in 32 transfers of a mebibyte meets the edge of one. The system gives
/// memory by huge pages as it is written, so that what isn't costs nothing.
const LARGE_SEGMENT: usize = 32 << 20;

/// Size from which a device is large: it holds a target's data, and is never copied.
const LARGE_DEVICE: u64 = 256 << 20;

/// Sparse content of a device: a segment that was never written reads as zeros and takes no memory. Clones share the
/// segments that neither has written since.
#[derive(Clone)]
pub(crate) struct Content {
    segments: BTreeMap<u64, Rc<Segment>>,
    /// Bytes of a segment, whole blocks.
    segment: usize,
}

/// What is stored of a segment; zeros lie behind it.
enum Segment {
    /// Up to the end of what was written, so that nothing is filled with zeros that is written next.
    Grown(Vec<u8>),
    /// All of a large one, on huge pages where the system gives them: a copy of a mebibyte from others takes twice as long.
    Whole(DmaBuf),
}

impl Segment {
    /// One of so many bytes before the first write to it.
    fn new(len: usize) -> Self {
        let mapped = || ExternalBuffer::new(Mapping::new(len)?).ok()?.take(len);
        let whole = if len >= LARGE_SEGMENT { mapped() } else { None };
        whole.map_or_else(|| Self::Grown(Vec::new()), Self::Whole)
    }

    /// Writes within the first `len` bytes, which are all that it will ever have.
    fn write(&mut self, at: usize, data: &[u8], len: usize) {
        let bytes = match self {
            Self::Grown(bytes) => bytes,
            Self::Whole(bytes) => return bytes[at..at + data.len()].copy_from_slice(data),
        };
        if bytes.len() < at + data.len() {
            bytes.reserve_exact(len - bytes.len());
        }
        if bytes.len() < at {
            bytes.resize(at, 0);
        }
        let (over, behind) = data.split_at(data.len().min(bytes.len() - at));
        bytes[at..at + over.len()].copy_from_slice(over);
        bytes.extend_from_slice(behind);
    }

    /// Forgets what lies behind the first `len` bytes.
    fn truncate(&mut self, len: usize) {
        match self {
            Self::Grown(bytes) => bytes.truncate(len),
            Self::Whole(bytes) => bytes[len..].fill(0),
        }
    }
}

impl Deref for Segment {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Grown(bytes) => bytes,
            Self::Whole(bytes) => bytes,
        }
    }
}

impl AsRef<[u8]> for Segment {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Clone for Segment {
    fn clone(&self) -> Self {
        let mut copy = Self::new(self.len());
        copy.write(0, self, self.len());
        copy
    }
}

impl Default for Content {
    /// In segments of a block: what is cloned often and changes little is best shared in small ones.
    fn default() -> Self {
        Self { segments: BTreeMap::new(), segment: BLOCK }
    }
}

/// Where a byte lies in its segment.
fn offset_in(at: u64, segment: usize) -> usize {
    usize::try_from(at % segment as u64).expect("invariant: less than the segment's length")
}

impl Content {
    /// Calls `each` with the number of the segment, the range within it and the position within the transfer.
    fn for_parts(
        segment: usize,
        offset: u64,
        len: usize,
        mut each: impl FnMut(u64, core::ops::Range<usize>, usize),
    ) {
        let mut done = 0;
        while done < len {
            let at = offset + done as u64;
            let within = offset_in(at, segment);
            let part = (segment - within).min(len - done);
            each(at / segment as u64, within..within + part, done);
            done += part;
        }
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        Self::for_parts(self.segment, offset, into.len(), |segment, range, at| {
            let target = &mut into[at..at + range.len()];
            match self.segments.get(&segment) {
                Some(bytes) => {
                    let known = bytes.get(range.start..range.end.min(bytes.len())).unwrap_or_default();
                    let (target, behind) = target.split_at_mut(known.len());
                    target.copy_from_slice(known);
                    behind.fill(0);
                }
                None => target.fill(0),
            }
        });
    }

    /// Bytes that are in one segment, if something was written to it; they stay as they are now.
    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        let bytes = self.segments.get(&(offset / self.segment as u64))?;
        let start = usize::try_from(offset % self.segment as u64).ok()?;
        Slice::new(Rc::clone(bytes) as Rc<dyn AsRef<[u8]>>, start..start.checked_add(len)?)
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) {
        let len = self.segment;
        Self::for_parts(len, offset, data.len(), |segment, range, at| {
            let place = self.segments.entry(segment).or_insert_with(|| Rc::new(Segment::new(len)));
            Rc::make_mut(place).write(range.start, &data[at..at + range.len()], len);
        });
    }

    pub(crate) fn flip_bit(&mut self, offset: u64, bit: u8) {
        let mut byte = [0];
        self.read(offset, &mut byte);
        byte[0] ^= 1 << (bit & 7);
        self.write(offset, &byte);
    }

    pub(crate) fn first_data(&self, from: u64) -> Option<u64> {
        let first = from / self.segment as u64;
        self.segments.range(first..).find_map(|(segment, bytes)| {
            let start = segment * self.segment as u64;
            let skipped = usize::try_from(from.saturating_sub(start)).unwrap_or(usize::MAX);
            let at = bytes.iter().skip(skipped).position(|byte| *byte != 0)?;
            Some(start + (skipped + at) as u64)
        })
    }

    /// Forgets what lies behind `size`.
    pub(crate) fn truncate(&mut self, size: u64) {
        let last = size / self.segment as u64;
        drop(self.segments.split_off(&(last + 1)));
        let within = offset_in(size, self.segment);
        if within == 0 {
            self.segments.remove(&last);
        } else if let Some(bytes) = self.segments.get_mut(&last) {
            Rc::make_mut(bytes).truncate(within);
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
        let segment = if size >= LARGE_DEVICE { LARGE_SEGMENT } else { SEGMENT };
        let content = Content { segment, ..Content::default() };
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
        // In segments as they are here.
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

    fn lend(&self, offset: u64, len: usize) -> Option<Slice> {
        self.check(offset, len).ok()?;
        let lent = self.content.borrow().lend(offset, len)?;
        self.count(|stats| {
            stats.reads += 1;
            stats.read_bytes += len as u64;
        });
        Some(lent)
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

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        Box::pin(core::future::ready(Ok(self.content.borrow().first_data(from))))
    }

    fn stats(&self) -> DeviceStats {
        self.stats.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_what_was_written_in_any_order_and_zeros_elsewhere() {
        const SIZE: usize = 300;
        let mut content = Content { segment: 64, ..Content::default() };
        let mut model = [0u8; SIZE];
        let mut seed = 7usize;
        let mut next = |below: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for step in 0..2000u32 {
            let at = next(SIZE);
            let end = at + next(SIZE - at + 1).min(90);
            let byte = (step % 255) as u8 + 1;
            if step % 100 == 99 {
                content.truncate(at as u64);
                model[at..].fill(0);
            } else {
                content.write(at as u64, &vec![byte; end - at]);
                model[at..end].fill(byte);
            }
            let from = next(SIZE);
            let mut bytes = vec![9; next(SIZE - from + 1)];
            content.read(from as u64, &mut bytes);
            assert_eq!(bytes, model[from..from + bytes.len()], "after step {step}");
            for from in [0, from] {
                let first = (from..SIZE).find(|at| model[*at] != 0);
                assert_eq!(content.first_data(from as u64), first.map(|at| at as u64), "after step {step}");
            }
        }
    }

    #[test]
    fn what_is_lent_stays_as_it_was_whatever_is_written() {
        for size in [4 * SEGMENT as u64, LARGE_DEVICE] {
            let device = MemoryDevice::new(size);
            let edge = device.content.borrow().segment as u64;
            let last = edge - BLOCK as u64;
            assert!(device.lend(last, BLOCK).is_none(), "nothing was written there");
            device.overwrite(last, &[7; 2 * BLOCK]);
            let lent = device.lend(last, BLOCK).expect("it was written");
            device.overwrite(last, &[8; BLOCK]);
            assert_eq!(*lent, [7; BLOCK]);
            assert_eq!(*device.lend(last, BLOCK).expect("it was written"), [8; BLOCK]);
            assert_eq!(device.bytes(last, 2 * BLOCK), [[8; BLOCK], [7; BLOCK]].concat());
            assert!(device.lend(last, 2 * BLOCK).is_none(), "in two segments");
            assert!(device.lend(last + 1, BLOCK).is_none(), "half a block");
            assert!(device.lend(size, BLOCK).is_none(), "behind the end");
            assert_eq!((device.stats().reads, device.stats().read_bytes), (2, 2 * BLOCK as u64));
        }
    }

    #[test]
    fn a_large_device_that_was_cut_within_a_piece_has_zeros_there_when_it_has_grown_again() {
        const BYTES: usize = 4 * BLOCK;
        let device = MemoryDevice::new(LARGE_DEVICE);
        let from = (LARGE_SEGMENT - BYTES / 2) as u64;
        device.overwrite(from, &[7; BYTES]);
        for kept in (0..=BYTES).step_by(BLOCK) {
            let grown = device.copy(from + kept as u64).copy(LARGE_DEVICE);
            let bytes = grown.bytes(from, BYTES);
            assert!(bytes[..kept].iter().all(|byte| *byte == 7), "{kept} are kept");
            assert!(bytes[kept..].iter().all(|byte| *byte == 0), "{kept} are kept");
        }
        assert_eq!(device.bytes(from, BYTES), [7; BYTES], "copies change nothing here");
    }

    #[test]
    fn content_keeps_unaligned_bytes_across_pieces_whatever_their_size() {
        for segment in [BLOCK, SEGMENT] {
            let mut content = Content { segment, ..Content::default() };
            let edge = segment as u64;
            assert_eq!(content.first_data(0), None);
            content.write(edge - 2, b"abcd");
            let mut bytes = [9; 6];
            content.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0abcd\0");
            assert_eq!(content.first_data(0), Some(edge - 2));
            let before = content.clone();
            content.write(3 * edge - 1, b"ef");
            content.truncate(edge - 1);
            assert_eq!(content.segments.len(), 1);
            content.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0a\0\0\0\0");
            before.read(edge - 3, &mut bytes);
            assert_eq!(&bytes, b"\0abcd\0");
        }
    }
}
