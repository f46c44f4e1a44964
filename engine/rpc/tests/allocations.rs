//! In steady state a small request allocates nothing, on the client and on the server, with authentication; one that lends
//! memory a few small things.
#![expect(unsafe_code, reason = "an allocator that counts")]

mod port;

use core::cell::Cell;
use core::time::Duration;
use std::alloc::{GlobalAlloc, Layout, System};
use std::rc::Rc;
use weir_fabric::{Options, open};
use weir_proto::capability::SystemKey;
use weir_rpc::{Bulk, CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

/// Counts what each thread asks for.
struct Counting;

// SAFETY: every call is the system allocator's; counting touches a thread-local number that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The thread may be ending; then nobody asks for the number any more.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const EMPTY: u16 = 0x7001;
/// Pulls all of the client's memory.
const PULL: u16 = 0x7002;
/// Bytes of it.
const LENT: usize = 64 << 10;
/// Most that glibc keeps at hand for each thread. It puts larger memory together, and takes it apart again, each time.
const AT_HAND: usize = 1032;
/// Requests until lists and tables have grown.
const WARM: usize = 2000;
const COUNTED: u64 = 2000;

/// Allocations of the thread while `width` requests at a time were answered, client and server together: how many, and how
/// large the largest one was.
fn allocations(provider: &str, keyed: bool, width: usize, opcode: u16) -> (u64, usize) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = port::free();
    let key = SystemKey([1; 32]);
    let config = RpcConfig { keys: keyed.then_some(Keys::System(key)), ..RpcConfig::default() };
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let server = Rpc::new(rt.clone(), endpoint, config.clone());
    server.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    server.serve(
        PULL,
        Rc::new(|request: Request| async move {
            let mut buffer = request.alloc(LENT)?;
            request.pull(0, &mut buffer, LENT).await?;
            Ok(Vec::new())
        }),
    );
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint");
    let client = Rpc::new(rt.clone(), endpoint, config);
    let left = Rc::new(Cell::new(WARM));
    let run = |count: usize| {
        left.set(count);
        let workers: Vec<_> = (0..width)
            .map(|_| {
                let (inner, rpc, left) = (rt.clone(), Rc::clone(&client), Rc::clone(&left));
                rt.spawn(async move {
                    let to = Peer::new("127.0.0.1", port);
                    let memory = rpc.alloc(LENT).expect("memory");
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        let options = CallOptions::within(&inner, Duration::from_secs(20));
                        let bulk = (opcode == PULL).then(|| Bulk::read(&memory));
                        rpc.call(&to, opcode, &[7; 64], bulk, options).await.expect("a reply");
                    }
                })
            })
            .collect();
        let before = COUNT.with(Cell::get);
        LARGEST.set(0);
        executor.block_on(async {
            for worker in workers {
                worker.await.expect("not aborted");
            }
        });
        (COUNT.with(Cell::get) - before, LARGEST.get())
    };
    run(WARM);
    run(usize::try_from(COUNTED).expect("small"))
}

#[test]
fn small_requests_allocate_nothing_once_tables_have_grown() {
    for provider in ["tcp", "shm"] {
        for keyed in [false, true] {
            for width in [1, 16] {
                let (count, _) = allocations(provider, keyed, width, EMPTY);
                // A peer by name for each worker, and what the system's clocks and a table that grows late may need.
                let allowed = 8 + 4 * width as u64;
                println!(
                    "{provider}, authenticated: {keyed}, {width} at a time: {count} allocations, {COUNTED} requests"
                );
                assert!(
                    count <= allowed,
                    "{provider} keyed={keyed} width={width}: {count} in {COUNTED} requests"
                );
            }
        }
    }
}

#[test]
fn a_request_that_lends_memory_allocates_little() {
    for provider in ["tcp", "shm"] {
        let (count, largest) = allocations(provider, false, 1, PULL);
        println!("{provider}: {count} allocations, {COUNTED} requests, the largest of {largest} bytes");
        assert!(count <= 2 * COUNTED + COUNTED / 10, "{provider}: {count} in {COUNTED} requests");
        assert!(largest <= AT_HAND, "{provider}: one of {largest} bytes");
    }
}

#[test]
fn the_counter_counts() {
    let before = COUNT.with(Cell::get);
    let boxed = std::hint::black_box(Box::new(5));
    assert_eq!(*boxed, 5);
    assert_eq!(COUNT.with(Cell::get) - before, 1);
}
