//! Queries and answers about published addresses, byte by byte (`docs/reference/wire.md`).
//!
//! Both come from unauthenticated senders. Where the querier has a key, nothing in an answer is used before its
//! seal was checked.

use crate::Address;
use weir_proto::TenantKey;

/// The begin of questions and answers.
const MAGIC: [u8; 8] = *b"WEIRADDR";

/// The form of answers that this build writes and reads.
pub const ADDRESS_VERSION: u16 = 1;

/// Length of a question, in bytes.
pub const QUERY_LEN: usize = 40;

/// What stands before the names in an answer.
const HEAD_LEN: usize = 32;

/// Length of the seal behind an answer: with 2^40 tries a forger succeeds with a probability of 2^-88.
const SEAL_LEN: usize = 16;

/// Longest name of a provider: what libfabric's own structures hold here.
const PROVIDER_MAX: usize = 63;

/// Longest answer, in bytes.
pub const ANSWER_MAX: usize = HEAD_LEN + PROVIDER_MAX + Address::MAX + SEAL_LEN;

/// The address follows.
const TOLD: u16 = 0;
/// There is no such tenant here.
const REFUSED: u16 = 1;

/// The only flag: a seal ends the answer.
const SEALED: u8 = 1;

/// A query.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Query {
    /// Number of the tenant whose key the answer is to be sealed with.
    pub tenant: u64,
    /// A number that no earlier query had, so that no earlier answer matches.
    pub nonce: [u8; 16],
}

impl Query {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; QUERY_LEN] {
        let mut bytes = [0; QUERY_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&ADDRESS_VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tenant.to_le_bytes());
        bytes[24..].copy_from_slice(&self.nonce);
        bytes
    }

    /// Decodes a query; `None` if it is none. Queries of later versions begin in the same way.
    #[must_use]
    pub fn decode(bytes: &[u8; QUERY_LEN]) -> Option<Self> {
        let is_ours = bytes.starts_with(&MAGIC) && number(bytes, 8)? >= ADDRESS_VERSION;
        let tenant = u64::from_le_bytes(bytes.get(16..24)?.try_into().ok()?);
        let nonce = bytes.get(24..)?.try_into().ok()?;
        is_ours.then_some(Self { tenant, nonce })
    }
}

/// Two bytes of a message.
fn number(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The published address of one endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedAddress {
    /// The id by which the server answers hellos: another one after each restart.
    pub server: u64,
    /// The provider, as libfabric calls it.
    pub provider: String,
    /// What libfabric calls the form of its addresses (`FI_SOCKADDR_IN`, `FI_ADDR_CXI`, …).
    pub format: u32,
    /// The address.
    pub address: Address,
}

/// Why an answer is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerError {
    /// Nothing at all.
    #[error("it hung up without an answer; is the engine just ending, or does it publish no addresses?")]
    Nothing,
    /// No such answer at all.
    #[error("what listens there tells no addresses; engine and client must have the same `fabric_addresses`")]
    Foreign,
    /// A later form.
    #[error("its answer is of version {0}, and only version 1 is known here: update this side")]
    Version(u16),
    /// The tenant is not one of the system.
    #[error("it knows no such tenant: use the attach file and key of this system")]
    Refused,
    /// A querier without keys, or with others.
    #[error("its answer is not sealed with the key of this system")]
    Forged,
    /// Cut short, too long, or with impossible lengths.
    #[error("its answer is malformed ({0})")]
    Malformed(&'static str),
}

/// A seal of a query and its answer at a port.
fn seal(key: &TenantKey, question: &Query, port: u16, answer: &[u8]) -> [u8; SEAL_LEN] {
    let whole = key.derive("address", &[&question.nonce, &port.to_le_bytes(), answer]);
    core::array::from_fn(|at| whole[at])
}

fn head(status: u16, sealed: bool) -> [u8; HEAD_LEN] {
    let mut head = [0; HEAD_LEN];
    head[..8].copy_from_slice(&MAGIC);
    head[8..10].copy_from_slice(&ADDRESS_VERSION.to_le_bytes());
    head[10..12].copy_from_slice(&status.to_le_bytes());
    head[26] = if sealed { SEALED } else { 0 };
    head
}

/// The answer to a querier of an unknown tenant.
#[must_use]
pub fn refusal() -> Vec<u8> {
    head(REFUSED, false).to_vec()
}

impl PublishedAddress {
    /// The answer to a query that came to this port, sealed if there is a key. `None`: the provider's name is
    /// too long.
    #[must_use]
    pub fn encode(&self, question: &Query, port: u16, key: Option<&TenantKey>) -> Option<Vec<u8>> {
        let mut head = head(TOLD, key.is_some());
        head[12..16].copy_from_slice(&self.format.to_le_bytes());
        head[16..24].copy_from_slice(&self.server.to_le_bytes());
        head[24] = u8::try_from(self.provider.len()).ok().filter(|len| usize::from(*len) <= PROVIDER_MAX)?;
        head[25] = u8::try_from(self.address.as_bytes().len()).ok()?;
        let mut answer = [&head, self.provider.as_bytes(), self.address.as_bytes()].concat();
        if let Some(key) = key {
            answer.extend(seal(key, question, port, &answer));
        }
        Some(answer)
    }

    /// Decodes the answer to a query that was sent to this port.
    ///
    /// # Errors
    /// See [`AnswerError`].
    pub fn decode(
        answer: &[u8],
        question: &Query,
        port: u16,
        key: Option<&TenantKey>,
    ) -> Result<Self, AnswerError> {
        use AnswerError::{Foreign, Forged, Malformed, Nothing, Refused, Version};
        if answer.is_empty() {
            return Err(Nothing);
        }
        if !answer.starts_with(&MAGIC) {
            return Err(Foreign);
        }
        let [version, status] = [8, 10].map(|at| number(answer, at));
        match version {
            None => return Err(Malformed("it is cut short")),
            Some(ADDRESS_VERSION) => {}
            Some(other) => return Err(Version(other)),
        }
        match status {
            Some(TOLD) => {}
            Some(REFUSED) => return Err(Refused),
            _ => return Err(Malformed("it has no known status")),
        }
        let sealed = answer.get(26).is_some_and(|flags| flags & SEALED != 0);
        let told = match (sealed, key) {
            (false, Some(_)) => return Err(Forged),
            (false, None) => answer,
            (true, key) => {
                let (told, tag) =
                    answer.split_last_chunk::<SEAL_LEN>().ok_or(Malformed("it is cut short"))?;
                // Constant time: the duration must not tell how many bytes of a guess were right.
                let differ = |key| {
                    seal(key, question, port, told).iter().zip(tag).fold(0, |sum, (a, b)| sum | (a ^ b))
                };
                if key.is_some_and(|key| differ(key) != 0) {
                    return Err(Forged);
                }
                told
            }
        };
        Self::parse(told)
    }

    fn parse(told: &[u8]) -> Result<Self, AnswerError> {
        let wrong = AnswerError::Malformed;
        let (head, names) = told.split_first_chunk::<HEAD_LEN>().ok_or(wrong("it is cut short"))?;
        let (provider_len, address_len) = (usize::from(head[24]), usize::from(head[25]));
        if head[26] & !SEALED != 0 || head[27..].iter().any(|byte| *byte != 0) {
            return Err(wrong("it has bytes that mean nothing here"));
        }
        if provider_len > PROVIDER_MAX || names.len() != provider_len + address_len {
            return Err(wrong("its lengths are not those of its parts"));
        }
        let (provider, address) = names.split_at(provider_len);
        let provider =
            str::from_utf8(provider).ok().filter(|name| name.bytes().all(|b| b.is_ascii_graphic()));
        let word = |at: usize| head.iter().skip(at).take(8).rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
        Ok(Self {
            server: word(16),
            provider: provider.ok_or(wrong("its provider has no name"))?.to_owned(),
            format: u32::try_from(word(12) & u64::from(u32::MAX)).unwrap_or(0),
            address: Address::from_bytes(address).ok_or(wrong("its address is empty or too long"))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use weir_proto::TenantId;
    use weir_proto::capability::SystemKey;

    const PORT: u16 = 10_100;

    fn key(tenant: u64) -> TenantKey {
        SystemKey([6; 32]).tenant(TenantId(tenant))
    }

    fn question() -> Query {
        Query { tenant: 4, nonce: [9; 16] }
    }

    fn told() -> PublishedAddress {
        let address = Address::from_bytes(&[1, 2, 3, 4, 5, 6, 0, 0]).expect("short enough");
        PublishedAddress { server: 77, provider: "cxi".to_owned(), format: 7, address }
    }

    #[test]
    fn the_layout_is_that_of_the_reference() {
        let mut asked = b"WEIRADDR".to_vec();
        asked.extend([1, 0, 0, 0, 0, 0, 0, 0]);
        asked.extend(4u64.to_le_bytes());
        asked.extend([9; 16]);
        assert_eq!(question().encode()[..], asked);
        let mut answer = b"WEIRADDR".to_vec();
        answer.extend([1, 0, 0, 0, 7, 0, 0, 0]);
        answer.extend(77u64.to_le_bytes());
        answer.extend([3, 8, 0, 0, 0, 0, 0, 0]);
        answer.extend(b"cxi\x01\x02\x03\x04\x05\x06\x00\x00");
        assert_eq!(told().encode(&question(), PORT, None), Some(answer.clone()));
        answer[26] = 1;
        let sealed = told().encode(&question(), PORT, Some(&key(4))).expect("short names");
        assert_eq!((sealed.len(), &sealed[..answer.len()]), (answer.len() + 16, &answer[..]));
    }

    #[test]
    fn an_answer_holds_for_its_question_port_and_tenant_alone() {
        let sealed = told().encode(&question(), PORT, Some(&key(4))).expect("short names");
        let read =
            |question, port, tenant| PublishedAddress::decode(&sealed, &question, port, Some(&key(tenant)));
        assert_eq!(read(question(), PORT, 4), Ok(told()));
        let other = Query { nonce: [8; 16], ..question() };
        assert_eq!(read(other, PORT, 4), Err(AnswerError::Forged), "a recorded one");
        assert_eq!(read(question(), PORT + 1, 4), Err(AnswerError::Forged), "another target's");
        assert_eq!(read(question(), PORT, 5), Err(AnswerError::Forged), "another tenant's");
        let open = told().encode(&question(), PORT, None).expect("short names");
        assert_eq!(
            PublishedAddress::decode(&open, &question(), PORT, Some(&key(4))),
            Err(AnswerError::Forged)
        );
        assert_eq!(PublishedAddress::decode(&open, &question(), PORT, None), Ok(told()), "nobody has keys");
        let refused = PublishedAddress::decode(&refusal(), &question(), PORT, Some(&key(4)));
        assert_eq!(refused, Err(AnswerError::Refused));
    }

    #[test]
    fn what_is_no_answer_is_told_apart_by_what_is_wrong() {
        let read =
            |bytes: &[u8]| PublishedAddress::decode(bytes, &question(), PORT, None).expect_err("no answer");
        let good = told().encode(&question(), PORT, None).expect("short names");
        assert_eq!(read(b""), AnswerError::Nothing);
        assert_eq!(read(b"HTTP/1.1 400 Bad Request\r\n\r\n, and so on"), AnswerError::Foreign);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            read(&bytes)
        };
        assert_eq!(with(8, 2), AnswerError::Version(2));
        for (at, byte) in
            [(10, 9), (24, 64), (24, 200), (24, 2), (25, 7), (25, 255), (26, 2), (31, 1), (32, 200)]
        {
            assert!(matches!(with(at, byte), AnswerError::Malformed(_)), "byte {at}");
        }
        for len in 8..good.len() {
            assert!(matches!(read(&good[..len]), AnswerError::Malformed(_)), "{len} bytes");
        }
        let (mut long, mut none) = (good.clone(), good[..HEAD_LEN + 3].to_vec());
        long.push(0);
        none[25] = 0;
        assert!(matches!(read(&long), AnswerError::Malformed(_)));
        assert!(matches!(read(&none), AnswerError::Malformed(_)), "no address at all");
    }

    proptest! {
        #[test]
        fn answers_survive_the_round_trip_and_no_altered_one_is_believed(
            server: u64, format: u32, tenant: u64, nonce: [u8; 16], port: u16, at: usize, bit in 0..8u8,
            provider in "[!-~]{0,63}", bytes in prop::collection::vec(any::<u8>(), 1..=Address::MAX),
        ) {
            let address = Address::from_bytes(&bytes).expect("short enough");
            let told = PublishedAddress { server, provider, format, address };
            let question = Query { tenant, nonce };
            prop_assert_eq!(Query::decode(&question.encode()), Some(question));
            let mut answer = told.encode(&question, port, Some(&key(tenant))).expect("short names");
            prop_assert!(answer.len() <= ANSWER_MAX);
            prop_assert_eq!(PublishedAddress::decode(&answer, &question, port, Some(&key(tenant))), Ok(told));
            let at = at % answer.len();
            answer[at] ^= 1 << bit;
            prop_assert!(PublishedAddress::decode(&answer, &question, port, Some(&key(tenant))).is_err());
        }

        #[test]
        fn any_bytes_are_an_answer_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..300), keyed: bool) {
            let key = keyed.then(|| key(1));
            let _ = PublishedAddress::decode(&bytes, &question(), PORT, key.as_ref());
            let mut begun = MAGIC.to_vec();
            begun.extend([1, 0, 0, 0]);
            begun.extend(&bytes);
            if let Ok(told) = PublishedAddress::decode(&begun, &question(), PORT, None) {
                prop_assert!(told.address.as_bytes().len() <= Address::MAX && told.provider.len() <= PROVIDER_MAX);
            }
        }
    }
}
