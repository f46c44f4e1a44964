//! The existence of a dkey and of akeys below it, found by one descent of the index.
//!
//! The entries of a dkey are neighbours, most of them in one leaf. One descent finds that leaf; the events of the dkey and of
//! its akeys are looked up there. Where the leaf may not have all of them, [`existence_from`] gives the answer.
//!
//! Without it an update of 64 B takes 50 % more instructions (`weir-bench store --store-part counts`).

use crate::format::key;
use crate::format::key_builder::KeyBuilder;
use crate::format::value::Event;
use crate::index::existence::{Events, Existence, existence_from};
use crate::index::fault::Fault;
use crate::index::tree::{Address, ChildPath, Node, Tree};
use std::rc::Rc;

/// The leaf of a dkey.
pub(crate) struct DkeyLeaf<'t> {
    tree: &'t Tree,
    leaf: Rc<Node>,
    leaf_path: Option<ChildPath>,
    /// The first entry behind the events that were looked at last.
    at: usize,
    /// All entries of the dkey from the first event that was asked for on are in the leaf.
    has_all: bool,
    /// Nothing of the dkey stands behind its events.
    is_empty: bool,
}

impl<'t> DkeyLeaf<'t> {
    /// Goes to the leaf of the dkey that the builder has come to.
    pub(crate) fn of_dkey(tree: &'t Tree, builder: &mut KeyBuilder, epoch: u64) -> Result<Self, Fault> {
        let len = builder.path().len();
        let from = builder.event(epoch);
        let (leaf, leaf_path, has_all) = tree.leaf_of(from, len)?;
        leaf.prefetch_change();
        let (at, begins) = leaf.entries().first_with(from, len);
        Ok(Self { tree, leaf, leaf_path, at, has_all, is_empty: has_all && !begins })
    }

    /// The existence of the dkey at that epoch, below an object that exists as `above` says. Has to be called before
    /// [`DkeyLeaf::existence`].
    #[inline]
    pub(crate) fn existence_of_dkey(
        &mut self,
        builder: &mut KeyBuilder,
        above: &Existence,
        epoch: u64,
    ) -> Result<Existence, Fault> {
        if self.is_empty {
            // Most dkeys are new.
            return Ok(Existence::never(above));
        }
        let existence = self.look_for(builder, above, epoch)?;
        self.is_empty = self.ends_before(builder.path());
        Ok(existence)
    }

    /// Whether no entry from the present one on begins with `start`.
    fn ends_before(&self, start: &[u8]) -> bool {
        if !self.has_all {
            return false;
        }
        let entries = self.leaf.entries();
        match start.strip_prefix(entries.prefix()) {
            Some(start) => !entries.may_begin(self.at, start) || !entries.suffix(self.at).starts_with(start),
            None => self.at == entries.len(),
        }
    }

    /// The existence at `epoch` of an akey that the builder has come to, below the dkey that exists as `above` says.
    #[inline]
    pub(crate) fn existence(
        &mut self,
        builder: &mut KeyBuilder,
        above: &Existence,
        epoch: u64,
    ) -> Result<Existence, Fault> {
        if self.is_empty {
            return Ok(Existence::never(above));
        }
        self.look_for(builder, above, epoch)
    }

    /// As [`DkeyLeaf::existence`], of something that may be there.
    #[inline(never)]
    fn look_for(
        &mut self,
        builder: &mut KeyBuilder,
        above: &Existence,
        epoch: u64,
    ) -> Result<Existence, Fault> {
        let from = builder.event(epoch);
        self.look(from, above).map_or_else(|| existence_from(self.tree, from, *above), Ok)
    }

    /// As [`existence_from`], if the leaf has all that it depends on and nothing of that is damaged.
    fn look(&mut self, from: &[u8], above: &Existence) -> Option<Existence> {
        let entries = self.has_all.then(|| self.leaf.entries())?;
        let from = from.strip_prefix(entries.prefix())?;
        let start = from.get(..from.len().checked_sub(size_of::<u64>())?)?;
        let mut events = Events::below(above);
        let mut at = entries.first_near(from, self.at);
        while entries.may_begin(at, start) {
            let Some((suffix, value)) = entries.entry(at) else { break };
            let Some(epoch) = suffix.strip_prefix(start) else { break };
            let (epoch, event) = (key::epoch_from(epoch).ok()?, Event::decode(value).ok()?);
            if events.tell(epoch.0, event).is_break() {
                break;
            }
            at += 1;
        }
        self.at = at;
        Some(events.existence())
    }

    /// Whether all keys of the dkey from the event at the epoch that was asked for on belong to the leaf.
    pub(crate) fn has_all(&self) -> bool {
        self.has_all
    }

    /// The address at which all keys of the dkey from the event at the epoch that was asked for on are to be inserted, if they
    /// belong to one place and the index has none of them. Otherwise the leaf is remembered for the change that follows.
    #[inline]
    pub(crate) fn place(&self) -> Option<Address> {
        if self.is_empty
            && let Some(leaf_path) = self.leaf_path
        {
            return Address::new(leaf_path, self.at);
        }
        if self.has_all {
            self.tree.remember(&self.leaf);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::key::ObjectKey;
    use crate::format::key::Path;
    use crate::format::value::Kind;
    use crate::index::existence::existence;
    use proptest::prelude::*;
    use weir_proto::object::Extent;
    use weir_proto::{Key, ObjectId};

    const OBJECT: ObjectKey = (1, 1, ObjectId { hi: 0, lo: 1 });

    fn name(number: u8) -> Key {
        Key::new(&[b'k', number, 0, 1][..usize::from(2 + number % 3)]).expect("a key")
    }

    /// What happened to a dkey or an akey at an epoch; versions have a length.
    type Happening = (u8, Option<u8>, u64, u8, usize);

    /// The tree of a history. Long versions make it several leaves.
    fn tree(history: Vec<Happening>) -> Tree {
        let mut tree = Tree::default();
        let object = Path::object(OBJECT.0, OBJECT.1, OBJECT.2);
        tree.put(&object.event(2), &Event::Object { newest: 12 }.encode()).expect("in memory");
        for (dkey, akey, epoch, what, len) in history {
            let dkey = object.dkey(&name(dkey));
            let path = akey.map_or_else(|| dkey.clone(), |akey| dkey.akey(&name(akey)));
            let (key, value) = match (akey, what) {
                (_, 0) => (path.event(epoch), Event::Punch.encode()),
                (None, _) => (path.event(epoch), Event::Dkey.encode()),
                (Some(_), 1 | 2) => {
                    let event = Event::Akey { kind: Kind::Array, record_size: 1, classes: 1 << what };
                    (path.event(epoch), event.encode())
                }
                (Some(_), index) => {
                    (path.extent(Extent { index: u64::from(index), count: 6 }, epoch), vec![0; len])
                }
            };
            tree.put(&key, &value).expect("in memory");
        }
        tree
    }

    proptest! {
        #[test]
        fn existences_are_those_by_the_index_and_all_of_the_dkey_is_in_the_leaf(
            history in proptest::collection::vec(
                (0u8..6, proptest::option::weighted(0.8, 0u8..4), 1u64..12, 0u8..6, 0usize..1200), 0..150),
            questions in proptest::collection::vec((0u8..7, proptest::collection::vec(0u8..5, 1..5), 1u64..14), 30),
        ) {
            let tree = tree(history);
            for (dkey, akeys, epoch) in questions {
                let mut builder = KeyBuilder::object(&OBJECT, Vec::new());
                let above = existence_from(&tree, builder.event(epoch), Existence::ALWAYS).expect("sound");
                let of_dkey = Path::object(OBJECT.0, OBJECT.1, OBJECT.2).dkey(&name(dkey));
                builder.go_to_dkey(&name(dkey));
                let mut dkey_leaf = DkeyLeaf::of_dkey(&tree, &mut builder, epoch).expect("sound");
                let found = dkey_leaf.existence_of_dkey(&mut builder, &above, epoch).expect("sound");
                prop_assert_eq!(found, existence(&tree, &of_dkey, above, epoch).expect("sound"));
                let leaf = tree.leaf(&of_dkey.event(epoch)).expect("in memory");
                for akey in akeys {
                    let of_akey = of_dkey.akey(&name(akey));
                    builder.go_to_akey(&name(akey));
                    let of_neighbours = dkey_leaf.existence(&mut builder, &found, epoch).expect("sound");
                    prop_assert_eq!(of_neighbours, existence(&tree, &of_akey, found, epoch).expect("sound"));
                    if let Some(place) = dkey_leaf.place() {
                        let new = [of_akey.event(epoch).to_vec(), of_akey.single(epoch).to_vec()];
                        let belongs = |key: &Vec<u8>| tree.address(key).is_none();
                        prop_assert!(new.iter().all(belongs), "it is there already");
                        let at = leaf.entries().search(&new[0]);
                        let leaf_path = tree.leaf_and_path(&new[0]).expect("in memory").1;
                        prop_assert_eq!(Address::new(leaf_path.expect("a few"), at.expect_err("it is new")), Some(place));
                    }
                    if dkey_leaf.has_all() {
                        let extent = Extent { index: 9, count: 6 };
                        for key in [of_akey.event(1).to_vec(), of_akey.extent(extent, epoch).to_vec()] {
                            prop_assert!(Rc::ptr_eq(&leaf, &tree.leaf(&key).expect("in memory")));
                        }
                    }
                }
            }
        }
    }
}
