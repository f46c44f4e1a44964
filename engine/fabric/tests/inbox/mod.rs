//! What arrives at an endpoint.

use core::cell::RefCell;
use std::rc::{Rc, Weak};
use weir_fabric::{Endpoint, FabricError, Message, PeerId, Sink};
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

/// Gives the endpoint an inbox.
pub fn listen(endpoint: &Rc<dyn Endpoint>) -> Rc<Inbox> {
    let inbox = Rc::new(Inbox::default());
    let weak = Rc::downgrade(&inbox) as Weak<dyn Sink>;
    endpoint.set_sink(weak);
    inbox
}
