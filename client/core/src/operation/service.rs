//! Requests to a replicated pool service: the replica that leads is found, and asked again elsewhere when another one does.

use core::time::Duration;

use weir_proto::pool::ServiceTail;
use weir_proto::{Der, PoolId, codec, opcode};
use weir_runtime::Instant;

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
        let replicas = self.replicas_of(pool);
        let mut asked = 0;
        for rank in replicas.iter().copied().cycle() {
            let limit = (self.runtime().now() + SERVICE_LIMIT).min(deadline);
            let answer = send(Reach::Rank(rank), &body, limit).await;
            match answer {
                Err(refusal)
                    if is_elsewhere(&refusal.error) && self.runtime().now() + SERVICE_PAUSE < deadline => {}
                answer => {
                    if answer.is_ok() {
                        self.learn_leader(pool, rank);
                    }
                    return answer;
                }
            }
            asked += 1;
            if asked % replicas.len() == 0 {
                self.runtime().sleep(SERVICE_PAUSE).await;
            }
        }
        Err(Error::refused(info.operation, info.subject, Der::NO_SERVICE, "the service has no replica")
            .into())
    }
}
