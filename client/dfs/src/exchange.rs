//! Exchanging two entries.

use weir_client::Context;
use weir_proto::Der;

use crate::entry::Node;
use crate::mount::{Dfs, wall_ns};
use crate::name::shown;
use crate::namespace::side_by_side;
use crate::transaction::Tries;
use crate::xattr_move::TransactionBudget;
use crate::{Error, Result};

/// An entry to be exchanged: its directory and name.
type EntryName<'a> = (&'a Node, &'a [u8]);

impl Dfs {
    /// Exchanges two entries of any kind (`RENAME_EXCHANGE`). Returns the two inodes under their new names.
    ///
    /// All of it happens at once, or nothing, whatever other clients do meanwhile and whichever of them crash.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Invalid`] for a directory into its own subtree; [`Error::ReadOnly`]; or an object
    /// error.
    pub async fn exchange(
        &self,
        context: &Context,
        one: EntryName<'_>,
        other: EntryName<'_>,
    ) -> Result<[Node; 2]> {
        self.exchange_noting(context, one, other, |_, _| {}).await
    }

    /// As [`Dfs::exchange`]. `foretell` is told which inodes are about to be exchanged; that may come again, with others.
    ///
    /// # Errors
    /// As [`Dfs::exchange`].
    pub async fn exchange_noting(
        &self,
        context: &Context,
        one: EntryName<'_>,
        other: EntryName<'_>,
        foretell: impl Fn(&Node, &Node),
    ) -> Result<[Node; 2]> {
        self.ensure_writable()?;
        let mut tries = Tries::new(context);
        loop {
            match self.try_exchange(context, [one, other], &foretell).await {
                Ok(Some(exchanged)) => return Ok(exchanged),
                Ok(None) => tries.go_on(context, "exchange", shown(one.1))?,
                Err(error) => tries.again(context, error).await?,
            }
        }
    }

    /// One try; `None` when something had to be done first.
    async fn try_exchange(
        &self,
        context: &Context,
        places: [EntryName<'_>; 2],
        foretell: &impl Fn(&Node, &Node),
    ) -> Result<Option<[Node; 2]>> {
        let (mut transaction, view) = self.begin(context);
        let [one, other] = places.map(|(directory, name)| view.lookup(context, directory, name));
        let (first, second) = side_by_side(one, other).await;
        let (first, second) = (&first?, &second?);
        if first.oid() == second.oid() {
            return Ok(Some([first.clone(), second.clone()]));
        }
        foretell(first, second);
        let now = wall_ns(context);
        let at = |place: &Node, inode: &Node| {
            let mut node = Node { record: inode.record.clone(), ..place.clone() };
            node.record.ctime_ns = now;
            node
        };
        let exchanged = [at(second, first), at(first, second)];
        let moves =
            [(first, &exchanged[0], second, places[1].0), (second, &exchanged[1], first, places[0].0)];
        let mut room = TransactionBudget::beside(&[&exchanged[0], &exchanged[1]]);
        let mut carried = Vec::new();
        for (old, new, replaced, directory) in moves {
            self.note_linked_within(&mut transaction, new)?;
            if old.parent != new.parent && old.is_directory() {
                self.ensure_may_enter(context, &view, old.oid(), directory).await?;
                self.link_parent_within(&mut transaction, old.oid(), new.parent)?;
            }
            let inodes = (old, new, Some(replaced));
            carried.push(self.move_xattrs(context, &view, inodes, &mut room).await?);
        }
        let mut left = Vec::new();
        for ((_, new, replaced, _), carried) in moves.iter().zip(carried) {
            let Some(carried) = carried else {
                return Ok(None);
            };
            let removed = view.removable_xattrs(context, replaced, &mut room).await?;
            if removed.is_none() {
                left.push(*replaced);
            }
            let old = (*replaced, &removed.unwrap_or_default()[..]);
            self.replace_within(&mut transaction, old, &new.record, &carried)?;
        }
        match transaction.commit(context).await {
            Ok(_) => {}
            // An entry has gone since.
            Err(error) if error.is(Der::NONEXIST) => return Err(Error::Stale(first.shown())),
            Err(error) => return Err(error.into()),
        }
        for node in left {
            // They are invisible, since their keys name the inode. Where removing them fails, or this client dies
            // before, they take space until the entry of that name is removed, or the inode comes back there.
            drop(self.leave_xattrs(context, node).await);
        }
        Ok(Some(exchanged))
    }
}
