//! libduns: names of containers in other file systems.

use core::ffi::{c_char, c_int, c_void};
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;
use weir_client::{Container, ContainerProperties, ContainerType};

use crate::boundary::{ArgumentPtr, bytes_of, elements, required, text_of};
use crate::container::{new_id, properties_of};
use crate::dfs::{container_properties, copy_text, create_container};
use crate::errno::{Checked, Errno, checked, wait};
use crate::handle;
use crate::types::{daos_handle_t, dfs_attr_t, duns_attr_t};

/// The extended attribute that names a container (`DUNS_XATTR_NAME`), and the most bytes of its value.
const ATTRIBUTE: &core::ffi::CStr = c"user.daos";
const VALUE_MAX: usize = 170;

/// Flags of a lookup (`DUNS_NO_*`).
const NO_PREFIX: u32 = 1 << 0;
const NO_REVERSE_LOOKUP: u32 = 1 << 1;
const NO_CHECK_PATH: u32 = 1 << 2;

/// Bytes of a label with its NUL.
const LABEL_ROOM: usize = 128;

/// Names of the types of containers, by their numbers (`daos_cont_layout_t`).
const TYPES: [&str; 9] =
    ["unknown", "POSIX", "HDF5", "PYTHON", "SPARK", "DATABASE", "ROOT", "SEISMIC", "METEO"];
const POSIX: c_int = 1;

/// What a path names.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Location {
    kind: c_int,
    pool: String,
    container: String,
    /// What of the path is behind the container.
    rest: Option<Vec<u8>>,
}

/// A path that consists of pool, container and what is behind.
fn direct(path: &[u8]) -> Checked<Location> {
    let mut parts = path.splitn(3, |byte| *byte == b'/');
    let mut label = || {
        let part = parts.next().filter(|part| !part.is_empty() && part.len() < LABEL_ROOM);
        let text = part.and_then(|part| String::from_utf8(part.to_vec()).ok());
        text.ok_or(Errno(libc::EINVAL))
    };
    let (pool, container) = (label()?, label()?);
    let rest = parts.next().filter(|rest| !rest.is_empty());
    Ok(Location { kind: 0, pool, container, rest: rest.map(|rest| [b"/", rest].concat()) })
}

/// The value of the attribute: `DAOS.TYPE://POOL/CONTAINER`.
fn parse(value: &[u8]) -> Checked<Location> {
    let invalid = Errno(libc::EINVAL);
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    let text = core::str::from_utf8(&value[..end]).map_err(|_| invalid)?;
    let (kind, place) = text.strip_prefix("DAOS.").and_then(|rest| rest.split_once("://")).ok_or(invalid)?;
    let number = TYPES.iter().position(|name| name.eq_ignore_ascii_case(kind)).ok_or(invalid)?;
    let kind = c_int::try_from(number).map_err(|_| invalid)?;
    let (pool, container) = place.split_once('/').ok_or(invalid)?;
    if Uuid::try_parse(pool).is_err() || Uuid::try_parse(container).is_err() {
        return Err(invalid);
    }
    Ok(Location { kind, pool: pool.to_owned(), container: container.to_owned(), rest: None })
}

fn c_path(path: &Path) -> Checked<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))
}

fn last_errno() -> Errno {
    Errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// The attribute of a file; `ENODATA` where there is none.
fn read_attribute(path: &Path) -> Checked<Vec<u8>> {
    let (path, mut value) = (c_path(path)?, vec![0_u8; VALUE_MAX]);
    // SAFETY: both strings end with NUL, and the buffer has the room that the call is told of.
    let len =
        unsafe { libc::lgetxattr(path.as_ptr(), ATTRIBUTE.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    value.truncate(usize::try_from(len).map_err(|_| last_errno())?);
    Ok(value)
}

/// Names a container by a file's attribute, which must not be there.
fn write_attribute(path: &Path, kind: c_int, pool: Uuid, container: Uuid) -> Checked<()> {
    let name = usize::try_from(kind).ok().and_then(|kind| TYPES.get(kind)).ok_or(Errno(libc::EINVAL))?;
    let (path, value) = (c_path(path)?, format!("DAOS.{name}://{pool}/{container}"));
    // SAFETY: both strings end with NUL, and the value has as many bytes as the call is told of.
    let result = unsafe {
        libc::lsetxattr(
            path.as_ptr(),
            ATTRIBUTE.as_ptr(),
            value.as_ptr().cast::<c_void>(),
            value.len(),
            libc::XATTR_CREATE,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_errno()) }
}

/// What a path of another file system names: itself, or the nearest directory above it with the attribute.
fn look_up(path: &Path, goes_up: bool) -> Checked<Location> {
    let whole = std::path::absolute(path).map_err(|_| Errno(libc::EINVAL))?;
    let mut at: PathBuf = whole.clone();
    loop {
        match read_attribute(&at) {
            Ok(value) => {
                let rest = whole.strip_prefix(&at).map(|rest| rest.as_os_str().as_bytes().to_vec());
                let rest = rest.ok().filter(|rest| !rest.is_empty());
                let rest = rest.map(|rest| [b"/".to_vec(), rest].concat());
                return Ok(Location { rest, ..parse(&value)? });
            }
            Err(Errno(libc::ENOENT | libc::ENODATA | libc::ENOTSUP)) if goes_up => {}
            Err(error) => return Err(error),
        }
        if !at.pop() {
            return Err(Errno(libc::ENODATA));
        }
    }
}

fn resolve(path: &[u8], flags: u32) -> Checked<Location> {
    for prefix in [&b"daos://"[..], b"daos:/"] {
        if let Some(rest) = path.strip_prefix(prefix) {
            return direct(rest);
        }
    }
    if flags & (NO_PREFIX | NO_CHECK_PATH) != 0 {
        return direct(path.strip_prefix(b"/").ok_or(Errno(libc::EINVAL))?);
    }
    if path.is_empty() {
        return Err(Errno(libc::EINVAL));
    }
    look_up(Path::new(OsStr::from_bytes(path)), flags & NO_REVERSE_LOOKUP == 0)
}

/// Memory of the C library that holds a text, for programs to free.
fn allocated(text: &[u8]) -> Checked<*mut c_char> {
    let text = CString::new(text).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: the string ends with NUL.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() { Err(Errno(libc::ENOMEM)) } else { Ok(copy) }
}

fn tell(place: ArgumentPtr<duns_attr_t>, location: &Location) -> Checked<()> {
    let rest = match &location.rest {
        Some(rest) => allocated(rest)?,
        None => core::ptr::null_mut(),
    };
    place.change(|attr| {
        attr.da_type = location.kind;
        attr.da_rel_path = rest;
        attr.da_sys = core::ptr::null_mut();
        attr.da_on_lustre = false;
        copy_text(location.pool.as_bytes(), attr.da_pool.as_mut_ptr(), LABEL_ROOM);
        copy_text(location.container.as_bytes(), attr.da_cont.as_mut_ptr(), LABEL_ROOM);
    });
    Ok(())
}

/// Finds the container that a path names.
#[unsafe(no_mangle)]
pub extern "C" fn duns_resolve_path(path: *const c_char, attr: *mut duns_attr_t) -> c_int {
    checked(|| {
        let (path, place) = (bytes_of(path)?, required(attr)?);
        let given = place.get();
        let flags = given.da_flags | if given.da_no_prefix { NO_PREFIX } else { 0 };
        tell(place, &resolve(path, flags)?)
    })
}

/// Reads the value of the attribute.
#[unsafe(no_mangle)]
pub extern "C" fn duns_parse_attr(str: *mut c_char, len: u64, attr: *mut duns_attr_t) -> c_int {
    checked(|| {
        let place = required(attr)?;
        let len = usize::try_from(len).ok().filter(|len| *len <= VALUE_MAX).ok_or(Errno(libc::EINVAL))?;
        let value: Vec<u8> = elements(str.cast::<u8>().cast_const(), len)?;
        tell(place, &parse(&value)?)
    })
}

/// Sets the name of the system.
#[unsafe(no_mangle)]
pub extern "C" fn duns_set_sys_name(attrp: *mut duns_attr_t, sys: *const c_char) -> c_int {
    checked(|| {
        let place = required(attrp)?;
        let name = if sys.is_null() { core::ptr::null_mut() } else { allocated(bytes_of(sys)?)? };
        place.change(|attr| {
            // SAFETY: NULL, or what this library allocated.
            unsafe { libc::free(attr.da_sys.cast()) };
            attr.da_sys = name;
        });
        Ok(())
    })
}

/// Frees what a lookup has allocated.
#[unsafe(no_mangle)]
pub extern "C" fn duns_destroy_attr(attrp: *mut duns_attr_t) {
    if let Ok(place) = required(attrp) {
        place.change(|attr| {
            // SAFETY: NULL, or what this library allocated; both are NULL behind it.
            unsafe {
                libc::free(attr.da_rel_path.cast());
                libc::free(attr.da_sys.cast());
            }
            (attr.da_rel_path, attr.da_sys) = (core::ptr::null_mut(), core::ptr::null_mut());
        });
    }
}

/// Creates a container, and a directory, or a file for other types than POSIX, that names it.
#[unsafe(no_mangle)]
pub extern "C" fn duns_create_path(
    poh: daos_handle_t,
    path: *const c_char,
    attrp: *mut duns_attr_t,
) -> c_int {
    checked(|| {
        let (pool, place) = (handle::pool(poh)?, required(attrp)?);
        let path = PathBuf::from(std::ffi::OsString::from_vec(bytes_of(path)?.to_vec()));
        let given = place.get();
        if !(1..TYPES.len()).any(|kind| c_int::try_from(kind) == Ok(given.da_type)) {
            return Err(Errno(libc::EINVAL));
        }
        let is_posix = given.da_type == POSIX;
        let properties = if is_posix {
            let mut attr = dfs_attr_t {
                da_chunk_size: given.da_chunk_size,
                da_oclass_id: given.da_oclass_id,
                da_props: given.da_props,
                da_dir_oclass_id: given.da_dir_oclass_id,
                da_file_oclass_id: given.da_file_oclass_id,
                ..dfs_attr_t::default()
            };
            container_properties(&pool, &raw mut attr)?
        } else {
            ContainerProperties { kind: ContainerType::Object, ..properties_of(&pool, given.da_props)? }
        };
        make(&path, is_posix)?;
        let made = wait(async |context| {
            if is_posix {
                return Ok(create_container(context, &pool, properties).await?.container.0);
            }
            let (id, mut properties) = (new_id(context), properties);
            if properties.label.is_empty() {
                properties.label = format!("c-{}", id.0);
            }
            Ok(Container::create_with_id(context, &pool, id, properties, true).await?.container.0)
        });
        let named = made.and_then(|container| {
            write_attribute(&path, given.da_type, pool.id().0, container)?;
            Ok(container)
        });
        let container = match named {
            Ok(container) => container,
            Err(error) => {
                drop(unmake(&path));
                return Err(error);
            }
        };
        let (pool, container) = (pool.id().0.to_string(), container.to_string());
        place.change(|attr| {
            copy_text(pool.as_bytes(), attr.da_pool.as_mut_ptr(), LABEL_ROOM);
            copy_text(container.as_bytes(), attr.da_cont.as_mut_ptr(), LABEL_ROOM);
        });
        Ok(())
    })
}

fn io_errno(error: &std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Makes the directory or file that is to name a container.
fn make(path: &Path, is_directory: bool) -> Checked<()> {
    let made = if is_directory {
        std::fs::create_dir(path)
    } else {
        std::fs::OpenOptions::new().write(true).create_new(true).open(path).map(drop)
    };
    made.map_err(|error| io_errno(&error))
}

fn unmake(path: &Path) -> std::io::Result<()> {
    if path.symlink_metadata()?.is_dir() { std::fs::remove_dir(path) } else { std::fs::remove_file(path) }
}

/// Destroys the container that a path names, and removes the path.
#[unsafe(no_mangle)]
pub extern "C" fn duns_destroy_path(poh: daos_handle_t, path: *const c_char) -> c_int {
    checked(|| {
        let pool = handle::pool(poh)?;
        let path = PathBuf::from(std::ffi::OsString::from_vec(bytes_of(path)?.to_vec()));
        let location = look_up(&path, false)?;
        if Uuid::try_parse(&location.pool) != Ok(pool.id().0) {
            return Err(Errno(libc::EINVAL));
        }
        wait(async |context| {
            Container::destroy(context, &pool, &location.container, true).await?;
            Ok(())
        })?;
        unmake(&path).map_err(|error| io_errno(&error))
    })
}

/// Makes a directory that names a POSIX container which is there.
#[unsafe(no_mangle)]
pub extern "C" fn duns_link_cont(poh: daos_handle_t, cont: *const c_char, path: *const c_char) -> c_int {
    checked(|| {
        let (pool, cont) = (handle::pool(poh)?, text_of(cont)?);
        let path = PathBuf::from(std::ffi::OsString::from_vec(bytes_of(path)?.to_vec()));
        let all = wait(async |context| Ok(pool.containers(context).await?))?;
        let found = all
            .into_iter()
            .find(|info| info.properties.label == cont || Uuid::try_parse(&cont) == Ok(info.container.0));
        let found = found.ok_or(Errno(libc::ENOENT))?;
        let is_posix = found.properties.kind == ContainerType::Posix;
        make(&path, is_posix)?;
        let kind = if is_posix { POSIX } else { 0 };
        write_attribute(&path, kind, pool.id().0, found.container.0).inspect_err(|_| drop(unmake(&path)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_of_containers_are_told_apart() {
        let at = |rest: Option<&str>| Location {
            kind: 0,
            pool: "tank".into(),
            container: "home".into(),
            rest: rest.map(|rest| rest.as_bytes().to_vec()),
        };
        assert_eq!(resolve(b"daos://tank/home", 0), Ok(at(None)));
        assert_eq!(resolve(b"daos:/tank/home/", 0), Ok(at(None)));
        assert_eq!(resolve(b"/tank/home/a/b", NO_PREFIX), Ok(at(Some("/a/b"))));
        for bad in [&b"daos://"[..], b"daos://tank", b"daos:///home"] {
            assert_eq!(resolve(bad, 0), Err(Errno(libc::EINVAL)));
        }
        let id = "0b1c2d3e-0000-4000-8000-000000000001";
        let found = parse(format!("DAOS.POSIX://{id}/{id}").as_bytes()).expect("a name");
        assert_eq!((found.kind, &found.pool[..], found.rest), (POSIX, id, None));
        for bad in ["DAOS.POSIX://tank/home", "DAOS.ODD://a/b", "POSIX", ""] {
            assert_eq!(parse(bad.as_bytes()), Err(Errno(libc::EINVAL)), "{bad}");
        }
    }
}
