//! A server's account of its accesses to clients' memory.
//!
//! A handler may end while pieces of its bulk transfers still move: at the deadline, or because it dropped the transfer.
//! They are waited for all the same: the reply says that the server is done with the client's memory. A client that gave
//! its request up asks for the same with [`weir_proto::opcode::REQUEST_WITHDRAW`].

use crate::admission::Share;
use crate::maps::IdMap;
use crate::wire::Caller;
use core::cell::{Cell, RefCell};
#[cfg(test)]
use core::hash::BuildHasher;
use core::ops::Deref;
use std::rc::{Rc, Weak};
use weir_memory::Spares;
use weir_runtime::sync::Notify;

/// The requests with memory that are being executed, or whose accesses have not all ended.
pub(crate) struct Ledger {
    requests: RefCell<IdMap<(Caller, u64), Rc<Accesses>>>,
    spares: Spares<Accesses>,
}

impl Ledger {
    /// No requests; `seed` is secret.
    pub(crate) fn new(seed: u64) -> Self {
        Self { requests: RefCell::new(IdMap::with_hasher(seed.into())), spares: Spares::default() }
    }

    /// Where a name falls.
    #[cfg(test)]
    pub(crate) fn hash(&self, client: Caller) -> u64 {
        self.requests.borrow().hasher().hash_one((client, 1u64))
    }

    /// The account of a request that is there.
    pub(crate) fn get(&self, client: Caller, request: u64) -> Option<Account> {
        self.requests.borrow().get(&(client, request)).map(|accesses| Account(Rc::clone(accesses)))
    }

    /// The last share of an account but the ledger's own is given back.
    fn close(&self, accesses: &Rc<Accesses>) {
        let mut requests = self.requests.borrow_mut();
        // The same number may be executed anew meanwhile.
        if requests.get(&accesses.key).is_some_and(|known| Rc::ptr_eq(known, accesses)) {
            requests.remove(&accesses.key);
        }
        self.spares.keep(accesses);
    }
}

/// The accesses of one request. They stay in one place, which serves later requests.
pub(crate) struct Accesses {
    ledger: Weak<Ledger>,
    key: (Caller, u64),
    under_way: Cell<usize>,
    withdrawn: Cell<bool>,
    ended: Notify,
    /// Shares of the payloads' bound whose memory is the transfers' that still move.
    kept: RefCell<Vec<Share>>,
}

impl Default for Accesses {
    fn default() -> Self {
        let (under_way, withdrawn) = (Cell::new(0), Cell::new(false));
        let (ledger, key, ended) = (Weak::new(), (Caller::default(), 0), Notify::new());
        Self { ledger, key, under_way, withdrawn, ended, kept: RefCell::default() }
    }
}

/// A share of the accesses of one request.
#[derive(Clone)]
pub(crate) struct Account(Rc<Accesses>);

impl Deref for Account {
    type Target = Accesses;

    fn deref(&self) -> &Accesses {
        &self.0
    }
}

impl Account {
    /// Opens the account of a request.
    pub(crate) fn open(ledger: &Rc<Ledger>, client: Caller, request: u64) -> Self {
        let key = (client, request);
        let accesses = ledger.spares.take(|place| {
            (place.ledger, place.key) = (Rc::downgrade(ledger), key);
            place.under_way.set(0);
            place.withdrawn.set(false);
        });
        ledger.requests.borrow_mut().insert(key, Rc::clone(&accesses));
        Self(accesses)
    }
}

impl Accesses {
    /// Whose memory it is.
    pub(crate) fn caller(&self) -> Caller {
        self.key.0
    }

    /// An access begins.
    pub(crate) fn begin(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// One has ended.
    pub(crate) fn end(&self) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        if self.under_way.get() == 0 {
            self.kept.borrow_mut().clear();
            self.ended.notify_waiters();
        }
    }

    /// Keeps a share until none is under way.
    pub(crate) fn keep(&self, share: Share) {
        self.kept.borrow_mut().push(share);
    }

    /// Whether any is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.get() > 0
    }

    /// The client has given the request up.
    pub(crate) fn withdraw(&self) {
        self.withdrawn.set(true);
    }

    /// Whether the client has given the request up: no access may begin.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.withdrawn.get()
    }

    /// Waits until none is under way.
    pub(crate) async fn idle(&self) {
        while self.is_busy() {
            self.ended.notified().await;
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // The ledger's own, unless the same number was executed anew.
        if Rc::strong_count(&self.0) > 2 {
            return;
        }
        if let Some(ledger) = self.0.ledger.upgrade() {
            ledger.close(&self.0);
        }
    }
}
