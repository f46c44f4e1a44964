//! What a provider can do: read at start, never assumed.

use core::fmt;

/// How a context sleeps until something arrives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// The completion queue has a descriptor.
    Fd,
    /// The provider has none: senders ring a doorbell of our own.
    Doorbell,
    /// Virtual time: nothing to wait on.
    Simulated,
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

/// What the provider of an endpoint can do.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each ability")]
pub struct Capabilities {
    /// Name of the provider.
    pub provider: String,
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
    /// Reads and writes of remote memory.
    pub rma: bool,
    /// How to sleep.
    pub wait: Wait,
    /// What registration needs.
    pub mr: MrMode,
    /// Largest message that is sent without a completion, in bytes.
    pub inject: usize,
    /// Largest message, in bytes.
    pub max_message: usize,
    /// Largest single read or write, in bytes.
    pub max_transfer: usize,
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            ("multi-recv", self.multi_recv),
            ("source", self.source),
            ("source-err", self.source_err),
            ("av-user-id", self.av_user_id),
            ("auth-keys", self.auth_keys),
            ("rma", self.rma),
            ("mr-local", self.mr.local),
            ("mr-virt-addr", self.mr.virt_addr),
            ("mr-prov-key", self.mr.prov_key),
            ("mr-endpoint", self.mr.endpoint),
            ("mr-allocated", self.mr.allocated),
        ];
        write!(f, "{} (library {})", self.provider, self.library)?;
        for (name, on) in flags {
            write!(f, " {}{name}", if on { '+' } else { '-' })?;
        }
        write!(f, " wait={:?} inject={} max-message={}", self.wait, self.inject, self.max_message)
    }
}
