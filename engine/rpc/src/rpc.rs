//! One context as its users see it.

use crate::call::{self, Bulk};
use crate::config::{CallOptions, RpcConfig};
use crate::contact::Peer;
use crate::context::Context;
use crate::error::RpcError;
use crate::metrics::RpcMetrics;
use crate::reply::Reply;
use crate::server::{Handler, Phase, Served, Server};
use crate::wire::ClientId;
use core::cell::Cell;
use std::collections::BTreeSet;
use std::rc::{Rc, Weak};
use weir_fabric::{Buffer, Endpoint, FabricError};
use weir_proto::{Clock, Epoch, TenantId};
use weir_runtime::Handle;

/// Requests and replies of one context. Dropping it ends the context; handlers still run to their end, but their
/// replies are not sent.
pub struct Rpc {
    pub(crate) context: Rc<Context>,
    pub(crate) server: Rc<Server>,
}

impl Rpc {
    /// An RPC layer on this endpoint, which it takes over: it becomes the endpoint's sink.
    #[must_use]
    pub fn new(rt: Handle, endpoint: Rc<dyn Endpoint>, config: RpcConfig) -> Rc<Self> {
        Self::with_clock(rt, endpoint, config, Rc::default())
    }

    /// Like [`Rpc::new`], with a clock that the context already uses for its epochs.
    #[must_use]
    pub fn with_clock(
        rt: Handle,
        endpoint: Rc<dyn Endpoint>,
        config: RpcConfig,
        clock: Rc<Clock>,
    ) -> Rc<Self> {
        let id = ClientId::new(rt.random_u64());
        let (pending, seed) = (rt.random_u64(), rt.random_u64());
        let context = Context::new(rt, endpoint, config, clock, id, (pending, seed));
        let server = Server::new(Rc::clone(&context), seed);
        let sink: Weak<Server> = Rc::downgrade(&server);
        context.endpoint.set_sink(sink);
        // Last: from here on others may find the context.
        context.endpoint.introduce(id.bits(), context.config.keys.as_ref());
        Rc::new(Self { context, server })
    }

    /// Answers requests of this operation from now on.
    pub fn serve(&self, opcode: u16, handler: Rc<dyn Handler>) {
        self.server.serve(opcode, Served::new(handler, false));
    }

    /// The same for a handler that recognizes repeats by itself, or that may execute them again. A repeat whose
    /// reply is not remembered any more goes to the handler instead of being refused.
    pub fn serve_again(&self, opcode: u16, handler: Rc<dyn Handler>) {
        self.server.serve(opcode, Served { again: true, ..Served::new(handler, false) });
    }

    /// Says whether more operations follow in a moment. Requests for operations that are not served are then
    /// told to come again, instead of being refused.
    pub fn set_starting(&self, starting: bool) {
        self.server.phase.set(if starting { Phase::Starting } else { Phase::Serving });
    }

    /// From now on answers nobody of these tenants, and tells them so. Requests under way end. Without keys nothing tells
    /// tenants apart, and all are answered.
    pub fn turn_away_tenants(&self, tenants: BTreeSet<TenantId>) {
        if let Some(ring) = &self.context.ring {
            ring.revoke(tenants);
        }
    }

    /// Begins only urgent requests, for which others wait that were admitted before. All others are told to come
    /// again.
    pub fn drain(&self) {
        self.server.phase.set(Phase::Draining);
    }

    /// Begins only withdrawals. A running request that fails from now on is told to come again, too, because
    /// what it needs may have ended.
    pub fn turn_away(&self) {
        self.server.phase.set(Phase::Ending);
    }

    /// Answers requests of this operation from now on, also when the server is overloaded. For membership, whose
    /// requests are few, small and answered at once, and for what ends admitted work.
    pub fn serve_urgent(&self, opcode: u16, handler: Rc<dyn Handler>) {
        self.server.serve(opcode, Served::new(handler, true));
    }

    /// Sends a request and waits for its reply.
    ///
    /// Until the deadline it tries again: contact is made anew after a loss, the name is resolved anew, and a
    /// request that may be repeated is sent again under the same id. A server executes it once while it lives.
    /// The memory of `bulk` is exposed to the server during the call.
    ///
    /// When the call fails without a reply, or is dropped, the memory is withdrawn. It is not used again before
    /// no access to it can be in flight: because the provider says so, or the server does, or the server must
    /// have given up. A call with memory that is not of the pool waits for that before it fails. Otherwise it
    /// doesn't wait: buffers of the pool that the server may still write to are replaced by empty ones, and
    /// those that it may still read must only be dropped. When another incarnation of the server answers than
    /// the one that knows the memory, the call ends when the accesses in flight have ended, a second later at
    /// most. With a [`weir_fabric::MrMethod`] that leaves memory exposed there is no such protection.
    ///
    /// # Errors
    /// See [`RpcError`].
    #[inline]
    pub fn call(
        &self,
        to: &Peer,
        opcode: u16,
        body: &[u8],
        bulk: Option<Bulk<'_>>,
        options: CallOptions,
    ) -> impl Future<Output = Result<Reply, RpcError>> {
        call::call(&self.context, to, opcode, body, bulk, options, None)
    }

    /// The same. `resent` is set when the call fails after its request was sent more than once: an earlier try
    /// may have been executed, whatever the last answer was.
    ///
    /// # Errors
    /// See [`RpcError`].
    #[inline]
    pub fn call_noting(
        &self,
        to: &Peer,
        opcode: u16,
        body: &[u8],
        bulk: Option<Bulk<'_>>,
        options: CallOptions,
        resent: &Cell<bool>,
    ) -> impl Future<Output = Result<Reply, RpcError>> {
        call::call(&self.context, to, opcode, body, bulk, options, Some(resent))
    }

    /// Page-aligned memory that the fabric can move data to and from.
    ///
    /// # Errors
    /// When the pool is used up.
    pub fn alloc(&self, len: usize) -> Result<Buffer, FabricError> {
        self.context.endpoint.buffers().alloc(len)
    }

    /// Gives unused memory for transfers back to the system.
    pub fn rest(&self) {
        self.context.endpoint.buffers().rest();
    }

    /// What it has done so far.
    #[must_use]
    pub fn metrics(&self) -> &RpcMetrics {
        &self.context.metrics
    }

    /// Whether a server has refused messages of this context recently. It then better fetches data than gets it
    /// in the message ([`weir_fabric::Endpoint::is_short_of_room`]).
    #[must_use]
    pub fn is_short_of_room(&self, peer: &Peer) -> bool {
        let session = self.context.peer_state(peer).session();
        session.is_some_and(|session| self.context.endpoint.is_short_of_room(session.id))
    }

    /// Requests of this context that wait for their replies.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.context.pending.len()
    }

    /// Requests that have a credit, and those that wait for one.
    #[must_use]
    pub fn quota(&self) -> (usize, usize) {
        (self.context.requests.used(), self.context.requests.waiting())
    }

    /// Calls whose memory is exposed, and those that wait for permission to expose it.
    #[must_use]
    pub fn bulk_quota(&self) -> (usize, usize) {
        (self.context.bulks.used(), self.context.bulks.waiting())
    }

    /// Clients that this context remembers as a server, and the bytes of replies kept for them.
    #[must_use]
    pub fn remembered(&self) -> (usize, usize) {
        self.context.clients.borrow().size()
    }

    /// The endpoint underneath: its capabilities, counters and buffers.
    #[must_use]
    pub fn endpoint(&self) -> &Rc<dyn Endpoint> {
        &self.context.endpoint
    }

    /// The context's hybrid logical clock, which requests and replies move forward.
    #[must_use]
    pub fn clock(&self) -> &Rc<Clock> {
        &self.context.clock
    }

    /// A fresh epoch of the context's clock.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.context.epoch()
    }

    /// The id of this context as a server, new on every start. As a client, it has the same id at the first
    /// server that it calls, and others at others.
    #[must_use]
    pub fn id(&self) -> ClientId {
        self.context.id
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        self.server.close();
    }
}
