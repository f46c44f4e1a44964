//! Walking the index on the device, leaf by leaf in the order of keys, around whatever is damaged.

use super::blocks::BlockSet;
use super::finding::{Finding, Findings, Severity};
use super::{Inspector, read};
use weir_format::blocks::Run;
use weir_format::bounds;
use weir_format::node::{NODE_BYTES, PageRef};
use weir_media::{BLOCK, DmaBuf};
use weir_runtime::join_all;
use weir_store::offline::{self, LEVELS_MAX, Packed, StoredNode, decode_node};

/// Reads in flight while the children of a branch are loaded.
const READS_MAX: usize = 64;

/// A node that was read and not yet looked at.
struct Step {
    place: PageRef,
    page: Result<DmaBuf, String>,
    /// Keys of the node are at least this …
    low: Vec<u8>,
    /// … and below this, if there is a limit.
    high: Option<Vec<u8>>,
    /// Levels above.
    depth: usize,
}

/// A node that was visited.
pub(super) struct Visited {
    pub(super) place: PageRef,
    /// Levels above.
    pub(super) depth: usize,
    pub(super) is_leaf: bool,
    pub(super) entries: Packed,
}

/// A node that isn't what should be there: what lies below it is missing.
pub(crate) struct Lost {
    pub(crate) place: PageRef,
    /// First key that may be missing.
    pub(crate) low: Vec<u8>,
    /// First one behind them, if there is a limit.
    pub(crate) high: Option<Vec<u8>>,
    pub(crate) reason: String,
}

/// What the way through an index meets.
pub(super) enum Stop {
    Node(Visited),
    Lost(Lost),
}

/// The way through an index.
pub(super) struct Walk<'a> {
    inspector: &'a Inspector,
    stack: Vec<Step>,
    /// Blocks of nodes so far: none is visited twice, so that a loop ends.
    pub(super) seen: BlockSet,
    from: Vec<u8>,
    below: Option<Vec<u8>>,
    leaf_depth: Option<usize>,
    pub(super) levels: usize,
    pub(super) nodes: u64,
    pub(super) bytes: u64,
    pub(super) lost: u64,
}

impl<'a> Walk<'a> {
    /// Starts at a root, for the leaves that may hold keys from `from` up to `below`.
    pub(super) async fn new(
        inspector: &'a Inspector,
        root: PageRef,
        from: &[u8],
        below: Option<&[u8]>,
    ) -> Walk<'a> {
        let mut walk = Walk {
            inspector,
            stack: Vec::new(),
            seen: BlockSet::new(inspector.data_blocks()),
            from: from.to_vec(),
            below: below.map(<[u8]>::to_vec),
            leaf_depth: None,
            levels: 0,
            nodes: 0,
            bytes: 0,
            lost: 0,
        };
        walk.load(vec![(root, Vec::new(), None)], 0).await;
        walk
    }

    /// Whether a node with these bounds may hold a wanted key.
    fn is_wanted(&self, low: &[u8], high: Option<&[u8]>) -> bool {
        high.is_none_or(|high| high > self.from.as_slice())
            && self.below.as_deref().is_none_or(|below| low < below)
    }

    /// Reads nodes and puts them on the stack, the first on top.
    async fn load(&mut self, children: Vec<(PageRef, Vec<u8>, Option<Vec<u8>>)>, depth: usize) {
        let (inspector, first) = (self.inspector, self.stack.len());
        for part in children.chunks(READS_MAX) {
            let mut wanted = Vec::new();
            for (place, low, high) in part {
                if !self.is_wanted(low, high.as_deref()) {
                    continue;
                }
                let run = Run::from(*place);
                let is_possible = self.seen.has_room_for(run)
                    && place.len as usize <= NODE_BYTES
                    && (place.len as usize).is_multiple_of(BLOCK);
                if !is_possible || self.seen.add(run) > 0 {
                    let reason = if is_possible {
                        "another node has this place too"
                    } else {
                        "its parent gives it an impossible place"
                    };
                    wanted.push((*place, low.clone(), high.clone(), Some(reason.to_owned())));
                    continue;
                }
                wanted.push((*place, low.clone(), high.clone(), None));
            }
            let pages = join_all(wanted.iter().map(async |(place, .., impossible)| match impossible {
                Some(reason) => Err(reason.clone()),
                None => {
                    read(&inspector.device, inspector.layout().data(place.block), place.len as usize).await
                }
            }))
            .await;
            for ((place, low, high, _), page) in wanted.into_iter().zip(pages) {
                self.stack.push(Step { place, page, low, high, depth });
            }
        }
        self.stack[first..].reverse();
    }

    /// The next node, branches before what is below them.
    pub(super) async fn stop(&mut self, findings: &mut Findings) -> Option<Stop> {
        let mut step = self.stack.pop()?;
        let (offset, len) = (self.inspector.layout().data(step.place.block), u64::from(step.place.len));
        let mut judged = self.judge(&step);
        // What was altered on its way is whole the next time.
        for _ in 1..offline::READS_MAX {
            if judged.is_err() && step.page.is_ok() {
                step.page = read(&self.inspector.device, offset, step.place.len as usize).await;
                judged = self.judge(&step);
            }
        }
        let reason = match judged {
            Ok((visited, children)) => {
                self.nodes += 1;
                self.bytes += len;
                self.levels = self.levels.max(step.depth + 1);
                self.load(children, step.depth + 1).await;
                return Some(Stop::Node(visited));
            }
            Err(reason) => reason,
        };
        self.lost += 1;
        let Step { place, low, high, .. } = step;
        let subject = Some(bounds::describe(&low, high.as_deref()));
        let (severity, what) = (Severity::Damage, "index node");
        findings.add(Finding { severity, what, offset, len, subject, reason: reason.clone() });
        Some(Stop::Lost(Lost { place, low, high, reason }))
    }

    /// The next intact node.
    pub(super) async fn next(&mut self, findings: &mut Findings) -> Option<Visited> {
        loop {
            if let Stop::Node(visited) = self.stop(findings).await? {
                return Some(visited);
            }
        }
    }

    /// Decodes a node and checks what only its parents know.
    #[expect(clippy::type_complexity, reason = "the children go to the one place that takes them apart")]
    fn judge(&mut self, step: &Step) -> Result<(Visited, Vec<(PageRef, Vec<u8>, Option<Vec<u8>>)>), String> {
        let page = step.page.as_ref().map_err(String::clone)?;
        let node = decode_node(page, step.place, self.inspector.superblock.id)
            .map_err(|malformed| malformed.0.to_owned())?;
        let (is_leaf, entries, places) = match node {
            StoredNode::Leaf(entries) => (true, entries, Vec::new()),
            StoredNode::Branch(keys, children) => (false, keys, children),
        };
        if is_leaf && *self.leaf_depth.get_or_insert(step.depth) != step.depth {
            return Err("it is a leaf at another depth than the others".to_owned());
        }
        if !is_leaf
            && (step.depth + 1 >= LEVELS_MAX || self.leaf_depth.is_some_and(|leaves| step.depth >= leaves))
        {
            return Err("it is a branch where leaves should be".to_owned());
        }
        // The first key of a branch is empty: it stands for the branch's own lower bound.
        let lowest = usize::from(!is_leaf);
        let outside =
            |key: &[u8]| key < step.low.as_slice() || step.high.as_deref().is_some_and(|high| key >= high);
        if entries.len() > lowest
            && (outside(&entries.key(lowest)) || outside(&entries.key(entries.len() - 1)))
        {
            return Err("its keys are outside the bounds that its parent gives".to_owned());
        }
        let bound = |at: usize| if at == 0 { step.low.clone() } else { entries.key(at) };
        let children = places
            .iter()
            .enumerate()
            .map(|(at, place)| {
                let high = if at + 1 < entries.len() { Some(entries.key(at + 1)) } else { step.high.clone() };
                (*place, bound(at), high)
            })
            .collect();
        Ok((Visited { place: step.place, depth: step.depth, is_leaf, entries }, children))
    }

    /// The next intact leaf.
    pub(super) async fn next_leaf(&mut self, findings: &mut Findings) -> Option<Visited> {
        loop {
            let visited = self.next(findings).await?;
            if visited.is_leaf {
                return Some(visited);
            }
        }
    }
}
