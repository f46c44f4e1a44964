//! Descriptors of the memory that a request exposes.

use super::Malformed;
use weir_fabric::{Access, RemoteRegion};

/// Length of one bulk segment descriptor in bytes.
pub const SEGMENT_LEN: usize = 32;

/// Most bulk segments in one request: an I/O vector of the size that `readv(2)` callers use in practice, in 2 KiB.
pub const SEGMENTS_MAX: usize = 64;

/// The bytes of one bulk segment descriptor.
#[must_use]
pub fn encode_segment(region: RemoteRegion, access: Access) -> [u8; SEGMENT_LEN] {
    let mut bytes = [0u8; SEGMENT_LEN];
    bytes[0..8].copy_from_slice(&region.addr.to_le_bytes());
    bytes[8..16].copy_from_slice(&region.key.to_le_bytes());
    bytes[16..24].copy_from_slice(&region.len.to_le_bytes());
    bytes[24] = match access {
        Access::Read => 1,
        Access::Write => 2,
    };
    bytes
}

/// Decodes the segment descriptors of a request.
///
/// # Errors
/// When one of them has an undefined direction, or all together are longer than any memory.
pub fn decode_segments(bytes: &[u8]) -> Result<Vec<(RemoteRegion, Access)>, Malformed> {
    let mut segments = Vec::new();
    decode_segments_into(&mut segments, bytes).map(|()| segments)
}

/// Decodes them into a list, whose content is replaced.
///
/// # Errors
/// As [`decode_segments`]; the list's content is undefined then.
pub fn decode_segments_into(
    segments: &mut Vec<(RemoteRegion, Access)>,
    bytes: &[u8],
) -> Result<(), Malformed> {
    segments.clear();
    segments.reserve(bytes.len() / SEGMENT_LEN);
    let mut total = 0u64;
    for (index, bytes) in bytes.chunks(SEGMENT_LEN).enumerate() {
        let invalid = Malformed::Segment(index);
        let word = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let (Some(addr), Some(key), Some(len)) = (word(0), word(8), word(16)) else { return Err(invalid) };
        let access = match bytes.get(24..SEGMENT_LEN) {
            Some([1, 0, 0, 0, 0, 0, 0, 0]) => Access::Read,
            Some([2, 0, 0, 0, 0, 0, 0, 0]) => Access::Write,
            _ => return Err(invalid),
        };
        total = total.checked_add(len).filter(|total| *total <= u64::MAX >> 1).ok_or(invalid)?;
        addr.checked_add(len).ok_or(invalid)?;
        segments.push((RemoteRegion { addr, key, len }, access));
    }
    Ok(())
}
