//! Requests and replies on the real providers where no posted buffer takes more than one message.

use crate::port;

use core::time::Duration;
use std::rc::Rc;
use weir_fabric::{Ability, Options, libfabric, open, tested};
use weir_rpc::{CallOptions, Peer, Request, Rpc, RpcConfig};
use weir_runtime::real::Executor;

const ECHO: u16 = 0x7041;

/// More than there are buffers, so that each has been posted again.
const REQUESTS: usize = 1200;

/// Calls one after another, of all sizes up to the largest that travels inline.
fn talk(provider: &str, server_without: &[Ability], client_without: &[Ability]) {
    let executor = Executor::new().expect("an executor");
    let rt = executor.handle();
    let port = port::free();
    let rpc = |options: Options, without: &[Ability]| {
        let options = Options { without: without.to_vec(), ..options };
        let endpoint = open(&rt, &options).expect("an endpoint");
        assert_eq!(endpoint.capabilities().multi_recv, without.is_empty(), "{provider}");
        Rpc::new(rt.clone(), endpoint, RpcConfig::default())
    };
    let server = rpc(Options::listen(provider, "127.0.0.1", port), server_without);
    server.serve(ECHO, Rc::new(|request: Request| async move { Ok(request.body().to_vec()) }));
    let client = rpc(Options::near(provider, "127.0.0.1", port), client_without);
    let to = Peer::new("127.0.0.1", port);
    executor.block_on(async {
        for n in 0..REQUESTS {
            let body = vec![n.to_le_bytes()[0]; n * 12];
            let options = CallOptions::within(&rt, Duration::from_secs(20));
            let reply = client.call(&to, ECHO, &body, None, options).await.expect("a reply");
            assert_eq!(reply[..], body, "{provider}: request {n}");
        }
    });
    assert_eq!(server.endpoint().counters().slab_copies.get(), 0, "a message occupies no more than itself");
}

#[test]
fn requests_and_replies_get_through_where_each_message_has_a_buffer_of_its_own() {
    const WITHOUT: &[Ability] = &[Ability::MultiRecv];
    for provider in tested().into_iter().filter(|provider| !provider.starts_with("mercury/")) {
        if libfabric::probe(provider).expect("built in").within_process() {
            talk(provider, WITHOUT, WITHOUT);
            talk(provider, WITHOUT, &[]);
            talk(provider, &[], WITHOUT);
        }
    }
}
