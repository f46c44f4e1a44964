//! Two engines that meet with different lists of engines make them equal.

use std::rc::Rc;
use std::time::Duration;

use weir_proto::group::{GroupList, GroupOffer};
use weir_proto::{TargetIndex, codec, opcode};
use weir_rpc::{CallOptions, Peer, RpcError};
use weir_runtime::Instant;

use super::Engines;
use crate::refusal::Rejection;
use crate::seal::Destination;

/// Longest wait for another engine's list, or for it to fetch this one's: two round trips and 100 KB.
const SETTLE_LIMIT: Duration = Duration::from_secs(2);

impl Engines {
    /// Sends the list to an engine that asks for it, and fetches the list of an engine that has a newer one.
    pub(crate) fn answer_offers(self: &Rc<Self>) {
        let engines = Rc::downgrade(self);
        self.serve(opcode::GROUP_LIST, move |_, (): ()| {
            let list = engines.upgrade().map(|engines| engines.roster().list());
            async move { list.ok_or(Rejection::NotSealed) }
        });
        let engines = Rc::downgrade(self);
        self.serve(opcode::GROUP_OFFER, move |from, (offer, index): (GroupOffer, TargetIndex)| {
            let engines = engines.upgrade();
            async move {
                let engines = engines.ok_or(Rejection::NotSealed)?;
                if offer.version > engines.roster().version() {
                    let until = engines.runtime().now() + SETTLE_LIMIT;
                    let peer = Peer::new(&offer.host, offer.port);
                    if let Err(error) = engines.fetch((&peer, (from, index)), offer.version, until).await {
                        tracing::debug!(%from, error, "a newer list of engines is not to be had");
                    }
                }
                Ok::<_, Rejection>(engines.roster().version())
            }
        });
    }

    /// Makes the own list and a peer's equal. Whether they are, or the own one has changed.
    pub(crate) async fn settle(&self, to: (&Peer, Destination), deadline: Instant) -> bool {
        let until = deadline.min(self.runtime().now() + SETTLE_LIMIT);
        let Some(own) = self.get(self.own_rank()) else { return false };
        let port = u32::from(own.fabric_port) + self.own_index().0;
        // Checked with the list: ports end before 65536.
        let Ok(port) = u16::try_from(port) else { return false };
        let offer = GroupOffer { version: self.roster().version(), host: own.host, port };
        // What the receiver seals its question for, which may not know this engine yet.
        let offered = codec::encode_with_tail(&offer, &self.own_index());
        let answer = self.exchange(to, opcode::GROUP_OFFER, &offered, CallOptions::until(until)).await;
        let Some(theirs) = answer.ok().and_then(|answer| codec::decode_message::<u64>(&answer).ok()) else {
            return false;
        };
        if theirs > self.roster().version()
            && let Err(error) = self.fetch(to, theirs, until).await
        {
            tracing::warn!(peer = %to.0, version = theirs, error, "a newer list of engines can't be used");
        }
        let now = self.roster().version();
        // A list that came meanwhile is reason to try again, not to give up.
        theirs == now || now != offer.version
    }

    /// Fetches a list of at least this version, unless another request has done so meanwhile.
    async fn fetch(&self, to: (&Peer, Destination), version: u64, until: Instant) -> Result<(), String> {
        let turn = self.runtime().timeout_at(until, self.roster().fetching.acquire()).await;
        let _turn = turn.map_err(|_| "another one is being fetched".to_owned())?;
        if self.roster().version() >= version {
            return Ok(());
        }
        let nothing = codec::encode(&());
        let answer = self.exchange(to, opcode::GROUP_LIST, &nothing, CallOptions::until(until)).await;
        let answer = answer.map_err(|error: RpcError| error.to_string())?;
        let list: GroupList = codec::decode_message(&answer).map_err(|error| error.to_string())?;
        self.roster().adopt(list).map_err(|error| error.to_string())
    }
}
