//! Room for copies. A leader asks the other members of a group to keep room for what it is about to store, before it stores it: a change
//! that one of them has no room for is refused, and is nowhere. The protocol is described in docs/explanation/replication.md.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_group::Refusal;
use weir_pool::TargetPool;
use weir_proto::object::{AkeyUpdate, Value};
use weir_proto::replica::{ForwardedChange, RoomPromise, RoomRequest};
use weir_proto::{Key, ObjectId, PoolId, Rank, opcode};
use weir_rpc::Status;
use weir_runtime::Instant;
use weir_runtime::sync::Semaphore;
use weir_store::UpdateError;

use super::Replication;
use crate::admission::Access;
use crate::admission::refusal::{self, ErrorSite};
use crate::unsettled::Place;

/// Bytes that a leader has kept for changes to come: as many as a member takes in some milliseconds.
const AHEAD: u64 = 16 << 20;

/// How long a promise lasts for who got it, counted from when it asked, and for who gave it, from when that did. Clocks of both may
/// run apart by a tenth.
const LASTS: Duration = Duration::from_secs(5);
const KEPT: Duration = Duration::from_millis(5500);

/// Part of what is free beside a change that one leader gets ahead: the others need some, too.
const AHEAD_DIVISOR: u64 = 64;

/// Longest wait for a promise.
const LIMIT: Duration = Duration::from_millis(500);

/// How long a member that doesn't answer isn't asked again: changes wait for it, or for a map without it, behind their forwards.
const SILENCE: Duration = Duration::from_secs(1);

/// Bytes that a piece of data takes in the index at most beside its keys: the events of object, dkey and akey, its version, and the name
/// of the change.
const PIECE: u64 = 1024;

/// How often an entry of the index has its keys: those three events, and the version.
const KEYS: u64 = 4;

/// Data up to this length is in the index, where it counts for one and a half times as much; longer one takes whole blocks.
const BLOCK: u64 = 4096;

/// Bytes that an update takes at a member, at most.
pub(super) fn needed(dkey: &Key, akeys: &[AkeyUpdate]) -> u64 {
    let of_akey = |akey: &AkeyUpdate| {
        let keys = KEYS * (dkey.as_bytes().len() + akey.akey.as_bytes().len()) as u64;
        let of_piece = |bytes: u64| {
            let data = if bytes < BLOCK { bytes + bytes / 2 } else { bytes.next_multiple_of(BLOCK) };
            data + BLOCK + PIECE + 2 * keys
        };
        match &akey.value {
            Value::Single { size } => of_piece(*size),
            Value::Array { record_size, extents } => extents
                .iter()
                .map(|extent| of_piece(extent.count.saturating_mul(u64::from(*record_size))))
                .fold(0, u64::saturating_add),
        }
    };
    akeys.iter().map(of_akey).fold(0, u64::saturating_add)
}

/// What a member has promised to this target.
struct Credit {
    /// Bytes that no change has taken yet.
    left: u64,
    /// Those were left when the member had promised the last ones.
    full: u64,
    until: Instant,
    /// Bytes of changes that have taken some and aren't done.
    flying: u64,
    /// One request at a time.
    asking: Semaphore,
}

/// What this target has promised to a leader.
#[derive(Clone, Copy, Debug)]
struct Promised {
    bytes: u64,
    until: Instant,
}

type ByPlace<T> = Rc<RefCell<HashMap<(PoolId, Place), T>>>;

/// What members have promised to this target, and this target to leaders.
#[derive(Default)]
pub(super) struct Room {
    credits: ByPlace<Credit>,
    given: ByPlace<Promised>,
}

/// Room that members keep for a change, until it is done.
#[derive(Default)]
pub(super) struct Taken {
    credits: ByPlace<Credit>,
    of: Vec<((PoolId, Place), u64)>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut credits = self.credits.borrow_mut();
        for (member, bytes) in &self.of {
            if let Some(credit) = credits.get_mut(member) {
                credit.flying -= bytes;
            }
        }
    }
}

impl Room {
    fn with<T>(&self, member: (PoolId, Place), now: Instant, look: impl FnOnce(&mut Credit) -> T) -> T {
        let mut credits = self.credits.borrow_mut();
        let fresh = || Credit { left: 0, full: 0, until: now, flying: 0, asking: Semaphore::new(1) };
        let credit = credits.entry(member).or_insert_with(fresh);
        if now >= credit.until {
            credit.left = 0;
        }
        look(credit)
    }

    /// Takes so much for a change, if a member has promised that much. Whether most of it has been used then.
    fn take(&self, taken: &mut Taken, member: (PoolId, Place), bytes: u64, now: Instant) -> Option<bool> {
        self.with(member, now, |credit| {
            credit.left = credit.left.checked_sub(bytes)?;
            credit.flying += bytes;
            taken.of.push((member, bytes));
            Some(credit.left < credit.full / 2)
        })
    }

    /// A member has promised more.
    fn add(&self, member: (PoolId, Place), bytes: u64, until: Instant, now: Instant) {
        self.with(member, now, |credit| {
            credit.left = credit.left.saturating_add(bytes);
            (credit.full, credit.until) = (credit.left, credit.until.max(until));
        });
    }

    /// What is promised of a pool at this moment.
    fn promised(&self, pool: PoolId, now: Instant) -> u64 {
        let mut given = self.given.borrow_mut();
        given.retain(|_, promised| now < promised.until && promised.bytes > 0);
        given.iter().filter(|((of, _), _)| *of == pool).map(|(_, promised)| promised.bytes).sum()
    }
}

impl Replication {
    /// Promises leaders room from now on.
    pub(super) fn serve_room(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let handler = move |rank: Rank, asked: RoomRequest| {
            let replication = weak.upgrade();
            async move {
                let stopping = || Status::new(weir_proto::Der::SHUTDOWN, "the engine is stopping");
                let refused = |Status { der, message }| Refusal { der, object: String::new(), message };
                let replication = replication.ok_or_else(stopping).map_err(refused)?;
                replication.promise(rank, asked).await.map_err(refused)
            }
        };
        self.admission.pools.engines().serve(opcode::TARGET_REPLICA_ROOM, handler);
    }

    async fn promise(self: &Rc<Self>, rank: Rank, asked: RoomRequest) -> Result<RoomPromise, Status> {
        let RoomRequest { leader, pool, container, needed, ahead, held } = asked;
        let pool = self.admission.pool(pool)?;
        let container = pool.container(container).await?;
        let (now, given) = (self.admission.rt.now(), (pool.id(), (rank, leader)));
        if let Some(promised) = self.room.given.borrow_mut().get_mut(&given) {
            promised.bytes = promised.bytes.min(held);
        }
        self.note_promised(&pool);
        let free = pool.shard().promisable();
        if free < needed {
            let size = pool.shard().space().total;
            let refusal = UpdateError::NoSpace { pool: pool.id(), needed, free, size };
            let regains = pool.may_regain_room(&container, needed, &refusal);
            return Ok(RoomPromise { bytes: 0, regains });
        }
        container.has_found_room(needed);
        let bytes = needed + ahead.min((free - needed) / AHEAD_DIVISOR);
        let fresh = Promised { bytes: 0, until: now };
        let before = self.room.given.borrow().get(&given).copied().unwrap_or(fresh);
        let promised = Promised { bytes: before.bytes.saturating_add(bytes), until: now + KEPT };
        self.room.given.borrow_mut().insert(given, promised);
        self.note_promised(&pool);
        let (weak, rt) = (Rc::downgrade(self), self.admission.rt.clone());
        self.admission.rt.spawn(end_promise(weak, rt, Rc::downgrade(&pool)));
        Ok(RoomPromise { bytes, regains: false })
    }

    /// Has the store keep what is promised of a pool now.
    fn note_promised(&self, pool: &TargetPool) {
        pool.shard().set_promised(self.room.promised(pool.id(), self.admission.rt.now()));
    }

    /// A copy is stored for which a leader had got a promise.
    pub(super) fn keep_promise(&self, pool: &TargetPool, leader: Place, change: &ForwardedChange) {
        let ForwardedChange::Update { dkey, akeys } = change else { return };
        if let Some(promised) = self.room.given.borrow_mut().get_mut(&(pool.id(), leader)) {
            promised.bytes = promised.bytes.saturating_sub(needed(dkey, akeys));
        }
        self.note_promised(pool);
    }

    /// Has the other members of a group keep room for a change. Nothing of it is stored yet.
    ///
    /// # Errors
    /// `NOSPACE` where one has none, and `UPDATE_AGAIN` where it may have some soon.
    pub(super) async fn find_room(
        self: &Rc<Self>,
        access: &Access,
        (object, group): (ObjectId, usize),
        needed: u64,
        place: &ErrorSite<'_>,
    ) -> Result<Taken, Status> {
        let Some(members) = self.members(&access.pool, object, group) else {
            return Err(self.leads_not(&access.pool));
        };
        if needed == 0 {
            return Ok(Taken::default());
        }
        let rt = &self.admission.rt;
        let mut taken = Taken { credits: Rc::clone(&self.room.credits), of: Vec::new() };
        for member in members.others {
            let name = (access.pool.id(), member);
            if let Some(is_low) = self.room.take(&mut taken, name, needed, rt.now()) {
                if is_low {
                    self.ask_ahead(access, member);
                }
                continue;
            }
            let turn = self.room.with(name, rt.now(), |credit| credit.asking.acquire());
            let _turn = turn.await;
            // Who asked before may have got enough for this one, too.
            if self.room.take(&mut taken, name, needed, rt.now()).is_some() {
                continue;
            }
            match self.ask_for_room(access, member, needed).await {
                Some(RoomPromise { bytes, regains }) if bytes < needed => {
                    return Err(refusal::no_room_for_copy(member, regains, place));
                }
                _ => drop(self.room.take(&mut taken, name, needed, rt.now())),
            }
        }
        Ok(taken)
    }

    /// Has a member keep more, while what it keeps already is used.
    fn ask_ahead(self: &Rc<Self>, access: &Access, member: Place) {
        let (rt, name) = (&self.admission.rt, (access.pool.id(), member));
        let Some(turn) = self.room.with(name, rt.now(), |credit| credit.asking.try_acquire()) else { return };
        let (replication, access) = (Rc::clone(self), access.clone());
        rt.spawn(async move {
            let _turn = turn;
            replication.ask_for_room(&access, member, 0).await;
        });
    }

    /// Asks a member for room. `None`: it has not answered, and what is sent to it waits there.
    async fn ask_for_room(&self, access: &Access, member: Place, needed: u64) -> Option<RoomPromise> {
        let (rt, engines) = (&self.admission.rt, self.admission.pools.engines());
        let (pool, container, sent) = (access.pool.id(), access.container.id, rt.now());
        let held = self.room.with((pool, member), sent, |credit| credit.left.saturating_add(credit.flying));
        let leader = engines.own_index();
        let request = RoomRequest { leader, pool, container, needed, ahead: AHEAD, held };
        let opcode = opcode::TARGET_REPLICA_ROOM;
        match engines.ask::<_, RoomPromise>(member.0, member.1, opcode, &request, LIMIT).await {
            Ok(promise) => {
                self.room.add((pool, member), promise.bytes, sent + LASTS, rt.now());
                Some(promise)
            }
            Err(error) => {
                let (rank, target) = member;
                tracing::debug!(%rank, %target, %error, "a replica has not said whether it has room");
                self.room.add((pool, member), AHEAD, rt.now() + SILENCE, rt.now());
                None
            }
        }
    }
}

/// Gives back what is kept for nobody any more.
async fn end_promise(replication: Weak<Replication>, rt: weir_runtime::Handle, pool: Weak<TargetPool>) {
    rt.sleep(KEPT).await;
    if let (Some(replication), Some(pool)) = (replication.upgrade(), pool.upgrade()) {
        replication.note_promised(&pool);
    }
}
