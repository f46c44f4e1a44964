//! How membership messages get to other members.

use super::directory::Group;
use super::member::Membership;
use crate::error::Status;
use crate::request::Request;
use crate::{CallOptions, Rpc};
use core::time::Duration;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::rc::{Rc, Weak};
use weir_proto::group::{GroupAck, GroupPing, GroupRelay, GroupRelayReply, GroupSync, GroupSyncReply};
use weir_proto::{Der, Rank, codec, opcode};
use weir_runtime::{Handle, LocalBoxFuture};

/// Asks another member something; `None` when there was no answer within the limit, for whatever reason.
pub type MemberAnswer<T> = LocalBoxFuture<'static, Option<T>>;

/// Carries membership messages. An implementation decides on authentication.
pub trait GroupTransport {
    /// Sends a ping.
    fn ping(&self, to: Rank, ping: GroupPing, limit: Duration) -> MemberAnswer<GroupAck>;

    /// Asks a member to ping another.
    fn relay(&self, via: Rank, relay: GroupRelay, limit: Duration) -> MemberAnswer<GroupRelayReply>;

    /// Asks for a page of a table.
    fn sync(&self, to: Rank, sync: GroupSync, limit: Duration) -> MemberAnswer<GroupSyncReply>;
}

/// Membership messages as plain requests to tag 0 of each member, before all others.
pub struct RpcTransport {
    rt: Handle,
    rpc: Weak<Rpc>,
    group: Rc<Group>,
}

impl RpcTransport {
    /// A transport over this context, which it doesn't keep alive.
    #[must_use]
    pub fn new(rt: Handle, rpc: &Rc<Rpc>, group: Rc<Group>) -> Rc<Self> {
        Rc::new(Self { rt, rpc: Rc::downgrade(rpc), group })
    }

    fn ask<Req, Rep>(&self, to: Rank, opcode: u16, request: &Req, limit: Duration) -> MemberAnswer<Rep>
    where
        Req: Serialize,
        Rep: DeserializeOwned + 'static,
    {
        let peer = self.group.peer(to, 0);
        let (rpc, body) = (self.rpc.clone(), codec::encode(request));
        let options = CallOptions::within(&self.rt, limit).urgent();
        Box::pin(async move {
            let reply = rpc.upgrade()?.call(&peer?, opcode, &body, None, options).await.ok()?;
            codec::decode_message(&reply).ok()
        })
    }
}

impl GroupTransport for RpcTransport {
    fn ping(&self, to: Rank, ping: GroupPing, limit: Duration) -> MemberAnswer<GroupAck> {
        self.ask(to, opcode::GROUP_PING, &ping, limit)
    }

    fn relay(&self, via: Rank, relay: GroupRelay, limit: Duration) -> MemberAnswer<GroupRelayReply> {
        self.ask(via, opcode::GROUP_RELAY, &relay, limit)
    }

    fn sync(&self, to: Rank, sync: GroupSync, limit: Duration) -> MemberAnswer<GroupSyncReply> {
        self.ask(to, opcode::GROUP_SYNC, &sync, limit)
    }
}

pub(super) fn decoded<T: DeserializeOwned>(request: &Request) -> Result<T, Status> {
    codec::decode_message(request.body()).map_err(|error| Status::new(Der::PROTO, error.to_string()))
}

pub(super) fn gone() -> Status {
    Status::new(Der::SHUTDOWN, "this member is leaving its group")
}

/// Answers plain membership messages on this context, also when it has no room for other requests.
pub fn serve_membership(rpc: &Rpc, membership: &Rc<Membership>) {
    let member = Rc::downgrade(membership);
    rpc.serve_urgent(
        opcode::GROUP_PING,
        Rc::new(move |request: Request| {
            let member = member.upgrade();
            async move {
                let ping: GroupPing = decoded(&request)?;
                Ok(codec::encode(&member.ok_or_else(gone)?.answer_ping(&ping)))
            }
        }),
    );
    let member = Rc::downgrade(membership);
    rpc.serve_urgent(
        opcode::GROUP_RELAY,
        Rc::new(move |request: Request| {
            let member = member.upgrade();
            async move {
                let relay: GroupRelay = decoded(&request)?;
                Ok(codec::encode(&member.ok_or_else(gone)?.answer_relay(relay).await))
            }
        }),
    );
    let member = Rc::downgrade(membership);
    rpc.serve_urgent(
        opcode::GROUP_SYNC,
        Rc::new(move |request: Request| {
            let member = member.upgrade();
            async move {
                let sync: GroupSync = decoded(&request)?;
                Ok(codec::encode(&member.ok_or_else(gone)?.answer_sync(&sync)))
            }
        }),
    );
}
