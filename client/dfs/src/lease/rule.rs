//! When the content of an orphan may be freed: what a client concludes from the leases of the others.
//!
//! A client lists orphans, notes which of them it has open, and then renews its lease with those: a *turn*. An observer
//! that has seen an orphan sees another client in turn `t`. In turn `t + 1` that client may have listed before the
//! orphan was there. Its turn `t + 2` began after that: either the orphan is among its pins, or the client doesn't need
//! it and refuses to open it from then on. A client that has no lease yet when the orphan is there can't find its name
//! any more.

use std::collections::BTreeMap;

use weir_proto::ObjectId;

use super::record::{ClientId, ClientRecord, KEY_LEN, decode};

/// Turns of its own after which an observer takes a lease that was not renewed to be that of a dead client. Turns, not
/// time: while the engine with the leases is away, no client takes one.
pub(crate) const EXPIRED_TURNS: u32 = 20;

/// Key of a batch of orphans.
pub(crate) type BatchKey = [u8; KEY_LEN];

/// A client as it was seen last.
#[derive(Debug)]
struct ObservedClient {
    bytes: Vec<u8>,
    /// `None`: its record can't be understood; then it may need anything.
    record: Option<ClientRecord>,
    /// Turns of the observer since it has changed.
    unchanged: u32,
}

/// What a client has seen of the others.
#[derive(Debug, Default)]
pub(crate) struct Observer {
    others: BTreeMap<ClientId, ObservedClient>,
    /// The clients that were there when a batch was there, with their turns then.
    since: BTreeMap<BatchKey, BTreeMap<ClientId, Option<u64>>>,
}

impl Observer {
    /// Takes note of the leases of others, once in a turn. Returns those that have expired, with their records.
    pub(crate) fn note(&mut self, leases: Vec<(ClientId, Vec<u8>)>) -> Vec<(ClientId, Vec<u8>)> {
        let mut before = core::mem::take(&mut self.others);
        let mut expired = Vec::new();
        for (client, bytes) in leases {
            let seen = match before.remove(&client) {
                Some(seen) if seen.bytes == bytes => ObservedClient { unchanged: seen.unchanged + 1, ..seen },
                _ => ObservedClient { record: decode(&bytes), bytes, unchanged: 0 },
            };
            if seen.unchanged >= EXPIRED_TURNS {
                expired.push((client, seen.bytes.clone()));
            }
            self.others.insert(client, seen);
        }
        expired
    }

    /// Takes note of all batches that were there before the leases were listed that [`Observer::note`] was told of last.
    pub(crate) fn note_batches(&mut self, batches: &[BatchKey]) {
        let turns = |others: &BTreeMap<ClientId, ObservedClient>| {
            others
                .iter()
                .map(|(client, seen)| (*client, seen.record.as_ref().map(|record| record.turn)))
                .collect()
        };
        let mut before = core::mem::take(&mut self.since);
        for batch in batches {
            let since = before.remove(batch).unwrap_or_else(|| turns(&self.others));
            self.since.insert(*batch, since);
        }
    }

    /// A lease has ended.
    pub(crate) fn ended(&mut self, client: ClientId) {
        self.others.remove(&client);
    }

    /// Whether no other client needs an orphan of a batch.
    pub(crate) fn may_go(&self, batch: &BatchKey, oid: ObjectId) -> bool {
        let Some(since) = self.since.get(batch) else { return false };
        since.iter().all(|(client, turn)| match self.others.get(client) {
            None => true,
            Some(ObservedClient { record: None, .. }) => false,
            Some(ObservedClient { record: Some(record), .. }) => {
                turn.is_some_and(|turn| record.turn >= turn.saturating_add(2)) && !record.pins.has(oid)
            }
        })
    }

    /// Whether it is this client that frees orphans of that owner: its own, and those of absent owners if no other
    /// client comes first.
    pub(crate) fn frees(&self, own: ClientId, owner: Option<ClientId>) -> bool {
        if owner == Some(own) {
            return true;
        }
        let has_owner = owner.is_some_and(|owner| self.others.contains_key(&owner));
        !has_owner && self.others.keys().next().is_none_or(|first| own < *first)
    }

    /// Whether no other client is there.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::{Pins, encode};
    use super::*;
    use proptest::prelude::*;
    use weir_proto::Epoch;

    const BATCH: BatchKey = [1; KEY_LEN];
    const OID: ObjectId = ObjectId { hi: 0, lo: 7 };
    const OTHER: ClientId = ClientId([2; KEY_LEN]);

    fn lease(turn: u64, pins: Vec<ObjectId>) -> Vec<u8> {
        encode(&ClientRecord { turn, before: Epoch::ZERO, origin: Vec::new(), pins: Pins::of(pins) })
    }

    #[test]
    fn an_orphan_goes_two_turns_after_everybody_has_let_it_go() {
        let mut observer = Observer::default();
        assert!(!observer.may_go(&BATCH, OID), "nothing was seen");
        observer.note(vec![(OTHER, lease(5, vec![]))]);
        observer.note_batches(&[BATCH]);
        for (turn, pins, goes) in [
            (5, vec![], false),
            (6, vec![], false),
            (7, vec![OID], false),
            (9, vec![OID], false),
            (10, vec![], true),
        ] {
            observer.note(vec![(OTHER, lease(turn, pins))]);
            observer.note_batches(&[BATCH]);
            assert_eq!(observer.may_go(&BATCH, OID), goes, "turn {turn}");
        }
    }

    #[test]
    fn a_lease_that_ends_or_comes_later_holds_nothing() {
        let mut observer = Observer::default();
        observer.note(vec![(OTHER, lease(5, vec![OID]))]);
        observer.note_batches(&[BATCH]);
        assert!(!observer.may_go(&BATCH, OID));
        observer.note(vec![(ClientId([3; KEY_LEN]), lease(0, vec![]))]);
        assert!(observer.may_go(&BATCH, OID));
    }

    #[test]
    fn a_client_of_another_version_may_need_anything_until_it_stands_still() {
        let mut observer = Observer::default();
        for turn in 0..30 {
            let expired = observer.note(vec![(OTHER, vec![99, turn])]);
            observer.note_batches(&[BATCH]);
            assert!(expired.is_empty() && !observer.may_go(&BATCH, OID));
        }
        for turn in 1..=EXPIRED_TURNS {
            let expired = observer.note(vec![(OTHER, vec![99, 29])]);
            assert_eq!(expired.len(), usize::from(turn == EXPIRED_TURNS), "turn {turn}");
        }
        observer.ended(OTHER);
        assert!(observer.may_go(&BATCH, OID));
    }

    #[test]
    fn one_of_all_frees_the_orphans_of_who_is_gone() {
        let (low, high, gone) = (ClientId([1; KEY_LEN]), ClientId([9; KEY_LEN]), ClientId([5; KEY_LEN]));
        let of = |other| {
            let mut observer = Observer::default();
            observer.note(vec![(other, lease(1, vec![]))]);
            observer
        };
        assert!(of(high).frees(low, Some(gone)) && !of(low).frees(high, Some(gone)));
        assert!(of(high).frees(low, None) && !of(low).frees(high, None));
        assert!(of(low).frees(high, Some(high)) && !of(high).frees(low, Some(high)));
    }

    /// A client as it is: what it does in one step of a history.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// Opens the file by its name, if that is there.
        Open,
        /// Opens the file that it had looked up before, which it may unless it has let it go.
        OpenKnown,
        Close,
        /// Lists the orphans, and notes whether it has them open.
        List,
        /// Stores its lease with what it has noted.
        Renew,
        /// A client removes the name.
        Remove,
        /// The remover stores the orphan.
        Store,
        /// The observer takes a turn.
        Observe,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop::sample::select(vec![
            Step::Open,
            Step::OpenKnown,
            Step::Close,
            Step::List,
            Step::Renew,
            Step::Remove,
            Step::Store,
            Step::Observe,
        ])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]
        #[test]
        fn nothing_goes_that_is_open(steps in proptest::collection::vec(step(), 0..60)) {
            let (mut named, mut stored, mut open, mut let_go, mut gone) = (true, false, false, false, false);
            let (mut turn, mut listed, mut record) = (0, None, lease(0, vec![]));
            let mut observer = Observer::default();
            for step in steps {
                match step {
                    Step::Open => open |= named,
                    Step::OpenKnown => open |= !let_go && !gone,
                    Step::Close => open = false,
                    Step::List => {
                        let_go = stored && !open;
                        listed = Some(if stored && open { vec![OID] } else { vec![] });
                    }
                    Step::Renew => if let Some(pins) = listed.take() {
                        turn += 1;
                        record = lease(turn, pins);
                    },
                    Step::Remove => named = false,
                    Step::Store => stored |= !named,
                    Step::Observe => {
                        let batches = if stored { vec![BATCH] } else { vec![] };
                        observer.note(vec![(OTHER, record.clone())]);
                        observer.note_batches(&batches);
                        gone |= observer.may_go(&BATCH, OID);
                        prop_assert!(!(gone && open), "freed while it is open");
                    }
                }
            }
        }
    }
}
