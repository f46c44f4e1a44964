//! The fragments of a bulk transfer: those that have not begun, and those in flight.

use crate::admission::TransferPermit;
use core::ops::Range;
use core::time::Duration;
use weir_fabric::{Access, RemoteRegion, Transfer};
use weir_runtime::sync::Permit;

/// Longest single read or write of client memory, in bytes. Fragments of this size overlap, and bound how long
/// the server can access the client's memory after the deadline.
const FRAGMENT_MAX: usize = 1 << 20;

/// Longest time of an access that has begun: of a fragment of at most 1 MiB, on a link that barely works.
pub(crate) const FRAGMENT_TIME: Duration = Duration::from_secs(1);

/// One fragment of a bulk transfer: a part of a local buffer and a part of the client's memory.
pub(crate) struct Fragment {
    /// Index of the local buffer.
    pub(crate) part: usize,
    pub(crate) local: Range<usize>,
    pub(crate) remote: RemoteRegion,
    pub(crate) tries: u32,
}

/// The fragments of a transfer that have not begun. They are cut one after another at the ends of the client's
/// segments, of the local parts, and at the fragment size. Most transfers are one fragment, for which nothing is
/// allocated.
pub(crate) struct Fragments<'a> {
    /// Where the next fragment begins: an offset in a segment, which may be beyond its end, and an offset in a
    /// local part.
    region: RemoteRegion,
    from: u64,
    part: usize,
    at: usize,
    segments: core::slice::Iter<'a, (RemoteRegion, Access)>,
    access: Access,
    local: &'a [Range<usize>],
    /// Cut in advance, to know whether there is one.
    next: Option<Fragment>,
    /// Fragments to try again, which go first.
    again: Vec<Fragment>,
}

impl<'a> Fragments<'a> {
    /// From this offset of the segments with this access, which have room for all local parts.
    pub(crate) fn new(
        segments: &'a [(RemoteRegion, Access)],
        access: Access,
        offset: u64,
        local: &'a [Range<usize>],
    ) -> Self {
        let mut fragments = Self {
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
        fragments.next = fragments.cut();
        fragments
    }

    fn cut(&mut self) -> Option<Fragment> {
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
        let room = (self.region.len - self.from).min(FRAGMENT_MAX as u64);
        let n = left.len().min(usize::try_from(room).expect("at most FRAGMENT_MAX"));
        let remote = self.region.part(self.from, n as u64)?;
        self.from += n as u64;
        self.at += n;
        Some(Fragment { part: self.part, local: left.start..left.start + n, remote, tries: 0 })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none() && self.again.is_empty()
    }

    /// Length of the next fragment; 0 if there is none.
    pub(crate) fn next_len(&self) -> usize {
        self.again.last().or(self.next.as_ref()).map_or(0, |fragment| fragment.local.len())
    }

    /// A fragment is to be tried again, before all others.
    pub(crate) fn put_back(&mut self, fragment: Fragment) {
        self.again.push(fragment);
    }

    pub(crate) fn take(&mut self) -> Option<Fragment> {
        self.again.pop().or_else(|| {
            let fragment = self.next.take()?;
            self.next = self.cut();
            Some(fragment)
        })
    }
}

/// A fragment in flight. `slot` is `None` after it was given to others.
pub(crate) struct MovingFragment {
    pub(crate) fragment: Fragment,
    pub(crate) transfer: Transfer,
    pub(crate) slot: Option<Permit>,
    pub(crate) _leave: TransferPermit,
}

impl MovingFragment {
    pub(crate) fn new(fragment: Fragment, transfer: Transfer, (slot, leave): TransferSlots) -> Self {
        Self { fragment, transfer, slot: Some(slot), _leave: leave }
    }
}

/// A slot among all transfers, and a pacing permit of the client.
pub(crate) type TransferSlots = (Permit, TransferPermit);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Every fragment of a transfer: its part, its local range, and its place in the client's memory.
    fn cut(
        segments: &[(RemoteRegion, Access)],
        offset: u64,
        local: &[Range<usize>],
    ) -> Vec<(usize, Range<usize>, RemoteRegion)> {
        let mut fragments = Fragments::new(segments, Access::Read, offset, local);
        let mut all = Vec::new();
        while !fragments.is_empty() {
            let fragment = fragments.take().expect("there is one");
            all.push((fragment.part, fragment.local, fragment.remote));
        }
        assert!(fragments.take().is_none());
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
        let local = [10..10 + 2 * FRAGMENT_MAX + 5, 3..4];
        let lengths: Vec<_> =
            cut(&segments, 3, &local).into_iter().map(|(_, range, _)| range.len()).collect();
        assert_eq!(lengths, [FRAGMENT_MAX, FRAGMENT_MAX, 5, 1]);
        let mut fragments = Fragments::new(&segments, Access::Read, 0, &local);
        let first = fragments.take().expect("the first one");
        let second = fragments.take().expect("the second one");
        fragments.put_back(first);
        assert_eq!(fragments.take().map(|fragment| fragment.local.start), Some(10));
        assert_eq!(second.local.start, 10 + FRAGMENT_MAX);
        let rest = [fragments.take(), fragments.take()]
            .map(|fragment| fragment.map(|fragment| (fragment.part, fragment.local.len())));
        assert_eq!(rest, [Some((0, 5)), Some((1, 1))]);
        assert!(fragments.is_empty());
    }
}
