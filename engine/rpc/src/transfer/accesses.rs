//! A server's accesses to clients' memory, by request.
//!
//! A handler may end while fragments of its bulk transfers are in flight: at its deadline, or because it dropped
//! the transfer. Its reply waits for them, because it says that the server is done with the client's memory. A
//! client that gives its request up asks for the same with [`weir_proto::opcode::REQUEST_WITHDRAW`].

use crate::admission::MemoryShare;
use crate::maps::IdMap;
use crate::wire::Caller;
use core::cell::{Cell, RefCell};
#[cfg(test)]
use core::hash::BuildHasher;
use core::ops::Deref;
use std::rc::{Rc, Weak};
use weir_memory::Spares;
use weir_runtime::sync::Notify;

/// Requests with memory that are executed, or whose accesses have not all ended.
pub(crate) struct AccessTable {
    requests: RefCell<IdMap<(Caller, u64), Rc<AccessRecord>>>,
    spares: Spares<AccessRecord>,
}

impl AccessTable {
    /// An empty table. `seed` is secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self { requests: RefCell::new(IdMap::with_hasher(seed.into())), spares: Spares::default() }
    }

    /// The hash of a client's name.
    #[cfg(test)]
    pub(crate) fn hash(&self, client: Caller) -> u64 {
        self.requests.borrow().hasher().hash_one((client, 1u64))
    }

    /// The record of a request, if it is in the table.
    pub(crate) fn get(&self, client: Caller, request: u64) -> Option<AccessHandle> {
        self.requests.borrow().get(&(client, request)).map(|accesses| AccessHandle(Rc::clone(accesses)))
    }

    /// The last handle beside the table's own is gone.
    fn close(&self, accesses: &Rc<AccessRecord>) {
        let mut requests = self.requests.borrow_mut();
        // The same number may be executed anew meanwhile.
        if requests.get(&accesses.key).is_some_and(|known| Rc::ptr_eq(known, accesses)) {
            requests.remove(&accesses.key);
        }
        self.spares.keep(accesses);
    }
}

/// The accesses of one request. The record stays in one place, which later requests reuse.
pub(crate) struct AccessRecord {
    table: Weak<AccessTable>,
    key: (Caller, u64),
    in_flight: Cell<usize>,
    withdrawn: Cell<bool>,
    ended: Notify,
    /// Payload memory that transfers in flight still use.
    kept: RefCell<Vec<MemoryShare>>,
}

impl Default for AccessRecord {
    fn default() -> Self {
        let (in_flight, withdrawn) = (Cell::new(0), Cell::new(false));
        let (table, key, ended) = (Weak::new(), (Caller::default(), 0), Notify::new());
        Self { table, key, in_flight, withdrawn, ended, kept: RefCell::default() }
    }
}

/// A handle to the accesses of one request.
#[derive(Clone)]
pub(crate) struct AccessHandle(Rc<AccessRecord>);

impl Deref for AccessHandle {
    type Target = AccessRecord;

    fn deref(&self) -> &AccessRecord {
        &self.0
    }
}

impl AccessHandle {
    /// Adds a request to the table.
    pub(crate) fn open(table: &Rc<AccessTable>, client: Caller, request: u64) -> Self {
        let key = (client, request);
        let accesses = table.spares.take(|place| {
            (place.table, place.key) = (Rc::downgrade(table), key);
            place.in_flight.set(0);
            place.withdrawn.set(false);
        });
        table.requests.borrow_mut().insert(key, Rc::clone(&accesses));
        Self(accesses)
    }
}

impl AccessRecord {
    /// The client whose memory it is.
    pub(crate) fn caller(&self) -> Caller {
        self.key.0
    }

    /// An access begins.
    pub(crate) fn begin(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// An access has ended.
    pub(crate) fn end(&self) {
        let in_flight = self.in_flight.get();
        assert!(in_flight > 0, "an access to client memory ends that has not begun");
        self.in_flight.set(in_flight - 1);
        if self.in_flight.get() == 0 {
            self.kept.borrow_mut().clear();
            self.ended.notify_waiters();
        }
    }

    /// Holds payload memory until no access is in flight.
    pub(crate) fn keep(&self, share: MemoryShare) {
        self.kept.borrow_mut().push(share);
    }

    /// Whether any access is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.get() > 0
    }

    /// The client has given the request up.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.set(true);
    }

    /// Whether the client has given the request up, so that no access may begin.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.get()
    }

    /// Waits until no access is in flight.
    pub(crate) async fn idle(&self) {
        while self.is_busy() {
            self.ended.notified().await;
        }
    }
}

impl Drop for AccessHandle {
    fn drop(&mut self) {
        // This handle and the table's own, unless the same number was executed anew.
        if Rc::strong_count(&self.0) > 2 {
            return;
        }
        if let Some(table) = self.0.table.upgrade() {
            table.close(&self.0);
        }
    }
}
