//! Moving extended attributes to another name of their inode.

use weir_client::{AkeyWrite, Conditions, Context};
use weir_proto::limits::AKEYS_MAX;
use weir_proto::transaction::COMMIT_MAX;
use weir_proto::{Der, Key};

use crate::entry::{GUARD, Node, entry_guard};
use crate::mount::Dfs;
use crate::name::NAME_MAX;
use crate::record::Record;
use crate::transaction::Tries;
use crate::{Error, Result};

/// Most bytes of extended attributes of an inode that go along with the transaction itself.
const ALONG_MAX: usize = 4096;

/// Most of them that do, and most akeys of an inode that it removes: with them, the akeys of an entry stay within one update.
const ALONG_COUNT: usize = 64;

/// Bytes of a transaction beside records, names and attributes: handle, object ids, and what is around all of them.
const FRAME: usize = 2048;

/// Bytes of the names that a transaction has for each inode: of two that it exchanges each one twice, and else those of three.
const NAMES: usize = 3 * NAME_MAX;

/// Bytes that an akey takes in an update beside its key and value.
const WRITE_FRAME: usize = 32;

/// Bytes that an akey takes in a punch beside its key.
const PUNCH_FRAME: usize = 4;

/// Extended attributes in one update: with values of the greatest length they fit the payload limit.
const PLACED_TOGETHER: usize = 64;

/// An extended attribute as it is stored.
type Stored = (Key, Vec<u8>);

/// What a transaction does about the extended attributes of an inode at its new name.
#[derive(Debug, Default)]
pub(crate) struct MovedXattrs {
    /// Those that aren't there yet.
    pub values: Vec<Stored>,
    /// What has been left there of the same inode, and must not come back.
    pub stale: Vec<Key>,
}

impl MovedXattrs {
    /// What is written for it.
    pub(crate) fn writes(&self) -> impl Iterator<Item = AkeyWrite<'_>> {
        self.values.iter().map(|(key, value)| AkeyWrite::single(key.clone(), value))
    }
}

/// Bytes that a transaction has left.
#[derive(Debug)]
pub(crate) struct TransactionBudget(usize);

impl TransactionBudget {
    /// For a transaction that gives these inodes their new names.
    pub(crate) fn beside(renamed: &[&Node]) -> Self {
        let taken: usize = renamed.iter().map(|node| node.record.encode().len() + NAMES).sum();
        Self((COMMIT_MAX - FRAME).saturating_sub(taken))
    }

    fn take_bytes(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.0;
        if fits {
            self.0 -= bytes;
        }
        fits
    }

    fn take_both(&mut self, values: &[Stored], stale: &[Key]) -> bool {
        let bytes: usize = values.iter().map(|(key, value)| key.as_bytes().len() + value.len()).sum();
        let are_few = bytes <= ALONG_MAX && values.len() <= ALONG_COUNT && stale.len() <= ALONG_COUNT;
        are_few && self.take_bytes(bytes + values.len() * WRITE_FRAME + keys_len(stale))
    }

    /// Takes what the removal of these akeys needs, if there is so much.
    fn take(&mut self, removed: &[Key]) -> bool {
        removed.len() <= ALONG_COUNT && self.take_bytes(keys_len(removed))
    }
}

fn keys_len(keys: &[Key]) -> usize {
    keys.iter().map(|key| key.as_bytes().len() + PUNCH_FRAME).sum()
}

impl Dfs {
    /// What a transaction, with this view, has to do so that the extended attributes of an inode are what stands at its new
    /// name, where `occupant` is now. Those that are too many for the transaction are put there first: `None` when something
    /// has just been done, and the transaction is to begin anew.
    ///
    /// Nothing is known but what the transaction itself reads at the new name: others may put attributes there, and remove
    /// them, as they have the inode come and go.
    pub(crate) async fn move_xattrs(
        &self,
        context: &Context,
        view: &Self,
        (source, moved, occupant): (&Node, &Node, Option<&Node>),
        room: &mut TransactionBudget,
    ) -> Result<Option<MovedXattrs>> {
        if source.record.is_linked() {
            // They aren't under the name.
            return Ok(Some(MovedXattrs::default()));
        }
        let values = view.xattr_values(context, source).await?;
        let there = view.xattr_values(context, moved).await?;
        let wrong = there.iter().filter(|stored| !values.contains(stored)).map(|(key, _)| key.clone());
        let wrong: Vec<Key> = wrong.collect();
        let is_stale = |key: &&Key| values.iter().all(|(kept, _)| kept != *key);
        let stale: Vec<Key> = wrong.iter().filter(is_stale).cloned().collect();
        let missing: Vec<Stored> = values.into_iter().filter(|stored| !there.contains(stored)).collect();
        if room.take_both(&missing, &stale) {
            return Ok(Some(MovedXattrs { values: missing, stale }));
        }
        if wrong.is_empty() {
            self.place_xattrs(context, moved, occupant, &missing).await?;
        } else {
            self.clear_xattrs(context, moved, |key| wrong.contains(key)).await?;
        }
        Ok(None)
    }

    /// The extended attributes that a transaction, of which this is the view, can remove with an inode's entry; `None` when they
    /// are too many.
    pub(crate) async fn removable_xattrs(
        &self,
        context: &Context,
        node: &Node,
        room: &mut TransactionBudget,
    ) -> Result<Option<Vec<Key>>> {
        if node.record.is_linked() {
            return Ok(Some(Vec::new()));
        }
        Ok(Some(self.xattr_keys(context, node).await?).filter(|keys| room.take(keys)))
    }

    /// Stores extended attributes of an inode under a name that it doesn't have yet: they are invisible until it has.
    ///
    /// When another client has given it that name meanwhile, they may be older than those that it has there. That is
    /// found out when another inode has the name, and otherwise by what is stored there already. Then an attribute that
    /// was removed in just this time may come back.
    async fn place_xattrs(
        &self,
        context: &Context,
        node: &Node,
        occupant: Option<&Node>,
        values: &[Stored],
    ) -> Result<()> {
        let (object, dkey) = self.home(node)?;
        let guard = occupant.map(|occupant| entry_guard(&occupant.record)).transpose()?;
        // A few at a time, so that one update carries them.
        for batch in values.chunks(PLACED_TOGETHER) {
            let writes = batch.iter().map(|(key, value)| AkeyWrite::single(key.clone(), value));
            let mut writes: Vec<_> = writes.map(|write| write.when(Conditions::AKEY_INSERT)).collect();
            let guard = guard.clone().map(|guard| AkeyWrite::single(guard, GUARD));
            writes.extend(guard.map(|guard| guard.when(Conditions::AKEY_UPDATE)));
            let conditions = Conditions::PER_AKEY.union(self.of_home(node));
            match object.update(context, &dkey, conditions, &writes).await {
                Ok(_) => {}
                // Another client does the same, or has done it.
                Err(error) if error.is(Der::EXIST) => return Ok(()),
                Err(error) if error.is(Der::NONEXIST) && occupant.is_some() => return Ok(()),
                Err(error) if error.is(Der::NONEXIST) => {
                    return Err(Error::Stale(format!("directory {:?}", node.parent)));
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Removes those extended attributes that stand for an inode under a name that it hasn't and that are `unwanted`, as many as
    /// one transaction can. Returns whether there were any.
    async fn clear_xattrs(
        &self,
        context: &Context,
        node: &Node,
        unwanted: impl Fn(&Key) -> bool,
    ) -> Result<bool> {
        let (mut transaction, view) = self.begin(context);
        let occupant = if node.record.is_linked() {
            view.fetch_linked(context, node.oid()).await?
        } else {
            view.fetch_entry(context, node.parent, &node.name).await?
        };
        let is_own =
            |occupant: &Record| occupant.oid == node.oid() && occupant.is_linked() == node.record.is_linked();
        if occupant.as_ref().is_some_and(is_own) {
            return Ok(false);
        }
        let mut room = TransactionBudget(COMMIT_MAX - FRAME - NAMES);
        let mut keys = view.xattr_keys(context, node).await?;
        keys.retain(unwanted);
        let keys = keys.into_iter().take(AKEYS_MAX);
        let keys: Vec<Key> = keys.take_while(|key| room.take(core::slice::from_ref(key))).collect();
        if keys.is_empty() {
            return Ok(false);
        }
        let (object, dkey) = self.home(node)?;
        transaction.punch_akeys(&object, Conditions::PUNCH, &dkey, &keys)?;
        transaction.commit(context).await?;
        Ok(true)
    }

    /// Removes all extended attributes of an inode that are stored under a name that it doesn't have any more: they are
    /// invisible, but take space.
    pub(crate) async fn leave_xattrs(&self, context: &Context, node: &Node) -> Result<()> {
        let mut tries = Tries::new(context);
        loop {
            match self.clear_xattrs(context, node, |_| true).await {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error) => tries.again(context, error).await?,
            }
        }
    }
}
