//! The store of one target.

use crate::config::{FormatOptions, Owner, StoreConfig};
use crate::error::{FormatError, OpenError, PoolError};
use crate::shard::Shard;
use crate::stats::{PoolSummary, StoreSpace, StoreStats};
use std::rc::Rc;
use uuid::Uuid;
use weir_media::Device;
use weir_proto::PoolId;
use weir_runtime::Handle;

/// The store of one target.
pub struct Store {}

impl Store {
    /// Writes an empty store to an empty device and returns the identity it was given.
    ///
    /// # Errors
    /// When the device holds any non-zero byte, is too small, or fails.
    pub async fn format(
        rt: &Handle,
        device: &Rc<dyn Device>,
        options: &FormatOptions,
    ) -> Result<Uuid, FormatError> {
        todo!()
    }

    /// Opens a store and recovers everything that was acknowledged.
    ///
    /// # Errors
    /// See [`OpenError`]; the device is left as it was.
    pub async fn open(
        rt: &Handle,
        device: Rc<dyn Device>,
        owner: &Owner,
        config: StoreConfig,
    ) -> Result<Rc<Self>, OpenError> {
        todo!()
    }

    /// Identity given at format.
    #[must_use]
    pub fn id(&self) -> Uuid {
        todo!()
    }

    /// Creates a pool shard of `size` bytes. Creating it again with the same size succeeds.
    ///
    /// # Errors
    /// When it exists with another size or the target lacks the space.
    pub async fn create_pool(&self, pool: PoolId, size: u64) -> Result<Shard, PoolError> {
        todo!()
    }

    /// Grows or shrinks a pool's share, down to what it uses.
    ///
    /// # Errors
    /// When the pool is missing, holds more, or the target lacks the space.
    pub async fn resize_pool(&self, pool: PoolId, size: u64) -> Result<(), PoolError> {
        todo!()
    }

    /// Destroys a pool shard. Its space returns in the background. Destroying a missing pool succeeds.
    ///
    /// # Errors
    /// When the store has failed.
    pub async fn destroy_pool(&self, pool: PoolId) -> Result<(), PoolError> {
        todo!()
    }

    /// The pools, in the order of their creation.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolSummary> {
        todo!()
    }

    /// The shard of a pool.
    #[must_use]
    pub fn pool(&self, pool: PoolId) -> Option<Shard> {
        todo!()
    }

    /// Space of the whole target.
    #[must_use]
    pub fn space(&self) -> StoreSpace {
        todo!()
    }

    /// Figures for metrics.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        todo!()
    }

    /// Writes a checkpoint, so that the next open has no log to replay.
    ///
    /// # Errors
    /// When the device fails.
    pub async fn checkpoint(&self) -> Result<(), PoolError> {
        todo!()
    }

    /// Stops background work, waits for what is in flight and writes a checkpoint. Later operations fail.
    ///
    /// # Errors
    /// When the device fails; acknowledged state is safe in the log all the same.
    pub async fn close(&self) -> Result<(), PoolError> {
        todo!()
    }
}
