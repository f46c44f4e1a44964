//! Memory that peers may access, and what is certain about their accesses when that ends.

use super::transfer::Transfer;
use crate::memory::{Memory, MemoryHold, RemoteRegion};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::rc::Rc;

/// How memory is registered for peers: the methods that "Enhancing RPC on Slingshot for Aurora's DAOS Storage System"
/// compares (§4.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MrMethod {
    /// Each exposure is a registration, which ends with it.
    Uncached,
    /// The same with few small keys that hardware resolves without a search; the kernel makes and ends each.
    /// They are reused at once, so that a late access may reach another exposure.
    Optimized,
    /// Such keys that never end: for windows that live as long as the process. Unsafe for memory of one call.
    Persistent,
    /// Keys are kept for the next exposure of the same memory. Ending an exposure does nothing and leaves the
    /// memory exposed.
    KeyCache,
    /// Each exposure is a registration whose accesses are counted: it has ended when no access is in flight.
    #[default]
    MatchEvents,
}

impl MrMethod {
    /// Every method, in the paper's order.
    pub const ALL: [Self; 5] =
        [Self::Uncached, Self::Optimized, Self::Persistent, Self::KeyCache, Self::MatchEvents];

    /// The name in configuration files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Uncached => "uncached",
            Self::Optimized => "optimized",
            Self::Persistent => "persistent",
            Self::KeyCache => "key-cache",
            Self::MatchEvents => "match-events",
        }
    }

    /// The method of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.name() == name)
    }

    /// Whether it uses the small keys that hardware resolves.
    #[must_use]
    pub const fn is_optimized(self) -> bool {
        matches!(self, Self::Optimized | Self::Persistent)
    }

    /// Whether peers still reach memory whose exposure has ended.
    #[must_use]
    pub const fn leaves_exposed(self) -> bool {
        matches!(self, Self::Persistent | Self::KeyCache)
    }
}

impl fmt::Display for MrMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What is certain about peers' accesses when an exposure has ended.
pub enum Ending {
    /// No access is in flight, and none can begin.
    Certain,
    /// No access can begin. The transfer completes when the last one has ended.
    Pending(Transfer),
    /// No access can begin. The provider doesn't tell whether one is in flight.
    Untold,
    /// The memory is still exposed: [`MrMethod::leaves_exposed`].
    Exposed,
}

impl fmt::Debug for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Certain => "Certain",
            Self::Pending(_) => "Pending",
            Self::Untold => "Untold",
            Self::Exposed => "Exposed",
        })
    }
}

/// An exposure that has ended.
pub struct Closed {
    /// Holds the memory while accesses may be in flight.
    pub hold: MemoryHold,
    /// Whether they may be in flight.
    pub ending: Ending,
}

/// A registration as the endpoint that made it knows it.
pub(crate) trait Registered {
    /// Peers have finished with it: it may be kept for the next exposure.
    fn settle(self: Box<Self>);

    /// Whether [`Registered::close`] leaves open if accesses are in flight.
    fn is_untold(&self) -> bool;

    /// Ends it, whatever accesses are in flight.
    fn close(self: Box<Self>) -> Ending;
}

/// Memory that a peer may access until this is closed, settled or dropped. What is certain then depends on the
/// provider and on the [`MrMethod`]. Where it isn't, the layer above has to find out or to wait (see
/// `weir-rpc`).
pub struct Exposure {
    region: RemoteRegion,
    memory: Rc<Memory>,
    registration: Option<Box<dyn Registered>>,
}

impl Exposure {
    pub(crate) fn new(region: RemoteRegion, memory: Rc<Memory>, registration: Box<dyn Registered>) -> Self {
        Self { region, memory, registration: Some(registration) }
    }

    /// What to send to the peer.
    #[must_use]
    pub fn region(&self) -> RemoteRegion {
        self.region
    }

    /// Whether the memory belongs to the application.
    #[must_use]
    pub fn is_foreign(&self) -> bool {
        self.memory.is_foreign()
    }

    /// Whether ending it would leave open if accesses are in flight ([`Ending::Untold`]). It is then better to
    /// find out first: on an access to an ended registration some providers close the connection, and `shm`
    /// doesn't answer.
    #[must_use]
    pub fn is_untold(&self) -> bool {
        self.registration.as_ref().is_some_and(|registration| registration.is_untold())
    }

    /// Ends the exposure after peers have said that they are done with it. Where registrations are cached, this
    /// one may serve the next exposure of the same memory.
    pub fn settle(mut self) {
        if let Some(registration) = self.registration.take() {
            registration.settle();
        }
    }

    /// Ends the access, and holds the memory on.
    #[must_use]
    pub fn close(mut self) -> Closed {
        let ending = self.registration.take().map_or(Ending::Certain, Registered::close);
        Closed { hold: MemoryHold::new(&self.memory), ending }
    }
}

impl Drop for Exposure {
    fn drop(&mut self) {
        // Explicit order: the registration ends before the memory can go.
        if let Some(registration) = self.registration.take() {
            let _ending = registration.close();
        }
    }
}

impl fmt::Debug for Exposure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exposure").field("len", &self.region.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_found_by_the_names_they_print() {
        for method in MrMethod::ALL {
            assert_eq!(MrMethod::from_name(&method.to_string()), Some(method));
        }
        assert_eq!(MrMethod::from_name("cached"), None);
        assert_eq!(MrMethod::ALL.iter().filter(|method| method.leaves_exposed()).count(), 2);
    }
}
