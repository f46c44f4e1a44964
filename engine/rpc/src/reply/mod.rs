//! The answers that a context waits for, and the outcome of each. It calls the records of contact, the maps and
//! the names of the wire format. Calls and hellos wait here; received answers are handed over here.

mod pending;

pub(crate) use pending::{AnswerKind, NoAnswer, Pending, Wait};

use crate::contact::Session;
use crate::wire::seal::Nonce;
use crate::wire::{ClientId, Kind};
use core::ops::{Deref, Range};
use std::rc::Rc;
use weir_fabric::{FabricError, Message};
use weir_proto::{Der, Epoch};

/// What authenticates an answer, where this side has keys.
#[derive(Clone, Debug)]
pub(crate) enum ReplyAuth {
    /// The answer to a hello is sealed with the session's key, to which it adds the server's nonce.
    Hello(Nonce),
    /// It is sealed with the session's key.
    Session(Rc<Session>),
}

/// The outcome of a message that expects an answer.
pub(crate) enum Outcome {
    /// A reply: the request was executed.
    Reply(Reply),
    /// Any other answer.
    Answer(Answer),
    /// The other side says that it doesn't know this client.
    Notice(Der),
    /// An answer whose clock is too far ahead, so that nothing it says is used.
    Early,
    Failed(FabricError),
}

/// A refusal or a hello reply, with what callers need of its header.
pub(crate) struct Answer {
    pub(crate) kind: Kind,
    pub(crate) status: u32,
    pub(crate) server: ClientId,
    /// Overload replies: pause in nanoseconds.
    pub(crate) pause: u64,
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
}

/// A successful reply. Its body is still in receive memory.
#[derive(Debug)]
pub struct Reply {
    pub(crate) message: Message,
    pub(crate) body: Range<usize>,
    pub(crate) server: ClientId,
    pub(crate) epoch: Epoch,
}

impl Reply {
    /// The incarnation of the server that answered: another one after each restart.
    #[must_use]
    pub fn server(&self) -> ClientId {
        self.server
    }

    /// The server's clock when it answered.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Moves it out, and leaves an empty one.
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
