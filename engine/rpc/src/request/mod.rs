//! A request as its handler sees it: its body, and the client's memory, which the handler reads and writes. It
//! calls the context and the records of transfers, and asks admission for the pace and for memory. The server
//! makes requests and hands them to handlers.

mod in_flight;
mod pacing;
mod payload;

pub use payload::{Payload, PayloadShare};

use crate::admission::Pacing;
use crate::clients::{RequestInfo, RequestRecord};
use crate::context::Context;
use crate::error::Status;
use crate::metrics::add;
use crate::transfer::{AccessHandle, FRAGMENT_TIME, Fragment, Fragments, MovingFragment, TransferSlots};
use crate::wire::{Caller, Header, Layout};
use core::ops::Range;
use core::time::Duration;
use in_flight::{FragmentsInFlight, Stalls};
use std::rc::Rc;
use weir_fabric::{Access, Buffer, FabricError, Message, RemoteRegion, Transfer};
use weir_proto::{Der, Epoch, TenantId};
use weir_runtime::{Elapsed, Instant, race};

/// A request being executed. Its body stays in receive memory until the request is dropped or
/// [`Request::release_body`] is called.
pub struct Request {
    context: Rc<Context>,
    parts: Rc<RequestRecord>,
}

/// Tries of a fragment whose contact breaks. With some providers a client that withdrew its memory looks the
/// same, so that the deadline is not the only bound.
const FRAGMENT_TRIES: u32 = 3;

/// Pause before the second try of a fragment; ten times that before the third. A broken connection is replaced
/// in a few milliseconds.
const FRAGMENT_PAUSE: Duration = Duration::from_millis(10);

/// Whether a transfer that failed with this may succeed on another try.
fn is_transient(error: &FabricError) -> bool {
    matches!(error, FabricError::Unreachable { .. } | FabricError::Cancelled | FabricError::UnknownPeer)
}

impl Request {
    /// A request that takes over the message in which it arrived.
    #[inline(always)]
    pub(crate) fn new(
        context: Rc<Context>,
        caller: Caller,
        header: &Header,
        message: &mut Message,
        layout: &Layout,
        deadline: Instant,
    ) -> Self {
        let parts = context.spare_requests.take(|place| {
            place.header = RequestInfo::new(caller, header);
            // The recycled record's message is empty.
            core::mem::swap(&mut place.message, message);
            place.body = layout.body.clone();
            place.deadline = deadline;
        });
        Self { context, parts }
    }

    /// Notes the memory that the client has exposed for it. Returns the list of segments that an earlier request
    /// left in the record.
    pub(crate) fn attach_memory(
        &mut self,
        segments: Vec<(RemoteRegion, Access)>,
        accesses: AccessHandle,
    ) -> Vec<(RemoteRegion, Access)> {
        // The record has no other owner.
        let Some(parts) = Rc::get_mut(&mut self.parts) else { return Vec::new() };
        parts.accesses = Some(accesses);
        core::mem::replace(&mut parts.segments, segments)
    }

    pub(crate) fn context(&self) -> &Rc<Context> {
        &self.context
    }

    /// The operation.
    #[must_use]
    pub fn opcode(&self) -> u16 {
        self.parts.header.opcode
    }

    /// The body, where it was received. Empty after [`Request::release_body`].
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.parts.message.get(self.parts.body.clone()).unwrap_or_default()
    }

    /// Frees the receive memory of the body. For handlers that have decoded it and take long.
    pub fn release_body(&mut self) {
        // The record has no other owner.
        if let Some(parts) = Rc::get_mut(&mut self.parts) {
            parts.message = Message::default();
        }
    }

    /// When the client gives up.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.parts.deadline
    }

    /// The client that asks, by tenant and incarnation.
    #[must_use]
    pub fn client(&self) -> Caller {
        self.parts.header.caller
    }

    /// The client's number of this request. Repeats have the same.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.parts.header.request
    }

    /// The client repeats no request below this number.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.parts.header.acked
    }

    /// The client's clock when it sent the request.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.parts.header.epoch
    }

    /// The tenant that asks. Where this side has keys, the client has proved it with its tenant's key. Without
    /// keys it is the client's VNI if the network tells it, else 0.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        self.parts.header.caller.tenant
    }

    /// Bytes of client memory that can be pulled.
    #[must_use]
    pub fn bulk_len(&self) -> u64 {
        self.total(Access::Read)
    }

    /// Bytes of client memory that can be pushed to.
    #[must_use]
    pub fn bulk_room(&self) -> u64 {
        self.total(Access::Write)
    }

    fn total(&self, access: Access) -> u64 {
        self.parts.segments.iter().filter(|segment| segment.1 == access).map(|segment| segment.0.len).sum()
    }

    /// Waits for page-aligned memory of `len` bytes, for data on its way between the client's memory and this
    /// side. Its total is bounded and shared between tenants and clients.
    ///
    /// # Errors
    /// `DER_NOMEM` when none was free before the deadline.
    pub async fn payload(&self, len: usize) -> Result<Payload, Status> {
        let RequestRecord { header, accesses, deadline, .. } = &*self.parts;
        payload::take(&self.context, header.caller, accesses.clone(), (len, *deadline)).await
    }

    /// Copies `len` bytes of client memory from `offset` to the start of a buffer.
    ///
    /// # Errors
    /// When the range is outside what the client exposed, the deadline has passed, or contact was lost.
    /// When it fails or is dropped before all fragments have arrived, `into` is replaced by an empty buffer,
    /// because late data may still arrive in its memory.
    pub async fn pull(&self, offset: u64, into: &mut Buffer, len: usize) -> Result<(), Status> {
        self.pull_into(offset, into, 0..len).await
    }

    /// Copies client memory from `offset` to a part of a buffer.
    ///
    /// # Errors
    /// As [`Request::pull`].
    pub async fn pull_into(&self, offset: u64, into: &mut Buffer, range: Range<usize>) -> Result<(), Status> {
        self.check_local(into.len(), &range)?;
        self.pull_parts(offset, &mut [(into, range.clone())], &[range]).await
    }

    /// Copies client memory from `offset` to parts of several buffers, one after another, as one transfer: its
    /// fragments overlap across buffers.
    ///
    /// # Errors
    /// As [`Request::pull`]; all buffers are replaced then.
    pub async fn pull_scattered(
        &self,
        offset: u64,
        into: &mut [(&mut Buffer, Range<usize>)],
    ) -> Result<(), Status> {
        let local: Vec<Range<usize>> = into
            .iter()
            .map(|(buffer, range)| self.check_local(buffer.len(), range).map(|()| range.clone()))
            .collect::<Result<_, _>>()?;
        self.pull_parts(offset, into, &local).await
    }

    /// `local`: the ranges in `into`, which were checked.
    async fn pull_parts(
        &self,
        offset: u64,
        into: &mut [(&mut Buffer, Range<usize>)],
        local: &[Range<usize>],
    ) -> Result<(), Status> {
        let fragments = self.fragments(Access::Read, offset, local)?;
        let guard = &mut Detach { parts: into, armed: true };
        let context = &self.context;
        self.run(Access::Read, fragments, |fragment| {
            let peer = self.peer()?;
            let Some((buffer, _)) = guard.parts.get_mut(fragment.part) else { return Err(Self::no_part()) };
            Ok(context.endpoint.read(peer, buffer, fragment.local.clone(), fragment.remote))
        })
        .await?;
        guard.armed = false;
        add(&context.metrics.bulk_pulled_bytes, local.iter().map(|range| range.len() as u64).sum());
        Ok(())
    }

    /// Copies the first `len` bytes of a buffer to client memory at `offset`. When it returns, the client's memory
    /// has them.
    ///
    /// # Errors
    /// When the range is outside what the client exposed, the deadline has passed, or contact was lost.
    pub async fn push(&self, offset: u64, from: &Buffer, len: usize) -> Result<(), Status> {
        self.push_from(offset, from, 0..len).await
    }

    /// Copies a part of a buffer to client memory at `offset`.
    ///
    /// # Errors
    /// As [`Request::push`].
    pub async fn push_from(&self, offset: u64, from: &Buffer, range: Range<usize>) -> Result<(), Status> {
        self.check_local(from.len(), &range)?;
        self.push_parts(offset, &[(from, range.clone())], &[range]).await
    }

    /// Copies parts of several buffers, one after another, to client memory at `offset`, as one transfer.
    ///
    /// # Errors
    /// As [`Request::push`].
    pub async fn push_gathered(&self, offset: u64, from: &[(&Buffer, Range<usize>)]) -> Result<(), Status> {
        let local: Vec<Range<usize>> = from
            .iter()
            .map(|(buffer, range)| self.check_local(buffer.len(), range).map(|()| range.clone()))
            .collect::<Result<_, _>>()?;
        self.push_parts(offset, from, &local).await
    }

    /// `local`: the ranges in `from`, which were checked.
    async fn push_parts(
        &self,
        offset: u64,
        from: &[(&Buffer, Range<usize>)],
        local: &[Range<usize>],
    ) -> Result<(), Status> {
        let fragments = self.fragments(Access::Write, offset, local)?;
        let context = &self.context;
        self.run(Access::Write, fragments, |fragment| {
            let peer = self.peer()?;
            let Some((buffer, _)) = from.get(fragment.part) else { return Err(Self::no_part()) };
            Ok(context.endpoint.write(peer, buffer, fragment.local.clone(), fragment.remote))
        })
        .await?;
        add(&context.metrics.bulk_pushed_bytes, local.iter().map(|range| range.len() as u64).sum());
        Ok(())
    }

    fn no_part() -> Status {
        Status::new(Der::INVAL, "a fragment of a transfer belongs to none of its buffers")
    }

    /// The peer by which the client is reached now.
    fn peer(&self) -> Result<weir_fabric::PeerId, Status> {
        let peer = self.context.clients.borrow().peer(self.parts.header.caller);
        peer.ok_or_else(|| Status::new(Der::UNREACH, "the client was forgotten while its request ran"))
    }

    fn check_local(&self, len: usize, range: &Range<usize>) -> Result<(), Status> {
        if range.start <= range.end && range.end <= len {
            return Ok(());
        }
        let text = format!(
            "operation {:#06x} moves bytes {range:?} of a buffer of {len} bytes",
            self.parts.header.opcode
        );
        Err(Status::new(Der::INVAL, text))
    }

    /// The fragments of a transfer, if all of it is within what the client exposed.
    fn fragments<'a>(
        &'a self,
        access: Access,
        offset: u64,
        local: &'a [Range<usize>],
    ) -> Result<Fragments<'a>, Status> {
        let total = self.total(access);
        let len: u64 = local.iter().map(|range| range.len() as u64).sum();
        if offset.checked_add(len).is_none_or(|end| end > total) {
            let text = format!("the client exposed {total} bytes; {len} bytes from {offset} on are outside");
            return Err(Status::new(Der::INVAL, text));
        }
        Ok(Fragments::new(&self.parts.segments, access, offset, local))
    }

    /// Runs the fragments concurrently, as many as there are transfer slots. None starts after the deadline.
    async fn run(
        &self,
        access: Access,
        mut fragments: Fragments<'_>,
        mut start: impl FnMut(&Fragment) -> Result<Transfer, Status>,
    ) -> Result<(), Status> {
        let rt = &self.context.rt;
        let pace = self.context.pace_of(access);
        let mut in_flight = FragmentsInFlight::new(&self.context, self.parts.accesses.as_ref());
        let mut stalls = Stalls::default();
        while !fragments.is_empty() || !in_flight.is_empty() {
            self.may_go_on()?;
            let slot = self.slot(&fragments, pace);
            let slot = match (slot, in_flight.oldest()) {
                (Some(slot), _) => slot,
                (None, None) => {
                    let (caller, next) = (self.parts.header.caller, (pace, fragments.next_len()));
                    let pace = self.context.pace(caller, next, self.parts.deadline).await;
                    let slot = rt.timeout_at(self.parts.deadline, self.context.transfers.acquire()).await;
                    let closing = |_| Status::new(Der::CANCELED, "the context is closing");
                    let slot = slot.map_err(|Elapsed| self.expired())?.map_err(closing)?;
                    self.may_go_on()?;
                    (slot, pace)
                }
                (None, Some(oldest)) => {
                    // No fragment can start, or none is left. The oldest one has to end first.
                    let Some(done) = self.wait_for(oldest).await? else {
                        // A client that has stopped delays only its own transfers.
                        in_flight.give_up_slots();
                        stalls.count(&self.context, self.parts.header.caller);
                        continue;
                    };
                    // The slot is held until here: one that is freed before its transfer has ended bounds
                    // nothing.
                    let Some(fragment) = in_flight.take() else { continue };
                    if stalls.are_many() {
                        Stalls::end(&self.context, self.parts.header.caller);
                    }
                    if let Some(again) = self.after(fragment, done, &stalls).await? {
                        fragments.put_back(again);
                    }
                    stalls = Stalls::default();
                    continue;
                }
            };
            if self.context.give_way(pace).await {
                self.may_go_on()?;
            }
            if let Some(fragment) = fragments.take() {
                let transfer = start(&fragment)?;
                in_flight.add(MovingFragment::new(fragment, transfer, slot));
                // A fragment that has ended already is continued while its data is in the processor's cache.
                self.context.endpoint.look_at_once();
                if pace == Pacing::Serial {
                    // This thread has copied the fragment. It looks for small messages that came meanwhile.
                    rt.end_turn();
                    if !fragments.is_empty() {
                        rt.yield_now().await;
                    }
                }
            }
        }
        if rt.now() > self.parts.deadline { Err(self.expired()) } else { Ok(()) }
    }

    /// Waits for a fragment for at most [`FRAGMENT_TIME`]. `None`: it has not ended.
    async fn wait_for(&self, moving: &mut MovingFragment) -> Result<Option<Result<(), FabricError>>, Status> {
        let ended = moving.transfer.outcome();
        if ended.is_some() {
            return Ok(ended);
        }
        let (rt, deadline) = (&self.context.rt, self.parts.deadline);
        let patience = rt.now() + FRAGMENT_TIME;
        let ended = rt.timeout_at(deadline.min(patience), &mut moving.transfer).await.ok();
        if ended.is_none() && deadline <= patience { Err(self.expired()) } else { Ok(ended) }
    }

    /// Whether accesses to the client's memory may still begin.
    fn may_go_on(&self) -> Result<(), Status> {
        if self.parts.accesses.as_ref().is_some_and(|accesses| accesses.is_withdrawn()) {
            return Err(Status::new(Der::CANCELED, "the client has given the request up"));
        }
        if self.context.rt.now() >= self.parts.deadline { Err(self.expired()) } else { Ok(()) }
    }

    /// A transfer slot and the pacing permit for the next fragment, if both are free.
    fn slot(&self, fragments: &Fragments<'_>, pace: Pacing) -> Option<TransferSlots> {
        if fragments.is_empty() {
            return None;
        }
        let pace = self.context.try_pace(self.parts.header.caller, (pace, fragments.next_len()))?;
        Some((self.context.transfers.try_acquire()?, pace))
    }

    /// What to do with a fragment that has ended: `Some` is tried again, after a pause.
    async fn after(
        &self,
        mut fragment: Fragment,
        done: Result<(), FabricError>,
        stalls: &Stalls,
    ) -> Result<Option<Fragment>, Status> {
        match done {
            Ok(()) => Ok(None),
            Err(error)
                if !stalls.are_many() && is_transient(&error) && fragment.tries + 1 < FRAGMENT_TRIES =>
            {
                add(&self.context.metrics.bulk_retries, 1);
                let pause = FRAGMENT_PAUSE * 10u32.pow(fragment.tries);
                race(self.context.rt.sleep(pause), self.context.rt.sleep_until(self.parts.deadline)).await;
                fragment.tries += 1;
                Ok(Some(fragment))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn expired(&self) -> Status {
        add(&self.context.metrics.bulk_expired, 1);
        let text = format!(
            "the deadline of operation {:#06x} passed during its bulk transfer",
            self.parts.header.opcode
        );
        Status::new(Der::TIMEDOUT, text)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let Some(parts) = Rc::get_mut(&mut self.parts) else { return };
        (parts.message, parts.accesses) = (Message::default(), None);
        // The list keeps its capacity, of at most sixty-four segments.
        parts.segments.clear();
        self.context.spare_requests.keep(&self.parts);
    }
}

impl core::fmt::Debug for Request {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Request").field("header", &self.parts.header).finish_non_exhaustive()
    }
}

/// Replaces the buffers by empty ones unless all transfers into them have ended.
struct Detach<'a, 'b> {
    parts: &'a mut [(&'b mut Buffer, Range<usize>)],
    armed: bool,
}

impl Drop for Detach<'_, '_> {
    fn drop(&mut self) {
        if self.armed {
            for (buffer, _) in self.parts.iter_mut() {
                **buffer = Buffer::empty();
            }
        }
    }
}
