//! Orphans: content without a name that clients may have open, in batches that one record holds.

use std::collections::BTreeMap;

use weir_client::{AkeyWrite, Array, Conditions, Container, Context, Object};
use weir_proto::{Der, Key, ObjectId};
use weir_runtime::join_all;

use super::record::{BATCH_MAX, BatchRecord, ClientId, KEY_LEN, Orphan, decode, encode};
use super::rule::{BatchKey, Observer};
use super::{leases, values};
use crate::entry::akey;
use crate::mount::{Dfs, directory_id};
use crate::namespace::Removed;
use crate::record::Kind;
use crate::superblock::ORPHANS_OID;
use crate::{Error, Result};

/// The akey of a batch.
const BATCH_KEY: &[u8] = b"o";

/// Batches as a client has listed them last.
#[derive(Debug, Default)]
pub(super) struct Batches(BTreeMap<BatchKey, BatchRecord>);

impl Batches {
    /// Lists what is there now. What another version has stored is left to that.
    pub(super) async fn list(&mut self, context: &Context, container: &Container) -> Result<()> {
        let found = values(context, &orphans(container)?, &akey(BATCH_KEY)?).await?;
        let batch = |(key, bytes): (Vec<u8>, Vec<u8>)| Some((BatchKey::try_from(key).ok()?, decode(&bytes)?));
        self.0 = found.into_iter().filter_map(batch).collect();
        Ok(())
    }

    pub(super) fn keys(&self) -> Vec<BatchKey> {
        self.0.keys().copied().collect()
    }

    pub(super) fn oids(&self) -> Vec<ObjectId> {
        self.0.values().flat_map(|batch| &batch.orphans).map(|orphan| orphan.oid).collect()
    }

    /// Frees the orphans that no client needs any more and this client is to free, which has these open itself.
    pub(super) async fn free(
        &mut self,
        context: &Context,
        container: &Container,
        (own, observer): (ClientId, &Observer),
        open: &[ObjectId],
    ) -> Result<()> {
        for (key, batch) in &mut self.0 {
            if !observer.frees(own, batch.owner) {
                continue;
            }
            let goes = |orphan: &&Orphan| observer.may_go(key, orphan.oid) && !open.contains(&orphan.oid);
            let going: Vec<Orphan> = batch.orphans.iter().filter(goes).copied().collect();
            if going.is_empty() && !batch.orphans.is_empty() {
                continue;
            }
            let freed = going.iter().map(|orphan| discard(context, container, *orphan));
            join_all(freed).await.into_iter().collect::<Result<()>>()?;
            batch.orphans.retain(|orphan| !going.contains(orphan));
            let (object, dkey) = (orphans(container)?, akey(key)?);
            if batch.orphans.is_empty() {
                object.punch_dkeys(context, Conditions::NONE, &[dkey]).await?;
            } else {
                store(context, &object, &dkey, batch).await?;
            }
        }
        Ok(())
    }
}

impl Dfs {
    /// Frees what removed inodes held that have no other names: at once where no other client may have it open, else when all have let it go. `own` is the
    /// lease of this client, which has none of it open.
    ///
    /// # Errors
    /// An object error; then space comes back only with the container.
    pub async fn release(&self, context: &Context, all: &[Removed], own: Option<ClientId>) -> Result<()> {
        let is_file = |removed: &&Removed| removed.node.record.kind == Kind::File;
        let gone = all.iter().filter(|removed| removed.links == 0);
        let (files, others): (Vec<&Removed>, Vec<&Removed>) = gone.partition(is_file);
        let freed = others.iter().map(|removed| self.reclaim(context, removed));
        join_all(freed).await.into_iter().collect::<Result<()>>()?;
        if files.is_empty() {
            return Ok(());
        }
        if self.has_others(context, own).await? {
            match self.enter(context, &files, own).await {
                // Then the space is needed more.
                Err(Error::Client(error)) if error.is(Der::NOSPACE) || error.is(Der::QUOTA_LIMIT) => {}
                entered => return entered,
            }
        }
        let freed = files.iter().map(|removed| self.reclaim(context, removed));
        join_all(freed).await.into_iter().collect()
    }

    /// Enters removed files that the client with this lease has open itself as orphans, if other clients may have them open, too:
    /// those find out so that they have no names any more. Whether that is so; else they are [released](Dfs::release) when
    /// they are closed.
    ///
    /// # Errors
    /// An object error; then no other client finds out before they are released.
    pub async fn announce(&self, context: &Context, files: &[Removed], own: ClientId) -> Result<bool> {
        let files: Vec<&Removed> = files.iter().filter(|removed| removed.links == 0).collect();
        let is_shared = !files.is_empty() && self.has_others(context, Some(own)).await?;
        if is_shared {
            self.enter(context, &files, Some(own)).await?;
        }
        Ok(is_shared)
    }

    /// Whether others have leases, now that names are gone: a client that gets a lease later can't open files by these
    /// names.
    async fn has_others(&self, context: &Context, own: Option<ClientId>) -> Result<bool> {
        let clients = leases(context, self.container()).await?;
        Ok(clients.keys().any(|client| Some(*client) != own))
    }

    /// Whether a file is an orphan: another client has removed its last name, and keeps its content for those that have
    /// it open. A file whose name is gone and that isn't an orphan has another name; or the client that removed the
    /// name has not entered it yet, or has freed it.
    ///
    /// # Errors
    /// An object error.
    pub async fn is_orphan(&self, context: &Context, file: ObjectId) -> Result<bool> {
        let mut batches = Batches::default();
        batches.list(context, self.container()).await?;
        Ok(batches.oids().contains(&file))
    }

    /// Enters files as orphans.
    async fn enter(&self, context: &Context, files: &[&Removed], owner: Option<ClientId>) -> Result<()> {
        let object = orphans(self.container())?;
        for files in files.chunks(BATCH_MAX) {
            let orphan =
                |file: &&Removed| Orphan { oid: file.node.oid(), chunk_size: file.node.record.chunk_size };
            let batch = BatchRecord { owner, orphans: files.iter().map(orphan).collect() };
            let mut key = [0; KEY_LEN];
            for part in key.chunks_mut(8) {
                part.copy_from_slice(&context.runtime().random_u64().to_be_bytes());
            }
            store(context, &object, &akey(&key)?, &batch).await?;
        }
        Ok(())
    }
}

fn orphans(container: &Container) -> Result<Object> {
    Ok(Object::open(container, directory_id(container, ORPHANS_OID)?)?)
}

async fn store(context: &Context, object: &Object, dkey: &Key, batch: &BatchRecord) -> Result<()> {
    let bytes = encode(batch);
    object.update(context, dkey, Conditions::NONE, &[AkeyWrite::single(akey(BATCH_KEY)?, &bytes)]).await?;
    Ok(())
}

/// Frees content. What can't be a file's is none of it.
async fn discard(context: &Context, container: &Container, orphan: Orphan) -> Result<()> {
    match Array::compact_bytes(container, orphan.oid, orphan.chunk_size) {
        Ok(array) => Ok(array.discard(context).await?),
        Err(_) => Ok(()),
    }
}
