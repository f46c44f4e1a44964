//! Names of changes that may be sent to one leader after another.

use core::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use weir_proto::replica::ChangeId;

/// Names that a context has given.
#[derive(Default)]
pub(super) struct Changes {
    /// Drawn with the first one; 0: not yet.
    client: Cell<u64>,
    last: Cell<u64>,
    outstanding: RefCell<BTreeSet<u64>>,
}

/// The name of a change, until its outcome is known or it is given up.
pub(crate) struct NamedChange {
    changes: Rc<Changes>,
    number: u64,
}

impl Changes {
    /// Names a change. `random` draws the client's number.
    pub(super) fn begin(self: &Rc<Self>, random: impl FnOnce() -> u64) -> NamedChange {
        if self.client.get() == 0 {
            self.client.set(random().max(1));
        }
        let number = self.last.get() + 1;
        self.last.set(number);
        self.outstanding.borrow_mut().insert(number);
        NamedChange { changes: Rc::clone(self), number }
    }
}

impl NamedChange {
    pub(crate) fn id(&self) -> ChangeId {
        ChangeId { client: self.changes.client.get(), number: self.number }
    }

    /// No change below this number is sent again.
    pub(crate) fn acked(&self) -> u64 {
        self.changes.outstanding.borrow().first().copied().map_or(self.number, |first| first.min(self.number))
    }
}

impl Drop for NamedChange {
    fn drop(&mut self) {
        self.changes.outstanding.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_done_is_not_sent_again() {
        let changes = Rc::new(Changes::default());
        let (first, second) = (changes.begin(|| 7), changes.begin(|| 8));
        assert_eq!((first.id().number, second.id().number, second.acked()), (1, 2, 1));
        drop(first);
        assert_eq!(second.acked(), 2);
        let third = changes.begin(|| 9);
        assert_eq!((third.id().client, third.acked()), (7, 2));
    }
}
