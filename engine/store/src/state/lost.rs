//! Index nodes that an open tolerates although they can't be read. What lies below them is lost, and nothing else.
//!
//! A request for something below gets an error, as for a damaged node that is found later. Changes of the log below such a node
//! can't be applied and are lost with it. A node that has lost changes stays lost, also if it is readable at another time. If
//! the snapshots or prepared transactions of a container may be below such a node, the container is closed: a reader might miss
//! what was committed, and aggregation might remove what a snapshot shows. A store whose nodes with pools, containers and
//! attributes can't be read isn't opened.

use crate::format::bounds::describe;
use crate::format::key::{self, ContainerNumber, PoolNumber};
use crate::format::node::PageRef;
use crate::format::record::Change;
use crate::index::fault::{Halt, PageError};
use crate::index::tree::{Missing, Tree};
use crate::state::core::Core;
use crate::state::error::OpenError;
use crate::state::rot;
use crate::state::rot::Rot;
use core::cell::{Cell, RefCell};
use core::ops::ControlFlow;

/// A node that is lost, and what may have been below it.
#[derive(Debug)]
struct Lost {
    place: PageRef,
    /// First key.
    low: Vec<u8>,
    /// First key behind, if there is a limit.
    high: Option<Vec<u8>>,
    error: PageError,
    /// Whether changes below it were dropped.
    is_void: Cell<bool>,
}

impl Lost {
    /// Whether keys with this beginning may be below it.
    fn may_have(&self, prefix: &[u8]) -> bool {
        let begins_before_end = self.high.as_deref().is_none_or(|high| prefix < high);
        begins_before_end && key::after(prefix) > self.low
    }
}

/// All nodes that an open goes on without.
#[derive(Debug, Default)]
pub(crate) struct LostNodes {
    nodes: RefCell<Vec<Lost>>,
    /// Changes of the log that were below them.
    dropped: Cell<u64>,
}

impl LostNodes {
    /// Whether a node of this place is one of them.
    fn has(&self, place: PageRef) -> bool {
        self.nodes.borrow().iter().any(|lost| lost.place.block == place.block)
    }

    /// Why nothing can be said of a container, if so.
    pub(crate) fn shuts(&self, (pool, container): (PoolNumber, ContainerNumber)) -> Option<PageError> {
        let kinds = [key::SNAPSHOT, key::TRANSACTION].map(|kind| key::container(kind, pool, container));
        let nodes = self.nodes.borrow();
        let found = nodes.iter().find(|lost| kinds.iter().any(|prefix| lost.may_have(prefix)));
        found.map(|lost| lost.error.clone())
    }
}

/// Visits the entries of a kind, around the nodes that are lost.
pub(crate) fn scan_kind<B>(
    core: &Core,
    tree: &Tree,
    kind: u8,
    mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
) -> Result<Option<B>, Missing> {
    let mut from = vec![kind];
    loop {
        let scanned = tree.scan(&from, |key, value| {
            if key.first() == Some(&kind) {
                visit(key, value).map_break(Some)
            } else {
                ControlFlow::Break(None)
            }
        });
        match scanned {
            Err(Missing(nodes)) if nodes.first().is_some_and(|(_, place)| core.lost.has(*place)) => {
                let Some(behind) = tree.behind_absent(&from) else { return Ok(None) };
                from = behind;
            }
            scanned => return Ok(scanned?.flatten()),
        }
    }
}

impl Core {
    /// Reads all nodes with snapshots and transactions, but for those that are lost.
    pub(crate) async fn load_behind_objects(&self) -> Result<(), OpenError> {
        for kind in [key::SNAPSHOT, key::TRANSACTION] {
            let touch = |tree: &Tree| {
                let visited = scan_kind(self, tree, kind, |_, _| ControlFlow::<()>::Continue(()));
                visited.map(drop).map_err(Halt::<PageError>::Missing)
            };
            while let Err(error) = self.ask(touch).await {
                self.lose_node(error).await?;
            }
        }
        Ok(())
    }

    /// Shuts the containers of which nothing can be said. Fails when no other is there.
    pub(crate) fn shut_containers(&self) -> Result<(), OpenError> {
        let catalog = &mut *self.catalog.borrow_mut();
        let (mut shut, mut is_any_open) = (Vec::new(), false);
        for (number, pool) in &catalog.pools {
            for (container_number, container) in &pool.containers {
                match self.lost.shuts((*number, *container_number)) {
                    Some(error) => shut.push((*number, *container_number, error)),
                    None => is_any_open |= !container.destroying && !pool.destroying,
                }
            }
        }
        if let Some((.., error)) = shut.first().filter(|_| !is_any_open) {
            return Err(error.clone().into());
        }
        for (pool, container, error) in shut {
            if let Some(id) = catalog.shut((pool, container), error.clone()) {
                tracing::error!(
                    container = %id,
                    "a container is shut on this target, because its snapshots or prepared transactions may be lost: {error}; `weir store check` says what else is, `weir store copy` copies what can be read"
                );
            }
        }
        Ok(())
    }

    /// Makes sure that these changes of the log find all they need, but for those below nodes that are lost, which are dropped.
    pub(crate) async fn reach_replayed(&self, changes: &mut Vec<Change>) -> Result<(), OpenError> {
        loop {
            changes.retain(|change| !self.is_dropped(change.key()));
            let keys = || changes.iter().map(Change::key);
            let reached = self.ask(|tree| Ok::<_, Halt<PageError>>(tree.reach(keys())?)).await;
            let Err(error) = reached else { return Ok(()) };
            self.lose_node(error).await?;
        }
    }

    /// Whether a change is one below a lost node, of which nothing is left from then on.
    fn is_dropped(&self, key: &[u8]) -> bool {
        if self.lost.nodes.borrow().is_empty() {
            return false;
        }
        let Err(Missing(absent)) = self.tree.borrow().leaf(key) else { return false };
        let Some((_, place)) = absent.first() else { return false };
        let nodes = self.lost.nodes.borrow();
        let Some(lost) = nodes.iter().find(|lost| lost.place.block == place.block) else { return false };
        if !lost.is_void.replace(true) {
            self.tree.borrow_mut().void(key);
        }
        self.lost.dropped.set(self.lost.dropped.get() + 1);
        true
    }

    /// Says how much of the log was dropped.
    pub(crate) fn tell_dropped(&self) {
        let dropped = self.lost.dropped.get();
        if dropped > 0 {
            tracing::error!(
                device = self.device.name(),
                "{dropped} changes of the log are lost with the index nodes that they belong below"
            );
        }
    }

    /// Goes on without the node that couldn't be brought in just now, unless it can after all. Fails when the device doesn't answer.
    async fn lose_node(&self, error: PageError) -> Result<(), OpenError> {
        let Some((key, place)) = self.paging.take_failed() else { return Err(error.into()) };
        let Some((low, high)) = self.tree.borrow().absent(&key, place) else { return Err(error.into()) };
        let error = match self.read_node_again(place).await? {
            Ok(body) => match self.tree.borrow().install(&key, place, body) {
                Ok(()) => {
                    self.paging.note_read(&key, place, true);
                    return Ok(());
                }
                Err(_) => error,
            },
            Err(error) => error,
        };
        let location = self.location("an index node", self.layout.data(place.block));
        let subject = Some(describe(&low, high.as_deref()));
        let (len, reason) = (place.len.into(), format!("{error}; what is below it is lost"));
        rot::report(self, Rot { location, len, pool: None, subject, reason, renewed: false });
        self.lost.nodes.borrow_mut().push(Lost { place, low, high, error, is_void: Cell::new(false) });
        Ok(())
    }
}
