//! This engine's part in the system service: it keeps the list of pools alone, as one of several replicas, or not at all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_group::{Engines, Refusal, Spread};
use weir_proto::pool::{ResolveReply, ResolveRequest, TargetPoolCreate};
use weir_proto::quota::{RateRequest, ShareRequest};
use weir_proto::system::{SystemJoin, SystemState};
use weir_proto::{Der, Rank, opcode};
use weir_raft::Replica;
use weir_runtime::sync::{Notify, Semaphore};
use weir_runtime::{Instant, race};
use weir_store::Shard;

use super::{Directory, origin};
use crate::error::Failed;
use crate::pools::TargetPools;
use crate::record::{SCOPE_DIRECTORY, SCOPE_REMNANT, SCOPE_TENANT, SYSTEM_POOL};
use crate::service::Led;

/// Bytes of the system pool: ten thousand entries of a KiB, with the index around them, and the replica's log.
pub(super) const SYSTEM_POOL_SIZE: u64 = 32 * 1024 * 1024;

/// How often an engine without the list looks whether it is to begin it, and one with it looks after the replicas.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The same for the engine that begins the list of a new system: requests wait for that.
const BEGIN_INTERVAL: Duration = Duration::from_millis(200);

/// This engine's part in the system service.
pub struct Keeper {
    pub(super) pools: Rc<TargetPools>,
    pub(super) engines: Rc<Engines>,
    spread: Rc<Spread>,
    /// The list, where this engine answers for it.
    current: RefCell<Option<Rc<Directory>>>,
    pub(super) replica: RefCell<Option<Rc<Replica>>>,
    /// Since when engines that keep the list, too, don't say what they have, where this one answers for it.
    pub(super) silent_since: RefCell<BTreeMap<Rank, Instant>>,
    /// One thing at a time becomes of what this engine keeps.
    pub(super) turn: Semaphore,
    pub(super) changed: Notify,
}

impl Keeper {
    /// Takes part with what the store has of the list, and answers the other engines.
    ///
    /// # Errors
    /// When what is stored can't be read.
    pub async fn start(pools: &Rc<TargetPools>, spread: Rc<Spread>) -> Result<Rc<Self>, Failed> {
        let keeper = Rc::new(Self {
            pools: Rc::clone(pools),
            engines: Rc::clone(pools.engines()),
            spread,
            current: RefCell::default(),
            replica: RefCell::default(),
            silent_since: RefCell::default(),
            turn: Semaphore::new(1),
            changed: Notify::new(),
        });
        if pools.lost().is_none() {
            keeper.take_up().await?;
        }
        // Not before: what an engine keeps is known from then on.
        keeper.answer_engines();
        if pools.lost().is_none() {
            let rt = keeper.engines.runtime().clone();
            rt.spawn(follow(Rc::downgrade(&keeper)));
            rt.spawn(look_after(Rc::downgrade(&keeper)));
        }
        Ok(keeper)
    }

    /// The list of pools, where this engine answers for it.
    ///
    /// # Errors
    /// When another one does, or nobody.
    pub async fn directory(&self) -> Result<Rc<Directory>, Failed> {
        let current = self.current();
        let nobody = Failed::NoKeeper("this one doesn't");
        let directory = current.ok_or_else(|| self.pools.out_of_service().unwrap_or(nobody))?;
        directory.confirm().await?;
        Ok(directory)
    }

    /// Whether this engine answers for the list, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.current.borrow().is_some()
    }

    pub(super) fn current(&self) -> Option<Rc<Directory>> {
        self.current.borrow().clone()
    }

    /// Answers for the list from now on, or no more.
    pub(super) fn set_current(&self, directory: Option<Rc<Directory>>) {
        *self.current.borrow_mut() = directory;
    }

    /// The list in a shard: `led` by this engine's replica, or by this engine alone.
    pub(super) fn open(&self, shard: Shard, led: Option<Led>) -> Result<Rc<Directory>, Failed> {
        Directory::open(shard, Rc::clone(&self.engines), Rc::clone(&self.spread), led)
    }

    /// The shard of the list.
    pub(super) fn shard(&self) -> Option<Shard> {
        self.pools.store().pool(SYSTEM_POOL)
    }

    /// Takes part with what the store has.
    async fn take_up(&self) -> Result<(), Failed> {
        let Some(shard) = self.shard() else { return Ok(()) };
        if weir_raft::is_prepared(&shard) {
            return self.open_replica(shard).await;
        }
        if origin::is_list(&shard) {
            self.set_current(Some(self.open(shard, None)?));
        }
        Ok(())
    }

    /// Takes part, if it doesn't; an engine that has nothing begins the list when it is to. Returns whether it takes part.
    async fn begin(&self) -> Result<bool, Failed> {
        let _turn = self.turn.acquire().await;
        if !self.is_part() {
            self.take_up().await?;
        }
        if !self.is_part()
            && let Some(shard) = origin::make(self).await?
        {
            self.set_current(Some(self.open(shard, None)?));
        }
        Ok(self.is_part())
    }

    fn is_part(&self) -> bool {
        self.leads() || self.replica.borrow().is_some()
    }

    /// Opens this engine's replica of the list.
    pub(super) async fn open_replica(&self, shard: Shard) -> Result<(), Failed> {
        let Some(replicas) = self.pools.replicas() else { return Ok(()) };
        let scopes = Rc::new(|_: &Shard| {
            vec![SCOPE_DIRECTORY.to_vec(), SCOPE_REMNANT.to_vec(), SCOPE_TENANT.to_vec()]
        });
        let replica = replicas.open(shard, scopes).await?;
        self.replica.replace(Some(replica));
        self.changed.notify_one();
        Ok(())
    }

    /// Answers for the list while this engine's replica leads, and only then.
    fn follow(&self, replica: &Rc<Replica>) -> Result<(), Failed> {
        let leadership = replica.leadership();
        let known = self.current().and_then(|known| known.led.as_ref().map(|led| led.leadership));
        if known == leadership && self.leads() == leadership.is_some() {
            return Ok(());
        }
        self.set_current(None);
        let (Some(leadership), Some(shard)) = (leadership, self.shard()) else { return Ok(()) };
        let led = Led { replica: Rc::clone(replica), leadership };
        self.set_current(Some(self.open(shard, Some(led))?));
        tracing::info!(term = leadership.term, "this engine answers for the list of pools");
        Ok(())
    }

    /// What this engine knows of the system service.
    fn state(&self) -> Result<SystemState, Failed> {
        if let Some(failed) = self.pools.out_of_service() {
            return Err(failed);
        }
        let (leads, own) = (self.leads(), self.engines.own_rank());
        let replica = self.replica.borrow();
        let members = match replica.as_ref() {
            Some(replica) => replica.members(),
            None if leads => vec![own],
            None => Vec::new(),
        };
        let holds = leads || self.shard().is_some_and(|shard| weir_raft::is_prepared(&shard));
        let led_by = replica.as_ref().and_then(|replica| replica.leader());
        let leader = if leads { Some(own) } else { led_by };
        Ok(SystemState { holds, leads, leader, members })
    }

    fn answer_engines(self: &Rc<Self>) {
        macro_rules! answer {
            ($opcode:ident, |$keeper:ident, $from:pat_param, $request:ident: $kind:ty| $body:expr) => {{
                let keeper = Rc::downgrade(self);
                self.engines.serve(opcode::$opcode, move |$from: Rank, $request: $kind| {
                    let keeper = keeper.upgrade();
                    async move {
                        let $keeper = keeper.ok_or(Failed::NoKeeper("this one is stopping"))?;
                        let answer: Result<_, Refusal> = $body;
                        answer
                    }
                });
            }};
        }
        answer!(SYSTEM_STATE, |keeper, _, _request: ()| Ok(keeper.state()?));
        answer!(SYSTEM_JOIN, |keeper, _, request: SystemJoin| Ok(keeper.join(&request.members).await?));
        answer!(SYSTEM_POOLS, |keeper, _, _request: ()| Ok(keeper.known_pools()?));
        answer!(POOL_RESOLVE, |keeper, _, request: ResolveRequest| keeper.resolve(&request).await);
        answer!(POOL_SHARE_MORE, |keeper, _, request: ShareRequest| {
            Ok(keeper.directory().await?.enlarge_share(&request).await?)
        });
        // From memory, as far as this engine knows that it leads: targets ask all the time.
        answer!(TENANT_RATES, |keeper, from, request: RateRequest| {
            let directory = keeper.current().ok_or(Failed::NoKeeper("this one doesn't"))?;
            Ok(directory.allow(from, &request))
        });
    }

    /// The pools that this engine has a part of.
    pub(super) fn known_pools(&self) -> Result<Vec<TargetPoolCreate>, Failed> {
        if let Some(failed) = self.pools.out_of_service() {
            return Err(failed);
        }
        Ok(self.pools.all().iter().map(|pool| pool.record.borrow().clone().into()).collect())
    }

    /// Where the service of a pool is; asked of who answers for the list, when that is another engine.
    async fn resolve(&self, request: &ResolveRequest) -> Result<ResolveReply, Refusal> {
        if let Some(directory) = self.current() {
            return Ok(directory.answer(&request.pool).await?);
        }
        let asked = self.pools.ask_other_keeper(request).await;
        asked.map_err(|error| match self.pools.out_of_service() {
            Some(failed) if error.der == Der::NOTLEADER => failed.into(),
            _ => error,
        })
    }
}

async fn follow(keeper: Weak<Keeper>) {
    loop {
        let Some(strong) = keeper.upgrade() else { return };
        let replica = strong.replica.borrow().clone();
        let moved = replica.as_ref().map(|replica| replica.changed());
        let changed = strong.changed.notified();
        let followed = replica.as_ref().map_or(Ok(()), |replica| strong.follow(replica));
        if let Err(error) = followed {
            tracing::error!(%error, "the list of pools can't be read where its replica leads");
        }
        let rt = strong.engines.runtime().clone();
        drop((strong, replica));
        let woken = async {
            match moved {
                Some(moved) => drop(race(moved, changed).await),
                None => changed.await,
            }
        };
        race(Box::pin(woken), rt.sleep(LOOK_INTERVAL)).await;
    }
}

async fn look_after(keeper: Weak<Keeper>) {
    loop {
        let Some(strong) = keeper.upgrade() else { return };
        let (own, lowest) = (strong.engines.own_rank(), strong.engines.lowest_rank());
        let begun = strong.begin().await;
        let mut pause = LOOK_INTERVAL;
        let done = match begun {
            Ok(true) => strong.look_after_members().await,
            Ok(false) => {
                if own == lowest {
                    pause = BEGIN_INTERVAL;
                }
                Ok(())
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            tracing::debug!(%error, "the replicas of the list of pools stay as they are");
        }
        let rt = strong.engines.runtime().clone();
        drop(strong);
        rt.sleep(pause).await;
    }
}
