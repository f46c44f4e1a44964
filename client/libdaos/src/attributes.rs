//! Attributes of containers.
//!
//! Properties of DAOS that mean nothing to engines are attributes, too, with names that programs don't see.

use core::ffi::{c_char, c_int, c_void};

use serde_bytes::ByteBuf;
use weir_proto::Der;
use weir_proto::limits::{ATTRIBUTE_NAME_MAX, ATTRIBUTE_VALUE_MAX};

use crate::boundary::{ArgumentPtr, der_of, element, elements, operation, required, run, text_of};
use crate::handle;
use crate::types::{daos_event_t, daos_handle_t};

/// What the names of properties begin with.
const HIDDEN: &str = "daos.property/";

/// Most attributes in one call.
const COUNT_MAX: usize = 4096;

/// The name of the attribute that keeps a property.
pub(crate) fn name_of_property(kind: u32) -> String {
    format!("{HIDDEN}{kind}")
}

/// A name of a program's: `INVAL` for an empty or long one, and for one of the hidden ones.
fn name(text: *const c_char) -> Result<String, Der> {
    let given = text_of(text)?;
    let is_wrong = given.is_empty() || given.len() > ATTRIBUTE_NAME_MAX || given.starts_with(HIDDEN);
    if is_wrong { Err(Der::INVAL) } else { Ok(given) }
}

fn names(first: *const *const c_char, count: c_int) -> Result<Vec<String>, Der> {
    let count = usize::try_from(count).ok().filter(|count| (1..=COUNT_MAX).contains(count));
    elements(first, count.ok_or(Der::INVAL)?)?.into_iter().map(name).collect()
}

/// Sets attributes.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_set_attr(
    coh: daos_handle_t,
    n: c_int,
    given_names: *const *const c_char,
    values: *const *const c_void,
    sizes: *const usize,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, names) = (handle::changed_container(coh)?, names(given_names, n)?);
        let (values, sizes) = (elements(values, names.len())?, elements(sizes, names.len())?);
        let mut attributes = Vec::new();
        for ((name, value), size) in names.into_iter().zip(values).zip(sizes) {
            if value.is_null() || size == 0 {
                return Err(Der::INVAL);
            }
            if size > ATTRIBUTE_VALUE_MAX {
                return Err(Der::REC2BIG);
            }
            attributes.push((name, Some(ByteBuf::from(elements(value.cast::<u8>(), size)?))));
        }
        Ok(operation(move |context| async move {
            container.set_attributes(&context, attributes).await.map_err(der_of)
        }))
    })
}

/// Removes attributes; what isn't there is no error.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_del_attr(
    coh: daos_handle_t,
    n: c_int,
    given_names: *const *const c_char,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, names) = (handle::changed_container(coh)?, names(given_names, n)?);
        let gone = names.into_iter().map(|name| (name, None)).collect();
        Ok(operation(
            move |context| async move { container.set_attributes(&context, gone).await.map_err(der_of) },
        ))
    })
}

/// Reads attributes: `sizes` are the rooms, then the sizes of the values. Without `buffers`, or with NULL among them, only sizes are
/// told. `-DER_NONEXIST` for a missing one, `-DER_TRUNC` for one that doesn't fit.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_get_attr(
    coh: daos_handle_t,
    n: c_int,
    given_names: *const *const c_char,
    buffers: *const *mut c_void,
    sizes: *mut usize,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, names) = (handle::container(coh)?, names(given_names, n)?);
        required(sizes)?;
        let buffers = if buffers.is_null() {
            vec![core::ptr::null_mut(); names.len()]
        } else {
            elements(buffers, names.len())?
        };
        Ok(operation(move |context| async move {
            let found = container.attributes(&context, names.clone()).await.map_err(der_of)?;
            let mut outcome = Ok(());
            for (index, (name, buffer)) in names.iter().zip(buffers).enumerate() {
                let value = found.get(name).ok_or(Der::NONEXIST)?;
                let size: ArgumentPtr<usize> = element(sizes, index);
                let room = size.get();
                size.set(value.len());
                if buffer.is_null() {
                    continue;
                }
                for (index, byte) in value.iter().take(room).enumerate() {
                    element(buffer.cast::<u8>(), index).set(*byte);
                }
                if room < value.len() {
                    outcome = Err(Der::TRUNC);
                }
            }
            outcome
        }))
    })
}

/// Lists names, each with a NUL: `*size` is the room, then what all take. As many as fit are listed.
#[unsafe(no_mangle)]
pub extern "C" fn daos_cont_list_attr(
    coh: daos_handle_t,
    buffer: *mut c_char,
    size: *mut usize,
    ev: *mut daos_event_t,
) -> c_int {
    run(ev, || {
        let (container, place) = (handle::container(coh)?, required(size)?);
        Ok(operation(move |context| async move {
            let found = container.attributes(&context, Vec::new()).await.map_err(der_of)?;
            let names: Vec<&String> = found.keys().filter(|name| !name.starts_with(HIDDEN)).collect();
            let (room, mut at) = (place.get(), 0);
            place.set(names.iter().map(|name| name.len() + 1).sum());
            for name in names {
                if buffer.is_null() || at + name.len() + 1 > room {
                    break;
                }
                for byte in name.bytes().chain([0]) {
                    element(buffer.cast::<u8>(), at).set(byte);
                    at += 1;
                }
            }
            Ok(())
        }))
    })
}
