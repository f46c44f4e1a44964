//! Inodes with hard links: each has an object of its own, which holds the record that its entries refer to.
//!
//! The object has one dkey, under which stands what an entry has for an inode with one name: record, guard and extended
//! attributes. It is made by the first link and goes with the last name.

use weir_client::{AkeyWrite, Conditions, Context, Object, Transaction};
use weir_proto::{Key, ObjectId};

use crate::entry::{GUARD, Node, akey, entry_key, fetch_record, guard_key, record_key};
use crate::mount::{Dfs, directory_id};
use crate::record::{Names, Record};
use crate::superblock::LINKED;
use crate::xattr_move::MovedXattrs;
use crate::{Error, Result};

/// The dkey of the object.
const INODE_KEY: &[u8] = b"inode";

impl Dfs {
    /// Where an inode's record and extended attributes are: under its entry, or in an object of its own.
    pub(crate) fn home(&self, node: &Node) -> Result<(Object, Key)> {
        match node.record.names {
            Names::One => Ok((self.object(node.parent)?, entry_key(node.parent, &node.name)?)),
            Names::Counted(_) => self.linked_home(node.oid()),
        }
    }

    fn linked_home(&self, oid: ObjectId) -> Result<(Object, Key)> {
        let own = directory_id(self.container(), ObjectId { hi: LINKED, lo: oid.lo })?;
        Ok((self.object(own)?, akey(INODE_KEY)?))
    }

    /// What has to hold so that something is put where the record is: of an entry that its directory is there.
    pub(crate) fn of_home(&self, node: &Node) -> Conditions {
        if node.record.is_linked() { Conditions::NONE } else { self.of_directory(node.parent) }
    }

    /// The record of an inode with hard links; `None` when it has none, or no name any more.
    pub(crate) async fn fetch_linked(&self, context: &Context, oid: ObjectId) -> Result<Option<Record>> {
        let shown = || format!("inode {oid:?}");
        let (object, key) = self.linked_home(oid)?;
        let Some(bytes) = fetch_record(context, (&object, &key), &shown).await? else { return Ok(None) };
        let record = Record::decode_linked(&bytes, &shown)?;
        if record.oid != oid {
            return Err(Error::Corrupt {
                object: shown(),
                reason: format!("it is that of {:?}", record.oid),
            });
        }
        Ok(Some(record))
    }

    /// Gives an inode an object of its own, with its record and what of its attributes goes along.
    pub(crate) fn make_home_within(
        &self,
        transaction: &mut Transaction,
        node: &Node,
        carried: &MovedXattrs,
    ) -> Result<()> {
        let (object, key) = self.home(node)?;
        let bytes = node.record.encode();
        let mut writes = vec![
            AkeyWrite::single(record_key()?, &bytes).when(Conditions::AKEY_INSERT),
            AkeyWrite::single(guard_key(node.oid())?, GUARD).when(Conditions::AKEY_INSERT),
        ];
        writes.extend(carried.writes());
        transaction.update(&object, &key, Conditions::PER_AKEY, &writes)?;
        if !carried.stale.is_empty() {
            transaction.punch_akeys(&object, Conditions::PUNCH, &key, &carried.stale)?;
        }
        Ok(())
    }

    /// Writes the record of an inode with hard links, which the transaction has read. That of another one stands in its entry.
    pub(crate) fn note_linked_within(&self, transaction: &mut Transaction, node: &Node) -> Result<()> {
        if !node.record.is_linked() {
            return Ok(());
        }
        let (object, key) = self.home(node)?;
        let bytes = node.record.encode();
        let writes = [AkeyWrite::single(record_key()?, &bytes)];
        Ok(transaction.update(&object, &key, Conditions::NONE, &writes)?)
    }

    /// Takes one name from the count of an inode whose record the transaction has read, at that time. Returns how many are left;
    /// without any the record goes. The entry itself is left to the caller.
    pub(crate) fn count_down_within(
        &self,
        transaction: &mut Transaction,
        node: &Node,
        now: i64,
    ) -> Result<u32> {
        let Names::Counted(links) = node.record.names else { return Ok(0) };
        let left = links.saturating_sub(1);
        if left == 0 {
            transaction.punch(&self.home(node)?.0)?;
        } else {
            let record = Record { names: Names::Counted(left), ctime_ns: now, ..node.record.clone() };
            self.note_linked_within(transaction, &Node { record, ..node.clone() })?;
        }
        Ok(left)
    }
}
