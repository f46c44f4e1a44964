//! Object classes.

use core::ffi::{c_char, c_int, c_void};

use weir_client::ObjectClass;
use weir_proto::Der;

use crate::boundary::{code, element, guarded, required, text_of};
use crate::types::{daos_event_t, daos_handle_t};

/// Longest class name with its NUL (`MAX_OBJ_CLASS_NAME_LEN`).
const NAME_LEN: usize = 24;

/// Number of the class of this name; 0 when there is none.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oclass_name2id(name: *const c_char) -> c_int {
    let mut id = 0;
    let result = guarded(|| {
        let class: ObjectClass = text_of(name)?.parse().map_err(|_| Der::NONEXIST)?;
        id = c_int::try_from(class.id()).unwrap_or(0);
        Ok(())
    });
    if result == 0 { id } else { 0 }
}

/// Name of a class; -1 when the number has no meaning.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oclass_id2name(oc_id: u32, name: *mut c_char) -> c_int {
    let result = guarded(|| {
        required(name)?;
        let class = ObjectClass::from_id(oc_id).map_err(|_| Der::INVAL)?;
        let text = class.to_string();
        for (index, byte) in text.bytes().take(NAME_LEN - 1).chain([0]).enumerate() {
            element(name, index).set(c_char::from_ne_bytes([byte]));
        }
        Ok(())
    });
    if result == 0 { 0 } else { -1 }
}

/// Classes of a program's own don't exist, neither here nor in DAOS: always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_register_class(
    _coh: daos_handle_t,
    _cid: u32,
    _cattr: *mut c_void,
    _ev: *mut daos_event_t,
) -> c_int {
    code(Der::NOSYS)
}

/// Always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_query_class(
    _coh: daos_handle_t,
    _cid: u32,
    _cattr: *mut c_void,
    _ev: *mut daos_event_t,
) -> c_int {
    code(Der::NOSYS)
}

/// Always `-DER_NOSYS`.
#[unsafe(no_mangle)]
pub extern "C" fn daos_obj_list_class(
    _coh: daos_handle_t,
    _clist: *mut c_void,
    _anchor: *mut c_void,
    _ev: *mut daos_event_t,
) -> c_int {
    code(Der::NOSYS)
}

/// Names of the classes that can be asked for by name, with commas between them.
fn names() -> Vec<String> {
    let codes = [1_u32, 8, 9, 10, 11, 12, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42];
    let groups = [1_u32, 2, 4, 6, 8, 12, 16, 32, 0xffff];
    let ids = codes.iter().flat_map(|code| groups.iter().map(move |group| (code << 24) | group));
    let named = ids.filter_map(|id| ObjectClass::from_id(id).ok()).map(|class| class.to_string());
    named.filter(|name| name.parse::<ObjectClass>().is_ok()).collect()
}

/// Writes the names of all classes, with commas between them, as many as fit. Returns how many bytes all take without a NUL.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oclass_names_list(size: usize, str: *mut c_char) -> isize {
    let text = names().join(", ");
    if str.is_null() && size > 0 {
        return code(Der::INVAL) as isize;
    }
    crate::dfs::copy_text(text.as_bytes(), str, size);
    isize::try_from(text.len()).unwrap_or(isize::MAX)
}

/// Number of classes that can be asked for by name.
#[unsafe(no_mangle)]
pub extern "C" fn daos_oclass_nr(_opts: c_int) -> c_int {
    c_int::try_from(names().len()).unwrap_or(c_int::MAX)
}

/// The class that a caller named by number; `None` leaves the choice to the container.
pub(crate) fn chosen(cid: u32) -> Result<Option<ObjectClass>, Der> {
    if cid == 0 {
        return Ok(None);
    }
    ObjectClass::from_id(cid).map(Some).map_err(|_| Der::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_of_classes_match_the_header() {
        assert_eq!(daos_oclass_name2id(c"S1".as_ptr()), 16_777_217);
        assert_eq!(daos_oclass_name2id(c"SX".as_ptr()), 16_842_751);
        assert_eq!(daos_oclass_name2id(c"EC_8P2G8".as_ptr()), 620_757_000);
        assert_eq!(daos_oclass_name2id(c"S3".as_ptr()), 0);
        assert_eq!(daos_oclass_name2id(core::ptr::null()), 0);
        let mut name = [0; NAME_LEN];
        assert_eq!(daos_oclass_id2name(134_217_729, name.as_mut_ptr()), 0);
        assert_eq!(text_of(name.as_ptr()), Ok("RP_2G1".to_owned()));
        assert_eq!(daos_oclass_id2name(3, name.as_mut_ptr()), -1);
    }
}
