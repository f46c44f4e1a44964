//! What can go wrong on the fabric.

/// An operation of an endpoint failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FabricError {
    /// The name has no address.
    #[error("can't find the address of {host}:{port}: {reason}; check the name and the cluster's DNS")]
    Resolve {
        /// The name.
        host: String,
        /// The port.
        port: u16,
        /// What the resolver said.
        reason: String,
    },
    /// The bytes are no address of this provider.
    #[error("{address} is no address of the {provider} provider")]
    BadAddress {
        /// The address as text.
        address: String,
        /// The provider.
        provider: String,
    },
    /// The provider can't tell tenants apart.
    #[error(
        "the {provider} provider has no auth keys; leave them away, tenants are kept apart by authentication codes there"
    )]
    NoAuthKeys {
        /// The provider.
        provider: String,
    },
    /// An endpoint can't have so many keys.
    #[error(
        "the {provider} provider takes {max} auth keys for an endpoint and not {given}; name a smaller block of VNIs in `fabric_auth_key`"
    )]
    TooManyKeys {
        /// The provider.
        provider: String,
        /// How many it was to have.
        given: usize,
        /// How many it can have.
        max: usize,
    },
    /// The provider's endpoints have no host and port.
    #[error(
        "the {provider} provider's addresses are no hosts and ports, so that they have to be published: leave `fabric_addresses` away, or set it to published"
    )]
    ForeignAddresses {
        /// The provider.
        provider: String,
    },
    /// There is no address to be had where one is to be published.
    #[error("{host}:{port} tells no fabric address: {reason}")]
    Unpublished {
        /// The name.
        host: String,
        /// The port.
        port: u16,
        /// Why not, and what to do about it.
        reason: String,
    },
    /// The provider has no such NIC.
    #[error(
        "the {provider} provider has no device {device} on this node; name one that `fi_info -p {provider}` lists as a domain, or none"
    )]
    NoDevice {
        /// The NIC.
        device: String,
        /// The provider.
        provider: String,
    },
    /// The provider hasn't the protocol that was asked for.
    #[error(
        "the {provider} provider has no receiver-not-ready protocol, which cxi alone has from libfabric 1.21 on; leave the protocol away"
    )]
    NoProtocol {
        /// The provider.
        provider: String,
    },
    /// The peer is in this process, and the library can't do that.
    #[error(
        "the {provider} provider of libfabric {library} crashes when two endpoints of one process talk; use another release, the tcp provider, or engines with one target"
    )]
    OwnProcess {
        /// The provider.
        provider: String,
        /// The library's version.
        library: String,
    },
    /// The peer was never inserted, or was removed.
    #[error("the peer is not known to this endpoint; insert its address first")]
    UnknownPeer,
    /// The peer can't be reached, or the connection to it broke.
    #[error("contact with the peer was lost: {reason}")]
    Unreachable {
        /// What the provider said.
        reason: String,
    },
    /// The message does not fit.
    #[error("a message of {len} bytes is larger than the provider's {max}; move the payload by RMA")]
    TooLarge {
        /// Its length.
        len: usize,
        /// The most that is possible.
        max: usize,
    },
    /// The range is not within the buffer or region.
    #[error("bytes {start}..{end} are outside a region of {len} bytes")]
    OutOfRange {
        /// First byte.
        start: u64,
        /// One past the last byte.
        end: u64,
        /// Length of the region.
        len: u64,
    },
    /// The memory of the pool is used up.
    #[error(
        "no buffer of {wanted} bytes is left ({used} of {limit} bytes in use); try again when operations have finished"
    )]
    NoBuffers {
        /// Bytes asked for.
        wanted: usize,
        /// Bytes handed out.
        used: usize,
        /// The pool's limit.
        limit: usize,
    },
    /// The remote side has no region with this key, or not with this access.
    #[error("the peer refused access to its memory: {reason}")]
    AccessDenied {
        /// What the provider said.
        reason: String,
    },
    /// The endpoint was closed, or the peer removed, while the operation waited.
    #[error("the operation was cancelled")]
    Cancelled,
    /// The provider refused a call.
    #[error("{call} failed: {reason} ({code}); provider {provider}")]
    Provider {
        /// The libfabric function.
        call: &'static str,
        /// Its error number, negative.
        code: i64,
        /// Its error text.
        reason: String,
        /// The provider.
        provider: String,
    },
}
