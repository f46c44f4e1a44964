//! Hash tables of records that programs own, linked by `d_list_t` in them.
//!
//! One lock is for the whole table. Records are freed without it, so that a program's function may use the table.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr;

use weir_proto::Der;

use super::hashing::d_hash_string_u32;
use crate::boundary::{Outcome, code, guarded, required};

/// Features of a table (`D_HASH_FT_*`).
const NO_LOCK: u32 = 1 << 0;
const EPHEMERAL: u32 = 1 << 3;
const LRU: u32 = 1 << 4;

/// Most buckets, as a power of two.
const BITS_MAX: u32 = 24;

/// `d_list_t`.
#[repr(C)]
pub struct Link {
    next: *mut Link,
    prev: *mut Link,
}

/// `d_hash_table_ops_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Operations {
    key_cmp: Option<extern "C" fn(*mut Table, *mut Link, *const c_void, c_uint) -> bool>,
    key_init: Option<extern "C" fn(*mut Table, *mut Link, *mut c_void)>,
    key_hash: Option<extern "C" fn(*mut Table, *const c_void, c_uint) -> u32>,
    rec_hash: Option<extern "C" fn(*mut Table, *mut Link) -> u32>,
    rec_addref: Option<extern "C" fn(*mut Table, *mut Link)>,
    rec_decref: Option<extern "C" fn(*mut Table, *mut Link) -> bool>,
    rec_ndecref: Option<extern "C" fn(*mut Table, *mut Link, c_int) -> c_int>,
    rec_free: Option<extern "C" fn(*mut Table, *mut Link)>,
}

/// `struct d_hash_table`.
#[repr(C)]
pub struct Table {
    lock: libc::pthread_rwlock_t,
    bits: u32,
    features: u32,
    private: *mut c_void,
    operations: *mut Operations,
    buckets: *mut Link,
    locks: *mut c_void,
}

/// A table under its lock.
struct Held {
    table: *mut Table,
    operations: Operations,
}

impl Held {
    /// Takes the lock of a table; `INVAL` for none.
    fn lock(table: *mut Table) -> Result<Self, Der> {
        required(table)?;
        // SAFETY: not NULL, so it is a table that was made here; its lock is initialised.
        unsafe {
            if (*table).operations.is_null() || (*table).buckets.is_null() {
                return Err(Der::INVAL);
            }
            if (*table).features & NO_LOCK == 0 {
                libc::pthread_rwlock_wrlock(&raw mut (*table).lock);
            }
            Ok(Self { table, operations: *(*table).operations })
        }
    }

    fn features(&self) -> u32 {
        // SAFETY: a table, as in `lock`.
        unsafe { (*self.table).features }
    }

    fn bucket_count(&self) -> usize {
        // SAFETY: a table, as in `lock`.
        1 << unsafe { (*self.table).bits }
    }

    fn bucket(&self, index: usize) -> *mut Link {
        // SAFETY: a table, as in `lock`; the index is below the number of its buckets.
        unsafe { (*self.table).buckets.add(index) }
    }

    /// The bucket of a key.
    fn bucket_of(&self, key: *const c_void, size: c_uint) -> *mut Link {
        let hash = match self.operations.key_hash {
            Some(function) => function(self.table, key, size),
            None => d_hash_string_u32(key.cast(), size),
        };
        self.bucket(hash as usize & (self.bucket_count() - 1))
    }

    /// The record of a key in its bucket; NULL when there is none.
    fn find(&self, bucket: *mut Link, key: *const c_void, size: c_uint) -> *mut Link {
        let Some(is_it) = self.operations.key_cmp else { return ptr::null_mut() };
        // SAFETY: buckets are closed lists of records that the program keeps while they are in the table.
        let mut at = unsafe { (*bucket).next };
        while at != bucket {
            if is_it(self.table, at, key, size) {
                return at;
            }
            // SAFETY: as above.
            at = unsafe { (*at).next };
        }
        ptr::null_mut()
    }

    fn insert(&self, bucket: *mut Link, link: *mut Link) {
        put(bucket, link);
        if self.features() & EPHEMERAL == 0 {
            self.add_user(link);
        }
    }

    fn add_user(&self, link: *mut Link) {
        if let Some(function) = self.operations.rec_addref {
            function(self.table, link);
        }
    }

    /// One user less; whether none is left.
    fn drop_user(&self, link: *mut Link) -> bool {
        self.operations.rec_decref.is_some_and(|function| function(self.table, link))
    }

    /// Takes a record out of the table. Whether it is to be freed.
    fn remove(&self, link: *mut Link) -> bool {
        take(link);
        self.features() & EPHEMERAL == 0 && self.drop_user(link)
    }

    /// Gives the lock back and frees a record.
    fn free_after(self, link: *mut Link, is_free: bool) {
        let (table, free) = (self.table, self.operations.rec_free);
        drop(self);
        if is_free && let Some(free) = free {
            free(table, link);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.features() & NO_LOCK == 0 {
            // SAFETY: taken in `lock`.
            unsafe { libc::pthread_rwlock_unlock(&raw mut (*self.table).lock) };
        }
    }
}

/// Puts a link at the front of a list.
fn put(head: *mut Link, link: *mut Link) {
    // SAFETY: a list, and a link that is in none.
    unsafe {
        (*link).next = (*head).next;
        (*link).prev = head;
        (*(*head).next).prev = link;
        (*head).next = link;
    }
}

/// Takes a link out of its list, and makes it one that is in none.
fn take(link: *mut Link) {
    // SAFETY: a link in a list, or in none.
    unsafe {
        (*(*link).prev).next = (*link).next;
        (*(*link).next).prev = (*link).prev;
        ((*link).next, (*link).prev) = (link, link);
    }
}

/// Whether a link is in no list.
fn is_apart(link: *mut Link) -> bool {
    // SAFETY: a link of the program's.
    unsafe { (*link).next == link || (*link).next.is_null() }
}

/// Whether a record is in no table.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_unlinked(link: *mut Link) -> bool {
    link.is_null() || is_apart(link)
}

/// Makes a table in memory of the program's.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_table_create_inplace(
    feats: u32,
    bits: u32,
    private: *mut c_void,
    hops: *mut Operations,
    htable: *mut Table,
) -> c_int {
    guarded(|| {
        let (place, operations) = (required(htable)?, required(hops)?);
        if operations.get().key_cmp.is_none() || bits > BITS_MAX {
            return Err(Der::INVAL);
        }
        let count = 1_usize << bits;
        // SAFETY: `calloc` takes any sizes.
        let buckets: *mut Link = unsafe { libc::calloc(count, size_of::<Link>()) }.cast();
        if buckets.is_null() {
            return Err(Der::NOMEM);
        }
        for index in 0..count {
            // SAFETY: one of the buckets that were just allocated.
            unsafe {
                let bucket = buckets.add(index);
                bucket.write(Link { next: bucket, prev: bucket });
            }
        }
        place.set(Table {
            lock: libc::PTHREAD_RWLOCK_INITIALIZER,
            bits,
            features: feats,
            private,
            operations: hops,
            buckets,
            locks: ptr::null_mut(),
        });
        Ok(())
    })
}

/// Makes a table.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_table_create(
    feats: u32,
    bits: u32,
    private: *mut c_void,
    hops: *mut Operations,
    htable_pp: *mut *mut Table,
) -> c_int {
    let Ok(place) = required(htable_pp) else { return code(Der::INVAL) };
    // SAFETY: `calloc` takes any sizes.
    let table: *mut Table = unsafe { libc::calloc(1, size_of::<Table>()) }.cast();
    if table.is_null() {
        return code(Der::NOMEM);
    }
    let result = d_hash_table_create_inplace(feats, bits, private, hops, table);
    if result == 0 {
        place.set(table);
    } else {
        // SAFETY: just allocated.
        unsafe { libc::free(table.cast()) };
    }
    result
}

/// Called for each record; another result than 0 ends the walk.
type Visit = extern "C" fn(*mut Link, *mut c_void) -> c_int;

/// Calls a function for each record, with the table's lock held.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_table_traverse(htable: *mut Table, cb: Option<Visit>, arg: *mut c_void) -> c_int {
    let mut result = 0;
    let refused = guarded(|| {
        let (held, visit) = (Held::lock(htable)?, cb.ok_or(Der::INVAL)?);
        for index in 0..held.bucket_count() {
            let bucket = held.bucket(index);
            // SAFETY: as in `find`. The next one is read before, since the function may take a record out.
            let mut at = unsafe { (*bucket).next };
            while at != bucket && result == 0 {
                // SAFETY: as above.
                let next = unsafe { (*at).next };
                result = visit(at, arg);
                at = next;
            }
        }
        Ok(())
    });
    if refused == 0 { result } else { refused }
}

/// Ends the use of a table in the program's memory: `-DER_BUSY` with records in it, unless `force`.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_table_destroy_inplace(htable: *mut Table, force: bool) -> c_int {
    guarded(|| {
        loop {
            let held = Held::lock(htable)?;
            let first = first(&held);
            if first.is_null() {
                break;
            }
            if !force {
                return Err(Der::BUSY);
            }
            let is_free = held.remove(first);
            held.free_after(first, is_free);
        }
        // SAFETY: a table, as in `lock`, that nobody uses any more by the caller's promise.
        unsafe {
            libc::free((*htable).buckets.cast());
            (*htable).buckets = ptr::null_mut();
            libc::pthread_rwlock_destroy(&raw mut (*htable).lock);
        }
        Ok(())
    })
}

/// Ends the use of a table and frees it.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_table_destroy(htable: *mut Table, force: bool) -> c_int {
    let result = d_hash_table_destroy_inplace(htable, force);
    if result == 0 {
        // SAFETY: `d_hash_table_create` allocated it.
        unsafe { libc::free(htable.cast()) };
    }
    result
}

fn first(held: &Held) -> *mut Link {
    // SAFETY: as in `find`.
    let firsts =
        (0..held.bucket_count()).map(|index| unsafe { (held.bucket(index), (*held.bucket(index)).next) });
    firsts.into_iter().find(|(bucket, next)| bucket != next).map_or(ptr::null_mut(), |(_, next)| next)
}

/// Any record; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_first(htable: *mut Table) -> *mut Link {
    Held::lock(htable).map_or(ptr::null_mut(), |held| first(&held))
}

/// The record of a key with one user more; NULL when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_find(htable: *mut Table, key: *const c_void, ksize: c_uint) -> *mut Link {
    let Ok(held) = lock_for_key(htable, key, ksize) else { return ptr::null_mut() };
    let bucket = held.bucket_of(key, ksize);
    let found = held.find(bucket, key, ksize);
    if !found.is_null() {
        held.add_user(found);
        if held.features() & LRU != 0 {
            take(found);
            put(bucket, found);
        }
    }
    found
}

fn lock_for_key(table: *mut Table, key: *const c_void, size: c_uint) -> Result<Held, Der> {
    if key.is_null() || size == 0 { Err(Der::INVAL) } else { Held::lock(table) }
}

/// The record of a key, with one user more, or the one that is inserted because there is none.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_find_insert(
    htable: *mut Table,
    key: *const c_void,
    ksize: c_uint,
    link: *mut Link,
) -> *mut Link {
    let Ok(held) = lock_for_key(htable, key, ksize) else { return ptr::null_mut() };
    let bucket = held.bucket_of(key, ksize);
    let found = held.find(bucket, key, ksize);
    if found.is_null() && !link.is_null() {
        held.insert(bucket, link);
        return link;
    }
    if !found.is_null() {
        held.add_user(found);
    }
    found
}

/// Inserts a record; `-DER_EXIST` with `exclusive` when there is one of this key.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_insert(
    htable: *mut Table,
    key: *const c_void,
    ksize: c_uint,
    link: *mut Link,
    exclusive: bool,
) -> c_int {
    guarded(|| {
        required(link)?;
        let held = lock_for_key(htable, key, ksize)?;
        let bucket = held.bucket_of(key, ksize);
        if exclusive && !held.find(bucket, key, ksize).is_null() {
            return Err(Der::EXIST);
        }
        held.insert(bucket, link);
        Ok(())
    })
}

/// Inserts a record whose key the program makes.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_insert_anonym(htable: *mut Table, link: *mut Link, arg: *mut c_void) -> c_int {
    guarded(|| {
        required(link)?;
        let held = Held::lock(htable)?;
        let init = held.operations.key_init.ok_or(Der::INVAL)?;
        init(htable, link, arg);
        let hash = held.operations.rec_hash.map_or(0, |function| function(htable, link));
        held.insert(held.bucket(hash as usize & (held.bucket_count() - 1)), link);
        Ok(())
    })
}

/// Takes the record of a key out of the table. Whether there was one.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_delete(htable: *mut Table, key: *const c_void, ksize: c_uint) -> bool {
    let Ok(held) = lock_for_key(htable, key, ksize) else { return false };
    let found = held.find(held.bucket_of(key, ksize), key, ksize);
    if found.is_null() {
        return false;
    }
    let is_free = held.remove(found);
    held.free_after(found, is_free);
    true
}

/// Takes a record out of the table. Whether it was in it.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_delete_at(htable: *mut Table, link: *mut Link) -> bool {
    let Ok(held) = Held::lock(htable) else { return false };
    if link.is_null() || is_apart(link) {
        return false;
    }
    let is_free = held.remove(link);
    held.free_after(link, is_free);
    true
}

/// One user of a record more.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_addref(htable: *mut Table, link: *mut Link) {
    if let Ok(held) = Held::lock(htable)
        && !link.is_null()
    {
        held.add_user(link);
    }
}

/// One user of a record less. Without any, one that the table doesn't count itself a user of leaves it, and is freed.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_decref(htable: *mut Table, link: *mut Link) {
    // The call has no result: it does nothing without a table or a record.
    let _ = drop_users(htable, 1, link);
}

/// Several users of a record less.
#[unsafe(no_mangle)]
pub extern "C" fn d_hash_rec_ndecref(htable: *mut Table, count: c_int, link: *mut Link) -> c_int {
    guarded(|| drop_users(htable, count, link))
}

fn drop_users(table: *mut Table, count: c_int, link: *mut Link) -> Outcome {
    required(link)?;
    let held = Held::lock(table)?;
    let is_free = match held.operations.rec_ndecref {
        Some(function) if count > 1 => match function(table, link, count) {
            left if left < 0 => return Err(Der::INVAL),
            left => left == 1,
        },
        _ => (0..count).any(|_| held.drop_user(link)),
    };
    if is_free && held.features() & EPHEMERAL != 0 && !is_apart(link) {
        take(link);
    }
    held.free_after(link, is_free);
    Ok(())
}

const _: () = assert!(size_of::<Table>() == size_of::<libc::pthread_rwlock_t>() + 40);
