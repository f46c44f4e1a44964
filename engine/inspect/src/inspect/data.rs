//! Data extents against their checksums.

use super::finding::Findings;
use super::{Inspector, read};
use weir_format::blocks::Run;
use weir_format::codec::crc32c;
use weir_format::record::Records;
use weir_format::size::in_memory;
use weir_format::value::Blocks;
use weir_media::BLOCK;
use weir_store::offline::READS_MAX;

/// A piece of a value that isn't what was stored.
pub(super) struct BadPiece {
    /// First byte on the device.
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) reason: String,
    pub(super) is_unreadable: bool,
}

/// What was compared of a value.
#[derive(Default)]
pub(super) struct Compared {
    pub(super) pieces: u64,
    pub(super) bad: Vec<BadPiece>,
    /// First byte on the device of a last block that isn't zero behind the value's end.
    pub(super) tail: Option<u64>,
}

/// Where byte `at` of a value is on the device.
fn place_of(inspector: &Inspector, runs: &[Run], at: u64) -> u64 {
    let mut start = 0;
    for run in runs {
        if at < start + run.bytes() {
            return inspector.layout().data(run.block) + (at - start);
        }
        start += run.bytes();
    }
    0
}

/// Reads all of a value's blocks and compares each piece with its checksum. The runs lie inside the region.
pub(super) async fn compare(inspector: &Inspector, blocks: &Blocks) -> Compared {
    let mut compared = Compared::default();
    let mut bytes = Vec::new();
    let mut unreadable: Vec<(u64, u64, String)> = Vec::new();
    for run in &blocks.runs {
        let (start, len) = (bytes.len() as u64, run.bytes());
        let wanted = in_memory(len);
        match read(&inspector.device, inspector.layout().data(run.block), wanted).await {
            Ok(buffer) => bytes.extend_from_slice(&buffer),
            Err(reason) => {
                bytes.resize(bytes.len() + wanted, 0);
                unreadable.push((start, start + len, reason));
            }
        }
    }
    let len = in_memory(blocks.len()).min(bytes.len());
    let (value, tail) = bytes.split_at(len);
    for (start, piece, checksum) in blocks.pieces(value) {
        compared.pieces += 1;
        let failed =
            unreadable.iter().find(|(from, to, _)| start < *to && start + piece.len() as u64 > *from);
        let (reason, is_unreadable) = match failed {
            Some((_, _, reason)) => (reason.clone(), true),
            None if checksum == Some(crc32c(piece)) => continue,
            None => ("it does not match its checksum".to_owned(), false),
        };
        let (offset, len) = (place_of(inspector, &blocks.runs, start), piece.len() as u64);
        compared.bad.push(BadPiece { offset, len, reason, is_unreadable });
    }
    if unreadable.is_empty() && tail.iter().any(|byte| *byte != 0) {
        compared.tail = Some(
            place_of(inspector, &blocks.runs, blocks.len().saturating_sub(1)) / BLOCK as u64 * BLOCK as u64,
        );
    }
    compared
}

/// Whether runs lie inside the data region.
pub(super) fn are_inside(inspector: &Inspector, runs: &[Run]) -> bool {
    runs.iter().all(|run| run.block.checked_add(run.count).is_some_and(|end| end <= inspector.data_blocks()))
}

/// Whether the data extents that the records of the last batch leave behind are what they say. Notes what can't be read.
pub(super) async fn is_intact(inspector: &Inspector, records: &Records, findings: &mut Findings) -> bool {
    for blocks in records.blocks_left() {
        if !are_inside(inspector, &blocks.runs) {
            return false;
        }
        let bad = compare_again(inspector, &blocks).await;
        for piece in bad.iter().filter(|piece| piece.is_unreadable) {
            let reason = format!("the last batch of the log refers to it: {}", piece.reason);
            findings.note("data", piece.offset, piece.len, reason);
        }
        if !bad.is_empty() {
            return false;
        }
    }
    true
}

/// The bad pieces of a value, which is read as often as an open does where the device refuses it.
async fn compare_again(inspector: &Inspector, blocks: &Blocks) -> Vec<BadPiece> {
    let mut bad = compare(inspector, blocks).await.bad;
    for _ in 1..READS_MAX {
        if bad.iter().any(|piece| piece.is_unreadable) {
            bad = compare(inspector, blocks).await.bad;
        }
    }
    bad
}
