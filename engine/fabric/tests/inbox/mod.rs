//! What arrives at an endpoint.

use core::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_fabric::libfabric::probe;
use weir_fabric::{Endpoint, FabricError, Message, PeerId, Sink, tested};
use weir_runtime::sync::Notify;

/// Keeps every message and tells of it.
#[derive(Default)]
pub struct Inbox {
    pub messages: RefCell<Vec<Message>>,
    pub notify: Notify,
}

impl Sink for Inbox {
    fn message(&self, message: Message) {
        self.messages.borrow_mut().push(message);
        self.notify.notify_one();
    }

    fn send_failed(&self, _peer: PeerId, _context: u64, _error: FabricError) {}
}

/// Those of libfabric's providers that are tested on which this process can talk to itself.
#[allow(dead_code, reason = "each test program uses a part of it")]
pub fn providers_within() -> Vec<&'static str> {
    let native = tested().into_iter().filter(|name| !name.starts_with("mercury/"));
    native.filter(|name| probe(name).expect("it is there").within_process()).collect()
}

/// Those that are tested on which an access needs a key: within a node memory is found by its address alone.
#[allow(dead_code, reason = "each test program uses a part of it")]
pub fn providers_with_keys() -> Vec<&'static str> {
    tested().into_iter().filter(|name| *name != "shm" && !name.ends_with("na+sm")).collect()
}

/// Gives the endpoint an inbox.
pub fn listen(endpoint: &Rc<dyn Endpoint>) -> Rc<Inbox> {
    let inbox = Rc::new(Inbox::default());
    let weak = Rc::downgrade(&inbox) as Weak<dyn Sink>;
    endpoint.set_sink(weak);
    inbox
}
