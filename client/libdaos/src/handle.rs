//! Handles: numbers that stand for what is open. A number is never used twice, so that one that was closed is found
//! to be so.

use core::ffi::c_int;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use weir_client::{Array, Container, Kv, Object, Pool};
use weir_proto::Der;

use crate::boundary::{operation, run};
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
}

impl Opened {
    /// Type of the handle (`DAOS_HTYPE_*`, daos-api §1.7).
    const fn kind(&self) -> u64 {
        match self {
            Self::Queue(_) => 1,
            Self::Pool(_) => 3,
            Self::Container(_) => 5,
            Self::Object(_) => 7,
            Self::Array(_) => 9,
            Self::Transaction(_) => 11,
            Self::Kv(_) => 13,
        }
    }
}

#[derive(Default)]
struct Table {
    opened: HashMap<u64, Opened>,
    issued: u64,
}

/// Bits of a cookie that hold the handle's type.
const KIND_BITS: u32 = 4;

static TABLE: LazyLock<RwLock<Table>> = LazyLock::new(RwLock::default);

/// Issues a handle.
pub fn issue(opened: Opened) -> daos_handle_t {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.issued += 1;
    let cookie = (table.issued << KIND_BITS) | opened.kind();
    table.opened.insert(cookie, opened);
    daos_handle_t { cookie }
}

fn find<T>(handle: daos_handle_t, pick: impl FnOnce(&Opened) -> Option<T>) -> Result<T, Der> {
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.opened.get(&handle.cookie).and_then(pick).ok_or(Der::NO_HDL)
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
}

/// Ends the use of a handle.
pub fn forget(handle: daos_handle_t) {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).opened.remove(&handle.cookie);
}

/// Runs a call that ends the use of a handle, which `find` has to know.
pub fn close<T>(
    handle: daos_handle_t,
    ev: *mut daos_event_t,
    find: impl FnOnce(daos_handle_t) -> Result<T, Der>,
) -> c_int {
    run(ev, || {
        find(handle)?;
        Ok(operation(move |_| async move {
            forget(handle);
            Ok(())
        }))
    })
}

/// Ends the use of all handles.
pub fn forget_all() {
    TABLE.write().unwrap_or_else(PoisonError::into_inner).opened.clear();
}
