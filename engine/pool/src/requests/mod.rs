//! What clients ask of pools and containers: requests are decoded, their handles checked, and handed to the service of the pool.
//! The room calls the pools of its target and their services. The daemon starts it at target 0 of every engine.

mod read;

use std::rc::Rc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use weir_group::reply;
use weir_proto::pool::{
    AllocateRequest, AttributeGetRequest, AttributeSetRequest, Bearer, ConnectReply, ConnectRequest,
    ConnectTail, ContainerCreateRequest, ContainerDestroyRequest, ContainerKeepRequest, ContainerOpenRequest,
    ContainerRequest, PoolRequest, QuotaRequest, ServiceTail, SnapshotRequest,
};
use weir_proto::replica::ChangeId;
use weir_proto::{Capability, CapabilityError, Der, Rights, TenantId, codec, opcode};
use weir_raft::CommandId;
use weir_rpc::{Request, Rpc, Status};

use crate::error::Failed;
use crate::pools::TargetPools;
use read::read_request;

impl TargetPools {
    /// Checks a handle before more of the request is fetched that shows it. What it allows is checked with the request.
    fn check_shown(&self, shown: &Capability, tenant: TenantId) -> Result<(), Failed> {
        self.check_tenant(shown, tenant)?;
        let record = self.service(shown.pool)?.pool()?;
        Ok(shown.check(&record.secret, Rights::default())?)
    }

    fn check_tenant(&self, shown: &Capability, tenant: TenantId) -> Result<(), Failed> {
        if shown.tenant == tenant {
            return Ok(());
        }
        self.engines().count_forged();
        Err(CapabilityError::Forged(shown.pool).into())
    }

    async fn connect(
        &self,
        request: ConnectRequest,
        tenant: TenantId,
    ) -> Result<(ConnectReply, ConnectTail), Failed> {
        let rt = self.engines().runtime();
        let key = self.engines().key().tenant(tenant);
        if !request.credential.is_valid(&key, &request.pool, rt.wall_ns()) {
            self.engines().count_forged();
            return Err(Failed::Credential(
                request.pool.chars().take(weir_proto::limits::LABEL_MAX).collect(),
            ));
        }
        let found = self.resolve(&request.pool).await?;
        let Some(service) = self.own_service(found.pool) else {
            if found.service == self.engines().own_rank() {
                return Err(Failed::Leaderless(found.pool));
            }
            return Ok((ConnectReply::Elsewhere { service: found.service }, ConnectTail::default()));
        };
        service.confirm().await?;
        let reply = service.connect(&request.pool, request.rights, &request.credential, tenant)?;
        let replicas = service.pool()?.replicas();
        // Earlier releases read the reply without what is behind it.
        Ok((reply, ConnectTail { replicas: if replicas.len() > 1 { replicas } else { Vec::new() } }))
    }
}

/// Serves one operation on a pool or container that the client has a handle on. A handle that was given to another
/// tenant's client opens nothing.
fn serve<Req, Rep, F, Fut>(rpc: &Rpc, pools: &Rc<TargetPools>, opcode: u16, answer: F)
where
    Req: Bearer + DeserializeOwned + 'static,
    Rep: Serialize + 'static,
    F: Fn(Rc<TargetPools>, Req, Option<CommandId>) -> Fut + Clone + 'static,
    Fut: Future<Output = Result<Rep, Failed>> + 'static,
{
    serve_with(rpc, pools, opcode, async move |pools, request: &Request| {
        let tenant = request.tenant();
        let body = read_request(request, |shown| Ok(pools.check_shown(shown, tenant)?)).await?;
        let (decoded, tail): (Req, ServiceTail) =
            codec::decode_with_tail(&body).map_err(|error| Status::new(Der::PROTO, error.to_string()))?;
        pools.check_tenant(decoded.capability(), tenant)?;
        if let Some(service) = pools.own_service(decoded.capability().pool) {
            service.confirm().await?;
        }
        Ok(answer(pools, decoded, tail.id.map(command_of)).await?)
    });
}

/// Serves one operation: has a request answered, and encodes the answer.
fn serve_with<Rep, F>(rpc: &Rpc, pools: &Rc<TargetPools>, opcode: u16, answer: F)
where
    Rep: Serialize + 'static,
    F: AsyncFn(Rc<TargetPools>, &Request) -> Result<Rep, Status> + 'static,
{
    let (pools, answer) = (Rc::downgrade(pools), Rc::new(answer));
    let handler = move |request: Request| {
        let (pools, answer) = (pools.upgrade(), Rc::clone(&answer));
        async move {
            let stopping = || Status::new(Der::SHUTDOWN, "the engine is stopping");
            let found = answer(pools.ok_or_else(stopping)?, &request).await?;
            reply(&request, codec::encode(&found)).await
        }
    };
    rpc.serve(opcode, Rc::new(handler));
}

/// The name of a client's change as that of a command.
fn command_of(ChangeId { client, number }: ChangeId) -> CommandId {
    (u128::from(client) << 64 | u128::from(number)).to_be_bytes()
}

fn decode<Req: DeserializeOwned>(body: &[u8]) -> Result<Req, Status> {
    codec::decode_message(body).map_err(|error| Status::new(Der::PROTO, error.to_string()))
}

/// Answers the pool and container requests of clients.
pub fn serve_clients(rpc: &Rpc, pools: &Rc<TargetPools>) {
    // A client that connects has no handle yet; the request fits a message.
    serve_with(rpc, pools, opcode::POOL_CONNECT, async |pools, request: &Request| {
        Ok(pools.connect(decode(request.body())?, request.tenant()).await?)
    });
    serve(rpc, pools, opcode::POOL_QUERY, |pools, request: PoolRequest, _| async move {
        let service = pools.service(request.capability.pool)?;
        service.authorize(&request.capability, Rights::READ)?;
        service.query().await
    });
    // Its own engine need not run the pool's service: another one may be asked while that is away. The request fits a message.
    serve_with(rpc, pools, opcode::POOL_MAP, async |pools, request: &Request| {
        let asked: PoolRequest = decode(request.body())?;
        pools.check_tenant(&asked.capability, request.tenant())?;
        Ok(pools.get(asked.capability.pool)?.map_for(&asked.capability)?)
    });
    serve(rpc, pools, opcode::POOL_DISCONNECT, |pools, request: PoolRequest, _| async move {
        let service = pools.service(request.capability.pool)?;
        service.authorize(&request.capability, Rights::default()).map(drop)
    });
    serve(rpc, pools, opcode::CONTAINER_LIST, |pools, request: PoolRequest, _| async move {
        let service = pools.service(request.capability.pool)?;
        service.authorize(&request.capability, Rights::READ)?;
        service.list_containers().await
    });
    serve(rpc, pools, opcode::CONTAINER_CREATE, |pools, request: ContainerCreateRequest, _| async move {
        pools.service(request.capability.pool)?.create_container(request, false).await.map(|made| made.it)
    });
    serve(rpc, pools, opcode::CONTAINER_OPEN, |pools, request: ContainerOpenRequest, _| async move {
        pools.service(request.capability.pool)?.open_container(&request)
    });
    serve(rpc, pools, opcode::CONTAINER_CLOSE, |pools, request: ContainerRequest, _| async move {
        pools.service(request.capability.pool)?.close_container(&request.capability).await
    });
    serve(rpc, pools, opcode::CONTAINER_DESTROY, |pools, request: ContainerDestroyRequest, _| async move {
        pools.service(request.capability.pool)?.destroy_container(&request).await
    });
    serve(rpc, pools, opcode::CONTAINER_QUERY, |pools, request: ContainerRequest, _| async move {
        pools.service(request.capability.pool)?.query_container(&request.capability).await
    });
    serve(rpc, pools, opcode::CONTAINER_KEEP, |pools, request: ContainerKeepRequest, _| async move {
        pools.service(request.capability.pool)?.keep_container(&request).await
    });
    serve_container_state(rpc, pools);
}

fn serve_container_state(rpc: &Rpc, pools: &Rc<TargetPools>) {
    serve(rpc, pools, opcode::CONTAINER_ALLOCATE_OIDS, |pools, request: AllocateRequest, _| async move {
        pools.service(request.capability.pool)?.allocate_oids(&request.capability, request.count).await
    });
    serve(
        rpc,
        pools,
        opcode::CONTAINER_SET_ATTRIBUTES,
        |pools, request: AttributeSetRequest, id| async move {
            pools.service(request.capability.pool)?.set_attributes(request, id).await
        },
    );
    serve(
        rpc,
        pools,
        opcode::CONTAINER_GET_ATTRIBUTES,
        |pools, request: AttributeGetRequest, _| async move {
            pools.service(request.capability.pool)?.get_attributes(&request.capability, &request.names).await
        },
    );
    serve(rpc, pools, opcode::CONTAINER_SNAPSHOT, |pools, request: SnapshotRequest, id| async move {
        pools.service(request.capability.pool)?.snapshot(&request, id).await
    });
    serve(rpc, pools, opcode::CONTAINER_SET_QUOTA, |pools, request: QuotaRequest, id| async move {
        pools.service(request.capability.pool)?.set_quota(&request, id).await
    });
}
