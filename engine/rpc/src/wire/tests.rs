use super::*;
use proptest::prelude::*;

fn header(kind: Kind) -> Header {
    Header::new(kind, 1, ClientId::new(7), 9, Epoch(11))
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
    let mut bytes = header(Kind::Reply).encode();
    bytes[7] = 0x80;
    let sum = checksum(&bytes[CHECKED]);
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
        acked: u64, tenant: u64, status: u32, resend: bool, sealed: bool,
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
        let header = Header {
            version, kind, greeting: !greeting.is_empty(), resend, sealed, opcode,
            segments: u16::try_from(segments.len()).expect("few"),
            body_len: u32::try_from(body.len()).expect("short"),
            client: ClientId::new(client), request, deadline, epoch: Epoch(epoch), acked, tenant, status,
        };
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
        let sum = checksum(&bytes[CHECKED]);
        bytes[68..72].copy_from_slice(&sum.to_le_bytes());
        if let Ok((header, layout)) = decode(&bytes) {
            let tag_len = if header.sealed { TAG_LEN } else { 0 };
            prop_assert!(layout.body.end + tag_len == bytes.len());
            prop_assert!(layout.segments.len() == usize::from(header.segments) * SEGMENT_LEN);
            let _ = decode_segments(&bytes[layout.segments]);
        }
    }
}
