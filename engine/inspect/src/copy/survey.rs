//! A look at all of the index before anything is written: what there is, how much room it takes, which entries belong together.

use super::failure::CopyError;
use super::judge::{Fate, Known};
use super::loss::{CopyEvents, CopyProgress, CopyStage};
use crate::inspect::{Entries, Findings, Inspector, Lost, Met};
use weir_format::Layout;
use weir_format::entry::{Entry, TransactionPart};
use weir_format::key::TransactionKey;
use weir_format::key::{self, TransactionTail};
use weir_format::node::PageRef;
use weir_format::record::Change;
use weir_format::usage::Usage;
use weir_format::value::Version;
use weir_media::BLOCK;
use weir_store::offline::{Transactions, reserve_blocks};

/// Most bytes of what an engine has in memory as long as it runs: what the whole index may take by itself.
const RESIDENT_BYTES_MAX: u64 = 1 << 30;

/// What an entry takes in memory beside key and value.
const RESIDENT_ENTRY: u64 = 128;

/// Most bytes of the entries of one transaction. Those of its values in blocks take the most of it: 64 KiB of operations describe
/// some ten thousand, of a few hundred bytes each.
const TRANSACTION_BYTES_MAX: usize = 64 << 20;

/// Entries between two notices of how far it is.
const NOTICE_ENTRIES: u64 = 4096;

/// Sizes beyond this aren't thought about: no device comes near.
const SIZE_MAX: u64 = 1 << 60;

/// What a store holds.
#[derive(Debug, Default)]
pub struct Survey {
    /// Entries of the index that can be copied.
    pub entries: u64,
    /// Bytes of the blocks that their data takes.
    pub data: u64,
    /// Bytes of the target that its pools have.
    pub pools: u64,
    entry_bytes: u64,
    resident: u64,
    pub(super) known: Known,
    /// Newest epoch of any change.
    pub(super) newest: u64,
    /// Newest time of decisions that were forgotten before the checkpoint, and whether some were since.
    pub(super) forgotten: u64,
    pub(super) forgets: bool,
    /// Nodes that can't be read and may have more than entries of objects: where each begins, in the order of their keys.
    pub(super) lost: Vec<(Vec<u8>, PageRef)>,
    /// How the log of the copy is to be laid out.
    log_bytes: Option<u64>,
}

/// The entries of one transaction, which stand one behind the other.
#[derive(Default)]
struct Gathered {
    place: Option<TransactionKey>,
    table: Transactions,
    bytes: usize,
    /// Whether there are operations or versions.
    is_prepared: bool,
    is_malformed: bool,
}

impl Gathered {
    fn add(&mut self, key: &[u8], value: &[u8], is_decision: bool) {
        self.bytes += key.len() + value.len();
        self.is_prepared |= !is_decision;
        self.is_malformed |= self.bytes.max(self.table.bytes()) > TRANSACTION_BYTES_MAX
            || (!self.is_malformed && self.table.follow(key, Some(value)).is_err());
        if self.is_malformed {
            self.table = Transactions::default();
        }
    }

    /// Whether its prepared part can't be what a store has left.
    fn is_unfit(&self, known: &Known) -> bool {
        let Some(place) = self.place.filter(|_| self.is_prepared) else { return false };
        // A container that is being destroyed loses them one by one.
        let goes = known.catalog.is_going(place.0, place.1);
        self.is_malformed || !goes && self.table.misfits().next().is_some()
    }
}

impl Survey {
    /// Takes in an entry that will be copied, or maybe not, if its transaction is unfit.
    fn count(&mut self, entry: &Entry, key: &[u8], value: &[u8]) {
        let runs =
            if key::is_version(key) { Version::runs(value).unwrap_or_default() } else { <_>::default() };
        let blocks = runs.iter().fold(0, |sum, run| u64::saturating_add(sum, run.count));
        // What it is was just decoded.
        let usage = Usage::of_entry(key, value, blocks).unwrap_or_default();
        self.entries += 1;
        self.data = self.data.saturating_add(usage.data());
        self.entry_bytes += usage.entries;
        self.known.catalog.count(key, Usage::default(), usage);
        if !matches!(entry, Entry::Object { .. }) {
            self.resident += (key.len() + value.len()) as u64 + RESIDENT_ENTRY;
        }
    }

    fn close(&mut self) {
        let catalog = &self.known.catalog;
        let share = |pool: &weir_store::offline::Pool| {
            if pool.destroying { pool.used().total() } else { pool.size }
        };
        self.pools = catalog.pools.values().map(share).fold(0, u64::saturating_add);
    }

    /// Most bytes that data and index take.
    fn used(&self) -> u64 {
        Usage { blocks: self.data / BLOCK as u64, entries: self.entry_bytes, reserved: 0 }.total()
    }

    fn fits(&self, layout: &Layout) -> bool {
        let (block, reserve) = (BLOCK as u64, reserve_blocks(layout.data_blocks));
        let kept = |reserve: u64| layout.data_blocks.saturating_sub(reserve).saturating_mul(block);
        // Data doesn't go to the reserve. Of the index, deletes and transactions may have taken some of it.
        self.pools.max(self.data) <= kept(reserve) && self.used() <= kept(reserve / 2)
    }

    /// How the log of the copy is laid out: as the one that was copied, if somebody has chosen that.
    pub(super) const fn log_bytes(&self) -> Option<u64> {
        self.log_bytes
    }

    /// The smallest device that has room for the copy.
    #[must_use]
    pub fn size_min(&self) -> u64 {
        let fits = |size: u64| Layout::plan(size, self.log_bytes).is_ok_and(|layout| self.fits(&layout));
        let (mut small, mut large) = (0, SIZE_MAX);
        while large - small > BLOCK as u64 {
            let middle = small + (large - small) / 2;
            if fits(middle) { large = middle } else { small = middle }
        }
        large.next_multiple_of(BLOCK as u64)
    }

    /// Whether a device of this size has room for the copy.
    ///
    /// # Errors
    /// When it has not.
    pub fn check_room(&self, device: &str, size: u64) -> Result<(), CopyError> {
        if Layout::plan(size, self.log_bytes).is_ok_and(|layout| self.fits(&layout)) {
            return Ok(());
        }
        let (pools, used, needed) = (self.pools, self.used(), self.size_min());
        Err(CopyError::TooSmall { device: device.to_owned(), size, pools, used, needed })
    }
}

impl Inspector {
    /// The log's length, unless a device of this size has that by itself.
    fn chosen_log(&self) -> Option<u64> {
        let layout = self.layout();
        let usual = Layout::plan(layout.size, None).map(|usual| usual.log_len);
        (usual != Ok(layout.log_len)).then_some(layout.log_len)
    }

    /// The newest epoch that checkpoint and log tell of, and whether the log forgets decisions.
    async fn read_clocks(&self) -> (u64, bool) {
        let (mut newest, mut forgets) = (self.checkpoint().map_or(0, |header| header.newest), false);
        let mut follow = |_: &Self, _: &crate::inspect::Found, change: Change, _: &mut Findings| match &change
        {
            Change::Put { key, .. } => newest = newest.max(key::epoch_of(key).unwrap_or(0)),
            Change::Remove { key } => {
                forgets |= key.first() == Some(&key::TRANSACTION)
                    && matches!(key::transaction_from(key), Ok((_, TransactionTail::Decision)));
            }
        };
        self.read_changes(&mut Findings::default(), &mut follow).await;
        (newest, forgets)
    }

    /// Reads all of the index, and the log behind the checkpoint, to know what a copy takes. Nothing of the data is read.
    ///
    /// # Errors
    /// When there is no index, or what is there can't be a store's.
    pub async fn survey(&self, events: &mut dyn CopyEvents) -> Result<Survey, CopyError> {
        let name = || self.device().name().to_owned();
        let Some(checkpoint) = self.checkpoint().copied() else {
            return Err(CopyError::NoIndex { device: name() });
        };
        let (newest, forgets) = self.read_clocks().await;
        let (forgotten, log_bytes) = (checkpoint.forgotten, self.chosen_log());
        let mut survey = Survey { newest, forgotten, forgets, log_bytes, ..Survey::default() };
        // What is wrong is told of when it is copied.
        let mut findings = Findings::default();
        let mut overlay = self.read_log(&mut findings).await.1;
        self.check_answers(findings.damages + findings.notes > 0).await?;
        let mut entries = Entries::new(self, &mut overlay, &[], None).await;
        let mut gathered = Gathered::default();
        let mut met = 0;
        while let Some(next) = entries.next(&mut findings).await {
            met += 1;
            if met % NOTICE_ENTRIES == 1 {
                let entries_total = checkpoint.entries.max(met);
                let (stage, bytes, bytes_total) = (CopyStage::Survey, 0, 0);
                let progress = CopyProgress { stage, entries: met, entries_total, bytes, bytes_total };
                if events.progress(&progress).is_break() {
                    return Err(CopyError::Stopped);
                }
                self.check_answers(false).await?;
            }
            let (key, value) = match next {
                Met::Entry { key, value, .. } => (key, value),
                Met::Lost(lost) => {
                    self.check_answers(true).await?;
                    survey.note_lost(lost);
                    continue;
                }
            };
            let Fate::Copy(entry) = survey.known.judge(&key, &value) else { continue };
            // Well-formed entries are followed without an error.
            let _ = survey.known.catalog.follow(&key, Some(&value));
            survey.count(&entry, &key, &value);
            if let Entry::Transaction { pool, container, id, part } = &entry {
                survey.gather(&mut gathered, (*pool, *container, *id));
                gathered.add(&key, &value, matches!(part, TransactionPart::Decision { .. }));
            }
            if survey.resident > RESIDENT_BYTES_MAX {
                break;
            }
        }
        survey.finish_gathering(&gathered);
        if survey.resident > RESIDENT_BYTES_MAX {
            return Err(CopyError::Crowded { device: name(), limit: RESIDENT_BYTES_MAX });
        }
        survey.close();
        Ok(survey)
    }
}

/// Whether there may be anything beside entries of objects below a node.
pub(super) fn is_decisive(lost: &Lost) -> bool {
    let is_objects = |bound: &[u8]| bound.first() == Some(&key::OBJECT);
    !(is_objects(&lost.low) && lost.high.as_deref().is_some_and(is_objects))
}

impl Survey {
    /// A node can't be read.
    fn note_lost(&mut self, lost: Lost) {
        if is_decisive(&lost) {
            self.resident += lost.low.len() as u64 + RESIDENT_ENTRY;
            self.lost.push((lost.low, lost.place));
        }
    }

    /// Begins with another transaction, if this is one.
    fn gather(&mut self, gathered: &mut Gathered, place: TransactionKey) {
        if gathered.place != Some(place) {
            self.finish_gathering(gathered);
            *gathered = Gathered { place: Some(place), ..Gathered::default() };
        }
    }

    fn finish_gathering(&mut self, gathered: &Gathered) {
        if gathered.is_unfit(&self.known) {
            self.known.unfit.extend(gathered.place);
        } else {
            // Spelt out, operations take far more than their entries.
            self.resident += gathered.table.bytes() as u64;
        }
    }
}
