//! What a copy hasn't got, and how it goes on.

use core::ops::ControlFlow;
use weir_format::entry::{Entry, Item};
use weir_proto::object::Extent;
use weir_proto::{ContainerId, Epoch, Key, ObjectId, PoolId, TransactionId};
use weir_store::offline::Catalog;

/// What kind of loss it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LossKind {
    /// Data can't be read or doesn't match its checksum: whoever reads it from the copy is told so, as before.
    Data,
    /// Entries of the index are missing in the copy: what they said is as if it had never been.
    Entries,
}

impl LossKind {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Entries => "entries",
        }
    }
}

/// Something that the copy hasn't got. Places are those on the device that was copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Its kind.
    pub kind: LossKind,
    /// What should be there.
    pub what: &'static str,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes on the device.
    pub len: u64,
    /// The pool, where it is one.
    pub pool: Option<PoolId>,
    /// The container, where it is one.
    pub container: Option<ContainerId>,
    /// The object.
    pub object: Option<ObjectId>,
    /// The dkey.
    pub dkey: Option<Key>,
    /// The akey.
    pub akey: Option<Key>,
    /// The records, of an array.
    pub records: Option<Extent>,
    /// The bytes, of anything else.
    pub bytes: Option<Extent>,
    /// The epoch of what was stored.
    pub epoch: Option<Epoch>,
    /// The prepared transaction that would have stored it.
    pub transaction: Option<TransactionId>,
    /// More about what is missing, in words.
    pub subject: Option<String>,
    /// What is wrong.
    pub reason: String,
}

impl Loss {
    pub(super) fn new(kind: LossKind, what: &'static str, (offset, len): (u64, u64), reason: String) -> Self {
        let (pool, container, object, dkey, akey) = (None, None, None, None, None);
        let (records, bytes, epoch, transaction, subject) = (None, None, None, None, None);
        Self {
            kind,
            what,
            offset,
            len,
            pool,
            container,
            object,
            dkey,
            akey,
            records,
            bytes,
            epoch,
            transaction,
            subject,
            reason,
        }
    }

    /// Entries that the copy can't have.
    pub(super) fn left_out(what: &'static str, place: (u64, u64), reason: &str) -> Self {
        Self::new(LossKind::Entries, what, place, reason.to_owned())
    }

    /// The same, of an entry.
    pub(super) fn of_entry(mut self, catalog: &Catalog, key: &[u8], value: &[u8]) -> Self {
        let (pool, container) = match Entry::decode(key, value) {
            Ok(Entry::Object { path, item }) => {
                self.epoch = Some(Epoch(item.epoch()));
                (self.object, self.dkey, self.akey) = (Some(path.object), path.dkey, path.akey);
                if let Item::Extent { extent, .. } = item {
                    self.records = Some(extent);
                }
                (path.pool, path.container)
            }
            Ok(Entry::Transaction { pool, container, id, .. }) => {
                self.transaction = Some(id);
                (pool, container)
            }
            _ => return self,
        };
        let pool = catalog.pools.get(&pool);
        self.pool = pool.map(|pool| pool.id);
        self.container = pool.and_then(|pool| pool.containers.get(&container)).map(|container| container.id);
        self
    }
}

impl core::fmt::Display for Loss {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let verb = match self.kind {
            LossKind::Data => "damaged",
            LossKind::Entries => "missing",
        };
        write!(f, "{verb}: {} at byte {} ({} bytes)", self.what, self.offset, self.len)?;
        let mut of = " of";
        let mut part =
            |f: &mut core::fmt::Formatter<'_>, name: &str, value: Option<&dyn core::fmt::Display>| {
                let Some(value) = value else { return Ok(()) };
                write!(f, "{of} {name} {value}")?;
                of = "";
                Ok(())
            };
        part(f, "pool", self.pool.as_ref().map(|id| id as _))?;
        part(f, "container", self.container.as_ref().map(|id| id as _))?;
        part(f, "object", self.object.as_ref().map(|id| id as _))?;
        let quoted = |key: &Option<Key>| key.as_ref().map(|key| format!("\"{key}\""));
        part(f, "dkey", quoted(&self.dkey).as_ref().map(|key| key as _))?;
        part(f, "akey", quoted(&self.akey).as_ref().map(|key| key as _))?;
        part(f, "transaction", self.transaction.as_ref().map(|id| id as _))?;
        for (unit, range) in [("records", self.records), ("bytes", self.bytes)] {
            if let Some(Extent { index, count }) = range {
                write!(f, " {unit} {index} to {}", index.saturating_add(count.saturating_sub(1)))?;
            }
        }
        if let Some(Epoch(epoch)) = self.epoch {
            write!(f, " epoch {epoch}")?;
        }
        if let Some(subject) = &self.subject {
            write!(f, ": {subject}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStage {
    /// The index is read to know what there is.
    Survey,
    /// Entries and data are copied.
    Copy,
    /// The last checkpoint is written.
    End,
}

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// What is being done.
    pub stage: CopyStage,
    /// Entries of the index so far.
    pub entries: u64,
    /// All of them, as far as that is known.
    pub entries_total: u64,
    /// Bytes of data so far.
    pub bytes: u64,
    /// All of them.
    pub bytes_total: u64,
}

/// Who follows a copy. Whoever breaks off ends it.
pub trait CopyEvents {
    /// It goes on.
    fn progress(&mut self, progress: &CopyProgress) -> ControlFlow<()>;

    /// Something is lost.
    fn loss(&mut self, loss: Loss) -> ControlFlow<()>;
}
