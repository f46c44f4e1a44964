//! Queries for published addresses, and their answers.

use crate::source::Source;
use weir_fabric::Address;
use weir_fabric::published::{ANSWER_MAX, PublishedAddress, QUERY_LEN, Query, refusal};
use weir_proto::TenantId;
use weir_proto::capability::SystemKey;

pub fn run(input: &[u8]) {
    let mut source = Source::new(input);
    let mut bytes = [0; QUERY_LEN];
    for (byte, random) in bytes.iter_mut().zip(input) {
        *byte = *random;
    }
    let (tenant, port) = (source.number(), u16::try_from(source.number32() & 0xffff).unwrap_or(0));
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&source.number().to_le_bytes());
    let question = Query::decode(&bytes).unwrap_or(Query { tenant, nonce });
    assert_eq!(Query::decode(&question.encode()), Some(question), "what is written is read");
    let key = SystemKey([3; 32]).tenant(TenantId(question.tenant));
    let key = source.chance(128).then_some(&key);
    check(input, &question, port, None);
    check(input, &question, port, Some(&key.cloned().unwrap_or(SystemKey([4; 32]).tenant(TenantId(1)))));
    let name: String = source.bytes(70).iter().map(|byte| char::from(b'!' + byte % 90)).collect();
    let Some(address) = Address::from_bytes(&source.bytes(Address::MAX)) else { return };
    let told =
        PublishedAddress { server: source.number(), provider: name, format: source.number32(), address };
    let Some(mut answer) = told.encode(&question, port, key) else { return };
    assert!(answer.len() <= ANSWER_MAX, "an answer of {} bytes", answer.len());
    assert_eq!(PublishedAddress::decode(&answer, &question, port, key), Ok(told), "what is written is read");
    if source.chance(20) {
        answer = refusal();
    }
    for _ in 0..=source.below(3) {
        let at = usize::try_from(source.below(answer.len() as u64)).unwrap_or(0);
        match source.below(3) {
            0 => answer[at] = source.byte(),
            1 => answer.truncate(at),
            _ => answer.insert(at, source.byte()),
        }
        if answer.is_empty() {
            break;
        }
    }
    check(&answer, &question, port, key);
}

/// Reads an answer; what was read is written in the same way.
fn check(answer: &[u8], question: &Query, port: u16, key: Option<&weir_proto::TenantKey>) {
    let Ok(told) = PublishedAddress::decode(answer, question, port, key) else { return };
    assert!(!told.address.as_bytes().is_empty() && told.address.as_bytes().len() <= Address::MAX);
    let again = told.encode(question, port, key).expect("its lengths were read");
    // A querier without a key doesn't look at the seal.
    let sealed_for_others = key.is_none() && answer.len() != again.len();
    assert!(sealed_for_others || again == answer, "another answer reads the same");
}
