//! What an administrator sets of a pool.

use super::PoolService;
use crate::error::Failed;
use crate::record::{self, NAME_SETTINGS, PoolSettings, SCOPE_SERVICE, STAYS_AS_IT_IS};
use crate::target::TargetPool;

/// Longest time for which a target that is out of the map may be waited for, in seconds: a week. Whoever wants to wait for longer takes
/// care of the engine, or has it excluded.
const REBUILD_DELAY_MAX: u32 = 7 * 24 * 60 * 60;

/// What was set of a pool, or what holds where nothing was.
pub(super) fn load(pool: &TargetPool) -> Result<PoolSettings, Failed> {
    let stored = pool.shard().attribute(SCOPE_SERVICE, NAME_SETTINGS);
    stored.map_or_else(|| Ok(PoolSettings::default()), |bytes| record::decode(pool.id(), &bytes))
}

impl PoolService {
    /// For how many seconds a target is out of the map before others take its places; `None`: the pool has no redundancy, and they
    /// never do.
    ///
    /// # Errors
    /// When the pool was destroyed.
    pub fn rebuild_delay(&self) -> Result<Option<u32>, Failed> {
        let has_copies = self.pool()?.redundancy > 0;
        Ok(has_copies.then(|| self.settings.get().rebuild_delay))
    }

    /// Has targets be out of the map for so many seconds before others take their places, those that are out, too.
    ///
    /// # Errors
    /// When the pool has no redundancy, it is too long, or it can't be stored.
    pub async fn set_rebuild_delay(&self, seconds: u32) -> Result<(), Failed> {
        let record = self.pool()?;
        let object = format!("pool {}", record.label);
        if record.redundancy == 0 {
            return Err(Failed::NotSupported { object, reason: STAYS_AS_IT_IS.to_owned() });
        }
        if seconds > REBUILD_DELAY_MAX {
            let reason =
                format!("a rebuild delay of {seconds} s is too long; use 0 to {REBUILD_DELAY_MAX} s");
            return Err(Failed::Invalid { object, reason });
        }
        let settings = PoolSettings { rebuild_delay: seconds };
        if settings != self.settings.get() {
            let stored = record::change(SCOPE_SERVICE, NAME_SETTINGS, Some(record::encode(&settings)));
            self.commit(&[stored]).await?;
            self.settings.set(settings);
            tracing::info!(
                pool = record.label,
                seconds,
                "others get the places of targets that are away for longer"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::tests::served_by;
    use weir_proto::pool::PoolTarget;
    use weir_proto::{Der, Rank, TargetIndex};

    #[test]
    fn a_delay_is_kept_and_one_that_is_too_long_or_means_nothing_is_refused() {
        for redundancy in [0, 1] {
            let targets = (0..2).map(|id| PoolTarget::serving(id, Rank(id), TargetIndex(0)));
            let (world, node, _store, service, pool) = served_by(targets.collect(), redundancy);
            world.block_on(&node, async move {
                let set =
                    async |seconds| service.set_rebuild_delay(seconds).await.map_err(|error| error.der());
                if redundancy == 0 {
                    assert_eq!(service.rebuild_delay(), Ok(None));
                    assert_eq!(set(5).await, Err(Der::NOTSUPPORTED));
                    return;
                }
                assert_eq!(service.rebuild_delay(), Ok(Some(600)));
                assert_eq!(set(REBUILD_DELAY_MAX + 1).await, Err(Der::INVAL));
                for seconds in [0, REBUILD_DELAY_MAX] {
                    assert_eq!(set(seconds).await, Ok(()));
                    assert_eq!(service.rebuild_delay(), Ok(Some(seconds)));
                    assert_eq!(load(&pool), Ok(PoolSettings { rebuild_delay: seconds }));
                }
            });
        }
    }
}
