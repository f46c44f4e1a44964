//! Management requests: answered where the pool's service or the list of pools is, forwarded from everywhere else.

use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use weir_group::{AskError, Refusal};
use weir_management::{Failure, v1};
use weir_pool::{
    Directory, DirectoryEntry, EntryState, Failed, Keeper, Made, PoolRecord, PoolService, PoolSpec,
    TargetPools,
};
use weir_proto::group::MemberState;
use weir_proto::limits::{PROTOCOL_MAX, PROTOCOL_MIN};
use weir_proto::pool::{ContainerCreateRequest, EngineReport, ForwardReply, ForwardRequest};
use weir_proto::system::SystemState;
use weir_proto::{Capability, ContainerId, Der, PoolId, Rank, Rights, TargetIndex, TenantId, opcode};
use weir_rpc::membership::Membership;
use weir_runtime::{Either, join_all, race};

use crate::convert;
use crate::tenants::Tenants;

/// Longest wait for another engine to answer a forwarded request: what the slowest one, the creation of a pool with
/// an engine down, takes there, and some more.
const FORWARD_LIMIT: Duration = Duration::from_secs(40);

/// The same for one that the others hold dead. It may have come back this moment. What takes longer is asked again once
/// it is known to be back, as every request may be. A caller waits at most ten seconds for an answer.
const DEAD_FORWARD_LIMIT: Duration = Duration::from_secs(4);

/// Longest wait for a pool's service when pools are listed.
const LIST_LIMIT: Duration = Duration::from_secs(4);

/// How long a request is tried while a replicated pool service has no leader: it has one again within two seconds.
const LEADER_PATIENCE: Duration = Duration::from_secs(5);

/// The same while nobody answers for the list of pools. With the tries of a request it is less than a caller waits.
const LIST_PATIENCE: Duration = Duration::from_secs(4);

/// Pause between two tries.
const LEADER_PAUSE: Duration = Duration::from_millis(200);

/// Longest wait for an engine's report.
const REPORT_LIMIT: Duration = Duration::from_secs(2);

/// Longest wait for the report of an engine that the others hold dead: it may have come back this moment.
const DEAD_REPORT_LIMIT: Duration = Duration::from_millis(500);

/// How old the figures in an answer may be: they are gathered anew, since the caller has just changed something.
const SPACE_AGE_MAX: Duration = Duration::ZERO;

/// Handles of a container that a query tells, at most: they fit a message.
const HANDLES_TOLD: usize = 1000;

/// Answers management requests at target 0 of an engine.
pub struct Management {
    system: String,
    provider: String,
    pools: Rc<TargetPools>,
    keeper: Rc<Keeper>,
    membership: Rc<Membership>,
    tenants: Rc<Tenants>,
}

type Answer = Result<Vec<u8>, Failure>;

impl Management {
    /// Serves forwarded requests from now on.
    #[must_use]
    pub fn new(
        (system, provider): (String, String),
        pools: Rc<TargetPools>,
        keeper: Rc<Keeper>,
        membership: Rc<Membership>,
        tenants: Rc<Tenants>,
    ) -> Rc<Self> {
        let management = Rc::new(Self { system, provider, pools, keeper, membership, tenants });
        let weak = Rc::downgrade(&management);
        management.pools.engines().serve(opcode::MANAGEMENT_FORWARD, move |_, request: ForwardRequest| {
            let management = weak.upgrade();
            async move {
                let stopping = || Failure::new(Der::SHUTDOWN, "", "the engine is stopping");
                let answer = match management.ok_or_else(stopping) {
                    Ok(management) => management.answer_forwarded(&request.method, &request.request).await,
                    Err(error) => Err(error),
                };
                Ok::<_, Refusal>(match answer {
                    Ok(answer) => ForwardReply::Answer(answer),
                    Err(Failure { der, object, message }) => ForwardReply::Failed { der, object, message },
                })
            }
        });
        management
    }

    /// Answers a request of the management protocol, here or by forwarding it. `method` is `Service/Method`.
    ///
    /// # Errors
    /// Says what failed, on which object, and what to do next.
    pub async fn call(&self, method: &str, request: &[u8]) -> Answer {
        let rt = self.pools.engines().runtime();
        let until = rt.now() + LEADER_PATIENCE;
        loop {
            let answer = self.call_once(method, request).await;
            let is_leaderless = answer.as_ref().is_err_and(|failure| failure.der == Der::NOTLEADER);
            if !is_leaderless || rt.now() >= until {
                return answer;
            }
            rt.sleep(LEADER_PAUSE).await;
        }
    }

    async fn call_once(&self, method: &str, request: &[u8]) -> Answer {
        let at = self.place_of(method, request).await?;
        if at == self.pools.engines().own_rank() {
            return self.answer(method, request).await;
        }
        self.forward(at, method, request, FORWARD_LIMIT).await
    }

    async fn forward(&self, to: Rank, method: &str, request: &[u8], limit: Duration) -> Answer {
        let forwarded = ForwardRequest { method: method.to_owned(), request: request.to_vec() };
        let engines = self.pools.engines();
        let dead = self.membership.state(to) == MemberState::Dead;
        let limit = if dead { limit.min(DEAD_FORWARD_LIMIT) } else { limit };
        let asking = engines.ask(to, TargetIndex(0), opcode::MANAGEMENT_FORWARD, &forwarded, limit);
        let asked = if is_of_list(method) {
            match race(Box::pin(asking), self.pools.wait_for_other_keeper(to)).await {
                Either::First(asked) => asked,
                Either::Second(()) => {
                    return Err(convert::failure(Failed::NoKeeper(
                        "the one that did doesn't answer any more",
                    )));
                }
            }
        } else {
            asking.await
        };
        match asked {
            Ok(ForwardReply::Answer(answer)) => Ok(answer),
            Ok(ForwardReply::Failed { der, object, message }) => Err(Failure { der, object, message }),
            Err(AskError::Refused { refusal, .. }) => {
                Err(Failure { der: refusal.der, object: refusal.object, message: refusal.message })
            }
            Err(error) => {
                Err(convert::failure(Failed::asking(format!("rank {to}"), method_in_words(method), error)))
            }
        }
    }

    /// The rank that answers for the list of pools. One whose list is lost says so itself.
    async fn place_of_list(&self) -> Result<Rank, Failure> {
        let own = self.pools.engines().own_rank();
        let rt = self.pools.engines().runtime();
        let until = rt.now() + LIST_PATIENCE;
        loop {
            if self.keeper.leads() {
                return Ok(own);
            }
            let error = match self.pools.find_keeper().await {
                Ok(keeper) => return Ok(keeper),
                Err(error) => error,
            };
            if self.pools.out_of_service().is_some() {
                return Ok(own);
            }
            if rt.now() >= until {
                let failed = Failed::asking("the list of pools", "finding who keeps it", error);
                return Err(convert::failure(failed));
            }
            rt.sleep(LEADER_PAUSE).await;
        }
    }

    /// Answers what another engine has forwarded. Earlier releases forward to the lowest rank what concerns the list of pools, wherever
    /// that is: it goes on from there, once.
    async fn answer_forwarded(&self, method: &str, request: &[u8]) -> Answer {
        let own = self.pools.engines().own_rank();
        if is_of_list(method) && !self.keeper.leads() && own == self.pools.engines().lowest_rank() {
            let at = self.place_of_list().await?;
            if at != own {
                return self.forward(at, method, request, FORWARD_LIMIT).await;
            }
        }
        self.answer(method, request).await
    }

    /// The rank that answers.
    async fn place_of(&self, method: &str, request: &[u8]) -> Result<Rank, Failure> {
        let pool = match method {
            method if is_of_list(method) => return self.place_of_list().await,
            "System/ClearDevice" => {
                let request: v1::ClearDeviceRequest = convert::decode(method, request)?;
                return self.place_of_target(request.rank, request.target);
            }
            "Pools/Query" => convert::decode::<v1::PoolQueryRequest>(method, request)?.pool,
            "Pools/Exclude" => convert::decode::<v1::PoolExcludeRequest>(method, request)?.pool,
            "Pools/Reintegrate" => convert::decode::<v1::PoolReintegrateRequest>(method, request)?.pool,
            "Pools/Drain" => convert::decode::<v1::PoolDrainRequest>(method, request)?.pool,
            "Pools/SetProperties" => convert::decode::<v1::PoolSetPropertiesRequest>(method, request)?.pool,
            "Containers/Create" => convert::decode::<v1::ContainerCreateRequest>(method, request)?.pool,
            "Containers/List" => convert::decode::<v1::ContainerListRequest>(method, request)?.pool,
            "Containers/Query" => convert::decode::<v1::ContainerQueryRequest>(method, request)?.pool,
            "Containers/SetQuota" => convert::decode::<v1::ContainerSetQuotaRequest>(method, request)?.pool,
            "Containers/Destroy" => convert::decode::<v1::ContainerDestroyRequest>(method, request)?.pool,
            _ => return Ok(self.pools.engines().own_rank()),
        };
        match self.pools.resolve(&pool).await {
            Ok(found) => Ok(found.service),
            // Nothing is left of its containers either.
            Err(Failed::NoPool(_)) if method == "Containers/Destroy" => Ok(self.pools.engines().own_rank()),
            Err(error) => Err(convert::failure(error)),
        }
    }

    /// Answers a request that belongs here.
    async fn answer(&self, method: &str, request: &[u8]) -> Answer {
        match method {
            "System/Attach" => Ok(self.attach().encode_to_vec()),
            "System/Query" => Ok(self.query_system().await.encode_to_vec()),
            "System/ClearDevice" => self.clear_device(&convert::decode(method, request)?).await,
            "Pools/Create" => self.create_pool(convert::decode(method, request)?).await,
            "Pools/List" => self.list_pools().await,
            "Pools/Query" => self.query_pool(&convert::decode(method, request)?).await,
            "Pools/Resize" => self.resize_pool(&convert::decode(method, request)?).await,
            "Pools/Extend" => self.extend_pool(convert::decode(method, request)?).await,
            "Pools/Destroy" => self.destroy_pool(&convert::decode(method, request)?).await,
            "Pools/Exclude" => self.exclude_rank(&convert::decode(method, request)?).await,
            "Pools/Reintegrate" => self.reintegrate_rank(&convert::decode(method, request)?).await,
            "Pools/Drain" => self.drain_rank(&convert::decode(method, request)?).await,
            "Pools/SetProperties" => self.set_pool_properties(&convert::decode(method, request)?).await,
            "Containers/Create" => self.create_container(convert::decode(method, request)?).await,
            "Containers/List" => self.list_containers(&convert::decode(method, request)?).await,
            "Containers/Query" => self.query_container(&convert::decode(method, request)?).await,
            "Containers/SetQuota" => self.set_quota(&convert::decode(method, request)?).await,
            "Containers/Destroy" => self.destroy_container(&convert::decode(method, request)?).await,
            "Tenants/Query" => self.query_tenant(&convert::decode(method, request)?).await,
            "Tenants/Revoke" => self.revoke_tenant(&convert::decode(method, request)?).await,
            "Tenants/Admit" => self.admit_tenant(&convert::decode(method, request)?).await,
            "Tenants/SetLimits" => self.set_tenant_limits(&convert::decode(method, request)?).await,
            "Tenants/QueryLimits" => self.query_tenant_limits(&convert::decode(method, request)?).await,
            _ => Err(Failure::new(Der::NOSYS, "", format!("there is no method \"{method}\""))),
        }
    }

    /// The rank, if it has such a target.
    fn place_of_target(&self, rank: u32, target: u32) -> Result<Rank, Failure> {
        let known = self.pools.engines().get(Rank(rank)).filter(|info| target < info.targets);
        let missing = || {
            let object = format!("target {target} of rank {rank}");
            let message = format!("{object} does not exist; `weir system query` shows the engines");
            Failure::new(Der::NONEXIST, object, message)
        };
        known.map(|info| info.rank).ok_or_else(missing)
    }

    /// Takes an operator's word that the device of one of this engine's targets was repaired or replaced.
    async fn clear_device(&self, request: &v1::ClearDeviceRequest) -> Answer {
        let engines = self.pools.engines();
        let index = TargetIndex(request.target);
        let asked = engines.ask(engines.own_rank(), index, opcode::DEVICE_CLEAR, &(), REPORT_LIMIT).await;
        let object = format!("target {index} of rank {}", engines.own_rank());
        let was_faulty = asked.map_err(|error| {
            convert::failure(Failed::asking(object, "forgetting that its device was faulty", error))
        })?;
        tracing::info!(target = %index, was_faulty, "an operator says that a device is good");
        Ok(v1::ClearDeviceResponse { was_faulty }.encode_to_vec())
    }

    /// Whether the engines serve a tenant.
    async fn query_tenant(&self, request: &v1::TenantQueryRequest) -> Answer {
        let tenant = TenantId(request.tenant);
        let engines = convert::tenant_engines(self.tenants.query(tenant).await);
        Ok(v1::TenantQueryResponse { tenant: tenant.0, engines }.encode_to_vec())
    }

    /// Has all engines turn a tenant away.
    async fn revoke_tenant(&self, request: &v1::TenantRevokeRequest) -> Answer {
        let tenant = convert::tenant(request.tenant)?;
        let engines = convert::tenant_engines(self.tenants.state(tenant, true).await);
        Ok(v1::TenantRevokeResponse { tenant: tenant.0, engines }.encode_to_vec())
    }

    /// Has all engines serve a tenant again that was turned away.
    async fn admit_tenant(&self, request: &v1::TenantAdmitRequest) -> Answer {
        let tenant = convert::tenant(request.tenant)?;
        let engines = convert::tenant_engines(self.tenants.state(tenant, false).await);
        Ok(v1::TenantAdmitResponse { tenant: tenant.0, engines }.encode_to_vec())
    }

    /// Sets what a tenant may use.
    async fn set_tenant_limits(&self, request: &v1::TenantSetLimitsRequest) -> Answer {
        let tenant = convert::tenant(request.tenant)?;
        let limits = convert::limits(tenant, request.limits)?;
        let uses = self.directory().await?.limit_tenant(tenant, limits).await.map_err(convert::failure)?;
        let (limits, pools) = convert::tenant_use(uses);
        Ok(v1::TenantSetLimitsResponse { tenant: tenant.0, limits: Some(limits), pools }.encode_to_vec())
    }

    /// What a tenant may use, and uses.
    async fn query_tenant_limits(&self, request: &v1::TenantQueryLimitsRequest) -> Answer {
        let tenant = convert::tenant(request.tenant)?;
        let uses = self.directory().await?.tenant_use(tenant).await;
        let (limits, pools) = convert::tenant_use(uses);
        Ok(v1::TenantQueryLimitsResponse { tenant: tenant.0, limits: Some(limits), pools }.encode_to_vec())
    }

    fn attach(&self) -> v1::AttachResponse {
        v1::AttachResponse {
            system: self.system.clone(),
            provider: self.provider.clone(),
            engines: self.pools.engines().all().iter().map(convert::address).collect(),
            protocol_min: PROTOCOL_MIN.into(),
            protocol_max: PROTOCOL_MAX.into(),
        }
    }

    async fn query_system(&self) -> v1::SystemQueryResponse {
        let engines = self.pools.engines();
        let infos = engines.all();
        let asked = join_all(infos.iter().map(|info| {
            let dead = self.membership.state(info.rank) == MemberState::Dead;
            let limit = if dead { DEAD_REPORT_LIMIT } else { REPORT_LIMIT };
            engines.ask::<_, EngineReport>(info.rank, TargetIndex(0), opcode::ENGINE_REPORT, &(), limit)
        }));
        let mut states: Vec<_> = infos
            .iter()
            .zip(asked.await)
            .map(|(info, report)| match report {
                Ok(report) => v1::EngineState {
                    rank: info.rank.0,
                    health: v1::EngineHealth::Up.into(),
                    version: report.version,
                    targets: report.targets,
                    capacity_bytes: report.capacity,
                    free_bytes: report.free,
                    message: report.message,
                    started_unix_seconds: i64::try_from(report.started).unwrap_or(i64::MAX),
                    ..v1::EngineState::default()
                },
                Err(error) => v1::EngineState {
                    rank: info.rank.0,
                    health: v1::EngineHealth::Down.into(),
                    targets: info.targets,
                    message: error.to_string(),
                    ..v1::EngineState::default()
                },
            })
            .collect();
        let (members, now) = (self.membership.members(), engines.runtime().now());
        for state in &mut states {
            if let Some(member) = members.iter().find(|member| member.rank.0 == state.rank) {
                convert::add_membership(state, member, now);
            }
        }
        let (system, viewed_by_rank) = (self.system.clone(), engines.own_rank().0);
        let list_ranks = self.list_ranks().await;
        v1::SystemQueryResponse { system, engines: states, viewed_by_rank, list_ranks }
    }

    /// The engines that keep the list of pools, first the one that answers for it; none: nobody says so.
    async fn list_ranks(&self) -> Vec<u32> {
        let engines = self.pools.engines();
        let Ok(keeper) = self.pools.find_keeper().await else { return Vec::new() };
        let (to, opcode) = (TargetIndex(0), opcode::SYSTEM_STATE);
        let asked = engines.ask::<_, SystemState>(keeper, to, opcode, &(), REPORT_LIMIT).await;
        let mut ranks: Vec<u32> =
            asked.map_or_else(|_| vec![keeper.0], |state| state.members.iter().map(|rank| rank.0).collect());
        ranks.sort_unstable_by_key(|rank| (*rank != keeper.0, *rank));
        ranks
    }

    async fn directory(&self) -> Result<Rc<Directory>, Failure> {
        self.keeper.directory().await.map_err(convert::failure)
    }

    async fn create_pool(&self, request: v1::PoolCreateRequest) -> Answer {
        let identity = convert::identity(&request.uuid, &format!("pool {}", request.label))?.map(PoolId);
        let spec = PoolSpec {
            identity,
            label: request.label,
            size: request.size_bytes,
            ranks: request.ranks.into_iter().map(Rank).collect(),
            redundancy: request.redundancy_factor,
            object_class: request.object_class,
            tenant: TenantId(request.tenant),
            places: request.places.into_iter().map(convert::place).collect(),
        };
        let Made { it: entry, existed } =
            self.directory().await?.create(spec).await.map_err(convert::failure)?;
        let pool = Some(self.info_of(&entry, FORWARD_LIMIT).await);
        Ok(v1::PoolCreateResponse { pool, existed }.encode_to_vec())
    }

    /// What a pool's service says of it; what the list says when it doesn't answer.
    async fn info_of(&self, entry: &DirectoryEntry, limit: Duration) -> v1::PoolInfo {
        if entry.state != EntryState::Ready {
            return convert::listed(entry);
        }
        let request = v1::PoolQueryRequest { pool: entry.pool.pool.to_string() };
        let answer = match self.pools.find_leader(&entry.pool).await {
            Ok(service) if service == self.pools.engines().own_rank() => self.query_pool(&request).await,
            Ok(service) => self.forward(service, "Pools/Query", &request.encode_to_vec(), limit).await,
            Err(error) => Err(convert::failure(error)),
        };
        let decoded = answer.ok().and_then(|bytes| v1::PoolQueryResponse::decode(bytes.as_slice()).ok());
        decoded.and_then(|response| response.pool).unwrap_or_else(|| convert::listed(entry))
    }

    async fn list_pools(&self) -> Answer {
        let entries = self.directory().await?.list();
        let mut pools = join_all(entries.iter().map(|entry| self.info_of(entry, LIST_LIMIT))).await;
        pools.sort_by(|one, other| one.label.cmp(&other.label));
        Ok(v1::PoolListResponse { pools }.encode_to_vec())
    }

    async fn resize_pool(&self, request: &v1::PoolResizeRequest) -> Answer {
        let directory = self.directory().await?;
        let entry = directory.resize(&request.pool, request.size_bytes).await.map_err(convert::failure)?;
        let pool = Some(self.info_of(&entry, FORWARD_LIMIT).await);
        Ok(v1::PoolResizeResponse { pool }.encode_to_vec())
    }

    async fn extend_pool(&self, request: v1::PoolExtendRequest) -> Answer {
        let ranks: Vec<Rank> = request.ranks.into_iter().map(Rank).collect();
        let places = request.places.into_iter().map(convert::place).collect();
        let extended = self.directory().await?.extend(&request.pool, &ranks, places).await;
        let entry = extended.map_err(convert::failure)?;
        let pool = Some(self.info_of(&entry, FORWARD_LIMIT).await);
        Ok(v1::PoolExtendResponse { pool }.encode_to_vec())
    }

    async fn destroy_pool(&self, request: &v1::PoolDestroyRequest) -> Answer {
        let was_there = self.directory().await?.destroy(&request.pool, request.force).await;
        let missing = !was_there.map_err(convert::failure)?;
        Ok(v1::PoolDestroyResponse { missing }.encode_to_vec())
    }

    /// The service of a pool named by label or UUID text, with its record.
    async fn service(&self, name: &str) -> Result<(Rc<PoolService>, PoolRecord), Failure> {
        let no_pool = || Failed::NoPool(name.chars().take(weir_proto::limits::LABEL_MAX).collect());
        // Which pools are on a device that can't be read isn't known.
        let missing = || self.pools.out_of_service().unwrap_or_else(no_pool);
        let found = self.pools.find(name).ok_or_else(missing).map_err(convert::failure)?;
        let service = self.pools.service(found.id()).map_err(convert::failure)?;
        service.confirm().await.map_err(convert::failure)?;
        let record = service.pool().map_err(convert::failure)?;
        Ok((service, record))
    }

    async fn query_pool(&self, request: &v1::PoolQueryRequest) -> Answer {
        let (service, _) = self.service(&request.pool).await?;
        let pool = Some(self.described(&service).await?);
        Ok(v1::PoolQueryResponse { pool }.encode_to_vec())
    }

    /// A pool whose service runs here.
    async fn described(&self, service: &PoolService) -> Result<v1::PoolInfo, Failure> {
        let gathered = service.gathered(SPACE_AGE_MAX).await.map_err(convert::failure)?;
        let record = service.pool().map_err(convert::failure)?;
        let mut pool = convert::pool(&record, &gathered, service.live_labels().len());
        // The one that leads comes first.
        let own = self.pools.engines().own_rank().0;
        pool.service_ranks.sort_by_key(|rank| *rank != own);
        pool.rebuild_delay_seconds = service.rebuild_delay().map_err(convert::failure)?;
        pool.health = service.health().map_err(convert::failure)?.map(|health| convert::health(&health));
        Ok(pool)
    }

    async fn exclude_rank(&self, request: &v1::PoolExcludeRequest) -> Answer {
        let (service, _) = self.service(&request.pool).await?;
        service.expel(Rank(request.rank)).await.map_err(convert::failure)?;
        let pool = Some(self.described(&service).await?);
        Ok(v1::PoolExcludeResponse { pool }.encode_to_vec())
    }

    async fn reintegrate_rank(&self, request: &v1::PoolReintegrateRequest) -> Answer {
        let (service, _) = self.service(&request.pool).await?;
        service.reintegrate(Rank(request.rank)).await.map_err(convert::failure)?;
        let pool = Some(self.described(&service).await?);
        Ok(v1::PoolReintegrateResponse { pool }.encode_to_vec())
    }

    async fn drain_rank(&self, request: &v1::PoolDrainRequest) -> Answer {
        let (service, _) = self.service(&request.pool).await?;
        service.drain(Rank(request.rank)).await.map_err(convert::failure)?;
        let pool = Some(self.described(&service).await?);
        Ok(v1::PoolDrainResponse { pool }.encode_to_vec())
    }

    async fn set_pool_properties(&self, request: &v1::PoolSetPropertiesRequest) -> Answer {
        let (service, _) = self.service(&request.pool).await?;
        if let Some(seconds) = request.rebuild_delay_seconds {
            service.set_rebuild_delay(seconds).await.map_err(convert::failure)?;
        }
        let pool = Some(self.described(&service).await?);
        Ok(v1::PoolSetPropertiesResponse { pool }.encode_to_vec())
    }

    async fn create_container(&self, request: v1::ContainerCreateRequest) -> Answer {
        let (service, record) = self.service(&request.pool).await?;
        let rt = self.pools.engines().runtime();
        let chosen = convert::identity(&request.uuid, &format!("container {}", request.label))?;
        let drawn = || uuid::Uuid::from_u64_pair(rt.random_u64(), rt.random_u64());
        let id = ContainerId(chosen.unwrap_or_else(drawn));
        let request = ContainerCreateRequest {
            capability: unused_capability(record.pool),
            container: id,
            properties: convert::properties(request)?,
            exclusive: false,
        };
        let made = service.create_container(request, true).await.map_err(convert::failure)?;
        let container = Some(convert::container(made.it, &record));
        Ok(v1::ContainerCreateResponse { container, existed: made.existed }.encode_to_vec())
    }

    async fn list_containers(&self, request: &v1::ContainerListRequest) -> Answer {
        let (service, record) = self.service(&request.pool).await?;
        let infos = service.list_containers().await.map_err(convert::failure)?;
        let containers = infos.into_iter().map(|info| convert::container(info, &record)).collect();
        Ok(v1::ContainerListResponse { containers }.encode_to_vec())
    }

    async fn query_container(&self, request: &v1::ContainerQueryRequest) -> Answer {
        let (service, record) = self.service(&request.pool).await?;
        let info = service.query_by_name(&request.container).await.map_err(convert::failure)?;
        let container = Some(convert::container(info, &record));
        let handles = service.handles_by_name(&request.container).await.map_err(convert::failure)?;
        let handles = handles.into_iter().take(HANDLES_TOLD).map(convert::handle).collect();
        Ok(v1::ContainerQueryResponse { container, handles }.encode_to_vec())
    }

    async fn set_quota(&self, request: &v1::ContainerSetQuotaRequest) -> Answer {
        let (service, record) = self.service(&request.pool).await?;
        let changed = service.set_quota_by_name(&request.container, request.quota_bytes).await;
        let container = Some(convert::container(changed.map_err(convert::failure)?, &record));
        Ok(v1::ContainerSetQuotaResponse { container }.encode_to_vec())
    }

    async fn destroy_container(&self, request: &v1::ContainerDestroyRequest) -> Answer {
        let mut missing = true;
        if let Some(pool) = self.pools.find(&request.pool) {
            let service = self.pools.service(pool.id()).map_err(convert::failure)?;
            service.confirm().await.map_err(convert::failure)?;
            let was_there =
                service.destroy_by_name(&request.container, request.force, &request.gone_handles).await;
            missing = !was_there.map_err(convert::failure)?;
        } else if let Some(failed) = self.pools.out_of_service() {
            return Err(convert::failure(failed));
        }
        Ok(v1::ContainerDestroyResponse { missing }.encode_to_vec())
    }
}

/// Whether a method is about the list of pools. Each may be asked again: what has been done is done once.
fn is_of_list(method: &str) -> bool {
    matches!(
        method,
        "Pools/Create"
            | "Pools/List"
            | "Pools/Resize"
            | "Pools/Extend"
            | "Pools/Destroy"
            | "Tenants/SetLimits"
            | "Tenants/QueryLimits"
    )
}

/// Management is authorised by its certificate; the field of a client's handle stays blank.
fn unused_capability(pool: PoolId) -> Capability {
    let tenant = TenantId::SYSTEM;
    Capability { tenant, pool, container: None, rights: Rights::default(), handle: 0, seal: [0; 16] }
}

/// What a method does, for "… needs rank N".
fn method_in_words(method: &str) -> &'static str {
    match method {
        "System/ClearDevice" => "clearing a device",
        "Pools/Create" => "creating a pool",
        "Pools/List" => "listing pools",
        "Pools/Query" => "describing a pool",
        "Pools/Resize" => "resizing a pool",
        "Pools/Extend" => "extending a pool",
        "Pools/Destroy" => "destroying a pool",
        "Pools/Exclude" => "excluding an engine",
        "Pools/Reintegrate" => "reintegrating an engine",
        "Pools/Drain" => "draining an engine",
        "Pools/SetProperties" => "changing properties of a pool",
        "Containers/Create" => "creating a container",
        "Containers/List" => "listing containers",
        "Containers/Query" => "describing a container",
        "Containers/SetQuota" => "changing a quota",
        "Containers/Destroy" => "destroying a container",
        "Tenants/SetLimits" => "limiting what a tenant may use",
        "Tenants/QueryLimits" => "describing what a tenant may use",
        _ => "answering the request",
    }
}
