//! Bringing to the engines what a caller has gathered for a file: content first, then attributes.

use weir_client::{Context, Epoch};

use crate::Result;
use crate::attributes::SetAttributes;
use crate::entry::Node;
use crate::mount::{Dfs, wall_ns};
use crate::namespace::side_by_side;
use crate::record::Record;

/// What a caller holds of a file that the engines don't have yet.
#[derive(Clone, Copy, Debug)]
pub struct Gathered<'a> {
    /// Runs of content, none overlapping another: offset and bytes.
    pub runs: &'a [(u64, Vec<u8>)],
    /// Attributes to change after the content; the size is not among them.
    pub change: SetAttributes,
    /// Newest epoch of content that the caller has written before. A modification time in `change` covers it.
    pub newest: Epoch,
}

impl Dfs {
    /// Writes gathered content and then changes attributes. Returns the node as it is now and the newest epoch of the
    /// content written; all is on stable media then. With new content and attributes that is two requests one after
    /// the other, instead of one or two for each call that made the change.
    ///
    /// # Errors
    /// As [`crate::File::write`] and [`Dfs::set_attributes`]. When content could not be written, attributes stay.
    pub async fn write_back(
        &self,
        context: &Context,
        node: &Node,
        gathered: Gathered<'_>,
    ) -> Result<(Node, Epoch)> {
        self.ensure_writable()?;
        if !gathered.change.changes_record() {
            let newest = self.write_runs(context, node, gathered.runs).await?;
            return Ok((node.clone(), newest.max(gathered.newest)));
        }
        let (written, begun) =
            side_by_side(self.write_runs(context, node, gathered.runs), self.begin_amendment(context, node))
                .await;
        let newest = written?.max(gathered.newest);
        let apply = |record: &mut Record| gathered.change.apply(record, wall_ns(context), newest);
        let record = self.amend(context, node, Some(begun), apply, async |_, _| Ok(())).await?;
        Ok((Node { record, ..node.clone() }, newest))
    }

    async fn write_runs(&self, context: &Context, node: &Node, runs: &[(u64, Vec<u8>)]) -> Result<Epoch> {
        if runs.is_empty() {
            return Ok(Epoch::ZERO);
        }
        self.file(node)?.write_runs(context, runs).await
    }
}
