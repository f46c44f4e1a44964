//! Room that is kept for records of objects with replicas: all members of a group keep it, or none.

use core::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use weir_group::Refusal;
use weir_pool::{Operation, TargetPool};
use weir_proto::object::{ReserveReply, ReserveRequest};
use weir_proto::replica::ReplicaReserve;
use weir_proto::{Der, Key, Rank, Rights, codec, opcode};
use weir_rpc::{Body, Request, Status};
use weir_runtime::{Instant, join_all};
use weir_store::{RecordRange, UpdateError};

use super::Replication;
use crate::admission::Access;
use crate::admission::refusal::{self, ErrorSite};
use crate::operations::{bytes_of, reserved_dkeys, told_dkeys, within_quota};
use crate::unsettled::Place;

/// Longest wait for a member's answer before it is asked again.
const LIMIT: Duration = Duration::from_secs(2);

/// Pause before that.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs of dkeys of which a member had kept no room before, or why it keeps none.
type Kept = Result<Vec<(u32, u32)>, Status>;

/// A request that this target leads.
struct Wanted {
    access: Access,
    request: ReserveRequest,
    dkeys: Vec<Range<u64>>,
    deadline: Instant,
}

fn range_of(request: &ReserveRequest) -> RecordRange<'_> {
    let ReserveRequest { object, akey, from, below, .. } = request;
    RecordRange { object: *object, akey, from: *from, below: *below }
}

/// Whether a member may answer otherwise later, or by another map: what its store says of the request is for good.
fn is_passing(der: Der) -> bool {
    !matches!(
        der,
        Der::NOSPACE
            | Der::UPDATE_AGAIN
            | Der::NOSYS
            | Der::INVAL
            | Der::REC_SIZE
            | Der::CONT_NONEXIST
            | Der::CONT_DESTROYING
            | Der::IO
            | Der::NVME_IO
            | Der::PROTO
    )
}

impl Replication {
    /// Keeps room as leaders do, and gives it up, from now on.
    pub(super) fn serve_reserve(self: &Rc<Self>) {
        let weak = Rc::downgrade(self);
        let handler = move |_: Rank, asked: ReplicaReserve| {
            let replication = weak.upgrade();
            async move {
                let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
                let refused = |Status { der, message }| Refusal { der, object: String::new(), message };
                let replication = replication.ok_or_else(stopping).map_err(refused)?;
                replication.reserve_as_member(asked).await.map_err(refused)
            }
        };
        self.admission.pools.engines().serve(opcode::TARGET_REPLICA_RESERVE, handler);
    }

    async fn reserve_as_member(&self, asked: ReplicaReserve) -> Result<ReserveReply, Status> {
        let pool = self.admission.pool(asked.pool)?;
        let container = pool.container(asked.container).await?;
        self.admission.check_storable(&pool, asked.map_version)?;
        let label = container.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: pool.id(), container: &label };
        let dkeys = reserved_dkeys(asked.from.0, &asked.dkeys)?;
        let ReplicaReserve { object, akey, record_size, records, from, below, .. } = &asked;
        let range = RecordRange { object: *object, akey, from: *from, below: *below };
        let shard = pool.shard();
        let done: Result<Vec<Range<u64>>, UpdateError> = if asked.keeps {
            shard.reserve_as_replica(container.id, &range, (*record_size, *records), &dkeys).await
        } else {
            shard.release(container.id, &range, &dkeys).await.map(|()| Vec::new())
        };
        let fresh = done.map_err(|error| refusal::update(&error, &place))?;
        Ok(ReserveReply { fresh: told_dkeys(from.0, fresh) })
    }

    /// Has all members of a group keep room for records, or give it up.
    pub(crate) async fn reserve(
        self: &Rc<Self>,
        request: &Request,
        wanted: ReserveRequest,
    ) -> Result<Body, Status> {
        let dkeys = reserved_dkeys(wanted.from.0, &wanted.dkeys)?;
        let admission = &self.admission;
        let access = admission.access(request, &wanted.capability, Rights::WRITE, wanted.map_version).await?;
        self.check_leads(&access.pool, &wanted, &dkeys)?;
        let counted = admission.counted(Operation::Update, &access, async |_| {
            let (access, deadline) = (access.clone(), request.deadline());
            let wanted = Wanted { access, request: wanted, dkeys, deadline };
            let replication = Rc::clone(self);
            // What has begun ends also when the client's request is dropped.
            let task = admission.rt.spawn(async move { replication.reserve_everywhere(&wanted).await });
            let stopping = |_| Err(Status::new(Der::SHUTDOWN, "the engine is stopping"));
            let fresh = task.await.unwrap_or_else(stopping)?;
            Ok((codec::encode(&ReserveReply { fresh }), 0))
        });
        counted.await
    }

    /// Refuses what isn't all of groups that this target leads. Without dkeys it is about all of those.
    fn check_leads(
        &self,
        pool: &TargetPool,
        wanted: &ReserveRequest,
        dkeys: &[Range<u64>],
    ) -> Result<(), Status> {
        let groups = pool.with_layout(wanted.object, |layout, _| {
            let named = dkeys.iter().cloned().flatten();
            named
                .map(|dkey| layout.group_index(Key::from_u64(dkey).hash()))
                .collect::<std::collections::BTreeSet<_>>()
        });
        let groups = groups.map_err(refusal::invalid)?;
        let leads = groups.iter().all(|group| self.members(pool, wanted.object, *group).is_some());
        if leads { Ok(()) } else { Err(self.leads_not(pool)) }
    }

    async fn reserve_everywhere(&self, wanted: &Wanted) -> Result<Vec<(u32, u32)>, Status> {
        let Wanted { access, request, dkeys, .. } = wanted;
        let label = access.container.label.borrow().clone();
        let place = ErrorSite { pools: &self.admission.pools, pool: access.pool.id(), container: &label };
        let (shard, container, range) = (access.pool.shard(), access.container.id, range_of(request));
        if !request.keeps {
            let released = shard.release(container, &range, dkeys).await;
            released.map_err(|error| refusal::update(&error, &place))?;
            self.ask_others(wanted, &request.dkeys)
                .await
                .into_iter()
                .try_for_each(|(_, done)| done.map(drop))?;
            return Ok(Vec::new());
        }
        let size = (request.record_size, request.records);
        let attempt = async || shard.reserve(container, &range, size, dkeys).await;
        let bytes = bytes_of(request.records.saturating_mul(u64::from(request.record_size)), dkeys);
        let fresh = within_quota((&access.pool, &access.container), bytes, &place, attempt).await?;
        let own = told_dkeys(request.from.0, fresh.clone());
        let answers = self.ask_others(wanted, &request.dkeys).await;
        let refused = answers.iter().find_map(|(_, answer)| answer.as_ref().err().cloned());
        let Some(refused) = refused else { return Ok(own) };
        // What the call has reserved is given up, as far as that can be done: writes take what is left.
        if !fresh.is_empty()
            && let Err(error) = shard.release(container, &range, &fresh).await
        {
            tracing::debug!(%error, "room that a replica refuses to keep stays kept here");
        }
        for (member, answer) in answers {
            if let Ok(fresh) = answer
                && !fresh.is_empty()
            {
                let version = access.pool.with_map(|map| map.version);
                let asked = self.ask_to_reserve(wanted, member, (version, false, &fresh)).await;
                if let Err(error) = asked {
                    tracing::debug!(%error, "a replica keeps room that another one refuses to keep");
                }
            }
        }
        Err(refused)
    }

    /// The other members of all groups that a request is about.
    fn others(&self, wanted: &Wanted) -> Option<(u32, Vec<Place>)> {
        let (pool, object) = (&wanted.access.pool, wanted.request.object);
        let count = pool.with_layout(object, |layout, _| layout.group_count()).ok()?;
        let groups: Vec<usize> = if wanted.dkeys.is_empty() {
            (0..count).collect()
        } else {
            let of =
                |dkey| pool.with_layout(object, |layout, _| layout.group_index(Key::from_u64(dkey).hash()));
            let first = wanted.dkeys.iter().find(|run| !run.is_empty())?.start;
            vec![of(first).ok()?]
        };
        let (mut version, mut all) = (0, Vec::new());
        for group in groups {
            // Of all groups those are left to their leaders that others lead.
            let Some(members) = self.members(pool, object, group) else { continue };
            version = members.version;
            all.extend(members.others);
        }
        all.sort_unstable();
        all.dedup();
        (version > 0).then_some((version, all))
    }

    /// Asks the other members until each has answered for good, or the client waits no longer.
    async fn ask_others(&self, wanted: &Wanted, dkeys: &[(u32, u32)]) -> Vec<(Place, Kept)> {
        let mut answers: Vec<(Place, Kept)> = Vec::new();
        loop {
            let Some((version, others)) = self.others(wanted) else {
                answers.push((self.own(), Err(self.leads_not(&wanted.access.pool))));
                return answers;
            };
            answers.retain(|(member, answer)| {
                others.contains(member) && !matches!(answer, Err(status) if is_passing(status.der))
            });
            let left: Vec<Place> =
                others.into_iter().filter(|one| answers.iter().all(|(member, _)| member != one)).collect();
            let keeps = wanted.request.keeps;
            let asked =
                left.iter().map(|member| self.ask_to_reserve(wanted, *member, (version, keeps, dkeys)));
            let asked = join_all(asked).await;
            answers.extend(left.into_iter().zip(asked));
            let is_passing = |status: &Status| is_passing(status.der);
            let waits = answers.iter().any(|(_, answer)| answer.as_ref().is_err_and(is_passing));
            if !waits || self.admission.rt.now() >= wanted.deadline {
                return answers;
            }
            self.admission.rt.sleep(PAUSE).await;
        }
    }

    async fn ask_to_reserve(
        &self,
        wanted: &Wanted,
        (rank, index): Place,
        (map_version, keeps, dkeys): (u32, bool, &[(u32, u32)]),
    ) -> Kept {
        let Wanted { access, request, .. } = wanted;
        let asked = ReplicaReserve {
            pool: access.pool.id(),
            container: access.container.id,
            map_version,
            object: request.object,
            akey: request.akey.clone(),
            record_size: request.record_size,
            records: request.records,
            from: request.from,
            below: request.below,
            keeps,
            dkeys: dkeys.to_vec(),
        };
        let engines = self.admission.pools.engines();
        let opcode = opcode::TARGET_REPLICA_RESERVE;
        let answer = engines.ask::<_, ReserveReply>(rank, index, opcode, &asked, LIMIT).await;
        let told = answer.map_err(|error| Status::new(error.der(), error.to_string()))?;
        Ok(told.fresh)
    }
}
