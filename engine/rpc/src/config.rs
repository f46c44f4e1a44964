//! Settings of an RPC context and of single calls.

use core::ops::RangeInclusive;
use core::time::Duration;
use weir_proto::Keys;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_runtime::{Handle, Instant};

/// Requests in flight from one context to one peer (DAOS: `D_CREDIT_EP_CTX`, default 32). Enough to fill a link of
/// 100 Gbit/s with inline bodies at 40 µs round trip; what goes beyond waits at the sender.
pub const CREDITS_DEFAULT: usize = 32;

/// The same where a peer has one queue for all that is sent to it, as providers with a doorbell have (`shm`: 1024 messages).
/// Such a provider empties its queue whenever it is asked for messages, and doesn't stop while more come; what finds
/// no receive memory then it copies, each into 32 KiB. So it must be the senders that stop: after this many, for
/// answers that are sent only when the queue is empty. Eight senders that want more find room for each other.
pub const DOORBELL_CREDITS_MAX: usize = 128;

/// Requests in flight from one context to all its peers (DAOS: `D_QUOTA_RPCS`, default 64): two peers with all their
/// credits. A context of an engine, which speaks for many clients, has more.
pub const REQUESTS_MAX_DEFAULT: usize = 64;

/// Calls of one context that expose memory at once (DAOS: `D_QUOTA_BULKS`, default 64): bounds registrations.
pub const BULKS_MAX_DEFAULT: usize = 64;

/// Requests of one client that a server executes at once: all its credits, the reserve for urgent ones, and as many that it
/// gave up. More are those of a client that keeps to no credits, and the sooner they are sent away the shorter is the
/// queue in which everybody's requests stand. A client that is configured for more credits needs a server that is, too.
pub const RUNNING_PER_CLIENT_DEFAULT: usize = CREDITS_DEFAULT + 8;

/// Requests that a server executes at once before it answers "overloaded": 32 clients with all their credits.
pub const RUNNING_MAX_DEFAULT: usize = 1024;

/// Memory for replies that may be asked for again: 4096 replies of the largest inline size.
pub const REPLY_CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// Reads and writes of client memory under way at once: with pieces of 1 MiB that is the default buffer pool.
pub const TRANSFERS_MAX_DEFAULT: usize = 64;

/// Settings of one [`crate::Rpc`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcConfig {
    /// Requests in flight to one peer; more wait in order.
    pub credits: usize,
    /// Requests in flight to all peers; more wait, and peers take turns.
    pub requests_max: usize,
    /// Calls with exposed memory at once, of which one peer has as many as its credits, and no more than what it leaves to all
    /// others; more wait, and peers take turns.
    pub bulks_max: usize,
    /// Requests executed at once as a server.
    pub running_max: usize,
    /// Requests of one client executed at once as a server.
    pub running_per_client: usize,
    /// Bytes of finished replies kept for retries.
    pub reply_cache_bytes: usize,
    /// Transfers of client memory under way at once.
    pub transfers_max: usize,
    /// How long to wait for a reply before a request is sent again the first time; doubles each time.
    pub attempt_min: Duration,
    /// Longest wait for a reply before a request is sent again.
    pub attempt_max: Duration,
    /// How long to wait for the answer to a hello before contact counts as failed.
    pub hello_timeout: Duration,
    /// First pause after contact failed; doubles each time.
    pub backoff_min: Duration,
    /// Longest pause after contact failed.
    pub backoff_max: Duration,
    /// Say in each request where this side is, as is needed where servers can't tell senders; for measuring what that
    /// costs.
    pub greet_always: bool,
    /// Protocol versions this side speaks.
    pub versions: RangeInclusive<u16>,
    /// Keys that messages are authenticated with. Without, nothing is: for networks that keep tenants apart
    /// themselves, and for tests.
    pub keys: Option<Keys>,
}

impl Default for RpcConfig {
    fn default() -> Self {
        Self {
            credits: CREDITS_DEFAULT,
            requests_max: REQUESTS_MAX_DEFAULT,
            bulks_max: BULKS_MAX_DEFAULT,
            running_per_client: RUNNING_PER_CLIENT_DEFAULT,
            running_max: RUNNING_MAX_DEFAULT,
            reply_cache_bytes: REPLY_CACHE_BYTES_DEFAULT,
            transfers_max: TRANSFERS_MAX_DEFAULT,
            attempt_min: Duration::from_millis(500),
            attempt_max: Duration::from_secs(4),
            hello_timeout: Duration::from_secs(1),
            backoff_min: Duration::from_millis(10),
            backoff_max: Duration::from_secs(1),
            greet_always: false,
            versions: PROTOCOL_MIN..=PROTOCOL_MAX,
            keys: None,
        }
    }
}

/// Whether a request may be sent again when its reply doesn't come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Retry {
    /// It may: a server executes it once while it lives, and executing it once more after a restart is harmless.
    #[default]
    Idempotent,
    /// It may not: when contact breaks, the call fails and the outcome is unknown.
    Never,
}

/// Whose turn it is first when there are more calls than credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Priority {
    /// Everybody's.
    #[default]
    Normal,
    /// Before those that begin something, as what was sent before: others wait for it.
    Early,
    /// Membership: goes before all others, and may use a small reserve of credits.
    Urgent,
}

/// Settings of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// When to give up.
    pub deadline: Instant,
    /// Whether to send it again.
    pub retry: Retry,
    /// Whose turn it is first.
    pub priority: Priority,
}

impl CallOptions {
    /// An idempotent call that gives up after this time.
    #[must_use]
    #[inline]
    pub fn within(rt: &Handle, time: Duration) -> Self {
        Self::until(rt.now() + time)
    }

    /// An idempotent call that gives up at this time.
    #[must_use]
    #[inline]
    pub fn until(deadline: Instant) -> Self {
        Self { deadline, retry: Retry::Idempotent, priority: Priority::Normal }
    }

    /// The same, before all others.
    #[must_use]
    #[inline]
    pub fn urgent(self) -> Self {
        Self { priority: Priority::Urgent, ..self }
    }

    /// The same, before those that begin something.
    #[must_use]
    #[inline]
    pub fn early(self) -> Self {
        Self { priority: Priority::Early, ..self }
    }

    /// The same, sent only once.
    #[must_use]
    #[inline]
    pub fn once(self) -> Self {
        Self { retry: Retry::Never, ..self }
    }
}
