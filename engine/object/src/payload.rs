//! Memory for payloads: bounded, shared between clients, and waited for within a request's deadline.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use weir_proto::Der;
use weir_rpc::{Buffer, Caller, Request, Rpc, Status};
use weir_runtime::Handle;
use weir_runtime::sync::{Notify, Permit, Semaphore};

/// Unit of the bound in bytes: the smallest piece that the fabric's pool hands out.
const UNIT: usize = 4096;

/// Part of the fabric's pool that payloads may take; the rest is for messages.
const SHARE: (usize, usize) = (3, 4);

/// A client has at most this part of what is free beside that. One that has stopped holds its memory until its requests end:
/// however many have, there is some for others.
const CLIENT_DIVISOR: usize = 2;

/// Bounds the memory of payloads in flight.
pub struct PayloadMemory {
    units: Semaphore,
    limit: usize,
    shares: Rc<Shares>,
}

/// A payload's memory. Returns to the bound when dropped.
pub struct Payload {
    // Dropped in this order: the memory is back in its pool before others may ask for it.
    pub buffer: Buffer,
    room: Room,
}

/// Part of the bound.
pub struct Room {
    _permit: Permit,
    _share: Share,
}

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Payload {
    /// Its memory, and what is to be held as long as that is.
    pub fn into_parts(self) -> (Buffer, Room) {
        (self.buffer, self.room)
    }
}

impl PayloadMemory {
    pub fn new(rpc: &Rpc) -> Self {
        let limit = rpc.endpoint().buffers().limit() / UNIT * SHARE.0 / SHARE.1;
        Self { units: Semaphore::new(limit), limit, shares: Rc::new(Shares::new(limit)) }
    }

    /// Memory of `len` bytes for a request.
    pub async fn take(&self, rt: &Handle, request: &Request, len: usize) -> Result<Payload, Status> {
        // The pool hands out powers of two.
        let units = (len.max(UNIT).next_power_of_two() / UNIT).min(self.limit);
        let none = |_| Status::new(Der::NOMEM, "no memory for the payload was free in time; try again");
        let room = rt.timeout_at(request.deadline(), self.room(request.client(), units)).await;
        Ok(Payload { room: room.map_err(none)??, buffer: request.alloc(len)? })
    }

    async fn room(&self, client: Caller, units: usize) -> Result<Room, Status> {
        let share = loop {
            let returned = self.shares.returned.notified();
            match self.shares.take(client, units) {
                Some(share) => break share,
                None => returned.await,
            }
        };
        let closing = |_| Status::new(Der::SHUTDOWN, "the engine is stopping");
        Ok(Room { _permit: self.units.acquire_many(units).await.map_err(closing)?, _share: share })
    }
}

/// Who has how much of the memory, or waits for it.
struct Shares {
    limit: usize,
    /// Sum of all.
    taken: Cell<usize>,
    held: RefCell<HashMap<Caller, usize>>,
    /// Somebody has given some back.
    returned: Notify,
}

/// What one request has. Returns when dropped.
struct Share {
    shares: Rc<Shares>,
    client: Caller,
    units: usize,
}

impl Shares {
    fn new(limit: usize) -> Self {
        Self { limit, taken: Cell::new(0), held: RefCell::default(), returned: Notify::default() }
    }

    /// Counts so many units as a client's. `None`: it has some, and would leave too little to others.
    fn take(self: &Rc<Self>, client: Caller, units: usize) -> Option<Share> {
        let (taken, mut all) = (self.taken.get(), self.held.borrow_mut());
        let held = all.get(&client).copied().unwrap_or(0);
        let free = self.limit.saturating_sub(taken + units);
        if held > 0 && held + units > free / CLIENT_DIVISOR {
            return None;
        }
        all.insert(client, held + units);
        self.taken.set(taken + units);
        Some(Share { shares: Rc::clone(self), client, units })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let Self { shares, client, units } = self;
        shares.taken.set(shares.taken.get() - *units);
        let mut all = shares.held.borrow_mut();
        if let Some(held) = all.get_mut(client) {
            *held -= *units;
            if *held == 0 {
                all.remove(client);
            }
        }
        shares.returned.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_rpc::ClientId;

    fn caller(id: u64) -> Caller {
        Caller { id: ClientId::new(id), ..Caller::default() }
    }

    #[test]
    fn clients_that_give_nothing_back_leave_room_for_others() {
        let shares = Rc::new(Shares::new(1000));
        let mut stuck = Vec::new();
        for client in 1..=4 {
            let before = stuck.len();
            stuck.extend(core::iter::from_fn(|| shares.take(caller(client), 10)));
            assert!(stuck.len() > before, "a client that has none may have some");
        }
        assert!((500..900).contains(&shares.taken.get()), "{} are taken", shares.taken.get());
        let late = caller(5);
        let first = shares.take(late, 10).expect("it has none");
        let second = shares.take(late, 10).expect("there is more");
        drop((stuck, first));
        assert_eq!((shares.taken.get(), shares.held.borrow().len()), (10, 1));
        drop(second);
        assert_eq!((shares.taken.get(), shares.held.borrow().len()), (0, 0));
        let alone: Vec<_> = core::iter::from_fn(|| shares.take(late, 10)).collect();
        assert_eq!(alone.len(), 33, "a third, as long as nobody else has any");
    }

    #[test]
    fn who_wants_more_than_is_free_stands_in_line_once() {
        let shares = Rc::new(Shares::new(100));
        let [one, other] = [1, 2].map(caller);
        let all = shares.take(one, 100).expect("it has none");
        assert!(shares.take(one, 1).is_none());
        let line = shares.take(other, 100).expect("it waits for the memory itself");
        assert!(shares.take(other, 1).is_none());
        drop((all, line));
        assert!(shares.take(one, 100).is_some());
    }
}
