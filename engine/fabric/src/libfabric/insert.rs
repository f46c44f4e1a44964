//! Making peers known, and following those that have reopened their endpoints.

use super::doorbell::{self, PeerDoorbell};
use super::peers::{KnownPeer, Peers, Retained};
use super::progress::Core;
use super::sys;
use crate::counters::add;
use crate::{Address, Capabilities, FabricError, PeerId, Wait};
use std::borrow::Cow;
use std::rc::Rc;

/// The name in an address of a provider within the node, without the terminating zero.
fn name_in(address: &Address) -> Option<&str> {
    str::from_utf8(address.as_bytes()).ok()
}

/// The provider's name of a generation of a peer.
fn named(address: &Address, generation: u32) -> Cow<'_, Address> {
    if generation == 0 {
        return Cow::Borrowed(address);
    }
    let name = name_in(address).map(|name| doorbell::provider_name(name, generation));
    let named = name.and_then(|name| Address::from_bytes(name.as_bytes()));
    named.map_or(Cow::Borrowed(address), Cow::Owned)
}

impl Core {
    fn bad_address(&self, address: &Address) -> FabricError {
        let provider = self.capabilities.provider.clone();
        FabricError::BadAddress { address: address.to_string(), provider }
    }

    /// Checks an address before libfabric sees it: addresses come from the network.
    fn check(&self, address: &Address) -> Result<Option<Rc<PeerDoorbell>>, FabricError> {
        let own = &self.address;
        if self.capabilities.wait == Wait::Doorbell {
            let name = name_in(address).filter(|name| doorbell::is_name(name));
            let name = name.ok_or_else(|| self.bad_address(address))?;
            if doorbell::is_own(name) && !self.capabilities.within_process() {
                let Capabilities { provider, library, .. } = &self.capabilities;
                return Err(FabricError::OwnProcess { provider: provider.clone(), library: library.clone() });
            }
            return Ok(Some(Rc::new(PeerDoorbell::new(name)?)));
        }
        let usable = match (own.socket(), address.socket()) {
            (Some(own), Some(socket)) => {
                own.is_ipv4() == socket.is_ipv4() && socket.port() != 0 && !socket.ip().is_unspecified()
            }
            (None, None) => own.as_bytes().len() == address.as_bytes().len(),
            _ => false,
        };
        if usable { Ok(None) } else { Err(self.bad_address(address)) }
    }

    /// A new entry of the address vector, and the slot that its completions name, where the provider can.
    fn insert_raw(&self, peers: &mut Peers, address: &Address) -> Result<(u64, u32), FabricError> {
        let slot = peers.reserve();
        match self.raw.insert(address, peers.has_user_ids().then_some(slot.into())) {
            Ok(fi_addr) => Ok((fi_addr, slot)),
            Err(error) => {
                peers.unreserve(slot);
                Err(error)
            }
        }
    }

    /// Makes a peer known; see [`crate::Endpoint::insert`].
    pub(super) fn insert(&self, address: &Address) -> Result<PeerId, FabricError> {
        let address = if self.capabilities.wait == Wait::Doorbell {
            // With and without the terminating zero it is the same name.
            let name = address.as_bytes().strip_suffix(&[0]).unwrap_or(address.as_bytes());
            &Address::from_bytes(name).ok_or_else(|| self.bad_address(address))?
        } else {
            address
        };
        let keyed = address.named_under(self.raw.first_key());
        let address = keyed.as_ref().unwrap_or(address);
        let known = self.peers.borrow().by_address(address);
        if let Some(known) = known {
            if self.peers.borrow().get(known).is_some_and(KnownPeer::has_moved) {
                self.follow(known)?;
            }
            return Ok(known);
        }
        let peer_doorbell = self.check(address)?;
        let generation = peer_doorbell.as_ref().map_or(0, |peer_doorbell| peer_doorbell.generation());
        let peers = &mut *self.peers.borrow_mut();
        let (fi_addr, slot) = match peers.retained(address) {
            Some(Retained { fi_addr, slot, generation: same })
                if same == generation && fi_addr != sys::FI_ADDR_NOTAVAIL =>
            {
                (fi_addr, slot)
            }
            Some(Retained { fi_addr: before, slot, .. }) => {
                let fi_addr = self.insert_at(peers.has_user_ids(), slot, address, generation)?;
                peers.leave(slot, before);
                (fi_addr, slot)
            }
            None => self.insert_raw(peers, &named(address, generation))?,
        };
        add(&self.counters.peers_inserted, 1);
        Ok(peers.add(slot, address, fi_addr, peer_doorbell))
    }

    /// A new entry of the address vector for a slot whose peer is of this generation now.
    fn insert_at(
        &self,
        has_user_ids: bool,
        slot: u32,
        address: &Address,
        generation: u32,
    ) -> Result<u64, FabricError> {
        self.raw.insert(&named(address, generation), has_user_ids.then_some(slot.into()))
    }

    /// A peer has reopened its endpoint: finds it again. What was posted to the old one is lost.
    pub(super) fn follow(&self, id: PeerId) -> Result<(), FabricError> {
        let lost = || FabricError::Unreachable { reason: "the peer's endpoint was closed".to_owned() };
        let address = self.peers.borrow().get(id).map(|peer| peer.address.clone());
        let address = address.ok_or(FabricError::UnknownPeer)?;
        let peer_doorbell = PeerDoorbell::new(name_in(&address).ok_or_else(lost)?).map_err(|_| lost())?;
        if peer_doorbell.has_moved() {
            return Err(lost());
        }
        self.leave_channel_of(id);
        let peers = &mut *self.peers.borrow_mut();
        let (slot, generation) = (Peers::slot_of(id), peer_doorbell.generation());
        let fi_addr = self.insert_at(peers.has_user_ids(), slot, &address, generation)?;
        tracing::debug!(peer = %address, generation, "a peer has opened its endpoint anew");
        peers.renew(id, fi_addr, Rc::new(peer_doorbell));
        Ok(())
    }

    /// The address vector is empty. All peers are inserted again.
    pub(super) fn insert_all_again(&self) {
        let peers = &mut *self.peers.borrow_mut();
        let has_user_ids = peers.has_user_ids();
        peers.start_afresh(|slot, peer| {
            if self.raw.is_stopped() {
                return sys::FI_ADDR_NOTAVAIL;
            }
            // Its own doorbell has changed; others' may have.
            if peer.has_moved()
                && let Some(peer_doorbell) =
                    name_in(&peer.address).and_then(|name| PeerDoorbell::new(name).ok())
            {
                peer.peer_doorbell = Some(Rc::new(peer_doorbell));
            }
            let inserted = self.insert_at(has_user_ids, slot, &peer.address, peer.generation());
            inserted.unwrap_or_else(|error| {
                tracing::warn!(peer = %peer.address, %error, "a peer could not be inserted again");
                sys::FI_ADDR_NOTAVAIL
            })
        });
    }
}
