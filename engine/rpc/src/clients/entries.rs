//! The requests of one client that a server remembers.

use crate::config::DOORBELL_CREDITS_MAX;
use std::collections::VecDeque;

/// Bytes that one remembered reply counts against the limit beside its body.
pub(crate) const REPLY_OVERHEAD: usize = 128;

/// Capacity that a list keeps: twice the entries of a client within its credits. Capacity is not counted, and
/// there may be tens of thousands of clients.
const ROOM_KEPT: usize = 2 * DOORBELL_CREDITS_MAX;

/// The reply of a finished request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finished {
    pub(crate) status: u32,
    pub(crate) body: Vec<u8>,
}

/// State of a request.
pub(crate) enum Entry {
    Running,
    /// With its number in the order of all finished requests.
    Finished(Finished, u64),
}

impl Entry {
    /// Bytes that it counts against the limit.
    pub(crate) fn weight(&self) -> usize {
        match self {
            Self::Running => 0,
            Self::Finished(finished, _) => finished.body.len() + REPLY_OVERHEAD,
        }
    }
}

/// Entries in ascending order of requests. There are as many as a client has credits. A list allocates nothing
/// when one request ends and the next begins.
#[derive(Default)]
pub(crate) struct Entries(pub(crate) VecDeque<(u64, Entry)>);

impl Entries {
    /// Whether this request is newer than all others.
    #[inline]
    pub(crate) fn is_newest(&self, request: u64) -> bool {
        self.0.back().is_none_or(|(newest, _)| *newest < request)
    }

    #[inline(always)]
    pub(crate) fn at(&self, request: u64) -> Result<usize, usize> {
        // Nearly all requests are the newest.
        match self.0.back() {
            None => return Err(0),
            Some((newest, _)) if *newest < request => return Err(self.0.len()),
            Some((newest, _)) if *newest == request => return Ok(self.0.len() - 1),
            Some(_) => {}
        }
        // A client that calls no other server numbers its requests without gaps.
        let first = self.0.front().map_or(0, |(first, _)| *first);
        let guess = usize::try_from(request.wrapping_sub(first)).unwrap_or(usize::MAX);
        if self.0.get(guess).is_some_and(|(known, _)| *known == request) {
            return Ok(guess);
        }
        self.0.binary_search_by_key(&request, |(known, _)| *known)
    }

    pub(crate) fn get(&self, request: u64) -> Option<&Entry> {
        self.at(request).ok().map(|at| &self.0[at].1)
    }

    /// The entry of a request, and whether it was there. If not, it is added as running.
    #[inline]
    pub(crate) fn entry(&mut self, request: u64) -> (&mut Entry, bool) {
        let (at, there) = match self.at(request) {
            Ok(at) => (at, true),
            Err(at) => {
                self.insert(at, request);
                (at, false)
            }
        };
        (&mut self.0[at].1, there)
    }

    #[inline]
    pub(crate) fn insert(&mut self, at: usize, request: u64) {
        if at == self.0.len() {
            self.0.push_back((request, Entry::Running));
        } else {
            self.0.insert(at, (request, Entry::Running));
        }
    }

    pub(crate) fn remove(&mut self, request: u64) -> Option<Entry> {
        let at = self.at(request).ok()?;
        self.0.remove(at).map(|(_, entry)| entry)
    }

    /// Gives back capacity that was needed only for a while. The limit counts entries, not capacity.
    #[inline]
    pub(crate) fn trim(&mut self) {
        let (len, room) = (self.0.len(), self.0.capacity());
        if room > ROOM_KEPT && len < room / 4 {
            self.0.shrink_to(ROOM_KEPT.max(2 * len));
        }
    }

    /// Takes the first entry if it is finished and below `below`.
    pub(crate) fn take_finished(&mut self, below: u64) -> Option<Entry> {
        let (request, entry) = self.0.front()?;
        let done = *request < below && matches!(entry, Entry::Finished(..));
        if done { self.0.pop_front().map(|(_, entry)| entry) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn entries_are_found_wherever_they_stand_and_in_order(
            steps in prop::collection::vec((0..3u8, 0..40u64, 1..4u64), 0..200)
        ) {
            let (mut entries, mut model) = (Entries::default(), BTreeMap::new());
            for (what, number, stride) in steps {
                // Without gaps, as of a client of one server, and with gaps.
                let request = number * stride;
                match what {
                    0 => {
                        let (entry, there) = entries.entry(request);
                        prop_assert_eq!(there, model.contains_key(&request));
                        *entry = Entry::Finished(Finished { status: 0, body: Vec::new() }, number);
                        model.insert(request, number);
                    }
                    1 => prop_assert_eq!(entries.remove(request).is_some(), model.remove(&request).is_some()),
                    _ => {}
                }
                let found = entries.get(request).map(|entry| match entry {
                    Entry::Finished(_, serial) => *serial,
                    Entry::Running => u64::MAX,
                });
                prop_assert_eq!(found, model.get(&request).copied());
            }
            let all: Vec<u64> = entries.0.iter().map(|(request, _)| *request).collect();
            prop_assert_eq!(all, model.into_keys().collect::<Vec<_>>());
        }
    }
}
