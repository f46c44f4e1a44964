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

/// Takes what arrives at an endpoint. Called from the endpoint's progress, on the context's thread; it must not
/// wait.
pub trait Sink {
    /// A message arrived. It occupies receive memory until it is dropped.
    fn message(&self, message: Message);

    /// A send that was accepted earlier did not get through. `context` is what the sender gave to
    /// [`Endpoint::send`].
    fn send_failed(&self, peer: PeerId, context: u64, error: FabricError);

    /// The endpoint is closed, or its simulated node crashed: nothing will arrive any more. A sink lets go of what it
    /// holds, which may be what holds the endpoint.
    fn closed(&self) {}
}

/// What may be gone of a peer that is waited for. What comes later includes what stands before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Gone {
    /// Its host: not even the system answers, for twenty seconds.
    Host,
    /// Its process, too: nothing has come from it for half a minute, though its system answers. It may go on later.
    Process,
    /// Its progress, too: whoever asks has waited for a minute for what is under way with it, whatever else it says.
    Progress,
}

/// One context's door to the network.
///
/// Dropping it closes it: peers' operations to it fail, and what it has not sent yet is lost.
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

    /// Says who uses the endpoint: the id by which it answers hellos, and its keys. Where addresses are published, others are
    /// told this endpoint's from then on, and others' are believed that are sealed with these keys.
    fn introduce(&self, _server: u64, _keys: Option<&Keys>) {}

    /// Finds the address of a listening endpoint by name and port. Asks the system's resolver each time, and where
    /// addresses are published whoever listens there.
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

    /// The address that a peer was made known by, with its key; `None` where the provider doesn't tell senders by theirs.
    fn address_of(&self, _peer: PeerId) -> Option<Address> {
        None
    }

    /// Forgets a peer: its connection is given up if it is stuck, and what is queued for it fails. Transfers that the provider
    /// has end when it lets go of them: only then nothing is at the peer's memory any more. The next [`Endpoint::insert`]
    /// starts afresh.
    fn remove(&self, peer: PeerId);

    /// Forgets a peer that is only idle, or never was of use: what is queued for it fails, but connections are not looked
    /// through for one of its that is stuck. That takes as long as there are open files, and idle peers may be thousands.
    fn forget(&self, peer: PeerId) {
        self.remove(peer);
    }

    /// Ends what is under way with a peer whose host has vanished without a word, also for other endpoints of this process:
    /// operations with it end with an error. A host that is waited for without anything on its way to it is asked for a sign of
    /// life and given as much time again. With a peer whose process hangs on a host that is there, or that talks and lets
    /// nothing end, the same is done only on request ([`Gone::Process`], [`Gone::Progress`]). Nothing happens where the provider notices by itself. It takes as long as there are open files.
    fn hang_up_if_gone(&self, _peer: PeerId, _gone: Gone) {}

    /// A peer is not waited for any more: its host isn't asked for signs of life any longer. It takes as long as there are open
    /// files.
    fn stop_asking(&self, _peer: PeerId) {}

    /// Whether there is room for peers that may never be of use. Where the provider has room for few, such are not to take all of
    /// it from those that are.
    fn has_room_for_strangers(&self) -> bool {
        true
    }

    /// Whether a peer has turned messages away of late, so that small ones reach it sooner: it can fetch the rest when it has
    /// room. Only known where the provider tells its sender of refusals.
    fn is_short_of_room(&self, _peer: PeerId) -> bool {
        false
    }

    /// Sets who takes what arrives. Until then, messages stay in the provider.
    fn set_sink(&self, sink: Weak<dyn Sink>);

    /// Sends one message that is put together from `parts`. It is copied, so the parts are free on return.
    /// Success means accepted: a later failure comes through [`Sink::send_failed`] with the same `context`. With 0 for that it is
    /// an answer, which whoever asked has a connection for: it waits for none while very many peers do. A receiver drops
    /// what one sender has waiting there beyond many times its credits; nobody is told of that.
    ///
    /// # Errors
    /// When the message is larger than [`Capabilities::max_message`], the peer is unknown, or no buffer is left.
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

    /// Looks for transfers that have ended, where a provider ends them as they are started. For whoever has nothing else to
    /// start before: it need not wait for the executor's next look. Messages may be handed to the sink meanwhile.
    fn look_at_once(&self) {}
}
