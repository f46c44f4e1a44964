//! Comparing what the index says with what was counted: entries, space of containers, blocks.
//!
//! An audit looks at the state of one moment, which it holds fast: nodes that leave the tree meanwhile keep their
//! places. Nodes that aren't in memory are read for the audit alone, so that the working set stays where it is.

use crate::format::blocks::{Run, Runs};
use crate::format::key::{self, ContainerNumber, PoolNumber};
use crate::format::usage::Usage;
use crate::index::fault::PageError;
use crate::index::tree::{Body, Child, LEVELS_MAX, Node, Packed, dirty_nodes};
use crate::state::core::Core;
use crate::state::paging::check_entry;
use crate::store::Store;
use core::pin::Pin;
use std::collections::BTreeMap;
use std::rc::Rc;
use weir_runtime::join_all;

/// Nodes that are read at once.
const READS_MAX: usize = 32;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Entries of the index.
    pub entries: u64,
    /// Levels of the index.
    pub depth: u64,
    /// Blocks of data extents that the index refers to.
    pub data_blocks: u64,
    /// Blocks of index nodes, of the stable checkpoint and of the present state.
    pub index_blocks: u64,
    /// Pieces of the data region as long as the longest extent, and how many of them have nothing in them: an update
    /// that needs that much finds it in one piece.
    pub segments: (u64, u64),
    /// What doesn't fit together; empty when all is well.
    pub problems: Vec<String>,
}

impl Store {
    /// Walks the whole index as of now and compares it with the counters and bitmaps that are kept along. Takes time
    /// in proportion to the number of entries; others run meanwhile.
    pub async fn audit(&self) -> Audit {
        let core = self.core();
        // From here to the first wait nothing changes: all of this belongs together.
        let hold = core.hold_nodes();
        // A still, so that nodes which leave the tree don't let go of those below them: what has no place now is told by its
        // address from what was read.
        let (still, retired) = {
            let tree = core.tree.borrow();
            let retired = tree.retired().iter().filter_map(|home| home.page.get()).map(Run::from);
            (tree.still(), retired.collect::<Vec<Run>>())
        };
        let root = Rc::clone(still.root());
        let counted = Counted::now(core, still.len());
        let unwritten = dirty_nodes(&root).into_iter().map(|node| (Rc::as_ptr(&node), node)).collect();
        let mut walk =
            Walk { core, audit: Audit::default(), usage: BTreeMap::new(), runs: Vec::new(), unwritten };
        let scatter = core.space.borrow().scatter();
        walk.audit.segments = (scatter.segments, scatter.empty);
        walk.audit.index_blocks = retired.iter().map(|run| run.count).sum();
        walk.runs.extend(retired);
        walk.place(&Child::resident(Rc::clone(&root)));
        walk.node(&root.body, 1).await;
        drop((hold, still));
        counted.compare(walk)
    }
}

/// What is counted along, as of one moment.
struct Counted {
    entries: u64,
    /// Blocks marked as used; `None` while a checkpoint is being written, which has marked its own already.
    live: Option<u64>,
    space: crate::space::map::Marks,
    pools: Vec<CountedPool>,
}

/// A pool with its use, and its containers with theirs.
struct CountedPool {
    number: PoolNumber,
    name: String,
    used: Usage,
    containers: Vec<(ContainerNumber, String, Usage)>,
}

impl Counted {
    fn now(core: &Core, entries: u64) -> Self {
        let space = core.space.borrow();
        let live = (!core.checkpoints.is_running()).then(|| space.live());
        let catalog = core.catalog.borrow();
        let containers = |pool: &crate::state::catalog::Pool| {
            let of = |(number, container): (&ContainerNumber, &crate::state::catalog::Container)| {
                (*number, container.id.to_string(), container.usage)
            };
            pool.containers.iter().map(of).collect()
        };
        let pools = catalog.pools.iter().map(|(number, pool)| CountedPool {
            number: *number,
            name: pool.id.to_string(),
            used: pool.used(),
            containers: containers(pool),
        });
        Self { entries, live, space: space.marks(), pools: pools.collect() }
    }

    fn compare(&self, walk: Walk<'_>) -> Audit {
        let Walk { mut audit, usage, runs, .. } = walk;
        if audit.entries != self.entries {
            audit.problems.push(format!("{} entries are counted, {} are there", self.entries, audit.entries));
        }
        self.check_blocks(runs, &mut audit.problems);
        self.check_usage(&usage, &mut audit.problems);
        audit
    }

    fn check_blocks(&self, mut runs: Vec<Run>, problems: &mut Vec<String>) {
        runs.sort_unstable_by_key(|run| run.block);
        for pair in runs.windows(2).filter(|pair| pair[0].block + pair[0].count > pair[1].block) {
            problems.push(format!("{:?} and {:?} overlap", pair[0], pair[1]));
        }
        for run in runs.iter().filter(|run| !self.space.is_live(**run)) {
            problems.push(format!("{run:?} is in use but not marked so"));
        }
        let used: u64 = runs.iter().map(|run| run.count).sum();
        if let Some(live) = self.live.filter(|live| *live != used) {
            problems.push(format!("{live} blocks are marked as used, {used} are"));
        }
    }

    fn check_usage(
        &self,
        usage: &BTreeMap<(PoolNumber, ContainerNumber), Usage>,
        problems: &mut Vec<String>,
    ) {
        for CountedPool { number, name, used, containers } in &self.pools {
            let of =
                |container: ContainerNumber| usage.get(&(*number, container)).copied().unwrap_or_default();
            let mut sum = of(0);
            for (number, id, counted) in containers {
                let found = of(*number);
                if *counted != found {
                    problems.push(format!("container {id}: {counted:?} counted, {found:?} found"));
                }
                sum += found;
            }
            if *used != sum {
                problems.push(format!("pool {name}: {used:?} counted, {sum:?} found"));
            }
        }
    }
}

/// A walk over all nodes of a state.
struct Walk<'a> {
    core: &'a Core,
    audit: Audit,
    usage: BTreeMap<(PoolNumber, ContainerNumber), Usage>,
    /// Blocks that are referred to.
    runs: Vec<Run>,
    /// Nodes that had no place on the device when the audit began; a checkpoint may be giving them one. Referred to here,
    /// they stay in memory, where they are known by their address.
    unwritten: BTreeMap<*const Node, Rc<Node>>,
}

/// A child as it is found: in memory, or read for the walk.
enum Found {
    Resident(Rc<Node>),
    Read(Body),
}

impl Found {
    fn body(&self) -> &Body {
        match self {
            Self::Resident(node) => &node.body,
            Self::Read(body) => body,
        }
    }
}

async fn find(core: &Core, child: &Child) -> Result<Found, PageError> {
    match child.node() {
        Ok(node) => Ok(Found::Resident(node)),
        Err(page) => core.read_node(page).await.map(Found::Read),
    }
}

impl Walk<'_> {
    fn node<'b>(&'b mut self, body: &'b Body, level: usize) -> Pin<Box<dyn Future<Output = ()> + 'b>> {
        Box::pin(async move {
            self.audit.depth = self.audit.depth.max(level as u64);
            let children = match body {
                Body::Leaf(entries) => return self.leaf(entries),
                Body::Branch(_, children) => children,
            };
            if level >= LEVELS_MAX {
                return self.audit.problems.push("the index has too many levels: it has a loop".to_owned());
            }
            for part in children.chunks(READS_MAX) {
                for child in part {
                    self.place(child);
                }
                let found = join_all(part.iter().map(|child| find(self.core, child))).await;
                for child in found {
                    match child {
                        Ok(child) => self.node(child.body(), level + 1).await,
                        Err(error) => self.audit.problems.push(error.to_string()),
                    }
                }
            }
        })
    }

    /// Notes the place of a node.
    fn place(&mut self, child: &Child) {
        if child.node().is_ok_and(|node| self.unwritten.contains_key(&Rc::as_ptr(&node))) {
            return;
        }
        let run = child.page().map(Run::from);
        self.audit.index_blocks += run.map_or(0, |run| run.count);
        self.runs.extend(run);
    }

    fn leaf(&mut self, entries: &Packed) {
        let mut key = Vec::new();
        for at in 0..entries.len() {
            entries.copy_key(at, &mut key);
            let value = entries.value(at);
            self.audit.entries += 1;
            let found = check_entry(&self.core.space.borrow(), &key, value).unwrap_or_else(|malformed| {
                self.audit.problems.push(format!("an entry of {} bytes: {malformed}", value.len()));
                Runs::new()
            });
            let blocks = found.iter().map(|run| run.count).sum::<u64>();
            if let Some(owner) = key::owner(&key) {
                match Usage::of_entry(&key, value, blocks) {
                    Ok(usage) => *self.usage.entry(owner).or_default() += usage,
                    Err(malformed) => self.audit.problems.push(malformed.to_string()),
                }
            }
            self.audit.data_blocks += blocks;
            self.runs.extend(found);
        }
    }
}
