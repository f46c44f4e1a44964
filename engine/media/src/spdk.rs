//! Devices of SPDK, the storage development kit that drives NVMe from user space: a second way to drives for sites that run
//! it, behind the cargo feature `spdk`.
//!
//! SPDK is found on the system by pkg-config (23.05 or newer). [`start`] starts it once for the process with a
//! configuration in its own JSON form, which says what devices there are; [`SpdkDevice`] opens one of them by name. A
//! device belongs to its thread, whose executor polls it: while transfers are under way at most 20 µs apart, otherwise
//! rarely. Data is copied once on its way, through memory that SPDK has made ready for the drives.

use crate::buffer::{DmaBuf, Slice};
use crate::device::{BLOCK, Device, DeviceStats, IoFuture, MediaError, check_transfer};
use crate::pool::{DmaPool, Source};
use crate::search::search_device;
use crate::uring::{POLLED_SLEEP, Transfer};
use core::cell::{Cell, RefCell};
use core::ffi::{c_char, c_int, c_void};
use core::ptr::NonNull;
use core::task::{Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::ffi::CString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError, mpsc};
use weir_runtime::{EventSource, Handle, SourceId};

/// Pause between two looks at what SPDK has to do beside transfers, such as a drive's administrative queue.
const TEND_PAUSE: Duration = Duration::from_millis(2);

/// Pause between two looks at a device without transfers: it may have been taken away.
const IDLE_SLEEP: Duration = Duration::from_millis(10);

/// Longest start of SPDK: drives take seconds to be reset and identified.
const START_SECONDS_MAX: u32 = 60;

/// Longest wait for transfers when a device is closed.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

/// Most bytes of one device's transfers in memory for drives; what is beyond waits.
const MEMORY_MAX: usize = 64 << 20;

/// Memory of SPDK unless told otherwise, in MiB: its own buffers take some 200, transfers up to 64 a device.
const OPTIONS_MEMORY_MIB: u32 = 1024;

const KIND_READ: c_int = 0;
const KIND_WRITE: c_int = 1;
const KIND_FLUSH: c_int = 2;
const KIND_WRITE_STABLE: c_int = 3;

/// `struct weir_spdk_device` of the C side.
#[repr(C)]
struct RawDevice {
    _opaque: [u8; 0],
}

#[repr(C)]
#[derive(Default)]
struct RawInfo {
    bytes: u64,
    block: u32,
}

unsafe extern "C" {
    fn weir_spdk_start(
        config: *const c_char,
        json: *mut u8,
        json_len: usize,
        socket: *const c_char,
        memory_mib: u32,
        huge_pages: c_int,
        seconds_max: u32,
    ) -> c_int;
    fn weir_spdk_tend();
    fn weir_spdk_open(
        name: *const c_char,
        for_writing: c_int,
        opened: *mut *mut RawDevice,
        info: *mut RawInfo,
    ) -> c_int;
    fn weir_spdk_poll(device: *mut RawDevice) -> c_int;
    fn weir_spdk_is_removed(device: *const RawDevice) -> c_int;
    fn weir_spdk_close(device: *mut RawDevice) -> c_int;
    fn weir_spdk_allocate(len: usize) -> *mut c_void;
    fn weir_spdk_release(memory: *mut c_void);
    fn weir_spdk_begin(
        device: *mut RawDevice,
        kind: c_int,
        memory: *mut c_void,
        offset: u64,
        len: u64,
        done: unsafe extern "C" fn(*mut c_void, i32),
        context: *mut c_void,
    ) -> c_int;
}

/// How SPDK is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpdkOptions {
    /// Its configuration: the JSON that its own programs take.
    pub config: PathBuf,
    /// Memory that it takes, in MiB.
    pub memory_mib: u32,
    /// Whether that memory is huge pages, which drives need. Without, there are devices in memory only.
    pub has_huge_pages: bool,
}

impl SpdkOptions {
    /// Huge pages for a GiB, which is enough for some drives.
    #[must_use]
    pub const fn new(config: PathBuf) -> Self {
        Self { config, memory_mib: OPTIONS_MEMORY_MIB, has_huge_pages: true }
    }
}

/// The options that SPDK was started with; a process has one of it.
static STARTED: Mutex<Option<SpdkOptions>> = Mutex::new(None);

/// Whether SPDK's own work has ended for good. Locked while a turn of it is done.
static ENDING: Mutex<bool> = Mutex::new(false);

fn fail(device: &str, operation: &'static str, reason: impl Into<String>) -> MediaError {
    MediaError::Open { device: device.to_owned(), operation, reason: reason.into() }
}

fn system_error(code: c_int) -> io::Error {
    io::Error::from_raw_os_error(code.saturating_neg())
}

/// Starts SPDK for this process, on a thread of its own. Starting it again with the same options does nothing.
///
/// # Errors
/// When the configuration can't be read or used, or SPDK doesn't start.
pub fn start(options: &SpdkOptions) -> Result<(), MediaError> {
    let name = options.config.display().to_string();
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*started {
        Some(running) if running == options => return Ok(()),
        Some(_) => {
            return Err(fail(&name, "started", "SPDK runs already with other options in this process"));
        }
        None => {}
    }
    let json = std::fs::read(&options.config).map_err(|error| fail(&name, "read", error.to_string()))?;
    let folder = private_folder().map_err(|error| fail(&name, "started", error.to_string()))?;
    let path = |path: &PathBuf| CString::new(path.as_os_str().as_encoded_bytes());
    let (config, socket) = (path(&options.config), path(&folder.join("rpc")));
    let (Ok(config), Ok(socket)) = (config, socket) else {
        return Err(fail(&name, "started", "the path has a zero byte"));
    };
    // SAFETY: the function takes nothing and unwinds never.
    if unsafe { libc::atexit(end_tending) } != 0 {
        return Err(fail(&name, "started", "the process takes no more handlers of its end"));
    }
    let (sender, receiver) = mpsc::channel();
    let (memory, huge) = (options.memory_mib, c_int::from(options.has_huge_pages));
    let thread = std::thread::Builder::new().name("spdk".to_owned()).spawn(move || {
        let mut json = json;
        // SAFETY: the texts end with a zero and live through the call, which copies what it keeps. `json` is as long as
        // is said. No other thread starts SPDK, since `STARTED` is locked and says that it doesn't run.
        let result = unsafe {
            weir_spdk_start(
                config.as_ptr(),
                json.as_mut_ptr(),
                json.len(),
                socket.as_ptr(),
                memory,
                huge,
                START_SECONDS_MAX,
            )
        };
        // The starter waits for it.
        let _ = sender.send(result);
        while result == 0 && tend() {
            std::thread::sleep(TEND_PAUSE);
        }
    });
    thread.map_err(|error| fail(&name, "started", error.to_string()))?;
    let result = receiver.recv().unwrap_or(-libc::ECANCELED);
    // The socket is for the start only; that the folder stays behind does no harm.
    let _ = std::fs::remove_dir_all(folder);
    if result != 0 {
        let reason = format!(
            "SPDK does not start: {}; its own messages on standard error say more",
            system_error(result)
        );
        return Err(fail(&name, "started", reason));
    }
    *started = Some(options.clone());
    Ok(())
}

/// One turn of SPDK's own work, unless the process ends. The thread that has started SPDK calls it.
fn tend() -> bool {
    let is_ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    if !*is_ending {
        // SAFETY: SPDK runs, and by contract this is the thread that started it.
        unsafe { weir_spdk_tend() };
    }
    !*is_ending
}

/// Called when the process ends, before the libraries below SPDK take down what its work needs.
extern "C" fn end_tending() {
    *ENDING.lock().unwrap_or_else(PoisonError::into_inner) = true;
}

/// A directory that no other user may enter.
fn private_folder() -> io::Result<PathBuf> {
    let template = std::env::temp_dir().join("weir-spdk-XXXXXX");
    let mut path = template.into_os_string().into_encoded_bytes();
    path.push(0);
    // SAFETY: the text ends with a zero, and the call changes it in place without making it longer.
    if unsafe { libc::mkdtemp(path.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    path.pop();
    Ok(PathBuf::from(String::from_utf8_lossy(&path).into_owned()))
}

/// Memory that drives can reach.
const REACHABLE: Source = Source {
    take: |len| {
        // SAFETY: SPDK runs: only devices take memory, and they are opened after its start.
        let memory = NonNull::new(unsafe { weir_spdk_allocate(len) }.cast::<u8>())?;
        // SAFETY: the allocation has this length.
        unsafe { memory.write_bytes(0, len) };
        Some(memory)
    },
    give_back: release,
};

/// Gives memory back to SPDK.
///
/// # Safety
/// It came from [`REACHABLE`] and isn't used any more.
unsafe fn release(memory: NonNull<u8>, _: usize) {
    // SAFETY: passed on to the caller.
    unsafe { weir_spdk_release(memory.as_ptr().cast()) };
}

type Outcome = (Transfer, io::Result<()>);

#[derive(Default)]
struct CompletionSlot {
    outcome: Option<Outcome>,
    waker: Option<Waker>,
}

/// Waits for the end of a transfer.
async fn ended(target: Rc<RefCell<CompletionSlot>>) -> Outcome {
    core::future::poll_fn(|context| {
        let mut slot = target.borrow_mut();
        if let Some(outcome) = slot.outcome.take() {
            return Poll::Ready(outcome);
        }
        slot.waker = Some(context.waker().clone());
        Poll::Pending
    })
    .await
}

/// A transfer that SPDK has.
struct TransferContext {
    queue: Rc<Queue>,
    transfer: Transfer,
    /// What the drive reads or writes; nothing for a flush.
    memory: Option<DmaBuf>,
    len: usize,
    target: Rc<RefCell<CompletionSlot>>,
}

/// A device of one thread and its transfers.
struct Queue {
    raw: NonNull<RawDevice>,
    size: u64,
    waiting: RefCell<VecDeque<(Transfer, Rc<RefCell<CompletionSlot>>)>>,
    pool: DmaPool,
    under_way: Cell<usize>,
    stats: Cell<DeviceStats>,
}

/// Bytes that a transfer moves.
fn len_of(transfer: &Transfer) -> usize {
    match transfer {
        Transfer::Read { buffer, .. } => buffer.len(),
        Transfer::Write { data, .. } => data.iter().map(|slice| slice.len()).sum(),
        Transfer::Flush => 0,
    }
}

impl Queue {
    fn count(&self, change: impl FnOnce(&mut DeviceStats)) {
        let mut stats = self.stats.get();
        change(&mut stats);
        self.stats.set(stats);
    }

    fn enqueue(&self, transfer: Transfer) -> Rc<RefCell<CompletionSlot>> {
        let target = Rc::new(RefCell::new(CompletionSlot::default()));
        self.count(|stats| stats.in_flight += 1);
        self.waiting.borrow_mut().push_back((transfer, Rc::clone(&target)));
        target
    }

    /// Gives SPDK what waits, as far as there is memory. Returns whether it took anything.
    fn begin_waiting(self: &Rc<Self>) -> bool {
        let mut progress = false;
        loop {
            let Some((transfer, target)) = self.waiting.borrow_mut().pop_front() else { return progress };
            let len = len_of(&transfer);
            let memory = if len == 0 { None } else { self.pool.try_take(len) };
            if len > 0 && memory.is_none() {
                if self.under_way.get() == 0 {
                    self.end(transfer, len, Err(io::Error::from_raw_os_error(libc::ENOMEM)), &target);
                    continue;
                }
                // What is under way gives memory back.
                self.waiting.borrow_mut().push_front((transfer, target));
                return progress;
            }
            progress = true;
            self.begin(TransferContext { queue: Rc::clone(self), transfer, memory, len, target });
        }
    }

    fn begin(&self, mut work: TransferContext) {
        let memory = work.memory.as_deref_mut().unwrap_or_default();
        let (kind, offset, len) = match &work.transfer {
            Transfer::Read { offset, .. } => (KIND_READ, *offset, work.len as u64),
            Transfer::Write { offset, data, stable } => {
                let mut at = 0;
                for slice in data {
                    memory[at..at + slice.len()].copy_from_slice(slice);
                    at += slice.len();
                }
                (if *stable { KIND_WRITE_STABLE } else { KIND_WRITE }, *offset, work.len as u64)
            }
            Transfer::Flush => (KIND_FLUSH, 0, self.size),
        };
        let base = memory.as_mut_ptr();
        self.under_way.set(self.under_way.get() + 1);
        let context = Box::into_raw(Box::new(work));
        // SAFETY: the device is open and belongs to this thread. `context` stays valid until `done` has taken it back,
        // and with it the memory that the drive reads or writes.
        let begun = unsafe {
            weir_spdk_begin(self.raw.as_ptr(), kind, base.cast(), offset, len, done, context.cast())
        };
        if begun != 0 {
            // SAFETY: then `done` isn't called, and the context is still ours.
            unsafe { done(context.cast(), begun) };
        }
    }

    fn end(
        &self,
        mut transfer: Transfer,
        len: usize,
        result: io::Result<()>,
        target: &RefCell<CompletionSlot>,
    ) {
        self.count(|stats| stats.end(&transfer, len as u64, result.is_ok()));
        if let Transfer::Write { data, .. } = &mut transfer {
            // The task that waits for this memory may be the one that looks at the outcome only afterwards.
            data.clear();
        }
        let waker = {
            let mut slot = target.borrow_mut();
            slot.outcome = Some((transfer, result));
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn turn(self: &Rc<Self>) -> bool {
        let begun = self.begin_waiting();
        // SAFETY: the device is open and belongs to this thread.
        let polled = unsafe { weir_spdk_poll(self.raw.as_ptr()) } != 0;
        begun | (polled && self.under_way.get() > 0)
    }

    fn is_removed(&self) -> bool {
        // SAFETY: the device is open and belongs to this thread.
        unsafe { weir_spdk_is_removed(self.raw.as_ptr()) != 0 }
    }
}

/// Takes a transfer back from SPDK.
///
/// # Safety
/// `context` is what [`Queue::begin`] has passed, and it is passed once.
unsafe extern "C" fn done(context: *mut c_void, failed: i32) {
    // SAFETY: by the caller's promise this is the box that `begin` has given away, on the thread that did so.
    let work = unsafe { Box::from_raw(context.cast::<TransferContext>()) };
    let TransferContext { queue, mut transfer, memory, len, target } = *work;
    queue.under_way.set(queue.under_way.get() - 1);
    if let (Transfer::Read { buffer, .. }, Some(memory), 0) = (&mut transfer, &memory, failed) {
        buffer.copy_from_slice(&memory[..len]);
    }
    let result = if failed == 0 { Ok(()) } else { Err(system_error(failed)) };
    drop(memory);
    queue.end(transfer, len, result, &target);
}

/// A device's queue as its executor sees it.
struct QueueEvents(Rc<Queue>);

impl EventSource for QueueEvents {
    fn poll(&self) -> bool {
        self.0.turn()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm(&self) -> bool {
        !self.0.begin_waiting()
    }

    fn max_sleep(&self) -> Option<Duration> {
        Some(if self.0.under_way.get() > 0 { POLLED_SLEEP } else { IDLE_SLEEP })
    }
}

/// A device that SPDK's configuration names.
pub struct SpdkDevice {
    name: String,
    queue: Rc<Queue>,
    block: u32,
    handle: Handle,
    source: SourceId,
}

impl SpdkDevice {
    /// Opens a device by its name for this thread alone.
    ///
    /// # Errors
    /// When SPDK hasn't been started or doesn't know the name, or another uses the device.
    pub fn open(handle: &Handle, name: &str) -> Result<Self, MediaError> {
        let shown = format!("{}{name}", crate::open::SPDK_PREFIX);
        let refuse = |reason: String| fail(&shown, "opened", reason);
        if STARTED.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
            return Err(refuse(
                "SPDK has not been started: it needs a configuration (`spdk_config`)".to_owned(),
            ));
        }
        let text = CString::new(name).map_err(|error| refuse(error.to_string()))?;
        let (mut raw, mut info) = (core::ptr::null_mut(), RawInfo::default());
        // SAFETY: SPDK runs; the text ends with a zero and lives through the call; the others are places to write to.
        let result = unsafe { weir_spdk_open(text.as_ptr(), 1, &raw mut raw, &raw mut info) };
        let raw = match (result, NonNull::new(raw)) {
            (0, Some(raw)) => raw,
            (code, _) if code == -libc::EPERM || code == -libc::EBUSY => {
                return Err(MediaError::Busy { device: shown });
            }
            (code, _) if code == -libc::ENODEV => {
                return Err(refuse("SPDK's configuration has no device of this name".to_owned()));
            }
            (code, _) => return Err(refuse(system_error(code).to_string())),
        };
        let size = info.bytes - info.bytes % BLOCK as u64;
        let queue = Rc::new(Queue {
            raw,
            size,
            waiting: RefCell::default(),
            pool: DmaPool::of(MEMORY_MAX, REACHABLE),
            under_way: Cell::new(0),
            stats: Cell::default(),
        });
        let added = handle.add_source(Rc::new(QueueEvents(Rc::clone(&queue))) as Rc<dyn EventSource>);
        let usable = size > 0 && info.block.is_power_of_two() && BLOCK.is_multiple_of(info.block as usize);
        let source = match added {
            Ok(source) if usable => source,
            other => {
                if let Ok(source) = other {
                    handle.remove_source(source);
                }
                // SAFETY: the device was opened on this thread and has no transfers.
                unsafe { weir_spdk_close(raw.as_ptr()) };
                let reason = format!("{} bytes in blocks of {} can't be used", info.bytes, info.block);
                return Err(refuse(reason));
            }
        };
        Ok(Self { name: shown, queue, block: info.block, handle: handle.clone(), source })
    }

    /// Bytes of a logical block.
    #[must_use]
    pub const fn logical_block(&self) -> u32 {
        self.block
    }

    fn start<T: 'static>(
        &self,
        operation: &'static str,
        (offset, len): (u64, u64),
        transfer: Transfer,
        result: impl FnOnce(Transfer) -> Option<T> + 'static,
    ) -> IoFuture<T> {
        let device = self.name.clone();
        if self.queue.is_removed() {
            return Box::pin(core::future::ready(Err(MediaError::Closed { device })));
        }
        let target = self.queue.enqueue(transfer);
        Box::pin(async move {
            let (transfer, outcome) = ended(target).await;
            let failed = |error: io::Error| MediaError::Io {
                device,
                operation,
                offset,
                len,
                reason: error.to_string(),
            };
            match (outcome, result(transfer)) {
                (Ok(()), Some(value)) => Ok(value),
                (Err(error), _) => Err(failed(error)),
                (Ok(()), None) => Err(failed(io::ErrorKind::Other.into())),
            }
        })
    }

    fn write_slices(&self, offset: u64, data: Vec<Slice>, stable: bool) -> IoFuture<()> {
        let len = data.iter().map(|slice| slice.len() as u64).sum();
        if let Err(error) = check_transfer(&self.name, self.queue.size, offset, len) {
            return Box::pin(core::future::ready(Err(error)));
        }
        self.start("write", (offset, len), Transfer::Write { offset, data, stable }, |_| Some(()))
    }
}

impl Drop for SpdkDevice {
    fn drop(&mut self) {
        self.handle.remove_source(self.source);
        let until = std::time::Instant::now() + CLOSE_LIMIT;
        // Writes that were begun run to their end.
        while self.queue.stats.get().in_flight > 0 && std::time::Instant::now() < until {
            self.queue.turn();
        }
        if self.queue.under_way.get() == 0 {
            // SAFETY: opened on this thread, and nothing is under way. A device that SPDK doesn't let go of, or whose
            // transfers don't end, stays open: its memory is never used for anything else.
            unsafe { weir_spdk_close(self.queue.raw.as_ptr()) };
        }
    }
}

impl core::fmt::Debug for SpdkDevice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SpdkDevice")
            .field("name", &self.name)
            .field("size", &self.queue.size)
            .finish_non_exhaustive()
    }
}

impl Device for SpdkDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.queue.size
    }

    fn read(&self, offset: u64, buffer: DmaBuf) -> IoFuture<DmaBuf> {
        let len = buffer.len() as u64;
        if let Err(error) = check_transfer(&self.name, self.queue.size, offset, len) {
            return Box::pin(core::future::ready(Err(error)));
        }
        self.start("read", (offset, len), Transfer::Read { offset, buffer }, |transfer| match transfer {
            Transfer::Read { buffer, .. } => Some(buffer),
            _ => None,
        })
    }

    fn write(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.write_slices(offset, data, false)
    }

    fn write_stable(&self, offset: u64, data: Vec<Slice>) -> IoFuture<()> {
        self.write_slices(offset, data, true)
    }

    fn prepare(&self, _: u64, _: u64) -> IoFuture<()> {
        Box::pin(core::future::ready(Ok(())))
    }

    fn flush(&self) -> IoFuture<()> {
        self.start("flush", (0, 0), Transfer::Flush, |_| Some(()))
    }

    fn first_data(&self, from: u64) -> IoFuture<Option<u64>> {
        let (name, size, queue) = (self.name.clone(), self.queue.size, Rc::clone(&self.queue));
        Box::pin(async move {
            search_device(size, from, async |offset, buffer| {
                let len = buffer.len() as u64;
                match ended(queue.enqueue(Transfer::Read { offset, buffer })).await {
                    (Transfer::Read { buffer, .. }, Ok(())) => Ok(buffer),
                    (_, outcome) => {
                        let reason = outcome.err().map_or_else(String::new, |error| error.to_string());
                        Err(MediaError::Io { device: name.clone(), operation: "read", offset, len, reason })
                    }
                }
            })
            .await
        })
    }

    fn stats(&self) -> DeviceStats {
        self.queue.stats.get()
    }
}
