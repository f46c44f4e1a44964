//! What every transport is to its users, and what the transports share for it: the traits [`Endpoint`] and [`Sink`], messages,
//! transfers, exposures, capabilities and settings. It calls rooms for addresses, memory and names, and no transport. All
//! transports implement it, and the layer above uses nothing else of them.

mod capabilities;
mod exposure;
mod message;
mod options;
mod own_address;
mod shortage;
mod transfer;

pub use capabilities::{Ability, Capabilities, MrAccounting, MrMode, Offer, Protocol, Wait};
pub use exposure::{Closed, Ending, Exposure, MrMethod};
pub use message::{Message, Source};
pub use options::{Bind, Options, ReceiveMode};
pub use transfer::Transfer;

pub(crate) use exposure::Registered;
pub(crate) use message::{SlabLease, SlabReturns};
pub(crate) use options::MESSAGE_MAX;
pub(crate) use own_address::{Own, own_socket};
pub(crate) use shortage::Shortages;
pub(crate) use transfer::Completer;

use crate::address::{Address, AuthKey, PeerId};
use crate::counters::FabricCounters;
use crate::error::FabricError;
use crate::memory::{Access, Buffer, BufferPool, RemoteRegion};
use crate::naming::Found;
use core::ops::Range;
use std::rc::Weak;
use weir_proto::Keys;
use weir_runtime::LocalBoxFuture;

/// Takes what arrives at an endpoint. The endpoint's progress calls it on the context's thread. It must not
/// wait.
pub trait Sink {
    /// A message arrived. It occupies receive memory until it is dropped.
    fn message(&self, message: Message);

    /// A send that was accepted earlier did not get through. `context` is what the sender gave to
    /// [`Endpoint::send`].
    fn send_failed(&self, peer: PeerId, context: u64, error: FabricError);

    /// The endpoint is closed, or its simulated node crashed: nothing arrives any more. The sink drops what it
    /// holds, which may own the endpoint.
    fn closed(&self) {}
}

/// What of an unresponsive peer may be gone. Each variant includes the ones before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Gone {
    /// Its host: its system has acknowledged nothing for twenty seconds.
    Host,
    /// Its process, too: nothing has come from it for half a minute, though its system acknowledges. It may
    /// continue later.
    Process,
    /// Its progress, too: an operation with it has been in flight for a minute, whatever else it sends.
    Progress,
}

/// One context's access to the network.
///
/// Dropping it closes it: peers' operations to it fail, and unsent messages are lost.
pub trait Endpoint {
    /// What the provider can do.
    fn capabilities(&self) -> &Capabilities;

    /// The address that peers reach this endpoint by.
    fn address(&self) -> Address;

    /// That address as the provider spells it.
    fn spelled(&self) -> String {
        self.address().to_string()
    }

    /// What it has done so far.
    fn counters(&self) -> &FabricCounters;

    /// Page-aligned memory that the endpoint can move data to and from.
    fn buffers(&self) -> &BufferPool;

    /// Sets the identity of the endpoint's user: the id by which it answers hellos, and its keys. Where addresses are
    /// published, this endpoint's is published from then on, and others' are accepted that are sealed with these keys.
    fn introduce(&self, _server: u64, _keys: Option<&Keys>) {}

    /// Finds the address of a listening endpoint by name and port. It asks the system's resolver each time, and
    /// where addresses are published the TCP socket at that port.
    fn resolve(&self, host: &str, port: u16) -> LocalBoxFuture<'static, Result<Found, FabricError>>;

    /// Makes a peer known. The same address gives the same id, until it is removed.
    ///
    /// # Errors
    /// When the address is not one of this provider's.
    fn insert(&self, address: &Address) -> Result<PeerId, FabricError>;

    /// The auth key that a peer was met under, on an endpoint that serves several.
    fn auth_key(&self, _peer: PeerId) -> Option<AuthKey> {
        None
    }

    /// The address by which a peer was made known, with its key. `None` where the provider doesn't name senders
    /// by address.
    fn address_of(&self, _peer: PeerId) -> Option<Address> {
        None
    }

    /// Forgets a peer: a stuck connection of it is closed, and queued operations fail. Transfers in flight end
    /// when the provider gives them up; only then no access to the peer's memory is in flight. The next
    /// [`Endpoint::insert`] starts anew.
    fn remove(&self, peer: PeerId);

    /// Forgets a peer that is idle or was never used. Queued operations fail; connections are not searched for a
    /// stuck one. Such a search takes time for each open file, and there may be thousands of idle peers.
    fn forget(&self, peer: PeerId) {
        self.remove(peer);
    }

    /// Ends operations with a peer whose host has vanished, also those of other endpoints of this process; they
    /// fail. A host that owes no acknowledgement is probed and given as much time again. Peers whose process
    /// hangs, or whose operations don't progress, are treated so only on request ([`Gone::Process`],
    /// [`Gone::Progress`]). Does nothing where the provider notices by itself. Takes time for each open file.
    fn hang_up_if_gone(&self, _peer: PeerId, _gone: Gone) {}

    /// No caller waits for a peer any more: its host is not probed from now on. Takes time for each open file.
    fn stop_asking(&self, _peer: PeerId) {}

    /// Whether there is room for peers that may never be of use. Where the provider has room for few, part of it
    /// is for known clients.
    fn has_room_for_strangers(&self) -> bool {
        true
    }

    /// Whether a peer has refused messages recently. Small messages then reach it sooner, and it can fetch the
    /// rest when it has room. Known only where the provider reports refusals to the sender.
    fn is_short_of_room(&self, _peer: PeerId) -> bool {
        false
    }

    /// Sets the receiver of arriving messages. Until then, messages stay in the provider.
    fn set_sink(&self, sink: Weak<dyn Sink>);

    /// Sends one message that is assembled from `parts`. They are copied, so that they are free on return. Success
    /// means accepted: a later failure comes through [`Sink::send_failed`] with the same `context`. Context 0 marks an
    /// answer: its receiver has a connection already, so it doesn't wait for one even while very many peers do. A
    /// receiver drops what one sender has waiting there beyond many times its credits, without telling the sender.
    ///
    /// # Errors
    /// When the message is larger than [`Capabilities::max_message`], the peer is unknown, or no buffer
    /// is left.
    fn send(&self, to: PeerId, context: u64, parts: &[&[u8]]) -> Result<(), FabricError>;

    /// Lets peers that know the returned region's key read or write a part of a buffer, until the exposure ends.
    ///
    /// # Errors
    /// When the range is not within the buffer, or the provider refuses the registration.
    fn expose(&self, buffer: &Buffer, range: Range<usize>, access: Access) -> Result<Exposure, FabricError>;

    /// Reads `range.len()` bytes from the start of a peer's region into a part of a buffer. When the returned
    /// future is dropped early the data may still arrive: the memory stays allocated, its content is undefined.
    fn read(&self, peer: PeerId, into: &mut Buffer, range: Range<usize>, from: RemoteRegion) -> Transfer;

    /// Writes a part of a buffer to the start of a peer's region. Complete means that the peer sees it, where
    /// [`Capabilities::delivery`] says so.
    fn write(&self, peer: PeerId, from: &Buffer, range: Range<usize>, to: RemoteRegion) -> Transfer;

    /// Looks for ended transfers, where a provider ends them as they are started. A caller with nothing else to
    /// start need not wait for the executor's next poll. Messages may be handed to the sink meanwhile.
    fn look_at_once(&self) {}
}
