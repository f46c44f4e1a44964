//! In steady state a small request allocates nothing, on the client and on the server, with authentication.
#![expect(unsafe_code, reason = "an allocator that counts")]

mod port;

use core::cell::Cell;
use core::time::Duration;
use std::alloc::{GlobalAlloc, Layout, System};
use std::rc::Rc;
use weir_fabric::{Options, open};
use weir_proto::capability::SystemKey;
use weir_rpc::{CallOptions, Keys, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

/// Counts what each thread asks for.
struct Counting;

// SAFETY: every call is the system allocator's; counting touches a thread-local number that needs no allocation.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // The thread may be ending; then nobody asks for the number any more.
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
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
/// Requests until lists and tables have grown.
const WARM: usize = 2000;
const COUNTED: u64 = 2000;

/// Allocations of the thread while `width` requests at a time were answered, client and server together.
fn allocations(provider: &str, keyed: bool, width: usize) -> u64 {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = port::free();
    let key = SystemKey([1; 32]);
    let config = RpcConfig { keys: keyed.then_some(Keys::System(key)), ..RpcConfig::default() };
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let server = Rpc::new(rt.clone(), endpoint, config.clone());
    server.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
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
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        let options = CallOptions::within(&inner, Duration::from_secs(20));
                        rpc.call(&to, EMPTY, &[7; 64], None, options).await.expect("a reply");
                    }
                })
            })
            .collect();
        let before = COUNT.with(Cell::get);
        executor.block_on(async {
            for worker in workers {
                worker.await.expect("not aborted");
            }
        });
        COUNT.with(Cell::get) - before
    };
    run(WARM);
    run(usize::try_from(COUNTED).expect("small"))
}

#[test]
fn small_requests_allocate_nothing_once_tables_have_grown() {
    for provider in ["tcp", "shm"] {
        for keyed in [false, true] {
            for width in [1, 16] {
                let count = allocations(provider, keyed, width);
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
fn the_counter_counts() {
    let before = COUNT.with(Cell::get);
    let boxed = std::hint::black_box(Box::new(5));
    assert_eq!(*boxed, 5);
    assert_eq!(COUNT.with(Cell::get) - before, 1);
}
