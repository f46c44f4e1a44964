//! Transfers with a process that sleeps, on a provider within the node.
//!
//! The test starts itself again as that process, and once more with a provider that can't copy between processes.

mod inbox;

use core::time::Duration;
use inbox::listen;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use weir_fabric::{Access, Address, FabricError, Options, RemoteRegion, open};
use weir_runtime::Handle;
use weir_runtime::real::Executor;

const LEN: usize = 1 << 20;

/// Time to fall asleep.
const LULL: Duration = Duration::from_millis(20);

/// Names the file in which the sleeping process says where its memory is.
const PLACE: &str = "WEIR_SLEEPING_PEER";

/// Has the provider move data through its own memory, for which it needs the peer.
const NO_COPY: &str = "FI_SHM_DISABLE_CMA";

/// Exposes memory and sleeps.
fn sleep_beside_memory(place: &Path) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let _inbox = listen(&endpoint);
    let mut buffer = endpoint.buffers().alloc(LEN).expect("memory");
    buffer.fill(3);
    let other = endpoint.buffers().alloc(LEN).expect("memory");
    let expose = |buffer, access| endpoint.expose(buffer, 0..LEN, access).expect("exposed");
    let exposures = [expose(&buffer, Access::Read), expose(&other, Access::Write)];
    let words = exposures.each_ref().map(|exposure| {
        let RemoteRegion { addr, key, len } = exposure.region();
        [addr, key, len].map(u64::to_le_bytes).concat()
    });
    let words = words.concat();
    let own = endpoint.address();
    let draft = place.with_extension("draft");
    std::fs::write(&draft, [words, own.as_bytes().to_vec()].concat()).expect("writable");
    std::fs::rename(&draft, place).expect("writable");
    // Whoever started this process kills it.
    executor.block_on(rt.sleep(Duration::from_mins(1)));
}

/// A process that sleeps beside its memory.
struct Sleeper {
    child: Child,
    address: Address,
    readable: RemoteRegion,
    writable: RemoteRegion,
}

impl Sleeper {
    async fn start(rt: &Handle) -> Self {
        let place =
            std::env::temp_dir().join(format!("weir-sleeping-{}-{}", std::process::id(), rt.random_u64()));
        let program = std::env::current_exe().expect("a path");
        let child = Command::new(program).env(PLACE, &place).stdout(Stdio::null()).spawn();
        let until = rt.now() + Duration::from_secs(20);
        let told = loop {
            match std::fs::read(&place) {
                Ok(told) => break told,
                Err(error) => assert!(rt.now() < until, "the peer doesn't start: {error}"),
            }
            rt.sleep(LULL).await;
        };
        std::fs::remove_file(&place).expect("it was there");
        let word = |at: usize| u64::from_le_bytes(told[at * 8..at * 8 + 8].try_into().expect("eight"));
        let region = |at| RemoteRegion { addr: word(at), key: word(at + 1), len: word(at + 2) };
        let address = Address::from_bytes(&told[48..]).expect("short");
        Self { child: child.expect("it starts"), address, readable: region(0), writable: region(3) }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.expect("it starts").success());
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("it has ended");
    }
}

/// Reads this many times from a process that sleeps each time. Returns how often it was woken.
fn wakes(reads: u32) -> u64 {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let _inbox = listen(&endpoint);
    executor.block_on(async {
        let peer = Sleeper::start(&rt).await;
        let to = endpoint.insert(&peer.address).expect("an address");
        // The first contact maps the peer, which takes both.
        endpoint.send(to, 0, &[b"hello"]).expect("accepted");
        let mut before = 0;
        for turn in 0..=reads {
            rt.sleep(LULL).await;
            if turn == 1 {
                before = endpoint.counters().doorbells.get();
            }
            let mut buffer = endpoint.buffers().alloc(LEN).expect("memory");
            let read = endpoint.read(to, &mut buffer, 0..LEN, peer.readable);
            assert_eq!(rt.timeout(Duration::from_secs(10), read).await, Ok(Ok(())));
            assert!(buffer.iter().all(|byte| *byte == 3));
        }
        endpoint.counters().doorbells.get() - before
    })
}

#[test]
fn a_write_to_a_process_that_has_stopped_ends_when_it_goes_on_or_dies_also_when_it_was_forgotten() {
    if std::env::var_os(PLACE).is_some() {
        return;
    }
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let _inbox = listen(&endpoint);
    let buffer = endpoint.buffers().alloc(LEN).expect("memory");
    executor.block_on(async {
        for goes_on in [true, false] {
            let mut peer = Sleeper::start(&rt).await;
            let to = endpoint.insert(&peer.address).expect("an address");
            endpoint.send(to, 0, &[b"hello"]).expect("accepted");
            rt.sleep(LULL).await;
            peer.signal("-STOP");
            let write = endpoint.write(to, &buffer, 0..LEN, peer.writable);
            rt.sleep(LULL).await;
            if std::env::var_os(NO_COPY).is_none() {
                assert_eq!(write.outcome(), Some(Ok(())), "the provider needs nothing of the peer");
                continue;
            }
            assert_eq!(write.outcome(), None, "the peer has to take it");
            if !goes_on {
                peer.child.kill().expect("it runs");
                peer.child.wait().expect("it has ended");
            }
            endpoint.forget(to);
            rt.sleep(LULL).await;
            assert_eq!(write.outcome(), if goes_on { None } else { Some(Err(FabricError::Cancelled)) });
            if goes_on {
                peer.signal("-CONT");
                assert_eq!(rt.timeout(Duration::from_secs(10), write).await, Ok(Ok(())));
            }
        }
    });
}

#[test]
fn a_peer_sleeps_on_where_the_provider_needs_nothing_of_it_and_is_woken_where_it_does() {
    if let Some(place) = std::env::var_os(PLACE) {
        sleep_beside_memory(Path::new(&place));
        return;
    }
    if std::env::var_os(NO_COPY).is_some() {
        assert!(wakes(5) >= 5, "each read needs the peer");
        return;
    }
    assert_eq!(wakes(5), 0);
    // The provider reads the setting once in the life of a process.
    let program = std::env::current_exe().expect("a path");
    let status = Command::new(program).env(NO_COPY, "1").status().expect("it starts");
    assert!(status.success());
}
