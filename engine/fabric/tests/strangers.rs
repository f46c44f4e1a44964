//! Senders within a node that nobody answers: more than the provider has room for.

mod inbox;

use core::time::Duration;
use inbox::{Inbox, listen};
use std::rc::Rc;
use weir_fabric::{Endpoint, Options, open};
use weir_runtime::real::Executor;

/// More than the provider has room for (256).
const STRANGERS: usize = 320;

/// More than that who stay.
const FRIENDS: usize = 280;

/// How long somebody tries who may not get a place.
const PATIENCE: Duration = Duration::from_millis(300);

/// Larger than what the provider copies at once.
const LEN: usize = 9000;

fn own(executor: &Executor) -> Rc<dyn Endpoint> {
    open(&executor.handle(), &Options::near("shm", "127.0.0.1", 1)).expect("an endpoint")
}

/// Sends until something arrives: what has not been taken when an endpoint is opened anew is lost.
fn reach(executor: &Executor, from: &Rc<dyn Endpoint>, to: &Rc<dyn Endpoint>, inbox: &Inbox) {
    assert!(reach_within(Duration::from_secs(20), executor, from, to, inbox), "nothing arrives");
}

/// The same for so long; whether something has arrived.
fn reach_within(
    patience: Duration,
    executor: &Executor,
    from: &Rc<dyn Endpoint>,
    to: &Rc<dyn Endpoint>,
    inbox: &Inbox,
) -> bool {
    let rt = executor.handle();
    let until = rt.now() + patience;
    inbox.messages.borrow_mut().clear();
    while inbox.messages.borrow().is_empty() {
        if rt.now() >= until {
            return false;
        }
        let _ = from.insert(&to.address()).and_then(|peer| from.send(peer, 0, &[&[7; LEN]]));
        executor.block_on(rt.sleep(Duration::from_millis(20)));
    }
    true
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
fn of_more_than_there_is_room_for_those_that_came_first_are_served() {
    let executor = Executor::new().expect("an executor");
    let server = own(&executor);
    if !server.capabilities().within_process() {
        return;
    }
    let inbox = listen(&server);
    let friends: Vec<_> = (0..FRIENDS).map(|_| own(&executor)).collect();
    let answers = listen(&friends[0]);
    // All are answered, so that none is a stranger.
    let reached = friends.iter().filter(|friend| {
        let came = reach_within(PATIENCE, &executor, friend, &server, &inbox);
        let _ = server.insert(&friend.address()).and_then(|peer| server.send(peer, 0, &[b"an answer"]));
        came
    });
    assert!(reached.count() > 200);
    reach(&executor, &friends[0], &server, &inbox);
    reach(&executor, &server, &friends[0], &answers);
}
