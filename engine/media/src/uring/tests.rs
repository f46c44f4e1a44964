use super::stable::StableWrite;
use super::*;
use crate::device::BLOCK;
use crate::file::FileDevice;
use crate::{Device, DmaBuf, DmaPool};
use weir_runtime::join_all;
use weir_runtime::real::Executor;

/// Transfers at once.
const WIDTH: usize = 32;

/// Every combination of the features of files; polling needs a device that has queues for it.
fn combinations() -> impl Iterator<Item = Features> {
    let optional = [Features::FILES, Features::BUFFERS, Features::COOPERATIVE, Features::DEFERRED];
    (0..1 << optional.len()).map(move |bits: u32| {
        let chosen = optional.iter().enumerate().filter(|(index, _)| bits & (1 << index) != 0);
        chosen.fold(Features::NONE, |set, (_, feature)| set.with(*feature))
    })
}

/// A device, the pool whose memory it knows, and what they stand on.
struct Setup {
    executor: Executor,
    device: FileDevice,
    pool: DmaPool,
    _folder: tempfile::TempDir,
}

/// A file of a mebibyte on the file system of the build, which takes `O_DIRECT`, with a pool of so many bytes.
fn set_up(wanted: Features, pool_bytes: usize) -> Setup {
    let executor = Executor::new().expect("an executor");
    let program = std::env::current_exe().expect("own path");
    let folder = tempfile::tempdir_in(program.parent().expect("a directory")).expect("a scratch directory");
    let path = folder.path().join("target");
    drop(FileDevice::create(&executor.handle(), &path, 1 << 20).expect("space for 1 MiB"));
    let device = FileDevice::open_with(&executor.handle(), &path, wanted).expect("the file");
    let pool = DmaPool::new(pool_bytes);
    device.register(&pool);
    Setup { executor, device, pool, _folder: folder }
}

#[test]
fn transfers_work_with_every_combination_of_features() {
    for wanted in combinations() {
        let Setup { executor, device, pool, _folder } = set_up(wanted, 1 << 20);
        let in_use = device.features();
        assert!(wanted.has(in_use), "{in_use} of {wanted}");
        // Whoever may run the tests at all may have these; locked memory and old kernels limit the others.
        assert_eq!(in_use.has(Features::FILES), wanted.has(Features::FILES));
        executor.block_on(async {
            let mut data = pool.take(2 * BLOCK).await;
            data.fill(7);
            let scattered = [DmaBuf::copy_of(&[8; BLOCK]).into(), DmaBuf::copy_of(&[9; BLOCK]).into()];
            device.write(0, vec![data.into()]).await.expect("a write from the pool");
            device.write_stable(8192, scattered.into()).await.expect("a write from elsewhere");
            device.flush().await.expect("a flush");
            let read = device.read(0, pool.take(4 * BLOCK).await).await.expect("a read into the pool");
            let other = device.read(0, DmaBuf::new(4 * BLOCK)).await.expect("a read elsewhere");
            assert_eq!(read[..], other[..], "{wanted}");
            assert_eq!([read[0], read[BLOCK], read[2 * BLOCK], read[3 * BLOCK]], [7, 7, 8, 9], "{wanted}");
        });
        let stats = device.stats();
        assert_eq!(
            (stats.reads, stats.writes, stats.flushes, stats.errors, stats.in_flight),
            (2, 2, 2, 0, 0),
            "a stable write to a file has a flush of its own"
        );
    }
}

#[test]
fn what_is_begun_together_is_told_to_the_kernel_in_one_call() {
    let mut printed = Vec::new();
    for wanted in combinations() {
        let Setup { executor, device, .. } = &set_up(wanted, 1 << 20);
        let submitted = executor.block_on(async {
            let offset = |index: usize| (index * BLOCK) as u64;
            let begun: Vec<_> = (0..WIDTH)
                .map(|index| device.write(offset(index), vec![DmaBuf::new(BLOCK).into()]))
                .collect();
            let before = device.stats().calls;
            assert_eq!(before, 0, "nothing is told before the executor's next turn");
            device.poll_once();
            let submitted = device.stats().calls;
            assert!(join_all(begun).await.iter().all(Result::is_ok));
            submitted
        });
        assert_eq!(submitted, 1, "{WIDTH} writes with {wanted}");
        let stats = device.stats();
        // Those that complete one by one may each take a call where completions are deferred, but never more.
        assert!(stats.calls <= 1 + WIDTH as u64, "{} calls for {WIDTH} writes with {wanted}", stats.calls);
        printed.push(format!(
            "{:>3} calls for {WIDTH} writes at once with {}",
            stats.calls,
            device.features()
        ));
    }
    println!("{}", printed.join("\n"));
}

#[test]
fn a_large_transfer_is_told_to_the_kernel_at_once_with_what_was_begun_before_it() {
    for wanted in combinations() {
        let Setup { executor, device, .. } = &set_up(wanted, 1 << 20);
        executor.block_on(async {
            let small = device.write(0, vec![DmaBuf::copy_of(&[1; BLOCK]).into()]);
            assert_eq!(device.stats().calls, 0);
            let mut data = DmaBuf::new(AT_ONCE_MIN);
            data.fill(2);
            let large = device.write_stable(BLOCK as u64, vec![data.into()]);
            assert_eq!(device.stats().calls, 1, "{wanted}");
            assert!(join_all([small, large]).await.iter().all(Result::is_ok), "{wanted}");
            let read = device.read(0, DmaBuf::new(AT_ONCE_MIN + BLOCK));
            assert_eq!(device.stats().in_flight, 1);
            let read = read.await.expect("a read");
            assert!(
                read[..BLOCK].iter().all(|byte| *byte == 1) && read[BLOCK..].iter().all(|byte| *byte == 2)
            );
        });
        assert_eq!(device.stats().flushes, 1);
    }
}

/// Has stable writes made of a write and a flush for a while.
fn prefer_flushes<W: Wire>(ring: &Ring<W>) {
    ring.ways.note(StableWrite::Synchronous, BLOCK, Duration::from_secs(1));
    ring.ways.note(StableWrite::Flushed, BLOCK, Duration::ZERO);
}

#[test]
fn a_stable_write_that_is_given_up_is_made_stable_all_the_same() {
    let Setup { executor, device, .. } = &set_up(Features::DEFAULT, 1 << 20);
    device.with_ring(prefer_flushes);
    executor.block_on(async {
        drop(device.write_stable(0, vec![DmaBuf::copy_of(&[3; BLOCK]).into()]));
        let read = device.read(BLOCK as u64, DmaBuf::new(BLOCK));
        read.await.expect("a read");
        while device.stats().in_flight > 0 {
            device.poll_once();
        }
    });
    let stats = device.stats();
    assert_eq!((stats.writes, stats.flushes, stats.errors), (1, 1, 0));
}

#[test]
fn pool_memory_is_registered_chunk_by_chunk_and_named_by_index() {
    let Setup { executor, device, pool, _folder } = set_up(Features::DEFAULT, 3 * crate::pool::CHUNK);
    if !device.features().has(Features::BUFFERS) {
        return;
    }
    let vector =
        |buffer: &mut DmaBuf| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut large: Vec<DmaBuf> =
        (0..2).map(|_| pool.try_take(crate::pool::CHUNK).expect("an empty chunk")).collect();
    let mut small = pool.try_take(BLOCK).expect("a third chunk");
    executor.block_on(device.read(0, DmaBuf::new(BLOCK))).expect("a read");
    if !device.features().has(Features::BUFFERS) {
        // This process may not lock as much.
        return;
    }
    device.with_ring(|ring| {
        let regions = ring.regions.borrow();
        assert_eq!(
            large.iter_mut().map(|one| regions.of(&vector(one))).collect::<Vec<_>>(),
            [Some(0), Some(1)]
        );
        assert_eq!(regions.of(&vector(&mut small)), Some(2));
        assert_eq!(regions.of(&vector(&mut DmaBuf::new(BLOCK))), None, "memory of its own");
        let mut beyond = vector(&mut large[0]);
        beyond.iov_len += BLOCK;
        assert_eq!(regions.of(&beyond), None, "memory that reaches past its chunk");
    });
    drop(device);
}

#[test]
fn a_device_without_poll_queues_is_not_polled() {
    let Setup { executor, device, pool: _, _folder } = set_up(Features::DEFAULT, 1 << 20);
    let memory = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
    let file = Rc::new(OwnedFd::from(memory));
    let wire = crate::file::FileWire { may_flush: false };
    if let Ok(ring) = Ring::new(wire, &file, Features::DEFAULT) {
        let read = ring.start(&file, Transfer::Read { offset: 0, buffer: DmaBuf::new(BLOCK) });
        ring.drain(HUNG).expect("the kernel refuses at once");
        assert!(read.taken().expect("ended").is_err(), "memory has nothing to poll");
    }
    let polls = device.features().has(Features::POLLED);
    executor.block_on(device.read(0, DmaBuf::new(BLOCK))).expect("polled or not");
    executor.block_on(device.flush()).expect("polled or not");
    assert_eq!(device.stats().flushes, 1, "polled: {polls}");
}

#[test]
fn a_ring_gives_up_a_transfer_that_never_ends_and_leaves_its_memory_to_the_kernel() {
    let (silent, _open) = std::io::pipe().expect("a pipe");
    let silent = Rc::new(OwnedFd::from(silent));
    for wanted in [Features::NONE, Features::DEFAULT.without(Features::POLLED), Features::DEFERRED] {
        let wire = crate::file::FileWire { may_flush: false };
        let ring = Ring::new(wire, &silent, wanted).expect("a ring");
        let read = ring.start(&silent, Transfer::Read { offset: 0, buffer: DmaBuf::new(BLOCK) });
        let error = ring.drain(Duration::from_millis(5)).expect_err("nobody writes to the pipe");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{wanted}: {error}");
        assert!(read.taken().is_none() && ring.stats().in_flight == 1, "{wanted}");
        drop(ring);
    }
}

/// The processors on which the kernel's workers of the calling thread may run, as the kernel writes them.
fn processors_of_workers() -> Vec<String> {
    // SAFETY: a plain system call.
    let name = format!("iou-wrk-{}\n", unsafe { libc::gettid() });
    let threads = std::fs::read_dir("/proc/self/task").expect("the threads").flatten();
    let workers = threads
        .filter(|thread| std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|is| is == name));
    let status = workers.filter_map(|worker| std::fs::read_to_string(worker.path().join("status")).ok());
    let allowed = |status: String| {
        Some(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim().to_owned())
    };
    status.filter_map(allowed).collect()
}

#[test]
fn workers_keep_to_the_one_processor_of_their_thread() {
    // SAFETY: all bits of a set may be 0; the calls set and read such a set of the calling thread.
    let processor = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &raw mut set), 0);
        let first =
            (0..libc::CPU_SETSIZE as usize).find(|at| libc::CPU_ISSET(*at, &set)).expect("a processor");
        libc::CPU_ZERO(&mut set);
        libc::CPU_SET(first, &mut set);
        assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &raw const set), 0);
        first
    };
    let Setup { executor, device, .. } = set_up(Features::NONE, 1 << 20);
    executor.block_on(device.flush()).expect("a flush");
    let workers = processors_of_workers();
    assert!(!workers.is_empty(), "the kernel has flushed without a worker");
    assert!(workers.iter().all(|worker| *worker == processor.to_string()), "{workers:?}");
}
