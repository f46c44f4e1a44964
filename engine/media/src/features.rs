//! Features of io_uring that a device uses beyond plain transfers.

use core::fmt;

/// A set of io_uring's features. A device is asked to use some; what kernel, container or device lack is left out, and
/// everything works without.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Features(u8);

/// Every feature with its name in logs and messages.
const NAMES: [(Features, &str); 5] = [
    (Features::FILES, "registered files"),
    (Features::BUFFERS, "registered buffers"),
    (Features::COOPERATIVE, "cooperative completions"),
    (Features::DEFERRED, "deferred completions"),
    (Features::POLLED, "polled completions"),
];

impl Features {
    /// Plain transfers only.
    pub const NONE: Self = Self(0);
    /// The kernel keeps the device's descriptor for the ring, and doesn't count a reference for each transfer.
    pub const FILES: Self = Self(1);
    /// The kernel keeps the pages of a [`crate::DmaPool`] at hand (`IORING_OP_READ_FIXED`, `IORING_OP_WRITE_FIXED`),
    /// and doesn't look them up and pin them for each transfer.
    pub const BUFFERS: Self = Self(1 << 1);
    /// One thread submits, and completions don't interrupt it while it runs but wait for its next system call
    /// (`IORING_SETUP_SINGLE_ISSUER`, `IORING_SETUP_COOP_TASKRUN`; Linux 6.0).
    pub const COOPERATIVE: Self = Self(1 << 2);
    /// One thread submits, and completions wait until it asks the ring for them (`IORING_SETUP_SINGLE_ISSUER`,
    /// `IORING_SETUP_DEFER_TASKRUN`; Linux 6.1). A sleeping thread hears of them through an event descriptor of its
    /// own, which costs two system calls more for each sleep: for threads that rarely sleep.
    pub const DEFERRED: Self = Self(1 << 3);
    /// Completions are looked for at the device's queue instead of waiting for its interrupt (`IORING_SETUP_IOPOLL`).
    /// Needs a device with poll queues.
    pub const POLLED: Self = Self(1 << 4);
    /// What a device uses unless told otherwise: all but [`Features::DEFERRED`], because the executor sleeps on many
    /// descriptors.
    pub const DEFAULT: Self = Self(0b1_0111);

    /// Whether all of `other` are in this set.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set and `other`.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// This set but for `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            NAMES.iter().filter(|(feature, _)| self.has(*feature)).map(|(_, name)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(", "))
    }
}

impl fmt::Debug for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_added_to_taken_from_and_named() {
        let set = Features::DEFAULT.without(Features::POLLED.with(Features::COOPERATIVE));
        assert!(set.has(Features::FILES) && !set.has(Features::POLLED) && set.has(Features::NONE));
        assert_eq!(set.to_string(), "registered files, registered buffers");
        assert_eq!(Features::NONE.to_string(), "none");
    }
}
