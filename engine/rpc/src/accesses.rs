//! A server's account of its accesses to clients' memory.
//!
//! A handler may end while pieces of its bulk transfers still move: at the deadline, or because it dropped the transfer.
//! They are waited for all the same: the reply says that the server is done with the client's memory. A client that gave
//! its request up asks for the same with [`weir_proto::opcode::REQUEST_WITHDRAW`].

use crate::Inner;
use crate::error::Status;
use crate::id_map::IdMap;
use crate::request::Request;
use crate::server::Body;
use crate::wire::ClientId;
use core::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use weir_proto::Der;
use weir_runtime::sync::Notify;
use weir_runtime::{Elapsed, Handle};

/// The requests with memory that are being executed, or whose accesses have not all ended.
#[derive(Default)]
pub(crate) struct Ledger {
    requests: RefCell<IdMap<(ClientId, u64), Weak<Accesses>>>,
}

impl Ledger {
    fn get(&self, client: ClientId, request: u64) -> Option<Rc<Accesses>> {
        self.requests.borrow().get(&(client, request)).and_then(Weak::upgrade)
    }
}

/// The accesses of one request.
pub(crate) struct Accesses {
    inner: Weak<Inner>,
    key: (ClientId, u64),
    under_way: Cell<usize>,
    withdrawn: Cell<bool>,
    ended: Notify,
}

impl Accesses {
    /// Opens the account of a request.
    pub(crate) fn open(inner: &Rc<Inner>, client: ClientId, request: u64) -> Rc<Self> {
        let key = (client, request);
        let accesses = Rc::new(Self {
            inner: Rc::downgrade(inner),
            key,
            under_way: Cell::new(0),
            withdrawn: Cell::new(false),
            ended: Notify::new(),
        });
        inner.accesses.requests.borrow_mut().insert(key, Rc::downgrade(&accesses));
        accesses
    }

    /// An access begins.
    pub(crate) fn begin(&self) {
        self.under_way.set(self.under_way.get() + 1);
    }

    /// One has ended.
    pub(crate) fn end(&self) {
        self.under_way.set(self.under_way.get().saturating_sub(1));
        if self.under_way.get() == 0 {
            self.ended.notify_waiters();
        }
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

impl Drop for Accesses {
    fn drop(&mut self) {
        let Some(inner) = self.inner.upgrade() else { return };
        let mut requests = inner.accesses.requests.borrow_mut();
        // The same number may be executed anew meanwhile.
        if requests.get(&self.key).is_some_and(|known| core::ptr::eq(known.as_ptr(), self)) {
            requests.remove(&self.key);
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
