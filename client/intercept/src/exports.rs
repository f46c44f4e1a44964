//! The functions that programs find instead of the C library's: `libweir_intercept.so` has their names, and calls these.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null;

use libc::{FILE, iovec, off64_t, size_t, ssize_t};

use crate::descriptors::{self, Known};
use crate::original::{Calls, Errno};
use crate::transfer::{Direction, Position, transfer};
use crate::{identify, original, report, service};

/// The functions that programs are to find instead of the C library's.
static INSTEAD: Calls = Calls {
    bytes: size_of::<Calls>(),
    read,
    read_chk,
    pread64,
    pread64_chk,
    readv,
    preadv64,
    preadv64v2,
    write,
    pwrite64,
    writev,
    pwritev64,
    pwritev64v2,
    sendfile64,
    splice,
    copy_file_range,
    close,
    dup2,
    dup3,
    close_range,
    fclose,
    freopen64,
    closefrom,
    mmap64,
};

/// Begins the work of this library: `libweir_intercept.so` calls it once, and hands over the functions that it has found. NULL: the
/// two libraries aren't of one release.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_direct_start(found: *const Calls) -> *const Calls {
    // SAFETY: the structure begins with its length in every release, and is never freed; a longer one isn't looked at.
    let is_same = unsafe { found.cast::<size_t>().as_ref() }.is_some_and(|bytes| *bytes == INSTEAD.bytes);
    if !is_same {
        return null();
    }
    // SAFETY: it is of this length, and never changes from now on.
    original::found(unsafe { &*found });
    service::note_owner();
    report::prepare();
    &raw const INSTEAD
}

const fn piece(start: *const c_void, length: size_t) -> iovec {
    iovec { iov_base: start.cast_mut(), iov_len: length }
}

/// `None`: the C library refuses so many.
fn pieces(vectors: *const iovec, count: c_int) -> Option<(*const iovec, usize)> {
    Some((vectors, usize::try_from(count).ok()?))
}

// SAFETY (of all below): callers promise what the manual says of the function, and that is what `transfer` and the C library's own
// function ask for.

/// `read`.
unsafe extern "C" fn read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t {
    let one = piece(buffer, count);
    // SAFETY: as above.
    let moved = unsafe { transfer(fd, Direction::Read, Position::Shared, (&raw const one, 1)) };
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::read(fd, buffer, count) })
}

/// `read`, where the compiler knows the buffer's size.
unsafe extern "C" fn read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t {
    let one = piece(buffer, count);
    let fits = count <= room;
    let moved = fits.then(|| {
        // SAFETY: as above.
        unsafe { transfer(fd, Direction::Read, Position::Shared, (&raw const one, 1)) }
    });
    // SAFETY: as above; it ends a program whose buffer is too small.
    moved.flatten().unwrap_or_else(|| unsafe { original::read_chk(fd, buffer, count, room) })
}

/// `pread`.
unsafe extern "C" fn pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t {
    let one = piece(buffer, count);
    // SAFETY: as above.
    let moved = unsafe { transfer(fd, Direction::Read, Position::At(offset), (&raw const one, 1)) };
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::pread64(fd, buffer, count, offset) })
}

/// `pread`, where the compiler knows the buffer's size.
unsafe extern "C" fn pread64_chk(
    fd: c_int,
    buffer: *mut c_void,
    count: size_t,
    offset: off64_t,
    room: size_t,
) -> ssize_t {
    let one = piece(buffer, count);
    let fits = count <= room;
    let moved = fits.then(|| {
        // SAFETY: as above.
        unsafe { transfer(fd, Direction::Read, Position::At(offset), (&raw const one, 1)) }
    });
    // SAFETY: as above; it ends a program whose buffer is too small.
    moved.flatten().unwrap_or_else(|| unsafe { original::pread64_chk(fd, buffer, count, offset, room) })
}

/// `readv`.
unsafe extern "C" fn readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    let moved = pieces(vectors, count)
        .and_then(|pieces| unsafe { transfer(fd, Direction::Read, Position::Shared, pieces) });
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::readv(fd, vectors, count) })
}

/// `preadv`.
unsafe extern "C" fn preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: as above.
    let moved = pieces(vectors, count)
        .and_then(|pieces| unsafe { transfer(fd, Direction::Read, Position::At(offset), pieces) });
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::preadv64(fd, vectors, count, offset) })
}

/// `preadv2`. With flags, or at the shared offset, the kernel does it.
unsafe extern "C" fn preadv64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 {
        // SAFETY: as above.
        return unsafe { preadv64(fd, vectors, count, offset) };
    }
    // SAFETY: as above.
    unsafe { original::preadv64v2(fd, vectors, count, offset, flags) }
}

/// `write`.
unsafe extern "C" fn write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t {
    let one = piece(buffer, count);
    // SAFETY: as above.
    let moved = unsafe { transfer(fd, Direction::Write, Position::Shared, (&raw const one, 1)) };
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::write(fd, buffer, count) })
}

/// `pwrite`.
unsafe extern "C" fn pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t {
    let one = piece(buffer, count);
    // SAFETY: as above.
    let moved = unsafe { transfer(fd, Direction::Write, Position::At(offset), (&raw const one, 1)) };
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::pwrite64(fd, buffer, count, offset) })
}

/// `writev`.
unsafe extern "C" fn writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: as above.
    let moved = pieces(vectors, count)
        .and_then(|pieces| unsafe { transfer(fd, Direction::Write, Position::Shared, pieces) });
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::writev(fd, vectors, count) })
}

/// `pwritev`.
unsafe extern "C" fn pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t {
    // SAFETY: as above.
    let moved = pieces(vectors, count)
        .and_then(|pieces| unsafe { transfer(fd, Direction::Write, Position::At(offset), pieces) });
    // SAFETY: as above.
    moved.unwrap_or_else(|| unsafe { original::pwritev64(fd, vectors, count, offset) })
}

/// `pwritev2`. With flags, or at the shared offset, the kernel does it.
unsafe extern "C" fn pwritev64v2(
    fd: c_int,
    vectors: *const iovec,
    count: c_int,
    offset: off64_t,
    flags: c_int,
) -> ssize_t {
    if flags == 0 && offset >= 0 {
        // SAFETY: as above.
        return unsafe { pwritev64(fd, vectors, count, offset) };
    }
    // SAFETY: as above.
    unsafe { original::pwritev64v2(fd, vectors, count, offset, flags) }
}

/// A descriptor is about to be closed.
fn forget(fd: c_int) {
    let is_known = !matches!(descriptors::known(fd), None | Some(Known::Nothing));
    if !is_known || original::is_inside() || service::is_others() {
        return;
    }
    let _errno = Errno::keep();
    report::one(fd);
    descriptors::note(fd, Known::Nothing);
}

fn forget_all(first: c_uint, last: c_uint) {
    descriptors::all().filter(|fd| (first..=last).contains(&fd.cast_unsigned())).for_each(forget);
}

/// `close`.
unsafe extern "C" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: as above.
    unsafe { original::close(fd) }
}

/// `dup2`.
unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to {
        forget(to);
    }
    // SAFETY: as above.
    unsafe { original::dup2(from, to) }
}

/// `dup3`.
unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to {
        forget(to);
    }
    // SAFETY: as above.
    unsafe { original::dup3(from, to, flags) }
}

/// `close_range`.
unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags == 0 && first <= last {
        forget_all(first, last);
    }
    // SAFETY: as above.
    unsafe { original::close_range(first, last, flags) }
}

/// `closefrom`.
unsafe extern "C" fn closefrom(first: c_int) {
    // The C library takes a negative number for 0.
    forget_all(first.max(0).cast_unsigned(), c_uint::MAX);
    // SAFETY: as above.
    unsafe { original::closefrom(first) }
}

/// `fclose`, which closes a descriptor without `close`.
unsafe extern "C" fn fclose(file: *mut FILE) -> c_int {
    // SAFETY: as above.
    forget(unsafe { libc::fileno(file) });
    // SAFETY: as above.
    unsafe { original::fclose(file) }
}

/// `freopen`, which closes a descriptor without `close`.
unsafe extern "C" fn freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE {
    // SAFETY: as above.
    forget(unsafe { libc::fileno(file) });
    // SAFETY: as above.
    unsafe { original::freopen64(path, mode, file) }
}

/// `mmap`. From now on the kernel has what the file holds.
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    access: c_int,
    flags: c_int,
    fd: c_int,
    offset: off64_t,
) -> *mut c_void {
    if fd >= 0 && flags & libc::MAP_ANONYMOUS == 0 && !original::is_inside() {
        identify::map(fd);
    }
    // SAFETY: as above.
    unsafe { original::mmap64(address, length, access, flags, fd, offset) }
}

/// The kernel is about to read a file from its pages.
fn refresh(fd: c_int) {
    if !original::is_inside() && identify::identity(fd).is_some() {
        identify::refresh(fd);
    }
}

/// `sendfile`.
unsafe extern "C" fn sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t {
    refresh(from);
    // SAFETY: as above.
    unsafe { original::sendfile64(to, from, offset, count) }
}

/// `splice`.
unsafe extern "C" fn splice(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    refresh(from);
    // SAFETY: as above.
    unsafe { original::splice(from, from_offset, to, to_offset, count, flags) }
}

/// `copy_file_range`.
unsafe extern "C" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    count: size_t,
    flags: c_uint,
) -> ssize_t {
    refresh(from);
    // SAFETY: as above.
    unsafe { original::copy_file_range(from, from_offset, to, to_offset, count, flags) }
}
