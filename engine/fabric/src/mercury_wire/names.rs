//! Addresses as Mercury writes them: `ofi+tcp://10.0.0.1:31416`, `na+sm://4711-0`.

use crate::{Address, FabricError};
use std::net::SocketAddr;
use std::path::Path;

/// The scheme of shared memory.
const SM: &str = "na+sm";

/// What an address names.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Locator {
    /// A host and port.
    Socket(SocketAddr),
    /// A process of this node, and which of its endpoints.
    Process(u32, u8),
}

/// A peer's address that was taken apart. Only its canonical text goes to Mercury: addresses come from the network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Name {
    scheme: String,
    locator: Locator,
}

impl Name {
    /// Takes an address apart.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let locator = if scheme == SM {
            let (pid, id) = rest.split_once('-')?;
            let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then_some(());
            number(pid).and(number(id))?;
            Locator::Process(pid.parse().ok().filter(|pid| *pid > 0)?, id.parse().ok()?)
        } else {
            Locator::Socket(rest.parse().ok()?)
        };
        Some(Self { scheme: scheme.to_owned(), locator })
    }

    /// The peer of this address, if an endpoint of that name can reach it.
    #[must_use]
    pub fn of_peer(&self, address: &Address) -> Option<Self> {
        let bytes = address.as_bytes();
        let text = str::from_utf8(bytes.strip_suffix(&[0]).unwrap_or(bytes)).ok()?;
        let peer = Self::parse(text).filter(|peer| peer.scheme == self.scheme)?;
        let reachable = match (&self.locator, &peer.locator) {
            (Locator::Socket(own), Locator::Socket(to)) => {
                own.is_ipv4() == to.is_ipv4() && to.port() != 0 && !to.ip().is_unspecified()
            }
            (own, to) => matches!((own, to), (Locator::Process(..), Locator::Process(..))),
        };
        reachable.then_some(peer)
    }

    /// The address of the same scheme at another host and port.
    #[must_use]
    pub fn at(&self, socket: SocketAddr) -> Self {
        Self { scheme: self.scheme.clone(), locator: Locator::Socket(socket) }
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> String {
        match self.locator {
            Locator::Socket(socket) => format!("{}://{socket}", self.scheme),
            Locator::Process(pid, id) => format!("{}://{pid}-{id}", self.scheme),
        }
    }

    /// As an address of the fabric.
    ///
    /// # Errors
    /// When it is too long for one.
    pub fn address(&self) -> Result<Address, FabricError> {
        let text = self.text();
        Address::from_bytes(text.as_bytes())
            .ok_or(FabricError::BadAddress { address: text, provider: self.scheme.clone() })
    }

    /// Its host and port, where it has them.
    #[must_use]
    pub fn socket(&self) -> Option<SocketAddr> {
        match self.locator {
            Locator::Socket(socket) => Some(socket),
            Locator::Process(..) => None,
        }
    }

    /// Whether the peer is a process of this node that has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        match self.locator {
            Locator::Socket(_) => false,
            Locator::Process(pid, _) => !Path::new(&format!("/proc/{pid}")).exists(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::from_bytes(text.as_bytes()).expect("short")
    }

    #[test]
    fn only_addresses_that_mean_a_peer_of_the_same_scheme_are_taken() {
        let own = Name::parse("ofi+tcp://127.0.0.1:5000").expect("an address");
        let peer = own.of_peer(&address("ofi+tcp://10.0.0.1:31416\0")).expect("a peer");
        assert_eq!(peer.text(), "ofi+tcp://10.0.0.1:31416");
        let not = [
            "na+sm://17-0",
            "ofi+tcp://10.0.0.1:0",
            "ofi+tcp://0.0.0.0:9",
            "ofi+tcp://[::1]:9",
            "ofi+tcp://10.0.0.1",
            "ofi+tcp://host:9",
            "10.0.0.1:9",
            "://",
        ];
        for text in not {
            assert_eq!(own.of_peer(&address(text)), None, "{text}");
        }
        let own = Name::parse("na+sm://17-0").expect("an address");
        assert_eq!(
            own.of_peer(&address("na+sm://18-255")).map(|peer| peer.text()),
            Some("na+sm://18-255".into())
        );
        for text in
            ["na+sm://18-256", "na+sm://0-1", "na+sm://+18-1", "na+sm://18-../x", "na+sm://18", "na+sm://-"]
        {
            assert_eq!(own.of_peer(&address(text)), None, "{text}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_seen_to() {
        let living = format!("na+sm://{}-0", std::process::id());
        assert!(!Name::parse(&living).expect("an address").is_dead());
        let mut child = std::process::Command::new("true").spawn().expect("a process");
        let dead = format!("na+sm://{}-0", child.id());
        child.wait().expect("it ends");
        assert!(Name::parse(&dead).expect("an address").is_dead());
    }
}
