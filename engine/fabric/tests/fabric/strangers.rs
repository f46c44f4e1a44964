//! Senders within a node that nobody answers: more than the provider has room for.

use crate::inbox;

use core::time::Duration;
use inbox::{Inbox, listen};
use std::rc::Rc;
use weir_fabric::{Endpoint, Options, open};
use weir_runtime::real::Executor;

/// More than the provider has room for (256).
const STRANGERS: usize = 320;

/// More than that, who stay.
const CROWD: usize = 300;

/// Larger than what the provider copies at once.
const LEN: usize = 9000;

fn own(executor: &Executor) -> Rc<dyn Endpoint> {
    open(&executor.handle(), &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint")
}

/// Sends until something arrives: what has not been taken when an endpoint is opened anew is lost.
fn reach(executor: &Executor, from: &Rc<dyn Endpoint>, to: &Rc<dyn Endpoint>, inbox: &Inbox) {
    let rt = executor.handle();
    let until = rt.now() + Duration::from_secs(20);
    inbox.messages.borrow_mut().clear();
    while inbox.messages.borrow().is_empty() {
        assert!(rt.now() < until, "nothing arrives");
        let _ = from.insert(&to.address()).and_then(|peer| from.send(peer, 0, &[&[7; LEN]]));
        executor.block_on(rt.sleep(Duration::from_millis(20)));
    }
}

#[test]
fn senders_that_nobody_answers_take_no_place_from_those_that_come_later() {
    let executor = Executor::new().expect("an executor");
    let server = own(&executor);
    if !server.capabilities().within_process() {
        return;
    }
    let (friend, inbox) = (own(&executor), listen(&server));
    let answers = listen(&friend);
    let exchange = |friend: &Rc<dyn Endpoint>, answers: &Inbox| {
        reach(&executor, friend, &server, &inbox);
        reach(&executor, &server, friend, answers);
    };
    exchange(&friend, &answers);
    for _ in 0..STRANGERS {
        reach(&executor, &own(&executor), &server, &inbox);
    }
    exchange(&friend, &answers);
    let late = own(&executor);
    let late_answers = listen(&late);
    exchange(&late, &late_answers);
    assert_eq!(server.counters().reopened.get(), 1);
}

#[test]
fn more_than_there_is_room_for_may_come_at_the_same_moment() {
    let executor = Executor::new().expect("an executor");
    let server = own(&executor);
    if !server.capabilities().within_process() {
        return;
    }
    let inbox = listen(&server);
    let friends: Vec<_> = (0..CROWD).map(|_| own(&executor)).collect();
    for friend in &friends {
        let to = friend.insert(&server.address()).expect("an address");
        friend.send(to, 0, &[&[7; LEN]]).expect("accepted");
    }
    let rt = executor.handle();
    executor.block_on(rt.sleep(Duration::from_secs(1)));
    assert!(inbox.messages.borrow().len() > 200);
    let answers = listen(&friends[0]);
    reach(&executor, &friends[0], &server, &inbox);
    reach(&executor, &server, &friends[0], &answers);
}
