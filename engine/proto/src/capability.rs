//! Capabilities: what a client may do with a pool or container, sealed by the pool's secret.
//!
//! The pool service issues them at connect and open. A target checks the seal by itself, in constant time and without a
//! message, so that I/O survives a restart of any engine. The secret never leaves the engines.

use serde::{Deserialize, Serialize};

use crate::id::{ContainerId, PoolId};
use crate::tenant::{TenantId, TenantKey};

/// Length of the seal in bytes: 128 bits of a keyed BLAKE3 hash.
pub const SEAL_LEN: usize = 16;

/// The key that seals a pool's capabilities; drawn when the pool is created, known to its engines only.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolSecret(pub [u8; 32]);

impl core::fmt::Debug for PoolSecret {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("PoolSecret(..)")
    }
}

/// Rights a capability grants, as bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rights(pub u32);

impl Rights {
    /// Read objects, list, query.
    pub const READ: Self = Self(1);
    /// Update and punch objects.
    pub const WRITE: Self = Self(2);
    /// Create containers in the pool.
    pub const CREATE_CONTAINER: Self = Self(4);
    /// Destroy containers of the pool.
    pub const DESTROY_CONTAINER: Self = Self(8);

    /// Both sets together.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every right of `needed` is granted.
    #[must_use]
    pub const fn allows(self, needed: Self) -> bool {
        self.0 & needed.0 == needed.0
    }
}

/// Why a capability is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CapabilityError {
    /// The seal is not the pool's: forged, altered or of another pool.
    #[error("the capability was not issued by pool {0}; connect to the pool again")]
    Forged(PoolId),
    /// The seal is right but the right is missing.
    #[error(
        "the handle on pool {pool} does not grant this operation (has {has:#x}, needs {needed:#x}); open it with write access"
    )]
    Insufficient {
        /// The pool.
        pool: PoolId,
        /// Rights the capability has.
        has: u32,
        /// Rights the operation needs.
        needed: u32,
    },
}

/// A sealed grant on a pool (`container` empty) or on one container of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Capability {
    /// Whose clients it is good for: in the hands of another tenant it is worth nothing.
    pub tenant: TenantId,
    /// The pool.
    pub pool: PoolId,
    /// The container, for a container handle.
    pub container: Option<ContainerId>,
    /// What it allows.
    pub rights: Rights,
    /// Number of the handle: unique in the pool, names the handle at close and eviction.
    pub handle: u64,
    /// Keyed hash over the fields above.
    pub seal: [u8; SEAL_LEN],
}

impl Capability {
    /// Issues a capability.
    #[must_use]
    pub fn issue(
        secret: &PoolSecret,
        tenant: TenantId,
        pool: PoolId,
        container: Option<ContainerId>,
        rights: Rights,
        handle: u64,
    ) -> Self {
        let mut capability = Self { tenant, pool, container, rights, handle, seal: [0; SEAL_LEN] };
        capability.seal = capability.compute_seal(secret);
        capability
    }

    /// Checks the seal and the rights.
    ///
    /// # Errors
    /// When the capability was not issued with this secret or lacks a needed right.
    pub fn check(&self, secret: &PoolSecret, needed: Rights) -> Result<(), CapabilityError> {
        let expected = self.compute_seal(secret);
        // Constant time: the outcome must not tell how many bytes of a guess were right.
        let difference = expected.iter().zip(&self.seal).fold(0, |sum, (a, b)| sum | (a ^ b));
        if difference != 0 {
            return Err(CapabilityError::Forged(self.pool));
        }
        if !self.rights.allows(needed) {
            return Err(CapabilityError::Insufficient {
                pool: self.pool,
                has: self.rights.0,
                needed: needed.0,
            });
        }
        Ok(())
    }

    fn compute_seal(&self, secret: &PoolSecret) -> [u8; SEAL_LEN] {
        let mut hasher = blake3::Hasher::new_keyed(&secret.0);
        hasher.update(&self.tenant.0.to_le_bytes()).update(self.pool.0.as_bytes());
        match self.container {
            Some(container) => hasher.update(&[1]).update(container.0.as_bytes()),
            None => hasher.update(&[0]).update(&[0; 16]),
        };
        hasher.update(&self.rights.0.to_le_bytes()).update(&self.handle.to_le_bytes());
        let mut seal = [0; SEAL_LEN];
        seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL_LEN]);
        seal
    }
}

/// Proof that a client knows its tenant's key: it accompanies a pool connect.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Credential {
    /// Effective user of the client.
    pub uid: u32,
    /// Effective group of the client.
    pub gid: u32,
    /// Wall time of issue, nanoseconds since 1970; a connect older than [`CREDENTIAL_LIFETIME_NS`] is refused.
    pub issued_ns: u64,
    /// Keyed hash over pool name, uid, gid and time.
    pub seal: [u8; SEAL_LEN],
}

/// How long a credential may be presented after it was issued: longer than any retry of a connect.
pub const CREDENTIAL_LIFETIME_NS: u64 = 300 * 1_000_000_000;

/// The key that clients of a system share with its engines.
#[derive(Clone, PartialEq, Eq)]
pub struct SystemKey(pub [u8; 32]);

/// The text of a key file is not a system key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a system key file holds 32 bytes as base64 text (44 characters); make one with `openssl rand -base64 32`"
)]
pub struct InvalidSystemKey;

impl SystemKey {
    /// Reads the text of a key file: base64 (RFC 4648 §4) of 32 bytes, white space around it ignored.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidSystemKey> {
        let digits = text.trim().strip_suffix('=').ok_or(InvalidSystemKey)?;
        // 43 digits of 6 bits are 256 bits and 2 that must be zero.
        if digits.len() != 43 {
            return Err(InvalidSystemKey);
        }
        let mut key = [0; 32];
        let (mut bits, mut held, mut filled) = (0_u32, 0, 0);
        for digit in digits.bytes() {
            let value = match digit {
                b'A'..=b'Z' => digit - b'A',
                b'a'..=b'z' => digit - b'a' + 26,
                b'0'..=b'9' => digit - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return Err(InvalidSystemKey),
            };
            bits = (bits << 6) | u32::from(value);
            held += 6;
            if held >= 8 {
                held -= 8;
                key[filled] = ((bits >> held) & 0xff) as u8;
                filled += 1;
                bits &= (1 << held) - 1;
            }
        }
        if bits == 0 { Ok(Self(key)) } else { Err(InvalidSystemKey) }
    }
}

/// The key that engines seal requests to each other with. No client has it, so that none can make such a request.
#[derive(Clone, PartialEq, Eq)]
pub struct EngineKey(pub [u8; 32]);

impl EngineKey {
    /// Reads the text of a key file; the same form as a system key's.
    ///
    /// # Errors
    /// When the text is anything else.
    pub fn parse(text: &str) -> Result<Self, InvalidSystemKey> {
        SystemKey::parse(text).map(|key| Self(key.0))
    }
}

impl core::fmt::Debug for EngineKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("EngineKey(..)")
    }
}

impl core::fmt::Debug for SystemKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SystemKey(..)")
    }
}

impl Credential {
    /// Issues a credential for connecting to `pool` (label or UUID text, as the request names it).
    #[must_use]
    pub fn issue(key: &TenantKey, pool: &str, uid: u32, gid: u32, issued_ns: u64) -> Self {
        Self { uid, gid, issued_ns, seal: credential_seal(key, pool, uid, gid, issued_ns) }
    }

    /// Whether the credential was issued with `key` for `pool` and is still fresh at `now_ns`.
    #[must_use]
    pub fn is_valid(&self, key: &TenantKey, pool: &str, now_ns: u64) -> bool {
        let expected = credential_seal(key, pool, self.uid, self.gid, self.issued_ns);
        let difference = expected.iter().zip(&self.seal).fold(0, |sum, (a, b)| sum | (a ^ b));
        difference == 0 && self.issued_ns.abs_diff(now_ns) <= CREDENTIAL_LIFETIME_NS
    }
}

fn credential_seal(key: &TenantKey, pool: &str, uid: u32, gid: u32, issued_ns: u64) -> [u8; SEAL_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(key.bytes());
    hasher.update(b"connect").update(&uid.to_le_bytes()).update(&gid.to_le_bytes());
    hasher.update(&issued_ns.to_le_bytes()).update(pool.as_bytes());
    let mut seal = [0; SEAL_LEN];
    seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL_LEN]);
    seal
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const POOL: PoolId = PoolId(Uuid::from_u128(1));

    #[test]
    fn altered_capabilities_are_refused() {
        let secret = PoolSecret([7; 32]);
        let granted = Capability::issue(&secret, TenantId(4), POOL, None, Rights::READ, 3);
        assert_eq!(granted.check(&secret, Rights::READ), Ok(()));
        let mut more = granted.clone();
        more.rights = Rights::READ.union(Rights::WRITE);
        assert_eq!(more.check(&secret, Rights::READ), Err(CapabilityError::Forged(POOL)));
        let mut stolen = granted.clone();
        stolen.tenant = TenantId(5);
        assert_eq!(stolen.check(&secret, Rights::READ), Err(CapabilityError::Forged(POOL)));
        let mut elsewhere = granted.clone();
        elsewhere.container = Some(ContainerId(Uuid::from_u128(0)));
        assert_eq!(elsewhere.check(&secret, Rights::READ), Err(CapabilityError::Forged(POOL)));
        assert!(matches!(granted.check(&secret, Rights::WRITE), Err(CapabilityError::Insufficient { .. })));
    }

    #[test]
    fn a_system_key_is_base64_of_32_bytes() {
        let text = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHv8=\n";
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(0..).for_each(|(byte, value)| *byte = value);
        bytes[31] = 255;
        assert_eq!(SystemKey::parse(text), Ok(SystemKey(bytes)));
        for bad in ["", "AAEC", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHv9=", &text.replace('A', "-")] {
            assert_eq!(SystemKey::parse(bad), Err(InvalidSystemKey), "{bad}");
        }
    }

    #[test]
    fn credentials_bind_pool_and_time() {
        let key = SystemKey([9; 32]).tenant(TenantId(1));
        let credential = Credential::issue(&key, "tank", 1000, 1000, 50);
        assert!(credential.is_valid(&key, "tank", 60));
        assert!(!credential.is_valid(&key, "other", 60));
        assert!(!credential.is_valid(&key, "tank", 51 + CREDENTIAL_LIFETIME_NS));
        assert!(!credential.is_valid(&SystemKey([9; 32]).tenant(TenantId(2)), "tank", 60));
    }
}
