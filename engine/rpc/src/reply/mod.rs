//! The answers that a context waits for, and what has come of each. It calls the records of contact, the maps and the wire's names.
//! Calls and the making of contact wait here; what is received is handed over here.

mod pending;

pub(crate) use pending::{Arrived, NoAnswer, Pending, Wait};

use crate::contact::Session;
use crate::wire::seal::Nonce;
use crate::wire::{ClientId, Kind};
use core::ops::{Deref, Range};
use std::rc::Rc;
use weir_fabric::{FabricError, Message};
use weir_proto::{Der, Epoch};

/// What shows that an answer is from whom it should be, where this side has keys.
#[derive(Clone, Debug)]
pub(crate) enum Proof {
    /// The answer to a hello: it is sealed with the session's key, to which it adds the other half.
    Hello(Nonce),
    /// It is sealed with the session's key.
    Session(Rc<Session>),
}

/// What became of a message that expects an answer.
pub(crate) enum Outcome {
    /// A reply that the request was executed.
    Reply(Reply),
    /// Any other one.
    Answer(Answer),
    /// The other side doesn't know this client, it says.
    Notice(Der),
    /// A reply of any kind whose clock is too far ahead: what it says can't be taken.
    Early,
    Failed(FabricError),
}

/// A refusal or hello reply, with what is asked of its header.
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) status: u32,
    pub(crate) server: ClientId,
    /// Overload replies: pause in nanoseconds.
    pub(crate) pause: u64,
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
}

/// A successful reply: its body, still in receive memory.
#[derive(Debug)]
pub struct Reply {
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
    pub(crate) server: ClientId,
    pub(crate) epoch: Epoch,
}

impl Reply {
    /// Which incarnation of the server answered: another one after each of its restarts.
    #[must_use]
    pub fn server(&self) -> ClientId {
        self.server
    }

    /// The server's clock when it answered.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Takes it from where it is, where an empty one is left.
    #[inline]
    pub(crate) fn take(&mut self) -> Self {
        let message = core::mem::take(&mut self.message);
        Self { message, body: self.body.clone(), server: self.server, epoch: self.epoch }
    }
}

impl Deref for Reply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.message.get(self.body.clone()).unwrap_or_default()
    }
}
