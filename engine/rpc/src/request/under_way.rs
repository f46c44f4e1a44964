//! Pieces that are moving, and clients that make no progress.

use crate::context::Context;
use crate::transfer::{Account, Moving, PIECE_TIME, Piece};
use crate::wire::Caller;
use std::collections::VecDeque;
use weir_fabric::Gone;

/// It is looked whether the client is still there that a transfer is stuck with once in so many times what a piece takes.
const STALLS_LOOK: u32 = 10;

/// After so many of these times without a piece the client's process has to be there, too, where others want what it holds.
const STALLS_HANG: u32 = 30;

/// After so many the client is hung up on where others want what it holds, whatever it says: of a piece, that is less than
/// 20 kB/s.
const STALLS_MAX: u32 = 60;

/// Counts how often a transfer was waited for in vain since a piece has arrived: for [`PIECE_TIME`] each time.
#[derive(Default)]
pub(crate) struct Stalls(u32);

impl Stalls {
    /// Once more. If the client's host is gone, connections to it are given up, and what moves ends: else the system would try for
    /// a quarter of an hour, and the transfer's memory would be gone as long. A process that hangs may go on, and one that talks may
    /// be slow, so they have their memory and places for as long as nobody else wants them.
    pub(crate) fn count(&mut self, context: &Context, caller: Caller) {
        self.0 += 1;
        if !self.0.is_multiple_of(STALLS_LOOK) {
            return;
        }
        let are_wanted = || context.is_full() || context.payloads.others_wait(caller);
        let gone = if self.0 < STALLS_HANG || !are_wanted() {
            Gone::Host
        } else if self.0 < STALLS_MAX {
            Gone::Process
        } else {
            Gone::Progress
        };
        let peer = context.clients.borrow_mut().look_for(caller, gone, context.rt.now());
        if let Some(peer) = peer {
            context.endpoint.hang_up_if_gone(peer, gone);
        }
    }

    /// What was waited for has ended, somehow. Whoever else waits for the client has its host asked again.
    pub(crate) fn end(context: &Context, caller: Caller) {
        let peer = context.clients.borrow_mut().stop_asking(caller);
        if let Some(peer) = peer {
            context.endpoint.stop_asking(peer);
        }
    }

    /// Whether they have been so many that the client may have been hung up on: what fails then is not tried again.
    pub(crate) fn are_many(&self) -> bool {
        self.0 >= STALLS_LOOK
    }
}

/// The pieces that are moving. Those that are left when nobody waits for them any more are seen to their end: the client's
/// memory is theirs until then.
pub(crate) struct UnderWay<'a> {
    /// All but the newest, oldest first: a list that an earlier transfer has left, when there is a second one.
    older: VecDeque<Moving>,
    newest: Option<Moving>,
    context: &'a Context,
    /// The account of the request's accesses, where there is one.
    accesses: Option<&'a Account>,
}

impl<'a> UnderWay<'a> {
    /// None yet.
    pub(crate) fn new(context: &'a Context, accesses: Option<&'a Account>) -> Self {
        Self { older: VecDeque::new(), newest: None, context, accesses }
    }

    pub(crate) fn add(&mut self, moving: Moving) {
        if let Some(accesses) = self.accesses {
            accesses.begin();
        }
        let Some(before) = self.newest.replace(moving) else { return };
        if self.older.capacity() == 0 {
            self.older = self.context.spare_moving.take().unwrap_or_default();
        }
        self.older.push_back(before);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    pub(crate) fn oldest(&mut self) -> Option<&mut Moving> {
        self.older.front_mut().or(self.newest.as_mut())
    }

    /// Nothing moves: others have the slots. What moves with this client alone stays taken.
    pub(crate) fn give_up_slots(&mut self) {
        for moving in self.older.iter_mut().chain(&mut self.newest) {
            moving.slot = None;
        }
    }

    /// Takes the oldest one, which has ended.
    pub(crate) fn take(&mut self) -> Option<Piece> {
        let moving = self.older.pop_front().or_else(|| self.newest.take())?;
        if let Some(accesses) = self.accesses {
            accesses.end();
        }
        Some(moving.piece)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.is_empty() {
            if self.older.capacity() > 0 {
                self.context.spare_moving.put(core::mem::take(&mut self.older));
            }
            return;
        }
        let Some(accesses) = self.accesses.cloned() else { return };
        let mut moving = core::mem::take(&mut self.older);
        moving.extend(self.newest.take());
        let (rt, weak, caller) = (self.context.rt.clone(), self.context.weak(), accesses.caller());
        self.context.rt.spawn(async move {
            let patience = rt.now() + PIECE_TIME;
            while let Some(Moving { mut transfer, slot, _leave, .. }) = moving.pop_front() {
                // It ends somehow; how, nobody asks any more.
                if rt.timeout_at(patience, &mut transfer).await.is_err() {
                    drop(slot);
                    for moving in &mut moving {
                        moving.slot = None;
                    }
                    let mut stalls = Stalls::default();
                    while rt.timeout(PIECE_TIME, &mut transfer).await.is_err() {
                        weak.upgrade().inspect(|context| stalls.count(context, caller));
                    }
                }
                accesses.end();
            }
            weak.upgrade().inspect(|context| Stalls::end(context, caller));
        });
    }
}
