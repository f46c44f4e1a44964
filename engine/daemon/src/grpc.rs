//! The gRPC services. Each method is passed to target 0 as bytes and answered there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prost::Message;
use tonic::{Code, Request, Response, Status};
use weir_management::v1::containers_server::Containers;
use weir_management::v1::pools_server::Pools;
use weir_management::v1::system_server::System;
use weir_management::v1::tenants_server::Tenants;
use weir_management::{Caller, Failure, Origin, v1};
use weir_proto::Der;
use weir_runtime::real::Remote;

use crate::metrics::MethodFigures;
use crate::{tenant_view, thread};

/// Longest time for any management request. The slowest one, creating a pool while an engine is down, gives up
/// before that by itself.
const CALL_LIMIT: Duration = Duration::from_mins(1);

/// The part of the log that says who asked for what.
const AUDIT: &str = "weir_audit";

/// Management calls by method.
pub type Methods = Arc<Mutex<BTreeMap<String, MethodFigures>>>;

/// The gRPC end of management.
#[derive(Clone)]
pub struct Bridge {
    target: Remote,
    methods: Methods,
}

impl Bridge {
    /// Hands requests to the target behind `target`.
    pub fn new(target: Remote, methods: Methods) -> Self {
        Self { target, methods }
    }

    async fn call<Req, Rep>(
        &self,
        method: &'static str,
        object: String,
        request: Request<Req>,
    ) -> Result<Response<Rep>, Status>
    where
        Req: Message,
        Rep: Message + Default,
    {
        let arrived = Instant::now();
        let origin = request.extensions().get::<Origin>().cloned();
        let caller = origin.as_ref().map_or_else(|| Caller::of_certificate(None), |origin| origin.caller);
        let bytes = request.into_inner().encode_to_vec();
        let answer = self.ask_as(caller, method, bytes).await.and_then(|answer| {
            Rep::decode(answer.as_slice()).map_err(|error| {
                Failure::new(Der::PROTO, "", format!("an answer that does not decode: {error}"))
            })
        });
        let error = answer.as_ref().err().map(|failure| failure.message.clone());
        let answer = answer.map(Response::new).map_err(Status::from);
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        let mut methods = self.methods.lock().unwrap_or_else(PoisonError::into_inner);
        methods.entry(method.to_owned()).or_default().record(code_name(code), arrived.elapsed());
        drop(methods);
        audit(origin.as_ref(), caller, (method, &object), code, error.as_deref());
        answer
    }

    /// Asks as far as the caller may: within its role, and for a reader of one tenant within that tenant's pools.
    async fn ask_as(
        &self,
        caller: Caller,
        method: &'static str,
        request: Vec<u8>,
    ) -> Result<Vec<u8>, Failure> {
        caller.permit(method)?;
        let Some(tenant) = caller.tenant() else { return self.ask(method, request).await };
        if let Some(pool) = tenant_view::pool_of(method, &request)? {
            let (question, asked) = tenant_view::ask_owner(&pool);
            match self.ask(question, asked).await {
                Ok(answer) if tenant_view::is_owner(tenant, &answer) => {}
                Err(failure) if failure.code() != Code::NotFound => return Err(failure),
                _ => return Err(caller.no_pool(method, &pool)),
            }
        }
        tenant_view::restrict(tenant, method, self.ask(method, request).await?)
    }

    async fn ask(&self, method: &'static str, request: Vec<u8>) -> Result<Vec<u8>, Failure> {
        let starting = || Failure::new(Der::AGAIN, "", "the engine is starting or stopping; try again");
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let job = move |rt: &weir_runtime::Handle| {
            let Some(target) = thread::current() else { return };
            rt.spawn(async move {
                if let Some(management) = target.management() {
                    let answer = management.call(method, &request).await;
                    // What fails because its target ends may succeed when that is back.
                    let answer = if target.is_stopping() { answer.map_err(|_| starting()) } else { answer };
                    // A caller that has gone away needs no answer.
                    drop(sender.send(answer));
                }
            });
        };
        self.target.spawn(Box::new(job)).map_err(|_| starting())?;
        match tokio::time::timeout(CALL_LIMIT, receiver).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(starting()),
            Err(_) => {
                let message = format!(
                    "{method} was not answered within {CALL_LIMIT:?}; its outcome is unknown, ask again"
                );
                Err(Failure::new(Der::TIMEDOUT, "", message))
            }
        }
    }
}

/// Writes down who asked for what, and what became of it. Questions that were answered are in the log at level debug: the operator
/// asks them all the time.
fn audit(
    origin: Option<&Origin>,
    caller: Caller,
    (call, object): (&str, &str),
    code: Code,
    error: Option<&str>,
) {
    let who = origin.map_or("", |origin| &*origin.name);
    let from = origin.map_or_else(String::new, |origin| origin.address.to_string());
    let role = caller.role().map_or_else(|| "none".to_owned(), |role| role.to_string());
    let (result, error) = (code_name(code), error.unwrap_or_default());
    if code == Code::Ok && !changes(call) {
        tracing::debug!(target: AUDIT, who, from, role, call, object, result, "management call");
    } else {
        tracing::info!(target: AUDIT, who, from, role, call, object, result, error, "management call");
    }
}

/// Whether a call changes something.
fn changes(call: &str) -> bool {
    !matches!(call.split_once('/'), Some((_, "Query" | "QueryLimits" | "List" | "Attach")))
}

/// Value of the label `code`.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
        Code::Unknown => "Unknown",
    }
}

macro_rules! service {
    ($service:ident { $($method:ident ($request:ident) -> $response:ident = $name:literal, $object:expr;)* }) => {
        #[tonic::async_trait]
        impl $service for Bridge {
            $(
                async fn $method(&self, request: Request<v1::$request>) -> Result<Response<v1::$response>, Status> {
                    let object: fn(&v1::$request) -> String = $object;
                    let object = object(request.get_ref());
                    self.call($name, object, request).await
                }
            )*
        }
    };
}

service!(System {
    attach(AttachRequest) -> AttachResponse = "System/Attach", |_| String::new();
    query(SystemQueryRequest) -> SystemQueryResponse = "System/Query", |_| String::new();
    clear_device(ClearDeviceRequest) -> ClearDeviceResponse = "System/ClearDevice",
        |asked| format!("target {} of rank {}", asked.target, asked.rank);
});

service!(Pools {
    create(PoolCreateRequest) -> PoolCreateResponse = "Pools/Create", |asked| asked.label.clone();
    list(PoolListRequest) -> PoolListResponse = "Pools/List", |_| String::new();
    query(PoolQueryRequest) -> PoolQueryResponse = "Pools/Query", |asked| asked.pool.clone();
    resize(PoolResizeRequest) -> PoolResizeResponse = "Pools/Resize", |asked| asked.pool.clone();
    destroy(PoolDestroyRequest) -> PoolDestroyResponse = "Pools/Destroy", |asked| asked.pool.clone();
    exclude(PoolExcludeRequest) -> PoolExcludeResponse = "Pools/Exclude",
        |asked| format!("rank {} of pool {}", asked.rank, asked.pool);
    reintegrate(PoolReintegrateRequest) -> PoolReintegrateResponse = "Pools/Reintegrate",
        |asked| format!("rank {} of pool {}", asked.rank, asked.pool);
    drain(PoolDrainRequest) -> PoolDrainResponse = "Pools/Drain",
        |asked| format!("rank {} of pool {}", asked.rank, asked.pool);
    extend(PoolExtendRequest) -> PoolExtendResponse = "Pools/Extend",
        |asked| format!("ranks {:?} of pool {}", asked.ranks, asked.pool);
    set_properties(PoolSetPropertiesRequest) -> PoolSetPropertiesResponse = "Pools/SetProperties",
        |asked| asked.pool.clone();
});

service!(Containers {
    create(ContainerCreateRequest) -> ContainerCreateResponse = "Containers/Create",
        |asked| format!("{}/{}", asked.pool, asked.label);
    list(ContainerListRequest) -> ContainerListResponse = "Containers/List", |asked| asked.pool.clone();
    query(ContainerQueryRequest) -> ContainerQueryResponse = "Containers/Query",
        |asked| format!("{}/{}", asked.pool, asked.container);
    set_quota(ContainerSetQuotaRequest) -> ContainerSetQuotaResponse = "Containers/SetQuota",
        |asked| format!("{}/{}", asked.pool, asked.container);
    destroy(ContainerDestroyRequest) -> ContainerDestroyResponse = "Containers/Destroy",
        |asked| format!("{}/{}", asked.pool, asked.container);
});

service!(Tenants {
    query(TenantQueryRequest) -> TenantQueryResponse = "Tenants/Query", |asked| asked.tenant.to_string();
    revoke(TenantRevokeRequest) -> TenantRevokeResponse = "Tenants/Revoke", |asked| asked.tenant.to_string();
    admit(TenantAdmitRequest) -> TenantAdmitResponse = "Tenants/Admit", |asked| asked.tenant.to_string();
    set_limits(TenantSetLimitsRequest) -> TenantSetLimitsResponse = "Tenants/SetLimits",
        |asked| asked.tenant.to_string();
    query_limits(TenantQueryLimitsRequest) -> TenantQueryLimitsResponse = "Tenants/QueryLimits",
        |asked| asked.tenant.to_string();
});
