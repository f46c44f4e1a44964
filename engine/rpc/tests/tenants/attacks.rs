//! The attacks, each on a fresh stage.

use core::time::Duration;
use std::net::Ipv4Addr;
use std::rc::Rc;

use super::forgery::{Forger, Said};
use super::memory;
use super::stage::{COUNT, KEY, MALLORY, SUM, Stage, VICTIM};
use weir_fabric::Address;
use weir_proto::limits::PROTOCOL_MAX;
use weir_proto::{Epoch, TenantId};
use weir_rpc::seal::TAG_LEN;
use weir_rpc::wire::{self, HEADER_LEN, Header, Kind};
use weir_rpc::{Bulk, CallOptions, ClientId, Keys, RpcError};

pub fn run_all(stage: impl Fn() -> Stage) {
    tenants_are_served_side_by_side_and_named_to_handlers(&stage());
    a_key_of_nobody_is_denied_at_once_and_opens_nothing(&stage());
    forged_requests_reach_no_handler(&stage());
    recorded_messages_change_nothing(&stage());
    recorded_messages_change_nothing_after_a_restart(&stage());
    a_hello_is_worth_nothing_from_elsewhere(&stage());
    a_name_that_another_tenant_takes_is_still_free(&stage());
    altered_messages_are_refused_whatever_was_altered(&stage());
    answers_are_taken_from_the_server_only(&stage());
    memory::is_reached_by_nobody_who_was_not_given_its_key(&stage());
    memory::is_reached_with_its_key_as_far_as_it_was_exposed_and_no_further(&stage());
    a_flood_of_strangers_leaves_nothing_behind(&stage());
    the_places_of_an_address_that_is_claimed_are_its_owners(&stage());
}

fn tenants_are_served_side_by_side_and_named_to_handlers(stage: &Stage) {
    let other = stage.another_client(Some(Keys::Tenant(KEY.tenant(MALLORY))));
    let admin = stage.another_client(Some(Keys::System(KEY)));
    for (rpc, body) in [(&stage.victim, b"one"), (&other, b"two"), (&admin, b"sys"), (&stage.victim, b"1st")]
    {
        let reply = stage.call(rpc, COUNT, body, 10).expect("a reply");
        assert_eq!(&reply[..], body);
    }
    let executed = stage.executed.borrow();
    let tenants: Vec<TenantId> = executed.iter().map(|(tenant, _)| *tenant).collect();
    assert_eq!(tenants, [VICTIM, MALLORY, TenantId::SYSTEM, VICTIM]);
    assert_eq!(stage.server_metric("unauthenticated"), 0);
}

fn a_key_of_nobody_is_denied_at_once_and_opens_nothing(stage: &Stage) {
    // The wrong key for the right tenant, another tenant's key under the victim's number, and none at all.
    let wrong = weir_proto::TenantKey::new(VICTIM, [9; 32]);
    let borrowed = weir_proto::TenantKey::new(VICTIM, *KEY.tenant(MALLORY).bytes());
    for keys in [Keys::Tenant(wrong), Keys::Tenant(borrowed)] {
        let intruder = stage.another_client(Some(keys));
        let began = stage.rt.now();
        let error = stage.call(&intruder, COUNT, b"let me in", 20).expect_err("no such key");
        assert!(matches!(error, RpcError::Denied { tenant: VICTIM, .. }), "{error}");
        assert!(stage.rt.now() - began < Duration::from_secs(5), "denied, not timed out");
    }
    let keyless = stage.another_client(None);
    let error = stage.call(&keyless, COUNT, b"let me in", 1).expect_err("no key");
    assert!(matches!(error, RpcError::Unreachable { .. } | RpcError::TimedOut { .. }), "{error}");
    assert!(stage.executed.borrow().is_empty());
    assert!(stage.server_metric("unauthenticated") >= 3);
}

/// A request in the victim's name, sealed with nothing, with garbage, or by Mallory's own key.
fn forged(stage: &Stage, number: u64, tenant: TenantId, seal: Option<&Forger<'_>>) -> Vec<u8> {
    let said = Said { tenant, client: stage.victim.id(), number, wall_ns: stage.rt.wall_ns() };
    said.request(COUNT, b"forged", seal)
}

fn forged_requests_reach_no_handler(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"hello", 10).expect("a reply");
    let to = stage.aim();
    let garbage = |_: &[u8]| vec![0x77; TAG_LEN];
    let mut messages = Vec::new();
    for request in [1, 2, 3, 1000] {
        for tenant in [VICTIM, MALLORY, TenantId::SYSTEM] {
            messages.push(forged(stage, request, tenant, None));
            messages.push(forged(stage, request, tenant, Some(&garbage)));
        }
    }
    let count = messages.len() as u64;
    stage.attack(to, &messages);
    assert_eq!(stage.executed.borrow().len(), 1, "only the victim's own request was executed");
    // What is said in the name of another tenant's client is a stranger's.
    let refused = ["unauthenticated", "unknown_sessions"].map(|name| stage.server_metric(name));
    assert_eq!(refused, [count / 3, count - count / 3], "each was counted");
    stage.call(&stage.victim, COUNT, b"still here", 10).expect("a reply");
    // And with a session of Mallory's own: the victim's name does not go with it.
    let other = stage.another_client(Some(Keys::Tenant(KEY.tenant(MALLORY))));
    stage.call(&other, COUNT, b"mine", 10).expect("a reply");
    let executed = stage.executed.borrow();
    assert!(executed.iter().all(|(tenant, body)| (*tenant == MALLORY) == (body == b"mine")));
}

/// Everything that the victim has sent, of one kind.
fn recorded(stage: &Stage, kind: Kind) -> Vec<Vec<u8>> {
    let sent = stage.tap.sent.borrow();
    sent.iter()
        .filter(|bytes| wire::decode(bytes).is_ok_and(|(header, _)| header.kind == kind))
        .cloned()
        .collect()
}

fn recorded_messages_change_nothing(stage: &Stage) {
    for n in 0..5u8 {
        stage.call(&stage.victim, COUNT, &[n], 10).expect("a reply");
    }
    let to = stage.aim();
    let (hellos, requests) = (recorded(stage, Kind::Hello), recorded(stage, Kind::Request));
    assert!(!hellos.is_empty() && requests.len() >= 5);
    for _ in 0..3 {
        stage.attack(to, &hellos);
        stage.attack(to, &requests);
    }
    assert_eq!(stage.executed.borrow().len(), 5, "nothing was executed twice");
    let counters = ["repeats_stale", "repeats_answered", "impostors", "unknown_senders"];
    let refused: u64 = counters.iter().map(|name| stage.server_metric(name)).sum();
    assert!(refused >= 3 * requests.len() as u64, "each was met as a repeat or as nobody's: {refused}");
    let inbox = stage.inbox.messages.borrow();
    let heard = inbox.iter().filter(|bytes| {
        wire::decode(bytes).is_ok_and(|(header, _)| header.kind == Kind::Reply || header.sealed)
    });
    assert_eq!(heard.count(), 0, "Mallory got no reply to them");
    drop(inbox);
    stage.call(&stage.victim, COUNT, b"the session stands", 10).expect("a reply");
    assert_eq!(stage.victim.metrics().connects.get(), 1, "the victim noticed nothing");
}

fn recorded_messages_change_nothing_after_a_restart(stage: &Stage) {
    for n in 0..3u8 {
        stage.call(&stage.victim, COUNT, &[n], 10).expect("a reply");
    }
    let everything: Vec<Vec<u8>> = stage.tap.sent.borrow().clone();
    stage.restart_server();
    let to = stage.aim();
    stage.attack(to, &everything);
    stage.attack(to, &everything);
    assert_eq!(stage.executed.borrow().len(), 3, "no request of before was executed again");
    stage.call(&stage.victim, COUNT, b"after", 30).expect("the victim gets in again");
    assert_eq!(stage.executed.borrow().len(), 4);
}

/// A recorded hello, played to a server that knows neither its client nor who plays it, must not take the client's name:
/// the client itself could not get in any more.
fn a_hello_is_worth_nothing_from_elsewhere(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"before", 10).expect("a reply");
    let hello = recorded(stage, Kind::Hello).pop().expect("it was sent");
    stage.restart_server();
    let to = stage.aim();
    for _ in 0..3 {
        stage.attack(to, std::slice::from_ref(&hello));
    }
    let sources = stage.mallory.capabilities().source_err;
    if sources {
        assert_eq!(stage.server_metric("impostors"), 3, "the provider says where it comes from");
    }
    let told = stage.inbox.messages.borrow();
    let answered = told.iter().any(|bytes| {
        wire::decode(bytes).is_ok_and(|(header, _)| header.kind == Kind::HelloReply && header.sealed)
    });
    assert!(!answered, "no session for Mallory");
    drop(told);
    let began = stage.rt.now();
    stage.call(&stage.victim, COUNT, b"after", 30).expect("the victim gets in");
    assert!(stage.rt.now() - began < Duration::from_secs(5), "and is not kept waiting");
    assert_eq!(stage.victim.metrics().impostors.get(), 0);
    assert_eq!(stage.executed.borrow().len(), 2);
}

/// A hello by Mallory's own key, under any name, that says it is from `address`.
fn hello_from(stage: &Stage, client: ClientId, address: &Address) -> Vec<u8> {
    let said = Said { tenant: MALLORY, client, number: 1 << 40, wall_ns: stage.rt.wall_ns() };
    said.hello(address, &KEY.tenant(MALLORY))
}

/// Names are chosen by clients, and told to everybody who sees a message. Whoever is first with another tenant's, when a server
/// knows nobody, must not keep out whose it is.
fn a_name_that_another_tenant_takes_is_still_free(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"before", 10).expect("a reply");
    let shown = recorded(stage, Kind::Hello).pop().expect("it was sent");
    let (Header { client, .. }, _) = wire::decode(&shown).expect("well formed");
    stage.restart_server();
    let to = stage.aim();
    let hello = hello_from(stage, client, &stage.mallory.address());
    stage.attack(to, std::slice::from_ref(&hello));
    let is_in = |bytes: &Vec<u8>| {
        wire::decode(bytes).is_ok_and(|(header, _)| header.kind == Kind::HelloReply && header.sealed)
    };
    assert!(stage.inbox.messages.borrow().iter().any(is_in), "Mallory has a session, in that name");
    let began = stage.rt.now();
    stage.call(&stage.victim, COUNT, b"after", 30).expect("the victim gets in");
    assert!(stage.rt.now() - began < Duration::from_secs(5), "and is not kept waiting");
    stage.attack(to, &[hello]);
    stage.call(&stage.victim, COUNT, b"again", 10).expect("and stays in");
    assert_eq!((stage.server_metric("impostors"), stage.server_metric("unauthenticated")), (0, 0));
    assert_eq!(stage.executed.borrow().iter().filter(|(tenant, _)| *tenant == VICTIM).count(), 3);
}

/// A recorded message with one byte altered and, as far as the attacker can, put right again.
fn altered(bytes: &[u8], at: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at] ^= 0x10;
    if at < HEADER_LEN - 4 {
        // The header's checksum is no secret.
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &bytes[..HEADER_LEN - 4]);
        let sum = u32::try_from(sum & 0xffff_ffff).expect("masked");
        bytes[HEADER_LEN - 4..HEADER_LEN].copy_from_slice(&sum.to_le_bytes());
    }
    bytes
}

fn altered_messages_are_refused_whatever_was_altered(stage: &Stage) {
    let secret = [5u8; 1000];
    let call = |stage: &Stage| {
        let (rpc, rt, to) = (Rc::clone(&stage.victim), stage.rt.clone(), stage.peer());
        stage.run(async move {
            let mut memory = rpc.alloc(secret.len()).expect("memory");
            memory.copy_from_slice(&secret);
            let options = CallOptions::within(&rt, Duration::from_secs(10));
            rpc.call(&to, SUM, b"sum", Some(Bulk::read(&memory)), options).await.expect("a reply").to_vec()
        })
    };
    assert_eq!(call(stage), 5000u64.to_le_bytes());
    let request = recorded(stage, Kind::Request).pop().expect("it was sent");
    let (_, layout) = wire::decode(&request).expect("well formed");
    assert_eq!(layout.segments.len(), wire::SEGMENT_LEN, "a memory descriptor is among what is altered");
    let to = stage.aim();
    let messages: Vec<_> = (0..request.len()).map(|at| altered(&request, at)).collect();
    let before = stage.server_metric("messages_received");
    for messages in messages.chunks(40) {
        stage.attack(to, messages);
    }
    let arrived = stage.server_metric("messages_received") - before;
    let counted = ["malformed", "unauthenticated", "unknown_sessions"].map(|name| stage.server_metric(name));
    assert_eq!(counted.iter().sum::<u64>(), arrived, "each was refused for what it is: {counted:?}");
    assert_eq!(arrived, messages.len() as u64);
    assert_eq!(stage.executed.borrow().len(), 1);
}

fn answers_are_taken_from_the_server_only(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"first", 10).expect("a reply");
    let to = stage.mallory.insert(&stage.victim.endpoint().address()).expect("an address");
    // The next numbers that the victim may use, answered in advance, sealed with nothing or with garbage.
    let answers = |stage: &Stage, sealed: bool| -> Vec<Vec<u8>> {
        (0..20)
            .map(|request| {
                let mut header = Header::new(
                    Kind::Reply,
                    PROTOCOL_MAX,
                    stage.victim.id(),
                    request,
                    Epoch(stage.rt.wall_ns()),
                );
                header.body_len = 3;
                header.sealed = sealed;
                let tag: &[u8] = if sealed { &[1; TAG_LEN] } else { &[] };
                [&header.encode()[..], b"lie", tag].concat()
            })
            .collect()
    };
    let old: Vec<Vec<u8>> = stage.server_tap.borrow().sent.borrow().clone();
    for round in 0..5u8 {
        // In the same moment: while the victim waits.
        for bytes in [answers(stage, true), answers(stage, false), old.clone()].concat() {
            drop(stage.mallory.send(to, 0, &[&bytes]));
        }
        let reply = stage.call(&stage.victim, COUNT, &[round], 10).expect("a reply");
        assert_eq!(&reply[..], [round], "the server's own answer");
    }
    stage.pass(Duration::from_millis(30));
    let metrics = stage.victim.metrics();
    assert!(metrics.unauthenticated.get() + metrics.stray_replies.get() >= 100, "each lie was counted");
}

fn a_flood_of_strangers_leaves_nothing_behind(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"before", 10).expect("a reply");
    let to = stage.aim();
    let garbage = |_: &[u8]| vec![0x11; TAG_LEN];
    let before = stage.server_metric("messages_received");
    let mut sent = 0;
    for round in 0..20u64 {
        let messages: Vec<Vec<u8>> = (0..50)
            .map(|n| {
                let mut header = Header::new(
                    if n % 2 == 0 { Kind::Hello } else { Kind::Request },
                    1,
                    ClientId::new(1 + round * 1000 + n),
                    n,
                    Epoch(stage.rt.wall_ns()),
                );
                header.sealed = true;
                header.tenant = n;
                let bytes = header.encode().to_vec();
                let tag = garbage(&bytes);
                [bytes, tag].concat()
            })
            .collect();
        sent += messages.len() as u64;
        stage.attack(to, &messages);
    }
    assert_eq!(stage.server_metric("messages_received") - before, sent);
    let refused = stage.server_metric("unauthenticated") + stage.server_metric("unknown_sessions");
    assert_eq!(refused, sent, "each was counted");
    let server = stage.server.borrow();
    let server = server.as_ref().expect("it runs");
    let inserted = server.endpoint().counters().peers_inserted.get();
    assert!(inserted <= 3, "no entry for any of them: {inserted}");
    let answers = server.metrics().replies.get();
    assert!(answers < sent / 2, "a flood is not answered message by message: {answers} of {sent}");
    assert_eq!(server.metrics().running.get(), 0);
    stage.call(&stage.victim, COUNT, b"after", 10).expect("a reply");
}

fn the_places_of_an_address_that_is_claimed_are_its_owners(stage: &Stage) {
    let address = stage.victim.endpoint().address();
    let to = stage.aim();
    // As many as one tenant may have at one address.
    let hellos: Vec<_> = (1..=256).map(|n| hello_from(stage, ClientId::new(n), &address)).collect();
    for hellos in hellos.chunks(32) {
        stage.attack(to, hellos);
    }
    stage.call(&stage.victim, COUNT, b"me", 10).expect("it gets in");
}

/// Where the sender's own word is all that tells its address: nobody is there, and nobody has a key.
pub fn claims_of_addresses_where_nobody_is_cost_others_nothing(stage: &Stage) {
    stage.call(&stage.victim, COUNT, b"before", 10).expect("a reply");
    let to = stage.aim();
    let forged = |n: u32| {
        let place = (Ipv4Addr::from(0x7f02_0000 + n), 1);
        let mut hello = hello_from(stage, ClientId::new(n.into()), &Address::from_socket(place.into()));
        let last = hello.len() - 1;
        hello[last] ^= 1;
        hello
    };
    let hellos: Vec<_> = (1..=300).map(forged).collect();
    for hellos in hellos.chunks(25) {
        stage.attack(to, hellos);
    }
    let server = Rc::clone(stage.server.borrow().as_ref().expect("it runs"));
    let (retries, refused) = (&server.endpoint().counters().retries, stage.server_metric("unauthenticated"));
    let before = retries.get();
    assert!(before > 0 && refused == 300, "{before} tries to tell {refused}");
    for _ in 0..200 {
        stage.call(&stage.victim, COUNT, b"after", 10).expect("a reply");
    }
    let tries = retries.get() - before;
    assert!(tries < 5_000, "{tries} attempts at connections during 200 calls");
}
