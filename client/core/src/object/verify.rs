//! Comparison of the replicas of an object with each other and with their checksums.

use core::time::Duration;
use std::collections::BTreeSet;

use weir_proto::limits::{LIST_KEYS_MAX, PAYLOAD_MAX};
use weir_proto::object::Extent;
use weir_proto::{Der, Key};

use super::{AkeyRead, Anchor, Object, PlacedTarget, Placement};
use crate::error::Error;
use crate::session::Context;
use crate::{Conditions, Result};

/// Bytes of an array that are compared at once.
const WINDOW: u64 = 1 << 20;

/// How often replicas that differ are compared before it counts: somebody may write meanwhile, and one replica may be asked before
/// and the other behind that.
const TRIES: usize = 4;

/// Pause between two of these.
const PAUSE: Duration = Duration::from_millis(100);

/// What is wrong with a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MismatchKind {
    /// It doesn't match its checksums, or can't be read: what the target says.
    Damaged(String),
    /// It is sound, and another one than the first sound replica of the group.
    Different,
}

/// Something that is wrong with a replica of a part of an object.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mismatch {
    /// Number of the group.
    pub group: usize,
    /// The replica.
    pub replica: PlacedTarget,
    /// The dkey; `None`: its list of dkeys.
    pub dkey: Option<Key>,
    /// The akey; `None`: its list of akeys.
    pub akey: Option<Key>,
    /// What is wrong.
    pub kind: MismatchKind,
}

/// The replicas of an object, compared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Verified {
    /// Where they are.
    pub placement: Placement,
    /// Those that serve, and were compared, by group.
    pub compared: Vec<(usize, PlacedTarget)>,
    /// Dkeys that were compared.
    pub dkeys: u64,
    /// Bytes that were compared, counted once for each replica.
    pub bytes: u64,
    /// What is wrong.
    pub mismatches: Vec<Mismatch>,
}

/// What a replica says of something: what it has, or that this is damaged.
type Told<T> = core::result::Result<T, String>;

/// A value as a replica has it.
#[derive(PartialEq, Eq, Default)]
struct Content {
    /// Size of a single value or of a record; 0: there is nothing.
    size: u64,
    present: Vec<Extent>,
    data: Vec<u8>,
}

/// The replicas of a group that serve.
struct Group<'a> {
    context: &'a Context,
    number: usize,
    replicas: Vec<(PlacedTarget, Object)>,
    bytes: u64,
    mismatches: Vec<Mismatch>,
}

impl Object {
    /// Compares the replicas of the object: reads every dkey from each target that serves it. Whoever writes meanwhile is taken into
    /// account. `goes_on` is called whenever a dkey was compared.
    ///
    /// # Errors
    /// When a target refuses or does not answer in time. That data is damaged is no error.
    pub async fn verify(&self, context: &Context, goes_on: &dyn Fn()) -> Result<Verified> {
        let placement = self.placement(context)?;
        let map = context.map_of(self.container.pool());
        let layout = self.layout(context, &map)?;
        let (mut compared, mut dkeys, mut bytes, mut mismatches) = (Vec::new(), 0, 0, Vec::new());
        for (number, targets) in placement.groups.iter().enumerate() {
            let serving: Vec<_> = layout.serving(number, &map).filter_map(|id| map.target(id)).collect();
            let serves = |one: &&PlacedTarget| {
                serving.iter().any(|target| (target.rank, target.index) == (one.rank, one.index))
            };
            let at = |target: &PlacedTarget| (*target, self.at_replica(target.rank, target.index));
            let replicas: Vec<_> = targets.iter().filter(serves).map(at).collect();
            compared.extend(replicas.iter().map(|(target, _)| (number, *target)));
            let mut group = Group { context, number, replicas, bytes: 0, mismatches: Vec::new() };
            dkeys += group.compare(goes_on).await?;
            bytes += group.bytes;
            mismatches.append(&mut group.mismatches);
        }
        Ok(Verified { placement, compared, dkeys, bytes, mismatches })
    }
}

/// An answer, or what is said of damage.
fn told<T>(answer: Result<T>) -> Result<Told<T>> {
    match answer {
        Ok(found) => Ok(Ok(found)),
        Err(error) if error.is(Der::CSUM) || error.is(Der::NVME_IO) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

impl Group<'_> {
    /// Compares all dkeys. Returns how many there are.
    async fn compare(&mut self, goes_on: &dyn Fn()) -> Result<u64> {
        let (mut all, mut lists) = (BTreeSet::new(), Vec::new());
        for (_, replica) in &self.replicas {
            let listed = told(replica.shard_dkeys(self.context, self.number).await)?;
            all.extend(listed.iter().flatten().cloned());
            lists.push(listed);
        }
        self.note_damage(&lists, None);
        for dkey in &all {
            self.compare_dkey(dkey).await?;
            goes_on();
        }
        Ok(all.len() as u64)
    }

    async fn compare_dkey(&mut self, dkey: &Key) -> Result<()> {
        let (mut all, mut lists) = (BTreeSet::new(), Vec::new());
        for (_, replica) in &self.replicas {
            let listed = told(self.akeys(replica, dkey).await)?;
            all.extend(listed.iter().flatten().cloned());
            lists.push(listed);
        }
        self.note_damage(&lists, Some(dkey));
        for akey in &all {
            self.compare_akey(dkey, akey).await?;
        }
        Ok(())
    }

    async fn akeys(&self, replica: &Object, dkey: &Key) -> Result<Vec<Key>> {
        let (mut found, mut anchor) = (Vec::new(), Anchor::START);
        while !anchor.is_end() {
            let page = replica.list_akeys(self.context, dkey, &anchor, LIST_KEYS_MAX).await?;
            found.extend(page.entries.iter().filter_map(|entry| Key::new(&entry.key).ok()));
            anchor = page.next;
        }
        Ok(found)
    }

    /// Compares an akey, again where replicas differ, and takes down what is wrong with each.
    async fn compare_akey(&mut self, dkey: &Key, akey: &Key) -> Result<()> {
        let mut wrong = Vec::new();
        for attempt in 0..TRIES {
            if attempt > 0 {
                self.context.runtime().sleep(PAUSE).await;
            }
            wrong = self.look_at_akey(dkey, akey).await?;
            if !wrong.contains(&Some(MismatchKind::Different)) {
                break;
            }
        }
        for (at, kind) in wrong.into_iter().enumerate() {
            if let Some(kind) = kind {
                self.note(at, (Some(dkey), Some(akey)), kind);
            }
        }
        Ok(())
    }

    /// What is wrong with each replica of an akey.
    async fn look_at_akey(&mut self, dkey: &Key, akey: &Key) -> Result<Vec<Option<MismatchKind>>> {
        let mut lists = Vec::new();
        for (_, replica) in &self.replicas {
            lists.push(told(self.extents(replica, dkey, akey).await)?);
        }
        let mut wrong = vec![None; lists.len()];
        let mut all: Vec<(Extent, u32)> = lists.iter().flatten().flatten().copied().collect();
        all.sort_unstable_by_key(|(extent, _)| (extent.index, extent.count));
        for (list, wrong) in lists.iter().zip(&mut wrong) {
            *wrong = list.as_ref().err().map(|reason| MismatchKind::Damaged(reason.clone()));
        }
        let Some((_, record_size)) = all.first().copied() else {
            return self.compare_windows((dkey, akey), None, wrong).await;
        };
        for window in
            windows(all.into_iter().map(|(extent, _)| extent), WINDOW / u64::from(record_size.max(1)))
        {
            wrong = self.compare_windows((dkey, akey), Some((window, record_size)), wrong).await?;
        }
        Ok(wrong)
    }

    async fn extents(&self, replica: &Object, dkey: &Key, akey: &Key) -> Result<Vec<(Extent, u32)>> {
        let (mut found, mut anchor) = (Vec::new(), Anchor::START);
        while !anchor.is_end() {
            let page = replica.list_extents(self.context, dkey, akey, &anchor, LIST_KEYS_MAX).await?;
            found.extend(
                page.entries.iter().filter_map(|entry| entry.extent).map(|(extent, size, _)| (extent, size)),
            );
            anchor = page.next;
        }
        Ok(found)
    }

    /// Compares records of an array, or a single value, and adds what is wrong with each replica.
    async fn compare_windows(
        &mut self,
        keys: (&Key, &Key),
        records: Option<(Extent, u32)>,
        mut wrong: Vec<Option<MismatchKind>>,
    ) -> Result<Vec<Option<MismatchKind>>> {
        let mut first: Option<Content> = None;
        for ((_, replica), wrong) in self.replicas.iter().zip(&mut wrong) {
            let content = match records {
                Some(records) => told(self.records(replica, keys, records).await)?,
                None => told(self.single(replica, keys).await)?,
            };
            match (content, &first) {
                (Err(reason), _) => *wrong = Some(MismatchKind::Damaged(reason)),
                (Ok(content), None) => {
                    self.bytes += content.data.len() as u64;
                    first = Some(content);
                }
                (Ok(content), Some(first)) => {
                    self.bytes += content.data.len() as u64;
                    if content != *first && wrong.is_none() {
                        *wrong = Some(MismatchKind::Different);
                    }
                }
            }
        }
        Ok(wrong)
    }

    async fn records(
        &self,
        replica: &Object,
        (dkey, akey): (&Key, &Key),
        (extent, record_size): (Extent, u32),
    ) -> Result<Content> {
        let len = usize::try_from(extent.count * u64::from(record_size));
        let mut data = vec![0; len.map_err(|error| Error::invalid("compare", error))?];
        let mut read = AkeyRead::array(akey.clone(), record_size, vec![extent], vec![&mut data]);
        read.zero_holes = true;
        let found = replica.fetch(self.context, dkey, Conditions::NONE, &mut [read]).await?;
        let found = found.into_iter().next().expect("invariant: a fetch says something of each akey");
        Ok(Content { size: found.size, present: joined(found.present), data })
    }

    async fn single(&self, replica: &Object, (dkey, akey): (&Key, &Key)) -> Result<Content> {
        let mut data = Vec::new();
        loop {
            let room = data.len() as u64;
            let read = AkeyRead::single(akey.clone(), &mut data);
            let found = match replica.fetch(self.context, dkey, Conditions::NONE, &mut [read]).await {
                // An array that has no records.
                Err(error) if error.is(Der::INVAL) => return Ok(Content::default()),
                found => found?,
            };
            let size = found.first().expect("invariant: a fetch says something of each akey").size;
            let wanted = size.min(PAYLOAD_MAX);
            if room >= wanted {
                data.truncate(usize::try_from(wanted).map_err(|error| Error::invalid("compare", error))?);
                return Ok(Content { size, present: Vec::new(), data });
            }
            data.resize(usize::try_from(wanted).map_err(|error| Error::invalid("compare", error))?, 0);
        }
    }

    /// Takes down which of the replicas can't list what they have.
    fn note_damage<T>(&mut self, lists: &[Told<T>], dkey: Option<&Key>) {
        for (at, list) in lists.iter().enumerate() {
            if let Err(reason) = list {
                self.note(at, (dkey, None), MismatchKind::Damaged(reason.clone()));
            }
        }
    }

    fn note(&mut self, at: usize, (dkey, akey): (Option<&Key>, Option<&Key>), kind: MismatchKind) {
        let (group, replica) = (self.number, self.replicas[at].0);
        self.mismatches.push(Mismatch { group, replica, dkey: dkey.cloned(), akey: akey.cloned(), kind });
    }
}

/// Extents in the order of their records, with neighbours in one.
fn joined(extents: impl IntoIterator<Item = Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for extent in extents {
        match joined.last_mut().filter(|last| extent.index <= last.end()) {
            Some(last) => last.count = last.end().max(extent.end()) - last.index,
            None => joined.push(extent),
        }
    }
    joined
}

/// Cuts extents, which are in the order of their records, into pieces of up to so many records.
fn windows(extents: impl IntoIterator<Item = Extent>, most: u64) -> Vec<Extent> {
    let most = most.max(1);
    let cut = |extent: Extent| {
        let all = core::iter::successors(Some(0_u64), move |at| at.checked_add(most));
        let begins = all.take_while(move |at| *at < extent.count);
        begins.map(move |at| Extent { index: extent.index + at, count: most.min(extent.count - at) })
    };
    joined(extents).into_iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(index: u64, count: u64) -> Extent {
        Extent { index, count }
    }

    #[test]
    fn extents_that_overlap_are_compared_once_and_in_pieces() {
        let extents = [extent(0, 4), extent(2, 4), extent(6, 1), extent(9, 3)];
        assert_eq!(joined(extents), [extent(0, 7), extent(9, 3)]);
        assert_eq!(windows(extents, 3), [extent(0, 3), extent(3, 3), extent(6, 1), extent(9, 3)]);
        assert_eq!(windows([extent(5, 2)], 0), [extent(5, 1), extent(6, 1)]);
    }
}
