//! Pools: connections and queries.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weir_proto::capability::Credential;
use weir_proto::opcode;
use weir_proto::pool::{ConnectReply, ConnectRequest, PoolMap, PoolQueryReply, PoolRequest};
use weir_proto::{Capability, Der, PoolId, Rank, Rights};
use weir_runtime::Instant;

use crate::error::Error;
use crate::operation::{Reach, RequestInfo};
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
        let mut reply = context.ask_any(&info, &body, deadline).await?;
        // An engine that points elsewhere knows which engine runs the service; that one answers for itself.
        for _ in 0..SERVICE_HOPS_MAX {
            match reply {
                ConnectReply::Connected { capability, label, map, service, object_class } => {
                    let system = context.attach().system.clone();
                    let state = PoolState { system, capability, label, service, object_class, map };
                    context.learn_map(state.capability.pool, &state.map);
                    return Ok(Self(Arc::new(state)));
                }
                ConnectReply::Elsewhere { service } => {
                    reply = context.ask(Reach::Rank(service), &info, &body, deadline).await?;
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
        let reply: PoolQueryReply = context.ask(self.reach(), &info, &body, deadline).await?;
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
        context.tell(self.reach(), &info, &self.request()).await
    }

    /// Containers of the pool.
    ///
    /// # Errors
    /// When the pool service refuses or does not answer in time.
    pub async fn containers(&self, context: &Context) -> Result<Vec<ContainerInfo>> {
        let info = RequestInfo::new("list containers of", self, opcode::CONTAINER_LIST);
        context.ask_encoded(self.reach(), &info, &self.request()).await
    }

    /// The handle as bytes, for another process of the same user.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        weir_proto::codec::encode(self.0.as_ref())
    }

    /// The inverse of [`Pool::to_bytes`].
    ///
    /// # Errors
    /// When the bytes are not a pool handle.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let state = weir_proto::codec::decode(bytes).map_err(|error| Error::invalid("pool handle", error))?;
        Ok(Self(Arc::new(state)))
    }

    /// The engine that runs the pool's service.
    pub(crate) fn service(&self) -> Rank {
        self.0.service
    }

    pub(crate) fn reach(&self) -> Reach {
        Reach::Rank(self.0.service)
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

/// How often an engine may point to another one: once to the service's place, once more after it moved meanwhile.
const SERVICE_HOPS_MAX: usize = 3;
