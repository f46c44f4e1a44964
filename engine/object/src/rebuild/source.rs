//! What a target does that has data which another one lacks.

use std::rc::Rc;
use std::time::Duration;

use weir_pool::TargetPool;
use weir_proto::history::{
    ChangeNames, EndedRequest, EndedTransactions, HistoryBegin, HistoryBegun, HistoryComparison,
    HistoryDifference, HistoryRequest, NamesRequest,
};
use weir_proto::pool::PoolMap;
use weir_proto::{Der, Key, ObjectId, PoolId, Rank, TargetIndex, opcode};
use weir_rpc::Status;

use super::Rebuild;
use super::pull::{NAMES_MAX, PAGE_MAX};
use super::shares::Shares;
use crate::admission::refusal::{self, ErrorSite};

/// How long history stays as it is after it was asked for: the time between two pages, many times.
pub(super) const HOLD: Duration = Duration::from_mins(1);

/// How long a target that is about to give data waits for decisions: within the asker's patience, and longer than what most
/// transactions take.
const DECIDED_MAX: Duration = Duration::from_secs(1);

/// How long it waits then until changes are settled: with that for decisions within the asker's patience.
const SETTLED_MAX: Duration = Duration::from_millis(800);

impl Rebuild {
    /// Answers targets that lack data from now on.
    pub(super) fn serve_sources(self: &Rc<Self>) {
        macro_rules! serve {
            ($opcode:ident, |$rebuild:ident, $from:pat_param, $request:ident: $kind:ty| $body:expr) => {{
                let weak = Rc::downgrade(self);
                let handler = move |$from: Rank, $request: $kind| {
                    let rebuild = weak.upgrade();
                    async move {
                        let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                        let $rebuild = rebuild.ok_or_else(stopping).map_err(refusal::between_engines)?;
                        $body.map_err(refusal::between_engines)
                    }
                };
                self.admission.pools.engines().serve(opcode::$opcode, handler);
            }};
        }
        serve!(TARGET_HISTORY_BEGIN, |rebuild, _, asked: HistoryBegin| rebuild.give_begin(asked).await);
        serve!(TARGET_HISTORY, |rebuild, rank, asked: HistoryComparison| rebuild
            .give_page(rank, asked)
            .await);
        serve!(TARGET_ENDED_TRANSACTIONS, |rebuild, rank, asked: EndedRequest| {
            rebuild.give_ended(rank, asked).await
        });
        serve!(TARGET_CHANGE_NAMES, |rebuild, _, asked: NamesRequest| rebuild.give_names(&asked));
    }

    /// A pool that both sides see by the same map.
    fn pool_by(&self, pool: PoolId, map_version: u32) -> Result<Rc<TargetPool>, Status> {
        let pool = self.admission.pool(pool)?;
        self.admission.check_placed(&pool, map_version)?;
        let known = pool.with_map(|map| map.version);
        if known != map_version {
            let message =
                format!("the map of pool {} has version {known} here, not {map_version}", pool.label());
            return Err(Status::new(Der::AGAIN, message));
        }
        Ok(pool)
    }

    /// Begins to give data once all is decided that others have prepared by an earlier map, without the asker: it gets that as
    /// history. What is prepared from then on it prepares, too.
    async fn give_begin(
        &self,
        HistoryBegin { pool, map_version }: HistoryBegin,
    ) -> Result<HistoryBegun, Status> {
        let pool = self.pool_by(pool, map_version)?;
        pool.shard().hold_history(HOLD);
        let decided = self.transactions.when_all_decided(&pool, DECIDED_MAX).await;
        if !decided.map_err(|reason| Status::new(Der::IO, reason))? {
            let message = format!("pool {} has transactions that aren't decided yet", pool.label());
            return Err(Status::new(Der::AGAIN, message));
        }
        // What is at some members and not at others could be told to one that gets it from here alone.
        let settled = self.replication.when_all_settled(&pool, SETTLED_MAX).await;
        let Some(now) = settled else {
            let message = format!("pool {} has changes that aren't stored at all replicas yet", pool.label());
            return Err(Status::new(Der::AGAIN, message));
        };
        let pool = self.pool_by(pool.id(), map_version)?;
        let containers = pool.shard().containers().into_iter().filter(|one| !one.destroying);
        let containers = containers.map(|one| one.container).collect();
        Ok(HistoryBegun { now, containers })
    }

    /// What goes from here to a target.
    fn shares(&self, pool: &TargetPool, to: (Rank, TargetIndex)) -> Result<Shares, Status> {
        let shares = Shares::new(pool.with_map(PoolMap::clone), self.own(), to);
        shares.ok_or_else(|| refusal::invalid("the pool has no such target"))
    }

    async fn give_page(&self, rank: Rank, asked: HistoryComparison) -> Result<HistoryDifference, Status> {
        let HistoryComparison { request, until, here } = asked;
        let HistoryRequest { index, pool, map_version, container, from, most } = request;
        let pool = self.pool_by(pool, map_version)?;
        pool.shard().hold_history(HOLD);
        let shares = self.shares(&pool, (rank, index))?;
        let wanted = |object: ObjectId, dkey: Option<&Key>| shares.has(object, dkey);
        if !pool.shard().has_container(container) {
            let kept = vec![0; here.len().div_ceil(8 * weir_proto::history::FINGERPRINT_LEN)];
            return Ok(HistoryDifference { kept: kept.into(), ..HistoryDifference::default() });
        }
        let label = container.to_string();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let most = most.min(PAGE_MAX);
        let _turn = self.pace.turn().await;
        // Whoever waits for its turn goes by the map that is known then.
        self.pool_by(pool.id(), map_version)?;
        let page = pool.shard().history(container, (&from, &until), most, &wanted, &here).await;
        page.map_err(|error| refusal::fetch(&error, &place))
    }

    async fn give_ended(&self, rank: Rank, asked: EndedRequest) -> Result<EndedTransactions, Status> {
        let EndedRequest { index, pool, map_version, container, from } = asked;
        let pool = self.pool_by(pool, map_version)?;
        let shares = self.shares(&pool, (rank, index))?;
        if !pool.shard().has_container(container) {
            return Ok(EndedTransactions::default());
        }
        let ended = self.transactions.ended(&pool, container, from, |group| shares.has_group(group)).await;
        ended.map_err(|error| Status::new(error.der(), error.to_string()))
    }

    fn give_names(&self, asked: &NamesRequest) -> Result<ChangeNames, Status> {
        let pool = self.pool_by(asked.pool, asked.map_version)?;
        Ok(self.repeats.names(&pool, asked.from, NAMES_MAX))
    }
}
