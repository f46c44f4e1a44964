//! Sending to the engines what a caller has gathered for a file: content first, then attributes.

use weir_client::{Context, Epoch};

use crate::Result;
use crate::attributes::SetAttributes;
use crate::entry::Node;
use crate::file::File;
use crate::mount::{Dfs, wall_ns};
use crate::namespace::side_by_side;
use crate::record::Record;

/// What a caller holds of a file that the engines don't have yet.
#[derive(Clone, Copy, Debug)]
pub struct UnsentData<'a> {
    /// The content, if it is at hand: it knows what was found out about its end.
    pub file: Option<&'a File>,
    /// Runs of content, none overlapping another: offset and bytes.
    pub runs: &'a [(u64, Vec<u8>)],
    /// Attributes to change after the content; the size is not among them.
    pub change: SetAttributes,
    /// Newest epoch of content that the caller has written before. A modification time in `change` covers it.
    pub newest: Epoch,
}

impl Dfs {
    /// Writes gathered content and then changes attributes. Returns the newest epoch of the content written, and the node as it
    /// is then; all is on stable media. With new content and attributes that is two requests one after the other, instead of one
    /// or two for each call that made the change.
    ///
    /// Runs that lie in several chunks reach the engines in any order.
    ///
    /// # Errors
    /// Of the content those of [`crate::File::write`]; of the attributes, which change whatever became of the content, those of
    /// [`Dfs::set_attributes`].
    pub async fn write_back(
        &self,
        context: &Context,
        node: &Node,
        gathered: UnsentData<'_>,
    ) -> (Result<Epoch>, Result<Node>) {
        if let Err(error) = self.ensure_writable() {
            return (Err(error.clone()), Err(error));
        }
        let writes = self.write_runs(context, node, gathered);
        if !gathered.change.changes_record() {
            return (writes.await, Ok(node.clone()));
        }
        let (written, begun) = side_by_side(writes, self.begin_record_update(context, node)).await;
        let newest = written.as_ref().map_or(gathered.newest, |epoch| *epoch);
        let apply = |record: &mut Record| gathered.change.apply(record, wall_ns(context), newest);
        let amended = self.update_record(context, node, Some(begun), apply, async |_, _, _| Ok(())).await;
        (written, amended.map(|record| Node { record, ..node.clone() }))
    }

    /// Writes runs. Returns the newest epoch of what the caller has written.
    async fn write_runs(&self, context: &Context, node: &Node, gathered: UnsentData<'_>) -> Result<Epoch> {
        let UnsentData { file, runs, newest, .. } = gathered;
        if runs.is_empty() {
            return Ok(newest);
        }
        let written = match file {
            Some(file) => file.write_runs(context, runs).await?,
            None => self.file(node)?.write_runs(context, runs).await?,
        };
        Ok(written.max(newest))
    }
}
