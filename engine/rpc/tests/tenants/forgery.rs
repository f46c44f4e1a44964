//! Messages that somebody makes by himself: said to be whoever's, and sealed with what he has.

use highway::{HighwayHash, HighwayHasher, Key};
use weir_fabric::Address;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_proto::{Epoch, TenantId, TenantKey};
use weir_rpc::ClientId;
use weir_rpc::wire::{self, Header, Kind};

/// How long a forged request may be executed.
const IN_TIME_NS: u64 = 60_000_000_000;

/// Makes a tag for a message.
pub type Forger<'a> = dyn Fn(&[u8]) -> Vec<u8> + 'a;

/// The tag of a hello by a tenant's key.
pub fn seal(key: &TenantKey, message: &[u8]) -> Vec<u8> {
    let key = key.derive("hello", &[]);
    let words = core::array::from_fn(|at| u64::from_le_bytes(key[at * 8..][..8].try_into().expect("eight")));
    HighwayHasher::new(Key(words)).hash128(message).map(u64::to_le_bytes).concat()
}

/// Who a message is said to be from, and its number.
#[derive(Clone, Copy)]
pub struct Said {
    pub tenant: TenantId,
    pub client: ClientId,
    pub number: u64,
    pub wall_ns: u64,
}

impl Said {
    fn header(self, kind: Kind, body_len: usize) -> Header {
        let mut header = Header::new(kind, PROTOCOL_MAX, self.client, self.number, Epoch(self.wall_ns));
        header.tenant = self.tenant.0;
        header.body_len = u32::try_from(body_len).expect("small");
        header
    }

    /// A hello that says it is from `address`, sealed by this key.
    pub fn hello(self, address: &Address, key: &TenantKey) -> Vec<u8> {
        let body = wire::encode_hello(&(PROTOCOL_MIN..=PROTOCOL_MAX), &[7; 16]);
        let mut header = self.header(Kind::Hello, body.len());
        (header.greeting, header.sealed) = (true, true);
        let length = [u8::try_from(address.as_bytes().len()).expect("small")];
        let message = [&header.encode()[..], &length, address.as_bytes(), &body].concat();
        let tag = seal(key, &message);
        [message, tag].concat()
    }

    /// A request, sealed as `tag` says, or not at all.
    pub fn request(self, opcode: u16, body: &[u8], tag: Option<&Forger<'_>>) -> Vec<u8> {
        let mut header = self.header(Kind::Request, body.len());
        (header.opcode, header.sealed) = (opcode, tag.is_some());
        header.deadline = self.wall_ns + IN_TIME_NS;
        let message = [&header.encode()[..], body].concat();
        let tag = tag.map(|tag| tag(&message)).unwrap_or_default();
        [message, tag].concat()
    }
}
