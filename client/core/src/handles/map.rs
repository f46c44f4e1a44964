//! Newer pool maps: which engines are asked for them, and when.

use core::time::Duration;
use std::rc::Rc;

use weir_proto::Rank;
use weir_proto::limits::GATHER_NS;
use weir_proto::pool::PoolMap;
use weir_runtime::Instant;

use super::Pool;
use crate::error::Result;
use crate::operation::{Answers, PAUSE, is_elsewhere};
use crate::session::Context;

/// How often a client asks for a newer pool map because a target is out of service: as often as a target looks at its device.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Longest wait for a newer pool map when a target is out of service.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for a pool query: a service that gathers figures when it is asked may gather them once more for the answer, which takes
/// no second to come.
const QUERY_LIMIT: Duration = Duration::from_nanos(2 * GATHER_NS + 1_000_000_000);

impl Context {
    /// The newest map of a pool that this context knows.
    pub(crate) fn map_of(&self, pool: &Pool) -> Rc<PoolMap> {
        self.known_map(pool.id()).unwrap_or_else(|| self.learn_map(pool.id(), pool.map()))
    }

    /// Asks for a pool map newer than `version`, unless it did less than `pause` ago. For a caller that meets a target out of
    /// service and must not wait. Returns whether there is a newer one.
    pub(crate) async fn look_for_map(&self, pool: &Pool, version: u32, pause: Duration) -> bool {
        if self.may_look_for_map(pool.id(), pause) {
            // The engine that runs the service may be away, too.
            // Boxed, since it is rare and part of every request's future.
            let _ = Box::pin(self.runtime().timeout(LOOK_LIMIT, self.look_around(pool, version))).await;
        }
        self.map_of(pool).version > version
    }

    /// Asks engines of the pool for a newer map, the one that runs the service and one more, until one has it.
    async fn look_around(&self, pool: &Pool, version: u32) {
        let map = self.map_of(pool);
        let others: Vec<Rank> = map.in_service().filter(|rank| *rank != pool.service()).collect();
        let random = usize::try_from(self.runtime().random_u64() % others.len().max(1) as u64);
        let other = random.ok().and_then(|index| others.get(index)).copied();
        let mut answers = Answers::new([Some(pool.service()), other].into_iter().flatten().map(|rank| {
            let until = self.until();
            async move { pool.ask_map(self, rank, until).await }
        }));
        while answers.next().await.is_some() {
            if self.map_of(pool).version > version {
                return;
            }
        }
    }

    /// Gets a pool map newer than `version`, or returns after a pause when there is none yet: who has said that the map is old may say
    /// something else then, long before the deadline. `rank` is the engine that has said it.
    pub(crate) async fn refresh_map(
        &self,
        pool: &Pool,
        version: u32,
        rank: Rank,
        deadline: Instant,
    ) -> Result<()> {
        let limit = (self.runtime().now() + LOOK_LIMIT).min(deadline);
        let asked = pool.ask_map(self, rank, limit).await;
        if self.map_of(pool).version > version {
            return Ok(());
        }
        // Another engine has told it so, or it is away since, or of a release that knows no such request.
        if asked.is_err() || rank != pool.service() {
            let limit = (self.runtime().now() + QUERY_LIMIT).min(deadline);
            match pool.query_until(self, limit).await {
                Err(error) if is_elsewhere(&error) && limit < deadline => {
                    let pause = PAUSE.1.min(deadline.saturating_duration_since(self.runtime().now()));
                    self.runtime().sleep(pause).await;
                    return Ok(());
                }
                answer => drop(answer?),
            }
        }
        if self.map_of(pool).version <= version && self.runtime().now() < deadline {
            self.runtime().sleep(PAUSE.0).await;
        }
        Ok(())
    }
}
