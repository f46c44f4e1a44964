//! All entries of a directory.

use weir_client::Context;
use weir_dfs::{Dfs, Error, Node};

/// Entries asked for at a time.
const STEP: usize = 1024;

/// The entries of a directory, in no order. `answered` is called whenever engines have sent some.
pub async fn entries(
    context: &Context,
    dfs: &Dfs,
    directory: &Node,
    answered: &dyn Fn(),
) -> Result<Vec<Node>, Error> {
    let mut stream = dfs.open_directory(directory)?;
    let (mut found, mut cookie) = (Vec::new(), 0);
    loop {
        let entries = dfs.read_directory(context, &mut stream, cookie, STEP).await?;
        answered();
        let Some(last) = entries.last() else { return Ok(found) };
        cookie = last.cookie;
        found.extend(entries.iter().map(|entry| entry.node.clone()));
    }
}
