use super::*;
use proptest::prelude::*;
use weir_fabric::{Access, RemoteRegion};

fn header(kind: Kind) -> Header {
    Header::new(kind, 1, ClientId::new(7), 9, Epoch(11))
}

fn checksum(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("32 bits")
}

/// A whole message.
fn message(header: &Header, greeting: &[u8], segments: &[u8], body: &[u8]) -> Vec<u8> {
    let length = [u8::try_from(greeting.len()).expect("short")];
    let length: &[u8] = if header.greeting { &length } else { &[] };
    let tag: &[u8] = if header.sealed { &[0x5a; TAG_LEN] } else { &[] };
    [&header.encode()[..], length, greeting, segments, body, tag].concat()
}

#[test]
fn the_header_has_the_documented_layout() {
    let mut header = header(Kind::Request);
    header.opcode = 0x0102;
    header.segments = 1;
    header.body_len = 2;
    header.deadline = 3;
    header.acked = 4;
    header.tenant = 5;
    header.status = 6;
    header.resend = true;
    let bytes = header.encode();
    assert_eq!(&bytes[..16], [b'W', b'E', b'I', b'R', 1, 0, 3, 2, 2, 1, 1, 0, 2, 0, 0, 0]);
    let words: Vec<u64> =
        bytes[16..64].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
    assert_eq!(words, [7, 9, 3, 11, 4, 5]);
    assert_eq!(bytes[64..68], [6, 0, 0, 0]);
}

#[test]
fn the_short_header_has_the_documented_layout() {
    let mut header = header(Kind::Request);
    (header.version, header.short, header.sealed) = (2, true, true);
    (header.opcode, header.body_len) = (0x0102, 0x0304);
    (header.request, header.acked) = (0x0607_0809_0a0b, 0x0607_0809_0a0b - 0x0c0d);
    (header.client, header.epoch, header.deadline) = (ClientId::new(7), Epoch(11), 111);
    let bytes = header.encode();
    assert_eq!(bytes.len(), SHORT_LEN);
    assert_eq!(&bytes[..12], [b'W', b'E', b'I', b'R', 2, 0, 3, 12, 2, 1, 4, 3]);
    assert_eq!(bytes[12..20], [0x0d, 0x0c, 0x0b, 0x0a, 9, 8, 7, 6]);
    let words: Vec<u64> =
        bytes[20..44].chunks(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight"))).collect();
    assert_eq!(words, [7, 11, 100]);
    assert_eq!(bytes[44..48], checksum(&bytes[..44]).to_le_bytes());
}

/// What is changed about a header, in words and in deed.
type Change = (&'static str, fn(&mut Header));

#[test]
fn what_the_short_header_cannot_say_is_sent_in_full() {
    let changes: [Change; 10] = [
        ("an older version", |header| header.version = 1),
        ("an address", |header| header.greeting = true),
        ("sent again", |header| header.resend = true),
        ("memory", |header| header.segments = 1),
        ("a tenant", |header| header.tenant = 1),
        ("an error", |header| header.status = 1),
        ("a long body", |header| header.body_len = 1 << 16),
        ("a high number", |header| (header.request, header.acked) = (1 << 48, 1 << 48)),
        ("a distant acknowledgement", |header| (header.request, header.acked) = (1 << 16, 0)),
        ("an acknowledgement of what is to come", |header| header.acked = header.request + 1),
    ];
    let plain = || Header { version: 2, short: true, ..header(Kind::Request) };
    assert_eq!(plain().encode().len(), SHORT_LEN);
    for (what, change) in changes {
        let mut header = plain();
        change(&mut header);
        assert!(!header.fits_short(), "{what}");
        assert_eq!(header.encode().len(), HEADER_LEN, "{what}");
        header.short = false;
        let body = vec![0; usize::try_from(header.body_len).expect("small").min(INLINE_MAX)];
        let greeting: &[u8] = if header.greeting { b"here" } else { &[] };
        let segments = if header.segments > 0 { &[0; SEGMENT_LEN][..] } else { &[] };
        let bytes = message(&header, greeting, segments, &body);
        assert!(decode(&bytes).is_ok_and(|(read, _)| read == header) || body.len() == INLINE_MAX, "{what}");
    }
    for kind in [Kind::Hello, Kind::HelloReply, Kind::Working] {
        assert!(!Header { kind, ..plain() }.fits_short(), "{kind:?}");
    }
}

#[test]
fn a_short_header_with_values_that_it_cannot_have_is_refused() {
    let with = |at: usize, value: u8| {
        let plain = Header { version: 2, short: true, acked: 9, ..header(Kind::Request) };
        let mut bytes = plain.encode().to_vec();
        bytes[at] = value;
        let sum = checksum(&bytes[..SHORT_LEN - 4]);
        bytes[SHORT_LEN - 4..].copy_from_slice(&sum.to_le_bytes());
        decode(&bytes)
    };
    assert!(with(4, 2).is_ok());
    assert_eq!(with(4, 1), Err(Malformed::Field("flags")), "version 1 has none");
    assert_eq!(with(6, 1), Err(Malformed::Field("kind")), "a hello has none");
    assert_eq!(with(7, 9), Err(Malformed::Field("flags")), "no greeting");
    assert_eq!(with(12, 10), Err(Malformed::Field("acked")), "further than there are numbers");
    assert_eq!(with(20, 0), Err(Malformed::Field("client")));
}

#[test]
fn a_damaged_header_is_told_from_a_foreign_one() {
    let whole = message(&header(Kind::Reply), &[], &[], &[]);
    assert!(decode(&whole).is_ok());
    let mut damaged = whole.clone();
    damaged[30] ^= 1;
    assert_eq!(decode(&damaged), Err(Malformed::Checksum));
    damaged[0] = b'X';
    assert_eq!(decode(&damaged), Err(Malformed::Magic));
    assert_eq!(decode(&whole[..40]), Err(Malformed::Length(40)));
}

#[test]
fn undefined_values_and_wrong_lengths_are_refused() {
    let with = |change: fn(&mut Header)| {
        let mut header = header(Kind::Reply);
        change(&mut header);
        decode(&message(&header, &[], &[], &[]))
    };
    assert_eq!(with(|header| header.segments = 1), Err(Malformed::Field("segments")));
    assert_eq!(with(|header| header.body_len = 1), Err(Malformed::Length(HEADER_LEN)));
    assert_eq!(with(|header| header.body_len = u32::MAX), Err(Malformed::Length(HEADER_LEN)));
    assert_eq!(with(|header| header.greeting = true), Err(Malformed::Field("greeting")));
    let mut bytes = header(Kind::Reply).encode().to_vec();
    bytes[7] = 0x80;
    let sum = checksum(&bytes[..HEADER_LEN - 4]);
    bytes[68..72].copy_from_slice(&sum.to_le_bytes());
    assert_eq!(decode(&bytes), Err(Malformed::Field("flags")));
}

#[test]
fn versions_with_additions_of_later_releases_still_decode() {
    assert_eq!(decode_versions(&[1, 0, 3, 0, 99]), Ok(1..=3));
    assert_eq!(decode_versions(&[3, 0, 1, 0]), Err(Malformed::Field("versions")));
    assert_eq!(decode_versions(&[1]), Err(Malformed::Length(1)));
}

proptest! {
    #[test]
    fn whatever_is_encoded_decodes_to_the_same(
        version: u16, kind in 1u8..=5, opcode: u16, client in 1u64.., request: u64, deadline: u64, epoch: u64,
        acked: u64, tenant: u64, status: u32, resend: bool, sealed: bool, short: bool, near: u16,
        greeting in prop::collection::vec(any::<u8>(), 0..=Address::MAX),
        segments in prop::collection::vec((any::<u32>(), any::<u64>(), any::<u32>(), any::<bool>()), 0..=SEGMENTS_MAX),
        body in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let kind = [Kind::Hello, Kind::HelloReply, Kind::Request, Kind::Reply, Kind::Working][usize::from(kind) - 1];
        let segments: Vec<_> = if kind == Kind::Request { segments } else { Vec::new() };
        let segments: Vec<_> = segments
            .into_iter()
            .map(|(addr, key, len, read)| {
                let region = RemoteRegion { addr: addr.into(), key, len: len.into() };
                (region, if read { Access::Read } else { Access::Write })
            })
            .collect();
        // Half of the cases are such as the short form is for.
        let (version, request, greeting) = if short { (version | 2, request >> 16, vec![]) } else { (version, request, greeting) };
        let (resend, tenant, status, segments) = if short { (false, 0, 0, vec![]) } else { (resend, tenant, status, segments) };
        let acked = match kind {
            _ if !short => acked,
            Kind::Request => request.saturating_sub(near.into()),
            _ => 0,
        };
        let mut header = Header {
            version, kind, greeting: !greeting.is_empty(), resend, sealed, short: false, opcode,
            segments: u16::try_from(segments.len()).expect("few"),
            body_len: u32::try_from(body.len()).expect("short"),
            client: ClientId::new(client), request, deadline, epoch: Epoch(epoch), acked, tenant, status,
        };
        header.short = header.fits_short();
        prop_assert_eq!(header.encode().len(), if header.short { SHORT_LEN } else { HEADER_LEN });
        prop_assert!(header.short || !short || !matches!(kind, Kind::Request | Kind::Reply));
        let encoded: Vec<u8> = segments.iter().flat_map(|(region, access)| encode_segment(*region, *access)).collect();
        let bytes = message(&header, &greeting, &encoded, &body);
        let (decoded, layout) = decode(&bytes).expect("what was encoded decodes");
        prop_assert_eq!(decoded, header);
        prop_assert_eq!(&bytes[layout.greeting], &greeting[..]);
        prop_assert_eq!(&bytes[layout.body], &body[..]);
        prop_assert_eq!(decode_segments(&bytes[layout.segments]).expect("valid segments"), segments);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
        let _ = decode(&bytes);
        let _ = decode_segments(&bytes);
        let _ = decode_versions(&bytes);
    }

    #[test]
    fn arbitrary_bytes_behind_a_valid_magic_and_checksum_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), HEADER_LEN..4096),
    ) {
        bytes[0..4].copy_from_slice(&MAGIC);
        let checked = if bytes[7] & FLAG_SHORT == 0 { HEADER_LEN - 4 } else { SHORT_LEN - 4 };
        let sum = checksum(&bytes[..checked]);
        bytes[checked..checked + 4].copy_from_slice(&sum.to_le_bytes());
        if let Ok((header, layout)) = decode(&bytes) {
            let tag_len = if header.sealed { TAG_LEN } else { 0 };
            prop_assert!(layout.body.end + tag_len == bytes.len());
            prop_assert!(layout.segments.len() == usize::from(header.segments) * SEGMENT_LEN);
            let _ = decode_segments(&bytes[layout.segments]);
        }
    }
}
