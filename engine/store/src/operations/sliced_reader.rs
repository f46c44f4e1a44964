//! A reader of the index that works in time slices. One thread serves a target, and other requests run between two slices.

use crate::format::key::{ContainerNumber, Path};
use crate::index::existence::Existence;
use crate::index::extents::Gathering;
use crate::index::fault::{Fault, Halt};
use crate::index::tree::Tree;
use crate::state::error::FetchError;
use crate::state::paging::Still;
use crate::state::shard::Shard;
use core::cell::Cell;
use weir_proto::ContainerId;

/// Entries of the index looked at in one time slice, one behind the other: some 50 µs of work.
pub(crate) const SLICE_LOOKS: usize = 256;

/// What a key counts that is searched for and judged by its events, in entries.
pub(crate) const KEY_LOOKS: usize = 8;

/// The index as it was at one moment, asked in time slices as long as the store is open and the container that is asked about is
/// there.
pub(crate) struct SlicedReader<'a> {
    shard: &'a Shard,
    container: (ContainerId, ContainerNumber),
    still: Still,
    /// Looks that are left in this time slice.
    left: Cell<usize>,
    /// Looks that are left to the request.
    rest: Cell<usize>,
}

impl<'a> SlicedReader<'a> {
    /// From this moment on.
    pub(crate) fn new(shard: &'a Shard, container: (ContainerId, ContainerNumber)) -> Self {
        let still = Still::new(&shard.core, &shard.core.tree.borrow());
        let rest = Cell::new(shard.core.config.request_looks);
        Self { shard, container, still, left: Cell::new(SLICE_LOOKS), rest }
    }

    /// Looks that are left to the request. It may take more to get on; without any left it leaves the rest to the next one.
    pub(crate) fn rest(&self) -> usize {
        self.rest.get()
    }

    /// Entries with which a window of up to `most` begins.
    pub(crate) fn window(&self, most: usize) -> usize {
        self.rest().clamp(1, most)
    }

    /// Looks that are left in this time slice, or in the next one if these are fewer than needed. Fails when there is nothing to
    /// be asked any more.
    pub(crate) async fn left(&self, needed: usize) -> Result<usize, FetchError> {
        if self.left.get() < needed {
            let core = &self.shard.core;
            core.yield_to_io().await;
            // A store that has failed still answers; one that was closed doesn't.
            if core.is_stopped() {
                return Err(FetchError::Failed(core.failure().unwrap_or_else(|| "it was closed".to_owned())));
            }
            let (id, number) = self.container;
            if self.shard.locate(id)? != number {
                return Err(FetchError::ContainerMissing(id));
            }
            self.left.set(SLICE_LOOKS);
        }
        Ok(self.left.get())
    }

    fn take(&self, looks: usize) {
        self.left.set(self.left.get().saturating_sub(looks));
        self.rest.set(self.rest.get().saturating_sub(looks));
    }

    /// The answer of a question that takes up to `looks`, at most [`SLICE_LOOKS`].
    pub(crate) async fn ask<T>(
        &self,
        looks: usize,
        mut question: impl FnMut(&Tree) -> Result<T, Fault>,
    ) -> Result<T, FetchError> {
        self.left(looks).await?;
        self.take(looks);
        self.still.ask(|tree| Ok::<_, Halt<FetchError>>(question(tree)?)).await
    }

    /// Takes a search for what a range shows to its end.
    pub(crate) async fn gather(
        &self,
        gathering: &mut Gathering,
        akey: &Path,
        existence: Existence,
        epoch: u64,
    ) -> Result<(), FetchError> {
        loop {
            let most = self.left(1).await?;
            let step = self.still.ask(|tree| {
                let mut left = most;
                let has_ended = gathering.step(tree, akey, existence, epoch, &mut left)?;
                Ok::<_, Halt<FetchError>>((has_ended, left))
            });
            let (has_ended, left) = step.await?;
            self.take(most - left);
            if has_ended {
                return Ok(());
            }
        }
    }
}
