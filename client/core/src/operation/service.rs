//! Requests to a replicated pool service: the replica that leads is found, and asked again elsewhere when another one does.

use core::time::Duration;

use weir_proto::pool::{PoolMap, PoolRequest, ServiceTail};
use weir_proto::{Der, PoolId, Rank, codec, opcode};
use weir_runtime::Instant;

use super::Payload;
use super::payload::SERVICE_REPLY;
use super::request::{Exchange, Reach, Refusal, RequestInfo};
use crate::error::Error;
use crate::session::{Context, NamedChange};

/// Longest wait for one replica while there are others: one that died has a successor within two seconds.
pub(crate) const SERVICE_LIMIT: Duration = Duration::from_secs(2);

/// Pause before the replicas are asked once more.
pub(crate) const SERVICE_PAUSE: Duration = Duration::from_millis(100);

/// Whether another engine may answer where this one has failed so.
pub(crate) fn is_elsewhere(error: &Error) -> bool {
    matches!(error, Error::Unavailable { .. } | Error::Fabric { .. })
        || error.is(Der::NOTLEADER)
        || error.is(Der::UNREACH)
}

/// An engine that is asked for the service.
struct Asked {
    rank: Rank,
    /// Whether it replicates the service, as far as is known.
    is_replica: bool,
    /// Whether all replicas have been asked since the last pause.
    ends_round: bool,
}

/// Who is asked, one after another: the replicas, and from the second round on behind them one more engine of the pool, since others may
/// replicate the service by now.
struct Rounds {
    replicas: Vec<Rank>,
    others: Vec<Rank>,
    asked: usize,
    strayed: usize,
}

impl Rounds {
    fn new(replicas: Vec<Rank>, mut others: Vec<Rank>) -> Self {
        others.retain(|rank| !replicas.contains(rank));
        Self { replicas, others, asked: 0, strayed: 0 }
    }
}

impl Iterator for Rounds {
    type Item = Asked;

    fn next(&mut self) -> Option<Asked> {
        let round = self.asked.checked_div(self.replicas.len())?;
        let is_between = self.asked.is_multiple_of(self.replicas.len());
        if is_between
            && round >= 2
            && self.strayed + 2 <= round
            && let Some(rank) = self.strayed.checked_rem(self.others.len()).map(|at| self.others[at])
        {
            self.strayed += 1;
            return Some(Asked { rank, is_replica: false, ends_round: false });
        }
        let rank = self.replicas[self.asked % self.replicas.len()];
        self.asked += 1;
        let ends_round = self.asked.is_multiple_of(self.replicas.len());
        Some(Asked { rank, is_replica: true, ends_round })
    }
}

impl Context {
    /// Sends a request to a pool's service. A change has a name, so that it is made once whichever replicas it is sent to. `send`
    /// sends the body to one replica.
    pub(crate) async fn exchange_with_service(
        &self,
        pool: PoolId,
        info: &RequestInfo<'_>,
        body: Vec<u8>,
        send: impl AsyncFn(Reach, &[u8], Instant) -> core::result::Result<Exchange, Refusal>,
        deadline: Instant,
    ) -> core::result::Result<Exchange, Refusal> {
        let change = opcode::is_change(info.opcode).then(|| self.begin_change());
        let tail = ServiceTail { id: change.as_ref().map(NamedChange::id) };
        let body = [body, codec::encode(&tail)].concat();
        let mut rounds = Rounds::new(self.replicas_of(pool), self.engines_of(pool));
        // Who has answered last that another one leads.
        let mut follower = None;
        while let Some(Asked { rank, is_replica, ends_round }) = rounds.next() {
            let limit = (self.runtime().now() + SERVICE_LIMIT).min(deadline);
            let answer = send(Reach::Rank(rank), &body, limit).await;
            match answer {
                Err(refusal)
                    if (!is_replica || is_elsewhere(&refusal.error))
                        && self.runtime().now() + SERVICE_PAUSE < deadline =>
                {
                    if refusal.error.is(Der::NOTLEADER) {
                        follower = Some(rank);
                    }
                }
                answer => {
                    if answer.is_ok() {
                        self.learn_leader(pool, rank);
                    }
                    return answer;
                }
            }
            if ends_round {
                self.runtime().sleep(SERVICE_PAUSE).await;
                // Boxed, since it is rare and part of every request's future.
                if let Some(rank) = follower.take()
                    && Box::pin(self.look_for_replicas(pool, rank, deadline)).await
                {
                    rounds = Rounds::new(self.replicas_of(pool), self.engines_of(pool));
                }
            }
        }
        Err(Error::refused(info.operation, info.subject, Der::NO_SERVICE, "the service has no replica")
            .into())
    }

    /// Has an engine of a pool show its map, which may name other replicas. Whether it does.
    async fn look_for_replicas(&self, pool: PoolId, rank: Rank, deadline: Instant) -> bool {
        let Some(capability) = self.handle_of(pool) else { return false };
        let info = RequestInfo::new("get the map of", &"the pool", opcode::POOL_MAP);
        let body = codec::encode(&PoolRequest { capability });
        let until = (self.runtime().now() + SERVICE_LIMIT).min(deadline);
        let payload = Payload::LongReply { room: SERVICE_REPLY, request: &[] };
        let answer = self.exchange(Reach::Rank(rank), &info, &body, &payload, until).await;
        let shown = answer.ok().and_then(|answer| answer.decode::<PoolMap>(&info).ok());
        let Some(map) = shown.map(|map| self.learn_map(pool, &map)) else { return false };
        !map.service.is_empty() && self.learn_replicas(pool, &map.service, rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_asked_from_the_second_round_on_one_behind_each() {
        let ranks = |some: &[u32]| some.iter().copied().map(Rank).collect::<Vec<_>>();
        let order = |replicas: &[u32], others: &[u32]| {
            let rounds = Rounds::new(ranks(replicas), ranks(others));
            rounds.take(9).map(|asked| asked.rank.0).collect::<Vec<_>>()
        };
        assert_eq!(order(&[1, 0], &[0, 1, 2, 3]), [1, 0, 1, 0, 2, 1, 0, 3, 1]);
        assert_eq!(order(&[1, 0], &[0, 1]), [1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(order(&[], &[2]), [0; 0], "nobody replicates it");
    }
}
