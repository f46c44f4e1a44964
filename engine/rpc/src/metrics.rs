//! Plain counters of one context; the engine exports them.

use core::cell::Cell;
pub(crate) use weir_fabric::counters::{add, raise};

weir_fabric::counters! {
    /// What an RPC context has done since it started. `running` is a gauge, everything else only grows: what ends in `_max` to
    /// the greatest value that there was.
    pub struct RpcMetrics {
        /// Messages sent, of every kind.
        messages_sent,
        /// Bytes of them.
        bytes_sent,
        /// Messages received, of every kind.
        messages_received,
        /// Bytes of them.
        bytes_received,
        /// Sends that failed after they were accepted.
        sends_failed,
        /// Calls made.
        calls,
        /// Calls that waited for a credit or the quota.
        queued,
        /// Calls that ended with an error of any kind.
        calls_failed,
        /// Calls that ended without a reply at their deadline.
        timeouts,
        /// Requests sent again.
        retries,
        /// Contacts made.
        connects,
        /// Contacts given up.
        disconnects,
        /// Requests accepted for execution.
        requests,
        /// Replies sent.
        replies,
        /// Requests that were sent again and met their first execution still running.
        repeats_running,
        /// Requests that were sent again and were answered from memory.
        repeats_answered,
        /// Requests that came after their client had finished with them.
        repeats_stale,
        /// Requests that were sent again after their replies had to be forgotten.
        repeats_forgotten,
        /// Messages that don't decode.
        malformed,
        /// Messages of other protocol versions.
        version_refused,
        /// Messages without a valid authentication tag, or of another tenant's session.
        unauthenticated,
        /// Requests of clients that have no session here.
        unknown_sessions,
        /// Hellos and requests in the name of tenants whose access is revoked.
        revoked,
        /// Hellos and requests that were recorded and sent again.
        replays_refused,
        /// Servers' words that they don't know this client.
        notices,
        /// Messages whose sender's clock is too far ahead.
        skew_refused,
        /// Requests that waited because their tenant's clock was more than half of the bound ahead.
        requests_early,
        /// Requests that had expired when they were unpacked.
        expired,
        /// Bulk transfers refused or abandoned for their deadline.
        bulk_expired,
        /// Replies held back until the last piece of a bulk transfer that was given up had ended.
        replies_held,
        /// Failed or dropped calls whose memory the server might still have been at.
        withdrawals,
        /// Of these, calls whose server said that it is not, and will not be.
        withdrawals_confirmed,
        /// Of these, calls whose memory was kept from use until the server must have given up.
        withdrawals_waited,
        /// Failed or dropped calls whose memory stayed exposed, because the registration method leaves it so.
        left_exposed,
        /// Pieces of bulk transfers tried again after contact broke.
        bulk_retries,
        /// Requests refused for overload.
        overloaded,
        /// Of these, requests of clients that had too many under way themselves.
        overdrawn,
        /// Messages that got no answer because their clients don't heed answers: refused requests, hellos and repeats.
        ignored,
        /// Overload answers received.
        overload_hints,
        /// Messages that can't be answered, because neither the provider nor the message identifies the sender.
        unknown_senders,
        /// Messages that carry the id of a client which is elsewhere.
        impostors,
        /// Replies that no call waits for.
        stray_replies,
        /// Bytes read from clients' memory.
        bulk_pulled_bytes,
        /// Bytes written to clients' memory.
        bulk_pushed_bytes,
        /// Requests being executed now.
        running,
        /// Most requests of others that began while one waited whose client had no other under way.
        passed_max,
    }
}

/// Takes from a gauge.
pub(crate) fn sub(gauge: &Cell<u64>, n: u64) {
    debug_assert!(gauge.get() >= n, "a gauge falls below zero");
    gauge.set(gauge.get() - n);
}
