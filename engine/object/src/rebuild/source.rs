//! What a target does that has data which another one lacks.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_layout::{Layout, Receivers};
use weir_pool::TargetPool;
use weir_proto::history::{
    ChangeNames, HistoryBegin, HistoryBegun, HistoryPage, HistoryRequest, NamesRequest,
};
use weir_proto::pool::PoolMap;
use weir_proto::{Der, Key, ObjectId, PoolId, Rank, opcode};
use weir_rpc::Status;

use super::Rebuild;
use super::pull::{NAMES_MAX, PAGE_MAX};
use crate::admission::refusal::{self, ErrorSite};
use crate::groups::is_replicated;

/// How long history stays as it is after it was asked for: the time between two pages, many times.
const HOLD: Duration = Duration::from_mins(1);

/// Which dkeys of an object go from one target to another.
struct Share {
    layout: Layout,
    groups: Vec<bool>,
}

/// What goes from one target to another.
struct Shares<'a> {
    map: &'a PoolMap,
    from: u32,
    to: u32,
    /// The object that was asked for last.
    last: RefCell<Option<(ObjectId, Option<Share>)>>,
}

impl Shares<'_> {
    fn has(&self, object: ObjectId, dkey: Option<&Key>) -> bool {
        let mut last = self.last.borrow_mut();
        if last.as_ref().is_none_or(|(known, _)| *known != object) {
            *last = Some((object, self.share(object)));
        }
        let Some((_, Some(share))) = &*last else { return false };
        dkey.is_none_or(|dkey| share.groups[share.layout.group_index(dkey.hash())])
    }

    fn share(&self, object: ObjectId) -> Option<Share> {
        let receivers = Receivers::of(object, self.map).ok().filter(|_| is_replicated(object))?;
        let groups = receivers.between(self.map, self.from, self.to);
        groups.contains(&true).then_some(Share { layout: receivers.now, groups })
    }
}

fn refused(Status { der, message }: Status) -> Refusal {
    Refusal { der, object: String::new(), message }
}

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
                        let $rebuild = rebuild.ok_or_else(stopping).map_err(refused)?;
                        $body.map_err(refused)
                    }
                };
                self.admission.pools.engines().serve(opcode::$opcode, handler);
            }};
        }
        serve!(TARGET_HISTORY_BEGIN, |rebuild, _, asked: HistoryBegin| rebuild.give_begin(asked));
        serve!(TARGET_HISTORY, |rebuild, rank, asked: HistoryRequest| rebuild.give_page(rank, asked).await);
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

    fn give_begin(&self, HistoryBegin { pool, map_version }: HistoryBegin) -> Result<HistoryBegun, Status> {
        let pool = self.pool_by(pool, map_version)?;
        pool.shard().hold_history(HOLD);
        let containers = pool.shard().containers().into_iter().filter(|one| !one.destroying);
        let containers = containers.map(|one| one.container).collect();
        Ok(HistoryBegun { now: self.admission.epoch(), containers })
    }

    async fn give_page(&self, rank: Rank, asked: HistoryRequest) -> Result<HistoryPage, Status> {
        let pool = self.pool_by(asked.pool, asked.map_version)?;
        pool.shard().hold_history(HOLD);
        let engines = self.admission.pools.engines();
        let own = (engines.own_rank(), engines.own_index());
        let map = pool.with_map(PoolMap::clone);
        let id = |place| {
            let named = map.targets.iter().find(|target| (target.rank, target.index) == place);
            named.map(|target| target.id).ok_or_else(|| refusal::invalid("the pool has no such target"))
        };
        let shares =
            Shares { map: &map, from: id(own)?, to: id((rank, asked.index))?, last: RefCell::default() };
        let wanted = |object: ObjectId, dkey: Option<&Key>| shares.has(object, dkey);
        if !pool.shard().has_container(asked.container) {
            return Ok(HistoryPage::default());
        }
        let label = asked.container.to_string();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let since = weir_proto::Epoch::ZERO;
        let most = asked.most.min(PAGE_MAX);
        let page = pool.shard().history(asked.container, since, &asked.from, most, &wanted).await;
        page.map_err(|error| refusal::fetch(&error, &place))
    }

    fn give_names(&self, asked: &NamesRequest) -> Result<ChangeNames, Status> {
        let pool = self.pool_by(asked.pool, asked.map_version)?;
        Ok(self.repeats.names(&pool, asked.from, NAMES_MAX))
    }
}
