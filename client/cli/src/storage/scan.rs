//! `fs scan`: counts of what is in a file system.

use serde_json::json;
use weir_dfs::{Dfs, Kind, Node};

use super::file_system::failed;
use super::listing;
use crate::connection::session::Session;
use crate::error::CliError;
use crate::output::{Answer, fields, name_of};
use crate::values::Size;

/// What was found.
#[derive(Default)]
struct Counts {
    directories: u64,
    files: u64,
    links: u64,
    others: u64,
    bytes: u64,
    largest_file: u64,
    largest_directory: u64,
    deepest: u64,
}

impl Counts {
    fn add(&mut self, node: &Node, size: u64) {
        match node.record.kind {
            Kind::Directory => self.directories += 1,
            Kind::File => {
                self.files += 1;
                self.bytes += size;
                self.largest_file = self.largest_file.max(size);
            }
            Kind::Symlink => self.links += 1,
            Kind::Fifo | Kind::Socket | Kind::BlockDevice | Kind::CharacterDevice => self.others += 1,
        }
    }

    fn answer(&self) -> Answer {
        let text = fields(&[
            ("Directories", self.directories.to_string()),
            ("Files", self.files.to_string()),
            ("Symbolic links", self.links.to_string()),
            ("Pipes, sockets and devices", self.others.to_string()),
            ("Bytes of files", Size(self.bytes).to_string()),
            ("Largest file", Size(self.largest_file).to_string()),
            ("Most entries in a directory", self.largest_directory.to_string()),
            ("Deepest directory", self.deepest.to_string()),
        ]);
        let response = json!({
            "num_dirs": self.directories,
            "num_files": self.files,
            "num_links": self.links,
            "num_others": self.others,
            "total_bytes": self.bytes,
            "largest_file": self.largest_file,
            "largest_dir": self.largest_directory,
            "max_depth": self.deepest,
        });
        Answer::new(response, text)
    }
}

/// Counts what is below a directory; a file is counted by itself.
///
/// # Errors
/// When there is no such path, or the engines refuse it or do not answer in time.
pub async fn run(session: &Session<'_>, dfs: &Dfs, path: &[u8]) -> Result<Answer, CliError> {
    let context = session.context;
    let wrong = |error: weir_dfs::Error| failed(&name_of(path), &error);
    let top = dfs.resolve(context, path, true).await.map_err(wrong)?;
    let mut counts = Counts::default();
    if !top.is_directory() {
        counts.add(&top, dfs.stat_listed(context, &top).await.map_err(wrong)?.size);
        return Ok(counts.answer());
    }
    let mut ahead = vec![(top, 0)];
    while let Some((directory, depth)) = ahead.pop() {
        counts.deepest = counts.deepest.max(depth);
        let found = listing::entries(context, dfs, &directory, &|| session.goes_on()).await.map_err(wrong)?;
        counts.largest_directory = counts.largest_directory.max(found.len() as u64);
        for node in found {
            let is_file = node.record.kind == Kind::File;
            let size = if is_file { dfs.stat_listed(context, &node).await.map_err(wrong)?.size } else { 0 };
            session.goes_on();
            counts.add(&node, size);
            if node.is_directory() {
                ahead.push((node, depth + 1));
            }
        }
    }
    Ok(counts.answer())
}
