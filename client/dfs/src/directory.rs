//! Reading directories.

use weir_client::{Anchor, Context, Page};
use weir_proto::ObjectId;
use weir_proto::limits::LIST_KEYS_MAX;

use crate::entry::{Node, record_key};
use crate::mount::Dfs;
use crate::name::shown;
use crate::record::Record;
use crate::{Error, Result};

/// Name of a directory's reference to its parent, as dkey and as akey. No entry can have it.
pub(crate) const PARENT_NAME: &[u8] = b"..";

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
    /// An object error; [`Error::Corrupt`] for an entry that can't be understood.
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
        let start = usize::try_from(cookie).unwrap_or(usize::MAX).min(stream.entries.len());
        while stream.entries.len() <= start && !stream.anchor.is_end() {
            let page = self.list_entries(context, stream.directory, &stream.anchor, LIST_KEYS_MAX).await?;
            for (name, record) in page.0 {
                let cookie = stream.entries.len() as u64 + 1;
                let node = Node { parent: stream.directory, name, record };
                stream.entries.push(DirEntry { node, cookie });
            }
            stream.anchor = page.1;
        }
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
        Ok((entries.into_iter().map(|(name, record)| Node { parent, name, record }).collect(), next))
    }

    /// One page of a directory's entries, and where the next one starts.
    pub(crate) async fn list_entries(
        &self,
        context: &Context,
        directory: ObjectId,
        anchor: &Anchor,
        limit: u32,
    ) -> Result<(Vec<(Vec<u8>, Record)>, Anchor)> {
        let value = record_key()?;
        let Page { entries, next } =
            self.object(directory)?.list_dkeys(context, anchor, limit, Some(&value)).await?;
        let mut found = Vec::with_capacity(entries.len());
        for entry in entries {
            // Without a record it is the reference to the parent, or an entry that is being removed.
            let Some(value) = entry.value else { continue };
            let object = || format!("entry \"{}\" of directory {directory:?}", shown(&entry.key));
            if entry.key != PARENT_NAME && !value.is_empty() {
                found.push((entry.key.clone(), Record::decode(&value, &object)?));
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
