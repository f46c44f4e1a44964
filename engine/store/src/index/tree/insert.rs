//! Setting entries: neighbours go to their leaf together.

use super::node::{Changes, Child, Node};
use super::packed::{self, Packed, Position};
use super::{Body, Missing, RecentLeaves, Tree, take_leaf};
use crate::format::codec::shared_len;
use crate::format::node::{CHILD_BYTES, ENTRY_MAX, NODE_MAX};
use crate::format::record::Edit;
use std::rc::Rc;

/// The right part of a split node with its lowest key. Boxed, since splits are rare and each change returns one of these.
type Split = Option<Box<(Vec<u8>, Rc<Node>)>>;

/// Entries to be set, of which the first ones are set already.
struct Run<'a, F> {
    edits: &'a [Edit<'a>],
    done: usize,
    /// Called for each entry that was set, with the value that it had before.
    each: F,
}

impl<'a, F: FnMut(Edit<'a>, Option<&[u8]>)> Run<'a, F> {
    fn set(&mut self, edit: Edit<'a>, old: Option<&[u8]>) {
        (self.each)(edit, old);
        self.done += 1;
    }
}

/// The key from which on entries belong behind a node; `None` when nothing does.
#[derive(Clone, Copy)]
struct High<'a>(Option<(&'a Packed, usize)>);

impl<'a> High<'a> {
    fn of_child(self, keys: &'a Packed, at: usize) -> Self {
        if at + 1 < keys.len() { Self(Some((keys, at + 1))) } else { self }
    }

    fn is_above(self, key: &[u8]) -> bool {
        self.0.is_none_or(|(keys, at)| keys.is_above(at, key))
    }
}

impl Tree {
    /// Sets the value of a key and returns the one it had. Key and value together are at most [`ENTRY_MAX`] bytes.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Vec<u8>>, Missing> {
        let mut before = None;
        self.put_run(&[Edit { key, value: Some(value) }], |_, old| before = old.map(<[u8]>::to_vec))?;
        Ok(before)
    }

    /// Sets as many entries, from the first on, as go to the same leaf, up to the first that isn't to be set. Tells `each`
    /// the value that it had; `each` must not ask the tree. Returns how many: one at least, if the first is to be set.
    pub(crate) fn put_run<'a>(
        &mut self,
        edits: &'a [Edit<'a>],
        mut each: impl FnMut(Edit<'a>, Option<&[u8]>),
    ) -> Result<usize, Missing> {
        debug_assert!(!edits.is_empty(), "nothing is to be set");
        let mut added = 0;
        let each = |edit: Edit<'a>, old: Option<&[u8]>| {
            added += u64::from(old.is_none());
            each(edit, old);
        };
        let mut run = Run { edits, done: 0, each };
        self.version += 1;
        let split = put(&mut self.root, &mut run, &mut self.changes, self.recent.get_mut(), High(None))?;
        let done = run.done;
        // The count comes from a checkpoint, which may lie.
        self.len = self.len.saturating_add(added);
        if let Some((separator, right)) = split.map(|split| *split) {
            let mut keys = Packed::default();
            keys.push(b"", b"");
            keys.push(&separator, b"");
            let left = Child::resident(Rc::clone(&self.root));
            self.root = self.changes.added(Body::Branch(keys, vec![left, Child::resident(right)]));
        }
        Ok(done)
    }
}

/// The shortest bytes that are above `left` and at most `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let shared = shared_len(left, right);
    right[..(shared + 1).min(right.len())].to_vec()
}

/// Sets the first entries of a run, which go to the same leaf.
fn put<'a, F: FnMut(Edit<'a>, Option<&[u8]>)>(
    node: &mut Rc<Node>,
    run: &mut Run<'a, F>,
    changes: &mut Changes,
    recent: &mut RecentLeaves,
    high: High<'_>,
) -> Result<Split, Missing> {
    if matches!(&node.body, Body::Leaf(_)) {
        return Ok(put_in_leaf(node, run, changes, recent, high));
    }
    let owned = changes.own(node);
    let split = put_below(owned, run, changes, recent, high)?;
    if split.is_some() {
        owned.recharge();
    }
    Ok(split)
}

fn put_in_leaf<'a, F: FnMut(Edit<'a>, Option<&[u8]>)>(
    node: &mut Rc<Node>,
    run: &mut Run<'a, F>,
    changes: &mut Changes,
    recent: &mut RecentLeaves,
    high: High<'_>,
) -> Split {
    // A leaf that is remembered would be copied.
    let known = take_leaf(recent, node);
    let owned = changes.own(node);
    let Body::Leaf(entries) = &mut owned.body else { unreachable!("invariant: it is a leaf") };
    let split = put_entries(entries, run, changes, high);
    owned.recharge();
    if let (Some(number), None) = (known, &split) {
        recent[number] = Some(Rc::clone(node));
    }
    split
}

fn put_entries<'a, F: FnMut(Edit<'a>, Option<&[u8]>)>(
    entries: &mut Packed,
    run: &mut Run<'a, F>,
    changes: &mut Changes,
    high: High<'_>,
) -> Split {
    let edits = run.edits;
    while let Some(edit @ Edit { key, value: Some(value) }) = edits.get(run.done).copied() {
        debug_assert!(key.len() + value.len() <= ENTRY_MAX, "an entry of {} bytes", key.len() + value.len());
        // The first entry belongs here. Of those that follow, only those are set that certainly do and that fit the node.
        let is_first = run.done == 0;
        if !is_first && (entries.size() + edit_size(edit) > NODE_MAX || !high.is_above(key)) {
            break;
        }
        let found = match entries.locate(key) {
            Position::Inside(found) => found,
            Position::Behind => Err(entries.len()),
            Position::Before if is_first => Err(0),
            Position::Before => break,
        };
        let prefix = entries.prefix().len();
        let at = match found {
            Ok(at) => {
                run.set(edit, Some(entries.value(at)));
                entries.replace(at, value);
                at
            }
            Err(at) => {
                let new = &edits[run.done..][..together(entries, &edits[run.done..], at, high)];
                let new_entry = |edit: &Edit<'a>| {
                    (edit.key, edit.value.expect("invariant: only what is set goes together"))
                };
                entries.insert_all(at, new.iter().map(new_entry));
                for edit in new {
                    run.set(*edit, None);
                }
                at + new.len() - 1
            }
        };
        if entries.size() > NODE_MAX {
            let right = match at {
                // Keys that arrive in order leave full nodes behind.
                _ if at + 1 == entries.len() => entries.split_off(at),
                // A key that shares less with the others than they do is the first or the last: they would all become longer,
                // and might not fit two nodes.
                0 if entries.prefix().len() < prefix => entries.split_off(1),
                // Further keys will most likely come near this one, on both sides.
                _ => entries.split_off_half(),
            };
            let low = separator(&entries.key(entries.len() - 1), &right.key(0));
            return Some(Box::new((low, changes.added(Body::Leaf(right)))));
        }
    }
    None
}

/// Bytes that an entry takes in a node at most.
fn edit_size(edit: Edit<'_>) -> usize {
    packed::ENTRY_OVERHEAD + edit.key.len() + edit.value.map_or(0, <[u8]>::len)
}

/// Entries of which only the last one is compared: as many as an update of one value has behind its first.
const GROUP: usize = 3;

/// How many of these entries, the first of which goes to `at`, can be inserted there one behind the other: one at least, and of
/// the others as many as fit the node.
fn together(entries: &Packed, edits: &[Edit<'_>], at: usize, high: High<'_>) -> usize {
    let first = edits.first().expect("invariant: there is one to be set");
    if !first.key.starts_with(entries.prefix()) {
        return 1;
    }
    let (mut count, mut size) = (1, entries.size() + edit_size(*first));
    // Behind all entries it belongs here if it belongs to the node, and shares what is between it and the first.
    let is_there = |edit: &Edit<'_>| match edit.key.starts_with(entries.prefix()) {
        true if at < entries.len() => entries.is_above(at, edit.key),
        true => high.is_above(edit.key),
        false => false,
    };
    loop {
        let (limit, mut ascending) = (edits.len().min(count + GROUP), count);
        while let Some(edit) = edits[..limit].get(ascending) {
            size += edit_size(*edit);
            if edit.value.is_none() || size > NODE_MAX || edit.key <= edits[ascending - 1].key {
                break;
            }
            ascending += 1;
        }
        // If one of them belongs there, those before it do, too.
        let Some(last) = (count..ascending).rev().find(|at| is_there(&edits[*at])) else { return count };
        count = last + 1;
        if count < limit || count == edits.len() {
            return count;
        }
    }
}

fn put_below<'a, F: FnMut(Edit<'a>, Option<&[u8]>)>(
    branch: &mut Node,
    run: &mut Run<'a, F>,
    changes: &mut Changes,
    recent: &mut RecentLeaves,
    high: High<'_>,
) -> Result<Split, Missing> {
    let Node { body: Body::Branch(keys, children), trail, .. } = branch else {
        unreachable!("invariant: it is a branch")
    };
    let Edit { key, .. } = run.edits.first().expect("invariant: there is one to be set");
    let at = trail.child_of(keys, key);
    trail.note(at);
    let child = children[at].node_mut().map_err(|page| Missing::one(key, page))?;
    let split = put(child, run, changes, recent, high.of_child(keys, at))?;
    let Some((low, right)) = split.map(|split| *split) else { return Ok(None) };
    keys.insert(at + 1, &low, b"");
    children.insert(at + 1, Child::resident(right));
    if keys.size() + children.len() * CHILD_BYTES <= NODE_MAX {
        branch.recharge();
        return Ok(None);
    }
    let middle = if at + 2 == keys.len() { keys.len() - 2 } else { keys.middle().0 };
    let low = keys.key(middle);
    let mut right = keys.range(middle + 1..keys.len());
    right.insert(0, b"", b"");
    *keys = keys.range(0..middle);
    let right = Body::Branch(right, children.split_off(middle));
    Ok(Some(Box::new((low, changes.added(right)))))
}
