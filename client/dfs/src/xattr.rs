//! Extended attributes: further akeys of an inode's entry.

use weir_client::{AkeyRead, AkeyWrite, Anchor, Conditions, Context, Transaction};
use weir_proto::limits::LIST_KEYS_MAX;
use weir_proto::{Der, Key, ObjectId};

use crate::entry::{GUARD, Node, akey, guard_key};
use crate::mount::{Dfs, wall_ns};
use crate::name::shown;
use crate::record::Record;
use crate::{Error, Result};

/// Longest name of an extended attribute, in bytes.
pub const XATTR_NAME_MAX: usize = 255;

/// Longest value of an extended attribute, in bytes.
pub const XATTR_VALUE_MAX: usize = 65536;

/// First byte of an extended attribute's akey; object id and name follow. With the id in it, what is left of an
/// inode's attributes never shows on another inode of the same name.
const PREFIX: u8 = b'x';

/// Byte in front of every value: an akey can't hold an empty one.
const VALUE_MARK: u8 = b'v';

/// Bytes asked for first; a longer value costs a second request.
const VALUE_GUESS: usize = 1024;

/// Longest value, in bytes, that is set by the transaction that changes the record: with that and the names, it fits one
/// ([`weir_proto::transaction::COMMIT_MAX`]).
const ALONG_MAX: usize = 8192;

/// Attributes that are read by one request when all of them are.
const READ_TOGETHER: usize = 64;

/// Whether an extended attribute has to be new or has to exist (`XATTR_CREATE`, `XATTR_REPLACE`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Either.
    Any,
    /// It must not exist.
    Create,
    /// It must exist.
    Replace,
}

fn prefix_of(oid: ObjectId) -> Vec<u8> {
    let mut bytes = vec![PREFIX];
    bytes.extend(oid.to_bytes());
    bytes
}

fn xattr_key(oid: ObjectId, name: &[u8]) -> Result<Key> {
    if name.is_empty() {
        return Err(Error::Invalid("an extended attribute needs a name".into()));
    }
    if name.len() > XATTR_NAME_MAX {
        return Err(Error::AttributeTooLong { what: "name", len: name.len(), max: XATTR_NAME_MAX });
    }
    let mut bytes = prefix_of(oid);
    bytes.extend(name);
    akey(&bytes)
}

impl Dfs {
    /// Sets an extended attribute and returns the inode with its record as it is now.
    ///
    /// # Errors
    /// [`Error::Exists`] or [`Error::NoAttribute`] by `mode`, [`Error::AttributeTooLong`], [`Error::Stale`],
    /// [`Error::ReadOnly`]; or an object error.
    pub async fn set_xattr(
        &self,
        context: &Context,
        node: &Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<Node> {
        self.ensure_writable()?;
        let key = xattr_key(node.oid(), name)?;
        if value.len() > XATTR_VALUE_MAX {
            return Err(Error::AttributeTooLong { what: "value", len: value.len(), max: XATTR_VALUE_MAX });
        }
        let mut bytes = vec![VALUE_MARK];
        bytes.extend(value);
        let condition = match mode {
            XattrMode::Any => Conditions::NONE,
            XattrMode::Create => Conditions::AKEY_INSERT,
            XattrMode::Replace => Conditions::AKEY_UPDATE,
        };
        let write = AkeyWrite::single(key.clone(), &bytes);
        let change = |record: &mut Record| {
            record.xattrs = true;
            record.ctime_ns = wall_ns(context);
        };
        let is_along = value.len() <= ALONG_MAX;
        let along = async |transaction: &mut Transaction, view: &Self, node: &Node| {
            let exists = mode != XattrMode::Any && view.get_xattr_raw(context, node, &key).await?.is_some();
            match mode {
                XattrMode::Create if exists => return Err(Error::Exists(shown(name))),
                XattrMode::Replace if !exists => return Err(Error::NoAttribute(shown(name))),
                _ if !is_along => return Ok(()),
                _ => {}
            }
            let (object, dkey) = self.home(node)?;
            Ok(transaction.update(&object, &dkey, Conditions::NONE, core::slice::from_ref(&write))?)
        };
        let record = self.update_record(context, node, None, change, along).await?;
        let changed = Node { record, ..node.clone() };
        if !is_along {
            // Behind the record, which says that there may be attributes: one that isn't seen would be one that is lost.
            let write = write.when(condition);
            match self.set_large(context, &changed, name, write.clone()).await {
                // It has got its first hard link since.
                Err(Error::Stale(_)) if !changed.record.is_linked() => {
                    let linked = self.refresh(context, &changed).await?;
                    self.set_large(context, &linked, name, write).await?;
                    return Ok(linked);
                }
                set => set?,
            }
        }
        Ok(changed)
    }

    /// Writes an extended attribute that doesn't fit a transaction, provided that the record is where it was.
    async fn set_large(
        &self,
        context: &Context,
        node: &Node,
        name: &[u8],
        write: AkeyWrite<'_>,
    ) -> Result<()> {
        let must_exist = write.conditions == Conditions::AKEY_UPDATE;
        let guard = AkeyWrite::single(guard_key(node.oid())?, GUARD).when(Conditions::AKEY_UPDATE);
        let (object, dkey) = self.home(node)?;
        match object.update(context, &dkey, Conditions::PER_AKEY, &[guard, write]).await {
            Ok(_) => Ok(()),
            Err(error) if error.is(Der::EXIST) => Err(Error::Exists(shown(name))),
            Err(error) if error.is(Der::NONEXIST) => match self.refetch(context, node).await {
                Ok(record) if must_exist && record.is_linked() == node.record.is_linked() => {
                    Err(Error::NoAttribute(shown(name)))
                }
                Ok(_) => Err(Error::Stale(node.shown())),
                Err(error) => Err(error),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Reads an extended attribute.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::AttributeTooLong`]; or an object error.
    pub async fn get_xattr(&self, context: &Context, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let key = xattr_key(node.oid(), name)?;
        let mut value = self.get_xattr_raw(context, node, &key).await?;
        if value.is_none()
            && let Some(linked) = self.linked_since(context, node).await?
        {
            value = self.get_xattr_raw(context, &linked, &key).await?;
        }
        value.ok_or_else(|| Error::NoAttribute(shown(name)))
    }

    /// An inode that has got its first hard link since it was looked at, as it is then, if it had attributes before.
    async fn linked_since(&self, context: &Context, node: &Node) -> Result<Option<Node>> {
        if node.record.is_linked() || node.is_directory() || !node.record.xattrs {
            return Ok(None);
        }
        let record = self.fetch_linked(context, node.oid()).await?;
        Ok(record.map(|record| Node { record, ..node.clone() }))
    }

    async fn get_xattr_raw(&self, context: &Context, node: &Node, key: &Key) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; VALUE_GUESS];
        loop {
            let mut reads = [AkeyRead::single(key.clone(), &mut bytes)];
            let (object, dkey) = self.home(node)?;
            let found = object.fetch(context, &dkey, Conditions::NONE, &mut reads).await?;
            let size = found.first().map_or(0, |found| usize::try_from(found.size).unwrap_or(usize::MAX));
            match size {
                0 => return Ok(None),
                size if size <= bytes.len() => return Ok(Some(bytes[1..size].to_vec())),
                size if size > XATTR_VALUE_MAX + 1 => {
                    let object = format!("an extended attribute of \"{}\"", node.shown());
                    return Err(Error::Corrupt { object, reason: format!("it has {size} bytes") });
                }
                size => bytes.resize(size, 0),
            }
        }
    }

    /// Names of an inode's extended attributes. Sends nothing for an inode whose record says that it has none.
    ///
    /// # Errors
    /// An object error.
    pub async fn list_xattrs(&self, context: &Context, node: &Node) -> Result<Vec<Vec<u8>>> {
        let prefix = prefix_of(node.oid()).len();
        let mut keys = self.xattr_keys(context, node).await?;
        if keys.is_empty()
            && let Some(linked) = self.linked_since(context, node).await?
        {
            keys = self.xattr_keys(context, &linked).await?;
        }
        Ok(keys.iter().map(|key| key.as_bytes()[prefix..].to_vec()).collect())
    }

    /// Removes an extended attribute and returns the inode with its record as it is now.
    ///
    /// # Errors
    /// [`Error::NoAttribute`], [`Error::Stale`], [`Error::ReadOnly`]; or an object error.
    pub async fn remove_xattr(&self, context: &Context, node: &Node, name: &[u8]) -> Result<Node> {
        self.ensure_writable()?;
        let key = xattr_key(node.oid(), name)?;
        let change = |record: &mut Record| record.ctime_ns = wall_ns(context);
        let along = async |transaction: &mut Transaction, view: &Self, node: &Node| {
            if view.get_xattr_raw(context, node, &key).await?.is_none() {
                return Err(Error::NoAttribute(shown(name)));
            }
            let (object, dkey) = self.home(node)?;
            Ok(transaction.punch_akeys(&object, Conditions::PUNCH, &dkey, core::slice::from_ref(&key))?)
        };
        let record = self.update_record(context, node, None, change, along).await?;
        Ok(Node { record, ..node.clone() })
    }

    /// The akeys of an inode's extended attributes.
    pub(crate) async fn xattr_keys(&self, context: &Context, node: &Node) -> Result<Vec<Key>> {
        let mut keys = Vec::new();
        if !node.record.xattrs {
            return Ok(keys);
        }
        let prefix = prefix_of(node.oid());
        let (object, dkey) = self.home(node)?;
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let page = object.list_akeys(context, &dkey, &anchor, LIST_KEYS_MAX).await?;
            let found = page.entries.iter().filter(|entry| entry.key.starts_with(&prefix));
            for entry in found {
                keys.push(akey(&entry.key)?);
            }
            anchor = page.next;
        }
        Ok(keys)
    }

    /// Extended attributes of an inode: name and value of each. Sends nothing for an inode whose record says that it has none.
    pub(crate) async fn xattrs(&self, context: &Context, node: &Node) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let prefix = prefix_of(node.oid()).len();
        let stored = self.xattr_values(context, node).await?;
        let named = stored.into_iter().map(|(key, mut value)| {
            value.remove(0);
            (key.as_bytes()[prefix..].to_vec(), value)
        });
        Ok(named.collect())
    }

    /// Extended attributes of an inode, as they are stored.
    pub(crate) async fn xattr_values(&self, context: &Context, node: &Node) -> Result<Vec<(Key, Vec<u8>)>> {
        let keys = self.xattr_keys(context, node).await?;
        let (object, dkey) = self.home(node)?;
        let mut values = Vec::new();
        for batch in keys.chunks(READ_TOGETHER) {
            let mut buffers = vec![vec![0; VALUE_GUESS]; batch.len()];
            let reads = batch.iter().zip(&mut buffers);
            let mut reads: Vec<_> =
                reads.map(|(key, buffer)| AkeyRead::single(key.clone(), buffer)).collect();
            let found = object.fetch(context, &dkey, Conditions::NONE, &mut reads).await?;
            for ((key, mut bytes), found) in batch.iter().zip(buffers).zip(found) {
                match usize::try_from(found.size).unwrap_or(usize::MAX) {
                    0 => continue,
                    size if size <= bytes.len() => bytes.truncate(size),
                    _ => match self.get_xattr_raw(context, node, key).await? {
                        Some(value) => bytes = [&[VALUE_MARK], &value[..]].concat(),
                        None => continue,
                    },
                }
                values.push((key.clone(), bytes));
            }
        }
        Ok(values)
    }
}
