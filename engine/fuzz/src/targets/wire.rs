//! Messages of the RPC layer.

use crate::source::Source;
use weir_fabric::{Access, RemoteRegion};
use weir_proto::Epoch;
use weir_rpc::wire::{
    Header, Kind, SEGMENT_LEN, SHORT_LEN, decode, decode_segments, decode_versions, encode_segment,
};
use weir_rpc::{ClientId, INLINE_MAX};

pub fn run(input: &[u8]) {
    check(input);
    let mut source = Source::new(input);
    let message = message(&mut source);
    check(&message);
}

fn number16(source: &mut Source<'_>) -> u16 {
    u16::try_from(source.number32() & 0xffff).unwrap_or(0)
}

/// A message that is nearly right.
fn message(source: &mut Source<'_>) -> Vec<u8> {
    let kind = source.pick(&[Kind::Request, Kind::Reply, Kind::Hello, Kind::HelloReply, Kind::Working]);
    let mut header =
        Header::new(kind, 1, ClientId::new(source.number()), source.number(), Epoch(source.number()));
    header.version = if source.chance(20) { number16(source) } else { 1 + u16::from(source.chance(128)) };
    header.greeting = source.chance(100);
    header.resend = source.chance(60);
    header.opcode = number16(source);
    let segments = if source.chance(100) { source.below(70) } else { 0 };
    header.segments = if source.chance(10) { number16(source) } else { u16::try_from(segments).unwrap_or(0) };
    (header.deadline, header.acked, header.tenant) = (source.number(), source.number(), source.number());
    header.status = source.number32();
    let most = if source.chance(10) { INLINE_MAX + 100 } else { 200 };
    let body = source.bytes(most);
    let body_len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    header.body_len = if source.chance(10) { source.number32() } else { body_len };
    if source.chance(128) {
        // Such as the short form is for, or nearly.
        (header.greeting, header.resend, header.segments) = (false, false, 0);
        (header.request, header.tenant, header.status) = (header.request >> 16, 0, 0);
        let near = if kind == Kind::Request { header.request } else { 0 };
        header.acked = near.saturating_sub(number16(source).into());
        header.short = header.fits_short();
    }
    let segments = if header.short { 0 } else { segments };
    let mut bytes = header.encode().to_vec();
    if source.chance(20) {
        // A field that the encoder wouldn't write, under a right checksum.
        let checked = bytes.len() - 4;
        let at = usize::try_from(source.below(checked as u64)).unwrap_or(0);
        bytes[at] = source.byte();
        let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..checked]);
        bytes[checked..].copy_from_slice(&crc.to_le_bytes()[..4]);
    }
    if header.greeting {
        let address = source.bytes(100);
        let len = u8::try_from(address.len()).unwrap_or(u8::MAX);
        bytes.push(if source.chance(10) { source.byte() } else { len });
        bytes.extend(address);
    }
    for _ in 0..segments {
        let region = RemoteRegion { addr: source.number(), key: source.number(), len: source.number() };
        let mut segment =
            encode_segment(region, if source.chance(128) { Access::Read } else { Access::Write });
        if source.chance(6) {
            segment[24 + usize::try_from(source.below(8)).unwrap_or(0)] = source.byte();
        }
        bytes.extend(segment);
    }
    bytes.extend(body);
    bytes
}

fn check(message: &[u8]) {
    let _ = decode_versions(message);
    let _ = decode_segments(message);
    let Ok((header, layout)) = decode(message) else { return };
    let head = header.encode();
    assert_eq!(head[..], message[..head.len()], "a header that decodes is what encodes to it");
    assert_eq!(header.short, head.len() == SHORT_LEN);
    assert_eq!(layout.body.end, message.len());
    assert_eq!(layout.body.len(), usize::try_from(header.body_len).unwrap_or(usize::MAX));
    assert_eq!(layout.segments.len(), usize::from(header.segments) * SEGMENT_LEN);
    assert!(layout.greeting.start >= head.len() && layout.greeting.end <= layout.segments.start);
    if let Ok(segments) = decode_segments(&message[layout.segments]) {
        let total = segments.iter().try_fold(0u64, |sum, (region, _)| sum.checked_add(region.len));
        assert!(total.is_some_and(|total| total <= u64::MAX >> 1));
    }
    let _ = decode_versions(&message[layout.body]);
}
