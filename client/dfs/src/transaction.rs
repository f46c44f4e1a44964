//! Changes of several entries that happen all or not at all.

use weir_client::{AkeyWrite, Conditions, Context, Restarts, Transaction};
use weir_proto::{Key, ObjectId};

use crate::entry::{Insertion, Node, entry_guard, entry_key};
use crate::mount::Dfs;
use crate::namespace::parent_key;
use crate::record::Record;
use crate::xattr_move::MovedXattrs;
use crate::{Error, Result};

/// Decides whether a transaction that has failed is tried again.
pub(crate) struct Tries {
    restarts: Restarts,
    /// The refusal that was met last.
    refusal: Option<String>,
}

impl Tries {
    pub(crate) fn new(context: &Context) -> Self {
        Self { restarts: Restarts::new(context), refusal: None }
    }

    /// Returns when to try again; the error when not to.
    ///
    /// A transaction reads at an epoch of this client's clock, which may be behind those of the targets: what others did just
    /// before isn't seen then. With their answers the clock catches up, with each target's by its own. So what a transaction
    /// has read, and ends without a commit, counts when the next one finds the same: both have asked the same targets.
    pub(crate) async fn again(&mut self, context: &Context, error: Error) -> Result<()> {
        match error {
            Error::Client(error) => Ok(self.restarts.again(context, error).await?),
            error => {
                let said = error.to_string();
                let is_known = self.refusal.as_ref() == Some(&said);
                if is_known || self.restarts.is_over(context) {
                    return Err(error);
                }
                self.refusal = Some(said);
                Ok(())
            }
        }
    }

    /// Whether to try again, after something that had to be done first; the error when not to.
    pub(crate) fn go_on(&self, context: &Context, operation: &'static str, node: String) -> Result<()> {
        if self.restarts.is_over(context) {
            let cause = "others change its extended attributes all the time".to_owned();
            return Err(self.restarts.given_up(context, operation, node, cause).into());
        }
        Ok(())
    }
}

impl Dfs {
    /// Begins a transaction, with the file system as it reads it.
    pub(crate) fn begin(&self, context: &Context) -> (Transaction, Self) {
        let transaction = Transaction::begin(context, self.container());
        let view = self.within(&transaction);
        (transaction, view)
    }

    /// Adds an entry, with its extended attributes, where there is none.
    pub(crate) fn insert_within(
        &self,
        transaction: &mut Transaction,
        node: &Node,
        carried: &MovedXattrs,
    ) -> Result<()> {
        let insertion = Insertion::of(&node.record)?;
        let mut writes = insertion.writes();
        for write in &mut writes {
            write.conditions = Conditions::AKEY_INSERT;
        }
        writes.extend(carried.writes());
        let (object, key) = (self.object(node.parent)?, entry_key(node.parent, &node.name)?);
        let conditions = Conditions::PER_AKEY.union(self.of_directory(node.parent));
        transaction.update(&object, &key, conditions, &writes)?;
        if !carried.stale.is_empty() {
            transaction.punch_akeys(&object, Conditions::PUNCH, &key, &carried.stale)?;
        }
        Ok(())
    }

    /// Puts an inode, with its extended attributes, in the place of another one, some of whose are removed.
    pub(crate) fn replace_within(
        &self,
        transaction: &mut Transaction,
        (old, removed): (&Node, &[Key]),
        record: &Record,
        carried: &MovedXattrs,
    ) -> Result<()> {
        let insertion = Insertion::of(record)?;
        let mut writes = insertion.writes();
        writes[0].conditions = Conditions::AKEY_UPDATE;
        writes[1].conditions = Conditions::AKEY_INSERT;
        writes.extend(carried.writes());
        let (object, key) = (self.object(old.parent)?, entry_key(old.parent, &old.name)?);
        transaction.update(&object, &key, Conditions::PER_AKEY, &writes)?;
        let goes = [&[entry_guard(&old.record)?], removed, &carried.stale].concat();
        Ok(transaction.punch_akeys(&object, Conditions::PUNCH, &key, &goes)?)
    }

    /// Removes an inode's entry with everything under it.
    pub(crate) fn remove_within(&self, transaction: &mut Transaction, node: &Node) -> Result<()> {
        let key = entry_key(node.parent, &node.name)?;
        Ok(transaction.punch_dkey_with(&self.object(node.parent)?, &key, &[entry_guard(&node.record)?])?)
    }

    /// Writes a directory's reference to its parent.
    pub(crate) fn link_parent_within(
        &self,
        transaction: &mut Transaction,
        directory: ObjectId,
        parent: ObjectId,
    ) -> Result<()> {
        let (bytes, key) = (parent.to_bytes(), parent_key()?);
        let writes = [AkeyWrite::single(key.clone(), &bytes)];
        Ok(transaction.update(&self.object(directory)?, &key, Conditions::NONE, &writes)?)
    }
}
