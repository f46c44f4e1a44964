//! Comparing what the index says with what was counted: entries, space of containers, blocks.

use crate::catalog::{Usage, entry_bytes};
use crate::key::{self, ContainerNumber, PoolNumber};
use crate::space::Run;
use crate::state::Core;
use crate::store::Store;
use crate::tree::{Body, Node};
use crate::value::Version;
use core::ops::ControlFlow;
use std::collections::BTreeMap;

/// What an audit found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audit {
    /// Entries of the index.
    pub entries: u64,
    /// Blocks of data extents that the index refers to.
    pub data_blocks: u64,
    /// Blocks of index nodes, of the stable checkpoint and of the present state.
    pub index_blocks: u64,
    /// What doesn't fit together; empty when all is well.
    pub problems: Vec<String>,
}

impl Store {
    /// Walks the whole index and compares it with the counters and bitmaps that are kept along. Takes time in
    /// proportion to the number of entries.
    #[must_use]
    pub fn audit(&self) -> Audit {
        audit(self.core())
    }
}

fn audit(core: &Core) -> Audit {
    let mut audit = Audit::default();
    let tree = core.tree.borrow();
    let mut usage: BTreeMap<(PoolNumber, ContainerNumber), Usage> = BTreeMap::new();
    let mut runs = Vec::new();
    tree.scan::<()>(&[], |key, value| {
        audit.entries += 1;
        let found = if key::is_version(key) { Version::runs(value) } else { Ok(Vec::new()) };
        let found = found.unwrap_or_else(|malformed| {
            audit.problems.push(format!("an entry of {} bytes: {malformed}", value.len()));
            Vec::new()
        });
        if let Some(owner) = key::owner(key) {
            let usage = usage.entry(owner).or_default();
            usage.entries += entry_bytes(key.len(), value.len());
            usage.blocks += found.iter().map(|run| run.count).sum::<u64>();
        }
        runs.extend(found);
        ControlFlow::Continue(())
    });
    if audit.entries != tree.len() {
        audit.problems.push(format!("{} entries are counted, {} are there", tree.len(), audit.entries));
    }
    audit.data_blocks = runs.iter().map(|run| run.count).sum();
    let mut nodes = Vec::new();
    places(tree.root(), &mut nodes);
    nodes.extend(tree.retired().iter().filter_map(|home| home.page.get()).map(Run::from));
    audit.index_blocks = nodes.iter().map(|run| run.count).sum();
    runs.extend(nodes);
    check_blocks(core, runs, &mut audit.problems);
    check_usage(core, &usage, &mut audit.problems);
    audit
}

/// Places of the nodes that have one.
fn places(node: &Node, found: &mut Vec<Run>) {
    found.extend(node.home.page.get().map(Run::from));
    if let Body::Branch(_, children) = &node.body {
        for child in children {
            places(child, found);
        }
    }
}

fn check_blocks(core: &Core, mut runs: Vec<Run>, problems: &mut Vec<String>) {
    runs.sort_unstable_by_key(|run| run.block);
    for pair in runs.windows(2).filter(|pair| pair[0].block + pair[0].count > pair[1].block) {
        problems.push(format!("{:?} and {:?} overlap", pair[0], pair[1]));
    }
    let space = core.space.borrow();
    for run in runs.iter().filter(|run| !space.is_live(**run)) {
        problems.push(format!("{run:?} is in use but not marked so"));
    }
    let used: u64 = runs.iter().map(|run| run.count).sum();
    // A checkpoint that is being written has marked the places of its nodes already.
    if space.live() != used && !core.checkpoints.is_running() {
        problems.push(format!("{} blocks are marked as used, {used} are", space.live()));
    }
}

fn check_usage(
    core: &Core,
    usage: &BTreeMap<(PoolNumber, ContainerNumber), Usage>,
    problems: &mut Vec<String>,
) {
    let catalog = core.catalog.borrow();
    for (pool_number, pool) in &catalog.pools {
        let of =
            |container: ContainerNumber| usage.get(&(*pool_number, container)).copied().unwrap_or_default();
        let mut sum = of(0);
        for (number, container) in &pool.containers {
            let found = of(*number);
            if container.usage != found {
                problems.push(format!(
                    "container {}: {:?} counted, {found:?} found",
                    container.id, container.usage
                ));
            }
            sum.blocks += found.blocks;
            sum.entries += found.entries;
        }
        if pool.used() != sum {
            problems.push(format!("pool {}: {:?} counted, {sum:?} found", pool.id, pool.used()));
        }
    }
}
