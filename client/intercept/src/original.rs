//! The functions that stand behind those of this library: of the C library, or of another one that was loaded between.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, iovec, off64_t, size_t, ssize_t};

thread_local! {
    /// The thread runs code of this library: what that calls isn't intercepted.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Code of this library, until it is dropped.
pub struct Inside {
    before: bool,
}

impl Inside {
    /// Calls of this thread are not intercepted from now on.
    pub fn enter() -> Self {
        Self { before: INSIDE.replace(true) }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.before);
    }
}

/// This thread's errno, which is as it was when this is dropped.
pub struct Errno {
    before: c_int,
}

impl Errno {
    /// As it is now.
    pub fn keep() -> Self {
        // SAFETY: it gives the place of this thread's errno.
        Self { before: unsafe { *libc::__errno_location() } }
    }

    /// Another one is to be left.
    pub fn replace(&mut self, errno: c_int) {
        self.before = errno;
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.before };
    }
}

/// Whether calls of this thread are this library's own.
pub fn is_inside() -> bool {
    INSIDE.get()
}

/// The functions that `libweir_intercept.so` has found.
static FOUND: AtomicPtr<Calls> = AtomicPtr::new(null_mut());

/// Takes note of the functions to go on to. They stay where they are.
pub fn found(calls: &'static Calls) {
    FOUND.store(core::ptr::from_ref(calls).cast_mut(), Ordering::Release);
}

fn calls() -> &'static Calls {
    // SAFETY: null, or what `found` was given.
    let found = unsafe { FOUND.load(Ordering::Acquire).as_ref() };
    // Nothing of this library is called before.
    found.unwrap_or_else(|| std::process::abort())
}

macro_rules! originals {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// What this library and `libweir_intercept.so` hand to each other: functions of the C library, and those to be called instead of
        /// them. `preload.c` has the same structure.
        #[repr(C)]
        pub struct Calls {
            /// Bytes of this structure.
            pub bytes: size_t,
            $(
                #[doc = concat!("`", stringify!($name), "`.")]
                pub $name: unsafe extern "C" fn($($type),*) -> $result,
            )*
        }

        $(
            #[doc = concat!("`", stringify!($name), "` of the C library.")]
            pub unsafe fn $name($($argument: $type),*) -> $result {
                // SAFETY: the caller promises what the function asks for.
                unsafe { (calls().$name)($($argument),*) }
            }
        )*
    };
}

originals! {
    read(fd: c_int, buffer: *mut c_void, count: size_t) -> ssize_t;
    read_chk(fd: c_int, buffer: *mut c_void, count: size_t, room: size_t) -> ssize_t;
    pread64(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t) -> ssize_t;
    pread64_chk(fd: c_int, buffer: *mut c_void, count: size_t, offset: off64_t, room: size_t) -> ssize_t;
    readv(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    preadv64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    preadv64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    write(fd: c_int, buffer: *const c_void, count: size_t) -> ssize_t;
    pwrite64(fd: c_int, buffer: *const c_void, count: size_t, offset: off64_t) -> ssize_t;
    writev(fd: c_int, vectors: *const iovec, count: c_int) -> ssize_t;
    pwritev64(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t) -> ssize_t;
    pwritev64v2(fd: c_int, vectors: *const iovec, count: c_int, offset: off64_t, flags: c_int) -> ssize_t;
    sendfile64(to: c_int, from: c_int, offset: *mut off64_t, count: size_t) -> ssize_t;
    splice(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, count: size_t, flags: c_uint) -> ssize_t;
    copy_file_range(from: c_int, from_offset: *mut off64_t, to: c_int, to_offset: *mut off64_t, count: size_t, flags: c_uint) -> ssize_t;
    close(fd: c_int) -> c_int;
    dup2(from: c_int, to: c_int) -> c_int;
    dup3(from: c_int, to: c_int, flags: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    fclose(file: *mut FILE) -> c_int;
    freopen64(path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE;
    closefrom(first: c_int) -> ();
    mmap64(address: *mut c_void, length: size_t, access: c_int, flags: c_int, fd: c_int, offset: off64_t) -> *mut c_void;
}
