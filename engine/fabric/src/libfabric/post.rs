//! Posting operations to the provider, queueing those that find no room, and retrying them.
#![expect(unsafe_code, reason = "posting memory to libfabric")]

use super::doorbell::{PeerDoorbell, RingOutcome};
use super::ops::{Op, OpId, Unsent};
use super::peers::KnownPeer;
use super::progress::{Core, is_contact_loss};
use super::raw::{Posted, RawTransfer, Registration, Usage, failure, reason};
use super::sys;
use crate::counters::add;
use crate::endpoint::{ReceiveMode, SlabLease};
use crate::memory::{Access, Buffer, Memory};
use crate::{Address, FabricError, PeerId};
use core::ffi::c_void;
use std::rc::Rc;

/// Memory of a small message: one page.
const SMALL_SEND: usize = 4096;

/// One part in this many of the free memory for outgoing messages may be used for one peer: more than three times its
/// credits of the largest message if no other peer takes any.
const SHARE: usize = 16;

/// Memory of this many small messages is kept: thirty-two credits of sixteen peers.
const SPARE_MAX: usize = 512;

/// Means `-ETIMEDOUT`: an operation found no room for too long.
const GAVE_UP: i64 = -110;

/// Means `-ECONNRESET`: the peer's endpoint is gone.
const LOST: i64 = -104;

/// The operation or the endpoint is gone.
const CANCELLED: i64 = -(sys::FI_ECANCELED as i64);

impl Core {
    /// Posts the slabs that are not held. Until there is a sink, nothing is received.
    pub(super) fn post_slabs(&self) {
        if self.sink.get().is_none() {
            return;
        }
        loop {
            let returned = self.returns.borrow_mut().pop();
            let Some(memory) = returned else { return };
            let lease = SlabLease::new(Rc::clone(&memory), Rc::downgrade(&self.returns));
            let id = self.ops.add(Op::Slab(lease));
            let posted = match self.local_desc(&memory, Usage::Receive) {
                // SAFETY: the operation holds the memory and the slot until the provider releases the slab or the
                // endpoint is stopped or replaced, after which nothing drives it.
                Ok(desc) => unsafe {
                    match self.receive {
                        ReceiveMode::Multi { .. } => self.raw.post_slab(&memory, desc, self.ops.context(id)),
                        ReceiveMode::Standard { .. } => {
                            self.raw.post_buffer(&memory, desc, self.ops.context(id))
                        }
                    }
                },
                Err(code) => Posted::Failed(code),
            };
            if posted == Posted::Yes {
                add(&self.counters.slab_posts, 1);
                self.posted.set(self.posted.get() + 1);
            } else {
                // Dropping the lease returns the slab; the next poll tries again.
                drop(self.ops.take(id));
                if let Posted::Failed(code) = posted {
                    tracing::warn!(reason = reason(code), "a receive slab could not be posted");
                }
                return;
            }
        }
    }

    /// Memory for a message to a peer, and its count against that peer. None if the peer has taken so little of earlier
    /// messages that others would have no room.
    pub(super) fn room_for(&self, to: PeerId, len: usize) -> Result<(Buffer, Unsent), FabricError> {
        let backlog = self.peers.borrow().get(to).map(|peer| peer.backlog.clone());
        let backlog = backlog.ok_or(FabricError::UnknownPeer)?;
        let (unsent, limit) = (backlog.bytes(), (self.send_pool.limit() - self.send_pool.used()) / SHARE);
        if unsent > 0 && unsent + len > limit {
            return Err(FabricError::NoBuffers { wanted: len, used: unsent, limit });
        }
        let buffer = self.send_buffer(len)?;
        let unsent = backlog.add(buffer.capacity());
        Ok((buffer, unsent))
    }

    /// Memory for a message; reused from an earlier small message if possible.
    fn send_buffer(&self, len: usize) -> Result<Buffer, FabricError> {
        if len > SMALL_SEND {
            return self.send_pool.alloc(len);
        }
        let spare = self.send_spare.borrow_mut().pop();
        if let Some(memory) = spare {
            return Ok(Buffer::new(memory, len));
        }
        let mut buffer = self.send_pool.alloc(SMALL_SEND)?;
        buffer.set_len(len);
        Ok(buffer)
    }

    /// A message was sent, and its memory can be reused.
    pub(super) fn spare(&self, memory: Rc<Memory>) {
        let mut spare = self.send_spare.borrow_mut();
        if memory.len() == SMALL_SEND && Rc::strong_count(&memory) == 1 && spare.len() < SPARE_MAX {
            spare.push(memory);
        }
    }

    /// The descriptor of local memory, where the provider wants it registered; null elsewhere. A memory has one use only.
    ///
    /// # Errors
    /// The provider's refusal: it takes a null for a descriptor.
    fn local_desc(&self, memory: &Memory, usage: Usage) -> Result<*mut c_void, i64> {
        if !self.capabilities.mr.local {
            return Ok(core::ptr::null_mut());
        }
        let Some(local) = memory.local() else { return Err(CANCELLED) };
        let local = &mut *local.borrow_mut();
        let ours = |made: &Registration| made.is_of(&self.raw).then(|| made.desc());
        if let Some(desc) = local.iter().find_map(|made| made.downcast_ref().and_then(ours)) {
            return Ok(desc);
        }
        // SAFETY: the registration is stored in the memory and closed before it is freed.
        let made = unsafe { self.raw.register(memory, 0, memory.len(), usage, self.keys.draw()) };
        let made = made.inspect_err(|code| {
            tracing::warn!(reason = reason(*code), len = memory.len(), "memory could not be registered; where the process may not lock as much (RLIMIT_MEMLOCK), let it");
        })?;
        let desc = made.desc();
        local.push(Box::new(made));
        Ok(desc)
    }

    /// Posts a waiting operation.
    pub(super) fn post(&self, id: OpId) -> Posted {
        enum Call {
            Send {
                memory: Rc<Memory>,
                len: usize,
                peer: PeerId,
            },
            Transfer {
                access: Access,
                memory: Rc<Memory>,
                at: usize,
                len: usize,
                addr: u64,
                key: u64,
                peer: PeerId,
            },
        }
        let call = self.ops.with(id, |op| match op {
            Op::Slab(_) => None,
            Op::Send { peer, memory, len, .. } => {
                Some(Call::Send { memory: Rc::clone(memory), len: *len, peer: *peer })
            }
            Op::Transfer { peer, access, memory, at, len, remote, .. } => Some(Call::Transfer {
                access: *access,
                memory: Rc::clone(memory),
                at: *at,
                len: *len,
                addr: remote.addr,
                key: remote.key,
                peer: *peer,
            }),
        });
        let Some(Some(call)) = call else { return Posted::Failed(CANCELLED) };
        let context = self.ops.context(id);
        let to = match &call {
            Call::Send { peer, .. } | Call::Transfer { peer, .. } => *peer,
        };
        let moved = self.peers.borrow().get(to).is_some_and(KnownPeer::has_moved);
        if moved && self.follow(to).is_err() {
            return Posted::Failed(LOST);
        }
        let Some((fi_addr, peer_doorbell)) =
            self.peers.borrow().get(to).map(|peer| (peer.fi_addr, peer.peer_doorbell.clone()))
        else {
            return Posted::Failed(CANCELLED);
        };
        let transfers = matches!(call, Call::Transfer { .. });
        // SAFETY (both): the operation in the table holds the memory and the slot until its completion or until the
        // endpoint is stopped or replaced, and `RetiredEndpoint` then holds the memory on; ranges were checked when it was added.
        let posted = match call {
            Call::Send { memory, len, .. } => self.local_desc(&memory, Usage::Send).map(|desc| {
                // SAFETY: as above.
                unsafe { self.raw.send(&memory, len, desc, fi_addr, context) }
            }),
            Call::Transfer { access, memory, at, len, addr, key, .. } => {
                self.local_desc(&memory, Usage::Move).map(|desc| {
                    let job =
                        RawTransfer { access, memory: &memory, at, len, desc, peer: fi_addr, addr, key };
                    // SAFETY: as above.
                    unsafe { self.raw.transfer(&job, context) }
                })
            }
        };
        let posted = posted.unwrap_or_else(Posted::Failed);
        if posted == Posted::Yes {
            self.ops.posted(id, fi_addr);
        }
        if let Some(peer_doorbell) = peer_doorbell {
            if transfers && posted == Posted::Yes {
                self.unrung.borrow_mut().push((to, id));
            } else {
                self.ring(&peer_doorbell);
            }
        }
        posted
    }

    /// Wakes the peers that transfers need. Most transfers have ended when they were posted: the provider has copied, and
    /// the peer may sleep on.
    pub(super) fn ring_for_transfers(&self) {
        loop {
            // Nothing is borrowed meanwhile, and the list is reused.
            let next = self.unrung.borrow_mut().pop();
            let Some((to, id)) = next else { return };
            let under_way = self.ops.with(id, |op| op.peer() == Some(to)).unwrap_or(false);
            let peer_doorbell = self.peers.borrow().get(to).and_then(|peer| peer.peer_doorbell.clone());
            if let Some(peer_doorbell) = peer_doorbell.filter(|_| under_way) {
                self.ring(&peer_doorbell);
            }
        }
    }

    /// Wakes a peer that may be asleep. Also after a full queue, which only the peer can empty.
    #[inline]
    pub(super) fn ring(&self, peer_doorbell: &PeerDoorbell) -> RingOutcome {
        let rung = peer_doorbell.ring();
        if rung == RingOutcome::Yes {
            add(&self.counters.doorbells, 1);
        }
        rung
    }

    /// Starts an operation: posts it, or queues it behind others for the peer.
    pub(super) fn start(&self, peer: PeerId, op: Op) -> Result<(), FabricError> {
        let id = self.ops.add(op);
        let behind = self.peers.borrow().get(peer).is_some_and(|peer| !peer.waiting.is_empty());
        let posted = if behind { Posted::Again } else { self.post(id) };
        match posted {
            Posted::Yes => Ok(()),
            Posted::Again if !behind && self.may_not_wait(id) => {
                drop(self.ops.take(id));
                let address = self.peers.borrow().get(peer).map(|known| known.address.clone());
                self.stop_dialling(address.as_ref());
                Err(FabricError::Unreachable { reason: "too many peers wait for connections".to_owned() })
            }
            Posted::Again => {
                add(&self.counters.eagain, 1);
                self.peers.borrow_mut().wait(peer, id, self.rt.now());
                Ok(())
            }
            Posted::Failed(code) => {
                drop(self.ops.take(id));
                Err(self.refusal(code))
            }
        }
    }

    /// Whether an operation is an answer, and too many operations wait for connections. Only on `tcp` alone is there nothing
    /// else to wait for.
    fn may_not_wait(&self, id: OpId) -> bool {
        let is_crowded = self.raw.provider() == "tcp" && self.peers.borrow().waiting.is_crowded();
        is_crowded && self.ops.with(id, |op| matches!(op, Op::Send { context: 0, .. })) == Some(true)
    }

    /// Nothing waits for the peer at an address any more. No process may listen there.
    pub(super) fn stop_dialling(&self, address: Option<&Address>) {
        let socket = address.filter(|_| self.capabilities.connects()).and_then(Address::socket);
        if let Some(socket) = socket {
            self.connect_attempts.give_up(&self.rt, socket);
        }
    }

    /// What a negative error number of a post means.
    pub(super) fn refusal(&self, code: i64) -> FabricError {
        if code == CANCELLED {
            FabricError::Cancelled
        } else if is_contact_loss(code) {
            FabricError::Unreachable { reason: reason(code) }
        } else {
            failure("post", code, self.raw.provider())
        }
    }

    /// Retries waiting operations that are due. `progress`: something completed just now.
    pub(super) fn retry(&self, progress: bool) -> bool {
        let now = self.rt.now();
        if progress {
            self.peers.borrow_mut().hasten_others(now);
        }
        let mut any = false;
        loop {
            let due = self.peers.borrow().waiting.due(now);
            let Some(id) = due else { return any };
            any |= self.retry_peer(id);
        }
    }

    /// Retries the operations of a peer that is due. It becomes due again, or nothing waits.
    fn retry_peer(&self, id: PeerId) -> bool {
        let (mut any, mut gave_up) = (false, false);
        // The callback about a failure may forget the peer.
        let address = self.peers.borrow().get(id).map(|known| known.address.clone());
        let now = self.rt.now();
        let dead = self.peers.borrow().get(id).is_some_and(|peer| peer.is_dead(now));
        let patience = self.peers.borrow().waiting.patience();
        loop {
            let next = self.peers.borrow().get(id).and_then(|peer| peer.waiting.front().copied());
            let Some((op, since)) = next else { break };
            let late = dead || now - since > patience;
            let abandoned = self.ops.with(op, |op| op.is_abandoned()).unwrap_or(true);
            let posted = if late || abandoned {
                Posted::Failed(GAVE_UP)
            } else {
                add(&self.counters.retries, 1);
                self.post(op)
            };
            if posted == Posted::Again {
                self.peers.borrow_mut().back_off(id, self.rt.now());
                break;
            }
            gave_up |= late;
            self.peers.borrow_mut().go_on(id, posted == Posted::Yes);
            any = true;
            if let Posted::Failed(code) = posted {
                self.fail(op, self.refusal(code));
            }
        }
        if gave_up {
            self.stop_dialling(address.as_ref());
        }
        any
    }
}
