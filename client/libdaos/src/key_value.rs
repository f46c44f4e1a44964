//! Key-value objects.

use core::ffi::{c_char, c_int, c_void};

use weir_client::{Kv, Transaction};
use weir_proto::Der;

use crate::boundary::{bytes_of, der_of, operation, required, run};
use crate::handle::{self, Opened};
use crate::list::Listing;
use crate::object::{conditions_of, id_of, is_read_only};
use crate::transaction::scope;
use crate::types::{d_sg_list_t, daos_anchor_t, daos_event_t, daos_handle_t, daos_key_desc_t, daos_obj_id_t};

/// Opens a key-value object.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_open(
    coh: daos_handle_t,
    oid: daos_obj_id_t,
    mode: u32,
    oh: *mut daos_handle_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(oh)?);
        let kv = Kv::open(&container, id_of(oid)).map_err(der_of)?;
        let read_only = is_read_only(&container, mode);
        Ok(operation(move |_| async move {
            place.set(handle::issue_within(coh, read_only, Opened::Kv(kv))?);
            Ok(())
        }))
    })
}

/// Closes a key-value object.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_close(oh: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    handle::close(oh, ev, handle::kv)
}

/// Removes a key-value object with all keys.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_destroy(oh: daos_handle_t, th: daos_handle_t, ev: *mut daos_event_t) -> c_int {
    run(ev, || {
        let (kv, scope) = (handle::changed(oh, handle::kv)?, scope(th)?);
        Ok(operation(move |context| async move {
            let object = kv.object();
            scope.change(object, |transaction| transaction.punch(object), kv.destroy(&context)).await
        }))
    })
}

/// Stores a value.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_put(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    key: *const c_char,
    size: u64,
    buf: *const c_void,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (kv, scope) = (handle::changed(oh, handle::kv)?, scope(th)?);
        let (conditions, key) = (conditions_of(flags)?, bytes_of(key)?.to_vec());
        if size == 0 || size > weir_proto::limits::PAYLOAD_MAX {
            return Err(if size == 0 { Der::INVAL } else { Der::REC2BIG });
        }
        if buf.is_null() {
            return Err(Der::INVAL);
        }
        let size = usize::try_from(size).map_err(|_| Der::REC2BIG)?;
        // SAFETY: not NULL; by the caller's promise `size` bytes stand there, unchanged until the call is complete, which
        // is as long as the slice is used.
        let value: &'static [u8] = unsafe { core::slice::from_raw_parts(buf.cast::<u8>(), size) };
        Ok(operation(move |context| async move {
            let note = |transaction: &mut Transaction| kv.put_within(transaction, &key, value, conditions);
            scope.change(kv.object(), note, kv.put(&context, &key, value, conditions)).await
        }))
    })
}

/// Reads a value, or asks for its size.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_get(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    key: *const c_char,
    size: *mut u64,
    buf: *mut c_void,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (kv, scope) = (handle::kv(oh)?, scope(th)?);
        let (conditions, key) = (conditions_of(flags)?, bytes_of(key)?.to_vec());
        let place = required(size)?;
        let room = if buf.is_null() { 0 } else { place.get().min(weir_proto::limits::PAYLOAD_MAX) };
        let room = usize::try_from(room).map_err(|_| Der::INVAL)?;
        let kv = kv.with_object(scope.view(kv.object())?);
        Ok(operation(move |context| async move {
            let into: &mut [u8] = if room == 0 {
                &mut []
            } else {
                // SAFETY: not NULL; by the caller's promise `*size` bytes stand there that nobody else uses until
                // the call is complete.
                unsafe { core::slice::from_raw_parts_mut(buf.cast::<u8>(), room) }
            };
            let found = kv.get_into(&context, &key, conditions, into).await.map_err(der_of);
            scope.ended(found.and_then(|found| {
                place.set(found);
                if room > 0 && found > room as u64 { Err(Der::REC2BIG) } else { Ok(()) }
            }))
        }))
    })
}

/// Removes a key.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_remove(
    oh: daos_handle_t,
    th: daos_handle_t,
    flags: u64,
    key: *const c_char,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (kv, scope) = (handle::changed(oh, handle::kv)?, scope(th)?);
        let (conditions, key) = (conditions_of(flags)?, bytes_of(key)?.to_vec());
        Ok(operation(move |context| async move {
            let note = |transaction: &mut Transaction| kv.remove_within(transaction, &key, conditions);
            scope.change(kv.object(), note, kv.remove(&context, &key, conditions)).await
        }))
    })
}

/// Lists keys.
#[unsafe(no_mangle)]
pub extern "C" fn daos_kv_list(
    oh: daos_handle_t,
    th: daos_handle_t,
    nr: *mut u32,
    kds: *mut daos_key_desc_t,
    sgl: *mut d_sg_list_t,
    anchor: *mut daos_anchor_t,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (kv, scope) = (handle::kv(oh)?, scope(th)?);
        let listing = Listing::check(nr, kds, sgl, anchor)?;
        let object = scope.view(kv.object())?;
        Ok(operation(move |context| async move { scope.ended(listing.fill(context, object, None).await) }))
    })
}
