//! Client memory that a server may read or write during one call, and its withdrawal when the call fails.

use super::call_uncounted;
use crate::admission::Permit;
use crate::config::CallOptions;
use crate::contact::PeerState;
use crate::context::Context;
use crate::error::RpcError;
use crate::metrics::add;
use crate::reply::Reply;
use crate::transfer::{ExposureLists, FRAGMENT_TIME, WITHDRAWAL_GRACE};
use crate::wire::{ClientId, SEGMENT_LEN, SEGMENTS_MAX, encode_segment};
use core::cell::Cell;
use core::ops::Range;
use core::pin::Pin;
use smallvec::SmallVec;
use std::rc::Rc;
use weir_fabric::{Access, Buffer, Closed, Ending, Exposure, MemoryHold, Transfer};
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::{Attention, Instant};

enum SegmentBuffer<'a> {
    Read(&'a Buffer),
    Write(&'a mut Buffer),
}

struct Segment<'a> {
    buffer: SegmentBuffer<'a>,
    range: Range<usize>,
}

impl Segment<'_> {
    fn buffer(&self) -> &Buffer {
        match &self.buffer {
            SegmentBuffer::Read(buffer) => buffer,
            SegmentBuffer::Write(buffer) => buffer,
        }
    }

    const fn access(&self) -> Access {
        match self.buffer {
            SegmentBuffer::Read(_) => Access::Read,
            SegmentBuffer::Write(_) => Access::Write,
        }
    }
}

/// Memory of the caller that the server may read or write during the call, as a list of segments. The server's
/// offsets count over all readable segments in their order, and separately over all writable segments.
#[derive(Default)]
pub struct Bulk<'a> {
    /// Most calls have one.
    segments: SmallVec<[Segment<'a>; 1]>,
}

impl<'a> Bulk<'a> {
    /// No memory yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A whole buffer that the server may read.
    #[must_use]
    pub fn read(buffer: &'a Buffer) -> Self {
        Self::new().and_read(buffer, 0..buffer.len())
    }

    /// A whole buffer that the server may write to.
    #[must_use]
    pub fn write(buffer: &'a mut Buffer) -> Self {
        let range = 0..buffer.len();
        Self::new().and_write(buffer, range)
    }

    /// Adds a part of a buffer that the server may read.
    #[must_use]
    pub fn and_read(mut self, buffer: &'a Buffer, range: Range<usize>) -> Self {
        self.segments.push(Segment { buffer: SegmentBuffer::Read(buffer), range });
        self
    }

    /// Adds a part of a buffer that the server may write to.
    #[must_use]
    pub fn and_write(mut self, buffer: &'a mut Buffer, range: Range<usize>) -> Self {
        self.segments.push(Segment { buffer: SegmentBuffer::Write(buffer), range });
        self
    }

    /// Number of segments.
    #[must_use]
    pub fn len(&self) -> usize {
        self.segments.len()
    }

    /// Whether there is no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }
}

/// Which incarnation of the server has received the descriptors of a call's memory. An incarnation can speak
/// only for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DescriptorHolder {
    /// None yet.
    Nobody,
    /// This one.
    By(ClientId),
    /// Several; only the last of them can be asked.
    BySeveral,
}

/// The exposures of one call. However the call ends, its memory is not used again while an access to it can be
/// in flight.
pub(crate) struct Exposed<'a, 'b> {
    context: &'a Rc<Context>,
    state: Rc<PeerState>,
    request: u64,
    /// Borrowed from the call, so that it isn't moved.
    bulk: &'a mut Bulk<'b>,
    /// Permission to expose memory, held as long as memory is exposed.
    permit: Option<Permit>,
    lists: ExposureLists,
    deadline: Instant,
    seen: Cell<DescriptorHolder>,
    /// What is left to find out after the exposures have ended.
    withdrawal: Option<Box<Withdrawal>>,
    /// Keeps this thread from sleeping: the reply comes sooner than the thread could be woken.
    _attention: Attention,
}

impl<'a, 'b> Exposed<'a, 'b> {
    pub(crate) fn new(
        context: &'a Rc<Context>,
        state: &Rc<PeerState>,
        request: u64,
        (bulk, permit): (&'a mut Bulk<'b>, Permit),
        deadline: Instant,
    ) -> Result<Self, RpcError> {
        let lists = context.spare_lists.take().unwrap_or_default();
        let seen = Cell::new(DescriptorHolder::Nobody);
        let mut exposed = Self {
            context,
            state: Rc::clone(state),
            request,
            bulk,
            permit: Some(permit),
            lists,
            deadline,
            seen,
            withdrawal: None,
            _attention: context.rt.attend(),
        };
        let count = exposed.bulk.len();
        if count > SEGMENTS_MAX {
            return Err(RpcError::Scattered { count, max: SEGMENTS_MAX });
        }
        exposed.lists.descriptors.reserve(count * SEGMENT_LEN);
        for segment in exposed.bulk.segments.iter().filter(|segment| !segment.range.is_empty()) {
            // On failure, dropping `exposed` withdraws the earlier segments.
            let exposure =
                context.endpoint.expose(segment.buffer(), segment.range.clone(), segment.access())?;
            exposed.lists.descriptors.extend(encode_segment(exposure.region(), segment.access()));
            exposed.lists.exposures.push(exposure);
        }
        Ok(exposed)
    }

    pub(crate) fn descriptors(&self) -> &[u8] {
        &self.lists.descriptors
    }

    pub(crate) fn count(&self) -> u16 {
        let count = self.lists.exposures.len();
        debug_assert!(count <= SEGMENTS_MAX, "more segments than a request names");
        #[expect(clippy::cast_possible_truncation, reason = "there are at most SEGMENTS_MAX")]
        let count = count as u16;
        count
    }

    /// The request was sent to this incarnation of the server.
    pub(crate) fn sent_to(&self, server: ClientId) {
        self.seen.set(match self.seen.get() {
            DescriptorHolder::Nobody => DescriptorHolder::By(server),
            DescriptorHolder::By(known) if known == server => DescriptorHolder::By(server),
            DescriptorHolder::By(_) | DescriptorHolder::BySeveral => DescriptorHolder::BySeveral,
        });
    }

    /// This incarnation of the server has answered, if any, and is done with the memory. Returns `false` when
    /// another incarnation may still access it.
    pub(crate) fn settle(&mut self, by: Option<ClientId>) -> bool {
        let settled = match self.seen.get() {
            DescriptorHolder::Nobody => true,
            DescriptorHolder::By(server) => by == Some(server),
            DescriptorHolder::BySeveral => false,
        };
        if settled {
            self.lists.exposures.drain(..).for_each(Exposure::settle);
        }
        settled
    }

    /// The call was answered by another incarnation than the one that may access the memory. Ends the exposures,
    /// so that no access begins, and waits for those in flight.
    pub(crate) async fn close_and_wait(mut self) {
        self.withdrawal = self.close_all().map(Box::new);
        if let Some(withdrawal) = &mut self.withdrawal {
            withdrawal.wait().await;
        }
        self.withdrawal = None;
    }

    /// Ends the exposures, whatever accesses are under way. Returns what has to be waited for.
    fn close_all(&mut self) -> Option<Withdrawal> {
        let mut withdrawal = self.withdrawal();
        for exposure in self.lists.exposures.drain(..) {
            let Closed { hold, ending } = exposure.close();
            match ending {
                Ending::Pending(transfer) => withdrawal.counted.push((transfer, hold)),
                Ending::Untold => withdrawal.closed.push(hold),
                Ending::Exposed => add(&self.context.metrics.left_exposed, 1),
                Ending::Certain => {}
            }
        }
        withdrawal.begin()
    }

    /// An empty withdrawal of this call's memory.
    fn withdrawal(&mut self) -> Withdrawal {
        let closed_until = self.context.rt.now() + FRAGMENT_TIME;
        Withdrawal {
            context: Rc::clone(self.context),
            state: Rc::clone(&self.state),
            request: self.request,
            _permit: self.permit.take(),
            seen: self.seen.get(),
            // The deadline of a client that was suspended is long past. Writes to its memory were delayed as
            // long.
            until: (self.deadline + WITHDRAWAL_GRACE).max(closed_until),
            counted: Vec::new(),
            closed_until,
            closed: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// The call failed, and the server may be executing it. Waits if the memory is the application's, or if the
    /// provider counts accesses, which takes little time. Otherwise this goes on in the background.
    pub(crate) async fn withdraw(mut self) {
        let foreign = self.lists.exposures.iter().any(Exposure::is_foreign);
        self.withdrawal = self.end().map(Box::new);
        if let Some(withdrawal) = &mut self.withdrawal
            && (foreign || withdrawal.untold.is_empty())
        {
            withdrawal.wait().await;
            self.withdrawal = None;
        }
    }

    /// Ends the exposures. Those of which the provider doesn't tell accesses end only when the server has
    /// confirmed. Returns what is left to find out.
    fn end(&mut self) -> Option<Withdrawal> {
        let nobody = self.seen.get() == DescriptorHolder::Nobody;
        let mut withdrawal = self.withdrawal();
        for exposure in self.lists.exposures.drain(..) {
            if !nobody && exposure.is_untold() {
                withdrawal.untold.push(exposure);
                continue;
            }
            let Closed { hold, ending } = exposure.close();
            match ending {
                Ending::Pending(transfer) if !nobody => withdrawal.counted.push((transfer, hold)),
                Ending::Exposed if !nobody => add(&self.context.metrics.left_exposed, 1),
                _ => {}
            }
        }
        withdrawal.begin()
    }

    /// Goes on in the background. The caller loses the buffers that the server may still write to.
    fn finish_in_background(&mut self, withdrawal: Withdrawal) {
        for segment in &mut self.bulk.segments {
            if let SegmentBuffer::Write(buffer) = &mut segment.buffer {
                **buffer = Buffer::empty();
            }
        }
        self.context.rt.spawn(withdrawal.finish());
    }
}

impl Drop for Exposed<'_, '_> {
    /// The call was dropped, or doesn't wait for what is left to find out.
    fn drop(&mut self) {
        let begun = self.withdrawal.take().map(|withdrawal| *withdrawal);
        if let Some(withdrawal) = begun.or_else(|| self.end()) {
            self.finish_in_background(withdrawal);
        }
        // The exposures have ended, or belong to the withdrawal.
        self.lists.descriptors.clear();
        self.context.spare_lists.put(core::mem::take(&mut self.lists));
    }
}

/// Memory of a call that has ended, which the server may still access.
struct Withdrawal {
    context: Rc<Context>,
    state: Rc<PeerState>,
    request: u64,
    seen: DescriptorHolder,
    until: Instant,
    /// Permission to expose memory.
    _permit: Option<Permit>,
    /// Memory whose accesses the provider counts. Each transfer completes when they have ended.
    counted: Vec<(Transfer, MemoryHold)>,
    /// Memory whose exposure has ended and of which the provider tells no accesses.
    closed: Vec<MemoryHold>,
    /// An access to `closed` may be in flight until then.
    closed_until: Instant,
    /// Memory that is still exposed, because the provider tells no accesses.
    untold: Vec<Exposure>,
}

impl Withdrawal {
    /// Counts the withdrawal, if there is anything to find out.
    fn begin(self) -> Option<Self> {
        let known = self.counted.is_empty() && self.closed.is_empty() && self.untold.is_empty();
        if !known {
            add(&self.context.metrics.withdrawals, 1);
        }
        (!known).then_some(self)
    }

    /// Finds out whether an access can be in flight. Returns until when, if neither provider nor server says
    /// that none is.
    async fn find_out(&mut self) -> Option<Instant> {
        let metrics = &self.context.metrics;
        while let Some((transfer, _hold)) = self.counted.last_mut() {
            // It completes with the access or with the endpoint.
            if self.context.rt.timeout_at(self.until, transfer).await.is_err() {
                add(&metrics.withdrawals_waited, 1);
                break;
            }
            self.counted.pop();
        }
        let untold = !self.untold.is_empty();
        if untold && confirm(&self.context, &self.state, self.request, self.seen, self.until).await {
            add(&metrics.withdrawals_confirmed, 1);
            self.untold.drain(..).for_each(Exposure::settle);
            return None;
        }
        let waits = untold || !self.closed.is_empty();
        add(&metrics.withdrawals_waited, u64::from(waits));
        waits.then_some(if untold { self.until } else { self.closed_until })
    }

    /// Waits until no access can be in flight.
    async fn wait(&mut self) {
        if let Some(until) = self.find_out().await {
            self.context.rt.sleep_until(until).await;
        }
    }

    /// The same in the background.
    async fn finish(mut self) {
        let Some(until) = self.find_out().await else { return };
        let Self { context, state, closed, untold, _permit, .. } = self;
        let rt = context.rt.clone();
        // Only the memory is needed from here on.
        drop((context, state));
        rt.sleep_until(until).await;
        drop((closed, untold));
    }
}

/// Asks the server to finish its accesses to a request's memory. Returns whether it has.
async fn confirm(
    context: &Rc<Context>,
    state: &Rc<PeerState>,
    request: u64,
    seen: DescriptorHolder,
    until: Instant,
) -> bool {
    let DescriptorHolder::By(server) = seen else { return false };
    let body = request.to_le_bytes();
    let options = CallOptions::until(until).urgent();
    // Boxed: this is at the end of calls, and would make every call's future larger.
    let asked: Pin<Box<dyn Future<Output = Result<Reply, RpcError>> + '_>> =
        Box::pin(call_uncounted(context, &state.peer, REQUEST_WITHDRAW, &body, options));
    // Another incarnation can't speak for the one that had the request.
    asked.await.is_ok_and(|reply| reply.server() == server)
}
