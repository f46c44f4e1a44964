//! Clients are told where the engines are: those that joined the system after the client was told how to reach it, too.

use std::rc::Rc;

use weir_proto::{Der, codec, opcode};
use weir_rpc::{Request, Status};

use super::Engines;
use crate::reply::reply;

impl Engines {
    /// Answers clients that ask where the engines are. Their messages are sealed with a tenant's key, and what they are told is in each
    /// client's attach file: it needs no handle.
    pub(crate) fn announce(self: &Rc<Self>) {
        let engines = Rc::downgrade(self);
        let handler = move |request: Request| {
            let list = engines.upgrade().map(|engines| engines.roster().list());
            async move {
                let list = list.ok_or_else(|| Status::new(Der::SHUTDOWN, "the engine is stopping"))?;
                reply(&request, codec::encode(&list)).await
            }
        };
        self.rpc.serve(opcode::SYSTEM_ENGINES, Rc::new(handler));
    }
}
