//! Cancelled calls on the real providers: once a buffer is free again nothing changes it, although none of them tells
//! whether an access to a registration that has ended is under way.

use crate::fill;
use crate::port;

use core::time::Duration;
use fill::fill;
use std::rc::Rc;
use weir_fabric::{MrMethod, Options, open, tested};
use weir_rpc::{Bulk, CallOptions, Peer, Rpc, RpcConfig};
use weir_runtime::race;
use weir_runtime::real::Executor;

const PUSH: u16 = 0x7031;
/// Sixteen pieces; what the pool keeps at most for the next user.
const LEN: usize = 16 << 20;
const OWNER_BYTE: u8 = 7;

/// Cancels calls at different moments. Returns how many buffers were changed after they were free, and how often the
/// server's word was needed.
fn cancel(provider: &str, method: MrMethod, rounds: u32) -> (u32, u64) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = port::free();
    let server = open(&rt, &Options::listen(provider, "127.0.0.1", port)).expect("an endpoint");
    let options = Options { mr_method: method, ..Options::near(provider, "127.0.0.1", port) };
    let client = open(&rt, &options).expect("an endpoint");
    let server = Rpc::new(rt.clone(), server, RpcConfig::default());
    server.serve(PUSH, Rc::new(|request| fill(request, 9)));
    let client = Rpc::new(rt.clone(), client, RpcConfig::default());
    let to = Peer::new("127.0.0.1", port);
    let changed = executor.block_on(async {
        let options = || CallOptions::within(&rt, Duration::from_secs(20));
        let mut changed = 0;
        assert!(client.call(&to, 0x7fff, b"", None, options()).await.is_err());
        for round in 0..rounds {
            let mut buffer = client.alloc(LEN).expect("memory");
            buffer.fill(0);
            let at = buffer.as_ptr() as usize;
            let call = client.call(&to, PUSH, b"", Some(Bulk::write(&mut buffer)), options());
            race(call, rt.sleep(Duration::from_micros(u64::from(round) * 1400))).await;
            if buffer.is_empty() {
                drop(buffer);
                let given_back = async {
                    while client.endpoint().buffers().used() > 0 {
                        rt.sleep(Duration::from_micros(200)).await;
                    }
                };
                let given_back = rt.timeout(Duration::from_secs(10), given_back).await;
                assert!(given_back.is_ok(), "{provider}, {method}, round {round}: the server was asked");
                buffer = client.alloc(LEN).expect("memory");
            }
            assert_eq!(buffer.as_ptr() as usize, at, "the same memory");
            buffer.fill(OWNER_BYTE);
            rt.sleep(Duration::from_millis(40)).await;
            changed += u32::from(buffer.iter().any(|byte| *byte != OWNER_BYTE));
        }
        changed
    });
    (changed, client.metrics().withdrawals_confirmed.get())
}

#[test]
fn nothing_changes_a_buffer_that_is_free_after_its_call_was_cancelled() {
    for provider in tested() {
        for method in [MrMethod::MatchEvents, MrMethod::Uncached] {
            let (changed, confirmed) = cancel(provider, method, 10);
            assert_eq!(changed, 0, "{provider}, {method}");
            assert!(
                confirmed > 2,
                "{provider}, {method}: calls were really cut off in the middle: {confirmed}"
            );
        }
    }
}

#[test]
fn a_key_cache_leaves_the_buffer_to_the_server() {
    for provider in tested().into_iter().filter(|provider| !provider.starts_with("mercury/")) {
        let (changed, confirmed) = cancel(provider, MrMethod::KeyCache, 10);
        assert!(changed > 1, "{provider}: {changed} buffers were written to after they were used again");
        assert_eq!(confirmed, 0, "{provider}: nobody asks");
    }
}
