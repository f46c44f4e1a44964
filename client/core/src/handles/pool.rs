//! Pools: connections and queries.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_proto::capability::Credential;
use weir_proto::opcode;
use weir_proto::pool::{ConnectReply, ConnectRequest, ConnectTail, PoolMap, PoolQueryReply, PoolRequest};
use weir_proto::{Capability, Der, PoolId, Rank, Rights};
use weir_runtime::Instant;

use crate::error::Error;
use crate::operation::{PAUSE, Reach, RequestInfo, SERVICE_LIMIT, is_elsewhere};
use crate::session::Context;
use crate::{ContainerInfo, Result};

/// What a pool handle is made of; also its portable form.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PoolState {
    pub(crate) system: String,
    pub(crate) capability: Capability,
    pub(crate) label: String,
    pub(crate) service: Rank,
    pub(crate) object_class: String,
    pub(crate) map: PoolMap,
    /// Ranks that replicate the service; none: it isn't replicated. Encoded behind the rest.
    #[serde(skip)]
    pub(crate) replicas: Vec<Rank>,
}

/// A connected pool. Plain data: cheap to clone, usable from any context of the system.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<PoolState>);

/// Space of a pool, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolSpace {
    /// Sum of all targets' shares.
    pub total: u64,
    /// Not used.
    pub free: u64,
    /// Free bytes of the fullest target.
    pub free_min: u64,
    /// Free bytes of the emptiest target.
    pub free_max: u64,
}

impl PoolSpace {
    /// Sums up the space of the targets that answered a query.
    #[must_use]
    pub fn of(reply: &PoolQueryReply) -> Self {
        let free = || reply.space.iter().map(|(_, space)| space.free);
        Self {
            total: reply.space.iter().map(|(_, space)| space.total).sum(),
            free: free().sum(),
            free_min: free().min().unwrap_or(0),
            free_max: free().max().unwrap_or(0),
        }
    }
}

impl Pool {
    /// Connects to a pool by label or UUID text. Engines are asked which of them runs its service.
    ///
    /// # Errors
    /// `NONEXIST` when no engine knows the pool, `NO_PERM` when the system key or the rights are refused, and
    /// [`Error::Unavailable`] when the engine that knows it does not answer in time.
    pub async fn connect(context: &Context, pool: &str, rights: Rights) -> Result<Self> {
        let subject = format!("pool {pool}");
        let info = RequestInfo::new("connect to", &subject, opcode::POOL_CONNECT);
        let body = || {
            weir_proto::codec::encode(&ConnectRequest {
                pool: pool.to_owned(),
                rights,
                credential: Credential::issue(
                    &context.attach().key,
                    pool,
                    context.uid(),
                    context.gid(),
                    context.runtime().wall_ns(),
                ),
            })
        };
        let deadline = context.until();
        let mut answer = context.ask_any(&info, &body, deadline).await?;
        // An engine that points elsewhere knows which engine runs the service; that one answers for itself. While a service gets another
        // leader, engines may point at each other.
        for hops in 1_usize.. {
            match answer {
                (ConnectReply::Connected { capability, label, map, service, object_class }, tail) => {
                    let ConnectTail { replicas } = tail;
                    let system = context.attach().system.clone();
                    let state = PoolState { system, capability, label, service, object_class, map, replicas };
                    context.learn_map(state.capability.pool, &state.map);
                    return Ok(Self(Arc::new(state)));
                }
                (ConnectReply::Elsewhere { service }, _) => {
                    if hops.is_multiple_of(SERVICE_HOPS_MAX) {
                        if context.runtime().now() + PAUSE.1 >= deadline {
                            break;
                        }
                        context.runtime().sleep(PAUSE.1).await;
                    }
                    answer = Self::connect_at(context, service, (&info, &body), deadline).await?;
                }
            }
        }
        Err(Error::refused(
            "connect to",
            format!("pool {pool}"),
            Der::NO_SERVICE,
            "engines point at each other for the pool's service; is the attach file up to date?",
        ))
    }

    /// Asks the engine that is said to run a pool's service. While it doesn't answer, or says that another one does, all are asked
    /// again: a replicated service goes elsewhere.
    async fn connect_at(
        context: &Context,
        service: Rank,
        (info, body): (&RequestInfo<'_>, &dyn Fn() -> Vec<u8>),
        deadline: Instant,
    ) -> Result<(ConnectReply, ConnectTail)> {
        let limit = (context.runtime().now() + SERVICE_LIMIT).min(deadline);
        match context.ask_with_tail(Reach::Rank(service), info, body, limit).await {
            Err(error) if is_elsewhere(&error) && context.runtime().now() < deadline => {
                context.runtime().sleep(PAUSE.0).await;
                context.ask_any(info, body, deadline).await
            }
            answer => answer,
        }
    }

    /// Identity of the pool.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.0.capability.pool
    }

    /// Label of the pool when it was connected.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Name of the pool's default object class.
    #[must_use]
    pub fn object_class(&self) -> &str {
        &self.0.object_class
    }

    /// Rights that were granted.
    #[must_use]
    pub fn rights(&self) -> Rights {
        self.0.capability.rights
    }

    /// Pool map as it was at connect.
    #[must_use]
    pub fn map(&self) -> &PoolMap {
        &self.0.map
    }

    /// State and space of the pool.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn query(&self, context: &Context) -> Result<PoolQueryReply> {
        self.query_until(context, context.until()).await
    }

    /// As [`Pool::query`], for an operation that is given up then.
    pub(crate) async fn query_until(&self, context: &Context, deadline: Instant) -> Result<PoolQueryReply> {
        let info = RequestInfo::new("query", self, opcode::POOL_QUERY);
        let body = || weir_proto::codec::encode(&self.request());
        let reply: PoolQueryReply = context.ask(self.reach(context), &info, &body, deadline).await?;
        context.learn_map(self.id(), &reply.map);
        Ok(reply)
    }

    /// Gets the newest pool map that an engine has. Sends one message, which the engine answers from memory.
    pub(crate) async fn ask_map(&self, context: &Context, rank: Rank, deadline: Instant) -> Result<()> {
        let info = RequestInfo::new("get the map of", self, opcode::POOL_MAP);
        let body = || weir_proto::codec::encode(&self.request());
        let map: PoolMap = context.ask(Reach::Rank(rank), &info, &body, deadline).await?;
        context.learn_map(self.id(), &map);
        Ok(())
    }

    /// Gives the handle back. Handles derived from it stop working when the engines next check them.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn disconnect(&self, context: &Context) -> Result<()> {
        let info = RequestInfo::new("disconnect from", self, opcode::POOL_DISCONNECT);
        context.tell(self.reach(context), &info, &self.request()).await
    }

    /// Containers of the pool.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn containers(&self, context: &Context) -> Result<Vec<ContainerInfo>> {
        let info = RequestInfo::new("list containers of", self, opcode::CONTAINER_LIST);
        context.ask_encoded(self.reach(context), &info, &self.request()).await
    }

    /// The handle as bytes, for another process of the same user.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        weir_proto::codec::encode_with_tail(self.0.as_ref(), &self.0.replicas)
    }

    /// The inverse of [`Pool::to_bytes`].
    ///
    /// # Errors
    /// When the bytes are not a pool handle.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let (state, replicas): (PoolState, Vec<Rank>) = weir_proto::codec::decode_with_tail(bytes)
            .map_err(|error| Error::invalid("pool handle", error))?;
        Ok(Self(Arc::new(PoolState { replicas, ..state })))
    }

    /// The engine that runs the pool's service.
    pub(crate) fn service(&self) -> Rank {
        self.0.service
    }

    /// Where the pool's service is to be asked.
    pub(crate) fn reach(&self, context: &Context) -> Reach {
        // The newest map says so where others replicate it than at connect.
        let map = context.known_map(self.id());
        let named = map.as_ref().map(|map| map.service.as_slice()).filter(|named| !named.is_empty());
        let replicas = named.unwrap_or(&self.0.replicas);
        if replicas.is_empty() {
            return Reach::Rank(self.0.service);
        }
        context.learn_replicas(self.id(), replicas, self.0.service);
        context.keep_handle(&self.0.capability);
        Reach::Service(self.id())
    }

    fn request(&self) -> PoolRequest {
        PoolRequest { capability: self.0.capability.clone() }
    }
}

impl core::fmt::Display for Pool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "pool {}", self.0.label)
    }
}

/// How often an engine may point to another one before there is a pause: once to the service's place, once more after it moved meanwhile.
const SERVICE_HOPS_MAX: usize = 3;
