//! A server's account of its accesses to clients' memory.
//!
//! A handler may end while pieces of its bulk transfers still move: at the deadline, or because it dropped the transfer.
//! They are waited for all the same: the reply says that the server is done with the client's memory. A client that gave
//! its request up asks for the same with [`weir_proto::opcode::REQUEST_WITHDRAW`].

use crate::Inner;
use crate::clients::Caller;
use crate::error::Status;
use crate::id_map::IdMap;
use crate::payload::Share;
use crate::request::Request;
use crate::server::Body;
use core::cell::{Cell, RefCell};
#[cfg(test)]
use core::hash::BuildHasher;
use core::ops::Deref;
use std::rc::{Rc, Weak};
use weir_memory::Spares;
use weir_proto::Der;
use weir_runtime::sync::Notify;
use weir_runtime::{Elapsed, Handle};

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

    fn get(&self, client: Caller, request: u64) -> Option<Account> {
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
    inner: Weak<Inner>,
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
        let (inner, key, ended) = (Weak::new(), (Caller::default(), 0), Notify::new());
        Self { inner, key, under_way, withdrawn, ended, kept: RefCell::default() }
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
    pub(crate) fn open(inner: &Rc<Inner>, client: Caller, request: u64) -> Self {
        let (ledger, key) = (&inner.accesses, (client, request));
        let accesses = ledger.spares.take(|place| {
            (place.inner, place.key) = (Rc::downgrade(inner), key);
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
        if let Some(inner) = self.0.inner.upgrade() {
            inner.accesses.close(&self.0);
        }
    }
}

/// Answers a client that has given a request up, once nothing is at its memory any more.
pub(crate) async fn withdraw(request: Request) -> Result<Body, Status> {
    let Ok(number) = <[u8; 8]>::try_from(request.body()).map(u64::from_le_bytes) else {
        let text = format!(
            "a withdrawal has a body of {} bytes; it is the number of a request",
            request.body().len()
        );
        return Err(Status::new(Der::PROTO, text));
    };
    let inner = request.inner();
    let client = request.client();
    inner.clients.borrow_mut().bar(client, number);
    let Some(accesses) = inner.accesses.get(client, number) else { return Ok(Body::new()) };
    accesses.withdrawn.set(true);
    let rt: &Handle = &inner.rt;
    match rt.timeout_at(request.deadline(), accesses.idle()).await {
        Ok(()) => Ok(Body::new()),
        Err(Elapsed) => {
            Err(Status::new(Der::TIMEDOUT, "an access to the request's memory is still under way"))
        }
    }
}
