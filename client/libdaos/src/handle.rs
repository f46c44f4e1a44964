//! Handles: numbers that stand for open objects. A number is never reused, so that use of a closed handle is detected.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use weir_client::{Array, Container, Kv, Object, Pool};
use weir_proto::Der;

use crate::boundary::{Outcome, operation, run};
use crate::dfs::{Filter, FsObject, Listing, Mounted, PathMount};
use crate::enumeration::Enumeration;
use crate::library;
use crate::queue::Queue;
use crate::transaction::Tx;
use crate::types::{daos_event_t, daos_handle_t};

/// What a handle stands for.
#[derive(Clone)]
pub enum Opened {
    /// A connected pool.
    Pool(Pool),
    /// An open container.
    Container(Container),
    /// An open object.
    Object(Object),
    /// An open key-value object.
    Kv(Kv),
    /// An open array.
    Array(Array),
    /// An event queue.
    Queue(Arc<Queue>),
    /// A transaction.
    Transaction(Arc<Tx>),
    /// A mounted file system.
    FileSystem(Arc<Mounted>),
    /// An open file, directory or symbolic link.
    FsObject(Arc<FsObject>),
    /// A file system that is used by paths.
    Paths(Arc<PathMount>),
    /// A directory that is listed by paths.
    Listing(Arc<Listing>),
    /// A filter of directory entries.
    Filter(Arc<Filter>),
    /// A list of the objects of a container.
    Enumeration(Arc<Enumeration>),
}

impl Opened {
    /// Type of the handle (`DAOS_HTYPE_*`, daos-api §1.7), odd; even for what programs hold by opaque pointers.
    const fn kind(&self) -> u64 {
        match self {
            Self::Queue(_) => 1,
            Self::Pool(_) => 3,
            Self::Container(_) => 5,
            Self::Object(_) | Self::Enumeration(_) => 7,
            Self::Array(_) => 9,
            Self::Transaction(_) => 11,
            Self::Kv(_) => 13,
            Self::FileSystem(_) => 2,
            Self::FsObject(_) => 4,
            Self::Paths(_) => 6,
            Self::Listing(_) => 8,
            Self::Filter(_) => 10,
        }
    }
}

/// A handle's record.
struct Entry {
    opened: Opened,
    /// What it was opened in: the pool of a container, the container of an object.
    within: Option<u64>,
    /// What is open in it.
    open: usize,
    /// It is being closed: nothing is opened in it any more.
    ending: bool,
    /// Nothing is changed through it.
    is_read_only: bool,
    /// It came from another process, which gives it back to the pool service.
    is_shared: bool,
}

/// Handles, by their cookies.
#[derive(Default)]
pub struct Table {
    entries: HashMap<u64, Entry>,
}

impl Table {
    /// What a forked child takes over: handles that are plain data. Those of pools and containers stay the parent's for the pool
    /// service. What a thread of the parent was just changing is left out.
    pub fn inherited(&self) -> Self {
        let taken = self.entries.iter().filter(|(_, entry)| match &entry.opened {
            Opened::Queue(_) | Opened::Transaction(_) => false,
            Opened::FsObject(object) => object.is_settled(),
            Opened::FileSystem(mounted) => mounted.is_settled(),
            Opened::Paths(paths) => paths.is_settled(),
            Opened::Listing(listing) => listing.is_settled(),
            Opened::Enumeration(all) => all.is_settled(),
            _ => true,
        });
        let mut entries: HashMap<u64, Entry> = taken
            .map(|(cookie, entry)| {
                let Entry { opened, within, is_read_only, .. } = entry;
                let (opened, within, is_read_only) = (opened.clone(), *within, *is_read_only);
                (*cookie, Entry { opened, within, open: 0, ending: false, is_read_only, is_shared: true })
            })
            .collect();
        let outer: Vec<u64> = entries.values().filter_map(|entry| entry.within).collect();
        for cookie in outer {
            if let Some(entry) = entries.get_mut(&cookie) {
                entry.open += 1;
            }
        }
        Self { entries }
    }
}

/// Bits of a cookie that hold the handle's type.
const KIND_BITS: u32 = 4;

/// Handles issued so far. A forked child counts on from here: its parent's handles are none of its own.
static ISSUED: AtomicU64 = AtomicU64::new(0);

fn read() -> Result<RwLockReadGuard<'static, Table>, Der> {
    Ok(library::held()?.handles.read().unwrap_or_else(PoisonError::into_inner))
}

fn write() -> Result<RwLockWriteGuard<'static, Table>, Der> {
    Ok(library::held()?.handles.write().unwrap_or_else(PoisonError::into_inner))
}

/// Issues a handle that stands for itself.
pub fn issue(opened: Opened) -> Result<daos_handle_t, Der> {
    insert(Entry { opened, within: None, open: 0, ending: false, is_read_only: false, is_shared: false })
}

/// Issues a handle of what was opened in something else, which can't be closed before.
pub fn issue_within(within: daos_handle_t, is_read_only: bool, opened: Opened) -> Result<daos_handle_t, Der> {
    let within = Some(within.cookie);
    insert(Entry { opened, within, open: 0, ending: false, is_read_only, is_shared: false })
}

/// Notes that a handle came from another process: its end here is none for the pool service.
pub fn note_shared(handle: daos_handle_t) -> Result<daos_handle_t, Der> {
    write()?.entries.get_mut(&handle.cookie).ok_or(Der::NO_HDL)?.is_shared = true;
    Ok(handle)
}

/// Whether a handle came from another process.
pub fn is_shared(handle: daos_handle_t) -> Result<bool, Der> {
    Ok(read()?.entries.get(&handle.cookie).ok_or(Der::NO_HDL)?.is_shared)
}

fn insert(entry: Entry) -> Result<daos_handle_t, Der> {
    let cookie = ((ISSUED.fetch_add(1, Ordering::Relaxed) + 1) << KIND_BITS) | entry.opened.kind();
    let mut table = write()?;
    if let Some(within) = entry.within {
        let outer = table.entries.get_mut(&within).filter(|outer| !outer.ending).ok_or(Der::NO_HDL)?;
        outer.open += 1;
    }
    table.entries.insert(cookie, entry);
    Ok(daos_handle_t { cookie })
}

fn find<T>(handle: daos_handle_t, pick: impl FnOnce(&Opened) -> Option<T>) -> Result<T, Der> {
    read()?.entries.get(&handle.cookie).and_then(|entry| pick(&entry.opened)).ok_or(Der::NO_HDL)
}

/// What `find` finds, to be changed: `NO_PERM` through a handle that was opened for reading only.
pub fn changed<T>(
    handle: daos_handle_t,
    find: impl FnOnce(daos_handle_t) -> Result<T, Der>,
) -> Result<T, Der> {
    let found = find(handle)?;
    let is_read_only = read()?.entries.get(&handle.cookie).is_some_and(|entry| entry.is_read_only);
    if is_read_only { Err(Der::NO_PERM) } else { Ok(found) }
}

/// The close of a handle that is under way. Dropped before its [`done`](Self::done), the handle stays open.
pub struct Ending(daos_handle_t);

/// Begins to close a handle: `BUSY` while something is open in it.
pub fn end(handle: daos_handle_t) -> Result<Ending, Der> {
    let mut table = write()?;
    let entry = table.entries.get_mut(&handle.cookie).filter(|entry| !entry.ending).ok_or(Der::NO_HDL)?;
    if entry.open > 0 {
        return Err(Der::BUSY);
    }
    entry.ending = true;
    Ok(Ending(handle))
}

impl Ending {
    /// Ends the use of the handle.
    pub fn done(self) -> Outcome {
        forget(self.0)
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Ok(mut table) = write()
            && let Some(entry) = table.entries.get_mut(&self.0.cookie)
        {
            entry.ending = false;
        }
    }
}

/// The container that a handle stands for, to be changed: `NO_PERM` through one that was opened for reading only.
pub fn changed_container(handle: daos_handle_t) -> Result<Container, Der> {
    let found = container(handle)?;
    if found.rights().allows(weir_client::Rights::WRITE) { Ok(found) } else { Err(Der::NO_PERM) }
}

macro_rules! finders {
    ($($(#[$doc:meta])* $name:ident: $variant:ident($type:ty)),* $(,)?) => {
        $($(#[$doc])* pub fn $name(handle: daos_handle_t) -> Result<$type, Der> {
            find(handle, |opened| match opened {
                Opened::$variant(found) => Some(found.clone()),
                _ => None,
            })
        })*
    };
}

finders! {
    /// The pool that a handle stands for.
    pool: Pool(Pool),
    /// The container that a handle stands for.
    container: Container(Container),
    /// The object that a handle stands for.
    object: Object(Object),
    /// The key-value object that a handle stands for.
    kv: Kv(Kv),
    /// The array that a handle stands for.
    array: Array(Array),
    /// The event queue that a handle stands for.
    queue: Queue(Arc<Queue>),
    /// The transaction that a handle stands for.
    transaction: Transaction(Arc<Tx>),
    /// The file system that a handle stands for.
    file_system: FileSystem(Arc<Mounted>),
    /// The open file, directory or link that a handle stands for.
    fs_object: FsObject(Arc<FsObject>),
    /// The file system by paths that a handle stands for.
    paths: Paths(Arc<PathMount>),
    /// The listed directory that a handle stands for.
    listing: Listing(Arc<Listing>),
    /// The filter that a handle stands for.
    filter: Filter(Arc<Filter>),
    /// The list of objects that a handle stands for.
    enumeration: Enumeration(Arc<Enumeration>),
}

/// Ends the use of a handle: `NO_HDL` where another thread was faster.
pub fn forget(handle: daos_handle_t) -> Outcome {
    let forgotten = {
        let mut table = write()?;
        let forgotten = table.entries.remove(&handle.cookie);
        let outer = forgotten.as_ref().and_then(|entry| table.entries.get_mut(&entry.within?));
        if let Some(outer) = outer {
            outer.open = outer.open.saturating_sub(1);
        }
        forgotten
    };
    // Outside the lock: what ends with it may look at the table.
    forgotten.map(drop).ok_or(Der::NO_HDL)
}

/// Ends the use of everything that is open in something.
pub fn forget_within(outer: daos_handle_t) -> Outcome {
    let inside: Vec<u64> = {
        let table = read()?;
        let inside = table.entries.iter().filter(|(_, entry)| entry.within == Some(outer.cookie));
        inside.map(|(cookie, _)| *cookie).collect()
    };
    for cookie in inside {
        // The program may end its use at the same moment.
        let _ = forget(daos_handle_t { cookie });
    }
    Ok(())
}

/// Runs a call that ends the use of a handle, which `find` has to know.
pub fn close<T>(
    handle: daos_handle_t,
    ev: *mut daos_event_t,
    find: impl FnOnce(daos_handle_t) -> Result<T, Der>,
) -> c_int {
    run(ev, || {
        find(handle)?;
        Ok(operation(move |_| async move { forget(handle) }))
    })
}

/// Ends the use of all handles.
pub fn forget_all(handles: &RwLock<Table>) {
    handles.write().unwrap_or_else(PoisonError::into_inner).entries.clear();
}
