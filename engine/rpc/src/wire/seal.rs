//! Authentication of messages: a keyed hash at the end of each, under a key that both sides agreed on in the hello.
//!
//! The keyed hash is `HighwayHash` with 256 bits of key and 128 of tag: a pseudo-random function that covers 32 bytes
//! with a few SIMD instructions, so that it costs less than what a message costs anyway. Keys are derived with BLAKE3.

use super::ClientId;
use highway::{HighwayHash, HighwayHasher, Key};
use weir_proto::TenantKey;

pub use weir_proto::Keys;

/// Length of a tag in bytes: with 2^40 tries a forger succeeds with a probability of 2^-88.
pub const TAG_LEN: usize = 16;

/// Length of the nonce that each side adds to a session's key.
pub const NONCE_LEN: usize = 16;

/// A tag.
pub type Tag = [u8; TAG_LEN];

/// A number used once.
pub type Nonce = [u8; NONCE_LEN];

/// A key that messages are sealed with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SealKey([u64; 4]);

impl core::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SealKey(..)")
    }
}

impl SealKey {
    fn new(bytes: [u8; 32]) -> Self {
        let word = |at: usize| {
            bytes.iter().skip(at * 8).take(8).rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Self([word(0), word(1), word(2), word(3)])
    }

    /// The key that a hello is sealed with.
    pub(crate) fn of_hello(key: &TenantKey) -> Self {
        Self::new(key.derive("hello", &[]))
    }

    /// The key of a session. It never recurs, because each side adds a nonce.
    pub(crate) fn of_session(key: &TenantKey, client: (ClientId, Nonce), server: (ClientId, Nonce)) -> Self {
        let (client_id, server_id) = (client.0.bits().to_le_bytes(), server.0.bits().to_le_bytes());
        Self::new(key.derive("session", &[&client_id, &client.1, &server_id, &server.1]))
    }

    /// The tag of a message that consists of these parts.
    pub(crate) fn tag(&self, parts: &[&[u8]]) -> Tag {
        let mut hasher = HighwayHasher::new(Key(self.0));
        for part in parts {
            hasher.append(part);
        }
        let [low, high] = hasher.finalize128();
        let mut tag = [0; TAG_LEN];
        tag[..8].copy_from_slice(&low.to_le_bytes());
        tag[8..].copy_from_slice(&high.to_le_bytes());
        tag
    }

    /// Whether a message, whose last bytes are its tag, was sealed with this key.
    pub(crate) fn opens(&self, message: &[u8]) -> bool {
        let Some((sealed, tag)) = message.split_last_chunk::<TAG_LEN>() else { return false };
        // Constant time: the duration must not tell how many bytes of a guess were right.
        self.tag(&[sealed]).iter().zip(tag).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
    }
}

/// A nonce from two random words.
pub(crate) fn nonce(low: u64, high: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..8].copy_from_slice(&low.to_le_bytes());
    nonce[8..].copy_from_slice(&high.to_le_bytes());
    nonce
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_proto::TenantId;
    use weir_proto::capability::SystemKey;

    fn key(byte: u8) -> SealKey {
        SealKey::new([byte; 32])
    }

    #[test]
    fn the_tag_is_highwayhash_with_the_key_in_little_endian_words() {
        // The test vector of the algorithm's authors for an empty input and for one byte, key 00 … 1f.
        let bytes: [u8; 32] = core::array::from_fn(|at| u8::try_from(at).unwrap_or(0));
        let key = SealKey::new(bytes);
        assert_eq!(key.0[0], 0x0706_0504_0302_0100);
        let words = |tag: Tag| {
            let word = |at: usize| u64::from_le_bytes(tag[at..at + 8].try_into().unwrap_or_default());
            [word(0), word(8)]
        };
        assert_eq!(words(key.tag(&[])), [0x0FED_268F_9D8F_FEC7, 0x3356_5E76_7F09_3E6F]);
        assert_eq!(words(key.tag(&[&[0]])), [0xD6B0_A889_3681_E7A8, 0xDC29_1DF9_EB9C_DCB4]);
    }

    #[test]
    fn sessions_of_the_same_two_sides_have_different_keys() {
        let tenant = SystemKey([3; 32]).tenant(TenantId(9));
        let (client, server) = (ClientId::new(1), ClientId::new(2));
        let of = |a: u64, b: u64| SealKey::of_session(&tenant, (client, nonce(a, 0)), (server, nonce(b, 0)));
        assert_ne!(of(1, 1), of(1, 2));
        assert_ne!(of(1, 1), of(2, 1));
        assert_ne!(of(1, 1), SealKey::of_hello(&tenant));
    }

    proptest! {
        #[test]
        fn parts_are_sealed_as_one_message_and_no_altered_one_opens(
            parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..5), at: usize, bit in 0..8u8,
        ) {
            let slices: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            let tag = key(1).tag(&slices);
            let mut message = parts.concat();
            message.extend(tag);
            prop_assert!(key(1).opens(&message));
            prop_assert!(!key(2).opens(&message));
            prop_assert!(!key(1).opens(&message[1..]));
            let at = at % message.len();
            message[at] ^= 1 << bit;
            prop_assert!(!key(1).opens(&message));
        }
    }
}
