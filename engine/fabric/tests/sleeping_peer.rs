//! Transfers with a process that sleeps, on a provider within the node.
//!
//! The test starts itself again as that process, and once more with a provider that can't copy between processes.

mod inbox;

use core::time::Duration;
use inbox::listen;
use std::path::Path;
use std::process::{Command, Stdio};
use weir_fabric::{Access, Address, Options, RemoteRegion, open};
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
    let exposure = endpoint.expose(&buffer, 0..LEN, Access::Read).expect("exposed");
    let RemoteRegion { addr, key, len } = exposure.region();
    let words = [addr, key, len].map(u64::to_le_bytes).concat();
    let own = endpoint.address();
    let draft = place.with_extension("draft");
    std::fs::write(&draft, [words, own.as_bytes().to_vec()].concat()).expect("writable");
    std::fs::rename(&draft, place).expect("writable");
    // Whoever started this process kills it.
    executor.block_on(rt.sleep(Duration::from_mins(1)));
}

/// Reads this many times from a process that sleeps each time. Returns how often it was woken.
fn wakes(reads: u32) -> u64 {
    let place = std::env::temp_dir().join(format!("weir-sleeping-{}", std::process::id()));
    let program = std::env::current_exe().expect("a path");
    let peer = Command::new(program).env(PLACE, &place).stdout(Stdio::null()).spawn();
    let mut peer = peer.expect("it starts");
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let endpoint = open(&rt, &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint");
    let _inbox = listen(&endpoint);
    let woken = executor.block_on(async {
        let until = rt.now() + Duration::from_secs(20);
        let told = loop {
            match std::fs::read(&place) {
                Ok(told) => break told,
                Err(error) => assert!(rt.now() < until, "the peer doesn't start: {error}"),
            }
            rt.sleep(LULL).await;
        };
        let word = |at: usize| u64::from_le_bytes(told[at * 8..at * 8 + 8].try_into().expect("eight"));
        let region = RemoteRegion { addr: word(0), key: word(1), len: word(2) };
        let to = endpoint.insert(&Address::from_bytes(&told[24..]).expect("short")).expect("an address");
        // The first contact maps the peer, which takes both.
        endpoint.send(to, 0, &[b"hello"]).expect("accepted");
        let mut before = 0;
        for turn in 0..=reads {
            rt.sleep(LULL).await;
            if turn == 1 {
                before = endpoint.counters().doorbells.get();
            }
            let mut buffer = endpoint.buffers().alloc(LEN).expect("memory");
            let read = endpoint.read(to, &mut buffer, 0..LEN, region);
            assert_eq!(rt.timeout(Duration::from_secs(10), read).await, Ok(Ok(())));
            assert!(buffer.iter().all(|byte| *byte == 3));
        }
        endpoint.counters().doorbells.get() - before
    });
    peer.kill().expect("it runs");
    peer.wait().expect("it has ended");
    std::fs::remove_file(&place).expect("it was there");
    woken
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
