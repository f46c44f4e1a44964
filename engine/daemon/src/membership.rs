//! Membership between engines: sealed messages from target 0 to target 0, urgent on both sides, so that an engine that
//! has too much to do is not taken for a dead one.

use std::rc::{Rc, Weak};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_group::{Engines, Rejection};
use weir_proto::group::{GroupAck, GroupPing, GroupRelay, GroupRelayReply, GroupSync, GroupSyncReply};
use weir_proto::{Rank, TargetIndex, opcode};
use weir_rpc::membership::swim::SwimConfig;
use weir_rpc::membership::{GroupTransport, MemberAnswer, Membership};
use weir_runtime::Handle;

/// Carries membership messages under the system's seal.
struct Sealed {
    engines: Weak<Engines>,
}

impl Sealed {
    fn ask<Req, Rep>(&self, to: Rank, opcode: u16, request: Req, limit: Duration) -> MemberAnswer<Rep>
    where
        Req: Serialize + 'static,
        Rep: DeserializeOwned + 'static,
    {
        let engines = self.engines.clone();
        Box::pin(async move {
            let engines = engines.upgrade()?;
            engines.ask(to, TargetIndex(0), opcode, &request, limit).await.ok()
        })
    }
}

impl GroupTransport for Sealed {
    fn ping(&self, to: Rank, ping: GroupPing, limit: Duration) -> MemberAnswer<GroupAck> {
        self.ask(to, opcode::GROUP_PING, ping, limit)
    }

    fn relay(&self, via: Rank, relay: GroupRelay, limit: Duration) -> MemberAnswer<GroupRelayReply> {
        self.ask(via, opcode::GROUP_RELAY, relay, limit)
    }

    fn sync(&self, to: Rank, sync: GroupSync, limit: Duration) -> MemberAnswer<GroupSyncReply> {
        self.ask(to, opcode::GROUP_SYNC, sync, limit)
    }
}

/// Takes part in the membership of all configured engines.
pub fn start(rt: &Handle, engines: &Rc<Engines>, config: SwimConfig) -> Rc<Membership> {
    let ranks: Vec<Rank> = engines.all().iter().map(|info| info.rank).collect();
    let transport = Rc::new(Sealed { engines: Rc::downgrade(engines) });
    let membership = Membership::start(rt, engines.own_rank(), &ranks, config, transport);

    let (member, door) = (Rc::downgrade(&membership), Rc::downgrade(engines));
    engines.serve(opcode::GROUP_PING, move |sealed_by, ping: GroupPing| {
        let (member, genuine) = (member.upgrade(), is_genuine(&door, sealed_by, ping.from));
        async move { genuine.and(member.ok_or(Rejection::NotSealed)).map(|member| member.answer_ping(&ping)) }
    });
    let (member, door) = (Rc::downgrade(&membership), Rc::downgrade(engines));
    engines.serve(opcode::GROUP_RELAY, move |sealed_by, relay: GroupRelay| {
        let (member, genuine) = (member.upgrade(), is_genuine(&door, sealed_by, relay.ping.from));
        async move {
            let member = genuine.and(member.ok_or(Rejection::NotSealed))?;
            Ok::<_, Rejection>(member.answer_relay(relay).await)
        }
    });
    let (member, door) = (Rc::downgrade(&membership), Rc::downgrade(engines));
    engines.serve(opcode::GROUP_SYNC, move |sealed_by, sync: GroupSync| {
        let (member, genuine) = (member.upgrade(), is_genuine(&door, sealed_by, sync.from));
        async move { genuine.and(member.ok_or(Rejection::NotSealed)).map(|member| member.answer_sync(&sync)) }
    });
    let member = Rc::downgrade(&membership);
    engines.roster().watch(move |infos| {
        if let Some(member) = member.upgrade() {
            member.regroup(&infos.iter().map(|info| info.rank).collect::<Vec<_>>());
        }
    });
    membership
}

/// The sender that sealed a message must be the member that it speaks for.
fn is_genuine(engines: &Weak<Engines>, sealed_by: Rank, from: Rank) -> Result<(), Rejection> {
    if sealed_by == from {
        return Ok(());
    }
    if let Some(engines) = engines.upgrade() {
        engines.count_forged();
    }
    Err(Rejection::NotSealed)
}
