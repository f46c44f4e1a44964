//! Bringing index nodes in from the device when a question needs them, and giving their memory back.
//!
//! A question is a closure over the tree. It runs at once when all it needs is in memory. Otherwise it says what is
//! [`Missing`], which is read, and is asked again from the start: it has no effects, and what it passed stays in
//! memory until it has its answer. What takes many questions that have to see the same asks a [`Still`]. Questions about
//! pools, containers and attributes never miss: nodes with keys before the objects' are read when the store is opened and
//! stay.

#[cfg(test)]
mod tests;

use crate::format::blocks::{Run, Runs};
use crate::format::codec::Malformed;
use crate::format::entry::check_object;
use crate::format::key;
use crate::index::fault::Halt;
use crate::index::fault::PageError;
use crate::index::stored::{StoredNode, decode_node};
use crate::space::map::Space;
use crate::state::core::{Core, add};
use core::time::Duration;

use crate::format::node::{NODE_BYTES, PageRef};
use crate::format::value::Version;
use crate::index::tree::{Body, Child, Missing, Packed, Pinned, Tree};
use core::cell::{Cell, RefCell};
use core::ops::Deref;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use weir_media::{BLOCK, DmaBuf, MediaError};
use weir_runtime::join_all;
use weir_runtime::sync::Notify;

/// Pauses before data of the last batch is read again that the device refuses: what passes must not cost a batch that may have been
/// acknowledged, and a path to the device that fails over, or a controller that is reset, takes seconds.
pub(crate) const READ_PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// Nodes that a scan reads at once: 512 KiB at most, near what a device needs in flight for its full rate.
const AHEAD_MAX: usize = 31;

/// Steps of one sweep for memory: some 50 µs.
const SWEEP_STEPS: usize = 8192;

/// Questions between two sweeps when the whole index has nothing to evict: all that takes memory is waiting for a checkpoint.
const SWEEP_PAUSE: u64 = 256;

/// Nodes that are never evicted have keys before this one.
const FLOOR: [u8; 1] = [key::OBJECT];

/// Nor are those with snapshots, which are few, and with transactions and decisions, which are bounded: an open needs all of them.
/// When one rots on the device it can be written anew from here.
pub(crate) const PINNED: Pinned<'static> =
    Pinned { below: &FLOOR, among: [&[key::SNAPSHOT], &[key::TRANSACTION + 1]] };

/// What goes on between memory and device.
#[derive(Default)]
pub(crate) struct Paging {
    /// Nodes being read, by their first block.
    loading: RefCell<BTreeMap<u64, Notify>>,
    /// Ticks at which questions under way began, with how many began then.
    asking: RefCell<BTreeMap<u64, u32>>,
    /// First blocks of nodes that couldn't be read.
    damaged: RefCell<BTreeSet<u64>>,
    /// The last of them, with a key below it.
    failed: Cell<Option<(Vec<u8>, PageRef)>>,
    /// No sweep before this tick.
    rest_until: Cell<u64>,
    pub(crate) faults: Cell<u64>,
    pub(crate) evictions: Cell<u64>,
    pub(crate) errors: Cell<u64>,
}

impl Paging {
    /// Whether a node that isn't in memory may take over keys from this one on. What never is evicted has to be in memory; below
    /// a node that can't be read there would be nothing any more.
    pub(crate) fn may_inherit(&self, page: PageRef, low: &[u8]) -> bool {
        low >= FLOOR.as_slice() && !self.damaged.borrow().contains(&page.block)
    }

    /// A node on the way to a key was read, or couldn't be.
    pub(crate) fn note_read(&self, key: &[u8], page: PageRef, is_sound: bool) {
        let mut damaged = self.damaged.borrow_mut();
        if is_sound {
            damaged.remove(&page.block);
        } else {
            damaged.insert(page.block);
            self.failed.set(Some((key.to_vec(), page)));
            add(&self.errors, 1);
        }
    }

    /// The node that couldn't be brought in last, with a key below it.
    pub(crate) fn take_failed(&self) -> Option<(Vec<u8>, PageRef)> {
        self.failed.take()
    }
}

/// Keeps nodes that a question passes in memory.
struct Asking<'a> {
    paging: &'a Paging,
    tick: u64,
}

impl<'a> Asking<'a> {
    fn new(paging: &'a Paging, tick: u64) -> Self {
        *paging.asking.borrow_mut().entry(tick).or_default() += 1;
        Self { paging, tick }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        let mut asking = self.paging.asking.borrow_mut();
        if let Some(count) = asking.get_mut(&self.tick) {
            *count -= 1;
            if *count == 0 {
                asking.remove(&self.tick);
            }
        }
    }
}

/// Announces that a node is being read. Dropped, those who wait for it look again.
struct Loading<'a> {
    paging: &'a Paging,
    block: u64,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        if let Some(notify) = self.paging.loading.borrow_mut().remove(&self.block) {
            notify.notify_waiters();
        }
    }
}

/// Keeps the blocks of nodes that leave the tree from being given out again.
struct Hold<C: Deref<Target = Core>> {
    core: C,
    reader: u64,
}

impl<C: Deref<Target = Core>> Hold<C> {
    fn new(core: C) -> Self {
        let reader = core.space.borrow_mut().begin_node_read();
        Self { core, reader }
    }
}

impl<C: Deref<Target = Core>> Drop for Hold<C> {
    fn drop(&mut self) {
        self.core.space.borrow_mut().end_node_read(self.reader);
    }
}

/// The index as it was at one moment. As long as there is one, nodes that change are copied, as for a checkpoint, and
/// no node's place is given out again: it is for what a client waits for, and for what takes a bounded number of steps.
pub(crate) struct Still {
    tree: Tree,
    hold: Hold<Rc<Core>>,
    /// Nodes that the next scan reads at once: the more has been asked for, the more is likely to be wanted next.
    ahead: Cell<usize>,
}

impl Still {
    /// For a question that asks the tree at this moment.
    pub(crate) fn new(core: &Rc<Core>, tree: &Tree) -> Self {
        Self { tree: tree.still(), hold: Hold::new(Rc::clone(core)), ahead: Cell::new(0) }
    }

    /// As [`Core::ask`], about the index as it was.
    pub(crate) async fn ask<T, E: From<PageError>>(
        &self,
        mut question: impl FnMut(&Tree) -> Result<T, Halt<E>>,
    ) -> Result<T, E> {
        let core = &self.hold.core;
        loop {
            let ahead = self.ahead.get();
            let tick = core.tree.borrow().begin(ahead);
            self.tree.begin_at(tick, ahead);
            let missing = match question(&self.tree) {
                Ok(answer) => return Ok(answer),
                Err(Halt::Failed(error)) => return Err(error),
                Err(Halt::Missing(missing)) => missing,
            };
            let asking = Asking::new(&core.paging, tick);
            core.load(missing, Some(&self.tree)).await?;
            // What has changed since is in memory for this one alone.
            if core.resident_bytes() > core.config.index_bytes && !core.has_failed() {
                let oldest = core.paging.asking.borrow().first_key_value().map_or(tick, |(tick, _)| *tick);
                let evicted = self.tree.evict(core.config.index_bytes, PINNED, oldest, SWEEP_STEPS);
                add(&core.paging.evictions, evicted as u64);
            }
            drop(asking);
            self.ahead.set((ahead * 2 + 1).min(AHEAD_MAX));
        }
    }
}

/// Checks an entry of an object or of a transaction by itself, and whether its blocks are on this device. Returns these.
pub(crate) fn check_entry(space: &Space, key: &[u8], value: &[u8]) -> Result<Runs, Malformed> {
    let runs = match key.first() {
        Some(&key::OBJECT) => check_object(key, value)?,
        Some(&key::TRANSACTION) if key::is_version(key) => Version::shape(value)?.runs,
        _ => Runs::new(),
    };
    if runs.iter().all(|run| space.contains(*run)) {
        Ok(runs)
    } else {
        Err(Malformed("a value refers to blocks outside the data region"))
    }
}

impl Core {
    /// As [`Core::ask`], in this turn: where nodes have to be read, it has no answer.
    pub(crate) fn ask_now<T, E>(
        &self,
        question: impl FnOnce(&Tree) -> Result<T, Halt<E>>,
    ) -> Result<T, Halt<E>> {
        let tree = self.tree.borrow();
        tree.begin(0);
        question(&tree)
    }

    /// The answer of a question about the index. When this returns, what the question saw is still so.
    pub(crate) async fn ask<T, E: From<PageError>>(
        &self,
        mut question: impl FnMut(&Tree) -> Result<T, Halt<E>>,
    ) -> Result<T, E> {
        let mut ahead = 0;
        loop {
            let (missing, tick) = {
                let tree = self.tree.borrow();
                let tick = tree.begin(ahead);
                match question(&tree) {
                    Ok(answer) => return Ok(answer),
                    Err(Halt::Failed(error)) => return Err(error),
                    Err(Halt::Missing(missing)) => (missing, tick),
                }
            };
            // This attempt passed all that the question still needs.
            let asking = Asking::new(&self.paging, tick);
            self.load(missing, None).await?;
            drop(asking);
            // The more a question has asked for, the more it is likely to want next.
            ahead = (ahead * 2 + 1).min(AHEAD_MAX);
        }
    }

    /// Reads nodes and puts them into their places, of a still if there is one.
    pub(crate) async fn load(&self, missing: Missing, still: Option<&Tree>) -> Result<(), PageError> {
        let loads = missing.0.into_iter().map(|(key, page)| self.load_node(key, page, still));
        // Nobody may need the others: who does comes to them first once he has this one.
        let needed = join_all(loads).await.into_iter().next();
        self.relieve_memory();
        needed.expect("invariant: a node is missing")
    }

    async fn load_node(&self, key: Vec<u8>, page: PageRef, still: Option<&Tree>) -> Result<(), PageError> {
        let running = self.paging.loading.borrow().get(&page.block).map(Notify::notified);
        if let Some(running) = running {
            running.await;
            return Ok(());
        }
        self.paging.loading.borrow_mut().insert(page.block, Notify::new());
        let loading = Loading { paging: &self.paging, block: page.block };
        let hold = self.hold_nodes();
        let body = self.read_node(page).await;
        drop(hold);
        self.paging.note_read(&key, page, body.is_ok());
        let body = body?;
        add(&self.paging.faults, 1);
        let installed = match still {
            Some(still) => still.install(&key, page, body),
            None => self.tree.borrow().install(&key, page, body),
        };
        drop(loading);
        installed.map_err(|malformed| {
            self.paging.note_read(&key, page, false);
            let location = self.location("an index node", self.layout.data(page.block));
            PageError::Corrupt { location, reason: malformed.0 }
        })
    }

    /// Keeps the places of nodes that are in the tree now until it is dropped, even when the nodes leave it.
    pub(crate) fn hold_nodes(&self) -> impl Drop + '_ {
        Hold::new(self)
    }

    /// Reads a node and checks it.
    pub(crate) async fn read_node(&self, page: PageRef) -> Result<Body, PageError> {
        let offset = self.layout.data(page.block);
        let corrupt =
            |reason| PageError::Corrupt { location: self.location("an index node", offset), reason };
        let len = page.len as usize;
        if !self.space.borrow().contains(Run::from(page)) || len > NODE_BYTES || !len.is_multiple_of(BLOCK) {
            return Err(corrupt("its parent gives it an impossible place"));
        }
        let bytes = self.device.read(offset, self.dma.take(len).await).await?;
        match decode_node(&bytes, page, self.id).map_err(|malformed| corrupt(malformed.0))? {
            StoredNode::Leaf(entries) => {
                self.check_entries(&entries).map_err(|malformed| corrupt(malformed.0))?;
                Ok(Body::Leaf(entries))
            }
            StoredNode::Branch(keys, places) => {
                Ok(Body::Branch(keys, places.into_iter().map(Child::stored).collect()))
            }
        }
    }

    /// As [`Core::read_node`], for an open that goes on without a node that is lost, `Ok(Err(…))`: what was altered on its way is
    /// whole the next time, and what the device refuses is asked for again. Fails where the device may be refusing everything.
    pub(crate) async fn read_node_again(&self, page: PageRef) -> Result<Result<Body, PageError>, PageError> {
        let mut read = self.read_node(page).await;
        for pause in READ_PAUSES {
            match &read {
                Ok(_) => break,
                Err(PageError::Media(MediaError::Io { .. })) => self.rt.sleep(pause).await,
                Err(_) => {}
            }
            read = self.read_node(page).await;
        }
        if let Err(PageError::Media(error)) = &read {
            // It could be read when the open began.
            let root = self.layout.data(self.checkpoints.header.get().root.block);
            let answers = self.device.read(root, DmaBuf::new(BLOCK)).await.is_ok();
            if !answers || !matches!(error, MediaError::Io { .. }) {
                return Err(PageError::Media(error.clone()));
            }
        }
        Ok(read)
    }

    /// Checks the entries of a leaf that was read; those of the catalog the open follows, and checks them so.
    fn check_entries(&self, entries: &Packed) -> Result<(), Malformed> {
        let (space, mut key) = (self.space.borrow(), Vec::new());
        for at in 0..entries.len() {
            entries.copy_key(at, &mut key);
            check_entry(&space, &key, entries.value(at))?;
        }
        Ok(())
    }

    /// Memory that the index takes, in bytes.
    pub(crate) fn resident_bytes(&self) -> usize {
        self.tree.borrow().meter().bytes()
    }

    /// Evicts nodes when the index takes more memory than it may. Returns whether more is to be done.
    #[inline]
    pub(crate) fn relieve_memory(&self) -> bool {
        self.resident_bytes() > self.config.index_bytes && self.evict_some()
    }

    /// As [`Core::relieve_memory`], where the index does so.
    fn evict_some(&self) -> bool {
        // What a failed checkpoint was to write isn't on the device, whatever the nodes say.
        if self.has_failed() {
            return false;
        }
        let (tree, limit) = (self.tree.borrow(), self.config.index_bytes);
        let now = tree.tick();
        if now < self.paging.rest_until.get() {
            return false;
        }
        let oldest = self.paging.asking.borrow().first_key_value().map_or(u64::MAX, |(tick, _)| *tick);
        let evicted = tree.evict(limit, PINNED, oldest, SWEEP_STEPS);
        add(&self.paging.evictions, evicted as u64);
        if tree.is_swept() {
            self.paging.rest_until.set(now + SWEEP_PAUSE);
        }
        !tree.is_swept() && tree.meter().bytes() > limit
    }

    /// Evicts down to the limit after a checkpoint has made nodes clean, letting others run in between.
    pub(crate) async fn relieve_all_memory(&self) {
        self.paging.rest_until.set(0);
        self.tree.borrow().sweep_anew();
        while self.relieve_memory() {
            self.yield_to_io().await;
        }
    }

    /// Reads all nodes that are never evicted.
    pub(crate) async fn load_pinned(&self) -> Result<(), PageError> {
        self.ask(|tree| {
            tree.scan(&[], |key, _| {
                if key < FLOOR.as_slice() {
                    core::ops::ControlFlow::Continue(())
                } else {
                    core::ops::ControlFlow::Break(())
                }
            })?;
            Ok(())
        })
        .await
    }
}
