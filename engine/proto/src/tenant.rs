//! Tenants: groups of clients that share a system without sharing anything in it.
//!
//! A tenant is a number and a key. The key is derived from the system key, so that an engine has the key of every
//! tenant without storing one, and a tenant's clients have theirs and no other.

use serde::{Deserialize, Serialize};

use crate::capability::{InvalidSystemKey, SystemKey};

/// Names a tenant: [`TenantId::SYSTEM`] or a number that the administrator gives. On networks with VNIs it is the VNI.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct TenantId(pub u64);

impl TenantId {
    /// The system itself: its engines and its administrators' clients.
    pub const SYSTEM: Self = Self(0);
}

impl core::fmt::Display for TenantId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// What was said last of a tenant's access. Of two statements the later one holds, and of two of one time the revocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct TenantAccess {
    /// Wall time of the statement, nanoseconds since 1970.
    pub stated_ns: u64,
    /// Whether engines answer nobody of the tenant.
    pub revoked: bool,
}

/// Statements on tenants, by tenant.
pub type TenantTable = Vec<(TenantId, TenantAccess)>;

/// What one target says of tenants, and what it wants to know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TenantQuestion {
    /// What the receiver should take over: few, since a request has little room.
    pub statements: TenantTable,
    /// The tenant that the reply is about; none for all.
    pub about: Option<TenantId>,
}

/// The key that a tenant's clients share with the engines.
#[derive(Clone, PartialEq, Eq)]
pub struct TenantKey {
    tenant: TenantId,
    bytes: [u8; 32],
}

impl core::fmt::Debug for TenantKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "TenantKey({}, ..)", self.tenant)
    }
}

impl SystemKey {
    /// The key of a tenant.
    #[must_use]
    pub fn tenant(&self, tenant: TenantId) -> TenantKey {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"tenant").update(&tenant.0.to_le_bytes());
        TenantKey { tenant, bytes: *hasher.finalize().as_bytes() }
    }
}

impl TenantKey {
    /// A tenant's key as it was handed out.
    #[must_use]
    pub const fn new(tenant: TenantId, bytes: [u8; 32]) -> Self {
        Self { tenant, bytes }
    }

    /// Reads the text of a key file; the same form as a system key's.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(tenant: TenantId, text: &str) -> Result<Self, InvalidSystemKey> {
        Ok(Self::new(tenant, SystemKey::parse(text)?.0))
    }

    /// Whose it is.
    #[must_use]
    pub const fn tenant(&self) -> TenantId {
        self.tenant
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// A key for one purpose, bound to what makes it unique: `parts` in this order.
    #[must_use]
    pub fn derive(&self, purpose: &str, parts: &[&[u8]]) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_keyed(&self.bytes);
        for part in [purpose.as_bytes()].iter().chain(parts) {
            // Lengths keep neighbouring parts apart.
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        *hasher.finalize().as_bytes()
    }
}

/// Where a context has its keys from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Keys {
    /// A client: it has the key of its tenant.
    Tenant(TenantKey),
    /// An engine: it has the key of every tenant, and speaks for the system.
    System(SystemKey),
}

impl Keys {
    /// The key that requests of this context are made under.
    #[must_use]
    pub fn own(&self) -> TenantKey {
        match self {
            Self::Tenant(key) => key.clone(),
            Self::System(key) => key.tenant(TenantId::SYSTEM),
        }
    }

    /// The key of the client that makes requests to this context.
    #[must_use]
    pub fn of(&self, tenant: TenantId) -> Option<TenantKey> {
        match self {
            Self::Tenant(key) => (key.tenant() == tenant).then(|| key.clone()),
            Self::System(key) => Some(key.tenant(tenant)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_its_own_key_only_and_an_engine_everybodys() {
        let system = SystemKey([3; 32]);
        let client = Keys::Tenant(system.tenant(TenantId(4)));
        let engine = Keys::System(system);
        assert_eq!(engine.of(TenantId(4)), Some(client.own()));
        assert_eq!((client.of(TenantId(5)), client.of(TenantId::SYSTEM)), (None, None));
        assert_eq!(engine.own().tenant(), TenantId::SYSTEM);
    }

    #[test]
    fn keys_are_those_that_the_operator_derives() {
        let lines = include_str!("../keys/vectors.txt").lines().filter(|line| !line.starts_with('#'));
        let mut count = 0;
        for line in lines {
            let words: Vec<_> = line.split_whitespace().collect();
            let [system, number, key] = words[..] else { panic!("{line}") };
            let system = SystemKey::parse(system).expect("a key");
            let tenant = TenantId(number.parse().expect("a number"));
            assert_eq!(Ok(system.tenant(tenant)), TenantKey::parse(tenant, key), "{line}");
            count += 1;
        }
        assert!(count > 4, "{count} vectors");
    }

    #[test]
    fn tenants_have_different_keys_and_purposes_different_ones_again() {
        let system = SystemKey([7; 32]);
        let [one, two] = [1, 2].map(|tag| system.tenant(TenantId(tag)));
        assert_ne!(one.bytes(), two.bytes());
        assert_eq!(one, system.tenant(TenantId(1)));
        assert_ne!(one.derive("a", &[b"bc"]), one.derive("ab", &[b"c"]));
        assert_ne!(one.derive("a", &[b"b", b"c"]), one.derive("a", &[b"bc"]));
        assert_ne!(one.derive("a", &[]), two.derive("a", &[]));
        assert!(!format!("{one:?}").contains(&one.bytes()[0].to_string()));
    }
}
