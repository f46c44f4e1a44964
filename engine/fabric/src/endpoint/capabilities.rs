//! What a provider can do. It is read at start, never assumed.

use core::fmt;

/// How a context sleeps until something arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The completion queue has a descriptor.
    Fd,
    /// The queue has several descriptors, which are watched only while the context sleeps: a context that is
    /// awake polls the queue, and the kernel need not report each packet.
    FdSet,
    /// There is no descriptor. Senders ring a doorbell.
    Doorbell,
    /// Virtual time: there is nothing to wait for.
    Simulated,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fd => "fd",
            Self::FdSet => "fd-set",
            Self::Doorbell => "doorbell",
            Self::Simulated => "simulated",
        })
    }
}

/// What a provider asks of memory registration (`fi_mr(3)`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each mr_mode bit")]
pub struct MrMode {
    /// Local buffers must be registered too.
    pub local: bool,
    /// Remote addresses are virtual addresses rather than offsets.
    pub virt_addr: bool,
    /// The provider chooses the keys.
    pub prov_key: bool,
    /// A registration is bound to the endpoint before use.
    pub endpoint: bool,
    /// Memory must be backed before it is registered.
    pub allocated: bool,
}

/// Which side knows whether accesses to an ended registration are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MrAccounting {
    /// The provider: ending a registration ends or awaits every access.
    Provider,
    /// No layer below: the two sides of a request have to find out (see `weir-rpc`).
    Own,
}

/// How a provider sends messages, where it has several ways. Both endpoints must use the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Protocol {
    /// The provider's own choice.
    #[default]
    Usual,
    /// All messages go out at once. Those that find no room are refused, and their sender repeats them in
    /// growing steps for a bounded time (`FI_PROTO_CXI_RNR`; paper §3.4).
    ReceiverNotReady,
}

impl Protocol {
    /// The protocol of this name: `default` or `receiver-not-ready`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "default" => Some(Self::Usual),
            "receiver-not-ready" => Some(Self::ReceiverNotReady),
            _ => None,
        }
    }
}

/// An ability that a provider may lack, and that an endpoint can do without.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ability {
    /// One posted slab takes many messages. Without: a buffer for each.
    MultiRecv,
    /// Completions name the sender. Without: each message carries its sender's address.
    Source,
    /// Completions of unknown senders carry their address. Without: the first message carries it.
    SourceErr,
    /// Completions name the sender by a number of this side. Without: the address vector's number is looked up.
    AvUserId,
    /// Small messages go out without a completion. Without: each has one.
    Inject,
    /// A write has ended only when it has arrived. Without: it may have ended when the system has its bytes.
    /// Later messages still arrive after it, unless the connection breaks in between.
    Delivery,
    /// Small messages go through memory that two endpoints of a node share. Without: through the provider.
    Channels,
    /// The descriptors of a completion queue are watched only during sleep. Without: always, by the library's
    /// own one.
    FdSet,
}

/// What the provider of an endpoint can do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each ability")]
pub struct Capabilities {
    /// Name of the provider.
    pub provider: String,
    /// Version of the provider, as it reports itself.
    pub version: String,
    /// Version of the library, as it reports itself.
    pub library: String,
    /// One posted buffer takes many messages.
    pub multi_recv: bool,
    /// Completions name the sender, when it is known.
    pub source: bool,
    /// Completions of unknown senders carry their address.
    pub source_err: bool,
    /// Completions name the sender by a number of ours.
    pub av_user_id: bool,
    /// Several auth keys (VNIs) can be served by one endpoint.
    pub auth_keys: bool,
    /// This endpoint serves several keys: only the network tells reliably which sender a message is from.
    pub serves_auth_keys: bool,
    /// A message that finds no room is refused, and its sender repeats it, instead of being kept: the provider
    /// has the protocol, or the endpoint uses it ([`Protocol::ReceiverNotReady`]).
    pub receiver_not_ready: bool,
    /// Reads and writes of remote memory.
    pub rma: bool,
    /// A write has ended only when it has arrived.
    pub delivery: bool,
    /// Writes and messages to a peer arrive in the order in which they were started: they go through one stream.
    pub ordered_writes: bool,
    /// Senders write into the receiver's queue themselves. A sender that dies there blocks it, so that the
    /// endpoint watches itself and is reopened if necessary.
    pub shared_queue: bool,
    /// Small messages between two endpoints of a node go through memory that they share, beside the provider's queue.
    pub channels: bool,
    /// How to sleep.
    pub wait: Wait,
    /// What registration needs.
    pub mr: MrMode,
    /// Which side knows whether accesses to a registration that has ended are still under way.
    pub mr_accounting: MrAccounting,
    /// Bytes of a registration's key: how long a guess takes.
    pub mr_key_bytes: usize,
    /// Largest message that is sent without a completion, in bytes.
    pub inject: usize,
    /// Largest message, in bytes.
    pub max_message: usize,
    /// Largest single read or write, in bytes.
    pub max_transfer: usize,
    /// Peers that the provider has room for, where they are few.
    pub max_peers: Option<usize>,
}

/// Releases of libfabric whose `shm` crashes when an endpoint answers another one of its process: it never maps
/// it (`smr_map_to_region` returns before).
const SHM_CRASHES_WITHIN_PROCESS: [&str; 2] = ["2.5", "2.6"];

impl Capabilities {
    /// Whether two endpoints of one process can talk to each other.
    #[must_use]
    pub fn within_process(&self) -> bool {
        self.provider != "shm" || !SHM_CRASHES_WITHIN_PROCESS.contains(&self.library.as_str())
    }

    /// Whether each peer has a connection of its own, which is made when something is for it.
    #[must_use]
    pub fn connects(&self) -> bool {
        self.provider.starts_with("tcp")
    }

    /// Every yes-or-no ability by name, as logs, metrics and `weir fabric info` show them.
    #[must_use]
    pub fn flags(&self) -> [(&'static str, bool); 18] {
        [
            ("multi-recv", self.multi_recv),
            ("source", self.source),
            ("source-err", self.source_err),
            ("av-user-id", self.av_user_id),
            ("auth-keys", self.auth_keys),
            ("serves-auth-keys", self.serves_auth_keys),
            ("receiver-not-ready", self.receiver_not_ready),
            ("rma", self.rma),
            ("delivery", self.delivery),
            ("ordered-writes", self.ordered_writes),
            ("shared-queue", self.shared_queue),
            ("channels", self.channels),
            ("mr-local", self.mr.local),
            ("mr-virt-addr", self.mr.virt_addr),
            ("mr-prov-key", self.mr.prov_key),
            ("mr-endpoint", self.mr.endpoint),
            ("mr-allocated", self.mr.allocated),
            ("mr-accounting", self.mr_accounting == MrAccounting::Provider),
        ]
    }

    /// Every size by name, in bytes.
    #[must_use]
    pub fn sizes(&self) -> [(&'static str, usize); 4] {
        [
            ("inject", self.inject),
            ("max-message", self.max_message),
            ("max-transfer", self.max_transfer),
            ("mr-key", self.mr_key_bytes),
        ]
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} (library {})", self.provider, self.version, self.library)?;
        for (name, on) in self.flags() {
            write!(f, " {}{name}", if on { '+' } else { '-' })?;
        }
        write!(f, " wait={}", self.wait)?;
        self.sizes().iter().try_for_each(|(name, bytes)| write!(f, " {name}={bytes}"))
    }
}

/// A provider that the library offers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Offer {
    /// Its name, e.g. `tcp` or `tcp;ofi_rxm`.
    pub provider: String,
    /// What it can do, when an endpoint can be opened with it.
    pub capabilities: Option<Capabilities>,
    /// What it lacks of what every endpoint needs.
    pub missing: Vec<&'static str>,
}
