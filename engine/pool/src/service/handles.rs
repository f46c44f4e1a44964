//! Open handles of containers: their clients, and how long each counts.
//!
//! A client that reports its node (`CONTAINER_KEEP`) has a handle that is stored. A mount repeats the report three
//! times within the lease of handles. A mount that doesn't any more has died, or can't reach the engines. Kubernetes or
//! an operator knows which of the two it is, so the handle is listed until it is given back. Other handles are known to
//! be in use only by their requests.

use std::time::Duration;

use weir_group::Gathered;
use weir_proto::Rights;
use weir_proto::limits::{HANDLE_LEASE_NS, NODE_NAME_MAX};
use weir_proto::pool::ContainerKeepRequest;
use weir_runtime::Instant;

use super::{Container, PoolService};
use crate::error::Failed;
use crate::record;

/// Most handles of a container that are stored: more nodes than any system has.
const NAMED_MAX: usize = 1 << 16;

/// How long a handle counts after its client was last heard of.
const LEASE: Duration = Duration::from_nanos(HANDLE_LEASE_NS);

/// An open handle.
#[derive(Clone, Debug)]
pub(super) struct Handle {
    /// When its client was last heard of by the service, or when the service started.
    pub(super) seen: Instant,
    /// The node where its client is.
    node: Option<Box<str>>,
    /// Whether its client has said so again since, as mounts do: its silence says something.
    renewed: bool,
}

impl Handle {
    pub(super) const fn new(seen: Instant) -> Self {
        Self { seen, node: None, renewed: false }
    }
}

/// What is told of an open handle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenHandle {
    /// Its number.
    pub handle: u64,
    /// The node where its client is; empty where the client has not said so.
    pub node: String,
    /// For how long the service has not heard of its client.
    pub silent: Duration,
    /// Whether it keeps the container from being destroyed without force.
    pub counts: bool,
}

impl PoolService {
    /// A client is there, and has said where. A handle is stored when it is heard of first, or from another node.
    ///
    /// # Errors
    /// When the handle is not valid any more, the name can't be a node's, or the state can't be written.
    pub async fn keep_container(&self, request: &ContainerKeepRequest) -> Result<(), Failed> {
        let container = self.authorize_container(&request.capability, Rights::default())?;
        let object = || self.object(&container.label());
        let node = request.node.as_str();
        let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if node.is_empty() || node.len() > NODE_NAME_MAX || !node.bytes().all(is_good) {
            let reason = "the name of a client's node has letters, digits, dots and dashes".to_owned();
            return Err(Failed::Invalid { object: object(), reason });
        }
        let handle = request.capability.handle;
        match container.handles.borrow_mut().get_mut(&handle) {
            None => return Ok(()),
            Some(known) if known.node.as_deref() == Some(node) => {
                known.renewed = true;
                return Ok(());
            }
            Some(_) => {}
        }
        let _turn = self.turn_of(&container).await?;
        let scope = record::scope_handles(container.id);
        let mut changes = vec![record::change(&scope, &handle.to_be_bytes(), Some(node.as_bytes().to_vec()))];
        let surplus = self.surplus(&container).map_err(|reason| Failed::Busy { object: object(), reason })?;
        changes.extend(surplus.map(|gone| record::change(&scope, &gone.to_be_bytes(), None)));
        self.commit(&changes).await?;
        let mut handles = container.handles.borrow_mut();
        if let Some(gone) = surplus {
            handles.remove(&gone);
        }
        if let Some(known) = handles.get_mut(&handle) {
            known.node = Some(node.into());
        }
        Ok(())
    }

    /// The handle that makes room for another one to be stored, where there is none: of the client that is silent for longest.
    fn surplus(&self, container: &Container) -> Result<Option<u64>, String> {
        let handles = container.handles.borrow();
        let named = || handles.iter().filter(|(_, known)| known.node.is_some());
        if named().count() < NAMED_MAX {
            return Ok(None);
        }
        let oldest = named().min_by_key(|(_, known)| known.seen);
        let lapsed = oldest.filter(|(_, known)| self.silence(known) >= LEASE);
        let full = || format!("is open at {NAMED_MAX} clients that have said where they are, which is all");
        lapsed.map(|(handle, _)| Some(*handle)).ok_or_else(full)
    }

    fn silence(&self, known: &Handle) -> Duration {
        self.engines.runtime().now().saturating_duration_since(known.seen)
    }

    /// Forgets a handle that is given back.
    pub(super) async fn forget_handle(&self, container: &Container, handle: u64) -> Result<(), Failed> {
        let known = container.handles.borrow_mut().remove(&handle);
        if known.is_none_or(|known| known.node.is_none()) {
            return Ok(());
        }
        let change = record::change(&record::scope_handles(container.id), &handle.to_be_bytes(), None);
        self.commit(&[change]).await
    }

    /// Loads the stored handles of a container, whose clients have not been heard yet.
    pub(super) fn load_handles(&self, container: &Container) {
        let now = self.engines.runtime().now();
        for (name, node) in record::load_scope(&self.shard, &record::scope_handles(container.id)) {
            let (Ok(name), Ok(node)) = (name.as_slice().try_into(), String::from_utf8(node)) else {
                continue;
            };
            let handle = Handle { seen: now, node: Some(node.into()), renewed: false };
            container.handles.borrow_mut().insert(u64::from_be_bytes(name), handle);
        }
    }

    /// Handles that are known, by what the targets say: those that count, and those whose node is known. A handle that
    /// was silent for long counts no more: that of a client that would have repeated its report, or one of a container
    /// that was unused for as long.
    pub(super) fn handles_within(&self, container: &Container, gathered: &Gathered) -> Vec<OpenHandle> {
        let is_active = gathered.is_active(container.id);
        let handles = container.handles.borrow();
        let told = handles.iter().map(|(handle, known)| {
            let silent = self.silence(known);
            OpenHandle {
                handle: *handle,
                node: known.node.as_deref().unwrap_or_default().to_owned(),
                silent,
                counts: silent < LEASE || is_active && !known.renewed,
            }
        });
        told.filter(|open| open.counts || !open.node.is_empty()).collect()
    }

    /// How many of them count.
    pub(super) fn open_within(&self, container: &Container, gathered: &Gathered) -> u32 {
        let open = self.handles_within(container, gathered).iter().filter(|open| open.counts).count();
        u32::try_from(open).unwrap_or(u32::MAX)
    }

    /// The handles of a container by name, by node. Of those of a node that don't count there is one: what can be said of the node is said,
    /// and a node whose clients die over and over hides no other.
    ///
    /// # Errors
    /// When there is none.
    pub async fn handles_by_name(&self, name: &str) -> Result<Vec<OpenHandle>, Failed> {
        let container = self.find(name)?;
        let mut handles = self.live_handles(&container).await?;
        let order = |open: &OpenHandle| (open.node.clone(), open.counts, open.silent, open.handle);
        handles.sort_by_cached_key(order);
        handles.dedup_by(|next, kept| !next.counts && !kept.counts && next.node == kept.node);
        Ok(handles)
    }
}
