//! Seals of requests between engines: a keyed hash that only holders of the system key can make.

use weir_proto::Rank;
use weir_proto::capability::{SEAL_LEN, SystemKey};
use weir_proto::pool::{EngineSeal, SealedRequest};

/// How long a sealed request may travel: longer than any deadline between engines, so that a recorded request can't
/// be replayed for ever.
pub(crate) const SEAL_LIFETIME_NS: u64 = 300 * 1_000_000_000;

/// Seals a payload for `opcode`. `group` is the version of the sender's list of engines.
pub(crate) fn seal(
    key: &SystemKey,
    opcode: u16,
    rank: Rank,
    group: u64,
    issued_ns: u64,
    payload: Vec<u8>,
) -> SealedRequest {
    let mut seal = EngineSeal { rank, group, issued_ns, seal: [0; SEAL_LEN] };
    seal.seal = compute(key, opcode, &seal, &payload);
    SealedRequest { seal, payload }
}

/// Whether the request was sealed with `key` for `opcode` and not too long ago (or ahead).
pub(crate) fn open_seal(key: &SystemKey, opcode: u16, request: &SealedRequest, now_ns: u64) -> bool {
    let EngineSeal { issued_ns, seal, .. } = request.seal;
    let expected = compute(key, opcode, &request.seal, &request.payload);
    // Constant time: the outcome must not tell how many bytes of a guess were right.
    let difference = expected.iter().zip(&seal).fold(0, |sum, (a, b)| sum | (a ^ b));
    difference == 0 && issued_ns.abs_diff(now_ns) <= SEAL_LIFETIME_NS
}

fn compute(key: &SystemKey, opcode: u16, from: &EngineSeal, payload: &[u8]) -> [u8; SEAL_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(b"engine").update(&opcode.to_le_bytes()).update(&from.rank.0.to_le_bytes());
    hasher.update(&from.group.to_le_bytes()).update(&from.issued_ns.to_le_bytes()).update(payload);
    let mut seal = [0; SEAL_LEN];
    seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL_LEN]);
    seal
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_binds_key_opcode_rank_group_time_and_payload() {
        let key = SystemKey([3; 32]);
        let sealed = seal(&key, 7, Rank(1), 4, 1000, vec![1, 2]);
        assert!(open_seal(&key, 7, &sealed, 2000));
        assert!(!open_seal(&key, 8, &sealed, 2000), "another opcode");
        assert!(!open_seal(&SystemKey([4; 32]), 7, &sealed, 2000), "another key");
        assert!(!open_seal(&key, 7, &sealed, 1001 + SEAL_LIFETIME_NS), "too old");
        let mut altered = sealed.clone();
        altered.payload.push(3);
        assert!(!open_seal(&key, 7, &altered, 2000), "another payload");
        let mut newer = sealed.clone();
        newer.seal.group = 5;
        assert!(!open_seal(&key, 7, &newer, 2000), "another version of the group");
        let mut other = sealed;
        other.seal.rank = Rank(2);
        assert!(!open_seal(&key, 7, &other, 2000), "another rank");
    }
}
