//! A store that is written entry by entry. It has no superblock until everything is written, so that an open refuses it before.

use crate::format::blocks::{RUNS_MAX, Runs};
use crate::format::record::Change;
use crate::format::size::in_memory;
use crate::format::{
    CHECKPOINT_BLOCKS, Layout, Superblock, SuperblockFault, checkpoint_offset, read_superblock,
    unfinished_copy,
};
use crate::index::fault::Halt;
use crate::log::formatting::Formatting;
use crate::log::recover::Opening;
use crate::space::map::Purpose;
use crate::state::config::{FormatOptions, StoreConfig};
use crate::state::core::Core;
use crate::state::error::FormatError;
use crate::state::reservation::Reservation;
use crate::state::writer::{Part, Parts, Slices, take_front};
use crate::store::Store;
use core::time::Duration;
use std::rc::Rc;
use uuid::Uuid;
use weir_media::{BLOCK, Device, DmaBuf, MediaError};
use weir_runtime::{Either, Handle, race};

/// How often it is looked whether checkpoints find room while an entry waits for one.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// So many checkpoints without room for their nodes, one behind the other, and there is none.
const CHECKPOINTS_MAX: u64 = 20;

/// What a store is to be that is written entry by entry.
#[derive(Clone, Debug)]
pub struct FillOptions {
    /// Whose it is, and how its log is laid out.
    pub format: FormatOptions,
    /// How it is written. Background work is off.
    pub config: StoreConfig,
    /// Identity of the store that is copied; the device is marked with it until all is there.
    pub from: Uuid,
    /// Whether a copy that wasn't finished may be overwritten.
    pub restart: bool,
    /// Newest epoch of any change.
    pub newest: u64,
    /// Newest wall time of decisions of transactions that were forgotten, nanoseconds since 1970; 0 when none was.
    pub forgotten: u64,
}

/// A store can't be written to a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FillError {
    /// The device holds a copy of the store of this identity that wasn't finished.
    #[error("the device holds a copy of store {0} that was not finished")]
    Unfinished(Uuid),
    /// The device may not be written to.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The device doesn't take what is written.
    #[error("{0}")]
    Refused(String),
}

impl FillError {
    fn refused(reason: impl core::fmt::Display) -> Self {
        Self::Refused(reason.to_string())
    }
}

impl From<MediaError> for FillError {
    fn from(error: MediaError) -> Self {
        Self::Format(error.into())
    }
}

/// A store that is written entry by entry. Given up before its end, it leaves no store.
pub struct Filling<'a> {
    formatting: Formatting<'a>,
    superblock: Superblock,
    store: Rc<Store>,
}

impl core::fmt::Debug for Filling<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Filling").field("store", &self.store).finish_non_exhaustive()
    }
}

/// Overwrites where a copy that wasn't finished may have left checkpoint headers and a superblock: nothing that is looked for
/// by its place alone is to be found there again.
async fn wipe(device: &Rc<dyn Device>) -> Result<(), MediaError> {
    let headers = DmaBuf::new(in_memory(CHECKPOINT_BLOCKS) * BLOCK);
    device.write(checkpoint_offset(0, 0), vec![headers.into()]).await?;
    device.write(Layout::copy_offset(device.size()), vec![DmaBuf::new(BLOCK).into()]).await
}

impl<'a> Filling<'a> {
    /// Formats a device, but for its superblock. The store gets an identity of its own: by that what another copy has left on the
    /// device is told from what is there now, and so are two stores of one owner wherever they are named.
    ///
    /// # Errors
    /// When the device holds anything, or doesn't take it.
    pub async fn begin(
        rt: &Handle,
        device: &'a Rc<dyn Device>,
        options: &FillOptions,
    ) -> Result<Self, FillError> {
        let formatting = Formatting::plan(device, &options.format)?;
        let begin = device.read(0, DmaBuf::new(BLOCK)).await?;
        match read_superblock(&begin) {
            Err(SuperblockFault::UnfinishedCopy(_)) if options.restart => wipe(device).await?,
            Err(SuperblockFault::UnfinishedCopy(from)) => return Err(FillError::Unfinished(from)),
            _ => formatting.check_empty().await?,
        }
        let mark = unfinished_copy(device.size(), options.from);
        let superblock = formatting.begin(rt, &mark).await.map_err(FillError::refused)?;
        let opening = Opening { device, superblock: superblock.clone() };
        let config = StoreConfig { background: false, scrub: None, ..options.config.clone() };
        let store = Store::recover(rt, opening, config).await.map_err(FillError::refused)?;
        let core = store.core();
        core.counters.newest.set(options.newest);
        core.transactions.borrow_mut().set_forgotten(options.forgotten);
        Ok(Self { formatting, superblock, store })
    }

    /// Identity of the store.
    #[must_use]
    pub const fn id(&self) -> Uuid {
        self.superblock.id
    }

    /// Takes blocks for values of so many bytes each. `None`: there aren't as many.
    pub fn places(&self, lens: impl IntoIterator<Item = u64>) -> Option<Places> {
        let core = self.store.core_rc();
        // The pool has as much as its entries say: nothing of its share is to be kept for them.
        let mut held = Reservation::of_runs(core, 0, Runs::new());
        let mut runs = Vec::new();
        for len in lens {
            let count = len.div_ceil(BLOCK as u64);
            let found = core.space.borrow_mut().allocate(count, Purpose::Data, RUNS_MAX)?;
            held.extend(&found);
            runs.push(found);
        }
        Some(Places { core: Rc::clone(core), held, runs })
    }

    /// Waits until log and index have room.
    async fn admit(&self) -> Result<(), FillError> {
        let core = self.store.core();
        let failures = core.checkpoints.failures.get();
        loop {
            match race(core.admit(), core.rt.sleep(ROOM_LOOK)).await {
                Either::First(admitted) => return admitted.map_err(FillError::refused),
                Either::Second(()) if core.checkpoints.failures.get() < failures + CHECKPOINTS_MAX => {}
                Either::Second(()) => return Err(FillError::refused("there is no room for index nodes")),
            }
        }
    }

    /// Makes changes of the index, in one record. What they say isn't looked at.
    ///
    /// # Errors
    /// When there is no room, or the device doesn't take them.
    pub async fn put(&self, changes: &[Change]) -> Result<(), FillError> {
        self.admit().await?;
        let core = self.store.core();
        let keys = || changes.iter().map(Change::key);
        let reached = core.ask(|tree| Ok::<_, Halt<String>>(tree.reach(keys())?));
        reached.await.map_err(FillError::refused)?;
        core.commit(changes, None).map_err(FillError::refused)?;
        Ok(())
    }

    /// Writes the last checkpoint, and then the superblocks: from here on it is a store.
    ///
    /// # Errors
    /// When the device doesn't take it. Then it is none.
    pub async fn finish(self) -> Result<(), FillError> {
        self.store.close().await.map_err(FillError::refused)?;
        self.formatting.finish(&self.superblock).await.map_err(FillError::refused)
    }
}

/// Blocks for some values, which are free again when they are dropped.
pub struct Places {
    core: Rc<Core>,
    held: Reservation,
    runs: Vec<Runs>,
}

impl Places {
    /// The blocks of each value.
    #[must_use]
    pub fn runs(&self) -> &[Runs] {
        &self.runs
    }

    /// Writes the values, each of whole blocks, as many as it has here. They are stable with the first change that is put later.
    ///
    /// # Errors
    /// When the device doesn't take them.
    ///
    /// # Panics
    /// When there are more or fewer values than places.
    pub async fn write(self, values: Vec<DmaBuf>) -> Result<Written, MediaError> {
        let Self { core, held, runs } = self;
        assert_eq!(values.len(), runs.len(), "each place is for a value");
        let mut parts = Parts::new();
        for (value, runs) in values.into_iter().zip(runs) {
            let mut slices = Slices::from([value.into()]);
            for run in &runs {
                let slices = take_front(&mut slices, in_memory(run.bytes()));
                parts.push(Part { offset: core.layout.data(run.block), slices });
            }
        }
        if parts.is_empty() {
            return Ok(Written(held));
        }
        Ok(Written(core.writer.begin(&core, held, parts).end().await?))
    }
}

impl core::fmt::Debug for Places {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Places").field("runs", &self.runs).finish_non_exhaustive()
    }
}

/// Blocks of values that are on the device, which are free again when they are dropped before they are kept.
pub struct Written(Reservation);

impl Written {
    /// The entries that refer to the blocks are put.
    pub fn keep(mut self) {
        self.0.keep();
    }
}

impl core::fmt::Debug for Written {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_tuple("Written").field(&self.0.runs()).finish()
    }
}
