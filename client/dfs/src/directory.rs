//! Reading directories.

use weir_client::{Anchor, Context, Page};
use weir_proto::ObjectId;
use weir_proto::limits::LIST_KEYS_MAX;
use weir_runtime::join_all;

use crate::entry::{Node, record_key};
use crate::mount::Dfs;
use crate::name::shown;
use crate::record::{EntryValue, Record};
use crate::{Error, Result};

/// Name of a directory's reference to its parent, as dkey and as akey. No entry can have it.
pub(crate) const PARENT_NAME: &[u8] = b"..";

/// Records of inodes with hard links that a listing reads at the same time.
const RECORDS_AT_ONCE: usize = 64;

/// A listed entry: its name and what it holds.
type Listed = (Vec<u8>, EntryValue);

/// An entry of a directory listing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DirEntry {
    /// The inode; [`Dfs::stat_listed`] completes its attributes.
    pub node: Node,
    /// Where a listing goes on behind this entry. Stable while the stream lives.
    pub cookie: u64,
}

/// An open directory. What was listed is kept, so that cookies stay good however the directory changes.
#[derive(Clone, Debug)]
pub struct DirStream {
    directory: ObjectId,
    entries: Vec<DirEntry>,
    anchor: Anchor,
}

impl DirStream {
    /// Entries listed so far.
    #[must_use]
    pub fn listed(&self) -> u64 {
        self.entries.len() as u64
    }

    fn rewind(&mut self) {
        self.entries.clear();
        self.anchor = Anchor::START;
    }
}

impl Dfs {
    /// Opens a directory for reading. Sends nothing.
    ///
    /// # Errors
    /// [`Error::NotDirectory`].
    pub fn open_directory(&self, directory: &Node) -> Result<DirStream> {
        directory.ensure_directory()?;
        Ok(DirStream { directory: directory.oid(), entries: Vec::new(), anchor: Anchor::START })
    }

    /// Entries behind `cookie`, at most `limit`, none at the end. Cookie 0 starts anew and shows what is there now.
    /// Neither `.` nor `..` is among them. Entries come with their inode records: a listing of a thousand takes one
    /// request.
    ///
    /// # Errors
    /// An object error; [`Error::Corrupt`] for an entry that can't be understood; [`Error::Invalid`] for a cookie beyond memory.
    pub async fn read_directory<'s>(
        &self,
        context: &Context,
        stream: &'s mut DirStream,
        cookie: u64,
        limit: usize,
    ) -> Result<&'s [DirEntry]> {
        if cookie == 0 {
            stream.rewind();
        }
        // A stream may have to list what another one has listed before.
        let behind = usize::try_from(cookie).map_err(|_| {
            Error::Invalid(format!("no listing has a place {cookie}: go on from a cookie of an entry"))
        })?;
        while stream.entries.len() <= behind && !stream.anchor.is_end() {
            let (entries, next) =
                self.list_entries(context, stream.directory, &stream.anchor, LIST_KEYS_MAX).await?;
            for node in self.nodes(context, stream.directory, entries).await? {
                let cookie = stream.entries.len() as u64 + 1;
                stream.entries.push(DirEntry { node, cookie });
            }
            stream.anchor = next;
        }
        let start = behind.min(stream.entries.len());
        let end = start.saturating_add(limit).min(stream.entries.len());
        Ok(&stream.entries[start..end])
    }

    /// Entries behind an anchor, at most `limit` (up to [`LIST_KEYS_MAX`]), and where the listing goes on. Nothing is kept of
    /// the listing, which may be continued by another process. A page may be empty although more follows.
    ///
    /// # Errors
    /// [`Error::NotDirectory`]; [`Error::Corrupt`] for an entry that can't be understood; or an object error.
    pub async fn list(
        &self,
        context: &Context,
        directory: &Node,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<(Vec<Node>, Anchor)> {
        directory.ensure_directory()?;
        let parent = directory.oid();
        let (entries, next) = self.list_entries(context, parent, anchor, limit).await?;
        Ok((self.nodes(context, parent, entries).await?, next))
    }

    /// Listed entries with their records: those of inodes with hard links are read, some at a time. Entries whose inode is gone by
    /// then are left out.
    async fn nodes(&self, context: &Context, parent: ObjectId, entries: Vec<Listed>) -> Result<Vec<Node>> {
        let mut nodes = Vec::with_capacity(entries.len());
        for batch in entries.chunks(RECORDS_AT_ONCE) {
            let records = batch.iter().map(|(_, value)| async move {
                match value {
                    EntryValue::Record(record) => Ok(Some(record.clone())),
                    EntryValue::Reference(reference) => self.fetch_linked(context, reference.oid).await,
                }
            });
            let records: Vec<Option<Record>> = join_all(records).await.into_iter().collect::<Result<_>>()?;
            let found = batch.iter().zip(records).filter_map(|((name, _), record)| Some((name, record?)));
            nodes.extend(found.map(|(name, record)| Node { parent, name: name.clone(), record }));
        }
        Ok(nodes)
    }

    /// One page of a directory's entries, and where the next one starts.
    pub(crate) async fn list_entries(
        &self,
        context: &Context,
        directory: ObjectId,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<(Vec<Listed>, Anchor)> {
        let value = record_key()?;
        let Page { entries, next } =
            self.object(directory)?.list_dkeys(context, anchor, limit, Some(&value)).await?;
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            // Without a record it is the reference to the parent, or an entry that is being removed.
            let Some(value) = entry.value else { continue };
            let object = || format!("entry \"{}\" of directory {directory:?}", shown(&entry.key));
            if entry.key != PARENT_NAME && !value.is_empty() {
                found.push((entry.key.clone(), EntryValue::decode(&value, &object)?));
            }
        }
        Ok((found, next))
    }

    /// Checks that a directory has no entries.
    pub(crate) async fn ensure_empty(&self, context: &Context, directory: &Node) -> Result<()> {
        let mut anchor = Anchor::START;
        while !anchor.is_end() {
            let (entries, next) =
                self.list_entries(context, directory.oid(), &anchor, EMPTY_CHECK_KEYS).await?;
            if !entries.is_empty() {
                return Err(Error::NotEmpty(directory.shown()));
            }
            anchor = next;
        }
        Ok(())
    }
}

/// Keys asked for to find out whether a directory is empty: the reference to the parent, and a few removed entries.
const EMPTY_CHECK_KEYS: u32 = 16;
