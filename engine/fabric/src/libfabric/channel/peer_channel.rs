//! The channel to one peer, and when one is offered.

use super::Channel;
use core::cell::{Cell, Ref, RefCell};
use std::rc::Rc;

/// Messages through the provider before a peer is offered a channel. A peer that gets only a few needs none.
const FIRST_OFFER: u32 = 32;

/// Most messages between two offers, where the peer doesn't accept them: each time it is twice as many.
const OFFERS_APART_MAX: u32 = 1 << 16;

/// The way to one peer.
#[derive(Default)]
pub(in crate::libfabric) struct PeerChannel {
    channel: RefCell<Option<Rc<Channel>>>,
    /// Messages through the provider since the last offer.
    sent: Cell<u32>,
    /// As many were sent before that.
    apart: Cell<u32>,
}

impl PeerChannel {
    /// The channel, where the peer takes messages from it.
    #[inline]
    pub(in crate::libfabric) fn open(&self) -> Option<Ref<'_, Channel>> {
        let channel = Ref::filter_map(self.channel.borrow(), Option::as_deref).ok()?;
        channel.is_open().then_some(channel)
    }

    /// Counts a message that went through the provider. Returns whether it is time to offer a channel.
    pub(in crate::libfabric) fn is_worth_a_channel(&self) -> bool {
        let sent = self.sent.get() + 1;
        self.sent.set(sent);
        if sent < self.apart.get().max(FIRST_OFFER) {
            return false;
        }
        self.sent.set(0);
        self.apart.set((self.apart.get() * 2).clamp(2 * FIRST_OFFER, OFFERS_APART_MAX));
        self.open().is_none()
    }

    /// The channel, whatever its state is.
    pub(super) fn channel(&self) -> Option<Rc<Channel>> {
        self.channel.borrow().clone()
    }

    /// Sets or takes away the channel. The one before is closed.
    pub(super) fn replace(&self, channel: Option<Rc<Channel>>) {
        if let Some(before) = self.channel.replace(channel) {
            before.close();
        }
    }

    /// Takes the channel away if it is this one.
    pub(super) fn leave(&self, gone: &Rc<Channel>) {
        if self.channel.borrow().as_ref().is_some_and(|channel| Rc::ptr_eq(channel, gone)) {
            self.replace(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_offered_after_some_messages_and_then_ever_more_seldom() {
        let peer_channel = PeerChannel::default();
        let offers: Vec<u32> = (1..400_000).filter(|_| peer_channel.is_worth_a_channel()).collect();
        assert_eq!(offers[..4], [32, 96, 224, 480]);
        assert!(offers.len() < 20 && offers.windows(2).all(|pair| pair[1] - pair[0] <= OFFERS_APART_MAX));
    }
}
