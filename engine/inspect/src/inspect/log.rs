//! The log behind the checkpoint, read as a recovery does, and what it changes in the index.

use super::data::{are_inside, is_intact};
use super::finding::Findings;
use super::overlay::Overlay;
use super::report::LogReport;
use super::{Inspector, read};
use weir_format::blocks::Runs;
use weir_format::entry::{Entry, TransactionPart};
use weir_format::record::{Change, Records};
use weir_format::ring::{Flipped, Ring, farthest, flipped, flipped_len};
use weir_format::size::in_memory;
use weir_format::value::Payload;
use weir_format::{
    BATCH_HEADER, BATCH_MAX, Batch, BatchKind, CHECKPOINT_BLOCKS, Checkpoint, batch_header, probe_batch,
    seal_batch,
};
use weir_media::BLOCK;
use weir_store::offline::{READS_MAX, UNREADABLE_MAX};

/// Is given each change of the log with the batch that it stands in.
pub(crate) type Each<'a> = &'a mut dyn FnMut(&Inspector, &Found, Change, &mut Findings);

/// A batch with its records.
pub(crate) struct Found {
    pub(crate) batch: Batch,
    /// First byte on the device.
    pub(crate) offset: u64,
    pub(crate) records: Records,
    /// Whether something is missing before it.
    is_behind_gap: bool,
}

/// What can't be read of the log.
struct Unreadable {
    /// First byte on the device.
    offset: u64,
    len: u64,
    reason: String,
}

impl Unreadable {
    /// Where the log goes on, or may.
    fn damage(self, findings: &mut Findings) {
        findings.damage("log", self.offset, self.len, self.reason);
    }

    /// Behind its end, where nothing acknowledged is known to stand.
    fn note(self, findings: &mut Findings) {
        findings.note("log", self.offset, self.len, format!("behind its end: {}", self.reason));
    }
}

/// Reads the log from a checkpoint on.
pub(super) struct LogWalk<'a> {
    inspector: &'a Inspector,
    ring: Ring,
    incarnation: u64,
    newest_incarnation: u64,
    /// Batches of lower numbers were stable when the checkpoint header was written.
    stable: u64,
    /// Something was damaged before the present position.
    is_behind_gap: bool,
    pub(super) report: LogReport,
}

impl<'a> LogWalk<'a> {
    /// `None` when the checkpoint's position is outside the log.
    pub(super) fn new(
        inspector: &'a Inspector,
        checkpoint: &Checkpoint,
        findings: &mut Findings,
    ) -> Option<Self> {
        let layout = inspector.layout();
        let Some(ring) = Ring::of(checkpoint, layout) else {
            let (block, reason) = (BLOCK as u64, "its log position is outside the log".to_owned());
            findings.damage("checkpoint header", block, CHECKPOINT_BLOCKS * block, reason);
            return None;
        };
        let start = layout.log_offset + ring.position;
        let report = LogReport {
            capacity: ring.len,
            start,
            end: start,
            sequence: ring.sequence,
            ..LogReport::default()
        };
        let (newest_incarnation, stable) = (checkpoint.incarnation, checkpoint.stable);
        Some(Self {
            inspector,
            ring,
            incarnation: 0,
            newest_incarnation,
            stable,
            is_behind_gap: false,
            report,
        })
    }

    /// The intact batch at a position of the ring with its bytes behind the header, if it is one that is wanted by its header.
    async fn batch_at(
        &self,
        position: u64,
        is_wanted: impl Fn(&Batch) -> bool,
    ) -> Result<Option<(Batch, Vec<u8>)>, Unreadable> {
        let read = async |len| {
            let (device, offset) = (&self.inspector.device, self.inspector.layout().log_offset + position);
            read(device, offset, len).await.map_err(|reason| Unreadable { offset, len: len as u64, reason })
        };
        let header = read(BLOCK).await?;
        let Some(batch) = probe_batch(&header, self.inspector.superblock.id).filter(is_wanted) else {
            return Ok(None);
        };
        if u64::from(batch.len) > BATCH_MAX || position + batch.blocks_len() > self.ring.len {
            return Ok(None);
        }
        let bytes = read(batch.len as usize).await?;
        let intact = batch.matches(&bytes);
        Ok(intact.then(|| (batch, bytes[BATCH_HEADER..batch.len as usize].to_vec())))
    }

    /// The batch at the present position, if one goes on there. `Err`: the place can't be read.
    async fn present(&mut self, findings: &mut Findings) -> Result<Option<(Batch, Vec<u8>)>, Unreadable> {
        loop {
            let (ring, incarnations) = (self.ring, self.incarnation..=self.newest_incarnation);
            let fits = |batch: &Batch| ring.goes_on_with(batch) && incarnations.contains(&batch.incarnation);
            let mut found = self.batch_at(ring.position, fits).await;
            // What was altered on its way is whole the next time.
            for _ in 1..READS_MAX {
                if !matches!(found, Ok(None)) {
                    break;
                }
                found = self.batch_at(ring.position, fits).await;
            }
            if let Some(found) = found? {
                return Ok(Some(found));
            }
            if !self.skip_lost_wrap().await? {
                return self.turn_back(fits, findings).await;
            }
        }
    }

    /// The next batch that a recovery would take. Says at the end whether it is one. Where it isn't, because something is damaged, a
    /// recovery goes no further; the batches behind come next all the same.
    pub(super) async fn next(&mut self, findings: &mut Findings) -> Option<Found> {
        loop {
            let offset = self.inspector.layout().log_offset + self.ring.position;
            let found = match self.present(findings).await {
                Ok(found) => found,
                Err(unreadable) => {
                    unreadable.damage(findings);
                    if !self.skip_damage().await {
                        return None;
                    }
                    continue;
                }
            };
            let Some((batch, bytes)) = found else {
                let damages = findings.damages;
                self.check_end(findings).await;
                if damages == findings.damages || !self.skip_damage().await {
                    return None;
                }
                continue;
            };
            self.incarnation = batch.incarnation;
            self.ring.previous = batch.crc;
            let len = match batch.kind {
                BatchKind::Records => batch.blocks_len(),
                BatchKind::Wrap => self.ring.len - self.ring.position,
            };
            self.ring.advance(len);
            self.report.batches += 1;
            self.report.bytes += len;
            self.report.end = self.inspector.layout().log_offset + self.ring.position;
            match Records::decode(bytes) {
                Ok(records) => {
                    self.report.records += records.len() as u64;
                    self.report.changes += records.changes_len() as u64;
                    return Some(Found { batch, offset, records, is_behind_gap: self.is_behind_gap });
                }
                Err(malformed) => {
                    findings.damage("log batch", offset, batch.len.into(), malformed.0.to_owned());
                    self.is_behind_gap = true;
                }
            }
        }
    }

    /// Goes to the next intact batch behind what is damaged. Returns whether there is one.
    async fn skip_damage(&mut self) -> bool {
        let (ring, incarnations) = (self.ring, self.incarnation..=self.newest_incarnation);
        let is_later =
            |batch: &Batch| batch.sequence > ring.sequence && incarnations.contains(&batch.incarnation);
        for distance in (0..=farthest(ring, 0)).step_by(BLOCK) {
            let position = (ring.position + distance) % ring.len;
            if let Ok(Some((batch, _))) = self.batch_at(position, is_later).await {
                let Batch { sequence, previous, .. } = batch;
                self.ring = Ring { position, sequence, previous, ..ring };
                self.is_behind_gap = true;
                return true;
            }
        }
        false
    }

    /// The next batch, where one of its bits has flipped and an open turns it back.
    async fn turn_back(
        &self,
        is_wanted: impl Fn(&Batch) -> bool,
        findings: &mut Findings,
    ) -> Result<Option<(Batch, Vec<u8>)>, Unreadable> {
        let (ring, store) = (self.ring, self.inspector.superblock.id);
        let offset = self.inspector.layout().log_offset + ring.position;
        let read = async |len: u64| {
            let len = len.min(ring.len - ring.position);
            let bytes = read(&self.inspector.device, offset, in_memory(len)).await;
            bytes.map_err(|reason| Unreadable { offset, len, reason })
        };
        let begun = flipped_len(ring, store, &read(BLOCK as u64).await?);
        if begun == 0 {
            return Ok(None);
        }
        let found = flipped(ring, store, &read(begun.next_multiple_of(BLOCK as u64)).await?);
        let Some(found) = found.filter(|found| is_wanted(&found.batch)) else { return Ok(None) };
        let behind = found.ring_behind(ring);
        let was_whole = ring.sequence < self.stable
            || self.batch_at(behind.position, |batch| behind.goes_on_with(batch)).await?.is_some();
        let Some(records) = found.records().filter(|_| was_whole) else { return Ok(None) };
        let reason = format!("one bit of batch {} has flipped: an open turns it back", ring.sequence);
        findings.note("log", offset + found.byte, found.batch.len.into(), reason);
        Ok(Some((found.batch, records)))
    }

    /// The mark at the end of the ring may be missing when the batch at its start, written together with it, is there.
    async fn skip_lost_wrap(&mut self) -> Result<bool, Unreadable> {
        if self.ring.position == 0 {
            return Ok(false);
        }
        let is_next = |batch: &Batch| Some(batch.sequence) == self.ring.sequence.checked_add(1);
        let Some((next, _)) = self.batch_at(0, is_next).await? else { return Ok(false) };
        let wrap = Batch {
            kind: BatchKind::Wrap,
            sequence: self.ring.sequence,
            incarnation: next.incarnation,
            previous: self.ring.previous,
            len: u32::try_from(BATCH_HEADER).unwrap_or(0),
            crc: 0,
        };
        let crc = seal_batch(&mut batch_header(&wrap, self.inspector.superblock.id));
        if crc != next.previous {
            return Ok(false);
        }
        self.ring.previous = crc;
        let len = self.ring.len - self.ring.position;
        self.ring.advance(len);
        Ok(true)
    }

    /// Tells of a batch that would be there, in so many bytes, but for one bit: no crash leaves one behind.
    async fn note_flipped(&self, begun: u64, findings: &mut Findings) {
        let (ring, offset) = (self.ring, self.inspector.layout().log_offset + self.ring.position);
        let (device, store) = (&self.inspector.device, self.inspector.superblock.id);
        let len = begun.min(ring.len - ring.position);
        let len = in_memory(len);
        let Ok(bytes) = read(device, offset, len).await else { return };
        if let Some(Flipped { batch, byte, .. }) = flipped(ring, store, &bytes) {
            let reason =
                format!("one bit of the last batch, {}, has flipped: an open drops it", batch.sequence);
            findings.note("log batch", offset + byte, batch.len.into(), reason);
        }
    }

    /// A batch that the checkpoint header tells of, or an intact one of a higher number, behind the end means that an
    /// acknowledged one is damaged.
    async fn check_end(&self, findings: &mut Findings) {
        let layout = self.inspector.layout();
        if self.ring.sequence < self.stable {
            let reason = format!(
                "batch {} is damaged, while all before batch {} were stable: acknowledged changes are lost",
                self.ring.sequence, self.stable
            );
            findings.damage("log batch", layout.log_offset + self.ring.position, BLOCK as u64, reason);
            return;
        }
        let end = layout.log_offset + self.ring.position;
        let lacks_header = |batch: &Batch| self.ring.lacks_header_of(batch, self.newest_incarnation);
        match self.batch_at(self.ring.position, lacks_header).await {
            Ok(None) => {}
            Ok(Some((batch, _))) => {
                let reason = format!(
                    "the checkpoint header that belongs to batch {} is lost: acknowledged changes are lost",
                    batch.sequence
                );
                findings.damage("log batch", end, batch.len.into(), reason);
                return;
            }
            Err(unreadable) => {
                unreadable.damage(findings);
                return;
            }
        }
        // It was read just now.
        let first = read(&self.inspector.device, end, BLOCK).await;
        let store = self.inspector.superblock.id;
        let begun = first.map_or(0, |first| flipped_len(self.ring, store, &first));
        if !self.finds_later(begun > 0, findings).await {
            self.note_flipped(begun, findings).await;
        }
    }

    /// Looks for an intact batch of a higher number behind the end, as far as one may be; whether there is something that keeps
    /// the store from being opened. Notes what else can't be read there. `has_begun`: a batch stands at the end, whole or not.
    async fn finds_later(&self, has_begun: bool, findings: &mut Findings) -> bool {
        let (ring, layout) = (self.ring, self.inspector.layout());
        let (mut distance, mut last, mut left) = (0, farthest(ring, 0), UNREADABLE_MAX);
        while distance <= last {
            let position = (ring.position + distance) % ring.len;
            match self.batch_at(position, |batch| batch.sequence > ring.sequence).await {
                Ok(None) => {}
                Ok(Some((batch, _))) => {
                    let (end, later) = (layout.log_offset + ring.position, layout.log_offset + position);
                    let reason = format!(
                        "batch {} is damaged, while batch {} at byte {later} is intact: acknowledged changes are lost",
                        ring.sequence, batch.sequence
                    );
                    findings.damage("log batch", end, distance.max(BLOCK as u64), reason);
                    return true;
                }
                Err(unreadable) if distance == 0 || has_begun || left == 0 => {
                    unreadable.damage(findings);
                    return true;
                }
                Err(unreadable) => {
                    unreadable.note(findings);
                    left -= 1;
                    last = farthest(ring, distance);
                }
            }
            distance += BLOCK as u64;
        }
        false
    }
}

impl Inspector {
    /// Reads the whole log and returns what it changes, as a recovery would apply it.
    pub(crate) async fn read_log(&self, findings: &mut Findings) -> (LogReport, Overlay<'_>) {
        let mut overlay = Overlay::new(self);
        let mut take = |inspector: &Self, found: &Found, change: Change, findings: &mut Findings| {
            if let Change::Put { key, value } = &change
                && let Some(reason) = inspector.change_fault(key, value)
            {
                findings.damage("log batch", found.offset, found.batch.len.into(), reason.to_owned());
            }
            overlay.add(change);
        };
        let report = self.read_changes(findings, &mut take).await;
        (report, overlay)
    }

    /// Gives all changes of the log to `each`, in their order, as a recovery would apply them: without the records that the
    /// checkpoint has already, but with those that later ones undo.
    pub(crate) async fn read_changes(&self, findings: &mut Findings, each: Each<'_>) -> LogReport {
        let Some(mut walk) = self.checkpoint.as_ref().and_then(|header| LogWalk::new(self, header, findings))
        else {
            return LogReport::default();
        };
        let mut held: Option<Found> = None;
        let mut known = self.checkpoint.as_ref().map_or(0, |header| header.known);
        while let Some(found) = walk.next(findings).await {
            if found.is_behind_gap {
                // Nobody knows how many of these were in what is missing. Those that come again are followed by all that came
                // after them.
                known = 0;
            }
            if let Some(before) = held.replace(found) {
                self.lay(&before, &mut known, findings, each);
            }
        }
        let mut report = walk.report;
        if let Some(last) = held {
            // A batch that was stable isn't dropped: of its data those are told who read it.
            if last.batch.sequence < walk.stable || is_intact(self, &last.records, findings).await {
                self.lay(&last, &mut known, findings, each);
            } else {
                report.dropped = true;
                let reason = "the data that the last batch refers to isn't complete: an open drops the batch, which nothing says was acknowledged";
                findings.note("log batch", last.offset, last.batch.len.into(), reason.to_owned());
            }
        }
        report
    }

    /// Gives the changes of a batch, but for the first `known` records.
    fn lay(&self, found: &Found, known: &mut u64, findings: &mut Findings, each: Each<'_>) {
        let skipped = found.records.len().min(in_memory(*known));
        *known -= skipped as u64;
        for change in found.records.changes(skipped) {
            each(self, found, change, findings);
        }
    }

    fn change_fault(&self, key: &[u8], value: &[u8]) -> Option<&'static str> {
        let runs = match Entry::decode(key, value) {
            Ok(Entry::Object { item, .. }) => match item.payload() {
                Some(Payload::Blocks(blocks)) => blocks.runs.clone(),
                _ => Runs::new(),
            },
            Ok(Entry::Transaction { part: TransactionPart::Version { payload, .. }, .. }) => match payload {
                Payload::Blocks(blocks) => blocks.runs,
                _ => Runs::new(),
            },
            Ok(_) => Runs::new(),
            Err(malformed) => return Some(malformed.0),
        };
        (!are_inside(self, &runs)).then_some("a value refers to blocks outside the data region")
    }
}
