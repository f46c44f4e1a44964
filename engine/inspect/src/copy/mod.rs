//! Copying a store to another device: a target is rebuilt from what can still be read of the one that it was on.
//!
//! It goes entry by entry, in the order of the keys, through what an open would find. The data that an entry refers to is
//! compared with the checksums that came with it and goes to new blocks; all else of the entry stays as it is. The copy is a
//! store that is written as any other, by its own journal and checkpoints, and has no superblock until all of it is there.
//!
//! What can't be read, or doesn't match, is kept as what it is: the entry with its checksums, and blocks that don't match them.
//! So whoever reads it is told, as before, and gets neither a hole nor what was there earlier. Entries below a node of the index
//! that can't be read are missing in the copy, which is told with the range of their keys.

mod batch;
mod failure;
mod judge;
mod loss;
mod source;
mod survey;
#[cfg(test)]
mod tests;

pub use failure::CopyError;
pub use loss::{CopyEvents, CopyProgress, CopyStage, Loss, LossKind};
pub use survey::Survey;

use crate::inspect::{Entries, Finding, Findings, Inspector, Lost, Met, Severity, read};
use batch::{Batch, Carried, Item, carry, reserve};
use judge::{Fate, Whose, kind_name};
use source::{Bad, Source};
use std::collections::VecDeque;
use std::rc::Rc;
use survey::is_decisive;
use uuid::Uuid;
use weir_format::bounds::describe;
use weir_format::codec::crc32c;
use weir_format::entry::{Entry, TransactionPart};
use weir_format::key;
use weir_format::node::{ENTRY_MAX, PageRef};
use weir_format::record::Change;
use weir_format::value::{Payload, Version};
use weir_media::{BLOCK, Device, MediaError};
use weir_proto::object::Extent;
use weir_runtime::{Handle, JoinHandle};
use weir_store::offline::{FillError, FillOptions, Filling};
use weir_store::{FormatOptions, StoreConfig};

/// Batches whose data is on its way: one is read while another one is written, with some to spare.
const BATCHES_MAX: usize = 4;

/// What findings call a batch of the log.
const BATCH: &str = "log batch";

/// How a store is copied.
#[derive(Clone, Debug)]
pub struct CopyOptions {
    /// Whether a copy that wasn't finished may be overwritten.
    pub restart: bool,
    /// How the copy is written. Background work isn't done.
    pub config: StoreConfig,
}

/// What became of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Identity of the store that was copied.
    pub from: Uuid,
    /// Identity of the copy.
    pub id: Uuid,
    /// Entries that the copy has, but for the counters of what containers use.
    pub entries: u64,
    /// Bytes of data that they refer to.
    pub data: u64,
    /// Places in these where something can't be read, or doesn't match its checksum.
    pub damaged_places: u64,
    /// Bytes among these that can't be read, or don't match their checksums.
    pub damaged: u64,
    /// Nodes of the index that can't be read: nobody knows how many entries they had.
    pub lost_nodes: u64,
    /// Entries that were left out, because they make no sense or belong to nobody.
    pub left_out: u64,
    /// What was lost, in places; all were told one by one.
    pub losses: u64,
    /// What else is wrong with the device that was copied, and isn't with the copy; the first thousand.
    pub mended: Vec<Finding>,
}

impl Copied {
    /// Whether everything is there.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.losses == 0
    }
}

/// A batch on its way, which is given up with whoever waits for it.
struct Flight(JoinHandle<Result<Carried, MediaError>>);

impl Drop for Flight {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A copy under way.
struct Run<'a> {
    rt: &'a Handle,
    inspector: &'a Inspector,
    survey: &'a Survey,
    source: Rc<Source>,
    /// The device that the copy goes to.
    to: &'a Rc<dyn Device>,
    target: Filling<'a>,
    events: &'a mut dyn CopyEvents,
    copied: Copied,
    batch: Batch,
    flights: VecDeque<Flight>,
    /// How many of the nodes have been met that the survey couldn't read, and that may have more than entries of objects.
    lost: usize,
    /// Entries that belong to nobody, as long as they are the same one's: how many, and where the first is.
    orphans: Option<(Whose, u64, (u64, u64))>,
}

impl Inspector {
    /// Fails when the device doesn't answer any more: what it doesn't give then isn't lost. `is_doubtful`: something couldn't be
    /// read just now, so that what could be before is read once more.
    async fn check_answers(&self, is_doubtful: bool) -> Result<(), CopyError> {
        let device = || self.device().name().to_owned();
        if let Some(reason) = self.device().fault() {
            return Err(CopyError::Source { device: device(), reason });
        }
        if let Some(offset) = self.readable().filter(|_| is_doubtful)
            && let Err(reason) = read(self.device(), offset, BLOCK).await
        {
            return Err(CopyError::Source { device: device(), reason });
        }
        Ok(())
    }

    /// Copies the store to a device, which has to be empty, or to hold a copy that wasn't finished. Ends when the copy is closed, so
    /// that an engine of the same owner opens it at once.
    ///
    /// # Errors
    /// When the device can't take it, or the one that is copied doesn't answer any more. What is damaged is no error: `events` is
    /// told of each loss.
    pub async fn copy(
        &self,
        rt: &Handle,
        survey: &Survey,
        to: &Rc<dyn Device>,
        options: &CopyOptions,
        events: &mut dyn CopyEvents,
    ) -> Result<Copied, CopyError> {
        let mut run = Run::begin(self, rt, survey, to, options, events).await?;
        run.all().await?;
        run.notice(CopyStage::End)?;
        run.finish().await
    }
}

/// Why a copy to a device isn't finished.
fn refused(device: &Rc<dyn Device>, error: FillError) -> CopyError {
    let device = device.name().to_owned();
    match error {
        FillError::Unfinished(from) => CopyError::UnfinishedCopy { device, from },
        FillError::Format(error) => CopyError::Format(error),
        FillError::Refused(reason) => CopyError::Target { device, reason },
    }
}

impl<'a> Run<'a> {
    async fn begin(
        inspector: &'a Inspector,
        rt: &'a Handle,
        survey: &'a Survey,
        to: &'a Rc<dyn Device>,
        options: &CopyOptions,
        events: &'a mut dyn CopyEvents,
    ) -> Result<Self, CopyError> {
        survey.check_room(to.name(), to.size())?;
        let from = inspector.superblock();
        // Which decisions those were isn't looked for one by one: that later ones may be forgotten, too, is right as well.
        let forgotten = if survey.forgets { survey.forgotten.max(rt.wall_ns()) } else { survey.forgotten };
        let fill = FillOptions {
            format: FormatOptions { owner: from.owner.clone(), log_bytes: survey.log_bytes() },
            config: StoreConfig { background: false, scrub: None, cache_bytes: 0, ..options.config.clone() },
            from: from.id,
            restart: options.restart,
            newest: survey.newest,
            forgotten,
        };
        let target = Filling::begin(rt, to, &fill).await.map_err(|error| refused(to, error))?;
        let source = Source {
            device: Rc::clone(inspector.device()),
            layout: *inspector.layout(),
            blocks: inspector.data_blocks(),
        };
        let copied = Copied { from: from.id, id: target.id(), ..Copied::default() };
        Ok(Self {
            rt,
            inspector,
            survey,
            source: Rc::new(source),
            to,
            target,
            events,
            copied,
            batch: Batch::default(),
            flights: VecDeque::new(),
            lost: 0,
            orphans: None,
        })
    }

    /// Makes a store of the copy.
    async fn finish(self) -> Result<Copied, CopyError> {
        let Self { to, target, copied, .. } = self;
        target.finish().await.map_err(|error| refused(to, error))?;
        Ok(copied)
    }

    fn failed(&self, reason: impl core::fmt::Display) -> CopyError {
        refused(self.to, FillError::Refused(reason.to_string()))
    }
}

impl Run<'_> {
    fn notice(&mut self, stage: CopyStage) -> Result<(), CopyError> {
        let (entries_total, bytes_total) = (self.survey.entries, self.survey.data);
        let (entries, bytes) = (self.copied.entries, self.copied.data.min(bytes_total));
        let progress = CopyProgress { stage, entries, entries_total, bytes, bytes_total };
        if self.events.progress(&progress).is_break() { Err(CopyError::Stopped) } else { Ok(()) }
    }

    fn lose(&mut self, loss: Loss) -> Result<(), CopyError> {
        self.copied.losses += 1;
        if self.events.loss(loss).is_break() { Err(CopyError::Stopped) } else { Ok(()) }
    }

    /// Where an entry is: a node, or the log.
    fn place(&self, node: Option<PageRef>) -> (u64, u64) {
        let layout = self.inspector.layout();
        node.map_or((layout.log_offset, layout.log_len), |node| (layout.data(node.block), node.len.into()))
    }

    async fn all(&mut self) -> Result<(), CopyError> {
        let inspector = self.inspector;
        self.copied.mended.clone_from(&inspector.findings().list);
        let mut findings = Findings::default();
        let mut overlay = inspector.read_log(&mut findings).await.1;
        inspector.check_answers(findings.damages + findings.notes > 0).await?;
        self.tell_of_log(core::mem::take(&mut findings))?;
        let mut entries = Entries::new(inspector, &mut overlay, &[], None).await;
        while let Some(met) = entries.next(&mut findings).await {
            match met {
                Met::Entry { key, value, node } => {
                    self.check_found(&key)?;
                    self.entry(key, value, node)?;
                }
                Met::Lost(lost) => self.node(lost).await?,
            }
            if self.batch.is_full() {
                self.dispatch().await?;
            }
        }
        self.end_orphans()?;
        self.dispatch().await?;
        while self.land().await? {}
        inspector.check_answers(self.copied.losses > 0).await
    }

    /// What depends on entries of a node that the survey couldn't read was judged without them.
    fn check_found(&self, key: &[u8]) -> Result<(), CopyError> {
        match self.survey.lost.get(self.lost) {
            Some((low, place)) if low.as_slice() <= key => {
                Err(self.changed(*place, "can be read now, and could not be before"))
            }
            _ => Ok(()),
        }
    }

    fn changed(&self, place: PageRef, how: &str) -> CopyError {
        let (offset, _) = self.place(Some(place));
        let reason = format!("the index node at byte {offset} {how}");
        CopyError::Changed { device: self.inspector.device().name().to_owned(), reason }
    }

    /// What is damaged of the log, or dropped of it by an open, is missing; the rest is as an open would have it.
    fn tell_of_log(&mut self, findings: Findings) -> Result<(), CopyError> {
        // Those that its list had no room for are counted.
        let listed = findings.list.iter().filter(|one| one.severity == Severity::Damage).count() as u64;
        self.copied.losses += findings.damages - listed;
        for Finding { severity, what, offset, len, subject, reason } in findings.list {
            // Nothing tells whether a batch that is dropped was acknowledged.
            if severity == Severity::Damage || what == BATCH {
                let loss = Loss::new(LossKind::Entries, what, (offset, len), reason);
                self.lose(Loss { subject, ..loss })?;
            } else {
                self.copied.mended.push(Finding { severity, what, offset, len, subject, reason });
            }
        }
        Ok(())
    }

    /// A node of the index is lost.
    async fn node(&mut self, lost: Lost) -> Result<(), CopyError> {
        self.inspector.check_answers(true).await?;
        if is_decisive(&lost) {
            if self.survey.lost.get(self.lost).is_none_or(|(_, place)| *place != lost.place) {
                return Err(self.changed(lost.place, "could be read before, and can not be now"));
            }
            self.lost += 1;
        }
        self.copied.lost_nodes += 1;
        let Lost { place, low, high, reason } = lost;
        let told = Loss::left_out("index node", self.place(Some(place)), &reason);
        self.lose(Loss { subject: Some(describe(&low, high.as_deref())), ..told })
    }

    fn entry(&mut self, key: Vec<u8>, value: Vec<u8>, node: Option<PageRef>) -> Result<(), CopyError> {
        let place = self.place(node);
        let entry = match self.survey.known.judge(&key, &value) {
            Fate::Copy(entry) => entry,
            Fate::Counted => return Ok(()),
            Fate::Orphan(whose) => return self.orphan(whose, place),
            Fate::Malformed(reason) => return self.leave(&key, &value, place, reason),
            Fate::Unfit => {
                let reason = "something of its transaction is missing, so that nobody could commit it";
                return self.leave(&key, &value, place, reason);
            }
        };
        self.end_orphans()?;
        let payload = match entry {
            Entry::Object { item, .. } => item.payload().cloned(),
            Entry::Transaction { part: TransactionPart::Version { payload, .. }, .. } => Some(payload),
            _ => None,
        };
        let mut data = None;
        match payload {
            Some(Payload::Inline(inline))
                if inline.checksum.is_some_and(|sum| sum != crc32c(&inline.bytes)) =>
            {
                let bad = Bad {
                    range: 0..inline.bytes.len() as u64,
                    reason: "it does not match its checksum".to_owned(),
                    is_unreadable: false,
                };
                self.tell_of_data(&key, &value, &bad, place)?;
            }
            Some(Payload::Blocks(blocks)) => {
                // It was decoded just now.
                let record_size = Version::shape(&value).map_or(0, |shape| shape.record_size);
                data = Some((record_size, blocks));
            }
            _ => {}
        }
        self.batch.push(Item { key, value, data });
        Ok(())
    }

    /// Leaves an entry out.
    fn leave(&mut self, key: &[u8], value: &[u8], place: (u64, u64), reason: &str) -> Result<(), CopyError> {
        self.copied.left_out += 1;
        let mut loss =
            Loss::left_out("index entry", place, reason).of_entry(&self.survey.known.catalog, key, value);
        if loss.pool.is_none() {
            loss.subject = Some(describe(key, Some(&key::after(key))));
        }
        self.lose(loss)
    }

    /// Leaves an entry out whose pool or container isn't there.
    fn orphan(&mut self, whose: Whose, place: (u64, u64)) -> Result<(), CopyError> {
        self.copied.left_out += 1;
        match &mut self.orphans {
            Some((last, count, _)) if *last == whose => *count += 1,
            _ => {
                self.end_orphans()?;
                self.orphans = Some((whose, 1, place));
            }
        }
        Ok(())
    }

    fn end_orphans(&mut self) -> Result<(), CopyError> {
        let Some(((kind, pool, container), count, place)) = self.orphans.take() else { return Ok(()) };
        let loss = Loss::left_out("index entry", place, "its pool or container does not exist");
        let subject =
            format!("{count} {} of pool {pool} container {container}, from here on", kind_name(kind));
        self.lose(Loss { subject: Some(subject), ..loss })
    }

    /// Sends the batch on its way.
    async fn dispatch(&mut self) -> Result<(), CopyError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        while self.flights.len() >= BATCHES_MAX && self.land().await? {}
        let batch = core::mem::take(&mut self.batch);
        let places = reserve(&self.target, &batch).ok_or_else(|| self.failed("there is no room for data"))?;
        let carried = carry(Rc::clone(&self.source), batch, places);
        self.flights.push_back(Flight(self.rt.spawn(carried)));
        Ok(())
    }

    /// Takes in the oldest batch. Returns whether there was one.
    async fn land(&mut self) -> Result<bool, CopyError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(false) };
        let carried = (&mut flight.0).await.map_err(|_| self.failed("it was closed"))?;
        let Carried { items, bad, data, held } = carried.map_err(|error| self.failed(error))?;
        let is_doubtful = bad.iter().any(|(_, bad)| bad.iter().any(|bad| bad.is_unreadable));
        self.inspector.check_answers(is_doubtful).await?;
        for (number, bad) in bad {
            let Item { key, value, data, .. } = &items[number].0;
            for bad in bad {
                let offset = data
                    .as_ref()
                    .and_then(|(_, blocks)| blocks.offset_of(bad.range.start, self.inspector.layout()));
                let place = (offset.unwrap_or(0), bad.range.end - bad.range.start);
                self.tell_of_data(key, value, &bad, place)?;
            }
        }
        self.copied.data += data;
        let mut changes = Vec::with_capacity(items.len());
        for (Item { key, value: before, .. }, value) in items {
            // Its blocks have larger numbers, or are more runs.
            if key.len() + value.len() > ENTRY_MAX {
                self.leave(&key, &before, self.place(None), "it is larger in the copy than an entry may be")?;
            } else {
                self.copied.entries += 1;
                changes.push(Change::Put { key, value });
            }
        }
        self.target.put(&changes).await.map_err(|error| refused(self.to, error))?;
        held.keep();
        self.notice(CopyStage::Copy)?;
        Ok(true)
    }

    /// Data is damaged. The entry stays, with its checksums.
    fn tell_of_data(
        &mut self,
        key: &[u8],
        value: &[u8],
        bad: &Bad,
        place: (u64, u64),
    ) -> Result<(), CopyError> {
        let (start, len) = (bad.range.start, bad.range.end - bad.range.start);
        self.copied.damaged += len;
        self.copied.damaged_places += 1;
        let loss = Loss::new(LossKind::Data, "data", place, bad.reason.clone());
        let mut loss = loss.of_entry(&self.survey.known.catalog, key, value);
        let record_size = Version::shape(value).map_or(0, |shape| u64::from(shape.record_size));
        match &mut loss.records {
            Some(records) if record_size > 0 => {
                let (first, behind) = (start / record_size, (start + len).div_ceil(record_size));
                *records = Extent { index: records.index.saturating_add(first), count: behind - first };
            }
            _ => loss.bytes = Some(Extent { index: start, count: len }),
        }
        self.lose(loss)
    }
}
