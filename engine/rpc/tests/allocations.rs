//! In steady state a request allocates nothing, on the client and on the server, with authentication, whether it lends memory
//! or not.
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
/// Pulls all of the client's memory.
const PULL: u16 = 0x7002;
/// Pushes to all of it.
const PUSH: u16 = 0x7003;
/// Requests that are counted.
const MANY: usize = 2000;
/// The same of those that lend a MiB or more.
const FEW: usize = 500;

/// Requests of one kind.
#[derive(Clone, Copy, Debug)]
struct Load {
    keyed: bool,
    /// At a time.
    width: usize,
    opcode: u16,
    /// Bytes of the client's memory, where the operation moves any.
    lent: usize,
}

impl Load {
    /// How many are counted, after as many until lists and tables have grown.
    fn requests(self) -> usize {
        if self.lent < 1 << 20 { MANY } else { FEW }
    }

    /// Allocations that are of no request: a peer by name for each worker, and what the system's clocks and a table that grows
    /// late may need. A client that was silent for some milliseconds says again who it is, and may be entered anew, with some
    /// dozens: that is how long a request that lends much may take on a busy machine. Who waits for a credit goes the long way,
    /// which is in a box.
    fn allowed(self) -> u64 {
        let slow = if self.opcode == EMPTY { 0 } else { self.requests() / 10 };
        let long = if self.width > RpcConfig::default().credits { self.requests() } else { 0 };
        8 + 4 * self.width as u64 + (slow + long) as u64
    }
}

/// Allocations of the thread while they were answered, client and server together.
fn allocations(provider: &str, load: Load) -> u64 {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = port::free();
    let Load { keyed, width, opcode, lent } = load;
    let key = SystemKey([1; 32]);
    let config = RpcConfig { keys: keyed.then_some(Keys::System(key)), ..RpcConfig::default() };
    let endpoint = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let server = Rpc::new(rt.clone(), endpoint, config.clone());
    server.serve(EMPTY, Rc::new(|_: Request| async { Ok(Vec::new()) }));
    server.serve(
        PULL,
        Rc::new(move |request: Request| async move {
            let mut buffer = request.payload(lent).await?;
            request.pull(0, &mut buffer, lent).await?;
            Ok(Vec::new())
        }),
    );
    server.serve(
        PUSH,
        Rc::new(move |request: Request| async move {
            let buffer = request.payload(lent).await?;
            request.push(0, &buffer, lent).await?;
            Ok(Vec::new())
        }),
    );
    let endpoint = open(&rt, &Options::near(provider, "127.0.0.1", port)).expect("an endpoint");
    let client = Rpc::new(rt.clone(), endpoint, config);
    let left = Rc::new(Cell::new(0));
    let run = |count: usize| {
        left.set(count);
        let workers: Vec<_> = (0..width)
            .map(|_| {
                let (inner, rpc, left) = (rt.clone(), Rc::clone(&client), Rc::clone(&left));
                rt.spawn(async move {
                    let to = Peer::new("127.0.0.1", port);
                    let mut memory = rpc.alloc(lent).expect("memory");
                    while left.get() > 0 {
                        left.set(left.get() - 1);
                        let options = CallOptions::within(&inner, Duration::from_secs(20));
                        let bulk = match opcode {
                            PULL => Some(Bulk::read(&memory)),
                            PUSH => Some(Bulk::write(&mut memory)),
                            _ => None,
                        };
                        rpc.call(&to, opcode, &[7; 64], bulk, options).await.expect("a reply");
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
    run(load.requests());
    run(load.requests())
}

/// Rounds that are counted until one is within what is allowed. A machine that stops the process for a while adds allocations to the
/// rounds it falls on, and takes none away. What requests allocate themselves is in each round.
const ROUNDS_MAX: u32 = 5;

/// Demands that requests of this kind allocate nothing.
fn none(load: Load) {
    for provider in ["tcp", "shm"] {
        let mut counts = Vec::new();
        for _ in 0..ROUNDS_MAX {
            counts.push(allocations(provider, load));
            if counts.last() <= Some(&load.allowed()) {
                break;
            }
        }
        println!("{provider}, {load:?}: {counts:?} allocations, {} requests", load.requests());
        let least = counts.iter().min().expect("a round at least");
        assert!(*least <= load.allowed(), "{provider}, {load:?}: {counts:?} in {} requests", load.requests());
    }
}

#[test]
fn small_requests_allocate_nothing_once_tables_have_grown() {
    for keyed in [false, true] {
        for width in [1, 16, 64] {
            none(Load { keyed, width, opcode: EMPTY, lent: 64 });
        }
    }
}

#[test]
fn requests_that_lend_memory_allocate_nothing_once_tables_have_grown() {
    for (keyed, width, lent) in
        [(false, 1, 64 << 10), (true, 1, 64 << 10), (true, 4, 1 << 20), (false, 2, 3 << 20)]
    {
        for opcode in [PULL, PUSH] {
            none(Load { keyed, width, opcode, lent });
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
