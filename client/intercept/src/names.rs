//! The functions that `libpil4dfs.so` calls: names and attributes of a mount.
//!
//! Each says what it has found or done, or that the kernel has to do it: then the C library's own function is called, as if this
//! library weren't there. So what isn't sure to be answered right here is answered by the mount.

use core::ffi::{CStr, c_char, c_int, c_long, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::{dirent64, size_t, ssize_t};
use weir_dfs::{DirStream, Stat};

use crate::caller::{Caller, READ, SEARCH, WRITE};
use crate::directories::{self, Directory};
use crate::original::{Errno, Inside, is_inside};
use crate::question::{
    Base, Beginning, KERNEL, Listing, MOUNTS, NameCalls, Place, Places, Question, READ_ONLY, Wanted,
};
use crate::service::{self, Service};
use crate::submission::{Outcome, Task};
use crate::tally::{self, Way};

/// Bytes of a path with its end, as the kernel has them.
const PATH_BYTES: usize = 4096;

/// Size that `stat` recommends for reads and writes, at most: what the mount tells.
const PREFERRED_BLOCK: u32 = 1 << 20;

/// Most bytes of an extended attribute, and of their names (linux/limits.h).
const ATTRIBUTE_BYTES: usize = 1 << 16;

/// Nanoseconds of a second.
const SECOND: i64 = 1_000_000_000;

static CALLS: NameCalls = {
    let (first, end) = directories::bounds();
    NameCalls {
        bytes: size_of::<NameCalls>(),
        first,
        end,
        look,
        may,
        read_link,
        make,
        attribute,
        open,
        next,
        close,
        place,
        go,
        descriptor,
    }
};

/// The mounts that `libpil4dfs.so` has found.
static PLACES: AtomicPtr<Places> = AtomicPtr::new(null_mut());

/// What is known of each of them: its place among those of the service, and in which life of the process.
static BEGUN: [AtomicU64; MOUNTS] = [const { AtomicU64::new(0) }; MOUNTS];

/// The effective user that each was asked as.
static ASKED_AS: [AtomicU32; MOUNTS] = [const { AtomicU32::new(0) }; MOUNTS];

/// A mount whose names are found here.
#[derive(Clone, Copy)]
struct Begun {
    /// Its place among those of the service; `None`: the kernel does all.
    place: Option<u16>,
    /// Names may be added.
    may_add: bool,
    life: u32,
}

impl Begun {
    const IS_SET: u64 = 1 << 63;
    const IS_OPEN: u64 = 1 << 62;
    const MAY_ADD: u64 = 1 << 61;

    fn word(self) -> u64 {
        let place = self.place.map_or(0, |place| Self::IS_OPEN | (u64::from(place & 0xff) << 48));
        let may_add = if self.may_add { Self::MAY_ADD } else { 0 };
        Self::IS_SET | place | may_add | u64::from(self.life)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the parts of a word")]
    fn of(word: u64) -> Option<Self> {
        (word & Self::IS_SET != 0).then(|| Self {
            place: (word & Self::IS_OPEN != 0).then_some(((word >> 48) & 0xff) as u16),
            may_add: word & Self::MAY_ADD != 0,
            life: word as u32,
        })
    }
}

/// Begins the work on names: `libpil4dfs.so` calls it once it has loaded this library, and hands over the mounts that it has found.
/// NULL: the two libraries aren't of one release.
///
/// # Safety
/// The structure begins with its length, and is never freed or changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_direct_names(found: *const Places) -> *const NameCalls {
    // SAFETY: as the caller says; one of another length isn't looked at.
    let is_same =
        unsafe { found.cast::<size_t>().as_ref() }.is_some_and(|bytes| *bytes == size_of::<Places>());
    // SAFETY: as above.
    let Some(places) = (unsafe { found.as_ref() }).filter(|_| is_same) else { return null() };
    let _inside = Inside::enter();
    tally::name(places.all().iter().map(|place| place.path().to_vec()));
    PLACES.store(found.cast_mut(), Ordering::Release);
    &raw const CALLS
}

fn place_of(mount: usize) -> Option<&'static Place> {
    // SAFETY: null, or what never changes and is never freed.
    unsafe { PLACES.load(Ordering::Acquire).as_ref() }?.all().get(mount)
}

/// What is known of a mount, which is asked if nothing is. `None`: the kernel does this call.
fn begun(mount: usize) -> Option<(u16, bool)> {
    if is_inside() || service::is_others() {
        return None;
    }
    // SAFETY: it has no preconditions.
    let user = unsafe { libc::geteuid() };
    let known =
        Begun::of(BEGUN.get(mount)?.load(Ordering::SeqCst)).filter(|known| known.life == service::life());
    let begun = known.unwrap_or_else(|| begin(mount, user));
    // The kernel lets only one user reach some mounts.
    let open = begun.place.filter(|_| ASKED_AS[mount].load(Ordering::SeqCst) == user);
    if open.is_none() {
        tally::count(mount, Way::Closed);
    }
    open.map(|place| (place, begun.may_add))
}

fn begin(mount: usize, user: u32) -> Begun {
    let _inside = Inside::enter();
    ASKED_AS[mount].store(user, Ordering::SeqCst);
    let asked = || {
        let place = place_of(mount)?;
        let service = Service::start()?;
        let mut beginning = Beginning { path: place.path(), device: place.device, begun: None };
        service.run(Task::Begin(&raw mut beginning), null(), 0);
        let (names, described) = beginning.begun?;
        let reached = service.enter_mount(u64::from(place.device), described)?;
        Some((reached.place, names.may_add && place.flags & READ_ONLY == 0))
    };
    let asked = asked();
    let begun = Begun {
        place: asked.map(|(place, _)| place),
        may_add: asked.is_some_and(|(_, may_add)| may_add),
        life: service::life(),
    };
    BEGUN[mount].store(begun.word(), Ordering::SeqCst);
    begun
}

/// Engines have failed: from now on the kernel does all of a mount.
fn give_up(mount: usize) {
    let shut = |word| Begun::of(word).map(|begun| Begun { place: None, ..begun }.word());
    // Another thread may have done the same.
    let _ = BEGUN[mount].fetch_update(Ordering::SeqCst, Ordering::SeqCst, shut);
}

/// The path of a directory of the program below the mount's root, as the kernel knows it.
fn start_path<'b>(base: &Base, place: &Place, room: &'b mut [u8; PATH_BYTES]) -> Option<&'b [u8]> {
    let length = if base.descriptor == libc::AT_FDCWD {
        // SAFETY: the place holds as many bytes as it is said to. The call counts the NUL.
        unsafe { libc::syscall(libc::SYS_getcwd, room.as_mut_ptr(), room.len()) - 1 }
    } else {
        let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0";
        let (mut digits, mut rest) = ([0; 10], base.descriptor.unsigned_abs());
        let mut count = 0;
        loop {
            digits[count] = b'0' + u8::try_from(rest % 10).ok()?;
            (rest, count) = (rest / 10, count + 1);
            if rest == 0 {
                break;
            }
        }
        for (to, digit) in link[14..].iter_mut().zip(digits[..count].iter().rev()) {
            *to = *digit;
        }
        // SAFETY: the path ends with a NUL, and the place holds as many bytes as it is said to.
        unsafe {
            libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, link.as_ptr(), room.as_mut_ptr(), room.len())
        }
    };
    let whole = room.get(..usize::try_from(length).ok()?)?;
    let below = whole.strip_prefix(place.path())?;
    (below.is_empty() || below[0] == b'/').then_some(below)
}

/// What a call asks for, and where.
struct Call<'c> {
    base: &'c Base,
    /// From the base on.
    path: &'c [u8],
    follows: bool,
}

impl Call<'_> {
    /// # Safety
    /// Both are there for the time of the call, and the path ends with a NUL.
    unsafe fn new(base: *const Base, path: *const c_char, follows: bool) -> Option<Self> {
        // SAFETY: as the caller says.
        let (base, path) = unsafe { (base.as_ref()?, CStr::from_ptr(path).to_bytes()) };
        let place = place_of(base.mount as usize)?;
        let path = if base.is_relative == 0 { path.strip_prefix(place.path())? } else { path };
        Some(Self { base, path, follows })
    }

    /// Has a question answered. `None`: the kernel has to answer it.
    fn ask(
        &self,
        wanted: Wanted<'_>,
        caller: &Caller,
        way: Way,
    ) -> Option<Result<(usize, Option<Stat>), i32>> {
        let mount = self.base.mount as usize;
        let (reached, may_add) = begun(mount)?;
        let is_making = matches!(wanted, Wanted::MakeDirectory(_) | Wanted::MakeLink(_));
        let answered = if is_making && !may_add {
            None
        } else {
            self.ask_engines(
                mount,
                Question {
                    mount: reached,
                    start: self.base.found.stx_ino,
                    start_path: None,
                    path: self.path,
                    follows: self.follows,
                    caller: *caller,
                    wanted,
                    found: None,
                },
            )
        };
        tally::count(mount, if answered.is_some() { way } else { Way::Kernel });
        answered
    }

    fn ask_engines(
        &self,
        mount: usize,
        question: Question<'_>,
    ) -> Option<Result<(usize, Option<Stat>), i32>> {
        let mut room = [0; PATH_BYTES];
        let mut question = question;
        let service = Service::running()?;
        let is_making = matches!(question.wanted, Wanted::MakeDirectory(_) | Wanted::MakeLink(_));
        // The thread that takes the question is done with it when `run` returns.
        let mut outcome = service.run(Task::Answer((&raw mut question).cast()), null(), 0);
        if outcome == Outcome::Incomplete {
            question.start_path = Some(start_path(self.base, place_of(mount)?, &mut room)?);
            outcome = service.run(Task::Answer((&raw mut question).cast()), null(), 0);
        }
        match outcome {
            Outcome::Done { bytes, .. } => Some(Ok((bytes, question.found.take()))),
            Outcome::Refused(errno) => Some(Err(errno)),
            Outcome::InDoubt if is_making => Some(Err(libc::EIO)),
            Outcome::Failed | Outcome::InDoubt => {
                give_up(mount);
                None
            }
            Outcome::Unfit | Outcome::Incomplete => None,
        }
    }
}

/// The answer of a call: `errno` is as it was, unless this is an error.
fn answer<T>(
    answered: Option<Result<T, i32>>,
    errno: &mut Errno,
    value: impl FnOnce(T) -> ssize_t,
) -> ssize_t {
    match answered {
        None => KERNEL as ssize_t,
        Some(Ok(found)) => value(found),
        Some(Err(refused)) => {
            errno.replace(refused);
            -1
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "what the functions return that have this type")]
const fn short(answer: ssize_t) -> c_int {
    answer as c_int
}

// SAFETY (of all below): `libpil4dfs.so` hands over what the program has, which promises what the manual says of the function; and a base
// that is there for the time of the call.

unsafe extern "C" fn look(
    base: *const Base,
    path: *const c_char,
    flags: c_int,
    found: *mut libc::statx,
) -> c_int {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let call = unsafe { Call::new(base, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) };
    let is_itself = |call: &Call<'_>| call.path.is_empty();
    let call = call.filter(|call| !is_itself(call) || flags & libc::AT_EMPTY_PATH != 0);
    let asked = call.and_then(|call| {
        let answered = call.ask(Wanted::Look, &Caller::now()?, Way::Looked)?;
        Some(answered.map(|(_, stat)| (stat, call.base.found)))
    });
    short(answer(asked, &mut errno, |(stat, base)| match stat {
        Some(stat) if !found.is_null() => {
            // SAFETY: the program's structure.
            unsafe { found.write(to_statx(&stat, &base)) };
            0
        }
        _ => KERNEL as ssize_t,
    }))
}

/// Attributes as the kernel shows those that the mount tells it. What is the mount's own is as in `base`.
#[expect(clippy::cast_possible_truncation, reason = "less than a second, and mode bits")]
fn to_statx(stat: &Stat, base: &libc::statx) -> libc::statx {
    let time = |ns: i64| {
        // SAFETY: zeros are a value of it.
        let mut time: libc::statx_timestamp = unsafe { MaybeUninit::zeroed().assume_init() };
        time.tv_sec = ns.div_euclid(SECOND);
        time.tv_nsec = ns.rem_euclid(SECOND) as u32;
        time
    };
    let mut shown = *base;
    let block = stat.block_size.clamp(1, PREFERRED_BLOCK);
    shown.stx_mask = libc::STATX_BASIC_STATS | (base.stx_mask & libc::STATX_MNT_ID);
    shown.stx_attributes = 0;
    shown.stx_blksize = 1 << block.ilog2();
    (shown.stx_nlink, shown.stx_uid, shown.stx_gid) = (stat.links, stat.uid, stat.gid);
    shown.stx_mode = (stat.kind.mode_bits() | (stat.mode & 0o7777)) as u16;
    (shown.stx_ino, shown.stx_size, shown.stx_blocks) = (stat.inode, stat.size, stat.blocks);
    (shown.stx_atime, shown.stx_mtime, shown.stx_ctime) =
        (time(stat.atime_ns), time(stat.mtime_ns), time(stat.ctime_ns));
    shown.stx_btime = time(0);
    // As the kernel takes the 32 bits apart (`new_decode_dev`).
    shown.stx_rdev_major = (stat.device & 0x000f_ff00) >> 8;
    shown.stx_rdev_minor = (stat.device & 0xff) | ((stat.device >> 12) & 0x000f_ff00);
    shown
}

unsafe extern "C" fn may(base: *const Base, path: *const c_char, mode: c_int, flags: c_int) -> c_int {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let call = unsafe { Call::new(base, path, flags & libc::AT_SYMLINK_NOFOLLOW == 0) };
    let asked = call.filter(|call| !call.path.is_empty()).and_then(|call| {
        let caller = if flags & libc::AT_EACCESS != 0 { Caller::now() } else { Caller::of_access() }?;
        let bit = |flag: c_int, bit| if mode & flag != 0 { bit } else { 0 };
        let wanted = bit(libc::R_OK, READ) | bit(libc::W_OK, WRITE) | bit(libc::X_OK, SEARCH);
        let is_known = mode & !(libc::R_OK | libc::W_OK | libc::X_OK) == 0;
        let flags = place_of(call.base.mount as usize)?.flags;
        if is_known { call.ask(Wanted::May(wanted, flags), &caller, Way::Looked) } else { None }
    });
    short(answer(asked, &mut errno, |_| 0))
}

unsafe extern "C" fn read_link(
    base: *const Base,
    path: *const c_char,
    to: *mut c_char,
    room: size_t,
) -> ssize_t {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let call = unsafe { Call::new(base, path, false) };
    let fits = !to.is_null() && (1..=isize::MAX.cast_unsigned()).contains(&room);
    let asked = call.filter(|call| fits && !call.path.is_empty()).and_then(|call| {
        // SAFETY: the program's memory; only what was written there is told of.
        let room = unsafe { core::slice::from_raw_parts_mut(to.cast::<u8>(), room) };
        call.ask(Wanted::ReadLink(room), &Caller::now()?, Way::Looked)
    });
    answer(asked, &mut errno, |(length, _)| length.cast_signed())
}

unsafe extern "C" fn make(
    base: *const Base,
    path: *const c_char,
    mode: libc::mode_t,
    target: *const c_char,
) -> c_int {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let call = unsafe { Call::new(base, path, false) };
    let asked = call.filter(|call| !call.path.is_empty()).and_then(|call| {
        let wanted = if target.is_null() {
            Wanted::MakeDirectory(mode)
        } else {
            // SAFETY: as above.
            let target = unsafe { CStr::from_ptr(target) }.to_bytes();
            if target.is_empty() || target.len() > weir_dfs::LINK_TARGET_MAX {
                return None;
            }
            Wanted::MakeLink(target)
        };
        call.ask(wanted, &Caller::now()?, Way::Added)
    });
    short(answer(asked, &mut errno, |_| 0))
}

unsafe extern "C" fn attribute(
    base: *const Base,
    path: *const c_char,
    follows: c_int,
    name: *const c_char,
    to: *mut c_char,
    room: size_t,
) -> ssize_t {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let call = unsafe { Call::new(base, path, follows != 0) };
    let asked = call.filter(|call| !call.path.is_empty() && (room == 0 || !to.is_null())).and_then(|call| {
        // SAFETY: as above.
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_bytes());
        let room = match room.min(ATTRIBUTE_BYTES) {
            0 => &mut [][..],
            // SAFETY: the program's memory; only what was written there is told of.
            room => unsafe { core::slice::from_raw_parts_mut(to.cast::<u8>(), room) },
        };
        call.ask(Wanted::Attribute(name, room), &Caller::now()?, Way::Looked)
    });
    answer(asked, &mut errno, |(length, _)| length.cast_signed())
}

unsafe extern "C" fn open(base: *const Base, path: *const c_char) -> *mut c_void {
    let mut errno = Errno::keep();
    let kernel = core::ptr::without_provenance_mut((KERNEL as isize).cast_unsigned());
    // SAFETY: as above.
    let Some(call) = (unsafe { Call::new(base, path, true) }) else { return kernel };
    let is_given = call.path.is_empty();
    if is_given && (call.base.is_relative == 0 || !is_at_begin(call.base.descriptor)) {
        return kernel;
    }
    let Some(full) = full_path(&call) else { return kernel };
    let mut opened: Option<(DirStream, u64)> = None;
    let asked = Caller::now().and_then(|caller| call.ask(Wanted::Open(&mut opened), &caller, Way::Listed));
    match (asked, opened) {
        (Some(Err(refused)), _) => {
            errno.replace(refused);
            null_mut()
        }
        (Some(Ok(_)), Some(opened)) => {
            let descriptor = if is_given { call.base.descriptor } else { -1 };
            let _inside = Inside::enter();
            let directory = Directory::new(call.base.mount as usize, opened, full, descriptor);
            directories::enter(directory).unwrap_or(kernel)
        }
        _ => kernel,
    }
}

/// Whether a listing by a descriptor begins with the first entry, and may be made by it.
fn is_at_begin(descriptor: c_int) -> bool {
    // SAFETY: they take no memory.
    let (flags, offset) =
        unsafe { (libc::fcntl(descriptor, libc::F_GETFL), libc::lseek64(descriptor, 0, libc::SEEK_CUR)) };
    flags >= 0 && flags & libc::O_PATH == 0 && offset == 0
}

/// A path by which the kernel finds a directory later, wherever the program has gone by then.
fn full_path(call: &Call<'_>) -> Option<Vec<u8>> {
    let _inside = Inside::enter();
    let place = place_of(call.base.mount as usize)?;
    let mut full = place.path().to_vec();
    if call.base.is_relative != 0 && !call.path.is_empty() {
        let mut room = [0; PATH_BYTES];
        full.extend_from_slice(start_path(call.base, place, &mut room)?);
        full.push(b'/');
    }
    full.extend_from_slice(call.path);
    full.push(0);
    Some(full)
}

unsafe extern "C" fn next(address: *mut c_void) -> *mut dirent64 {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let Some(directory) = (unsafe { directories::at(address) }) else {
        errno.replace(libc::EBADF);
        return null_mut();
    };
    if let Some(cookie) = directory.lacks() {
        let mut listing = Listing { mount: 0, stream: &mut directory.stream, cookie, entries: Vec::new() };
        let listed = begun(directory.mount).and_then(|(mount, _)| {
            listing.mount = mount;
            let service = Service::running()?;
            match service.run(Task::List((&raw mut listing).cast()), null(), 0) {
                Outcome::Done { .. } => Some(std::mem::take(&mut listing.entries)),
                _ => None,
            }
        });
        let Some(listed) = listed else {
            errno.replace(libc::EIO);
            return null_mut();
        };
        directory.fill(listed);
    }
    directory.next()
}

unsafe extern "C" fn close(address: *mut c_void) -> c_int {
    let descriptor = {
        let _errno = Errno::keep();
        let _inside = Inside::enter();
        // SAFETY: as above.
        unsafe { directories::leave(address) }
    };
    // SAFETY: the descriptor is the directory's.
    if descriptor >= 0 { unsafe { libc::close(descriptor) } } else { 0 }
}

unsafe extern "C" fn place(address: *mut c_void) -> c_long {
    // SAFETY: as above.
    unsafe { directories::at(address) }.map_or(-1, |directory| directories::told(directory.place()))
}

unsafe extern "C" fn go(address: *mut c_void, place: c_long) {
    let _inside = Inside::enter();
    // SAFETY: as above.
    if let Some(directory) = unsafe { directories::at(address) } {
        directory.go(place.max(0).cast_unsigned());
    }
}

unsafe extern "C" fn descriptor(address: *mut c_void) -> c_int {
    let mut errno = Errno::keep();
    // SAFETY: as above.
    let Some(directory) = (unsafe { directories::at(address) }) else { return -1 };
    if directory.descriptor >= 0 {
        return directory.descriptor;
    }
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: the path ends with a NUL.
    let opened = unsafe { libc::open(directory.path.as_ptr().cast(), flags) };
    if opened < 0 {
        // SAFETY: it gives the place of this thread's errno.
        errno.replace(unsafe { *libc::__errno_location() });
        return -1;
    }
    if inode_of(opened) == Some(directory.inode) {
        directory.descriptor = opened;
        return opened;
    }
    // Another directory has its path by now.
    // SAFETY: it was opened above.
    unsafe { libc::close(opened) };
    errno.replace(libc::ENOTSUP);
    -1
}

fn inode_of(descriptor: c_int) -> Option<u64> {
    let mut found = MaybeUninit::<libc::statx>::zeroed();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: the path is an empty C string, and the place holds what the call writes.
    let failed =
        unsafe { libc::statx(descriptor, c"".as_ptr(), flags, libc::STATX_INO, found.as_mut_ptr()) } != 0;
    // SAFETY: zeroed above, which is a value of it, and perhaps written by the call.
    (!failed).then(|| unsafe { found.assume_init() }.stx_ino)
}
