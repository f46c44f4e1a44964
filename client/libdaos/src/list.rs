//! Enumerations of keys: of objects and of key-value objects.

use core::ffi::c_int;

use weir_client::{Anchor, Context, Object, Page, kind};
use weir_proto::{Der, Key};

use crate::anchor::{self, From, LongKey};
use crate::boundary::{ArgumentPtr, Outcome, der_of, element, operation, required, run};
use crate::handle;
use crate::sg::{Runs, key_at, key_bytes};
use crate::transaction::scope;
use crate::types::{d_iov_t, d_sg_list_t, daos_anchor_t, daos_event_t, daos_handle_t, daos_key_desc_t};

/// Keys asked for at a time where one is looked for.
const KEYS_LOOKED_THROUGH: u32 = 128;

/// Where a list goes.
pub(crate) struct Listing {
    count: ArgumentPtr<u32>,
    descriptors: *mut daos_key_desc_t,
    runs: Runs,
    anchor: ArgumentPtr<daos_anchor_t>,
}

impl Listing {
    pub(crate) fn check(
        nr: *mut u32,
        kds: *mut daos_key_desc_t,
        sgl: *mut d_sg_list_t,
        anchor: *mut daos_anchor_t,
    ) -> Result<Self, Der> {
        let listing = Self {
            count: required(nr)?,
            descriptors: kds,
            runs: Runs::read(required(sgl)?)?,
            anchor: required(anchor)?,
        };
        if kds.is_null() || listing.count.get() == 0 {
            return Err(Der::INVAL);
        }
        Ok(listing)
    }

    /// Fills the caller's memory with as many keys as it takes.
    pub(crate) async fn fill(self, context: Context, object: Object, dkey: Option<Key>) -> Outcome {
        let kinds = object.id().kind();
        let integer =
            if dkey.is_some() { kind::has_integer_akeys(kinds) } else { kind::has_integer_dkeys(kinds) };
        if anchor::is_end(self.anchor) {
            self.count.set(0);
            self.runs.report(0);
            return Ok(());
        }
        let from = match anchor::read(self.anchor)? {
            From::At(anchor) => anchor,
            From::Behind(key) => found(&context, &object, dkey.as_ref(), &key).await?,
        };
        let mut limit = self.count.get();
        let part = anchor::part(self.anchor);
        loop {
            let page = page(&context, &object, dkey.as_ref(), &from, limit).await?;
            let page = anchor::within(part, page)?;
            let keys: Vec<Vec<u8>> =
                page.entries.iter().map(|entry| key_bytes(&entry.key, integer)).collect();
            let fitting = fitting(&keys, self.runs.room());
            if fitting == 0 && !keys.is_empty() {
                let needed = keys[0].len() as u64;
                element(self.descriptors, 0).set(daos_key_desc_t { kd_key_len: needed, kd_val_type: 0 });
                self.count.set(0);
                return Err(Der::KEY2BIG);
            }
            if fitting < keys.len() {
                // A page of exactly what fits, so that the next one starts behind it.
                limit = u32::try_from(fitting).unwrap_or(u32::MAX);
                continue;
            }
            return self.deliver(&keys, &page.next);
        }
    }

    fn deliver(&self, keys: &[Vec<u8>], next: &Anchor) -> Outcome {
        let bytes = keys.concat();
        let len = bytes.len() as u64;
        let mut rest = bytes.as_slice();
        for slice in self.runs.sink(len)? {
            let (head, tail) = rest.split_at(slice.len());
            slice.copy_from_slice(head);
            rest = tail;
        }
        self.runs.report(len);
        for (index, key) in keys.iter().enumerate() {
            let descriptor = daos_key_desc_t { kd_key_len: key.len() as u64, kd_val_type: 0 };
            element(self.descriptors, index).set(descriptor);
        }
        self.count.set(u32::try_from(keys.len()).unwrap_or(u32::MAX));
        anchor::write(self.anchor, next)
    }
}

/// Where an enumeration goes on that another process has begun: behind a long key, found by its beginning and its hash. One that
/// has been removed meanwhile is `STALE`.
pub(crate) async fn found(
    context: &Context,
    object: &Object,
    dkey: Option<&Key>,
    key: &LongKey,
) -> Result<Anchor, Der> {
    let mut from = key.search()?;
    while !from.is_end() {
        let page = page(context, object, dkey, &from, KEYS_LOOKED_THROUGH).await?;
        for entry in &page.entries {
            if key.is(&entry.key)? {
                return key.behind(&entry.key);
            }
        }
        from = page.next;
    }
    Err(Der::STALE)
}

/// How many of the keys fit the room.
fn fitting(keys: &[Vec<u8>], room: u64) -> usize {
    let mut used = 0;
    keys.iter()
        .take_while(|key| {
            used += key.len() as u64;
            used <= room
        })
        .count()
}

async fn page(
    context: &Context,
    object: &Object,
    dkey: Option<&Key>,
    from: &Anchor,
    limit: u32,
) -> Result<Page, Der> {
    match dkey {
        Some(dkey) => object.list_akeys(context, dkey, from, limit).await.map_err(der_of),
        None => object.list_dkeys(context, from, limit, None).await.map_err(der_of),
    }
}

/// Lists dkeys.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_list_dkey(
    oh: daos_handle_t,
    th: daos_handle_t,
    nr: *mut u32,
    kds: *mut daos_key_desc_t,
    sgl: *mut d_sg_list_t,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::object(oh)?, scope(th)?);
        let listing = Listing::check(nr, kds, sgl, anchor)?;
        let object = scope.view(&object)?;
        Ok(operation(move |context| async move { scope.ended(listing.fill(context, object, None).await) }))
    })
}

/// Lists akeys.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_list_akey(
    oh: daos_handle_t,
    th: daos_handle_t,
    dkey: *mut d_iov_t,
    nr: *mut u32,
    kds: *mut daos_key_desc_t,
    sgl: *mut d_sg_list_t,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (object, scope) = (handle::object(oh)?, scope(th)?);
        let dkey = key_at(dkey, kind::has_integer_dkeys(object.id().kind()))?;
        let listing = Listing::check(nr, kds, sgl, anchor)?;
        let object = scope.view(&object)?;
        Ok(operation(
            move |context| async move { scope.ended(listing.fill(context, object, Some(dkey)).await) },
        ))
    })
}
