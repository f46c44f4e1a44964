//! Messages of each protocol version that is spoken, as they were when the version was made: what is built from the same fields has
//! the same bytes, and these are read as the same fields. `golden/README.md` says how to add those of another version.

use core::fmt::Write;
use highway::{HighwayHash, HighwayHasher, Key};
use std::fs;
use std::path::{Path, PathBuf};
use weir_fabric::{Access, RemoteRegion};
use weir_proto::capability::SystemKey;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_proto::{Der, Epoch, TenantId};
use weir_rpc::ClientId;
use weir_rpc::wire::{
    Header, Kind, decode, decode_first, decode_nonce, decode_segments, decode_versions, encode_hello,
    encode_segment, encode_versions,
};

const TENANT: TenantId = TenantId(7);
const CLIENT: u64 = 0x0102_0304_0506_0708;
const SERVER: u64 = 0x1112_1314_1516_1718;
const THEIRS: [u8; 16] = [0xc1; 16];
const OURS: [u8; 16] = [0x5e; 16];
const WALL: u64 = 1_700_000_000_000_000_000;

/// What a message is sealed with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seal {
    None,
    Hello,
    Session,
}

/// A message, by its fields.
struct Golden {
    name: &'static str,
    header: Header,
    greeting: &'static [u8],
    segments: Vec<(RemoteRegion, Access)>,
    body: Vec<u8>,
    seal: Seal,
}

impl Golden {
    fn new(name: &'static str, kind: Kind, version: u16, change: impl FnOnce(&mut Self)) -> Self {
        let client = ClientId::new(CLIENT);
        let mut header = Header::new(kind, version, client, 0x0a0b, Epoch(WALL));
        (header.opcode, header.acked) = if kind == Kind::Request { (0x7001, 0x0a09) } else { (0, 0) };
        header.deadline = if kind == Kind::Request { WALL + 5_000_000_000 } else { SERVER };
        let mut golden =
            Self { name, header, greeting: &[], segments: Vec::new(), body: Vec::new(), seal: Seal::None };
        change(&mut golden);
        let Self { header, greeting, segments, body, seal, .. } = &mut golden;
        header.greeting = !greeting.is_empty();
        header.segments = u16::try_from(segments.len()).expect("few");
        header.body_len = u32::try_from(body.len()).expect("short");
        header.sealed = *seal != Seal::None;
        header.short = header.fits_short();
        golden
    }

    fn segments(&self) -> Vec<u8> {
        self.segments.iter().flat_map(|(region, access)| encode_segment(*region, *access)).collect()
    }

    fn encode(&self) -> Vec<u8> {
        let length = [u8::try_from(self.greeting.len()).expect("short")];
        let length: &[u8] = if self.header.greeting { &length } else { &[] };
        let parts = [&self.header.encode()[..], length, self.greeting, &self.segments(), &self.body];
        let message = parts.concat();
        let tag = self.seal.tag(&message);
        [message, tag].concat()
    }

    /// Reads its bytes, which may be those of an earlier build.
    fn check(&self, bytes: &[u8]) {
        let name = self.name;
        let (header, layout) = decode(bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(header, self.header, "{name}");
        assert_eq!(bytes[layout.greeting.clone()], *self.greeting, "{name}");
        assert_eq!(decode_segments(&bytes[layout.segments.clone()]).as_ref(), Ok(&self.segments), "{name}");
        let body = &bytes[layout.body.clone()];
        assert_eq!(body, self.body, "{name}");
        if matches!(header.kind, Kind::Hello | Kind::HelloReply) {
            let versions = header.version..=header.version;
            assert_eq!(decode_versions(body), Ok(versions), "{name}");
            let nonce = if header.kind == Kind::Hello { THEIRS } else { OURS };
            assert_eq!(decode_nonce(body), (self.seal != Seal::None).then_some(nonce), "{name}");
        }
    }
}

impl Seal {
    /// The tag of a message, as `docs/reference/wire.md` has it.
    fn tag(self, message: &[u8]) -> Vec<u8> {
        let tenant = SystemKey([0x42; 32]).tenant(TENANT);
        let (client, server) = (CLIENT.to_le_bytes(), SERVER.to_le_bytes());
        let key = match self {
            Self::None => return Vec::new(),
            Self::Hello => tenant.derive("hello", &[]),
            Self::Session => tenant.derive("session", &[&client, &THEIRS, &server, &OURS]),
        };
        let word = |at: usize| u64::from_le_bytes(key[at * 8..][..8].try_into().expect("eight"));
        HighwayHasher::new(Key(core::array::from_fn(word))).hash128(message).map(u64::to_le_bytes).concat()
    }
}

/// The messages of version 2.
fn version_2() -> Vec<Golden> {
    let (bare, hello, answer) =
        (encode_versions(&(2..=2)), encode_hello(&(2..=2), &THEIRS), encode_hello(&(2..=2), &OURS));
    let address: &[u8] = &[2, 0, 0x7a, 0xb8, 10, 0, 0, 1];
    let regions = [(0x7f00_1234_5000, Access::Read), (0, Access::Write)];
    let regions = regions
        .map(|(addr, access)| (RemoteRegion { addr, key: 0x8877_6655_4433_2211, len: 1 << 20 }, access));
    let of = |name, kind, change: fn(&mut Golden)| Golden::new(name, kind, 2, change);
    vec![
        Golden::new("hello", Kind::Hello, 2, |golden| {
            (golden.greeting, golden.body, golden.seal) = (address, hello.to_vec(), Seal::Hello);
            (golden.header.tenant, golden.header.deadline) = (TENANT.0, 0);
        }),
        Golden::new("hello-without-keys", Kind::Hello, 2, |golden| {
            (golden.greeting, golden.body, golden.header.deadline) = (address, bare.to_vec(), 0);
        }),
        Golden::new("hello-reply", Kind::HelloReply, 2, |golden| {
            (golden.body, golden.seal, golden.header.tenant) = (answer.to_vec(), Seal::Session, TENANT.0);
        }),
        Golden::new("hello-reply-that-refuses", Kind::HelloReply, 2, |golden| {
            (golden.body, golden.header.status) = (bare.to_vec(), Der::NO_HDL.0);
        }),
        of("request", Kind::Request, |golden| golden.body = b"a small request".to_vec()),
        of("request-sealed", Kind::Request, |golden| {
            // Whose it is the seal says: short messages carry no tenant.
            (golden.body, golden.seal) = (b"a small request".to_vec(), Seal::Session);
        }),
        Golden::new("request-with-everything", Kind::Request, 2, |golden| {
            (golden.greeting, golden.body, golden.seal) = (address, b"move it".to_vec(), Seal::Session);
            golden.segments = regions.to_vec();
            (golden.header.resend, golden.header.tenant) = (true, TENANT.0);
        }),
        of("reply", Kind::Reply, |golden| golden.body = b"a small reply".to_vec()),
        of("reply-sealed", Kind::Reply, |golden| golden.seal = Seal::Session),
        of("reply-of-failure", Kind::Reply, |golden| {
            (golden.body, golden.header.status) = (b"no room".to_vec(), Der::NOSPACE.0);
            (golden.header.tenant, golden.seal) = (TENANT.0, Seal::Session);
        }),
        of("reply-of-overload", Kind::Reply, |golden| {
            (golden.header.status, golden.header.acked) = (Der::OVERLOAD_RETRY.0, 3_000_000);
        }),
        of("working", Kind::Working, |golden| {
            (golden.header.tenant, golden.seal) = (TENANT.0, Seal::Session);
        }),
    ]
}

fn folder(version: u16) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{version}"))
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for line in bytes.chunks(32) {
        for byte in line {
            write!(text, "{byte:02x}").expect("a string takes all");
        }
        text.push('\n');
    }
    text
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).expect("digits"), 16).expect("digits");
    digits.chunks(2).map(byte).collect()
}

/// The messages of a version.
fn messages(version: u16) -> Vec<Golden> {
    assert_eq!(version, 2, "no messages of this version: see golden/README.md");
    version_2()
}

#[test]
fn messages_of_every_version_that_is_spoken_have_the_bytes_that_they_always_had() {
    for version in PROTOCOL_MIN..=PROTOCOL_MAX {
        let messages = messages(version);
        for golden in &messages {
            let (path, bytes) = (folder(version).join(format!("{}.hex", golden.name)), golden.encode());
            if std::env::var_os("WEIR_GOLDEN_ADD").is_some() && !path.exists() {
                fs::write(&path, to_hex(&bytes)).expect("written");
            }
            let kept =
                fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(to_hex(&bytes), kept, "{version}/{}: it is built otherwise", golden.name);
            golden.check(&from_hex(&kept));
        }
        let kept = fs::read_dir(folder(version)).expect("a folder").flatten();
        assert_eq!(kept.count(), messages.len(), "each file of {version} is some message's");
    }
}

#[test]
fn messages_that_share_one_of_the_fabric_are_read_one_after_another() {
    let messages = version_2();
    let of = |name| messages.iter().find(|golden| golden.name == name).expect("such a message");
    let several = ["request", "request-sealed", "reply", "request-with-everything"].map(of);
    let bytes: Vec<u8> = several.iter().flat_map(|golden| golden.encode()).collect();
    let mut rest = &bytes[..];
    for golden in several {
        let (header, layout) = decode_first(rest).expect("well formed");
        assert_eq!(header, golden.header, "{}", golden.name);
        golden.check(&rest[..layout.end]);
        rest = &rest[layout.end..];
    }
    assert!(rest.is_empty());
}

#[test]
fn every_kind_of_message_is_among_them() {
    for version in PROTOCOL_MIN..=PROTOCOL_MAX {
        let messages = messages(version);
        for kind in [Kind::Hello, Kind::HelloReply, Kind::Request, Kind::Reply, Kind::Working] {
            for sealed in [false, true] {
                let is_meant =
                    |golden: &&Golden| golden.header.kind == kind && golden.header.sealed == sealed;
                let found = messages.iter().find(is_meant);
                assert!(found.is_some() || kind == Kind::Working, "{version}: {kind:?}, sealed: {sealed}");
            }
        }
    }
}
