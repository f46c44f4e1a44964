//! The store that a copy becomes: one without a superblock until all is there, so that nobody takes it for a store before.

use super::CopyOptions;
use super::failure::CopyError;
use super::survey::Survey;
use crate::format::record::Change;
use crate::format::{
    CHECKPOINT_BLOCKS, Layout, Superblock, SuperblockFault, checkpoint_offset, read_superblock,
    unfinished_copy,
};
use crate::index::fault::Halt;
use crate::log::formatting::Formatting;
use crate::log::recover::Opening;
use crate::state::config::FormatOptions;
use crate::state::core::Core;
use crate::store::Store;
use core::time::Duration;
use std::rc::Rc;
use weir_media::{BLOCK, Device, DmaBuf, MediaError};
use weir_runtime::{Either, Handle, race};

/// How often it is looked whether checkpoints find room while an entry waits for one.
const ROOM_LOOK: Duration = Duration::from_millis(100);

/// So many checkpoints without room for their nodes, one behind the other, and there is none.
const CHECKPOINTS_MAX: u64 = 20;

/// The device that a store is copied to.
pub(super) struct Target<'a> {
    device: &'a Rc<dyn Device>,
    formatting: Formatting<'a>,
    superblock: Superblock,
    store: Rc<Store>,
}

fn failed(device: &Rc<dyn Device>, reason: &dyn core::fmt::Display) -> CopyError {
    CopyError::Target { device: device.name().to_owned(), reason: reason.to_string() }
}

/// Overwrites where a copy that wasn't finished may have left checkpoint headers and a superblock: nothing that is looked for
/// by its place alone is to be found there again.
async fn wipe(device: &Rc<dyn Device>) -> Result<(), MediaError> {
    let headers = DmaBuf::new(usize::try_from(CHECKPOINT_BLOCKS).unwrap_or(0) * BLOCK);
    device.write(checkpoint_offset(0, 0), vec![headers.into()]).await?;
    device.write(Layout::copy_offset(device.size()), vec![DmaBuf::new(BLOCK).into()]).await
}

impl<'a> Target<'a> {
    /// Formats a device, but for its superblock, as a store of the same owner. It gets an identity of its own: by that what
    /// another copy has left on the device is told from what is there now, and so are the two stores wherever they are named.
    pub(super) async fn open(
        rt: &Handle,
        device: &'a Rc<dyn Device>,
        (from, survey): (&Superblock, &Survey),
        options: &CopyOptions,
    ) -> Result<Self, CopyError> {
        survey.check_room(device.name(), device.size())?;
        let format = FormatOptions { owner: from.owner.clone(), log_bytes: survey.log_bytes() };
        let formatting = Formatting::plan(device, &format)?;
        let begin = device.read(0, DmaBuf::new(BLOCK)).await?;
        match read_superblock(&begin) {
            Err(SuperblockFault::UnfinishedCopy(_)) if options.restart => wipe(device).await?,
            Err(SuperblockFault::UnfinishedCopy(from)) => {
                return Err(CopyError::UnfinishedCopy { device: device.name().to_owned(), from });
            }
            _ => formatting.check_empty().await?,
        }
        let mark = unfinished_copy(device.size(), from.id);
        let superblock = formatting.begin(rt, &mark).await.map_err(|error| failed(device, &error))?;
        let opening = Opening { device, superblock: superblock.clone() };
        let opened = Store::recover(rt, opening, options.config.clone()).await;
        let store = opened.map_err(|error| failed(device, &error))?;
        let core = store.core();
        core.counters.newest.set(survey.newest);
        // Which decisions those were isn't looked for one by one: that later ones may be forgotten, too, is right as well.
        let forgotten = if survey.forgets { survey.forgotten.max(rt.wall_ns()) } else { survey.forgotten };
        core.transactions.borrow_mut().set_forgotten(forgotten);
        Ok(Self { device, formatting, superblock, store })
    }

    pub(super) fn core(&self) -> &Rc<Core> {
        self.store.core_rc()
    }

    pub(super) const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(super) fn failed(&self, reason: &dyn core::fmt::Display) -> CopyError {
        failed(self.device, reason)
    }

    /// Waits until log and index have room.
    async fn admit(&self) -> Result<(), CopyError> {
        let core = self.core();
        let failures = core.checkpoints.failures.get();
        loop {
            match race(core.admit(), core.rt.sleep(ROOM_LOOK)).await {
                Either::First(admitted) => return admitted.map_err(|reason| self.failed(&reason)),
                Either::Second(()) if core.checkpoints.failures.get() < failures + CHECKPOINTS_MAX => {}
                Either::Second(()) => return Err(self.failed(&"there is no room for index nodes")),
            }
        }
    }

    /// Puts entries in, in one record.
    pub(super) async fn put(&self, changes: &[Change]) -> Result<(), CopyError> {
        self.admit().await?;
        let core = self.core();
        let keys = || changes.iter().map(Change::key);
        let reached = core.ask(|tree| Ok::<_, Halt<String>>(tree.reach(keys())?));
        reached.await.map_err(|reason| self.failed(&reason))?;
        core.commit(changes, None).map_err(|error| self.failed(&error))?;
        Ok(())
    }

    /// Writes the last checkpoint, and then the superblocks: from here on it is a store.
    pub(super) async fn finish(self) -> Result<(), CopyError> {
        self.store.close().await.map_err(|error| self.failed(&error))?;
        self.formatting.finish(&self.superblock).await.map_err(|error| self.failed(&error))
    }
}
