//! Client memory that a server may read or write during one call.

use super::call_uncounted;
use crate::admission::Permit;
use crate::config::CallOptions;
use crate::contact::PeerState;
use crate::context::Context;
use crate::error::RpcError;
use crate::metrics::add;
use crate::reply::Reply;
use crate::transfer::{Lists, PIECE_TIME, WITHDRAWAL_GRACE};
use crate::wire::{ClientId, SEGMENT_LEN, SEGMENTS_MAX, encode_segment};
use core::cell::Cell;
use core::ops::Range;
use core::pin::Pin;
use smallvec::SmallVec;
use std::rc::Rc;
use weir_fabric::{Access, Buffer, Closed, Ending, Exposure, MemoryHold, Transfer};
use weir_proto::opcode::REQUEST_WITHDRAW;
use weir_runtime::{Attention, Instant};

enum Lent<'a> {
    Read(&'a Buffer),
    Write(&'a mut Buffer),
}

struct Segment<'a> {
    lent: Lent<'a>,
    range: Range<usize>,
}

impl Segment<'_> {
    fn buffer(&self) -> &Buffer {
        match &self.lent {
            Lent::Read(buffer) => buffer,
            Lent::Write(buffer) => buffer,
        }
    }

    const fn access(&self) -> Access {
        match self.lent {
            Lent::Read(_) => Access::Read,
            Lent::Write(_) => Access::Write,
        }
    }
}

/// Memory of the caller that the server may read or write while the call lasts: a list of segments. Offsets that the
/// server uses count over all readable segments one after another, and separately over all writable ones.
#[derive(Default)]
pub struct Bulk<'a> {
    /// Most calls lend one.
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
        self.segments.push(Segment { lent: Lent::Read(buffer), range });
        self
    }

    /// Adds a part of a buffer that the server may write to.
    #[must_use]
    pub fn and_write(mut self, buffer: &'a mut Buffer, range: Range<usize>) -> Self {
        self.segments.push(Segment { lent: Lent::Write(buffer), range });
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

/// Which incarnation of the server has seen the descriptors of a call's memory. It can speak for itself only.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Seen {
    /// None yet.
    Nobody,
    /// This one.
    By(ClientId),
    /// Several, of which only the last can be asked.
    BySeveral,
}

/// The registrations of one call. Whatever way the call ends, its memory is not used again before no access to it can be
/// under way.
pub(crate) struct Exposed<'a, 'b> {
    context: &'a Rc<Context>,
    state: Rc<PeerState>,
    request: u64,
    /// Where the call has it: it is not moved.
    bulk: &'a mut Bulk<'b>,
    /// Leave to have memory exposed, for as long as it is.
    leave: Option<Permit>,
    lists: Lists,
    deadline: Instant,
    seen: Cell<Seen>,
    /// What is left to find out once the exposures have ended.
    withdrawal: Option<Box<Withdrawal>>,
    /// The reply comes when the server has moved the data, which takes less than to wake this thread.
    _attention: Attention,
}

impl<'a, 'b> Exposed<'a, 'b> {
    pub(crate) fn new(
        context: &'a Rc<Context>,
        state: &Rc<PeerState>,
        request: u64,
        (bulk, leave): (&'a mut Bulk<'b>, Permit),
        deadline: Instant,
    ) -> Result<Self, RpcError> {
        let lists = context.spare_lists.take().unwrap_or_default();
        let seen = Cell::new(Seen::Nobody);
        let mut exposed = Self {
            context,
            state: Rc::clone(state),
            request,
            bulk,
            leave: Some(leave),
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
            // What was exposed before is withdrawn when this fails.
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
        u16::try_from(self.lists.exposures.len()).unwrap_or(0)
    }

    /// The request went out to this incarnation of the server.
    pub(crate) fn sent_to(&self, server: ClientId) {
        self.seen.set(match self.seen.get() {
            Seen::Nobody => Seen::By(server),
            Seen::By(known) if known == server => Seen::By(server),
            Seen::By(_) | Seen::BySeveral => Seen::BySeveral,
        });
    }

    /// This incarnation of the server has answered, if any: it has finished with the memory. `false`: another one may not
    /// have.
    pub(crate) fn settle(&mut self, by: Option<ClientId>) -> bool {
        let settled = match self.seen.get() {
            Seen::Nobody => true,
            Seen::By(server) => by == Some(server),
            Seen::BySeveral => false,
        };
        if settled {
            self.lists.exposures.drain(..).for_each(Exposure::settle);
        }
        settled
    }

    /// The call was answered, and another incarnation than answered may be at the memory. It begins no access any more; waits
    /// for those under way.
    pub(crate) async fn outlast(mut self) {
        self.withdrawal = self.cut_off().map(Box::new);
        if let Some(withdrawal) = &mut self.withdrawal {
            withdrawal.wait().await;
        }
        self.withdrawal = None;
    }

    /// Ends the exposures, whoever is at them. Returns what has to be waited for.
    fn cut_off(&mut self) -> Option<Withdrawal> {
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

    /// A withdrawal of what is to be put into it.
    fn withdrawal(&mut self) -> Withdrawal {
        let closed_until = self.context.rt.now() + PIECE_TIME;
        Withdrawal {
            context: Rc::clone(self.context),
            state: Rc::clone(&self.state),
            request: self.request,
            _leave: self.leave.take(),
            seen: self.seen.get(),
            // A client that has stood still finds its deadline long past, and has held up what is written to its memory.
            until: (self.deadline + WITHDRAWAL_GRACE).max(closed_until),
            counted: Vec::new(),
            closed_until,
            closed: Vec::new(),
            untold: Vec::new(),
        }
    }

    /// The call failed and the server may be at work. Waits where the memory is the application's, and where the
    /// provider counts accesses, which are short. Else this goes on in the background.
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

    /// Ends the exposures, those of which the provider will not tell only when the server has been asked. Returns what is
    /// left to find out.
    fn end(&mut self) -> Option<Withdrawal> {
        let nobody = self.seen.get() == Seen::Nobody;
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

    /// Finds out in the background. What the server may still write to is not the caller's any more.
    fn leave(&mut self, withdrawal: Withdrawal) {
        for segment in &mut self.bulk.segments {
            if let Lent::Write(buffer) = &mut segment.lent {
                **buffer = Buffer::empty();
            }
        }
        self.context.rt.spawn(withdrawal.finish());
    }
}

impl Drop for Exposed<'_, '_> {
    /// Nobody waits for what is left to find out: the call was dropped, or goes on without.
    fn drop(&mut self) {
        let begun = self.withdrawal.take().map(|withdrawal| *withdrawal);
        if let Some(withdrawal) = begun.or_else(|| self.end()) {
            self.leave(withdrawal);
        }
        // The exposures have ended, or are the withdrawal's.
        self.lists.descriptors.clear();
        self.context.spare_lists.put(core::mem::take(&mut self.lists));
    }
}

/// Memory of a call that has ended, which a server may still be at.
struct Withdrawal {
    context: Rc<Context>,
    state: Rc<PeerState>,
    request: u64,
    seen: Seen,
    until: Instant,
    /// Leave to have it exposed.
    _leave: Option<Permit>,
    /// Memory whose accesses the provider has counted, with what is complete when they have ended.
    counted: Vec<(Transfer, MemoryHold)>,
    /// Memory that is exposed no more, of which the provider doesn't tell.
    closed: Vec<MemoryHold>,
    /// Until when an access to that may be under way.
    closed_until: Instant,
    /// Memory that still is, because the provider doesn't tell.
    untold: Vec<Exposure>,
}

impl Withdrawal {
    /// Counts it in, if there is anything to find out.
    fn begin(self) -> Option<Self> {
        let known = self.counted.is_empty() && self.closed.is_empty() && self.untold.is_empty();
        if !known {
            add(&self.context.metrics.withdrawals, 1);
        }
        (!known).then_some(self)
    }

    /// Finds out whether an access can be under way. Returns until when, where nobody says that none is.
    async fn find_out(&mut self) -> Option<Instant> {
        let metrics = &self.context.metrics;
        while let Some((transfer, _hold)) = self.counted.last_mut() {
            // It ends with the access or with the endpoint.
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

    /// Waits until no access can be under way.
    async fn wait(&mut self) {
        if let Some(until) = self.find_out().await {
            self.context.rt.sleep_until(until).await;
        }
    }

    /// The same in the background.
    async fn finish(mut self) {
        let Some(until) = self.find_out().await else { return };
        let Self { context, state, closed, untold, _leave, .. } = self;
        let rt = context.rt.clone();
        // Nothing but the memory is needed any more.
        drop((context, state));
        rt.sleep_until(until).await;
        drop((closed, untold));
    }
}

/// Asks the server to be done with the memory of a request, and whether it is.
async fn confirm(
    context: &Rc<Context>,
    state: &Rc<PeerState>,
    request: u64,
    seen: Seen,
    until: Instant,
) -> bool {
    let Seen::By(server) = seen else { return false };
    let body = request.to_le_bytes();
    let options = CallOptions::until(until).urgent();
    // Boxed, because calls end with this.
    let asked: Pin<Box<dyn Future<Output = Result<Reply, RpcError>> + '_>> =
        Box::pin(call_uncounted(context, &state.peer, REQUEST_WITHDRAW, &body, options));
    // Another incarnation can't speak for the one that had the request.
    asked.await.is_ok_and(|reply| reply.server() == server)
}
