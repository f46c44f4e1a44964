//! Seals of requests between engines: a keyed hash that only engines can make, for one target.

use weir_proto::capability::{EngineKey, SEAL_LEN};
use weir_proto::pool::{EngineSeal, SealedRequest};
use weir_proto::{Rank, TargetIndex};

/// How long a sealed request may travel: longer than any deadline between engines, so that a recorded request can't
/// be replayed for ever.
pub(crate) const SEAL_LIFETIME_NS: u64 = 300 * 1_000_000_000;

/// A target of an engine.
pub(crate) type Destination = (Rank, TargetIndex);

/// Seals a payload for `opcode` and the target `to`. `group` is the version of the sender's list of engines.
pub(crate) fn seal(
    key: &EngineKey,
    opcode: u16,
    rank: Rank,
    to: Destination,
    (group, issued_ns): (u64, u64),
    payload: Vec<u8>,
) -> SealedRequest {
    let mut seal = EngineSeal { rank, group, issued_ns, seal: [0; SEAL_LEN] };
    seal.seal = compute(key, opcode, &seal, to, &payload);
    SealedRequest { seal, payload }
}

/// Whether the request was sealed with `key` for `opcode` and the target `own`, and not too long ago (or ahead).
pub(crate) fn open_seal(
    key: &EngineKey,
    opcode: u16,
    own: Destination,
    request: &SealedRequest,
    now_ns: u64,
) -> bool {
    let EngineSeal { issued_ns, seal, .. } = request.seal;
    let expected = compute(key, opcode, &request.seal, own, &request.payload);
    // Constant time: the outcome must not tell how many bytes of a guess were right.
    let difference = expected.iter().zip(&seal).fold(0, |sum, (a, b)| sum | (a ^ b));
    difference == 0 && issued_ns.abs_diff(now_ns) <= SEAL_LIFETIME_NS
}

fn compute(
    key: &EngineKey,
    opcode: u16,
    from: &EngineSeal,
    to: Destination,
    payload: &[u8],
) -> [u8; SEAL_LEN] {
    let mut hasher = blake3::Hasher::new_keyed(&key.0);
    hasher.update(b"engine").update(&opcode.to_le_bytes()).update(&from.rank.0.to_le_bytes());
    hasher.update(&from.group.to_le_bytes()).update(&from.issued_ns.to_le_bytes());
    hasher.update(&to.0.0.to_le_bytes()).update(&to.1.0.to_le_bytes()).update(payload);
    let mut seal = [0; SEAL_LEN];
    seal.copy_from_slice(&hasher.finalize().as_bytes()[..SEAL_LEN]);
    seal
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Destination = (Rank(5), TargetIndex(2));

    #[test]
    fn a_seal_binds_key_opcode_rank_destination_group_time_and_payload() {
        let key = EngineKey([3; 32]);
        let sealed = seal(&key, 7, Rank(1), TO, (4, 1000), vec![1, 2]);
        let is_good = |sealed: &SealedRequest| open_seal(&key, 7, TO, sealed, 2000);
        assert!(is_good(&sealed));
        assert!(!open_seal(&key, 8, TO, &sealed, 2000), "another opcode");
        assert!(!open_seal(&EngineKey([4; 32]), 7, TO, &sealed, 2000), "another key");
        assert!(!open_seal(&key, 7, TO, &sealed, 1001 + SEAL_LIFETIME_NS), "too old");
        assert!(!open_seal(&key, 7, (Rank(6), TO.1), &sealed, 2000), "for another engine");
        assert!(!open_seal(&key, 7, (TO.0, TargetIndex(3)), &sealed, 2000), "for another target");
        let mut altered = sealed.clone();
        altered.payload.push(3);
        assert!(!is_good(&altered), "another payload");
        let mut newer = sealed.clone();
        newer.seal.group = 5;
        assert!(!is_good(&newer), "another version of the group");
        let mut other = sealed;
        other.seal.rank = Rank(2);
        assert!(!is_good(&other), "another rank");
    }
}
