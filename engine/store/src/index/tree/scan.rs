//! Queries for ranges of entries, in order and in reverse.

use super::{Body, Child, Missing, Node, Packed, RECENT_LEAVES, Tree};
use core::ops::ControlFlow;
use std::rc::Rc;

/// What the visit of a scan has returned at the entry where it stopped.
type Found<B> = Result<Option<B>, Missing>;

type Visit<'a, B> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<B>;

impl Tree {
    /// Visits entries in order from the first key that is at least `from`, until `visit` breaks.
    pub(crate) fn scan<B>(
        &self,
        from: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Found<B> {
        let mut key = self.key.take();
        let found = match self.scan_recent(from, &mut key, &mut visit) {
            ControlFlow::Break(found) => Ok(Some(found)),
            ControlFlow::Continue(false) => self.scan_from(from, &mut key, &mut visit),
            ControlFlow::Continue(true) => {
                // It continues behind the last key of that leaf.
                let behind = [key.as_slice(), &[0]].concat();
                self.scan_from(&behind, &mut key, &mut visit)
            }
        };
        self.key.replace(key);
        found
    }

    fn scan_from<B>(&self, from: &[u8], key: &mut Vec<u8>, visit: Visit<'_, B>) -> Found<B> {
        match self.scan_node(&self.root, (Low::default(), Some(from)), key, visit) {
            ControlFlow::Break(found) => found.map(Some),
            ControlFlow::Continue(()) => Ok(None),
        }
    }

    /// A remembered leaf that `from` certainly belongs to, and its first entry that isn't below `from`.
    fn recent_leaf(&self, from: &[u8]) -> Option<(Rc<Node>, usize)> {
        self.leaf_among([0, 1], from)
    }

    /// As [`Tree::recent_leaf`], for a key that is most likely not in the leaf of the last query.
    pub(super) fn leaf_of_others(&self, from: &[u8]) -> Option<(Rc<Node>, usize)> {
        self.leaf_among([1, 0], from)
    }

    fn leaf_among(&self, order: [usize; RECENT_LEAVES], from: &[u8]) -> Option<(Rc<Node>, usize)> {
        let mut recent = self.recent.borrow_mut();
        for number in order {
            let Some(leaf) = &recent[number] else { continue };
            if let Some(first) = leaf.entries().seek(from) {
                leaf.used.set(self.tick.get());
                let leaf = Rc::clone(leaf);
                recent.swap(0, number);
                return Some((leaf, first));
            }
        }
        None
    }

    /// Remembers a leaf as the latest.
    #[inline(never)]
    pub(crate) fn remember(&self, leaf: &Rc<Node>) {
        let mut recent = self.recent.borrow_mut();
        if recent[0].as_ref().is_none_or(|known| !Rc::ptr_eq(known, leaf)) {
            recent.rotate_right(1);
            recent[0] = Some(Rc::clone(leaf));
        }
    }

    /// Visits entries in order from the first key that is at least `from` on, as long as their keys begin with the first
    /// `len` bytes of it. `visit` gets what follows those.
    pub(crate) fn scan_below<B>(
        &self,
        from: &[u8],
        len: usize,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Found<B> {
        let start = &from[..len];
        let (leaf, first) = if let Some(found) = self.recent_leaf(from) {
            found
        } else {
            let leaf = self.leaf(from)?;
            let first = leaf.entries().search(from).unwrap_or_else(|at| at);
            (leaf, first)
        };
        let entries = leaf.entries();
        let mut scratch = self.key.take();
        for at in first..entries.len() {
            let visited = match entries.rest(at, start, &mut scratch) {
                Some(rest) => visit(rest, entries.value(at)).map_break(Some),
                None => ControlFlow::Break(None),
            };
            if let ControlFlow::Break(found) = visited {
                self.remember(&leaf);
                self.key.replace(scratch);
                return Ok(found);
            }
        }
        self.key.replace(scratch);
        let behind = if first < entries.len() {
            [entries.key(entries.len() - 1).as_slice(), &[0]].concat()
        } else {
            from.to_vec()
        };
        let found = self.scan(&behind, |key, value| match key.strip_prefix(start) {
            Some(rest) => visit(rest, value).map_break(Some),
            None => ControlFlow::Break(None),
        });
        Ok(found?.flatten())
    }

    /// Visits entries of a remembered leaf, if `from` belongs to one. Returns whether it did; `key` is then the last one of the
    /// leaf.
    fn scan_recent<B>(&self, from: &[u8], key: &mut Vec<u8>, visit: Visit<'_, B>) -> ControlFlow<B, bool> {
        let Some((leaf, first)) = self.recent_leaf(from) else { return ControlFlow::Continue(false) };
        self.scan_leaf(&leaf, leaf.entries(), first, key, visit)?;
        ControlFlow::Continue(true)
    }

    /// Visits entries of a leaf from one on.
    fn scan_leaf<B>(
        &self,
        leaf: &Rc<Node>,
        entries: &Packed,
        first: usize,
        key: &mut Vec<u8>,
        visit: Visit<'_, B>,
    ) -> ControlFlow<B> {
        for at in first..entries.len() {
            entries.copy_key(at, key);
            if let ControlFlow::Break(found) = visit(key, entries.value(at)) {
                self.remember(leaf);
                return ControlFlow::Break(found);
            }
        }
        ControlFlow::Continue(())
    }

    /// Visits entries in reverse order from the last key that is below `below`, until `visit` breaks.
    pub(crate) fn scan_back<B>(
        &self,
        below: &[u8],
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<B>,
    ) -> Found<B> {
        match self.scan_node_back(&self.root, (Low::default(), Some(below)), &mut Vec::new(), &mut visit) {
            ControlFlow::Break(found) => found.map(Some),
            ControlFlow::Continue(()) => Ok(None),
        }
    }

    /// The first entry whose key is at least `from` and begins with `prefix`.
    pub(crate) fn first(&self, from: &[u8], prefix: &[u8]) -> Found<(Vec<u8>, Vec<u8>)> {
        let found = self.scan(from, |key, value| {
            ControlFlow::Break(key.starts_with(prefix).then(|| (key.to_vec(), value.to_vec())))
        })?;
        Ok(found.flatten())
    }

    /// What follows `prefix` in the first key that is at least `from`, if that begins with it.
    pub(crate) fn first_below(&self, from: &[u8], prefix: &[u8]) -> Found<Vec<u8>> {
        let found =
            self.scan(from, |key, _| ControlFlow::Break(key.strip_prefix(prefix).map(<[u8]>::to_vec)))?;
        Ok(found.flatten())
    }

    /// The lowest key behind the first node at or behind `from` that isn't in memory: there a scan continues that skips this
    /// node. `None` when there is nothing behind it.
    pub(crate) fn behind_absent(&self, from: &[u8]) -> Option<Vec<u8>> {
        behind_absent(&self.root, Some(from), None).break_value()?
    }

    /// Without `from` all entries below the node are visited.
    fn scan_node<B>(
        &self,
        node: &Rc<Node>,
        (low, from): (Low<'_>, Option<&[u8]>),
        key: &mut Vec<u8>,
        visit: Visit<'_, B>,
    ) -> ControlFlow<Result<B, Missing>> {
        self.touch(node);
        match &node.body {
            Body::Leaf(entries) => {
                let first = from.map_or(0, |from| entries.search(from).unwrap_or_else(|at| at));
                if let ControlFlow::Break(found) = self.scan_leaf(node, entries, first, key, visit) {
                    return ControlFlow::Break(Ok(found));
                }
            }
            Body::Branch(keys, children) => {
                let first = from.map_or(0, |from| Node::child_of(keys, from));
                for at in first..children.len() {
                    let from = from.filter(|_| at == first);
                    let low = low.of_child(keys, at);
                    let Ok(child) = children[at].node() else {
                        let ahead = if from.is_some() { 0 } else { self.ahead.get() };
                        let wanted = at..children.len().min(at.saturating_add(ahead).saturating_add(1));
                        let inside = from.map_or_else(|| low.key(), <[u8]>::to_vec);
                        return ControlFlow::Break(Err(absent(keys, children, wanted, inside)));
                    };
                    self.scan_node(&child, (low, from), key, visit)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn scan_node_back<B>(
        &self,
        node: &Node,
        (low, below): (Low<'_>, Option<&[u8]>),
        key: &mut Vec<u8>,
        visit: Visit<'_, B>,
    ) -> ControlFlow<Result<B, Missing>> {
        self.touch(node);
        match &node.body {
            Body::Leaf(entries) => {
                let end = below.map_or(entries.len(), |below| entries.search(below).unwrap_or_else(|at| at));
                for at in (0..end).rev() {
                    entries.copy_key(at, key);
                    if let ControlFlow::Break(found) = visit(key, entries.value(at)) {
                        return ControlFlow::Break(Ok(found));
                    }
                }
            }
            Body::Branch(keys, children) => {
                let last = below.map_or(children.len() - 1, |below| Node::child_of(keys, below));
                for at in (0..=last).rev() {
                    let below = below.filter(|_| at == last);
                    let low = low.of_child(keys, at);
                    let child = match children[at].node() {
                        Ok(child) => child,
                        Err(page) => {
                            let inside = below.map_or_else(|| low.key(), <[u8]>::to_vec);
                            return ControlFlow::Break(Err(Missing(vec![(inside, page)])));
                        }
                    };
                    self.scan_node_back(&child, (low, below), key, visit)?;
                }
            }
        }
        ControlFlow::Continue(())
    }
}

/// The lowest key that belongs below a node: that of the nearest branch above in which it isn't on the first child's
/// path. Only put together when it is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Low<'a>(Option<(&'a Packed, usize)>);

impl<'a> Low<'a> {
    pub(super) fn of_child(self, keys: &'a Packed, at: usize) -> Self {
        if at == 0 { self } else { Self(Some((keys, at))) }
    }

    pub(super) fn key(self) -> Vec<u8> {
        self.0.map(|(keys, at)| keys.key(at)).unwrap_or_default()
    }
}

/// As [`Tree::behind_absent`], below a node that ends at `high`.
fn behind_absent(
    node: &Node,
    from: Option<&[u8]>,
    high: Option<(&Packed, usize)>,
) -> ControlFlow<Option<Vec<u8>>> {
    let Body::Branch(keys, children) = &node.body else { return ControlFlow::Continue(()) };
    let first = from.map_or(0, |from| Node::child_of(keys, from));
    for (at, child) in children.iter().enumerate().skip(first) {
        let high = if at + 1 < keys.len() { Some((keys, at + 1)) } else { high };
        let Ok(child) = child.node() else {
            return ControlFlow::Break(high.map(|(keys, at)| keys.key(at)));
        };
        behind_absent(&child, from.filter(|_| at == first), high)?;
    }
    ControlFlow::Continue(())
}

/// Those of a range of children that aren't in memory. `first` is a key below the first of them.
fn absent(keys: &Packed, children: &[Child], range: core::ops::Range<usize>, first: Vec<u8>) -> Missing {
    let start = range.start;
    let mut missing = Vec::with_capacity(range.len());
    missing.extend(children[start].node().err().map(|page| (first, page)));
    for at in range.skip(1) {
        missing.extend(children[at].node().err().map(|page| (keys.key(at), page)));
    }
    Missing(missing)
}
