//! The cache of registrations of the application's memory: what is unmapped and mapped anew at the same place is
//! registered anew.
#![expect(unsafe_code, reason = "mapping memory the way that applications do")]

mod inbox;

use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::time::Duration;
use inbox::{listen, providers_with_keys};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::rc::Rc;
use std::sync::Mutex;
use weir_fabric::{Access, Buffer, Endpoint, Options, open};
use weir_runtime::real::Executor;

const LEN: usize = 64 << 10;

/// The tests take turns: while one unmaps memory that is watched, the other would find nothing in its cache.
static TURN: Mutex<()> = Mutex::new(());

fn map(at: *mut c_void, value: u8) -> NonNull<u8> {
    let fixed = if at.is_null() { MapFlags::empty() } else { MapFlags::FIXED };
    // SAFETY: new memory, or in the place of memory that nothing refers to.
    let made =
        unsafe { mmap_anonymous(at, LEN, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | fixed) };
    let made = NonNull::new(made.expect("memory").cast::<u8>()).expect("not null");
    // SAFETY: just mapped.
    unsafe { made.write_bytes(value, LEN) };
    made
}

/// Mercury's protocols keep no registrations of ours.
fn providers() -> impl Iterator<Item = &'static str> {
    providers_with_keys().into_iter().filter(|provider| !provider.starts_with("mercury/"))
}

/// Two endpoints of one thread that keep few registrations.
fn set_up(provider: &str) -> (Executor, [Rc<dyn Endpoint>; 2]) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let options = Options { mr_cache: 8, ..Options::near(provider, "127.0.0.1", 1) };
    let endpoints = [open(&rt, &options), open(&rt, &options)].map(|made| made.expect("an endpoint"));
    (executor, endpoints)
}

/// Exposes the application's memory for one read, and lets a peer do it.
async fn lend(
    rt: &weir_runtime::Handle,
    owner: &Rc<dyn Endpoint>,
    reader: &Rc<dyn Endpoint>,
    memory: NonNull<u8>,
) -> u8 {
    // SAFETY: the memory stays mapped until the exposure is settled and the buffer dropped.
    let buffer = unsafe { Buffer::from_raw(memory, LEN) };
    let exposure = owner.expose(&buffer, 0..LEN, Access::Read).expect("exposed");
    let peer = reader.insert(&owner.address()).expect("an address");
    let mut local = reader.buffers().alloc(LEN).expect("memory");
    let read = reader.read(peer, &mut local, 0..LEN, exposure.region());
    rt.timeout(Duration::from_secs(10), read).await.expect("in time").expect("read");
    exposure.settle();
    assert!(local.iter().all(|byte| *byte == local[0]));
    local[0]
}

#[test]
fn a_registration_serves_again_until_its_memory_is_freed_and_never_after() {
    let _turn = TURN.lock();
    providers().for_each(free_and_take_again);
}

fn free_and_take_again(provider: &str) {
    let (executor, [owner, reader]) = set_up(provider);
    let rt = executor.handle();
    let (_one, _other) = (listen(&owner), listen(&reader));
    let (registrations, hits) = (&owner.counters().registrations, &owner.counters().mr_hits);
    executor.block_on(async {
        let memory = map(null_mut(), 1);
        for _ in 0..10 {
            assert_eq!(lend(&rt, &owner, &reader, memory).await, 1);
        }
        if hits.get() == 0 {
            // Where the kernel doesn't tell, nothing may be kept.
            assert_eq!(registrations.get(), 10);
            return;
        }
        assert_eq!((registrations.get(), hits.get()), (1, 9));
        // SAFETY: nothing refers to it.
        unsafe { munmap(memory.as_ptr().cast(), LEN) }.expect("unmapped");
        let again = map(memory.as_ptr().cast(), 2);
        assert_eq!(again, memory, "other memory at the same place");
        assert_eq!(lend(&rt, &owner, &reader, again).await, 2);
        assert_eq!((registrations.get(), hits.get()), (2, 9), "registered anew");
        assert_eq!(owner.counters().mr_stale.get(), 1);
        // In place of some pages in the middle.
        let middle = again.as_ptr().wrapping_add(LEN / 2);
        // SAFETY: nothing refers to it.
        let mapped = unsafe {
            mmap_anonymous(
                middle.cast(),
                4096,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )
        };
        mapped.expect("memory");
        // SAFETY: just mapped.
        unsafe { middle.write_bytes(2, 4096) };
        assert_eq!(lend(&rt, &owner, &reader, again).await, 2);
        assert_eq!((registrations.get(), hits.get()), (3, 9));
        // More places than are kept: the cache stays within its bound, and what was used last is there.
        let many: Vec<_> = (0..20).map(|_| map(null_mut(), 3)).collect();
        for memory in &many {
            assert_eq!(lend(&rt, &owner, &reader, *memory).await, 3);
        }
        let before = hits.get();
        lend(&rt, &owner, &reader, many[19]).await;
        lend(&rt, &owner, &reader, many[0]).await;
        assert_eq!(hits.get() - before, 1);
    });
}

#[test]
fn threads_that_map_and_unmap_at_the_same_places_never_meet_an_old_registration() {
    let _turn = TURN.lock();
    providers().for_each(change_hands);
}

fn change_hands(provider: &str) {
    let (executor, [owner, reader]) = set_up(provider);
    let rt = executor.handle();
    let (_one, _other) = (listen(&owner), listen(&reader));
    // Others free and take memory of the same size meanwhile, so that places change hands.
    let end = std::sync::Arc::new(core::sync::atomic::AtomicBool::new(false));
    let busy = std::sync::Arc::clone(&end);
    let thread = std::thread::spawn(move || {
        while !busy.load(core::sync::atomic::Ordering::Relaxed) {
            let memory = map(null_mut(), 9);
            // SAFETY: nothing refers to it.
            unsafe { munmap(memory.as_ptr().cast(), LEN) }.expect("unmapped");
        }
    });
    executor.block_on(async {
        let mut last = 0u64;
        for round in 0..300u32 {
            let value = round.to_le_bytes()[0] & 7;
            let memory = map(null_mut(), value);
            let before = owner.counters().registrations.get();
            assert_eq!(lend(&rt, &owner, &reader, memory).await, value);
            assert_eq!(
                owner.counters().registrations.get(),
                before + 1,
                "round {round}: new memory, new registration"
            );
            last = before + 1;
            // SAFETY: nothing refers to it.
            unsafe { munmap(memory.as_ptr().cast(), LEN) }.expect("unmapped");
        }
        assert_eq!(last, 300);
    });
    end.store(true, core::sync::atomic::Ordering::Relaxed);
    thread.join().expect("the other thread");
}
