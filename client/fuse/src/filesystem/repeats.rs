//! Changes of names that the kernel asks for again, because the process before this one has ended without an answer. It may have
//! had them executed.
//!
//! Before engines are asked for such a change, the objects that it is about are noted under the number of the kernel's request, and
//! forgotten when the kernel has the answer. Who gets the request again looks by them whether the change is there: an object is never
//! used for two inodes. That also tells it from the change of another client.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use weir_client::{Context, ObjectId};
use weir_dfs::{Error, NewInode, Node, Removed, Replace, inode_number};

use super::takeover::resent;
use super::worker::Shared;
use crate::kept::{Kept, KeptRequest, Slot};

/// An entry: its directory and name.
type Entry<'a> = (&'a Node, &'a [u8]);

/// Requests that change names.
#[derive(Debug)]
pub struct Repeats {
    /// Where requests are kept for a successor of this process, if one may come.
    kept: Option<Arc<Kept>>,
    /// Those that the process before this one had begun and perhaps not answered.
    before: Mutex<HashMap<u64, (Slot, KeptRequest)>>,
}

/// One request, until it is answered.
#[derive(Debug)]
pub struct Turn<'a> {
    kept: Option<&'a Kept>,
    number: u64,
    slot: Cell<Option<Slot>>,
    before: Option<KeptRequest>,
}

impl Repeats {
    /// No requests.
    pub fn new(kept: Option<Arc<Kept>>) -> Self {
        Self { kept, before: Mutex::default() }
    }

    /// Enters a request that the process before this one had begun.
    pub fn inherit(&self, slot: Slot, request: KeptRequest) {
        let mut before = self.before.lock().unwrap_or_else(PoisonError::into_inner);
        before.insert(request.number, (slot, request));
    }

    /// Begins a request by the number that the kernel gives it. What this returns is dropped when the kernel has the answer.
    pub fn begin(&self, unique: u64) -> Turn<'_> {
        let first = resent(unique);
        let before = first
            .and_then(|number| self.before.lock().unwrap_or_else(PoisonError::into_inner).remove(&number));
        Turn {
            kept: self.kept.as_deref(),
            number: first.unwrap_or(unique),
            slot: Cell::new(before.map(|(slot, _)| slot)),
            before: before.map(|(_, request)| request),
        }
    }
}

impl Turn<'_> {
    /// Notes what the request is about to change: called before engines are asked for that.
    pub fn note(&self, object: ObjectId, other: Option<ObjectId>) {
        if let Some(kept) = self.kept {
            let request = KeptRequest { number: self.number, object, other };
            self.slot.set(Some(kept.put_request(self.slot.get(), &request)));
        }
    }

    /// What the process before this one was about to change for the same request.
    pub fn before(&self) -> Option<KeptRequest> {
        self.before
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let (Some(kept), Some(slot)) = (self.kept, self.slot.get()) {
            kept.drop_request(slot);
        }
    }
}

impl Shared {
    /// Makes an inode, unless the process before this one has made it for the same request.
    pub(super) async fn make_once(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (directory, name): Entry<'_>,
        inode: NewInode<'_>,
    ) -> Result<Node, Error> {
        let oid = match (turn.before(), &self.kept) {
            (Some(before), _) => {
                if let Some(made) = self.named_before(context, (directory, name), before).await? {
                    return Ok(made);
                }
                Some(before.object)
            }
            (None, Some(_)) => {
                let oid = self.dfs.new_inode_id(context, inode.kind).await?;
                turn.note(oid, None);
                Some(oid)
            }
            (None, None) => None,
        };
        match (self.dfs.make(context, directory, name, NewInode { oid, ..inode }).await, turn.before()) {
            // The request of the process before this one was still on its way.
            (Err(error @ Error::Exists(_)), Some(before)) => {
                self.named_before(context, (directory, name), before).await?.ok_or(error)
            }
            (made, _) => made,
        }
    }

    /// Links an inode, unless the process before this one has linked it for the same request.
    pub(super) async fn link_once(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        node: &Node,
        entry: Entry<'_>,
    ) -> Result<Node, Error> {
        if let Some(before) = turn.before()
            && let Some(linked) = self.named_before(context, entry, before).await?
        {
            return Ok(linked);
        }
        turn.note(node.oid(), None);
        match (self.dfs.link(context, node, entry.0, entry.1).await, turn.before()) {
            (Err(error @ Error::Exists(_)), Some(before)) => {
                self.named_before(context, entry, before).await?.ok_or(error)
            }
            (linked, _) => linked,
        }
    }

    /// Removes a name, unless the process before this one has removed it for the same request. `None`: it has, and there is nothing to be
    /// freed.
    pub(super) async fn remove_once(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (directory, name): Entry<'_>,
        is_directory: bool,
    ) -> Result<Option<Removed>, Error> {
        if let Some(before) = turn.before()
            && self.named_before(context, (directory, name), before).await?.is_none()
        {
            return self.removed_before(context, before.object).await;
        }
        let foretell = |node: &Node| turn.note(node.oid(), None);
        let removed = if is_directory {
            self.dfs.rmdir_noting(context, directory, name, foretell).await
        } else {
            self.dfs.unlink_noting(context, directory, name, foretell).await
        };
        match (removed, turn.before()) {
            (Err(Error::NotFound(_)), Some(before)) => self.removed_before(context, before.object).await,
            (removed, _) => removed.map(Some),
        }
    }

    /// Renames, unless the process before this one has done so for the same request.
    pub(super) async fn rename_once(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        (from, to): (Entry<'_>, Entry<'_>),
        replace: Replace,
    ) -> Result<(Node, Option<Removed>), Error> {
        if let Some(before) = turn.before()
            && let Some(renamed) = self.renamed_before(context, from, to, before).await?
        {
            return Ok(renamed);
        }
        let foretell = |node: &Node, replaced: Option<&Node>| turn.note(node.oid(), replaced.map(Node::oid));
        match (self.dfs.rename_noting(context, from, to, replace, foretell).await, turn.before()) {
            (Err(error @ (Error::NotFound(_) | Error::Exists(_))), Some(before)) => {
                self.renamed_before(context, from, to, before).await?.ok_or(error)
            }
            (renamed, _) => renamed,
        }
    }

    /// Exchanges two entries, unless the process before this one has done so for the same request.
    pub(super) async fn exchange_once(
        &self,
        context: &Context,
        turn: &Turn<'_>,
        one: Entry<'_>,
        other: Entry<'_>,
    ) -> Result<[Node; 2], Error> {
        if let Some(before) = turn.before()
            && let Some(exchanged) = self.exchanged_before(context, one, other, before).await?
        {
            return Ok(exchanged);
        }
        let foretell = |first: &Node, second: &Node| turn.note(first.oid(), Some(second.oid()));
        self.dfs.exchange_noting(context, one, other, foretell).await
    }

    /// What the process before this one has renamed for the same request, and what that has replaced.
    async fn renamed_before(
        &self,
        context: &Context,
        from: Entry<'_>,
        to: Entry<'_>,
        before: KeptRequest,
    ) -> Result<Option<(Node, Option<Removed>)>, Error> {
        let Some(renamed) = self.named_before(context, to, before).await? else { return Ok(None) };
        if self.named_before(context, from, before).await?.is_some() {
            return Ok(None);
        }
        let replaced = match before.other {
            Some(other) => self.removed_before(context, other).await?,
            None => None,
        };
        Ok(Some((renamed, replaced)))
    }

    /// What the process before this one has exchanged for the same request.
    async fn exchanged_before(
        &self,
        context: &Context,
        one: Entry<'_>,
        other: Entry<'_>,
        before: KeptRequest,
    ) -> Result<Option<[Node; 2]>, Error> {
        let Some(second) = before.other else { return Ok(None) };
        let turned = KeptRequest { object: second, ..before };
        let (at_one, at_other) = (
            self.named_before(context, one, turned).await?,
            self.named_before(context, other, before).await?,
        );
        Ok(at_one.zip(at_other).map(|(one, other)| [one, other]))
    }

    /// The inode of a request under a name, if it is there.
    async fn named_before(
        &self,
        context: &Context,
        (directory, name): Entry<'_>,
        before: KeptRequest,
    ) -> Result<Option<Node>, Error> {
        match self.dfs.lookup(context, directory, name).await {
            Ok(node) if node.oid() == before.object => Ok(Some(node)),
            Ok(_) | Err(Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// An inode that has lost a name to a request of the process before this one, which may not have freed what it held.
    async fn removed_before(&self, context: &Context, object: ObjectId) -> Result<Option<Removed>, Error> {
        // As long as the kernel has no answer, it refers to the inode.
        let Some(inode) = self.inodes.get(inode_number(object)) else { return Ok(None) };
        let mut node = inode.node();
        let mut links = 0;
        if node.record.is_linked() {
            match self.dfs.stat(context, &node).await {
                Ok((known, stat)) => (node, links) = (known, stat.links),
                Err(Error::Stale(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Removed { node, xattrs: Vec::new(), links }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    /// Marks a request that is sent again.
    const AGAIN: u64 = 1 << 63;

    fn object(lo: u64) -> ObjectId {
        ObjectId { hi: 1, lo }
    }

    fn succeed(file: &std::fs::File) -> Repeats {
        let (kept, inherited) = Kept::resume(file.try_clone().expect("cloned")).expect("resumed");
        let repeats = Repeats::new(Some(Arc::new(kept)));
        for (slot, request) in inherited.requests {
            repeats.inherit(slot, request);
        }
        repeats
    }

    #[test]
    fn a_successor_knows_what_its_predecessors_had_begun_and_not_what_they_had_answered() {
        let file = std::fs::File::from(memfd_create("kept", MemfdFlags::CLOEXEC).expect("made"));
        let kept = Kept::begin(file.try_clone().expect("cloned")).expect("begun");
        let repeats = Repeats::new(Some(Arc::new(kept)));
        let (begun, answered, idle) = (repeats.begin(6), repeats.begin(8), repeats.begin(4));
        begun.note(object(1), None);
        begun.note(object(2), Some(object(3)));
        answered.note(object(4), None);
        assert_eq!(begun.before(), None);
        drop((answered, idle));
        // Its process is killed.
        std::mem::forget(begun);

        let second = succeed(&file);
        assert!(second.begin(8 | AGAIN).before().is_none() && second.begin(4 | AGAIN).before().is_none());
        assert!(second.begin(6).before().is_none(), "another request");
        let again = second.begin(6 | AGAIN);
        let request = KeptRequest { number: 6, object: object(2), other: Some(object(3)) };
        assert_eq!(again.before(), Some(request));
        std::mem::forget(again);

        let third = succeed(&file);
        drop(third.begin(6 | AGAIN));
        assert!(succeed(&file).begin(6 | AGAIN).before().is_none(), "it is answered");
    }
}
