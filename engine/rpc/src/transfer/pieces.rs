//! The pieces of a bulk transfer: those that have not begun, and those that move.

use crate::admission::Leave;
use core::ops::Range;
use core::time::Duration;
use weir_fabric::{Access, RemoteRegion, Transfer};
use weir_runtime::sync::Permit;

/// Longest single read or write of client memory, in bytes: pieces of this size overlap, and bound how long the
/// server can be at the client's memory after the deadline.
const PIECE_MAX: usize = 1 << 20;

/// How long an access that has begun may take: it is to a piece of at most 1 MiB, on a link that is barely alive.
pub(crate) const PIECE_TIME: Duration = Duration::from_secs(1);

/// One piece of a bulk transfer: a part of a local buffer and a part of the client's memory.
pub(crate) struct Piece {
    /// Which of the local buffers.
    pub(crate) part: usize,
    pub(crate) local: Range<usize>,
    pub(crate) remote: RemoteRegion,
    pub(crate) tries: u32,
}

/// The pieces of a transfer that have not begun, cut one after another along the client's segments, the local parts and
/// the piece size. Most transfers are one piece, for which nothing is allocated.
pub(crate) struct Pieces<'a> {
    /// Where the next piece begins: an offset in a segment, which may be behind its end, and one in a local part.
    region: RemoteRegion,
    from: u64,
    part: usize,
    at: usize,
    segments: core::slice::Iter<'a, (RemoteRegion, Access)>,
    access: Access,
    local: &'a [Range<usize>],
    /// Cut already, to know whether there is one.
    next: Option<Piece>,
    /// Those that go first: they have to be tried again.
    again: Vec<Piece>,
}

impl<'a> Pieces<'a> {
    /// From this offset of the segments with this access on, which have room for all local parts.
    pub(crate) fn new(
        segments: &'a [(RemoteRegion, Access)],
        access: Access,
        offset: u64,
        local: &'a [Range<usize>],
    ) -> Self {
        let mut pieces = Self {
            region: RemoteRegion::default(),
            from: offset,
            part: 0,
            at: 0,
            segments: segments.iter(),
            access,
            local,
            next: None,
            again: Vec::new(),
        };
        pieces.next = pieces.cut();
        pieces
    }

    fn cut(&mut self) -> Option<Piece> {
        let left = loop {
            let range = self.local.get(self.part)?;
            if self.at < range.len() {
                break range.start + self.at..range.end;
            }
            (self.part, self.at) = (self.part + 1, 0);
        };
        while self.from >= self.region.len {
            self.from -= self.region.len;
            self.region = self.segments.find(|segment| segment.1 == self.access)?.0;
        }
        let room = usize::try_from(self.region.len - self.from).unwrap_or(usize::MAX);
        let n = room.min(left.len()).min(PIECE_MAX);
        let remote = self.region.part(self.from, n as u64)?;
        self.from += n as u64;
        self.at += n;
        Some(Piece { part: self.part, local: left.start..left.start + n, remote, tries: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none() && self.again.is_empty()
    }

    /// Length of the next one; 0 when there is none.
    pub(crate) fn next_len(&self) -> usize {
        self.again.last().or(self.next.as_ref()).map_or(0, |piece| piece.local.len())
    }

    /// A piece has to be tried again, before all others.
    pub(crate) fn put_back(&mut self, piece: Piece) {
        self.again.push(piece);
    }

    pub(crate) fn take(&mut self) -> Option<Piece> {
        self.again.pop().or_else(|| {
            let piece = self.next.take()?;
            self.next = self.cut();
            Some(piece)
        })
    }
}

/// A piece that is moving, with its transfer slot, unless that went to others.
pub(crate) struct Moving {
    pub(crate) piece: Piece,
    pub(crate) transfer: Transfer,
    pub(crate) slot: Option<Permit>,
    pub(crate) _leave: Leave,
}

impl Moving {
    pub(crate) fn new(piece: Piece, transfer: Transfer, (slot, leave): Places) -> Self {
        Self { piece, transfer, slot: Some(slot), _leave: leave }
    }
}

/// A place among all transfers, and leave to start among the client's.
pub(crate) type Places = (Permit, Leave);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every piece of a transfer: part, local range, where it is in the client's memory.
    fn cut(
        segments: &[(RemoteRegion, Access)],
        offset: u64,
        local: &[Range<usize>],
    ) -> Vec<(usize, Range<usize>, RemoteRegion)> {
        let mut pieces = Pieces::new(segments, Access::Read, offset, local);
        let mut all = Vec::new();
        while !pieces.is_empty() {
            let piece = pieces.take().expect("there is one");
            all.push((piece.part, piece.local, piece.remote));
        }
        assert!(pieces.take().is_none());
        all
    }

    proptest! {
        #[test]
        fn each_byte_goes_where_its_place_in_the_segments_is(
            lengths in prop::collection::vec((0u64..6, any::<bool>()), 0..6),
            parts in prop::collection::vec((0usize..9, 0usize..6), 0..5),
            offset in 0u64..8,
        ) {
            let access = |read| if read { Access::Read } else { Access::Write };
            // The last one has room for all.
            let segments: Vec<_> = (1u64..)
                .zip(lengths.iter().chain([&(40, true)]))
                .map(|(key, (len, read))| (RemoteRegion { addr: key * 100, key, len: *len }, access(*read)))
                .collect();
            let remote = segments.iter().filter(|(_, access)| *access == Access::Read);
            let remote: Vec<_> =
                remote.flat_map(|(region, _)| (0..region.len).map(|at| (region.key, region.addr + at))).collect();
            let local: Vec<_> = parts.iter().map(|(start, len)| *start..start + len).collect();
            let bytes: Vec<_> =
                local.iter().enumerate().flat_map(|(part, range)| range.clone().map(move |at| (part, at))).collect();
            let skip = usize::try_from(offset).expect("small");
            let expected: Vec<_> = bytes.into_iter().zip(remote.into_iter().skip(skip)).collect();
            let found: Vec<_> = cut(&segments, offset, &local)
                .into_iter()
                .flat_map(|(part, range, region)| {
                    let place = move |(at, offset)| ((part, at), (region.key, region.addr + offset));
                    range.zip(0..region.len).map(place)
                })
                .collect();
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn long_parts_are_cut_to_size_and_what_failed_goes_first() {
        let region = RemoteRegion { addr: 1 << 30, key: 7, len: 4 << 20 };
        let segments = [(region, Access::Read)];
        let local = [10..10 + 2 * PIECE_MAX + 5, 3..4];
        let lengths: Vec<_> =
            cut(&segments, 3, &local).into_iter().map(|(_, range, _)| range.len()).collect();
        assert_eq!(lengths, [PIECE_MAX, PIECE_MAX, 5, 1]);
        let mut pieces = Pieces::new(&segments, Access::Read, 0, &local);
        let first = pieces.take().expect("the first one");
        let second = pieces.take().expect("the second one");
        pieces.put_back(first);
        assert_eq!(pieces.take().map(|piece| piece.local.start), Some(10));
        assert_eq!(second.local.start, 10 + PIECE_MAX);
        let rest =
            [pieces.take(), pieces.take()].map(|piece| piece.map(|piece| (piece.part, piece.local.len())));
        assert_eq!(rest, [Some((0, 5)), Some((1, 1))]);
        assert!(pieces.is_empty());
    }
}
