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

/// Consecutive entries of the index that one time slice looks at: some 50 µs of work.
pub(crate) const SLICE_LOOKS: usize = 256;

/// Looks that a key counts as, which is searched for and whose events are read.
pub(crate) const KEY_LOOKS: usize = 8;

/// A snapshot of the index that is queried in time slices, as long as the store is open and the container exists.
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
    /// Of the present state.
    pub(crate) fn new(shard: &'a Shard, container: (ContainerId, ContainerNumber)) -> Self {
        let still = Still::new(&shard.core, &shard.core.tree.borrow());
        let rest = Cell::new(shard.core.config.request_looks);
        Self { shard, container, still, left: Cell::new(SLICE_LOOKS), rest }
    }

    /// Looks that are left to the request. One step may take more than are left; with none left, the next request continues.
    pub(crate) fn rest(&self) -> usize {
        self.rest.get()
    }

    /// Entries with which a window of up to `most` begins.
    pub(crate) fn window(&self, most: usize) -> usize {
        self.rest().clamp(1, most)
    }

    /// Looks that are left in this time slice, or in the next one if these are fewer than needed. Fails when store or container
    /// are gone.
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

    /// The answer of a query that takes up to `looks`, at most [`SLICE_LOOKS`].
    pub(crate) async fn ask<T>(
        &self,
        looks: usize,
        mut question: impl FnMut(&Tree) -> Result<T, Fault>,
    ) -> Result<T, FetchError> {
        self.left(looks).await?;
        self.take(looks);
        self.still.ask(|tree| Ok::<_, Halt<FetchError>>(question(tree)?)).await
    }

    /// Completes a search for the versions that are visible in a range.
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
