//! Commits of transactions that change objects with replicas: the leader of a group commits them, whichever target that is.

use core::time::Duration;

use weir_proto::object::{PunchScope, UpdateReply};
use weir_proto::pool::PoolMap;
use weir_proto::replica_transaction::{CHANGES_MAX, ReplicaCommitRequest};
use weir_proto::transaction::Change;
use weir_proto::{Der, Epoch, Key, TransactionId, codec, opcode};
use weir_runtime::Instant;

use super::{OPERATION, Transaction};
use crate::Result;
use crate::error::Error;
use crate::object::{LOOK_PAUSE, Object, is_stale, may_be_answered_elsewhere, unserved};
use crate::operation::{PAUSE, Payload, Reach, RequestInfo};
use crate::session::Context;

/// Longest wait for the leader before it is asked whether another target leads by now: it has all members prepare and store.
const LEADER_TRY: Duration = Duration::from_secs(2);

/// The group that leads: the first with replicas that the changes concern.
struct Lead<'a> {
    object: &'a Object,
    /// A dkey of the group; none: it is the object's first one.
    dkey: Option<&'a Key>,
}

impl<'a> Lead<'a> {
    fn of(changes: &'a [(&'a Object, Change)]) -> Option<Self> {
        let (object, change) = changes.iter().find(|(object, _)| object.is_replicated())?;
        let dkey = match change {
            Change::Update { dkey, .. } => Some(dkey),
            Change::Punch { scope, .. } => match scope {
                PunchScope::Object => None,
                PunchScope::Dkeys(dkeys) => dkeys.first(),
                PunchScope::Akeys(dkey, _) | PunchScope::DkeyWith(dkey, _) => Some(dkey),
            },
        };
        Some(Self { object, dkey })
    }

    /// The target that leads, and the number of its group.
    fn leader(&self, context: &Context, map: &PoolMap) -> Result<(usize, Option<u32>)> {
        let layout = self.object.layout(context, map)?;
        let group = self.dkey.map_or(0, |dkey| layout.group_index(dkey.hash()));
        Ok((group, layout.leader(group, map)))
    }
}

/// What is known of an end that no answer has told.
struct Attempts {
    began: Instant,
    is_open: bool,
}

impl Attempts {
    /// The error to report when `error` ends the transaction. The leader of the group knows what its predecessors have done, as
    /// long as it isn't forgotten; who doesn't lead knows nothing.
    fn explain(&self, info: &RequestInfo<'_>, error: Error, now: Instant) -> Error {
        let is_forgotten = error.is(Der::TX_UNCERTAIN);
        let knows_nothing = is_forgotten || is_stale(error.der()) || error.is(Der::NVME_IO);
        match error {
            Error::Refused { message, .. } if knows_nothing && self.is_open => Error::Unavailable {
                operation: info.operation,
                subject: info.subject.to_string(),
                server: "the target that leads it".to_owned(),
                waited: now.saturating_duration_since(self.began),
                cause: format!("whether it has happened is not known: {message}"),
            },
            Error::Refused { operation, subject, message, .. } if is_forgotten => {
                Error::Refused { operation, subject, der: Der::TX_RESTART, message }
            }
            other => other,
        }
    }
}

impl Transaction {
    /// Has the leading group commit it.
    pub(super) async fn commit_to_group(&self, context: &Context) -> Result<Epoch> {
        let info = RequestInfo::new(OPERATION, self, opcode::REPLICA_COMMIT);
        let (pool, deadline, now) = (self.container.pool(), context.until(), || context.runtime().now());
        let changes = self.plan.changes(OPERATION)?;
        let Some(lead) = Lead::of(&changes) else {
            return Err(Error::invalid(OPERATION, "none of its objects has replicas"));
        };
        let encoded = encode(&changes)?;
        let pieces = [&encoded[..]];
        let payload = Payload::Send { pieces: &pieces, len: encoded.len() as u64 };
        let mut attempts = Attempts { began: now(), is_open: false };
        loop {
            let map = context.map_of(pool);
            let (group, leader) = lead.leader(context, &map)?;
            let Some(target) = leader.and_then(|id| map.target(id)) else {
                if !context.look_for_map(pool, map.version, LOOK_PAUSE).await {
                    if now() + PAUSE.1 >= deadline {
                        let layout = lead.object.layout(context, &map)?;
                        let error = unserved(&info, pool, &map, (&layout, group));
                        return Err(attempts.explain(&info, error, now()));
                    }
                    context.runtime().sleep(PAUSE.1).await;
                }
                continue;
            };
            let body = codec::encode(&ReplicaCommitRequest {
                capability: self.container.state.capability.clone(),
                map_version: map.version,
                transaction: TransactionId::of_groups(self.reader),
                epoch: self.epoch,
                len: encoded.len() as u64,
            });
            let (reach, until) =
                (Reach::Target(target.rank, target.index), (now() + LEADER_TRY).min(deadline));
            match context.exchange(reach, &info, &body, &payload, until).await {
                Ok(exchange) => return Ok(exchange.decode::<UpdateReply>(&info)?.epoch),
                Err(refusal) => {
                    attempts.is_open |=
                        refusal.uncertain || matches!(refusal.error, Error::Unavailable { .. });
                    if now() >= deadline {
                        return Err(attempts.explain(&info, refusal.error, now()));
                    }
                    if is_stale(refusal.error.der()) {
                        context.refresh_map(pool, map.version, target.rank, deadline).await?;
                    } else if may_be_answered_elsewhere(&refusal) {
                        context.look_for_map(pool, map.version, LOOK_PAUSE).await;
                    } else {
                        return Err(attempts.explain(&info, refusal.error, now()));
                    }
                }
            }
        }
    }
}

/// The changes as they are sent.
fn encode(changes: &[(&Object, Change)]) -> Result<Vec<u8>> {
    let changes: Vec<&Change> = changes.iter().map(|(_, change)| change).collect();
    let encoded = codec::encode(&changes);
    if encoded.len() > CHANGES_MAX {
        let reason = format!("its changes have {} bytes, at most {CHANGES_MAX} are taken", encoded.len());
        return Err(Error::Size { operation: OPERATION, reason, der: Der::REC2BIG });
    }
    Ok(encoded)
}
