//! Plain counters of one endpoint; the engine exports them.

use core::cell::Cell;

/// A struct of plain counters of one thread, which can be listed by name.
#[macro_export]
macro_rules! counters {
    ($(#[$about:meta])* $vis:vis struct $counters:ident { $($(#[$doc:meta])* $name:ident),* $(,)? }) => {
        $(#[$about])*
        #[derive(Default, Debug)]
        $vis struct $counters {
            $($(#[$doc])* pub $name: ::core::cell::Cell<u64>,)*
        }

        impl $counters {
            /// Every counter by name.
            #[must_use]
            pub fn all(&self) -> ::std::vec::Vec<(&'static str, u64)> {
                ::std::vec![$((stringify!($name), self.$name.get()),)*]
            }
        }
    };
}

counters! {
    /// What an endpoint has done since it was opened. What ends in `_max` is the greatest value that there was, all else
    /// a count.
    pub struct FabricCounters {
        /// Messages handed to the provider.
        messages_sent,
        /// Bytes of them.
        bytes_sent,
        /// Messages handed to the sink.
        messages_received,
        /// Bytes of them.
        bytes_received,
        /// Sends that failed after they were accepted.
        sends_failed,
        /// Times that the provider had no room and an operation was queued.
        eagain,
        /// Times that one that was queued was tried again.
        retries,
        /// Messages whose sender was not known.
        unknown_sources,
        /// Most messages that had arrived and waited to be handed to the sink at a time.
        intake_max,
        /// Messages dropped because more waited of their senders than any has under way.
        intake_dropped,
        /// Messages copied out because few slabs were left.
        slab_copies,
        /// Slabs posted, first time and again.
        slab_posts,
        /// Times that the provider let go of the only slab that was posted: nothing is received until another one is.
        slabs_run_out,
        /// Reads of remote memory that completed.
        reads,
        /// Bytes of them.
        bytes_read,
        /// Writes of remote memory that completed.
        writes,
        /// Bytes of them.
        bytes_written,
        /// Reads and writes that failed.
        transfers_failed,
        /// Memory exposed to peers.
        exposures,
        /// Registrations that the provider made for that.
        registrations,
        /// Exposures that found a registration which serves again.
        mr_hits,
        /// Kept registrations that ended because their memory was freed, moved or discarded.
        mr_stale,
        /// Messages sent through channels within the node.
        channel_sent,
        /// Messages received through them.
        channel_received,
        /// Channels that peers offered and that were accepted.
        channels_accepted,
        /// Channels that peers offered and that were refused.
        channels_refused,
        /// Doorbells rung at sleeping peers.
        doorbells,
        /// Messages that the endpoint sent itself, to see whether it still receives.
        probes,
        /// Times that the endpoint was opened anew, because a peer that died had blocked its queue or had its lock.
        reopened,
        /// Times that the endpoint's published address was told.
        addresses_told,
        /// Questions about it that were none, came too slowly, or were of no tenant.
        addresses_refused,
        /// Peers inserted.
        peers_inserted,
        /// Peers given up.
        peers_removed,
    }
}

/// Raises the greatest value that there was.
pub fn raise(greatest: &Cell<u64>, n: u64) {
    if n > greatest.get() {
        greatest.set(n);
    }
}

/// Adds to a counter.
pub fn add(counter: &Cell<u64>, n: u64) {
    counter.set(counter.get().wrapping_add(n));
}
