//! Reading the data of values: neighbours together, and around what can't be read.

use crate::inspect::read;
use core::ops::Range;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_format::Layout;
use weir_format::blocks::Run;
use weir_format::size::in_memory;
use weir_format::value::Blocks;
use weir_media::{BLOCK, Device, DmaBuf};
use weir_runtime::join_all;

/// Blocks that are read at once at most: 1 MiB, enough for full bandwidth.
const PIECE_BLOCKS: u64 = 256;

/// Reads in flight of one batch.
const READS_MAX: usize = 32;

/// How often a value is read that doesn't match its checksums: what was altered on its way does the next time.
pub(super) const LOOKS_MAX: usize = 3;

/// Why blocks are missing that weren't read.
const OUTSIDE: &str = "its blocks lie outside the device";

/// The device that is copied.
pub(super) struct Source {
    pub(super) device: Rc<dyn Device>,
    pub(super) layout: Layout,
    /// Blocks of the data region that are there.
    pub(super) blocks: u64,
}

/// Blocks one behind the other, as they were read.
struct Span {
    run: Run,
    pieces: Vec<DmaBuf>,
}

/// What was read. Blocks that couldn't be are zeros.
pub(super) struct Haul {
    /// In the order of their blocks.
    spans: Vec<Span>,
    unread: BTreeMap<u64, String>,
}

/// A part of a value that isn't what was stored.
pub(super) struct Bad {
    /// Bytes of the value: whole chunks.
    pub(super) range: Range<u64>,
    pub(super) reason: String,
    pub(super) is_unreadable: bool,
}

/// The bytes of a value, with zeros behind them up to a whole block.
pub(super) struct Content {
    pub(super) bytes: DmaBuf,
    /// By byte of the value: blocks that couldn't be read.
    unread: BTreeMap<u64, String>,
}

/// Joins runs that touch each other.
fn join(mut runs: Vec<Run>) -> Vec<Run> {
    runs.sort_unstable_by_key(|run| run.block);
    let mut joined: Vec<Run> = Vec::with_capacity(runs.len());
    for run in runs {
        match joined.last_mut().filter(|last| last.block + last.count >= run.block) {
            Some(last) => last.count = last.count.max(run.block + run.count - last.block),
            None => joined.push(run),
        }
    }
    joined
}

impl Source {
    /// Reads those of the runs that are on the device.
    pub(super) async fn read(&self, runs: impl Iterator<Item = Run>) -> Haul {
        let runs = runs.filter(|run| run.is_inside(self.blocks)).collect();
        let (mut spans, mut pieces) = (Vec::new(), Vec::new());
        for run in join(runs) {
            for at in (0..run.count).step_by(in_memory(PIECE_BLOCKS)) {
                let count = (run.count - at).min(PIECE_BLOCKS);
                pieces.push((spans.len(), Run { block: run.block + at, count }));
            }
            spans.push(Span { run, pieces: Vec::new() });
        }
        let mut haul = Haul { spans, unread: BTreeMap::new() };
        for part in pieces.chunks(READS_MAX) {
            let read = join_all(part.iter().map(|(_, run)| self.read_run(*run))).await;
            for ((span, _), (buffer, unread)) in part.iter().zip(read) {
                haul.spans[*span].pieces.push(buffer);
                haul.unread.extend(unread);
            }
        }
        haul
    }

    /// Reads a piece at once, or else block by block.
    async fn read_run(&self, run: Run) -> (DmaBuf, Vec<(u64, String)>) {
        let len = in_memory(run.bytes());
        if let Ok(buffer) = self.device.read(self.layout.data(run.block), DmaBuf::new(len)).await {
            return (buffer, Vec::new());
        }
        let (mut buffer, mut unread) = (DmaBuf::new(len), Vec::new());
        let blocks: Vec<u64> = (run.block..run.block + run.count).collect();
        for part in blocks.chunks(READS_MAX) {
            let all = part.iter().map(|block| read(&self.device, self.layout.data(*block), BLOCK));
            for (block, found) in part.iter().zip(join_all(all).await) {
                let at = in_memory(block - run.block) * BLOCK;
                match found {
                    Ok(bytes) => buffer[at..at + BLOCK].copy_from_slice(&bytes),
                    Err(reason) => unread.push((*block, reason)),
                }
            }
        }
        (buffer, unread)
    }

    /// The content of a value and what is bad of it: each chunk is as it was stored, or certainly doesn't match its checksum.
    pub(super) async fn content(&self, blocks: &Blocks, haul: &Haul) -> (DmaBuf, Vec<Bad>) {
        let mut content = haul.content(blocks);
        let mut bad = content.judge(blocks);
        for _ in 1..LOOKS_MAX {
            if bad.iter().all(|bad| bad.is_unreadable) {
                break;
            }
            let again = self.read(blocks.runs.iter().copied()).await.content(blocks);
            content.improve(&again, &bad);
            bad = content.judge(blocks);
        }
        (content.bytes, bad)
    }
}

impl Haul {
    fn block(&self, block: u64) -> Option<&[u8]> {
        let behind = self.spans.partition_point(|span| span.run.block <= block);
        let span = self.spans.get(behind.checked_sub(1)?)?;
        let within = block - span.run.block;
        let piece = span.pieces.get(usize::try_from(within / PIECE_BLOCKS).ok()?)?;
        let at = usize::try_from(within % PIECE_BLOCKS).ok()? * BLOCK;
        piece.get(at..at + BLOCK)
    }

    fn content(&self, blocks: &Blocks) -> Content {
        let len = in_memory(blocks.len());
        let mut content = Content { bytes: DmaBuf::new(len), unread: BTreeMap::new() };
        let all = blocks.runs.iter().flat_map(|run| run.block..run.block + run.count);
        for (at, block) in (0..).step_by(BLOCK).zip(all) {
            match (self.unread.get(&block), self.block(block)) {
                (Some(reason), _) => drop(content.unread.insert(at as u64, reason.clone())),
                (None, Some(bytes)) => content.bytes[at..at + BLOCK].copy_from_slice(bytes),
                (None, None) => drop(content.unread.insert(at as u64, OUTSIDE.to_owned())),
            }
        }
        content.bytes[len..].fill(0);
        content
    }
}

impl Content {
    /// Compares all chunks with their checksums. What couldn't be read is made not to match, should it by accident.
    fn judge(&mut self, blocks: &Blocks) -> Vec<Bad> {
        let mut bad: Vec<Bad> = Vec::new();
        for (number, range) in blocks.chunks.ranges().enumerate() {
            let first = range.start - range.start % BLOCK as u64;
            let unread = self.unread.range(first..range.end).next();
            let checksum = blocks.checksums.get(number).copied();
            let chunk = &mut self.bytes[in_memory(range.start)..in_memory(range.end)];
            let matches = checksum == Some(weir_format::codec::crc32c(chunk));
            let (reason, is_unreadable) = match unread {
                Some((_, reason)) => (reason.clone(), true),
                None if matches => continue,
                None => ("it does not match its checksum".to_owned(), false),
            };
            if let (true, Some(byte)) = (matches, chunk.first_mut()) {
                *byte ^= 0xff;
            }
            match bad.last_mut().filter(|last| last.range.end == range.start && last.reason == reason) {
                Some(last) => last.range.end = range.end,
                None => bad.push(Bad { range, reason, is_unreadable }),
            }
        }
        bad
    }

    /// Takes over the chunks among these that another look has found whole.
    fn improve(&mut self, again: &Self, bad: &[Bad]) {
        for Bad { range, .. } in bad.iter().filter(|bad| !bad.is_unreadable) {
            let first = range.start - range.start % BLOCK as u64;
            if again.unread.range(first..range.end).next().is_none() {
                let range = in_memory(range.start)..in_memory(range.end);
                self.bytes[range.clone()].copy_from_slice(&again.bytes[range]);
            }
        }
    }
}
