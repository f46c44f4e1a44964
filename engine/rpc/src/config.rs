//! Settings of an RPC context and of single calls.

use core::ops::RangeInclusive;
use core::time::Duration;
use weir_proto::Keys;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_runtime::{Handle, Instant};

/// Requests in flight from one context to one peer (DAOS: `D_CREDIT_EP_CTX`, default 32). Enough to fill a link of
/// 100 Gbit/s with inline bodies at 40 µs round trip; what goes beyond waits at the sender.
pub const CREDITS_DEFAULT: usize = 32;

/// The same for peers with one queue for all senders, as providers with a doorbell have (`shm`: 1024 messages).
/// Such a provider takes messages in as long as more come, and copies those without receive memory into 32 KiB
/// each. So the senders have to stop: after this many, they wait for answers, which are sent when the queue is
/// empty. Eight senders that want more find room beside each other.
pub const DOORBELL_CREDITS_MAX: usize = 128;

/// Requests in flight from one context to all its peers (DAOS: `D_QUOTA_RPCS`, default 64): two peers with all
/// their credits. A context of an engine has more, because it speaks for many clients.
pub const REQUESTS_MAX_DEFAULT: usize = 64;

/// Calls of one context that expose memory at once (DAOS: `D_QUOTA_BULKS`, default 64). It bounds registrations.
pub const BULKS_MAX_DEFAULT: usize = 64;

/// Requests of one client that a server executes at once: all its credits, the urgent reserve, and as many that it gave
/// up. A client with more ignores its credits; refusing its requests early keeps all queues short. A client with more
/// credits needs a server that is configured so, too.
pub const RUNNING_PER_CLIENT_DEFAULT: usize = CREDITS_DEFAULT + 8;

/// Requests that a server executes at once before it answers "overloaded": 32 clients with all their credits.
pub const RUNNING_MAX_DEFAULT: usize = 1024;

/// Memory for replies that may be repeated: 4096 replies of the largest inline size.
pub const REPLY_CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// Reads and writes of client memory in flight at once: with fragments of 1 MiB, the default buffer pool.
pub const TRANSFERS_MAX_DEFAULT: usize = 64;

/// Settings of one [`crate::Rpc`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RpcConfig {
    /// Requests in flight to one peer. More wait in order.
    pub credits: usize,
    /// Requests in flight to all peers. More wait, and peers are served round-robin.
    pub requests_max: usize,
    /// Calls with exposed memory at once. One peer has at most its credits, and no more than it leaves to all
    /// others. More wait, and peers are served round-robin.
    pub bulks_max: usize,
    /// Requests executed at once as a server.
    pub running_max: usize,
    /// Requests of one client executed at once as a server.
    pub running_per_client: usize,
    /// Bytes of finished replies kept for retries.
    pub reply_cache_bytes: usize,
    /// Transfers of client memory in flight at once.
    pub transfers_max: usize,
    /// Wait for a reply before a request is sent again the first time. It doubles each time.
    pub attempt_min: Duration,
    /// Longest wait for a reply before a request is sent again.
    pub attempt_max: Duration,
    /// Wait for the answer to a hello before contact counts as failed.
    pub hello_timeout: Duration,
    /// First pause after contact failed. It doubles each time.
    pub backoff_min: Duration,
    /// Longest pause after contact failed.
    pub backoff_max: Duration,
    /// Send the own address in each request, as servers need that can't tell senders. For measuring its cost.
    pub greet_always: bool,
    /// Protocol versions this side speaks.
    pub versions: RangeInclusive<u16>,
    /// Keys that authenticate messages. `None`: nothing is authenticated, for networks that keep tenants apart,
    /// and for tests.
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
    /// It may: a server executes it once while it lives, and executing it again after a restart is harmless.
    #[default]
    Idempotent,
    /// It may not: when contact breaks, the call fails and the outcome is unknown.
    Never,
}

/// Which calls go first when there are more than credits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Priority {
    /// Ordinary calls.
    #[default]
    Normal,
    /// Before calls that begin something: others wait for it, as for what was sent before.
    Early,
    /// Membership: before all others, and with a small reserve of credits.
    Urgent,
}

/// Settings of one call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// When to give up.
    pub deadline: Instant,
    /// Whether to send it again.
    pub retry: Retry,
    /// Which calls it goes before.
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
