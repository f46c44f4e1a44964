//! The entries that an open would find, in the order of their keys: those of the index with the log's changes applied.

use super::Inspector;
use super::finding::Findings;
use super::overlay::{Along, Overlay};
use super::walk::{Lost, Stop, Visited, Walk};
use weir_format::node::PageRef;

/// What is met on the way.
pub(crate) enum Met {
    /// An entry, from a node at this place or from the log.
    Entry { key: Vec<u8>, value: Vec<u8>, node: Option<PageRef> },
    /// A node that can't be read. What the log says of keys below it comes all the same.
    Lost(Lost),
}

/// The way through the entries of a range of keys.
pub(crate) struct Entries<'a, 'b> {
    walk: Option<Walk<'a>>,
    /// The present leaf, and which of its entries comes next.
    leaf: Option<(Visited, usize)>,
    changed: Along<'a, 'b>,
    from: Vec<u8>,
    below: Option<&'b [u8]>,
}

impl<'a, 'b> Entries<'a, 'b> {
    /// Begins with the first key from `from` on; ends before `below`.
    pub(crate) async fn new(
        inspector: &'a Inspector,
        overlay: &'b mut Overlay<'a>,
        from: &[u8],
        below: Option<&'b [u8]>,
    ) -> Self {
        let changed = Along::new(overlay, from, below);
        let walk = match inspector.checkpoint {
            Some(checkpoint) => Some(Walk::new(inspector, checkpoint.root, from, below).await),
            None => None,
        };
        Self { walk, leaf: None, changed, from: from.to_vec(), below }
    }

    fn is_inside(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.below.is_none_or(|below| key < below)
    }

    /// The next one.
    pub(crate) async fn next(&mut self, findings: &mut Findings) -> Option<Met> {
        loop {
            let Some((leaf, at)) = &mut self.leaf else {
                let stop = match &mut self.walk {
                    Some(walk) => walk.stop(findings).await,
                    None => None,
                };
                match stop {
                    Some(Stop::Node(node)) => self.leaf = node.is_leaf.then_some((node, 0)),
                    Some(Stop::Lost(lost)) => return Some(Met::Lost(lost)),
                    None => return self.rest().await,
                }
                continue;
            };
            if *at >= leaf.entries.len() {
                self.leaf = None;
                continue;
            }
            let (key, place) = (leaf.entries.key(*at), leaf.place);
            if let Some((key, value)) = self.changed.next_if(|changed| *changed < key[..]).await {
                if let Some(value) = value {
                    return Some(Met::Entry { key, value, node: None });
                }
                continue;
            }
            let stored = leaf.entries.value(*at).to_vec();
            *at += 1;
            if !self.is_inside(&key) {
                continue;
            }
            match self.changed.next_if(|changed| *changed == key[..]).await {
                Some((_, None)) => {}
                Some((_, Some(value))) => return Some(Met::Entry { key, value, node: None }),
                None => return Some(Met::Entry { key, value: stored, node: Some(place) }),
            }
        }
    }

    /// What the log has behind the last leaf.
    async fn rest(&mut self) -> Option<Met> {
        loop {
            let (key, value) = self.changed.next_if(|_| true).await?;
            if let Some(value) = value {
                return Some(Met::Entry { key, value, node: None });
            }
        }
    }
}
