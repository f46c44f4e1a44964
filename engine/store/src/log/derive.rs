//! Computes the space map again from the index as of the checkpoint, when an open finds the map damaged.
//!
//! The blocks below a node that can't be read are unknown. In the damaged groups, the store then allocates only blocks that are
//! freed later. That costs space, and no data.

use crate::format::blocks::Run;
use crate::format::bounds::describe;
use crate::format::node::PageRef;
use crate::index::fault::PageError;
use crate::index::tree::{Body, Packed};
use crate::log::recover::MapDamage;
use crate::space::map::Space;
use crate::state::core::Core;
use crate::state::error::OpenError;
use crate::state::paging::check_entry;
use crate::state::rot;
use crate::state::rot::Rot;
use weir_media::BLOCK;
use weir_runtime::join_all;

/// Nodes that are read at once.
const READS_MAX: usize = 32;

/// A node to be looked at.
struct Step {
    place: PageRef,
    /// First key that may be below it, and first one behind, if there is a limit.
    low: Vec<u8>,
    high: Option<Vec<u8>>,
}

/// A walk over the index of a checkpoint.
struct Walk<'a> {
    core: &'a Core,
    /// Blocks of nodes and values so far.
    found: Space,
    steps: Vec<Step>,
    /// Nodes that can't be read.
    lost: u64,
}

/// Sets the live bits to what the index of a checkpoint refers to. Fails when the device doesn't answer.
pub(crate) async fn space(core: &Core, root: PageRef, damage: &MapDamage) -> Result<(), OpenError> {
    let mut walk = Walk {
        core,
        found: Space::new(core.layout.data_blocks, 0),
        steps: vec![Step { place: root, low: Vec::new(), high: None }],
        lost: 0,
    };
    while !walk.steps.is_empty() {
        walk.go_on().await?;
    }
    let Walk { found, lost, .. } = walk;
    let withheld = core.space.borrow_mut().derive(&found, &damage.groups, lost == 0) * BLOCK as u64;
    let how = if lost == 0 {
        "what is in use was found out from the index".to_owned()
    } else {
        format!(
            "what is in use was found out from the index, of which {lost} nodes can't be read: {withheld} bytes that may belong to what lies below them are not given out any more. `weir store check` says what is lost; `weir store copy` copies the rest to a device that has this space again"
        )
    };
    let (location, len) = (core.location("the space map", damage.offset), BLOCK as u64);
    let reason = format!("{}; {how}", damage.reason);
    rot::report(core, Rot { location, len, pool: None, subject: None, reason, renewed: true });
    core.checkpoints.request.notify_one();
    Ok(())
}

impl Walk<'_> {
    /// Looks at some nodes, the last ones that were found: so there are never many that wait.
    async fn go_on(&mut self) -> Result<(), OpenError> {
        let part = self.steps.split_off(self.steps.len().saturating_sub(READS_MAX));
        let read = join_all(part.iter().map(|step| self.core.read_node_again(step.place))).await;
        for (step, body) in part.into_iter().zip(read) {
            let body = body?;
            let is_first = self.claim(Run::from(step.place));
            match body {
                Ok(_) if !is_first => self.lose(&step, "another node, or a value, has its place too"),
                Ok(Body::Leaf(entries)) => self.leaf(&entries),
                Ok(Body::Branch(keys, children)) => {
                    for (at, child) in children.iter().enumerate().rev() {
                        let place = child
                            .page()
                            .expect("invariant: children of a node that was just read are on the device");
                        let low = if at == 0 { step.low.clone() } else { keys.key(at) };
                        let high =
                            if at + 1 < keys.len() { Some(keys.key(at + 1)) } else { step.high.clone() };
                        self.steps.push(Step { place, low, high });
                    }
                }
                Err(PageError::Corrupt { reason, .. }) => self.lose(&step, reason),
                Err(error @ PageError::Media(_)) => self.lose(&step, &error.to_string()),
            }
        }
        Ok(())
    }

    /// Takes blocks for live. Returns whether none of them was.
    fn claim(&mut self, run: Run) -> bool {
        let before = self.found.live();
        if self.found.contains(run) {
            self.found.set_live(run);
        }
        self.found.live() - before == run.count
    }

    fn leaf(&mut self, entries: &Packed) {
        let mut key = Vec::new();
        for at in 0..entries.len() {
            entries.copy_key(at, &mut key);
            let runs = check_entry(&self.found, &key, entries.value(at));
            for run in runs.expect("invariant: entries are checked when a leaf is read") {
                self.claim(run);
            }
        }
    }

    fn lose(&mut self, step: &Step, reason: &str) {
        self.lost += 1;
        let offset = self.core.layout.data(step.place.block);
        let (location, len) = (self.core.location("an index node", offset), step.place.len.into());
        let subject = Some(describe(&step.low, step.high.as_deref()));
        let reason = reason.to_owned();
        rot::report(self.core, Rot { location, len, pool: None, subject, reason, renewed: false });
    }
}
